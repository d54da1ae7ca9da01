//! Work-queue entries, doorbells and completions of mlx5, byte for byte, as a card reads and writes them.
//! `ep/ibgda.cuh` is the other end.

/// Bytes of an entry, and of a completion.
pub(super) const BLOCK_BYTES: usize = 64;

/// What an entry takes up at once.
pub(super) type Block = [u8; BLOCK_BYTES];

/// Where a completion has the word that a kernel looks at: kind and number of the entry.
pub(super) const COMPLETION_WORD_AT: usize = 60;

/// Bytes of an atomic, in the peer's memory and in that of the requester.
pub(super) const ADD_BYTES: u32 = 4;

/// The bytes of a completion that was never written: of no kind that there is.
pub(super) const INVALID: u32 = u32::MAX;

/// Opcodes.
const WRITE: u8 = 0x08;
const MASKED_ADD: u8 = 0x15;
/// The modifier of a masked add of 4 bytes.
const HALF: u8 = 0x08;

/// The kinds of completions.
const CARRIED_OUT: u8 = 0x0;
const FAILED: u8 = 0xd;

/// Of a control segment: the card says when it is done.
const SAYS_DONE: u8 = 0x08;

/// Of a data segment: bytes follow.
const INLINE: u32 = 1 << 31;

/// Why an entry failed, as a completion says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syndrome {
    /// The entry makes no sense.
    Operation = 0x02,
    /// It names memory of this rank that it may not touch.
    Protection = 0x04,
    /// One before it has failed.
    Flushed = 0x05,
    /// It names memory of the peer that it may not touch.
    RemoteAccess = 0x13,
    /// The peer does not answer.
    Retries = 0x15,
}

/// Memory as an entry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u32,
}

/// Where the bytes of a write are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Memory(Place),
    /// In the entry.
    Inline(Vec<u8>),
}

/// What an entry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    Write {
        to: Place,
        source: Source,
    },
    /// To add to a word of 32 bits; what it was before goes to `before`.
    Add {
        to: Place,
        number: u32,
        before: Place,
    },
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) work: Work,
    pub(super) says_done: bool,
}

fn word(block: &[u8], at: usize) -> u32 {
    block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn wide(block: &[u8], at: usize) -> u64 {
    u64::from(word(block, at)) << 32 | u64::from(word(block, at + 4))
}

/// Fails unless what an entry says of itself is what it is.
fn expect(what: &str, found: u32, wanted: u32) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("has {found:#x} as its {what}, and has to have {wanted:#x}")),
    }
}

impl Entry {
    /// Reads the entry of this number in the queue pair `pair`; a clause says what is wrong with it.
    pub(super) fn read(block: &Block, pair: u32, number: u32) -> Result<Entry, String> {
        let (head, size) = (word(block, 0), word(block, 4));
        let (modifier, opcode) = (block[0], block[3]);
        expect("number", head >> 8 & 0xffff, number & 0xffff)?;
        expect("queue pair", size >> 8, pair)?;
        expect("signature and stream", word(block, 8) >> 8, 0)?;
        expect("immediate", word(block, 12), 0)?;
        expect("word behind the key", word(block, 28), 0)?;
        let quads = size & 0xff;
        let to = |bytes| Place { address: wide(block, 16), key: word(block, 24), bytes };
        let here = |at: usize| Place {
            bytes: word(block, at),
            key: word(block, at + 4),
            address: wide(block, at + 8),
        };
        let work = match (opcode, modifier) {
            (WRITE, 0) => {
                let first = word(block, 32);
                let bytes = first & !INLINE;
                let is_inline = first & INLINE != 0;
                let source = match is_inline {
                    true => {
                        let held = block.get(36..36 + bytes as usize);
                        let held = held.ok_or_else(|| format!("holds {bytes} bytes, of 28"))?;
                        Source::Inline(held.to_vec())
                    }
                    false => Source::Memory(here(32)),
                };
                let wanted = if is_inline { 2 + (4 + bytes).div_ceil(16) } else { 3 };
                expect("size in quads", quads, wanted)?;
                Work::Write { to: to(bytes), source }
            }
            (MASKED_ADD, HALF) => {
                expect("size in quads", quads, 4)?;
                expect("boundary of carries", word(block, 36), 0)?;
                expect("words behind the boundary", word(block, 40) | word(block, 44), 0)?;
                let before = here(48);
                expect("bytes of an old value", before.bytes, ADD_BYTES)?;
                Work::Add { to: to(ADD_BYTES), number: word(block, 32), before }
            }
            _ => return Err(format!("has the opcode {opcode:#04x} with modifier {modifier:#04x}")),
        };
        Ok(Entry { work, says_done: block[11] & SAYS_DONE != 0 })
    }
}

/// What is written to a doorbell: the number that the next entry will have, and the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ring {
    next: u16,
    pair: u32,
}

impl Ring {
    /// Reads what a kernel has stored.
    fn read(stored: u64) -> Ring {
        let (head, size) = ((stored as u32).swap_bytes(), ((stored >> 32) as u32).swap_bytes());
        Ring { next: (head >> 8) as u16, pair: size >> 8 }
    }
}

/// The number that the next entry will have, of a doorbell record.
pub(super) fn recorded(stored: u32) -> u16 {
    stored.swap_bytes() as u16
}

/// How far a number of 16 bits is ahead of another one.
fn ahead(number: u16, of: u32) -> i16 {
    number.wrapping_sub(of as u16) as i16
}

/// What the doorbell and the record of a queue pair have said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// The doorbell when it was last looked at; 0: it was never rung.
    pub(super) rung: u64,
    /// The record at that time. It only goes on.
    pub(super) recorded: u16,
    /// Number of the first entry of which the card does not know.
    pub(super) known: u32,
}

/// What a look at a doorbell and a record brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Nothing,
    /// The doorbell was rung.
    Doorbell,
    /// The record is ahead. The card reads it again while it works, without a doorbell.
    Record,
}

impl Heard {
    /// Takes note of a doorbell and a record, which was read at the same time or later. `read` is the next entry
    /// to read, of a queue pair with this number and so many slots. Fails with the entry that is told of wrongly,
    /// and a clause that says what is wrong.
    pub(super) fn hear(
        &mut self,
        (doorbell, recorded): (u64, u16),
        read: u32,
        (pair, slots): (u32, usize),
    ) -> Result<News, (u32, String)> {
        let before = std::mem::replace(&mut self.recorded, recorded);
        if self.rung != 0 && ahead(recorded, u32::from(before)) < 0 {
            let why = format!("is taken back by a record that was {before} and is {recorded}");
            return Err((self.known.wrapping_sub(1), why));
        }
        if doorbell == self.rung {
            let more = ahead(recorded, self.known);
            if self.rung == 0 || more <= 0 {
                return Ok(News::Nothing);
            }
            self.known = self.known.wrapping_add(more as u32);
            return Ok(News::Record);
        }
        self.rung = doorbell;
        let ring = Ring::read(doorbell);
        let next = self.known.wrapping_add(i32::from(ahead(ring.next, self.known)) as u32);
        let in_reach = next.wrapping_sub(read) as i32 <= slots as i32;
        let why = if ring.pair != pair {
            format!("was announced by a doorbell for queue pair {:#x}, not {pair:#x}", ring.pair)
        } else if !in_reach {
            format!("was announced when entry {read} was the next one to read, of {slots} slots")
        } else if ahead(recorded, next) < 0 {
            let rung = ring.next;
            format!("was announced by a doorbell up to {rung}, with {recorded} in its record")
        } else {
            if ahead(ring.next, self.known) > 0 {
                self.known = next;
            }
            return Ok(News::Doorbell);
        };
        Err((next.wrapping_sub(1), why))
    }
}

/// The completion of an entry: carried out, or why not.
pub(super) fn completion(pair: u32, number: u32, failed: Option<Syndrome>) -> Block {
    let mut block = [0; BLOCK_BYTES];
    let kind = if failed.is_some() { FAILED } else { CARRIED_OUT };
    block[55] = failed.map_or(0, |syndrome| syndrome as u8);
    block[56..60].copy_from_slice(&pair.to_be_bytes());
    block[COMPLETION_WORD_AT..62].copy_from_slice(&(number as u16).to_be_bytes());
    block[63] = kind << 4;
    block
}

/// The word of a completion that a kernel looks at, of an entry that was carried out.
pub(super) fn completed(number: u32) -> u32 {
    u32::from((number as u16).swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of 96 bytes by queue pair 0x1234, as entry 0x10007.
    fn write() -> Block {
        let mut block = [0; BLOCK_BYTES];
        block[..12].copy_from_slice(&[0, 0, 7, 8, 0, 0x12, 0x34, 3, 0, 0, 0, 8]);
        block[16..28].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9]);
        block[32..48].copy_from_slice(&[0, 0, 0, 96, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 4]);
        block
    }

    fn read(block: &Block) -> Result<Entry, String> {
        Entry::read(block, 0x1234, 0x1_0007)
    }

    #[test]
    fn entries_are_read_as_the_card_does() {
        let to = Place { address: 1 << 32 | 2, key: 9, bytes: 96 };
        let from = Place { address: 3 << 32 | 4, key: 5, bytes: 96 };
        let source = Source::Memory(from);
        let work = Work::Write { to, source };
        assert_eq!(read(&write()), Ok(Entry { work, says_done: true }));
        let mut inline = write();
        inline[32..36].copy_from_slice(&[0x80, 0, 0, 13]);
        inline[7] = 4;
        inline[11] = 0;
        let Ok(Entry { work: Work::Write { to, source }, says_done: false }) = read(&inline) else {
            panic!("{:?}", read(&inline));
        };
        assert_eq!((to.bytes, source), (13, Source::Inline(inline[36..49].to_vec())));
        let mut add = write();
        (add[0], add[3], add[7]) = (8, 0x15, 4);
        add[32..48].copy_from_slice(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        add[48..64].copy_from_slice(&[0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 8]);
        let to = Place { address: 1 << 32 | 2, key: 9, bytes: 4 };
        let before = Place { address: 8, key: 6, bytes: 4 };
        let work = Work::Add { to, number: 0x102, before };
        assert_eq!(read(&add), Ok(Entry { work, says_done: true }));
    }

    #[test]
    fn what_makes_no_sense_is_said_with_its_numbers() {
        let said = |at: usize, byte: u8| {
            let mut block = write();
            block[at] = byte;
            read(&block).unwrap_err()
        };
        assert_eq!(said(2, 8), "has 0x8 as its number, and has to have 0x7");
        assert_eq!(said(6, 0x35), "has 0x1235 as its queue pair, and has to have 0x1234");
        assert_eq!(said(3, 0x0a), "has the opcode 0x0a with modifier 0x00");
        assert_eq!(said(0, 9), "has the opcode 0x08 with modifier 0x09");
        assert_eq!(said(7, 4), "has 0x4 as its size in quads, and has to have 0x3");
        let mut long = write();
        long[32..36].copy_from_slice(&[0x80, 0, 0, 29]);
        assert_eq!(read(&long).unwrap_err(), "holds 29 bytes, of 28");
    }

    #[test]
    fn doorbells_and_records_have_their_highest_byte_first() {
        let stored = u64::from_le_bytes([0, 0x12, 0x34, 0, 0, 0, 0x56, 0]);
        assert_eq!(Ring::read(stored), Ring { next: 0x1234, pair: 0x56 });
        assert_eq!(recorded(u32::from_le_bytes([0, 0, 0x12, 0x34])), 0x1234);
    }

    #[test]
    fn completions_name_the_entry_and_what_was_wrong() {
        let good = completion(0x1234, 0x1_0007, None);
        assert_eq!(good[COMPLETION_WORD_AT..], [0, 7, 0, 0]);
        assert_eq!(good[COMPLETION_WORD_AT..], completed(0x1_0007).to_le_bytes());
        let bad = completion(0x1234, 0x102, Some(Syndrome::RemoteAccess));
        assert_eq!((&bad[54..60], bad[63]), (&[0, 0x13, 0, 0, 0x12, 0x34][..], 0xd0));
    }
}

//! Commands to the firmware of mlx5: numbers at places that count bits, the highest of a byte first.

/// Where a number stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    at: usize,
    bits: usize,
}

impl Field {
    const fn new(at: usize, bits: usize) -> Field {
        Field { at, bits }
    }

    const fn behind(self, at: usize) -> Field {
        Field { at: self.at + at, bits: self.bits }
    }

    /// The number there, at most 64 bits.
    pub(super) fn read(self, bytes: &[u8]) -> u64 {
        let bit =
            |at: usize| u64::from(bytes.get(at / 8).copied().unwrap_or(0) >> (7 - at % 8) & 1);
        (self.at..self.at + self.bits).fold(0, |number, at| number << 1 | bit(at))
    }

    fn write(self, bytes: &mut [u8], number: u64) {
        for index in 0..self.bits {
            let at = self.at + index;
            let mask = 1 << (7 - at % 8);
            match number >> (self.bits - 1 - index) & 1 {
                0 => bytes[at / 8] &= !mask,
                _ => bytes[at / 8] |= mask,
            }
        }
    }
}

/// What is asked.
pub(super) const CREATE_CQ: (&str, u16) = ("CREATE_CQ", 0x400);
pub(super) const CREATE_QP: (&str, u16) = ("CREATE_QP", 0x500);
pub(super) const RST2INIT_QP: (&str, u16) = ("RST2INIT_QP", 0x502);
pub(super) const INIT2RTR_QP: (&str, u16) = ("INIT2RTR_QP", 0x503);
pub(super) const RTR2RTS_QP: (&str, u16) = ("RTR2RTS_QP", 0x504);
pub(super) const QUERY_HCA_CAP: (&str, u16) = ("QUERY_HCA_CAP", 0x100);

/// The least page that a command can name has 2 to this power bytes; it counts from there.
pub(super) const LOG_LEAST_PAGE: u64 = 12;

/// Bytes of the commands that make or change a queue, and of their answers.
pub(super) const QUEUE_COMMAND_BYTES: usize = 0x110;
pub(super) const QUEUE_ANSWER_BYTES: usize = 16;
/// Bytes of `QUERY_HCA_CAP`, and of its answer.
pub(super) const CAP_COMMAND_BYTES: usize = 16;
pub(super) const CAP_ANSWER_BYTES: usize = 16 + 0x1000;

pub(super) const OPCODE: Field = Field::new(0, 16);
pub(super) const OP_MOD: Field = Field::new(0x30, 16);

/// Of an answer.
const STATUS: Field = Field::new(0, 8);
const SYNDROME: Field = Field::new(0x20, 32);
/// Of an answer: the number of what was made; of a command: of what is changed.
pub(super) const NUMBER: Field = Field::new(0x48, 24);

/// What a card can do with atomics: `OP_MOD` that asks for it, and what it answers.
pub(super) const ATOMIC_CAPS: u64 = 3 << 1 | 1;
pub(super) const ATOMIC_OPERATIONS: Field = Field::new(0x80 + 0x90, 16);
pub(super) const ATOMIC_SIZES: Field = Field::new(0x80 + 0xb0, 16);

/// Of a completion queue.
pub(super) mod cq {
    use super::Field;

    const fn context(at: usize, bits: usize) -> Field {
        Field::new(0x80 + at, bits)
    }

    pub(in super::super) const RECORD_UMEM_VALID: Field = context(0x6, 1);
    /// All completions overwrite the first one.
    pub(in super::super) const COLLAPSED: Field = context(0xb, 1);
    /// Nobody says how far they were read.
    pub(in super::super) const MAY_OVERRUN: Field = context(0xe, 1);
    pub(in super::super) const RECORD_UMEM: Field = context(0x20, 32);
    pub(in super::super) const LOG_SIZE: Field = context(0x63, 5);
    pub(in super::super) const REGISTER_PAGE: Field = context(0x68, 24);
    pub(in super::super) const EVENTS: Field = context(0xb8, 8);
    pub(in super::super) const LOG_PAGE_BYTES: Field = context(0xc3, 5);
    pub(in super::super) const RECORD_AT: Field = context(0x1c0, 64);
    pub(in super::super) const UMEM_AT: Field = Field::new(0x280, 64);
    pub(in super::super) const UMEM: Field = Field::new(0x2c0, 32);
    pub(in super::super) const UMEM_VALID: Field = Field::new(0x2e0, 1);
}

/// Of a queue pair.
pub(super) mod qp {
    use super::Field;

    const fn context(at: usize, bits: usize) -> Field {
        Field::new(0xc0 + at, bits)
    }

    /// The way to the peer.
    const fn path(at: usize, bits: usize) -> Field {
        Field::new(at, bits).behind(0xc0 + 0xc0)
    }

    pub(in super::super) const PATH_STATE: Field = context(0x13, 2);
    pub(in super::super) const DOMAIN: Field = context(0x28, 24);
    pub(in super::super) const MTU: Field = context(0x40, 3);
    pub(in super::super) const LOG_MESSAGE_BYTES: Field = context(0x43, 5);
    pub(in super::super) const LOG_SLOTS: Field = context(0x51, 4);
    pub(in super::super) const REGISTER_PAGE: Field = context(0x68, 24);
    pub(in super::super) const LOG_PAGE_BYTES: Field = context(0xa3, 5);
    pub(in super::super) const PEER: Field = context(0xa8, 24);
    pub(in super::super) const LOG_ATOMICS_SENT: Field = context(0x388, 3);
    pub(in super::super) const RETRIES: Field = context(0x38d, 3);
    pub(in super::super) const NOT_READY_RETRIES: Field = context(0x390, 3);
    pub(in super::super) const CQ_SENT: Field = context(0x3e8, 24);
    pub(in super::super) const LOG_ATOMICS_TAKEN: Field = context(0x488, 3);
    pub(in super::super) const ATOMIC_MODE: Field = context(0x48c, 4);
    pub(in super::super) const TAKES_WRITES: Field = context(0x491, 1);
    pub(in super::super) const TAKES_ATOMICS: Field = context(0x492, 1);
    pub(in super::super) const NOT_READY_TIMER: Field = context(0x4a3, 5);
    pub(in super::super) const CQ_RECEIVED: Field = context(0x4e8, 24);
    pub(in super::super) const RECORD_AT: Field = context(0x500, 64);
    pub(in super::super) const RECEIVES: Field = context(0x565, 3);
    pub(in super::super) const RECORD_UMEM_VALID: Field = context(0x683, 1);
    pub(in super::super) const RECORD_UMEM: Field = context(0x720, 32);
    pub(in super::super) const UMEM_AT: Field = Field::new(0x800, 64);
    pub(in super::super) const UMEM: Field = Field::new(0x840, 32);
    pub(in super::super) const UMEM_VALID: Field = Field::new(0x860, 1);

    pub(in super::super) const GLOBAL: Field = path(0x28, 1);
    pub(in super::super) const LID: Field = path(0x30, 16);
    pub(in super::super) const ACK_TIMEOUT: Field = path(0x40, 5);
    pub(in super::super) const OWN_GID: Field = path(0x48, 8);
    pub(in super::super) const HOPS: Field = path(0x58, 8);
    pub(in super::super) const TRAFFIC_CLASS: Field = path(0x64, 8);
    pub(in super::super) const GID: Field = path(0x80, 128);
    pub(in super::super) const DSCP: Field = path(0x10a, 6);
    pub(in super::super) const UDP_PORT: Field = path(0x110, 16);
    pub(in super::super) const PRIORITY: Field = path(0x121, 3);
    pub(in super::super) const SERVICE_LEVEL: Field = path(0x124, 4);
    pub(in super::super) const PORT: Field = path(0x128, 8);
    pub(in super::super) const MAC: Field = path(0x130, 48);
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Command {
    /// One with an opcode; all else is 0.
    pub(super) fn new(name: &'static str, opcode: u16, bytes: usize) -> Command {
        Command { name, bytes: vec![0; bytes] }.with(OPCODE, opcode.into())
    }

    /// One that makes or changes a queue.
    pub(super) fn of_queue((name, opcode): (&'static str, u16)) -> Command {
        Command::new(name, opcode, QUEUE_COMMAND_BYTES)
    }

    /// With a number.
    pub(super) fn with(mut self, field: Field, number: u64) -> Command {
        debug_assert!(field.bits >= 64 || number >> field.bits == 0, "{number:#x} in {field:?}");
        field.write(&mut self.bytes, number);
        self
    }

    /// With bytes as they are.
    pub(super) fn with_bytes(mut self, field: Field, bytes: &[u8]) -> Command {
        debug_assert_eq!(field.bits, 8 * bytes.len());
        let at = field.at / 8;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What the firmware answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer(Vec<u8>);

impl Answer {
    pub(super) fn new(bytes: usize) -> Answer {
        Answer(vec![0; bytes])
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    pub(super) fn get(&self, field: Field) -> u64 {
        field.read(&self.0)
    }

    /// Not 0: it was not carried out.
    pub(super) fn status(&self) -> u64 {
        self.get(STATUS)
    }

    pub(super) fn syndrome(&self) -> u64 {
        self.get(SYNDROME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_where_they_are_read() {
        let command = Command::of_queue(CREATE_QP).with(qp::LOG_SLOTS, 6).with(qp::PEER, 0x12_3456);
        let bytes = command.bytes();
        assert_eq!((bytes.len(), &bytes[..2]), (272, &[5, 0][..]));
        // The context begins at byte 24; slots are the bits 0x51 to 0x54 of it, behind one of another use.
        assert_eq!(bytes[24 + 10], 6 << 3);
        assert_eq!(bytes[24 + 21..24 + 24], [0x12, 0x34, 0x56]);
        assert_eq!((qp::LOG_SLOTS.read(bytes), qp::PEER.read(bytes)), (6, 0x12_3456));
        let again = command.with(qp::LOG_SLOTS, 9);
        assert_eq!(qp::LOG_SLOTS.read(again.bytes()), 9);
        assert_eq!(qp::PEER.read(again.bytes()), 0x12_3456);
        let wide = Command::of_queue(CREATE_CQ).with(cq::RECORD_AT, 0x0102_0304_0506_0708);
        assert_eq!(wide.bytes()[16 + 56..16 + 64], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn answers_that_are_too_short_hold_zeros() {
        let mut answer = Answer::new(12);
        answer.room()[9..].copy_from_slice(&[1, 2, 3]);
        assert_eq!(answer.get(NUMBER), 0x01_0203);
        assert_eq!(answer.get(ATOMIC_SIZES), 0);
    }
}

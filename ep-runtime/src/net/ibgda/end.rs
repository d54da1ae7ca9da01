//! What a rank tells the others of its card; it travels through the join protocol.

use crate::net_error::NetError;

/// How the queue pairs and the memory of a rank are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CardEnd {
    pub(super) is_ethernet: bool,
    /// As the card writes it.
    pub(super) mtu: u8,
    /// Atomics that it carries out at once for one peer, as a power of two.
    pub(super) log_atomics: u8,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// Where its rows begin, and their key.
    pub(super) data: (u64, u32),
    /// Its counters.
    pub(super) counters: (u64, u32),
    /// Numbers of its queue pairs, [peer, queue]; 0 where there is none.
    pub(super) pairs: Vec<u32>,
}

/// Bytes before the numbers of queue pairs.
const HEAD_BYTES: usize = 45;

impl CardEnd {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.is_ethernet.into(), self.mtu, self.log_atomics];
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.gid);
        for (address, key) in [self.data, self.counters] {
            bytes.extend(address.to_le_bytes());
            bytes.extend(key.to_le_bytes());
        }
        debug_assert_eq!(bytes.len(), HEAD_BYTES);
        bytes.extend(self.pairs.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// None: these are not the bytes of an end with so many queue pairs, or it is one that cannot be.
    pub(super) fn decode(bytes: &[u8], pairs: usize) -> Option<CardEnd> {
        let (&[is_ethernet, mtu, log_atomics], rest) = bytes.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (data, rest) = reached(rest)?;
        let (counters, rest) = reached(rest)?;
        let (numbers, odd) = rest.as_chunks();
        let numbers: Vec<u32> = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let is_one = odd.is_empty()
            && numbers.len() == pairs
            && numbers.iter().all(|number| number >> 24 == 0)
            && is_ethernet <= 1
            && (1..=5).contains(&mtu)
            && log_atomics <= 7;
        is_one.then(|| CardEnd {
            is_ethernet: is_ethernet == 1,
            mtu,
            log_atomics,
            lid: u16::from_le_bytes(*lid),
            gid: *gid,
            data,
            counters,
            pairs: numbers,
        })
    }

    /// Fails if packets of one cannot come to the other.
    pub(super) fn meets(&self, rank: usize, there: &CardEnd, peer: usize) -> Result<(), NetError> {
        let link = |end: &CardEnd| if end.is_ethernet { "Ethernet" } else { "InfiniBand" };
        if self.is_ethernet == there.is_ethernet {
            return Ok(());
        }
        let (own, other) = (link(self), link(there));
        let why = format!(
            "the card of rank {rank} is on {own}, that of rank {peer} on {other}: name cards of one network \
             (`CardOptions::devices`)"
        );
        Err(NetError::NoCard { why })
    }
}

/// An address and a key.
fn reached(bytes: &[u8]) -> Option<((u64, u32), &[u8])> {
    let (address, rest) = bytes.split_first_chunk()?;
    let (key, rest) = rest.split_first_chunk()?;
    Some(((u64::from_le_bytes(*address), u32::from_le_bytes(*key)), rest))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn end() -> CardEnd {
        CardEnd {
            is_ethernet: true,
            mtu: 5,
            log_atomics: 4,
            lid: 7,
            gid: [9; 16],
            data: (1 << 40, 0x1111),
            counters: (1 << 41, 0x2222),
            pairs: vec![0, 0x100, 0xff_ffff],
        }
    }

    #[test]
    fn ends_survive_the_way_and_others_are_none() {
        let bytes = end().encode();
        assert_eq!(CardEnd::decode(&bytes, 3), Some(end()));
        assert_eq!(CardEnd::decode(&bytes, 2), None);
        for length in 0..bytes.len() {
            assert_eq!(CardEnd::decode(&bytes[..length], 3), None, "{length} bytes");
        }
        for (at, byte) in [(0, 2), (1, 0), (1, 6), (2, 8), (bytes.len() - 1, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(CardEnd::decode(&wrong, 3), None, "{byte} at {at}");
        }
    }

    #[test]
    fn links_of_two_kinds_do_not_meet() {
        let other = CardEnd { is_ethernet: false, ..end() };
        assert_eq!(end().meets(0, &end(), 1), Ok(()));
        let error = end().meets(0, &other, 1).unwrap_err().to_string();
        assert!(
            error.starts_with("the card of rank 0 is on Ethernet, that of rank 1 on InfiniBand")
        );
    }
}

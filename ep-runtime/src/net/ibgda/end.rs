//! What a rank tells the others of its card; it travels through the join protocol.

use crate::net_error::NetError;

/// How the queue pairs and the memory of a rank are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CardEnd {
    /// Its ports, which its queue pairs take in turn.
    pub(super) ports: Vec<PortEnd>,
    /// Where its rows begin.
    pub(super) data: u64,
    /// Its counters.
    pub(super) counters: u64,
    /// Numbers of its queue pairs, [peer, queue]; 0 where there is none.
    pub(super) pairs: Vec<u32>,
}

/// How a port of a rank is reached, and what it lets others touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortEnd {
    pub(super) is_ethernet: bool,
    /// As the card writes it.
    pub(super) mtu: u8,
    /// Atomics that it carries out at once for one peer, as a power of two.
    pub(super) log_atomics: u8,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// The keys of rows and counters.
    pub(super) data_key: u32,
    pub(super) counters_key: u32,
}

impl PortEnd {
    const BYTES: usize = 29;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.is_ethernet.into(), self.mtu, self.log_atomics];
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.gid);
        bytes.extend([self.data_key, self.counters_key].iter().flat_map(|key| key.to_le_bytes()));
        debug_assert_eq!(bytes.len(), PortEnd::BYTES);
        bytes
    }

    /// None: it is a port that cannot be.
    fn decode(bytes: &[u8]) -> Option<PortEnd> {
        let (&[is_ethernet, mtu, log_atomics], rest) = bytes.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (data_key, rest) = rest.split_first_chunk()?;
        let counters_key = rest.try_into().ok()?;
        let is_one = is_ethernet <= 1 && (1..=5).contains(&mtu) && log_atomics <= 7;
        is_one.then(|| PortEnd {
            is_ethernet: is_ethernet == 1,
            mtu,
            log_atomics,
            lid: u16::from_le_bytes(*lid),
            gid: *gid,
            data_key: u32::from_le_bytes(*data_key),
            counters_key: u32::from_le_bytes(counters_key),
        })
    }
}

impl CardEnd {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.ports.iter().flat_map(PortEnd::encode).collect();
        bytes.extend([self.data, self.counters].iter().flat_map(|at| at.to_le_bytes()));
        bytes.extend(self.pairs.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// None: these are not the bytes of an end with so many ports and queue pairs, or it is one that cannot be.
    pub(super) fn decode(bytes: &[u8], ports: usize, pairs: usize) -> Option<CardEnd> {
        let (of_ports, rest) = bytes.split_at_checked(ports * PortEnd::BYTES)?;
        let ports = of_ports.chunks(PortEnd::BYTES).map(PortEnd::decode).collect::<Option<_>>()?;
        let (data, rest) = rest.split_first_chunk()?;
        let (counters, rest) = rest.split_first_chunk()?;
        let (numbers, odd) = rest.as_chunks();
        let numbers: Vec<u32> = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let is_one = odd.is_empty()
            && numbers.len() == pairs
            && numbers.iter().all(|number| number >> 24 == 0);
        is_one.then(|| CardEnd {
            ports,
            data: u64::from_le_bytes(*data),
            counters: u64::from_le_bytes(*counters),
            pairs: numbers,
        })
    }

    /// Fails if packets of a port cannot come to that of the other one.
    pub(super) fn meets(&self, rank: usize, there: &CardEnd, peer: usize) -> Result<(), NetError> {
        let link = |end: &PortEnd| if end.is_ethernet { "Ethernet" } else { "InfiniBand" };
        let mut both = self.ports.iter().zip(&there.ports);
        let Some((own, other)) = both.find(|(own, other)| own.is_ethernet != other.is_ethernet)
        else {
            return Ok(());
        };
        let (own, other) = (link(own), link(other));
        let why = format!(
            "the card of rank {rank} is on {own}, that of rank {peer} on {other}: name cards of one network \
             (`CardOptions::devices`)"
        );
        Err(NetError::NoCard { why })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn end() -> CardEnd {
        let port = PortEnd {
            is_ethernet: true,
            mtu: 5,
            log_atomics: 4,
            lid: 7,
            gid: [9; 16],
            data_key: 0x1111,
            counters_key: 0x2222,
        };
        CardEnd {
            ports: vec![port, PortEnd { lid: 8, data_key: 0x3333, ..port }],
            data: 1 << 40,
            counters: 1 << 41,
            pairs: vec![0, 0x100, 0xff_ffff],
        }
    }

    #[test]
    fn ends_survive_the_way_and_others_are_none() {
        let bytes = end().encode();
        assert_eq!(CardEnd::decode(&bytes, 2, 3), Some(end()));
        assert_eq!(CardEnd::decode(&bytes, 2, 2), None);
        assert_eq!(CardEnd::decode(&bytes, 1, 3), None);
        for length in 0..bytes.len() {
            assert_eq!(CardEnd::decode(&bytes[..length], 2, 3), None, "{length} bytes");
        }
        for (at, byte) in [(0, 2), (1, 0), (30, 6), (31, 8), (bytes.len() - 1, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(CardEnd::decode(&wrong, 2, 3), None, "{byte} at {at}");
        }
    }

    #[test]
    fn links_of_two_kinds_do_not_meet() {
        let mut other = end();
        other.ports[1].is_ethernet = false;
        assert_eq!(end().meets(0, &end(), 1), Ok(()));
        let error = end().meets(0, &other, 1).unwrap_err().to_string();
        assert!(
            error.starts_with("the card of rank 0 is on Ethernet, that of rank 1 on InfiniBand")
        );
    }
}

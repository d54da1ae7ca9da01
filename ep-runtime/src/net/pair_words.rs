//! The description of a queue pair that a kernel gets, for a real card and for a model.

/// The words of `ep::QueuePair` (`templates/device/ep/ibgda.cuh`) in order. A test holds this list against
/// the header's text.
#[cfg(test)]
const NAMES: [&str; 14] = [
    "Quad* entries",
    "const u32* done",
    "u32* record",
    "u64* doorbell",
    "u64 data",
    "u64 counters",
    "u64 before",
    "u64 written",
    "u32 data_key",
    "u32 counters_key",
    "u32 own_data_key",
    "u32 own_counters_key",
    "u32 number",
    "u32 claimed",
];

/// Bytes of `ep::QueuePair`.
pub(super) const PAIR_BYTES: usize = 128;

/// Its words, but for `written`: of all entries that are claimed at first, the card was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PairWords {
    pub(super) entries: u64,
    pub(super) done: u64,
    pub(super) record: u64,
    pub(super) doorbell: u64,
    pub(super) data: u64,
    pub(super) counters: u64,
    pub(super) before: u64,
    pub(super) data_key: u32,
    pub(super) counters_key: u32,
    pub(super) own_data_key: u32,
    pub(super) own_counters_key: u32,
    pub(super) number: u32,
    pub(super) first: u32,
}

impl PairWords {
    pub(super) fn encode(&self) -> [u8; PAIR_BYTES] {
        let wide = [
            self.entries,
            self.done,
            self.record,
            self.doorbell,
            self.data,
            self.counters,
            self.before,
            u64::from(self.first),
        ];
        let narrow = [
            self.data_key,
            self.counters_key,
            self.own_data_key,
            self.own_counters_key,
            self.number,
            self.first,
        ];
        let wide = wide.into_iter().flat_map(u64::to_le_bytes);
        let words = wide.chain(narrow.into_iter().flat_map(u32::to_le_bytes));
        let mut bytes = [0; PAIR_BYTES];
        bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_header() {
        let members = crate::device::members_of("ep/ibgda.cuh", "struct alignas(128) QueuePair {");
        assert_eq!(members, NAMES);
        let bytes =
            PairWords { entries: 1, before: 2, data_key: 3, first: 4, ..PairWords::default() };
        let bytes = bytes.encode();
        let words: Vec<u8> = [0, 48, 56, 64, 84].map(|at| bytes[at]).into();
        assert_eq!(words, [1, 2, 4, 3, 4]);
    }
}

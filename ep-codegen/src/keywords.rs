//! The words of the language. All of them are contextual: a pipeline may use any as a name.

use crate::ast::{ChannelKind, PeerSet, TensorKind, Transport};

/// The words that begin a declaration.
pub const ITEMS: &[&str] = &[
    "shape", "variant", "tune", "arg", "size", "input", "output", "inout", "table", "message",
    "channel", "role", "phase", "when", "uses", "cuda",
];

/// The words that begin a statement.
pub const STATEMENTS: &[&str] = &[
    "for", "announce", "push", "store", "record", "add", "count", "let", "await", "close", "when",
];

/// The words that declare tensors.
pub const TENSORS: &[(&str, TensorKind)] = &[
    ("input", TensorKind::Input),
    ("output", TensorKind::Output),
    ("inout", TensorKind::Inout),
    ("table", TensorKind::Table),
];

/// The kinds of a channel.
pub const CHANNEL_KINDS: &[(&str, ChannelKind)] = &[
    ("ring", ChannelKind::Ring),
    ("slots", ChannelKind::Slots),
    ("direct", ChannelKind::Direct),
    ("pull", ChannelKind::Pull),
];

/// What carries a channel.
pub const TRANSPORTS: &[(&str, Transport)] =
    &[("nvlink", Transport::Nvlink), ("rdma", Transport::Rdma), ("ibgda", Transport::Ibgda)];

/// The peer sets.
pub const PEER_SETS: &[(&str, PeerSet)] = &[
    ("all", PeerSet::All),
    ("others", PeerSet::Others),
    ("local", PeerSet::Local),
    ("rail", PeerSet::Rail),
];

/// The scalar element types.
pub const ELEMS: &[&str] = &["bool", "u8", "i32", "i64", "f32", "bf16", "e4m3", "ue8m0"];

/// The candidate that `name` is most likely a slip of, if one is near enough.
///
/// A slip is at most one edit in three characters: a swap, a missing, a doubled or a wrong letter.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(edits, candidate)| *edits * 3 <= candidate.chars().count())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words; swapping two neighbours is one edit. Case costs nothing, so that
/// `ring` and `Ring` are as near as can be without being equal.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().chars().collect();
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut rows = vec![(0..=right.len()).collect::<Vec<usize>>()];
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let swapped = i > 0 && j > 0 && left[i - 1] == *b && right[j - 1] == *a;
            let swap = if swapped { rows[i - 1][j - 1] + 1 } else { usize::MAX };
            let change = rows[i][j] + usize::from(a != b);
            row.push(change.min(rows[i][j + 1] + 1).min(row[j] + 1).min(swap));
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_nothing_else() {
        let near = |name| nearest(name, ITEMS.iter().copied());
        assert_eq!(near("chanel"), Some("channel"));
        assert_eq!(near("rloe"), Some("role"));
        assert_eq!(near("Shape"), Some("shape"));
        assert_eq!(near("kernel"), None);
        assert_eq!(nearest("rnig", ["ring", "slots"]), Some("ring"));
    }
}

//! What somebody meant who wrote something else.

/// The candidate that `name` is most likely a slip of, if one is near enough.
///
/// A slip is at most one edit in three characters: a swap, a missing, a doubled or a wrong letter.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(edits, candidate)| *edits * 3 <= candidate.chars().count())
        // A word that somebody did not finish is nearer than one with another letter.
        .min_by_key(|(edits, candidate)| (*edits, !candidate.starts_with(name)))
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
        let near = |name| nearest(name, ["shape", "channel", "role", "uses"]);
        assert_eq!(near("chanel"), Some("channel"));
        assert_eq!(near("rloe"), Some("role"));
        assert_eq!(near("Shape"), Some("shape"));
        assert_eq!(near("kernel"), None);
        assert_eq!(nearest("rnig", ["ring", "slots"]), Some("ring"));
        assert_eq!(nearest("sm_90", ["sm_80", "sm_90a"]), Some("sm_90a"));
    }
}

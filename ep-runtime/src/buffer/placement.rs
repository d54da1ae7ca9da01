//! Which expert lives on which rank.

use std::ops::Range;

/// Which expert lives on which rank: rank `r` has experts `begin[r]..begin[r + 1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    begin: Vec<i32>,
}

impl Placement {
    /// The default: as even as possible, where the first ranks get one more.
    pub fn even(experts: usize, ranks: usize) -> Placement {
        let (each, more) = (experts / ranks.max(1), experts % ranks.max(1));
        let begin = (0..=ranks).map(|rank| (rank * each + rank.min(more)) as i32).collect();
        Placement { begin }
    }

    /// A placement from the table that kernels read. The table begins at 0 and never decreases.
    pub fn new(begin: Vec<i32>) -> Option<Placement> {
        let ascends = begin.windows(2).all(|pair| pair[0] <= pair[1]);
        (begin.len() > 1 && begin[0] == 0 && ascends).then_some(Placement { begin })
    }

    /// The table that kernels read, `expert_begin`.
    pub fn begin(&self) -> &[i32] {
        &self.begin
    }

    /// The experts of a rank.
    pub fn experts(&self, rank: usize) -> Range<i64> {
        i64::from(self.begin[rank])..i64::from(self.begin[rank + 1])
    }

    /// The index of the expert among those of `rank`, if it lives there.
    pub fn local(&self, expert: i64, rank: usize) -> Option<i64> {
        let experts = self.experts(rank);
        experts.contains(&expert).then(|| expert - experts.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_get_one_more_expert() {
        assert_eq!(Placement::even(7, 3).begin(), [0, 3, 5, 7]);
        assert_eq!(Placement::even(2, 3).begin(), [0, 1, 2, 2]);
        assert_eq!(Placement::even(3, 2).local(2, 1), Some(0));
        assert_eq!(Placement::even(3, 2).local(-1, 0), None);
    }
}

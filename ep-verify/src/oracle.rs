//! The plain reference: what layout, dispatch, expand and combine have to give, said slowly.
//!
//! Everything is computed from all ranks' inputs at once, with no thought of stripes, rings or
//! devices, so that it shares no mistake with the kernels.

mod compare;
mod random;

pub use compare::{Differences, RowReader, compare_bytes, compare_sums};
pub(crate) use compare::{compare_sums_of_sums, half_step_bf16};
pub use random::{HotExperts, Random, RoutingOptions, random_bf16, random_bytes, random_scales};

use ep_runtime::buffer::Placement;

/// Where the tokens of one rank go.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts per token.
    pub topk: usize,
    /// `tokens x topk` experts; -1: none.
    pub experts: Vec<i64>,
    /// `tokens x topk` weights.
    pub weights: Vec<f32>,
}

impl Routing {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.experts.len() / self.topk.max(1)
    }

    /// Experts of a token.
    pub fn experts_of(&self, token: usize) -> &[i64] {
        &self.experts[token * self.topk..(token + 1) * self.topk]
    }

    /// Weights of a token.
    pub fn weights_of(&self, token: usize) -> &[f32] {
        &self.weights[token * self.topk..(token + 1) * self.topk]
    }
}

/// One row that a rank receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Rank that sent it.
    pub source: usize,
    /// Its token there.
    pub token: usize,
}

/// The rows of one rank, one after the other for each of its experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// Where the rows of each local expert begin, and where the last one's end.
    pub first: Vec<i32>,
    /// The received row that each one is a copy of; -1 between the experts.
    pub source: Vec<i32>,
}

/// What all ranks route, and everything that follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Oracle {
    placement: Placement,
    experts: usize,
    routings: Vec<Routing>,
    /// For each rank, its rows in order.
    arrivals: Vec<Vec<Arrival>>,
}

impl Oracle {
    /// The reference for `routings`, one per rank.
    pub fn new(experts: usize, placement: Placement, routings: Vec<Routing>) -> Oracle {
        let arrivals = vec![Vec::new(); routings.len()];
        let mut oracle = Oracle { placement, experts, routings, arrivals };
        oracle.arrivals = (0..oracle.ranks())
            .map(|dest| {
                let sources = (0..oracle.ranks()).flat_map(|source| {
                    let tokens = 0..oracle.routings[source].tokens();
                    tokens.map(move |token| Arrival { source, token })
                });
                sources.filter(|row| oracle.goes_to(row.source, row.token, dest)).collect()
            })
            .collect();
        oracle
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.routings.len()
    }

    /// What a rank routes.
    pub fn routing(&self, rank: usize) -> &Routing {
        &self.routings[rank]
    }

    /// Where experts live.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether a token of `source` has an expert on `dest`: `in_rank`.
    pub fn goes_to(&self, source: usize, token: usize, dest: usize) -> bool {
        let experts = self.routings[source].experts_of(token);
        experts.iter().any(|expert| self.placement.local(*expert, dest).is_some())
    }

    /// The rows that a rank receives: by source rank, then token.
    pub fn arrivals(&self, dest: usize) -> &[Arrival] {
        &self.arrivals[dest]
    }

    /// Position of a token's row in the output of `dest`, if it goes there.
    pub fn position(&self, source: usize, token: usize, dest: usize) -> Option<usize> {
        let key = |row: &Arrival| (row.source, row.token);
        self.arrivals[dest].binary_search_by_key(&(source, token), key).ok()
    }

    /// Rows from `source` to `dest`.
    pub fn rows_between(&self, source: usize, dest: usize) -> usize {
        self.arrivals[dest].iter().filter(|row| row.source == source).count()
    }

    /// Rows that a rank sends to the others.
    pub fn remote_rows(&self, source: usize) -> usize {
        let others = (0..self.ranks()).filter(|dest| *dest != source);
        others.map(|dest| self.rows_between(source, dest)).sum()
    }

    /// Routed entries per expert of one rank, duplicates counted: `tokens_per_expert`.
    pub fn tokens_per_expert(&self, source: usize) -> Vec<i32> {
        let mut counts = vec![0; self.experts];
        for expert in &self.routings[source].experts {
            if let Some(count) = usize::try_from(*expert).ok().and_then(|e| counts.get_mut(e)) {
                *count += 1;
            }
        }
        counts
    }

    /// Entries for each local expert of `dest` over all ranks, rounded up to `alignment`; ranks
    /// with fewer experts than `local_experts` end in zeros.
    pub fn received_per_expert(
        &self,
        dest: usize,
        local_experts: usize,
        alignment: i32,
    ) -> Vec<i32> {
        let mut counts = vec![0; local_experts];
        for source in 0..self.ranks() {
            let sent = self.tokens_per_expert(source);
            for (count, expert) in counts.iter_mut().zip(self.placement.experts(dest)) {
                *count += sent[expert as usize];
            }
        }
        for count in &mut counts {
            *count = (*count + alignment - 1) / alignment * alignment;
        }
        counts
    }

    /// The exclusive prefix over sources of the rows to each destination, totals last:
    /// `rank_prefix[source][dest]`, flattened.
    pub fn rank_prefix(&self) -> Vec<i32> {
        let ranks = self.ranks();
        let mut table = vec![0; (ranks + 1) * ranks];
        for source in 0..ranks {
            for dest in 0..ranks {
                let before = table[source * ranks + dest];
                table[(source + 1) * ranks + dest] =
                    before + self.rows_between(source, dest) as i32;
            }
        }
        table
    }

    /// Experts of a received row as the receiver numbers them; -1 for those of other ranks.
    pub fn local_experts_of(&self, dest: usize, row: Arrival) -> Vec<i64> {
        let experts = self.routings[row.source].experts_of(row.token).iter();
        experts.map(|expert| self.placement.local(*expert, dest).unwrap_or(-1)).collect()
    }

    /// Weights of a received row; 0 for experts of other ranks.
    pub fn local_weights_of(&self, dest: usize, row: Arrival) -> Vec<f32> {
        let weights = self.routings[row.source].weights_of(row.token).iter();
        let experts = self.local_experts_of(dest, row);
        weights
            .zip(experts)
            .map(|(weight, expert)| if expert < 0 { 0.0 } else { *weight })
            .collect()
    }

    /// The rows of `dest` for each of its experts, in the order in which they arrive, each expert's
    /// beginning at a multiple of `alignment`.
    pub fn expanded(&self, dest: usize, local_experts: usize, alignment: usize) -> Expanded {
        let mut expanded = Expanded { first: vec![0], source: Vec::new() };
        for expert in 0..local_experts as i64 {
            let rows = self.arrivals(dest).iter().enumerate();
            let own = rows.filter(|(_, row)| self.local_experts_of(dest, **row).contains(&expert));
            expanded.source.extend(own.map(|(row, _)| row as i32));
            expanded.source.resize(expanded.source.len().next_multiple_of(alignment), -1);
            expanded.first.push(expanded.source.len() as i32);
        }
        expanded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_ranks() -> Oracle {
        let routing = |experts: &[i64]| Routing {
            topk: 2,
            experts: experts.to_vec(),
            weights: vec![0.5; experts.len()],
        };
        // Three experts: 0 and 1 on rank 0, 2 on rank 1.
        let routings = vec![routing(&[0, 2, -1, -1, 2, 2]), routing(&[1, 1])];
        Oracle::new(3, Placement::even(3, 2), routings)
    }

    #[test]
    fn rows_come_by_source_then_token_and_once_per_rank() {
        let oracle = two_ranks();
        let row = |source, token| Arrival { source, token };
        assert_eq!(oracle.arrivals(0), [row(0, 0), row(1, 0)]);
        assert_eq!(oracle.arrivals(1), [row(0, 0), row(0, 2)]);
        assert_eq!(oracle.position(0, 2, 1), Some(1));
        assert_eq!(oracle.position(0, 1, 1), None);
        assert_eq!((oracle.remote_rows(0), oracle.remote_rows(1)), (2, 1));
    }

    #[test]
    fn prefixes_and_counts_follow() {
        let oracle = two_ranks();
        assert_eq!(oracle.rank_prefix(), [0, 0, 1, 2, 2, 2]);
        assert_eq!(oracle.tokens_per_expert(0), [1, 0, 3]);
        assert_eq!(oracle.received_per_expert(0, 2, 4), [4, 4]);
        assert_eq!(oracle.received_per_expert(1, 2, 1), [3, 0]);
        assert_eq!(oracle.local_experts_of(1, Arrival { source: 0, token: 0 }), [-1, 0]);
    }

    #[test]
    fn an_expert_takes_a_row_once_and_begins_aligned() {
        let oracle = two_ranks();
        let expanded = |dest, alignment| {
            let Expanded { first, source } = oracle.expanded(dest, 2, alignment);
            (first, source)
        };
        assert_eq!(expanded(0, 1), (vec![0, 1, 2], vec![0, 1]));
        assert_eq!(expanded(0, 2), (vec![0, 2, 4], vec![0, -1, 1, -1]));
        assert_eq!(expanded(1, 1), (vec![0, 2, 2], vec![0, 1]));
    }
}

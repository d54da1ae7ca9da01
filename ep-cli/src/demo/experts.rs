//! The experts of the demo, and what a token is after all of its own have worked on it.

use ep_runtime::bf16::bf16_from_f32;
use ep_runtime::bf16::bf16_to_f32;
use ep_runtime::buffer::BufferOptions;
use ep_verify::oracle::{Oracle, Random, random_bf16};

/// What an expert makes of one value of a row: it turns the row by its number, scales it, and cuts
/// off what is below zero. So a row that met another expert, or lost its place, is another row.
fn work(expert: usize, row: &[u16], at: usize) -> f32 {
    let turned = row[(at + expert) % row.len()];
    let scaled = bf16_to_f32(turned) * (1.0 + expert as f32 / 8.0);
    scaled.max(-0.25)
}

/// What the experts of one rank make of a row: the sum of their results, by weight. Experts that
/// live elsewhere are absent from `chosen`.
pub(super) fn work_of_rank(
    row: &[u16],
    chosen: impl Iterator<Item = (usize, f32)> + Clone,
) -> Vec<u16> {
    let value = |at: usize| {
        let parts = chosen.clone().map(|(expert, weight)| weight * work(expert, row, at));
        bf16_from_f32(parts.sum())
    };
    (0..row.len()).map(value).collect()
}

/// The token rows of one rank.
pub(super) struct Tokens {
    hidden: usize,
    /// bf16 values as bytes.
    pub(super) bytes: Vec<u8>,
}

impl Tokens {
    pub(super) fn random(options: &BufferOptions, random: &mut Random) -> Tokens {
        let bytes = random_bf16(options.tokens * options.hidden, random);
        Tokens { hidden: options.hidden, bytes }
    }

    fn row(&self, token: usize) -> Vec<u16> {
        let bytes = &self.bytes[token * self.hidden * 2..(token + 1) * self.hidden * 2];
        values(bytes)
    }

    /// What has to come back to `rank`: the results of the ranks of each token's experts, added up
    /// in order of rank. It is computed from the tokens alone, with no thought of who sends what.
    pub(super) fn through_experts(&self, oracle: &Oracle, rank: usize) -> Vec<u16> {
        let routing = oracle.routing(rank);
        let mut all = Vec::new();
        for token in 0..routing.tokens() {
            let row = self.row(token);
            let chosen = || routing.experts_of(token).iter().zip(routing.weights_of(token));
            let mut sums = vec![0.0f32; row.len()];
            for dest in (0..oracle.ranks()).filter(|dest| oracle.goes_to(rank, token, *dest)) {
                let there = chosen()
                    .filter(|(expert, _)| oracle.placement().local(**expert, dest).is_some());
                let there = there.map(|(expert, weight)| (*expert as usize, *weight));
                for (sum, value) in sums.iter_mut().zip(work_of_rank(&row, there)) {
                    *sum += bf16_to_f32(value);
                }
            }
            all.extend(sums.into_iter().map(bf16_from_f32));
        }
        all
    }
}

/// The bf16 values in some bytes.
pub(super) fn values(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_expert_or_place_gives_another_row() {
        let row: Vec<u16> = (1..9).map(|value| bf16_from_f32(value as f32)).collect();
        let made = |expert: usize| work_of_rank(&row, [(expert, 1.0)].into_iter());
        assert_eq!(made(0), row);
        assert_ne!(made(1), made(2));
        let mut moved = row.clone();
        moved.swap(2, 5);
        assert_ne!(work_of_rank(&moved, [(1, 1.0)].into_iter()), made(1));
        let two = work_of_rank(&row, [(0, 0.5), (8, 0.25)].into_iter());
        assert_eq!(bf16_to_f32(two[0]), 0.5 * 1.0 + 0.25 * 2.0 * 1.0);
    }
}

//! The shape of each seed of `--fuzz-shapes`: small ones, and some that reach what small ones do not.

use ep_runtime::buffer::{BufferOptions, Via};
use ep_verify::options::{random_shape, ring_tunes};
use ep_verify::oracle::Random;
use ep_verify::selftest::Case;

/// From here on a warp has several tokens.
const MANY: usize = 160;

/// Of so many seeds in a row, each kind of [`Stretch`] gets its share.
const TURN: u64 = 32;

/// What a shape has plenty of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stretch {
    /// Nothing.
    None,
    /// Tokens: a warp has several, credits come back, windows of 32 positions move on.
    Tokens,
    /// Tokens and slots: rings deeper than a window.
    Depth,
    /// Ranks: more than a warp has lanes.
    Ranks,
}

impl Stretch {
    fn of(seed: u64) -> Stretch {
        // Odd seeds run a few calls, even ones many: what takes long is odd.
        match (seed % TURN, seed % 8) {
            (9, _) => Stretch::Depth,
            (7, _) => Stretch::Ranks,
            (_, 1 | 4) => Stretch::Tokens,
            _ => Stretch::None,
        }
    }
}

/// The options and ranks of a seed; `draw` gives others of the same kind.
pub(super) fn drawn(
    like: &BufferOptions,
    most_ranks: usize,
    seed: u64,
    draw: u64,
) -> (BufferOptions, usize) {
    let mixed = seed.wrapping_add(draw << 32);
    let mut options = random_shape(like, mixed);
    let mut random = Random::new(mixed << 8 | 3);
    let ranks = 1 + mixed as usize % most_ranks;
    match Stretch::of(seed) {
        Stretch::None => return (options, ranks),
        Stretch::Tokens => options.tokens = MANY + random.below(80),
        Stretch::Depth => options.tokens = 600,
        Stretch::Ranks => {
            options.hidden = 128;
            (options.tokens, options.topk) = (1 + random.below(4), 1 + random.below(4));
            options.experts = 40 + random.below(40);
            return (options, 33 + random.below(8));
        }
    }
    // About as much work as in the others.
    (options.hidden, options.topk) = (128, 1 + options.topk % 4);
    options.experts = options.experts.max(options.topk);
    if like.via == Via::Ring && Stretch::of(seed) == Stretch::Depth {
        let (depth, chunk) = (64 << random.below(2), 4 << random.below(3));
        options.tunes = ring_tunes(&options, 4, depth, chunk);
    }
    (options, ranks.max(most_ranks.min(2)))
}

/// Lets half of the schedules go the way of many tokens, where nobody has said which way they go: the few
/// that a schedule has would all go the other one.
pub(super) fn way(options: BufferOptions, seed: u64) -> BufferOptions {
    if (seed / 2).is_multiple_of(2) {
        return options;
    }
    BufferOptions {
        one_launch: options.one_launch.or(Some(false)),
        push_combine: options.push_combine.or(Some(false)),
        ..options
    }
}

/// Lets one rank have all the tokens that it may, where a shape has many.
pub(super) fn fill(case: &mut Case) {
    let most = case.options.tokens;
    let rank = case.seed as usize % case.tokens.len().max(1);
    if let Some(tokens) = case.tokens.get_mut(rank).filter(|_| most >= MANY) {
        *tokens = most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_gone_and_what_is_set_stays() {
        let own = BufferOptions { one_launch: Some(true), ..BufferOptions::new(12, 128, 4, 10) };
        let set = |seed| {
            let options = way(own.clone(), seed);
            (options.one_launch, options.push_combine)
        };
        // Those that wait for each call, and those that queue many.
        for first in [1, 2] {
            assert_eq!(set(first).1.is_none(), set(first + 2).1.is_some());
        }
        assert!((0..4).all(|seed| set(seed).0 == Some(true)));
    }

    #[test]
    fn a_turn_of_seeds_has_every_kind() {
        let like = BufferOptions { via: Via::Ring, ..BufferOptions::new(12, 128, 4, 10) };
        for draw in 0..3 {
            let shapes: Vec<(BufferOptions, usize)> =
                (1..=TURN).map(|seed| drawn(&like, 4, seed, draw)).collect();
            let many = shapes.iter().filter(|(options, _)| options.tokens >= MANY).count();
            assert_eq!(many, 8, "a quarter");
            assert_eq!(shapes.iter().filter(|(options, _)| options.tokens == 600).count(), 1);
            assert!(shapes.iter().any(|(_, ranks)| (33..=40).contains(ranks)));
            let deep = shapes.iter().find(|(options, _)| options.tokens == 600);
            let (options, ranks) = deep.expect("one is deep");
            let depth = options.tunes.nvl_dispatch.depth.unwrap_or(0);
            assert!(depth >= 64 && *ranks >= 2, "{depth} slots, {ranks} ranks");
        }
    }
}

//! Random problems: the same one for the same seed.

use super::Case;
use crate::oracle::{Random, RoutingOptions};
use ep_runtime::buffer::{BufferOptions, CallOptions, Payload};

impl Case {
    /// A problem of any shape that fits a GPU, mostly small, now and then large; no kernel takes more
    /// than `most_sms` SMs.
    pub fn random(ranks: usize, seed: u64, most_sms: u32) -> Case {
        let mut random = Random::new(seed << 16);
        let mut below = |usual: usize, rare: usize| {
            let bound = if random.chance(0.2) { rare } else { usual };
            random.below(bound)
        };
        let (experts, topk) = (1 + below(64, 512), 1 + below(8, 32));
        let hidden = 16 * (1 + below(64, 512));
        let tokens: Vec<usize> = (0..ranks).map(|_| below(64, 1000)).collect();
        let highest = tokens.iter().copied().max().unwrap_or(0).max(1);
        let mut options = BufferOptions::new(highest, hidden, topk, experts);
        options.payload = Payload::ALL[random.below(Payload::ALL.len())];
        options.weights = random.chance(0.7);
        options.biases = random.below(3);
        options.alignment = 1 + random.below(128) as i32;
        let routing = RoutingOptions {
            skew: if random.chance(0.3) { 3.0 } else { 0.0 },
            absent: if random.chance(0.3) { 0.3 } else { 0.0 },
            repeated: if random.chance(0.3) { 0.3 } else { 0.0 },
            ..RoutingOptions::even(topk, experts)
        };
        let mut sms = || CallOptions::sms((2 + random.below(32) as u32).min(most_sms));
        let (dispatch, combine) = (sms(), sms());
        Case { options, tokens, routing, dispatch, combine, seed }
    }

    /// Tokens, routing and SMs for a buffer: some ranks have no tokens, now and then none has,
    /// and experts are absent, repeated, or the same for almost everybody.
    pub fn random_for(options: BufferOptions, ranks: usize, seed: u64) -> Case {
        let mut random = Random::new(seed << 8);
        let most = options.tokens;
        let quiet = random.chance(0.1);
        let tokens = (0..ranks).map(|_| match random.below(4) {
            _ if quiet => 0,
            0 => 0,
            1 => most,
            _ => random.below(most + 1),
        });
        let tokens: Vec<usize> = tokens.collect();
        let mut share = || if random.chance(0.4) { 0.4 } else { 0.0 };
        let routing = RoutingOptions {
            absent: share(),
            repeated: share(),
            skew: 10.0 * share(),
            ..RoutingOptions::even(options.topk, options.experts)
        };
        let sms = 2 + random.below(3);
        let combine = CallOptions::sms(1 + random.below(4) as u32);
        let options = BufferOptions { alignment: 1 + random.below(9) as i32, ..options };
        let dispatch = CallOptions::sms(sms as u32);
        Case { options, tokens, routing, dispatch, combine, seed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::random_shape;
    use ep_runtime::buffer::Via;

    #[test]
    fn a_seed_draws_one_problem() {
        let options = BufferOptions { via: Via::Ring, ..BufferOptions::new(12, 128, 4, 10) };
        assert_eq!(Case::random(2, 3, 132), Case::random(2, 3, 132));
        assert_ne!(Case::random(2, 3, 132), Case::random(2, 4, 132));
        let drawn = |seed| Case::random_for(random_shape(&options, seed), 3, seed);
        assert_eq!(drawn(5), drawn(5));
        assert_ne!(drawn(5), drawn(6));
        for seed in 0..100 {
            let case = drawn(seed);
            assert!(case.tokens.iter().all(|tokens| *tokens <= case.options.tokens));
            assert!(case.options.topk <= 32 && case.options.experts >= 1);
        }
    }
}

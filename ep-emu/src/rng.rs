//! The generator behind every choice of the scheduler: small, fast, the same everywhere.

/// xorshift with a multiplied output.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Neighbouring seeds give unrelated sequences.
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// The next 53 random bits.
    #[inline(always)]
    pub(crate) fn bits(&mut self) -> u64 {
        let mut state = self.0;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0 = state;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `bound`, which is not zero and far smaller than 2^32.
    #[inline(always)]
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (((self.bits() & 0xffff_ffff) * bound as u64) >> 32) as usize
    }

    /// True `per_1024` times in 1024.
    #[inline(always)]
    pub(crate) fn chance(&mut self, per_1024: u32) -> bool {
        (self.bits() & 1023) < u64::from(per_1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|count| (100..400).contains(count)), "{seen:?}");
    }
}

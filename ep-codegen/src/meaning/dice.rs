//! Numbers from a seed: the same on every machine.

/// A small generator (splitmix64): every seed gives another sequence, whatever its bits.
#[derive(Debug, Clone)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Dice {
        Dice { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `low..high`; `low` if there is none.
    pub fn within(&mut self, low: i64, high: i64) -> i64 {
        let span = i128::from(high) - i128::from(low);
        if span <= 0 {
            return low;
        }
        low.wrapping_add(((u128::from(self.bits()) * span as u128) >> 64) as i64)
    }

    /// A number below `bound`; 0 if there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        self.within(0, bound as i64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of a list.
    pub fn one_of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_range() {
        let mut random = Dice::new(7);
        let drawn: Vec<i64> = (0..200).map(|_| random.within(-1, 3)).collect();
        assert!(
            (-1..3).all(|value| drawn.contains(&value))
                && drawn.iter().all(|v| (-1..3).contains(v))
        );
        assert_eq!((random.within(4, 4), random.below(0)), (4, 0));
        assert_ne!(Dice::new(1).bits(), Dice::new(2).bits());
        assert!((i64::MIN..i64::MAX).contains(&random.within(i64::MIN, i64::MAX)));
    }
}

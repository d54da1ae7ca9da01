//! Random inputs from a seed: the same numbers on every machine.

use super::Routing;

/// A small generator (splitmix64): every seed gives another sequence, whatever its bits.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            return 0;
        }
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in this share of the cases.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Leaves `count` of `all`, or all if they are fewer, in any order.
    pub fn choose<T>(&mut self, all: &mut Vec<T>, count: usize) {
        for index in 0..count.min(all.len()) {
            let other = index + self.below(all.len() - index);
            all.swap(index, other);
        }
        all.truncate(count);
    }
}

/// What random routing looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingOptions {
    /// Experts per token.
    pub topk: usize,
    /// The first expert that tokens go to.
    pub first: usize,
    /// How many experts from there on they go to.
    pub experts: usize,
    /// Expert k, from 0, gets entries in proportion to (k + 1)^-skew, as by Zipf's law; 0: all alike.
    pub skew: f64,
    /// The first experts that get a share of their own; the rest goes to the others.
    pub hot: Option<HotExperts>,
    /// Share of entries that are -1.
    pub absent: f64,
    /// Share of entries that repeat an earlier one of their token.
    pub repeated: f64,
}

/// Experts that many entries go to, whatever the skew: those of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotExperts {
    /// Share of the entries.
    pub share: f64,
    /// How many experts, the first ones.
    pub experts: usize,
}

impl RoutingOptions {
    /// Even routing without absent or repeated entries.
    pub fn even(topk: usize, experts: usize) -> RoutingOptions {
        let (skew, absent, repeated) = (0.0, 0.0, 0.0);
        RoutingOptions { topk, first: 0, experts, skew, hot: None, absent, repeated }
    }

    /// Routing of `tokens` tokens.
    pub fn routing(&self, tokens: usize, random: &mut Random) -> Routing {
        let sums = self.sums();
        let mut experts = Vec::with_capacity(tokens * self.topk);
        for _ in 0..tokens {
            let start = experts.len();
            for _ in 0..self.topk {
                let entry = self.entry(&experts[start..], &sums, random);
                experts.push(entry);
            }
        }
        let weights = experts.iter().map(|_| random.unit() as f32).collect();
        Routing { topk: self.topk, experts, weights }
    }

    /// What the experts up to each one get in proportion; nothing if all are alike.
    fn sums(&self) -> Vec<f64> {
        if self.skew <= 0.0 {
            return Vec::new();
        }
        let mut sum = 0.0;
        let add = |index: usize| {
            sum += ((index + 1) as f64).powf(-self.skew);
            sum
        };
        (0..self.experts).map(add).collect()
    }

    /// One of the experts, from 0.
    fn index(&self, sums: &[f64], random: &mut Random) -> usize {
        if let Some(HotExperts { share, experts }) = self.hot {
            let experts = experts.min(self.experts);
            let cold = self.experts - experts;
            return match experts > 0 && (cold == 0 || random.chance(share)) {
                true => random.below(experts),
                false => experts + random.below(cold),
            };
        }
        let place = random.unit();
        let index = match sums.last() {
            Some(all) => sums.partition_point(|sum| *sum <= place * all),
            None => (place * self.experts as f64) as usize,
        };
        index.min(self.experts - 1)
    }

    /// One more entry of a token that has `earlier` ones.
    fn entry(&self, earlier: &[i64], sums: &[f64], random: &mut Random) -> i64 {
        if self.experts == 0 || random.chance(self.absent) {
            return -1;
        }
        if !earlier.is_empty() && random.chance(self.repeated) {
            return earlier[random.below(earlier.len())];
        }
        // Distinct ones where there are enough experts; after some tries whatever comes.
        let mut expert = -1;
        for _ in 0..64 {
            expert = (self.first + self.index(sums, random)) as i64;
            if !earlier.contains(&expert) {
                break;
            }
        }
        expert
    }
}

/// `count` bf16 values between 1/8 and 2, either sign, as bytes: no zeros, so that a row that never
/// came shows.
pub fn random_bf16(count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * 2 + 8);
    while bytes.len() < count * 2 {
        // Sign, lowest two bits of the exponent, and mantissa are random; the rest makes 2^-3..2^1.
        let four = random.bits() & 0x81ff_81ff_81ff_81ff | 0x3e00_3e00_3e00_3e00;
        bytes.extend_from_slice(&four.to_le_bytes());
    }
    bytes.truncate(count * 2);
    bytes
}

/// `count` random bytes.
pub fn random_bytes(count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// `count` positive f32 scales as bytes.
pub fn random_scales(count: usize, random: &mut Random) -> Vec<u8> {
    let scales = (0..count).map(|_| (random.unit() as f32 + 0.01).to_le_bytes());
    scales.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_runtime::bf16::bf16_to_f32;

    #[test]
    fn a_seed_gives_one_sequence() {
        let draw = |seed| (0..4).map(|_| Random::new(seed).bits()).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn some_are_chosen_once_each() {
        let chosen = |seed, count| {
            let mut all: Vec<u32> = (0..20).collect();
            Random::new(seed).choose(&mut all, count);
            all
        };
        let mut some = chosen(1, 8);
        assert_ne!(some, chosen(2, 8));
        some.sort_unstable();
        some.dedup();
        assert!(some.len() == 8 && some.iter().all(|it| *it < 20), "{some:?}");
        assert_eq!(chosen(1, 30).len(), 20);
    }

    #[test]
    fn routing_has_what_was_asked_for() {
        let mut random = Random::new(7);
        let even = RoutingOptions::even(4, 16).routing(500, &mut random);
        assert_eq!(even.tokens(), 500);
        for token in 0..500 {
            let mut experts = even.experts_of(token).to_vec();
            experts.sort_unstable();
            experts.dedup();
            assert_eq!(experts.len(), 4);
            assert!(experts[0] >= 0 && experts[3] < 16);
        }
        let odd = RoutingOptions { absent: 0.3, repeated: 0.3, ..RoutingOptions::even(4, 16) };
        let odd = odd.routing(500, &mut random);
        assert!(odd.experts.contains(&-1));
        assert!((0..500).any(|t| odd.experts_of(t)[0] == odd.experts_of(t)[1]));
    }

    #[test]
    fn more_choices_than_experts_still_end() {
        let routing = RoutingOptions::even(8, 3).routing(5, &mut Random::new(1));
        assert_eq!(routing.experts.len(), 40);
        assert!(routing.experts.iter().all(|expert| (0..3).contains(expert)));
    }

    #[test]
    fn tokens_may_go_to_a_part_of_the_experts() {
        let part = RoutingOptions { first: 5, ..RoutingOptions::even(2, 3) };
        let routing = part.routing(50, &mut Random::new(2));
        assert!(routing.experts.iter().all(|expert| (5..8).contains(expert)));
        let none = RoutingOptions::even(2, 0).routing(3, &mut Random::new(2));
        assert_eq!(none.experts, [-1; 6]);
    }

    /// How often each of 8 experts is drawn, of 100,000 entries.
    fn drawn(options: RoutingOptions) -> [f64; 8] {
        let routing = options.routing(100_000, &mut Random::new(3));
        let mut shares = [0.0; 8];
        for expert in routing.experts {
            shares[expert as usize] += 1e-5;
        }
        shares
    }

    #[test]
    fn skew_is_the_exponent_of_a_zipf_law() {
        let options = RoutingOptions { skew: 1.2, ..RoutingOptions::even(1, 8) };
        let law = (1..=8).map(|place| f64::from(place).powf(-1.2));
        let all: f64 = law.clone().sum();
        for (share, want) in drawn(options).into_iter().zip(law) {
            assert!((share - want / all).abs() < 0.01, "{share}, not {}", want / all);
        }
        let even = drawn(RoutingOptions::even(1, 8));
        assert!(even.iter().all(|share| (share - 0.125).abs() < 0.01), "{even:?}");
    }

    #[test]
    fn hot_experts_get_their_share() {
        let hot = Some(HotExperts { share: 0.9, experts: 2 });
        let shares = drawn(RoutingOptions { hot, ..RoutingOptions::even(1, 8) });
        for (expert, share) in shares.into_iter().enumerate() {
            let want = if expert < 2 { 0.45 } else { 0.1 / 6.0 };
            assert!((share - want).abs() < 0.01, "expert {expert}: {share}, not {want}");
        }
        for experts in [0, 8, 9] {
            let hot = Some(HotExperts { share: 0.5, experts });
            let shares = drawn(RoutingOptions { hot, ..RoutingOptions::even(1, 8) });
            assert!(shares.iter().all(|share| (share - 0.125).abs() < 0.01), "{shares:?}");
        }
    }

    #[test]
    fn rows_hold_no_zeros() {
        let bytes = random_bf16(1001, &mut Random::new(5));
        assert_eq!(bytes.len(), 2002);
        for pair in bytes.chunks(2) {
            let value = bf16_to_f32(u16::from_le_bytes([pair[0], pair[1]])).abs();
            assert!((0.125..2.0).contains(&value), "{value}");
        }
    }
}

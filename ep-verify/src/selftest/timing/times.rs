//! What the clocks of several ranks say together.

use std::time::Duration;

use ep_runtime::error::CallError;
use ep_runtime::group::Group;

/// Times that so many in a hundred others are below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percentiles {
    /// The median.
    pub p50: Duration,
    /// The slow ones.
    pub p95: Duration,
    /// The slowest but one in a hundred.
    pub p99: Duration,
}

impl Percentiles {
    pub(super) fn of(mut times: Vec<Duration>) -> Percentiles {
        times.sort_unstable();
        let at = |percent| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        Percentiles { p50: at(50), p95: at(95), p99: at(99) }
    }

    /// Those of one call, of rounds of several.
    pub(super) fn of_one(self, calls: u32) -> Percentiles {
        let Percentiles { p50, p95, p99 } = self;
        Percentiles { p50: p50 / calls, p95: p95 / calls, p99: p99 / calls }
    }
}

pub(super) fn median(times: Vec<Duration>) -> Duration {
    Percentiles::of(times).p50
}

/// What the clock of one rank shows after its calls.
#[derive(Debug, Clone)]
pub(super) struct RankTimes {
    /// Of the device: each round, or the mean of all.
    pub(super) rounds: Vec<Duration>,
    /// Of the host: one call.
    pub(super) host: Duration,
}

/// Which rank counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Across {
    /// The slowest one of each round.
    Slowest,
    /// The one in the middle. Of an even number the slower one.
    Median,
    /// The one whose own rounds are the slowest.
    SlowestRank,
}

impl Across {
    fn choose(self, times: Vec<Duration>) -> Duration {
        match self {
            Across::Slowest | Across::SlowestRank => times.into_iter().max().unwrap_or_default(),
            Across::Median => median(times),
        }
    }

    /// What the clocks of the local ranks show together.
    fn local(self, ranks: &[RankTimes]) -> Percentiles {
        if self != Across::Slowest {
            let own = ranks.iter().map(|own| Percentiles::of(own.rounds.clone()));
            let own: Vec<Percentiles> = own.collect();
            let of =
                |part: fn(&Percentiles) -> Duration| self.choose(own.iter().map(part).collect());
            return Percentiles {
                p50: of(|it| it.p50),
                p95: of(|it| it.p95),
                p99: of(|it| it.p99),
            };
        }
        let count = ranks.iter().map(|own| own.rounds.len()).min().unwrap_or(0);
        let slowest = |round: usize| ranks.iter().map(|own| own.rounds[round]).max();
        Percentiles::of((0..count).filter_map(slowest).collect())
    }

    /// A time of this process and those of all others. All processes have equally many ranks, and each brings its time
    /// once for each of them.
    fn gathered(self, group: &Group, label: &str, local: Duration) -> Result<Duration, CallError> {
        let local = u64::try_from(local.as_nanos()).unwrap_or(u64::MAX);
        let all = group.gather(label, local)?;
        Ok(self.choose(all.into_iter().map(Duration::from_nanos).collect()))
    }
}

/// What the clocks of all ranks show.
pub(in crate::selftest) struct Times {
    pub(in crate::selftest) device: Percentiles,
    pub(super) host: Duration,
    /// Whether there are several rounds.
    pub(super) is_spread: bool,
}

impl Times {
    pub(super) fn of(
        group: &Group,
        ranks: &[RankTimes],
        across: Across,
    ) -> Result<Times, CallError> {
        let local = across.local(ranks);
        let host = ranks.iter().map(|own| own.host).max().unwrap_or_default();
        let device = Percentiles {
            p50: across.gathered(group, "compare times", local.p50)?,
            p95: across.gathered(group, "compare slow times", local.p95)?,
            p99: across.gathered(group, "compare the slowest times", local.p99)?,
        };
        let host = Across::Slowest.gathered(group, "compare times of the host", host)?;
        let is_spread = ranks.iter().any(|own| own.rounds.len() > 1);
        Ok(Times { device, host, is_spread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(times: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        times.into_iter().map(Duration::from_micros).collect()
    }

    #[test]
    fn percentiles_are_times_that_so_many_are_below() {
        let found = Percentiles::of(micros((0..1000).rev()));
        let [p50, p95, p99] = [500, 950, 990].map(Duration::from_micros);
        assert_eq!(found, Percentiles { p50, p95, p99 });
        assert_eq!(found.of_one(10).p99, Duration::from_micros(99));
        assert_eq!(Percentiles::of(micros([7])).p99, Duration::from_micros(7));
        assert_eq!(Percentiles::of(Vec::new()).p50, Duration::ZERO);
    }

    /// Three ranks, of which another one is slow in each round.
    #[test]
    fn the_slowest_rank_counts_in_each_round_and_the_median_over_all() {
        let rank = |rounds: [u64; 3]| RankTimes {
            rounds: micros(rounds),
            host: Duration::from_micros(rounds[0]),
        };
        let ranks = [rank([9, 1, 1]), rank([2, 8, 2]), rank([3, 3, 7])];
        assert_eq!(Across::Slowest.local(&ranks).p50, Duration::from_micros(8));
        assert_eq!(Across::Median.local(&ranks).p50, Duration::from_micros(2));
        assert_eq!(Across::Median.local(&ranks[..2]).p50, Duration::from_micros(2));
        assert_eq!(Across::SlowestRank.local(&ranks).p50, Duration::from_micros(3));
    }
}

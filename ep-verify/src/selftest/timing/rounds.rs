//! Rounds of calls one behind another, timed from the end of each round to the end of the next.

use std::time::Duration;

use ep_runtime::error::CallError;
use ep_runtime::group::Group;

use super::Repeats;
use super::clock::{Clock, with_clocks};
use super::times::{Across, Percentiles, RankTimes, Times};
use crate::selftest::settle;

/// The time of one call, where `queue` queues a round of `calls` calls on a rank: that of the slowest rank. None
/// where nothing runs by itself; the rounds are made all the same.
pub(crate) fn time_rounds(
    group: &Group,
    calls: u32,
    repeats: Repeats,
    queue: &(dyn Fn(usize) -> Result<(), CallError> + Sync),
) -> Result<Option<Percentiles>, CallError> {
    let Repeats { warmup, iterations, .. } = repeats;
    let rounds = warmup + iterations.max(1);
    if !group.backend().runs_alone() {
        for _ in 0..rounds {
            group.local().try_for_each(queue)?;
            settle(group)?;
        }
        return Ok(None);
    }
    let ranks = with_clocks(group, rounds, &|clock| {
        let mut times = in_a_row(clock, rounds, &|| queue(clock.rank))?;
        times.drain(..warmup);
        Ok(RankTimes { rounds: times, host: Duration::ZERO })
    })?;
    let times = Times::of(group, &ranks, Across::SlowestRank)?;
    Ok(Some(times.device.of_one(calls)))
}

/// How long each round takes that `queue` queues.
pub(super) fn in_a_row(
    clock: &Clock<'_>,
    rounds: usize,
    queue: &dyn Fn() -> Result<(), CallError>,
) -> Result<Vec<Duration>, CallError> {
    clock.begin(1)?;
    // Behind the gate nothing completes, and the queue of a stream holds only so much.
    clock.open(1)?;
    for round in 1..=rounds {
        queue()?;
        clock.mark(round)?;
    }
    clock.periods()
}

//! What a part of the run takes: seconds on the clock, and of the processor.

use std::fmt;
use std::fs;
use std::time::Instant;

/// Clock ticks a second in `/proc`; Linux has the same number on every architecture.
const TICKS: f64 = 100.0;

/// When a part began.
pub(super) struct Began {
    at: Instant,
    processor: f64,
}

/// What a part took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Took {
    /// Seconds on the clock.
    pub(super) seconds: f64,
    /// Seconds of all cores together, children included; 0 where the system has no `/proc`.
    pub(super) processor: f64,
}

impl Began {
    pub(super) fn now() -> Began {
        Began { at: Instant::now(), processor: processor() }
    }

    pub(super) fn took(&self) -> Took {
        Took { seconds: self.at.elapsed().as_secs_f64(), processor: processor() - self.processor }
    }
}

impl Took {
    /// Reads what [`Took`] shows.
    pub(super) fn read(line: &str) -> Option<Took> {
        let (seconds, processor) = line.strip_suffix(" s of processor time")?.split_once(" s, ")?;
        Some(Took { seconds: seconds.parse().ok()?, processor: processor.parse().ok()? })
    }
}

impl fmt::Display for Took {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.1} s, {:.1} s of processor time", self.seconds, self.processor)
    }
}

/// Seconds of the processor that this process and the children that it has waited for have taken.
fn processor() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    ticks(&text).unwrap_or(0) as f64 / TICKS
}

/// The four times of a process in `/proc/PID/stat`. The name before them may hold spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').skip(11).take(4).map(|it| it.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 0 0 0 0 1 20 300 4000 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(4321));
        let took = Took { seconds: 1.5, processor: 2.5 };
        assert_eq!(Took::read(&took.to_string()), Some(took));
        assert_eq!(Took::read("12 passed, 0 failed"), None);
    }
}

//! A progress bar, where a person looks.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const CELLS: u64 = 24;

/// How often it is drawn at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// How far a check is.
pub(super) struct Progress {
    done: u64,
    total: u64,
    drawn: Option<Instant>,
    is_seen: bool,
}

impl Progress {
    pub(super) fn new(total: u64) -> Progress {
        Progress { done: 0, total, drawn: None, is_seen: io::stderr().is_terminal() }
    }

    /// One more is done, of the part called `part`.
    pub(super) fn step(&mut self, part: &str, err: &mut dyn Write) {
        self.done += 1;
        let is_early = self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL);
        if !self.is_seen || (is_early && self.done < self.total) {
            return;
        }
        self.drawn = Some(Instant::now());
        // A terminal that cannot be written to loses nothing but the bar.
        let _ = write!(err, "\r\x1b[K{}", bar(self.done, self.total, part));
        let _ = err.flush();
    }

    /// Takes the bar away, for other output.
    pub(super) fn clear(&mut self, err: &mut dyn Write) {
        if self.is_seen {
            let _ = write!(err, "\r\x1b[K");
            let _ = err.flush();
        }
    }
}

fn bar(done: u64, total: u64, part: &str) -> String {
    let full = (done * CELLS / total.max(1)).min(CELLS);
    let cells: String = (0..CELLS).map(|cell| if cell < full { '#' } else { '.' }).collect();
    format!("[{cells}] {done}/{total} {part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar(0, 8, "a"), "[........................] 0/8 a");
        assert_eq!(bar(4, 8, "a"), "[############............] 4/8 a");
        assert_eq!(bar(8, 8, "b"), "[########################] 8/8 b");
        assert_eq!(bar(0, 0, ""), "[........................] 0/0 ");
    }
}

//! The clock of all deadlines in this module. Tests stop the clock: whatever completes then has waited for
//! nothing.

use std::time::{Duration, Instant};

/// The present.
pub(super) fn now() -> Instant {
    #[cfg(test)]
    if let Some(shown) = stopped::shown() {
        return shown;
    }
    Instant::now()
}

/// Does nothing for a while.
pub(super) fn pause(time: Duration) {
    #[cfg(test)]
    stopped::advance(time);
    std::thread::sleep(time);
}

#[cfg(test)]
pub(super) mod stopped {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    /// A test that takes longer hangs: then all its deadlines have passed, and it fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Clone, Copy)]
    struct Stopped {
        since: Instant,
        shown: Instant,
    }

    thread_local! {
        static STOPPED: Cell<Option<Stopped>> = const { Cell::new(None) };
    }

    /// Does something on this thread while its clock stands still; pauses alone move it.
    pub(in crate::join) fn clock<T>(body: impl FnOnce() -> T) -> T {
        let now = Instant::now();
        let before = STOPPED.replace(Some(Stopped { since: now, shown: now }));
        let result = body();
        STOPPED.set(before);
        result
    }

    /// Moves the clock of this thread, if it is stopped.
    pub(in crate::join) fn advance(time: Duration) {
        let stopped = STOPPED.get();
        STOPPED.set(stopped.map(|it| Stopped { shown: it.shown + time, ..it }));
    }

    pub(super) fn shown() -> Option<Instant> {
        let Stopped { since, shown } = STOPPED.get()?;
        let is_over = since.elapsed() > PATIENCE;
        Some(if is_over { shown + 1000 * PATIENCE } else { shown })
    }

    /// Holds a connection open until the test is over. One that nobody waits for to the end is closed
    /// in the end, so that who waits for it without end hears something else than a timeout.
    pub(in crate::join) fn held<S: Send + 'static>(stream: S) -> std::sync::mpsc::Sender<()> {
        let (over, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = end.recv_timeout(PATIENCE);
            drop(stream);
        });
        over
    }
}

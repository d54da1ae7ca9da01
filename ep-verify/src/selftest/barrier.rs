//! A barrier that a thread can leave for good, so that an error of one rank frees the others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ep_runtime::error::CallError;

/// Where the threads of all local ranks meet.
pub(super) struct RankBarrier {
    state: Mutex<State>,
    changed: Condvar,
    members: usize,
}

#[derive(Default)]
struct State {
    arrived: usize,
    rounds: u64,
    broken: bool,
}

impl RankBarrier {
    pub(super) fn new(members: usize) -> RankBarrier {
        RankBarrier { state: Mutex::default(), changed: Condvar::new(), members }
    }

    /// Waits for all the others; fails when one of them has failed. True for the last to come.
    pub(super) fn join(&self) -> Result<bool, CallError> {
        let mut state = self.lock();
        state.arrived += 1;
        let last = state.arrived == self.members;
        if last {
            state.arrived = 0;
            state.rounds += 1;
            self.changed.notify_all();
        }
        let round = state.rounds;
        while !last && state.rounds == round && !state.broken {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.broken {
            true => Err(CallError::Mismatch { what: "another rank has failed".to_string() }),
            false => Ok(last),
        }
    }

    /// Runs a rank's part; when it fails, the others stop waiting for it.
    pub(super) fn attend<T>(
        &self,
        part: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let result = part();
        if result.is_err() {
            self.lock().broken = true;
            self.changed.notify_all();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_meet_and_one_is_last() {
        let barrier = RankBarrier::new(3);
        let last = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| barrier.join().unwrap())).collect();
            threads.into_iter().filter(|_| true).map(|t| t.join().unwrap()).filter(|l| *l).count()
        });
        assert_eq!(last, 1);
    }

    #[test]
    fn a_failure_frees_the_others() {
        let barrier = RankBarrier::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| barrier.join());
            let failed = barrier
                .attend(|| Err::<(), _>(CallError::Mismatch { what: "a failure".to_string() }));
            assert!(failed.is_err());
            assert!(other.join().unwrap().is_err());
        });
    }
}

//! Independent pieces of work on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Does the pieces `0..count`, about in order, and tells `done` about each as it ends.
pub(super) fn on_all_cores<T: Send>(
    count: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize, T),
) {
    let within = |number: usize| (number < count).then(|| work(number));
    until_nothing(within, |ended| {
        if let Some((number, result)) = ended {
            done(number, result);
        }
    });
}

/// Does the pieces `0..count` in the same way until `done` fails, which ends those that have begun and begins
/// no other.
pub(super) fn on_all_cores_until_failure<T: Send, E>(
    count: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let (mut outcome, has_failed) = (Ok(()), AtomicBool::new(false));
    let goes_on = |number| number < count && !has_failed.load(Ordering::Relaxed);
    let within = |number: usize| goes_on(number).then(|| work(number));
    until_nothing(within, |ended| {
        if let Some((number, result)) = ended.filter(|_| outcome.is_ok()) {
            outcome = done(number, result);
            has_failed.store(outcome.is_err(), Ordering::Relaxed);
        }
    });
    outcome
}

/// Does pieces, about in order, until there is nothing more, and tells `done` about each as it ends; and
/// of nothing, where a second passes without one.
pub(super) fn until_nothing<T: Send>(
    work: impl Fn(usize) -> Option<T> + Sync,
    mut done: impl FnMut(Option<(usize, T)>),
) {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cores {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(result) = work(number) else { break };
                    if sender.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match results.recv_timeout(Duration::from_secs(1)) {
                Ok(ended) => done(Some(ended)),
                Err(RecvTimeoutError::Timeout) => done(None),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once() {
        let mut squares = vec![0; 50];
        on_all_cores(50, |number| number * number, |number, square| squares[number] += square);
        assert!(squares.iter().enumerate().all(|(number, square)| *square == number * number));
        on_all_cores(0, |number| number, |_, _| panic!("there is nothing to do"));
    }

    #[test]
    fn a_failure_ends_the_work() {
        let mut told = 0;
        let until_third = |_: usize, number: usize| {
            told += 1;
            if told == 3 { Err(number) } else { Ok(()) }
        };
        let outcome = on_all_cores_until_failure(usize::MAX, |number| number, until_third);
        assert!(outcome.is_err());
        assert_eq!(told, 3, "nobody is told of what ends behind it");
        assert_eq!(on_all_cores_until_failure(9, |_| (), |_, ()| Ok::<(), ()>(())), Ok(()));
    }
}

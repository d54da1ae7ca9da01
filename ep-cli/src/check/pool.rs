//! Independent pieces of work on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
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
}

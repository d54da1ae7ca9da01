//! Independent pieces of work on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Does the pieces `0..count`, about in order, and tells `done` about each as it ends.
pub(super) fn on_all_cores<T: Send>(
    count: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize, T),
) {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cores.min(count) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || sender.send((number, work(number))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        results.iter().for_each(|(number, result)| done(number, result));
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

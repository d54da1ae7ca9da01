//! Work on all cores.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Stack of the threads: a compiler recurses over deep expressions.
const STACK_BYTES: usize = 16 << 20;

/// Does `work` on each item; the results stand in the order of the items.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let share = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut results = thread::scope(|scope| {
        let start = || {
            // With no thread to be had, the others do its share.
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, share).ok()
        };
        let threads: Vec<_> = (1..cores.min(items.len())).filter_map(|_| start()).collect();
        let mut results = share();
        for thread in threads {
            results.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::thread::{available_parallelism, current, sleep};
    use std::time::Duration;

    #[test]
    fn results_stand_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..20).collect();
        let results = super::map(&items, |item| {
            // Later ones are done first.
            sleep(Duration::from_micros(2000 - 100 * item));
            (*item, current().id())
        });
        assert!(results.iter().map(|(item, _)| item).eq(&items));
        let mut threads: Vec<_> = results.iter().map(|(_, thread)| *thread).collect();
        threads.dedup();
        let cores = available_parallelism().map_or(1, usize::from);
        assert!(threads.len() > 1 || cores == 1, "one thread did everything");
        assert!(super::map(&[], |item: &u64| *item).is_empty());
    }
}

//! The handles, outputs and combine inputs of a buffer, of which a call takes one each: taking one is
//! taking a number from a pool, and dropping it gives the number back.

use std::sync::Arc;

use super::shared::Shared;
use crate::backend::{Kept, Stream};
use crate::error::CallError;

/// The places of one kind, by number.
pub(super) struct Pool {
    /// How many hold each place: the caller, and graphs that use it.
    holders: Vec<u32>,
    /// From here on, places are for calls of graphs that keep none: a replay may use them at any time.
    lent_to_graphs: usize,
}

impl Pool {
    pub(super) fn new(count: usize) -> Pool {
        Pool { holders: vec![0; count], lent_to_graphs: count }
    }

    /// A free place; the last one for a call of a graph that does not keep it.
    fn take(&mut self, what: &'static str, rank: usize, is_lent: bool) -> Result<usize, CallError> {
        let is_free = |index: &usize| self.holders[*index] == 0;
        let found = match is_lent {
            true => (0..self.holders.len()).rev().find(is_free),
            false => (0..self.lent_to_graphs).find(is_free),
        };
        let live = if is_lent { self.holders.len() } else { self.lent_to_graphs };
        let index = found.ok_or(CallError::AllInUse { what, rank, live })?;
        if is_lent {
            // A pool of one place has it for all.
            self.lent_to_graphs = self.lent_to_graphs.min(index.max(1));
        }
        self.holders[index] = 1;
        Ok(index)
    }

    /// Number of free places for calls that are not captured.
    pub(super) fn free(&self) -> usize {
        self.holders[..self.lent_to_graphs].iter().filter(|holders| **holders == 0).count()
    }

    fn give_back(&mut self, index: usize) {
        self.holders[index] -= 1;
    }
}

/// What a place is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseKind {
    Handle,
    Output,
    Offered,
}

/// A place that is taken until all copies of this are dropped. What is still in flight then stays
/// valid: the next user comes later in the order of the rank's calls.
pub(super) struct Lease {
    pub(super) shared: Arc<Shared>,
    pub(super) rank: usize,
    kind: LeaseKind,
    pub(super) index: usize,
}

impl Lease {
    pub(super) fn take(
        shared: &Arc<Shared>,
        rank: usize,
        kind: LeaseKind,
        stream: Stream,
    ) -> Result<Lease, CallError> {
        let kind = match kind {
            LeaseKind::Offered if shared.has_shared_rows => LeaseKind::Output,
            kind => kind,
        };
        let is_lent = !shared.options.graphs_keep && shared.group.is_captured(rank, stream)?;
        let mut state = shared.rank(rank)?.state();
        let (pool, what) = match kind {
            LeaseKind::Handle => (&mut state.handles, "handles"),
            LeaseKind::Output => (&mut state.outputs, "outputs"),
            LeaseKind::Offered => (&mut state.offered, "combine inputs"),
        };
        let index = pool.take(what, rank, is_lent)?;
        Ok(Lease { shared: Arc::clone(shared), rank, kind, index })
    }

    /// What a graph has to keep: the place, or where graphs keep none, the memory alone.
    pub(super) fn kept(&self) -> Kept {
        match self.shared.options.graphs_keep {
            true => Box::new(self.clone()),
            false => Box::new(Arc::clone(&self.shared)),
        }
    }

    /// Changes the pool of the place.
    fn in_pool(&self, change: impl FnOnce(&mut Pool)) {
        if let Ok(own) = self.shared.rank(self.rank) {
            let mut state = own.state();
            change(match self.kind {
                LeaseKind::Handle => &mut state.handles,
                LeaseKind::Output => &mut state.outputs,
                LeaseKind::Offered => &mut state.offered,
            });
        }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        self.in_pool(|pool| pool.holders[self.index] += 1);
        let (shared, rank, kind, index) =
            (Arc::clone(&self.shared), self.rank, self.kind, self.index);
        Lease { shared, rank, kind, index }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.in_pool(|pool| pool.give_back(self.index));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::super::{Buffer, BufferOptions, BuiltIn, CallOptions, DispatchInput};
    use crate::error::CallError;
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};

    /// The kernels of the fake backend never write counts: a call that waits for those of an earlier one
    /// fails.
    #[test]
    fn handles_dropped_unread_hold_nobody_up() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions { handles: Some(1), ..BufferOptions::new(8, 64, 2, 4) };
        let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
        let (call, input) = (CallOptions::sms(12), DispatchInput::default());
        for _ in 0..16 {
            buffer.dispatch(0, &input, &call).map(drop).unwrap();
        }
        let error = buffer.dispatch(0, &input, &call).err().unwrap();
        assert!(matches!(error, CallError::Silent { rank: 0, what: "the counts" }), "{error}");
        // The block that is next, as a kernel leaves it.
        buffer.shared.ranks[0].handle(0).counts.come(1);
        backend.asked();
        buffer.dispatch(0, &input, &call).map(drop).unwrap();
        assert_eq!(backend.asked()[..2], ["capture", "launch"], "nothing is asked before the turn");
    }

    /// Nanoseconds that this thread has run.
    #[cfg(target_os = "linux")]
    fn worked() -> u64 {
        let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        times.split(' ').next().unwrap().parse().unwrap()
    }

    /// A kernel behind a long queue: the host lets others work while it waits for the counts.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_long_wait_for_counts_leaves_the_core_to_others() {
        const LONG: Duration = Duration::from_millis(500);
        let backend = FakeBackend::new(1);
        backend.runs_alone.store(true, Ordering::Relaxed);
        let group = Group::new(backend, GroupOptions::default()).unwrap();
        let buffer = Buffer::new(&group, BufferOptions::new(8, 64, 2, 4), &BuiltIn).unwrap();
        let (call, input) = (CallOptions::sms(12), DispatchInput::default());
        let (handle, _received) = buffer.dispatch(0, &input, &call).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LONG);
                buffer.shared.ranks[0].handle(0).counts.come(0);
            });
            let before = worked();
            assert_eq!(handle.counts().unwrap().received, 0);
            let worked = Duration::from_nanos(worked() - before);
            assert!(worked < LONG / 3, "a wait of {LONG:?} takes {worked:?} of a core");
        });
    }

    /// As a model of more layers than there are handles, in a graph, beside a call whose rows are still needed.
    #[test]
    fn graphs_share_places_that_no_other_call_gets() {
        let dispatches = |graphs_keep: bool, captured: usize| {
            let backend = FakeBackend::new(1);
            let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
            let few =
                BufferOptions { live: 3, handles: Some(3), ..BufferOptions::new(8, 64, 2, 4) };
            let buffer =
                Buffer::new(&group, BufferOptions { graphs_keep, ..few }, &BuiltIn).unwrap();
            let (call, input) = (CallOptions::sms(12), DispatchInput::default());
            let dispatch = || {
                let (handle, received) = buffer.dispatch(0, &input, &call)?;
                let places = (handle.lease().index, received.lease().index);
                Ok::<_, CallError>((places, handle, received))
            };
            let mut held = vec![dispatch().unwrap()];
            backend.is_captured.store(true, Ordering::Relaxed);
            let in_graph = (0..captured).map(|_| dispatch().map(|(places, ..)| places));
            let in_graph = in_graph.collect::<Result<Vec<_>, _>>();
            backend.is_captured.store(false, Ordering::Relaxed);
            held.push(dispatch().unwrap());
            let last = dispatch().err().unwrap().to_string();
            let places: Vec<_> = held.iter().map(|(places, ..)| *places).collect();
            backend.kept.lock().unwrap().clear();
            (places, in_graph.map_err(|error| error.to_string()), last)
        };
        let (outside, in_graph, last) = dispatches(false, 9);
        assert_eq!((outside, in_graph), (vec![(0, 0), (1, 1)], Ok(vec![(2, 2); 9])));
        assert_eq!(last, "rank 0: all 2 outputs are in use; drop one, or make more");
        let (outside, in_graph, last) = dispatches(true, 1);
        assert_eq!((outside, in_graph), (vec![(0, 0), (2, 2)], Ok(vec![(1, 1)])));
        assert_eq!(last, "rank 0: all 3 outputs are in use; drop one, or make more");
    }

    /// As a layer that keeps its way back, and not its rows.
    #[test]
    fn handles_outlive_the_outputs_of_their_calls() {
        let group = Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap();
        let options = BufferOptions { handles: Some(3), ..BufferOptions::new(8, 64, 2, 4) };
        let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
        let (call, input) = (CallOptions::sms(12), DispatchInput::default());
        let mut handles = Vec::new();
        for _ in 0..3 {
            let (handle, received) = buffer.dispatch(0, &input, &call).unwrap();
            handles.push((handle, received.x().unwrap()));
        }
        assert!(handles.windows(2).all(|two| two[0].1 == two[1].1), "one output serves all");
        let error = buffer.dispatch(0, &input, &call).err().unwrap();
        assert_eq!(error.to_string(), "rank 0: all 3 handles are in use; drop one, or make more");
        let _kept = buffer.cached_dispatch(&handles[0].0, &input, &call).unwrap();
        let error = buffer.cached_dispatch(&handles[1].0, &input, &call).err().unwrap();
        assert_eq!(error.to_string(), "rank 0: all 1 outputs are in use; drop one, or make more");
        group.sync(0).unwrap();
    }
}

//! The handles, outputs and combine inputs of a buffer, of which a call takes one each: taking one is
//! taking a number from a pool, and dropping it gives the number back.

use std::sync::Arc;

use super::shared::Shared;
use crate::error::CallError;

/// The places of one kind, by number.
pub(super) struct Pool {
    free: Vec<usize>,
    /// How many hold each place: the caller, and graphs that use it.
    holders: Vec<u32>,
}

impl Pool {
    pub(super) fn new(count: usize) -> Pool {
        Pool { free: (0..count).rev().collect(), holders: vec![0; count] }
    }

    fn take(&mut self, what: &'static str, rank: usize) -> Result<usize, CallError> {
        let live = self.holders.len();
        let index = self.free.pop().ok_or(CallError::AllInUse { what, rank, live })?;
        self.holders[index] = 1;
        Ok(index)
    }

    fn give_back(&mut self, index: usize) {
        self.holders[index] -= 1;
        if self.holders[index] == 0 {
            self.free.push(index);
        }
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
    ) -> Result<Lease, CallError> {
        let mut state = shared.rank(rank)?.state();
        let (pool, what) = match kind {
            LeaseKind::Handle => (&mut state.handles, "handles"),
            LeaseKind::Output => (&mut state.outputs, "outputs"),
            LeaseKind::Offered => (&mut state.offered, "combine inputs"),
        };
        let index = pool.take(what, rank)?;
        Ok(Lease { shared: Arc::clone(shared), rank, kind, index })
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

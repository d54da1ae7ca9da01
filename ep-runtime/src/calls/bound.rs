//! A call between its checks and its launch, so that a caller of several kernels can check all calls before
//! it launches any.

use std::sync::{Arc, MutexGuard};

use super::held::Held;
use super::{CallKernel, CallOptions, Inner, LeftTables, free};
use crate::backend::Kept;
use crate::call_order::Turn;
use crate::error::CallError;
use crate::group::Group;
use crate::launch::Prepared;
use crate::tensor::{Given, TensorMemory};

/// A call with all of its numbers, which can no longer be refused. Other calls of the kernel on the rank
/// wait until it is dropped.
pub struct BoundCall<'k> {
    prepared: &'k Prepared,
    pub(super) values: MutexGuard<'k, Vec<u64>>,
    pub(super) left: LeftTables,
}

impl CallKernel {
    /// Checks a call of one rank, in a group that the caller has checked. `given` has a place for each
    /// tensor of the declaration. If it contains the tables, the call writes those and no others.
    pub fn bind(
        &self,
        rank: usize,
        call: &CallOptions,
        given: &[Option<Given<'_>>],
        numbers: &[u64],
    ) -> Result<BoundCall<'_>, CallError> {
        self.bind_with(rank, call, &[], given, numbers)
    }

    /// Checks a call of one rank, in a group that the caller has checked. `held` has some of the tensors, which
    /// this kernel has checked before for this rank. `given` has a place for each tensor of the declaration. If
    /// the two contain the tables, the call writes those and no others.
    pub(crate) fn bind_with(
        &self,
        rank: usize,
        call: &CallOptions,
        held: &[&Held],
        given: &[Option<Given<'_>>],
        numbers: &[u64],
    ) -> Result<BoundCall<'_>, CallError> {
        let Inner { prepared, ranks, spec, group, .. } = self.inner.as_ref();
        let own = &ranks[group.local_index(rank)?];
        prepared.check_blocks(rank, call)?;
        let mut values = own.values();
        let window = prepared.kernel().window(rank)?;
        let (sizes, lacks_tables) = spec.bind(held, given, numbers, window, &mut values)?;
        let mut tables = None;
        if lacks_tables && spec.table_bytes > 0 {
            let (_, place) = free(&own.tables, "handles", rank)?;
            spec.bind_tables(&place, &mut values);
            tables = Some(place);
        }
        Ok(BoundCall { prepared, values, left: LeftTables { tables, sizes } })
    }
}

impl BoundCall<'_> {
    /// Launches all phases in the turn of a call, whose caller keeps the memory.
    pub(crate) fn launch(&self, turn: &Turn<'_>, call: &CallOptions) -> Result<(), CallError> {
        self.prepared.launch(turn, call, &self.values)
    }

    /// The memory of ours that the call reaches.
    pub(super) fn memory<'m>(
        &'m self,
        given: &'m [Option<Given<'m>>],
    ) -> impl Iterator<Item = &'m Arc<TensorMemory>> {
        given.iter().flatten().filter_map(|given| given.memory).chain(&self.left.tables)
    }
}

impl Group {
    /// Launches calls one behind another, as one call of a rank. A graph that captures it keeps what `kept` gives.
    pub(crate) fn launch<'b, 'k: 'b>(
        &self,
        rank: usize,
        call: &CallOptions,
        bound: impl IntoIterator<Item = &'b BoundCall<'k>>,
        kept: impl FnOnce() -> Kept,
    ) -> Result<(), CallError> {
        let turn = self.begin(rank, call, kept)?;
        bound.into_iter().try_for_each(|bound| bound.launch(&turn, call))?;
        self.end(turn, call)
    }
}

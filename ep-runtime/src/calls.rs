//! Calls of a declared pipeline: the base of the types that `pipeline!` generates from a declaration.
//!
//! `Foo::prepare` resolves every name once. A call then checks its tensors, stores addresses and launches.
//! A call neither allocates nor formats anything, and refuses wrong arguments before the launch.

mod bound;
mod fit;
mod held;
mod phases;
mod places;
mod prepare;
mod program;
mod spec;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::launch::CallOptions;
pub use bound::BoundCall;
pub(crate) use held::Held;
pub use phases::PhasedCall;
pub use places::{LeftTables, OutputMemory};
pub use prepare::{PrepareOptions, TensorName};
pub use program::Machine;
pub(crate) use program::{CallProgram, Loader, Room, control_bytes};

use crate::backend::Kept;
use crate::error::CallError;
use crate::group::{Group, Net, positive};
use crate::launch::Prepared;
use crate::memory::Window;
use crate::pipeline::AnyPipeline;
use crate::tensor::{Given, TensorMemory};
use spec::CallSpec;

/// A declared pipeline, compiled and loaded on all local ranks, with the memory of its calls. Clones share
/// one kernel.
#[derive(Clone)]
pub struct CallKernel {
    inner: Arc<Inner>,
}

struct Inner {
    // Dropped in this order: the kernel before the memory whose addresses it was given.
    prepared: Prepared,
    ranks: Vec<RankMemory>,
    spec: CallSpec,
    group: Group,
    window: Arc<Window>,
    /// Keeps the network open, if there is one.
    _net: Option<Arc<Net>>,
}

/// What the calls of one rank share. A place is free when nothing else holds it.
struct RankMemory {
    /// Tables of a handle.
    tables: Vec<Arc<TensorMemory>>,
    /// What of the inputs and outputs lies in the window.
    regions: Vec<Arc<TensorMemory>>,
    /// The numbers of a call.
    values: Mutex<Vec<u64>>,
}

impl RankMemory {
    fn values(&self) -> MutexGuard<'_, Vec<u64>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of `places` that is not in use.
fn free(
    places: &[Arc<TensorMemory>],
    what: &'static str,
    rank: usize,
) -> Result<(usize, Arc<TensorMemory>), CallError> {
    let free = places.iter().enumerate().find(|(_, place)| Arc::strong_count(place) == 1);
    let live = places.len();
    free.map(|(index, place)| (index, Arc::clone(place))).ok_or(CallError::AllInUse {
        what,
        rank,
        live,
    })
}

/// The program that `prepare` would load.
fn planned(
    machine: &Machine,
    entry: &AnyPipeline,
    options: &PrepareOptions<'_>,
) -> Result<CallProgram, CallError> {
    let room = Room { tables: options.live, window: options.live };
    CallProgram::emit_for(machine, entry, options, room)
}

impl CallKernel {
    /// Bytes of device memory that `prepare` would take on each rank. Allocates nothing.
    pub fn bytes(
        machine: &Machine,
        entry: &AnyPipeline,
        options: &PrepareOptions<'_>,
    ) -> Result<u64, CallError> {
        Ok(planned(machine, entry, options)?.device_bytes())
    }

    /// Bytes on each rank of the rows that would pass through a network, in device or host memory. Allocates nothing.
    pub fn network_bytes(
        machine: &Machine,
        entry: &AnyPipeline,
        options: &PrepareOptions<'_>,
    ) -> Result<u64, CallError> {
        Ok(positive(planned(machine, entry, options)?.emitted().plan.network_bytes))
    }

    /// Bytes of device memory that it takes on each rank, if it was prepared alone.
    pub fn device_bytes(&self) -> u64 {
        let Inner { ranks, spec, window, .. } = self.inner.as_ref();
        let tables = ranks.first().map_or(0, |own| own.tables.len() as u64);
        window.bytes() + tables * spec.table_bytes
    }

    /// The group whose ranks call the kernel.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The plan that was compiled.
    pub fn plan(&self) -> &ep_codegen::plan::Plan {
        self.inner.prepared.plan()
    }

    /// A dim or tune; 0 if the chosen arms lack it.
    pub fn number(&self, name: &str) -> i64 {
        self.plan().numbers.get(name).copied().unwrap_or(0)
    }

    /// Which arm of an axis was chosen.
    pub fn arm(&self, axis: usize) -> usize {
        self.inner.spec.arms.get(axis).copied().unwrap_or(0)
    }

    /// SMs of a call that does not say how many, where its roles need no more.
    pub(crate) fn usual_sms(&self) -> u32 {
        self.inner.prepared.usual_sms()
    }

    /// SMs that a call takes, with one block on each.
    pub fn sms(&self, call: &CallOptions) -> u32 {
        self.inner.prepared.sms(call)
    }

    /// Launches on one rank and returns the tables that the call fills. `given` has a place for each tensor
    /// of the declaration. If it contains the tables, the call writes those and no others.
    pub fn launch(
        &self,
        rank: usize,
        call: &CallOptions,
        given: &[Option<Given<'_>>],
        numbers: &[u64],
    ) -> Result<LeftTables, CallError> {
        let all = 0..self.plan().kernels.len();
        self.inner.group.check(rank)?;
        let bound = self.bind(rank, call, given, numbers)?;
        self.put(rank, call, all, &bound.values, bound.memory(given))?;
        Ok(bound.left)
    }

    /// Puts phases into the stream of a call, with its numbers. A graph that captures them keeps
    /// `memory`.
    fn put<'m>(
        &self,
        rank: usize,
        call: &CallOptions,
        phases: Range<usize>,
        values: &[u64],
        memory: impl Iterator<Item = &'m Arc<TensorMemory>>,
    ) -> Result<(), CallError> {
        let Inner { prepared, group, .. } = self.inner.as_ref();
        let kept = || Box::new(memory.cloned().collect::<Vec<_>>()) as Kept;
        let turn = group.begin(rank, call, kept)?;
        prepared.launch_phases(&turn, phases, call, values)?;
        group.end(turn, call)
    }
}

#[cfg(test)]
mod tests;

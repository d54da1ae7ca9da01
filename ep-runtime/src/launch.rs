//! How calls of every kind become launches.
//!
//! Everything that is known before a call is computed here in advance: which of its numbers goes where in
//! `struct Args`, and how many SMs it takes. A call takes its turn, stores its numbers and launches.

mod options;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ep_codegen::plan::{Param, Plan};

use crate::args::{ArgsBlock, ArgsMap, Operand};
use crate::backend::Kept;
use crate::call_order::Turn;
use crate::error::CallError;
use crate::group::{Group, GroupKernel, positive};
use crate::tune::{Rates, Traffic, Tuning};

pub use options::CallOptions;

/// A kernel that is loaded on all local ranks, with its resolved arguments.
pub(crate) struct Prepared {
    kernel: GroupKernel,
    map: ArgsMap,
    /// The arguments of each local rank; a call stores what differs from the last one.
    args: Vec<Mutex<ArgsBlock>>,
    /// SMs of a call that does not say how many.
    usual_sms: u32,
    /// Whether even and odd blocks work in pairs: an odd one would have no partner.
    is_paired: bool,
}

impl Prepared {
    /// Asks `operand` where each member of `struct Args` gets its number from.
    pub(crate) fn new(
        kernel: GroupKernel,
        usual_sms: u32,
        is_paired: bool,
        operand: impl FnMut(&Param) -> Option<Operand>,
    ) -> Result<Prepared, CallError> {
        let map = ArgsMap::new(kernel.plan(), operand)?;
        let args = kernel.args_blocks(&map).map(Mutex::new).collect();
        Ok(Prepared { kernel, map, args, usual_sms, is_paired })
    }

    pub(crate) fn kernel(&self) -> &GroupKernel {
        &self.kernel
    }

    pub(crate) fn plan(&self) -> &Plan {
        self.kernel.plan()
    }

    /// SMs of a call that does not say how many, where its roles need no more.
    pub(crate) fn usual_sms(&self) -> u32 {
        self.usual_sms
    }

    /// SMs of a call, a block each.
    pub(crate) fn sms(&self, call: &CallOptions) -> u32 {
        let least = positive(self.plan().blocks_min) as u32;
        let blocks = call.sms.unwrap_or(self.usual_sms);
        match self.is_paired {
            true => (blocks & !1).max(least.next_multiple_of(2)),
            false => blocks.max(least),
        }
    }

    /// Fails if a launch would be refused for its number of blocks.
    pub(crate) fn check_blocks(&self, rank: usize, call: &CallOptions) -> Result<(), CallError> {
        self.kernel.check_blocks(rank, self.sms(call))
    }

    /// Launches all phases in the turn of their call.
    pub(crate) fn launch(
        &self,
        turn: &Turn<'_>,
        call: &CallOptions,
        values: &[u64],
    ) -> Result<(), CallError> {
        self.launch_phases(turn, 0..self.plan().kernels.len(), call, values)
    }

    /// Launches some phases, in order: those that come next.
    pub(crate) fn launch_phases(
        &self,
        turn: &Turn<'_>,
        phases: Range<usize>,
        call: &CallOptions,
        values: &[u64],
    ) -> Result<(), CallError> {
        let own = &self.args[self.kernel.local_index(turn.rank())?];
        let mut args = own.lock().unwrap_or_else(PoisonError::into_inner);
        self.map.fill(values, &mut args);
        self.kernel.launch_phases(turn, phases, (self.sms(call), call.timeout), &mut args)
    }
}

impl Group {
    /// Begins a call of a rank: what is put into its turn comes behind all earlier calls of the rank and
    /// behind what the call names. A graph that captures it keeps what `kept` gives.
    pub(crate) fn begin(
        &self,
        rank: usize,
        call: &CallOptions,
        kept: impl FnOnce() -> Kept,
    ) -> Result<Turn<'_>, CallError> {
        let turn = self.turn(rank, call.stream)?;
        if let Some(after) = call.after {
            self.backend().wait_event(rank, call.stream, &after.event())?;
        }
        if turn.is_captured() {
            self.backend().keep(rank, call.stream, kept())?;
        }
        Ok(turn)
    }

    /// Ends the turn of a call.
    pub(crate) fn end(&self, turn: Turn<'_>, call: &CallOptions) -> Result<(), CallError> {
        match call.done {
            Some(done) => Ok(self.backend().record(turn.rank(), turn.stream(), &done.event())?),
            None => Ok(()),
        }
    }

    /// SMs that fill the link of every local rank.
    pub(crate) fn usual_sms(&self, rates: &Rates, traffic: &Traffic) -> u32 {
        self.sms_of(Tuning::choose(rates, traffic).sms)
    }

    /// So many SMs, or as many as every local rank has.
    pub(crate) fn sms_of(&self, wanted: u32) -> u32 {
        self.local().map(|rank| self.backend().sms(rank)).fold(wanted, u32::min)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::backend::Stream;
    use crate::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions, DispatchInput};
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};

    /// Each request takes the host time that the call before it may not have.
    #[test]
    fn a_dispatch_asks_the_driver_for_no_more_than_its_launches_need() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions::new(8, 64, 2, 4);
        let options = BufferOptions {
            handles: Some(5),
            one_launch: Some(false),
            push_combine: Some(false),
            ..options
        };
        let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
        let mut kept = Vec::new();
        let mut asked = |call: &CallOptions| {
            backend.asked();
            let (handle, received) = buffer.dispatch(0, &DispatchInput::default(), call).unwrap();
            kept.push(handle);
            drop(received);
            backend.asked()
        };
        let own = CallOptions::sms(12);
        assert_eq!(asked(&own), ["capture", "launch", "launch"]);
        // SAFETY: the backend looks at no stream.
        let other = CallOptions { stream: unsafe { Stream::from_raw(7) }, ..own };
        let joined =
            ["capture", "number", "capture", "record", "wait", "launch", "launch", "record"];
        assert_eq!(asked(&other), joined, "it comes behind the rank's own stream");
        let alone = ["capture", "number", "launch", "launch", "record"];
        assert_eq!(asked(&other), alone, "the stream itself puts it behind the last call");
        backend.renewed.store(1, Ordering::Relaxed);
        let renewed = ["capture", "number", "wait", "launch", "launch", "record"];
        assert_eq!(asked(&other), renewed, "another stream has got the handle of the last one");
        assert_eq!(asked(&own), ["capture", "wait", "launch", "launch"]);
        group.sync(0).unwrap();
    }

    /// What a launch may still use stays where nobody can wait for its end.
    #[test]
    fn a_buffer_that_goes_while_its_stream_is_captured_keeps_its_memory() {
        for is_captured in [false, true] {
            let backend = FakeBackend::new(1);
            let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
            let buffer = Buffer::new(&group, BufferOptions::new(8, 64, 2, 4), &BuiltIn).unwrap();
            backend.asked();
            backend.is_captured.store(is_captured, Ordering::Relaxed);
            drop(buffer);
            let asked = backend.asked();
            let given_back = |what| asked.contains(&what);
            assert_eq!([given_back("unload"), given_back("unmap")], [!is_captured; 2], "{asked:?}");
            assert_eq!(group.sync(0).is_err(), is_captured);
        }
    }
}

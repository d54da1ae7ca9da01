//! The typed calls: dispatch, cached dispatch and combine over the standard pipelines.
//!
//! A [`Buffer`] is made once for a shape: its kernels are compiled and loaded, its window is mapped, and
//! its tables and outputs are allocated. A call then takes a free handle and output, stores the arguments
//! and launches; it neither allocates nor formats anything. All local ranks are called through one buffer,
//! from any threads. Calls of one rank run one after another, in the order in which they were made, on
//! whatever streams.

mod agreement;
mod bind;
mod counts;
mod expand;
mod far;
mod handles;
mod held;
mod inputs;
mod kernels;
mod lease;
mod memory;
mod options;
mod payload;
mod placement;
mod places;
mod plain;
mod programs;
mod shared;
mod standard;
mod tensors;

use std::sync::Arc;

use ep_codegen::plan::Plan;

use crate::args::Rows;
use crate::backend::{Kept, Stream};
use crate::calls::{BoundCall, CallKernel};
use crate::error::CallError;
use crate::group::Group;
use crate::pipelines::decode_dispatch;

pub use crate::calls::CallOptions;
pub use counts::Counts;
pub use expand::{ExpandOptions, ExpandedOutput, Expander};
pub use handles::{CombineInput, Handle, Offered, Received};
pub use inputs::{CombineOutput, DispatchInput};
pub use memory::MemoryUsage;
pub use options::{BufferOptions, BufferTunes, Payload, Via};
pub use placement::Placement;
pub use plain::PlainOutput;
pub use standard::{BuiltIn, BuiltInBy, Emit, StandardPipeline};

use kernels::Kernels;
use programs::{Programs, choose};
use shared::{RankMemory, Shared};

/// Dispatch and combine for one shape. Clones share one buffer.
#[derive(Clone)]
pub struct Buffer {
    shared: Arc<Shared>,
}

impl Buffer {
    /// Emits, compiles and loads the kernels, maps the window and allocates all memory. All processes of
    /// the group must make the same buffers in the same order.
    pub fn new(
        group: &Group,
        mut options: BufferOptions,
        emit: &dyn Emit,
    ) -> Result<Buffer, CallError> {
        let ranks = group.ranks();
        group.check_local()?;
        // Before anything that could fail on one rank alone and leave the others waiting.
        agreement::agree_on_options(group, &options)?;
        (options.nodes, options.carrier) = (group.nodes(), group.carrier());
        options.check(ranks)?;
        choose(&mut options, group)?;
        let programs = Programs::emit(emit, ranks, group.backend().arch(), &options)?;
        agreement::agree_on_programs(group, &programs)?;
        let memory = MemoryUsage::of_programs(&options, ranks, &programs);
        let usual_sms = group.usual_sms(&options.rates, &options.traffic(ranks));
        let kernels = Kernels::load(group, programs, options.combine_pipeline(ranks), usual_sms)?;
        let own = group.local().map(|rank| RankMemory::new(group, rank, &options, &kernels));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let (has_shared_rows, ranks) = (options.shares_rows(ranks), own);
        let of = group.clone();
        let shared = Shared { kernels, ranks, memory, has_shared_rows, options, group: of };
        // A call may wait for every rank: none is made before all of them have loaded their kernels.
        group.gather("make the first call", 0)?;
        Ok(Buffer { shared: Arc::new(shared) })
    }

    /// The options that the buffer was made with.
    pub fn options(&self) -> &BufferOptions {
        &self.shared.options
    }

    /// Whether an output holds all tokens of all ranks, so that no dispatch waits for its counts.
    pub fn holds_worst_case(&self) -> bool {
        let (options, ranks) = (&self.shared.options, self.shared.group.ranks());
        options.capacity(ranks) >= options.tokens.saturating_mul(ranks)
    }

    /// The pipelines that [`Buffer::dispatch`] launches, in order.
    pub fn dispatch_pipelines(&self) -> &'static [StandardPipeline] {
        use StandardPipeline as Standard;
        match &self.shared.kernels {
            Kernels::Far(_) => &[Standard::NodeLayout, Standard::NodeDispatch],
            Kernels::Near(_) if self.dispatches_in_one_launch() => &[Standard::DecodeDispatch],
            Kernels::Near(_) => &[Standard::Layout, Standard::NvlDispatch],
        }
    }

    /// The pipeline that [`Buffer::combine`] launches.
    pub fn combine_pipeline(&self) -> StandardPipeline {
        self.options().combine_pipeline(self.shared.group.ranks())
    }

    /// Whether [`Buffer::dispatch`] counts and sends in one launch.
    pub fn dispatches_in_one_launch(&self) -> bool {
        self.shared.kernels.one_launch().is_some()
    }

    /// Memory that the buffer takes on each rank.
    pub fn memory(&self) -> MemoryUsage {
        self.shared.memory
    }

    /// Number of dispatches that a rank can make before a caller or a graph drops a handle or an output. After a
    /// graph is dropped, the driver may take a while to give back what the graph held.
    pub fn free(&self, rank: usize) -> Result<usize, CallError> {
        let state = self.shared.rank(rank)?.state();
        Ok(state.handles.free().min(state.outputs.free()))
    }

    /// The plan of a pipeline, if the buffer has it.
    pub fn plan(&self, pipeline: StandardPipeline) -> Option<&Plan> {
        self.shared.kernels.of(pipeline).map(CallKernel::plan)
    }

    /// SMs that a pipeline takes in a call with these options; 0 if the buffer does not have the pipeline.
    pub fn sms(&self, pipeline: StandardPipeline, call: &CallOptions) -> u32 {
        self.shared.kernels.of(pipeline).map_or(0, |kernel| kernel.sms(call))
    }

    /// Counts tokens, exchanges counts and moves rows. Returns when all work is in the stream. The counts
    /// are available when [`Handle::counts`] returns, and the rows when the stream has reached this point.
    ///
    /// With less than worst-case capacity this call waits for the counts first. If any output is too small,
    /// every rank returns [`CallError::OutputTooSmall`]. A capture cannot contain that wait.
    pub fn dispatch(
        &self,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<(Handle, Received), CallError> {
        let shared = &self.shared;
        self.require_no_wait(rank, call)?;
        input.check(self.options())?;
        let received = Received::take(shared, rank, call)?;
        let mut handle = self.take_handle(rank, input, call)?;
        if let Some(one_launch) = shared.kernels.one_launch() {
            self.count_and_send(one_launch, &mut handle, input, &received, call)?;
            return Ok((handle, received));
        }
        // All that may fail on this rank alone comes before the counts are on their way: the other
        // ranks would wait for rows.
        let rows = self.bind_rows(&handle, input, &received, call)?;
        if !self.holds_worst_case() {
            drop(rows);
            // All ranks decide by the counts whether there is room.
            let first = CallOptions { done: None, ..*call };
            self.count(&mut handle, input, &first)?;
            let second = CallOptions { after: None, ..*call };
            self.send_counted(&handle, input, &received, &second)?;
            return Ok((handle, received));
        }
        let counts = self.bind_counts(&handle, input, call)?;
        let leases = || Box::new((handle.lease().kept(), received.lease().kept())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        handle.begin(&turn)?;
        counts.launch(&turn, call)?;
        handle.counting(&mut shared.rank(rank)?.state());
        rows.launch(&turn, call)?;
        shared.group.end(turn, call)?;
        handle.sent();
        Ok((handle, received))
    }

    /// A dispatch in one launch.
    fn count_and_send(
        &self,
        kernel: &decode_dispatch::Kernel,
        handle: &mut Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let (shared, rank) = (&self.shared, handle.rank());
        let bound = self.bind_one_launch(kernel, handle, input, received, call)?;
        let leases = || Box::new((handle.lease().kept(), received.lease().kept())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        handle.begin(&turn)?;
        bound.launch(&turn, call)?;
        handle.counting(&mut shared.rank(rank)?.state());
        shared.group.end(turn, call)?;
        handle.sent_in_one_launch();
        Ok(())
    }

    /// The second half of [`Buffer::dispatch`]: moves the rows, for a handle of the first half. If kernels
    /// do not run by themselves (on the host backend), every rank must exchange counts before any rank
    /// makes this call.
    pub fn dispatch_counted(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let shared = &self.shared;
        shared.same_tokens(handle, input)?;
        shared.group.check(handle.rank())?;
        self.require_no_wait(handle.rank(), call)?;
        input.check(self.options())?;
        let received = Received::take(shared, handle.rank(), call)?;
        self.send_counted(handle, input, &received, call)?;
        Ok(received)
    }

    fn send_counted(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        if !self.holds_worst_case() {
            handle.require_capacity()?;
        }
        let rows = self.bind_rows(handle, input, received, call)?;
        self.send(&rows, handle, received, call)?;
        handle.sent();
        Ok(())
    }

    /// Fails if a dispatch would have to wait for its counts while it is captured.
    fn require_no_wait(&self, rank: usize, call: &CallOptions) -> Result<(), CallError> {
        let shared = &self.shared;
        if self.holds_worst_case() || !shared.group.is_captured(rank, call.stream)? {
            return Ok(());
        }
        let ranks = shared.group.ranks();
        let (have, worst) =
            (shared.options.capacity(ranks), shared.options.tokens.saturating_mul(ranks));
        let what = format!(
            "a dispatch into outputs of {have} rows waits for its counts, which a graph cannot: give \
             outputs room for all {worst} rows, or capture a cached dispatch"
        );
        Err(CallError::Capture { what })
    }

    /// The first half of [`Buffer::dispatch`]: fills the tables of a new handle, and moves no rows.
    pub fn exchange_counts(
        &self,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Handle, CallError> {
        let mut handle = self.take_handle(rank, input, call)?;
        self.count(&mut handle, input, call)?;
        Ok(handle)
    }

    fn count(
        &self,
        handle: &mut Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let (shared, rank) = (&self.shared, handle.rank());
        let counts = self.bind_counts(handle, input, call)?;
        let turn = shared.group.begin(rank, call, || handle.lease().kept())?;
        handle.begin(&turn)?;
        counts.launch(&turn, call)?;
        handle.counting(&mut shared.rank(rank)?.state());
        shared.group.end(turn, call)
    }

    /// A handle for the counts of `input`, which are checked.
    fn take_handle(
        &self,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Handle, CallError> {
        let shared = &self.shared;
        shared.check_tokens(input.tokens)?;
        shared.group.check(rank)?;
        Handle::take(shared, rank, input, call)
    }

    /// Moves rows by the tables of an earlier dispatch: other rows of the same tokens to the same places.
    /// A handle that has only counts is refused.
    pub fn cached_dispatch(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let (shared, rank) = (&self.shared, handle.rank());
        shared.same_tokens(handle, input)?;
        handle.require_way_back()?;
        shared.group.check(rank)?;
        let received = Received::take_cached(shared, rank, call)?;
        let rows = self.bind_cached(handle, input, &received, call)?;
        self.send(&rows, handle, &received, call)?;
        Ok(received)
    }

    /// Launches what moves rows by the tables of a handle.
    fn send(
        &self,
        rows: &BoundCall<'_>,
        handle: &Handle,
        received: &Received,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let group = &self.shared.group;
        let leases = || Box::new((handle.lease().kept(), received.lease().kept())) as Kept;
        let turn = group.begin(handle.rank(), call, leases)?;
        rows.launch(&turn, call)?;
        group.end(turn, call)
    }

    /// Sets every byte of all outputs of a rank after its last call, so that bytes which a dispatch does
    /// not write become visible. No other rank may be sending to it.
    pub fn poison(&self, rank: usize, byte: u8) -> Result<(), CallError> {
        let shared = &self.shared;
        let own = shared.rank(rank)?;
        // Later calls come behind this one, on whatever streams.
        let _turn = shared.group.turn(rank, Stream::OWN)?;
        own.outputs.iter().try_for_each(|output| output.fill(byte))
    }

    /// Takes a combine input in the window, for experts that do not write in place.
    pub fn offer(&self, rank: usize) -> Result<Offered, CallError> {
        self.offer_on(rank, Stream::OWN)
    }

    /// A combine input for a call on this stream, which may be captured.
    pub fn offer_on(&self, rank: usize, stream: Stream) -> Result<Offered, CallError> {
        Offered::take(&self.shared, rank, stream)
    }

    /// Returns rows to their tokens and sums them, together with `biases`.
    pub fn combine(
        &self,
        handle: &Handle,
        input: CombineInput<'_>,
        biases: &[Rows],
        output: &CombineOutput,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let shared = &self.shared;
        shared.own(handle)?;
        if biases.len() != shared.options.biases {
            let (got, want) = (biases.len(), shared.options.biases);
            let what = format!("the call has {got} biases, and the buffer was made for {want}");
            return Err(CallError::Mismatch { what });
        }
        handle.require_way_back()?;
        output.check(self.options(), handle.tokens())?;
        let rank = handle.rank();
        shared.group.check(rank)?;
        let bound = self.bind_combine(handle, input, biases, output, call)?;
        let leases = || Box::new((handle.lease().kept(), input.kept())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        bound.launch(&turn, call)?;
        shared.group.end(turn, call)
    }
}

//! The typed calls: dispatch, cached dispatch and combine over the standard pipelines.
//!
//! A [`Buffer`] is made once for a shape: its kernels are compiled and loaded, its window mapped,
//! its tables and outputs allocated. A call then takes a free handle and output, stores the
//! arguments and launches; it allocates and formats nothing. All local ranks are called through one
//! buffer, from any threads; calls of one rank run one after another, in the order in which they were
//! made, on whatever streams.

mod agreement;
mod arguments;
mod expand;
mod handles;
mod inputs;
mod lease;
mod memory;
mod options;
mod payload;
mod placement;
mod plain;
mod programs;
mod shared;
mod standard;
mod tensors;

use std::sync::Arc;

use ep_codegen::plan::Plan;

use crate::args::Rows;
use crate::backend::{Kept, Stream};
use crate::call_order::Turn;
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, GroupKernel, compile_all, place_control};
use crate::launch::Prepared;
use crate::memory::Window;

pub use crate::calls::CallOptions;
pub use expand::{ExpandOptions, ExpandedOutput, Expander};
pub use handles::{CombineInput, Counts, Handle, Offered, Received};
pub use inputs::{CombineOutput, DispatchInput};
pub use memory::MemoryUsage;
pub use options::{BufferOptions, Payload, Setting, Via};
pub use placement::Placement;
pub use plain::PlainOutput;
pub use standard::{BuiltIn, BuiltInPlain, Emit, StandardPipeline};

use arguments::{CallValue, CallValues, Names};
use handles::NOT_YET;
use programs::{Programs, choose, kernel_sms};
use shared::{RankMemory, Shared};

/// Dispatch and combine for one shape. Clones share one buffer.
#[derive(Clone)]
pub struct Buffer {
    shared: Arc<Shared>,
}

impl Buffer {
    /// Emits, compiles and loads the kernels, maps the window and allocates everything. All
    /// processes of the group make the same buffers in the same order.
    pub fn new(
        group: &Group,
        mut options: BufferOptions,
        emit: &dyn Emit,
    ) -> Result<Buffer, CallError> {
        use StandardPipeline as Standard;
        let ranks = group.ranks();
        let backend = group.backend().as_ref();
        group.check_local()?;
        // Before anything that could fail on one rank alone and leave the others waiting.
        agreement::agree_on_options(backend, &options)?;
        options.check(ranks)?;
        choose(&mut options, backend, ranks)?;
        let programs = Programs::emit(emit, ranks, backend.arch(), &options)?;
        agreement::agree_on_programs(backend, &programs)?;
        let (starts, _) = place_control(programs.plans());
        let layout = programs.layout(&options, ranks);
        let window = Arc::new(Window::new(group.backend(), layout.window_bytes())?);
        let images = compile_all(group, &programs.all().collect::<Vec<_>>())?;
        let traffic = options.traffic(ranks);
        let usual_sms = group.usual_sms(&options.rates, &traffic);
        let prepare = |pipeline, program: &Emitted, place: usize| {
            let (control_at, plan) = (starts[place], &program.plan);
            let kernel = GroupKernel::load(group, &window, control_at, plan, &images[place])?;
            // Pairs of even and odd blocks serve one stripe at a time.
            let is_paired = plan.arms.iter().any(|(axis, arm)| axis == "via" && arm == "Ring");
            let names = Names { pipeline, control_at, options: &options, ranks, layout: &layout };
            let sms = kernel_sms(group, pipeline, usual_sms);
            Prepared::new(kernel, sms, is_paired, |param| names.operand(param))
        };
        let layout_kernel = prepare(Standard::Layout, &programs.layout, 0)?;
        let dispatch = prepare(Standard::NvlDispatch, &programs.dispatch, 1)?;
        let combine = prepare(options.combine_pipeline(ranks), &programs.combine, 2)?;
        // Those that not every buffer has follow in the order of `Programs::all`.
        let mut place = 3;
        let mut prepare_if = |pipeline, program: &Option<Emitted>| {
            let Some(program) = program else { return Ok::<_, CallError>(None) };
            place += 1;
            prepare(pipeline, program, place - 1).map(Some)
        };
        let cached = prepare_if(Standard::NvlDispatchCached, &programs.cached)?;
        let one_launch = prepare_if(Standard::DecodeDispatch, &programs.one_launch)?;
        let stripes = prepare_if(Standard::DecodeStripes, &programs.stripes)?;
        let memory = group.local().map(|rank| RankMemory::new(group, rank, &options, &layout));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let shared = Shared {
            layout_kernel,
            dispatch,
            cached,
            combine,
            one_launch,
            stripes,
            ranks: memory,
            window,
            no_counts: vec![NOT_YET; 1 + options.local_experts(ranks)],
            layout,
            traffic,
            options,
            group: group.clone(),
        };
        shared.name_memory()?;
        // A call may wait for every rank: none is made before all of them have loaded their kernels.
        backend.gather("make the first call", 0)?;
        Ok(Buffer { shared: Arc::new(shared) })
    }

    /// What the buffer was made for.
    pub fn options(&self) -> &BufferOptions {
        &self.shared.options
    }

    /// Whether an output holds all tokens of all ranks, so that no dispatch waits for its counts.
    pub fn holds_worst_case(&self) -> bool {
        let (options, ranks) = (&self.shared.options, self.shared.group.ranks());
        options.capacity(ranks) >= options.tokens.saturating_mul(ranks)
    }

    /// The pipelines of [`Buffer::dispatch`], in order.
    pub fn dispatch_pipelines(&self) -> &'static [StandardPipeline] {
        match self.dispatches_in_one_launch() {
            true => &[StandardPipeline::DecodeDispatch],
            false => &[StandardPipeline::Layout, StandardPipeline::NvlDispatch],
        }
    }

    /// The pipeline of a combine.
    pub fn combine_pipeline(&self) -> StandardPipeline {
        self.options().combine_pipeline(self.shared.group.ranks())
    }

    /// Whether [`Buffer::dispatch`] counts and sends in one launch.
    pub fn dispatches_in_one_launch(&self) -> bool {
        self.shared.one_launch.is_some()
    }

    /// Memory that it takes on each rank.
    pub fn memory(&self) -> MemoryUsage {
        self.shared.layout.usage()
    }

    /// The plan of a pipeline, if the buffer has it.
    pub fn plan(&self, pipeline: StandardPipeline) -> Option<&Plan> {
        self.shared.prepared(pipeline).map(Prepared::plan)
    }

    /// SMs that a pipeline takes in such a call; 0 if the buffer does not have it.
    pub fn sms(&self, pipeline: StandardPipeline, call: &CallOptions) -> u32 {
        self.shared.prepared(pipeline).map_or(0, |prepared| prepared.sms(call))
    }

    /// Those of them that send to other ranks, of a direct dispatch; all of them if each serves its own
    /// rank as well.
    pub fn remote_sms(&self, call: &CallOptions) -> u32 {
        self.shared.remote_sms(call)
    }

    /// Counts, exchanges counts and moves rows. Returns when everything is in the stream; the
    /// counts and rows are there when [`Handle::counts`] has returned and the stream has come so
    /// far.
    ///
    /// With less than worst-case capacity it waits for the counts first, and every rank returns
    /// [`CallError::OutputTooSmall`] if any output is too small. A capture cannot hold that wait.
    pub fn dispatch(
        &self,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<(Handle, Received), CallError> {
        let shared = &self.shared;
        // All that may fail on this rank alone comes before the counts are on their way: the other
        // ranks would wait for rows.
        self.require_no_wait(rank, call)?;
        input.check_rows(self.options(), true)?;
        if let Some(one_launch) = &shared.one_launch {
            return self.count_and_send(one_launch, rank, input, call);
        }
        shared.dispatch.check_blocks(rank, call)?;
        let received = Received::take(shared, rank)?;
        if !self.holds_worst_case() {
            // All ranks decide by the counts whether there is room.
            let first = CallOptions { done: None, ..*call };
            let handle = self.exchange_counts(rank, input, &first)?;
            let second = CallOptions { after: None, ..*call };
            self.send_counted(&handle, input, &received, &second)?;
            return Ok((handle, received));
        }
        let mut handle = self.take_handle(rank, input, call)?;
        let leases = || Box::new((handle.lease().clone(), received.lease().clone())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        self.launch_counts(&turn, &mut handle, input, call)?;
        self.launch_rows(&turn, &shared.dispatch, &handle, input, &received, call)?;
        shared.group.end(turn, call)?;
        handle.sent();
        Ok((handle, received))
    }

    /// A dispatch in one launch.
    fn count_and_send(
        &self,
        prepared: &Prepared,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<(Handle, Received), CallError> {
        let shared = &self.shared;
        prepared.check_blocks(rank, call)?;
        let received = Received::take(shared, rank)?;
        let mut handle = self.take_handle(rank, input, call)?;
        let leases = || Box::new((handle.lease().clone(), received.lease().clone())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        handle.begin(&turn)?;
        self.launch_rows(&turn, prepared, &handle, input, &received, call)?;
        handle.counting(&mut shared.rank(rank)?.state());
        shared.group.end(turn, call)?;
        handle.sent_in_one_launch();
        Ok((handle, received))
    }

    /// The second half of [`Buffer::dispatch`]: the rows, for a handle of the first half. Where
    /// kernels do not run by themselves, every rank exchanges counts before any rank comes here.
    pub fn dispatch_counted(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let shared = &self.shared;
        shared.same_tokens(handle, input)?;
        self.require_no_wait(handle.rank(), call)?;
        input.check_rows(self.options(), true)?;
        let received = Received::take(shared, handle.rank())?;
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
        self.send_rows(&self.shared.dispatch, handle, input, received, call)?;
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

    /// The first half of [`Buffer::dispatch`]: the tables of a new handle, and no rows.
    pub fn exchange_counts(
        &self,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Handle, CallError> {
        let shared = &self.shared;
        let mut handle = self.take_handle(rank, input, call)?;
        let turn = shared.group.begin(rank, call, || Box::new(handle.lease().clone()))?;
        self.launch_counts(&turn, &mut handle, input, call)?;
        shared.group.end(turn, call)?;
        Ok(handle)
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
        input.check_routing()?;
        shared.group.check(rank)?;
        Handle::take(shared, rank, input, call)
    }

    fn launch_counts(
        &self,
        turn: &Turn<'_>,
        handle: &mut Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let shared = &self.shared;
        let own = shared.rank(handle.rank())?;
        handle.begin(turn)?;
        let mut values = CallValues::new();
        handle.bind(&mut values)?;
        values
            .set(CallValue::TopkIdx, input.topk_idx)
            .set(CallValue::Placement, own.placement.address());
        shared.layout_kernel.launch(turn, call, values.values())?;
        handle.counting(&mut own.state());
        Ok(())
    }

    /// Makes the tables of stripes that later dispatches read, which one launch does not leave.
    fn count_stripes(
        &self,
        turn: &Turn<'_>,
        handle: &Handle,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let shared = &self.shared;
        let Some(stripes) = shared.stripes.as_ref().filter(|_| handle.lacks_stripes()) else {
            return Ok(());
        };
        let mut values = CallValues::new();
        handle.bind(&mut values)?;
        stripes.launch(turn, call, values.values())?;
        // A call that is made now does not find what a replay will make.
        if !turn.is_captured() {
            handle.has_stripes();
        }
        Ok(())
    }

    /// Moves rows along the tables of an earlier dispatch: the same tokens to the same places.
    pub fn cached_dispatch(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let shared = &self.shared;
        shared.same_tokens(handle, input)?;
        let Some(cached) = &shared.cached else {
            let what = "the buffer was made without cached dispatches".to_string();
            return Err(CallError::Mismatch { what });
        };
        input.check_rows(self.options(), false)?;
        shared.group.check(handle.rank())?;
        let received = Received::take(shared, handle.rank())?;
        self.send_rows(cached, handle, input, &received, call)?;
        Ok(received)
    }

    fn send_rows(
        &self,
        prepared: &Prepared,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let group = &self.shared.group;
        let leases = || Box::new((handle.lease().clone(), received.lease().clone())) as Kept;
        let turn = group.begin(handle.rank(), call, leases)?;
        self.count_stripes(&turn, handle, call)?;
        self.launch_rows(&turn, prepared, handle, input, received, call)?;
        group.end(turn, call)
    }

    fn launch_rows(
        &self,
        turn: &Turn<'_>,
        prepared: &Prepared,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let shared = &self.shared;
        let own = shared.rank(handle.rank())?;
        let mut values = CallValues::new();
        handle.bind(&mut values)?;
        received.bind(&mut values)?;
        values
            .set(CallValue::RemoteBlocks, u64::from(shared.remote_sms(call)))
            .set(CallValue::Placement, own.placement.address())
            .set(CallValue::X, input.x.address)
            .set(CallValue::XStride, input.x.row_stride as u64)
            .set(CallValue::Scale, input.scale.address)
            .set(CallValue::ScaleStride, input.scale.row_stride as u64)
            .set(CallValue::ScaleColumnStride, input.scale.column_stride as u64)
            .set(CallValue::TopkIdx, input.topk_idx)
            .set(CallValue::Weights, input.topk_weights);
        prepared.launch(turn, call, values.values())
    }

    /// Sets every byte of all outputs of a rank behind its last call, so that what a dispatch does
    /// not write shows. No other rank may be sending to it.
    pub fn poison(&self, rank: usize, byte: u8) -> Result<(), CallError> {
        let shared = &self.shared;
        let own = shared.rank(rank)?;
        // Later calls come behind this one, on whatever streams.
        let _turn = shared.group.turn(rank, Stream::OWN)?;
        let (backend, layout) = (shared.group.backend(), &shared.layout);
        let region = shared.window.own(rank)? + layout.received_at(0);
        let bytes = layout.received_at(shared.options.live) - layout.received_at(0);
        backend.fill(rank, Stream::OWN, region, byte, bytes)?;
        Ok(own.unpacked.fill(Stream::OWN, byte)?)
    }

    /// A combine input in the window, for experts that do not write in place.
    pub fn offer(&self, rank: usize) -> Result<Offered, CallError> {
        Offered::take(&self.shared, rank)
    }

    /// Brings rows back to their tokens and adds them up, and `biases` to the sums.
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
            let what = format!("{got} biases, but the buffer was made for {want}");
            return Err(CallError::Mismatch { what });
        }
        if biases.windows(2).any(|pair| pair[0].row_stride != pair[1].row_stride) {
            let what = "the biases of a combine have one row stride".to_string();
            return Err(CallError::Mismatch { what });
        }
        handle.require_way_back()?;
        output.check(self.options(), biases, handle.tokens())?;
        let rank = handle.rank();
        let own = shared.rank(rank)?;
        shared.group.check(rank)?;
        let mut values = CallValues::new();
        handle.bind(&mut values)?;
        input.bind(shared, rank, &mut values)?;
        let bias = |copy: usize| biases.get(copy).map_or(0, |rows| rows.address);
        values
            .set(CallValue::Placement, own.placement.address())
            .set(CallValue::Bias0, bias(0))
            .set(CallValue::Bias1, bias(1))
            .set(CallValue::BiasStride, biases.first().map_or(0, |rows| rows.row_stride as u64))
            .set(CallValue::Combined, output.combined)
            .set(CallValue::CombinedWeights, output.combined_weights);
        let leases = || Box::new((handle.lease().clone(), input.leases())) as Kept;
        let turn = shared.group.begin(rank, call, leases)?;
        shared.combine.launch(&turn, call, values.values())?;
        shared.group.end(turn, call)
    }
}

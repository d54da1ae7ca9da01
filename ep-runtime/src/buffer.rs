//! The typed calls: dispatch, cached dispatch and combine over the standard pipelines.
//!
//! A [`Buffer`] is made once for a shape: its kernels are compiled and loaded, its window mapped,
//! its tables and outputs allocated. A call then takes a free handle and output, stores the
//! arguments and launches; it allocates and formats nothing. All local ranks are called through one
//! buffer, from any threads; calls of one rank run one after another, in the order in which they were
//! made, on whatever streams.

mod agreement;
mod expand;
mod given;
mod live;
mod memory;
mod options;
mod placement;
mod plain;
mod slots;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ep_codegen::plan::{Arch, Plan};

use crate::args::{ArgsMap, Rows};
use crate::backend::{Signal, Stream};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, Kernel, compile_all, place_control, positive, waived};
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::order::Turn;
use crate::tune::{Traffic, Tuning};

pub use expand::{ExpandOptions, ExpandedOutput, Expander};
pub use live::{CombineInput, Counts, Handle, Offered, Received};
pub use memory::MemoryUsage;
pub use options::{BufferOptions, Declared, Emit, Payload, Setting, StandardPipeline, Via};
pub use placement::Placement;
pub use plain::PlainOutput;

use live::{NOT_YET, Place, Pool};
use memory::MemoryLayout;
use slots::{Slot, Slots};

/// What a dispatch sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchInput {
    /// Tokens of this rank.
    pub tokens: usize,
    /// Device address of an `i32` that holds how many tokens there are, if the host does not know it,
    /// as when a graph replays the call; `tokens` is then the most there may be. The word stays as it
    /// is until all calls of the handle have run. 0: there are `tokens`.
    pub tokens_from: u64,
    /// Token rows.
    pub x: Rows,
    /// Their scales; absent for BF16.
    pub scale: Rows,
    /// Device address of `i64[tokens, topk]`; a cached dispatch needs none.
    pub topk_idx: u64,
    /// Device address of `f32[tokens, topk]`, for a buffer that moves weights.
    pub topk_weights: u64,
}

/// Where a combine leaves its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CombineOutput {
    /// Device address of `bf16[tokens, hidden]`.
    pub combined: u64,
    /// Device address of `f32[tokens, topk]`, for a buffer that moves weights.
    pub combined_weights: u64,
}

/// How one call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOptions {
    /// Stream to run on. A call waits for all earlier ones of its rank, on whatever streams; one that
    /// is captured waits when it is replayed.
    pub stream: Stream,
    /// Blocks of every kernel of the call: the multiprocessors that it takes. A kernel whose roles
    /// need more gets as many as they need; [`Buffer::blocks`] says how many.
    pub blocks: u32,
    /// Blocks of a direct dispatch that send to other ranks; if these are all, they serve their own
    /// rank as well. `None`: chosen by the buffer's rates.
    pub remote_blocks: Option<u32>,
    /// Longest wait inside a kernel of the call; `None`: that of the group.
    pub timeout: Option<Duration>,
    /// What the call comes after, such as an event behind the kernel that makes its inputs.
    pub after: Option<Signal>,
    /// Recorded behind the call, for streams that go on with what it leaves.
    pub done: Option<Signal>,
}

impl CallOptions {
    /// The rank's own stream and `blocks` blocks.
    pub fn blocks(blocks: u32) -> CallOptions {
        CallOptions {
            stream: Stream::OWN,
            blocks,
            remote_blocks: None,
            timeout: None,
            after: None,
            done: None,
        }
    }
}

/// A kernel with its resolved arguments.
struct Prepared {
    kernel: Kernel,
    map: ArgsMap,
}

/// Everything of one rank that calls take from.
struct RankMemory {
    tables: DeviceMemory,
    counts: Vec<HostMemory>,
    unpacked: DeviceMemory,
    placement: DeviceMemory,
    state: Mutex<RankState>,
}

/// What changes from call to call.
struct RankState {
    handles: Pool,
    outputs: Pool,
    offered: Pool,
    /// Handles whose counts a launched kernel writes, and has not been seen to have written.
    counting: Vec<bool>,
    /// Room for the largest `struct Args`.
    args: Vec<u8>,
}

/// What handles and outputs keep alive.
struct Shared {
    // Dropped in this order: kernels before the memory whose addresses they were given.
    layout_kernel: Prepared,
    dispatch: Prepared,
    cached: Option<Prepared>,
    combine: Prepared,
    ranks: Vec<RankMemory>,
    window: Arc<Window>,
    /// What the counts of a handle hold before the kernel has written them.
    no_counts: Vec<u32>,
    layout: MemoryLayout,
    traffic: Traffic,
    options: BufferOptions,
    group: Group,
}

/// Dispatch and combine for one shape. Clones share one buffer.
#[derive(Clone)]
pub struct Buffer {
    shared: Arc<Shared>,
}

/// The emitted kernels of a buffer.
struct Programs {
    layout: Emitted,
    dispatch: Emitted,
    cached: Option<Emitted>,
    combine: Emitted,
}

impl Programs {
    fn emit(
        emit: &dyn Emit,
        ranks: usize,
        arch: Arch,
        options: &BufferOptions,
    ) -> Result<Programs, CallError> {
        use StandardPipeline as Standard;
        let make = |pipeline: StandardPipeline, stripes: Option<i64>| {
            emit.emit(pipeline, arch, &options.settings_of(pipeline, ranks, stripes))
        };
        let dispatch = make(Standard::NvlDispatch, None)?;
        // Counts are made per stripe of the dispatch that reads them.
        let stripes = dispatch.plan.numbers.get("stripes").copied();
        Ok(Programs {
            layout: make(Standard::Layout, stripes)?,
            cached: match options.cached {
                true => Some(make(Standard::NvlDispatchCached, stripes)?),
                false => None,
            },
            combine: make(Standard::NvlCombine, stripes)?,
            dispatch,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Emitted> {
        let fixed = [&self.layout, &self.dispatch, &self.combine];
        fixed.into_iter().chain(&self.cached)
    }

    fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.all().map(|program| &program.plan)
    }

    /// What lies where in a buffer of them.
    fn layout(&self, options: &BufferOptions, ranks: usize) -> MemoryLayout {
        let (_, control_bytes) = place_control(self.plans());
        MemoryLayout::new(options, ranks, self.plans(), control_bytes, self.meta_bytes())
    }

    /// Bytes of the meta record that a direct channel brings with each row.
    fn meta_bytes(&self) -> u64 {
        let dispatches = [Some(&self.dispatch), self.cached.as_ref()].into_iter().flatten();
        let messages = dispatches.flat_map(|program| &program.plan.messages);
        messages.map(|message| positive(message.meta_bytes)).max().unwrap_or(0)
    }
}

impl Buffer {
    /// Emits, compiles and loads the kernels, maps the window and allocates everything. All
    /// processes of the group make the same buffers in the same order.
    pub fn new(
        group: &Group,
        options: BufferOptions,
        emit: &dyn Emit,
    ) -> Result<Buffer, CallError> {
        use StandardPipeline as Standard;
        let ranks = group.ranks();
        let backend = group.backend().as_ref();
        group.check_local()?;
        // Before anything that could fail on one rank alone and leave the others waiting.
        agreement::agree_on_options(backend, &options)?;
        options.check(ranks)?;
        let programs = Programs::emit(emit, ranks, backend.arch(), &options)?;
        agreement::agree_on_programs(backend, &programs)?;
        let (starts, _) = place_control(programs.plans());
        let layout = programs.layout(&options, ranks);
        let window = Arc::new(Window::new(group.backend(), layout.window_bytes())?);
        let images = compile_all(group, &programs.all().collect::<Vec<_>>())?;
        let prepare = |pipeline, program: &Emitted, place: usize| {
            let (at, image) = (starts[place], &images[place]);
            let kernel = Kernel::load(group, &window, at, &program.plan, image)?;
            let map = slots::resolve(pipeline, kernel.plan(), at, &options, ranks, &layout)?;
            Ok::<Prepared, CallError>(Prepared { kernel, map })
        };
        let layout_kernel = prepare(Standard::Layout, &programs.layout, 0)?;
        let dispatch = prepare(Standard::NvlDispatch, &programs.dispatch, 1)?;
        let combine = prepare(Standard::NvlCombine, &programs.combine, 2)?;
        let cached = programs.cached.as_ref();
        let cached =
            cached.map(|program| prepare(Standard::NvlDispatchCached, program, 3)).transpose()?;
        let args = programs.plans().map(|plan| positive(plan.args_bytes) as usize).max();
        let memory = group
            .local()
            .map(|rank| RankMemory::new(group, rank, &options, &layout, args.unwrap_or(0)));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let traffic = options.traffic(ranks);
        let shared = Shared {
            layout_kernel,
            dispatch,
            cached,
            combine,
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

    /// Memory that it takes on each rank.
    pub fn memory(&self) -> MemoryUsage {
        self.shared.layout.usage()
    }

    /// The plan of a pipeline, if the buffer has it.
    pub fn plan(&self, pipeline: StandardPipeline) -> Option<&Plan> {
        self.shared.prepared(pipeline).map(|prepared| prepared.kernel.plan())
    }

    /// Blocks that a pipeline is launched with for such a call; 0 if the buffer does not have it.
    pub fn blocks(&self, pipeline: StandardPipeline, call: &CallOptions) -> u32 {
        self.shared.prepared(pipeline).map_or(0, |prepared| prepared.blocks(call))
    }

    /// Those of them that send to other ranks, of a direct dispatch; all of them if each serves its own
    /// rank as well.
    pub fn remote_blocks(&self, call: &CallOptions) -> u32 {
        self.shared.remote_blocks(call)
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
        self.require_no_wait(rank, call)?;
        // Not after the counts are on their way: the other ranks would wait for rows.
        input.check_rows(self.options(), true)?;
        let first = CallOptions { done: None, ..*call };
        let handle = self.exchange_counts(rank, input, &first)?;
        let received =
            self.dispatch_counted(&handle, input, &CallOptions { after: None, ..*call })?;
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
        if !self.holds_worst_case() {
            handle.require_capacity()?;
        }
        let received = self.send_rows(&shared.dispatch, handle, input, call)?;
        handle.sent();
        Ok(received)
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
        shared.check_tokens(input.tokens)?;
        input.check_routing()?;
        let own = shared.rank(rank)?;
        shared.group.check(rank)?;
        let is_captured = shared.group.is_captured(rank, call.stream)?;
        let timeout = call.timeout.unwrap_or_else(|| shared.group.timeout());
        let handle = Handle::take(shared, rank, input, is_captured, timeout)?;
        let mut slots = Slots::new();
        handle.bind(&mut slots)?;
        slots.set(Slot::TopkIdx, input.topk_idx).set(Slot::Placement, own.placement.address());
        let turn = shared.begin(rank, call)?;
        shared.keep(&turn, || [Some(handle.place().clone()), None, None])?;
        let mut state = own.state();
        shared.layout_kernel.launch(&turn, call, &slots, &mut state)?;
        handle.counting(&mut state);
        drop(state);
        shared.end(turn, call)?;
        Ok(handle)
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
        self.send_rows(cached, handle, input, call)
    }

    fn send_rows(
        &self,
        prepared: &Prepared,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let shared = &self.shared;
        let rank = handle.rank();
        let own = shared.rank(rank)?;
        let received = Received::take(shared, rank)?;
        let mut slots = Slots::new();
        handle.bind(&mut slots)?;
        received.bind(&mut slots)?;
        slots
            .set(Slot::RemoteBlocks, u64::from(shared.remote_blocks(call)))
            .set(Slot::Placement, own.placement.address())
            .set(Slot::X, input.x.address)
            .set(Slot::XStride, input.x.row_stride as u64)
            .set(Slot::Scale, input.scale.address)
            .set(Slot::ScaleStride, input.scale.row_stride as u64)
            .set(Slot::ScaleColumnStride, input.scale.column_stride as u64)
            .set(Slot::TopkIdx, input.topk_idx)
            .set(Slot::Weights, input.topk_weights);
        let turn = shared.begin(rank, call)?;
        shared
            .keep(&turn, || [Some(handle.place().clone()), Some(received.place().clone()), None])?;
        prepared.launch(&turn, call, &slots, &mut own.state())?;
        shared.end(turn, call)?;
        Ok(received)
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
        let mut slots = Slots::new();
        handle.bind(&mut slots)?;
        input.bind(shared, rank, &mut slots)?;
        let bias = |copy: usize| biases.get(copy).map_or(0, |rows| rows.address);
        slots
            .set(Slot::Placement, own.placement.address())
            .set(Slot::Bias0, bias(0))
            .set(Slot::Bias1, bias(1))
            .set(Slot::BiasStride, biases.first().map_or(0, |rows| rows.row_stride as u64))
            .set(Slot::Combined, output.combined)
            .set(Slot::CombinedWeights, output.combined_weights);
        let turn = shared.begin(rank, call)?;
        shared.keep(&turn, || {
            let [rows, weights] = input.places();
            [Some(handle.place().clone()), rows, weights]
        })?;
        shared.combine.launch(&turn, call, &slots, &mut own.state())?;
        shared.end(turn, call)
    }
}

impl Prepared {
    fn launch(
        &self,
        turn: &Turn<'_>,
        call: &CallOptions,
        slots: &Slots,
        state: &mut RankState,
    ) -> Result<(), CallError> {
        let args = &mut state.args[..self.map.bytes()];
        let (blocks, slots) = (self.blocks(call), slots.values());
        self.kernel.launch_mapped(turn, blocks, call.timeout, &self.map, slots, args)
    }

    /// Blocks of a launch.
    fn blocks(&self, call: &CallOptions) -> u32 {
        let plan = self.kernel.plan();
        let blocks = call.blocks.max(positive(plan.blocks_min) as u32);
        // Pairs of even and odd blocks serve one stripe at a time: an odd one would have no
        // partner.
        let paired = plan.arms.iter().any(|(axis, arm)| axis == "via" && arm == "Ring");
        if paired { blocks.next_multiple_of(2) } else { blocks }
    }
}

impl RankMemory {
    fn new(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        layout: &MemoryLayout,
        args_bytes: usize,
    ) -> Result<RankMemory, CallError> {
        let backend = group.backend();
        let live = options.live as u64;
        let counts = (0..live).map(|_| HostMemory::new(backend, rank, layout.counts.bytes()));
        let begin = options.placement(group.ranks());
        let begin: Vec<u8> = begin.begin().iter().flat_map(|first| first.to_le_bytes()).collect();
        let placement = DeviceMemory::new(backend, rank, begin.len() as u64)?;
        placement.write(0, &begin)?;
        let state = RankState {
            handles: Pool::new(options.live),
            outputs: Pool::new(options.live),
            offered: Pool::new(options.live),
            counting: vec![false; options.live],
            args: vec![0; args_bytes],
        };
        Ok(RankMemory {
            tables: DeviceMemory::zeroed(backend, rank, live * layout.tables.bytes())?,
            counts: counts.collect::<Result<Vec<_>, _>>()?,
            unpacked: DeviceMemory::zeroed(backend, rank, live * layout.unpacked.bytes())?,
            placement,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, RankState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn prepared(&self, pipeline: StandardPipeline) -> Option<&Prepared> {
        match pipeline {
            StandardPipeline::Layout => Some(&self.layout_kernel),
            StandardPipeline::NvlDispatch => Some(&self.dispatch),
            StandardPipeline::NvlDispatchCached => self.cached.as_ref(),
            StandardPipeline::NvlCombine => Some(&self.combine),
        }
    }

    /// Blocks of a direct dispatch that send to other ranks, which may be all of them.
    fn remote_blocks(&self, call: &CallOptions) -> u32 {
        let most = call.blocks.max(1);
        let chosen = || Tuning::split(&self.options.rates, &self.traffic, call.blocks).remote;
        call.remote_blocks.unwrap_or_else(chosen).clamp(1, most)
    }

    fn rank(&self, rank: usize) -> Result<&RankMemory, CallError> {
        Ok(&self.ranks[self.group.local_index(rank)?])
    }

    /// Says what lies where, for reports.
    fn name_memory(&self) -> Result<(), CallError> {
        let (backend, layout) = (self.group.backend(), &self.layout);
        // Rows come straight into an output, and are fetched from there or from a combine input.
        let fetching = waived(self.combine.kernel.plan(), |_| true);
        let dispatches = [Some(&self.dispatch), self.cached.as_ref()].into_iter().flatten();
        let mut arriving: Vec<&str> =
            dispatches.flat_map(|it| waived(it.kernel.plan(), |_| true)).collect();
        arriving.extend(&fetching);
        for (rank, own) in self.group.local().zip(&self.ranks) {
            let window = self.window.own(rank)?;
            for index in 0..self.options.live {
                let step = index as u64;
                let counts = own.counts[index].address();
                let tables = own.tables.address() + step * layout.tables.bytes();
                let unpacked = own.unpacked.address() + step * layout.unpacked.bytes();
                let none = &Vec::new();
                let places = [
                    ("", tables, &layout.tables, none),
                    ("", counts, &layout.counts, none),
                    ("output ", unpacked, &layout.unpacked, none),
                    ("output ", window + layout.received_at(index), &layout.received, &arriving),
                    (
                        "combine input ",
                        window + layout.offered_at(index),
                        &layout.offered,
                        &fetching,
                    ),
                ];
                for (what, at, blocks, waived) in places {
                    for (name, start, bytes) in blocks.parts() {
                        let name = format!("{what}{name}");
                        backend.name_memory(rank, at + start, bytes, &name, waived);
                    }
                }
            }
        }
        Ok(())
    }

    /// The turn of a call, behind what it comes after.
    fn begin(&self, rank: usize, call: &CallOptions) -> Result<Turn<'_>, CallError> {
        let turn = self.group.turn(rank, call.stream)?;
        if let Some(after) = call.after {
            self.group.backend().wait_event(rank, call.stream, &after.event())?;
        }
        Ok(turn)
    }

    /// Ends the turn of a call.
    fn end(&self, turn: Turn<'_>, call: &CallOptions) -> Result<(), CallError> {
        if let Some(done) = call.done {
            self.group.backend().record(turn.rank(), turn.stream(), &done.event())?;
        }
        Ok(())
    }

    /// Gives a graph that captures the call what it may not outlive.
    fn keep(
        &self,
        turn: &Turn<'_>,
        places: impl FnOnce() -> [Option<Place>; 3],
    ) -> Result<(), CallError> {
        if !turn.is_captured() {
            return Ok(());
        }
        let kept = Box::new(places());
        Ok(self.group.backend().keep(turn.rank(), turn.stream(), kept)?)
    }

    fn check_tokens(&self, tokens: usize) -> Result<(), CallError> {
        if tokens <= self.options.tokens {
            return Ok(());
        }
        let (need, have) = (tokens as u64, self.options.tokens as u64);
        Err(CallError::TooLarge { what: "tokens", need, have })
    }

    /// Fails for a handle of another buffer or of another number of tokens.
    fn same_tokens(&self, handle: &Handle, input: &DispatchInput) -> Result<(), CallError> {
        self.own(handle)?;
        if (input.tokens, input.tokens_from) == (handle.tokens(), handle.tokens_from()) {
            return Ok(());
        }
        if input.tokens_from != handle.tokens_from() {
            let what = "the number of tokens is found in another place than that of the handle";
            return Err(CallError::Mismatch { what: what.to_string() });
        }
        let (got, want) = (input.tokens, handle.tokens());
        let what = format!("{got} tokens, but the handle is one of {want}");
        Err(CallError::Mismatch { what })
    }

    /// Fails for a handle of another buffer.
    fn own(&self, handle: &Handle) -> Result<(), CallError> {
        if handle.belongs_to(self) {
            return Ok(());
        }
        let what = "the handle belongs to another buffer".to_string();
        Err(CallError::Mismatch { what })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nothing may be freed while a kernel that knows its address is in flight; every such
        // kernel ends, since its waits are bounded.
        for rank in self.group.local() {
            let _ = self.group.settle(rank);
        }
    }
}

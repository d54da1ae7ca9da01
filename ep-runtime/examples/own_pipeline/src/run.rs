//! Calls of a dispatch from Rust, by the names of its declaration: a pipeline needs no typed call of
//! its own to run. Counts and positions come from the standard `Layout`.

use std::sync::Arc;

use ep_runtime::AnyPipeline;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::buffer::Placement;
use ep_runtime::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions, DispatchInput, Handle, Via};
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::memory::{DeviceMemory, Window, align_up};
use ep_runtime::plan::Config;
use ep_verify::oracle::{Oracle, Random, RoutingOptions, random_bf16, random_bytes};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// What outputs hold before a call.
const POISON: u8 = 0xa5;

/// Numbers of a problem.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Tokens of each rank.
    pub tokens: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Experts per token.
    pub topk: usize,
    /// Experts of all ranks.
    pub experts: usize,
}

/// What every rank sends, and where to.
pub struct Sent {
    shape: Shape,
    oracle: Oracle,
    x: Vec<Vec<u8>>,
    tags: Vec<Vec<u8>>,
}

impl Sent {
    /// Random rows and routing.
    pub fn random(shape: Shape, ranks: usize, seed: u64) -> Sent {
        let mut random = Random::new(seed);
        let routing = RoutingOptions::even(shape.topk, shape.experts);
        let routings = (0..ranks).map(|_| routing.routing(shape.tokens, &mut random)).collect();
        let placement = Placement::even(shape.experts, ranks);
        let oracle = Oracle::new(shape.experts, placement, routings);
        let mut rows = |make: fn(usize, &mut Random) -> Vec<u8>, each: usize| {
            (0..ranks).map(|_| make(shape.tokens * each, &mut random)).collect()
        };
        let (x, tags) = (rows(random_bf16, shape.hidden), rows(random_bytes, TAG_BYTES));
        Sent { shape, oracle, x, tags }
    }
}

/// The ranks of a group with the inputs and outputs of a problem.
pub struct Ranks {
    group: Group,
    problem: Sent,
    ranks: Vec<RankMemory>,
    handles: Vec<Handle>,
    counts: Buffer,
}

struct RankMemory {
    x: DeviceMemory,
    tag: DeviceMemory,
    topk_idx: DeviceMemory,
    topk_weights: DeviceMemory,
    placement: DeviceMemory,
    recv_tag: DeviceMemory,
    recv_topk_idx: DeviceMemory,
    recv_topk_weights: DeviceMemory,
    tables: Vec<(&'static str, DeviceMemory)>,
}

/// A dispatch, compiled and loaded on all ranks.
pub struct Dispatch {
    kernel: GroupKernel,
    window: Arc<Window>,
    /// Where the output begins in the window.
    rows_at: u64,
}

impl Ranks {
    /// Uploads the inputs, and counts and exchanges where the rows go.
    pub fn new(group: &Group, problem: Sent, blocks: u32) -> Result<Ranks, CallError> {
        let Shape { tokens, hidden, topk, experts } = problem.shape;
        let options =
            BufferOptions { via: Via::Ring, ..BufferOptions::new(tokens, hidden, topk, experts) };
        let counts = Buffer::new(group, options, &BuiltIn)?;
        let stripes = stripes(&counts);
        let ranks = group.local().map(|rank| RankMemory::new(group, rank, &problem, stripes));
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let mut all = Ranks { group: group.clone(), problem, ranks, handles: Vec::new(), counts };
        let call = CallOptions::sms(blocks);
        for (rank, own) in group.local().zip(&all.ranks) {
            let (idx, weights) = (own.topk_idx.address(), own.topk_weights.address());
            let input = DispatchInput {
                tokens,
                topk_idx: idx,
                topk_weights: weights,
                ..DispatchInput::default()
            };
            all.handles.push(all.counts.exchange_counts(rank, &input, &call)?);
        }
        all.sync()?;
        Ok(all)
    }

    /// Emits, compiles and loads `entry` for the problem; `settings` come on top of its shape.
    pub fn prepare(
        &self,
        entry: &AnyPipeline,
        settings: &[(&str, &str)],
    ) -> Result<Dispatch, CallError> {
        let Shape { hidden, topk, experts, .. } = self.problem.shape;
        let ir = (entry.ir)();
        let mut config = Config::new(&ir, self.group.backend().arch());
        let numbers = [
            ("ranks", self.group.ranks()),
            ("hidden", hidden),
            ("topk", topk),
            ("experts", experts),
            ("stripes", stripes(&self.counts)),
        ];
        for (name, value) in numbers {
            config.set(&ir, name, &value.to_string())?;
        }
        for (name, value) in settings {
            config.set(&ir, name, value)?;
        }
        let emitted = entry.emit(&config)?;
        let rows_at = align_up(control_bytes(&emitted.plan));
        let row_bytes = (2 * hidden) as u64;
        let bytes = rows_at + self.capacity() as u64 * row_bytes;
        let window = Arc::new(Window::new(self.group.backend(), bytes)?);
        let kernel = GroupKernel::prepare(&self.group, &window, 0, &emitted)?;
        Ok(Dispatch { kernel, window, rows_at })
    }

    /// Launches on one rank; all ranks have to.
    pub fn launch(&self, dispatch: &Dispatch, rank: usize, blocks: u32) -> Result<(), CallError> {
        let index = rank - self.group.local().start;
        let (own, handle) = (&self.ranks[index], &self.handles[index]);
        let Shape { tokens, hidden, topk, .. } = self.problem.shape;
        let rows = dispatch.window.own(rank)? + dispatch.rows_at;
        let tensors = [
            ("x", own.x.address(), hidden),
            ("tag", own.tag.address(), TAG_BYTES / 4),
            ("topk_idx", own.topk_idx.address(), topk),
            ("topk_weights", own.topk_weights.address(), topk),
            ("expert_begin", own.placement.address(), 1),
            ("recv_x", rows, hidden),
            ("recv_tag", own.recv_tag.address(), TAG_BYTES / 4),
            ("recv_topk_idx", own.recv_topk_idx.address(), topk),
            ("recv_topk_weights", own.recv_topk_weights.address(), topk),
        ];
        let mut bindings = Bindings::new();
        bindings
            .number("tokens", tokens as i64)
            .number("received_capacity", self.capacity() as i64)
            .number("remote_blocks", 1)
            .region("recv_x", dispatch.rows_at);
        for (name, address, stride) in tensors {
            bindings.tensor(name, Rows::new(address, stride as i64));
        }
        for name in ["in_rank", "stripe_tokens", "rank_prefix", "stripe_prefix"] {
            let table = handle.table(name).unwrap_or(0);
            bindings.tensor(name, Rows::new(table, 0));
        }
        for (name, memory) in &own.tables {
            bindings.tensor(name, Rows::new(memory.address(), 0));
        }
        dispatch.kernel.launch(rank, Stream::OWN, blocks, &bindings)
    }

    /// Waits for everything that was launched.
    pub fn sync(&self) -> Result<(), CallError> {
        self.group.local().try_for_each(|rank| self.group.sync(rank))
    }

    /// Overwrites what a dispatch is to write.
    pub fn poison(&self, dispatch: &Dispatch) -> Result<(), CallError> {
        let backend = self.group.backend();
        for (rank, own) in self.group.local().zip(&self.ranks) {
            let rows = dispatch.window.own(rank)? + dispatch.rows_at;
            let bytes = (self.capacity() * self.problem.shape.hidden * 2) as u64;
            backend.fill(rank, Stream::OWN, rows, POISON, bytes)?;
            own.recv_tag.fill(Stream::OWN, POISON)?;
        }
        // No rank may write to another one before that has poisoned its own.
        self.sync()
    }

    /// How many rows differ from what was sent; with `tags` of rows and tags.
    pub fn wrong_rows(&self, dispatch: &Dispatch, tags: bool) -> Result<usize, CallError> {
        let row_bytes = 2 * self.problem.shape.hidden;
        let mut wrong = 0;
        for (rank, own) in self.group.local().zip(&self.ranks) {
            let arrivals = self.problem.oracle.arrivals(rank);
            let mut rows = vec![0; arrivals.len() * row_bytes];
            let from = dispatch.window.own(rank)? + dispatch.rows_at;
            self.group.backend().read(rank, from, &mut rows)?;
            let mut received = vec![0; arrivals.len() * TAG_BYTES];
            own.recv_tag.read(0, &mut received)?;
            let arrived = rows.chunks(row_bytes).zip(received.chunks(TAG_BYTES));
            for (row, (x, tag)) in arrivals.iter().zip(arrived) {
                let part = |all: &[Vec<u8>], width: usize| {
                    all[row.source][row.token * width..(row.token + 1) * width].to_vec()
                };
                let same = part(&self.problem.x, row_bytes) == x;
                let same_tag = !tags || part(&self.problem.tags, TAG_BYTES) == tag;
                wrong += usize::from(!same || !same_tag);
            }
        }
        Ok(wrong)
    }

    /// Rows that arrive at all local ranks together.
    pub fn rows(&self) -> usize {
        self.group.local().map(|rank| self.problem.oracle.arrivals(rank).len()).sum()
    }

    /// Rows of an output: the worst case.
    fn capacity(&self) -> usize {
        self.problem.shape.tokens * self.group.ranks()
    }
}

impl RankMemory {
    fn new(
        group: &Group,
        rank: usize,
        problem: &Sent,
        stripes: usize,
    ) -> Result<RankMemory, CallError> {
        let backend = group.backend();
        let filled = |bytes: &[u8]| {
            let memory = DeviceMemory::new(backend, rank, bytes.len() as u64)?;
            memory.write(0, bytes)?;
            Ok::<DeviceMemory, CallError>(memory)
        };
        let ranks = group.ranks();
        let Shape { tokens, topk, .. } = problem.shape;
        let rows = tokens * ranks;
        let space = |bytes: usize| DeviceMemory::new(backend, rank, bytes as u64);
        let routing = problem.oracle.routing(rank);
        let experts: Vec<u8> = routing.experts.iter().flat_map(|it| it.to_le_bytes()).collect();
        let weights: Vec<u8> = routing.weights.iter().flat_map(|it| it.to_le_bytes()).collect();
        let begin = problem.oracle.placement().begin();
        let begin: Vec<u8> = begin.iter().flat_map(|it| it.to_le_bytes()).collect();
        Ok(RankMemory {
            x: filled(&problem.x[rank])?,
            tag: filled(&problem.tags[rank])?,
            topk_idx: filled(&experts)?,
            topk_weights: filled(&weights)?,
            placement: filled(&begin)?,
            recv_tag: space(rows * TAG_BYTES)?,
            recv_topk_idx: space(rows * topk * 8)?,
            recv_topk_weights: space(rows * topk * 4)?,
            tables: vec![
                ("recv_src", space(rows * 4)?),
                ("send_head", space(tokens * ranks * 4)?),
                ("recv_first", space(ranks * stripes * 4)?),
                ("recv_count", space(ranks * stripes * 4)?),
            ],
        })
    }
}

/// Stripes into which a buffer counts.
fn stripes(buffer: &Buffer) -> usize {
    use ep_runtime::buffer::StandardPipeline::NvlDispatch;
    let numbers = buffer.plan(NvlDispatch).map(|plan| &plan.numbers);
    let stripes = numbers.and_then(|numbers| numbers.get("stripes"));
    stripes.and_then(|stripes| usize::try_from(*stripes).ok()).unwrap_or(1)
}

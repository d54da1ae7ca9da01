//! The least time that the rows of a dispatch and a combine take: one kernel for each, that knows all
//! places before and counts nothing, as a push of the same bytes is for many rows.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::args::{self, Bindings};
use ep_runtime::backend::Stream;
use ep_runtime::bf16::bf16_to_f32;
use ep_runtime::buffer::StandardPipeline;
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::memory::{DeviceMemory, Window};

use super::timing::time_replays;
use super::{Mode, Operation, POISON, Repeats, Selftest, for_each_rank, settle};
use crate::findings::Findings;
use crate::oracle::{Differences, Random, compare_sums, random_bf16};

/// The kernels.
pub(crate) const TEXT: &str = include_str!("floor.cu");

/// Most warps of a block, and what they have in shared memory beside a row each; as in `floor.cu`.
const MOST_WARPS: u64 = 15;
const BARRIER_BYTES: u64 = 128;

/// Shared memory of a block.
const SHARED_BYTES: u64 = 224 << 10;

/// Grids and parts of a sum that are tried.
const BLOCKS: [u32; 5] = [8, 16, 24, 32, 64];
const PARTS: [u32; 3] = [1, 2, 4];

/// Most replays of each of them.
const REPLAYS: usize = 40;

/// The least times of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloorTimes {
    /// With so many SMs as was asked for.
    pub same: Duration,
    /// With any number.
    pub best: Duration,
    /// That number.
    pub best_sms: u32,
}

/// How the kernels are launched.
#[derive(Debug, Clone, Copy)]
struct Shape {
    blocks: u32,
    /// Warps that add up a token.
    parts: u32,
}

/// The rows that the kernels move. All are as long, and each has a slot of its source.
struct Rows {
    /// Slots of a source: one for each of its rows, and one for the message without a row.
    slots: usize,
    row_bytes: usize,
    /// Rows of each source.
    counts: Vec<usize>,
    /// A bit for each rank that a slot of a source goes to.
    to: Vec<u64>,
}

impl Rows {
    /// So many rows of each source; `goes` says which of them goes to which rank.
    fn new(counts: &[usize], row_bytes: u64, goes: &dyn Fn(usize, usize, usize) -> bool) -> Rows {
        let (ranks, slots) = (counts.len(), counts.iter().copied().max().unwrap_or(0) + 1);
        let mut to = Vec::new();
        for (source, count) in counts.iter().enumerate() {
            let word = |slot| {
                let bits = (0..ranks).filter(|dest| slot < *count && goes(source, slot, *dest));
                bits.fold(0u64, |bits, dest| bits | 1 << dest)
            };
            let rows: Vec<u64> = (0..slots - 1).map(word).collect();
            // The last slot goes to the others that get no row.
            let reached = rows.iter().fold(1 << source, |all, bits| all | bits);
            to.extend(rows);
            to.push((0..ranks).fold(0, |bits, dest| bits | (!reached & 1 << dest)));
        }
        let row_bytes = floor_row_bytes(row_bytes) as usize;
        Rows { slots, row_bytes, counts: counts.to_vec(), to }
    }

    fn ranks(&self) -> usize {
        self.counts.len()
    }

    /// Whether a row goes to a rank.
    fn goes_to(&self, source: usize, row: usize, dest: usize) -> bool {
        row + 1 < self.slots && self.to[source * self.slots + row] >> dest & 1 == 1
    }
}

/// Bytes of a row with what goes with it, as a bulk copy likes them.
fn floor_row_bytes(row_bytes: u64) -> u64 {
    row_bytes.max(1).next_multiple_of(128)
}

/// Whether rows of these lengths can be moved: the device has bulk copies, and a block has room for a row.
fn can_move(group: &Group, row_bytes: &[u64]) -> bool {
    let fits = |bytes: &u64| BARRIER_BYTES + floor_row_bytes(*bytes) <= SHARED_BYTES;
    group.backend().arch().has_tma() && group.ranks() > 1 && row_bytes.iter().all(fits)
}

/// The kernels that move the rows of one call.
pub(crate) struct Floor<'a> {
    group: &'a Group,
    halves: Vec<Half<'a>>,
}

impl<'a> Floor<'a> {
    /// The kernel that pushes rows of one length: `rows_to[source][dest]` rows, each to one rank. None where it
    /// cannot run.
    pub(crate) fn of_pushes(
        group: &'a Group,
        rows_to: &[Vec<usize>],
        row_bytes: u64,
    ) -> Result<Option<Floor<'a>>, CallError> {
        if !can_move(group, &[row_bytes]) {
            return Ok(None);
        }
        let counts: Vec<usize> = rows_to.iter().map(|to| to.iter().sum()).collect();
        let goes = |source: usize, row: usize, dest: usize| {
            let before: usize = rows_to[source][..dest].iter().sum();
            (before..before + rows_to[source][dest]).contains(&row)
        };
        let halves = vec![Half::new(group, Rows::new(&counts, row_bytes, &goes), false)?];
        Ok(Some(Floor { group, halves }))
    }

    /// Compares what the kernels leave with the rows that went in.
    pub(crate) fn check(&self, blocks: u32) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        for half in &self.halves {
            findings.merge(half.check(Shape { blocks, parts: 2 })?);
        }
        Ok(findings)
    }

    /// The least times, by replayed graphs, with `sms` SMs and with those that do best. None where nothing runs by
    /// itself. What the kernels leave is compared before and after.
    pub(crate) fn times(
        &self,
        sms: u32,
        repeats: Repeats,
    ) -> Result<Option<FloorTimes>, CallError> {
        let backend = self.group.backend();
        self.is_right(sms)?;
        if !backend.runs_alone() {
            return Ok(None);
        }
        let most = self.group.local().map(|rank| backend.sms(rank)).min();
        let mut blocks: Vec<u32> = BLOCKS.into_iter().chain([sms]).collect();
        blocks.retain(|blocks| *blocks <= most.unwrap_or(0));
        blocks.sort_unstable();
        blocks.dedup();
        let sums = self.halves.iter().any(|half| half.is_combine);
        let parts = if sums { &PARTS[..] } else { &PARTS[..1] };
        let mut times = Vec::new();
        for blocks in blocks {
            for parts in parts {
                let shape = Shape { blocks, parts: *parts };
                times.extend(self.time(shape, repeats)?.map(|time| (time, blocks)));
            }
        }
        self.is_right(sms)?;
        let same = times.iter().filter(|(_, blocks)| *blocks == sms).map(|(time, _)| *time).min();
        let best = times.into_iter().min();
        Ok(same.zip(best).map(|(same, (best, best_sms))| FloorTimes { same, best, best_sms }))
    }

    fn is_right(&self, blocks: u32) -> Result<(), CallError> {
        let findings = self.check(blocks)?;
        match findings.is_good() {
            true => Ok(()),
            false => Err(CallError::Mismatch { what: format!("the floor is wrong: {findings}") }),
        }
    }

    fn time(&self, shape: Shape, repeats: Repeats) -> Result<Option<Duration>, CallError> {
        let calls = repeats.graph.unwrap_or(1).max(1);
        let repeats = Repeats { iterations: repeats.iterations.min(REPLAYS), ..repeats };
        let graphs = for_each_rank(self.group, &|rank| {
            let (graph, ()) = self.group.capture(rank, Stream::OWN, || {
                for _ in 0..calls {
                    self.halves.iter().try_for_each(|half| half.launch(rank, shape))?;
                }
                Ok(())
            })?;
            Ok(graph)
        })?;
        let graphs: Vec<&Graph> = graphs.iter().collect();
        let times = time_replays(self.group, &graphs, calls, Mode::Loop, repeats)?;
        Ok(times.map(|times| times.device.p50))
    }
}

/// One of the two kernels, with its memory.
struct Half<'a> {
    group: &'a Group,
    is_combine: bool,
    rows: Rows,
    kernel: GroupKernel,
    window: Arc<Window>,
    ranks: Vec<RankMemory>,
}

/// What a rank has of a kernel.
struct RankMemory {
    to: DeviceMemory,
    rows: DeviceMemory,
    sums: DeviceMemory,
}

impl Selftest {
    /// Compares what the floor of a dispatch and of a combine leave with the rows that went in; nothing
    /// on devices without bulk copies, and for rows that do not fit a block.
    pub fn check_floor(&self) -> Result<Findings, CallError> {
        let floor = self.floor_of(Operation::Both)?;
        floor.map_or(Ok(Findings::default()), |floor| floor.check(2))
    }

    /// The least times of what an operation moves, by replayed graphs, with `sms` SMs and with those that
    /// do best. What the kernels leave is compared before and after. None for an operation that the
    /// kernels do not know, where nothing runs by itself, and where [`Selftest::check_floor`] has nothing.
    pub fn floor(
        &self,
        operation: Operation,
        sms: u32,
        repeats: Repeats,
    ) -> Result<Option<FloorTimes>, CallError> {
        if !self.group.backend().runs_alone() {
            return Ok(None);
        }
        let floor = self.floor_of(operation)?;
        floor.map_or(Ok(None), |floor| floor.times(sms, repeats))
    }

    /// The kernels of an operation.
    fn floor_of(&self, operation: Operation) -> Result<Option<Floor<'_>>, CallError> {
        let combine = self.buffer().combine_pipeline();
        let pipelines = match operation {
            Operation::Dispatch | Operation::CachedDispatch => &[StandardPipeline::NvlDispatch][..],
            Operation::Combine => &[combine],
            Operation::Both => &[StandardPipeline::NvlDispatch, combine],
            Operation::DispatchCounted | Operation::Counts => return Ok(None),
        };
        let bytes = Vec::from_iter(pipelines.iter().map(|pipeline| self.row_bytes(*pipeline)));
        if !can_move(&self.group, &bytes) {
            return Ok(None);
        }
        let goes =
            |source: usize, token: usize, dest: usize| self.oracle.goes_to(source, token, dest);
        let halves = pipelines.iter().zip(bytes).map(|(pipeline, bytes)| {
            let rows = Rows::new(&self.case.tokens, bytes, &goes);
            Half::new(&self.group, rows, *pipeline != StandardPipeline::NvlDispatch)
        });
        let halves = halves.collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Floor { group: &self.group, halves }))
    }
}

impl<'a> Half<'a> {
    fn new(group: &'a Group, rows: Rows, is_combine: bool) -> Result<Half<'a>, CallError> {
        let backend = group.backend();
        let row_bytes = rows.row_bytes as u64;
        let warps = ((SHARED_BYTES - BARRIER_BYTES) / row_bytes).min(MOST_WARPS);
        let messages = (rows.ranks() * rows.slots) as u64;
        let made = HandwrittenKernel {
            name: "Floor",
            entry: if is_combine { "floor_combine" } else { "floor_dispatch" },
            numbers: &["ranks", "slots", "row_bytes", "tokens", "parts"],
            pointers: &["to", "rows", "sums"],
            wide_numbers: &[],
            threads: 32 * warps as i64,
            shared_bytes: (BARRIER_BYTES + warps * row_bytes) as i64,
            window_bytes: (flag_bytes(messages) + 2 * messages * row_bytes) as i64,
            blocks_min: 1,
            waits: true,
            enters: true,
        };
        let plan = made.plan(backend.arch());
        let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
        let emitted = Emitted { cuda: TEXT.to_string(), plan };
        let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
        let mut half = Half { group, is_combine, rows, kernel, window, ranks: Vec::new() };
        let to: Vec<u8> = half.rows.to.iter().flat_map(|word| word.to_le_bytes()).collect();
        for rank in group.local() {
            let memory = |bytes: usize| DeviceMemory::new(backend, rank, bytes as u64);
            let rows = half.rows_of(rank);
            let own = RankMemory {
                to: memory(to.len())?,
                rows: memory(rows.len())?,
                sums: memory(half.rows.counts[rank] * half.rows.row_bytes)?,
            };
            own.to.write(0, &to)?;
            own.rows.write(0, &rows)?;
            half.ranks.push(own);
        }
        // A kernel waits for every rank: none is launched before all of them have loaded it.
        backend.gather("measure the floor", 0)?;
        Ok(half)
    }

    /// What a rank sends: a row for each of its tokens, or for each slot of each source.
    fn rows_of(&self, rank: usize) -> Vec<u8> {
        let Rows { slots, row_bytes, .. } = self.rows;
        let rows = if self.is_combine { self.group.ranks() * slots } else { slots };
        random_bf16(rows * row_bytes / 2, &mut Random::new(rank as u64 + 1))
    }

    fn launch(&self, rank: usize, shape: Shape) -> Result<(), CallError> {
        let own = &self.ranks[self.group.local_index(rank)?];
        let mut bindings = Bindings::new();
        bindings
            .number("ranks", self.group.ranks() as i64)
            .number("slots", self.rows.slots as i64)
            .number("row_bytes", self.rows.row_bytes as i64)
            .number("tokens", self.rows.counts[rank] as i64)
            .number("parts", i64::from(shape.parts));
        for (name, memory) in [("to", &own.to), ("rows", &own.rows), ("sums", &own.sums)] {
            bindings.tensor(name, args::Rows::new(memory.address(), 1));
        }
        self.kernel.launch(rank, Stream::OWN, shape.blocks, &bindings)
    }

    /// Two calls into poisoned memory, one for each half of the window.
    fn check(&self, shape: Shape) -> Result<Findings, CallError> {
        let group = self.group;
        let messages = (group.ranks() * self.rows.slots) as u64;
        settle(group)?;
        group.backend().gather("poison the floor", 0)?;
        for (rank, own) in group.local().zip(&self.ranks) {
            let at = self.window.own(rank)? + flag_bytes(messages);
            let bytes = 2 * messages * self.rows.row_bytes as u64;
            group.backend().fill(rank, Stream::OWN, at, POISON, bytes)?;
            own.sums.fill(Stream::OWN, POISON)?;
        }
        settle(group)?;
        group.backend().gather("the floor is poisoned", 0)?;
        for _ in 0..2 {
            group.local().try_for_each(|rank| self.launch(rank, shape))?;
        }
        settle(group)?;
        group.backend().gather("compare the floor", 0)?;
        let mut findings = Findings::default();
        for rank in group.local() {
            let (name, found) = match self.is_combine {
                true => ("combine", self.compare_sums(rank)?),
                false => ("dispatch", self.compare_rows(rank)?),
            };
            findings.add(format!("floor of a {name}, rank {rank}"), found);
        }
        Ok(findings)
    }

    /// The rows of each source, at their places, of both calls.
    fn compare_rows(&self, rank: usize) -> Result<Differences, CallError> {
        let group = self.group;
        let Rows { slots, row_bytes, .. } = self.rows;
        let messages = group.ranks() * slots;
        let first = self.window.own(rank)? + flag_bytes(messages as u64);
        let mut found = Differences::default();
        let mut got = vec![0; slots * row_bytes];
        for (part, source) in (0..2).flat_map(|part| (0..group.ranks()).map(move |it| (part, it))) {
            let rows = self.rows_of(source);
            let at = (part * messages + source * slots) * row_bytes;
            group.backend().read(rank, first + at as u64, &mut got)?;
            for token in 0..slots {
                let comes = self.rows.goes_to(source, token, rank);
                let place = token * row_bytes..(token + 1) * row_bytes;
                let got = &got[place.clone()];
                let equal = match comes {
                    true => *got == rows[place],
                    false => got.iter().all(|byte| *byte == POISON),
                };
                let kind = if comes { "another row" } else { "a row that nobody sent" };
                found.note(equal, || format!("rank {source} token {token}: {kind}"));
            }
        }
        Ok(found)
    }

    /// The sum of each token, over the ranks that it went to.
    fn compare_sums(&self, rank: usize) -> Result<Differences, CallError> {
        let (group, row_bytes) = (self.group, self.rows.row_bytes);
        let sent: Vec<Vec<u8>> = (0..group.ranks()).map(|peer| self.rows_of(peer)).collect();
        let (tokens, columns) = (self.rows.counts[rank], row_bytes / 2);
        let mut got = vec![0; tokens * row_bytes];
        self.ranks[group.local_index(rank)?].sums.read(0, &mut got)?;
        let mut found = Differences::default();
        for token in 0..tokens {
            let peers = (0..group.ranks()).filter(|peer| self.rows.goes_to(rank, token, *peer));
            let (mut want, mut magnitude) = (vec![0.0; columns], vec![0.0; columns]);
            let mut terms = 0;
            for peer in peers {
                let at = (rank * self.rows.slots + token) * row_bytes;
                let row = sent[peer][at..at + row_bytes].chunks_exact(2);
                for (column, pair) in row.enumerate() {
                    let value = f64::from(bf16_to_f32(u16::from_le_bytes([pair[0], pair[1]])));
                    want[column] += value;
                    magnitude[column] += value.abs();
                }
                terms += 1;
            }
            let row = &got[token * row_bytes..(token + 1) * row_bytes];
            found.merge(compare_sums("floor", token, row, &want, &magnitude, terms));
        }
        Ok(found)
    }
}

/// Flags in front of the rows: one for each message, of even and of odd calls.
fn flag_bytes(messages: u64) -> u64 {
    (2 * 4 * messages).next_multiple_of(128)
}

//! The least time that the rows of a dispatch and a combine take: one kernel for each, that knows all
//! places before and counts nothing, as a push of the same bytes is for many rows.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::bf16::bf16_to_f32;
use ep_runtime::buffer::StandardPipeline;
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;
use ep_runtime::group::{GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::memory::{DeviceMemory, Window};

use super::timing::time_replays;
use super::{Mode, Operation, POISON, Repeats, Selftest};
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

/// One of the two kernels, with its memory.
struct Half<'a> {
    test: &'a Selftest,
    is_combine: bool,
    /// Messages of each source: its tokens, and one without a row.
    slots: usize,
    row_bytes: usize,
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
        let mut findings = Findings::default();
        let shape = Shape { blocks: 2, parts: 2 };
        for half in self.halves(Operation::Both)?.unwrap_or_default() {
            findings.merge(half.check(shape)?);
        }
        Ok(findings)
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
        let Some(halves) = self.halves(operation)? else { return Ok(None) };
        let most = self.group.local().map(|rank| self.group.backend().sms(rank)).min();
        let mut blocks: Vec<u32> = BLOCKS.into_iter().chain([sms]).collect();
        blocks.retain(|blocks| *blocks <= most.unwrap_or(0));
        blocks.sort_unstable();
        blocks.dedup();
        let parts = if operation.combines() { &PARTS[..] } else { &PARTS[..1] };
        self.check_halves(&halves, sms)?;
        let mut times = Vec::new();
        for blocks in blocks {
            for parts in parts {
                let shape = Shape { blocks, parts: *parts };
                times.extend(self.time_halves(&halves, shape, repeats)?.map(|time| (time, blocks)));
            }
        }
        self.check_halves(&halves, sms)?;
        let same = times.iter().filter(|(_, blocks)| *blocks == sms).map(|(time, _)| *time).min();
        let best = times.into_iter().min();
        Ok(same.zip(best).map(|(same, (best, best_sms))| FloorTimes { same, best, best_sms }))
    }

    /// The kernels of an operation.
    fn halves(&self, operation: Operation) -> Result<Option<Vec<Half<'_>>>, CallError> {
        let combine = self.buffer().combine_pipeline();
        let pipelines = match operation {
            Operation::Dispatch | Operation::CachedDispatch => &[StandardPipeline::NvlDispatch][..],
            Operation::Combine => &[combine],
            Operation::Both => &[StandardPipeline::NvlDispatch, combine],
            Operation::DispatchCounted | Operation::Counts => return Ok(None),
        };
        let fits = |pipeline| BARRIER_BYTES + self.floor_row_bytes(pipeline) <= SHARED_BYTES;
        let can = self.group.backend().arch().has_tma() && self.group.ranks() > 1;
        if !can || !pipelines.iter().all(|pipeline| fits(*pipeline)) {
            return Ok(None);
        }
        let halves = pipelines.iter().map(|pipeline| Half::new(self, *pipeline));
        Ok(Some(halves.collect::<Result<Vec<_>, _>>()?))
    }

    /// Bytes of a row with what goes with it, as a bulk copy likes them.
    fn floor_row_bytes(&self, pipeline: StandardPipeline) -> u64 {
        self.row_bytes(pipeline).max(1).next_multiple_of(128)
    }

    fn check_halves(&self, halves: &[Half<'_>], blocks: u32) -> Result<(), CallError> {
        for half in halves {
            let findings = half.check(Shape { blocks, parts: 2 })?;
            if !findings.is_good() {
                return Err(CallError::Mismatch {
                    what: format!("the floor is wrong: {findings}"),
                });
            }
        }
        Ok(())
    }

    fn time_halves(
        &self,
        halves: &[Half<'_>],
        shape: Shape,
        repeats: Repeats,
    ) -> Result<Option<Duration>, CallError> {
        let calls = repeats.graph.unwrap_or(1).max(1);
        let repeats = Repeats { iterations: repeats.iterations.min(REPLAYS), ..repeats };
        let graphs = self.for_each_rank(&|rank| {
            let (graph, ()) = self.group.capture(rank, Stream::OWN, || {
                for _ in 0..calls {
                    halves.iter().try_for_each(|half| half.launch(rank, shape))?;
                }
                Ok(())
            })?;
            Ok(graph)
        })?;
        let graphs: Vec<&Graph> = graphs.iter().collect();
        let times = time_replays(&self.group, &graphs, calls, Mode::Loop, repeats)?;
        Ok(times.map(|times| times.device.p50))
    }
}

impl<'a> Half<'a> {
    fn new(test: &'a Selftest, pipeline: StandardPipeline) -> Result<Half<'a>, CallError> {
        let (group, is_combine) = (&test.group, pipeline != StandardPipeline::NvlDispatch);
        let (backend, ranks) = (group.backend(), group.ranks());
        let slots = test.case.tokens.iter().copied().max().unwrap_or(0) + 1;
        let row_bytes = test.floor_row_bytes(pipeline);
        let warps = ((SHARED_BYTES - BARRIER_BYTES) / row_bytes).min(MOST_WARPS);
        let messages = (ranks * slots) as u64;
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
        let row_bytes = row_bytes as usize;
        let mut half =
            Half { test, is_combine, slots, row_bytes, kernel, window, ranks: Vec::new() };
        let to = half.destinations();
        for rank in group.local() {
            let memory = |bytes: usize| DeviceMemory::new(backend, rank, bytes as u64);
            let rows = half.rows_of(rank);
            let own = RankMemory {
                to: memory(to.len())?,
                rows: memory(rows.len())?,
                sums: memory(test.case.tokens[rank] * row_bytes)?,
            };
            own.to.write(0, &to)?;
            own.rows.write(0, &rows)?;
            half.ranks.push(own);
        }
        // A kernel waits for every rank: none is launched before all of them have loaded it.
        backend.gather("measure the floor", 0)?;
        Ok(half)
    }

    /// A bit for each rank that a slot of a source goes to. The last slot goes to those that get no row.
    fn destinations(&self) -> Vec<u8> {
        let (oracle, ranks) = (&self.test.oracle, self.test.group.ranks());
        let word = |source: usize, slot: usize| {
            let goes = |dest: &usize| match slot + 1 < self.slots {
                true => slot < self.test.case.tokens[source] && oracle.goes_to(source, slot, *dest),
                false => *dest != source && oracle.rows_between(source, *dest) == 0,
            };
            (0..ranks).filter(goes).fold(0u64, |bits, dest| bits | 1 << dest)
        };
        let words =
            (0..ranks).flat_map(|source| (0..self.slots).map(move |slot| word(source, slot)));
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// What a rank sends: a row for each of its tokens, or for each slot of each source.
    fn rows_of(&self, rank: usize) -> Vec<u8> {
        let rows = if self.is_combine { self.test.group.ranks() * self.slots } else { self.slots };
        random_bf16(rows * self.row_bytes / 2, &mut Random::new(rank as u64 + 1))
    }

    fn launch(&self, rank: usize, shape: Shape) -> Result<(), CallError> {
        let group = &self.test.group;
        let own = &self.ranks[group.local_index(rank)?];
        let mut bindings = Bindings::new();
        bindings
            .number("ranks", group.ranks() as i64)
            .number("slots", self.slots as i64)
            .number("row_bytes", self.row_bytes as i64)
            .number("tokens", self.test.case.tokens[rank] as i64)
            .number("parts", i64::from(shape.parts));
        for (name, memory) in [("to", &own.to), ("rows", &own.rows), ("sums", &own.sums)] {
            bindings.tensor(name, Rows::new(memory.address(), 1));
        }
        self.kernel.launch(rank, Stream::OWN, shape.blocks, &bindings)
    }

    /// Two calls into poisoned memory, one for each half of the window.
    fn check(&self, shape: Shape) -> Result<Findings, CallError> {
        let (group, test) = (&self.test.group, self.test);
        let messages = (group.ranks() * self.slots) as u64;
        test.settle()?;
        group.backend().gather("poison the floor", 0)?;
        for (rank, own) in group.local().zip(&self.ranks) {
            let at = self.window.own(rank)? + flag_bytes(messages);
            let bytes = 2 * messages * self.row_bytes as u64;
            group.backend().fill(rank, Stream::OWN, at, POISON, bytes)?;
            own.sums.fill(Stream::OWN, POISON)?;
        }
        test.settle()?;
        group.backend().gather("the floor is poisoned", 0)?;
        for _ in 0..2 {
            group.local().try_for_each(|rank| self.launch(rank, shape))?;
        }
        test.settle()?;
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
        let (group, oracle) = (&self.test.group, &self.test.oracle);
        let messages = group.ranks() * self.slots;
        let first = self.window.own(rank)? + flag_bytes(messages as u64);
        let mut found = Differences::default();
        let mut got = vec![0; self.slots * self.row_bytes];
        for (part, source) in (0..2).flat_map(|part| (0..group.ranks()).map(move |it| (part, it))) {
            let rows = self.rows_of(source);
            let at = (part * messages + source * self.slots) * self.row_bytes;
            group.backend().read(rank, first + at as u64, &mut got)?;
            for token in 0..self.slots {
                let comes =
                    token < self.test.case.tokens[source] && oracle.goes_to(source, token, rank);
                let place = token * self.row_bytes..(token + 1) * self.row_bytes;
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
        let (group, oracle) = (&self.test.group, &self.test.oracle);
        let sent: Vec<Vec<u8>> = (0..group.ranks()).map(|peer| self.rows_of(peer)).collect();
        let (tokens, columns) = (self.test.case.tokens[rank], self.row_bytes / 2);
        let mut got = vec![0; tokens * self.row_bytes];
        self.ranks[group.local_index(rank)?].sums.read(0, &mut got)?;
        let mut found = Differences::default();
        for token in 0..tokens {
            let peers = (0..group.ranks()).filter(|peer| oracle.goes_to(rank, token, *peer));
            let (mut want, mut magnitude) = (vec![0.0; columns], vec![0.0; columns]);
            let mut terms = 0;
            for peer in peers {
                let at = (rank * self.slots + token) * self.row_bytes;
                let row = sent[peer][at..at + self.row_bytes].chunks_exact(2);
                for (column, pair) in row.enumerate() {
                    let value = f64::from(bf16_to_f32(u16::from_le_bytes([pair[0], pair[1]])));
                    want[column] += value;
                    magnitude[column] += value.abs();
                }
                terms += 1;
            }
            let row = &got[token * self.row_bytes..(token + 1) * self.row_bytes];
            found.merge(compare_sums("floor", token, row, &want, &magnitude, terms));
        }
        Ok(found)
    }
}

/// Flags in front of the rows: one for each message, of even and of odd calls.
fn flag_bytes(messages: u64) -> u64 {
    (2 * 4 * messages).next_multiple_of(128)
}

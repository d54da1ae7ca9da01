//! Compares calls of any pipeline with what its declaration means.
//!
//! Calls are drawn from the declaration and interpreted (`ep_runtime::meaning`). Their kernel gets the
//! same inputs, in memory that is full of other bytes, and what it leaves is compared: the orders that
//! the language leaves open as sets, everything else bit by bit.

mod awaited;
mod place;
mod timed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_runtime::Emitted;
use ep_runtime::args::Bindings;
use ep_runtime::backend::{KernelBeside, Stream, ToldMemory};
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::ir::{Expr, Pipeline, TensorKind, walk};
use ep_runtime::meaning::{Drawn, Function, Left, Outcome, Scalar, Tensor, Wrong, again, compare};
use ep_runtime::memory::{DeviceMemory, Window, align_up};
use ep_runtime::plan::{ParamKind, Plan, row_in_place};

use crate::Findings;
use crate::oracle::Differences;
use awaited::Awaited;
use place::Place;
pub use timed::{MovedBytes, Timed};

/// What no call has written.
const DIRTY: u8 = 0xa5;

/// How far the bound of a size that the device reads is from the size at most.
const FREE_ROWS: i64 = 100;

/// Calls of one kernel, in turn, and what each of them leaves.
pub struct Declared<'a> {
    emitted: &'a Emitted,
    calls: Vec<Call<'a>>,
    rounds: usize,
}

/// One call of all ranks.
struct Call<'a> {
    drawn: &'a Drawn,
    /// What its last round leaves.
    outcome: Outcome,
    /// By rank and tensor, the elements that a round may write; all others it leaves alone.
    touched: Vec<BTreeMap<String, Vec<bool>>>,
    /// Rows that each size may have, where the declaration says so.
    most_rows: BTreeMap<String, i64>,
}

impl<'a> Declared<'a> {
    /// Every one of `calls`, which have one configuration, in each of `rounds` rounds. An error says
    /// what is wrong with the declaration itself.
    pub fn new(
        emitted: &'a Emitted,
        calls: &'a [Drawn],
        rounds: usize,
        functions: &BTreeMap<String, &Function>,
    ) -> Result<Declared<'a>, Wrong> {
        let made = calls.iter().map(|drawn| {
            let mut outcome = drawn.run(functions)?;
            let mut touched = vec![BTreeMap::new(); outcome.ranks.len()];
            touch(&mut touched, &outcome);
            for _ in 1..rounds {
                let ranks = again(&drawn.ranks, &outcome, &drawn.ir);
                outcome = Drawn { ranks, ..drawn.clone() }.run(functions)?;
                touch(&mut touched, &outcome);
            }
            let most_rows = drawn.ir.sizes.iter().filter_map(|size| {
                let most = drawn.most_rows(functions, &size.name).transpose()?;
                Some(most.map(|most| (size.name.clone(), most)))
            });
            let most_rows = most_rows.collect::<Result<_, Wrong>>()?;
            Ok(Call { drawn, outcome, touched, most_rows })
        });
        Ok(Declared { emitted, calls: made.collect::<Result<_, _>>()?, rounds })
    }

    /// Makes the calls on `blocks` blocks, all ranks from this thread, and compares what they leave.
    pub fn check(&self, group: &Group, blocks: u32) -> Result<Findings, CallError> {
        self.check_over(group, blocks, &[])
    }

    /// Makes the calls on `blocks` blocks over a network, all ranks from this thread, and compares what they leave.
    /// `network` has one address for each local rank: the network's part for the kernel. Without a network, `network`
    /// is empty.
    pub fn check_over(
        &self,
        group: &Group,
        blocks: u32,
        network: &[u64],
    ) -> Result<Findings, CallError> {
        let Ready { kernel, window, bound } = self.ready(group, network)?;
        let idle = self.windows_of_idle(group, &window)?;
        let beside: Vec<KernelBeside> = bound.iter().map(|own| own.beside.clone()).collect();
        self.leave_out(group, true)?;
        group.backend().run_beside(&beside);
        let launched = self.launch(group, &kernel, &bound, blocks, self.rounds);
        group.backend().run_beside(&[]);
        launched?;
        let mut findings = Findings::default();
        findings.add(format!("{}, its calls", self.emitted.plan.pipeline), still_open(group));
        let now = self.windows_of_idle(group, &window)?;
        findings.add(
            format!("{}, who is left out", self.emitted.plan.pipeline),
            disturbed(&idle, &now),
        );
        self.leave_out(group, false)?;
        findings.merge(self.compared(group, &bound, "")?);
        Ok(findings)
    }

    /// What the calls that are bound have left, compared with what they mean; `when` stands behind the name of each.
    fn compared(&self, group: &Group, bound: &[Bound], when: &str) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        for (turn, ranks) in bound.chunks(group.local().len().max(1)).enumerate() {
            let (want, got, mut first) = self.calls[turn].left(group, ranks)?;
            first.extend(compare(&want, &got));
            let compared = want.iter().flat_map(BTreeMap::values).map(|left| left.written.len());
            let (compared, wrong) = (compared.sum::<usize>() as u64, first.len() as u64);
            let name = format!("{}, call {}{when}", self.emitted.plan.pipeline, turn + 1);
            findings.add(name, Differences { compared, wrong, first });
        }
        Ok(findings)
    }

    /// Makes one call in which a rank says that its outputs hold one row less than come to it. Compares the error with
    /// the expected one, and the row for which there is no room with what it was before the call. Does nothing if no
    /// output has a bound or no rows come.
    pub fn check_short(
        &self,
        group: &Group,
        blocks: u32,
        network: &[u64],
    ) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        let Some(Short { turn, rank, bound, size, rows }) = self.short() else {
            return Ok(findings);
        };
        let mut ready = self.ready(group, network)?;
        let local = group.local().len();
        let ranks = &mut ready.bound[turn * local..][..local];
        for own in ranks.iter_mut().filter(|own| own.rank == rank) {
            own.bindings.number(bound, rows - 1);
        }
        let launched = self.launch(group, &ready.kernel, ranks, blocks, 1);
        let said = launched.map_or_else(|error| error.to_string(), |()| "it ends well".to_owned());
        let want = CallError::OutputTooSmall { rank, need: rows as u64, have: rows as u64 - 1 };
        let want = want.to_string();
        let mut first = Vec::from_iter((said != want).then(|| format!("{said}, not: {want}")));
        for own in ranks.iter().filter(|own| own.rank == rank) {
            first.extend(self.calls[turn].beyond(group, own, size, rows as usize - 1)?);
        }
        let name = format!("{}, short of room", self.emitted.plan.pipeline);
        let (compared, wrong) = (first.len().max(1) as u64, first.len() as u64);
        findings.add(name, Differences { compared, wrong, first });
        Ok(findings)
    }

    /// The first call with a rank to which rows come that a bound of its outputs counts.
    fn short(&self) -> Option<Short<'_>> {
        let bounds = self.emitted.plan.params.iter().filter_map(|param| match &param.kind {
            ParamKind::Capacity { size } => Some((param.name.as_str(), size)),
            _ => None,
        });
        let bounds: Vec<(&str, &String)> = bounds.collect();
        self.calls.iter().enumerate().find_map(|(turn, call)| {
            call.outcome.sizes.iter().enumerate().find_map(|(rank, sizes)| {
                bounds.iter().find_map(|(bound, size)| {
                    let rows = sizes.get(size.as_str()).copied().filter(|rows| *rows > 0)?;
                    Some(Short { turn, rank, bound, size, rows })
                })
            })
        })
    }

    /// How long a call takes: `rounds` of each, one behind the other, all ranks from this thread. What
    /// they leave is not looked at.
    pub fn time(&self, group: &Group, blocks: u32, rounds: u32) -> Result<Duration, CallError> {
        let Ready { kernel, bound, .. } = self.ready(group, &[])?;
        self.launch(group, &kernel, &bound, blocks, 1)?;
        let begun = Instant::now();
        self.launch(group, &kernel, &bound, blocks, rounds as usize)?;
        Ok(begun.elapsed() / rounds.max(1) / self.calls.len().max(1) as u32)
    }

    /// The kernel, and the tensors of all calls in memory.
    fn ready(&self, group: &Group, network: &[u64]) -> Result<Ready, CallError> {
        let plan = &self.emitted.plan;
        let mut end = align_up(control_bytes(plan).max(1));
        let regions: Vec<Regions> =
            self.calls.iter().map(|it| it.regions(plan, &mut end)).collect();
        let window = Arc::new(Window::new(group.backend(), end)?);
        let kernel = GroupKernel::prepare(group, &window, 0, self.emitted)?;
        let mut bound = Vec::new();
        for ((turn, call), regions) in self.calls.iter().enumerate().zip(&regions) {
            for (index, rank) in group.local().enumerate() {
                let mut own = call.bind(turn, group, rank, plan, window.own(rank)?, regions)?;
                network.get(index).map(|address| own.bindings.network(*address));
                bound.push(own);
            }
        }
        // No rank may write to another one before that has put its own inputs there, in another process too.
        group.local().try_for_each(|rank| group.sync(rank))?;
        group.gather("put the inputs of calls into place", 0)?;
        Ok(Ready { kernel, window, bound })
    }

    /// Makes the calls that are bound so many times, every second time phase by phase, and waits for them. The same ranks
    /// take part in each.
    fn launch(
        &self,
        group: &Group,
        kernel: &GroupKernel,
        bound: &[Bound],
        blocks: u32,
        rounds: usize,
    ) -> Result<(), CallError> {
        let phases = kernel.plan().kernels.len();
        for round in 0..rounds {
            for (call, ranks) in self.calls.iter().zip(bound.chunks(group.local().len().max(1))) {
                for own in ranks.iter().filter(|own| call.drawn.ranks[own.rank].alive) {
                    let (rank, stream, bindings) = (own.rank, Stream::OWN, &own.bindings);
                    match round % 2 {
                        0 => kernel.launch(rank, stream, blocks, bindings)?,
                        _ => (0..phases).try_for_each(|phase| {
                            kernel.launch_phase(rank, stream, phase, blocks, bindings)
                        })?,
                    }
                }
            }
        }
        group.local().try_for_each(|rank| group.sync(rank))
    }

    /// The ranks that take no part, the same in every call.
    fn idle(&self) -> impl Iterator<Item = usize> {
        let ranks = self.calls.first().map_or(&[][..], |call| &call.drawn.ranks);
        ranks.iter().enumerate().filter(|(_, rank)| !rank.alive).map(|(rank, _)| rank)
    }

    /// Leaves these ranks out, or takes them back in.
    fn leave_out(&self, group: &Group, is_out: bool) -> Result<(), CallError> {
        self.idle().try_for_each(|rank| group.leave_out(rank, is_out))
    }

    /// What stands in the windows of those of them that are of this process.
    fn windows_of_idle(
        &self,
        group: &Group,
        window: &Window,
    ) -> Result<Vec<(usize, Vec<u8>)>, CallError> {
        let own = self.idle().filter(|rank| group.local().contains(rank));
        own.map(|rank| {
            let mut bytes = vec![0; window.bytes() as usize];
            group.backend().read(rank, window.own(rank)?, &mut bytes)?;
            Ok((rank, bytes))
        })
        .collect()
    }
}

/// Adds the elements that a round writes, and those that it may in another order of its messages.
fn touch(touched: &mut [BTreeMap<String, Vec<bool>>], outcome: &Outcome) {
    for (known, ranks) in touched.iter_mut().zip(&outcome.ranks) {
        for (name, left) in ranks {
            let known =
                known.entry(name.clone()).or_insert_with(|| vec![false; left.written.len()]);
            for (at, is_touched) in known.iter_mut().enumerate() {
                *is_touched |= left.written[at] || left.open.contains_key(&at);
            }
        }
    }
}

/// The ranks of this process that are still in a call by what their kernels keep, though all calls have ended.
fn still_open(group: &Group) -> Differences {
    let open = group.calls_in_progress().into_iter().filter(|at| group.local().contains(&at.rank));
    let first = open.map(|at| format!("rank {} is still in call {}", at.rank, at.call));
    let first = Vec::from_iter(first);
    Differences { compared: group.local().len() as u64, wrong: first.len() as u64, first }
}

/// The ranks that take no part whose windows are not what they were.
fn disturbed(before: &[(usize, Vec<u8>)], after: &[(usize, Vec<u8>)]) -> Differences {
    let changed = before.iter().zip(after).filter_map(|((rank, before), (_, after))| {
        let at = before.iter().zip(after).position(|(before, after)| before != after)?;
        Some(format!("rank {rank} takes no part, and byte {at} of its window is changed"))
    });
    let first = Vec::from_iter(changed);
    Differences { compared: before.len() as u64, wrong: first.len() as u64, first }
}

/// Where in the window a call's tensors and records begin.
type Regions = Vec<(String, u64)>;

/// One tensor as a rank holds it: copies that it brings, or what a call leaves of it.
fn held<'a>(drawn: &'a Drawn, outcome: &'a Outcome, rank: usize, name: &str) -> Vec<&'a Tensor> {
    let brought = drawn.ranks.get(rank).and_then(|rank| rank.tensors.get(name));
    let left = outcome.ranks.get(rank).and_then(|left| left.get(name));
    match (brought, left) {
        (Some(copies), _) => copies.iter().collect(),
        (None, left) => left.map(|left| &left.tensor).into_iter().collect(),
    }
}

impl Call<'_> {
    fn ir(&self) -> &Pipeline {
        &self.drawn.ir
    }

    /// Places for what peers reach, large enough on every rank.
    fn regions(&self, plan: &Plan, end: &mut u64) -> Regions {
        let mut regions = Regions::new();
        let ranks = 0..self.drawn.ranks.len();
        for param in &plan.params {
            let (name, bytes) = match &param.kind {
                ParamKind::WindowOffset { tensor } => {
                    let bytes = |rank| {
                        let held = held(self.drawn, &self.outcome, rank, tensor);
                        let place = Place::new(plan, tensor, 0, false, held.first()?)?;
                        Some(place.bytes() as u64)
                    };
                    (tensor, ranks.clone().filter_map(bytes).max())
                }
                ParamKind::MetaOffset { channel } => {
                    (channel, Some(self.meta_bytes(plan, channel)))
                }
                _ => continue,
            };
            regions.push((name.clone(), *end));
            *end = align_up(*end + bytes.unwrap_or(0).max(1));
        }
        regions
    }

    /// Bytes of the records of a direct channel: one beside each row of its output.
    fn meta_bytes(&self, plan: &Plan, channel: &str) -> u64 {
        let Some((channel, message)) = self.ir().carried(channel) else { return 0 };
        let layout = plan.messages.iter().find(|layout| layout.name == message.name);
        let each = layout.map_or(0, |layout| u64::try_from(layout.meta_bytes).unwrap_or(0));
        let Some((_, rows)) = row_in_place(self.ir(), channel) else { return 0 };
        let held = (0..self.drawn.ranks.len())
            .flat_map(|rank| held(self.drawn, &self.outcome, rank, &rows.name));
        each * held.map(|tensor| tensor.extents[0] as u64).max().unwrap_or(0)
    }

    /// Puts the tensors of a rank into memory.
    fn bind(
        &self,
        turn: usize,
        group: &Group,
        rank: usize,
        plan: &Plan,
        window: u64,
        regions: &Regions,
    ) -> Result<Bound, CallError> {
        let mut bound = Bound {
            rank,
            bindings: Bindings::new(),
            held: Vec::new(),
            outputs: Vec::new(),
            beside: KernelBeside { rank, ..KernelBeside::default() },
        };
        for (name, start) in regions {
            bound.bindings.region(name, *start);
        }
        self.bind_numbers(rank, plan, &mut bound.bindings);
        if turn % 2 == 1 {
            self.bind_words(group, rank, plan, &mut bound)?;
        }
        // Scales of every other call lie column by column.
        let by_column = turn % 2 == 1;
        let is_there = |name: &str| self.drawn.ranks[rank].tensors.contains_key(name);
        let mut awaited = Awaited::new(self.ir(), &is_there, &self.outcome.behind[rank]);
        for tensor in &self.ir().tensors {
            let is_given = is_there(&tensor.name);
            let is_left = self.outcome.ranks[rank].contains_key(&tensor.name);
            for (copy, data) in
                held(self.drawn, &self.outcome, rank, &tensor.name).iter().enumerate()
            {
                for part in 0..data.parts.len() {
                    let Some(place) = Place::new(plan, &tensor.name, part, by_column, data) else {
                        continue;
                    };
                    let region = regions.iter().find(|(name, _)| *name == tensor.name);
                    let address = match region.filter(|_| place.in_window) {
                        Some((_, start)) => window + start,
                        None => bound.room(group, rank, place.bytes())?,
                    };
                    let bytes = place.written(is_given.then_some(&data.parts[part].data));
                    group.backend().write(rank, address, &bytes)?;
                    let rows = place.rows(address);
                    match part {
                        0 => bound.bindings.copy(&tensor.name, copy as i64, rows),
                        _ => bound.bindings.part(&tensor.name, part, rows),
                    };
                    awaited.see((&tensor.name, part), data, &place, address);
                    if is_left && (!is_given || tensor.kind == TensorKind::Inout) {
                        bound.outputs.push((tensor.name.clone(), part, place, address));
                    }
                }
            }
        }
        bound.beside.steps = awaited.steps(turn % 2 == 1);
        bound.beside.told = self.told(rank, &bound.outputs);
        Ok(bound)
    }

    /// The words that a call raises, each with the memory of these outputs that it publishes.
    fn told(&self, rank: usize, outputs: &[(String, usize, Place, u64)]) -> Vec<ToldMemory> {
        let ranges = |holds: &dyn Fn(&str) -> bool| {
            let held = outputs.iter().filter(|(name, ..)| holds(name));
            Vec::from_iter(held.map(|(.., place, address)| (*address, place.bytes() as u64)))
        };
        let is_left = |name: &str| self.outcome.ranks[rank].contains_key(name);
        let told = walk::told_by_words(self.ir(), &is_left).into_iter();
        told.flat_map(|(word, names)| {
            let memory = ranges(&|name| names.contains(name));
            ranges(&|name| name == word).into_iter().map(move |words| (words, memory.clone()))
        })
        .collect()
    }

    fn bind_numbers(&self, rank: usize, plan: &Plan, bindings: &mut Bindings) {
        let brought = &self.drawn.ranks[rank];
        for param in &plan.params {
            match &param.kind {
                ParamKind::Size => {
                    bindings
                        .number(&param.name, brought.sizes.get(&param.name).copied().unwrap_or(0));
                }
                ParamKind::Capacity { size } => {
                    let least = self.outcome.sizes[rank].get(size);
                    let rows = brought.capacity.get(size).or(least).copied();
                    bindings.number(&param.name, rows.unwrap_or(0));
                }
                ParamKind::Arg { .. } => {
                    let default = self.ir().args.iter().find(|arg| arg.name == param.name);
                    let default = default.map(|arg| Scalar::of(arg.default));
                    match self.drawn.args.get(&param.name).copied().or(default) {
                        Some(Scalar::Real(value)) => bindings.real(&param.name, value),
                        Some(Scalar::Int(value)) => bindings.number(&param.name, value),
                        _ => bindings.number(&param.name, 0),
                    };
                }
                _ => {}
            }
        }
    }

    /// Sizes in words that the device reads, under bounds that let kernels expect more.
    fn bind_words(
        &self,
        group: &Group,
        rank: usize,
        plan: &Plan,
        bound: &mut Bound,
    ) -> Result<(), CallError> {
        for param in &plan.params {
            let ParamKind::SizeFrom { size } = &param.kind else { continue };
            let rows = self.drawn.ranks[rank].sizes.get(size).copied().unwrap_or(0);
            let word = i32::try_from(rows).unwrap_or(i32::MAX);
            let address = bound.room(group, rank, 4)?;
            group.backend().write(rank, address, &word.to_le_bytes())?;
            bound.bindings.counted(size, address);
            // Without a range the bound may be anything.
            let most = self.most_rows.get(size).copied().unwrap_or(rows + FREE_ROWS);
            bound.bindings.number(size, most.min(rows + FREE_ROWS));
        }
        Ok(())
    }

    /// What the call had to leave on the ranks of this process, what it left, and what it has changed
    /// where it had to leave things alone.
    #[expect(clippy::type_complexity, reason = "two lists by rank, as `compare` takes them")]
    fn left(
        &self,
        group: &Group,
        ranks: &[Bound],
    ) -> Result<(Vec<BTreeMap<String, Left>>, Vec<BTreeMap<String, Tensor>>, Vec<String>), CallError>
    {
        let (mut want, mut got, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for bound in ranks {
            let wanted = &self.outcome.ranks[bound.rank];
            let mut found: BTreeMap<String, Tensor> = BTreeMap::new();
            for (name, part, place, address) in &bound.outputs {
                let bytes = bound.read(group, place, *address)?;
                let is_touched = |at: usize| self.touched[bound.rank][name][at];
                if let Some(at) = self.changed(bound.rank, (name, *part), place, &bytes, is_touched)
                {
                    let rank = bound.rank;
                    changed.push(format!(
                        "rank {rank}: {name} part {part} is changed at {at}, which no statement writes"
                    ));
                }
                let tensor = found.entry(name.clone());
                let tensor = tensor.or_insert_with(|| wanted[name].tensor.clone());
                place.read(&bytes, &mut tensor.parts[*part].data);
            }
            want.push(wanted.clone());
            got.push(found);
        }
        Ok((want, got, changed))
    }

    /// What a call that says that its outputs hold so many rows of a size has written behind those.
    fn beyond(
        &self,
        group: &Group,
        bound: &Bound,
        size: &str,
        rows: usize,
    ) -> Result<Vec<String>, CallError> {
        let is_counted = |name: &str| {
            let tensor = self.ir().tensors.iter().find(|tensor| tensor.name == name);
            let rows = tensor.and_then(|tensor| tensor.dims.first());
            matches!(rows, Some(Expr::Name { name, .. }) if name == size)
        };
        let mut found = Vec::new();
        for (name, part, place, address) in bound.outputs.iter().filter(|it| is_counted(&it.0)) {
            let bytes = bound.read(group, place, *address)?;
            let held = &self.outcome.ranks[bound.rank][name].tensor;
            let row: usize = held.extents[1..].iter().product();
            let is_held = |at: usize| at / row.max(1) < rows;
            if let Some(at) = self.changed(bound.rank, (name, *part), place, &bytes, is_held) {
                let rank = bound.rank;
                found.push(format!(
                    "rank {rank}: {name} part {part}, of {rows} rows, is changed at {at}"
                ));
            }
        }
        Ok(found)
    }

    /// What stands in the memory of an output before the call: what the caller brings, or nothing of meaning.
    fn before(&self, rank: usize, (name, part): (&str, usize), place: &Place) -> Vec<u8> {
        let brought = self.drawn.ranks[rank].tensors.get(name).and_then(|copies| copies.first());
        place.written(brought.map(|tensor| &tensor.parts[part].data))
    }

    /// Where a part of a tensor is not what it was, although nothing may write there: an element, or a gap between rows.
    fn changed(
        &self,
        rank: usize,
        (name, part): (&str, usize),
        place: &Place,
        bytes: &[u8],
        may_write: impl Fn(usize) -> bool,
    ) -> Option<String> {
        let mut before = self.before(rank, (name, part), place);
        let left = &self.outcome.ranks[rank][name];
        place.take(&mut before, bytes, &|at| may_write(left.tensor.owner_of(part, at)));
        let at = before.iter().zip(bytes).position(|(before, byte)| before != byte)?;
        Some(place.name(at))
    }
}

/// A call in which outputs of a rank hold less than comes to it.
struct Short<'a> {
    turn: usize,
    rank: usize,
    /// The bound that says so, of how many rows of which size.
    bound: &'a str,
    size: &'a str,
    rows: i64,
}

/// Calls that can be made.
struct Ready {
    kernel: GroupKernel,
    window: Arc<Window>,
    /// By call, then by rank of this process.
    bound: Vec<Bound>,
}

/// What one rank binds in a call.
struct Bound {
    rank: usize,
    bindings: Bindings,
    held: Vec<DeviceMemory>,
    /// Tensor, part, and where it lies.
    outputs: Vec<(String, usize, Place, u64)>,
    /// The kernel that makes what the call waits for words for.
    beside: KernelBeside,
}

impl Bound {
    /// What stands in the memory of an output.
    fn read(&self, group: &Group, place: &Place, address: u64) -> Result<Vec<u8>, CallError> {
        let mut bytes = vec![0; place.bytes()];
        group.backend().read(self.rank, address, &mut bytes)?;
        Ok(bytes)
    }

    fn room(&mut self, group: &Group, rank: usize, bytes: usize) -> Result<u64, CallError> {
        let memory = DeviceMemory::new(group.backend(), rank, bytes.max(1) as u64)?;
        let address = memory.address();
        self.held.push(memory);
        Ok(address)
    }
}

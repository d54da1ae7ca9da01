//! Low latency by typed calls on the host, where a rank may be late, or left out of some calls.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ep_runtime::buffer::CallOptions;
use ep_runtime::group::{Group, GroupKernel, GroupOptions, place_control};
use ep_runtime::host::mutant::Mutant;
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions, Programs, TIMEOUT};
use ep_runtime::jit::Arch;
use ep_runtime::memory::Window;
use ep_runtime::net::ModelOptions;
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, low_latency_combine as combine,
    low_latency_dispatch as dispatch,
};
use ep_runtime::plan::Config;
use ep_runtime::tensor::{Bf16, DeviceTensor};
use ep_runtime::{AnyPipeline, pipeline};

use crate::emitted::shaped;
use crate::usual;

pub(crate) const RANKS: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 128;
const TOPK: usize = 2;
const EXPERTS: usize = 2 * RANKS;

/// Both kernels, and what each rank brings.
pub(crate) struct Calls {
    pub(crate) group: Group,
    dispatch: dispatch::Kernel,
    combine: combine::Kernel,
    pub(crate) own: Vec<Own>,
}

pub(crate) struct Own {
    inputs: dispatch::Inputs,
    pub(crate) outputs: dispatch::Outputs,
    back: combine::Outputs,
    weights: DeviceTensor<f32, 2>,
}

/// A token's rows are its number and its rank's in every place.
fn value(rank: usize, token: usize) -> f32 {
    (16 * rank + token + 1) as f32
}

fn expert(rank: usize, token: usize, choice: usize) -> usize {
    (rank + 2 * token + choice) % EXPERTS
}

impl Calls {
    /// None on a machine without a C++ compiler.
    fn new(build: Build, seed: u64, faults: Faults) -> Option<Calls> {
        let programs = crate::host::programs()?;
        let mut options = HostOptions { build, ..HostOptions::new(RANKS) };
        (options.spec.seed, options.spec.faults) = (seed, faults);
        let backend = HostBackend::new(programs, options).expect("there is a host");
        Some(Calls::of(backend.group().expect("there is a group")))
    }

    pub(crate) fn of(group: Group) -> Calls {
        let nodes = group.nodes();
        let (hidden, topk, experts, tokens) = (HIDDEN, TOPK, EXPERTS, TOKENS);
        let shape = dispatch::Shape { nodes, hidden, topk, experts, max_tokens: tokens, tokens };
        let there = LowLatencyDispatch::prepare(&group, shape, dispatch::Options::default());
        let shape = combine::Shape { nodes, hidden, topk, experts, max_tokens: tokens, tokens };
        let back = LowLatencyCombine::prepare(&group, shape, combine::Options::default());
        let (dispatch, combine) = (there.expect("it is loaded"), back.expect("it is loaded"));
        let own = (0..RANKS).map(|rank| Own::new(&group, &dispatch, &combine, rank)).collect();
        Calls { group, dispatch, combine, own }
    }

    /// A dispatch, and a combine of what it left; `apart`: by phases.
    pub(crate) fn launch(&self, rank: usize, apart: bool) {
        let Own { inputs, outputs, back, weights } = &self.own[rank];
        let call = CallOptions::sms(2);
        let args = dispatch::Args::default();
        let left = match apart {
            true => self
                .dispatch
                .send(rank, &call, inputs, outputs, &args)
                .and_then(|it| it.recv(&call)),
            false => self.dispatch.launch(rank, &call, inputs, outputs, &args),
        };
        let left = left.expect("it starts");
        let dispatch::PayloadTensor::Bf16 { x } = &outputs.packed_x else { unreachable!() };
        let inputs = combine::Inputs {
            x: x.clone(),
            topk_idx: inputs.topk_idx.clone(),
            topk_weights: weights.clone(),
            expert_begin: inputs.expert_begin.clone(),
            expert_done: None,
            tile_done: None,
        };
        let args = combine::Args::default();
        let done = match apart {
            true => {
                let sent = self.combine.send(rank, &call, &inputs, back, &left, &args);
                sent.and_then(|it| it.recv(&call))
            }
            false => self.combine.launch(rank, &call, &inputs, back, &left, &args),
        };
        done.map(drop).expect("it starts");
    }

    /// A call of all ranks, of which some launch the phases apart, and what it leaves.
    pub(crate) fn run(&self, apart: impl Fn(usize) -> bool) {
        self.run_without(&[], apart);
    }

    /// A call of all ranks but those in `out`, which are left out, and what it leaves. `apart` says which ranks launch
    /// the phases apart.
    pub(crate) fn run_without(&self, out: &[usize], apart: impl Fn(usize) -> bool) {
        let here = || (0..RANKS).filter(|rank| !out.contains(rank));
        here().for_each(|rank| self.launch(rank, apart(rank)));
        for rank in here() {
            let parts = self.parts(rank, out);
            self.hold(rank, &parts, &parts);
        }
    }

    /// How many rows come back for each token of a rank where others are left out.
    fn parts(&self, rank: usize, out: &[usize]) -> Vec<usize> {
        let owner = |token, choice| expert(rank, token, choice) * RANKS / EXPERTS;
        let parts =
            |token| (0..TOPK).filter(|choice| !out.contains(&owner(token, *choice))).count();
        (0..TOKENS).map(parts).collect()
    }

    /// Waits for a call of a rank, and holds its sums against so many rows for each token.
    fn hold(&self, rank: usize, least: &[usize], most: &[usize]) {
        self.group.sync(rank).unwrap_or_else(|error| panic!("{error}"));
        let sums = self.own[rank].back.combined.read().expect("it is there");
        for (token, row) in sums.chunks(HIDDEN).enumerate() {
            let wanted = |parts| Bf16::from(parts as f32 * value(rank, token));
            let of = |parts| row.iter().all(|sum| *sum == wanted(parts));
            let mut parts = least[token]..=most[token];
            assert!(parts.any(of), "rank {rank}, token {token}: {:?}", row[0]);
        }
    }

    /// Whom a rank has missed.
    pub(crate) fn absent(&self, rank: usize) -> Vec<usize> {
        self.group.absent(rank).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Own {
    fn new(group: &Group, there: &dispatch::Kernel, back: &combine::Kernel, rank: usize) -> Own {
        let x: Vec<Bf16> = (0..TOKENS * HIDDEN).map(|at| value(rank, at / HIDDEN).into()).collect();
        let ids: Vec<i64> =
            (0..TOKENS * TOPK).map(|at| expert(rank, at / TOPK, at % TOPK) as i64).collect();
        let begin: Vec<i32> = (0..=RANKS).map(|rank| (rank * EXPERTS / RANKS) as i32).collect();
        let inputs = dispatch::Inputs {
            x: DeviceTensor::from_slice(group, rank, [TOKENS, HIDDEN], &x).expect("room"),
            topk_idx: DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &ids).expect("room"),
            expert_begin: DeviceTensor::from_slice(group, rank, [RANKS + 1], &begin).expect("room"),
        };
        let weights = DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &[1.0; TOKENS * TOPK]);
        Own {
            inputs,
            outputs: there.outputs(rank).expect("room"),
            back: back.outputs(rank).expect("room"),
            weights: weights.expect("room"),
        }
    }
}

/// Tensors of times that begin at `start`.
pub(crate) fn times(calls: &Calls, start: i64) -> Vec<DeviceTensor<i64, 1>> {
    let of = |rank| DeviceTensor::from_slice(&calls.group, rank, [RANKS], &[start; RANKS]);
    (0..RANKS).map(|rank| of(rank).expect("room")).collect()
}

#[test]
fn who_is_late_was_waited_for() {
    const LATE: usize = 1;
    const START: i64 = 1000;
    let late = Faults { late_rank: Some((LATE as u32, 1_000_000)), ..Faults::default() };
    let Some(mut calls) = Calls::new(Build::Checked, 1, late) else { return };
    assert!(calls.own[0].outputs.wait_ns.is_none(), "nobody measures what nobody asks for");
    let (there, back) = (times(&calls, START), times(&calls, 0));
    for (own, (there, back)) in calls.own.iter_mut().zip(there.iter().zip(&back)) {
        own.outputs.wait_ns = Some(there.clone());
        own.back.wait_ns = Some(back.clone());
    }
    calls.run(|_| false);
    let read = |of: &[DeviceTensor<i64, 1>]| -> Vec<Vec<i64>> {
        of.iter().map(|times| times.read().expect("it is there")).collect()
    };
    let first = read(&there);
    for (rank, waited) in first.iter().enumerate().filter(|(rank, _)| *rank != LATE) {
        let others = (0..RANKS).filter(|other| *other != LATE).map(|other| waited[other]);
        let most = others.max().expect("there are others");
        assert!(waited[LATE] > 2 * most, "rank {rank}: {waited:?}");
        assert!(waited.iter().all(|waited| *waited >= START), "rank {rank}: {waited:?}");
    }
    // Times are added to what is there, and stay as they are where a call does not ask for them.
    calls.run(|_| false);
    let second = read(&there);
    let grows = first.iter().flatten().zip(second.iter().flatten());
    assert!(grows.clone().all(|(first, second)| first <= second), "{first:?}, then {second:?}");
    let combined = read(&back);
    assert!(combined.iter().flatten().any(|waited| *waited > 0), "{combined:?}");
    for own in &mut calls.own {
        (own.outputs.wait_ns, own.back.wait_ns) = (None, None);
    }
    calls.run(|_| false);
    assert_eq!((read(&there), read(&back)), (second, combined));
}

/// Counts are those of the call, whatever was there; statistics go on over the calls that bring them.
#[test]
fn a_call_counts_its_rows_and_adds_them_up_for_who_asks() {
    let Some(mut calls) = Calls::new(Build::Checked, 1, Faults::default()) else { return };
    const LOCAL: usize = EXPERTS / RANKS;
    let chosen = |from, token| (0..TOPK).map(move |choice| expert(from, token, choice));
    let all = || (0..RANKS * TOKENS).flat_map(|at| chosen(at / TOKENS, at % TOKENS));
    let count = |wanted| all().filter(|id| *id == wanted).count() as i32;
    let wanted = |rank| Vec::from_iter((rank * LOCAL..(rank + 1) * LOCAL).map(count));
    let start = [7; LOCAL];
    let statistics = DeviceTensor::from_slice(&calls.group, 1, [start.len()], &start);
    let statistics = statistics.expect("room");
    for (call, asks) in [true, true, false].into_iter().enumerate() {
        calls.own[1].outputs.statistics = asks.then(|| statistics.clone());
        calls.own.iter().for_each(|own| own.outputs.packed_count.fill(0xa5).expect("it is there"));
        calls.run(|rank| (rank + call) % 2 == 0);
        for (rank, own) in calls.own.iter().enumerate() {
            let counts = own.outputs.packed_count.read().expect("it is there");
            assert_eq!(counts, wanted(rank), "rank {rank}, call {call}");
        }
    }
    let sums: Vec<i32> =
        wanted(1).iter().zip(start).map(|(count, start)| start + 2 * count).collect();
    assert_eq!(statistics.read().expect("it is there"), sums);
}

/// One rank asks for both phases at once, another one launches them apart: they are the same call.
#[test]
fn ranks_may_differ_in_how_they_launch() {
    let Some(calls) = Calls::new(Build::Checked, 1, Faults::default()) else { return };
    for call in 0..4 {
        calls.run(|rank| (rank + call) % 3 == 0);
    }
    // Rank 0 launches twice what others do in one, and nobody waits for a call before the next.
    (0..4).for_each(|_| (0..RANKS).for_each(|rank| calls.launch(rank, rank == 0)));
    calls.run(|rank| rank == 0);
}

/// Calls go on without a rank, and with it when it comes back, whether it has missed an odd number of them or
/// not: slots and words of calls next to each other are apart.
#[test]
fn a_rank_comes_back() {
    for (build, seed, missed) in
        [(Build::Plain, 1, 1), (Build::Plain, 2, 2), (Build::Plain, 3, 5), (Build::Checked, 4, 3)]
    {
        let Some(calls) = Calls::new(build, seed, Faults::default()) else { return };
        for out in [1, 0, 1] {
            (0..2).for_each(|_| calls.run(|_| false));
            calls.group.leave_out(out, true).expect("there is such a rank");
            (0..missed).for_each(|call| calls.run_without(&[out], |rank| (rank + call) % 2 == 0));
            calls.group.leave_out(out, false).expect("it comes back");
        }
        (0..4).for_each(|call| calls.run(|rank| (rank + call) % 3 == 0));
    }
}

/// What a rank has sent and never received does not come into later calls.
#[test]
fn a_rank_comes_back_from_between_two_phases() {
    let Some(calls) = Calls::new(Build::Checked, 1, Faults::default()) else { return };
    calls.run(|_| true);
    let Own { inputs, outputs, .. } = &calls.own[1];
    let (call, args) = (CallOptions::sms(2), dispatch::Args::default());
    let sent = calls.dispatch.send(1, &call, inputs, outputs, &args).expect("it starts");
    calls.group.leave_out(1, true).expect("there is such a rank");
    (0..3).for_each(|_| calls.run_without(&[1], |_| false));
    calls.group.leave_out(1, false).expect("it comes back");
    let words = sent.recv(&call).map(drop).expect_err("its call is over").to_string();
    let wanted = "low_latency_dispatch_send is next, and low_latency_dispatch_recv was launched";
    assert_eq!(words, wanted);
    drop(sent);
    (0..3).for_each(|_| calls.run(|_| false));
}

/// Counters of a network go on: kernels that use one are prepared anew.
#[test]
fn over_a_network_kernels_are_prepared_again_for_a_rank_that_rejoins() {
    let Some(programs) = crate::host::programs() else { return };
    let options = HostOptions { build: Build::Checked, ..HostOptions::new(RANKS) };
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let group = Group::over_model(&backend, RANKS, &ModelOptions::default()).expect("nodes of one");
    let calls = Calls::of(group.clone());
    calls.run(|_| false);
    group.leave_out(1, true).expect("there is such a rank");
    // Slots that were sent to rank 1 are filled again.
    (0..3).for_each(|_| calls.run_without(&[1], |_| false));
    group.leave_out(1, false).expect("it comes back");
    let Own { inputs, outputs, .. } = &calls.own[0];
    let args = dispatch::Args::default();
    let again = calls.dispatch.launch(0, &CallOptions::sms(2), inputs, outputs, &args);
    let words = again.map(drop).expect_err("its counters are of calls without rank 1").to_string();
    let wanted = "LowLatencyDispatch uses a network, whose counters continue, and was prepared before a \
                rank came back: prepare LowLatencyDispatch again";
    assert_eq!(words, wanted);
    drop(calls);
    (0..2).for_each(|_| Calls::of(group.clone()).run(|_| false));
}

/// Calls that go on without a rank which does not answer.
fn going_on(programs: &Arc<Programs>, build: Build, seed: u64, faults: Faults) -> Calls {
    let mut options = HostOptions { build, ..HostOptions::new(RANKS) };
    (options.spec.seed, options.spec.faults) = (seed, faults);
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let options = GroupOptions { timeout: TIMEOUT, leaves_out_absent: true };
    Calls::of(Group::new(backend, options).expect("there is a group"))
}

/// Runs of some seeds, of which a fifth are checked.
fn by_seed(run: fn(&Arc<Programs>, Build, u64)) {
    let Some(programs) = crate::host::programs() else { return };
    let runs =
        (0..24).map(|seed| (Build::Plain, seed)).chain((0..6).map(|it| (Build::Checked, it)));
    usual::some(runs, 5).for_each(|(build, seed)| run(programs, build, seed));
}

/// Calls of which one rank dies, in whatever it does: it is missed by the others, their rows and sums are
/// right, and what they have of it is right or not there.
fn survive(programs: &Arc<Programs>, build: Build, seed: u64) {
    const DEAD: usize = 1;
    let step = 1 + (seed * seed * 997) % 40_000;
    let faults = Faults { dead_rank: Some((DEAD as u32, step)), ..Faults::default() };
    let calls = going_on(programs, build, seed, faults);
    let living = || (0..RANKS).filter(|rank| *rank != DEAD);
    let mut after = 0;
    for call in 0..60 {
        let absent: Vec<_> = living().map(|rank| calls.absent(rank)).collect();
        assert!(absent.iter().all(|it| it.is_empty() || *it == [DEAD]), "call {call}: {absent:?}");
        let is_missed = absent.iter().all(|it| *it == [DEAD]);
        let launched = (0..RANKS).filter(|rank| *rank != DEAD || !is_missed);
        // Two at once: who has all that it needs of the dead rank comes to the next call, and waits there for
        // those that wait for more of it.
        for rank in launched {
            (0..2).for_each(|turn| calls.launch(rank, (rank + call + turn) % 3 == 0));
        }
        for rank in living() {
            let least = calls.parts(rank, &[DEAD]);
            let most = if is_missed { least.clone() } else { calls.parts(rank, &[]) };
            calls.hold(rank, &least, &most);
        }
        after += usize::from(is_missed);
        if after == 3 {
            return;
        }
    }
    panic!("nobody has missed rank {DEAD}, which dies at step {step}");
}

#[test]
fn the_others_go_on_without_a_rank_that_dies() {
    by_seed(survive);
}

/// Calls to which a rank comes just when the others cease to wait for it. Parts of a sum may be missing only
/// of ranks that are missed, and those of ranks that were missed before.
fn reunite(programs: &Arc<Programs>, build: Build, seed: u64) {
    let faults = Faults { late_rank: Some((1, u64::MAX)), ..Faults::default() };
    let calls = going_on(programs, build, seed, faults);
    for _ in 0..2 {
        let mut before = vec![Vec::new(); RANKS];
        for call in 0..3 {
            (0..RANKS).for_each(|rank| {
                calls.launch(rank, (rank + call + seed as usize).is_multiple_of(2))
            });
            let after: Vec<_> = (0..RANKS).map(|rank| calls.absent(rank)).collect();
            for (rank, before) in before.iter().enumerate() {
                calls.hold(rank, &calls.parts(rank, &after[rank]), &calls.parts(rank, before));
            }
            before = after;
        }
        assert!(before.iter().any(|absent| !absent.is_empty()), "seed {seed}: nobody is missed");
        calls.group.leave_out(1, false).expect("all come back");
        assert!((0..RANKS).all(|rank| calls.absent(rank).is_empty()));
    }
}

#[test]
fn a_rank_may_come_just_when_it_is_missed_at_length() {
    by_seed(reunite);
}

/// A rank that makes no calls is missed after one timeout, and answers again when it is taken back in.
#[test]
fn a_rank_that_was_missed_comes_back() {
    let Some(programs) = crate::host::programs() else { return };
    for (build, apart) in [(Build::Plain, false), (Build::Checked, true)] {
        let calls = going_on(programs, build, 1, Faults::default());
        calls.run(|_| apart);
        (0..3).for_each(|_| calls.run_without(&[2], |_| apart));
        assert_eq!((calls.absent(0), calls.absent(1), calls.absent(2)), (vec![2], vec![2], vec![]));
        calls.group.leave_out(2, false).expect("it comes back");
        assert!((0..RANKS).all(|rank| calls.absent(rank).is_empty()));
        (0..3).for_each(|_| calls.run(|rank| apart != (rank == 0)));
    }
}

/// Ranks that wait for each other, in calls of two kernels, show signs of life: nobody is absent, and the
/// group is stopped.
fn circle(programs: &Arc<Programs>, build: Build) {
    let calls = going_on(programs, build, 1, Faults::default());
    let others = Calls::of(calls.group.clone());
    (0..RANKS).for_each(|rank| if rank == 0 { &calls } else { &others }.launch(rank, false));
    let words = calls.group.sync(0).expect_err("they made no call together").to_string();
    assert!(words.contains("rank 0 waits on rank 1; rank 1 waits on rank 0"), "{words}");
}

#[test]
fn ranks_that_wait_for_each_other_are_not_absent() {
    let Some(programs) = crate::host::programs() else { return };
    circle(programs, Build::Plain);
}

#[test]
fn more_than_64_ranks_do_not_go_on_without_one() {
    let Some(programs) = crate::host::programs() else { return };
    let backend = HostBackend::new(programs, HostOptions::new(65)).expect("there is a host");
    let options = GroupOptions { timeout: TIMEOUT, leaves_out_absent: true };
    let words = Group::new(backend, options).map(drop).expect_err("it is too large").to_string();
    let wanted = "a group of 65 ranks cannot leave out ranks that do not answer: only one node of at most 64 ranks can";
    assert_eq!(words, wanted);
}

pipeline! {
    /// Each rank gives its row to those that are marked, and adds up what comes from those that it names.
    pub pipeline GiveOn {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, rows: 1..=1024 }
        input x: bf16[rows, hidden], to: i32[ranks], from: i32[rows, ranks] in -1..rows;
        output sum: bf16[rows, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: slots<Part> over nvlink from Give to Sum per all { slot: [source, row: rows], epochs: 2 };

        role Give on even blocks, 2 warps, warps shared by row {
            for peer in ranks where to[peer] > 0 {
                push parts[peer] at row { x: x[row] };
            }
        }
        role Sum on odd blocks, 2 warps, warps shared by token {
            for r in rows gather part from parts[source] at from[r, source] across source in ranks {
                store sum[r] = sum(part.x);
            }
        }
    }
}

/// Rows go around: who gives to a rank that dies waits for nothing of it but its credit, and misses it.
fn give_on(programs: &Arc<Programs>) {
    const DEAD: usize = 1;
    let calls = 5;
    let mut options = HostOptions { build: Build::Checked, ..HostOptions::new(RANKS) };
    options.spec.faults = Faults { dead_rank: Some((DEAD as u32, 1)), ..Faults::default() };
    options.spec.max_ahead = calls;
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let options = GroupOptions { timeout: TIMEOUT, leaves_out_absent: true };
    let group = Group::new(backend, options).expect("there is a group");
    let (hidden, rows) = (16, 2);
    let shape = give_on::Shape { hidden, rows };
    let kernel = GiveOn::prepare(&group, shape, give_on::Options::default()).expect("it is loaded");
    let ranks = Vec::from_iter((0..RANKS).map(|rank| {
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let x = vec![Bf16::from(1.0 + rank as f32); rows * hidden];
        let to = Vec::from_iter((0..RANKS).map(|peer| i32::from(peer == next)));
        let places =
            |row: usize| (0..RANKS).map(move |it| if it == before { row as i32 } else { -1 });
        let from = Vec::from_iter((0..rows).flat_map(places));
        let inputs = give_on::Inputs {
            x: DeviceTensor::from_slice(&group, rank, [rows, hidden], &x).expect("room"),
            to: DeviceTensor::from_slice(&group, rank, [RANKS], &to).expect("room"),
            from: DeviceTensor::from_slice(&group, rank, [rows, RANKS], &from).expect("room"),
        };
        (inputs, kernel.outputs(rank).expect("room"))
    }));
    for _ in 0..calls {
        for (rank, (inputs, outputs)) in ranks.iter().enumerate() {
            kernel.launch(rank, &CallOptions::sms(2), inputs, outputs).expect("it starts");
        }
    }
    for (rank, wanted) in [(0, 1.0 + (RANKS - 1) as f32), (DEAD + 1, 0.0)] {
        assert_eq!(group.absent(rank).unwrap_or_else(|error| panic!("{error}")), [DEAD]);
        let sums = ranks[rank].1.sum.read().expect("it is there");
        assert!(sums.iter().all(|sum| *sum == Bf16::from(wanted)), "rank {rank}: {sums:?}");
    }
}

#[test]
fn who_gives_to_a_dead_rank_alone_misses_it() {
    let Some(programs) = crate::host::programs() else { return };
    give_on(programs);
}

/// The pipelines of which every wait for a rank ends where it does not answer.
#[test]
fn which_pipelines_go_on_without_a_rank() {
    let mut able = BTreeSet::new();
    for entry in ep_runtime::pipelines::ALL {
        let ir = entry.ir();
        for choice in ir.choices() {
            let own = Config { choice, leaves_out_absent: true, ..Config::new(&ir, Arch::Sm90a) };
            let emitted = entry.emit(&shaped(&entry, own, &[])).expect("the reference shape fits");
            let says = emitted.cuda.contains("kSkipsAbsent = true");
            assert_eq!(emitted.plan.leaves_out_absent, says, "{}", entry.name);
            able.extend(says.then_some(entry.name));
        }
    }
    let wanted = ["decode-combine", "low-latency-combine", "low-latency-dispatch", "merge-combine"];
    assert_eq!(able, wanted.into());
}

#[test]
fn what_goes_on_without_a_rank_is_for_groups_that_do() {
    let Some(programs) = crate::host::programs() else { return };
    let entry = AnyPipeline::of::<GiveOn>();
    let ir = entry.ir();
    let mut config = Config { leaves_out_absent: true, ..Config::new(&ir, Arch::Sm90a) };
    for (name, value) in [("ranks", "3"), ("hidden", "16"), ("rows", "1")] {
        config.set(&ir, name, value).expect("the shape is legal");
    }
    let emitted = entry.emit(&config).expect("it is emitted");
    let backend = HostBackend::new(programs, HostOptions::new(RANKS)).expect("there is a host");
    let group = backend.group().expect("there is a group");
    let (_, bytes) = place_control([&emitted.plan]);
    let window = Arc::new(Window::new(group.backend(), bytes).expect("there is room"));
    let words = GroupKernel::prepare(&group, &window, 0, &emitted).map(drop).expect_err("not here");
    let wanted = "GiveOn was emitted to continue without ranks that do not answer, and its group does not continue without them";
    assert_eq!(words.to_string(), wanted);
}

/// Bugs of calls that go on without a rank which does not answer.
const BUGS: &str = "
== warps do not agree on what came of a rank
in ep/slot_rows.cuh
-             if (done && key >= 0) value = agreed(key, value);
+

== a rank that waits itself is not waited for
in ep/presence.cuh
-         if (is_first || pulse != watch.pulse) watch.since = now;
+         if (is_first) watch.since = now;

== nobody learns who is absent
in ep/presence.cuh
-         if (watch.absent) miss(group, site.peer);
+

== a wait for the credit of an absent rank ends in one lane alone
in ep/slot_rows.cuh
-             if (__ballot_sync(kAllLanes, is_free) != kAllLanes) return false;
+             if (!is_free) return false;

== a wait for the credit of an absent rank stops the group
in ep/slot_rows.cuh
-         if constexpr (Slots::kSkipsAbsent) {
-             return wait_counter_of_peer
+         if constexpr (false) {
+             return wait_counter_of_peer

== a wait for the count of an absent rank stops the group
in ep/slot_rows.cuh
-         const bool done = wait_for_peer<Slots::kSkipsAbsent>(team_, site, absent, [&](u32& seen) {
-             return times_.found(source, key < 0 || End::looks_closed(key, seen));
+         const bool done = wait_for_peer<false>(team_, site, absent, [&](u32& seen) {
+             return times_.found(source, key < 0 || End::looks_closed(key, seen));

== a wait for a slot of an absent rank stops the group
in ep/slot_rows.cuh
-         const bool done = wait_for_peer<Slots::kSkipsAbsent>(team_, site, absent, [&](u32& seen) {
-             const bool here = key < 0
+         const bool done = wait_for_peer<false>(team_, site, absent, [&](u32& seen) {
+             const bool here = key < 0
";

#[test]
fn planted_bugs_of_calls_without_a_rank_are_found_at_length() {
    let Some(programs) = crate::host::programs() else { return };
    for bug in usual::some(Mutant::parse(BUGS).expect("the list is read"), 3) {
        let planted = programs.planted(&bug);
        let finds = |seed| {
            let run = AssertUnwindSafe(|| {
                give_on(&planted);
                survive(&planted, Build::Checked, seed);
                reunite(&planted, Build::Checked, seed);
                circle(&planted, Build::Checked);
            });
            let error = catch_unwind(run).err()?;
            let words = error.downcast_ref::<String>().cloned();
            Some(words.unwrap_or_default())
        };
        let words = (0..16).find_map(finds);
        let words = words.unwrap_or_else(|| panic!("nothing finds that {}", bug.name));
        assert!(!words.contains("does not compile"), "{}: {words}", bug.name);
    }
}

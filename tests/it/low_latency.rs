//! Low latency by typed calls on the host, where a rank may be late, or left out of some calls.

use ep_runtime::buffer::CallOptions;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions};
use ep_runtime::net::ModelOptions;
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, low_latency_combine as combine,
    low_latency_dispatch as dispatch,
};
use ep_runtime::tensor::{Bf16, DeviceTensor};

const RANKS: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 128;
const TOPK: usize = 2;
const EXPERTS: usize = 2 * RANKS;

/// Both kernels, and what each rank brings.
struct Calls {
    group: Group,
    dispatch: dispatch::Kernel,
    combine: combine::Kernel,
    own: Vec<Own>,
}

struct Own {
    inputs: dispatch::Inputs,
    outputs: dispatch::Outputs,
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

    fn of(group: Group) -> Calls {
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
    fn launch(&self, rank: usize, apart: bool) {
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
    fn run(&self, apart: impl Fn(usize) -> bool) {
        self.run_without(&[], apart);
    }

    /// The same where some ranks are left out.
    fn run_without(&self, out: &[usize], apart: impl Fn(usize) -> bool) {
        let here = || (0..RANKS).filter(|rank| !out.contains(rank));
        here().for_each(|rank| self.launch(rank, apart(rank)));
        for rank in here() {
            self.group.sync(rank).unwrap_or_else(|error| panic!("{error}"));
            let sums = self.own[rank].back.combined.read().expect("it is there");
            for (token, row) in sums.chunks(HIDDEN).enumerate() {
                let owners = (0..TOPK).map(|choice| expert(rank, token, choice) * RANKS / EXPERTS);
                let parts = owners.filter(|owner| !out.contains(owner)).count();
                let wanted = Bf16::from(parts as f32 * value(rank, token));
                assert!(row.iter().all(|sum| *sum == wanted), "rank {rank}, token {token}");
            }
        }
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
fn times(calls: &Calls, start: i64) -> Vec<DeviceTensor<i64, 1>> {
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

/// One rank asks for both phases at once, another one launches them apart: they are the same call.
#[test]
fn ranks_may_differ_in_how_they_launch() {
    let Some(calls) = Calls::new(Build::Checked, 1, Faults::default()) else { return };
    for call in 0..4 {
        calls.run(|rank| (rank + call) % 3 == 0);
    }
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
fn over_a_network_kernels_are_prepared_anew_for_who_comes_back() {
    let Some(programs) = crate::host::programs() else { return };
    let backend = HostBackend::new(programs, HostOptions::new(RANKS)).expect("there is a host");
    let group = Group::over_model(&backend, RANKS, &ModelOptions::default()).expect("nodes of one");
    let calls = Calls::of(group.clone());
    calls.run(|_| false);
    group.leave_out(1, true).expect("there is such a rank");
    calls.run_without(&[1], |_| false);
    group.leave_out(1, false).expect("it comes back");
    let Own { inputs, outputs, .. } = &calls.own[0];
    let args = dispatch::Args::default();
    let again = calls.dispatch.launch(0, &CallOptions::sms(2), inputs, outputs, &args);
    let words = again.map(drop).expect_err("its counters are of calls without rank 1").to_string();
    let wanted = "LowLatencyDispatch was prepared before a rank came back, and goes over a network, \
                  whose counters go on: prepare it anew";
    assert_eq!(words, wanted);
    drop(calls);
    (0..2).for_each(|_| Calls::of(group.clone()).run(|_| false));
}

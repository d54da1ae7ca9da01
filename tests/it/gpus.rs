//! What runs on GPUs, which ranks share where there are fewer, and is skipped where there is none.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ep_runtime::buffer::CallOptions;
use ep_runtime::gpu::{GpuBackend, GpuOptions, compile_with};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::pipelines::low_latency_dispatch::Payload;
use ep_verify::selftest::{LowLatency, LowLatencyCase, Mode, Operation, Repeats, Way};

use crate::low_latency::{Calls, RANKS, times};

/// The GPUs, for one test at a time: ranks wait for each other on them, and for room that another test's ranks take.
/// None where there is no GPU; a test that is skipped says so.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if ep_runtime::gpu::devices().is_ok_and(|devices| !devices.is_empty()) {
        // What failed before leaves nothing behind.
        return Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    }
    // Past the capture of the harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "skipped: no GPU");
    None
}

/// Ranks on the GPUs.
fn group(options: &GpuOptions, leaves_out_absent: bool) -> Group {
    let jit = Jit::new(Nvrtc::find().expect("it is there"), Cache::at(None).expect("a folder"));
    let backend = GpuBackend::new(options, compile_with(Arc::new(jit))).expect("they open");
    let options = GroupOptions { timeout: Duration::from_secs(2), leaves_out_absent };
    Group::new(Arc::new(backend), options).expect("there is a group")
}

/// Low-latency calls.
fn on_gpus(leaves_out_absent: bool) -> Calls {
    let spread = GpuOptions::spread(RANKS).expect("there are GPUs");
    Calls::of(group(&spread, leaves_out_absent))
}

/// A kernel that is brought to the SMs before the one ahead of it is done takes the place of the other rank's.
#[test]
fn ranks_that_fill_a_gpu_together_do_not_wait_for_each_other_forever() {
    let Some(_turn) = turn() else { return };
    let both_on_one = GpuOptions { devices: vec![0; 2], ..GpuOptions::default() };
    let group = group(&both_on_one, false);
    let sms = group.backend().sms(0);
    let case = LowLatencyCase {
        tokens: 8,
        hidden: 7168,
        topk: 8,
        experts: 288,
        payload: Payload::Bf16,
        way: Way::PerExpert,
        call: CallOptions::sms(sms),
        pairs: 0,
    };
    let calls = LowLatency::new(&group, case).expect("there is memory");
    let repeats = Repeats { iterations: 20, warmup: 0, graph: Some(20) };
    let (times, findings) =
        calls.time(Operation::Combine, 20, Mode::Loop, repeats).expect("they go on");
    assert!(times.is_some() && findings.is_good(), "{findings}");
}

#[test]
fn low_latency_goes_on_while_ranks_come_and_go() {
    let Some(_turn) = turn() else { return };
    let mut calls = on_gpus(false);
    (0..50).for_each(|call| calls.run(|rank| (rank + call) % 3 == 0));
    for (out, missed) in [(1, 1), (0, 2), (2, 5)] {
        calls.group.leave_out(out, true).expect("there is such a rank");
        (0..missed).for_each(|call| calls.run_without(&[out], |rank| (rank + call) % 2 == 0));
        calls.group.leave_out(out, false).expect("it comes back");
        (0..3).for_each(|call| calls.run(|rank| (rank + call) % 3 == 0));
    }
    let waited = times(&calls, 0);
    for (own, waited) in calls.own.iter_mut().zip(&waited) {
        own.outputs.wait_ns = Some(waited.clone());
    }
    // The last rank to be launched is waited for.
    (0..3).for_each(|_| calls.run(|_| false));
    let first = waited[0].read().expect("it is there");
    assert!(first.iter().any(|waited| *waited > 0), "{first:?}");
}

#[test]
fn a_rank_that_does_not_answer_is_missed_and_comes_back() {
    let Some(_turn) = turn() else { return };
    let calls = on_gpus(true);
    for (out, apart) in [(2, false), (0, true)] {
        (0..20).for_each(|call| calls.run(|rank| apart != ((rank + call) % 3 == 0)));
        (0..3).for_each(|_| calls.run_without(&[out], |_| apart));
        for rank in 0..RANKS {
            let missed = if rank == out { vec![] } else { vec![out] };
            assert_eq!(calls.absent(rank), missed, "rank {rank}");
        }
        calls.group.leave_out(out, false).expect("it comes back");
        assert!((0..RANKS).all(|rank| calls.absent(rank).is_empty()));
    }
    (0..20).for_each(|call| calls.run(|rank| (rank + call) % 3 == 0));
    let others = Calls::of(calls.group.clone());
    (0..RANKS).for_each(|rank| if rank == 0 { &calls } else { &others }.launch(rank, false));
    let words = calls.group.sync(0).expect_err("they made no call together").to_string();
    assert!(words.contains("rank 0") && words.contains("rank 1"), "{words}");
}

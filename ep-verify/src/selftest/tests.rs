//! Calls, their order and their timing, on streams that nothing orders but events.

mod streams;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::unordered::{UnorderedBackend, allocations_of, programs};
use ep_runtime::RuleSet;
use ep_runtime::backend::{Backend, Signal, Stream};
use ep_runtime::buffer::{BuiltIn, BuiltInBy, StandardPipeline, Via};
use ep_runtime::group::GroupOptions;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::net::ModelOptions;
use std::time::Duration;

fn case(options: BufferOptions, tokens: &[usize]) -> Case {
    Case { tokens: tokens.to_vec(), ..Case::even(options, tokens.len(), 4) }
}

#[test]
fn an_output_that_fits_exactly_is_enough_and_one_row_less_is_not() {
    let run = |capacity: usize| {
        let backend = UnorderedBackend::new(2)?;
        let group = Group::new(backend, GroupOptions::default()).unwrap();
        let options = BufferOptions::new(20, 64, 2, 6);
        let options = BufferOptions { capacity: Some(capacity), ..options };
        let test = Selftest::new(&group, &BuiltIn, case(options, &[20, 20])).unwrap();
        let most = (0..2).map(|rank| test.oracle.arrivals(rank).len()).max().unwrap();
        Some((most, test.check()))
    };
    let Some((most, _)) = run(40) else { return };
    let fitting = run(most).unwrap().1.unwrap();
    assert!(fitting.is_good(), "{fitting}");
    let small = run(most - 1).unwrap().1;
    let Err(CallError::OutputTooSmall { need, have, .. }) = small else { panic!("{small:?}") };
    assert_eq!((need, have), (most as u64, most as u64 - 1));
}

#[test]
fn what_runs_out_is_named_and_comes_back() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let case = case(BufferOptions::new(8, 64, 2, 4), &[8]);
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    let call = CallOptions::sms(4);
    let input = test.input(0).unwrap();
    let first = test.buffer.dispatch(0, &input, &call).unwrap();
    let second = test.buffer.dispatch(0, &input, &call).err().unwrap();
    let text = "rank 0: all 1 outputs are in use; drop one, or make more";
    assert_eq!(second.to_string(), text);
    drop(first);
    let (handle, _received) = test.buffer.dispatch(0, &input, &call).unwrap();
    let fewer = DispatchInput { tokens: 7, ..input };
    let error = test.buffer.cached_dispatch(&handle, &fewer, &call).err().unwrap();
    assert_eq!(error.to_string(), "the call has 7 tokens, and its handle is for 8");
    let more = DispatchInput { tokens: 9, ..input };
    let error = test.buffer.exchange_counts(0, &more, &call).err().unwrap();
    assert_eq!(error.to_string(), "9 tokens, and the maximum is 8");
}

#[test]
fn a_cached_dispatch_needs_no_routing() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend, GroupOptions::default()).unwrap();
    let case = case(BufferOptions::new(8, 64, 2, 4), &[8]);
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    let (input, call) = (test.input(0).unwrap(), CallOptions::sms(4));
    let (handle, received) = test.buffer.dispatch(0, &input, &call).unwrap();
    drop(received);
    let cached = DispatchInput { topk_idx: 0, topk_weights: 0, ..input };
    test.buffer.cached_dispatch(&handle, &cached, &call).map(drop).unwrap();
    group.sync(0).unwrap();
}

/// Whoever calls it may always bring a place for sums of weights: one that adds up none stores none.
#[test]
fn a_buffer_without_weights_stores_none() {
    for (via, push_combine) in [(Via::Direct, true), (Via::Direct, false), (Via::Ring, false)] {
        let Some(backend) = UnorderedBackend::new(2) else { return };
        let group = Group::new(backend, GroupOptions::default()).unwrap();
        let options = BufferOptions::new(8, 64, 2, 4);
        let push_combine = Some(push_combine);
        let options = BufferOptions { via, push_combine, weights: false, ..options };
        let test =
            Selftest::new(&group, &BuiltInBy(RuleSet::None), case(options, &[8, 8])).unwrap();
        test.ranks.iter().for_each(|data| data.poison_sums(POISON).unwrap());
        let found = test.check().unwrap();
        assert!(found.is_good(), "{found}");
        for data in &test.ranks {
            let mut left = [0; 8 * 2 * 4];
            data.combined_weights.read(0, &mut left).unwrap();
            assert_eq!(left, [POISON; 8 * 2 * 4], "{via:?}, {push_combine:?}");
        }
    }
}

/// Nothing is allocated on the way to a launch: neither by a call whose counts have been read,
/// nor by one whose counts nobody has asked for, nor on a stream of the caller.
#[test]
fn calls_allocate_nothing() {
    for via in Via::ALL {
        let Some(backend) = UnorderedBackend::new(1) else { return };
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions { via, live: 2, biases: 1, ..BufferOptions::new(8, 64, 2, 4) };
        let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
        let offered = test.offer_rows().unwrap().pop().unwrap();
        let input = test.input(0).unwrap();
        // SAFETY: this backend takes any number for a stream and for an event.
        let (stream, signal) = unsafe { (Stream::from_raw(7), Signal::from_raw(9)) };
        let timeout = Some(Duration::from_secs(1));
        let (after, done) = (Some(signal), Some(signal));
        let own = CallOptions::sms(4);
        let other = CallOptions { stream, timeout, after, done, ..own };
        for (round, call) in [own, own, other, own, other, other].into_iter().enumerate() {
            let calls = || {
                let (handle, received) = test.buffer.dispatch(0, &input, &call)?;
                let again = test.buffer.cached_dispatch(&handle, &input, &call)?;
                test.combine(&handle, CombineInput::Offered(&offered))?;
                drop((received, again));
                Ok::<Handle, CallError>(handle)
            };
            let (handle, allocations) = allocations_of(calls);
            assert_eq!(allocations, 0, "{via:?} call {round}");
            if round % 2 == 1 {
                handle.unwrap().counts().unwrap();
            }
        }
    }
}

/// The backend runs later streams first where no event orders them: inputs are made on an
/// earlier one than the call's, and overwritten on a later one.
#[test]
fn a_call_runs_between_its_signals() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let options = BufferOptions::new(8, 64, 2, 4);
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
    // SAFETY: this backend takes any number for a stream and for an event.
    let stream = |number: u64| unsafe { Stream::from_raw(number) };
    // SAFETY: as above.
    let (ready, done) = unsafe { (Signal::from_raw(1000), Signal::from_raw(1001)) };
    // Behind this call, so that the next one waits for no other stream than its signal's.
    let first = CallOptions { stream: stream(2), ..CallOptions::sms(4) };
    test.buffer.dispatch(0, &test.input(0).unwrap(), &first).unwrap();
    test.group.sync(0).unwrap();
    let x = &test.ranks[0].x;
    x.fill(stream(1), 0x11).unwrap();
    backend.record(0, stream(1), &ready.event()).unwrap();
    let call = CallOptions { stream: stream(2), after: Some(ready), done: Some(done), ..first };
    let (_handle, received) = test.buffer.dispatch(0, &test.input(0).unwrap(), &call).unwrap();
    backend.wait_event(0, stream(3), &done.event()).unwrap();
    x.fill(stream(3), 0x22).unwrap();
    test.group.sync(0).unwrap();
    backend.sync(0, stream(3)).unwrap();
    let mut first = [0; 128];
    backend.read(0, received.x().unwrap().address, &mut first).unwrap();
    assert_eq!(first, [0x11; 128]);
    x.read(0, &mut first).unwrap();
    assert_eq!(first, [0x22; 128]);
}

/// Outputs are poisoned between the calls before and after, on whatever streams these are.
#[test]
fn poison_has_its_turn_among_the_calls() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let options = BufferOptions::new(8, 64, 2, 4);
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
    // SAFETY: this backend takes any number for a stream.
    let [first, second] = [1, 2].map(|number| unsafe { Stream::from_raw(number) });
    let input = test.input(0).unwrap();
    let dispatch = |stream: Stream| {
        test.buffer.dispatch(0, &input, &CallOptions { stream, ..CallOptions::sms(4) })
    };
    drop(dispatch(first).unwrap());
    test.buffer.poison(0, POISON).unwrap();
    let (_handle, received) = dispatch(second).unwrap();
    test.group.sync(0).unwrap();
    let findings = test.verify_rows("behind poison", &received, true).unwrap();
    assert!(findings.is_good(), "{findings}");
}

/// A timeout of the call takes the place of the group's, in that call alone.
#[test]
fn a_call_waits_as_long_as_it_says() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let options = BufferOptions {
        one_launch: Some(false),
        push_combine: Some(false),
        ..BufferOptions::new(8, 64, 2, 4)
    };
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
    let input = test.input(0).unwrap();
    let usual = CallOptions::sms(4);
    let short = CallOptions { timeout: Some(Duration::from_millis(5)), ..usual };
    for (call, want) in [(usual, 30_000_000_000), (short, 5_000_000), (usual, 30_000_000_000)] {
        test.buffer.dispatch(0, &input, &call).unwrap();
        assert_eq!(backend.timeouts_ns(), [want; 2]);
        test.group.sync(0).unwrap();
    }
}

#[test]
fn a_wrong_byte_is_found() {
    let Some(backend) = UnorderedBackend::new(2) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let case = case(BufferOptions::new(8, 64, 2, 4), &[8, 8]);
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    // What rank 1 sends is not what the oracle thinks.
    test.ranks[1].x.write(128, &[0; 2]).unwrap();
    let findings = test.check().unwrap();
    assert!(!findings.is_good());
    assert!(findings.to_string().contains("(rank 1 token 1) byte 0: 0x00"), "{findings}");
}

#[test]
fn timed_calls_are_made_and_compared_where_nothing_runs_by_itself() {
    let Some(backend) = UnorderedBackend::new(2) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let options = BufferOptions { live: 2, ..BufferOptions::new(8, 64, 2, 4) };
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8, 5])).unwrap();
    let last = test.reseeded(2).unwrap();
    let repeats = Repeats { warmup: 1, iterations: 2, graph: None };
    for operation in Operation::ALL {
        let timing = test.time(&last, operation, Mode::Loop, repeats).unwrap();
        assert!(timing.findings.is_good(), "{operation:?}: {}", timing.findings);
        assert!(timing.findings.checks.len() >= 2, "{operation:?}: {:?}", timing.findings);
        assert_eq!((timing.time, timing.host_time), (None, None), "{operation:?}");
        assert_eq!(timing.sms, 4, "{operation:?}");
    }
    // What the last call sends is not what the oracle thinks; the calls before it are right.
    last.ranks[1].x.write(128, &[0; 2]).unwrap();
    let timing = test.time(&last, Operation::Dispatch, Mode::Iso, repeats).unwrap();
    let text = timing.findings.to_string();
    assert!(text.contains("(rank 1 token 1) byte 0: 0x00"), "{text}");
}

/// Each call in a graph leaves what it should, with other inputs than those that are timed. The test also runs where
/// one thread launches for all ranks.
#[test]
fn replayed_calls_are_made_and_compared() {
    for runs_alone in [false, true] {
        let Some(backend) = UnorderedBackend::new(2) else { return };
        backend.runs_alone.store(runs_alone, Ordering::Relaxed);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let two = BufferOptions {
            one_launch: Some(false),
            push_combine: Some(false),
            ..BufferOptions::new(8, 64, 2, 4)
        };
        let options = BufferOptions { live: 5, ..two };
        let test = Selftest::new(&group, &BuiltIn, case(options, &[8, 5])).unwrap();
        let last = test.reseeded(2).unwrap();
        let repeats = Repeats { warmup: 1, iterations: 2, graph: Some(3) };
        let captured = Operation::ALL.into_iter().filter(|it| *it != Operation::DispatchCounted);
        // Where nothing runs by itself, both modes are the same calls.
        let modes: &[Mode] = if runs_alone { &[Mode::Loop, Mode::Iso] } else { &[Mode::Iso] };
        let kinds = captured.flat_map(|it| modes.iter().map(move |mode| (it, *mode)));
        for (operation, mode) in kinds {
            let main = operation.main_pipeline(&test.buffer);
            let entry = &test.buffer.plan(main).unwrap().entry;
            let run = backend.runs(entry);
            let timing = test.time(&last, operation, mode, repeats).unwrap();
            // Two looks and three replays of three calls each. The tables of a cached dispatch are made
            // by a kernel of the same name whenever inputs change.
            let tables = if operation == Operation::CachedDispatch { 3 } else { 0 };
            assert_eq!(backend.runs(entry) - run, 5 * 3 + tables, "{operation:?} {mode:?}");
            assert!(timing.findings.is_good(), "{operation:?} {mode:?}: {}", timing.findings);
            assert_eq!(timing.time.is_some(), runs_alone, "{operation:?} {mode:?}");
            assert_eq!(timing.spread.is_some(), runs_alone, "{operation:?} {mode:?}");
        }
        // What the two looks find is there afterwards as well.
        assert!(test.check().unwrap().is_good() && last.check().unwrap().is_good());
        let timing = test.time(&last, Operation::Both, Mode::Loop, repeats).unwrap();
        let checks: Vec<&String> = timing.findings.checks.iter().map(|(name, _)| name).collect();
        let rows = checks.iter().filter(|name| name.ends_with("rank 1 recv_x"));
        assert!(rows.count() >= 2 * 3, "each call of both looks: {checks:?}");
        assert!(checks.iter().any(|name| name.ends_with("combined")), "{checks:?}");
        // What a replay leaves is not what was asked for.
        let mut other = last.reseeded(2).unwrap();
        other.case.options.alignment = 7;
        let timing = test.time(&other, Operation::Both, Mode::Iso, repeats).unwrap();
        let text = timing.findings.to_string();
        assert!(text.contains("received_per_expert"), "{text}");
    }
}

/// Each graph needs all but one of the outputs, while the graph before it gives them back one by one.
#[test]
fn graphs_wait_for_the_outputs_of_dropped_graphs() {
    let Some(backend) = UnorderedBackend::new(2) else { return };
    backend.runs_alone.store(true, Ordering::Relaxed);
    backend.lets_go_late.store(true, Ordering::Relaxed);
    let group = Group::new(backend, GroupOptions::default()).unwrap();
    let options = BufferOptions { live: 6, ..BufferOptions::new(8, 64, 2, 4) };
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8, 5])).unwrap();
    let last = test.reseeded(2).unwrap();
    let repeats = Repeats { warmup: 0, iterations: 1, graph: Some(4) };
    for operation in [Operation::CachedDispatch, Operation::Both, Operation::Both] {
        let timing = test.time(&last, operation, Mode::Loop, repeats).unwrap();
        assert!(timing.findings.is_good(), "{operation:?}: {}", timing.findings);
    }
}

#[test]
fn what_no_graph_can_time_is_refused() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend, GroupOptions::default()).unwrap();
    let options = BufferOptions { live: 3, ..BufferOptions::new(8, 64, 2, 4) };
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
    let refused = |operation, graph| {
        let repeats = Repeats { warmup: 0, iterations: 1, graph: Some(graph) };
        test.time(&test, operation, Mode::Loop, repeats).unwrap_err().to_string()
    };
    let text = "2 calls of a graph need an output each: 4 live ones";
    assert_eq!(refused(Operation::Dispatch, 2), text);
    assert_eq!(refused(Operation::Dispatch, 0), "a graph holds at least 1 call");
    let text = "a graph cannot hold a dispatch whose counts the host waits for";
    assert_eq!(refused(Operation::DispatchCounted, 1), text);
}

/// A call that fails before the gate of its round leaves nobody before it.
#[test]
fn a_failed_call_leaves_no_gate_closed() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    backend.runs_alone.store(true, Ordering::Relaxed);
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let options = BufferOptions { live: 2, ..BufferOptions::new(8, 64, 2, 4) };
    let test = Selftest::new(&group, &BuiltIn, case(options, &[8])).unwrap();
    let last = test.reseeded(2).unwrap();
    let call = CallOptions::sms(4);
    let (handle, _taken) = test.buffer.dispatch(0, &test.input(0).unwrap(), &call).unwrap();
    drop(handle);
    // The last call finds no output: one is taken here, and the other by the call before.
    let repeats = Repeats { warmup: 1, iterations: 2, graph: None };
    let error = test.time(&last, Operation::CachedDispatch, Mode::Iso, repeats).unwrap_err();
    assert!(matches!(error, CallError::AllInUse { .. }), "{error}");
    group.sync(0).unwrap();
}

/// Each rank on a thread of its own, with clock, gate and barrier.
#[test]
fn timed_calls_are_timed_and_compared_where_kernels_run_by_themselves_at_length() {
    let Some(backend) = UnorderedBackend::new(3) else { return };
    backend.runs_alone.store(true, Ordering::Relaxed);
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    for capacity in [None, Some(20)] {
        let options = BufferOptions { live: 2, capacity, ..BufferOptions::new(8, 64, 2, 4) };
        let test = Selftest::new(&group, &BuiltIn, case(options, &[8, 0, 5])).unwrap();
        let last = test.reseeded(2).unwrap();
        let repeats = Repeats { warmup: 2, iterations: 3, graph: None };
        let kinds =
            Operation::ALL.into_iter().flat_map(|it| [Mode::Loop, Mode::Iso].map(|m| (it, m)));
        for (operation, mode) in kinds {
            let met = backend.runs("probe_exchange");
            let timing = test.time(&last, operation, mode, repeats).unwrap();
            // Before each round, and before the loop and the one that warms up.
            let rounds = if mode == Mode::Iso { 5 } else { 2 };
            assert_eq!(backend.runs("probe_exchange") - met, rounds, "{operation:?} {mode:?}");
            assert!(timing.findings.is_good(), "{operation:?} {mode:?}: {}", timing.findings);
            assert!(timing.findings.checks.len() >= 3, "{operation:?} {mode:?}");
            assert!(timing.time.is_some(), "{operation:?} {mode:?}");
            assert!(timing.host_time > Some(Duration::ZERO), "{operation:?} {mode:?}");
        }
        last.ranks[2].x.write(128, &[0; 2]).unwrap();
        let timing = test.time(&last, Operation::CachedDispatch, Mode::Loop, repeats).unwrap();
        assert!(!timing.findings.is_good(), "the last call was made on the other inputs");
        for turns in [Turns::OwnStream, Turns::TwoStreams] {
            let found = test.check_pairs(&test.reseeded(3).unwrap(), 3, turns, None).unwrap();
            assert!(found.is_good(), "{turns:?}: {found}");
        }
    }
}

#[test]
fn a_timed_run_needs_an_output_that_was_not_written_before() {
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let case = case(BufferOptions::new(8, 64, 2, 4), &[8]);
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    let repeats = Repeats { warmup: 1, iterations: 1, graph: None };
    let error = test.time(&test, Operation::Combine, Mode::Loop, repeats).unwrap_err();
    let text = "the last timed call needs an output of its own: 2 live ones";
    assert_eq!(error.to_string(), text);
}

/// Ranks without tokens, and pairs of ranks that send each other nothing.
#[test]
fn the_floor_moves_the_rows_that_a_dispatch_and_a_combine_move() {
    let Some(backend) = UnorderedBackend::new(3) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let mut case = case(BufferOptions::new(5, 64, 2, 6), &[5, 0, 2]);
    case.routing.absent = 0.4;
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    let findings = test.check_floor().unwrap();
    assert!(findings.is_good(), "{findings}");
    assert_eq!(findings.checks.len(), 2 * 3, "{findings}");
    let repeats = Repeats { warmup: 0, iterations: 1, graph: Some(2) };
    let floor = |operation| test.floor(operation, 4, repeats).unwrap();
    assert_eq!(floor(Operation::Dispatch), None, "nothing runs by itself");
    backend.runs_alone.store(true, Ordering::Relaxed);
    assert_eq!(floor(Operation::Counts), None);
    let times = floor(Operation::Dispatch).expect("a time");
    assert!(times.best <= times.same, "{times:?}");
}

/// Its accesses are in an order that holds on a device, in schedules of several seeds.
#[test]
fn the_floor_keeps_the_rules_of_memory() {
    let Some(programs) = programs() else { return };
    for seed in 1..=4 {
        let mut options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
        options.spec.seed = seed;
        let group = HostBackend::new(programs, options).unwrap().group().unwrap();
        let test = Selftest::new(&group, &BuiltIn, case(BufferOptions::new(5, 64, 2, 4), &[5, 3]));
        let test = test.unwrap();
        for _ in 0..2 {
            let findings = test.check_floor().unwrap();
            assert!(findings.is_good(), "{findings}");
        }
    }
}

/// How long a call between nodes takes whose links are slow, by the clock of the emulator, and how long its bytes take
/// on each link. Each token has a row for, or from, each node.
fn took_over_slow_links(
    programs: &Arc<Programs>,
    operation: Operation,
    nodes: usize,
    tokens: usize,
) -> [Duration; 2] {
    let host = HostOptions { build: Build::Plain, ..HostOptions::new(nodes) };
    let backend = HostBackend::new(programs, host).unwrap();
    let net = ModelOptions { receives_per_us: 1, ..ModelOptions::default() };
    let group = Group::over_model(&backend, nodes, &net).unwrap();
    let mut options = BufferOptions { nodes, ..BufferOptions::new(tokens, 160, nodes, nodes) };
    let (dispatch, combine) = (&mut options.tunes.node_dispatch, &mut options.tunes.node_combine);
    (dispatch.stripes, dispatch.rdma_depth, dispatch.rdma_chunk) = (Some(4), Some(32), Some(4));
    (combine.rdma_depth, combine.rdma_chunk) = (Some(32), Some(4));
    let call = CallOptions::sms(8);
    let run = Case { dispatch: call, combine: call, ..case(options, &vec![tokens; nodes]) };
    let test = Selftest::new(&group, &BuiltIn, run).unwrap();
    let events = [(); 2].map(|()| backend.create_event(0).unwrap());
    let mut next = events.iter();
    let mut look = || Ok(backend.record(0, Stream::OWN, next.next().unwrap())?);
    test.once(operation, &mut look).unwrap();
    group.sync(0).unwrap();
    let took = backend.elapsed(0, &events[0], &events[1]).unwrap();
    let pipeline = match operation {
        Operation::Combine => StandardPipeline::NodeCombine,
        _ => StandardPipeline::NodeDispatch,
    };
    let slot_bytes = test.row_bytes(pipeline).next_multiple_of(128);
    let bytes = (nodes - 1) * tokens * slot_bytes as usize;
    [took, Duration::from_micros(bytes as u64)]
}

/// If all nodes began with the same node, the links of the others would be idle.
#[test]
fn all_links_are_busy_while_nodes_combine_at_length() {
    let Some(programs) = programs() else { return };
    let (combine, tokens) = (Operation::Combine, 384);
    let [four, least] = took_over_slow_links(programs, combine, 4, tokens);
    assert!(four * 2 <= least * 3, "{four:?}, of which {least:?} on each link");
    let [two, as_many] = took_over_slow_links(programs, combine, 2, 3 * tokens);
    assert_eq!(as_many, least);
    assert!(four * 5 <= two * 6, "{four:?} between 4 nodes, and {two:?} between 2");
}

/// If a sender finished the rows for one node before those for the next, the links of the others would be idle.
#[test]
fn all_links_are_busy_while_nodes_dispatch_at_length() {
    let Some(programs) = programs() else { return };
    let (dispatch, tokens) = (Operation::Dispatch, 384);
    let [four, least] = took_over_slow_links(programs, dispatch, 4, tokens);
    let [two, as_many] = took_over_slow_links(programs, dispatch, 2, 3 * tokens);
    assert_eq!(as_many, least);
    assert!(four * 5 <= two * 6, "{four:?} between 4 nodes, and {two:?} between 2");
    assert!(four * 2 <= least * 3, "{four:?}, of which {least:?} on each link");
}

//! Dispatch and combine on random inputs, held against the oracle, and timed.
//!
//! What `epforge selftest`, the benchmarks and the tests on GPUs run; it needs no test framework.

mod copied;
mod data;
mod digest;
mod drawn;
mod expanded;
mod experts;
mod hand;
mod litmus;
mod load;
mod meeting;
mod pairs;
mod probe;
mod queued;
mod replayed;
mod timing;
mod verify;
mod wire;

use std::fmt;

use crate::args::Rows;
use crate::buffer::{
    Buffer, BufferOptions, CallOptions, CombineInput, CombineOutput, DispatchInput, Emit, Handle,
    Offered, Received,
};
use crate::error::CallError;
use crate::group::Group;
use crate::oracle::{Differences, Oracle, RoutingOptions};

use data::{HostData, RankData};
use meeting::Meeting;

pub use litmus::{Litmus, litmus};
pub use load::Load;
pub use pairs::Turns;
pub use probe::probe;
pub use timing::{Mode, Operation, Repeats, Timing};
pub use wire::{Destination, check_pushes, push_rate, wire_time};

const EXPERTS_TEXT: &str = include_str!("experts.cu");
const LITMUS_TEXT: &str = include_str!("litmus.cu");
const LITMUS_BULK_TEXT: &str = include_str!("litmus_bulk.cu");
const LOAD_TEXT: &str = include_str!("load.cu");
const PROBE_TEXT: &str = include_str!("probe.cu");
const WIRE_TEXT: &str = include_str!("wire.cu");

/// The kernels of these runs that no pipeline declares: a name, the text, and whether it needs bulk
/// copies.
pub const TEXTS: [(&str, &str, bool); 6] = [
    ("experts", EXPERTS_TEXT, false),
    ("litmus", LITMUS_TEXT, false),
    ("litmus_bulk", LITMUS_BULK_TEXT, true),
    ("load", LOAD_TEXT, false),
    ("probe", PROBE_TEXT, false),
    ("wire", WIRE_TEXT, true),
];

/// Bytes that outputs hold before a call: 0xa5a5 is no value that random rows have.
const POISON: u8 = 0xa5;

/// One problem to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// What the buffer is made for.
    pub options: BufferOptions,
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// How tokens are routed; `topk` is that of the buffer, and it has all the experts.
    pub routing: RoutingOptions,
    /// How dispatches run.
    pub dispatch: CallOptions,
    /// How combines run.
    pub combine: CallOptions,
    /// Seed of all inputs.
    pub seed: u64,
}

impl Case {
    /// As many tokens on every rank as the buffer takes, routed evenly.
    pub fn even(options: BufferOptions, ranks: usize, blocks: u32) -> Case {
        Case {
            tokens: vec![options.tokens; ranks],
            routing: RoutingOptions::even(options.topk, options.experts),
            dispatch: CallOptions::blocks(blocks),
            combine: CallOptions::blocks(blocks),
            seed: 1,
            options,
        }
    }
}

/// What was compared, and what differs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Name of a check, and what it found.
    pub checks: Vec<(String, Differences)>,
}

impl Findings {
    /// Whether everything was as the oracle says.
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(|(_, differences)| differences.is_empty())
    }

    fn add(&mut self, name: impl Into<String>, differences: Differences) {
        self.checks.push((name.into(), differences));
    }

    fn merge(&mut self, other: Findings) {
        self.checks.extend(other.checks);
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong: Vec<_> = self.checks.iter().filter(|(_, d)| !d.is_empty()).collect();
        let compared: u64 = self.checks.iter().map(|(_, d)| d.compared).sum();
        if wrong.is_empty() {
            return write!(f, "{} checks, {compared} values equal", self.checks.len());
        }
        write!(f, "{} of {} checks failed", wrong.len(), self.checks.len())?;
        wrong.iter().try_for_each(|(name, differences)| write!(f, "\n{name}: {differences}"))
    }
}

/// A buffer with the inputs of one case on every local rank.
pub struct Selftest {
    group: Group,
    buffer: Buffer,
    case: Case,
    oracle: Oracle,
    host: HostData,
    ranks: Vec<RankData>,
}

/// What one rank has after a dispatch.
struct Dispatched {
    handle: Handle,
    received: Received,
}

impl Selftest {
    /// Makes the buffer and the inputs.
    pub fn new(group: &Group, emit: &dyn Emit, case: Case) -> Result<Selftest, CallError> {
        let ranks = group.ranks();
        if case.tokens.len() != ranks {
            let what = format!("{} token counts for {ranks} ranks", case.tokens.len());
            return Err(CallError::Mismatch { what });
        }
        let buffer = Buffer::new(group, case.options.clone(), emit)?;
        Selftest::with_buffer(group, buffer, case)
    }

    /// The same buffer and the same kind of problem with other random inputs.
    pub fn reseeded(&self, seed: u64) -> Result<Selftest, CallError> {
        let case = Case { seed, ..self.case.clone() };
        Selftest::with_buffer(&self.group, self.buffer.clone(), case)
    }

    /// The same buffer and the same inputs, called with other numbers of blocks.
    pub fn set_blocks(&mut self, dispatch: CallOptions, combine: CallOptions) {
        self.case.dispatch = dispatch;
        self.case.combine = combine;
    }

    fn with_buffer(group: &Group, buffer: Buffer, case: Case) -> Result<Selftest, CallError> {
        let ranks = group.ranks();
        let (oracle, host) = HostData::random(&case, ranks);
        let data = group.local().map(|rank| RankData::new(group, rank, &case, &oracle, &host));
        let data = data.collect::<Result<Vec<_>, _>>()?;
        Ok(Selftest { group: group.clone(), buffer, case, oracle, host, ranks: data })
    }

    /// Whether rank 0 is local: of several processes, the one that reports.
    pub fn is_first(&self) -> bool {
        self.group.local().contains(&0)
    }

    /// What the calls of the case have to give.
    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// The buffer under test.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Runs a fresh dispatch, a cached one if the buffer has it, and a combine, each into poisoned
    /// outputs, and compares all they leave with the oracle.
    pub fn check(&self) -> Result<Findings, CallError> {
        self.check_through(true)
    }

    fn check_through(&self, combine: bool) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        self.poison()?;
        let dispatched = self.dispatch()?;
        self.settle()?;
        let found = self.for_each_rank(&|rank| {
            let dispatched = &dispatched[self.group.local_index(rank)?];
            let mut found = self.verify_counts(&dispatched.handle)?;
            found.merge(self.verify_rows("dispatch", &dispatched.received, true)?);
            found.merge(self.verify_untouched(&dispatched.received)?);
            Ok(found)
        });
        found?.into_iter().for_each(|found| findings.merge(found));
        // Cached dispatches need an output of their own; the handles stay.
        let handles = dispatched.into_iter().map(|dispatched| dispatched.handle);
        let handles: Vec<Handle> = handles.collect();
        if self.case.options.cached {
            findings.merge(self.check_cached(&handles)?);
        }
        if combine {
            findings.merge(self.check_combine(&handles)?);
        }
        Ok(findings)
    }

    /// A fresh dispatch on every rank.
    fn dispatch(&self) -> Result<Vec<Dispatched>, CallError> {
        let inputs = self.group.local().map(|rank| self.input(rank));
        self.dispatch_inputs(&inputs.collect::<Result<Vec<_>, _>>()?)
    }

    /// A fresh dispatch of one input per local rank. Where kernels do not run by themselves, every
    /// rank has to launch before any waits for its counts.
    fn dispatch_inputs(&self, inputs: &[DispatchInput]) -> Result<Vec<Dispatched>, CallError> {
        let call = &self.case.dispatch;
        let input = |rank: usize| Ok::<_, CallError>(&inputs[self.group.local_index(rank)?]);
        if self.group.backend().runs_alone() {
            return self.for_each_rank(&|rank| {
                let (handle, received) = self.buffer.dispatch(rank, input(rank)?, call)?;
                Ok(Dispatched { handle, received })
            });
        }
        let handles = self.exchange_inputs(inputs)?;
        let dispatched = handles.into_iter().map(|handle| {
            let received = self.buffer.dispatch_counted(&handle, input(handle.rank())?, call)?;
            Ok(Dispatched { handle, received })
        });
        dispatched.collect()
    }

    /// One dispatch on the local ranks, without asking whether the other processes are there: what
    /// a caller sees when one of them is gone.
    pub fn dispatch_alone(&self) -> Result<(), CallError> {
        let dispatched = self.dispatch()?;
        dispatched.iter().try_for_each(|dispatched| dispatched.handle.counts().map(|_| ()))?;
        self.settle()
    }

    fn exchange_counts(&self) -> Result<Vec<Handle>, CallError> {
        let inputs = self.group.local().map(|rank| self.input(rank));
        self.exchange_inputs(&inputs.collect::<Result<Vec<_>, _>>()?)
    }

    /// The first half of a dispatch of one input per local rank.
    fn exchange_inputs(&self, inputs: &[DispatchInput]) -> Result<Vec<Handle>, CallError> {
        self.for_each_rank(&|rank| {
            let input = &inputs[self.group.local_index(rank)?];
            self.buffer.exchange_counts(rank, input, &self.case.dispatch)
        })
    }

    fn check_cached(&self, handles: &[Handle]) -> Result<Findings, CallError> {
        self.poison()?;
        let received = self.for_each_rank(&|rank| {
            let handle = &handles[self.group.local_index(rank)?];
            self.buffer.cached_dispatch(handle, &self.input(rank)?, &self.case.dispatch)
        })?;
        self.settle()?;
        let found = self.for_each_rank(&|rank| {
            let received = &received[self.group.local_index(rank)?];
            let mut found = self.verify_rows("cached dispatch", received, false)?;
            found.merge(self.verify_untouched(received)?);
            Ok(found)
        });
        let mut findings = Findings::default();
        found?.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }

    fn check_combine(&self, handles: &[Handle]) -> Result<Findings, CallError> {
        let offered = self.offer_rows()?;
        for data in &self.ranks {
            data.poison_sums(POISON)?;
        }
        self.settle()?;
        self.for_each_rank(&|rank| {
            let index = self.group.local_index(rank)?;
            self.combine(&handles[index], CombineInput::Offered(&offered[index]))
        })?;
        self.settle()?;
        let found = self.for_each_rank(&|rank| self.verify_sums(rank, false));
        let mut findings = Findings::default();
        found?.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }

    /// One combine input per local rank, filled with what the experts of the case make of their
    /// rows.
    fn offer_rows(&self) -> Result<Vec<Offered>, CallError> {
        let offered = self.group.local().map(|rank| {
            let offered = self.buffer.offer(rank)?;
            self.write_offered(rank, &offered)?;
            Ok(offered)
        });
        offered.collect()
    }

    fn write_offered(&self, rank: usize, offered: &Offered) -> Result<(), CallError> {
        let options = &self.case.options;
        let backend = self.group.backend().as_ref();
        let (x, weights) = (offered.x()?, offered.weights()?);
        data::write_rows(backend, rank, x, 2, options.hidden, &self.host.made[rank])?;
        if options.weights {
            let made = &self.host.made_weights[rank];
            data::write_rows(backend, rank, weights, 4, options.topk, made)?;
        }
        Ok(())
    }

    fn combine(&self, handle: &Handle, input: CombineInput<'_>) -> Result<(), CallError> {
        self.combine_with(handle, input, &self.case.combine)
    }

    fn combine_with(
        &self,
        handle: &Handle,
        input: CombineInput<'_>,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let data = self.rank(handle.rank())?;
        let hidden = self.case.options.hidden as i64;
        let mut biases = [Rows::default(); 2];
        let count = data.biases.len().min(biases.len());
        for (rows, bias) in biases.iter_mut().zip(&data.biases) {
            *rows = Rows::new(bias.address(), hidden);
        }
        let output = CombineOutput {
            combined: data.combined.address(),
            combined_weights: data.combined_weights.address(),
        };
        self.buffer.combine(handle, input, &biases[..count], &output, call)
    }

    fn input(&self, rank: usize) -> Result<DispatchInput, CallError> {
        let data = self.rank(rank)?;
        let options = &self.case.options;
        let scales = options.payload.scales(options.hidden) as i64;
        Ok(DispatchInput {
            tokens: self.case.tokens[rank],
            tokens_from: 0,
            x: Rows::new(data.x.address(), options.hidden as i64),
            scale: match scales {
                0 => Rows::default(),
                _ => Rows::new(data.scale.address(), scales),
            },
            topk_idx: data.topk_idx.address(),
            topk_weights: data.topk_weights.address(),
        })
    }

    fn rank(&self, rank: usize) -> Result<&RankData, CallError> {
        Ok(&self.ranks[self.group.local_index(rank)?])
    }

    /// Poisons all outputs while no rank sends.
    fn poison(&self) -> Result<(), CallError> {
        self.settle()?;
        self.group.backend().gather("poison outputs", 0)?;
        for rank in self.group.local() {
            self.buffer.poison(rank, POISON)?;
        }
        self.settle()?;
        self.group.backend().gather("outputs are poisoned", 0)?;
        Ok(())
    }

    /// Waits until all local ranks are done.
    fn settle(&self) -> Result<(), CallError> {
        self.group.local().try_for_each(|rank| self.group.sync(rank))
    }

    /// Calls `body` for every local rank, each on a thread of its own where kernels run by
    /// themselves: a rank that waits for its counts must not keep the next one from launching.
    fn for_each_rank<T: Send>(
        &self,
        body: &(dyn Fn(usize) -> Result<T, CallError> + Sync),
    ) -> Result<Vec<T>, CallError> {
        if !self.group.backend().runs_alone() {
            return self.group.local().map(body).collect();
        }
        let results: Vec<Result<T, CallError>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.group.local().map(|rank| scope.spawn(move || body(rank))).collect();
            let panicked = || CallError::Mismatch { what: "a rank's thread panicked".to_string() };
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(panicked()))).collect()
        });
        results.into_iter().collect()
    }

    /// A place for the threads of all local ranks to meet.
    fn meeting(&self) -> Meeting {
        Meeting::new(self.group.local().len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::backend::{Backend, Signal, Stream};
    use crate::buffer::{Payload, Via};
    use crate::fake::{FakeBackend, FakeEmit, allocations_of};
    use crate::group::GroupOptions;
    use std::sync::Arc;
    use std::time::Duration;

    fn run(case: Case) -> Findings {
        let backend = FakeBackend::new(case.tokens.len());
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let test = Selftest::new(&group, &FakeEmit(backend), case).unwrap();
        test.check().unwrap()
    }

    fn case(options: BufferOptions, tokens: &[usize]) -> Case {
        Case { tokens: tokens.to_vec(), ..Case::even(options, tokens.len(), 12) }
    }

    #[test]
    fn every_payload_arrives_and_comes_back() {
        for payload in Payload::ALL {
            let options = BufferOptions { payload, biases: 2, ..BufferOptions::new(9, 144, 2, 5) };
            let findings = run(case(options, &[9, 0, 4]));
            assert!(findings.is_good(), "{payload:?}: {findings}");
            assert!(findings.checks.len() > 20);
        }
    }

    #[test]
    fn rings_leave_other_tables() {
        let options = BufferOptions { via: Via::Ring, ..BufferOptions::new(30, 64, 3, 6) };
        let findings = run(case(options, &[30, 17, 1]));
        assert!(findings.is_good(), "{findings}");
    }

    #[test]
    fn odd_routing_and_one_rank() {
        for tokens in [&[7][..], &[3, 7], &[0, 0], &[7, 1, 2, 5]] {
            let options =
                BufferOptions { weights: false, live: 2, ..BufferOptions::new(7, 32, 3, 4) };
            let mut case = case(options, tokens);
            case.routing.absent = 0.3;
            case.routing.repeated = 0.3;
            case.routing.skew = 1.0;
            let findings = run(case);
            assert!(findings.is_good(), "{tokens:?}: {findings}");
        }
    }

    #[test]
    fn an_output_that_fits_exactly_is_enough_and_one_row_less_is_not() {
        let run = |capacity: usize| {
            let backend = FakeBackend::new(2);
            let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
            let options = BufferOptions::new(20, 64, 2, 6);
            let options = BufferOptions { capacity: Some(capacity), ..options };
            let test = Selftest::new(&group, &FakeEmit(backend), case(options, &[20, 20])).unwrap();
            let most = (0..2).map(|rank| test.oracle.arrivals(rank).len()).max().unwrap();
            (most, test.check())
        };
        let (most, _) = run(40);
        let (_, fitting) = run(most);
        assert!(fitting.unwrap().is_good());
        let (_, small) = run(most - 1);
        let Err(CallError::OutputTooSmall { need, have, .. }) = small else { panic!("{small:?}") };
        assert_eq!((need, have), (most as u64, most as u64 - 1));
    }

    #[test]
    fn what_runs_out_is_named_and_comes_back() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let case = case(BufferOptions::new(8, 64, 2, 4), &[8]);
        let test = Selftest::new(&group, &FakeEmit(backend), case).unwrap();
        let call = CallOptions::blocks(12);
        let input = test.input(0).unwrap();
        let first = test.buffer.dispatch(0, &input, &call).unwrap();
        let second = test.buffer.dispatch(0, &input, &call).err().unwrap();
        let text = "rank 0: all 1 handles are in use; drop one, or make more";
        assert_eq!(second.to_string(), text);
        drop(first);
        let (handle, _received) = test.buffer.dispatch(0, &input, &call).unwrap();
        let fewer = DispatchInput { tokens: 7, ..input };
        let error = test.buffer.cached_dispatch(&handle, &fewer, &call).err().unwrap();
        assert_eq!(error.to_string(), "7 tokens, but the handle is one of 8");
        let more = DispatchInput { tokens: 9, ..input };
        let error = test.buffer.exchange_counts(0, &more, &call).err().unwrap();
        assert_eq!(error.to_string(), "9 tokens, the buffer was made for 8");
    }

    /// Nothing is allocated on the way to a launch: neither by a call whose counts have been read,
    /// nor by one whose counts nobody has asked for, nor on a stream of the caller.
    #[test]
    fn calls_allocate_nothing() {
        for via in Via::ALL {
            let backend = FakeBackend::new(1);
            let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
            let options =
                BufferOptions { via, live: 2, biases: 1, ..BufferOptions::new(8, 64, 2, 4) };
            let test = Selftest::new(&group, &FakeEmit(backend), case(options, &[8])).unwrap();
            let offered = test.offer_rows().unwrap().pop().unwrap();
            let input = test.input(0).unwrap();
            // SAFETY: the fake device takes any number for a stream and for an event.
            let (stream, signal) = unsafe { (Stream::from_raw(7), Signal::from_raw(9)) };
            let timeout = Some(Duration::from_secs(1));
            let (after, done) = (Some(signal), Some(signal));
            let own = CallOptions::blocks(12);
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

    /// The fake device runs later streams first where no event orders them: inputs are made on an
    /// earlier one than the call's, and overwritten on a later one.
    #[test]
    fn a_call_runs_between_its_signals() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions::new(8, 64, 2, 4);
        let test =
            Selftest::new(&group, &FakeEmit(Arc::clone(&backend)), case(options, &[8])).unwrap();
        // SAFETY: the fake device takes any number for a stream and for an event.
        let stream = |number: u64| unsafe { Stream::from_raw(number) };
        // SAFETY: as above.
        let (ready, done) = unsafe { (Signal::from_raw(1000), Signal::from_raw(1001)) };
        // Behind this call, so that the next one waits for no other stream than its signal's.
        let first = CallOptions { stream: stream(2), ..CallOptions::blocks(12) };
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
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions::new(8, 64, 2, 4);
        let test = Selftest::new(&group, &FakeEmit(backend), case(options, &[8])).unwrap();
        // SAFETY: the fake device takes any number for a stream.
        let [first, second] = [1, 2].map(|number| unsafe { Stream::from_raw(number) });
        let input = test.input(0).unwrap();
        let dispatch = |stream: Stream| {
            test.buffer.dispatch(0, &input, &CallOptions { stream, ..CallOptions::blocks(12) })
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
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions::new(8, 64, 2, 4);
        let test =
            Selftest::new(&group, &FakeEmit(Arc::clone(&backend)), case(options, &[8])).unwrap();
        let input = test.input(0).unwrap();
        let usual = CallOptions::blocks(12);
        let short = CallOptions { timeout: Some(Duration::from_millis(5)), ..usual };
        for (call, want) in [(usual, 30_000_000_000), (short, 5_000_000), (usual, 30_000_000_000)] {
            test.buffer.dispatch(0, &input, &call).unwrap();
            assert_eq!(backend.world().timeouts_ns(), [want; 2]);
            test.group.sync(0).unwrap();
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let backend = FakeBackend::new(2);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let case = case(BufferOptions::new(8, 64, 2, 4), &[8, 8]);
        let test = Selftest::new(&group, &FakeEmit(backend), case).unwrap();
        // What rank 1 sends is not what the oracle thinks.
        test.ranks[1].x.write(128, &[0; 2]).unwrap();
        let findings = test.check().unwrap();
        assert!(!findings.is_good());
        assert!(findings.to_string().contains("(rank 1 token 1) byte 0: 0x00"), "{findings}");
    }

    #[test]
    fn timed_calls_are_made_and_compared_where_nothing_runs_by_itself() {
        let backend = FakeBackend::new(2);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions { live: 2, ..BufferOptions::new(8, 64, 2, 4) };
        let test = Selftest::new(&group, &FakeEmit(backend), case(options, &[8, 5])).unwrap();
        let last = test.reseeded(2).unwrap();
        let repeats = Repeats { warmup: 1, iterations: 2 };
        for operation in Operation::ALL {
            let timing = test.time(&last, operation, Mode::Loop, repeats).unwrap();
            assert!(timing.findings.is_good(), "{operation:?}: {}", timing.findings);
            assert!(timing.findings.checks.len() >= 2, "{operation:?}: {:?}", timing.findings);
            assert_eq!((timing.time, timing.host_time), (None, None), "{operation:?}");
            assert_eq!(timing.sms, 12, "{operation:?}");
        }
        // What the last call sends is not what the oracle thinks; the calls before it are right.
        last.ranks[1].x.write(128, &[0; 2]).unwrap();
        let timing = test.time(&last, Operation::Dispatch, Mode::Iso, repeats).unwrap();
        let text = timing.findings.to_string();
        assert!(text.contains("(rank 1 token 1) byte 0: 0x00"), "{text}");
    }

    /// A call that fails before the gate of its round leaves nobody before it.
    #[test]
    fn a_failed_call_leaves_no_gate_closed() {
        let backend = FakeBackend::new(1);
        backend.runs_alone.store(true, Ordering::Relaxed);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions { live: 2, ..BufferOptions::new(8, 64, 2, 4) };
        let test = Selftest::new(&group, &FakeEmit(backend), case(options, &[8])).unwrap();
        let last = test.reseeded(2).unwrap();
        let call = CallOptions::blocks(12);
        let (handle, _taken) = test.buffer.dispatch(0, &test.input(0).unwrap(), &call).unwrap();
        drop(handle);
        // The last call finds no output: one is taken here, and the other by the call before.
        let repeats = Repeats { warmup: 1, iterations: 2 };
        let error = test.time(&last, Operation::CachedDispatch, Mode::Iso, repeats).unwrap_err();
        assert!(matches!(error, CallError::AllInUse { .. }), "{error}");
        group.sync(0).unwrap();
    }

    /// Each rank on a thread of its own, with clock, gate and meetings.
    #[test]
    fn timed_calls_are_timed_and_compared_where_kernels_run_by_themselves() {
        let backend = FakeBackend::new(3);
        backend.runs_alone.store(true, Ordering::Relaxed);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        for capacity in [None, Some(20)] {
            let options = BufferOptions { live: 2, capacity, ..BufferOptions::new(8, 64, 2, 4) };
            let emit = FakeEmit(backend.clone());
            let test = Selftest::new(&group, &emit, case(options, &[8, 0, 5])).unwrap();
            let last = test.reseeded(2).unwrap();
            let repeats = Repeats { warmup: 2, iterations: 3 };
            let kinds =
                Operation::ALL.into_iter().flat_map(|it| [Mode::Loop, Mode::Iso].map(|m| (it, m)));
            for (operation, mode) in kinds {
                let met = backend.world().met;
                let timing = test.time(&last, operation, mode, repeats).unwrap();
                // Before each round, and before the loop and the one that warms up.
                let rounds = if mode == Mode::Iso { 5 } else { 2 };
                assert_eq!(backend.world().met - met, rounds, "{operation:?} {mode:?}");
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
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let case = case(BufferOptions::new(8, 64, 2, 4), &[8]);
        let test = Selftest::new(&group, &FakeEmit(backend), case).unwrap();
        let repeats = Repeats { warmup: 1, iterations: 1 };
        let error = test.time(&test, Operation::Combine, Mode::Loop, repeats).unwrap_err();
        let text = "the last timed call needs an output of its own: 2 live ones";
        assert_eq!(error.to_string(), text);
    }
}

//! Runs dispatch and combine on random inputs, compares the results with the oracle, and times the calls.
//!
//! What `epforge selftest`, the benchmarks and the tests on GPUs run; it needs no test framework.

mod back_to_back;
mod barrier;
mod copied;
mod data;
mod digest;
mod expanded;
mod experts;
mod floor;
mod load;
mod low_latency;
mod once;
mod pairs;
mod puts;
mod random_case;
mod replayed;
#[cfg(test)]
mod tests;
mod timing;
mod verify;

use crate::findings::Findings;
use crate::oracle::{Oracle, RoutingOptions};
use ep_runtime::args::Rows;
use ep_runtime::buffer::{
    Buffer, BufferOptions, CallOptions, CombineInput, CombineOutput, DispatchInput, Emit, Handle,
    Offered, Received,
};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;

use barrier::RankBarrier;
use data::{HostData, RankData};

pub(crate) use experts::TEXT as EXPERTS_TEXT;
pub use floor::FloorTimes;
pub(crate) use floor::{Floor, TEXT as FLOOR_TEXT};
pub use load::Load;
pub(crate) use load::TEXT as LOAD_TEXT;
pub(crate) use low_latency::TEXT as LOW_LATENCY_TEXT;
pub use low_latency::{LowLatency, LowLatencyCase, Way};
pub use once::Crossing;
pub use pairs::Turns;
pub use puts::Puts;
pub(crate) use puts::TEXT as PUTS_TEXT;
pub(crate) use timing::time_rounds;
pub use timing::{Mode, Operation, Percentiles, Repeats, Timing};

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
    pub fn even(options: BufferOptions, ranks: usize, sms: u32) -> Case {
        Case {
            tokens: vec![options.tokens; ranks],
            routing: RoutingOptions::even(options.topk, options.experts),
            dispatch: CallOptions::sms(sms),
            combine: CallOptions::sms(sms),
            seed: 1,
            options,
        }
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

    /// Makes a test of this buffer with the same kind of problem and other random inputs.
    pub fn reseeded(&self, seed: u64) -> Result<Selftest, CallError> {
        let case = Case { seed, ..self.case.clone() };
        Selftest::with_buffer(&self.group, self.buffer.clone(), case)
    }

    /// Sets how dispatches and combines run, such as on how many SMs. The buffer and the inputs stay as they are.
    pub fn set_calls(&mut self, dispatch: CallOptions, combine: CallOptions) {
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
    /// rank has to launch before any waits for its counts, which none does in one launch.
    fn dispatch_inputs(&self, inputs: &[DispatchInput]) -> Result<Vec<Dispatched>, CallError> {
        let call = &self.case.dispatch;
        let input = |rank: usize| Ok::<_, CallError>(&inputs[self.group.local_index(rank)?]);
        if self.group.backend().runs_alone() || self.buffer.dispatches_in_one_launch() {
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

    /// The first half of a dispatch on one local rank: what a rank does whose call is another one than
    /// the others'.
    pub fn exchange_alone(&self, rank: usize) -> Result<Handle, CallError> {
        self.buffer.exchange_counts(rank, &self.input(rank)?, &self.case.dispatch)
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
        self.group.gather("poison outputs", 0)?;
        for rank in self.group.local() {
            self.buffer.poison(rank, POISON)?;
        }
        self.settle()?;
        self.group.gather("outputs are poisoned", 0)?;
        Ok(())
    }

    /// Waits until all local ranks are done.
    fn settle(&self) -> Result<(), CallError> {
        settle(&self.group)
    }

    /// Calls `body` for every local rank.
    fn for_each_rank<T: Send>(
        &self,
        body: &(dyn Fn(usize) -> Result<T, CallError> + Sync),
    ) -> Result<Vec<T>, CallError> {
        for_each_rank(&self.group, body)
    }
}

/// Waits until all local ranks are done.
pub(crate) fn settle(group: &Group) -> Result<(), CallError> {
    group.local().try_for_each(|rank| group.sync(rank))
}

/// Calls `body` for every local rank, each on a thread of its own where kernels run by
/// themselves: a rank that waits for its counts must not keep the next one from launching.
pub(crate) fn for_each_rank<T: Send>(
    group: &Group,
    body: &(dyn Fn(usize) -> Result<T, CallError> + Sync),
) -> Result<Vec<T>, CallError> {
    if !group.backend().runs_alone() {
        return group.local().map(body).collect();
    }
    let results: Vec<Result<T, CallError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = group.local().map(|rank| scope.spawn(move || body(rank))).collect();
        let panicked = || CallError::Mismatch { what: "a rank's thread panicked".to_string() };
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(panicked()))).collect()
    });
    results.into_iter().collect()
}

/// A place for the threads of all local ranks to meet.
fn barrier(group: &Group) -> RankBarrier {
    RankBarrier::new(group.local().len())
}

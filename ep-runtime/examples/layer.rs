//! One layer of a mixture of experts with the typed calls. docs/calls.md explains this program part by part.
//! The program runs on the GPUs of this machine, or in the emulator if there are none.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use ep_runtime::backend::Stream;
use ep_runtime::buffer::Placement;
use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, DispatchInput,
    Handle, MemoryUsage, Offered, PlainOutput, Received,
};
use ep_runtime::error::CallError;
use ep_runtime::gpu;
use ep_runtime::group::Group;
use ep_runtime::jit::Cache;
use ep_runtime::tensor::{Bf16, DeviceTensor};
use ep_runtime::tune::Rates;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const TOKENS: usize = 48;
const HIDDEN: usize = 256;
const TOPK: usize = 4;
const EXPERTS: usize = 16;

/// Of the experts of each token.
const WEIGHTS: [f32; TOPK] = [0.5, 0.25, 0.125, 0.125];

#[cfg_attr(test, expect(dead_code, reason = "tests bring a group of their own"))]
fn main() -> Outcome {
    let group = open()?;
    let said = run(&group, &Cache::at(None)?)?;
    Ok(std::io::stdout().write_all(said.as_bytes())?)
}

/// The ranks of this process: its own one under a launcher, else one on each GPU, else emulated ones.
fn open() -> Outcome<Group> {
    #[cfg(target_os = "linux")]
    if std::env::var_os("RANK").is_some() {
        return Ok(Group::from_torchrun()?);
    }
    match gpu::devices() {
        Ok(devices) => Ok(Group::on_gpus(devices.len().max(2))?),
        Err(_) => Ok(Group::on_host(4)?),
    }
}

/// What the caller brings for one rank.
struct Rank {
    rank: usize,
    x: DeviceTensor<Bf16, 2>,
    topk_idx: DeviceTensor<i64, 2>,
    topk_weights: DeviceTensor<f32, 2>,
    sums: DeviceTensor<Bf16, 2>,
    sum_weights: DeviceTensor<f32, 2>,
}

impl Rank {
    fn new(group: &Group, rank: usize) -> Outcome<Rank> {
        let x = (0..TOKENS * HIDDEN).map(|at| value(rank, at / HIDDEN, at % HIDDEN).into());
        let x: Vec<Bf16> = x.collect();
        let experts: Vec<i64> = (0..TOKENS).flat_map(|token| experts_of(rank, token)).collect();
        let weights: Vec<f32> = (0..TOKENS).flat_map(|_| WEIGHTS).collect();
        Ok(Rank {
            rank,
            x: DeviceTensor::from_slice(group, rank, [TOKENS, HIDDEN], &x)?,
            topk_idx: DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &experts)?,
            topk_weights: DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &weights)?,
            sums: DeviceTensor::zeros(group, rank, [TOKENS, HIDDEN])?,
            sum_weights: DeviceTensor::zeros(group, rank, [TOKENS, TOPK])?,
        })
    }

    /// The input of its dispatch.
    fn input(&self, buffer: &Buffer) -> Result<DispatchInput, CallError> {
        buffer.input(&self.x, &self.topk_idx, Some(&self.topk_weights))
    }

    /// The output of its combine.
    fn output(&self, buffer: &Buffer) -> Result<CombineOutput, CallError> {
        buffer.output(TOKENS, &self.sums, Some(&self.sum_weights))
    }

    /// Fails unless each sum is the token's row times `factor` of the token. Clears the sums.
    fn expect(&self, tokens: usize, factor: impl Fn(usize) -> f32) -> Outcome {
        let sums = self.sums.first(tokens).read()?;
        self.sums.fill(0)?;
        for (at, got) in sums.into_iter().map(f32::from).enumerate() {
            let (token, column) = (at / HIDDEN, at % HIDDEN);
            let want = value(self.rank, token, column) * factor(token);
            if got != want {
                let rank = self.rank;
                Err(format!("rank {rank}, token {token}, column {column}: {got}, not {want}"))?;
            }
        }
        Ok(())
    }
}

/// Small whole numbers, so that no sum is rounded.
fn value(rank: usize, token: usize, column: usize) -> f32 {
    ((rank + token + column) % 16) as f32
}

fn experts_of(rank: usize, token: usize) -> [i64; TOPK] {
    std::array::from_fn(|k| ((rank + 5 * token + 3 * k) % EXPERTS) as i64)
}

/// All parts, on the ranks of this process; what they found out, in words.
pub(crate) fn run(group: &Group, cache: &Cache) -> Outcome<String> {
    let (options, call) = choose(group, cache)?;
    let memory = MemoryUsage::of(&options, group.ranks(), group.backend().arch(), &BuiltIn)?;
    let buffer = Buffer::new(group, options, &BuiltIn)?;
    assert_eq!(buffer.memory(), memory);
    let ranks = group.local().map(|rank| Rank::new(group, rank)).collect::<Outcome<Vec<Rank>>>()?;
    let rows = layer(group, &buffer, &ranks, &call)?;
    assert!(beside(group, &buffer, &ranks, &call)? == rows);
    replayed(group, &ranks, &call)?;
    let too_small = too_small(group, &ranks, &call)?;
    let late = late(group, &buffer, &ranks, &call)?;
    Ok(format!("{} ranks: {memory}\n{too_small}\n{late}\n", group.ranks()))
}

/// A shape, with rates of this machine, by which calls choose how many SMs they take.
fn choose(group: &Group, cache: &Cache) -> Outcome<(BufferOptions, CallOptions)> {
    let mut options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
    options.live = 2;
    (options.rates, _) = Rates::of(group, cache)?;
    Ok((options, CallOptions::default()))
}

/// Rows to the experts and their sums back, then the rows once more on the same way. The rows of
/// each rank.
fn layer(
    group: &Group,
    buffer: &Buffer,
    ranks: &[Rank],
    call: &CallOptions,
) -> Outcome<Vec<Vec<Bf16>>> {
    let mut sent = Vec::new();
    for own in ranks {
        sent.push(buffer.dispatch(own.rank, &own.input(buffer)?, call)?);
    }
    let mut made = Vec::new();
    for (own, (handle, received)) in ranks.iter().zip(&sent) {
        let rows = buffer.offer(own.rank)?;
        experts(group, handle, received, &rows)?;
        made.push(rows);
    }
    for (own, ((handle, _), rows)) in ranks.iter().zip(sent.iter().zip(&made)) {
        let rows = CombineInput::Offered(rows);
        buffer.combine(handle, rows, &[], &own.output(buffer)?, call)?;
    }
    for own in ranks {
        group.sync(own.rank)?;
        own.expect(TOKENS, |_| 1.0)?;
    }

    let mut again = Vec::new();
    for (own, (handle, _)) in ranks.iter().zip(&sent) {
        again.push(buffer.cached_dispatch(handle, &own.input(buffer)?, call)?);
    }
    let mut rows = Vec::new();
    for ((handle, first), second) in sent.iter().zip(&again) {
        group.sync(handle.rank())?;
        rows.push(rows_of(group, handle, first)?);
        assert!(rows.last() == Some(&rows_of(group, handle, second)?));
    }
    Ok(rows)
}

/// The experts of a rank: each multiplies a row by its weight. A model launches its kernels here.
fn experts(group: &Group, handle: &Handle, received: &Received, made: &Offered) -> Outcome {
    let count = handle.counts()?.received; // Waits only for the counts.
    group.sync(handle.rank())?; // Waits for the rows, because the host reads them.
    let rows = received.rows::<Bf16>()?.first(count).read()?;
    let experts = received.experts()?.first(count).read()?;
    let mut weights = received.weights()?.first(count).read()?;
    // Experts of other ranks are -1.
    for (weight, expert) in weights.iter_mut().zip(experts) {
        *weight = if expert < 0 { 0.0 } else { *weight };
    }
    let factors = weights.chunks(TOPK).map(|own| own.iter().sum::<f32>());
    let scaled = rows.chunks(HIDDEN).zip(factors);
    let scaled = scaled.flat_map(|(row, factor)| row.iter().map(move |x| f32::from(*x) * factor));
    made.rows()?.first(count).write(&scaled.map(Bf16::from).collect::<Vec<Bf16>>())?;
    made.row_weights()?.first(count).write(&weights)?;
    Ok(())
}

/// The rows that a rank has received, in memory of its own and then on the host.
fn rows_of(group: &Group, handle: &Handle, received: &Received) -> Outcome<Vec<Bf16>> {
    let count = handle.counts()?.received;
    let plain = DeviceTensor::<Bf16, 2>::zeros(group, handle.rank(), [count, HIDDEN])?;
    let to = PlainOutput { x: plain.as_rows(), ..PlainOutput::default() };
    received.copy_to(count, &to, &CallOptions::default())?;
    Ok(plain.read()?)
}

/// A dispatch on a stream beside the rank's own one, between two events. The rows of each rank.
fn beside(
    group: &Group,
    buffer: &Buffer,
    ranks: &[Rank],
    call: &CallOptions,
) -> Outcome<Vec<Vec<Bf16>>> {
    let mut sent = Vec::new();
    for own in ranks {
        let stream = group.stream(own.rank)?;
        let (ready, done) = (group.event(own.rank)?, group.event(own.rank)?);
        // The rank's own stream has produced the inputs up to here.
        ready.record(Stream::OWN)?;
        let (after, done_too) = (Some(ready.signal()), Some(done.signal()));
        let call = CallOptions { stream: stream.stream(), after, done: done_too, ..*call };
        let (handle, received) = buffer.dispatch(own.rank, &own.input(buffer)?, &call)?;
        // Later work on the rank's own stream sees the rows.
        done.precede(Stream::OWN)?;
        sent.push((handle, received, stream));
    }
    let mut rows = Vec::new();
    for (handle, received, _stream) in &sent {
        group.sync(handle.rank())?;
        rows.push(rows_of(group, handle, received)?);
    }
    Ok(rows)
}

/// Dispatch and combine in a graph, replayed with numbers of tokens that the device reads.
fn replayed(group: &Group, ranks: &[Rank], call: &CallOptions) -> Outcome {
    let options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
    let buffer = Buffer::new(group, BufferOptions { weights: false, ..options }, &BuiltIn)?;
    let mut graphs = Vec::new();
    for own in ranks {
        let count = DeviceTensor::<i32, 1>::zeros(group, own.rank, [1])?;
        let input = DispatchInput { tokens_from: count.address(), ..own.input(&buffer)? };
        let (graph, handle) = group.capture(own.rank, Stream::OWN, || {
            let (handle, received) = buffer.dispatch(own.rank, &input, call)?;
            // Launch your experts here, in place. This program leaves the rows unchanged.
            let rows = CombineInput::InPlace(&received, None);
            buffer.combine(&handle, rows, &[], &own.output(&buffer)?, call)?;
            Ok(handle)
        })?;
        graphs.push((own, count, graph, handle));
    }
    let placement = Placement::even(EXPERTS, group.ranks());
    for tokens in [TOKENS, 5, 0, 17] {
        for (_, count, graph, _) in &graphs {
            count.write(&[tokens as i32])?;
            graph.replay(Stream::OWN)?;
        }
        for (own, _, _, handle) in &graphs {
            group.sync(own.rank)?;
            assert!(handle.counts()?.received <= tokens * group.ranks());
            own.expect(tokens, |token| {
                // A row goes once to every rank that has at least one of its experts.
                let experts = experts_of(own.rank, token);
                let has =
                    |rank: &usize| experts.iter().any(|it| placement.local(*it, *rank).is_some());
                (0..group.ranks()).filter(has).count() as f32
            })?;
        }
    }
    Ok(())
}

/// Outputs that hold fewer rows than arrive: every rank is told before any row moves.
fn too_small(group: &Group, ranks: &[Rank], call: &CallOptions) -> Outcome<String> {
    let options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
    let buffer = Buffer::new(group, BufferOptions { capacity: Some(9), ..options }, &BuiltIn)?;
    let mut handles = Vec::new();
    for own in ranks {
        handles.push(buffer.exchange_counts(own.rank, &own.input(&buffer)?, call)?);
    }
    let mut errors = Vec::new();
    for (own, handle) in ranks.iter().zip(&handles) {
        match buffer.dispatch_counted(handle, &own.input(&buffer)?, call) {
            Err(error @ CallError::OutputTooSmall { .. }) => errors.push(error.to_string()),
            Err(other) => Err(other)?,
            Ok(_) => Err("all rows of 48 tokens came into 9")?,
        }
    }
    errors.dedup();
    Ok(errors.join("; "))
}

/// A rank that never comes: the others return what they waited for, and the group is at its end.
fn late(group: &Group, buffer: &Buffer, ranks: &[Rank], call: &CallOptions) -> Outcome<String> {
    let call = CallOptions { timeout: Some(Duration::from_millis(200)), ..*call };
    let mut handles = Vec::new();
    for own in ranks.iter().filter(|own| own.rank + 1 < group.ranks()) {
        handles.push(buffer.exchange_counts(own.rank, &own.input(buffer)?, &call)?);
    }
    let mut said = String::new();
    for handle in &handles {
        match handle.counts() {
            Err(CallError::Timeout(report)) => said = report.to_string(),
            Err(other) => Err(other)?,
            Ok(_) => Err("the counts of a rank came that had made no call")?,
        }
    }
    Ok(said)
}

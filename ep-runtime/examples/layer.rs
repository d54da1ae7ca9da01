//! One layer of a mixture of experts with the typed calls: the program that docs/calls.md explains,
//! part by part. It runs on the GPUs of this machine, or in the emulator if there are none.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::args::Rows;
use ep_runtime::backend::{Signal, Stream};
use ep_runtime::bf16::bf16_from_f32;
use ep_runtime::bf16::bf16_to_f32;
use ep_runtime::buffer::Placement;
use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, DispatchInput,
    Handle, MemoryUsage, Offered, PlainOutput, Received,
};
use ep_runtime::error::CallError;
use ep_runtime::gpu::{self, Compile, GpuBackend, GpuOptions};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::memory::DeviceMemory;
use ep_runtime::tune::{Rates, Tuning};

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
        return join();
    }
    match gpu::devices() {
        Ok(devices) => on_gpus(devices.len().max(2)),
        Err(_) => on_host(4),
    }
}

fn compile() -> Outcome<Compile> {
    let jit = Jit::new(Nvrtc::find()?, Cache::at(None)?);
    Ok(gpu::compile_with(Arc::new(jit)))
}

fn on_gpus(ranks: usize) -> Outcome<Group> {
    let backend = GpuBackend::new(&GpuOptions::spread(ranks)?, compile()?)?;
    let options = GroupOptions { timeout: Duration::from_secs(10) };
    Ok(Group::new(Arc::new(backend), options)?)
}

fn on_host(ranks: usize) -> Outcome<Group> {
    let backend = HostBackend::new(&Programs::find()?, HostOptions::new(ranks))?;
    Ok(backend.group()?)
}

#[cfg(target_os = "linux")]
fn join() -> Outcome<Group> {
    use ep_runtime::join::{Member, Store, UniqueId};
    let (id, member) = (UniqueId::from_environment()?, Member::from_environment()?);
    let store = Store::join(&id, member, Duration::from_secs(120))?;
    let ordinal = std::env::var("LOCAL_RANK")?.parse()?;
    let backend = GpuBackend::join(ordinal, store, compile()?)?;
    Ok(Group::new(Arc::new(backend), GroupOptions::default())?)
}

/// What the caller brings for one rank.
struct Rank {
    rank: usize,
    x: DeviceMemory,
    topk_idx: DeviceMemory,
    topk_weights: DeviceMemory,
    sums: DeviceMemory,
    sum_weights: DeviceMemory,
}

impl Rank {
    fn new(group: &Group, rank: usize) -> Outcome<Rank> {
        let memory = |bytes: Vec<u8>| {
            let memory = DeviceMemory::new(group.backend(), rank, bytes.len() as u64)?;
            memory.write(0, &bytes)?;
            Ok::<DeviceMemory, CallError>(memory)
        };
        let ids = (0..TOKENS).flat_map(|token| experts_of(rank, token));
        let weights = (0..TOKENS).flat_map(|_| WEIGHTS);
        let x = (0..TOKENS * HIDDEN).map(|at| bf16_from_f32(value(rank, at / HIDDEN, at % HIDDEN)));
        Ok(Rank {
            rank,
            x: memory(x.flat_map(u16::to_le_bytes).collect())?,
            topk_idx: memory(ids.flat_map(i64::to_le_bytes).collect())?,
            topk_weights: memory(weights.flat_map(f32::to_le_bytes).collect())?,
            sums: memory(vec![0; TOKENS * HIDDEN * 2])?,
            sum_weights: memory(vec![0; TOKENS * TOPK * 4])?,
        })
    }

    fn input(&self) -> DispatchInput {
        DispatchInput {
            tokens: TOKENS,
            x: Rows::new(self.x.address(), HIDDEN as i64),
            topk_idx: self.topk_idx.address(),
            topk_weights: self.topk_weights.address(),
            ..DispatchInput::default()
        }
    }

    fn output(&self) -> CombineOutput {
        CombineOutput {
            combined: self.sums.address(),
            combined_weights: self.sum_weights.address(),
        }
    }

    /// Fails unless each sum is the token's row times what `factor` says; forgets the sums.
    fn expect(&self, tokens: usize, factor: impl Fn(usize) -> f32) -> Outcome {
        let mut sums = vec![0; TOKENS * HIDDEN * 2];
        self.sums.read(0, &mut sums)?;
        self.sums.write(0, &vec![0; sums.len()])?;
        for (at, bytes) in sums.chunks_exact(2).enumerate().take(tokens * HIDDEN) {
            let (token, column) = (at / HIDDEN, at % HIDDEN);
            let got = bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]));
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

/// A shape, and how many SMs its calls take.
fn choose(group: &Group, cache: &Cache) -> Outcome<(BufferOptions, CallOptions)> {
    let mut options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
    options.live = 2;
    (options.rates, _) = Rates::of(group, cache)?;
    let chosen = Tuning::choose(&options.rates, &options.traffic(group.ranks()));
    let most = group.backend().sms(group.local().start);
    Ok((options, CallOptions::sms(chosen.sms.min(most))))
}

/// Rows to the experts and their sums back, then the rows once more on the same way. The rows of
/// each rank.
fn layer(
    group: &Group,
    buffer: &Buffer,
    ranks: &[Rank],
    call: &CallOptions,
) -> Outcome<Vec<Vec<u8>>> {
    let mut sent = Vec::new();
    for own in ranks {
        sent.push(buffer.dispatch(own.rank, &own.input(), call)?);
    }
    let mut made = Vec::new();
    for (own, (handle, received)) in ranks.iter().zip(&sent) {
        let rows = buffer.offer(own.rank)?;
        experts(group, handle, received, &rows)?;
        made.push(rows);
    }
    for (own, ((handle, _), rows)) in ranks.iter().zip(sent.iter().zip(&made)) {
        let rows = CombineInput::Offered(rows);
        buffer.combine(handle, rows, &[], &own.output(), call)?;
    }
    for own in ranks {
        group.sync(own.rank)?;
        own.expect(TOKENS, |_| 1.0)?;
    }

    let mut again = Vec::new();
    for (own, (handle, _)) in ranks.iter().zip(&sent) {
        again.push(buffer.cached_dispatch(handle, &own.input(), call)?);
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
    let (rank, backend) = (handle.rank(), group.backend());
    let rows = handle.counts()?.received; // Waits for the counts alone,
    group.sync(rank)?; // and this for the rows: the host is to read them.
    let mut ids = vec![0; rows * TOPK * 8];
    backend.read(rank, received.topk_idx()?, &mut ids)?;
    let mut weights = vec![0; rows * TOPK * 4];
    backend.read(rank, received.topk_weights()?, &mut weights)?;
    let all = rows_of(group, handle, received)?;
    for (row, x) in all.chunks_exact(HIDDEN * 2).enumerate() {
        let ids = ids[row * TOPK * 8..].chunks_exact(8).take(TOPK);
        let weights = weights[row * TOPK * 4..].chunks_exact(4).take(TOPK);
        // The experts of other ranks are -1 here.
        let own = ids.zip(weights).map(|(id, weight)| match id[7] & 0x80 {
            0 => f32::from_le_bytes([weight[0], weight[1], weight[2], weight[3]]),
            _ => 0.0,
        });
        let own: Vec<f32> = own.collect();
        let factor: f32 = own.iter().sum();
        let sums = x.chunks_exact(2).flat_map(|bytes| {
            let x = bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]));
            bf16_from_f32(x * factor).to_le_bytes()
        });
        let at =
            |rows: Rows, bytes: u64| rows.address + (row as i64 * rows.row_stride) as u64 * bytes;
        backend.write(rank, at(made.x()?, 2), &sums.collect::<Vec<u8>>())?;
        let own: Vec<u8> = own.into_iter().flat_map(f32::to_le_bytes).collect();
        backend.write(rank, at(made.weights()?, 4), &own)?;
    }
    Ok(())
}

/// The rows that a rank has received, in memory of its own and then on the host.
fn rows_of(group: &Group, handle: &Handle, received: &Received) -> Outcome<Vec<u8>> {
    let rows = handle.counts()?.received;
    let bytes = rows * HIDDEN * 2;
    let plain = DeviceMemory::new(group.backend(), handle.rank(), bytes as u64)?;
    let to = PlainOutput { x: Rows::new(plain.address(), HIDDEN as i64), ..PlainOutput::default() };
    received.copy_to(rows, &to, &CallOptions::sms(1))?;
    let mut rows = vec![0; bytes];
    plain.read(0, &mut rows)?;
    Ok(rows)
}

/// A dispatch on a stream beside the rank's own one, between two events. The rows of each rank.
fn beside(
    group: &Group,
    buffer: &Buffer,
    ranks: &[Rank],
    call: &CallOptions,
) -> Outcome<Vec<Vec<u8>>> {
    let backend = group.backend();
    let mut sent = Vec::new();
    for own in ranks {
        let stream = backend.create_stream(own.rank)?;
        let (ready, done) = (backend.create_event(own.rank)?, backend.create_event(own.rank)?);
        // The inputs were made on the rank's own stream, up to here.
        backend.record(own.rank, Stream::OWN, &ready)?;
        // SAFETY: both are events of this rank, and destroyed after the call has run.
        let (after, done_too) =
            unsafe { (Signal::from_raw(ready.raw()), Signal::from_raw(done.raw())) };
        let call = CallOptions { stream, after: Some(after), done: Some(done_too), ..*call };
        let (handle, received) = buffer.dispatch(own.rank, &own.input(), &call)?;
        // What follows on the own stream finds the rows.
        backend.wait_event(own.rank, Stream::OWN, &done)?;
        sent.push((handle, received, stream, [ready, done]));
    }
    let mut rows = Vec::new();
    for (handle, received, stream, events) in sent {
        let rank = handle.rank();
        group.sync(rank)?;
        rows.push(rows_of(group, &handle, &received)?);
        backend.destroy_stream(rank, stream)?;
        events.into_iter().try_for_each(|event| backend.destroy_event(rank, event))?;
    }
    Ok(rows)
}

/// Dispatch and combine in a graph, replayed with numbers of tokens that the device reads.
fn replayed(group: &Group, ranks: &[Rank], call: &CallOptions) -> Outcome {
    let options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
    let buffer = Buffer::new(group, BufferOptions { weights: false, ..options }, &BuiltIn)?;
    let mut graphs = Vec::new();
    for own in ranks {
        let count = DeviceMemory::zeroed(group.backend(), own.rank, 4)?;
        let input = DispatchInput { tokens_from: count.address(), ..own.input() };
        let (graph, handle) = group.capture(own.rank, Stream::OWN, || {
            let (handle, received) = buffer.dispatch(own.rank, &input, call)?;
            // Experts are launched here, and work in place; these leave the rows as they are.
            let rows = CombineInput::InPlace(&received, None);
            buffer.combine(&handle, rows, &[], &own.output(), call)?;
            Ok(handle)
        })?;
        graphs.push((own, count, graph, handle));
    }
    let placement = Placement::even(EXPERTS, group.ranks());
    for tokens in [TOKENS, 5, 0, 17] {
        for (_, count, graph, _) in &graphs {
            count.write(0, &(tokens as i32).to_le_bytes())?;
            graph.replay(Stream::OWN)?;
        }
        for (own, _, _, handle) in &graphs {
            group.sync(own.rank)?;
            assert!(handle.counts()?.received <= tokens * group.ranks());
            own.expect(tokens, |token| {
                // A row goes once to every rank that has some of its experts.
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
        handles.push(buffer.exchange_counts(own.rank, &own.input(), call)?);
    }
    let mut errors = Vec::new();
    for (own, handle) in ranks.iter().zip(&handles) {
        match buffer.dispatch_counted(handle, &own.input(), call) {
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
        handles.push(buffer.exchange_counts(own.rank, &own.input(), &call)?);
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

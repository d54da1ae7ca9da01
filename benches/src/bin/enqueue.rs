//! Prints what the host spends on a call: checks, places, arguments and the order of calls. What they
//! are put into are the queues of the emulator, which runs them between the measurements; a driver takes
//! its own time on top. `cargo run --release -p ep-benches --bin enqueue [ROUNDS]`; few rounds under
//! callgrind say how many instructions a call is.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, DispatchInput, Handle, Received,
};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::tensor::{Bf16, DeviceTensor};

/// Calls of each kind where none are asked for; the median counts.
const ROUNDS: usize = 400;

/// Tokens: few, since what is queued has to run.
const TOKENS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let (hidden, topk, experts) = (64, 2, 4);
    let group = Group::on_host(1)?;
    let options = BufferOptions {
        weights: false,
        cached: true,
        live: 2,
        ..BufferOptions::new(TOKENS, hidden, topk, experts)
    };
    let buffer = Buffer::new(&group, options, &BuiltIn)?;
    let x = DeviceTensor::zeros(&group, 0, [TOKENS, hidden])?;
    let idx = DeviceTensor::from_slice(&group, 0, [TOKENS, topk], &[0, 1, 2, 3])?;
    let sums = DeviceTensor::zeros(&group, 0, [TOKENS, hidden])?;
    let call = CallOptions::sms(4);
    let (mut full, mut cached, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = env::args().nth(1).map_or(Ok(ROUNDS), |said| said.parse())?;
    for _ in 0..rounds {
        let begun = Instant::now();
        let (input, handle, received) = dispatch(&buffer, &x, &idx, &call)?;
        full.push(begun.elapsed());
        handle.counts()?;
        group.sync(0)?;
        let begun = Instant::now();
        let again = dispatch_again(&buffer, &handle, &input, &call)?;
        cached.push(begun.elapsed());
        group.sync(0)?;
        let begun = Instant::now();
        combine(&buffer, &handle, &received, &sums, &call)?;
        back.push(begun.elapsed());
        group.sync(0)?;
        drop(again);
    }
    let mut out = io::stdout().lock();
    for (name, times) in [("full dispatch", full), ("cached dispatch", cached), ("combine", back)] {
        writeln!(out, "{name:<16} {:>7.2} us", median(times).as_secs_f64() * 1e6)?;
    }
    Ok(())
}

// Each call has a function of its own, by which a profile tells them apart.

#[inline(never)]
fn dispatch(
    buffer: &Buffer,
    x: &DeviceTensor<Bf16, 2>,
    idx: &DeviceTensor<i64, 2>,
    call: &CallOptions,
) -> Result<(DispatchInput, Handle, Received), CallError> {
    let input = buffer.input(x, idx, None)?;
    let (handle, received) = buffer.dispatch(0, &input, call)?;
    Ok((input, handle, received))
}

#[inline(never)]
fn dispatch_again(
    buffer: &Buffer,
    handle: &Handle,
    input: &DispatchInput,
    call: &CallOptions,
) -> Result<Received, CallError> {
    buffer.cached_dispatch(handle, input, call)
}

#[inline(never)]
fn combine(
    buffer: &Buffer,
    handle: &Handle,
    received: &Received,
    sums: &DeviceTensor<Bf16, 2>,
    call: &CallOptions,
) -> Result<(), CallError> {
    let output = buffer.output(TOKENS, sums, None)?;
    buffer.combine(handle, CombineInput::InPlace(received, None), &[], &output, call)
}

/// 0 of none.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

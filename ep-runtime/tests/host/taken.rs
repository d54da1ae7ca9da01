//! The memory that buffers and kernels take on a rank, compared with what they say before they are made.

use std::sync::Arc;

use ep_runtime::AnyPipeline;
use ep_runtime::buffer::{Buffer, BufferOptions, BuiltIn, MemoryUsage, Payload, Via};
use ep_runtime::calls::{CallKernel, Machine};
use ep_runtime::group::Group;
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_runtime::per_rank::{self, PerRank, Weights};
use ep_runtime::pipelines::{LowLatencyDispatch, low_latency_dispatch as low_latency};

const RANKS: usize = 4;
const MACHINE: Machine =
    Machine { ranks: RANKS, carrier: None, arch: Arch::Sm90a, leaves_out_absent: false };

/// Bytes that `make` takes on a rank, and those that were told.
fn taken<T>(make: impl FnOnce(&Group) -> T, told: impl FnOnce(&T) -> [u64; 2]) -> Option<[u64; 3]> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let backend: Arc<HostBackend> =
        HostBackend::new(&programs, HostOptions::new(RANKS)).expect("a machine");
    let group = backend.group().expect("a group");
    let before = backend.device_bytes(1);
    let made = make(&group);
    let [first, second] = told(&made);
    Some([backend.device_bytes(1) - before, first, second])
}

/// Fails unless all three are the same, but for a few words with which kernels find one another.
fn compare(name: &str, taken: Option<[u64; 3]>) {
    let Some([taken, before, after]) = taken else { return };
    assert_eq!(before, after, "{name}");
    assert!(taken >= before && taken < before + 1024, "{name}: {taken} instead of {before}");
}

#[test]
fn buffers_take_what_they_say_before() {
    for (via, payload, live) in [
        (Via::Direct, Payload::Bf16, 1),
        (Via::Direct, Payload::Fp8, 3),
        (Via::Ring, Payload::Bf16, 2),
    ] {
        let options = BufferOptions { via, payload, live, ..BufferOptions::new(300, 512, 4, 16) };
        let usage = MemoryUsage::of(&options, RANKS, Arch::Sm90a, &BuiltIn).expect("a plan");
        let device = |usage: MemoryUsage| {
            usage.control + usage.outputs + usage.combine_inputs + usage.tables
        };
        let make = |group: &Group| Buffer::new(group, options, &BuiltIn).expect("a buffer");
        let name = format!("{via:?} {payload:?}");
        compare(&name, taken(make, |made| [device(usage), device(made.memory())]));
    }
}

#[test]
fn low_latency_kernels_take_what_they_say_before() {
    use low_latency::Payload;
    let shape = per_rank::Shape { hidden: 512, topk: 4, experts: 16, max_tokens: 40 };
    for weights in [Weights::AtDispatch, Weights::AtCombine] {
        let told = PerRank::bytes(&MACHINE, 1, shape, Payload::Fp8, weights);
        let (told, _) = told.expect("a plan");
        let make =
            |group: &Group| PerRank::prepare(group, shape, Payload::Fp8, weights).expect("kernels");
        compare(&format!("{weights:?}"), taken(make, |made| [told, made.device_bytes()]));
    }
    let own = low_latency::Shape {
        nodes: 1,
        hidden: 512,
        topk: 4,
        experts: 16,
        max_tokens: 40,
        tokens: 40,
    };
    let options = low_latency::Options { payload: Payload::Fp8, ..Default::default() };
    let entry = AnyPipeline::of::<LowLatencyDispatch>();
    let told = low_latency::Kernel::chosen(&own, &options, |chosen| {
        CallKernel::bytes(&MACHINE, &entry, chosen).expect("a plan")
    });
    let make = |group: &Group| LowLatencyDispatch::prepare(group, own, options).expect("a kernel");
    compare("per expert", taken(make, |made| [told, made.core.device_bytes()]));
}

//! Runs on real GPUs; without enough of them each test says so and passes, unless `EP_REQUIRE_GPUS`
//! asks for that many.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys;
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::buffer::{BufferOptions, Declared, Payload, Via};
use ep_runtime::gpu::{self, GpuBackend, GpuOptions, Sharing};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::selftest::{Case, Findings, Selftest, probe};

/// Ranks on `devices`; `None` if the machine has fewer.
fn ranks_on(devices: &[i32], sharing: Sharing) -> Option<Arc<dyn Backend>> {
    let required = std::env::var("EP_REQUIRE_GPUS").ok().and_then(|value| value.parse().ok());
    let required: usize = required.unwrap_or(0);
    let need = devices.iter().max().map_or(0, |last| *last as usize + 1);
    let have = gpu::devices().map_or(0, |devices| devices.len());
    if have < need {
        assert!(required < need, "{need} GPUs required, {have} found");
        // Not `println`, which the test harness hides.
        let _ = writeln!(std::io::stderr(), "skipped: {need} GPUs needed, {have} found");
        return None;
    }
    let jit = Jit::new(Nvrtc::find().unwrap(), Cache::at(None).unwrap());
    let options = GpuOptions { devices: devices.to_vec(), sharing, cooperative: None };
    Some(Arc::new(GpuBackend::new(&options, gpu::compile_with(Arc::new(jit))).unwrap()))
}

/// Groups of every size that is of interest.
const GROUPS: [&[i32]; 5] = [&[0], &[0, 0], &[0, 1], &[0, 1, 2], &[0, 1, 2, 3]];

fn good(what: &str, findings: &Findings) {
    assert!(findings.is_good(), "{what}: {findings}");
}

#[test]
fn words_travel_and_silence_is_reported() {
    for devices in GROUPS {
        if let Some(backend) = ranks_on(devices, Sharing::Mapped) {
            good(&format!("{devices:?}"), &probe(&backend).unwrap());
        }
    }
}

#[test]
fn peer_access_is_enough() {
    if let Some(backend) = ranks_on(&[0, 1], Sharing::PeerAccess) {
        good("peer access", &probe(&backend).unwrap());
    }
}

#[test]
fn rows_arrive_and_come_back() {
    for devices in GROUPS {
        let Some(backend) = ranks_on(devices, Sharing::Mapped) else { continue };
        let options = GroupOptions { timeout: Duration::from_secs(5) };
        let group = Group::new(backend, options).unwrap();
        for (payload, via) in Payload::ALL.into_iter().flat_map(|p| Via::ALL.map(|via| (p, via))) {
            let options =
                BufferOptions { payload, via, biases: 1, ..BufferOptions::new(100, 2880, 5, 12) };
            let mut case = Case::even(options, devices.len(), 16);
            // One rank has none, the others differ.
            case.tokens = (1..=devices.len()).map(|rank| 100 * (rank % 3) / 2).collect();
            case.routing.absent = 0.1;
            case.routing.repeated = 0.1;
            let test = Selftest::new(&group, &Declared, case).unwrap();
            good(&format!("{devices:?} {payload:?} {via:?}"), &test.check().unwrap());
            let copied = test.check_copied().unwrap();
            good(&format!("{devices:?} {payload:?} {via:?} copied"), &copied);
        }
    }
}

/// A graph of a dispatch, a cached one and a combine, replayed with tokens, routing and rows that
/// change in device memory.
#[test]
fn graphs_replay() {
    for devices in GROUPS {
        let Some(backend) = ranks_on(devices, Sharing::Mapped) else { continue };
        let options = GroupOptions { timeout: Duration::from_secs(5) };
        let group = Group::new(backend, options).unwrap();
        for via in Via::ALL {
            let options = BufferOptions { via, live: 2, ..BufferOptions::new(100, 512, 5, 12) };
            let case = Case::even(options, devices.len(), 16);
            let mut test = Selftest::new(&group, &Declared, case).unwrap();
            good(&format!("{devices:?} {via:?}"), &test.check_replayed(1000).unwrap());
        }
    }
}

#[test]
fn rows_are_expanded_for_their_experts() {
    for devices in GROUPS {
        let Some(backend) = ranks_on(devices, Sharing::Mapped) else { continue };
        let options = GroupOptions { timeout: Duration::from_secs(5) };
        let group = Group::new(backend, options).unwrap();
        for payload in Payload::ALL {
            let options = BufferOptions { payload, ..BufferOptions::new(100, 512, 5, 12) };
            let case = Case::even(options, devices.len(), 16);
            let test = Selftest::new(&group, &Declared, case).unwrap();
            let findings = test.check_expanded(16, 0).unwrap();
            good(&format!("{devices:?} {payload:?} expanded"), &findings);
        }
    }
}

/// Calls of one rank on two streams of the caller and on its own, many in flight at once.
#[test]
fn streams_of_a_caller_are_ordered() {
    let Some(backend) = ranks_on(&[0], Sharing::Mapped) else { return };
    let options = GroupOptions { timeout: Duration::from_secs(5) };
    let group = Group::new(Arc::clone(&backend), options).unwrap();
    let stream = || {
        // Leaves the context of the rank current.
        backend.sync(0, Stream::OWN).unwrap();
        let mut stream: sys::CUstream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle; the stream lives until the process ends.
        let result = unsafe { sys::cuStreamCreate(&mut stream, flags) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the stream was just made for the device of the one rank.
        unsafe { Stream::from_raw(stream as u64) }
    };
    let streams = [Stream::OWN, stream(), stream()];
    for via in Via::ALL {
        for (dispatch, combine) in [(1, 2), (2, 1), (0, 1), (2, 0)] {
            let options = BufferOptions { via, live: 3, ..BufferOptions::new(2000, 512, 5, 12) };
            let mut case = Case::even(options, 1, 16);
            (case.dispatch.stream, case.combine.stream) = (streams[dispatch], streams[combine]);
            let test = Selftest::new(&group, &Declared, case).unwrap();
            for _ in 0..20 {
                good(&format!("{via:?} {dispatch} {combine}"), &test.check().unwrap());
            }
        }
    }
}

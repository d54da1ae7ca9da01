//! Runs on real GPUs; without enough of them each test says so and passes, unless `EP_REQUIRE_GPUS`
//! asks for that many.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::Backend;
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
        for (payload, via) in
            Payload::ALL.into_iter().flat_map(|p| [(p, Via::Direct), (p, Via::Ring)])
        {
            let options =
                BufferOptions { payload, via, biases: 1, ..BufferOptions::new(100, 2880, 5, 12) };
            let mut case = Case::even(options, devices.len(), 16);
            // One rank has none, the others differ.
            case.tokens = (1..=devices.len()).map(|rank| 100 * (rank % 3) / 2).collect();
            case.routing.absent = 0.1;
            case.routing.repeated = 0.1;
            let test = Selftest::new(&group, &Declared, case).unwrap();
            good(&format!("{devices:?} {payload:?} {via:?}"), &test.check().unwrap());
        }
    }
}

//! Outputs in plain memory and by expert, from the emitted kernels on the host.

use ep_runtime::buffer::{BufferOptions, BuiltIn, Payload, Via};
use ep_runtime::error::CallError;
use ep_runtime::host::{HostBackend, HostOptions};
use ep_verify::selftest::{Case, Selftest};

use crate::host::programs;

fn test(options: BufferOptions, seed: u64, body: impl FnOnce(&Selftest)) {
    let Some(programs) = programs() else { return };
    let case = Case::random_for(options, 3, seed);
    let backend = HostBackend::new(programs, HostOptions::new(3)).expect("there is a host");
    let group = backend.group().expect("the group forms");
    body(&Selftest::new(&group, &BuiltIn, case).expect("the shape is legal"));
}

#[test]
fn rows_are_expanded_for_their_experts() {
    for (payload, via) in [(Payload::Bf16, Via::Direct), (Payload::Fp8, Via::Ring)] {
        let options = BufferOptions { payload, via, ..BufferOptions::new(12, 256, 3, 8) };
        for (seed, alignment) in [(4, 1), (5, 16)] {
            test(options.clone(), seed, |test| {
                let findings = test.check_expanded(alignment, 0);
                let findings = findings.unwrap_or_else(|error| panic!("{error}"));
                assert!(findings.is_good(), "{payload:?} {via:?} {seed}: {findings}");
            });
        }
    }
}

#[test]
fn a_row_too_many_for_an_expansion_is_refused() {
    test(BufferOptions::new(12, 256, 3, 8), 4, |test| {
        let error = test.check_expanded(4, 1).expect_err("there is room for one row less");
        assert!(matches!(error, CallError::OutputTooSmall { need, have, .. } if need == have + 1));
    });
}

#[test]
fn rows_are_copied_out_of_the_window() {
    for via in Via::ALL {
        let options = BufferOptions { via, ..BufferOptions::new(12, 256, 2, 7) };
        test(BufferOptions { payload: Payload::Fp8, ..options }, 3, |test| {
            let findings = test.check_copied().unwrap_or_else(|error| panic!("{error}"));
            assert!(findings.is_good(), "{via:?}: {findings}");
        });
    }
}

//! The orders of the device library, each by a kernel of its own on the host, and bugs that they find.

use ep_runtime::host::mutant::Mutant;
use ep_runtime::host::{Build, HostBackend, HostOptions};
use ep_runtime::jit::Arch;
use ep_verify::litmus::{Litmus, litmus};

use crate::host::programs;

/// What the device library orders is ordered, by all the rules of the checker, and its numbers are
/// those of the host, on both kinds of device.
#[test]
fn litmus_kernels_find_all_well() {
    let Some(programs) = programs() else { return };
    for (ranks, arch) in [(1, Arch::Sm90a), (2, Arch::Sm80), (3, Arch::Sm90a)] {
        for build in [Build::Checked, Build::Plain] {
            let options = HostOptions { build, arch, ..HostOptions::new(ranks) };
            let group = HostBackend::new(programs, options).unwrap().group().unwrap();
            for kind in Litmus::ALL {
                let rounds = if kind == Litmus::Numbers { 3000 } else { 9 };
                let found = litmus(&group, kind, rounds).unwrap();
                assert!(found.is_good(), "{kind:?} on {ranks} ranks: {found}");
                let has_none = kind == Litmus::BulkCopies && !arch.has_tma();
                assert_eq!(found.checks.len(), if has_none { 0 } else { ranks }, "{kind:?}");
            }
        }
    }
}

/// They also find something: bugs of the library that each shows in one kind.
#[test]
fn litmus_kernels_find_planted_bugs() {
    let Some(programs) = programs() else { return };
    let bugs = [
        (
            Litmus::Sequence,
            "== tells one more\nin ep/sync.cuh\n- base + static_cast<u32>(closed));\n+ base + static_cast<u32>(closed) + 1);\n",
        ),
        (
            Litmus::Counters,
            "== no acquire\nin ep/sync.cuh\n- counter != nullptr ? load_acquire_sys(counter) : 0;\n+ counter != nullptr ? load_relaxed_sys(counter) : 0;\n",
        ),
        (
            Litmus::Numbers,
            "== rounds up\nin ep/cast.cuh\n- (bits & 0x7fffffu) != 0 ? 1u : 0u\n+ 1u\n",
        ),
    ];
    for (kind, text) in bugs {
        let bug = Mutant::parse(text).unwrap().remove(0);
        let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
        let group = HostBackend::new(&programs.planted(&bug), options).unwrap().group().unwrap();
        let found = litmus(&group, kind, 40).map(|found| found.is_good());
        assert_ne!(found, Ok(true), "{kind:?}");
    }
}

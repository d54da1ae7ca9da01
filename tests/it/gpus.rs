//! What runs on GPUs, and is skipped where there is none.

use std::io::Write;

/// Whether there is a GPU; a test that is skipped says so.
pub(crate) fn found() -> bool {
    let found = ep_runtime::gpu::devices().is_ok_and(|devices| !devices.is_empty());
    if !found {
        // Past the capture of the harness, which hides what passing tests print.
        let _ = writeln!(std::io::stderr(), "skipped: no GPU");
    }
    found
}

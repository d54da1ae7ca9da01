//! Tests that others in their process would disturb.

use std::process::{Command, Stdio};

const ALONE: &str = "EPFORGE_TEST_ALONE";

/// Whether this process runs the test of this name and no other; if not, one that does has passed.
pub(crate) fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(ALONE, "1")
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    false
}

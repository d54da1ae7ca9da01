//! Tests that others in their process would disturb.

use std::process::Command;

const ALONE: &str = "EPFORGE_TEST_ALONE";

/// Whether this process runs the test of this name and no other; if not, one that does has passed.
pub(crate) fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    // A name that no test has runs none, which is no failure to the harness.
    assert!(ended.status.success() && said.contains("1 passed"), "{name}: {said}");
    false
}

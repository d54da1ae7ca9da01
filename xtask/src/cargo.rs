//! Calling cargo, and reading what its tests say.

use std::env;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Failure, Outcome, root, say};

/// Whether clippy compiles the workspace: see [`lint`].
static LINTS: AtomicBool = AtomicBool::new(false);

/// A cargo command in the repository's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    if LINTS.load(Ordering::Relaxed) {
        command.env("RUSTC_WORKSPACE_WRAPPER", LINTER);
        command.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    }
    command
}

/// The compiler with clippy's lints. `cargo clippy` runs it without making code; a build that runs it needs no
/// second pass over the workspace and all dependencies.
const LINTER: &str = "clippy-driver";

/// From now on clippy compiles the workspace, and a warning is an error.
pub(crate) fn lint() -> Outcome {
    let version = Command::new(LINTER).arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        let what = format!("{LINTER} does not run; `rustup component add clippy` brings it");
        return Err(Failure::Task(what));
    }
    LINTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Builds `targets` of all packages, and says in which folder they are then. Which features a dependency has
/// follows from the packages that are chosen, and from whether a test is among the targets: the choice is that
/// of the tests, so that nothing is built twice.
pub(crate) fn build(targets: &[&str]) -> Result<PathBuf, Failure> {
    let mut command = cargo(&["build", "--workspace", "--quiet", "--test", "command"]);
    command.args(targets);
    succeed(command, "cargo build")?;
    let target = env::var_os("CARGO_TARGET_DIR");
    Ok(root().join(target.map_or_else(|| PathBuf::from("target"), PathBuf::from)).join("debug"))
}

/// Runs a command to its end; `what` is the subject of the sentence when it fails.
pub(crate) fn succeed(mut command: Command, what: &str) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Failure::Task(format!("{what} failed: see above"))),
        Err(error) => Err(Failure::Task(format!("{what} does not run: {error}"))),
    }
}

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Reads a tally as it is shown.
    pub(crate) fn read(line: &str) -> Option<Tally> {
        let (passed, failed) = line.strip_suffix(" failed")?.split_once(" passed, ")?;
        Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Runs `cargo test`, shows its output and adds up its result lines. A run that fails without a
/// failed test, such as one that does not build, counts as one.
pub(crate) fn test(mut command: Command) -> Result<Tally, Failure> {
    let failed = |error| Failure::Task(format!("cargo test does not run: {error}"));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(failed)?;
            if let Some(found) = result_line(&line) {
                tally.add(found);
            }
            if is_worth_showing(&line) {
                say(&line);
            }
        }
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(tally)
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; ..`
fn result_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Tally { passed: count(" passed")?, failed: count(" failed")? })
}

/// Binaries without tests say nothing of use.
fn is_worth_showing(line: &str) -> bool {
    !line.is_empty()
        && line != "running 0 tests"
        && !line.contains(". 0 passed; 0 failed; 0 ignored")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_read() {
        let line = "test result: ok. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some(Tally { passed: 12, failed: 3 }));
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(result_line(line), Some(Tally { passed: 1, failed: 2 }));
        assert_eq!(result_line("test syntax::parses ... ok"), None);
        let tally = Tally { passed: 12, failed: 3 };
        assert_eq!(Tally::read(&tally.to_string()), Some(tally));
        assert_eq!(Tally::read("0 of 18 variants failed"), None);
    }
}

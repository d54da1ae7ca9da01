//! The Python package: it is put together in `target/python`, as a wheel would have it, and tested there
//! by an interpreter of its own with NumPy and without torch.

use std::env;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::cargo::{self, Tally, succeed};
use crate::{Failure, Outcome, root, say, setup};

pub(crate) mod wheel;

/// Where the package is written, below the root.
const SOURCE: &str = "ep-python";

/// Where its tests are.
const TESTS: &str = "ep-python/tests";

/// What its tests need of PyPI.
const PACKAGES: [&str; 4] = ["numpy", "ml_dtypes", "ruff", "mypy"];

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    let full = match options {
        [] => false,
        [option] if option == "--full" => true,
        [option] if option == "--wheel" => return wheel::run(),
        [option, ..] => return Err(Failure::Usage(format!("python has no option `{option}`"))),
    };
    let Tally { passed, failed } = test(full)?;
    say(&format!("{passed} passed, {failed} failed"));
    if failed > 0 {
        return Err(task(format!("Python package: {failed} failures, see above")));
    }
    if full { wheel::run() } else { Ok(()) }
}

/// Puts the package together and runs its tests; those with torch only where some Python has it.
pub(crate) fn test(full: bool) -> Result<Tally, Failure> {
    let package = assemble()?;
    let python = interpreter()?;
    let style: [&[&str]; 3] =
        [&["ruff", "check", "--quiet"], &["ruff", "format", "--check", "--quiet"], &["mypy"]];
    for words in style {
        let mut command = Command::new(&python);
        command.arg("-m").args(words).current_dir(root().join(SOURCE));
        succeed(command, &format!("{} of the Python package", words.join(" ")))?;
    }
    let mut tally = unittests_by_class(&python, &package, full)?;
    if full {
        match with_torch() {
            Some(torch) => {
                tally.add(unittests(
                    &torch,
                    Some(&package),
                    &["discover", "--pattern", "torch_*.py"],
                )?);
            }
            None => say("skipped: no python3 here has torch, numpy and ml_dtypes"),
        }
    }
    Ok(tally)
}

/// The folder with the package, and the extension module in it.
fn assemble() -> Result<PathBuf, Failure> {
    let built = cargo::build(&["--lib"])?;
    let package = built.with_file_name("python");
    let failed = |error| task(format!("{} cannot be made: {error}", package.display()));
    if package.exists() {
        fs::remove_dir_all(&package).map_err(failed)?;
    }
    // The other distributions are modules beside it.
    for part in ["python", "deep-ep/src", "epforge-vllm/src", "epforge-sglang/src"] {
        copy(&root().join(SOURCE).join(part), &package).map_err(failed)?;
    }
    fs::copy(built.join("libepforge_core.so"), package.join("epforge/_core.abi3.so"))
        .map_err(failed)?;
    Ok(package)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &place)?,
            false => fs::copy(entry.path(), place).map(drop)?,
        }
    }
    Ok(())
}

/// A Python with the packages, in a virtual environment of this checkout.
fn interpreter() -> Result<PathBuf, Failure> {
    let home = root().join("target/python-tests");
    let python = home.join("bin/python");
    let modules = PACKAGES.map(|package| format!("import {package}")).join("; ");
    if runs(&python, &modules) {
        return Ok(python);
    }
    say(&format!("bringing {} from PyPI into {}", PACKAGES.join(", "), home.display()));
    environment(&home)?;
    let unreachable =
        "pip install (`cargo xtask test --without-python` tests all but the Python package)";
    succeed(pip(&python, "install", &PACKAGES), unreachable)?;
    Ok(python)
}

/// Makes a virtual environment with nothing in it.
fn environment(home: &Path) -> Outcome {
    let mut make = Command::new(setup::python()?);
    make.args(["-m", "venv", "--clear"]).arg(home);
    succeed(make, "python3 -m venv")
}

fn pip(python: &Path, task: &str, words: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", task, "--quiet", "--disable-pip-version-check", "--no-input"]);
    command.args(words);
    command
}

/// A Python of this machine that has torch, if any: `EPFORGE_TORCH_PYTHON`, else `python3`.
fn with_torch() -> Option<PathBuf> {
    let named = env::var_os("EPFORGE_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let python = PathBuf::from(named);
    runs(&python, "import torch, numpy, ml_dtypes").then_some(python)
}

fn runs(python: &Path, text: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", text]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs the tests that `words` name to Python's unittest, with a package or with what is installed.
fn unittests(python: &Path, package: Option<&Path>, words: &[&str]) -> Result<Tally, Failure> {
    let mut command = Command::new(python);
    command.args(["-m", "unittest"]).args(words);
    command.current_dir(root().join(TESTS));
    command.env_remove("PYTHONPATH").env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(package.map(|package| ("PYTHONPATH", package)));
    let output = command.stderr(Stdio::piped()).output();
    let output =
        output.map_err(|error| task(format!("{} does not run: {error}", python.display())))?;
    let text = String::from_utf8_lossy(&output.stderr);
    say(&format!("{}\n{}", words.join(" "), text.trim_end()));
    let mut tally = result_lines(&text);
    if !output.status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(tally)
}

/// Runs each class of tests in a process of its own, on all cores: one process uses one, mostly.
fn unittests_by_class(python: &Path, package: &Path, full: bool) -> Result<Tally, Failure> {
    let TestClasses { names, tests } = test_classes(full)?;
    let waiting = Mutex::new(names);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        let mut tally = Tally::default();
        while let Some(class) = next() {
            tally.add(unittests(python, Some(package), &[&class])?);
        }
        Ok(tally)
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let tally = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut tally = Tally::default();
        for worker in workers {
            let found =
                worker.join().unwrap_or_else(|_| Err(task("a thread of xtask died".into())));
            tally.add(found?);
        }
        Ok::<Tally, Failure>(tally)
    })?;
    match tally.passed + tally.failed < tests {
        true => Err(task(format!(
            "{TESTS} has {tests} tests, {} were run: each belongs into a class of TestCase",
            tally.passed + tally.failed
        ))),
        false => Ok(tally),
    }
}

/// How the names of classes end that only `--full` runs.
const LONG: &str = "AtLength";

/// The classes of tests in `test_*.py` that a run takes.
struct TestClasses {
    /// Such as `test_calls.Loop`, those of the largest file last.
    names: Vec<String>,
    /// How many tests the files have.
    tests: u64,
}

fn test_classes(full: bool) -> Result<TestClasses, Failure> {
    let folder = root().join(TESTS);
    let failed = |error| task(format!("{} cannot be read: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("test_") && path.extension().is_some_and(|it| it == "py") {
            files.push((fs::read_to_string(&path).map_err(failed)?, name));
        }
    }
    files.sort_by_key(|(text, _)| text.len());
    let mut found = TestClasses { names: Vec::new(), tests: 0 };
    for (text, module) in &files {
        found.add(text, module, full);
    }
    Ok(found)
}

impl TestClasses {
    /// Adds the classes of a file. A test outside of a class counts too, so that its absence is noticed.
    fn add(&mut self, text: &str, module: &str, full: bool) {
        let mut is_taken = true;
        for line in text.lines() {
            let class =
                line.strip_prefix("class ").map(|rest| rest.split('(').next().unwrap_or(rest));
            if let Some(class) = class {
                is_taken = full || !class.ends_with(LONG);
                if is_taken && line.contains("(unittest.TestCase)") {
                    self.names.push(format!("{module}.{class}"));
                }
            } else if line.starts_with("def ") {
                is_taken = true;
            }
            self.tests += u64::from(is_taken && line.trim_start().starts_with("def test_"));
        }
    }
}

/// `Ran 12 tests in 0.1s` and `FAILED (failures=1, errors=2)`.
fn result_lines(text: &str) -> Tally {
    let ran = text.lines().rev().find_map(|line| line.strip_prefix("Ran "));
    let ran = ran.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
    let failed = text.lines().rev().find_map(|line| line.strip_prefix("FAILED (")).unwrap_or("");
    let counts =
        failed.trim_end_matches(')').split(", ").filter(|part| !part.starts_with("skipped"));
    let failed = counts.filter_map(|part| part.split_once('=')?.1.parse::<u64>().ok()).sum();
    Tally { passed: ran.saturating_sub(failed), failed }
}

fn task(sentence: String) -> Failure {
    Failure::Task(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_classes_are_left_out_of_a_usual_run() {
        let text = "class A(unittest.TestCase):\n    def test_a(self):\n\
                    class BAtLength(unittest.TestCase):\n    def test_b(self):\n\
                    class C:\n    def test_c(self):\n";
        let taken = |full: bool| {
            let mut found = TestClasses { names: Vec::new(), tests: 0 };
            found.add(text, "m", full);
            (found.names.join(" "), found.tests)
        };
        assert_eq!(taken(false), ("m.A".to_owned(), 2));
        assert_eq!(taken(true), ("m.A m.BAtLength".to_owned(), 3));
    }

    #[test]
    fn result_lines_are_read() {
        let text = "....\n-----\nRan 19 tests in 7.6s\n\nOK\n";
        assert_eq!(result_lines(text), Tally { passed: 19, failed: 0 });
        let text = "Ran 19 tests in 7.6s\n\nFAILED (failures=1, errors=2, skipped=3)\n";
        assert_eq!(result_lines(text), Tally { passed: 16, failed: 3 });
        assert_eq!(result_lines("Traceback"), Tally::default());
    }
}

//! `cargo xtask test`: everything a change must pass, cheapest first.
//!
//! The first part that fails ends the run. The last line is `N passed, N failed`, where the parts
//! that are no tests count as one each.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cargo::{self, Tally, cargo, succeed};
use crate::find::{PROJECT_FOLDER, Search};
use crate::{Failure, Outcome, codegen, fabric, python, root, say, setup, sources, tidy};

/// The folders of `setup --all-nvrtc` besides the newest, which the first part uses.
const OLDER_NVRTC: [&str; 2] = ["nvrtc-13.0", "nvrtc-12.9"];

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    let (mut full, mut with_python) = (false, true);
    for option in options {
        match option.as_str() {
            "--full" => full = true,
            "--without-python" => with_python = false,
            other => return Err(Failure::Usage(format!("test has no option `{other}`"))),
        }
    }
    let started = Instant::now();
    // Not in `target`, which lies elsewhere if the environment says so.
    let name = format!("epforge-snapshots-read-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // Nobody can have put it there before, nor a link in it.
    fs::create_dir(&folder).map_err(|error| {
        Failure::Task(format!("the folder {} cannot be made: {error}", folder.display()))
    })?;
    let mut parts = Parts { tally: Tally::default(), noted: folder.join("snapshots") };
    let outcome = parts.all(full, with_python);
    // What is left is a folder of the system's temporary ones.
    let _ = fs::remove_dir_all(&folder);
    let Tally { passed, failed } = parts.tally;
    say(&format!("\nall of it: {:.0} s", started.elapsed().as_secs_f64()));
    say(&format!("{passed} passed, {failed} failed"));
    outcome
}

/// The parts of a run, and what they have found so far.
struct Parts {
    tally: Tally,
    /// Where insta notes every snapshot that a test reads.
    noted: PathBuf,
}

impl Parts {
    fn all(&mut self, full: bool, with_python: bool) -> Outcome {
        let mut set_up = vec!["--nvdisasm".to_owned()];
        set_up.extend(full.then(|| "--all-nvrtc".to_owned()));
        self.check("setup", || setup::run(&set_up))?;
        self.check("fmt", || succeed(cargo(&["fmt", "--all", "--check"]), "cargo fmt --check"))?;
        self.check("tidy", || tidy::run(&[]))?;
        self.check("clippy", || {
            let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--"];
            let mut command = cargo(&clippy);
            command.args(["-D", "warnings"]);
            succeed(command, "cargo clippy")
        })?;
        self.test("unit tests", &["--lib", "--bins"], &[], &[])?;
        self.test("examples of the docs", &["--doc"], &[], &[])?;
        let quick = ["--skip", "nvrtc::", "--skip", "host::"];
        self.test("snapshot and ui tests", &["--test", "*"], &quick, &[])?;
        self.check("codegen --check", || codegen::run(&["--check".to_owned()]))?;
        self.test("runs on the host", &["--test", "*"], &["host::"], &[])?;
        for (name, options) in host_checks(full) {
            let words: Vec<&str> = ["check"].into_iter().chain(options.split(' ')).collect();
            self.check(&format!("{name}: epforge check {options}"), || codegen::epforge(&words))?;
        }
        match with_python {
            true => self.python(full)?,
            false => say("\nskipped: the Python package, as you said"),
        }
        // Of all shapes, architectures and tunes of a text some; those of other commits take the others.
        let drawn = OsString::from(commit().to_string());
        let drawn = (!full).then_some(("EPFORGE_COMMIT", drawn.as_os_str()));
        let drawn = Vec::from_iter(drawn);
        self.test("compiles by NVRTC", &["--test", "*"], &["nvrtc::"], &drawn)?;
        if full {
            for folder in OLDER_NVRTC {
                let name = format!("compiles by {folder}");
                let place = root().join(PROJECT_FOLDER).join(folder);
                self.test(
                    &name,
                    &["--test", "*"],
                    &["nvrtc::"],
                    &[("EPFORGE_NVRTC", place.as_os_str())],
                )?;
            }
            // Two crates after each other, all targets of one side by side.
            let seconds = [("EPFORGE_FUZZ_SECONDS", OsStr::new("30"))];
            self.test(
                "inputs that nobody thought of",
                &["--lib", "--test", "it"],
                &["fuzz"],
                &seconds,
            )?;
        }
        let text = fs::read_to_string(&self.noted).unwrap_or_default();
        // Insta notes paths as the tests spell them, with `..` inside.
        let read: BTreeSet<PathBuf> = text.lines().map(|line| canonical(Path::new(line))).collect();
        self.check("unread snapshots", || unread_snapshots(&read))
    }

    /// Runs a part that is no test of cargo's: it counts as one.
    fn check(&mut self, name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
        timed(name, || {
            let outcome = run();
            let failed = u64::from(outcome.is_err());
            self.tally.add(Tally { passed: 1 - failed, failed });
            outcome
        })
    }

    /// Runs the tests of the Python package, and builds its wheel.
    fn python(&mut self, full: bool) -> Outcome {
        let name = "Python package";
        timed(name, || {
            let found = python::test(full)?;
            self.tally.add(found);
            match found.failed {
                0 => Ok(()),
                count => Err(Failure::Task(format!("{name}: {count} failures, see above"))),
            }
        })?;
        if full { self.check("Python wheel", python::wheel::run) } else { Ok(()) }
    }

    /// Runs `cargo test` over all packages, always the same ones, so that features and so builds
    /// are shared between the parts.
    fn test(
        &mut self,
        name: &str,
        targets: &[&str],
        filters: &[&str],
        variables: &[(&str, &OsStr)],
    ) -> Outcome {
        let mut command = cargo(&["test", "--workspace", "--quiet", "--no-fail-fast"]);
        command.args(targets).arg("--").args(filters);
        // Snapshots are compared and never written; a missing NVRTC is a failure, not a skip.
        command.env("INSTA_UPDATE", "no").env("EPFORGE_REQUIRE_NVRTC", "1");
        // Setup has brought a libfabric where one can be had.
        let search = Search { start: Some(root()), ..Search::from_environment() };
        let has_libfabric = !fabric::libraries(&search).is_empty();
        command.env("EPFORGE_REQUIRE_LIBFABRIC", if has_libfabric { "1" } else { "0" });
        command.env("INSTA_SNAPSHOT_REFERENCES_FILE", &self.noted);
        command.envs(variables.iter().copied());
        timed(name, || {
            let found = cargo::test(command)?;
            self.tally.add(found);
            match found.failed {
                0 => Ok(()),
                1 => Err(Failure::Task(format!("{name}: 1 failure, see above"))),
                count => Err(Failure::Task(format!("{name}: {count} failures, see above"))),
            }
        })
    }
}

fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Command lines of `epforge check`: schedules of every variant, and whether bugs would be found. Each of
/// the ten faults strikes once; of the planted bugs a usual run draws some, others for each commit, and of
/// mutations any.
fn host_checks(full: bool) -> [(&'static str, String); 7] {
    let [fast, hb, shapes, faults, random] =
        if full { [1000, 200, 40, 200, 2000] } else { [12, 3, 2, 10, 60] };
    let seed = commit();
    let drawn = if full { String::new() } else { format!(" --sample 20 --seed {seed}") };
    let mutations = if full { 40 } else { 8 };
    let known = "--budget 40 --known tests/mutation/survivors.txt";
    [
        ("schedules", format!("all --schedules {fast}")),
        ("checked schedules", format!("all --mode hb --schedules {hb}")),
        ("schedules of other shapes", format!("all --fuzz-shapes --schedules {shapes}")),
        ("schedules with faults", format!("all --every-fault --schedules {faults}")),
        ("declarations that nobody wrote", format!("--random {random}")),
        ("planted bugs", format!("--mutants{drawn}")),
        // Only of files whose survivors are known.
        ("mutations", format!("--mutate direct.cuh {known} --sample {mutations} --seed {seed}")),
    ]
}

/// A number of the commit that is checked out; 0 where there is none.
fn commit() -> u64 {
    let mut command = Command::new("git");
    let output = command.args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let name = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let digits = name.unwrap_or_default().chars().take(8).collect::<String>();
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}

fn unread_snapshots(read: &BTreeSet<PathBuf>) -> Outcome {
    let is_unread = |path: &&PathBuf| !read.contains(&canonical(path));
    let snapshots = sources::files(&root(), &["snap"]);
    let unread: Vec<String> = snapshots.iter().filter(is_unread).map(|path| shown(path)).collect();
    if unread.is_empty() {
        return Ok(());
    }
    Err(Failure::Task(format!("no test reads {}", unread.join(", "))))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn timed(name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    say(&format!("\n== {name}"));
    let started = Instant::now();
    let outcome = run();
    say(&format!("== {name}: {:.1} s", started.elapsed().as_secs_f64()));
    outcome
}

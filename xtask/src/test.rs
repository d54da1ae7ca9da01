//! `cargo xtask test`: everything a change must pass.
//!
//! The first part that fails ends the run. The last line is `N passed, N failed`, where the parts
//! that are no tests count as one each.

mod side_by_side;
mod took;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use took::{Began, Took};

use crate::cargo::{self, Tally, cargo, succeed};
use crate::find::{self, PROJECT_FOLDER, Search};
use crate::{Failure, Outcome, codegen, fabric, python, root, say, setup, sources, tidy};

/// The folders of `setup --all-nvrtc` besides the newest, which the first part uses.
const OLDER_NVRTC: [&str; 2] = ["nvrtc-13.0", "nvrtc-12.9"];

/// Leaves out the tests that only `--full` runs; their names end so.
const SKIP_LONG: [&str; 2] = ["--skip", "_at_length"];

/// What the user asks for.
#[derive(Default)]
struct Options {
    full: bool,
    without_python: bool,
    /// The one part that runs.
    part: Option<String>,
}

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    let options = read(options)?;
    cargo::lint()?;
    let parts = parts(&options);
    if let Some(name) = &options.part {
        return alone(&parts, name);
    }
    if options.without_python {
        say("skipped: the Python package, as you said");
    }
    let began = Began::now();
    // Not in `target`, which lies elsewhere if the environment says so.
    let name = format!("epforge-snapshots-read-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // Nobody can have put it there before, nor a link in it.
    fs::create_dir(&folder).map_err(|error| {
        Failure::Task(format!("the folder {} cannot be made: {error}", folder.display()))
    })?;
    let mut run = Run::default();
    let outcome = all(&parts, &options, &folder.join("snapshots"), &mut run);
    // A folder that stays lies among the system's temporary ones.
    let _ = fs::remove_dir_all(&folder);
    say("");
    run.took.iter().for_each(|(name, took)| say(&format!("{name}: {took}")));
    say(&format!("all parts: {}", began.took()));
    say(&run.tally.to_string());
    outcome
}

/// What the parts have come to so far.
#[derive(Default)]
struct Run {
    tally: Tally,
    took: Vec<(String, Took)>,
}

fn read(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--full" => options.full = true,
            "--without-python" => options.without_python = true,
            "--part" => {
                let unnamed = || Failure::Usage("--part needs the name of a part".to_owned());
                options.part = Some(words.next().cloned().ok_or_else(unnamed)?);
            }
            other => return Err(Failure::Usage(format!("test has no option `{other}`"))),
        }
    }
    Ok(options)
}

/// One part of the run, which `--part` runs alone.
struct Part {
    name: String,
    /// Whether it runs beside others, once all is built.
    beside: bool,
    work: Work,
}

enum Work {
    /// No tests of their own: it counts as one.
    Check(Box<dyn Fn() -> Outcome>),
    Tests(Box<dyn Fn() -> Result<Tally, Failure>>),
}

impl Part {
    fn run(&self, tally: &mut Tally) -> Outcome {
        match &self.work {
            Work::Check(run) => {
                let outcome = run();
                let failed = u64::from(outcome.is_err());
                tally.add(Tally { passed: 1 - failed, failed });
                outcome
            }
            Work::Tests(run) => {
                let found = run()?;
                tally.add(found);
                match found.failed {
                    0 => Ok(()),
                    1 => Err(Failure::Task(format!("{}: 1 failure, see above", self.name))),
                    count => {
                        Err(Failure::Task(format!("{}: {count} failures, see above", self.name)))
                    }
                }
            }
        }
    }
}

/// Runs one part; the last two lines say what it took, and its tally.
fn alone(parts: &[Part], name: &str) -> Outcome {
    let Some(part) = parts.iter().find(|part| part.name == name) else {
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        return Err(Failure::Usage(format!(
            "part `{name}` does not exist: there are {}",
            names.join(", ")
        )));
    };
    let began = Began::now();
    let mut tally = Tally::default();
    let outcome = part.run(&mut tally);
    say(&began.took().to_string());
    say(&tally.to_string());
    outcome
}

/// Runs all parts; every snapshot that a test reads is noted in the file `noted`.
fn all(parts: &[Part], options: &Options, noted: &Path, run: &mut Run) -> Outcome {
    // The build makes this program anew, and its file is another one then.
    let own = std::env::current_exe()
        .map_err(|error| Failure::Task(format!("this program is not found: {error}")))?;
    for part in parts.iter().filter(|part| !part.beside) {
        timed(part, run)?;
    }
    let names = parts.iter().filter(|part| part.beside).map(|part| part.name.clone());
    let full: &[&str] = if options.full { &["--full"] } else { &[] };
    side_by_side::run(&own, names.collect(), full, noted, run)?;
    let text = fs::read_to_string(noted).unwrap_or_default();
    // Insta notes paths as the tests spell them, with `..` inside.
    let read: BTreeSet<PathBuf> = text.lines().map(|line| canonical(Path::new(line))).collect();
    let last = check("unread snapshots", false, move || unread_snapshots(&read));
    timed(&last, run)
}

/// The parts in the order in which they start: what is cheap, what is built for all others, and then the two
/// that take longest.
fn parts(options: &Options) -> Vec<Part> {
    let Options { full, without_python, .. } = *options;
    let mut all = vec![
        check("setup", false, move || {
            let mut words = vec!["--nvdisasm".to_owned()];
            words.extend(full.then(|| "--all-nvrtc".to_owned()));
            setup::run(&words)
        }),
        check("fmt", false, || succeed(cargo(&["fmt", "--all", "--check"]), "cargo fmt --check")),
        check("tidy", false, || tidy::run(&[])),
        check("build and clippy", false, || {
            let command = cargo(&["test", "--workspace", "--quiet", "--no-run", "--tests"]);
            succeed(command, "cargo test --no-run")?;
            cargo::build(&["--lib", "--bins", "--examples"]).map(drop)
        }),
    ];
    let quick = ["--skip", "nvrtc::", "--skip", "host::"];
    let test = |name: &str, target: &'static str, filters: &[&'static str]| {
        let full = full.then(|| ("EPFORGE_FULL", "1".to_owned()));
        let words = if full.is_some() { filters.to_vec() } else { [filters, &SKIP_LONG].concat() };
        tests(name, target, &words, full)
    };
    all.push(test("unit, snapshot and ui tests", "--tests", &quick));
    if !without_python {
        let work = Work::Tests(Box::new(move || python::test(full)));
        all.push(Part { name: "Python package".to_owned(), beside: true, work });
    }
    all.push(test("examples of the docs", "--doc", &[]));
    all.push(check("codegen --check", true, || codegen::run(&["--check".to_owned()])));
    all.push(test("runs on the host", "--tests", &["host::"]));
    for (name, words) in host_checks(full) {
        all.push(check(name, true, move || {
            say(&format!("epforge check {words}"));
            codegen::epforge(&Vec::from_iter(["check"].into_iter().chain(words.split(' '))))
        }));
    }
    all.push(test("compiles by NVRTC", "--tests", &["nvrtc::"]));
    if full {
        all.extend(releases(without_python));
    }
    all
}

/// What a release must pass besides.
fn releases(without_python: bool) -> Vec<Part> {
    let older = OLDER_NVRTC.iter().map(|folder| {
        let variable = Some((find::VARIABLE, in_project(folder)));
        tests(&format!("compiles by {folder}"), "--tests", &["nvrtc::"], variable)
    });
    let mut all = Vec::from_iter(older);
    let seconds = Some(("EPFORGE_FUZZ_SECONDS", "60".to_owned()));
    all.push(tests("inputs that nobody thought of", "--tests", &["fuzz"], seconds));
    if !without_python {
        all.push(check("Python wheel", true, python::wheel::run));
    }
    all
}

fn check(name: &str, beside: bool, run: impl Fn() -> Outcome + 'static) -> Part {
    Part { name: name.to_owned(), beside, work: Work::Check(Box::new(run)) }
}

/// `cargo test` over all packages, always the same ones, so that features and so builds are shared
/// between the parts.
fn tests(
    name: &str,
    target: &'static str,
    filters: &[&'static str],
    variable: Option<(&'static str, String)>,
) -> Part {
    let filters = filters.to_vec();
    let work = move || {
        let mut command = cargo(&["test", "--workspace", "--quiet", "--no-fail-fast", target]);
        command.arg("--").args(&filters);
        // Snapshots are compared and never written; a missing NVRTC is a failure, not a skip.
        command.env("INSTA_UPDATE", "no").env("EPFORGE_REQUIRE_NVRTC", "1");
        // Setup has brought a libfabric where one can be had.
        let search = Search { start: Some(root()), ..Search::from_environment() };
        let has_libfabric = !fabric::libraries(&search).is_empty();
        command.env("EPFORGE_REQUIRE_LIBFABRIC", if has_libfabric { "1" } else { "0" });
        command.envs(variable.clone());
        cargo::test(command)
    };
    Part { name: name.to_owned(), beside: true, work: Work::Tests(Box::new(work)) }
}

/// A folder that setup fills.
fn in_project(folder: &str) -> String {
    root().join(PROJECT_FOLDER).join(folder).display().to_string()
}

fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Command lines of `epforge check`: schedules of every variant, and whether bugs would be found. A usual run
/// takes few of each, and the same ones every time; a full one begins at another seed.
fn host_checks(full: bool) -> Vec<(&'static str, &'static str)> {
    if !full {
        return vec![
            ("checked schedules", "all --mode hb --schedules 1"),
            // The same programs as above, which are not compiled again.
            ("schedules with faults", "all --mode hb --every-fault --schedules 1"),
            ("declarations that nobody wrote", "--random 6"),
            ("planted bugs", "--mutants --sample 3"),
        ];
    }
    vec![
        ("checked schedules", "all --mode hb --schedules 200 --seed 1000"),
        ("schedules of other shapes", "all --fuzz-shapes --schedules 40 --seed 1000"),
        ("schedules with faults", "all --every-fault --schedules 200 --seed 1000"),
        ("schedules", "all --schedules 1000 --seed 1000"),
        ("declarations that nobody wrote", "--random 2000 --seed 1000"),
        ("planted bugs", "--mutants"),
        ("mutations", "--mutate all --budget 40 --sample 40"),
    ]
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

fn timed(part: &Part, run: &mut Run) -> Outcome {
    let name = &part.name;
    say(&format!("\n== {name}"));
    let began = Began::now();
    let outcome = part.run(&mut run.tally);
    let took = began.took();
    say(&format!("== {name}: {took}"));
    run.took.push((name.clone(), took));
    outcome
}

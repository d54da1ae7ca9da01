//! What rustc itself shows for some of the refused declarations: its spans are those of the tokens.
//!
//! Each case is compiled against the libraries that this test was built with, and what rustc says is
//! compared with the file beside it. `EPFORGE_UI=overwrite` writes these files.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::errors::fixtures;

#[test]
fn rustc_points_at_the_tokens() {
    compare("ui", Verdict::Refused);
}

/// Right declarations whose roles are slow: rustc warns at a statement, unless told otherwise.
#[test]
fn rustc_warns_of_roles_on_one_warp() {
    compare("ui/warnings", Verdict::Warned);
}

/// Right declarations, and calls that do not fit them: their types say so.
#[test]
fn calls_that_do_not_fit_do_not_compile() {
    compare("ui/calls", Verdict::Refused);
}

/// rustc wants a file of its own for each, with a `main`; its text is that of the case.
#[test]
fn what_rustc_is_shown_are_refused_cases() {
    let cases = fixtures();
    for path in sources("ui") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let case = cases.iter().find(|(case, _)| name.strip_prefix("err_") == Some(case));
        let (_, case) = case.unwrap_or_else(|| panic!("{name} is no case of tests/errors"));
        let text = fs::read_to_string(&path).expect("a source is text");
        assert_eq!(text, format!("{case}\nfn main() {{}}\n"), "{name}");
    }
}

/// The sources in a folder of this crate, as rustc is given them.
fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let names =
        entries.expect("it is a folder").map(|entry| entry.expect("it can be read").file_name());
    let sources = names.filter(|name| Path::new(name).extension() == Some(OsStr::new("rs")));
    let mut sources: Vec<PathBuf> = sources.map(|name| Path::new(folder).join(name)).collect();
    sources.sort();
    assert!(!sources.is_empty(), "{folder} has cases");
    sources
}

/// What becomes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It does not compile. Warnings are not shown.
    Refused,
    /// It compiles. Warnings are shown but those of code that nobody uses.
    Warned,
}

/// Compares what rustc says of each source in a folder with the file beside it.
fn compare(folder: &str, verdict: Verdict) {
    let (mut library, sources) = (Library::find(), sources(folder));
    library.folder = library.folder.canonicalize().expect("it is there");
    let half = sources.len().div_ceil(2);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let check = |sources: &[PathBuf]| {
            sources.iter().filter_map(|it| library.differs(it, verdict)).collect::<Vec<_>>()
        };
        let (first, second) = sources.split_at(half);
        let first = scope.spawn(move || check(first));
        let second = check(second);
        first.join().expect("it ends").into_iter().chain(second).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The run time as this test was built with it.
struct Library {
    folder: PathBuf,
    file: PathBuf,
}

impl Library {
    /// The newest that is not newer than this test: cargo builds it first, and anew when it changes.
    fn find() -> Library {
        let test = env::current_exe().expect("the test has a path");
        let folder = test.parent().expect("it lies in a folder").to_path_buf();
        let built = |path: &Path| -> SystemTime {
            fs::metadata(path).and_then(|about| about.modified()).expect("it can be looked at")
        };
        let limit = built(&test);
        let entries = fs::read_dir(&folder).expect("the folder can be read");
        let libraries = entries.map(|entry| entry.expect("it can be read").path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libep_runtime-") && name.ends_with(".rlib") && built(path) <= limit
        });
        let file = libraries.max_by_key(|path| built(path)).expect("the test was linked with it");
        Library { folder, file }
    }

    /// What is wrong with a case, if anything is.
    fn differs(&self, source: &Path, verdict: Verdict) -> Option<String> {
        let said = self.compile(source, verdict);
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join(source).with_extension("stderr");
        if env::var_os("EPFORGE_UI").is_some_and(|what| what == "overwrite") {
            fs::write(&beside, said).expect("it can be written");
            return None;
        }
        let wanted = fs::read_to_string(&beside).unwrap_or_default();
        let source = source.display();
        (said != wanted).then(|| format!("{source}\n-- wanted\n{wanted}\n-- rustc says\n{said}"))
    }

    /// What rustc says of a source.
    fn compile(&self, source: &Path, verdict: Verdict) -> String {
        let is_refused = verdict == Verdict::Refused;
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["--edition", "2024", "--crate-type", "bin", "--emit", "metadata"])
            .args(["--diagnostic-width", "140", "--color", "never"])
            .args(["-A", if is_refused { "warnings" } else { "unused" }])
            .args(["--out-dir", env!("CARGO_TARGET_TMPDIR")])
            .arg("--extern")
            .arg(format!("ep_runtime={}", self.file.display()))
            .arg("-L")
            .arg(format!("dependency={}", self.folder.display()))
            .arg(source)
            .output()
            .expect("rustc runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.success(), is_refused, "{}: {said}", source.display());
        messages(&said)
    }
}

/// The messages of a compilation, without their number at the end and where to read more.
fn messages(said: &str) -> String {
    let ends = [
        "error: aborting due to",
        "For more information about",
        "Some errors have detailed",
        "warning: 2 warnings emitted",
    ];
    let lines = said.lines().take_while(|line| !ends.iter().any(|end| line.starts_with(end)));
    // rustc indents empty lines of a message.
    let text: Vec<&str> = lines.map(str::trim_end).collect();
    format!("{}\n", text.join("\n").trim_end())
}

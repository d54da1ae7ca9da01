//! Tasks of this repository: `cargo xtask <task>`.

mod cargo;
mod ci;
mod codegen;
mod demo;
mod python;
mod setup;
mod sources;
mod test;
mod tidy;

#[expect(unreachable_pub, dead_code, reason = "the same file is a public part of ep-runtime")]
#[path = "../../ep-runtime/src/jit/find.rs"]
mod find;

#[expect(unreachable_pub, reason = "the same file is a public part of ep-runtime")]
#[path = "../../ep-runtime/src/net/find.rs"]
mod fabric;

use find::Search;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a task ends with; the text is one sentence for the user.
type Outcome = Result<(), Failure>;

/// Why a task failed, which decides over the exit code.
#[derive(Debug)]
enum Failure {
    /// The task could not do its work.
    Task(String),
    /// The command line is wrong.
    Usage(String),
}

const USAGE: &str = "\
Usage: cargo xtask <task>

Tasks:
  setup [--all-nvrtc] [--nvdisasm]
                        find NVRTC, libfabric and a C++ compiler; bring the first two from PyPI if
                        there are none
  test [--full] [--without-python] [--part NAME]
                        all tests; --full adds NVRTC 13.0 and 12.9, and the wheel; or one part of it
  python [--full | --wheel]
                        the tests of the Python package alone, or its wheel: built, installed and tested
  demo [--nodes N]      rows to experts on 4 ranks and back, on GPUs or the host; or between N nodes
  codegen [--check]     write generated/, or compare it
  tidy                  the rules of docs/style.md that a program can check
  ci                    docs, install and test --full";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match linked(&root()).and_then(|()| dispatch(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Task(sentence)) => {
            eprintln!("xtask: {sentence}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(sentence)) => {
            eprintln!("xtask: {sentence}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Crates reach the shared templates through symbolic links, which git leaves out where it may not make them.
fn linked(root: &Path) -> Outcome {
    let link = root.join("ep-codegen/templates");
    if link.is_dir() {
        return Ok(());
    }
    Err(Failure::Task(format!(
        "{} is no folder: this checkout has no symbolic links; run `git config core.symlinks true` and `git checkout -- .` \
         (on Windows with developer mode on)",
        link.display()
    )))
}

fn dispatch(arguments: &[String]) -> Outcome {
    let Some((task, options)) = arguments.split_first() else {
        return Err(Failure::Usage("no task is named".to_owned()));
    };
    match task.as_str() {
        "setup" => setup::run(options),
        "test" => test::run(options),
        "python" => python::run(options),
        "demo" => demo::run(options),
        "codegen" => codegen::run(options),
        "tidy" => tidy::run(options),
        "ci" => ci::run(options),
        "help" | "--help" | "-h" => {
            say(USAGE);
            Ok(())
        }
        other => Err(Failure::Usage(format!("there is no task `{other}`"))),
    }
}

/// The folder of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Tells the user what a task does.
#[expect(clippy::print_stdout, reason = "this is where tasks talk to the user")]
fn say(text: &str) {
    println!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_without_links_is_told_what_to_do() {
        let folder = std::env::temp_dir().join(format!("epforge-links-{}", std::process::id()));
        let place = folder.join("ep-codegen");
        std::fs::create_dir_all(&place).expect("the folder is new");
        // What git writes instead of a link.
        std::fs::write(place.join("templates"), "../templates").expect("the folder is there");
        let said = linked(&folder);
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
        let Err(Failure::Task(sentence)) = said else { panic!("{said:?}") };
        assert!(sentence.contains("git config core.symlinks true"), "{sentence}");
        assert!(linked(&root()).is_ok());
    }
}

//! Tasks of this repository: `cargo xtask <task>`.

mod cargo;
mod ci;
mod codegen;
mod demo;
mod setup;
mod sources;
mod test;
mod tidy;

#[expect(unreachable_pub, reason = "the same file is a public part of ep-runtime")]
#[path = "../../ep-runtime/src/jit/find.rs"]
mod find;

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
                        find NVRTC and a C++ compiler; bring NVRTC from PyPI if there is none
  test [--full]         all tests, cheapest first; --full adds NVRTC 13.0 and 12.9
  demo                  rows to experts on 4 ranks and back, on GPUs or the host
  codegen [--check]     write generated/, or compare it
  tidy                  the rules of docs/style.md that a program can check
  ci                    docs, install and test --full";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
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

fn dispatch(arguments: &[String]) -> Outcome {
    let Some((task, options)) = arguments.split_first() else {
        return Err(Failure::Usage("no task is named".to_owned()));
    };
    match task.as_str() {
        "setup" => setup::run(options),
        "test" => test::run(options),
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

//! The `epforge` command as a library.
//!
//! A crate that declares pipelines of its own calls [`main`] with them and gets every command for
//! them; the binary of this crate is the same call with the standard pipelines.
//!
//! ```no_run
//! use ep_runtime::{AnyPipeline, pipelines::Layout};
//!
//! fn main() -> std::process::ExitCode {
//!     ep_cli::main(&[AnyPipeline::of::<Layout>()])
//! }
//! ```
//!
//! Exit codes: 0 all is well; 1 a check, run or plan failed; 2 wrong use, such as an unknown name
//! or a value outside of its declared range.

mod bench;
mod cache;
mod check;
mod configurations;
mod declarations;
mod declared;
mod demo;
mod doctor;
mod emit;
mod explain;
mod failure;
mod files;
mod json;
mod kernels;
mod list;
mod machine;
mod moved;
mod nodes;
mod numbers;
mod plan_text;
mod problem;
mod processes;
mod program;
mod progress;
mod protocol;
mod results;
mod run;
mod selection;
mod selftest;
mod suggestion;
mod svg;
mod talk;
mod wire;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ep_runtime::AnyPipeline;

use failure::Failure;

pub use configurations::{CONFIGURATIONS, Configuration};

#[derive(Debug, Parser)]
#[command(
    name = "epforge",
    version,
    about = "Expert-parallel all-to-all pipelines: declared in Rust, emitted as CUDA",
    after_help = EXIT_CODES
)]
struct CommandLine {
    /// Print one JSON object per line
    #[arg(long, global = true)]
    json: bool,
    /// Take pipelines from the `pipeline!` blocks of this Rust file as well; all other Rust in it is ignored
    #[arg(long, global = true, value_name = "FILE")]
    declarations: Vec<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  a check, run or plan failed
  2  wrong use: an unknown name, or a value outside of its declared range";

#[derive(Debug, Subcommand)]
enum Command {
    /// List the pipelines and how their roles are carried out
    List,
    /// Print the CUDA of a pipeline for one shape
    Emit(emit::Options),
    /// Explain a pipeline: roles, warps, memory, channels, bytes on the wire
    Explain(explain::Options),
    /// Run a pipeline on random input and compare its results with the oracle
    Run(run::Options),
    /// Run pipelines on the host under many schedules, until one fails
    Check(check::Options),
    /// Run random problems with faults for hours, and print a line every minute
    Soak(check::soak::Options),
    /// Time dispatch and combine, or one pipeline, on the GPUs of this machine, next to the rate of the wire
    Bench(Box<bench::Options>),
    /// Send rows to experts on 4 ranks and back: on the GPUs of this machine, if any, and on the host
    Demo(demo::Options),
    /// Test the kernels on this machine: on its GPUs, or in the emulator
    Selftest(selftest::Options),
    /// Report what this machine has, what it lacks, and how to fix it
    Doctor(doctor::Options),
    /// Show or clear the cache of compiled kernels
    Cache(cache::Options),
}

impl Command {
    fn takes_pipelines(&self) -> bool {
        match self {
            Command::List
            | Command::Emit(_)
            | Command::Explain(_)
            | Command::Run(_)
            | Command::Soak(_) => true,
            Command::Check(options) => options.takes_pipelines(),
            Command::Bench(options) => options.pipeline.is_some(),
            Command::Demo(_) | Command::Selftest(_) | Command::Doctor(_) | Command::Cache(_) => {
                false
            }
        }
    }
}

/// How many queues a GPU keeps for the streams of a process, as the driver reads it when it starts.
const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Runs the command line of this process for the pipelines `entries`; the first thing that `main`
/// does.
pub fn main(entries: &[AnyPipeline]) -> ExitCode {
    // Ranks that share a GPU wait for one another: where two of their streams share a queue, one may
    // stand behind what waits for it. The driver's 8 are too few for 4 ranks; 32 is the most.
    if std::env::var_os(QUEUES).is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(QUEUES, "32") };
    }
    let mut out = BufWriter::new(io::stdout().lock());
    ExitCode::from(run(std::env::args_os(), entries, &mut out, &mut io::stderr().lock()))
}

/// Runs a command line, the program's name first, and gives its exit code. What the command is
/// asked for goes to `out`, all else to `err`.
pub fn run(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    entries: &[AnyPipeline],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let outcome = match CommandLine::try_parse_from(arguments) {
        Ok(mut line) => {
            let files = match &mut line.command {
                Command::Check(options) => Some(&mut options.declarations),
                Command::Soak(options) => Some(&mut options.declarations),
                _ => None,
            };
            files.into_iter().for_each(|own| own.clone_from(&line.declarations));
            dispatch(&line, entries, out, err)
        }
        // Help and version come as errors too, and go to `out`.
        Err(error) if !error.use_stderr() => {
            write!(out, "{}", error.render()).map_err(Failure::Output)
        }
        Err(error) => Err(Failure::CommandLine(error.render().to_string())),
    };
    let failure = match outcome.and_then(|()| out.flush().map_err(Failure::Output)) {
        Ok(()) => return 0,
        Err(failure) => failure,
    };
    // A reader that has seen enough (`epforge emit .. | head`) is no failure, and when nobody reads
    // the errors either there is nobody to tell.
    if !failure.is_broken_pipe() {
        let _ = writeln!(err, "{}", failure.to_string().trim_end());
    }
    failure.exit_code()
}

fn dispatch(
    line: &CommandLine,
    entries: &[AnyPipeline],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let loaded;
    let (of_files, entries) = match line.declarations[..] {
        [] => (0, entries),
        _ if !line.command.takes_pipelines() => {
            let what = "`--declarations` has no effect on a command that takes no pipelines";
            return Err(Failure::WrongUse(what.to_owned()));
        }
        _ => {
            loaded = declarations::load(&line.declarations, entries, err)?;
            (loaded.0, &loaded.1[..])
        }
    };
    match &line.command {
        Command::List => list::run(entries, line.json, out),
        Command::Emit(options) => emit::run(options, (of_files, entries), line.json, out, err),
        Command::Explain(options) => explain::run(options, entries, line.json, out),
        Command::Run(options) => run::run(options, entries, line.json, out, err),
        Command::Check(options) => check::run(options, entries, line.json, out, err),
        Command::Soak(options) => check::soak::run(options, entries, line.json, out, err),
        Command::Bench(options) => bench::run(options, entries, line.json, out, err),
        Command::Demo(options) => demo::run(options, line.json, out, err),
        Command::Selftest(options) => selftest::run(options, line.json, out, err),
        Command::Doctor(options) => doctor::run(options, line.json, out),
        Command::Cache(options) => cache::run(options, line.json, out, err),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }
}

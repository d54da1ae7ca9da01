//! The `epforge` command for the pipelines of this crate.

use std::process::ExitCode;

use ep_runtime::Entry;
use own_pipeline::TaggedDispatch;

fn main() -> ExitCode {
    ep_cli::main(&[Entry::of::<TaggedDispatch>()])
}

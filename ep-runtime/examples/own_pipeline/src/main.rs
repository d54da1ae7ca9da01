//! The `epforge` command for the pipelines of this crate.

use std::process::ExitCode;

use ep_runtime::AnyPipeline;
use own_pipeline::TaggedDispatch;

fn main() -> ExitCode {
    ep_cli::main(&[AnyPipeline::of::<TaggedDispatch>()])
}

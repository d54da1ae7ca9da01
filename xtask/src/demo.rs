//! `cargo xtask demo`: the short way to see what this is.

use crate::codegen::epforge;
use crate::{Failure, Outcome};

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    match options {
        [] => epforge(&["demo", "--out", "target/demo"]),
        [option, nodes] if option == "--nodes" => epforge(&["demo", "--nodes", nodes]),
        [option, ..] => Err(Failure::Usage(format!("demo takes --nodes N, and no `{option}`"))),
    }
}

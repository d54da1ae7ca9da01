//! `cargo xtask demo`: the short way to see what this is.

use crate::codegen::epforge;
use crate::{Failure, Outcome};

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(option) = options.first() {
        return Err(Failure::Usage(format!("demo has no option `{option}`")));
    }
    epforge(&["demo", "--out", "target/demo"])
}

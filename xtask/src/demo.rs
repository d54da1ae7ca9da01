//! `cargo xtask demo`: the short way to see what this is.

use crate::codegen::epforge;
use crate::{Failure, Outcome, setup};

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(option) = options.first() {
        return Err(Failure::Usage(format!("demo has no option `{option}`")));
    }
    setup::run(&[])?;
    epforge(&["demo"])
}

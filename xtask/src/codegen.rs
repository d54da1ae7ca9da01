//! `cargo xtask codegen`: the CUDA and plans of `generated/`.

use std::process::Command;

use crate::cargo::{self, succeed};
use crate::{Failure, Outcome, root};

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    let mut arguments = vec!["emit", "--all", "--out", "generated"];
    match options {
        [] => {}
        [option] if option == "--check" => arguments.push("--check"),
        [option, ..] => return Err(Failure::Usage(format!("codegen has no option `{option}`"))),
    }
    epforge(&arguments)
}

/// Runs the command of this repository.
pub(crate) fn epforge(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(cargo::build(&["--bin=epforge"])?.join("epforge"));
    command.args(arguments).current_dir(root());
    succeed(command, "epforge")
}

//! `cargo xtask codegen`: the CUDA and plans of `generated/`.

use crate::cargo::{cargo, succeed};
use crate::{Failure, Outcome};

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
    // The same selection of packages as the tests, so that nothing is built twice.
    succeed(cargo(&["build", "--workspace", "--quiet", "--bins"]), "cargo build")?;
    let mut command = cargo(&["run", "--package", "ep-cli", "--quiet", "--bin", "epforge", "--"]);
    command.args(arguments);
    succeed(command, "epforge")
}

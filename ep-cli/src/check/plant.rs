//! `epforge check --plant`: a check of texts with a bug in them, to see how the checker reports it.

use std::path::Path;
use std::sync::Arc;

use ep_runtime::host::Programs;
use ep_runtime::host::mutant::Mutant;

use crate::failure::Failure;
use crate::problem::no_machine;

/// Reads a file with one bug.
pub(super) fn read(path: &Path) -> Result<Mutant, Failure> {
    let file = path.display();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::WrongUse(format!("`{file}`: {error}")))?;
    let bugs = Mutant::parse(&text);
    let mut bugs = bugs.map_err(|error| Failure::WrongUse(format!("`{file}`: {error}")))?;
    match (bugs.pop(), bugs.len()) {
        (Some(bug), 0) => Ok(bug),
        (_, others) => {
            let bugs = others + usize::from(others > 0);
            Err(Failure::WrongUse(format!("`{file}` has {bugs} bugs, and `--plant` takes one")))
        }
    }
}

/// The compiler of this machine, with the bug in every text that it is about.
pub(super) fn programs(bug: Option<&Mutant>) -> Result<Arc<Programs>, Failure> {
    let programs = Programs::find().map_err(no_machine)?;
    Ok(bug.map(|bug| programs.planted(bug)).unwrap_or(programs))
}

/// Refuses a bug in a file that no kernel of the checked pipelines includes.
pub(super) fn is_somewhere(
    bug: Option<&Mutant>,
    programs: &Programs,
    pipelines: &str,
) -> Result<(), Failure> {
    match bug {
        Some(Mutant { name, file, .. }) if !programs.has_planted() => Err(Failure::WrongUse(
            format!("the bug `{name}` changes {file}, which no kernel of `{pipelines}` includes"),
        )),
        _ => Ok(()),
    }
}

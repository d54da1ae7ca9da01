//! This program, as its user has started it and as it starts itself again: a binary, or a module of Python.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;

/// The variable that the Python package sets to its interpreter before it runs a command line.
const PYTHON_VARIABLE: &str = "EPFORGE_PYTHON";

/// What the interpreter is told before the words of the command line.
const MODULE: [&str; 2] = ["-m", "epforge"];

/// The words of this process' command line, without the program's name.
pub(crate) fn words() -> Vec<OsString> {
    words_of(env::args_os(), env::var_os(PYTHON_VARIABLE).is_some())
}

/// An interpreter has words of its own before the module, or the path of a script that calls it.
fn words_of(all: impl Iterator<Item = OsString>, in_python: bool) -> Vec<OsString> {
    let all: Vec<OsString> = all.collect();
    let is_program = |word: &OsString| {
        let name = std::path::Path::new(word).file_name();
        word == MODULE[1] || name == Some(OsStr::new(MODULE[1]))
    };
    let first = if in_python { all.iter().position(is_program).unwrap_or(0) } else { 0 };
    all.into_iter().skip(first + 1).collect()
}

/// The program, to be started once more.
pub(crate) fn again() -> io::Result<Command> {
    match env::var_os(PYTHON_VARIABLE) {
        None => Ok(Command::new(env::current_exe()?)),
        Some(python) => {
            let mut command = Command::new(python);
            command.args(MODULE);
            Ok(command)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_program() {
        let words = |line: &str, in_python| {
            let found = words_of(line.split(' ').map(OsString::from), in_python);
            found.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(words("/bin/epforge bench --ranks 2", false), "bench --ranks 2");
        assert_eq!(words("/bin/python -X dev -m epforge bench", true), "bench");
        assert_eq!(words("/bin/python /venv/bin/epforge list", true), "list");
    }
}

//! Planted bugs: edits of the device library or of a kernel's text, one by one.
//!
//! A list of them is a text. Each entry says where it is and what it changes; an entry that no mode
//! can find says why:
//!
//! ```text
//! == the tail is told without a release
//! in ep/ring.cuh
//! - add_release_sys(counter_, fresh)
//! + fetch_add_relaxed_gpu(counter_, fresh)
//!
//! == the sender does not wait for an acknowledgement
//! in ep/slots.cuh
//! - wait_counter(team_, site, ack);
//! equivalent: with two epochs the exchange itself keeps the ranks close enough
//! ```

use std::fmt;

use crate::failure::Failure;
use crate::program::{Build, Source};

/// Bugs for the device library of this version.
pub const DEVICE_LIBRARY: &str = include_str!("../mutants.txt");

/// One planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What is wrong, in a few words.
    pub name: String,
    /// Include name of the header, or name of the text.
    pub file: String,
    /// What is replaced; it occurs exactly once.
    pub from: String,
    /// What it becomes.
    pub to: String,
    /// Why it changes nothing that anyone could observe, if so.
    pub equivalent: Option<String>,
}

/// Why a mutant could not be planted or a list not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MutantError {
    /// The source has no such file.
    NoFile {
        /// The mutant.
        mutant: String,
        /// The file that it names.
        file: String,
    },
    /// What is to be replaced occurs this often instead of once.
    Occurs {
        /// The mutant.
        mutant: String,
        /// How often.
        times: usize,
    },
    /// A line of a list that is not of the form.
    Line(usize),
}

impl fmt::Display for MutantError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile { mutant, file } => write!(out, "mutant `{mutant}`: no file {file}"),
            Self::Occurs { mutant, times } => {
                write!(out, "mutant `{mutant}`: its text occurs {times} times instead of once")
            }
            Self::Line(line) => write!(out, "line {line} of the list of mutants"),
        }
    }
}

impl std::error::Error for MutantError {}

impl Mutant {
    /// The mutants of a list.
    pub fn parse(list: &str) -> Result<Vec<Self>, MutantError> {
        let mut mutants: Vec<Self> = Vec::new();
        for (number, line) in list.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("== ") {
                let (name, empty) = (name.to_owned(), String::new);
                let (file, from, to) = (empty(), empty(), empty());
                mutants.push(Self { name, file, from, to, equivalent: None });
                continue;
            }
            let Some(mutant) = mutants.last_mut() else {
                return Err(MutantError::Line(number + 1));
            };
            if let Some(file) = line.strip_prefix("in ") {
                mutant.file = file.to_owned();
            } else if let Some(why) = line.strip_prefix("equivalent: ") {
                mutant.equivalent = Some(why.to_owned());
            } else if let Some(text) = changed(line, '-') {
                join_line(&mut mutant.from, text);
            } else if let Some(text) = changed(line, '+') {
                join_line(&mut mutant.to, text);
            } else {
                return Err(MutantError::Line(number + 1));
            }
        }
        Ok(mutants)
    }

    /// `source` with the bug in it.
    pub fn plant(&self, source: &Source) -> Result<Source, MutantError> {
        let mut planted = source.clone();
        let text = if self.file == planted.name {
            &mut planted.text
        } else {
            let header = planted.headers.iter_mut().find(|(name, _)| *name == self.file);
            let missing =
                || MutantError::NoFile { mutant: self.name.clone(), file: self.file.clone() };
            &mut header.ok_or_else(missing)?.1
        };
        let times = text.matches(&self.from).count();
        if times != 1 || self.from.is_empty() {
            return Err(MutantError::Occurs { mutant: self.name.clone(), times });
        }
        *text = text.replacen(&self.from, &self.to, 1);
        Ok(planted)
    }
}

/// A line of a changed text without its sign.
fn changed(line: &str, sign: char) -> Option<&str> {
    let rest = line.strip_prefix(sign)?;
    Some(rest.strip_prefix(' ').unwrap_or(rest))
}

fn join_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// What a hunt for one mutant came to.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The mutant's name.
    pub mutant: String,
    /// How it showed: the build and the failure. `None`: no run noticed it.
    pub found: Option<(Build, Failure)>,
    /// Runs until then.
    pub runs: u32,
}

/// Runs a planted bug until a run fails: `run(build, seed)` for so many seeds of each build in turn.
/// The caller has planted it and compiled what it runs.
pub fn hunt(
    mutant: &Mutant,
    modes: &[(Build, u64)],
    mut run: impl FnMut(Build, u64) -> Result<(), Failure>,
) -> Finding {
    let mut runs = 0;
    for (build, seeds) in modes {
        for seed in 1..=*seeds {
            runs += 1;
            if let Err(failure) = run(*build, seed) {
                let found = Some((*build, failure));
                return Finding { mutant: mutant.name.clone(), found, runs };
            }
        }
    }
    Finding { mutant: mutant.name.clone(), found: None, runs }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# planted\n== no wait\nin ep/a.cuh\n-   wait();\n-   go();\n+   go();\n\n\
                        == same\nin ep/a.cuh\n- x\nequivalent: nobody looks\n";

    fn source(header: &str) -> Source {
        let headers = vec![("ep/a.cuh".to_owned(), header.to_owned())];
        Source { headers, ..Source::default() }
    }

    #[test]
    fn a_list_is_read_and_planted() {
        let mutants = Mutant::parse(LIST).expect("a list");
        assert_eq!(mutants.len(), 2);
        assert_eq!(mutants[0].from, "  wait();\n  go();");
        assert_eq!(mutants[1].equivalent.as_deref(), Some("nobody looks"));
        let planted = mutants[0].plant(&source("{\n  wait();\n  go();\n}")).expect("it is there");
        assert_eq!(planted.headers[0].1, "{\n  go();\n}");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert_eq!(Mutant::parse("in x"), Err(MutantError::Line(1)));
        assert_eq!(Mutant::parse("== a\nnonsense"), Err(MutantError::Line(2)));
        let mutants = Mutant::parse(LIST).expect("a list");
        let twice = mutants[1].plant(&source("x x"));
        assert!(matches!(twice, Err(MutantError::Occurs { times: 2, .. })));
        let nowhere = mutants[1].plant(&Source::default());
        assert!(matches!(nowhere, Err(MutantError::NoFile { .. })));
    }

    #[test]
    fn a_hunt_goes_through_the_modes() {
        let mutants = Mutant::parse(LIST).expect("a list");
        let failure = || Failure::new(crate::FailureKind::Race, "found".to_owned());
        let modes = [(Build::Checked, 3), (Build::Fast, 5)];
        let finding = hunt(&mutants[0], &modes, |build, seed| {
            if build == Build::Fast && seed == 2 { Err(failure()) } else { Ok(()) }
        });
        assert_eq!(finding.runs, 5);
        assert!(matches!(finding.found, Some((Build::Fast, _))));
        assert_eq!(hunt(&mutants[0], &modes, |_, _| Ok(())).runs, 8);
    }
}

//! Planted bugs: edits of the device library or of a kernel's text, one by one.
//!
//! A list of them is a text. Each entry says where it is and what it changes, in one place or, parted
//! by a line `and`, in several; an entry that no mode can find says why:
//!
//! ```text
//! == the tail is told without a release
//! in ep/ends.cuh
//! - add_release_sys(words + there(ring), number)
//! + fetch_add_relaxed_gpu(words + there(ring), number)
//!
//! == the sender does not wait for an acknowledgement
//! in ep/slots.cuh
//! - wait_counter(team_, site, ack);
//! equivalent: with two epochs the exchange itself keeps the ranks close enough
//! ```

use std::fmt;

use crate::program::Source;

/// Bugs for the device library of this version.
pub const DEVICE_LIBRARY: &str = include_str!("../mutants.txt");

/// One planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What is wrong, in a few words.
    pub name: String,
    /// Include name of the header, or name of the text.
    pub file: String,
    /// What is replaced, each of it once in the file, and what it becomes.
    pub edits: Vec<(String, String)>,
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
                let (name, file) = (name.to_owned(), String::new());
                let edits = vec![Default::default()];
                mutants.push(Self { name, file, edits, equivalent: None });
                continue;
            }
            let wrong = MutantError::Line(number + 1);
            let Some(mutant) = mutants.last_mut() else { return Err(wrong) };
            let Some((from, to)) = mutant.edits.last_mut() else { return Err(wrong) };
            if let Some(file) = line.strip_prefix("in ") {
                mutant.file = file.to_owned();
            } else if let Some(why) = line.strip_prefix("equivalent: ") {
                mutant.equivalent = Some(why.to_owned());
            } else if let Some(text) = changed(line, '-') {
                join_line(from, text);
            } else if let Some(text) = changed(line, '+') {
                join_line(to, text);
            } else if line == "and" {
                mutant.edits.push(Default::default());
            } else {
                return Err(wrong);
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
        for (from, to) in &self.edits {
            let times = text.matches(from).count();
            if times != 1 || from.is_empty() {
                return Err(MutantError::Occurs { mutant: self.name.clone(), times });
            }
            *text = text.replacen(from, to, 1);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# planted\n== no wait\nin ep/a.cuh\n-   wait();\n-   go();\n+   go();\n\
                        and\n- }\n+ stop(); }\n\n== same\nin ep/a.cuh\n- x\nequivalent: nobody looks\n";

    fn source(header: &str) -> Source {
        let headers = vec![("ep/a.cuh".to_owned(), header.to_owned())];
        Source { headers, ..Source::default() }
    }

    #[test]
    fn a_list_is_read_and_planted() {
        let mutants = Mutant::parse(LIST).expect("a list");
        assert_eq!(mutants.len(), 2);
        assert_eq!(mutants[0].edits[0].0, "  wait();\n  go();");
        assert_eq!(mutants[1].equivalent.as_deref(), Some("nobody looks"));
        let planted = mutants[0].plant(&source("{\n  wait();\n  go();\n}")).expect("it is there");
        assert_eq!(planted.headers[0].1, "{\n  go();\nstop(); }");
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
}

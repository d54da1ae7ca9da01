//! Mutations of the device library and of printed texts, made by rule.
//!
//! A [`Weaver`] puts every mutation of a text into it, each behind a switch, so that one compilation
//! serves them all; [`Spec::mutation`](crate::Spec::mutation) says which one holds in a run. In the same
//! way [`Coverage`] puts marks into the device library, which tell what runs come to.

mod accesses;
mod constants;
mod coverage;
mod expressions;
mod operators;
mod parse;
mod tokens;
mod tree;
mod weave;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::program::{MOST_MUTATIONS, Source};
use operators::{Change, Edit, Rules};
use weave::{Numbered, refused, weave};

pub use coverage::{Coverage, Spot};
pub use operators::Operator;

/// What a woven text includes.
pub(crate) const HEADER: (&str, &str) =
    ("ep/mutation.h", include_str!("../templates/host/ep/mutation.h"));

/// The twin of the lowest layer, which has no mutations itself: its calls have.
const TWIN: (&str, &str) = ("ep/ptx.cuh", include_str!("../templates/host/ep/ptx.cuh"));

/// In place of a mutation: runs note which ones they come to.
pub const REACHING: u32 = u32::MAX;

/// A mutation of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// What [`Spec::mutation`](crate::Spec::mutation) calls it; from 1 on.
    pub number: u32,
    /// Include name of a header, or name of a text.
    pub file: String,
    /// The line of the file that it is in.
    pub line: u32,
    /// The rule that made it.
    pub operator: Operator,
    /// What it is about, in one line.
    pub from: String,
    /// What that becomes; nothing if it is left out.
    pub to: String,
    /// That line of the text, without white space around it.
    pub code: String,
}

impl fmt::Display for Mutation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, operator, from, to, .. } = self;
        match to.as_str() {
            "" => write!(out, "{file}:{line} {operator}: without `{from}`"),
            _ => write!(out, "{file}:{line} {operator}: `{from}` becomes `{to}`"),
        }
    }
}

/// Why mutations could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MutationError {
    /// A text that is not understood.
    Text {
        /// The text.
        file: String,
        /// Where.
        line: u32,
        /// What is missing there.
        want: String,
    },
    /// More than a run can choose from.
    TooMany,
}

impl fmt::Display for MutationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { file, line, want } => {
                write!(out, "{file}:{line} is not understood: {want} is missing")
            }
            Self::TooMany => write!(out, "more than {MOST_MUTATIONS} mutations"),
        }
    }
}

impl std::error::Error for MutationError {}

fn not_understood(file: &str, wrong: parse::Wrong) -> MutationError {
    MutationError::Text { file: file.to_owned(), line: wrong.line, want: wrong.want }
}

/// Puts mutations into texts, and knows their numbers.
#[derive(Debug, Default)]
pub struct Weaver {
    /// The files that it is about.
    files: BTreeSet<String>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    texts: Vec<KnownText>,
    mutations: Vec<Mutation>,
    changes: Vec<Change>,
    /// Those that no compiler takes.
    refused: BTreeSet<u32>,
    /// Those that texts still have, if not all.
    kept: Option<BTreeSet<u32>>,
}

/// A text whose mutations have numbers: from one on, so many.
#[derive(Debug)]
struct KnownText {
    file: String,
    text: String,
    from: usize,
    count: usize,
}

impl Weaver {
    /// For some files, by include name or name of the text.
    pub fn new(files: impl IntoIterator<Item = String>) -> Self {
        Self { files: files.into_iter().collect(), ..Self::default() }
    }

    /// The mutations of all texts so far that a compiler takes.
    pub fn mutations(&self) -> Vec<Mutation> {
        let known = self.known();
        let taken = |mutation: &&Mutation| known.takes(mutation.number);
        known.mutations.iter().filter(taken).cloned().collect()
    }

    /// Which text of its file, in the order in which they came, a mutation is in.
    pub fn text_of(&self, number: u32) -> usize {
        let holds = |text: &KnownText| {
            (text.from..text.from + text.count).contains(&(number as usize).saturating_sub(1))
        };
        self.known().texts.iter().position(holds).unwrap_or_default()
    }

    /// Leaves all other mutations out of texts that are woven from now on.
    pub fn keep(&self, numbers: BTreeSet<u32>) {
        self.known().kept = Some(numbers);
    }

    /// `source` with all mutations in it; a text that has been seen keeps its numbers.
    pub fn weave(&self, source: &Source) -> Result<Source, MutationError> {
        let mut woven = source.clone();
        for (name, text) in &mut woven.headers {
            if name != TWIN.0 && self.files.contains(name) && source.includes(name) {
                *text = self.text(name, text)?;
            }
        }
        if self.files.contains(&source.name) {
            woven.text = self.text(&source.name, &source.text)?;
        }
        if woven != *source {
            woven.headers.push((HEADER.0.to_owned(), HEADER.1.to_owned()));
        }
        Ok(woven)
    }

    /// Leaves out the mutations that a compiler complains of, for good. Whether it does: another text
    /// may have been refused for the same ones meanwhile.
    pub fn refuse(&self, log: &str) -> bool {
        let numbers = refused(log);
        let complains = !numbers.is_empty();
        self.known().refused.extend(numbers);
        complains
    }

    fn text(&self, file: &str, text: &str) -> Result<String, MutationError> {
        let parsed = parse::parse(text).map_err(|wrong| not_understood(file, wrong))?;
        let mut known = self.known();
        let is_same = |it: &&KnownText| it.file == file && it.text == text;
        let (from, count) = match known.texts.iter().find(is_same) {
            Some(it) => (it.from, it.count),
            None => known.add(file, text, &parsed)?,
        };
        let numbered = (from..from + count)
            .map(|index| Numbered { number: index as u32 + 1, edit: &known.changes[index].edit });
        let taken: Vec<Numbered<'_>> = numbered.filter(|it| known.takes(it.number)).collect();
        Ok(weave(&parsed, file, &taken))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn takes(&self, number: u32) -> bool {
        let is_kept = self.kept.as_ref().is_none_or(|kept| kept.contains(&number));
        is_kept && !self.refused.contains(&number)
    }

    /// Makes the mutations of a text.
    fn add(
        &mut self,
        file: &str,
        text: &str,
        parsed: &parse::Parsed<'_>,
    ) -> Result<(usize, usize), MutationError> {
        let accesses = accesses::accesses(TWIN.1);
        let constants = constants::constants(parsed);
        let mut rules =
            Rules { parsed, accesses: &accesses, constants: &constants, changes: Vec::new() };
        parsed.statements.iter().for_each(|it| rules.statements(std::slice::from_ref(it)));
        let changes = rules.changes;
        let (from, count) = (self.changes.len(), changes.len());
        if from + count >= MOST_MUTATIONS {
            return Err(MutationError::TooMany);
        }
        for (index, change) in changes.iter().enumerate() {
            let tokens = change.edit.tokens();
            let line = parsed.tokens[tokens.start].line;
            let (from_text, to) = match &change.edit {
                Edit::Instead(tokens, to) => (parsed.line_of(tokens.clone()), to.clone()),
                Edit::Without(tokens) => (parsed.line_of(tokens.clone()), String::new()),
                Edit::Before { first, second } => {
                    let [first, second] =
                        [first, second].map(|tokens| parsed.line_of(tokens.clone()));
                    (format!("{first} {second}"), format!("{second} {first}"))
                }
            };
            let code = text.lines().nth(line as usize - 1).unwrap_or_default().trim().to_owned();
            self.mutations.push(Mutation {
                number: (from + index) as u32 + 1,
                file: file.to_owned(),
                line,
                operator: change.operator,
                from: from_text,
                to,
                code,
            });
        }
        self.changes.extend(changes);
        let (file, text) = (file.to_owned(), text.to_owned());
        self.texts.push(KnownText { file, text, from, count });
        Ok((from, count))
    }
}

#[cfg(test)]
mod tests;

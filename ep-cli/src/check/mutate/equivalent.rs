//! Mutations that nothing can find, each with a reason that a reader can check.
//!
//! ```text
//! in ep/sync.cuh
//! = if (turn % 64 != 0) continue;
//! number, operand `turn % 64`, never: how often a wait looks around changes no result
//! ```
//!
//! A line of code, as it stands in the file, and the operators that change nothing there: all changes
//! of that kind in the line, or those of what is quoted, or only those that make something else of it:
//! ``operand `a && b` becomes `a` ``.

use std::fs;
use std::path::Path;

use ep_runtime::host::mutation::Mutation;

const LIST: &str = include_str!("../../../equivalent.txt");

/// The list.
pub(in crate::check) struct Equivalents(Vec<Entry>);

struct Entry {
    file: String,
    code: String,
    kinds: Vec<Kind>,
    reason: String,
}

/// An operator, what it is about, and what that becomes, if not all.
struct Kind {
    operator: String,
    about: Option<String>,
    becomes: Option<String>,
}

impl Equivalents {
    /// The list of this version.
    pub(super) fn known() -> Result<Equivalents, String> {
        Equivalents::parse(LIST)
    }

    /// A list of the same form; a sentence if it is none.
    pub(super) fn read(path: &Path) -> Result<Equivalents, String> {
        let shown = path.display();
        let list = fs::read_to_string(path).map_err(|error| format!("`{shown}`: {error}"))?;
        Equivalents::parse(&list).map_err(|line| format!("`{shown}`: {line} is not understood"))
    }

    pub(in crate::check) fn parse(list: &str) -> Result<Equivalents, String> {
        let (mut entries, mut file, mut code) = (Vec::new(), String::new(), String::new());
        for (number, line) in list.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("in ") {
                file = name.to_owned();
            } else if let Some(text) = line.strip_prefix("= ") {
                code = text.to_owned();
            } else if let Some((kinds, reason)) = parts(line) {
                let (file, code) = (file.clone(), code.clone());
                entries.push(Entry { file, code, kinds, reason });
            } else {
                return Err(format!("line {} of the list of mutations", number + 1));
            }
        }
        Ok(Equivalents(entries))
    }

    /// The reason that a list of lines gives for one, under a word for what is so about it.
    pub(in crate::check) fn reason_of(&self, file: &str, code: &str, word: &str) -> Option<&str> {
        let is_it = |entry: &&Entry| {
            let has_word = entry.kinds.iter().any(|kind| kind.operator == word);
            entry.file == file && entry.code == code && has_word
        };
        self.0.iter().find(is_it).map(|entry| entry.reason.as_str())
    }

    /// The files and lines that it is about.
    #[cfg(test)]
    pub(in crate::check) fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|entry| (entry.file.as_str(), entry.code.as_str()))
    }

    /// Why nothing can find a mutation, if so.
    pub(super) fn reason(&self, mutation: &Mutation) -> Option<String> {
        let is_same = |entry: &&Entry| {
            let is_kind = |kind: &Kind| {
                kind.operator == mutation.operator.name()
                    && kind.about.as_ref().is_none_or(|about| *about == mutation.from)
                    && kind.becomes.as_ref().is_none_or(|becomes| *becomes == mutation.to)
            };
            entry.file == mutation.file
                && entry.code == mutation.code
                && entry.kinds.iter().any(is_kind)
        };
        self.0.iter().find(is_same).map(|entry| entry.reason.clone())
    }
}

/// `operator, operator `text` becomes `text`: reason`.
fn parts(line: &str) -> Option<(Vec<Kind>, String)> {
    let (mut kinds, mut rest) = (Vec::new(), line);
    loop {
        let end = rest.find([' ', ',', ':'])?;
        let (name, behind) = rest.split_at(end);
        let (about, behind) = quoted(behind, " ")?;
        let (becomes, behind) = quoted(behind, " becomes ")?;
        kinds.push(Kind { operator: name.to_owned(), about, becomes });
        match behind.strip_prefix(": ") {
            Some(reason) => return Some((kinds, reason.to_owned())),
            None => rest = behind.strip_prefix(", ")?,
        }
    }
}

/// What is quoted behind `word`, if anything is, and the rest; nothing if the quote has no end.
fn quoted<'a>(text: &'a str, word: &str) -> Option<(Option<String>, &'a str)> {
    match text.strip_prefix(word).and_then(|text| text.strip_prefix('`')) {
        Some(text) => text.split_once('`').map(|(quoted, rest)| (Some(quoted.to_owned()), rest)),
        None => Some((None, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_operators_and_a_reason() {
        let line = "number, operand `a: b`, operand `a, b` becomes `b`, never: it is so, x";
        let (kinds, reason) = parts(line).unwrap();
        let want = [
            ("number", None, None),
            ("operand", Some("a: b"), None),
            ("operand", Some("a, b"), Some("b")),
            ("never", None, None),
        ];
        let kinds: Vec<(&str, Option<&str>, Option<&str>)> = kinds
            .iter()
            .map(|kind| (kind.operator.as_str(), kind.about.as_deref(), kind.becomes.as_deref()))
            .collect();
        assert_eq!(kinds, want);
        assert_eq!(reason, "it is so, x");
        assert!(parts("nothing").is_none());
        assert!(parts("number `1` becomes `2: it has no end").is_none());
        assert!(Equivalents::parse("in a\n= b\nnothing").is_err());
        assert!(Equivalents::known().is_ok());
    }
}

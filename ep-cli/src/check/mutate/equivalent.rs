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
//! ``operand `a && b` becomes `a` ``. Where a file has several that read the same, ``number `0` #2`` is the
//! second of them.
//!
//! ```text
//! in *.cu
//! = for (int * = team.lane; * < *; * += ep::kLanes) {
//! lane: the lanes share the elements in another order
//! ```
//!
//! Printed texts are made by rule, and so are their reasons: one is about all lines of a form, in which `*` stands for
//! anything. Such a reason counts if nothing finds the mutation, which runs on the courses like any other.

use std::fs;
use std::path::Path;

use super::hunt::Target;

const LIST: &str = include_str!("../../../equivalent.txt");

/// The list.
pub(in crate::check) struct Equivalents(Vec<Entry>);

/// The name for all printed texts, whose lines have forms.
const TEXTS: &str = "*.cu";

struct Entry {
    file: String,
    code: String,
    kinds: Vec<Kind>,
    reason: String,
}

/// An operator, what it is about, what that becomes, and which of several that read the same, if not all.
struct Kind {
    operator: String,
    about: Option<String>,
    becomes: Option<String>,
    nth: Option<usize>,
}

impl Kind {
    fn is(&self, Target { mutation, nth, .. }: &Target, same: fn(&str, &str) -> bool) -> bool {
        self.operator == mutation.operator.name()
            && self.about.as_ref().is_none_or(|about| same(about, &mutation.from))
            && self.becomes.as_ref().is_none_or(|becomes| same(becomes, &mutation.to))
            && self.nth.is_none_or(|own| own == *nth)
    }
}

impl Entry {
    /// Whether it is about a mutation of a printed text, as one of its form.
    fn has_form_of(&self, target: &Target) -> bool {
        self.file == TEXTS
            && target.mutation.file.ends_with(".cu")
            && fits(&self.code, &target.mutation.code)
            && self.kinds.iter().any(|kind| kind.is(target, fits))
    }
}

/// Whether a text has a form, in which `*` stands for anything.
fn fits(form: &str, text: &str) -> bool {
    let Some((first, forms)) = form.split_once('*') else { return form == text };
    let Some(rest) = text.strip_prefix(first) else { return false };
    if !forms.contains('*') {
        return rest.len() >= forms.len() && rest.ends_with(forms);
    }
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.into_iter().any(|at| fits(forms, &rest[at..]))
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

    /// Each of these lines stands in its file.
    #[cfg(test)]
    pub(in crate::check) fn check_lines(&self) {
        for (file, code) in self.lines().filter(|(file, _)| *file != TEXTS) {
            let headers = ep_runtime::device::HEADERS.iter();
            let text = headers.filter(|(name, _)| *name == file).map(|(_, text)| text);
            let is_there = text.flat_map(|text| text.lines()).any(|line| line.trim() == code);
            assert!(is_there, "{file} has no `{code}`");
        }
    }

    /// Why nothing can find a mutation, if so.
    pub(super) fn reason(&self, target: &Target) -> Option<String> {
        let is_same = |entry: &&Entry| {
            entry.file == target.mutation.file
                && entry.code == target.mutation.code
                && entry.kinds.iter().any(|kind| kind.is(target, |own, other| own == other))
        };
        self.0.iter().find(is_same).map(|entry| entry.reason.clone())
    }

    /// Why nothing finds a mutation of a printed text, if nothing does.
    pub(super) fn reason_of_form(&self, target: &Target) -> Option<String> {
        let entry = self.0.iter().find(|entry| entry.has_form_of(target));
        entry.map(|entry| entry.reason.clone())
    }
}

/// `operator, operator `text` becomes `text`, operator #2: reason`.
fn parts(line: &str) -> Option<(Vec<Kind>, String)> {
    let (mut kinds, mut rest) = (Vec::new(), line);
    loop {
        let end = rest.find([' ', ',', ':'])?;
        let (name, behind) = rest.split_at(end);
        let (about, behind) = quoted(behind, " ")?;
        let (becomes, behind) = quoted(behind, " becomes ")?;
        let (nth, behind) = numbered(behind)?;
        kinds.push(Kind { operator: name.to_owned(), about, becomes, nth });
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

/// Which one is meant, if it says so, and the rest; nothing if the number is none from 1 on.
fn numbered(text: &str) -> Option<(Option<usize>, &str)> {
    let Some(text) = text.strip_prefix(" #") else { return Some((None, text)) };
    let (number, rest) = text.split_at(text.find([',', ':'])?);
    let number = number.parse().ok().filter(|number| *number > 0)?;
    Some((Some(number), rest))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ep_runtime::host::Programs;
    use ep_runtime::host::mutation::{Mutation, Operator, Weaver};

    use super::super::course::courses;
    use super::super::hunt::targets;
    use super::*;

    #[test]
    fn a_line_names_operators_and_a_reason() {
        let line = "number, operand `a: b`, operand `a, b` becomes `b` #2, never #13: it is so, x";
        let (kinds, reason) = parts(line).unwrap();
        let want = [
            ("number", None, None, None),
            ("operand", Some("a: b"), None, None),
            ("operand", Some("a, b"), Some("b"), Some(2)),
            ("never", None, None, Some(13)),
        ];
        assert_eq!(kinds.len(), want.len());
        for (kind, want) in kinds.iter().zip(want) {
            let Kind { operator, about, becomes, nth } = kind;
            assert_eq!((operator.as_str(), about.as_deref(), becomes.as_deref(), *nth), want);
        }
        assert_eq!(reason, "it is so, x");
        assert!(parts("nothing").is_none());
        assert!(parts("number `1` becomes `2: it has no end").is_none());
        assert!(parts("number #0: it counts from 1 on").is_none());
        assert!(parts("number #x: it is no number").is_none());
        assert!(Equivalents::parse("in a\n= b\nnothing").is_err());
        assert!(Equivalents::known().is_ok());
    }

    #[test]
    fn one_of_several_that_read_the_same_may_be_meant() {
        let list = Equivalents::parse("in a.cuh\n= f(0, 0);\nnumber `0` #2: x\nskip: y").unwrap();
        let reason = |operator, from: &str, nth| {
            let (file, code) = ("a.cuh".to_owned(), "f(0, 0);".to_owned());
            let (from, to) = (from.to_owned(), String::new());
            let mutation = Mutation { number: 1, file, line: 1, operator, from, to, code };
            let numbers = Vec::new();
            list.reason(&Target { place: 0, nth, mutation, numbers, equivalent: None, form: None })
        };
        assert_eq!(reason(Operator::Number, "0", 1), None);
        assert_eq!(reason(Operator::Number, "0", 2).as_deref(), Some("x"));
        assert_eq!(reason(Operator::Number, "1", 2), None);
        assert_eq!(reason(Operator::Skip, "f(0, 0);", 3).as_deref(), Some("y"));
    }

    #[test]
    fn a_form_is_that_of_many_lines() {
        let of = "for (int * = team.lane; * < *; * += ep::kLanes) {";
        assert!(fits(of, "for (int i_2 = team.lane; i_2 < Cfg::kTopk; i_2 += ep::kLanes) {"));
        assert!(!fits(of, "for (int i_2 = team.lane + 1; i_2 < Cfg::kTopk; i_2 += ep::kLanes) {"));
        assert!(!fits(of, "if (a) for (int i = team.lane; i < 2; i += ep::kLanes) {"));
        assert!(fits("a*", "a") && fits("*", "") && fits("a", "a"));
        assert!(!fits("a", "ab") && !fits("ab*ba", "aba") && fits("a*b*c", "abbc"));
    }

    #[test]
    fn lines_of_the_library_are_there() {
        Equivalents::known().expect("it is a list").check_lines();
    }

    #[test]
    fn mutations_of_texts_are_there_at_length() {
        let known = Equivalents::known().expect("it is a list");
        let Ok(programs) = Programs::find() else { return };
        let courses = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let texts: Vec<(String, String)> =
            courses.iter().flat_map(|course| course.texts().expect("they are printed")).collect();
        let weaver = Arc::new(Weaver::new(texts.iter().map(|(entry, _)| format!("{entry}.cu"))));
        let programs = programs.woven(&weaver);
        for (entry, text) in &texts {
            programs.read(entry, text).expect("it is understood");
        }
        let targets = targets(&weaver);
        let mut missing = Vec::new();
        for entry in known.0.iter().filter(|entry| entry.file == TEXTS) {
            for kind in &entry.kinds {
                let is_there = |target: &Target| {
                    fits(&entry.code, &target.mutation.code) && kind.is(target, fits)
                };
                if !targets.iter().any(is_there) {
                    missing
                        .push(format!("{} of {:?} in `{}`", kind.operator, kind.about, entry.code));
                }
            }
        }
        assert!(missing.is_empty(), "no text has {}", missing.join(", "));
    }
}

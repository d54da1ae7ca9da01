//! Refused declarations: the files of `tests/errors` hold cases with one mistake each, those of a file of the
//! diagnostics in the file of that name (`form.rs`) or in others that begin so (`form_expressions.rs`); the
//! snapshot beside a file is what the authors of such declarations read.

use std::collections::BTreeSet;
use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ep_codegen::diagnostics::{Diagnostic, Diagnostics};
use ep_codegen::{check, expansion, syntax};
use ep_tests::{cases, rust_files};

use crate::front_end::SOURCES;
use crate::usual;

/// Cases with more mistakes than one, which show that independent ones are reported together.
const SEVERAL: [(&str, usize); 2] = [("several_mistakes", 4), ("two_mistakes_of_form", 2)];

/// The files of cases, in order of their names.
fn files() -> Vec<PathBuf> {
    rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("errors"))
}

/// Name and text of each case, in order of file and name.
pub(crate) fn fixtures() -> Vec<(String, String)> {
    let text = |path: &PathBuf| fs::read_to_string(path).expect("a file of cases is text");
    files().iter().flat_map(|path| cases(&text(path))).collect()
}

/// What the front end says to a file, without rustc.
fn mistakes(source: &str) -> Diagnostics {
    let mut errors = Diagnostics::new();
    for block in syntax::blocks(source).expect("a fixture is made of Rust tokens") {
        errors.extend(expansion::front_end(block, &|_| Err("no such file".to_string())).1);
    }
    errors
}

/// A case, and what the front end says to it.
struct Case {
    /// The name of its file, without the extension.
    group: String,
    name: String,
    /// What its author reads.
    text: String,
    mistakes: Vec<Mistake>,
}

struct Mistake {
    origin: &'static Location<'static>,
    sentences: Vec<String>,
    help: Option<String>,
}

/// All cases in order of file and name, judged once for all tests.
fn judged() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let mut all = Vec::new();
        for path in files() {
            let group = path.file_stem().expect("a file has a name").to_string_lossy();
            let text = fs::read_to_string(&path).expect("a file of cases is text");
            all.extend(cases(&text).into_iter().map(|(name, source)| {
                let said = mistakes(&source);
                let text = said.in_file(&format!("{name}.rs"), &source);
                let mistakes = said.sorted().into_iter().map(Mistake::of).collect();
                Case { group: group.clone().into_owned(), name, text, mistakes }
            }));
        }
        all
    });
    &CASES
}

impl Mistake {
    fn of(said: &Diagnostic) -> Mistake {
        let sentences = said.labels.iter().map(|place| place.message.clone()).collect();
        Mistake { origin: said.origin, sentences, help: said.help.clone() }
    }
}

#[test]
fn every_case_reads_as_its_snapshot() {
    for cases in judged().chunk_by(|one, other| one.group == other.group) {
        let said = cases.iter().map(|it| format!("//- {}\n{}\n", it.name, it.text.trim_end()));
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../errors");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        let group = cases[0].group.as_str();
        settings.bind(|| insta::assert_snapshot!(group, said.collect::<Vec<_>>().join("\n")));
    }
}

/// A case stands with those of the diagnostics that say its first mistake, under a name of its own.
#[test]
fn a_case_stands_in_the_file_of_its_diagnostics() {
    let mut names = BTreeSet::new();
    for Case { group, name, mistakes, .. } in judged() {
        assert!(names.insert(name), "two cases are called {name}");
        let Some(first) = mistakes.first() else {
            continue; // `a_case_has_one_mistake` says so.
        };
        let first = Path::new(first.origin.file()).file_stem().expect("a source has a name");
        let subject = first.to_string_lossy();
        let is_its = *group == *subject || group.starts_with(&format!("{subject}_"));
        assert!(is_its, "{name} belongs into {subject}.rs, not {group}.rs");
    }
}

#[test]
fn a_case_has_one_mistake() {
    let mut wrong = Vec::new();
    for Case { name, mistakes, .. } in judged() {
        let expected = SEVERAL.iter().find(|(other, _)| other == name).map_or(1, |(_, n)| *n);
        if mistakes.len() != expected {
            wrong.push(format!("{name}: {}", mistakes.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The pipelines of this project are correct.
#[test]
fn valid_pipelines_have_no_mistake() {
    for source in SOURCES {
        let errors = mistakes(source);
        assert!(errors.is_empty(), "{}", errors.to_text(source));
    }
}

/// A sentence is one, in lower case, without a full stop; what can be pasted is short.
#[test]
fn sentences_keep_the_style() {
    for Case { name, mistakes, .. } in judged() {
        for error in mistakes {
            for sentence in &error.sentences {
                assert!(!sentence.starts_with(char::is_uppercase), "{name}: {sentence}");
                assert!(!sentence.contains(". ") && !sentence.ends_with('.'), "{name}: {sentence}");
                assert!(!sentence.contains('\n'), "{name}: {sentence}");
                assert_eq!(sentence.matches('`').count() % 2, 0, "{name}: {sentence}");
            }
            let help = error.help.as_deref().unwrap_or("..");
            assert!(!help.ends_with('.') || help.ends_with(".."), "{name}: {help}");
            assert_eq!(help.matches('`').count() % 2, 0, "{name}: {help}");
        }
    }
}

/// A constructor of `diagnostics/`: file, name, and the lines of its body.
struct Constructor {
    file: String,
    name: String,
    lines: std::ops::Range<u32>,
}

/// Every constructor, read from the sources: a function that gives a `Diagnostic`.
fn constructors() -> Vec<Constructor> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ep-codegen/src/diagnostics");
    let mut found: Vec<Constructor> = Vec::new();
    for entry in fs::read_dir(sources).expect("the diagnostics are a folder") {
        let path = entry.expect("the diagnostics can be read").path();
        let file = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a source is text");
        let mut open: Option<(String, u32)> = None;
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(rest) = text.strip_prefix("pub(crate) fn ") {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                open = Some((name.to_string(), line));
            }
            if text == "}"
                && let Some((name, first)) = open.take()
            {
                found.push(Constructor { file: file.clone(), name, lines: first..line });
            }
        }
    }
    found
}

fn made_by(error: &Mistake, constructor: &Constructor) -> bool {
    let file = Path::new(error.origin.file());
    let in_folder = file.parent().is_some_and(|folder| folder.ends_with("diagnostics"));
    in_folder
        && file.file_name().is_some_and(|name| *name == *constructor.file)
        && constructor.lines.contains(&error.origin.line())
}

#[test]
fn every_constructor_has_a_case() {
    let said: Vec<&Mistake> = judged().iter().flat_map(|case| &case.mistakes).collect();
    let constructors = constructors();
    assert!(constructors.len() > 100, "the sources are read wrongly");
    let silent = constructors
        .iter()
        .filter(|constructor| !said.iter().any(|error| made_by(error, constructor)))
        .map(|constructor| format!("{}::{}", constructor.file, constructor.name));
    let silent: Vec<String> = silent.collect();
    assert!(silent.is_empty(), "no case for {silent:#?}");
}

/// The tokens of a text outside its comments: each with the bytes it takes.
fn tokens(source: &str) -> Vec<std::ops::Range<usize>> {
    fn walk(stream: proc_macro2::TokenStream, out: &mut Vec<std::ops::Range<usize>>) {
        for tree in stream {
            match tree {
                proc_macro2::TokenTree::Group(group) => walk(group.stream(), out),
                other => out.push(other.span().byte_range()),
            }
        }
    }
    let mut out = Vec::new();
    let stream: proc_macro2::TokenStream = source.parse().expect("a source is made of tokens");
    walk(stream, &mut out);
    out
}

/// A declaration with one token missing, and one with it doubled or replaced by one from elsewhere,
/// is judged without a panic, and whatever is said points into the text.
#[test]
fn damaged_declarations_are_judged_without_a_panic_at_length() {
    std::thread::scope(|scope| {
        for source in SOURCES {
            scope.spawn(|| damage_each_token(source));
        }
    });
}

fn damage_each_token(source: &str) {
    let lines = source.lines().count();
    let tokens = tokens(source);
    for (index, token) in tokens.iter().enumerate() {
        if !usual::takes(index, 0, 6) {
            continue;
        }
        let other = &source[tokens[(index * 7 + 3) % tokens.len()].clone()];
        let word = &source[token.clone()];
        let replaced = if index % 2 == 0 { format!("{word} {word}") } else { other.to_string() };
        for changed in ["", &replaced] {
            let (before, after) = (&source[..token.start], &source[token.end..]);
            judge(&format!("{before}{changed}{after}"), lines);
        }
    }
}

/// Parses and checks a text of so many lines.
fn judge(text: &str, lines: usize) {
    let Ok(blocks) = syntax::blocks(text) else { return };
    for block in blocks {
        let (file, mut errors) = syntax::parse(block);
        // What could be read is judged even after a mistake of form.
        errors.extend(check::check(&file));
        for error in errors.sorted() {
            let line = error.labels[0].at.first.start().line;
            assert!((1..=lines).contains(&line), "{} in {text}", error.message());
        }
    }
}

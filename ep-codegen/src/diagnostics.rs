//! Errors for the author of a declaration, as plain data, and their two printed forms.
//!
//! Every sentence that `check` can say has one constructor in the modules below, by family of
//! rules; tests hold that each of them is said by a case of `tests/errors`.

pub(crate) mod channels;
pub(crate) mod cuda_fn;
pub(crate) mod deadlock;
pub(crate) mod form;
pub(crate) mod fragments;
pub(crate) mod handles;
pub(crate) mod limits;
pub(crate) mod message_order;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod numbers;
pub(crate) mod phases;
pub(crate) mod roles;
pub(crate) mod tables;
pub(crate) mod types;
pub(crate) mod values;
pub(crate) mod variants;
pub(crate) mod words;

use std::panic::Location;

use proc_macro2::{Delimiter, Group, Ident, Literal, Punct, Spacing, TokenStream, TokenTree};
use quote::quote;

use crate::ast::{Origin, Span, TokenRange};

/// One mistake: a sentence at the smallest wrong token, and what to write instead.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// The error first, then places that disagree with it; each sentence stands alone.
    pub labels: Vec<Label>,
    /// What to write instead, without the `help:`.
    pub help: Option<String>,
    /// The constructor that made it: tests compare these with the list of constructors.
    pub origin: &'static Location<'static>,
    /// A word stands for nothing; what would follow from its absence is not judged.
    pub(crate) unresolved: bool,
}

/// A sentence and the tokens it is about.
#[derive(Debug, Clone)]
pub struct Label {
    /// The tokens.
    pub at: TokenRange,
    /// The sentence: lower case, names in backticks, no full stop.
    pub message: String,
}

impl Label {
    /// The sentence as a warning, with the line of `file` that it is about; `source` is the text of the file.
    pub fn warning_in_file(&self, file: &str, source: &str) -> String {
        excerpt("warning", self, None, Some(file), source)
    }
}

impl Diagnostic {
    /// An error at `at`.
    #[track_caller]
    pub fn new(at: impl Into<TokenRange>, message: impl Into<String>) -> Diagnostic {
        let labels = vec![Label { at: at.into(), message: message.into() }];
        Diagnostic { labels, help: None, origin: Location::caller(), unresolved: false }
    }

    /// Adds text that can be pasted.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// Adds a second place; its sentence must make sense without the first.
    pub fn also(mut self, at: impl Into<TokenRange>, message: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { at: at.into(), message: message.into() });
        self
    }

    /// Marks the error of a word that stands for nothing.
    pub(crate) fn unresolved(mut self) -> Diagnostic {
        self.unresolved = true;
        self
    }

    /// The sentence of the error itself.
    pub fn message(&self) -> &str {
        self.labels.first().map_or("", |place| &place.message)
    }

    fn position(&self) -> (usize, usize) {
        self.labels.first().map_or((0, 0), |place| {
            let start = place.at.first.start();
            (start.line, start.column)
        })
    }
}

/// The errors of one stage.
#[derive(Debug, Clone, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// No errors.
    pub fn new() -> Diagnostics {
        Diagnostics::default()
    }

    /// Adds an error.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.list.push(diagnostic);
    }

    /// The errors without repeats: rules that run once per choice of arms find some errors
    /// again, and a word that stands for nothing is one mistake however often it is used.
    pub fn without_repeats(self) -> Diagnostics {
        let mut list: Vec<Diagnostic> = Vec::new();
        let mut all = self.list;
        all.sort_by_key(Diagnostic::position);
        for diagnostic in all {
            let same = |other: &Diagnostic| {
                other.message() == diagnostic.message()
                    && (diagnostic.unresolved || other.position() == diagnostic.position())
            };
            if !list.iter().any(same) {
                list.push(diagnostic);
            }
        }
        Diagnostics { list }
    }

    /// Adds the errors of `other`.
    pub fn extend(&mut self, other: Diagnostics) {
        self.list.extend(other.list);
    }

    /// Whether there is no error.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether a word stands for nothing.
    pub(crate) fn has_unresolved(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.unresolved)
    }

    /// The errors of a file that the block names at `at`.
    pub(crate) fn at_file(mut self, at: Span, path: &str) -> Diagnostics {
        for label in self.list.iter_mut().flat_map(|diagnostic| &mut diagnostic.labels) {
            label.at = at.into();
            label.message = format!("`{path}`: {}", label.message);
        }
        self
    }

    /// Adds to each place in a fragment what stands there.
    pub(crate) fn trace(&mut self, origins: &[Origin]) {
        for diagnostic in &mut self.list {
            let mut traced = Vec::new();
            for label in std::mem::take(&mut diagnostic.labels) {
                let at = label.at;
                diagnostic.labels.push(label);
                for (index, origin) in Origin::of(at, origins) {
                    if !traced.contains(&index) {
                        traced.push(index);
                        let at = origin.at.unwrap_or(at);
                        diagnostic.labels.push(Label { at, message: origin.to_string() });
                    }
                }
            }
        }
    }

    /// The errors in order of position.
    pub fn sorted(&self) -> Vec<&Diagnostic> {
        let mut sorted: Vec<&Diagnostic> = self.list.iter().collect();
        sorted.sort_by_key(|diagnostic| diagnostic.position());
        sorted
    }

    /// A `compile_error!` per place, so that rustc prints each at its tokens.
    pub fn to_tokens(&self) -> TokenStream {
        let mut out = TokenStream::new();
        for diagnostic in self.sorted() {
            for (index, place) in diagnostic.labels.iter().enumerate() {
                let text = match &diagnostic.help {
                    Some(help) if index == 0 => format!("{}\n\nhelp: {help}", place.message),
                    _ => place.message.clone(),
                };
                out.extend(compile_error(place.at, &text));
            }
        }
        out
    }

    /// The errors as rustc would show them, for tests; `source` is the text that was parsed.
    pub fn to_text(&self, source: &str) -> String {
        self.excerpts(None, source)
    }

    /// [`Diagnostics::to_text`] with the line that says where in which file each error stands.
    pub fn in_file(&self, file: &str, source: &str) -> String {
        self.excerpts(Some(file), source)
    }

    fn excerpts(&self, file: Option<&str>, source: &str) -> String {
        let mut out = String::new();
        for diagnostic in self.sorted() {
            for (index, place) in diagnostic.labels.iter().enumerate() {
                let help = if index == 0 { diagnostic.help.as_deref() } else { None };
                out.push_str(&excerpt("error", place, help, file, source));
            }
        }
        out
    }
}

/// `` `a`, `b` and `c` ``; words that bring their own quotes keep them.
pub(crate) fn listed(words: &[String], last: &str) -> String {
    let quote = |word: &String| {
        if word.contains('`') { word.clone() } else { format!("`{word}`") }
    };
    match words {
        [] => String::new(),
        [only] => quote(only),
        [rest @ .., end] => {
            let rest: Vec<String> = rest.iter().map(quote).collect();
            format!("{} {last} {}", rest.join(", "), quote(end))
        }
    }
}

/// `::core::compile_error! { "text" }`. rustc underlines from the span of the first token to the
/// span of the last one, which is how a range of tokens is marked without `Span::join`.
fn compile_error(at: TokenRange, text: &str) -> TokenStream {
    let punct = |character, spacing| {
        let mut punct = Punct::new(character, spacing);
        punct.set_span(at.first.token);
        TokenTree::Punct(punct)
    };
    let mut literal = Literal::string(text);
    literal.set_span(at.first.token);
    let mut group = Group::new(Delimiter::Brace, TokenTree::Literal(literal).into());
    group.set_span(at.last.token);
    [
        punct(':', Spacing::Joint),
        punct(':', Spacing::Alone),
        TokenTree::Ident(Ident::new("core", at.first.token)),
        punct(':', Spacing::Joint),
        punct(':', Spacing::Alone),
        TokenTree::Ident(Ident::new("compile_error", at.first.token)),
        punct('!', Spacing::Alone),
        TokenTree::Group(group),
    ]
    .into_iter()
    .collect()
}

/// The use of a deprecated constant, which rustc warns about with the sentence at the first of the tokens: a macro
/// cannot give warnings of its own. Both have the span of that token, and thus the lint levels around it.
pub(crate) fn one_warp(at: TokenRange, sentence: &str) -> TokenStream {
    let name = Ident::new("one_warp_of_the_grid", at.first.token);
    quote!(const _: () = {
        #[deprecated(note = #sentence)]
        #[allow(non_upper_case_globals, reason = "rustc names it in its warning")]
        const #name: () = ();
        #name
    };)
}

/// The sentence, the line it is about with carets below the tokens, and the help.
fn excerpt(
    kind: &str,
    place: &Label,
    help: Option<&str>,
    file: Option<&str>,
    source: &str,
) -> String {
    let (start, end) = (place.at.first.start(), place.at.last.end());
    let line = source.lines().nth(start.line.saturating_sub(1)).unwrap_or("");
    let stop = if end.line == start.line { end.column } else { line.chars().count() };
    let carets = "^".repeat(stop.saturating_sub(start.column).max(1));
    let number = start.line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat(start.column);
    let mut out = format!("{kind}: {}\n", place.message);
    if let Some(file) = file {
        out.push_str(&format!("{margin}--> {file}:{}:{}\n", start.line, start.column + 1));
    }
    out.push_str(&format!("{margin} |\n{number} | {line}\n{margin} | {indent}{carets}\n"));
    for line in help.unwrap_or_default().lines() {
        let tag = if help.is_some_and(|help| help.starts_with(line)) { "help: " } else { "      " };
        out.push_str(&format!("{margin} = {tag}{line}\n"));
    }
    out.push('\n');
    out
}

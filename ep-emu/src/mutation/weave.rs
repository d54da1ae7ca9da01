//! A text with all its mutations in it, each behind a switch that the run time sets: one compilation
//! serves them all.
//!
//! Lines keep their numbers. What belongs to a mutation is line N of a file `mutation`, where N is its
//! number, so that a compiler's complaint says which one does not compile.

use std::collections::BTreeMap;

use super::operators::Edit;
use super::parse::Parsed;
use super::tree::Tokens;

/// A change and its number.
pub(super) struct Numbered<'a> {
    pub(super) number: u32,
    pub(super) edit: &'a Edit,
}

/// What is put around some tokens.
#[derive(Default)]
struct Around {
    /// Mutated expressions.
    instead: Vec<(u32, String)>,
    /// Mutations without the statement.
    without: Vec<u32>,
}

/// The text of the file `name` with its changes in it.
pub(super) fn weave(parsed: &Parsed<'_>, name: &str, changes: &[Numbered<'_>]) -> String {
    let mut around: BTreeMap<(usize, std::cmp::Reverse<usize>), Around> = BTreeMap::new();
    let mut before: BTreeMap<usize, String> = BTreeMap::new();
    let mut of = |tokens: &Tokens, number: u32, text: Option<&String>| {
        let key = (tokens.start, std::cmp::Reverse(tokens.end));
        let around = around.entry(key).or_default();
        match text {
            Some(text) => around.instead.push((number, text.clone())),
            None => around.without.push(number),
        }
    };
    for Numbered { number, edit } in changes {
        match edit {
            Edit::Instead(tokens, text) => of(tokens, *number, Some(text)),
            Edit::Without(tokens) => of(tokens, *number, None),
            Edit::Before { first, second } => {
                let copy = parsed.line_of(second.clone());
                let line = parsed.tokens[first.start].line;
                let text = format!(
                    "\n#line {number} \"mutation\"\nif (EMU_MUTATION({number})) {{ {copy} }}\n\
                     #line {line} \"{name}\"\n"
                );
                before.entry(first.start).or_default().push_str(&text);
                of(second, *number, None);
            }
        }
    }
    // Outer ones come first, and so they open first and close last.
    let mut opens: BTreeMap<usize, String> = before;
    let mut closes: BTreeMap<usize, String> = BTreeMap::new();
    for ((start, std::cmp::Reverse(end)), around) in around {
        let line = parsed.tokens[start].line;
        let (open, close) = around.texts(&format!("\n#line {line} \"{name}\"\n"));
        opens.entry(start).or_default().push_str(&open);
        closes.entry(end - 1).or_default().insert_str(0, &close);
    }
    if changes.is_empty() {
        return parsed.text.to_owned();
    }
    let mut woven = format!("#include <ep/mutation.h>\n#line 1 \"{name}\"\n");
    let mut from = 0;
    for (at, token) in parsed.tokens.iter().enumerate() {
        woven.push_str(&parsed.text[from..token.bytes.start]);
        woven.push_str(opens.get(&at).map_or("", String::as_str));
        woven.push_str(&parsed.text[token.bytes.clone()]);
        woven.push_str(closes.get(&at).map_or("", String::as_str));
        from = token.bytes.end;
    }
    woven.push_str(&parsed.text[from..]);
    woven
}

impl Around {
    /// What comes before and behind; `back` leads to the file again.
    fn texts(&self, back: &str) -> (String, String) {
        let (mut open, mut close) = (String::new(), String::new());
        if !self.without.is_empty() {
            let numbers = self.without.iter().map(|number| format!("!EMU_MUTATION({number})"));
            let test = numbers.collect::<Vec<String>>().join(" && ");
            let first = self.without[0];
            open = format!("\n#line {first} \"mutation\"\n{{ if ({test}) {back}");
            close = " }".to_owned();
        }
        if !self.instead.is_empty() {
            // A complaint about all of it is about where it begins.
            let first = self.instead[0].0;
            open.push_str(&format!("\n#line {first} \"mutation\"\n("));
            for (number, text) in &self.instead {
                open.push_str(&format!(
                    "\n#line {number} \"mutation\"\nEMU_MUTATION({number}) ? ({text}) :"
                ));
            }
            open.push_str(back);
            open.push('(');
            close.insert_str(0, "))");
        }
        (open, close)
    }
}

/// The numbers of the mutations that a compiler complains of.
pub(super) fn refused(log: &str) -> Vec<u32> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("mutation:")?;
        let (number, rest) = rest.split_once(':')?;
        rest.contains("error").then(|| number.parse().ok())?
    };
    let mut all: Vec<u32> = log.lines().filter_map(number).collect();
    all.sort_unstable();
    all.dedup();
    all
}

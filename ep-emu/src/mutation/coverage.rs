//! Which lines and branches of the device library runs come to: a header is woven with a mark at each
//! statement and at each outcome of a condition.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::{Parsed, parse};
use super::tree::{Act, Form, Node, Statement};
use super::{HEADER, MutationError, TWIN, not_understood};
use crate::program::{MOST_MUTATIONS, Source};

/// Something that a run may come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Include name of the header.
    pub file: String,
    /// Its line.
    pub line: u32,
    /// The outcome of a condition, or none: the statement there.
    pub outcome: Option<bool>,
}

/// Headers with marks in them.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Woven headers, by include name.
    woven: BTreeMap<String, String>,
    spots: Vec<Spot>,
}

impl Coverage {
    /// Of these headers, by include name and text; the lowest layer has a twin and is left out.
    pub fn new(headers: &[(&str, &str)]) -> Result<Self, MutationError> {
        let mut all = Self::default();
        for (file, text) in headers.iter().filter(|(file, _)| *file != TWIN.0) {
            let parsed = parse(text).map_err(|wrong| not_understood(file, wrong))?;
            let mut marks =
                Marks { parsed: &parsed, file, spots: &mut all.spots, texts: BTreeMap::new() };
            for function in &parsed.statements {
                // What is outside of functions runs nowhere.
                if let Act::Block(statements) | Act::Constant(statements) = &function.act {
                    marks.block(statements);
                }
            }
            let woven = marks.woven();
            all.woven.insert((*file).to_owned(), woven);
        }
        if all.spots.len() >= MOST_MUTATIONS {
            return Err(MutationError::TooMany);
        }
        Ok(all)
    }

    /// `source` with marks in its headers.
    pub fn weave(&self, source: &Source) -> Source {
        let mut woven = source.clone();
        for (name, text) in &mut woven.headers {
            if let Some(marked) = self.woven.get(name) {
                text.clone_from(marked);
            }
        }
        woven.headers.push((HEADER.0.to_owned(), HEADER.1.to_owned()));
        woven
    }

    /// All spots, and whether runs that came to these marks came there.
    pub fn spots(&self, reached: &BTreeSet<u32>) -> impl Iterator<Item = (&Spot, bool)> {
        (0..).zip(&self.spots).map(|(number, spot)| (spot, reached.contains(&number)))
    }
}

/// The marks of a header.
struct Marks<'a> {
    parsed: &'a Parsed<'a>,
    file: &'a str,
    spots: &'a mut Vec<Spot>,
    /// What is put before tokens and behind them, by token.
    texts: BTreeMap<usize, (String, String)>,
}

impl Marks<'_> {
    fn block(&mut self, statements: &[Statement]) {
        for statement in statements {
            match &statement.act {
                // The compiler computes it.
                Act::Declaration { fixed: true, .. } => {}
                // Names go on behind it, so that no braces can be around it.
                Act::Declaration { values, .. } if !values.is_empty() => {
                    let mark = self.mark(statement);
                    self.before(statement.tokens.start, &mark);
                    values.iter().for_each(|value| self.expression(value));
                }
                _ => self.statement(statement),
            }
        }
    }

    fn statement(&mut self, statement: &Statement) {
        match &statement.act {
            Act::Expression(node) => {
                self.braced(statement);
                self.expression(node);
            }
            Act::Return(value) => {
                self.braced(statement);
                value.iter().for_each(|value| self.expression(value));
            }
            Act::Other => {
                if matches!(self.parsed.word(statement.tokens.start), "break" | "continue") {
                    self.braced(statement);
                }
            }
            Act::Declaration { .. } => {}
            Act::If { condition, fixed, then, other } => {
                if !fixed {
                    self.condition(condition);
                }
                self.statement(then);
                other.iter().for_each(|other| self.statement(other));
            }
            Act::While { condition, body } => {
                self.condition(condition);
                self.statement(body);
            }
            Act::For { condition, body, .. } => {
                condition.iter().for_each(|condition| self.condition(condition));
                self.statement(body);
            }
            Act::Block(statements) | Act::Constant(statements) => self.block(statements),
        }
    }

    /// Marks both outcomes of each part of a condition.
    fn condition(&mut self, node: &Node) {
        match &node.form {
            Form::Binary(sign, left, right) if is_logic(sign) => {
                self.condition(left);
                self.condition(right);
            }
            _ => {
                let (first, last) = (node.tokens.start, node.tokens.end - 1);
                let number = self.spots.len();
                for outcome in [true, false] {
                    self.spot(first, Some(outcome));
                }
                self.before(first, &format!("EMU_EITHER({number}, ("));
                self.behind(last, "))");
                self.expression(node);
            }
        }
    }

    /// Marks the conditions inside of an expression.
    fn expression(&mut self, node: &Node) {
        match &node.form {
            Form::Name | Form::Number | Form::Other => {}
            Form::Paren(inner) | Form::Postfix(inner) | Form::Member(inner) => {
                self.expression(inner)
            }
            Form::Prefix(_, inner) => self.expression(inner),
            Form::Binary(sign, ..) if is_logic(sign) => self.condition(node),
            Form::Binary(_, left, right) | Form::Index(left, right) => {
                self.expression(left);
                self.expression(right);
            }
            Form::Choice(condition, yes, no) => {
                self.condition(condition);
                self.expression(yes);
                self.expression(no);
            }
            Form::Call(callee, arguments) => {
                self.expression(callee);
                arguments.iter().for_each(|argument| self.expression(argument));
            }
            Form::Braces(values) => values.iter().for_each(|value| self.expression(value)),
            Form::Lambda(statements) => self.block(statements),
        }
    }

    fn braced(&mut self, statement: &Statement) {
        let mark = self.mark(statement);
        self.before(statement.tokens.start, &format!("{{ {mark}"));
        self.behind(statement.tokens.end - 1, " }");
    }

    fn mark(&mut self, statement: &Statement) -> String {
        let number = self.spots.len();
        self.spot(statement.tokens.start, None);
        format!("EMU_MARK({number}); ")
    }

    fn spot(&mut self, token: usize, outcome: Option<bool>) {
        let line = self.parsed.tokens[token].line;
        self.spots.push(Spot { file: self.file.to_owned(), line, outcome });
    }

    /// What is inside comes later, and so nearer to the token.
    fn before(&mut self, token: usize, text: &str) {
        self.texts.entry(token).or_default().0.push_str(text);
    }

    fn behind(&mut self, token: usize, text: &str) {
        self.texts.entry(token).or_default().1.insert_str(0, text);
    }

    fn woven(&self) -> String {
        let mut woven = format!("#include <{}>\n#line 1 \"{}\"\n", HEADER.0, self.file);
        let mut from = 0;
        for (token, (before, behind)) in &self.texts {
            let bytes = self.parsed.tokens[*token].bytes.clone();
            woven.push_str(&self.parsed.text[from..bytes.start]);
            woven.push_str(before);
            woven.push_str(&self.parsed.text[bytes.clone()]);
            woven.push_str(behind);
            from = bytes.end;
        }
        woven.push_str(&self.parsed.text[from..]);
        woven
    }
}

fn is_logic(sign: &str) -> bool {
    matches!(sign, "&&" | "||")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woven(text: &str) -> (String, Vec<(u32, Option<bool>)>) {
        let coverage = Coverage::new(&[("ep/a.cuh", text)]).expect("it is understood");
        let source =
            Source { headers: vec![("ep/a.cuh".to_owned(), text.to_owned())], ..Source::default() };
        let text = coverage.weave(&source).headers[0].1.clone();
        let spots = coverage.spots.iter().map(|spot| (spot.line, spot.outcome)).collect();
        (text.split_once("\"\n").expect("a line").1.to_owned(), spots)
    }

    #[test]
    fn statements_and_outcomes_have_marks() {
        let (text, spots) = woven(
            "int f(int a) {\n    int b = a;\n    if (a > 1 && b) return 2;\n    return b;\n}\n",
        );
        assert_eq!(
            text,
            "int f(int a) {\n    EMU_MARK(0); int b = a;\n    \
             if (EMU_EITHER(1, (a > 1)) && EMU_EITHER(3, (b))) { EMU_MARK(5); return 2; }\n    \
             { EMU_MARK(6); return b; }\n}\n"
        );
        let want = [
            (2, None),
            (3, Some(true)),
            (3, Some(false)),
            (3, Some(true)),
            (3, Some(false)),
            (3, None),
            (4, None),
        ];
        assert_eq!(spots, want);
    }

    #[test]
    fn what_the_compiler_computes_has_none() {
        let text = "constexpr int kA = 1;\nstruct B { int x = 2; };\n\
                    void f() { constexpr int b = kA; if constexpr (b > 0) {} using C = B; }\n";
        let (same, spots) = woven(text);
        assert_eq!((same.as_str(), spots), (text, Vec::new()));
    }

    #[test]
    fn a_run_comes_to_some_spots() {
        let coverage = Coverage::new(&[("ep/a.cuh", "void f() {\n a();\n b();\n}")]);
        let coverage = coverage.expect("it is understood");
        let reached: Vec<(u32, bool)> =
            coverage.spots(&BTreeSet::from([1])).map(|(spot, is)| (spot.line, is)).collect();
        assert_eq!(reached, [(2, false), (3, true)]);
    }
}

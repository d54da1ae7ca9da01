//! Expressions of C++, as clang-format spaces them: a `<` without space before it opens template
//! arguments.

use super::parse::{Parser, Wrong};
use super::tokens::Kind;
use super::tree::{Form, Node};

const ASSIGNMENTS: [&str; 11] = ["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="];

/// Binary signs by how tightly they bind.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

const PREFIXES: [&str; 8] = ["!", "~", "-", "+", "*", "&", "++", "--"];

impl Parser<'_> {
    /// Expressions with commas between them, as one.
    pub(super) fn expressions(&mut self) -> Result<Node, Wrong> {
        let mut left = self.expression()?;
        while self.is(",") {
            self.at += 1;
            if self.is("...") {
                // For every one of a pack.
                self.at += 1;
                return Ok(left);
            }
            let right = self.expression()?;
            left = binary(",", left, right);
        }
        Ok(left)
    }

    /// An expression without a comma outside of parentheses.
    pub(super) fn expression(&mut self) -> Result<Node, Wrong> {
        let from = self.at;
        let left = self.operands(0)?;
        if self.is("?") {
            self.at += 1;
            let yes = self.expression()?;
            self.expect(":")?;
            let no = self.expression()?;
            let form = Form::Choice(Box::new(left), Box::new(yes), Box::new(no));
            return Ok(Node { tokens: from..self.at, form });
        }
        let sign = self.word().to_owned();
        if ASSIGNMENTS.contains(&sign.as_str()) {
            self.at += 1;
            let right = self.expression()?;
            return Ok(binary(&sign, left, right));
        }
        Ok(left)
    }

    fn operands(&mut self, level: usize) -> Result<Node, Wrong> {
        let Some(signs) = LEVELS.get(level) else { return self.operand() };
        let mut left = self.operands(level + 1)?;
        loop {
            let (sign, length) = self.binary_sign();
            if !signs.contains(&sign.as_str()) {
                return Ok(left);
            }
            self.at += length;
            if self.is("...") {
                // Of all of a pack.
                self.at += 1;
                return Ok(left);
            }
            let right = self.operands(level + 1)?;
            left = binary(&sign, left, right);
        }
    }

    /// The sign here, and how many tokens it is.
    fn binary_sign(&self) -> (String, usize) {
        let shift = self.is(">") && self.word_at(self.at + 1) == ">" && !self.spaced(self.at + 1);
        if shift { (">>".to_owned(), 2) } else { (self.word().to_owned(), 1) }
    }

    fn operand(&mut self) -> Result<Node, Wrong> {
        let from = self.at;
        let sign = self.word().to_owned();
        if PREFIXES.contains(&sign.as_str()) {
            self.at += 1;
            let inner = self.operand()?;
            let form = Form::Prefix(sign, Box::new(inner));
            return Ok(Node { tokens: from..self.at, form });
        }
        let first = self.primary()?;
        self.behind(first)
    }

    fn primary(&mut self) -> Result<Node, Wrong> {
        let from = self.at;
        let form = match (self.kind(), self.word()) {
            (Some(Kind::Number), _) => {
                self.at += 1;
                Form::Number
            }
            (Some(Kind::Quoted), _) => {
                self.at += 1;
                Form::Other
            }
            (Some(Kind::Word), _) | (_, "::") => {
                self.name()?;
                Form::Name
            }
            (_, "(") => {
                self.at += 1;
                let inner = self.expressions()?;
                self.expect(")")?;
                Form::Paren(Box::new(inner))
            }
            (_, "{") => Form::Braces(self.list("{", "}")?),
            (_, "[") => {
                self.group()?;
                if self.is("(") {
                    self.group()?;
                }
                while !self.is("{") {
                    self.at += 1;
                    self.there()?;
                }
                Form::Lambda(self.block()?)
            }
            _ => return Err(self.wrong("an expression")),
        };
        Ok(Node { tokens: from..self.at, form })
    }

    /// What stands behind an operand.
    fn behind(&mut self, mut node: Node) -> Result<Node, Wrong> {
        let from = node.tokens.start;
        loop {
            let inner = |node: Node| Box::new(node);
            let form = match self.word() {
                "(" => {
                    let arguments = self.list("(", ")")?;
                    Form::Call(inner(node), arguments)
                }
                "{" if matches!(node.form, Form::Name) && !self.spaced(self.at) => {
                    Form::Braces(self.list("{", "}")?)
                }
                "[" => {
                    self.at += 1;
                    let index = self.expressions()?;
                    self.expect("]")?;
                    Form::Index(inner(node), Box::new(index))
                }
                "." | "->" => {
                    self.at += 1;
                    self.name()?;
                    Form::Member(inner(node))
                }
                "++" | "--" => {
                    self.at += 1;
                    Form::Postfix(inner(node))
                }
                _ => return Ok(node),
            };
            node = Node { tokens: from..self.at, form };
        }
    }

    /// Expressions in brackets.
    pub(super) fn list(&mut self, open: &str, close: &str) -> Result<Vec<Node>, Wrong> {
        self.expect(open)?;
        let mut all = Vec::new();
        while !self.is(close) {
            all.push(self.expression()?);
            self.at += usize::from(self.is("..."));
            if !self.is(close) {
                self.expect(",")?;
            }
        }
        self.at += 1;
        Ok(all)
    }

    /// A name with all that qualifies it.
    pub(super) fn name(&mut self) -> Result<(), Wrong> {
        if self.is("::") {
            self.at += 1;
        }
        loop {
            while matches!(self.word(), "template" | "typename") {
                self.at += 1;
            }
            if self.kind() != Some(Kind::Word) {
                return Err(self.wrong("a name"));
            }
            // A sign may follow `operator`; no text calls one by its name.
            self.at += 1;
            if self.is("<") && !self.spaced(self.at) && !self.spaced(self.at + 1) {
                self.angles()?;
            }
            if !self.is("::") {
                return Ok(());
            }
            self.at += 1;
        }
    }
}

fn binary(sign: &str, left: Node, right: Node) -> Node {
    let tokens = left.tokens.start..right.tokens.end;
    Node { tokens, form: Form::Binary(sign.to_owned(), Box::new(left), Box::new(right)) }
}

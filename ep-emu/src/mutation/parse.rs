//! The declarations and statements of a text.

use super::tokens::{Kind, Token, tokens};
use super::tree::{Act, Node, Statement, Tokens};

/// A text that is not understood: the line, and what is missing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: u32,
    pub(super) want: String,
}

/// Where a text is read.
pub(super) struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    pub(super) at: usize,
}

/// A text with its tokens, and the statements of its functions.
pub(super) struct Parsed<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Token>,
    pub(super) statements: Vec<Statement>,
}

impl Parsed<'_> {
    /// The text of one token.
    pub(super) fn word(&self, token: usize) -> &str {
        self.tokens.get(token).map_or("", |token| &self.text[token.bytes.clone()])
    }

    /// The text of some tokens in one line, without comments.
    pub(super) fn line_of(&self, tokens: Tokens) -> String {
        let mut line = String::new();
        for at in tokens {
            if self.tokens[at].spaced && !line.is_empty() {
                line.push(' ');
            }
            line.push_str(self.word(at));
        }
        line
    }
}

/// Reads a text.
pub(super) fn parse(text: &str) -> Result<Parsed<'_>, Wrong> {
    let mut parser = Parser { text, tokens: tokens(text), at: 0 };
    let mut statements = Vec::new();
    while parser.there().is_ok() {
        parser.declaration(&mut statements)?;
    }
    let Parser { tokens, .. } = parser;
    Ok(Parsed { text, tokens, statements })
}

const TYPE_WORDS: [&str; 5] = ["static", "const", "constexpr", "volatile", "typename"];

/// Words with an argument in parentheses that declare nothing.
const ATTRIBUTES: [&str; 3] = ["alignas", "__launch_bounds__", "__align__"];

impl<'a> Parser<'a> {
    pub(super) fn word_at(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| &self.text[token.bytes.clone()])
    }

    pub(super) fn word(&self) -> &'a str {
        self.word_at(self.at)
    }

    pub(super) fn is(&self, word: &str) -> bool {
        self.word() == word
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    pub(super) fn spaced(&self, at: usize) -> bool {
        self.tokens.get(at).is_none_or(|token| token.spaced)
    }

    pub(super) fn wrong(&self, want: &str) -> Wrong {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        Wrong { line: token.map_or(1, |token| token.line), want: want.to_owned() }
    }

    /// Whether a token is left.
    pub(super) fn there(&self) -> Result<(), Wrong> {
        if self.at < self.tokens.len() { Ok(()) } else { Err(self.wrong("more text")) }
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), Wrong> {
        if !self.is(word) {
            return Err(self.wrong(&format!("`{word}`")));
        }
        self.at += 1;
        Ok(())
    }

    /// Goes behind a group in brackets.
    pub(super) fn group(&mut self) -> Result<(), Wrong> {
        let mut open = 0;
        loop {
            self.there()?;
            match self.word() {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open -= 1,
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// Goes behind template arguments.
    pub(super) fn angles(&mut self) -> Result<(), Wrong> {
        let mut open = 0;
        loop {
            self.there()?;
            match self.word() {
                "(" | "[" | "{" => {
                    self.group()?;
                    continue;
                }
                "<" => open += 1,
                ">" => open -= 1,
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    fn through(&mut self, end: &str) -> Result<(), Wrong> {
        while !self.is(end) {
            self.there()?;
            match self.word() {
                "(" | "[" | "{" => self.group()?,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    /// A declaration outside of functions; the statements of functions in it go to `into`.
    fn declaration(&mut self, into: &mut Vec<Statement>) -> Result<(), Wrong> {
        match self.word() {
            ";" => self.at += 1,
            "public" | "private" | "protected" => self.at += 2,
            "using" | "static_assert" | "typedef" | "friend" | "enum" => self.through(";")?,
            "namespace" => {
                while !self.is("{") {
                    self.at += 1;
                    self.there()?;
                }
                self.members(into)?;
            }
            "template" => {
                self.at += 1;
                self.angles()?;
                self.declaration(into)?;
            }
            "struct" | "class" | "union" => {
                while !matches!(self.word(), "{" | ";") {
                    match self.word() {
                        // As of `alignas`.
                        "(" => self.group()?,
                        "<" => self.angles()?,
                        _ => self.at += 1,
                    }
                    self.there()?;
                }
                if self.is("{") {
                    self.members(into)?;
                }
                self.through(";")?;
            }
            _ => self.named(into)?,
        }
        Ok(())
    }

    fn members(&mut self, into: &mut Vec<Statement>) -> Result<(), Wrong> {
        self.expect("{")?;
        while !self.is("}") {
            self.there()?;
            self.declaration(into)?;
        }
        self.at += 1;
        Ok(())
    }

    /// Variables or a function.
    fn named(&mut self, into: &mut Vec<Statement>) -> Result<(), Wrong> {
        let (from, mut fixed) = (self.at, false);
        loop {
            self.there()?;
            match self.word() {
                word if ATTRIBUTES.contains(&word) => {
                    self.at += 1;
                    self.group()?;
                }
                "constexpr" => {
                    fixed = true;
                    self.at += 1;
                }
                "operator" => {
                    while !self.is("(") {
                        self.at += 1;
                        self.there()?;
                    }
                }
                "<" => self.angles()?,
                "[" => self.group()?,
                ";" => {
                    self.at += 1;
                    return Ok(());
                }
                "=" => {
                    self.at += 1;
                    let values = vec![self.expression()?];
                    let act = Act::Declaration { values, fixed };
                    into.push(Statement { tokens: from..self.at, act });
                }
                "{" => {
                    let values = self.list("{", "}")?;
                    let act = Act::Declaration { values, fixed };
                    into.push(Statement { tokens: from..self.at, act });
                }
                "(" => return self.function(into, fixed),
                _ => self.at += 1,
            }
        }
    }

    /// A function from its parameters on, of which the compiler knows the result if `fixed`.
    fn function(&mut self, into: &mut Vec<Statement>, fixed: bool) -> Result<(), Wrong> {
        self.group()?;
        loop {
            self.there()?;
            match self.word() {
                ";" => {
                    self.at += 1;
                    return Ok(());
                }
                ":" => {
                    let from = self.at;
                    let values = self.members_of_constructor()?;
                    let act = Act::Declaration { values, fixed: false };
                    into.push(Statement { tokens: from..self.at, act });
                }
                "{" => {
                    let from = self.at;
                    let block = self.block()?;
                    let act = if fixed { Act::Constant(block) } else { Act::Block(block) };
                    into.push(Statement { tokens: from..self.at, act });
                    return Ok(());
                }
                "(" => self.group()?,
                _ => self.at += 1,
            }
        }
    }

    fn members_of_constructor(&mut self) -> Result<Vec<Node>, Wrong> {
        let mut values = Vec::new();
        loop {
            self.at += 1;
            self.name()?;
            let (open, close) = if self.is("(") { ("(", ")") } else { ("{", "}") };
            values.extend(self.list(open, close)?);
            if !self.is(",") {
                return Ok(values);
            }
        }
    }

    /// The statements of a block.
    pub(super) fn block(&mut self) -> Result<Vec<Statement>, Wrong> {
        self.expect("{")?;
        let mut statements = Vec::new();
        while !self.is("}") {
            self.there()?;
            statements.push(self.statement()?);
        }
        self.at += 1;
        Ok(statements)
    }

    fn statement(&mut self) -> Result<Statement, Wrong> {
        let from = self.at;
        let act = match self.word() {
            "{" => Act::Block(self.block()?),
            "if" => self.branch()?,
            "while" => {
                self.at += 1;
                let condition = self.condition()?;
                Act::While { condition, body: Box::new(self.statement()?) }
            }
            "for" => self.loop_over()?,
            "return" => {
                self.at += 1;
                let value = if self.is(";") { None } else { Some(self.expression()?) };
                self.expect(";")?;
                Act::Return(value)
            }
            "break" | "continue" | "using" | "static_assert" | "typedef" | "struct" | ";" => {
                self.through(";")?;
                Act::Other
            }
            _ if self.declares() => self.variables()?,
            _ => {
                let node = self.expressions()?;
                self.expect(";")?;
                Act::Expression(node)
            }
        };
        Ok(Statement { tokens: from..self.at, act })
    }

    fn condition(&mut self) -> Result<Node, Wrong> {
        self.expect("(")?;
        let condition = self.expression()?;
        self.expect(")")?;
        Ok(condition)
    }

    fn branch(&mut self) -> Result<Act, Wrong> {
        self.at += 1;
        let fixed = self.is("constexpr");
        self.at += usize::from(fixed);
        let condition = self.condition()?;
        let then = Box::new(self.statement()?);
        let mut other = None;
        if self.is("else") {
            self.at += 1;
            other = Some(Box::new(self.statement()?));
        }
        Ok(Act::If { condition, fixed, then, other })
    }

    fn loop_over(&mut self) -> Result<Act, Wrong> {
        self.at += 1;
        self.expect("(")?;
        let first = if self.is(";") {
            self.at += 1;
            None
        } else {
            Some(Box::new(self.statement()?))
        };
        let condition = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";")?;
        let step = if self.is(")") { None } else { Some(self.expressions()?) };
        self.expect(")")?;
        Ok(Act::For { first, condition, step, body: Box::new(self.statement()?) })
    }

    /// Whether a declaration of variables begins here: a type, and a name behind it.
    fn declares(&mut self) -> bool {
        let from = self.at;
        let declares = TYPE_WORDS.contains(&self.word()) || self.is("auto") || self.is_typed();
        self.at = from;
        declares
    }

    fn is_typed(&mut self) -> bool {
        if self.kind() != Some(Kind::Word) || self.name().is_err() {
            return false;
        }
        while matches!(self.word(), "*" | "&" | "const") {
            self.at += 1;
        }
        self.kind() == Some(Kind::Word)
            && matches!(self.word_at(self.at + 1), "=" | "{" | "(" | ";" | "[" | ",")
    }

    fn variables(&mut self) -> Result<Act, Wrong> {
        let (mut values, mut fixed) = (Vec::new(), false);
        while TYPE_WORDS.contains(&self.word()) {
            fixed |= matches!(self.word(), "constexpr" | "static");
            self.at += 1;
        }
        self.name()?;
        loop {
            while matches!(self.word(), "*" | "&" | "const") {
                self.at += 1;
            }
            self.at += 1;
            while self.is("[") {
                self.group()?;
            }
            match self.word() {
                "=" => {
                    self.at += 1;
                    values.push(self.expression()?);
                }
                "{" => values.extend(self.list("{", "}")?),
                "(" => values.extend(self.list("(", ")")?),
                _ => {}
            }
            if self.is(";") {
                self.at += 1;
                return Ok(Act::Declaration { values, fixed });
            }
            self.expect(",")?;
            // The name of the next one comes without the type.
        }
    }
}

//! The shape of a text, as far as mutations need it: which tokens make up an expression or statement.

use std::ops::Range;

/// Tokens from one to before another.
pub(super) type Tokens = Range<usize>;

/// An expression.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) tokens: Tokens,
    pub(super) form: Form,
}

/// What an expression is made of.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// A name, with its template arguments.
    Name,
    /// A literal number.
    Number,
    /// A literal text, or what is only skipped.
    Other,
    /// In parentheses.
    Paren(Box<Node>),
    /// A sign before its operand.
    Prefix(String, Box<Node>),
    /// A sign behind its operand.
    Postfix(Box<Node>),
    /// Two operands; assignments and commas too. The token of the sign.
    Binary(String, Box<Node>, Box<Node>),
    /// `c ? a : b`.
    Choice(Box<Node>, Box<Node>, Box<Node>),
    /// A call.
    Call(Box<Node>, Vec<Node>),
    /// `a[i]`.
    Index(Box<Node>, Box<Node>),
    /// `a.name` or `a->name`.
    Member(Box<Node>),
    /// `{a, b}`, with a type before it or none.
    Braces(Vec<Node>),
    /// A lambda.
    Lambda(Vec<Statement>),
}

/// A statement or declaration.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) tokens: Tokens,
    pub(super) act: Act,
}

/// What a statement does.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// An expression.
    Expression(Node),
    /// Initial values of variables, which the compiler computes if `fixed`.
    Declaration { values: Vec<Node>, fixed: bool },
    /// `if`; `fixed`: `if constexpr`.
    If { condition: Node, fixed: bool, then: Box<Statement>, other: Option<Box<Statement>> },
    /// `while`.
    While { condition: Node, body: Box<Statement> },
    /// `for`.
    For {
        first: Option<Box<Statement>>,
        condition: Option<Node>,
        step: Option<Node>,
        body: Box<Statement>,
    },
    /// `{ .. }`.
    Block(Vec<Statement>),
    /// `{ .. }` of a `constexpr` function, whose result the compiler computes.
    Constant(Vec<Statement>),
    /// `return`.
    Return(Option<Node>),
    /// Nothing that a mutation is about.
    Other,
}

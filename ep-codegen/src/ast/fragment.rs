//! Fragments: groups of declarations or statements that stand in several places.

use std::fmt;

use super::{Expr, Ident, Item, Span, Stmt, TokenRange, Word};

/// `items name { .. }` or `fragment name(param: kind, ..) { .. }`
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Name.
    pub name: Ident,
    /// What it stands for.
    pub body: FragmentBody,
}

/// What a fragment stands for.
#[derive(Debug, Clone)]
pub enum FragmentBody {
    /// Declarations.
    Items(Vec<Item>),
    /// Statements, and what connects them with the place of use.
    Statements {
        /// Parameters in order.
        params: Vec<Param>,
        /// The statements.
        body: Vec<Stmt>,
    },
}

/// `name: kind`
#[derive(Debug, Clone)]
pub struct Param {
    /// Name.
    pub name: Ident,
    /// What an argument must be.
    pub kind: Word<ParamKind>,
}

/// What the argument of a fragment must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// `value`: an expression.
    Value,
    /// `tensor`: the name of a tensor.
    Tensor,
    /// `channel`: the name of a channel.
    Channel,
    /// `message`: the binder of a loop over messages, or the part of a gather.
    Message,
    /// `name`: a name for a binder of the fragment, which other arguments may use.
    Name,
    /// `variant`: the name of a variant.
    Variant,
    /// `block`: statements in braces.
    Block,
}

/// `fragments from "file";`
#[derive(Debug, Clone)]
pub struct FragmentFile {
    /// Path relative to the declaring crate.
    pub path: String,
    /// The literal.
    pub span: Span,
}

/// `use name;`
#[derive(Debug, Clone)]
pub struct ItemsUse {
    /// The fragment.
    pub name: Ident,
}

/// `name(argument, ..);`
#[derive(Debug, Clone)]
pub struct Call {
    /// The fragment.
    pub name: Ident,
    /// Arguments in order.
    pub args: Vec<Argument>,
    /// From the name to the closing bracket.
    pub at: TokenRange,
}

/// An argument of a [`Call`].
#[derive(Debug, Clone)]
pub enum Argument {
    /// An expression, or a name.
    Value(Expr),
    /// `{ .. }`
    Block {
        /// The statements.
        body: Vec<Stmt>,
        /// From brace to brace.
        at: TokenRange,
    },
}

impl Argument {
    /// Where it stands.
    pub fn at(&self) -> TokenRange {
        match self {
            Argument::Value(value) => value.at,
            Argument::Block { at, .. } => *at,
        }
    }
}

/// What a statement or declaration was in its fragment.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The fragment.
    pub fragment: String,
    /// The file of the fragment, if it does not stand in the block.
    pub file: Option<String>,
    /// The statement or declaration as it stands there, without its block.
    pub text: String,
    /// Where it stands there, if the fragment stands in the block.
    pub at: Option<TokenRange>,
    /// If the fragment was used in another one: the origin of that use.
    pub user: Option<usize>,
}

impl Origin {
    /// Those of what stands at `at`, with their indices, from the outermost fragment to the innermost one.
    pub fn of(at: TokenRange, origins: &[Origin]) -> Vec<(usize, &Origin)> {
        let mut found = Vec::new();
        let mut next = at.first.origin;
        while let Some(index) = next
            && let Some(origin) = origins.get(index)
        {
            found.push((index, origin));
            next = origin.user;
        }
        found.reverse();
        found
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}` stands in the fragment `{}`", self.text, self.fragment)?;
        match &self.file {
            Some(file) => write!(out, " of `{file}`"),
            None => Ok(()),
        }
    }
}

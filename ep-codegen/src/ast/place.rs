//! Where things stand: in the block itself, or in a fragment that the block uses.

use std::fmt;

use proc_macro2::{LineColumn, TokenStream};
use quote::ToTokens;

use super::{Expr, Int, Number};

/// Where a token stands.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// A token of the block: this one, or the one that brought it in by using a fragment.
    pub token: proc_macro2::Span,
    /// Of a token from a fragment: the index of its statement or declaration in
    /// [`File::origins`](super::File::origins).
    pub origin: Option<usize>,
}

impl Span {
    /// Where the token begins.
    pub fn start(self) -> LineColumn {
        self.token.start()
    }

    /// Where the token ends.
    pub fn end(self) -> LineColumn {
        self.token.end()
    }
}

impl From<proc_macro2::Span> for Span {
    fn from(token: proc_macro2::Span) -> Span {
        Span { token, origin: None }
    }
}

/// A name and where it stands.
#[derive(Debug, Clone)]
pub struct Ident {
    token: proc_macro2::Ident,
    origin: Option<usize>,
}

impl Ident {
    /// The name `text` at `span`.
    pub fn new(text: &str, span: Span) -> Ident {
        Ident { token: proc_macro2::Ident::new(text, span.token), origin: span.origin }
    }

    /// Where it stands.
    pub fn span(&self) -> Span {
        Span { token: self.token.span(), origin: self.origin }
    }

    /// Moves it.
    pub fn set_span(&mut self, span: Span) {
        self.token.set_span(span.token);
        self.origin = span.origin;
    }
}

impl From<proc_macro2::Ident> for Ident {
    fn from(token: proc_macro2::Ident) -> Ident {
        Ident { token, origin: None }
    }
}

impl fmt::Display for Ident {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(out)
    }
}

impl ToTokens for Ident {
    fn to_tokens(&self, out: &mut TokenStream) {
        self.token.to_tokens(out);
    }
}

impl PartialEq for Ident {
    fn eq(&self, other: &Ident) -> bool {
        self.token == other.token
    }
}

impl<T: AsRef<str> + ?Sized> PartialEq<T> for Ident {
    fn eq(&self, other: &T) -> bool {
        self.token == *other
    }
}

/// The tokens from `first` to `last`: where something stands.
#[derive(Debug, Clone, Copy)]
pub struct TokenRange {
    /// Span of the first token.
    pub first: Span,
    /// Span of the last token.
    pub last: Span,
}

impl TokenRange {
    /// From the first token of `self` to the last one of `end`.
    pub fn to(self, end: impl Into<TokenRange>) -> TokenRange {
        TokenRange { first: self.first, last: end.into().last }
    }
}

impl From<Span> for TokenRange {
    fn from(span: Span) -> TokenRange {
        TokenRange { first: span, last: span }
    }
}

impl From<proc_macro2::Span> for TokenRange {
    fn from(token: proc_macro2::Span) -> TokenRange {
        Span::from(token).into()
    }
}

impl From<&Ident> for TokenRange {
    fn from(ident: &Ident) -> TokenRange {
        ident.span().into()
    }
}

impl From<&Expr> for TokenRange {
    fn from(expr: &Expr) -> TokenRange {
        expr.at
    }
}

impl From<&Int> for TokenRange {
    fn from(int: &Int) -> TokenRange {
        int.span.into()
    }
}

impl From<&Number> for TokenRange {
    fn from(number: &Number) -> TokenRange {
        number.span.into()
    }
}

/// Where a declaration or statement stands, and how it reads.
#[derive(Debug, Clone)]
pub struct Excerpt {
    /// Its tokens; for a statement with a block, without the block.
    pub tokens: TokenRange,
    /// The text of the declaration, or of the statement without its block; white space is folded.
    pub text: String,
}

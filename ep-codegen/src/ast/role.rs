//! Roles: where they run, and how their warps share the work.

use super::{Excerpt, Expr, Ident, PeerSet, Stmt, TokenRange, Word};

/// Blocks a role runs on.
#[derive(Debug, Clone)]
pub enum Blocks {
    /// `all blocks`
    All,
    /// `even blocks`
    Even,
    /// `odd blocks`
    Odd,
    /// `other blocks`
    Other,
    /// `last block`: the one that is done last, when all other roles are.
    Last,
    /// `block n`
    One(Expr),
    /// `blocks low..high`
    Range {
        /// First block.
        low: Expr,
        /// One past the last block.
        high: Expr,
    },
}

/// How the warps of a role share the work.
#[derive(Debug, Clone)]
pub enum Share {
    /// `warps shared by stripe`, `warps shared by (source, stripe)`
    Warps(Vec<Ident>),
    /// `one block a token`
    BlockPerToken,
}

/// `role Name[binder in set] on blocks, n warps, share { .. }`
#[derive(Debug, Clone)]
pub struct Role {
    /// Name.
    pub name: Ident,
    /// `[peer]`
    pub binder: Option<Ident>,
    /// `[peer in local]`: the set, when written.
    pub binder_set: Option<Word<PeerSet>>,
    /// Blocks.
    pub blocks: Blocks,
    /// Where the blocks are named.
    pub blocks_at: TokenRange,
    /// Warps.
    pub warps: Option<Expr>,
    /// Share.
    pub share: Option<Share>,
    /// Where the share is named.
    pub share_at: Option<TokenRange>,
    /// Body.
    pub body: Vec<Stmt>,
    /// The head.
    pub source: Excerpt,
}

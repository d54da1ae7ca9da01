//! A push to several peers for each token of a loop.

use crate::ir::{Action, Domain, Expr, PeerSet, Stmt};

/// `for token in .. where .. { for peer in .. where .. { push ..; record ..; } }`
pub struct Fanout<'s> {
    /// Name of the token.
    pub token: &'s str,
    /// Name of the peer.
    pub peer: &'s str,
    /// Whether the peers are all ranks.
    pub reaches_all: bool,
    /// The loop over them,
    pub inner: &'s Stmt,
    /// and another one ahead of it.
    pub ahead: Option<&'s Stmt>,
    /// What has to hold, of the outer loop and the inner one.
    pub filters: Vec<&'s Expr>,
    /// The push.
    pub push: &'s Stmt,
    /// What is recorded beside it.
    pub records: Vec<&'s Stmt>,
}

impl<'s> Fanout<'s> {
    /// The parts of a fan-out, if `stmt` is one.
    pub fn of(stmt: &'s Stmt) -> Option<Fanout<'s>> {
        let Action::For { binder: token, filter: outer, body, .. } = &stmt.action else {
            return None;
        };
        let (ahead, inner) = match body.as_slice() {
            [ahead @ Stmt { action: Action::For { .. }, .. }, inner] => (Some(ahead), inner),
            [inner] => (None, inner),
            _ => return None,
        };
        let Action::For { binder: peer, domain, position: None, filter, body } = &inner.action
        else {
            return None;
        };
        let push = body.iter().find(|stmt| matches!(stmt.action, Action::Push { .. }))?;
        let records = body.iter().filter(|stmt| matches!(stmt.action, Action::Record { .. }));
        let reaches_all = match domain {
            Domain::Peers { set } => *set == PeerSet::All,
            Domain::Dim { name } => name == "ranks",
            _ => false,
        };
        let (filters, records) = (outer.iter().chain(filter).collect(), records.collect());
        Some(Fanout { token, peer, reaches_all, inner, ahead, filters, push, records })
    }
}

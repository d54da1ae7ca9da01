//! A push to several peers for each token of a loop.

use crate::ir::{Action, Domain, Expr, FieldValue, PeerSet, Stmt};

/// `for token in .. { ..; for peer in .. where .. { push ..; record ..; } }`
pub(super) struct Fanout<'s> {
    /// Name of the token.
    pub(super) token: &'s str,
    /// Name of the peer.
    pub(super) peer: &'s str,
    /// Names and loops ahead of the loop over peers.
    pub(super) ahead: Vec<&'s Stmt>,
    /// The loop over peers.
    pub(super) inner: &'s Stmt,
    /// Whether the peers are all ranks.
    pub(super) reaches_all: bool,
    /// The push.
    pub(super) push: &'s Stmt,
    /// The fields of the push.
    pub(super) values: &'s [FieldValue],
    /// The `let` and `record` statements beside the push.
    pub(super) others: Vec<&'s Stmt>,
}

impl<'s> Fanout<'s> {
    /// The parts of a fan-out, if `stmt` is one.
    pub(super) fn of(stmt: &'s Stmt) -> Option<Fanout<'s>> {
        let Action::For { binder: token, domain: Domain::Tokens, body, .. } = &stmt.action else {
            return None;
        };
        let (inner, ahead) = body.split_last()?;
        let Action::For { binder: peer, domain, position: None, body, .. } = &inner.action else {
            return None;
        };
        let is_push = |stmt: &&Stmt| matches!(stmt.action, Action::Push { .. });
        let (pushes, others): (Vec<&Stmt>, Vec<&Stmt>) = body.iter().partition(is_push);
        let [push] = pushes.as_slice() else { return None };
        let Action::Push { peer: Some(Expr::Name { name: to, .. }), values, .. } = &push.action
        else {
            return None;
        };
        let reaches_all = domain.is_peers(&PeerSet::All);
        let is_ahead = |stmt: &Stmt| matches!(stmt.action, Action::Let { .. } | Action::For { .. });
        (to == peer && ahead.iter().all(is_ahead)).then(|| Fanout {
            token,
            peer,
            ahead: ahead.iter().collect(),
            inner,
            reaches_all,
            push,
            values,
            others,
        })
    }

    /// The loops ahead of that over peers.
    pub(super) fn loops(&self) -> impl Iterator<Item = &'s Stmt> + '_ {
        let is_loop = |stmt: &&Stmt| matches!(stmt.action, Action::For { .. });
        self.ahead.iter().copied().filter(is_loop)
    }
}

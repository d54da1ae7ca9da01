//! A push to one or several peers for each token of a stripe.

use crate::ir::{Action, Domain, Expr, NameKind, PeerSet, Stmt};

/// The peers that a fan-out reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// Every rank.
    All,
    /// Every other rank.
    Others,
    /// This rank.
    Own,
}

/// `for token in stripe where .. { for peer in .. where .. { push ..; record ..; } }`; a push to this rank
/// alone has no inner loop.
pub struct Fanout<'s> {
    /// Name of the token.
    pub token: &'s str,
    /// Name of the peer.
    pub peer: &'s str,
    /// The peers of the loop.
    pub reached: Reached,
    /// The loop over them,
    pub inner: Option<&'s Stmt>,
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
            [ahead @ Stmt { action: Action::For { .. }, .. }, inner] => (Some(ahead), Some(inner)),
            [inner] => (None, Some(inner)),
            _ => (None, None),
        };
        if let Some(inner) = inner
            && let Action::For { binder: peer, domain, position: None, filter, body } =
                &inner.action
        {
            let (push, records) = split(body);
            let reached = reached(domain)?;
            let filters = outer.iter().chain(filter).collect();
            let (inner, push) = (Some(inner), push?);
            return Some(Fanout { token, peer, reached, inner, ahead, filters, push, records });
        }
        let (push, records) = split(body);
        let push = push?;
        let own = matches!(
            &push.action,
            Action::Push { peer: Some(Expr::Name { kind: NameKind::Me, .. }), .. }
        );
        let filters = outer.iter().collect();
        let found = Fanout {
            token,
            peer: "peer",
            reached: Reached::Own,
            inner: None,
            ahead: None,
            filters,
            push,
            records,
        };
        own.then_some(found)
    }
}

fn split(body: &[Stmt]) -> (Option<&Stmt>, Vec<&Stmt>) {
    let push = body.iter().find(|stmt| matches!(stmt.action, Action::Push { .. }));
    let records = body.iter().filter(|stmt| matches!(stmt.action, Action::Record { .. }));
    (push, records.collect())
}

fn reached(domain: &Domain) -> Option<Reached> {
    match domain {
        Domain::Peers { set: PeerSet::Others } => Some(Reached::Others),
        Domain::Peers { set: PeerSet::All } => Some(Reached::All),
        Domain::Dim { name } if name == "ranks" => Some(Reached::All),
        _ => None,
    }
}

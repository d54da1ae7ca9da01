//! How many rows a run of turns pushes to a peer, as an expression of the declaration.

use super::{Cut, written};
use crate::ir::put::{hides, put};
use crate::ir::slots::places;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, Expr, Fold, NameKind, PeerSet, Share, Stmt, walk,
};

/// The peer for which a run counts, as no declaration can name it.
pub(in crate::schedule) const PEER: &str = "peer of the run";
/// The first turn of a run, and the first one behind it.
pub(super) const BEGIN: &str = "begin of the run";
pub(super) const END: &str = "end of the run";

/// A name that no declaration has.
pub(in crate::schedule) fn own_name(name: &str) -> Expr {
    Expr::Name { name: name.to_string(), kind: NameKind::Binder }
}

/// The position that pushes to a channel give for the first row to [`PEER`], if all give the same and it is known
/// ahead of these statements.
pub(in crate::schedule) fn first_rows(body: &[Stmt], channel: &Channel) -> Option<Expr> {
    let mut found: Option<Expr> = None;
    let mut fits = true;
    let (mut bound, mut lets) = (Vec::new(), Vec::new());
    walk::stmts(body, &mut |inner| {
        bound.extend(names_of(inner));
        if let Action::Let { name, value } = &inner.action {
            lets.push((name, value.clone()));
        }
    });
    let is_once = |name: &String| lets.iter().filter(|(other, _)| *other == name).count() == 1;
    let own: Vec<(&String, Expr)> =
        lets.iter().filter(|(name, _)| is_once(name)).cloned().collect();
    walk::stmts(body, &mut |inner| {
        let Action::Push { channel: to, peer, position: Some(position), .. } = &inner.action else {
            return;
        };
        if *to != channel.name {
            return;
        }
        let mut first = position.clone();
        fits &= settle(&mut first, &own).is_some();
        if let Some(Expr::Name { name, kind: NameKind::Binder }) = peer {
            put(&mut first, name, &own_name(PEER));
        }
        let is_bound = |part: &Expr| match part {
            Expr::Name { name, .. } | Expr::Field { of: name, .. } => bound.contains(name),
            _ => false,
        };
        walk::expr(&first, &mut |part| fits &= !is_bound(part));
        fits &= found.as_ref().is_none_or(|known| *known == first);
        found = Some(first);
    });
    found.filter(|_| fits)
}

impl Cut<'_, '_> {
    /// How many rows the turns from [`BEGIN`] up to [`END`] of a loop push to [`PEER`]; `None`: that cannot be told
    /// before they have been taken.
    pub(super) fn count(self, stmt: &Stmt, channel: &Channel) -> Option<Expr> {
        // A role that shares its peers asks for the one that it serves.
        let (binder, turn) = self.rows_of_each(stmt, channel, self.served().as_ref())?;
        let range = Domain::Range { low: own_name(BEGIN), high: own_name(END) };
        let whole = match turn {
            Expr::Int { value: 1 } => Expr::of_two(BinaryOp::Sub, own_name(END), own_name(BEGIN)),
            turn => sum(binder, range, turn),
        };
        self.is_known(stmt, &whole).then_some(whole)
    }

    /// The binder of a loop, and how many rows one of its turns pushes to [`PEER`], which `known` names if it is the only
    /// one.
    pub(super) fn rows_of_each<'s>(
        self,
        stmt: &'s Stmt,
        channel: &Channel,
        known: Option<&Expr>,
    ) -> Option<(&'s String, Expr)> {
        let Action::For { binder, domain, filter, body, position: None } = &stmt.action else {
            return None;
        };
        if !matches!(
            domain,
            Domain::Tokens
                | Domain::Dim { .. }
                | Domain::Range { .. }
                | Domain::Peers { .. }
                | Domain::Stripe
        ) {
            return None;
        }
        let rows = self.rows(body, (channel, 0), known)?;
        let turn = filtered(filter.as_ref(), rows);
        if matches!(domain, Domain::Peers { set: PeerSet::Others }) {
            let me = Expr::Name { name: "me".to_string(), kind: NameKind::Me };
            return Some((
                binder,
                filtered(Some(&Expr::of_two(BinaryOp::Ne, own_name(binder), me)), turn),
            ));
        }
        Some((binder, turn))
    }

    /// How many messages a turn of a loop or gather pushes to the ring [`PEER`] of a channel, or a message that passes;
    /// `None`: that cannot be told before. `known`: the only ring to which the role pushes.
    pub(super) fn rows_of_turn(
        self,
        stmt: &Stmt,
        channel: &Channel,
        known: Option<&Expr>,
    ) -> Option<Expr> {
        let axis = usize::from(channel.parts_per.is_some());
        let (filter, body) = match &stmt.action {
            Action::For { filter, body, position: None, .. } => (filter.as_ref(), body),
            Action::Gather { body, .. } | Action::Receive { body, .. } => (None, body),
            _ => return None,
        };
        let rows = self.rows(body, (channel, axis), known)?;
        let rows = filtered(filter, rows);
        self.is_known(stmt, &rows).then_some(rows)
    }

    /// The peer that the role serves, if it shares its peers.
    fn served(self) -> Option<Expr> {
        match &self.role.share {
            Share::Peer { binder, .. } => Some(own_name(binder)),
            _ => None,
        }
    }

    /// Whether an expression has nothing of what the turns of a statement change or bring.
    fn is_known(self, stmt: &Stmt, whole: &Expr) -> bool {
        let own = written(std::slice::from_ref(stmt));
        let mut fits = true;
        walk::expr(whole, &mut |part| {
            fits &= match part {
                Expr::Element { tensor, .. } => !own.contains(tensor),
                Expr::Field { .. } | Expr::OfChannel { .. } => false,
                Expr::Fold { domain, .. } => !matches!(
                    **domain,
                    Domain::Row { .. } | Domain::ReceivedFrom { .. } | Domain::Stripe
                ),
                _ => true,
            };
        });
        fits
    }

    /// The rows that some statements push to [`PEER`], which `known` names if they are the body of a loop over peers. A
    /// channel has its peer at index `axis`, or its part.
    fn rows(
        self,
        body: &[Stmt],
        (channel, axis): (&Channel, usize),
        known: Option<&Expr>,
    ) -> Option<Expr> {
        let mut all: Option<Expr> = None;
        let mut lets: Vec<(&String, Expr)> = Vec::new();
        for stmt in body {
            if let Action::Let { name, value } = &stmt.action {
                let mut value = value.clone();
                settle(&mut value, &lets)?;
                lets.push((name, value));
                continue;
            }
            if !walk::pushes_to(stmt, channel) {
                continue;
            }
            let mut own = self.rows_of(stmt, (channel, axis), known)?;
            settle(&mut own, &lets)?;
            all = Some(match all {
                None => own,
                Some(before) => Expr::of_two(BinaryOp::Add, before, own),
            });
        }
        all
    }

    fn rows_of(
        self,
        stmt: &Stmt,
        (channel, axis): (&Channel, usize),
        known: Option<&Expr>,
    ) -> Option<Expr> {
        match &stmt.action {
            Action::Push { peer: Some(peer), .. } => {
                let index = places(Some(peer)).get(axis)?;
                if known.is_some_and(|known| is_same(index, known)) {
                    return Some(Expr::Int { value: 1 });
                }
                let here = Expr::of_two(BinaryOp::Eq, index.clone(), own_name(PEER));
                Some(Expr::Cast { value: Box::new(here), elem: Elem::I32 })
            }
            Action::For { domain: Domain::Once, filter, body, .. } => {
                Some(filtered(filter.as_ref(), self.rows(body, (channel, axis), known)?))
            }
            Action::For { binder, domain, position: None, filter, body } => {
                let Some(condition) = self.of_peer(binder, domain, body, (channel, axis)) else {
                    let rows = self.rows(body, (channel, axis), known)?;
                    return Some(sum(binder, domain.clone(), filtered(filter.as_ref(), rows)));
                };
                let rows = self.rows(body, (channel, axis), Some(&own_name(binder)))?;
                let mut rows = filtered(filter.as_ref(), rows);
                put(&mut rows, binder, &own_name(PEER));
                Some(filtered(condition.as_ref(), rows))
            }
            _ => None,
        }
    }

    /// Whether a loop takes every peer of a channel once and pushes to that peer alone: then only one of its turns
    /// counts, if this condition holds.
    fn of_peer(
        self,
        binder: &str,
        domain: &Domain,
        body: &[Stmt],
        (channel, axis): (&Channel, usize),
    ) -> Option<Option<Expr>> {
        let mut own = true;
        walk::stmts(body, &mut |stmt| {
            if let Action::Push { channel: to, peer, .. } = &stmt.action
                && *to == channel.name
            {
                let index = places(peer.as_ref()).get(axis);
                own &= matches!(index, Some(Expr::Name { name, .. }) if name == binder);
            }
        });
        let all = matches!(channel.per, PeerSet::All | PeerSet::Others);
        match domain {
            Domain::Dim { name } if axis > 0 => {
                (own && channel.parts_per.as_ref() == Some(name)).then_some(None)
            }
            _ if axis > 0 => None,
            Domain::Dim { name } if own && channel.per.number().is(name) => Some(None),
            Domain::Peers { set } if own && *set == channel.per => Some(None),
            Domain::Peers { set: PeerSet::All } if own && all => Some(None),
            Domain::Peers { set: PeerSet::Others } if own && all => {
                let me = Expr::Name { name: "me".to_string(), kind: NameKind::Me };
                Some(Some(Expr::of_two(BinaryOp::Ne, own_name(PEER), me)))
            }
            _ => None,
        }
    }
}

/// Whether both name the same peer.
fn is_same(index: &Expr, known: &Expr) -> bool {
    match (index, known) {
        (Expr::Name { name, .. }, Expr::Name { name: known, .. }) => name == known,
        _ => index == known,
    }
}

/// The names that a statement gives.
fn names_of(stmt: &Stmt) -> Option<String> {
    match &stmt.action {
        Action::For { binder, .. } | Action::Receive { binder, .. } => Some(binder.clone()),
        Action::Gather { binder, .. } => Some(binder.clone()),
        Action::Let { name, .. } => Some(name.clone()),
        _ => None,
    }
}

fn sum(binder: &str, domain: Domain, body: Expr) -> Expr {
    Expr::Fold {
        fold: Fold::Sum,
        binder: binder.to_string(),
        domain: Box::new(domain),
        body: Box::new(body),
    }
}

/// Puts the values of names in their place, the last one first; `None`: a fold gives a part of one another meaning.
fn settle(whole: &mut Expr, lets: &[(&String, Expr)]) -> Option<()> {
    for (name, value) in lets.iter().rev() {
        if hides(whole, value) {
            return None;
        }
        put(whole, name, value);
    }
    Some(())
}

/// `rows` where a condition holds, if there is one.
fn filtered(filter: Option<&Expr>, rows: Expr) -> Expr {
    let Some(filter) = filter else { return rows };
    match rows {
        Expr::Int { value: 1 } => Expr::Cast { value: Box::new(filter.clone()), elem: Elem::I32 },
        rows => Expr::If {
            condition: Box::new(filter.clone()),
            yes: Box::new(rows),
            no: Box::new(Expr::Int { value: 0 }),
        },
    }
}

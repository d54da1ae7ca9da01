//! Every rank that a receiver waits for hears from its sender, at least that nothing comes.
//!
//! The sender of a `direct` channel closes its end towards every peer by itself, and `close` does that for
//! slots that count. Who takes from a ring waits for its header, and who takes a slot waits for its message.

use super::channels::{consumes, peers_of, pushes_to};
use super::model::View;
use super::walk::Site;
use crate::ast::{Channel, Domain, Expr, ExprKind, For, Ident, OptionValue, PeerSet, StmtKind};
use crate::diagnostics::{Diagnostics, channels as errors};

/// The ranks that a statement sends to.
#[derive(PartialEq)]
enum Reach {
    Me,
    Others,
    Any,
}

/// Rules about the channels of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for channel in &view.channels {
        let kind = channel.kind.value.traits();
        let all = channel.per.value == PeerSet::All;
        if all && !kind.offers && !kind.ends_when_closed && !is_closed(view, channel) {
            check_channel(view, channel, out);
        }
    }
}

fn is_closed(view: &View<'_>, channel: &Channel) -> bool {
    view.sites.iter().any(
        |site| matches!(&site.stmt.kind, StmtKind::Close { channel: of } if *of == channel.name),
    )
}

fn check_channel<'a>(view: &View<'a>, channel: &'a Channel, out: &mut Diagnostics) {
    let Some(taker) = view.sites.iter().find(|site| takes_from_all(view, site, channel)) else {
        return;
    };
    let Some((_, taken)) = consumes(view, taker) else { return };
    let announces = |site: &&Site<'_>| matches!(&site.stmt.kind, StmtKind::Announce { channel: of, .. } if of.name == channel.name);
    let mut senders: Vec<&Site<'a>> = view.sites.iter().filter(announces).collect();
    let is_announced = !senders.is_empty();
    if !is_announced {
        senders = view.sites.iter().filter(|site| pushes_to(site, channel)).collect();
    }
    let reached = |site: &&Site<'a>| Some((reach(site)?, index(site)?));
    let Some(reached) = senders.iter().map(reached).collect::<Option<Vec<_>>>() else { return };
    let Some((_, at)) = reached.first() else { return };
    let role = &view.roles[taker.role].decl.name;
    if reached.iter().all(|(reach, _)| *reach == Reach::Others) {
        out.push(errors::never_to_me(at.at, &channel.name, role, taken));
    } else if reached.iter().all(|(reach, _)| *reach == Reach::Me) {
        out.push(errors::only_to_me(at.at, &channel.name, role, taken));
    } else if let ([sender], [(_, peer)], true) = (&*senders, &*reached, is_announced)
        && let Some(filter) = loops(view, sender).find(|outer| names(peer, &outer.binder))
        && let Some(filter) = &filter.filter
    {
        out.push(errors::announced_to_some(filter.at, &channel.name, role, taken));
    }
}

/// Whether a statement waits for every rank.
fn takes_from_all(view: &View<'_>, site: &Site<'_>, channel: &Channel) -> bool {
    if consumes(view, site).is_none_or(|(of, _)| of.name != channel.name)
        || loops(view, site).any(|outer| outer.filter.is_some())
    {
        return false;
    }
    let Some(taking) = site.as_for() else { return true };
    match &taking.domain {
        _ if taking.gather.is_some() => false,
        Domain::Expr(Expr { kind: ExprKind::Index { indices, .. }, .. }) => {
            let axes = channel.options.iter().find_map(|option| match &option.value {
                OptionValue::Slot(axes) => Some(axes),
                _ => None,
            });
            let source = match axes {
                Some(axes) => axes.iter().position(|axis| axis.name == "source"),
                None => Some(0),
            };
            let source = source.and_then(|axis| indices.get(axis));
            source.and_then(|index| peers_of(&site.scope, index)) == Some(PeerSet::All)
        }
        _ => true,
    }
}

/// The loops around a statement.
fn loops<'v, 'a>(view: &'v View<'a>, site: &'v Site<'a>) -> impl Iterator<Item = &'a For> + 'v {
    site.loops.iter().filter_map(|index| view.sites[*index].as_for())
}

fn names(expr: &Expr, name: &Ident) -> bool {
    matches!(&expr.kind, ExprKind::Name(own) if own == name)
}

/// The peer that a statement sends to.
fn index<'a>(site: &Site<'a>) -> Option<&'a Expr> {
    match &site.stmt.kind {
        StmtKind::Push { channel, .. } | StmtKind::Announce { channel, .. } => {
            channel.indices.first()
        }
        _ => None,
    }
}

fn reach(site: &Site<'_>) -> Option<Reach> {
    let index = index(site)?;
    Some(match peers_of(&site.scope, index) {
        Some(PeerSet::Others) => Reach::Others,
        _ if matches!(&index.kind, ExprKind::Name(name) if name == "me") => Reach::Me,
        _ => Reach::Any,
    })
}

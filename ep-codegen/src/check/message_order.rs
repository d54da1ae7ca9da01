//! The order of messages: a ring is emptied as it was filled, a gather knows where its parts are,
//! and nothing about a channel is read before it is there.

use super::channels::{consumes, pushes_to};
use super::messages::header;
use super::model::{Tensor, View};
use super::names::is_known;
use super::numbers::mentions;
use super::types::SLOT_NUMBERS;
use super::walk::{self, Site, messages_of};
use crate::ast::{Channel, Domain, Expr, ExprKind, For, Gather, Ident, StmtKind, TensorKind};
use crate::diagnostics::{Diagnostics, message_order as errors};
use crate::ir::ChannelKind;
use crate::syntax::reprint::{domain as domain_text, expr as text};

/// Checks the order of messages in one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for (index, site) in view.sites.iter().enumerate() {
        if let Some(inner) = site.as_for() {
            match &inner.gather {
                Some(gather) => gather_loop(view, site, inner, gather, out),
                None => message_loop(view, site, inner, out),
            }
        }
        emptied_twice(view, index, out);
        announced_in_loop(view, site, out);
        channel_reads(view, index, out);
    }
    for channel in &view.channels {
        header_announced(view, channel, out);
    }
}

/// A ring gives its messages in order: a loop over them runs once, and knows when to stop.
fn message_loop(view: &View<'_>, site: &Site<'_>, inner: &For, out: &mut Diagnostics) {
    let Some(channel) = messages_of(view, &site.scope, &inner.domain) else { return };
    if !channel.kind.value.traits().in_order {
        return;
    }
    let Some(word) = super::statements::domain_root(&inner.domain) else { return };
    let outer = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
    let indices = domain_indices(&inner.domain);
    // A loop over the peers of the ring visits each ring once.
    let mut around = outer
        .filter(|outer| !indices.iter().any(|index| mentions(index, &outer.binder.to_string())));
    if let Some(outer) = around.next_back() {
        out.push(match outer.domain {
            Domain::Once { keyword } => errors::ring_below_if(word, keyword),
            _ => errors::ring_in_loop(word, &outer.binder),
        });
    }
    if !header(channel).is_some_and(|names| names.iter().any(|name| name == "count")) {
        out.push(errors::ring_without_count(word, channel));
    }
}

/// The indices of `ring[i]` as a domain.
fn domain_indices(domain: &Domain) -> &[Expr] {
    match domain {
        Domain::Expr(Expr { kind: ExprKind::Index { indices, .. }, .. }) => indices,
        _ => &[],
    }
}

/// A second loop over one ring would find it empty.
fn emptied_twice(view: &View<'_>, index: usize, out: &mut Diagnostics) {
    let site = &view.sites[index];
    let Some((channel, word)) = consumes(view, site) else { return };
    if !channel.kind.value.traits().in_order {
        return;
    }
    let first = view.sites[..index]
        .iter()
        .filter(|other| other.role == site.role)
        .filter_map(|other| consumes(view, other))
        .find(|(other, _)| std::ptr::eq(*other, channel));
    if let Some((_, first)) = first {
        out.push(errors::ring_emptied_twice(word, first));
    }
}

/// A gather looks its positions up in a table that a push has filled.
fn gather_loop(
    view: &View<'_>,
    site: &Site<'_>,
    inner: &For,
    gather: &Gather,
    out: &mut Diagnostics,
) {
    let Some(channel) = view.channel(&gather.channel.name) else { return };
    let kind = channel.kind.value.traits();
    let Some(wanted) = kind.gathered_at else { return };
    let by_across =
        |index: &Expr| matches!(&index.kind, ExprKind::Name(name) if *name == gather.across);
    if !gather.channel.indices.first().is_some_and(by_across) {
        out.push(errors::gather_not_across(&gather.channel.name, &gather.across));
    }
    if kind.in_order && !in_order(&inner.domain) {
        let error =
            errors::ring_out_of_order(inner.domain.extent(), &domain_text(&inner.domain), channel);
        out.push(error);
    }
    let [position] = gather.position.as_slice() else {
        if let Some(position) = gather.position.first() {
            out.push(errors::position_not_in_table(position.at, &text(position), &channel.name));
        }
        return;
    };
    let mut scope = site.scope.clone();
    scope.extend(walk::loop_binders(view, &site.scope, inner));
    if view.open || walk::root(position).is_some_and(|name| !is_known(view, &scope, name)) {
        return;
    }
    let Some(table) = table_of(view, site, position, kind.offers) else {
        // Rows that lie where they are may be found in any way, those that move in the order of a table.
        if !kind.offers {
            out.push(errors::position_not_in_table(position.at, &text(position), &channel.name));
        }
        return;
    };
    for binder in [&inner.binder, &gather.across] {
        if !mentions(position, &binder.to_string()) {
            out.push(errors::position_without_binder(position.at, &text(position), binder));
        }
    }
    if table.kind == TensorKind::Table {
        recorded_position(view, table, (channel, wanted), position, out);
    }
}

/// Whether a gather over `domain` asks for the rows of a ring in the order they were pushed: those
/// of one stripe, first to last.
fn in_order(domain: &Domain) -> bool {
    if matches!(domain, Domain::Range { .. }) {
        return true;
    }
    let Domain::Expr(Expr { kind: ExprKind::Name(name), .. }) = domain else { return false };
    name == "stripe"
}

/// The table whose element `position` is.
fn table_of<'v, 'a>(
    view: &'v View<'a>,
    site: &Site<'a>,
    position: &Expr,
    given: bool,
) -> Option<&'v Tensor<'a>> {
    let ExprKind::Index { base, .. } = &position.kind else { return None };
    let ExprKind::Name(name) = &base.kind else { return None };
    if site.scope.iter().any(|binder| binder.name == name) {
        return None;
    }
    view.tensor(name).filter(|tensor| match tensor.kind {
        TensorKind::Table => true,
        TensorKind::Input => given,
        _ => false,
    })
}

/// The table holds positions of a channel that goes with the one gathered from.
fn recorded_position(
    view: &View<'_>,
    table: &Tensor<'_>,
    (channel, wanted): (&Channel, ChannelKind),
    position: &Expr,
    out: &mut Diagnostics,
) {
    let name = &table.decl.name;
    let recorded = match table.handle {
        None => positions(view, name),
        Some(uses) => {
            let file = view.model.file;
            let Some(pipeline) = file.pipelines.iter().find(|other| other.name == uses.name) else {
                // A pipeline of another block: rustc compares its tables, nobody its records.
                return;
            };
            let model = super::model::Model::new(file, pipeline);
            let views = model.choices().into_iter().map(|choice| View::new(&model, choice));
            let mut all: Vec<(ChannelKind, String)> = Vec::new();
            for other in views {
                all.extend(positions(&other, name));
            }
            all
        }
    };
    if recorded.is_empty() {
        out.push(errors::position_not_recorded(
            position.at,
            name,
            &table.decl.name,
            wanted.traits(),
        ));
        return;
    }
    if !recorded.iter().any(|(kind, _)| *kind == wanted) {
        let (kind, of) = &recorded[0];
        let kinds = (kind.traits().word, wanted.traits().word);
        out.push(errors::positions_of_another_kind(position.at, name, (kinds, of), channel));
    }
}

/// The channels whose positions are recorded in the table `name`.
fn positions(view: &View<'_>, name: &Ident) -> Vec<(ChannelKind, String)> {
    let of_channel = |site: &Site<'_>| {
        let StmtKind::Record { place, value } = &site.stmt.kind else { return None };
        if place.tensor != *name {
            return None;
        }
        let ExprKind::Field { base, field } = &value.kind else { return None };
        let channel = view.channel(walk::root(base)?)?;
        (field == "position").then(|| (channel.kind.value, channel.name.to_string()))
    };
    view.sites.iter().filter_map(of_channel).collect()
}

/// A header is announced once for each stripe and peer.
fn announced_in_loop(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    let StmtKind::Announce { channel, .. } = &site.stmt.kind else { return };
    let outer = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
    let mut around = outer.filter(|outer| {
        let by_peer =
            channel.indices.iter().any(|index| mentions(index, &outer.binder.to_string()));
        !by_peer
    });
    if let Some(outer) = around.next_back() {
        out.push(match outer.domain {
            Domain::Once { keyword } => {
                errors::announce_below_if(site.stmt.keyword, &channel.name, keyword)
            }
            _ => errors::announce_in_loop(site.stmt.keyword, &channel.name, &outer.binder),
        });
    }
}

/// Every header has someone who announces it.
fn header_announced(view: &View<'_>, channel: &Channel, out: &mut Diagnostics) {
    let Some(header) = header(channel) else { return };
    let announced = view.sites.iter().any(|site| {
        matches!(&site.stmt.kind, StmtKind::Announce { channel: to, .. } if to.name == channel.name)
    });
    let option = channel.options.iter().find(|option| option.name == "header");
    if let (false, Some(option)) = (announced, option) {
        out.push(errors::header_not_announced(&option.name, channel, header));
    }
}

/// Reads of `channel[i].field`: a position comes after the push that has it, the fields of slots
/// come after the `await`.
fn channel_reads(view: &View<'_>, index: usize, out: &mut Diagnostics) {
    let site = &view.sites[index];
    let mut reads: Vec<(&Ident, &Ident)> = Vec::new();
    walk::exprs(site.stmt, &mut |expr| fields(expr, &mut reads));
    for (name, field) in reads {
        if site.scope.iter().any(|binder| binder.name == name) {
            continue;
        }
        let Some(channel) = view.channel(name) else { continue };
        let earlier = || view.sites[..index].iter().filter(|other| other.role == site.role);
        if field == "position" {
            let pushed = |other: &Site<'_>| {
                pushes_to(other, channel) && site.loops.starts_with(&other.loops)
            };
            if !earlier().any(pushed) {
                out.push(errors::position_before_push(field, name));
            }
        } else if channel.kind.value.traits().is_indexed
            && SLOT_NUMBERS.iter().any(|number| field == number)
        {
            if !super::channels::counts_arrivals(view, channel) {
                out.push(errors::count_of_named_slots(field, name));
            }
        } else if channel.kind.value.traits().is_indexed {
            let awaited = |other: &Site<'_>| {
                matches!(&other.stmt.kind, StmtKind::Await { channel } if channel == name)
                    || other.as_for().is_some_and(|_| {
                        consumes(view, other).is_some_and(|(other, _)| std::ptr::eq(other, channel))
                    })
            };
            if !earlier().any(awaited) {
                out.push(errors::slots_before_await(name));
            }
        }
    }
}

/// Every `name.field` and `name[..].field` in `expr`.
fn fields<'a>(expr: &'a Expr, found: &mut Vec<(&'a Ident, &'a Ident)>) {
    match &expr.kind {
        ExprKind::Field { base, field } => {
            if let Some(name) = walk::root(base) {
                found.push((name, field));
            }
            fields(base, found);
        }
        ExprKind::Index { base, indices } => {
            fields(base, found);
            indices.iter().for_each(|index| fields(index, found));
        }
        ExprKind::Call { args, .. } => args.iter().for_each(|arg| fields(arg, found)),
        ExprKind::Fold { body, .. } => fields(body, found),
        ExprKind::Cast { value, .. } | ExprKind::Not { value } | ExprKind::Neg { value } => {
            fields(value, found);
        }
        ExprKind::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| fields(part, found));
        }
        ExprKind::Binary { left, right, .. } => {
            fields(left, found);
            fields(right, found);
        }
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) | ExprKind::Name(_) => {}
    }
}

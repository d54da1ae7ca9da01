//! Places that two statements write without writing one element twice.

use super::model::View;
use super::walk::{Counted, Meaning, Site, root};
use crate::ast::{self, Expr, ExprKind, Place, StmtKind};
use crate::ir::CONDITION;
use crate::syntax::reprint::with_names;

/// Whether two places of one tensor have no element in common, as far as can be read off: indices
/// that differ as numbers, this rank against the others, or filters that exclude each other. Ranges
/// come from tables, and what lies between the places that are dealt out is given by one.
pub(super) fn apart(
    view: &View<'_>,
    a: &Site<'_>,
    at_a: &Place,
    b: &Site<'_>,
    at_b: &Place,
) -> bool {
    let by_index = at_a.indices.iter().zip(&at_b.indices).any(|(i, j)| match (&i.kind, &j.kind) {
        (ExprKind::Int(i), ExprKind::Int(j)) => i != j,
        _ => (is_me(i) && is_other(b, j)) || (is_other(a, i) && is_me(j)),
    });
    // The condition of an `if` with an `else` is known by its place.
    let said = |filter: &Expr| {
        let place = || format!("{:?} {:?}", filter.at.first.start(), filter.at.first.origin);
        with_names(filter, &|name| (name == CONDITION).then(place))
    };
    let filters = |site: &Site<'_>| -> Vec<String> {
        let loops = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
        loops.filter_map(|inner| inner.filter.as_ref()).map(said).collect()
    };
    let (of_a, of_b) = (filters(a), filters(b));
    // A position is recorded where a condition says no, too: as that of a message that is not there.
    let excluded = !(records_position(view, a) && records_position(view, b))
        && of_a.iter().any(|x| {
            of_b.iter().any(|y| {
                [format!("!{x}"), format!("!({x})")].contains(y)
                    || [format!("!{y}"), format!("!({y})")].contains(x)
            })
        });
    let between =
        |a: &Site<'_>, i: &Expr, b: &Site<'_>, j: &Expr| in_range(view, a, i) && is_dealt_out(b, j);
    let apart = at_a.indices.iter().zip(&at_b.indices);
    let gaps = apart.into_iter().any(|(i, j)| between(a, i, b, j) || between(b, j, a, i));
    by_index || excluded || gaps
}

/// Whether a statement records the position of a push.
fn records_position(view: &View<'_>, site: &Site<'_>) -> bool {
    let StmtKind::Record { value, .. } = &site.stmt.kind else { return false };
    let ExprKind::Field { base, field } = &value.kind else { return false };
    field == "position" && root(base).is_some_and(|name| view.channel(name).is_some())
}

/// Whether `index` is the binder of a loop over a range.
fn in_range(view: &View<'_>, site: &Site<'_>, index: &Expr) -> bool {
    let ExprKind::Name(name) = &index.kind else { return false };
    let loops = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
    let mut own = loops.filter(|inner| inner.binder == *name);
    own.next().is_some_and(|inner| matches!(inner.domain, ast::Domain::Range { .. }))
}

/// Whether `index` is a position that a loop deals out, or where a message has come to lie.
fn is_dealt_out(site: &Site<'_>, index: &Expr) -> bool {
    let ExprKind::Field { base, field } = &index.kind else { return false };
    let named = |name| site.scope.iter().rev().find(|binder| binder.name == name);
    let binder = root(base).and_then(named);
    binder.is_some_and(|binder| match binder.meaning {
        Meaning::Placed(_) => true,
        Meaning::Message(_) => *field == "row",
        _ => false,
    })
}

fn is_me(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Name(name) if name == "me")
}

fn is_other(site: &Site<'_>, expr: &Expr) -> bool {
    let ExprKind::Name(name) = &expr.kind else { return false };
    let binder = site.scope.iter().rev().find(|binder| binder.name == name);
    let others = ast::PeerSet::Others;
    let counted = binder.and_then(|binder| binder.counted());
    matches!(counted, Some(Counted::Peers(set)) if set == others)
}

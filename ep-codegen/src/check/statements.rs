//! Statements: every expression in them has a type, and every value fits where it goes.

use super::model::View;
use super::names;
use super::types::{Scalar, Type, Value, declared};
use super::typing::Typing;
use super::walk::{Counted, Runs, Scope, Site, index_binder, loop_binders, messages_of, runs};
use crate::ast::{ChannelRef, Domain, Expr, ExprKind, For, Gather, Ident, Place, StmtKind};
use crate::diagnostics::{Diagnostics, types as errors};
use crate::ir::CONDITION;

/// Checks the expressions of the declarations, then of every statement of `view`.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    declarations(view, out);
    for site in &view.sites {
        statement(view, site, out);
    }
}

fn declarations(view: &View<'_>, out: &mut Diagnostics) {
    let mut typing = Typing { view, out };
    let mut scope = Scope::new();
    for tensor in &view.tensors {
        // What a handle of this block brings is in the words of the pipeline that records it.
        let here = tensor.handle.is_none_or(|uses| uses.tables.is_some());
        let dims = if here { &tensor.decl.dims[..] } else { &[] };
        dims.iter().for_each(|dim| typing.whole(&mut scope, dim, "an extent"));
    }
    for field in view.messages.iter().flat_map(|message| &message.fields) {
        field.dims.iter().for_each(|dim| typing.whole(&mut scope, dim, "an extent"));
    }
}

fn statement<'a>(view: &View<'a>, site: &Site<'a>, out: &mut Diagnostics) {
    let mut scope = site.scope.clone();
    match &site.stmt.kind {
        StmtKind::For(inner) => head_of_for(view, &mut scope, site, inner, out),
        StmtKind::Announce { channel, values } => {
            channel_ref(view, &mut scope, channel, out);
            let mut typing = Typing { view, out };
            values
                .iter()
                .for_each(|value| typing.whole(&mut scope, &value.value, "an announced number"));
        }
        StmtKind::Push { channel, position, .. } => {
            channel_ref(view, &mut scope, channel, out);
            let mut typing = Typing { view, out };
            position.iter().for_each(|at| typing.whole(&mut scope, at, "a position"));
        }
        StmtKind::Store { place, value } | StmtKind::Record { place, value } => {
            stored(view, &mut scope, place, value, out);
        }
        StmtKind::Add { place, value } => added(view, &mut scope, place, value, out),
        StmtKind::Count { place } => counted(view, &mut scope, place, "count", out),
        StmtKind::Raise { place } => counted(view, &mut scope, place, "raise", out),
        StmtKind::AwaitWord { place, least } => {
            counted(view, &mut scope, place, "await", out);
            let mut typing = Typing { view, out };
            typing.whole(&mut scope, least, "what a word comes to");
        }
        StmtKind::Let { name, value } if name == CONDITION => {
            Typing { view, out }.condition(&mut scope, value);
        }
        StmtKind::Let { value, .. } => {
            let mut typing = Typing { view, out };
            match typing.expr(&mut scope, value) {
                Type::Unknown | Type::Value(_) => {}
                other => out.push(errors::let_of(value.at, &other)),
            }
        }
        StmtKind::Await { channel } | StmtKind::Close { channel } => {
            names::channel(view, channel, out);
        }
        StmtKind::When(_) | StmtKind::Call(_) => {}
    }
}

fn channel_ref<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    channel: &'a ChannelRef,
    out: &mut Diagnostics,
) {
    names::channel(view, &channel.name, out);
    let mut typing = Typing { view, out };
    channel.indices.iter().for_each(|index| typing.whole(scope, index, "an index"));
}

fn head_of_for<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    site: &Site<'a>,
    inner: &'a For,
    out: &mut Diagnostics,
) {
    let mut typing = Typing { view, out };
    typing.domain(scope, &inner.domain);
    let messages = messages_of(view, scope, &inner.domain);
    let length = scope.len();
    scope.push(index_binder(view, scope, &inner.binder, &inner.domain));
    if let Some(position) = &inner.position {
        typing.whole(scope, position, "a position");
        if messages.is_none()
            && !deals_out_places(view, scope, site, inner)
            && domain_root(&inner.domain).is_none_or(|name| names::is_known(view, scope, name))
        {
            typing.out.push(errors::position_without_messages(position.at));
        }
    }
    if let Some(filter) = &inner.filter {
        typing.condition(scope, filter);
    }
    scope.truncate(length);
    if let Some(gather) = &inner.gather {
        scope.extend(loop_binders(view, scope, inner));
        head_of_gather(view, scope, gather, out);
        scope.truncate(length);
    }
}

/// Whether the loop gives each value of a number of the shape positions of its own: inside a loop
/// over a stripe.
fn deals_out_places(view: &View<'_>, scope: &Scope<'_>, site: &Site<'_>, inner: &For) -> bool {
    let counted = |domain| match runs(view, scope, domain) {
        Runs::Numbers(counted) => Some(counted),
        Runs::Messages(_) => None,
    };
    let outer = site.loops.last().and_then(|index| view.sites[*index].as_for());
    outer.is_some_and(|outer| matches!(counted(&outer.domain), Some(Counted::Stripe)))
        && matches!(counted(&inner.domain), Some(Counted::Name(name)) if names::is_number(view, &name.to_string()))
}

fn head_of_gather<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    gather: &'a Gather,
    out: &mut Diagnostics,
) {
    channel_ref(view, scope, &gather.channel, out);
    let mut typing = Typing { view, out };
    gather.position.iter().for_each(|at| typing.whole(scope, at, "a position"));
    typing.domain(scope, &gather.over);
}

/// What `place` holds, with the binder of a `prefix_sum` that is stored to it in scope.
fn target<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    place: &'a Place,
    value: Option<&'a Expr>,
    out: &mut Diagnostics,
) -> Option<Value<'a>> {
    let mut typing = Typing { view, out };
    let tensor = typing.target(scope, &place.tensor)?;
    let length = scope.len();
    if let Some(ExprKind::Fold { helper, binder, domain, .. }) = value.map(|value| &value.kind)
        && helper == "prefix_sum"
    {
        scope.push(index_binder(view, scope, binder, domain));
    }
    place.indices.iter().for_each(|index| typing.whole(scope, index, "an index"));
    let Type::Value(whole) = declared(view, &tensor.decl.elem, &tensor.decl.dims) else {
        scope.truncate(length);
        return None;
    };
    let left = typing.indexed(scope, &place.tensor.to_string(), whole, &place.indices);
    scope.truncate(length);
    left
}

fn stored<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    place: &'a Place,
    value: &'a Expr,
    out: &mut Diagnostics,
) {
    let target = target(view, scope, place, Some(value), out);
    let mut typing = Typing { view, out };
    let ty = typing.expr(scope, value);
    if let Some(target) = target {
        typing.assign(&format!("`{}`", place.tensor), &target, value, &ty);
    }
}

fn added<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    place: &'a Place,
    value: &'a Expr,
    out: &mut Diagnostics,
) {
    stored(view, scope, place, value, out);
    if let Some(target) = target(view, scope, place, None, &mut Diagnostics::new())
        && !target.scalar.is_numeric()
    {
        out.push(errors::not_countable(&place.tensor, "add", &target));
    }
}

fn counted<'a>(
    view: &View<'a>,
    scope: &mut Scope<'a>,
    place: &'a Place,
    word: &str,
    out: &mut Diagnostics,
) {
    let Some(left) = target(view, scope, place, None, out) else { return };
    if !left.extents.is_empty() || !matches!(left.scalar, Scalar::Int(_)) {
        out.push(errors::not_countable(&place.tensor, word, &left));
    }
}

/// The tensor words that a domain or expression reads.
pub(super) fn reads<'a>(view: &View<'a>, site: &Site<'a>) -> Vec<&'a Ident> {
    let mut read = Vec::new();
    super::walk::exprs(site.stmt, &mut |expr| {
        super::numbers::visit_names(expr, &mut |name| {
            let bound = site.scope.iter().any(|binder| binder.name == name);
            if !bound && view.tensor(name).is_some() {
                read.push(name);
            }
        });
    });
    read
}

/// The name at the root of what a loop runs over.
pub(super) fn domain_root(domain: &Domain) -> Option<&Ident> {
    match domain {
        Domain::Expr(expr) => super::walk::root(expr),
        Domain::Range { .. } | Domain::Once { .. } => None,
    }
}

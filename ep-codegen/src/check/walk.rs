//! Every statement of every role with what is in scope at it.

use super::model::{Guard, View, holds};
use super::names::{is_known, is_number};
use super::types::{Scalar, Type};
use super::typing;
use crate::ast::{Channel, Domain, Expr, ExprKind, For, Ident, PeerSet, Share, Stmt, StmtKind};
use crate::ir::{CONDITION, WellKnown};

/// What a binder stands for.
#[derive(Debug, Clone)]
pub(super) enum Meaning<'a> {
    /// A number that counts something.
    Index(Counted<'a>),
    /// A number that counts something, where each value has positions of its own.
    Placed(Counted<'a>),
    /// A message that has arrived.
    Message(&'a Channel),
    /// One part of a gather.
    Part(&'a Channel),
    /// The value of a `let`.
    Value(Type<'a>),
}

/// What an index counts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counted<'a> {
    /// `0..name` for a number of the shape or a size.
    Name(&'a Ident),
    /// The tokens of a stripe.
    Stripe,
    /// The ranks of a peer set.
    Peers(PeerSet),
    /// Anything else.
    Other,
}

impl Counted<'_> {
    /// The ranks it runs over, if it runs over ranks.
    pub(super) fn peers(&self) -> Option<PeerSet> {
        match self {
            Counted::Peers(set) => Some(*set),
            Counted::Name(name) if WellKnown::Ranks.is(*name) => Some(PeerSet::All),
            Counted::Name(name) if WellKnown::LocalRanks.is(*name) => Some(PeerSet::Local),
            Counted::Name(name) if WellKnown::Nodes.is(*name) => Some(PeerSet::Rail),
            _ => None,
        }
    }
}

/// A name that a role, a loop, a fold or a `let` gives.
#[derive(Debug, Clone)]
pub(super) struct Binder<'a> {
    /// The name.
    pub(super) name: &'a Ident,
    /// What it stands for.
    pub(super) meaning: Meaning<'a>,
}

impl<'a> Binder<'a> {
    /// What it counts, if it is an index.
    pub(super) fn counted(&self) -> Option<Counted<'a>> {
        match self.meaning {
            Meaning::Index(counted) | Meaning::Placed(counted) => Some(counted),
            _ => None,
        }
    }
}

/// The binders in scope, innermost last.
pub(super) type Scope<'a> = Vec<Binder<'a>>;

/// A statement in its surroundings.
#[derive(Debug, Clone)]
pub(super) struct Site<'a> {
    /// Index of its role in the view.
    pub(super) role: usize,
    /// The statement; never a `when`.
    pub(super) stmt: &'a Stmt,
    /// What is in scope where it begins.
    pub(super) scope: Scope<'a>,
    /// Indices of the loops around it in [`View::sites`], outermost first.
    pub(super) loops: Vec<usize>,
}

impl<'a> Site<'a> {
    /// The loop, if the statement is one.
    pub(super) fn as_for(&self) -> Option<&'a For> {
        match &self.stmt.kind {
            StmtKind::For(inner) => Some(inner),
            _ => None,
        }
    }
}

/// What a domain runs over.
pub(super) enum Runs<'a> {
    /// Messages of a channel.
    Messages(&'a Channel),
    /// Numbers.
    Numbers(Counted<'a>),
}

/// The name at the root of `ring[peer].first`.
pub(super) fn root(expr: &Expr) -> Option<&Ident> {
    match &expr.kind {
        ExprKind::Name(name) => Some(name),
        ExprKind::Index { base, .. } | ExprKind::Field { base, .. } => root(base),
        _ => None,
    }
}

/// The channel of a loop over messages: `ring` or `ring[peer]`.
pub(super) fn messages_of<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    domain: &Domain,
) -> Option<&'a Channel> {
    let Domain::Expr(expr) = domain else { return None };
    let name = match &expr.kind {
        ExprKind::Name(name) => name,
        ExprKind::Index { base, .. } => match &base.kind {
            ExprKind::Name(name) => name,
            _ => return None,
        },
        _ => return None,
    };
    let bound = scope.iter().any(|binder| binder.name == name);
    if bound || view.tensor(name).is_some() { None } else { view.channel(name) }
}

/// What `domain` runs over.
pub(super) fn runs<'a>(view: &View<'a>, scope: &Scope<'a>, domain: &'a Domain) -> Runs<'a> {
    if let Some(channel) = messages_of(view, scope, domain) {
        return Runs::Messages(channel);
    }
    let Domain::Expr(Expr { kind: ExprKind::Name(name), .. }) = domain else {
        return Runs::Numbers(Counted::Other);
    };
    Runs::Numbers(match name.to_string().as_str() {
        "stripe" => Counted::Stripe,
        "all" => Counted::Peers(PeerSet::All),
        "others" => Counted::Peers(PeerSet::Others),
        "local" => Counted::Peers(PeerSet::Local),
        "rail" => Counted::Peers(PeerSet::Rail),
        _ => Counted::Name(name),
    })
}

/// The binder of a fold or of the axis of a gather.
pub(super) fn index_binder<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    name: &'a Ident,
    domain: &'a Domain,
) -> Binder<'a> {
    let unknown = match domain {
        Domain::Expr(expr) => root(expr).is_some_and(|name| !is_known(view, scope, name)),
        Domain::Range { .. } | Domain::Once { .. } => false,
    };
    let meaning = match runs(view, scope, domain) {
        _ if unknown => Meaning::Value(Type::Unknown),
        Runs::Messages(channel) => Meaning::Message(channel),
        Runs::Numbers(counted) => Meaning::Index(counted),
    };
    Binder { name, meaning }
}

/// Every statement of every role of `view`, in order.
pub(super) fn sites<'a>(view: &View<'a>) -> Vec<Site<'a>> {
    let mut out = Vec::new();
    for index in 0..view.roles.len() {
        let mut scope = role_scope(view, index);
        body(view, index, &view.roles[index].decl.body, &mut scope, &mut Vec::new(), &mut out);
    }
    out
}

/// What a role brings into scope: its binder and the indices its warps share.
pub(super) fn role_scope<'a>(view: &View<'a>, role: usize) -> Scope<'a> {
    let decl = view.roles[role].decl;
    let mut scope = Scope::new();
    if let Some(name) = &decl.binder {
        let set = match &decl.binder_set {
            Some(set) => set.value,
            None => indexed_by(view, &decl.body, name).unwrap_or(PeerSet::All),
        };
        scope.push(Binder { name, meaning: Meaning::Index(Counted::Peers(set)) });
    }
    if let Some(Share::Warps(names)) = &decl.share {
        for name in names.iter().filter(|name| *name != "stripe" && *name != "token") {
            let counted =
                if name == "source" { Counted::Peers(PeerSet::All) } else { Counted::Other };
            scope.push(Binder { name, meaning: Meaning::Index(counted) });
        }
    }
    scope
}

/// The peers of the first channel that `body` indexes by `binder`: those are what it runs over.
fn indexed_by(view: &View<'_>, body: &[Stmt], binder: &Ident) -> Option<PeerSet> {
    let by_binder = |indices: &[Expr]| {
        indices.iter().any(|index| matches!(&index.kind, ExprKind::Name(name) if name == binder))
    };
    let set = |name: &Ident| view.channel(name).map(|channel| channel.per.value);
    body.iter().find_map(|stmt| match &stmt.kind {
        StmtKind::Announce { channel, .. } | StmtKind::Push { channel, .. } => {
            if by_binder(&channel.indices) { set(&channel.name) } else { None }
        }
        StmtKind::For(inner) => {
            let received = match &inner.domain {
                Domain::Expr(Expr { kind: ExprKind::Index { base, indices }, .. })
                    if by_binder(indices) =>
                {
                    root(base).and_then(set)
                }
                _ => None,
            };
            received.or_else(|| indexed_by(view, &inner.body, binder))
        }
        StmtKind::When(when) => indexed_by(view, &when.body, binder),
        _ => None,
    })
}

fn body<'a>(
    view: &View<'a>,
    role: usize,
    stmts: &'a [Stmt],
    scope: &mut Scope<'a>,
    loops: &mut Vec<usize>,
    out: &mut Vec<Site<'a>>,
) {
    let outer = scope.len();
    for stmt in stmts {
        if let StmtKind::When(when) = &stmt.kind {
            if holds(&[Guard::of(when)], &view.choice) {
                body(view, role, &when.body, scope, loops, out);
            }
            continue;
        }
        let index = out.len();
        out.push(Site { role, stmt, scope: scope.clone(), loops: loops.clone() });
        match &stmt.kind {
            StmtKind::For(inner) => {
                let length = scope.len();
                scope.extend(loop_binders(view, scope, inner));
                loops.push(index);
                body(view, role, &inner.body, scope, loops, out);
                loops.pop();
                scope.truncate(length);
            }
            StmtKind::Let { name, value } => {
                let ty = match name == CONDITION {
                    true => Type::scalar(Scalar::Bool),
                    false => typing::silent(view, scope, value),
                };
                let meaning = Meaning::Value(ty);
                scope.push(Binder { name, meaning });
            }
            _ => {}
        }
    }
    scope.truncate(outer);
}

/// What a loop brings into scope for its filter and body.
pub(super) fn loop_binders<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    inner: &'a For,
) -> Vec<Binder<'a>> {
    let mut binders = vec![index_binder(view, scope, &inner.binder, &inner.domain)];
    if inner.conditions_of_others().is_some() && is_number(view, WellKnown::Ranks.name()) {
        binders[0].meaning = Meaning::Index(Counted::Peers(PeerSet::Others));
    }
    if let (Some(_), Some(counted)) = (&inner.position, binders[0].counted()) {
        binders[0].meaning = Meaning::Placed(counted);
    }
    if let Some(gather) = &inner.gather {
        binders.push(index_binder(view, scope, &gather.across, &gather.over));
        if let Some(channel) = view.channel(&gather.channel.name) {
            binders.push(Binder { name: &gather.part, meaning: Meaning::Part(channel) });
        } else {
            binders.push(Binder { name: &gather.part, meaning: Meaning::Value(Type::Unknown) });
        }
    }
    binders
}

/// Calls `visit` with every expression that `stmt` itself holds, not those of its block; places
/// that are written give their indices only.
pub(super) fn exprs<'a>(stmt: &'a Stmt, visit: &mut dyn FnMut(&'a Expr)) {
    let domain = |domain: &'a Domain, visit: &mut dyn FnMut(&'a Expr)| match domain {
        Domain::Expr(expr) => visit(expr),
        Domain::Range { low, high } => {
            visit(low);
            visit(high);
        }
        Domain::Once { .. } => {}
    };
    match &stmt.kind {
        StmtKind::For(inner) => {
            domain(&inner.domain, visit);
            inner.position.iter().chain(&inner.filter).for_each(&mut *visit);
            if let Some(gather) = &inner.gather {
                gather.channel.indices.iter().chain(&gather.position).for_each(&mut *visit);
                domain(&gather.over, visit);
            }
        }
        StmtKind::Announce { channel, values } => {
            channel.indices.iter().chain(values.iter().map(|value| &value.value)).for_each(visit);
        }
        StmtKind::Push { channel, position, values, .. } => {
            let values = values.iter().map(|value| &value.value);
            channel.indices.iter().chain(position).chain(values).for_each(visit);
        }
        StmtKind::Store { place, value }
        | StmtKind::Record { place, value }
        | StmtKind::Add { place, value } => {
            place.indices.iter().chain([value]).for_each(visit);
        }
        StmtKind::Count { place } | StmtKind::Raise { place } => {
            place.indices.iter().for_each(visit);
        }
        StmtKind::AwaitWord { place, least } => {
            place.indices.iter().chain([least]).for_each(visit);
        }
        StmtKind::Let { value, .. } => visit(value),
        StmtKind::Await { .. } | StmtKind::Close { .. } | StmtKind::When(_) | StmtKind::Call(_) => {
        }
    }
}

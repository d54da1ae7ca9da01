//! Rule `staged`: what a loop asks of memory about each of its turns the lanes look up for 32 turns at once.
//!
//! What it gains: a dispatch that asks for each token where it goes waits for memory once for 32 tokens instead of once
//! for each.

use crate::ir::{BinaryOp, Elem, Tensor, TensorKind, walk};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::term::{Node, Term};

/// The steps with such conditions looked up ahead.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Step::Loop(repeat) = &mut step {
            out.extend(looked_up(role, repeat));
        }
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(role, std::mem::take(inner));
        }
        out.push(step);
    }
    out
}

/// Has a loop over rows look up its first condition, or that of the loop over peers that is all it does, and gives the
/// object that does so.
fn looked_up(role: &mut RoleLowering<'_>, outer: &mut Loop) -> Option<Step> {
    let is_of_rows = outer.turns == Takers::Serial
        && outer.elem == Elem::I32
        && outer.to.as_constant().is_none();
    if !is_of_rows {
        return None;
    }
    let mut inside = Vec::new();
    declared(&outer.body, &mut inside);
    let turn = Term::index(&outer.binder);
    let (mut among, mut peer) = (Term::int(1), Term::int(0));
    let condition = match peers_of(&mut outer.body) {
        Some(inner) => {
            inside.retain(|name| *name != inner.binder);
            (among, peer) = (inner.to.clone(), Term::index(&inner.binder));
            first_condition(&mut inner.body, &peer)?
        }
        None => first_condition(&mut outer.body, &peer)?,
    };
    let is_known = |name: &str| !inside.iter().any(|own| own == name);
    let fits = condition.elem == Elem::Bool
        && condition.mentions(&outer.binder)
        && reads(condition)
        && is_still(role, condition, &is_known);
    if !fits {
        return None;
    }
    let object = role.names.fresh("flags");
    let own = [role.names.fresh("turn"), role.names.fresh("peer")];
    let mut asked = condition.clone();
    rename(&mut asked, &outer.binder, &own[0]);
    if let Node::Name(name) = &peer.node {
        rename(&mut asked, name, &own[1]);
    }
    let params = own.map(|name| Param { kind: ParamType::Index, name }).to_vec();
    let gives = Some(asked);
    let asks = Term::lambda(Lambda { says: Vec::new(), params, body: Vec::new(), gives });
    *condition = Term::method(&object, "at", vec![turn, outer.to.clone(), peer, asks], Elem::Bool);
    Some(Step::Object { class: ep::Flags.of(among), name: object, args: Vec::new() })
}

/// The loop over a fixed number of peers, if a body is nothing else.
fn peers_of(body: &mut [Step]) -> Option<&mut Loop> {
    let (last, before) = body.split_last_mut()?;
    let Step::Loop(own) = last else { return None };
    let is_all = before.iter().all(|step| matches!(step, Step::Says(_) | Step::Remark(_)));
    let fits = own.turns == Takers::Serial && own.from.is(0) && own.to.as_constant().is_some();
    (is_all && fits).then_some(own)
}

/// The condition that a body asks before it does anything; the peer may be left out before that.
fn first_condition<'s>(body: &'s mut [Step], peer: &Term) -> Option<&'s mut Term> {
    for step in body {
        match step {
            Step::Says(_) | Step::Remark(_) => {}
            Step::SkipUnless(Term { node: Node::Binary(BinaryOp::Ne, left, _), .. })
                if left.node == peer.node => {}
            Step::SkipUnless(condition) | Step::Let { value: condition, .. } => {
                return Some(condition);
            }
            _ => return None,
        }
    }
    None
}

/// Whether every lane finds out the same of a turn before it comes: from numbers that are known outside of the loop, and
/// from tensors that nothing writes.
fn is_still(role: &RoleLowering<'_>, term: &Term, is_known: &dyn Fn(&str) -> bool) -> bool {
    let here = match &term.node {
        Node::Name(name) => is_known(name.split(['.', '[']).next().unwrap_or(name)),
        Node::Index(base, _) => is_input(role, base),
        Node::Call(..) | Node::Lambda(_) | Node::Address(_) => false,
        _ => true,
    };
    here && term.inner().into_iter().all(|inner| is_still(role, inner, is_known))
}

/// Whether a term reads memory.
fn reads(term: &Term) -> bool {
    matches!(term.node, Node::Index(..)) || term.inner().into_iter().any(reads)
}

/// Whether a place is in an input, or in a table of an earlier call, that no role writes.
fn is_input(role: &RoleLowering<'_>, base: &Term) -> bool {
    let Node::Name(name) = &base.node else { return false };
    let is_own = |tensor: &str| name.strip_prefix("args.") == Some(tensor);
    let mut written = false;
    for other in &role.ir.roles {
        walk::stmts(&other.body, &mut |stmt| {
            written |= walk::target(stmt).is_some_and(|place| is_own(&place.tensor));
        });
    }
    let reads = |it: &Tensor| it.kind == TensorKind::Input || it.from_handle.is_some();
    !written && role.ir.tensors.iter().any(|tensor| is_own(&tensor.name) && reads(tensor))
}

/// The names that steps declare.
fn declared(steps: &[Step], found: &mut Vec<String>) {
    for step in steps {
        match step {
            Step::Object { name, .. }
            | Step::Let { name, .. }
            | Step::Made { name, .. }
            | Step::Pointer { name, .. }
            | Step::Variable { name, .. }
            | Step::Take { name, .. }
            | Step::Loop(Loop { binder: name, .. }) => found.push(name.clone()),
            _ => {}
        }
        declared(step.inner(), found);
    }
}

/// Puts another name in the place of one.
fn rename(term: &mut Term, name: &str, by: &str) {
    if matches!(&term.node, Node::Name(own) if own == name) {
        term.node = Node::Name(by.to_string());
    }
    for inner in term.inner_mut() {
        rename(inner, name, by);
    }
}

//! A part of the rule `staged`: the lanes of a warp look up a loop's condition for 32 turns at once.
//!
//! The gain: a dispatch that reads a flag for each token waits for memory once per 32 tokens, not once per token.

use super::declares;
use crate::ir::{BinaryOp, Elem, walk};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::term::{Node, Term};

/// The steps with such conditions looked up ahead.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Step::Loop(repeat) = &mut step
            && let Some(flags) = looked_up(role, repeat)
        {
            let at = counted(&mut out, &flags, &repeat.to).unwrap_or(out.len());
            out.insert(at, flags.made());
        }
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(role, std::mem::take(inner));
        }
        out.push(step);
    }
    out
}

/// The answers to a condition of a loop.
struct Flags {
    name: String,
    /// How many peers it is asked for.
    among: Term,
    /// The condition, as a function of the turn and the peer.
    asks: Lambda,
}

impl Flags {
    fn made(&self) -> Step {
        Step::Object {
            class: ep::Flags.of(self.among.clone()),
            name: self.name.clone(),
            args: Vec::new(),
        }
    }
}

/// Finds a count of the turns before a loop for which the condition holds, and has it look up the first turns of the loop
/// as well. Gives the place of the count among the steps.
fn counted(out: &mut [Step], flags: &Flags, to: &Term) -> Option<usize> {
    let counts = |step: &Step| {
        let Step::Do(Term { node: Node::Call(_, args), .. }) = step else { return false };
        let Some(Term { node: Node::Call(function, spans), .. }) = args.last() else {
            return false;
        };
        let [_, _, Term { node: Node::Lambda(asks), .. }] = spans.as_slice() else { return false };
        function.is(ep::rows_ahead) && is_same(asks, &flags.asks)
    };
    let at = out.iter().rposition(counts)?;
    let Step::Do(Term { node: Node::Call(_, args), .. }) = &mut out[at] else { return None };
    let rows = args.last_mut()?;
    let Node::Call(_, spans) = &mut rows.node else { return None };
    let mut given = std::mem::take(spans);
    given.insert(2, to.clone());
    *rows = Term::method(&flags.name, "ahead", given, Elem::I32);
    Some(at)
}

/// Whether two functions give the same value, whatever their parameters are called.
fn is_same(one: &Lambda, other: &Lambda) -> bool {
    let gives = |function: &Lambda| {
        let mut gives = function.gives.clone()?;
        for (param, own) in function.params.iter().zip(&one.params) {
            rename(&mut gives, &param.name, &own.name);
        }
        forget_ranges(&mut gives);
        Some(gives)
    };
    one.body.is_empty() && other.body.is_empty() && gives(one) == gives(other)
}

fn forget_ranges(term: &mut Term) {
    term.range = None;
    term.inner_mut().into_iter().for_each(forget_ranges);
}

/// Has a loop over rows look up its first condition, or that of the loop over peers that is all it does.
fn looked_up(role: &mut RoleLowering<'_>, outer: &mut Loop) -> Option<Flags> {
    let is_of_rows = outer.turns == Takers::Serial
        && outer.elem == Elem::I32
        && outer.to.as_constant().is_none();
    if !is_of_rows {
        return None;
    }
    let turn = Term::index(&outer.binder);
    let (found, peer, among) = condition_of(&mut outer.body)?;
    let condition = found.clone();
    // Names that the loop makes have no value before its turns, but for its own number and the peer.
    let is_known = |name: &str| {
        peer.root() == Some(name) || !declares(&outer.body, &|declared| declared == name)
    };
    let fits = condition.elem == Elem::Bool
        && condition.mentions(&outer.binder)
        && reads(&condition)
        && is_still(role, &condition, &is_known);
    if !fits {
        return None;
    }
    let object = role.names.fresh("flags");
    let own = [role.names.fresh("turn"), role.names.fresh("peer")];
    let mut asked = condition;
    rename(&mut asked, &outer.binder, &own[0]);
    if let Node::Name(name) = &peer.node {
        rename(&mut asked, name, &own[1]);
    }
    let params = own.map(|name| Param { kind: ParamType::Index, name }).to_vec();
    let gives = Some(asked);
    let asks = Lambda { says: Vec::new(), params, body: Vec::new(), gives };
    let args = vec![turn, outer.to.clone(), peer, Term::lambda(asks.clone())];
    *condition_of(&mut outer.body)?.0 = Term::method(&object, "at", args, Elem::Bool);
    Some(Flags { name: object, among, asks })
}

/// The first condition of a body, or of the loop over peers that is all it does; the peer, and how many peers there are.
fn condition_of(body: &mut [Step]) -> Option<(&mut Term, Term, Term)> {
    if peers_of(body).is_some() {
        let inner = peers_of(body)?;
        let (peer, among) = (Term::index(&inner.binder), inner.to.clone());
        return Some((first_condition(&mut inner.body, Some(&peer))?, peer, among));
    }
    Some((first_condition(body, None)?, Term::int(0), Term::int(1)))
}

/// The loop over a fixed number of peers, if a body is nothing else.
pub(super) fn peers_of(body: &mut [Step]) -> Option<&mut Loop> {
    let (last, before) = body.split_last_mut()?;
    let Step::Loop(own) = last else { return None };
    let is_all = before.iter().all(|step| matches!(step, Step::Says(_) | Step::Remark(_)));
    let fits = own.turns == Takers::Serial && own.from.is(0) && own.to.as_constant().is_some();
    (is_all && fits).then_some(own)
}

/// The condition that a body asks before it does anything; the peer may be left out before that.
fn first_condition<'s>(body: &'s mut [Step], peer: Option<&Term>) -> Option<&'s mut Term> {
    for step in body {
        match step {
            Step::Says(_) | Step::Remark(_) => {}
            Step::SkipUnless(Term { node: Node::Binary(BinaryOp::Ne, left, _), .. })
                if peer.is_some_and(|peer| left.node == peer.node) => {}
            Step::SkipUnless(condition) | Step::Let { value: condition, .. } => {
                return Some(condition);
            }
            _ => return None,
        }
    }
    None
}

/// Whether a lane may evaluate a term ahead of its turn, and for the peer that is left out: it reads numbers that are known
/// outside of the loop and tensors that nothing writes, and divides by constants only.
fn is_still(role: &RoleLowering<'_>, term: &Term, is_known: &dyn Fn(&str) -> bool) -> bool {
    let here = match &term.node {
        Node::Name(name) => is_known(name.split(['.', '[']).next().unwrap_or(name)),
        Node::Index(base, _) => is_input(role, base),
        Node::Binary(BinaryOp::Div | BinaryOp::Rem, _, by) => {
            matches!(by.node, Node::Int(_) | Node::Constant(_))
        }
        Node::Call(..) | Node::Lambda(_) | Node::Address(_) => false,
        _ => true,
    };
    here && term.inner().into_iter().all(|inner| is_still(role, inner, is_known))
}

/// Whether a term reads memory.
pub(super) fn reads(term: &Term) -> bool {
    matches!(term.node, Node::Index(..)) || term.inner().into_iter().any(reads)
}

/// Whether a place is in an input, or in a table of an earlier call, that no role writes.
pub(super) fn is_input(role: &RoleLowering<'_>, base: &Term) -> bool {
    let Node::Name(name) = &base.node else { return false };
    let own = role.ir.tensors.iter().find(|it| name.strip_prefix("args.") == Some(&it.name));
    own.is_some_and(|it| {
        it.is_given() && !role.ir.roles.iter().any(|other| walk::writes(&other.body, &it.name))
    })
}

/// Puts another name in the place of one.
pub(super) fn rename(term: &mut Term, name: &str, by: &str) {
    if matches!(&term.node, Node::Name(own) if own == name) {
        term.node = Node::Name(by.to_string());
    }
    for inner in term.inner_mut() {
        rename(inner, name, by);
    }
}

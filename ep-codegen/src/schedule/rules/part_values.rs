//! Rule `wide`, of rows that are added up, such as the parts of a token: a number that one of them has for all of its values,
//! such as a weight, one lane computes once, and the others get it from that lane.
//!
//! The gain: without it, each lane computes the number again for every stretch of the row.

use super::chosen::{all_still, is_still};
use super::sums::only_looks;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Param, ParamType, Step};
use crate::schedule::symbol::{Of, Root, Symbol};
use crate::schedule::term::{Node, Term};
use crate::schedule::uniform::is_of_any_lane;

/// The steps with such numbers computed ahead of the row.
pub(in crate::schedule) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out = Vec::with_capacity(steps.len());
    for mut step in steps {
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(role, std::mem::take(inner));
        }
        out.extend(before_wait(&mut step));
        if let Step::Do(call) = &mut step {
            out.extend(of_parts(role, call));
            out.extend(of_rows(role, call));
        }
        out.push(step);
    }
    out
}

/// What a step that waits, for parts or for room, computes of rows first, which the wait has nothing to do with.
fn before_wait(step: &mut Step) -> Vec<Step> {
    let Step::If { condition, body } = step else { return Vec::new() };
    if !condition.is_method("open") && !condition.is_method("reserve") {
        return Vec::new();
    }
    let is_number = |step: &&Step| match step {
        Step::Made { value: Term { node: Node::Call(function, _), .. }, .. } => {
            [ep::part_values, ep::row_values].iter().any(|it| function.is(*it))
        }
        Step::Made { value, .. } => matches!(value.node, Node::Lambda(_)),
        _ => false,
    };
    let mut own = Vec::new();
    for step in body.iter().filter(|step| !is_number(step)) {
        declared(std::slice::from_ref(step), &mut own);
    }
    let comes_first = |step: &Step| is_number(&step) && !own.iter().any(|name| step.mentions(name));
    let (ahead, rest) = std::mem::take(body).into_iter().partition(comes_first);
    *body = rest;
    ahead
}

/// What is to be computed ahead of a call that reads the rows of parts, which takes the numbers from there then.
fn of_parts(role: &mut RoleLowering<'_>, call: &mut Term) -> Vec<Step> {
    let Node::Call(function, args) = &mut call.node else { return Vec::new() };
    let [.., parts, _, _, _, Term { node: Node::Lambda(body), .. }] = args.as_mut_slice() else {
        return Vec::new();
    };
    let [_, Of::Constant(count), ..] = function.of.as_slice() else { return Vec::new() };
    if !function.is(ep::for_wide_parts) && !function.is(ep::for_staged_parts) {
        return Vec::new();
    }
    let mut own: Vec<String> = body.params.iter().map(|param| param.name.clone()).collect();
    own.extend(body.body.iter().filter_map(|step| step.declared().map(str::to_string)));
    let mut ahead = Vec::new();
    for step in &mut body.body {
        let Step::Do(Term { node: Node::Call(function, args), .. }) = step else { continue };
        let (Root::Method(_, "each"), [Term { node: Node::Lambda(each), .. }]) =
            (&function.root, args.as_mut_slice())
        else {
            continue;
        };
        let [part, row] = each.params.as_slice() else { continue };
        let names = (part.name.clone(), [&own[..], std::slice::from_ref(&row.name)].concat());
        ahead.extend(of_each(role, (&ep::part_values.of(count.clone()), parts), names, each));
    }
    ahead
}

/// What is to be computed ahead of a call that adds up rows, which takes the numbers from there then.
fn of_rows(role: &mut RoleLowering<'_>, call: &mut Term) -> Vec<Step> {
    let Node::Call(function, args) = &mut call.node else { return Vec::new() };
    let [_, _, _, row, Term { node: Node::Lambda(add), .. }, _] = args.as_mut_slice() else {
        return Vec::new();
    };
    let [_, Of::Constant(count), ..] = function.of.as_slice() else { return Vec::new() };
    let ([sum, number, values], true) = (add.params.as_slice(), function.is(ep::sum_some_rows))
    else {
        return Vec::new();
    };
    let names = (number.name.clone(), vec![sum.name.clone(), values.name.clone()]);
    let rows = Term::name(role.names.fresh("row_at"), Elem::I32);
    let ahead = of_each(role, (&ep::row_values.of(count.clone()), &rows), names, add);
    if ahead.is_empty() {
        return ahead;
    }
    let name = rows.root().unwrap_or_default().to_string();
    let value = std::mem::replace(row, rows);
    [vec![Step::Made { name, value }], ahead].concat()
}

/// What is to be computed ahead of what is done with each part, by a function of the library that is told of `parts`.
/// `hidden` are the names of a stretch of a row.
fn of_each(
    role: &mut RoleLowering<'_>,
    (function, parts): (&Symbol, &Term),
    (part, mut hidden): (String, Vec<String>),
    each: &mut Lambda,
) -> Vec<Step> {
    let is_fixed = |step: &Step| {
        !hidden.iter().any(|name| step.mentions(name))
            && all_still(role, std::slice::from_ref(step))
    };
    let first = each.body.iter().position(|step| !is_fixed(step)).unwrap_or(each.body.len());
    let mut rest = each.body.split_off(first);
    let before = std::mem::take(&mut each.body);
    let mut made = vec![part.clone()];
    let is_skip = |step: &Step| matches!(step, Step::SkipUnless(_));
    declared(&rest, &mut hidden);
    let mut values = Vec::new();
    let mut fits = only_looks(&before, &mut made) && !before.iter().any(is_skip);
    if fits {
        let numbers = Numbers { role, made: &made, hidden: &hidden };
        let each_time = rest.iter().take_while(|step| !is_skip(step));
        each_time.flat_map(Step::terms).for_each(|term| numbers.find(term, &mut values));
    }
    let mut ahead = Vec::new();
    let mut taken = rest.clone();
    let wanted = if function.is(ep::row_values) { "of_row" } else { "of_part" };
    for value in values {
        let name = role.names.fresh(wanted);
        let params = vec![Param { kind: ParamType::Index, name: part.clone() }];
        let (elem, gives) = (value.elem.clone(), Some(value.clone()));
        let number = Lambda { says: Vec::new(), params, body: before.clone(), gives };
        let args = vec![parts.clone(), Term::lambda(number)];
        let mut function = function.clone();
        function.of.insert(0, Of::Elem(elem.clone()));
        ahead.push(Step::Made { name: name.clone(), value: Term::call(function, args, Elem::I32) });
        let own = Term::method(&name, "of", vec![Term::index(&part)], elem);
        for step in &mut taken {
            step.replace(&value, &own);
        }
    }
    // What is left must not need the names that are no longer there.
    let is_gone = |name: &String| *name != part && taken.iter().any(|step| step.mentions(name));
    fits = fits && !ahead.is_empty() && !made.iter().any(is_gone);
    each.body = if fits { taken } else { [before, std::mem::take(&mut rest)].concat() };
    if fits { ahead } else { Vec::new() }
}

/// The names that steps declare, those inside of them as well.
fn declared(steps: &[Step], found: &mut Vec<String>) {
    for step in steps {
        found.extend(step.declared().map(str::to_string));
        declared(step.inner(), found);
    }
}

/// Finds numbers that a part has for its whole row.
struct Numbers<'n, 'r> {
    role: &'n RoleLowering<'r>,
    /// The number of the part, and names that are made of it.
    made: &'n [String],
    /// Names that stand for something of a stretch.
    hidden: &'n [String],
}

impl Numbers<'_, '_> {
    /// The largest such numbers in a term that something is read or computed for, each once. What only some parts come to
    /// is not looked at.
    fn find(&self, term: &Term, found: &mut Vec<Term>) {
        let is_about = |names: &[String]| names.iter().any(|name| term.mentions(name));
        if !is_about(self.made) {
            return;
        }
        let is_number = matches!(term.elem, Elem::F32 | Elem::I32 | Elem::I64 | Elem::Bool)
            && !is_about(self.hidden)
            && is_still(self.role, term)
            && is_of_any_lane(term);
        if is_number {
            if (is_about(&self.made[1..]) || reads(term)) && !found.contains(term) {
                found.push(term.clone());
            }
            return;
        }
        match &term.node {
            Node::Choose(first, ..) | Node::Binary(BinaryOp::And | BinaryOp::Or, first, _) => {
                self.find(first, found);
            }
            _ => term.inner().into_iter().for_each(|inner| self.find(inner, found)),
        }
    }
}

/// Whether a term reads an element of a tensor.
fn reads(term: &Term) -> bool {
    matches!(term.node, Node::Index(..)) || term.inner().into_iter().any(reads)
}

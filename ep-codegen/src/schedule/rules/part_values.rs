//! Rule `wide`, of rows that are added up, such as the parts of a token: one lane computes a number that a row has for all of
//! its values, such as a weight, and the other lanes get it from that lane.
//!
//! The gain: without it, each lane computes the number again for every stretch of the row.

use super::chosen::{all_still, is_still};
use super::declares;
use super::flags::reads;
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

/// Takes the numbers of rows out of a step that waits for parts or for room, so that they are computed before the wait.
fn before_wait(step: &mut Step) -> Vec<Step> {
    let Step::If { condition, body } = step else { return Vec::new() };
    if !["open", "reserve", "reserve_few"].iter().any(|what| condition.is_method(what)) {
        return Vec::new();
    }
    let is_number = |step: &&Step| match step {
        Step::Made { value: Term { node: Node::Call(function, _), .. }, .. } => {
            [ep::part_values, ep::row_values, ep::found_rows].iter().any(|it| function.is(*it))
        }
        Step::Made { value, .. } => matches!(value.node, Node::Lambda(_)),
        _ => false,
    };
    let others: Vec<Step> = body.iter().filter(|step| !is_number(step)).cloned().collect();
    let comes_first =
        |step: &Step| is_number(&step) && !declares(&others, &|name| step.mentions(name));
    let (ahead, rest) = std::mem::take(body).into_iter().partition(comes_first);
    *body = rest;
    ahead
}

/// Moves the numbers of parts out of a call that reads the rows of parts. Returns the steps that compute them.
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

/// Moves the numbers of rows out of a call that adds up rows. Returns the steps that compute them.
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
    let rows = Term::name(role.names.fresh("rows"), Elem::I32);
    let ahead = of_each(role, (&ep::row_values.of(count.clone()), &rows), names, add);
    if ahead.is_empty() {
        return ahead;
    }
    let name = rows.root().unwrap_or_default().to_string();
    let find = ep::found_rows.of(count.clone());
    let value = Term::call(find, vec![std::mem::replace(row, rows)], Elem::I32);
    [vec![Step::Made { name, value }], ahead].concat()
}

/// Moves the numbers of parts out of the function that is called for each part. Returns the steps that compute them with
/// `function`, which takes `parts`. `hidden` are the names of a stretch of a row.
fn of_each(
    role: &mut RoleLowering<'_>,
    (function, parts): (&Symbol, &Term),
    (part, hidden): (String, Vec<String>),
    each: &mut Lambda,
) -> Vec<Step> {
    let is_fixed = |step: &Step| {
        !hidden.iter().any(|name| step.mentions(name))
            && all_still(role, std::slice::from_ref(step))
    };
    let first = each.body.iter().position(|step| !is_fixed(step)).unwrap_or(each.body.len());
    let (before, rest) = each.body.split_at(first);
    let mut made = vec![part.clone()];
    let is_skip = |step: &Step| matches!(step, Step::SkipUnless(_));
    if !only_looks(before, &mut made) || before.iter().any(is_skip) {
        return Vec::new();
    }
    let mut values = Vec::new();
    let numbers = Numbers { role, made: &made, hidden: &hidden, rest };
    let each_time = rest.iter().take_while(|step| !is_skip(step));
    each_time.flat_map(Step::terms).for_each(|term| numbers.find(term, &mut values));
    let (mut ahead, mut taken) = (Vec::new(), rest.to_vec());
    let wanted = if function.is(ep::row_values) { "of_row" } else { "of_part" };
    for value in values {
        let name = role.names.fresh(wanted);
        let params = vec![Param { kind: ParamType::Index, name: part.clone() }];
        let (elem, gives) = (value.elem.clone(), Some(value.clone()));
        let number = Lambda { says: Vec::new(), params, body: before.to_vec(), gives };
        let args = vec![parts.clone(), Term::lambda(number)];
        let mut function = function.clone();
        function.of.insert(0, Of::Elem(elem.clone()));
        ahead.push(Step::Made { name: name.clone(), value: Term::call(function, args, Elem::I32) });
        let own = Term::method(&name, "of", vec![Term::index(&part)], elem);
        for step in &mut taken {
            step.replace(&value, &own);
        }
    }
    // The remaining steps must not use a name that moved into the functions.
    let is_used = |name: &String| *name != part && taken.iter().any(|step| step.mentions(name));
    if ahead.is_empty() || made.iter().any(is_used) {
        return Vec::new();
    }
    each.body = taken;
    ahead
}

/// Finds numbers that a part has for its whole row.
struct Numbers<'n, 'r> {
    role: &'n RoleLowering<'r>,
    /// The number of the part, and names that are made of it.
    made: &'n [String],
    /// Names that stand for something of a stretch.
    hidden: &'n [String],
    /// The steps for a stretch. What they declare is of the stretch, too.
    rest: &'n [Step],
}

impl Numbers<'_, '_> {
    /// Collects the largest terms that are such numbers and that read a tensor or use `made`, each once. It skips operands that
    /// are evaluated for some parts only.
    fn find(&self, term: &Term, found: &mut Vec<Term>) {
        let is_about = |names: &[String]| names.iter().any(|name| term.mentions(name));
        if !is_about(self.made) {
            return;
        }
        let is_number = matches!(term.elem, Elem::F32 | Elem::I32 | Elem::I64 | Elem::Bool)
            && !is_about(self.hidden)
            && !declares(self.rest, &|name| term.mentions(name))
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

//! Numbers: ranges hold something, defaults are legal, formulas end, conditions can be met.

use super::model::{Model, Placed, View};
use super::ranges::range;
use super::typing::Typing;
use crate::ast::{Arg, Elem, Expr, ExprKind, Ident, Item, ShapeEntry, Size, Tune};
use crate::diagnostics::{Diagnostics, numbers as errors};
use crate::syntax::reprint::expr as text;

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        match placed.item {
            Item::Shape(shape) => {
                let is_number = |entry: &ShapeEntry| !matches!(entry, ShapeEntry::Require { .. });
                if let Some(guard) = placed.guards.first()
                    && shape.entries.iter().any(is_number)
                {
                    out.push(errors::shape_in_arm(shape.keyword, guard.axis));
                }
                shape.entries.iter().for_each(|entry| shape_entry(entry, out));
            }
            Item::Variant(variant) => {
                if let Some(guard) = placed.guards.first() {
                    out.push(errors::variant_in_arm(&variant.name, guard.axis));
                }
            }
            Item::Tune(tunes) => tunes.iter().for_each(|tune| check_tune(tune, out)),
            Item::Arg(args) => args.iter().for_each(|arg| check_arg(arg, out)),
            Item::Size(size) => size_in_arm(size, placed, out),
            _ => {}
        }
    }
}

fn size_in_arm(size: &Size, placed: &Placed<'_>, out: &mut Diagnostics) {
    if let Some(guard) = placed.guards.first() {
        out.push(errors::size_in_arm(&size.name, guard.axis));
    }
}

fn shape_entry(entry: &ShapeEntry, out: &mut Diagnostics) {
    let ShapeEntry::Given { name, low, high, step, .. } = entry else { return };
    if let Some(step) = step.as_ref().filter(|step| step.value <= 0) {
        out.push(errors::step_not_positive(step, name));
    }
    if low.value > high.value {
        out.push(errors::empty_range(high, low.value, high.value, name));
    } else if low.value < 0 {
        out.push(errors::negative(low, name));
    } else if high.value > i64::from(i32::MAX) {
        out.push(errors::too_great(high, name));
    }
}

fn check_tune(tune: &Tune, out: &mut Diagnostics) {
    if tune.choices.is_empty() {
        return out.push(errors::no_choices(&tune.name, tune.default.value));
    }
    if !tune.choices.iter().any(|choice| choice.value == tune.default.value) {
        out.push(errors::default_not_in_list(tune));
    }
    for (index, choice) in tune.choices.iter().enumerate() {
        if choice.value < 0 {
            out.push(errors::negative(choice, &tune.name));
        } else if choice.value > i64::from(i32::MAX) {
            out.push(errors::too_great(choice, &tune.name));
        }
        let earlier = &tune.choices[..index];
        if earlier.iter().any(|earlier| earlier.value == choice.value) {
            out.push(errors::choice_twice(choice, &tune.name));
        } else if earlier.last().is_some_and(|earlier| earlier.value > choice.value) {
            let mut sorted: Vec<i64> = tune.choices.iter().map(|choice| choice.value).collect();
            sorted.sort_unstable();
            sorted.dedup();
            return out.push(errors::choices_not_ascending(choice, &tune.name, &sorted));
        }
    }
}

fn check_arg(arg: &Arg, out: &mut Diagnostics) {
    let limits = match &arg.elem {
        Elem::Name(name) if name == "i32" => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Elem::Name(name) if name == "i64" => (i64::MIN, i64::MAX),
        Elem::Name(name) if name == "u8" => (0, 255),
        Elem::Name(name) if name == "f32" => (-(1 << 24), 1 << 24),
        elem => return out.push(errors::arg_elem(elem.span(), &arg.name)),
    };
    let is_real = matches!(&arg.elem, Elem::Name(name) if name == "f32");
    for number in [&arg.default, &arg.low, &arg.high] {
        if !is_real && number.value.whole().is_none() {
            return out.push(errors::decimal_of_whole(number, arg.elem.span()));
        }
    }
    if arg.low.value.order(arg.high.value).is_gt() {
        return out.push(errors::empty_range(&arg.high, arg.low.value, arg.high.value, &arg.name));
    }
    if !arg.default.value.is_within(arg.low.value, arg.high.value) {
        return out.push(errors::default_out_of_range(arg));
    }
    for end in [&arg.low, &arg.high] {
        let fits = end.value.whole().is_none_or(|value| (limits.0..=limits.1).contains(&value));
        if !fits {
            return out.push(errors::does_not_fit(end, end.value, arg.elem.span()));
        }
    }
}

/// Rules about formulas and conditions.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    let recursive = recursion(view, out);
    for (index, entry) in view.shape.iter().enumerate() {
        match entry {
            ShapeEntry::Given { .. } => {}
            ShapeEntry::Derived { name, value, .. } => {
                over_shape(view, value, out);
                if !recursive {
                    declared_before(view, index, name, value, out);
                    divisors(view, value, out);
                }
            }
            ShapeEntry::Require { condition, .. } => {
                over_shape(view, condition, out);
                Typing { view, out }.condition(&mut Vec::new(), condition);
                if !recursive && range(view, condition).is_some_and(|range| range.high <= 0) {
                    out.push(errors::contradiction(condition.at, &text(condition)));
                }
            }
        }
    }
    for size in &view.sizes {
        if let Some(value) = &size.value {
            if mentions(value, &size.name.to_string()) {
                out.push(errors::recursion(&size.name, &[]));
            } else {
                Typing { view, out }.whole(&mut Vec::new(), value, "a size");
            }
        }
    }
}

/// A formula or condition of the shape holds names of the shape and tunes only.
fn over_shape<'a>(view: &View<'a>, expr: &'a Expr, out: &mut Diagnostics) {
    let mut known = true;
    visit_names(expr, &mut |name| {
        let tensor = view.tensors.iter().find(|tensor| tensor.decl.name == *name);
        let size = view.sizes.iter().find(|size| size.name == *name);
        let arg = view.args.iter().find(|arg| arg.name == *name);
        let run_time = size.map(|_| "size").or(arg.map(|_| "arg")).or(tensor.map(|_| "tensor"));
        if let Some(what) =
            run_time.or((name == "me" || name == "stripe").then_some("run-time number"))
        {
            out.push(errors::not_of_the_shape(name, what));
            known = false;
        }
    });
    if known && !matches!(expr.kind, ExprKind::Binary { .. } | ExprKind::Not { .. }) {
        Typing { view, out }.whole(&mut Vec::new(), expr, "a number of the shape");
    } else if known {
        let ty = Typing { view, out }.expr(&mut Vec::new(), expr);
        drop(ty);
    }
}

/// Whether derived names form a circle, which is reported once.
fn recursion(view: &View<'_>, out: &mut Diagnostics) -> bool {
    let derived: Vec<_> = view
        .shape
        .iter()
        .filter_map(|entry| match entry {
            ShapeEntry::Derived { name, value, .. } => Some((name, value)),
            _ => None,
        })
        .collect();
    let uses = |from: usize| -> Vec<usize> {
        let value = derived[from].1;
        (0..derived.len()).filter(|to| mentions(value, &derived[*to].0.to_string())).collect()
    };
    for start in 0..derived.len() {
        if let Some(circle) = super::graph::circle(start, derived.len(), &uses) {
            let others: Vec<_> = circle[1..].iter().map(|index| derived[*index].0).collect();
            out.push(errors::recursion(derived[start].0, &others));
            return true;
        }
    }
    false
}

/// A formula uses names of the shape that stand above it, since the plan computes them in order.
fn declared_before(
    view: &View<'_>,
    index: usize,
    name: &Ident,
    value: &Expr,
    out: &mut Diagnostics,
) {
    for later in &view.shape[index + 1..] {
        let (ShapeEntry::Given { name: used, .. } | ShapeEntry::Derived { name: used, .. }) = later
        else {
            continue;
        };
        visit_names(value, &mut |mention| {
            if mention == used {
                out.push(errors::declared_later(mention, name, used));
            }
        });
    }
}

/// A divisor that is 0 for some legal shape.
fn divisors(view: &View<'_>, expr: &Expr, out: &mut Diagnostics) {
    use crate::ast::BinaryOp::{Div, Rem};
    match &expr.kind {
        ExprKind::Binary { op, left, right, .. } => {
            if matches!(op, Div | Rem) {
                divisor(view, right, out);
            }
            divisors(view, left, out);
            divisors(view, right, out);
        }
        ExprKind::Call { helper, args } => {
            if (helper == "ceil" || helper == "align")
                && let Some(step) = args.get(1)
            {
                divisor(view, step, out);
            }
            args.iter().for_each(|arg| divisors(view, arg, out));
        }
        ExprKind::Not { value } | ExprKind::Neg { value } => divisors(view, value, out),
        ExprKind::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| divisors(view, part, out));
        }
        _ => {}
    }
}

fn divisor(view: &View<'_>, divisor: &Expr, out: &mut Diagnostics) {
    if range(view, divisor).is_some_and(|range| range.low <= 0 && range.high >= 0) {
        out.push(errors::divisor_may_be_zero(divisor.at, &text(divisor)));
    }
}

/// Whether `name` occurs in `expr`.
pub(super) fn mentions(expr: &Expr, name: &str) -> bool {
    let mut found = false;
    visit_names(expr, &mut |mention| found |= mention == name);
    found
}

/// Calls `visit` with every name in `expr`, binders of folds included.
pub(super) fn visit_names<'a>(expr: &'a Expr, visit: &mut dyn FnMut(&'a Ident)) {
    match &expr.kind {
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) => {}
        ExprKind::Name(name) => visit(name),
        ExprKind::Index { base, indices } => {
            visit_names(base, visit);
            indices.iter().for_each(|index| visit_names(index, visit));
        }
        ExprKind::Field { base, .. } => visit_names(base, visit),
        ExprKind::Call { args, .. } => args.iter().for_each(|arg| visit_names(arg, visit)),
        ExprKind::Fold { domain, body, .. } => {
            visit_domain(domain, visit);
            visit_names(body, visit);
        }
        ExprKind::Cast { value, .. } | ExprKind::Not { value } | ExprKind::Neg { value } => {
            visit_names(value, visit);
        }
        ExprKind::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| visit_names(part, visit));
        }
        ExprKind::Binary { left, right, .. } => {
            visit_names(left, visit);
            visit_names(right, visit);
        }
    }
}

/// Calls `visit` with every name in `domain`.
pub(super) fn visit_domain<'a>(domain: &'a crate::ast::Domain, visit: &mut dyn FnMut(&'a Ident)) {
    match domain {
        crate::ast::Domain::Expr(expr) => visit_names(expr, visit),
        crate::ast::Domain::Range { low, high } => {
            visit_names(low, visit);
            visit_names(high, visit);
        }
        crate::ast::Domain::Once { .. } => {}
    }
}

//! Ranges of values: they are of inputs, of whole numbers, and hold something.

use super::model::{Tensor, View};
use super::names::is_number;
use super::numbers::visit_names;
use super::ranges::range;
use super::types::scalar_of;
use super::typing::Typing;
use super::walk::Scope;
use crate::ast::{Expr, Ident, TensorKind, Values};
use crate::diagnostics::{Diagnostics, values as errors};

/// Checks the ranges of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for tensor in &view.tensors {
        if let Some(values) = &tensor.decl.values {
            of_tensor(view, tensor, values, out);
        }
    }
    for size in &view.sizes {
        if let Some(values) = &size.values {
            ends(view, &size.name, values, out);
        }
    }
}

fn of_tensor<'a>(view: &View<'a>, tensor: &Tensor<'a>, values: &'a Values, out: &mut Diagnostics) {
    let name = &tensor.decl.name;
    if tensor.handle.is_some() || !matches!(tensor.kind, TensorKind::Input | TensorKind::Inout) {
        return out.push(errors::of_no_input(values.at, name));
    }
    if let Some(scalar) = scalar_of(view, &tensor.decl.elem)
        && !matches!(scalar, super::types::Scalar::Int(_))
    {
        return out.push(errors::of_no_number(values.at, name, &scalar.to_string()));
    }
    ends(view, name, values, out);
}

/// Checks the ends of the range of what `name` names.
fn ends<'a>(view: &View<'a>, name: &Ident, values: &'a Values, out: &mut Diagnostics) {
    let ends = [Some(&values.low), Some(&values.high), values.step.as_ref()];
    if ends.into_iter().flatten().any(|end| !known(view, end, out)) {
        return;
    }
    let limit = |end: &Expr| range(view, end);
    if let (Some(low), Some(high)) = (limit(&values.low), limit(&values.high))
        && high.high + i128::from(values.inclusive) <= low.low
    {
        out.push(errors::empty(values.at, name));
    }
    if let Some(step) = values.step.as_ref().filter(|s| limit(s).is_some_and(|s| s.high <= 0)) {
        out.push(errors::no_step(step, name));
    }
}

/// Whether an end is made of numbers that are known before a call begins; if not, that is said.
fn known<'a>(view: &View<'a>, end: &'a Expr, out: &mut Diagnostics) -> bool {
    let mut fine = true;
    visit_names(end, &mut |name| {
        if !is_number(view, &name.to_string())
            && super::names::is_known(view, &Scope::new(), name)
            && !view.open
        {
            out.push(errors::not_a_number(name));
            fine = false;
        }
    });
    if fine {
        Typing { view, out }.whole(&mut Scope::new(), end, "the end of a range");
    }
    fine
}

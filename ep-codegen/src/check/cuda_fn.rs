//! `cuda fn`: its parameters and result are single elements. What the C++ text says is compared
//! where the text is read.

use super::model::Model;
use crate::ast::{CudaFn, Elem, Item};
use crate::diagnostics::{Diagnostics, cuda_fn as errors};
use crate::ir::{Fold, helpers};
use crate::keywords;

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        if let Item::CudaFn(cuda_fn) = placed.item {
            declaration(cuda_fn, out);
        }
    }
}

fn declaration(cuda_fn: &CudaFn, out: &mut Diagnostics) {
    let name = cuda_fn.name.to_string();
    if helpers::find(&name, 0).is_some() || Fold::of_word(&name).is_some() {
        out.push(errors::hides_helper(&cuda_fn.name));
    }
    for param in &cuda_fn.params {
        scalar(&param.elem, &format!("parameter `{}`", param.name), out);
    }
    scalar(&cuda_fn.returns, "the result", out);
}

fn scalar(elem: &Elem, what: &str, out: &mut Diagnostics) {
    match elem {
        Elem::Name(name) if keywords::ELEMS.iter().any(|elem| name == elem) => {}
        Elem::Name(name) => out.push(errors::not_scalar(name.span(), &name.to_string(), what)),
        Elem::Bits { keyword, .. } => out.push(errors::not_scalar(*keyword, "bits", what)),
    }
}

//! Variants: every arm says something, arms used as element types have parts, and the texts that
//! all choices make stay few.

use super::model::{Model, TEXTS_MAX};
use crate::ast::{Arm, Elem, Ident, Item, Variant};
use crate::diagnostics::{Diagnostics, variants as errors};
use crate::keywords;

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for axis in &model.axes {
        if axis.arms.is_empty() {
            out.push(errors::no_arms(&axis.name));
        }
        let element = used_as_element(model, &axis.name);
        for arm in &axis.arms {
            parts(axis, arm, element, out);
        }
    }
    texts(model, out);
}

/// The text of a pipeline is compiled once per choice of arms.
fn texts(model: &Model<'_>, out: &mut Diagnostics) {
    let texts = model.texts();
    if texts <= TEXTS_MAX {
        return;
    }
    let axes: Vec<(String, usize)> =
        model.axes.iter().map(|axis| (axis.name.to_string(), axis.arms.len())).collect();
    // The axis that first makes them too many, in order of declaration.
    let mut so_far = 1usize;
    let culprit = model.axes.iter().find(|axis| {
        so_far = so_far.saturating_mul(axis.arms.len().max(1));
        so_far > TEXTS_MAX
    });
    if let Some(axis) = culprit {
        out.push(errors::too_many_texts(&axis.name, texts, TEXTS_MAX, &axes));
    }
}

fn parts(axis: &Variant, arm: &Arm, element: Option<&Ident>, out: &mut Diagnostics) {
    if let (true, Some(used)) = (arm.parts.is_empty(), element) {
        let model = axis.arms.iter().find(|other| !other.parts.is_empty());
        out.push(errors::arm_without_parts(arm, axis, used, model));
    }
    for (index, part) in arm.parts.iter().enumerate() {
        if let Some(block) = &part.block {
            if block.value <= 0 {
                out.push(errors::empty_block(block, block.value));
            } else if index == 0 {
                out.push(errors::row_with_block(block, part));
            }
        } else if index > 0 {
            out.push(errors::part_without_block(part));
        }
        match &part.elem {
            Elem::Name(name) if keywords::ELEMS.iter().any(|elem| name == elem) => {}
            Elem::Name(name) => out.push(errors::part_not_scalar(name.span(), &name.to_string())),
            Elem::Bits { keyword, .. } => out.push(errors::part_not_scalar(*keyword, "bits")),
        }
    }
}

/// The first tensor or field whose element type is this axis.
fn used_as_element<'a>(model: &Model<'a>, axis: &Ident) -> Option<&'a Ident> {
    let is_axis = |elem: &Elem| matches!(elem, Elem::Name(name) if name == axis);
    model.items.iter().find_map(|placed| match placed.item {
        Item::Tensors(tensors) => {
            tensors.list.iter().find(|tensor| is_axis(&tensor.elem)).map(|tensor| &tensor.name)
        }
        Item::Message(message) => {
            message.fields.iter().find(|field| is_axis(&field.elem)).map(|field| &field.name)
        }
        _ => None,
    })
}

//! Phases: they hold roles, stand side by side, and hold every role once there are any.

use super::model::Model;
use crate::ast::{Item, Phase, Span};
use crate::diagnostics::{Diagnostics, phases as errors};

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    let mut phases: Vec<&Phase> = Vec::new();
    top(&model.pipeline.items, false, &mut phases, out);
    for (index, phase) in phases.iter().enumerate() {
        if let Some(first) = phases[..index].iter().find(|first| first.name == phase.name) {
            out.push(crate::diagnostics::names::duplicate(&phase.name, "phase", &first.name));
        }
    }
    let Some(first) = phases.first() else { return };
    for placed in &model.items {
        if let (Item::Role(role), None) = (placed.item, placed.phase) {
            out.push(errors::role_outside(&role.name, &first.name));
        }
    }
}

/// The phases among `items`, outside of other phases.
fn top<'a>(items: &'a [Item], in_when: bool, phases: &mut Vec<&'a Phase>, out: &mut Diagnostics) {
    for item in items {
        match item {
            Item::Phase(phase) => {
                if in_when {
                    out.push(errors::phase_in_when(phase.keyword, &phase.name));
                }
                phases.push(phase);
                inside(phase, &phase.items, out);
            }
            Item::When(when) => top(&when.body, true, phases, out),
            _ => {}
        }
    }
}

/// What a phase holds.
fn inside(phase: &Phase, items: &[Item], out: &mut Diagnostics) {
    for item in items {
        match item {
            Item::Role(_) => {}
            Item::When(when) => inside(phase, &when.body, out),
            Item::Phase(inner) => {
                out.push(errors::phase_in_phase(inner.keyword, &inner.name, &phase.name));
            }
            other => {
                if let Some((span, what)) = words(other) {
                    out.push(errors::not_a_role(span, what, &phase.name));
                }
            }
        }
    }
}

/// The first word of a declaration, and what it declares.
fn words(item: &Item) -> Option<(Span, &'static str)> {
    Some(match item {
        Item::Shape(shape) => (shape.keyword, "a shape"),
        Item::Variant(variant) => (variant.name.span(), "a variant"),
        Item::Tune(tunes) => (tunes.first()?.name.span(), "a tune"),
        Item::Arg(args) => (args.first()?.name.span(), "an arg"),
        Item::Size(size) => (size.name.span(), "a size"),
        Item::Tensors(tensors) => (tensors.keyword, "a tensor"),
        Item::Message(message) => (message.name.span(), "a message"),
        Item::Channel(channel) => (channel.name.span(), "a channel"),
        Item::Uses(uses) => (uses.name.span(), "a handle"),
        Item::CudaFn(cuda_fn) => (cuda_fn.name.span(), "a function"),
        Item::Role(_) | Item::Phase(_) | Item::When(_) | Item::Use(_) => return None,
    })
}

//! What a declaration must mean before it can become a kernel.
//!
//! The parser has accepted its form. The rules here are of two kinds: those about declarations,
//! which run once, and those about behaviour, which run on the `View` of each choice of
//! arms, so that a `when` is judged with what it stands among. One family of rules is one file;
//! every sentence an author can see is in [`crate::diagnostics`].
//!
//! All independent errors are reported together. A name that stands for nothing fits everywhere, so
//! that one mistake is one error.

mod apart;
mod calls;
mod channels;
mod conversion;
mod coverage;
mod cuda_fn;
mod deadlock;
mod fields;
mod graph;
mod handles;
mod limits;
mod message_order;
mod messages;
mod model;
mod names;
mod naming;
mod numbers;
mod phases;
mod ranges;
mod roles;
mod served;
mod statements;
mod tables;
#[cfg(test)]
mod tests;
mod types;
mod typing;
mod values;
mod variants;
mod waited;
mod walk;
mod words;

use crate::ast::{File, Pipeline};
use crate::diagnostics::Diagnostics;
use model::{Model, View};
pub(crate) use names::declared_names;

/// Every mistake of meaning in a `pipeline!` block.
pub fn check(file: &File) -> Diagnostics {
    let mut found = Diagnostics::new();
    naming::check_file(file, &mut found);
    handles::check_file(file, &mut found);
    for pipeline in &file.pipelines {
        check_pipeline(file, pipeline, &mut found);
    }
    if found.is_empty() {
        file.pipelines.iter().for_each(|pipeline| limits::check_least(file, pipeline, &mut found));
    }
    found.without_repeats()
}

fn check_pipeline(file: &File, pipeline: &Pipeline, out: &mut Diagnostics) {
    let model = Model::new(file, pipeline);
    let mut found = Diagnostics::new();
    check_declarations(&model, &mut found);
    let mut guards = Diagnostics::new();
    names::check_guards(&model, &mut guards);
    // A `when` on nothing belongs to no choice, so that there is no choice to judge.
    if guards.is_empty() {
        check_choices(&model, &mut found);
    }
    found.extend(guards);
    out.extend(found);
}

/// The rules about declarations.
fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    naming::check_declarations(model, out);
    numbers::check_declarations(model, out);
    variants::check_declarations(model, out);
    messages::check_declarations(model, out);
    channels::check_declarations(model, out);
    tables::check_declarations(model, out);
    phases::check_declarations(model, out);
    cuda_fn::check_declarations(model, out);
    handles::check_declarations(model, out);
}

/// The rules about behaviour.
fn check_choices<'a>(model: &'a Model<'a>, out: &mut Diagnostics) {
    let views: Vec<View<'_>> =
        model.choices().into_iter().map(|choice| View::new(model, choice)).collect();
    for view in &views {
        check_view(view, out);
    }
    // What nobody does may be what an unknown word was meant to do.
    if !out.has_unresolved() {
        channels::check_all(&views, out);
        tables::check_all(&views, out);
    }
}

/// The rules about behaviour, for one choice of arms.
fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    names::check_view(view, out);
    numbers::check_view(view, out);
    statements::check_view(view, out);
    messages::check_view(view, out);
    channels::check_view(view, out);
    served::check_view(view, out);
    waited::check_view(view, out);
    words::check_view(view, out);
    calls::check_view(view, out);
    message_order::check_view(view, out);
    tables::check_view(view, out);
    values::check_view(view, out);
    roles::check_view(view, out);
    deadlock::check_view(view, out);
    handles::check_view(view, out);
    limits::check_view(view, out);
}

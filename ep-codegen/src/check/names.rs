//! The names that an author uses: every word that is not a keyword stands for one declared thing,
//! which exists in every arm that uses it.

use super::model::{Guard, Model, Placed, Tensor, View};
use super::naming;
use super::walk::Scope;
use crate::ast::{
    self, Channel, Elem, Ident, Item, Role, ShapeEntry, Stmt, StmtKind, TensorKind, UNNAMED, When,
};
use crate::diagnostics::{Diagnostic, Diagnostics, names as errors};
use crate::ir::{CONDITION, Fold, helpers};
use crate::keywords;

/// What a declared name stands for in an expression.
pub(super) enum Named<'v, 'a> {
    /// A number; a run-time one has an element type.
    Number(Option<&'a Elem>),
    /// A tensor.
    Tensor(&'v Tensor<'a>),
    /// A channel.
    Channel(&'a Channel),
}

/// What `name` stands for.
pub(super) fn resolve<'v, 'a>(view: &'v View<'a>, name: &Ident) -> Option<Named<'v, 'a>> {
    if is_number(view, &name.to_string()) {
        return Some(Named::Number(None));
    }
    if let Some(arg) = view.args.iter().find(|arg| arg.name == *name) {
        return Some(Named::Number(Some(&arg.elem)));
    }
    match view.tensor(name) {
        Some(tensor) => Some(Named::Tensor(tensor)),
        None => view.channel(name).map(Named::Channel),
    }
}

/// Whether `name` is a number of the shape, a tune or a size.
pub(super) fn is_number(view: &View<'_>, name: &str) -> bool {
    given(view, name)
        || view.shape.iter().any(
            |entry| matches!(entry, ShapeEntry::Derived { name: derived, .. } if derived == name),
        )
}

/// Whether `name` is a number that nothing computes from others: two such names mean two things.
pub(super) fn given(view: &View<'_>, name: &str) -> bool {
    view.sizes.iter().any(|size| size.name == name)
        || view.tunes.iter().any(|tune| tune.name == name)
        || view
            .shape
            .iter()
            .any(|entry| matches!(entry, ShapeEntry::Given { name: given, .. } if given == name))
}

/// The size that stripes are slices of: the one that the caller gives, else one of the device.
pub(super) fn striped<'a>(view: &View<'a>) -> Option<&'a Ident> {
    let given = view.sizes.iter().find(|size| size.value.is_none());
    given.or(view.sizes.first()).map(|size| &size.name)
}

/// Whether `name` stands for something in an expression.
pub(super) fn is_known(view: &View<'_>, scope: &Scope<'_>, name: &Ident) -> bool {
    scope.iter().any(|binder| binder.name == name)
        || name == "me"
        || DOMAINS.iter().any(|word| name == word)
        || resolve(view, name).is_some()
        || view.open
}

/// Words that are domains unless something declared has their name.
pub(super) const DOMAINS: &[&str] = &["stripe", "all", "others", "local", "rail"];

/// The error of a name in an expression that stands for nothing.
pub(super) fn unknown(view: &View<'_>, scope: &Scope<'_>, name: &Ident) -> Diagnostic {
    let numbers = numbers(view).into_iter().map(Ident::to_string);
    let tensors = view.tensors.iter().map(|tensor| tensor.decl.name.to_string());
    let channels = view.channels.iter().map(|channel| channel.name.to_string());
    let binders = scope.iter().rev().map(|binder| binder.name.to_string());
    let words = ["me", "stripe"].map(str::to_string);
    let known = binders.chain(numbers).chain(tensors).chain(channels).chain(words).collect();
    unknown_or_absent(view, name, "name", known)
}

/// The numbers of a view, in order of declaration.
fn numbers<'a>(view: &View<'a>) -> Vec<&'a Ident> {
    let shape = view.shape.iter().filter_map(|entry| match entry {
        ShapeEntry::Given { name, .. } | ShapeEntry::Derived { name, .. } => Some(name),
        ShapeEntry::Require { .. } => None,
    });
    shape
        .chain(view.tunes.iter().map(|tune| &tune.name))
        .chain(view.args.iter().map(|arg| &arg.name))
        .chain(view.sizes.iter().map(|size| &size.name))
        .collect()
}

/// The error of a target that is no tensor.
pub(super) fn unknown_tensor(view: &View<'_>, scope: &Scope<'_>, name: &Ident) -> Diagnostic {
    if scope.iter().any(|binder| binder.name == name) || resolve(view, name).is_some() {
        return errors::not_a_tensor(name);
    }
    let known = view.tensors.iter().map(|tensor| tensor.decl.name.to_string()).collect();
    unknown_or_absent(view, name, "tensor", known)
}

/// The error of a helper that does not exist.
pub(super) fn unknown_helper(view: &View<'_>, name: &Ident) -> Diagnostic {
    let helpers = helpers::all().iter().map(|helper| helper.name.to_string());
    let folds = Fold::ALL.iter().map(|fold| fold.word().to_string());
    let own = view.cuda_fns.iter().map(|cuda_fn| cuda_fn.name.to_string());
    errors::unknown(name, "helper", helpers.chain(folds).chain(own).collect())
}

/// The error of a cast to something that is no scalar type.
pub(super) fn unknown_cast(view: &View<'_>, name: &Ident) -> Diagnostic {
    if view.model.axis(name).is_some() {
        return errors::cast_to_axis(name);
    }
    let known = keywords::ELEMS.iter().map(|elem| elem.to_string()).collect();
    errors::unknown(name, "element type", known)
}

/// `name` is unknown, or it is declared for other arms than those that use it.
fn unknown_or_absent(view: &View<'_>, name: &Ident, what: &str, known: Vec<String>) -> Diagnostic {
    for placed in &view.model.items {
        if let Some(declared) = declared_names(placed.item).into_iter().find(|d| *d == name)
            && let Some(guard) = failing(view, placed)
        {
            return errors::absent(name, guard.axis, guard.arms, declared);
        }
    }
    errors::unknown(name, what, known)
}

/// The first condition around `placed` that the view's choice does not meet.
fn failing<'m, 'a>(view: &View<'a>, placed: &'m Placed<'a>) -> Option<&'m Guard<'a>> {
    placed
        .guards
        .iter()
        .find(|guard| !super::model::holds(std::slice::from_ref(*guard), &view.choice))
}

/// The names that an item declares in the space of values, channels, messages and roles.
pub(crate) fn declared_names(item: &Item) -> Vec<&Ident> {
    match item {
        Item::Shape(shape) => shape
            .entries
            .iter()
            .filter_map(|entry| match entry {
                ShapeEntry::Given { name, .. } | ShapeEntry::Derived { name, .. } => Some(name),
                ShapeEntry::Require { .. } => None,
            })
            .collect(),
        Item::Variant(variant) => vec![&variant.name],
        Item::Tune(tunes) => tunes.iter().map(|tune| &tune.name).collect(),
        Item::Arg(args) => args.iter().map(|arg| &arg.name).collect(),
        Item::Size(size) => vec![&size.name],
        Item::Tensors(tensors) => tensors.list.iter().map(|tensor| &tensor.name).collect(),
        Item::Message(message) => vec![&message.name],
        Item::Channel(channel) => vec![&channel.name],
        Item::Role(role) => vec![&role.name],
        Item::CudaFn(cuda_fn) => vec![&cuda_fn.name],
        Item::Uses(_) | Item::Phase(_) | Item::When(_) | Item::Use(_) => Vec::new(),
    }
}

/// The tensors that a pipeline declares itself, in every arm.
pub(super) fn declared_tensors<'a>(model: &Model<'a>) -> Vec<(&'a ast::Tensor, TensorKind)> {
    let mut all = Vec::new();
    for placed in &model.items {
        if let Item::Tensors(tensors) = placed.item {
            all.extend(tensors.list.iter().map(|tensor| (tensor, tensors.kind)));
        }
    }
    all
}

/// The axis and arms of every `when` exist.
pub(super) fn check_guards(model: &Model<'_>, out: &mut Diagnostics) {
    guards_of_items(model, &model.pipeline.items, out);
}

fn guards_of_items(model: &Model<'_>, items: &[Item], out: &mut Diagnostics) {
    for item in items {
        match item {
            Item::When(when) => {
                guard(model, when, out);
                guards_of_items(model, &when.body, out);
            }
            Item::Phase(phase) => guards_of_items(model, &phase.items, out),
            Item::Role(role) => guards_of_body(model, &role.body, out),
            _ => {}
        }
    }
}

fn guards_of_body(model: &Model<'_>, body: &[Stmt], out: &mut Diagnostics) {
    for stmt in body {
        match &stmt.kind {
            StmtKind::When(when) => {
                guard(model, when, out);
                guards_of_body(model, &when.body, out);
            }
            StmtKind::For(inner) => guards_of_body(model, &inner.body, out),
            _ => {}
        }
    }
}

fn guard<T>(model: &Model<'_>, when: &When<T>, out: &mut Diagnostics) {
    let Some(axis) = model.axis(&when.axis) else {
        let known = model.axes.iter().map(|axis| axis.name.to_string()).collect();
        return out.push(errors::unknown(&when.axis, "variant", known));
    };
    for arm in &when.arms {
        if !axis.arms.iter().any(|candidate| candidate.name == *arm) {
            let known: Vec<String> = axis.arms.iter().map(|arm| arm.name.to_string()).collect();
            out.push(errors::unknown_arm(arm, axis, known));
        }
    }
}

/// Words in the place of messages, roles, element types and tensors of a choice's declarations.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for tensor in view.tensors.iter().filter(|tensor| tensor.handle.is_none()) {
        elem(view, &tensor.decl.elem, out);
        if let Some(fill) = &tensor.decl.fill
            && !view.sizes.iter().any(|size| size.name == fill.beyond)
        {
            let known = view.sizes.iter().map(|size| size.name.to_string()).collect();
            out.push(unknown_or_absent(view, &fill.beyond, "size", known));
        }
    }
    for field in view.messages.iter().flat_map(|message| &message.fields) {
        elem(view, &field.elem, out);
        if let Some(with) = &field.with
            && view.tensor(with).is_none()
        {
            let known = view.tensors.iter().map(|tensor| tensor.decl.name.to_string()).collect();
            out.push(unknown_or_absent(view, with, "tensor", known));
        }
    }
    for channel in &view.channels {
        if view.message(&channel.message).is_none() {
            let known = view.messages.iter().map(|message| message.name.to_string()).collect();
            out.push(unknown_or_absent(view, &channel.message, "message", known));
        }
        for role in channel.from.iter().chain([&channel.to]) {
            if view.role(role).is_none() {
                let known = view.roles.iter().map(|role| role.decl.name.to_string()).collect();
                out.push(unknown_or_absent(view, role, "role", known));
            }
        }
        if let Some(parts) = &channel.parts_per
            && !is_number(view, &parts.to_string())
        {
            let known = numbers(view).into_iter().map(Ident::to_string).collect();
            out.push(unknown_or_absent(view, parts, "number", known));
        }
    }
    for (index, role) in view.roles.iter().enumerate() {
        shadows(view, index, role.decl, out);
    }
}

fn elem(view: &View<'_>, elem: &Elem, out: &mut Diagnostics) {
    let Elem::Name(name) = elem else { return };
    if super::types::scalar_named(&name.to_string()).is_none() && view.model.axis(name).is_none() {
        let axes = view.model.axes.iter().map(|axis| axis.name.to_string());
        let known = keywords::ELEMS.iter().map(|elem| elem.to_string()).chain(axes).collect();
        out.push(errors::unknown(name, "element type", known));
    }
}

/// The channel that `name` names, or an error.
pub(super) fn channel<'a>(
    view: &View<'a>,
    name: &Ident,
    out: &mut Diagnostics,
) -> Option<&'a Channel> {
    let found = view.channel(name);
    if found.is_none() {
        let known = view.channels.iter().map(|channel| channel.name.to_string()).collect();
        out.push(unknown_or_absent(view, name, "channel", known));
    }
    found
}

/// Binders of a role that hide a declared name or one another.
fn shadows(view: &View<'_>, index: usize, role: &Role, out: &mut Diagnostics) {
    let hidden = |name: &Ident| {
        view.model
            .items
            .iter()
            .flat_map(|placed| declared_names(placed.item))
            .find(|declared| *declared == name)
    };
    if let Some(binder) = &role.binder {
        naming::binder(binder, out);
        if let Some(declared) = hidden(binder) {
            out.push(errors::hides(binder, declared));
        }
    }
    for site in view.sites.iter().filter(|site| site.role == index) {
        let mut binders: Vec<&Ident> = Vec::new();
        match &site.stmt.kind {
            StmtKind::For(inner) => {
                binders.push(&inner.binder);
                if let Some(gather) = &inner.gather {
                    binders.extend([&gather.part, &gather.across]);
                }
            }
            StmtKind::Let { name, .. } => binders.push(name),
            _ => {}
        }
        // An author cannot write those of an `if`.
        binders.retain(|binder| **binder != UNNAMED && **binder != CONDITION);
        for (at, binder) in binders.iter().enumerate() {
            naming::binder(binder, out);
            let outer = site.scope.iter().map(|outer| outer.name);
            let earlier = outer.chain(binders[..at].iter().copied()).find(|name| name == binder);
            if let Some(declared) = earlier.or_else(|| hidden(binder)) {
                out.push(errors::hides(binder, declared));
            }
        }
    }
}

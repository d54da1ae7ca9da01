//! Messages and what fills them: each field is given once per `push`, each announced number once
//! per `announce`.

use std::collections::BTreeMap;

use super::model::{Model, View};
use super::types::{MESSAGE_NUMBERS, SLOT_NUMBERS, Type, Value, declared};
use super::typing::Typing;
use super::walk::{Meaning, Scope, Site};
use crate::ast::{Channel, Field, FieldValue, Ident, Item, Message, OptionValue, Span, StmtKind};
use crate::diagnostics::{Diagnostics, messages as errors};

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        if let Item::Message(message) = placed.item {
            declaration(message, out);
        }
    }
}

fn declaration(message: &Message, out: &mut Diagnostics) {
    if message.fields.is_empty() {
        out.push(errors::no_fields(&message.name));
    }
    let mut rows = message.fields.iter().filter(|field| field.row.is_some());
    if let Some(first) = rows.next() {
        row_field(first, out);
        rows.for_each(|second| out.push(errors::second_row(second, first)));
    }
    for field in &message.fields {
        if MESSAGE_NUMBERS.iter().any(|number| field.name == number) {
            out.push(errors::reserved_field(&field.name));
        }
    }
}

fn row_field(field: &Field, out: &mut Diagnostics) {
    if field.dims.len() != 1 {
        out.push(errors::row_rank(field));
    }
    if let Some(with) = &field.with {
        out.push(errors::row_with(with, field));
    }
}

/// Rules about fields and the statements that fill them.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for field in view.messages.iter().flat_map(|message| &message.fields) {
        if let Some(with) = &field.with
            && let Some(tensor) = view.tensor(with)
            && tensor.decl.optional.is_none()
        {
            out.push(errors::with_not_optional(with, &tensor.decl.name));
        }
    }
    for channel in view.channels.iter().filter(|it| it.kind.value.traits().is_indexed) {
        let message = view.message(&channel.message);
        for field in message.into_iter().flat_map(|message| &message.fields) {
            if SLOT_NUMBERS.iter().any(|number| field.name == number) || field.name == "position" {
                out.push(errors::slot_number(&field.name, &channel.name));
            }
        }
    }
    for site in &view.sites {
        match &site.stmt.kind {
            StmtKind::Push { channel, values, rest, .. } => {
                if let Some(channel) = view.channel(&channel.name)
                    && let Some(message) = view.message(&channel.message)
                {
                    push(view, site, channel, message, values, rest.as_ref(), out);
                }
            }
            StmtKind::Announce { channel, values } => {
                if let Some(channel) = view.channel(&channel.name) {
                    announce(channel, &site.stmt.keyword, values, out);
                }
            }
            _ => {}
        }
    }
}

/// What one `push` gives.
fn push<'a>(
    view: &View<'a>,
    site: &Site<'a>,
    channel: &'a Channel,
    message: &'a Message,
    values: &'a [FieldValue],
    rest: Option<&'a Ident>,
    out: &mut Diagnostics,
) {
    let mut given: BTreeMap<String, &Ident> = BTreeMap::new();
    for value in values {
        let field = message.fields.iter().find(|field| field.name == value.name);
        match (field, given.get(&value.name.to_string())) {
            (_, Some(first)) => out.push(errors::field_twice(&value.name, first)),
            (None, None) => out.push(errors::field_not_in_message(&value.name, message)),
            (Some(field), None) => {
                given.insert(value.name.to_string(), &value.name);
                field_value(view, &site.scope, channel, field, value, out);
            }
        }
        if field.is_none() {
            given.insert(value.name.to_string(), &value.name);
        }
    }
    let copied = rest.map(|rest| copied_fields(view, &site.scope, rest, out));
    for field in &message.fields {
        let missing = match &copied {
            None => true,
            Some(None) => false,
            Some(Some(from)) => !from.fields.iter().any(|other| other.name == field.name),
        };
        if missing && !given.contains_key(&field.name.to_string()) {
            out.push(errors::field_not_pushed(site.stmt.keyword, &channel.name, field));
        }
    }
}

/// The message that `..rest` copies; `None` after an error.
fn copied_fields<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    rest: &Ident,
    out: &mut Diagnostics,
) -> Option<&'a Message> {
    let meaning = scope.iter().rev().find(|binder| binder.name == rest).map(|b| &b.meaning);
    match meaning {
        Some(Meaning::Message(channel)) => view.message(&channel.message),
        _ => {
            out.push(errors::rest_not_a_message(rest));
            None
        }
    }
}

fn field_value<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    channel: &Channel,
    field: &'a Field,
    value: &'a FieldValue,
    out: &mut Diagnostics,
) {
    let mut typing = Typing { view, out };
    let ty = typing.expr(&mut scope.clone(), &value.value);
    let Type::Value(target) = declared(view, &field.elem, &field.dims) else { return };
    let what = format!("field `{}`", field.name);
    if channel.kind.value.traits().offers {
        // A pull channel offers whole tensors: one row per message.
        if let Type::Value(Value { scalar, extents }) = &ty
            && extents.len() == target.extents.len() + 1
        {
            let row = Value { scalar: *scalar, extents: extents[1..].to_vec() };
            typing.assign(&what, &target, &value.value, &Type::Value(row));
        } else if !matches!(ty, Type::Unknown) {
            typing.out.push(errors::pull_takes_tensors(value.value.at, &channel.name, &ty));
        }
    } else {
        typing.assign(&what, &target, &value.value, &ty);
    }
    optional_value(view, scope, field, value, out);
}

/// A field without `with` must not take its value from something that may be absent.
fn optional_value<'a>(
    view: &View<'a>,
    scope: &Scope<'a>,
    field: &Field,
    value: &'a FieldValue,
    out: &mut Diagnostics,
) {
    if field.with.is_some() {
        return;
    }
    super::numbers::visit_names(&value.value, &mut |name| {
        let bound = scope.iter().any(|binder| binder.name == name);
        if let Some(tensor) = view.tensor(name)
            && !bound
            && tensor.decl.optional.is_some()
        {
            out.push(errors::field_may_be_absent(field, name, value.value.at));
        }
    });
}

/// What one `announce` gives.
fn announce(channel: &Channel, keyword: &Span, values: &[FieldValue], out: &mut Diagnostics) {
    let Some(header) = header(channel) else {
        let names: Vec<String> = values.iter().map(|value| value.name.to_string()).collect();
        return out.push(errors::announce_without_header(*keyword, &channel.name, &names));
    };
    let mut given: BTreeMap<String, &Ident> = BTreeMap::new();
    for value in values {
        if let Some(first) = given.insert(value.name.to_string(), &value.name) {
            out.push(errors::field_twice(&value.name, first));
        } else if !header.contains(&value.name) {
            out.push(errors::not_in_header(&value.name, &channel.name, header));
        }
    }
    for name in header {
        if !given.contains_key(&name.to_string()) {
            out.push(errors::not_announced(*keyword, &channel.name, name));
        }
    }
}

/// The names that a channel announces.
pub(super) fn header(channel: &Channel) -> Option<&[Ident]> {
    channel.options.iter().find_map(|option| match &option.value {
        OptionValue::Header(names) => Some(names.as_slice()),
        _ => None,
    })
}

//! Limits of the hardware that even the least legal shape exceeds. The plan checks the same limits
//! for each shape; here they are errors of the declaration.

use super::model::{Model, View};
use super::ranges::{Range, range};
use super::types::{Scalar, scalar_named, scalar_of};
use crate::ast::{Elem, Expr, Field, File, Item, Message, Pipeline, TokenRange};
use crate::diagnostics::{Diagnostics, limits as errors};
use crate::ir::{self, DimKind};
use crate::lower::lower;
use crate::plan::{Arch, Config, PlanError, plan};

/// Checks the messages that are staged in shared memory.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    let have = Arch::ALL.iter().map(|arch| i128::from(arch.shared_bytes_max())).max().unwrap_or(0);
    for message in &view.messages {
        let staged = view.channels.iter().find(|channel| {
            channel.message == message.name && channel.kind.value.traits().is_staged
        });
        let need = meta_bytes(view, message);
        if let Some(channel) = staged
            && need > have
        {
            let largest = message.fields.iter().max_by_key(|field| field_bytes(view, field));
            let at = largest.map_or(&message.name, |field| &field.name);
            out.push(errors::meta_too_large(at, &message.name, need, have, &channel.name));
        }
    }
}

/// Least bytes of the record that travels beside the row.
fn meta_bytes(view: &View<'_>, message: &Message) -> i128 {
    message.fields.iter().map(|field| field_bytes(view, field)).sum()
}

/// Least bytes of the field inside the record; the row itself is moved in pieces.
fn field_bytes(view: &View<'_>, field: &Field) -> i128 {
    if field.with.is_some() {
        return 0;
    }
    let elements = least(view, &field.dims);
    match scalar_of(view, &field.elem) {
        Some(Scalar::Axis(_, parts)) => {
            let of_part = |(index, part): (usize, &crate::ast::Part)| {
                let row = index == 0 && field.row.is_some();
                let block = part.block.as_ref().map_or(1, |block| i128::from(block.value.max(1)));
                if row { 0 } else { elements / block * elem_bytes(&part.elem) }
            };
            parts.iter().enumerate().map(of_part).sum()
        }
        _ if field.row.is_some() => 0,
        Some(_) => elements.saturating_mul(elem_bytes(&field.elem)),
        None => 0,
    }
}

/// The least product of extents.
fn least(view: &View<'_>, dims: &[Expr]) -> i128 {
    let low = |dim| range(view, dim).map_or(0, |Range { low, .. }| low.max(0));
    dims.iter().map(low).fold(1, i128::saturating_mul)
}

fn elem_bytes(elem: &Elem) -> i128 {
    let Elem::Name(name) = elem else { return 8 };
    match scalar_named(&name.to_string()) {
        Some(Scalar::Int("i64")) => 8,
        Some(Scalar::Int("i32") | Scalar::F32) => 4,
        Some(Scalar::Bf16) => 2,
        _ => 1,
    }
}

/// Plans the least shape of each choice of arms, with the default tunes and with the least ones, on
/// every architecture: what exceeds a limit in all of them does so for every legal shape.
pub(super) fn check_least(file: &File, pipeline: &Pipeline, out: &mut Diagnostics) {
    let ir = lower(file, pipeline);
    for choice in ir.choices() {
        let mut refused = None;
        let fits = least_configs(&ir, &choice).any(|config| match plan(&ir, &config) {
            Err(PlanError::Limit { at, what, need, have, help, .. }) => {
                refused.get_or_insert((at, what, need, have, help));
                false
            }
            // Another refusal says nothing about limits.
            _ => true,
        });
        if let (false, Some((at, what, need, have, help))) = (fits, refused) {
            let place = place_of(file, pipeline, &at);
            out.push(errors::never_fits(place, &at.text, (need, have), &what, &help));
        }
    }
}

/// The least shape with default and with least tunes, on each architecture, the roomiest first.
fn least_configs<'a>(
    ir: &'a ir::Pipeline,
    choice: &'a ir::Choice,
) -> impl Iterator<Item = Config> + 'a {
    let mut archs = Arch::ALL;
    archs.sort_by_key(|arch| std::cmp::Reverse(arch.shared_bytes_max()));
    let configs = archs.into_iter().flat_map(|arch| [(arch, false), (arch, true)]);
    configs.map(|(arch, least)| {
        let mut config = Config::new(ir, arch);
        config.choice = choice.clone();
        for dim in &ir.dims {
            if let DimKind::Given { low, .. } = dim.kind {
                config.dims.insert(dim.name.clone(), low);
            }
        }
        for tensor in ir.tensors.iter().filter(|tensor| tensor.optional || tensor.copies > 1) {
            config.copies.insert(tensor.name.clone(), 0);
        }
        let selected = ir.select(choice);
        for tune in selected.tunes.iter().filter(|_| least) {
            if let Some(value) = tune.choices.first() {
                config.tunes.insert(tune.name.clone(), *value);
            }
        }
        config
    })
}

/// The name of the role or channel that `at` is the source of.
fn place_of(file: &File, pipeline: &Pipeline, at: &ir::Source) -> TokenRange {
    let items = Model::new(file, pipeline).items;
    let named = items.iter().find_map(|placed| match placed.item {
        Item::Role(role) if role.source.text == at.text => Some(TokenRange::from(&role.name)),
        Item::Channel(channel) if channel.source.text == at.text => {
            Some(TokenRange::from(&channel.name))
        }
        _ => None,
    });
    named.unwrap_or_else(|| TokenRange::from(&pipeline.name))
}

//! `waited: tensor`: where the times are added up that a channel's receiver waits for each peer. How long
//! that is nobody can declare, so nothing else in the call has to do with the tensor.

use super::channels::peers_number;
use super::model::{Tensor, View};
use super::statements;
use super::tables::written;
use crate::ast::{Channel, Elem, Ident, OptionValue, TensorKind};
use crate::diagnostics::{Diagnostics, channels as errors};
use crate::syntax::reprint::expr as text;

/// Rules about the tensors that the channels of one choice of arms name.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for channel in &view.channels {
        for option in &channel.options {
            match &option.value {
                OptionValue::Slot(axes) if axes.iter().any(|axis| axis.name == "source") => {}
                OptionValue::Slot(_) => {
                    if let Some(name) = tensor_of(channel) {
                        out.push(errors::waited_without_source(name, &option.name));
                    }
                }
                OptionValue::Waited(name) => tensor(view, channel, name, out),
                _ => {}
            }
        }
    }
}

/// The tensor that a channel names.
fn tensor_of(channel: &Channel) -> Option<&Ident> {
    channel.options.iter().find_map(|option| match &option.value {
        OptionValue::Waited(name) => Some(name),
        _ => None,
    })
}

fn tensor(view: &View<'_>, channel: &Channel, name: &Ident, out: &mut Diagnostics) {
    let peers = peers_number(channel.per.value);
    match view.tensor(name) {
        Some(Tensor { decl, kind: TensorKind::Inout, handle: None })
            if matches!(&decl.elem, Elem::Name(elem) if elem == "i64")
                && matches!(decl.dims.as_slice(), [only] if text(only) == peers)
                && decl.window.is_none() => {}
        found => {
            let declared = found.map(|it| &it.decl.name);
            return out.push(errors::waited_not_a_tensor(name, peers, declared));
        }
    }
    for site in &view.sites {
        let place = written(site).map(|(_, place)| &place.tensor).filter(|place| *place == name);
        let read = statements::reads(view, site).into_iter().find(|read| *read == name);
        if let Some(word) = place.or(read) {
            out.push(errors::waited_used(word, &channel.name));
        }
    }
}

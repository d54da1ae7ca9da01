//! What no role can do, whatever way it is emitted: each with the reason in the words of the language.

use super::channels::check_slots;
use super::limit::{Limit, Why, broken};
use super::{Refusal, names_in_text};
use crate::ir::counting::{counted, counted_in};
use crate::ir::{
    Action, Blocks, Channel, Domain, Expr, NameKind, PeerSet, Pipeline, Role, Source, walk,
};

/// Everything that a selected pipeline as a whole asks for and has no text.
pub(super) fn check(ir: &Pipeline) -> Vec<Refusal> {
    let mut found = Vec::new();
    let mut refuse = |at: &Source, why: Why| found.push(Refusal { at: at.clone(), why });
    for channel in &ir.channels {
        check_channel(ir, channel, &mut refuse);
    }
    for role in &ir.roles {
        check_role(ir, role, &mut refuse);
    }
    check_phases(ir, &mut refuse);
    found.extend(names_in_text::check(ir).err());
    found
}

/// The counters of a phase are stored when it ends.
fn check_phases(ir: &Pipeline, refuse: &mut dyn FnMut(&Source, Why)) {
    let phases = ir.phases();
    for (tensor, _) in counted(ir) {
        let counting = |phase: &&Option<&str>| {
            counted_in(ir, **phase).iter().any(|(known, _)| known.name == tensor.name)
        };
        if phases.iter().filter(counting).count() > 1 {
            refuse(&tensor.at, Limit::CountersOfPhases.into());
        }
    }
}

fn check_channel(ir: &Pipeline, channel: &Channel, refuse: &mut dyn FnMut(&Source, Why)) {
    let others = ir.channels.iter().take_while(|other| other.name != channel.name);
    for other in others.filter(|other| other.message == channel.message) {
        if other.kind != channel.kind {
            refuse(&channel.at, Limit::TwoKinds.of(&[&other.name, &channel.name]));
        }
    }
    let fields = ir.carried(&channel.name).into_iter().flat_map(|(_, message)| &message.fields);
    let extents = fields.flat_map(|field| &field.dims);
    let options = channel.options.iter().map(|option| &option.value);
    if extents.chain(options).any(|number| !is_of_shape(number)) {
        refuse(&channel.at, Limit::OptionsOfCall.into());
    }
    if channel.kind.traits().is_indexed {
        check_slots(ir, channel, refuse);
    }
    if channel.kind.traits().opens_out {
        check_served(ir, channel, refuse);
    }
}

/// A receiver waits for every peer, so every peer is served: by roles that tell each one how much it
/// gets, be it nothing.
fn check_served(ir: &Pipeline, channel: &Channel, refuse: &mut dyn FnMut(&Source, Why)) {
    let roles: Vec<&Role> =
        ir.roles.iter().filter(|role| channel.from.contains(&role.name)).collect();
    for role in &roles {
        if let crate::ir::Share::Peer { set, .. } = &role.share
            && *set != channel.per
            && !(*set == PeerSet::All && channel.per == PeerSet::Others)
        {
            refuse(&role.at, Limit::ServesFewer.of(&[&role.name, &channel.name]));
        }
    }
    if !channel.kind.traits().ends_when_closed || roles.len() < 2 {
        return;
    }
    let (mut own, mut others) = (false, false);
    for role in roles {
        walk::stmts(&role.body, &mut |stmt| {
            if let Action::Push { channel: to, peer: Some(peer), .. } = &stmt.action
                && *to == channel.name
            {
                let me = matches!(peer, Expr::Name { kind: NameKind::Me, .. });
                own |= me || !is_other(role, peer);
                others |= !me;
            }
        });
    }
    if !(others && (own || channel.per == PeerSet::Others)) {
        refuse(
            &channel.at,
            broken("its receiver waits for rows of every rank, including this one"),
        );
    }
}

/// Whether the peer is the number of a loop over all other ranks.
pub(super) fn is_other(role: &Role, peer: &Expr) -> bool {
    let Expr::Name { name, .. } = peer else { return false };
    walk::any_stmt(&role.body, &mut |stmt| {
        matches!(&stmt.action, Action::For {
            binder, domain: Domain::Peers { set: PeerSet::Others }, ..
        } if binder == name)
    })
}

fn check_role(ir: &Pipeline, role: &Role, refuse: &mut dyn FnMut(&Source, Why)) {
    if role.warps.as_ref().is_some_and(|warps| !is_of_shape(warps)) {
        refuse(&role.at, Limit::WarpsOfCall.into());
    }
    let ranges = ir.roles.iter().filter_map(|role| match &role.blocks {
        Blocks::Range { low, high } => Some((low, high)),
        _ => None,
    });
    let ranges: Vec<(&Expr, &Expr)> = ranges.collect();
    let follows = |low: &Expr| ranges.iter().any(|(_, high)| *high == low);
    let gap = ranges.iter().any(|(low, _)| **low != Expr::Int { value: 0 } && !follows(low));
    if role.blocks == Blocks::Other && gap {
        refuse(&role.at, Limit::OtherBehindGap.into());
    }
    let counts =
        walk::any_stmt(&role.body, &mut |stmt| matches!(stmt.action, Action::Count { .. }));
    if role.blocks == Blocks::Last && counts {
        refuse(&role.at, Limit::CountOnLast.into());
    }
}

/// Whether an expression has a value before any call.
pub(crate) fn is_of_shape(whole: &Expr) -> bool {
    let mut found = true;
    walk::expr(whole, &mut |part| {
        found &= match part {
            Expr::Name { kind, .. } => matches!(kind, NameKind::Dim | NameKind::Tune),
            Expr::Element { .. } | Expr::Field { .. } | Expr::OfChannel { .. } => false,
            _ => true,
        };
    });
    found
}

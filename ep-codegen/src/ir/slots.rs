//! What slots are told apart by, and how one finds out that their messages have come.

use super::helpers::{SLOT, taken_of_part};
use super::network::{over_network, uses_network};
use super::parts::{elem_bytes, parts};
use super::{Action, Channel, Domain, Expr, PeerSet, Pipeline, Role, Stmt, Transport, walk};

/// How the messages of slots arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// As words that carry their epoch, so that neither a flag nor a credit goes with them: one small
    /// record of each source, of all of which the receiver waits for at once.
    Words,
    /// As one small record of each source, counted on arrival: some sources are on other machines, and
    /// their words may come in any order.
    Signals,
    /// With a flag behind each slot.
    Flags,
    /// The sender counts, and closes behind all of them.
    Counts,
}

/// How the messages of a channel of slots arrive, in a selected pipeline.
pub fn arrival(selected: &Pipeline, channel: &Channel) -> Arrival {
    if counted_axis(selected, channel).is_some() {
        return Arrival::Counts;
    }
    let message = selected.messages.iter().find(|message| message.name == channel.message);
    let rows = message.is_some_and(|message| message.fields.iter().any(|field| field.row));
    let mut awaited = true;
    for role in &selected.roles {
        walk::stmts(&role.body, &mut |stmt| {
            awaited &= match &stmt.action {
                Action::Receive { channel: of, .. }
                | Action::Gather { channel: of, .. }
                | Action::Close { channel: of } => *of != channel.name,
                _ => true,
            };
        });
    }
    // Words are waited for all at once, by warps that share those of a source: nobody times one source.
    let timed = channel.waited.is_some();
    let records = !rows && awaited && !timed && channel.slot_names == ["source"];
    match records {
        true if uses_network(selected, channel) => Arrival::Signals,
        true if channel.over == [Transport::Nvlink] => Arrival::Words,
        _ => Arrival::Flags,
    }
}

/// Whether the messages of a channel travel as words that carry their epoch.
pub fn travels_in_words(selected: &Pipeline, channel: &Channel) -> bool {
    channel.kind.traits().is_indexed && arrival(selected, channel) == Arrival::Words
}

/// The axis of slots that counts arrivals, if one does: a sender names every axis but its own, and
/// where it names fewer, the last one counts.
pub fn counted_axis(selected: &Pipeline, channel: &Channel) -> Option<usize> {
    let named = channel.slot_names.iter().filter(|name| *name != "source").count();
    let mut counts = false;
    for role in &selected.roles {
        walk::stmts(&role.body, &mut |stmt| {
            counts |= matches!(&stmt.action, Action::Push { channel: to, position, .. }
                if *to == channel.name && places(position.as_ref()).len() < named);
        });
    }
    let last = channel.slot_names.iter().rposition(|name| name != "source");
    last.filter(|_| counts)
}

/// The indices of a slot, of which there may be none.
pub fn places(position: Option<&Expr>) -> &[Expr] {
    match position {
        Some(Expr::Call { helper, args }) if helper == SLOT => args,
        Some(only) => std::slice::from_ref(only),
        None => &[],
    }
}

/// Whether a statement closes the channel.
pub fn closes(stmt: &Stmt, channel: &str) -> bool {
    matches!(&stmt.action, Action::Close { channel: of } if of == channel)
}

/// How many statements of the roles' own blocks close the channel.
pub fn closings(ir: &Pipeline, channel: &Channel) -> usize {
    let own = ir.roles.iter().flat_map(|role| &role.body);
    own.filter(|stmt| closes(stmt, &channel.name)).count()
}

/// The slots of which the warps of a role share an index, and its place there: its own, else any.
pub fn shared_axis<'a>(ir: &'a Pipeline, role: &Role, name: &str) -> Option<(&'a Channel, usize)> {
    let place = |channel: &'a Channel| {
        Some((channel, channel.slot_names.iter().position(|axis| axis == name)?))
    };
    let own = |channel: &&Channel| channel.to == role.name || channel.from.contains(&role.name);
    let mut own = ir.channels.iter().filter(own);
    own.find_map(place).or_else(|| ir.channels.iter().find_map(place))
}

/// The channel whose senders the warps of a role share as `source`: the first one that it takes. Without
/// one, they are all ranks.
pub fn shared_sources<'a>(ir: &'a Pipeline, role: &Role) -> Option<&'a Channel> {
    ir.channels.iter().find(|channel| channel.to == role.name)
}

/// Whether messages of slots may come as words to a rank with few tokens, which gathers them: rows of values of two bytes, and
/// other fields of four. Several warps may read a row, but only one the other fields: one statement uses them, and not the row.
pub fn comes_in_words(ir: &Pipeline, channel: &Channel) -> bool {
    let may = channel.options.iter().any(|option| option.name == "few");
    let goes_by_flags = arrival(ir, channel) == Arrival::Flags
        && is_read_on_entry(ir, channel)
        && channel.per == PeerSet::All
        && channel.slot_names.iter().any(|name| name == "source");
    let message = ir.carried(&channel.name).map(|(_, message)| message);
    let fits = message.is_some_and(|message| {
        message.fields.iter().filter(|field| field.row).count() == 1
            && message.fields.iter().all(|field| {
                matches!(parts(ir, &field.elem).as_slice(), [(_, elem, _)]
                    if elem_bytes(elem) == if field.row { 2 } else { 4 })
            })
    });
    let is_row = |name: &str| {
        message.is_some_and(|it| it.fields.iter().any(|field| field.row && field.name == name))
    };
    let mut gathers = true;
    for role in &ir.roles {
        walk::stmts(&role.body, &mut |stmt| {
            gathers &= match &stmt.action {
                Action::Receive { channel: from, .. } => *from != channel.name,
                Action::Gather { channel: from, domain, part, body, .. }
                    if *from == channel.name =>
                {
                    *domain == Domain::Tokens && adds_rows_apart(part, body, &is_row)
                }
                _ => true,
            };
        });
    }
    may && goes_by_flags && fits && gathers
}

/// Whether no statement takes a part as it is, and at most one uses fields beside its row, without the row.
fn adds_rows_apart<'s>(part: &str, body: &'s [Stmt], is_row: &dyn Fn(&str) -> bool) -> bool {
    let visit = |see: &mut dyn FnMut(&'s Expr)| {
        walk::stmts(body, &mut |stmt| walk::exprs(stmt, see));
    };
    let (mut apart, mut users) = (taken_of_part(part, visit).is_empty(), 0);
    walk::stmts(body, &mut |stmt| {
        let (mut rows, mut others) = (false, false);
        walk::exprs(stmt, &mut |inner| match inner {
            Expr::Field { of, field, .. } if of == part => match is_row(field) {
                true => rows = true,
                false => others = true,
            },
            _ => {}
        });
        apart &= !(rows && others);
        users += usize::from(others);
    });
    apart && users <= 1
}

/// Whether a rank says that it has read its slots when it enters the next call, and not at the end of a call.
pub fn is_read_on_entry(ir: &Pipeline, channel: &Channel) -> bool {
    let is_told = matches!(arrival(ir, channel), Arrival::Flags | Arrival::Counts);
    let of_all = matches!(channel.per, PeerSet::All | PeerSet::Others);
    let is_near = !over_network(channel) && !uses_network(ir, channel);
    channel.kind.traits().is_indexed && is_told && of_all && is_near && channel.waited.is_none()
}

//! Channels: their options fit their kind, their transport reaches their peers, and the roles they
//! name are those that fill and empty them.

use super::model::{Model, View};
use super::names::is_number;
use super::ranges::range;
use super::typing::Typing;
use super::walk::{Scope, Site, messages_of, root};
use crate::ast::{
    Channel, ChannelOption, ChannelRef, Expr, ExprKind, Ident, Item, OptionValue, PeerSet,
    ShapeEntry, StmtKind, Transport,
};
use crate::diagnostics::{Diagnostics, channels as errors};
use crate::ir::kind::{Network, Position, Traits};
use crate::ir::{POLICIES, WellKnown, text};

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        if let Item::Channel(channel) = placed.item {
            options(channel, out);
            transports(channel, out);
        }
    }
}

fn options(channel: &Channel, out: &mut Diagnostics) {
    let Traits { word, options: offered, .. } = channel.kind.value.traits();
    for option in &channel.options {
        if !offered.iter().any(|(name, _)| option.name == name) {
            let names = offered.iter().map(|(name, _)| name.to_string()).collect();
            out.push(errors::unknown_option(&option.name, word, names));
        }
        option_value(option, out);
    }
    for (name, needed) in *offered {
        if *needed && !channel.options.iter().any(|option| option.name == name) {
            out.push(errors::missing_option(channel, name));
        }
    }
}

fn option_value(option: &ChannelOption, out: &mut Diagnostics) {
    match &option.value {
        OptionValue::Waive { policy, .. } if !POLICIES.iter().any(|name| policy == name) => {
            out.push(errors::unknown_policy(policy, &POLICIES));
        }
        OptionValue::Waive { policy, reason, span } if reason.trim().is_empty() => {
            out.push(errors::empty_waiver(policy, *span));
        }
        OptionValue::Header(names) => {
            for (index, name) in names.iter().enumerate() {
                if let Some(first) = names[..index].iter().find(|first| *first == name) {
                    out.push(crate::diagnostics::names::duplicate(name, "header name", first));
                } else if name != "first" && name != "count" {
                    out.push(errors::unknown_header(name));
                }
            }
        }
        OptionValue::Slot(axes) if axes.is_empty() => out.push(errors::empty_slot(&option.name)),
        OptionValue::Slot(axes) => {
            for (index, axis) in axes.iter().enumerate() {
                let first = axes[..index].iter().find(|first| first.name == axis.name);
                if let Some(first) = first {
                    let error =
                        crate::diagnostics::names::duplicate(&axis.name, "slot index", &first.name);
                    out.push(error);
                } else if axis.extent.is_none() && axis.name != "source" {
                    out.push(errors::slot_without_extent(&axis.name));
                }
            }
        }
        _ => {}
    }
}

fn transports(channel: &Channel, out: &mut Diagnostics) {
    for (index, transport) in channel.over.iter().enumerate() {
        if channel.over[..index].iter().any(|first| first.value == transport.value) {
            out.push(errors::transport_twice(transport.span));
        }
    }
    let nvlink = channel.over.iter().any(|word| word.value == Transport::Nvlink);
    let network = channel.over.iter().find(|word| word.value != Transport::Nvlink);
    let kind = channel.kind.value.traits();
    match (channel.per.value, network) {
        (_, Some(network)) if kind.network == Network::Never => {
            out.push(errors::kind_needs_nvlink(network.span, kind.word));
        }
        (PeerSet::Rail, None) => {
            out.push(errors::rail_over_nvlink(channel.per.span, channel.over[0].span));
        }
        (PeerSet::Local, Some(network)) => {
            out.push(errors::local_over_network(network.span, channel.per.span));
        }
        (PeerSet::All | PeerSet::Others, Some(network)) if !nvlink => {
            out.push(errors::node_over_network(network.span, text::peers(&channel.per.value)));
        }
        _ => {}
    }
}

/// Rules about the channels of one choice of arms and the roles around them.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for channel in &view.channels {
        peers(view, channel, out);
        option_numbers(view, channel, out);
        for from in &channel.from {
            let pushes = |site: &&Site<'_>| {
                view.roles[site.role].decl.name == *from && pushes_to(site, channel)
            };
            let others = view.sites.iter().any(|site| pushes_to(site, channel));
            if others && view.role(from).is_some() && !view.sites.iter().any(|s| pushes(&s)) {
                out.push(errors::role_never_pushes(from, &channel.name));
            }
        }
        two_producers(view, channel, out);
    }
    for site in &view.sites {
        wrong_role(view, site, out);
        wrong_use(view, site, out);
        peer_index(view, site, out);
        slot_index(view, site, out);
    }
}

/// The number that gives a peer set its extent.
pub(super) fn peers_number(set: PeerSet) -> &'static str {
    set.number().name()
}

/// The numbers that give a peer set its extent are declared; nodes apart need a network.
fn peers(view: &View<'_>, channel: &Channel, out: &mut Diagnostics) {
    let number = peers_number(channel.per.value);
    if !is_number(view, number) {
        out.push(errors::peers_without_number(
            channel.per.span,
            text::peers(&channel.per.value),
            number,
        ));
    }
    let network = channel.over.iter().any(|word| word.value != Transport::Nvlink);
    let spans_nodes = view.shape.iter().any(|entry| {
        matches!(entry, ShapeEntry::Given { name, low, .. } if WellKnown::Nodes.is(name) && low.value > 1)
    });
    let everyone = matches!(channel.per.value, PeerSet::All | PeerSet::Others);
    if spans_nodes && everyone && !network {
        out.push(errors::nodes_over_nvlink(channel.over[0].span, text::peers(&channel.per.value)));
    }
}

/// Options that are numbers, and the sizes of rings that hold for no legal choice.
fn option_numbers<'a>(view: &View<'a>, channel: &'a Channel, out: &mut Diagnostics) {
    let mut scope = Scope::new();
    for option in &channel.options {
        match &option.value {
            OptionValue::Number(value) => {
                Typing { view, out }.whole(&mut scope, value, "an option");
                if range(view, value).is_some_and(|range| range.high <= 0) {
                    out.push(errors::option_not_positive(value.at, &option.name));
                }
            }
            OptionValue::Slot(axes) => {
                for extent in axes.iter().filter_map(|axis| axis.extent.as_ref()) {
                    Typing { view, out }.whole(&mut scope, extent, "an extent");
                }
            }
            _ => {}
        }
    }
    if let (Some(depth), Some(chunk)) = (number(channel, "depth"), number(channel, "chunk"))
        && let (Some(depths), Some(chunks)) = (range(view, depth), range(view, chunk))
        && depths.high < 2 * chunks.low
        && depths.high > 0
    {
        out.push(errors::ring_too_short(depth.at, depths.high, chunk.at, chunks.low));
    }
}

/// The value of a numeric option.
pub(super) fn number<'a>(channel: &'a Channel, name: &str) -> Option<&'a Expr> {
    channel.options.iter().find_map(|option| match &option.value {
        OptionValue::Number(value) if option.name == name => Some(value),
        _ => None,
    })
}

/// Whether the statement pushes to `channel`.
pub(super) fn pushes_to(site: &Site<'_>, channel: &Channel) -> bool {
    matches!(&site.stmt.kind, StmtKind::Push { channel: to, .. } if to.name == channel.name)
}

/// The channel that a statement takes messages from, and the word that names it.
pub(super) fn consumes<'a>(view: &View<'a>, site: &Site<'a>) -> Option<(&'a Channel, &'a Ident)> {
    match &site.stmt.kind {
        StmtKind::For(inner) => {
            if let Some(gather) = &inner.gather {
                return Some((view.channel(&gather.channel.name)?, &gather.channel.name));
            }
            let channel = messages_of(view, &site.scope, &inner.domain)?;
            Some((channel, super::statements::domain_root(&inner.domain)?))
        }
        // On another kind of channel an `await` is an error, and takes nothing.
        StmtKind::Await { channel } => {
            let slots = view.channel(channel)?;
            slots.kind.value.traits().is_indexed.then_some((slots, channel))
        }
        _ => None,
    }
}

/// The channel that a statement fills, and the word that names it.
pub(super) fn produces<'a>(view: &View<'a>, site: &Site<'a>) -> Option<(&'a Channel, &'a Ident)> {
    match &site.stmt.kind {
        StmtKind::Push { channel, .. } | StmtKind::Announce { channel, .. } => {
            Some((view.channel(&channel.name)?, &channel.name))
        }
        StmtKind::Close { channel } => Some((view.channel(channel)?, channel)),
        _ => None,
    }
}

/// A role that fills or empties a channel which does not name it.
fn wrong_role(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    let role = &view.roles[site.role].decl.name;
    if let Some((channel, word)) = produces(view, site)
        && !channel.from.contains(role)
        && channel.from.iter().all(|from| view.role(from).is_some())
    {
        out.push(errors::producer_in_wrong_role(word, role, channel));
    }
    if let Some((channel, word)) = consumes(view, site)
        && channel.to != *role
        && view.role(&channel.to).is_some()
    {
        out.push(errors::consumer_in_wrong_role(word, role, channel));
    }
}

/// Statements that a kind of channel does not have.
fn wrong_use(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    let kind = |name: &Ident| view.channel(name).map(|channel| channel.kind.value.traits());
    match &site.stmt.kind {
        StmtKind::Await { channel } | StmtKind::Close { channel } => {
            let word =
                if matches!(site.stmt.kind, StmtKind::Await { .. }) { "await" } else { "close" };
            if kind(channel).is_some_and(|kind| !kind.is_indexed) {
                out.push(errors::only_slots(site.stmt.keyword, word, channel));
            }
        }
        StmtKind::Push { channel, position, .. } => {
            let Some(kind) = kind(&channel.name) else { return };
            match (kind.position, position.first()) {
                (Position::Needed, None) => {
                    out.push(errors::push_without_position(&channel.name));
                }
                (Position::None, Some(first)) => {
                    out.push(errors::push_with_position(first.at, kind.word));
                }
                _ => {}
            }
        }
        StmtKind::For(inner) => match &inner.gather {
            Some(gather) => {
                if kind(&gather.channel.name).is_some_and(|kind| kind.lands) {
                    out.push(errors::gather_from_direct(&gather.channel.name));
                }
                if let Some(filter) = &inner.filter {
                    out.push(errors::gather_with_filter(filter.at));
                }
            }
            None => {
                let channel = messages_of(view, &site.scope, &inner.domain);
                if let Some(channel) = channel
                    && channel.kind.value.traits().offers
                    && let Some(word) = super::statements::domain_root(&inner.domain)
                {
                    out.push(errors::loop_over_pull(word));
                }
            }
        },
        _ => {}
    }
}

/// The indices of the slots of a channel that a push names: all but `source`, which is the rank that pushes.
fn slot_axes(channel: &Channel) -> Vec<&Ident> {
    let axes = channel.options.iter().filter_map(|option| match &option.value {
        OptionValue::Slot(axes) => Some(axes),
        _ => None,
    });
    axes.flatten().map(|axis| &axis.name).filter(|name| *name != "source").collect()
}

/// A push to slots names each index, or each but the last one.
fn slot_index(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    let StmtKind::Push { channel, position, .. } = &site.stmt.kind else { return };
    let Some(declared) = view.channel(&channel.name) else { return };
    if !declared.kind.value.traits().is_indexed {
        return;
    }
    let axes = slot_axes(declared);
    if let Some(extra) = position.get(axes.len()) {
        out.push(errors::too_many_slot_indices(extra.at, &declared.name, &axes));
    } else if position.len() + 1 < axes.len() {
        out.push(errors::too_few_slot_indices(&channel.name, &axes));
    }
}

/// Whether the last index of the slots counts arrivals: a push leaves it out.
pub(super) fn counts_arrivals(view: &View<'_>, channel: &Channel) -> bool {
    let named = slot_axes(channel).len();
    view.sites.iter().any(|site| {
        matches!(&site.stmt.kind, StmtKind::Push { channel: to, position, .. }
            if to.name == channel.name && position.len() < named)
    })
}

/// The index of a channel names one of its peers.
fn peer_index(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    let (StmtKind::Push { channel, .. } | StmtKind::Announce { channel, .. }) = &site.stmt.kind
    else {
        return;
    };
    let Some(declared) = view.channel(&channel.name) else { return };
    let kind = declared.kind.value.traits();
    match channel.indices.as_slice() {
        [index, ..] if kind.offers => out.push(errors::pull_with_peer(index.at, &channel.name)),
        [] if kind.offers => {}
        [] => out.push(errors::push_without_peer(&channel.name)),
        [_, extra, ..] if !kind.is_indexed && declared.parts_per.is_none() => {
            out.push(errors::one_peer(extra.at, &channel.name));
        }
        [index, ..] => {
            let set = peers_of(&site.scope, index);
            let word = set.as_ref().map(text::peers);
            if let (Some(set), Some(word)) = (set, word)
                && !reaches(declared.per.value, set)
            {
                let per = text::peers(&declared.per.value);
                out.push(errors::peer_not_in_set(
                    index.at,
                    word,
                    &declared.name,
                    declared.per.span,
                    per,
                ));
            }
            if matches!(&index.kind, ExprKind::Name(name) if name == "me")
                && declared.per.value == PeerSet::Others
            {
                out.push(errors::me_among_others(index.at, &declared.name, declared.per.span));
            }
        }
    }
}

/// The peer set that an index runs over, if it is a binder over one.
pub(super) fn peers_of(scope: &Scope<'_>, index: &Expr) -> Option<PeerSet> {
    let ExprKind::Name(name) = &index.kind else { return None };
    let binder = scope.iter().rev().find(|binder| binder.name == name)?;
    binder.counted()?.peers()
}

/// Whether every member of `set` is a peer of a channel `per`.
fn reaches(per: PeerSet, set: PeerSet) -> bool {
    match per {
        PeerSet::All => matches!(set, PeerSet::All | PeerSet::Others),
        other => other == set,
    }
}

/// Several producers are one producer as long as no peer hears from two of them.
fn two_producers(view: &View<'_>, channel: &Channel, out: &mut Diagnostics) {
    let mut pushes: Vec<(&Site<'_>, &ChannelRef)> = Vec::new();
    for site in &view.sites {
        if let StmtKind::Push { channel: to, .. } = &site.stmt.kind
            && to.name == channel.name
            && channel.from.contains(&view.roles[site.role].decl.name)
        {
            pushes.push((site, to));
        }
    }
    for (at, (site, to)) in pushes.iter().enumerate() {
        let clash = pushes[..at]
            .iter()
            .find(|(other, first)| other.role != site.role && !apart(other, first, site, to));
        if let Some((other, first)) = clash {
            let roles = (&view.roles[site.role].decl.name, &view.roles[other.role].decl.name);
            return out.push(errors::two_producers(&to.name, roles, &first.name));
        }
    }
}

/// Whether two pushes go to different peers: one to this rank, the other to the others.
fn apart(a: &Site<'_>, to_a: &ChannelRef, b: &Site<'_>, to_b: &ChannelRef) -> bool {
    let is_me = |to: &ChannelRef| {
        to.indices.first().is_some_and(|index| root(index).is_some_and(|name| name == "me"))
    };
    let to_others = |site: &Site<'_>, to: &ChannelRef| {
        to.indices.first().and_then(|index| peers_of(&site.scope, index)) == Some(PeerSet::Others)
    };
    (is_me(to_a) && to_others(b, to_b)) || (is_me(to_b) && to_others(a, to_a))
}

/// Channels that no role fills or empties, in any or in some choice of arms.
pub(super) fn check_all(views: &[View<'_>], out: &mut Diagnostics) {
    let Some(first) = views.first() else { return };
    for placed in &first.model.items {
        let Item::Channel(channel) = placed.item else { continue };
        let here =
            |view: &View<'_>| view.channels.iter().any(|other| std::ptr::eq(*other, &**channel));
        let produced = |view: &View<'_>| view.sites.iter().any(|site| pushes_to(site, channel));
        let consumed = |view: &View<'_>| {
            view.sites.iter().any(|site| {
                consumes(view, site).is_some_and(|(other, _)| other.name == channel.name)
            })
        };
        if let Some(when) = super::coverage::lacking(views, &here, &produced) {
            out.push(errors::no_producer(channel, &when));
        }
        if let Some(when) = super::coverage::lacking(views, &here, &consumed) {
            out.push(errors::no_consumer(channel, &when));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;

    fn over(transports: &str, per: &str, domain: &str) -> Vec<String> {
        said_to(&format!(
            "shape {{ nodes: 1..=8, local_ranks: 1..=8, ranks: 1..=64 }}
             input n: i32[ranks]; output sum: i32[1];
             message Word {{ value: i32 }}
             channel words: slots<Word> over {transports} from R to R per {per} {{
                 slot: [source]
             }};
             role R on block 0 {{
                 for peer in {domain} {{ push words[peer] {{ value: n[0] }}; }}
                 await words;
                 store sum[0] = sum(source in {domain}: words[source].value);
             }}"
        ))
    }

    #[test]
    fn every_peer_set_has_a_transport() {
        assert_eq!(over("nvlink", "all", "ranks"), [""; 0]);
        assert_eq!(over("nvlink | rdma | ibgda", "all", "ranks"), [""; 0]);
        assert_eq!(over("rdma | ibgda", "rail", "nodes"), [""; 0]);
        assert_eq!(over("nvlink", "local", "local"), [""; 0]);
        assert_eq!(over("nvlink", "others", "others"), [""; 0]);
        assert_eq!(
            over("nvlink | rdma", "local", "local"),
            ["a network does not connect ranks of one node"]
        );
    }
}

//! Channels: options, transports, and the roles at their ends.

use super::names::suggest;
use super::{Diagnostic, listed};
use crate::ast::{Channel, Ident, Span, TokenRange};

/// An option that this kind of channel does not have.
pub(crate) fn unknown_option(name: &Ident, kind: &str, known: Vec<String>) -> Diagnostic {
    let error = Diagnostic::new(name, format!("a `{kind}` channel has no option `{name}`"));
    suggest(error, name, &known)
}

/// An option that this kind of channel cannot do without.
pub(crate) fn missing_option(channel: &Channel, option: &str) -> Diagnostic {
    let name = &channel.name;
    let help = match option {
        "slot" => "slot: [source]".to_string(),
        "depth" => "depth: 64".to_string(),
        "chunk" => "chunk: 8".to_string(),
        other => format!("{other}: .."),
    };
    Diagnostic::new(name, format!("the channel `{name}` needs the option `{option}`")).help(help)
}

/// A waiver of something that is no policy of the checker.
pub(crate) fn unknown_policy(policy: &Ident, policies: &[&str]) -> Diagnostic {
    let message = format!("the checker has no policy `{policy}` that a channel can waive");
    let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
    suggest(Diagnostic::new(policy, message), policy, &names)
}

/// A policy waived for no reason.
pub(crate) fn empty_waiver(policy: &Ident, at: Span) -> Diagnostic {
    Diagnostic::new(at, format!("`{policy}` is waived without a reason"))
        .help(format!("waive: {policy} \"rows are read by lanes only\""))
}

/// Times of waits, added to something else than a sum for each peer.
pub(crate) fn waited_not_a_tensor(
    name: &Ident,
    peers: &str,
    declared: Option<&Ident>,
) -> Diagnostic {
    let message = format!("`{name}` cannot hold the time that the receiver waits for each peer");
    let error =
        Diagnostic::new(name, message).help(format!("inout {name}: optional i64[{peers}];"));
    match declared {
        Some(declared) => error.also(declared, format!("`{name}` is declared here")),
        None => error,
    }
}

/// Times of waits for slots that do not say whose they are.
pub(crate) fn waited_without_source(name: &Ident, slot: &Ident) -> Diagnostic {
    let message =
        format!("`{name}` has a sum for each peer, and these slots do not name their sender");
    Diagnostic::new(name, message)
        .help("slot: [source, ..]")
        .also(slot, "these slots have no index `source`")
}

/// A statement that uses a sum of times.
pub(crate) fn waited_used(word: &Ident, channel: &Ident) -> Diagnostic {
    let message = format!(
        "`{word}` holds the time that `{channel}` is waited for, so no statement can use it"
    );
    Diagnostic::new(word, message).help("use another tensor")
}

/// A header number that the protocol does not know.
pub(crate) fn unknown_header(name: &Ident) -> Diagnostic {
    let error = Diagnostic::new(name, format!("a header has no number `{name}`"));
    suggest(error, name, &["first".to_string(), "count".to_string()])
}

/// Slots without an index.
pub(crate) fn empty_slot(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, "slots need an index, because without one all peers share one slot")
        .help("slot: [source]")
}

/// A slot index of unknown extent.
pub(crate) fn slot_without_extent(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the slot index `{name}` does not say how many values it has"))
        .help(format!("{name}: experts"))
}

/// A push to slots that names an index too many.
pub(crate) fn too_many_slot_indices(
    at: TokenRange,
    channel: &Ident,
    axes: &[&Ident],
) -> Diagnostic {
    let what = match axes {
        [] => format!("a push to `{channel}` takes no `at`: its slots have no index but `source`"),
        _ => format!("a push to `{channel}` names only {}", names_of(axes)),
    };
    Diagnostic::new(at, what).help("remove this index; `source` is always the rank that pushes")
}

/// A push to slots that names too few indices.
pub(crate) fn too_few_slot_indices(channel: &Ident, axes: &[&Ident]) -> Diagnostic {
    let needed = &axes[..axes.len().saturating_sub(1)];
    Diagnostic::new(channel, format!("a push to `{channel}` has to name {}", names_of(needed)))
        .help(format!(
            "at [{}]",
            needed.iter().map(|axis| axis.to_string()).collect::<Vec<_>>().join(", ")
        ))
}

fn names_of(axes: &[&Ident]) -> String {
    let names: Vec<String> = axes.iter().map(|axis| axis.to_string()).collect();
    listed(&names, "and")
}

/// One transport twice.
pub(crate) fn transport_twice(at: Span) -> Diagnostic {
    Diagnostic::new(at, "this transport is named twice").help("remove it")
}

/// A channel that needs peer pointers, over a network.
pub(crate) fn kind_needs_nvlink(at: Span, kind: &str) -> Diagnostic {
    let verb = if kind == "pull" { "reads" } else { "writes" };
    let message = format!(
        "a `{kind}` channel {verb} the memory of another rank, which only `nvlink` can reach"
    );
    Diagnostic::new(at, message).help("over nvlink")
}

/// Peers on other nodes, over NVLink.
pub(crate) fn rail_over_nvlink(per: Span, over: Span) -> Diagnostic {
    Diagnostic::new(per, "the peers of `rail` are on other nodes, which `nvlink` does not reach")
        .help("over rdma | ibgda")
        .also(over, "`nvlink` connects only ranks of one node")
}

/// Peers on this node, over a network.
pub(crate) fn local_over_network(over: Span, per: Span) -> Diagnostic {
    Diagnostic::new(over, "a network does not connect ranks of one node")
        .help("over nvlink")
        .also(per, "the peers of `local` are on this node")
}

/// All ranks, over a network alone.
pub(crate) fn node_over_network(over: Span, per: &str) -> Diagnostic {
    Diagnostic::new(
        over,
        format!("a network does not reach the ranks of `{per}` that are on this node"),
    )
    .help("over nvlink | rdma | ibgda")
}

/// All ranks of several nodes, over NVLink alone.
pub(crate) fn nodes_over_nvlink(over: Span, per: &str) -> Diagnostic {
    Diagnostic::new(
        over,
        format!("`nvlink` does not reach the ranks of `{per}` that are on other nodes"),
    )
    .help("over nvlink | rdma | ibgda")
}

/// A peer set of unknown size.
pub(crate) fn peers_without_number(per: Span, set: &str, number: &str) -> Diagnostic {
    Diagnostic::new(
        per,
        format!("`{set}` needs the number `{number}`, which the shape does not declare"),
    )
    .help(format!("{number}: 1..=64"))
}

/// A depth, chunk or number of epochs below 1.
pub(crate) fn option_not_positive(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` is at least 1")).help("1")
}

/// A ring that cannot hold two chunks.
pub(crate) fn ring_too_short(
    depth: TokenRange,
    depths: i128,
    chunk: TokenRange,
    chunks: i128,
) -> Diagnostic {
    let need = 2 * chunks;
    Diagnostic::new(depth, format!("a ring of at most {depths} slots does not hold two chunks"))
        .help(format!("depth: {need}"))
        .also(chunk, format!("a chunk has at least {chunks} slots here"))
}

/// A role that a channel names as its producer and that pushes nothing.
pub(crate) fn role_never_pushes(role: &Ident, channel: &Ident) -> Diagnostic {
    Diagnostic::new(role, format!("`{role}` never pushes to `{channel}`"))
        .help(format!("remove `{role}` from `from`"))
}

/// A channel that nobody fills.
pub(crate) fn no_producer(channel: &Channel, when: &str) -> Diagnostic {
    let name = &channel.name;
    let role = channel.from.first().map_or("a role".to_string(), |role| format!("`{role}`"));
    let index = if channel.kind.value.traits().offers { "" } else { "[peer]" };
    Diagnostic::new(name, format!("no role pushes to the channel `{name}`{when}"))
        .help(format!("push {name}{index} {{ .. }}; in {role}"))
}

/// A channel that nobody empties.
pub(crate) fn no_consumer(channel: &Channel, when: &str) -> Diagnostic {
    let (name, role) = (&channel.name, &channel.to);
    let statement = channel.kind.value.traits().taken.replace("{}", &name.to_string());
    Diagnostic::new(name, format!("no role takes messages from the channel `{name}`{when}"))
        .help(format!("{statement} in `{role}`"))
}

/// Two roles that fill one peer's end.
pub(crate) fn two_producers(at: &Ident, roles: (&Ident, &Ident), first: &Ident) -> Diagnostic {
    let (role, other) = roles;
    Diagnostic::new(at, format!("`{role}` and `{other}` both push to `{at}` for the same peer"))
        .help("give `others` to one of them and `me` to the other, or give each its own channel")
        .also(first, format!("`{other}` pushes to `{first}` here"))
}

/// A role that fills a channel which does not name it.
pub(crate) fn producer_in_wrong_role(at: &Ident, role: &Ident, channel: &Channel) -> Diagnostic {
    let name = &channel.name;
    let from: Vec<String> = channel.from.iter().map(Ident::to_string).collect();
    let error = Diagnostic::new(
        at,
        format!("`{role}` pushes to `{name}`, which comes from {}", listed(&from, "and")),
    )
    .help(format!("from {}, {role}", from.join(", ")));
    match channel.from.first() {
        Some(first) => error.also(first, format!("`{name}` comes from {}", listed(&from, "and"))),
        None => error,
    }
}

/// A role that empties a channel which does not name it.
pub(crate) fn consumer_in_wrong_role(at: &Ident, role: &Ident, channel: &Channel) -> Diagnostic {
    let (name, to) = (&channel.name, &channel.to);
    Diagnostic::new(at, format!("`{role}` takes messages from `{name}`, which goes to `{to}`"))
        .help(format!("to {role}"))
        .also(to, format!("`{name}` goes to `{to}`"))
}

/// `await` or `close` on a channel that has no such thing.
pub(crate) fn only_slots(keyword: Span, word: &str, channel: &Ident) -> Diagnostic {
    let help = if word == "await" {
        format!("for message in {channel}[peer] {{ .. }}")
    } else {
        "remove it".to_string()
    };
    Diagnostic::new(
        keyword,
        format!("`{word}` needs a `slots` channel, and `{channel}` is not one"),
    )
    .help(help)
}

/// A direct push without a place.
pub(crate) fn push_without_position(channel: &Ident) -> Diagnostic {
    Diagnostic::new(
        channel,
        format!("a push to the direct channel `{channel}` needs the row that it writes"),
    )
    .help("at rank_prefix[me, peer] + stripe_prefix[peer, stripe]")
}

/// A position where the channel counts by itself.
pub(crate) fn push_with_position(at: TokenRange, kind: &str) -> Diagnostic {
    Diagnostic::new(at, format!("a `{kind}` channel assigns positions itself"))
        .help("remove the `at`")
}

/// A gather of rows that are already in place.
pub(crate) fn gather_from_direct(channel: &Ident) -> Diagnostic {
    Diagnostic::new(
        channel,
        format!(
            "`{channel}` stores its rows in place, and a gather needs `ring`, `pull` or `slots`"
        ),
    )
    .help(format!("for message in {channel}[source] {{ .. }}"))
}

/// A filter on a gather.
pub(crate) fn gather_with_filter(at: TokenRange) -> Diagnostic {
    Diagnostic::new(at, "a gather visits every row, so it cannot have a `where`")
        .help("remove the `where`; a part that was never sent counts as zero")
}

/// A loop over messages that are never sent.
pub(crate) fn loop_over_pull(channel: &Ident) -> Diagnostic {
    Diagnostic::new(
        channel,
        format!("`{channel}` is a pull channel, so no messages arrive through it"),
    )
    .help(format!(
        "for token in tokens gather part from {channel}[peer] at .. across peer in ranks"
    ))
}

/// A peer where all peers are offered the same.
pub(crate) fn pull_with_peer(at: TokenRange, channel: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{channel}` offers its rows to every peer at once"))
        .help(format!("push {channel} {{ .. }}"))
}

/// A push to nobody.
pub(crate) fn push_without_peer(channel: &Ident) -> Diagnostic {
    Diagnostic::new(channel, format!("this push to `{channel}` does not name a peer"))
        .help(format!("{channel}[peer]"))
}

/// Two indices where there is one ring per peer.
pub(crate) fn one_peer(at: TokenRange, channel: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{channel}` has one part per peer and takes one index"))
        .help("remove this index, or declare `one part per` on the channel")
}

/// An index over ranks that are not peers of the channel.
pub(crate) fn peer_not_in_set(
    at: TokenRange,
    set: &str,
    channel: &Ident,
    per: Span,
    declared: &str,
) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("this index runs over `{set}`, and `{channel}` connects only `{declared}`"),
    )
    .help(format!("per {set}"))
    .also(per, format!("`{channel}` connects the peers of `{declared}`"))
}

/// This rank as one of the others.
pub(crate) fn me_among_others(at: TokenRange, channel: &Ident, per: Span) -> Diagnostic {
    Diagnostic::new(at, format!("`me` is not among the peers of `{channel}`"))
        .help("per all")
        .also(per, format!("`{channel}` connects the peers of `others`"))
}

/// A receiver that waits for its own rank, to which nothing is sent.
pub(crate) fn never_to_me(
    at: TokenRange,
    channel: &Ident,
    role: &Ident,
    taken: &Ident,
) -> Diagnostic {
    let sentence =
        format!("`{channel}` goes only to the other ranks, and `{role}` also waits for this rank");
    Diagnostic::new(at, sentence)
        .help("per others")
        .also(taken, format!("`{role}` waits for every rank here"))
}

/// A receiver that waits for all ranks, each of which sends to itself.
pub(crate) fn only_to_me(
    at: TokenRange,
    channel: &Ident,
    role: &Ident,
    taken: &Ident,
) -> Diagnostic {
    let sentence = format!("`{channel}` goes only to `me`, and `{role}` waits for every rank");
    Diagnostic::new(at, sentence)
        .help(format!("send to every peer, or take from {taken}[me]"))
        .also(taken, format!("`{role}` waits for every rank here"))
}

/// A header that some peers wait for in vain.
pub(crate) fn announced_to_some(
    at: TokenRange,
    channel: &Ident,
    role: &Ident,
    taken: &Ident,
) -> Diagnostic {
    let sentence = format!(
        "`{channel}` is announced only to some peers, and `{role}` waits for a header from every peer"
    );
    Diagnostic::new(at, sentence)
        .help("remove the condition: announce a `count` of 0 where nothing is sent")
        .also(taken, format!("`{role}` waits for every rank here"))
}

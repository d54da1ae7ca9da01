//! What each kind of channel takes of the window, and the constants by which the device library finds its
//! way there.

use super::message::MessageLayout;
use super::network::NetExtent;
use super::numbers::Numbers;
use super::window::{Extent, Row, SlotExtent, option};
use super::{CfgMember, flag, int};
use crate::ir::parts::{LINE_BYTES, align, elem_bytes};
use crate::ir::slots::Arrival;
use crate::ir::{Channel, ChannelKind, PeerSet};

/// KiB of rows that a warp takes at a time to send them, and the most that make a difference.
const DIRECT_UNIT: i64 = 112;
const UNIT_MAX: i64 = 64 * 1024;

/// The members of the Cfg struct of a channel that say how it is cut.
pub(super) fn numbers(channel: &Channel, extent: &Extent<'_>, numbers: &Numbers) -> Vec<CfgMember> {
    let option = |name, default| option(channel, name, numbers).unwrap_or(default);
    let layout = extent.message;
    match channel.kind {
        ChannelKind::Ring => {
            let mut members = vec![
                int("kStripes", extent.stripes),
                int("kDepth", option("depth", 2)),
                int("kChunk", option("chunk", 1)),
                int("kSlotBytes", layout.slot_bytes),
                int("kMeta", layout.row_bytes),
                int("kHeaderWords", channel.header.len() as i64),
            ];
            if channel.parts_per.is_some() {
                members.push(int("kParts", extent.parts));
            }
            if let Some(net) = extent.net {
                members.extend(net_numbers(channel, net));
                members.push(int("kReaders", net.readers));
            }
            members
        }
        ChannelKind::Direct if extent.senders > 0 => {
            let mut members = vec![
                int("kSenders", extent.senders),
                int("kRowStride", align(layout.row_bytes, LINE_BYTES)),
                int("kRecordWords", layout.record_words()),
            ];
            members.extend(few_numbers(extent));
            members
        }
        ChannelKind::Direct => vec![
            int("kStripes", extent.stripes),
            int("kUnitBytes", option("unit", DIRECT_UNIT).clamp(1, UNIT_MAX) * 1024),
            int("kRowStride", align(layout.row_bytes, LINE_BYTES)),
            int("kMetaBytes", layout.meta_bytes),
        ],
        ChannelKind::Slots => slot_numbers(channel, extent),
        ChannelKind::Pull => vec![
            int("kRowStride", align(layout.row_bytes, LINE_BYTES)),
            int("kMetaStride", align(meta_row_bytes(layout), LINE_BYTES)),
        ],
    }
}

fn slot_numbers(channel: &Channel, extent: &Extent<'_>) -> Vec<CfgMember> {
    let Some(slots) = extent.slots else { return Vec::new() };
    let layout = extent.message;
    let skips_own = flag("kSkipsOwn", channel.per == PeerSet::Others);
    let slot_bytes = int("kSlotBytes", layout.slot_bytes);
    let epochs = int("kEpochs", slots.epochs);
    if slots.arrival == Arrival::Words {
        return vec![epochs, int("kWords", layout.meta_bytes / 8), skips_own, slot_bytes];
    }
    let net = extent.net.map(|net| net_numbers(channel, net));
    if slots.arrival == Arrival::Signals {
        let meta = int("kMeta", layout.row_bytes);
        let own = [epochs, skips_own, slot_bytes, meta];
        return own.into_iter().chain(net.into_iter().flatten()).collect();
    }
    let mut members = vec![
        epochs,
        int("kKeys", slots.keys),
        int("kArrivals", slots.arrivals),
        int("kSourceStride", slots.source_stride),
        int("kShared", slots.shared),
        flag("kCounts", slots.arrival == Arrival::Counts),
        skips_own,
        flag("kSkipsAbsent", extent.skips_absent),
        slot_bytes,
        int("kMeta", layout.row_bytes),
        int("kSlices", extent.slices),
    ];
    members.extend(few_numbers(extent));
    if extent.few > 0 {
        members.push(int("kFieldWords", layout.record_words()));
    }
    if let Some(net) = net {
        members.push(int("kFarBytes", slots.far_bytes(layout.slot_bytes)));
        members.push(int("kRun", slots.run));
        members.push(int("kOnce", slots.once));
        members.extend(net);
    }
    members
}

/// The calls whose rows travel as words, and the bytes of such a row.
fn few_numbers(extent: &Extent<'_>) -> Vec<CfgMember> {
    let few = int("kFewTokens", extent.few);
    let row_bytes = int("kWholeRowBytes", extent.message.row_bytes);
    let own = (extent.senders > 0).then_some(row_bytes);
    let bytes = int("kWordRowBytes", extent.message.words_bytes());
    [few].into_iter().chain(own).chain((extent.few > 0).then_some(bytes)).collect()
}

/// Rows that travel as words: those of each peer, of two calls where nobody waits for a receiver.
fn few_words<'a>(extent: &Extent<'_>, (sender, receiver): (&'a str, &'a str)) -> Option<Row<'a>> {
    let (few, peers, bytes) = (extent.few, extent.peers, extent.message.words_bytes());
    let calls = if extent.slots.is_none() { 2 } else { 1 };
    let each = format!("{peers} peers x {few} rows x {bytes}");
    let formula = if calls == 1 { each } else { format!("{calls} calls x {each}") };
    (few > 0).then(|| ("as_words", calls * peers * few * bytes, sender, receiver, formula))
}

/// Bytes of one row of the tensor behind the meta fields of a pull channel.
fn meta_row_bytes(layout: &MessageLayout) -> i64 {
    layout.meta.iter().map(|field| field.count * elem_bytes(&field.elem)).sum()
}

/// Who of the peers of a channel is reached without a network, and how the others are.
fn net_numbers(channel: &Channel, net: NetExtent) -> [CfgMember; 4] {
    [
        flag("kRail", channel.per == PeerSet::Rail),
        int("kNodeRanks", net.node_ranks),
        int("kNear", net.near),
        flag("kIbgda", net.ibgda),
    ]
}

/// The words and slots of a channel in the window.
pub(super) fn words<'a>(
    channel: &'a Channel,
    extent: &Extent<'_>,
    sender: &'a str,
    numbers: &Numbers,
) -> Vec<Row<'a>> {
    let each = extent.peers * extent.stripes * extent.parts;
    let receiver = channel.to.as_str();
    let option = |name: &str, default| option(channel, name, numbers).unwrap_or(default);
    let (depth, chunk) = (option("depth", 2), option("chunk", 1));
    let header = 8 * channel.header.len() as i64;
    let peers = extent.peers;
    match channel.kind {
        ChannelKind::Ring => ring_words(extent, (depth, chunk), header, (sender, receiver)),
        ChannelKind::Direct if extent.senders > 0 => {
            let (senders, most) = (extent.senders, extent.rows);
            let (ready, told) = (2 * peers * 16, peers * senders * extent.pieces.max(1) * 8);
            let pieces = match extent.pieces {
                0 => format!("{peers} peers x {senders} x 8"),
                pieces => format!("{peers} peers x {senders} rows x {pieces} pieces x 8"),
            };
            let words = extent.message.record_words();
            let records = most * words * 8;
            let rows = vec![
                ("ready", ready, receiver, sender, format!("2 calls x {peers} peers x 16")),
                ("records", records, sender, receiver, format!("{most} rows x {words} x 8")),
                ("told", told, sender, receiver, pieces),
            ];
            rows.into_iter().chain(few_words(extent, (sender, receiver))).collect()
        }
        ChannelKind::Direct => vec![
            ("ready", peers * 32, receiver, sender, format!("{peers} peers x 32")),
            ("closed", each * 16, sender, receiver, formula(extent, 1, 16)),
            ("stored", each * 8, sender, sender, formula(extent, 1, 8)),
        ],
        ChannelKind::Slots => slot_words(channel, extent, sender),
        ChannelKind::Pull => vec![
            ("ready", peers * 16, sender, receiver, format!("{peers} peers x 16")),
            ("released", peers * 4, receiver, sender, format!("{peers} peers x 4")),
            ("done", 4, receiver, receiver, "1 word x 4".to_string()),
        ],
    }
}

fn formula(extent: &Extent<'_>, copies: i64, bytes: i64) -> String {
    let each = format!("{} x {bytes}", places_of(extent, extent.peers));
    if copies == 1 { each } else { format!("{copies} calls x {each}") }
}

/// The places that `peers` peers have in a channel.
fn places_of(extent: &Extent<'_>, peers: i64) -> String {
    let each = format!("{} stripes x {peers} peers", extent.stripes);
    if extent.parts == 1 { each } else { format!("{each} x {} parts", extent.parts) }
}

/// The slots of a ring, and the words beside them; of peers that are reached without a network.
fn ring_words<'a>(
    extent: &Extent<'_>,
    (depth, chunk): (i64, i64),
    header: i64,
    (sender, receiver): (&'a str, &'a str),
) -> Vec<Row<'a>> {
    let slot = extent.message.slot_bytes;
    let near = Extent { peers: extent.net.map_or(extent.peers, |net| net.near), ..*extent };
    let rings = |of: &Extent<'_>| of.peers * of.stripes * of.parts;
    let (each, all) = (rings(&near), rings(extent));
    let slots = format!("{} x {depth} slots x {slot}", places_of(&near, near.peers));
    let mut rows = vec![
        ("slots", each * depth * slot, sender, receiver, slots),
        ("tail", each * 4, sender, receiver, formula(&near, 1, 4)),
        ("header", 2 * each * header, sender, receiver, formula(&near, 2, header)),
        ("taken", 2 * all * 4, receiver, receiver, formula(extent, 2, 4)),
        ("head", each * 4, receiver, sender, formula(&near, 1, 4)),
        ("retired", each * 4, receiver, sender, formula(&near, 1, 4)),
        ("sent", 2 * all * 4, sender, sender, formula(extent, 2, 4)),
    ];
    if extent.net.is_some_and(|net| net.readers > 1) {
        // A word for each chunk that readers may know of at once, and one for the end of the stripe.
        let chunks = depth / chunk.max(1) + 2;
        let formula = format!("{} x {chunks} x 4", places_of(extent, extent.peers));
        rows.push(("passed", all * chunks * 4, receiver, receiver, formula));
    }
    // Nobody announces anything on a ring without a header.
    rows.retain(|(what, ..)| header > 0 || !["header", "retired"].contains(what));
    rows
}

/// The slots of a channel, and the words beside them.
fn slot_words<'a>(channel: &'a Channel, extent: &Extent<'_>, sender: &'a str) -> Vec<Row<'a>> {
    let receiver = channel.to.as_str();
    let Some(slots) = extent.slots else { return Vec::new() };
    let SlotExtent { arrival, epochs, arrivals, shared, .. } = slots;
    let (bytes, peers, slices) = (extent.message.slot_bytes, extent.peers, extent.slices);
    // Slots of far peers are in the data of a network.
    let (near, keys) = match extent.net {
        Some(net) => (net.near, slots.keys / peers.max(1) * net.near),
        None => (peers, slots.keys),
    };
    let each = if arrivals == 1 { keys.to_string() } else { format!("{keys} x {arrivals}") };
    let formula = format!("{epochs} epochs x {each} slots x {bytes}");
    let total = epochs.saturating_mul(keys).saturating_mul(arrivals).saturating_mul(bytes);
    let mut rows = vec![("slots", total, sender, receiver, formula)];
    let word = format!("{near} peers x 4");
    match arrival {
        Arrival::Words => return rows,
        Arrival::Signals => rows.push(("come", near * 4, sender, receiver, word.clone())),
        Arrival::Flags | Arrival::Counts => {
            if arrival == Arrival::Flags {
                let each = if slices == 1 { "8".to_string() } else { format!("{slices} x 8") };
                let formula = format!("{epochs} epochs x {keys} slots x {each}");
                rows.push(("flags", epochs * keys * slices * 8, sender, receiver, formula));
            }
            let closed = format!("{epochs} epochs x {near} peers x {shared} x 8");
            rows.push(("closed", epochs * near * shared * 8, sender, receiver, closed));
        }
    }
    rows.push(("released", near * 4, receiver, sender, word));
    if let Some(few) = few_words(extent, (sender, receiver)) {
        rows.push(("takes_words", peers * 8, receiver, sender, format!("{peers} peers x 8")));
        rows.push(few);
    }
    if arrival != Arrival::Signals {
        let taken = format!("{peers} peers x {shared} x 4");
        rows.push(("taken", peers * shared * 4, sender, sender, taken));
        if extent.skips_absent && arrival == Arrival::Counts {
            let agreed = format!("{peers} peers x {shared} x 8");
            rows.push(("agreed", peers * shared * 8, receiver, receiver, agreed));
        }
        rows.push(("closers", 4, sender, sender, "1 word x 4".to_string()));
        if extent.net.is_some() {
            let (far, formula) = (peers - near, format!("{} peers x 4", peers - near));
            rows.push(("closed_told", far * 4, sender, sender, formula.clone()));
            rows.push(("released_told", far * 4, receiver, receiver, formula));
            let groups = if slots.run > 1 { slots.groups(peers) } else { 0 };
            let formula = format!("{far} peers x {groups} groups of {} x 4", slots.run);
            let groups = (far.saturating_mul(groups) * 4, formula);
            let messages = (slots.once * 4, format!("{} messages x 4", slots.once));
            let (bytes, formula) = if slots.once > 0 { messages } else { groups };
            rows.push(("filled", bytes, sender, sender, formula));
        }
    }
    if !extent.read_on_entry {
        rows.push(("readers", 4, receiver, receiver, "1 word x 4".to_string()));
    }
    if channel.waited.is_some() {
        rows.push(("waited", peers * 8, receiver, receiver, format!("{peers} peers x 8")));
    }
    rows
}

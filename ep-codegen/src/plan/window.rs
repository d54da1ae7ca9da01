//! The control memory of a plan: the words and slots of its channels and the sums of its counters, at
//! the same place of every rank's window.

use super::counted::Counters;
use super::message::MessageLayout;
use super::network::NetExtent;
use super::numbers::Numbers;
use super::{CfgKind, CfgMember, Region, constant};
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::slots::{Arrival, arrival, counted_axis};
use crate::ir::{Channel, ChannelKind, Pipeline};
use crate::plan::eval;

/// What a region holds, its bytes, who writes and who reads it, and what the bytes are made of.
type Row<'a> = (&'a str, i64, &'a str, &'a str, String);

/// Regions of all channels so far.
#[derive(Default)]
pub(super) struct Window {
    pub(super) regions: Vec<Region>,
    pub(super) bytes: i64,
}

/// How many peers and stripes a channel has, and what one of its messages takes.
#[derive(Clone, Copy)]
pub(super) struct Extent<'a> {
    pub(super) peers: i64,
    pub(super) stripes: i64,
    /// Roles of the pipeline.
    pub(super) roles: i64,
    /// The most warps of a rank that tell of rows in one launch; 0: stripes are told of.
    pub(super) senders: i64,
    /// Words that tell of a slot with rows.
    pub(super) flags: i64,
    /// Rows of a rank's output in one launch.
    pub(super) rows: i64,
    pub(super) message: &'a MessageLayout,
    /// How its slots are told apart; none for another kind of channel.
    pub(super) slots: Option<SlotExtent>,
    /// Parts of a ring to each peer.
    pub(super) parts: i64,
    /// Who is reached over a network, if someone is.
    pub(super) net: Option<NetExtent>,
}

/// How many slots a channel has for each call, and how the messages in them arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotExtent {
    pub(super) arrival: Arrival,
    /// Calls whose slots are kept apart.
    pub(super) epochs: i64,
    /// Slots, or rows of slots where the sender counts.
    pub(super) keys: i64,
    /// Slots of a key.
    pub(super) arrivals: i64,
    /// How far the keys of one source are from those of the next one; 0 where they name none.
    pub(super) source_stride: i64,
    /// Keys that a sender closes at each receiver.
    pub(super) shared: i64,
}

impl SlotExtent {
    /// The slots of `channel` between `peers`.
    pub(super) fn of(
        ir: &Pipeline,
        channel: &Channel,
        peers: i64,
        numbers: &Numbers,
    ) -> Option<SlotExtent> {
        if channel.kind != ChannelKind::Slots {
            return None;
        }
        let counted = counted_axis(ir, channel);
        let (mut keys, mut source_stride) = (1_i64, 0_i64);
        for (axis, name) in channel.slot_names.iter().enumerate().rev() {
            if Some(axis) == counted {
                continue;
            }
            if name == "source" {
                source_stride = keys;
            }
            keys = keys.saturating_mul(eval(&channel.slot[axis], numbers).unwrap_or(0));
        }
        let arrivals = counted.and_then(|axis| eval(&channel.slot[axis], numbers)).unwrap_or(1);
        let shared = if counted.is_some() { keys / peers.max(1) } else { 1 };
        let epochs = slot_epochs(channel, numbers);
        Some(SlotExtent {
            arrival: arrival(ir, channel),
            epochs,
            keys,
            arrivals,
            source_stride,
            shared,
        })
    }
}

impl SlotExtent {
    /// Slots that a receiver has for each source in a call.
    pub(super) fn of_source(&self, peers: i64) -> i64 {
        (self.keys / peers.max(1)).saturating_mul(self.arrivals)
    }

    /// Bytes of a slot that a network carries: behind it a word says that it was filled, unless it is counted.
    pub(super) fn far_bytes(&self, slot_bytes: i64) -> i64 {
        match self.arrival {
            Arrival::Counts => slot_bytes,
            _ => align(slot_bytes.saturating_add(8), 16),
        }
    }
}

impl Window {
    /// Lays out the words of `channel`; gives the members of its Cfg struct that say where.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        extent: &Extent<'_>,
        numbers: &Numbers,
    ) -> Vec<CfgMember> {
        let each = extent.peers * extent.stripes * extent.parts;
        let (sender, receiver) = (channel.from.join(", "), channel.to.as_str());
        let sender = sender.as_str();
        let option = |name: &str, default| option(channel, name, numbers).unwrap_or(default);
        let depth = option("depth", 2);
        let chunk = option("chunk", 1);
        let header = 8 * channel.header.len() as i64;
        let peers = extent.peers;
        // A word for each role that may send, and every 32 peers.
        let claims = extent.roles * ((peers + 31) / 32);
        let rows: Vec<Row<'_>> = match channel.kind {
            ChannelKind::Ring => ring_words(extent, (depth, chunk), header, (sender, receiver)),
            ChannelKind::Direct if extent.senders > 0 => {
                let (senders, rows) = (extent.senders, extent.rows);
                let (ready, told) = (2 * peers * 16, peers * senders * 8);
                let words = extent.message.record_words();
                let records = rows * words * 8;
                vec![
                    ("ready", ready, receiver, sender, format!("2 calls x {peers} peers x 16")),
                    ("records", records, sender, receiver, format!("{rows} rows x {words} x 8")),
                    ("told", told, sender, receiver, format!("{peers} peers x {senders} x 8")),
                ]
            }
            ChannelKind::Direct => vec![
                ("ready", peers * 32, receiver, sender, format!("{peers} peers x 32")),
                ("closed", each * 16, sender, receiver, words(extent, 1, 16)),
                ("stored", each * 8, sender, sender, words(extent, 1, 8)),
                ("claims", 2 * claims * 4, sender, sender, format!("2 calls x {claims} words x 4")),
            ],
            ChannelKind::Slots => slot_words(extent, sender, receiver),
            ChannelKind::Pull => vec![
                ("ready", peers * 16, sender, receiver, format!("{peers} peers x 16")),
                ("released", peers * 4, receiver, sender, format!("{peers} peers x 4")),
                ("turns", 8, receiver, receiver, "2 words x 4".to_string()),
            ],
        };
        // Nobody announces anything on a ring without a header.
        let announced =
            |what: &str| !channel.header.is_empty() || !["header", "retired"].contains(&what);
        let ring = channel.kind == ChannelKind::Ring;
        let rows = rows.into_iter().filter(|row| !ring || announced(row.0));
        rows.map(|row| self.region(&channel.name, row)).collect()
    }

    /// Lays out the sums of counters, if there are any.
    pub(super) fn sums(&mut self, counters: &Counters) -> CfgMember {
        if counters.count() == 0 {
            return CfgMember { name: constant("sums"), value: 0, kind: CfgKind::Offset };
        }
        let roles = counters.roles.join(", ");
        let row = ("sums", counters.bytes(), roles.as_str(), roles.as_str(), counters.formula());
        self.region("counted", row)
    }

    /// Lays out the words from which the warps of a role claim units, in some loops.
    pub(super) fn claims(&mut self, role: &str, loops: usize) -> CfgMember {
        let formula = format!("2 calls x {loops} words x 4");
        self.region(role, ("claims", 2 * loops as i64 * 4, role, role, formula))
    }

    fn region(&mut self, of: &str, row: Row<'_>) -> CfgMember {
        let (what, bytes, writer, reader, formula) = row;
        let offset = self.bytes;
        if bytes > 0 {
            self.regions.push(Region {
                name: format!("{of}.{what}"),
                offset,
                bytes,
                writer: writer.to_string(),
                reader: reader.to_string(),
                formula,
            });
        }
        self.bytes = align(offset + bytes, LINE_BYTES);
        CfgMember { name: constant(what), value: offset, kind: CfgKind::Offset }
    }
}

fn words(extent: &Extent<'_>, copies: i64, bytes: i64) -> String {
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
        ("tail", each * 4, sender, receiver, words(&near, 1, 4)),
        ("header", 2 * each * header, sender, receiver, words(&near, 2, header)),
        ("taken", 2 * all * 4, receiver, receiver, words(extent, 2, 4)),
        ("head", each * 4, receiver, sender, words(&near, 1, 4)),
        ("retired", each * 4, receiver, sender, words(&near, 1, 4)),
        ("sent", 2 * all * 4, sender, sender, words(extent, 2, 4)),
    ];
    if extent.net.is_some_and(|net| net.readers > 1) {
        // A word for each chunk that readers may know of at once, and one for the end of the stripe.
        let chunks = depth / chunk.max(1) + 2;
        let formula = format!("{} x {chunks} x 4", places_of(extent, extent.peers));
        rows.push(("passed", all * chunks * 4, receiver, receiver, formula));
    }
    rows
}

/// The slots of a channel, and the words beside them.
fn slot_words<'a>(extent: &Extent<'_>, sender: &'a str, receiver: &'a str) -> Vec<Row<'a>> {
    let Some(slots) = extent.slots else { return Vec::new() };
    let SlotExtent { arrival, epochs, arrivals, shared, .. } = slots;
    let (bytes, peers, flags) = (extent.message.slot_bytes, extent.peers, extent.flags);
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
                let each = if flags == 1 { "8".to_string() } else { format!("{flags} x 8") };
                let formula = format!("{epochs} epochs x {keys} slots x {each}");
                rows.push(("flags", epochs * keys * flags * 8, sender, receiver, formula));
            }
            let closed = format!("{epochs} epochs x {near} peers x {shared} x 8");
            rows.push(("closed", epochs * near * shared * 8, sender, receiver, closed));
        }
    }
    rows.push(("released", near * 4, receiver, sender, word));
    if arrival != Arrival::Signals {
        let taken = format!("{peers} peers x {shared} x 4");
        rows.push(("taken", peers * shared * 4, sender, sender, taken));
        rows.push(("closers", 4, sender, sender, "1 word x 4".to_string()));
        if extent.net.is_some() {
            let (far, formula) = (peers - near, format!("{} peers x 4", peers - near));
            rows.push(("closed_told", far * 4, sender, sender, formula.clone()));
            rows.push(("released_told", far * 4, receiver, receiver, formula));
        }
    }
    rows.push(("readers", 4, receiver, receiver, "1 word x 4".to_string()));
    rows
}

/// Calls whose slots are kept apart: with two, a rank that is a call ahead meets no reader. A power of
/// two, so that the slots of a call follow from its number when that wraps.
fn slot_epochs(channel: &Channel, numbers: &Numbers) -> i64 {
    let epochs = option(channel, "epochs", numbers).unwrap_or(2).max(2);
    u32::try_from(epochs).ok().and_then(u32::checked_next_power_of_two).map_or(epochs, i64::from)
}

/// A number that the channel's declaration gives.
pub(super) fn option(channel: &Channel, name: &str, numbers: &Numbers) -> Option<i64> {
    let option = channel.options.iter().find(|option| option.name == name)?;
    eval(&option.value, numbers)
}

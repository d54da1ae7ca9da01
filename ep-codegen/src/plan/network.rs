//! What the channels of a plan take of a network: rows and numbers at the same place on every rank, and
//! counters of each source. `net_rings.cuh`, `net_slots.cuh` and `net_slot_rows.cuh` of the device library say what lies
//! there.

use super::window::{Extent, SlotExtent, option};
use super::{CfgKind, CfgMember, Numbers, Region, constant};
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::slots::Arrival;
use crate::ir::{Channel, PeerSet};

/// Counters of a stripe: tail, head, retired, announced.
const RING_COUNTERS: i64 = 4;
/// Counters of slots: what has come or was closed, and what was read.
const SLOT_COUNTERS: i64 = 2;

/// Who of the peers of a channel is reached without a network, and how many warps read a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NetExtent {
    /// Ranks of a node.
    pub(super) node_ranks: i64,
    /// Peers in a row that reach each other's windows.
    pub(super) near: i64,
    /// Warps that read every message.
    pub(super) readers: i64,
    /// Whether the kernel speaks to the network card itself.
    pub(super) ibgda: bool,
}

impl NetExtent {
    /// Of the peers of `channel`, those of a node are near; of a rail, each is on a node of its own.
    pub(super) fn of(channel: &Channel, node_ranks: i64, readers: i64, ibgda: bool) -> NetExtent {
        let near = if channel.per == PeerSet::Rail { 1 } else { node_ranks };
        NetExtent { node_ranks, near: near.max(1), readers: readers.max(1), ibgda }
    }
}

/// Regions of all channels so far.
#[derive(Default)]
pub(super) struct NetworkLayout {
    pub(super) regions: Vec<Region>,
    pub(super) bytes: i64,
    pub(super) counters: i64,
}

impl NetworkLayout {
    /// Lays out what a channel puts and signals; gives the members of its Cfg struct that say where. Where
    /// all peers are near, there is nothing at these places.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        extent: &Extent<'_>,
        numbers: &Numbers,
    ) -> Vec<CfgMember> {
        let Some(net) = extent.net else { return Vec::new() };
        let far = extent.peers - net.near;
        let (counters, blocks) = match &extent.slots {
            Some(slots) => (SLOT_COUNTERS, slot_blocks(slots, extent, far)),
            None => (RING_COUNTERS * extent.stripes, ring_blocks(channel, extent, far, numbers)),
        };
        let (sender, receiver) = (channel.from.join(", "), channel.to.as_str());
        let mut members = Vec::new();
        for [inbox, outbox] in blocks {
            for (block, reader) in [(inbox, receiver), (outbox, sender.as_str())] {
                members.push(self.region(channel, block, (&sender, reader)));
            }
        }
        let value = self.counters;
        members.push(CfgMember { name: constant("counters"), value, kind: CfgKind::Int });
        if far > 0 {
            self.counters = self.counters.saturating_add(counters);
        }
        members
    }

    fn region(
        &mut self,
        channel: &Channel,
        (what, bytes, formula): Block,
        (writer, reader): (&str, &str),
    ) -> CfgMember {
        let offset = self.bytes;
        if bytes > 0 {
            self.regions.push(Region {
                name: format!("{}.{what}", channel.name),
                offset,
                bytes,
                writer: writer.to_string(),
                reader: reader.to_string(),
                formula,
            });
        }
        self.bytes = align(offset.saturating_add(bytes), LINE_BYTES);
        CfgMember { name: constant(what), value: offset, kind: CfgKind::Offset }
    }
}

/// The name of a region, its bytes and what they are made of.
type Block = (&'static str, i64, String);

/// An inbox and an outbox of equal size.
fn alike([what, other]: [&'static str; 2], bytes: i64, formula: String) -> [Block; 2] {
    [(what, bytes, formula.clone()), (other, bytes, formula)]
}

/// Slots, and counts behind them where senders count.
fn slot_blocks(slots: &SlotExtent, extent: &Extent<'_>, far: i64) -> Vec<[Block; 2]> {
    let (SlotExtent { epochs, shared, .. }, slot_bytes) = (*slots, extent.message.slot_bytes);
    let boxes = ["inbox", "outbox"];
    let all = format!("{epochs} epochs x {far} peers");
    if slots.arrival == Arrival::Signals {
        let bytes = epochs.saturating_mul(far).saturating_mul(slot_bytes);
        return vec![alike(boxes, bytes, format!("{all} x {slot_bytes}"))];
    }
    let (each, bytes) = (slots.of_source(extent.peers), slots.far_bytes(slot_bytes));
    let total = epochs.saturating_mul(far).saturating_mul(each).saturating_mul(bytes);
    let mut by_peers = alike(boxes, total, format!("{all} x {each} slots x {bytes}"));
    if slots.once > 0 {
        let (once, [_, outbox]) = (slots.once, &mut by_peers);
        outbox.1 = epochs.saturating_mul(once).saturating_mul(bytes);
        outbox.2 = format!("{epochs} epochs x {once} messages x {bytes}");
    }
    let mut blocks = vec![by_peers];
    if slots.arrival == Arrival::Counts {
        let names = ["counts_in", "counts_out"];
        blocks.push(alike(names, epochs * far * shared * 4, format!("{all} x {shared} x 4")));
    }
    blocks
}

/// Slots, and the numbers that are announced.
fn ring_blocks(
    channel: &Channel,
    extent: &Extent<'_>,
    far: i64,
    numbers: &Numbers,
) -> Vec<[Block; 2]> {
    let (stripes, slot) = (extent.stripes, extent.message.slot_bytes);
    let depth = option(channel, "depth", numbers).unwrap_or(2);
    let total = stripes.saturating_mul(depth).saturating_mul(far).saturating_mul(slot);
    let formula = format!("{stripes} stripes x {far} peers x {depth} slots x {slot}");
    let mut blocks = vec![alike(["inbox", "outbox"], total, formula)];
    let words = channel.header.len() as i64;
    if words > 0 {
        let formula = format!("2 calls x {stripes} stripes x {far} peers x {words} x 8");
        let bytes = 16 * stripes * far * words;
        blocks.push(alike(["headers_in", "headers_out"], bytes, formula));
    }
    blocks
}

//! What the channels of a plan take of a network: rows and numbers at the same place on every rank, and
//! counters of each source. `net_rings.cuh` and `net_slots.cuh` of the device library say what lies there.

use super::window::{Extent, option};
use super::{CfgKind, CfgMember, Numbers, Region, constant};
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::{Channel, PeerSet};

/// Counters of a stripe: tail, head, retired, announced.
const RING_COUNTERS: i64 = 4;
/// Counters of slots: what has come, and what was read.
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
}

impl NetExtent {
    /// Of the peers of `channel`, those of a node are near; of a rail, each is on a node of its own.
    pub(super) fn of(channel: &Channel, node_ranks: i64, readers: i64) -> NetExtent {
        let near = if channel.per == PeerSet::Rail { 1 } else { node_ranks };
        NetExtent { node_ranks, near: near.max(1), readers: readers.max(1) }
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
    /// Lays out what a channel puts and signals; gives the members of its Cfg struct that say where.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        extent: &Extent<'_>,
        numbers: &Numbers,
    ) -> Vec<CfgMember> {
        let Some(net) = extent.net else { return Vec::new() };
        let (stripes, far, slot) =
            (extent.stripes, extent.peers - net.near, extent.message.slot_bytes);
        let words = channel.header.len() as i64;
        let (counters, each, slots) = match &extent.slots {
            Some(slots) => {
                let formula = format!("{} epochs x {far} peers x {slot}", slots.epochs);
                (SLOT_COUNTERS, slots.epochs, formula)
            }
            None => {
                let depth = option(channel, "depth", numbers).unwrap_or(2);
                let formula = format!("{stripes} stripes x {far} peers x {depth} slots x {slot}");
                (RING_COUNTERS * stripes, stripes.saturating_mul(depth), formula)
            }
        };
        let slot_bytes = each.saturating_mul(far).saturating_mul(slot);
        let headers = format!("2 calls x {stripes} stripes x {far} peers x {words} x 8");
        let header_bytes = 16 * stripes * far * words;
        let (sender, receiver) = (channel.from.join(", "), channel.to.clone());
        let mut members = Vec::new();
        for (what, bytes, formula, reader) in [
            ("inbox", slot_bytes, &slots, &receiver),
            ("outbox", slot_bytes, &slots, &sender),
            ("headers_in", header_bytes, &headers, &receiver),
            ("headers_out", header_bytes, &headers, &sender),
        ] {
            if words == 0 && what.starts_with("headers") {
                continue;
            }
            members.push(self.region(channel, (what, bytes, formula), (&sender, reader)));
        }
        let value = self.counters;
        members.push(CfgMember { name: constant("counters"), value, kind: CfgKind::Int });
        self.counters = self.counters.saturating_add(counters);
        members
    }

    fn region(
        &mut self,
        channel: &Channel,
        (what, bytes, formula): (&str, i64, &str),
        (writer, reader): (&str, &str),
    ) -> CfgMember {
        let offset = self.bytes;
        self.regions.push(Region {
            name: format!("{}.{what}", channel.name),
            offset,
            bytes,
            writer: writer.to_string(),
            reader: reader.to_string(),
            formula: formula.to_string(),
        });
        self.bytes = align(offset.saturating_add(bytes), LINE_BYTES);
        CfgMember { name: constant(what), value: offset, kind: CfgKind::Offset }
    }
}

//! The control memory of a plan: the words and slots of its channels and the sums of its counters, at
//! the same place of every rank's window.

use super::counted::Counters;
use super::message::MessageLayout;
use super::numbers::Numbers;
use super::{CfgKind, CfgMember, Region, constant};
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::{Channel, ChannelKind};
use crate::plan::eval;

/// Regions of all channels so far.
#[derive(Default)]
pub(super) struct Window {
    pub(super) regions: Vec<Region>,
    pub(super) bytes: i64,
}

/// How many peers and stripes a channel has, and what one of its messages takes.
pub(super) struct Extent<'a> {
    pub(super) peers: i64,
    pub(super) stripes: i64,
    /// Roles of the pipeline.
    pub(super) roles: i64,
    pub(super) message: &'a MessageLayout,
    /// Whether its messages are words that carry their epoch.
    pub(super) in_words: bool,
}

impl Window {
    /// Lays out the words of `channel`; gives the members of its Cfg struct that say where.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        extent: &Extent<'_>,
        numbers: &Numbers,
    ) -> Vec<CfgMember> {
        let each = extent.peers * extent.stripes;
        let (sender, receiver) = (channel.from.join(", "), channel.to.as_str());
        let sender = sender.as_str();
        let option = |name: &str, default| option(channel, name, numbers).unwrap_or(default);
        let depth = option("depth", 2);
        let slot = extent.message.slot_bytes;
        let header = 8 * channel.header.len() as i64;
        let peers = extent.peers;
        // A word for each role that may send, and every 32 peers.
        let claims = extent.roles * ((peers + 31) / 32);
        let places = places(channel, numbers).unwrap_or(peers);
        let rows: Vec<(&str, i64, &str, &str, String)> = match channel.kind {
            ChannelKind::Ring => vec![
                (
                    "slots",
                    each * depth * slot,
                    sender,
                    receiver,
                    format!("{} stripes x {peers} peers x {depth} slots x {slot}", extent.stripes),
                ),
                ("tail", each * 4, sender, receiver, words(extent, 1, 4)),
                ("header", 2 * each * header, sender, receiver, words(extent, 2, header)),
                ("taken", 2 * each * 4, receiver, receiver, words(extent, 2, 4)),
                ("head", each * 4, receiver, sender, words(extent, 1, 4)),
                ("retired", each * 4, receiver, sender, words(extent, 1, 4)),
                ("sent", 2 * each * 4, sender, sender, words(extent, 2, 4)),
            ],
            ChannelKind::Direct => vec![
                ("ready", peers * 32, receiver, sender, format!("{peers} peers x 32")),
                ("closed", each * 16, sender, receiver, words(extent, 1, 16)),
                ("stored", each * 8, sender, sender, words(extent, 1, 8)),
                ("claims", 2 * claims * 4, sender, sender, format!("2 calls x {claims} words x 4")),
            ],
            ChannelKind::Slots => {
                let each = slot_epochs(channel, numbers);
                let bytes = each * places * slot;
                let formula = format!("{each} epochs x {places} slots x {slot}");
                let slots = ("slots", bytes, sender, receiver, formula);
                let words = |bytes| format!("{each} epochs x {peers} peers x {bytes}");
                // Words that carry their epoch need neither.
                let told = [
                    ("flags", each * peers * 8, sender, receiver, words(8)),
                    ("acks", each * peers * 4, receiver, sender, words(4)),
                ];
                let told = told.into_iter().filter(|_| !extent.in_words);
                std::iter::once(slots).chain(told).collect()
            }
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

    fn region(&mut self, of: &str, row: (&str, i64, &str, &str, String)) -> CfgMember {
        let (what, bytes, writer, reader, formula) = row;
        let offset = self.bytes;
        self.regions.push(Region {
            name: format!("{of}.{what}"),
            offset,
            bytes,
            writer: writer.to_string(),
            reader: reader.to_string(),
            formula,
        });
        self.bytes = align(offset + bytes, LINE_BYTES);
        CfgMember { name: constant(what), value: offset, kind: CfgKind::Offset }
    }
}

fn words(extent: &Extent<'_>, copies: i64, bytes: i64) -> String {
    let each = format!("{} stripes x {} peers x {bytes}", extent.stripes, extent.peers);
    if copies == 1 { each } else { format!("{copies} calls x {each}") }
}

/// How many slots one call fills.
fn places(channel: &Channel, numbers: &Numbers) -> Option<i64> {
    channel.slot.iter().map(|extent| eval(extent, numbers)).product()
}

/// Calls whose slots are kept apart: with two, a rank that is a call ahead meets no reader.
pub(super) fn slot_epochs(channel: &Channel, numbers: &Numbers) -> i64 {
    option(channel, "epochs", numbers).unwrap_or(2).max(2)
}

/// A number that the channel's declaration gives.
pub(super) fn option(channel: &Channel, name: &str, numbers: &Numbers) -> Option<i64> {
    let option = channel.options.iter().find(|option| option.name == name)?;
    eval(&option.value, numbers)
}

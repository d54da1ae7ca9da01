//! The control memory of a plan: the words and slots of its channels and the sums of its counters, at
//! the same place of every rank's window.

use super::counted::Counters;
use super::message::MessageLayout;
use super::network::NetExtent;
use super::numbers::Numbers;
use super::{CfgKind, CfgMember, Region, channels, constant};
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::slots::{Arrival, arrival, counted_axis};
use crate::ir::{Channel, Pipeline};
use crate::plan::eval;

/// What a region holds, its bytes, who writes and who reads it, and what the bytes are made of.
pub(super) type Row<'a> = (&'a str, i64, &'a str, &'a str, String);

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
    /// The most warps of a rank that publish rows in one launch; 0: rows are published by stripe.
    pub(super) senders: i64,
    /// Pieces of a row that are published one by one in one launch; 0: a warp publishes all its rows at once.
    pub(super) pieces: i64,
    /// Slices of the row of a slot, each with a flag.
    pub(super) slices: i64,
    /// Rows of a rank's output in one launch.
    pub(super) rows: i64,
    /// Tokens of a rank with which its rows travel as words.
    pub(super) few: i64,
    pub(super) message: &'a MessageLayout,
    /// How its slots are told apart; none for another kind of channel.
    pub(super) slots: Option<SlotExtent>,
    /// Whether waits for sources that do not answer end.
    pub(super) skips_absent: bool,
    /// Whether a rank says that it has read its slots as it enters a call, and no warp counts who has.
    pub(super) read_on_entry: bool,
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
    /// Neighboring slots that a network carries by one put. With several indices beside the source, neighboring slots
    /// are seldom filled in one call, so each slot leaves by itself.
    pub(super) run: i64,
    /// Messages of a call that are filled once for all far peers; 0: each peer has slots of its own, which are filled one by one.
    pub(super) once: i64,
}

/// More slots in a run would leave later; fewer would cost more entries of a queue.
const RUN_SLOTS: i64 = 8;

/// The most bytes of slots that are filled for each far peer where messages could be filled once.
const OUTBOX_MOST: i64 = 256 << 20;

impl SlotExtent {
    /// The slots of `channel` between `peers`.
    pub(super) fn of(
        ir: &Pipeline,
        channel: &Channel,
        peers: i64,
        numbers: &Numbers,
    ) -> Option<SlotExtent> {
        if !channel.kind.traits().is_indexed {
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
        let in_a_row = counted.is_some() || channel.slot_names.len() == 2;
        let run = if in_a_row { RUN_SLOTS } else { 1 };
        let epochs = slot_epochs(channel, numbers);
        Some(SlotExtent {
            arrival: arrival(ir, channel),
            epochs,
            keys,
            arrivals,
            source_stride,
            shared,
            run,
            once: 0,
        })
    }

    /// The slots of a channel with so many far peers, and with so many messages in a call that have the same bytes for all
    /// receivers. Whether they `are` filled once the declaration says, unless slots for each peer take too much memory.
    pub(super) fn filled_once(
        self,
        (are, messages): (bool, i64),
        (far, peers): (i64, i64),
        slot_bytes: i64,
    ) -> SlotExtent {
        let each = self.of_source(peers).saturating_mul(self.epochs).saturating_mul(slot_bytes);
        let are = are || each.saturating_mul(far) > OUTBOX_MOST;
        if far > 0 && are { SlotExtent { run: 1, once: messages, ..self } } else { self }
    }
}

impl SlotExtent {
    /// Slots that a receiver has for each source in a call.
    pub(super) fn of_source(&self, peers: i64) -> i64 {
        (self.keys / peers.max(1)).saturating_mul(self.arrivals)
    }

    /// Groups of `run` slots in the lines of each source: arrivals of a key are a line, or else all slots of the source.
    pub(super) fn groups(&self, peers: i64) -> i64 {
        let each = self.keys / peers.max(1);
        match self.arrival {
            Arrival::Counts => each.saturating_mul((self.arrivals + self.run - 1) / self.run),
            _ => (each + self.run - 1) / self.run,
        }
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
        let sender = channel.from.join(", ");
        let rows = channels::words(channel, extent, &sender, numbers);
        rows.into_iter().map(|row| self.region(&channel.name, row)).collect()
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

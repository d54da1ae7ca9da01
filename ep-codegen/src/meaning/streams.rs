//! Where messages come from: queues and slots, each in its order.

use std::rc::Rc;

use super::channels::Lane;
use super::machine::Instance;
use super::value::{Message, form};
use super::world::World;
use super::wrong::Found;
use crate::ir::{Channel, WellKnown};

/// Messages that arrive in order.
pub(super) struct Stream {
    pub(super) key: Key,
    /// Messages taken.
    pub(super) next: usize,
    pub(super) source: i64,
    pub(super) part: i64,
}

pub(super) enum Key {
    Lane(Lane),
    /// A slot, or a row of counted ones.
    Slot(Vec<i64>),
}

/// What a stream has next.
pub(super) enum Head {
    Message(Rc<Message>),
    Later,
    Ended,
}

impl<'p> Instance<'p> {
    /// The streams that a loop over messages takes from.
    pub(super) fn streams(
        &self,
        world: &World<'p>,
        at: usize,
        channel: &Channel,
        index: &[i64],
    ) -> Found<Vec<Stream>> {
        let me = self.actor.rank;
        if channel.kind.traits().is_indexed {
            return Ok(slot_streams(world, channel, me, index));
        }
        let senders = match index.first() {
            Some(peer) => vec![world.peer(channel, me, *peer)?],
            None => world.peers(channel, me),
        };
        let parts = match (index.get(1), &channel.parts_per) {
            (Some(part), _) => vec![*part],
            (None, Some(name)) => (0..world.number(name).ok_or_else(|| form(name))?).collect(),
            (None, None) => vec![0],
        };
        let stripes = match self.actor.stripe {
            Some(stripe) => vec![stripe],
            None => (0..world.number(WellKnown::Stripes.name()).unwrap_or(1)).collect(),
        };
        let mut streams = Vec::new();
        for from in senders.into_iter().filter(|from| world.alive(*from)) {
            for stripe in &stripes {
                for part in &parts {
                    let lane = Lane { channel: at, from, to: me, stripe: *stripe, part: *part };
                    let source = world.source(channel, from);
                    streams.push(Stream { key: Key::Lane(lane), next: 0, source, part: *part });
                }
            }
        }
        Ok(streams)
    }
}

/// The streams of slots: one for each index that is given, or for all that may be filled.
fn slot_streams(world: &World<'_>, channel: &Channel, me: usize, index: &[i64]) -> Vec<Stream> {
    let place = channel.slot_names.iter().position(|name| name == "source");
    let source = |key: &[i64]| place.and_then(|place| key.get(place)).copied().unwrap_or(0);
    let counted = world.counted_axis(channel);
    let axes = channel.slot_names.len() - usize::from(counted.is_some());
    let mut keys = vec![Vec::new()];
    for axis in 0..axes {
        let values = match index.get(axis) {
            Some(value) => vec![*value],
            None if Some(axis) == place => {
                world.peers(channel, me).iter().map(|rank| world.source(channel, *rank)).collect()
            }
            None => (0..world.shape(&channel.slot[axis]).unwrap_or(0)).collect(),
        };
        keys = keys
            .iter()
            .flat_map(|key: &Vec<i64>| {
                values.iter().map(move |value| key.iter().copied().chain([*value]).collect())
            })
            .collect();
    }
    let stream =
        |key: Vec<i64>| Stream { source: source(&key), key: Key::Slot(key), next: 0, part: 0 };
    keys.into_iter().map(stream).collect()
}

/// What a stream has next.
pub(super) fn head(world: &World<'_>, at: usize, me: usize, stream: &Stream) -> Head {
    let channel = &world.ir.channels[at];
    match &stream.key {
        Key::Slot(index) => {
            if let Some(message) = world.channels.slot(at, me, index, stream.next) {
                return Head::Message(Rc::clone(message));
            }
            let counted = world.counted_axis(channel).is_some();
            let ended = match counted {
                true => world.slot_count(at, channel, me, index).is_ok(),
                false => stream.next > 0,
            };
            if ended { Head::Ended } else { Head::Later }
        }
        Key::Lane(lane) => {
            let queue = world.channels.queues.get(lane);
            let count = channel.header.iter().position(|name| name == "count");
            let header = queue.and_then(|queue| queue.header.as_ref());
            let announced = count.and_then(|place| header?.get(place).copied());
            if announced.is_some_and(|count| count <= stream.next as i64) {
                return Head::Ended;
            }
            if let Some(message) = queue.and_then(|queue| queue.messages.get(stream.next)) {
                return Head::Message(Rc::clone(message));
            }
            let ends = channel.kind.traits().ends_when_closed;
            match ends && !world.is_filling(at, lane.from, Some(lane.stripe)) {
                true => Head::Ended,
                false => Head::Later,
            }
        }
    }
}

/// Who fills a stream.
pub(super) fn sender(world: &World<'_>, at: usize, me: usize, stream: &Stream) -> Vec<usize> {
    match &stream.key {
        Key::Lane(lane) => vec![lane.from],
        Key::Slot(_) => {
            let channel = &world.ir.channels[at];
            match channel.slot_names.iter().any(|name| name == "source") {
                true => world.peer(channel, me, stream.source).into_iter().collect(),
                false => world.peers(channel, me),
            }
        }
    }
}

//! Sending: what a `push` puts where, and how a gather finds it again.

use std::rc::Rc;

use super::channels::{Lane, wait_for_room};
use super::eval::Sent;
use super::flow::there;
use super::machine::Instance;
use super::open::Touched;
use super::value::{Message, Value, form, shaped};
use super::world::World;
use super::wrong::{Fault, Found, Stop};
use crate::ir::{Action, Channel, FieldValue, Stmt};

impl<'p> World<'p> {
    /// How many messages a ring holds.
    pub(super) fn depth(&self, channel: &Channel) -> Found<usize> {
        let depth = channel.options.iter().find(|option| option.name == "depth");
        let depth = depth.map_or(Ok(i64::MAX), |option| self.shape(&option.value))?;
        Ok(usize::try_from(depth).unwrap_or(1))
    }
}

impl<'p> Instance<'p> {
    /// The queue that this instance fills at an index of a channel.
    pub(super) fn lane_to(
        &self,
        world: &World<'p>,
        at: usize,
        channel: &Channel,
        index: &[i64],
    ) -> Found<Lane> {
        let peer = index.first().copied().ok_or_else(|| form(&channel.name))?;
        let to = world.peer(channel, self.actor.rank, peer)?;
        let (from, stripe) = (self.actor.rank, self.actor.stripe.unwrap_or(0));
        let part = index.get(1).copied().unwrap_or(0);
        Ok(Lane { channel: at, from, to, stripe, part })
    }

    /// `push channel[..] at .. { .. }`
    pub(super) fn push(&mut self, world: &mut World<'p>, stmt: &'p Stmt) -> Found<()> {
        let Action::Push { channel, peer, position, values } = &stmt.action else { return Ok(()) };
        let (at, channel) = world.channel(channel)?;
        let index = match peer {
            Some(peer) => self.eval(world).axes(peer)?,
            None => Vec::new(),
        };
        let places = match position {
            Some(position) => self.eval(world).axes(position)?,
            None => Vec::new(),
        };
        if channel.kind.traits().offers {
            return self.offer(world, at, values);
        }
        let lane = self.lane_to(world, at, channel, &index)?;
        if channel.kind.traits().is_bounded
            && world.alive(lane.to)
            && !world.channels.has_room(&lane, world.depth(channel)?)
        {
            return Err(wait_for_room(&channel.name, lane.to));
        }
        // A field that must be there and is not: the statement is skipped.
        let Some(message) = there(self.message(world, channel, values))? else { return Ok(()) };
        match channel.kind.traits().is_indexed {
            true => self.fill(world, lane, channel, &index, &places, message),
            false => self.append(world, lane, channel, &index, &places, message),
        }
    }

    /// The fields of a message, as they travel.
    fn message(
        &mut self,
        world: &World<'p>,
        channel: &'p Channel,
        values: &'p [FieldValue],
    ) -> Found<Message> {
        let declared = world.ir.messages.iter().find(|message| message.name == channel.message);
        let declared = declared.ok_or_else(|| form(&channel.message))?;
        let mut fields = Vec::new();
        for field in &declared.fields {
            let given = values.iter().find(|value| value.name == field.name);
            let mut eval = self.eval(world);
            let value = match given.map(|given| eval.expr(&given.value)) {
                Some(Ok(value)) => value,
                Some(Err(Stop::Absent))
                    if field.optional_with.is_some()
                        && given.is_some_and(|given| !eval.takes_part(&given.value)) =>
                {
                    fields.push((field.name.clone(), None, Touched::Nothing));
                    continue;
                }
                Some(Err(stop)) => return Err(stop),
                None => return Err(form(&field.name)),
            };
            let touched = eval.touched;
            let extents: Found<Vec<usize>> = field
                .dims
                .iter()
                .map(|dim| Ok(usize::try_from(world.shape(dim)?).unwrap_or(0)))
                .collect();
            let parts = world.parts(&field.elem);
            let value = shaped(&field.name, &[], &extents?, &parts, &value)?;
            fields.push((field.name.clone(), Some(Value::of(value)), touched));
        }
        Ok(Message { fields, position: 0, touched: Touched::Nothing })
    }

    /// Sends through a ring, or to a row of the receiver.
    fn append(
        &mut self,
        world: &mut World<'p>,
        lane: Lane,
        channel: &Channel,
        index: &[i64],
        places: &[i64],
        mut message: Message,
    ) -> Found<()> {
        let lands = channel.kind.traits().lands;
        let (source, passes_open) = self.passing(world);
        let mixed = world.channels.mixes(lane, source, lands);
        let open = world.open.contains(&lane.channel);
        if (passes_open || mixed) && !open {
            return Err(Stop::Open(lane.channel));
        }
        let name = channel.name.clone();
        let sent = self.actor.sent.entry((lane.channel, index.to_vec())).or_default();
        let base = places.first().copied().unwrap_or(0);
        if lands && sent.count > 0 && sent.base != base {
            return Err(Fault::MovedPosition { channel: name, first: sent.base, now: base }.into());
        }
        let count = match lands {
            true => sent.count,
            false => world.channels.pushed(&lane) as i64,
        };
        sent.base = base;
        sent.count = count + 1;
        sent.position = base + count;
        message.position = sent.position;
        sent.touched = Touched::Nothing;
        // What is sent to a rank that takes no part is gone.
        if world.alive(lane.to) {
            world.count_moved(lane.channel, lane.from, lane.to);
            let touched = world.channels.push(lane, channel, open, message)?;
            self.actor.sent.entry((lane.channel, index.to_vec())).or_default().touched = touched;
            let readers = world.readers(&lane);
            if let Some(queue) = world.channels.queues.get_mut(&lane) {
                queue.readers = readers;
            }
        }
        Ok(())
    }

    /// Puts a message into a slot of the receiver.
    fn fill(
        &mut self,
        world: &mut World<'p>,
        lane: Lane,
        channel: &'p Channel,
        index: &[i64],
        places: &[i64],
        message: Message,
    ) -> Found<()> {
        if world.channels.closed.contains_key(&(lane.channel, lane.from))
            && world.is_closed(lane.channel, lane.from)
        {
            return Err(Fault::AfterClose { channel: channel.name.clone() }.into());
        }
        let counted = world.counted_axis(channel);
        let source = world.source(channel, lane.from);
        let key = slot_key(world, channel, counted, source, places)?;
        let extent = counted.map(|axis| world.shape(&channel.slot[axis])).transpose()?;
        let mut sent = Sent { base: 0, count: 0, position: 0, touched: Touched::Nothing };
        if world.alive(lane.to) {
            world.count_moved(lane.channel, lane.from, lane.to);
            let to = (lane.channel, lane.to, channel.name.as_str());
            (sent.position, sent.touched) = world.channels.fill(to, key, extent, message)?;
        }
        self.actor.sent.insert((lane.channel, index.to_vec()), sent);
        Ok(())
    }

    /// Offers whole tensors to whoever pulls.
    fn offer(&mut self, world: &mut World<'p>, at: usize, values: &'p [FieldValue]) -> Found<()> {
        let mut fields = Vec::new();
        for given in values {
            let value = there(self.eval(world).expr(&given.value))?;
            fields.push((given.name.clone(), value, Touched::Nothing));
        }
        let message = Message { fields, position: 0, touched: Touched::Nothing };
        world.channels.offered.insert((at, self.actor.rank), Rc::new(message));
        Ok(())
    }

    /// Where a condition says no to a push, its position is `-1 - next`.
    pub(super) fn skip_push(&mut self, world: &World<'p>, stmt: &'p Stmt) -> Found<()> {
        let Action::Push { channel, peer: Some(peer), position, .. } = &stmt.action else {
            return Ok(());
        };
        let (at, channel) = world.channel(channel)?;
        let index = self.eval(world).axes(peer)?;
        let kind = channel.kind.traits();
        if kind.is_indexed || kind.offers {
            return Ok(());
        }
        let next = match kind.lands {
            true => {
                let first = position.as_ref();
                let first = first.map_or(Ok(0), |first| self.eval(world).whole(first))?;
                first + self.actor.sent.get(&(at, index.clone())).map_or(0, |sent| sent.count)
            }
            false => {
                let lane = self.lane_to(world, at, channel, &index)?;
                world.channels.pushed(&lane) as i64
            }
        };
        let open = world.open.contains(&at);
        let sent = self.actor.sent.entry((at, index)).or_default();
        sent.position = -1 - next;
        sent.touched = if open { Touched::Many } else { Touched::Nothing };
        Ok(())
    }
}

/// The indices of a slot but for its counted one: `source`, and in order the values that are given.
pub(super) fn slot_key(
    world: &World<'_>,
    channel: &Channel,
    counted: Option<usize>,
    source: i64,
    places: &[i64],
) -> Found<Vec<i64>> {
    let mut given = places.iter();
    let mut key = Vec::new();
    for (axis, name) in channel.slot_names.iter().enumerate() {
        if Some(axis) == counted {
            continue;
        }
        let index = match name.as_str() {
            "source" => source,
            _ => *given.next().ok_or_else(|| form(&channel.name))?,
        };
        let extent = world.shape(&channel.slot[axis])?;
        if !(0..extent).contains(&index) {
            let of = channel.name.clone();
            return Err(Fault::Index { of, axis, index, extent }.into());
        }
        key.push(index);
    }
    Ok(key)
}

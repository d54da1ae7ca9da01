//! The parts of a token, from several peers.

use std::rc::Rc;

use super::channels::{Lane, wait};
use super::eval::Bound;
use super::flow::there;
use super::machine::Instance;
use super::open::Touched;
use super::push::slot_key;
use super::value::{Message, Value};
use super::world::World;
use super::wrong::{Fault, Found};
use crate::ir::{Action, Channel, Stmt};

impl<'p> Instance<'p> {
    /// Brings the parts of a token together.
    pub(super) fn gather_turn(
        &mut self,
        world: &mut World<'p>,
        stmt: &'p Stmt,
        value: i64,
    ) -> Found<()> {
        let Action::Gather { binder, part, channel, peer, position, across, over, .. } =
            &stmt.action
        else {
            return Ok(());
        };
        let (at, channel) = world.channel(channel)?;
        self.bind(binder, Bound::Value(Value::int(value), Touched::Nothing));
        let axis = self.eval(world).domain(over)?;
        let mut places = Vec::new();
        for number in axis {
            let place = self.eval(world).with(across, number, |inner| {
                let index = peer.as_ref().map_or(Ok(Vec::new()), |peer| inner.axes(peer))?;
                // A rank that is none has no slots, whose names may count on it.
                let nobody = channel.kind.traits().is_indexed && index.iter().any(|at| *at < 0);
                let position = if nobody { vec![-1] } else { inner.axes(position)? };
                Ok((index, position))
            });
            if let Some((index, position)) = there(place)? {
                places.push((number, index, position));
            }
        }
        // What is known to be absent is given back before anything is waited for.
        for (_, index, position) in &places {
            self.give_back(world, at, channel, index, position)?;
        }
        let mut parts = Vec::new();
        for (number, index, position) in &places {
            if let Some(message) = self.part(world, at, channel, index, position)? {
                parts.push((*number, message));
            }
        }
        if channel.kind.traits().offers {
            let numbers = |number: &i64| parts.iter().any(|(part, _)| part == number);
            for (_, index, _) in places.iter().filter(|(number, ..)| numbers(number)) {
                let peer = index.first().copied().unwrap_or(-1);
                let from = world.peer(channel, self.actor.rank, peer)?;
                world.count_moved(at, from, self.actor.rank);
            }
        }
        for (_, index, position) in &places {
            let beyond: Vec<i64> = position.iter().map(|at| at + i64::from(*at >= 0)).collect();
            self.give_back(world, at, channel, index, &beyond)?;
        }
        let first = parts.first().map_or(0, |(number, _)| *number);
        self.bind(across, Bound::Value(Value::int(first), Touched::Nothing));
        let (channel, axis) = (channel.name.clone(), across.clone());
        self.bind(part, Bound::Gathered { channel, axis, parts });
        Ok(())
    }

    /// A gather from a channel that keeps an order is through with all before a position.
    fn give_back(
        &self,
        world: &mut World<'p>,
        at: usize,
        channel: &Channel,
        index: &[i64],
        position: &[i64],
    ) -> Found<()> {
        let (true, [position]) = (channel.kind.traits().in_order, position) else { return Ok(()) };
        let from = world.peer(channel, self.actor.rank, index.first().copied().unwrap_or(-1))?;
        let stripe = self.actor.stripe.unwrap_or(0);
        let part = index.get(1).copied().unwrap_or(0);
        let lane = Lane { channel: at, from, to: self.actor.rank, stripe, part };
        let next = if *position < 0 { -1 - position } else { *position };
        let queue = world.channels.queues.entry(lane).or_default();
        let taken = queue.taken.entry(self.actor.hand.id).or_insert(0);
        if *position >= 0 && next < *taken as i64 {
            let (channel, next) = (channel.name.clone(), *taken as i64);
            return Err(
                super::wrong::Fault::OutOfOrder { channel, position: *position, next }.into()
            );
        }
        *taken = (*taken).max(usize::try_from(next).unwrap_or(0));
        Ok(())
    }

    /// A part of a gather, once it is there; `None` if there is none.
    pub(super) fn part(
        &self,
        world: &World<'p>,
        at: usize,
        channel: &'p Channel,
        index: &[i64],
        places: &[i64],
    ) -> Found<Option<Rc<Message>>> {
        if places.iter().any(|place| *place < 0) {
            return Ok(None);
        }
        let me = self.actor.rank;
        if channel.kind.traits().is_indexed {
            return gathered_slot(world, at, channel, me, index, places);
        }
        let from = world.peer(channel, me, index.first().copied().unwrap_or(-1))?;
        if !world.alive(from) {
            return Ok(None);
        }
        let place = usize::try_from(places.first().copied().unwrap_or(0)).unwrap_or(0);
        if channel.kind.traits().offers {
            let offered = world.channels.offered.get(&(at, from));
            let offered = offered.ok_or_else(|| wait(&channel.name, "rows", &[from]))?;
            return pulled(&channel.name, offered, place).map(Some);
        }
        let stripe = self.actor.stripe.unwrap_or(0);
        let part = index.get(1).copied().unwrap_or(0);
        let lane = Lane { channel: at, from, to: me, stripe, part };
        let queue = world.channels.queues.get(&lane);
        match queue.and_then(|queue| queue.messages.get(place)) {
            Some(message) => Ok(Some(Rc::clone(message))),
            None => Err(wait(&channel.name, &format!("message {place}"), &[from])),
        }
    }
}

/// The message of a slot that a gather names.
fn gathered_slot(
    world: &World<'_>,
    at: usize,
    channel: &Channel,
    me: usize,
    index: &[i64],
    places: &[i64],
) -> Found<Option<Rc<Message>>> {
    let named = channel.slot_names.iter().any(|name| name == "source");
    let source = index.first().copied().unwrap_or(0);
    let key = slot_key(world, channel, None, source, places)?;
    if let Some(message) = world.channels.slot(at, me, &key, 0) {
        return Ok(Some(Rc::clone(message)));
    }
    let senders = match named {
        true => vec![world.peer(channel, me, source)?],
        false => world.peers(channel, me),
    };
    let everyone = (0..world.problem.ranks.len()).all(|rank| world.alive(rank));
    let may_come = senders.iter().any(|rank| world.is_filling(at, *rank, None));
    if !everyone && !may_come {
        return Ok(None);
    }
    Err(wait(&channel.name, &format!("the slot {key:?}"), &senders))
}

/// One row of what a rank offers.
fn pulled(channel: &str, offered: &Message, row: usize) -> Found<Rc<Message>> {
    let mut fields = Vec::new();
    for (name, value, touched) in &offered.fields {
        let value = match value {
            None => None,
            Some(value) => {
                let whole = value.row(channel)?;
                let rows = whole.extents.first().copied().unwrap_or(0);
                if row >= rows {
                    let (of, index, extent) =
                        (format!("{channel}.{name}"), row as i64, rows as i64);
                    return Err(Fault::Index { of, axis: 0, index, extent }.into());
                }
                let inner: usize = whole.extents[1..].iter().product();
                Some(Value::of(whole.under(1, row * inner)))
            }
        };
        fields.push((name.clone(), value, *touched));
    }
    Ok(Rc::new(Message { fields, position: row as i64, touched: Touched::Nothing }))
}

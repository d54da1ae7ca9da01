//! Messages on their way, of all ranks: rings with headers and credits, slots, direct rows, and what
//! is offered to be pulled.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::open::{Ordinal, Touched};
use super::value::Message;
use super::wrong::{Awaited, Fault, Found, Stop};
use crate::ir::Channel;

/// One ring, or the direct rows of one sender: (channel, sender, receiver, stripe, part).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) channel: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) stripe: i64,
    pub(super) part: i64,
}

/// The messages of a [`Lane`], in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The announced numbers, in order of the channel's header.
    pub(super) header: Option<Vec<i64>>,
    pub(super) messages: Vec<Rc<Message>>,
    /// How many each reader has taken, by instance; every reader sees every message.
    pub(super) taken: BTreeMap<u32, usize>,
    /// Instances that read it.
    pub(super) readers: usize,
    /// Who has pushed, and what it was passing on, while that was always the same.
    by: Option<Source>,
    group: Option<usize>,
}

/// Who pushes: an instance, and the peer and part whose message it is passing on, if it takes those
/// of several as they come.
pub(super) type Source = (u32, Option<(i64, i64)>);

impl Queue {
    /// Messages that all readers have taken.
    pub(super) fn least_taken(&self) -> usize {
        if self.taken.len() < self.readers.max(1) {
            return 0;
        }
        self.taken.values().copied().min().unwrap_or(0)
    }
}

/// The slots of a receiver that one message each goes to, or a row of counted ones.
#[derive(Debug, Default)]
struct Slot {
    messages: Vec<Rc<Message>>,
    group: Option<usize>,
}

/// Everything that is on its way.
#[derive(Debug, Default)]
pub(super) struct Channels {
    pub(super) queues: BTreeMap<Lane, Queue>,
    /// By channel, receiver and the indices that are not counted.
    slots: BTreeMap<(usize, usize, Vec<i64>), Slot>,
    /// Instances of a sender that have closed a channel.
    pub(super) closed: BTreeMap<(usize, usize), usize>,
    /// What a rank offers through a `pull` channel.
    pub(super) offered: BTreeMap<(usize, usize), Rc<Message>>,
    groups: usize,
}

impl Channels {
    /// The next member of a group, which begins with its first one.
    fn ordinal(groups: &mut usize, group: &mut Option<usize>, at: usize) -> Touched {
        let group = *group.get_or_insert_with(|| {
            *groups += 1;
            *groups - 1
        });
        Touched::One(Ordinal { group, at })
    }

    /// How many messages a queue holds.
    pub(super) fn pushed(&self, lane: &Lane) -> usize {
        self.queues.get(lane).map_or(0, |queue| queue.messages.len())
    }

    /// The header of a ring.
    pub(super) fn announce(&mut self, lane: Lane, name: &str, header: Vec<i64>) -> Found<()> {
        let queue = self.queues.entry(lane).or_default();
        if queue.header.is_some() {
            let (channel, to, stripe) = (name.to_string(), lane.to, lane.stripe);
            return Err(Fault::AnnouncedTwice { channel, to, stripe }.into());
        }
        queue.header = Some(header);
        Ok(())
    }

    /// Whether a ring has room for one more message.
    pub(super) fn has_room(&self, lane: &Lane, depth: usize) -> bool {
        let Some(queue) = self.queues.get(lane) else { return true };
        queue.messages.len() - queue.least_taken().min(queue.messages.len()) < depth.max(1)
    }

    /// Whether a push by `source` gives the messages of a queue an order that nothing fixes.
    /// Direct rows have places of their own, whichever instance sends them.
    pub(super) fn mixes(&mut self, lane: Lane, source: Source, is_direct: bool) -> bool {
        let queue = self.queues.entry(lane).or_default();
        let by = *queue.by.get_or_insert(source);
        if is_direct { by.0 == source.0 && by != source } else { by != source }
    }

    /// Appends a message to a ring or to direct rows; `open`: in whatever order they come.
    pub(super) fn push(
        &mut self,
        lane: Lane,
        channel: &Channel,
        open: bool,
        mut message: Message,
    ) -> Found<Touched> {
        let queue = self.queues.entry(lane).or_default();
        let at = queue.messages.len();
        if open {
            message.touched = Channels::ordinal(&mut self.groups, &mut queue.group, at);
        }
        let touched = message.touched;
        queue.messages.push(Rc::new(message));
        let announced = channel.header.iter().position(|name| name == "count");
        if let (Some(place), Some(header)) = (announced, &queue.header)
            && header.get(place).is_some_and(|count| *count <= at as i64)
        {
            let announced = header[place];
            return Err(surplus(&lane, &channel.name, announced, at as i64 + 1).into());
        }
        Ok(touched)
    }

    /// Puts a message into a slot, or into the next of `extent` counted ones; gives its number.
    pub(super) fn fill(
        &mut self,
        (channel, to, name): (usize, usize, &str),
        index: Vec<i64>,
        counted: Option<i64>,
        mut message: Message,
    ) -> Found<(i64, Touched)> {
        let slot = self.slots.entry((channel, to, index.clone())).or_default();
        let at = slot.messages.len();
        let name = || name.to_string();
        match counted {
            None if at > 0 => return Err(Fault::SlotTwice { channel: name(), index }.into()),
            Some(extent) if at as i64 >= extent => {
                return Err(Fault::SlotsFull { channel: name(), index, extent }.into());
            }
            Some(_) => {
                message.touched = Channels::ordinal(&mut self.groups, &mut slot.group, at);
                message.position = at as i64;
            }
            None => {}
        }
        let touched = message.touched;
        slot.messages.push(Rc::new(message));
        Ok((at as i64, touched))
    }

    /// Message `at` of a slot.
    pub(super) fn slot(
        &self,
        channel: usize,
        to: usize,
        index: &[i64],
        at: usize,
    ) -> Option<&Rc<Message>> {
        self.slots.get(&(channel, to, index.to_vec()))?.messages.get(at)
    }

    /// How many messages a slot holds.
    pub(super) fn filled(&self, channel: usize, to: usize, index: &[i64]) -> usize {
        self.slots.get(&(channel, to, index.to_vec())).map_or(0, |slot| slot.messages.len())
    }

    /// What is left when all roles are done: fewer messages than announced, or some not taken.
    pub(super) fn check_empty(&self, channels: &[Channel]) -> Result<(), Fault> {
        for (lane, queue) in &self.queues {
            let channel = &channels[lane.channel];
            let (pushed, taken) = (queue.messages.len(), queue.least_taken());
            let place = channel.header.iter().position(|name| name == "count");
            if let (Some(place), Some(header)) = (place, &queue.header)
                && header.get(place).is_some_and(|count| *count != pushed as i64)
            {
                return Err(surplus(lane, &channel.name, header[place], pushed as i64));
            }
            if taken < pushed {
                return Err(Fault::NotTaken {
                    channel: channel.name.clone(),
                    from: lane.from,
                    to: lane.to,
                    stripe: lane.stripe,
                    pushed,
                    taken,
                });
            }
        }
        Ok(())
    }
}

fn surplus(lane: &Lane, channel: &str, announced: i64, pushed: i64) -> Fault {
    let (channel, from, to) = (channel.to_string(), lane.from, lane.to);
    Fault::Announced { channel, from, to, stripe: lane.stripe, announced, pushed }
}

/// Something has to come from `ranks` first.
pub(super) fn wait(channel: &str, what: &str, ranks: &[usize]) -> Stop {
    let (channel, what) = (channel.to_string(), what.to_string());
    Stop::Wait(Awaited { channel, what, ranks: ranks.to_vec(), for_room: false })
}

/// The receiver has to take something first.
pub(super) fn wait_for_room(channel: &str, rank: usize) -> Stop {
    let (channel, what) = (channel.to_string(), "room".to_string());
    Stop::Wait(Awaited { channel, what, ranks: vec![rank], for_room: true })
}

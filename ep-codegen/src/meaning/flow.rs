//! Loops: over numbers, over messages as they arrive, over tokens with their parts.

use std::rc::Rc;

use super::channels::{Source, wait};
use super::eval::{Arrived, Bind, Bound};
use super::machine::Instance;
use super::open::Touched;
use super::streams::{Head, Key, Stream, head, sender};
use super::value::{Message, Value, Written};
use super::world::World;
use super::wrong::{Found, Stop};
use crate::ir::{Action, Expr, Place, Stmt, walk};

/// A block of statements in progress.
pub(super) struct Frame<'p> {
    pub(super) body: &'p [Stmt],
    /// The next statement; behind the last one, the next turn begins.
    pub(super) next: usize,
    /// Names that are in scope around it.
    pub(super) binds: usize,
    /// A condition said no: only positions are recorded.
    pub(super) absent: bool,
    /// A condition further out said no to all turns: only positions are recorded.
    out: bool,
    turns: Turns<'p>,
}

/// The turns of a block.
pub(super) enum Turns<'p> {
    /// The body of a role.
    Once,
    Values {
        stmt: &'p Stmt,
        values: Vec<i64>,
        next: usize,
    },
    Messages {
        stmt: &'p Stmt,
        channel: usize,
        streams: Vec<Stream>,
        from: usize,
    },
    Gather {
        stmt: &'p Stmt,
        values: Vec<i64>,
        next: usize,
    },
}

impl<'p> Turns<'p> {
    /// The loop.
    fn stmt(&self) -> Option<&'p Stmt> {
        match self {
            Turns::Once => None,
            Turns::Values { stmt, .. }
            | Turns::Messages { stmt, .. }
            | Turns::Gather { stmt, .. } => Some(stmt),
        }
    }
}

/// Whether a field of a message says where it is rather than what it holds.
fn is_place_of_message(field: &str) -> bool {
    ["row", "index", "source", "part"].contains(&field)
}

impl<'p> Frame<'p> {
    pub(super) fn new(body: &'p [Stmt], binds: usize, turns: Turns<'p>) -> Frame<'p> {
        Frame { body, next: 0, binds, absent: false, out: false, turns }
    }

    /// A loop, before its first turn.
    fn looped(body: &'p [Stmt], binds: usize, turns: Turns<'p>, out: bool) -> Frame<'p> {
        Frame { next: body.len(), absent: out, out, ..Frame::new(body, binds, turns) }
    }

    /// What is passed on, if this loop takes from several senders as they come.
    pub(super) fn passes(&self) -> Option<(i64, i64)> {
        let Turns::Messages { streams, from, .. } = &self.turns else { return None };
        let stream = streams.get(*from).filter(|_| streams.len() > 1)?;
        Some((stream.source, stream.part))
    }

    /// The channel whose messages this loop takes.
    pub(super) fn takes(&self) -> Option<usize> {
        if let Turns::Messages { channel, .. } = &self.turns { Some(*channel) } else { None }
    }
}

impl<'p> Instance<'p> {
    /// The frame of a loop.
    pub(super) fn begin(
        &mut self,
        world: &World<'p>,
        stmt: &'p Stmt,
        out: bool,
    ) -> Found<Option<Frame<'p>>> {
        let binds = self.binds.len();
        Ok(match &stmt.action {
            Action::For { domain, body, .. } => {
                let values = match there(self.eval(world).domain(domain)) {
                    // What is left out need not make sense.
                    Err(Stop::Wrong(_)) if out => return Ok(None),
                    values => values?,
                };
                let Some(values) = values else { return Ok(None) };
                let turns = Turns::Values { stmt, values, next: 0 };
                Some(Frame::looped(body, binds, turns, out))
            }
            Action::Receive { channel, peer, body, .. } if !out => {
                let (at, channel) = world.channel(channel)?;
                let index = match peer {
                    Some(peer) => self.eval(world).axes(peer)?,
                    None => Vec::new(),
                };
                let streams = self.streams(world, at, channel, &index)?;
                let turns = Turns::Messages { stmt, channel: at, streams, from: usize::MAX };
                Some(Frame::looped(body, binds, turns, out))
            }
            Action::Gather { domain, body, .. } if !out => {
                let values = self.eval(world).domain(domain)?;
                Some(Frame::looped(body, binds, Turns::Gather { stmt, values, next: 0 }, out))
            }
            _ => None,
        })
    }

    /// Whether every message that is being taken comes by at `place`, and what it holds does not choose it.
    pub(super) fn is_in_turn(&self, place: &Place) -> bool {
        let from = self.frames.iter().rposition(|frame| frame.takes().is_some());
        let inner = from.map_or(&[][..], |from| &self.frames[from..]);
        let lets = |name: &str| {
            let bodies = inner.iter().flat_map(|frame| frame.body);
            bodies
                .into_iter()
                .any(|stmt| matches!(&stmt.action, Action::Let { name: own, .. } if own == name))
        };
        let mut in_turn = true;
        let mut see = |part: &Expr| {
            in_turn &= match part {
                Expr::Field { field, .. } => is_place_of_message(field),
                Expr::Name { name, .. } => !lets(name),
                _ => true,
            };
        };
        place.indices.iter().for_each(|index| walk::expr(index, &mut see));
        for stmt in inner.iter().filter_map(|frame| frame.turns.stmt()) {
            walk::exprs(stmt, &mut see);
        }
        in_turn
    }

    /// Begins the next turn of a frame, if it has one.
    pub(super) fn turn(&mut self, world: &mut World<'p>, frame: &mut Frame<'p>) -> Found<bool> {
        frame.absent = frame.out;
        match &mut frame.turns {
            Turns::Once => Ok(false),
            Turns::Values { stmt, values, next } => {
                while let Some(value) = values.get(*next).copied() {
                    self.binds.truncate(frame.binds);
                    let runs = self.value_turn(world, stmt, value, frame.out)?;
                    *next += 1;
                    if let Some(absent) = runs {
                        frame.absent = absent;
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Turns::Messages { stmt, channel, streams, from } => loop {
                self.binds.truncate(frame.binds);
                let runs = self.message_turn(world, stmt, *channel, streams, from)?;
                match runs {
                    None => return Ok(false),
                    Some(Some(absent)) => {
                        frame.absent = absent;
                        return Ok(true);
                    }
                    Some(None) => {}
                }
            },
            Turns::Gather { stmt, values, next } => {
                let Some(value) = values.get(*next).copied() else { return Ok(false) };
                self.gather_turn(world, stmt, value)?;
                *next += 1;
                Ok(true)
            }
        }
    }

    /// Binds one value of a loop; whether its turn is absent, or `None` if there is no turn.
    fn value_turn(
        &mut self,
        world: &World<'p>,
        stmt: &'p Stmt,
        value: i64,
        out: bool,
    ) -> Found<Option<bool>> {
        let Action::For { binder, position, filter, body, .. } = &stmt.action else {
            return Ok(None);
        };
        self.bind(binder, Bound::Value(Value::int(value), Touched::Nothing));
        if out || !self.holds(world, filter)? {
            let says = records_position(body) || self.is_open();
            return Ok((position.is_none() && says).then_some(true));
        }
        if let Some(position) = position {
            let mut eval = self.eval(world);
            let first = eval.whole(position)?;
            let touched = eval.touched;
            let turns = self.placed.entry((std::ptr::from_ref(stmt) as usize, value)).or_insert(0);
            let position = first + *turns;
            *turns += 1;
            self.binds.pop();
            self.bind(binder, Bound::Placed { value, position, touched });
        }
        Ok(Some(false))
    }

    pub(super) fn bind(&mut self, name: &'p str, bound: Bound) {
        self.binds.push(Bind { name, bound });
    }

    /// Whether a message that comes in no fixed order has arrived: then it counts where it would lie.
    fn is_open(&self) -> bool {
        self.binds.iter().any(|bind| match &bind.bound {
            Bound::Arrived(arrived) => arrived.touched != Touched::Nothing,
            _ => false,
        })
    }

    /// Whether a condition holds; where it reads what is not there, it does not.
    fn holds(&mut self, world: &World<'p>, filter: &'p Option<Expr>) -> Found<bool> {
        let Some(filter) = filter else { return Ok(true) };
        let value = there(self.eval(world).expr(filter))?;
        value.map_or(Ok(false), |value| value.truth(Written(filter)))
    }

    /// Binds the next message. `None`: there is none any more; `Some(None)`: a condition said no to it;
    /// else whether only its positions are recorded.
    fn message_turn(
        &mut self,
        world: &mut World<'p>,
        stmt: &'p Stmt,
        at: usize,
        streams: &mut [Stream],
        from: &mut usize,
    ) -> Found<Option<Option<bool>>> {
        let Action::Receive { filter, body, .. } = &stmt.action else { return Ok(None) };
        self.retire(world, streams, *from);
        let (mut later, mut full) = (Vec::new(), None);
        for step in 1..=streams.len() {
            let place = from.wrapping_add(step) % streams.len();
            let stream = &streams[place];
            let message = match head(world, at, self.actor.rank, stream) {
                Head::Message(message) => message,
                Head::Ended => continue,
                Head::Later => {
                    later.extend(sender(world, at, self.actor.rank, stream));
                    continue;
                }
            };
            let bound = self.binds.len();
            self.arrive(world, stmt, at, stream, message)?;
            let runs = self.holds(world, filter)?;
            // Of several senders, one whose message cannot be passed on yet holds up no other one.
            if runs && streams.len() > 1 && !self.finds_room(world, body)? {
                self.binds.truncate(bound);
                full = Some(place);
                continue;
            }
            streams[place].next += 1;
            *from = place;
            return Ok(Some(match (runs, records_position(body) || self.is_open()) {
                (true, _) => Some(false),
                (false, true) => Some(true),
                (false, false) => None,
            }));
        }
        let name = &world.ir.channels[at].name;
        match full {
            Some(_) => Err(super::channels::wait_for_room(name, self.actor.rank)),
            None if later.is_empty() => Ok(None),
            None => Err(wait(name, "a message", &later)),
        }
    }

    /// What has been taken makes room.
    fn retire(&self, world: &mut World<'p>, streams: &[Stream], from: usize) {
        let Some(Stream { key: Key::Lane(lane), next, .. }) = streams.get(from) else { return };
        let queue = world.channels.queues.entry(*lane).or_default();
        queue.taken.insert(self.actor.hand.id, *next);
    }

    /// Binds a message, with its position.
    fn arrive(
        &mut self,
        world: &World<'p>,
        stmt: &'p Stmt,
        channel: usize,
        stream: &Stream,
        message: Rc<Message>,
    ) -> Found<()> {
        let Action::Receive { binder, position, .. } = &stmt.action else { return Ok(()) };
        let index = stream.next as i64;
        let row = match (position, world.ir.channels[channel].kind.traits().lands) {
            (Some(_), _) => None,
            (None, true) => Some(message.position),
            (None, false) => Some(index),
        };
        let (source, part, touched) = (stream.source, stream.part, message.touched);
        let arrived = Arrived { message, row, index, source, part, touched };
        self.bind(binder, Bound::Arrived(arrived.clone()));
        if let Some(position) = position {
            let first = self.eval(world).whole(position)?;
            self.binds.pop();
            self.bind(binder, Bound::Arrived(Arrived { row: Some(first + index), ..arrived }));
        }
        Ok(())
    }

    /// Whether the channels that the statements of a block push to have room.
    fn finds_room(&mut self, world: &World<'p>, body: &'p [Stmt]) -> Found<bool> {
        for stmt in body {
            let Action::Push { channel, peer: Some(peer), .. } = &stmt.action else { continue };
            let (at, channel) = world.channel(channel)?;
            if channel.kind.traits().is_bounded {
                let index = self.eval(world).axes(peer)?;
                let lane = self.lane_to(world, at, channel, &index)?;
                if !world.channels.has_room(&lane, world.depth(channel)?) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// `None` for what is not there.
pub(super) fn there<T>(found: Found<T>) -> Found<Option<T>> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Absent) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Whether a block records positions of a channel: these are recorded for everything that a condition
/// leaves out too.
fn records_position(body: &[Stmt]) -> bool {
    walk::any_stmt(body, &mut |stmt| is_position(stmt))
}

/// Whether a block records positions of this channel.
pub(super) fn records_position_of(body: &[Stmt], channel: &str) -> bool {
    walk::any_stmt(body, &mut |stmt| {
        is_position(stmt)
            && matches!(&stmt.action, Action::Record { value: Expr::OfChannel { channel: of, .. }, .. }
                if of == channel)
    })
}

/// `record table[..] = channel[..].position;`
pub(super) fn is_position(stmt: &Stmt) -> bool {
    matches!(&stmt.action, Action::Record { value: Expr::OfChannel { field, .. }, .. }
        if field == "position")
}

impl<'p> Instance<'p> {
    /// What pushes of this instance pass on, and whether that is in no fixed order itself.
    pub(super) fn passing(&self, world: &World<'p>) -> (Source, bool) {
        let passes = self.frames.iter().rev().find_map(Frame::passes);
        let open = self.frames.iter().filter_map(Frame::takes).any(|it| world.open.contains(&it));
        ((self.actor.hand.id, passes), open || self.takes_counted(world))
    }

    /// Whether a loop around takes slots that count what arrives.
    fn takes_counted(&self, world: &World<'p>) -> bool {
        let mut taken = self.frames.iter().filter_map(Frame::takes);
        taken.any(|at| world.counted_axis(&world.ir.channels[at]).is_some())
    }
}

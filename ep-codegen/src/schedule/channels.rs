//! Channels: objects with one interface, whatever carries them. A producer reserves a place, fills it and
//! publishes it; a consumer finds out that a message has arrived, reads it and gives its place back.

mod dealt;
mod direct;
mod fill;
mod kept;
mod pull;
mod ring;
mod slots;

use kept::Kept;
pub(super) use slots::check_slots;

use super::library::ep;
use super::scope::{Arrived, Meaning, Scope};
use super::step::{Step, Takers};
use super::symbol::{Constant, Symbol};
use super::term::Term;
use super::value::{Numbers, counted_loop};
use super::{Lowered, RoleLowering};
use crate::ir::kind::Network;
use crate::ir::network::{over_network, uses_network};
use crate::ir::slots::{Arrival, arrival, closings, is_read_on_entry, places};
use crate::ir::{
    Action, BinaryOp, Channel, ChannelKind, Elem, PeerSet, Stmt, Transport, WellKnown, walk,
};
use crate::schedule::limit::{Limit, broken};

/// An end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Where messages go in.
    Out,
    /// Where they come out.
    In,
}

impl End {
    /// Whether a unit of a role's work opens and closes this end of a channel.
    pub(super) fn is_opened(self, channel: &Channel) -> bool {
        let kind = channel.kind.traits();
        match self {
            End::Out => kind.opens_out,
            End::In => kind.opens_in,
        }
    }
}

/// The object that stands for an end of a channel.
pub(super) struct Object {
    /// The channel.
    pub(super) channel: String,
    /// The end.
    pub(super) end: End,
    /// Its name in the text.
    pub(super) name: String,
}

/// What a call of an end has to do with rows that are still on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndCall {
    /// It waits for a peer, unless this call says that it need not.
    Waits { unless: &'static str },
    /// It waits for a peer, or tells it that all is there: no row is on its way by then.
    Settles,
    /// It ends a part of a stripe; this one does behind the rows that the mover carries.
    Ends { behind: &'static str },
    /// It waits for nobody.
    Free,
    /// It tells a peer of a row; this one does when the row has arrived.
    Tells { later: &'static str },
}

/// What a call of an end has to do with rows that are on their way, if it has.
pub(super) fn call_of_end(kind: ChannelKind, method: &str) -> Option<EndCall> {
    match (kind, method) {
        (ChannelKind::Ring, "reserve") => Some(EndCall::Waits { unless: "has_room" }),
        (ChannelKind::Ring, "arrived") => Some(EndCall::Waits { unless: "has_message" }),
        (ChannelKind::Ring, "publish") => Some(EndCall::Tells { later: "publish_after" }),
        (ChannelKind::Ring, "release") => Some(EndCall::Tells { later: "release_after" }),
        (ChannelKind::Ring, "header") => Some(EndCall::Waits { unless: "has_header" }),
        (ChannelKind::Ring, "announce" | "close") | (ChannelKind::Direct, "arrived" | "close") => {
            Some(EndCall::Settles)
        }
        (ChannelKind::Direct, "close_part") => Some(EndCall::Ends { behind: "close_part_behind" }),
        (ChannelKind::Direct, "finish") => Some(EndCall::Ends { behind: "finish_behind" }),
        (ChannelKind::Direct, "reserve") => Some(EndCall::Free),
        (ChannelKind::Slots, "reserve") => Some(EndCall::Waits { unless: "has_room" }),
        (ChannelKind::Slots, "publish") => Some(EndCall::Tells { later: "publish_after" }),
        (ChannelKind::Slots, "close") => Some(EndCall::Settles),
        (ChannelKind::Ring | ChannelKind::Direct | ChannelKind::Slots, _) => None,
        // Their rows are not staged.
        (ChannelKind::Pull, _) => None,
    }
}

impl<'a> RoleLowering<'a> {
    /// The ends of channels that the role holds.
    pub(super) fn ends(&self) -> Vec<(&'a Channel, End)> {
        let mut ends = Vec::new();
        for channel in &self.ir.channels {
            if channel.from.contains(&self.role.name) {
                ends.push((channel, End::Out));
            }
            if channel.to == self.role.name {
                ends.push((channel, End::In));
            }
        }
        ends
    }

    /// Makes the objects of all ends.
    pub(super) fn open_objects(&mut self, out: &mut Vec<Step>) {
        if let Err(why) = self.open_shares(out) {
            self.refuse(&self.role.at.clone(), why);
        }
        for (channel, end) in self.ends() {
            // Its statements have steps all the same, which a draft shows.
            if let Err(why) = self.check_channel(channel) {
                self.refuse(&channel.at, why);
            }
            let both = self.objects.iter().any(|known| known.channel == channel.name);
            // Words are one object for both ends.
            if both && self.in_words(channel) {
                continue;
            }
            let wanted = if both { format!("{}_in", channel.name) } else { channel.name.clone() };
            let name = self.names.fresh(&wanted);
            self.objects.push(Object { channel: channel.name.clone(), end, name: name.clone() });
            let team = || Term::name("team", Elem::I32);
            let mut args = vec![team()];
            let kind = channel.kind.traits();
            if kind.offers && end == End::Out {
                continue;
            }
            if kind.lands && end == End::In {
                args.push(Term::name(format!("args.{}_meta_at", channel.name), Elem::I64));
            }
            if uses_network(self.ir, channel) {
                args.push(Term::name("args.net", Elem::I64));
            }
            if channel.kind == ChannelKind::Ring {
                match self.sequences_of(channel, end) {
                    Ok(own) => args.push(own),
                    Err(why) => self.refuse(&channel.at, why),
                }
            }
            if let (End::In, Some(tensor)) = (end, &channel.waited) {
                args.push(Term::name(format!("args.{tensor}"), Elem::I64));
            }
            out.push(Step::Object { class: self.class_of(channel, end), name, args });
        }
    }

    /// The class of the object that stands for an end.
    pub(super) fn class_of(&self, channel: &Channel, end: End) -> Symbol {
        let arrives = channel.kind.traits().is_indexed.then(|| arrival(self.ir, channel));
        let class = match (&channel.kind, end) {
            (ChannelKind::Ring, End::Out) => ep::RingsOut,
            (ChannelKind::Ring, End::In) => ep::RingsIn,
            (ChannelKind::Direct, End::Out) => ep::DirectOut,
            (ChannelKind::Direct, End::In) => ep::DirectIn,
            (ChannelKind::Slots, _) if self.in_words(channel) => ep::SlotChannel,
            (ChannelKind::Slots, End::Out) if arrives == Some(Arrival::Signals) => ep::NetSlotsOut,
            (ChannelKind::Slots, End::In) if arrives == Some(Arrival::Signals) => ep::NetSlotsIn,
            (ChannelKind::Slots, End::Out) => ep::SlotRowsOut,
            (ChannelKind::Slots, End::In) => ep::SlotRowsIn,
            (ChannelKind::Pull, _) => ep::PullConsumer,
        };
        let cfg = || Constant::of_channel(channel);
        let class = class.of(cfg());
        let is_timed = end == End::In && channel.waited.is_some();
        let class = match (&channel.kind, self.kept(channel, end)) {
            (ChannelKind::Ring, _) if over_network(channel) => class.of(ep::NetRings.of(cfg())),
            (ChannelKind::Slots, _)
                if uses_network(self.ir, channel) && arrives != Some(Arrival::Signals) =>
            {
                class.of(ep::NetSlotRows.of(cfg()))
            }
            (ChannelKind::Ring, Ok(Kept::PartsOfPeer(_))) => {
                class.of(ep::WindowRings.of(cfg()).of(Term::library(ep::kPartsOfPeer)))
            }
            (ChannelKind::Ring, Ok(Kept::PeersOfPart(_))) => {
                class.of(ep::WindowRings.of(cfg()).of(Term::library(ep::kPeersOfPart)))
            }
            (ChannelKind::Slots, _) if is_timed => class.of(ep::WindowSlots.of(cfg())),
            _ => class,
        };
        if is_timed { class.of(ep::SlotTimes.of(cfg())) } else { class }
    }

    /// Says that this warp reads no more of what peers offer, and of slots.
    pub(super) fn release_ends(&mut self, out: &mut Vec<Step>) {
        for (channel, end) in self.ends() {
            let is_released = channel.kind.traits().is_released && !self.in_words(channel);
            if is_released && end == End::In && !is_read_on_entry(self.ir, channel) {
                let object = self.object(&channel.name);
                out.push(Step::Do(Term::method(&object, "release", Vec::new(), Elem::I32)));
            }
        }
    }

    /// What no role can do with a channel.
    fn check_channel(&self, channel: &Channel) -> Lowered<()> {
        let knows_nodes = self.ir.has_number(WellKnown::LocalRanks);
        // Without that number, slots are those of one node, which always uses NVLink.
        let is_near = channel.kind.traits().network == Network::ToFarNodes
            && channel.over.contains(&Transport::Nvlink);
        if !over_network(channel) || (is_near && !knows_nodes) {
            return Ok(());
        }
        if !knows_nodes {
            return Err(Limit::NoLocalRanks.into());
        }
        if channel.parts_per.is_some() {
            return Err(Limit::PartsOverNetwork.into());
        }
        match channel.kind.traits().is_indexed {
            true => self.check_far_slots(channel),
            false => Ok(()),
        }
    }

    /// Nothing says of one slot that it has landed: its source does, when it has sent all of them.
    fn check_far_slots(&self, channel: &Channel) -> Lowered<()> {
        if arrival(self.ir, channel) == Arrival::Signals {
            return Ok(());
        }
        if channel.slot_names.iter().all(|name| name != "source") {
            return Err(Limit::FarSlotsUnsourced.into());
        }
        let closes_once = closings(self.ir, channel) == 1 && channel.from.len() == 1;
        match closes_once {
            true => Ok(()),
            false => Err(Limit::FarSlotsUnclosed.into()),
        }
    }

    /// The object of an end.
    pub(super) fn object_of(&self, channel: &str, end: End) -> String {
        let own = self.objects.iter().filter(|object| object.channel == channel);
        let exact = own.clone().find(|object| object.end == end);
        exact.or(own.clone().next()).map(|object| object.name.clone()).unwrap_or_default()
    }

    /// The object through which a channel is read.
    pub(super) fn object(&self, channel: &str) -> String {
        self.object_of(channel, End::In)
    }

    /// Opens the ends of one unit.
    pub(super) fn open(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<()> {
        for (channel, end) in self.ends() {
            if !end.is_opened(channel)
                || !self.objects.iter().any(|object| object.channel == channel.name)
            {
                continue;
            }
            let mut args = vec![self.stripe_of(scope, channel, out)?];
            args.extend(self.peers_at(scope, channel, end, out)?);
            let object = self.object_of(&channel.name, end);
            out.push(Step::Do(Term::method(&object, "open", args, Elem::I32)));
        }
        Ok(())
    }

    /// Closes the ends of one unit.
    pub(super) fn close(&mut self, out: &mut Vec<Step>) {
        for (channel, end) in self.ends() {
            if end.is_opened(channel)
                && self.objects.iter().any(|object| object.channel == channel.name)
            {
                let object = self.object_of(&channel.name, end);
                out.push(Step::Do(Term::method(&object, "close", Vec::new(), Elem::I32)));
            }
        }
    }

    /// `push channel[peer] at position { .. };`
    pub(super) fn push(
        &mut self,
        scope: &mut Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Push { channel, peer, position, values } = &stmt.action else { return Ok(()) };
        if scope.by_lane {
            return Err(broken("a whole warp sends a message"));
        }
        if self.asks_position(channel) && self.takes_part(scope, |see| walk::exprs(stmt, see)) {
            return Err(Limit::SlotNotFilled.into());
        }
        let (declared, message) = self.carried(channel)?;
        match (&declared.kind, peer) {
            (ChannelKind::Pull, _) => self.push_pull(declared, message, values, out),
            (_, None) => Err(broken(format!("`{channel}` needs a peer"))),
            (ChannelKind::Slots, Some(peer)) => {
                let place = (peer, position.as_ref());
                self.push_slots(scope, (declared, message), place, values, out)
            }
            (ChannelKind::Ring, Some(peer)) => {
                let to = self.ring(scope, (declared, End::Out), places(Some(peer)), out)?;
                self.push_ring(scope, declared, message, to, values, out)
            }
            (ChannelKind::Direct, Some(peer)) => {
                let first = position.as_ref().ok_or(broken("a direct channel needs a position"))?;
                self.check_first(peer, first)?;
                let to = self.scalar(scope, peer, out)?;
                let first = match self.in_runs.contains(channel) {
                    true => None,
                    false => Some(self.scalar(scope, first, out)?.converted(&Elem::I32)),
                };
                self.push_direct(scope, declared, message, (to, first), values, out)
            }
        }
    }

    /// A pointer to bytes.
    pub(super) fn bytes(
        &mut self,
        wanted: &str,
        value: Term,
        read_only: bool,
        out: &mut Vec<Step>,
    ) -> Term {
        let name = self.names.fresh(wanted);
        out.push(Step::Pointer { name: name.clone(), to: None, read_only, value });
        Term::name(name, Elem::U8)
    }

    /// `for message in channel[peer] at position where condition { .. }`
    pub(super) fn receive(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { channel, peer, .. } = &stmt.action else { return Ok(()) };
        if scope.by_lane {
            return Err(broken("a whole warp takes messages"));
        }
        let (declared, _) = self.carried(channel)?;
        match (&declared.kind, peer) {
            (ChannelKind::Ring, peer) => {
                self.receive_ring(scope, stmt, declared, places(peer.as_ref()), out)
            }
            (ChannelKind::Direct, Some(peer)) => {
                let source = self.scalar(scope, peer, out)?;
                self.receive_stripes(scope, stmt, declared, source, out)
            }
            (ChannelKind::Direct, None) => {
                let set = &declared.per;
                let to = self.known(set.number())?;
                let numbers = Numbers { from: Term::int(0), to, others: *set == PeerSet::Others };
                let name = self.names.fresh("source");
                let source = self.index_in(&name, &numbers);
                let mut steps = Vec::new();
                if numbers.others {
                    steps.push(Step::SkipUnless(source.clone().test(BinaryOp::Ne, self.me())));
                }
                self.receive_stripes(scope, stmt, declared, source, &mut steps)?;
                out.push(counted_loop(name, numbers, Takers::Serial, steps));
                Ok(())
            }
            (ChannelKind::Slots, index) => {
                self.receive_slots(scope, stmt, (declared, index.as_ref(), false), out)
            }
            (ChannelKind::Pull, _) => Err(broken("rows that are offered are gathered")),
        }
    }

    /// `at position`: where the first message of a peer goes.
    pub(super) fn first_row(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let Action::Receive { position, .. } = &stmt.action else { return Ok(Term::int(0)) };
        let Some(position) = position else { return Ok(Term::int(0)) };
        let first = self.scalar(scope, position, out)?.converted(&Elem::I32);
        Ok(self.named("first", first, out))
    }

    /// The body of a loop over messages, for one of them.
    fn with_message(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        arrived: Arrived,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { binder, filter, body, .. } = &stmt.action else { return Ok(()) };
        let inner = scope.with(binder, Meaning::Message(arrived));
        let Some(filter) = filter else {
            self.claims(&inner, stmt, None, out)?;
            self.body(&inner, body, out);
            return Ok(());
        };
        let condition = self.scalar(&inner, filter, out)?;
        let takes = self.named("takes", condition, out);
        self.claims(&inner, stmt, Some(&takes), out)?;
        let mut absent = Vec::new();
        self.absent(&inner, body, &mut absent);
        if !absent.is_empty() {
            out.push(Step::If { condition: takes.clone().negated(), body: absent });
        }
        let mut steps = Vec::new();
        self.body(&inner, body, &mut steps);
        out.push(Step::If { condition: takes, body: steps });
        Ok(())
    }
}

/// `base + bytes` of a pointer to bytes.
pub(super) fn bytes_behind(base: Term, bytes: Term) -> Term {
    Term {
        node: super::term::Node::Binary(BinaryOp::Add, Box::new(base), Box::new(bytes)),
        elem: Elem::U8,
        range: None,
    }
}

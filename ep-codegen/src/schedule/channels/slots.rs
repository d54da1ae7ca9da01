//! Slots: a fixed place for each message, used anew in every call. Records that travel in words have an
//! object for both ends (`slots.cuh`); all others have a sending and a receiving end (`slot_rows.cuh`), and
//! are found by a key: the indices of the slot but for the one that counts arrivals, as one number.

use super::dealt::Strides;
use super::{End, bytes_behind};
use crate::ir::once::message_index;
use crate::ir::slots::{Arrival, arrival, closes, closings, counted_axis, places};
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, Expr, FieldValue, Message, NameKind, PeerSet,
    Pipeline, Source, Stmt, walk,
};
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, Why, broken};
use crate::schedule::role::first_warp;
use crate::schedule::scope::{Arrived, Meaning, Scope};
use crate::schedule::statements::bind_position;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Node, Term, counting};
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// Whether the messages of slots travel in words.
    pub(in crate::schedule) fn in_words(&self, channel: &Channel) -> bool {
        arrival(self.ir, channel) == Arrival::Words
    }

    /// `await slots;`
    pub(in crate::schedule) fn await_slots(
        &mut self,
        scope: &Scope,
        channel: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if scope.by_lane {
            return Err(broken("a whole warp waits for slots"));
        }
        let object = self.object(channel);
        out.push(Step::Do(Term::method(&object, "await", Vec::new(), Elem::I32)));
        Ok(())
    }

    /// `close slots;`, by each of the warps or units of the role.
    pub(in crate::schedule) fn close_slots(
        &mut self,
        scope: &Scope,
        channel: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if scope.by_lane {
            return Err(broken("a whole warp closes slots"));
        }
        let closers =
            self.closers.clone().ok_or(broken("slots are closed by a role as a whole"))?;
        let object = self.object_of(channel, End::Out);
        let closers = vec![closers.converted(&Elem::I32)];
        out.push(Step::Do(Term::method(&object, "close", closers, Elem::I32)));
        Ok(())
    }

    /// The axes of a slot that make its key.
    fn keyed(&self, channel: &Channel) -> Vec<usize> {
        let counted = counted_axis(self.ir, channel);
        (0..channel.slot.len()).filter(|axis| Some(*axis) != counted).collect()
    }

    /// The key of the slots with these indices, one for each keyed axis.
    fn key(&mut self, channel: &Channel, indices: Vec<Term>, out: &mut Vec<Step>) -> Lowered<Term> {
        let mut key: Option<Term> = None;
        for (axis, index) in self.keyed(channel).into_iter().zip(indices) {
            let extent = self.scalar(&Scope::default(), &channel.slot[axis], out)?;
            let index = index.converted(&Elem::I32);
            key = Some(match key {
                None => index,
                Some(outer) => {
                    counting(BinaryOp::Add, counting(BinaryOp::Mul, outer, extent), index)
                }
            });
        }
        let key = key.unwrap_or_else(|| Term::int(0));
        match key.node {
            Node::Name(_) | Node::Constant(_) | Node::Int(_) => Ok(key),
            _ => Ok(self.named("key", key, out)),
        }
    }

    /// The indices of slots that this rank fills: its own as the source, and those that are given.
    fn filled_indices(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        position: Option<&Expr>,
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Term>> {
        let mut given = places(position).iter();
        let mut indices = Vec::new();
        for axis in self.keyed(channel) {
            if channel.slot_names[axis] == "source" {
                indices.push(self.own_index(channel));
                continue;
            }
            let index = given.next();
            let index =
                index.ok_or_else(|| broken(format!("`{}` needs more indices", channel.name)))?;
            indices.push(self.scalar(scope, index, out)?);
        }
        match given.next() {
            None => Ok(indices),
            Some(_) => Err(broken("a slot that counts what arrives is not named by its number")),
        }
    }

    /// This rank among the peers of a channel.
    fn own_index(&self, channel: &Channel) -> Term {
        match channel.per {
            PeerSet::All | PeerSet::Others => self.me(),
            PeerSet::Local | PeerSet::Rail => {
                let peers = Term::constant(Constant::of_channel(channel).at("kPeers"));
                let own = Term::method("team", "own", vec![peers], Elem::I32);
                Term { range: Some((0, i64::from(i32::MAX))), ..own }
            }
        }
    }

    /// `push slots[peer] at [..] { .. };`
    pub(super) fn push_slots(
        &mut self,
        scope: &mut Scope,
        (channel, message): (&Channel, &Message),
        (peer, position): (&Expr, Option<&Expr>),
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let to = self.scalar(scope, peer, out)?;
        if self.in_words(channel) {
            let words = self.names.fresh("words");
            let object = self.object(&channel.name);
            let place = Term::method(&object, "to", vec![to], Elem::U8);
            let class = Symbol::from(ep::SlotWords).fixed();
            out.push(Step::Object { class, name: words.clone(), args: vec![place] });
            let words = Term::name(words, Elem::U8);
            return self.fill_message(scope, message, values, (words.clone(), words), out);
        }
        let to = to.converted(&Elem::I32);
        let to = if matches!(to.node, Node::Name(_) | Node::Constant(_)) {
            to
        } else {
            self.named("to", to, out)
        };
        let indices = self.filled_indices(scope, channel, position, out)?;
        let key = self.key(channel, indices, out)?;
        let object = self.object_of(&channel.name, End::Out);
        let call = |what, args| Term::method(&object, what, args, Elem::I32);
        let mut steps = Vec::new();
        let slot = self.bytes("slot", call("slot", Vec::new()), false, &mut steps);
        let meta = Term::constant(Constant::of_channel(channel).at("kMeta"));
        let meta = bytes_behind(slot.clone(), meta);
        self.fill_message(scope, message, values, (slot, meta), &mut steps)?;
        let mut args = vec![to, key];
        if let Some(index) = message_index(self.ir, channel) {
            // The first warp that has this message fills it for all others.
            let number = Expr::Name { name: index.name.to_string(), kind: NameKind::Binder };
            args.push(self.scalar(scope, &number, out)?.converted(&Elem::I32));
            steps = vec![Step::If { condition: call("fills", Vec::new()), body: steps }];
        }
        steps.push(Step::Do(call("publish", Vec::new())));
        out.push(Step::If { condition: call("reserve", args), body: steps });
        if self.asks_position(&channel.name) {
            let wanted = format!("{}_position", channel.name);
            let position = self.named(&wanted, call("position", Vec::new()), out);
            bind_position(scope, &channel.name, position);
        }
        Ok(())
    }

    /// `slots[..].count`, and `.base`: those of the sources before.
    pub(in crate::schedule) fn slot_number(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        (index, number): (&[Expr], &'static str),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if arrival(self.ir, channel) != Arrival::Counts {
            return Err(broken(format!("`{}` does not count what arrives", channel.name)));
        }
        if scope.by_lane {
            return Err(broken("a whole warp waits for a count"));
        }
        if index.len() != self.keyed(channel).len() {
            return Err(broken("a count is that of all indices but the one that counts"));
        }
        let indices = self.indices(scope, index, out)?;
        let key = self.key(channel, indices, out)?;
        let count = Term::method(&self.object(&channel.name), number, vec![key], Elem::I32);
        let count = self.named(number, count, out);
        Ok(Term { range: Some((0, i64::from(i32::MAX))), ..count })
    }

    /// The message of a slot that was waited for.
    pub(in crate::schedule) fn slot_message(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Arrived> {
        if self.in_words(channel) {
            let source = self.peer(scope, index, out)?;
            let words = Term::method(&self.object(&channel.name), "from", vec![source], Elem::U8);
            return Ok(Arrived {
                channel: channel.name.clone(),
                row: words.clone(),
                meta: words,
                numbers: Vec::new(),
            });
        }
        let mut indices = self.indices(scope, index, out)?;
        let counted = counted_axis(self.ir, channel).filter(|axis| *axis < indices.len());
        let number = counted.map_or(Term::int(0), |axis| indices.remove(axis));
        if indices.len() != self.keyed(channel).len() {
            return Err(Limit::SlotOfSeveral.of(&[&channel.name]));
        }
        let key = self.key(channel, indices, out)?;
        Ok(self.slot_at(channel, key, number.converted(&Elem::I32)))
    }

    /// The message in a slot of this rank.
    fn slot_at(&self, channel: &Channel, key: Term, number: Term) -> Arrived {
        let object = self.object(&channel.name);
        let row = Term::method(&object, "slot", vec![key, number], Elem::U8);
        let meta = Term::constant(Constant::of_channel(channel).at("kMeta"));
        let meta = bytes_behind(row.clone(), meta);
        Arrived { channel: channel.name.clone(), row, meta, numbers: Vec::new() }
    }

    /// `for message in slots[..] at position where condition { .. }`; what is not indexed is gone through.
    pub(in crate::schedule) fn receive_slots(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        (channel, index, dealt): (&Channel, Option<&Expr>, bool),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut indices = self.indices(scope, places(index), out)?;
        let mut open = Vec::new();
        let mut steps = Vec::new();
        for axis in self.keyed(channel).into_iter().skip(indices.len()) {
            let to = self.scalar(&Scope::default(), &channel.slot[axis], out)?;
            let of_source = channel.slot_names[axis] == "source";
            let others = of_source && channel.per == PeerSet::Others;
            let numbers = Numbers { from: Term::int(0), to, others };
            let name = self.names.fresh(&channel.slot_names[axis]);
            let own = self.index_in(&name, &numbers);
            if others {
                let me = self.own_index(channel);
                steps.push(Step::SkipUnless(own.clone().test(BinaryOp::Ne, me)));
            }
            indices.push(own);
            open.push((name, numbers));
        }
        let source = channel.slot_names.iter().position(|name| name == "source");
        let source = source.and_then(|axis| indices.get(axis)).cloned().unwrap_or(Term::int(0));
        let key = self.key(channel, indices, &mut steps)?;
        let turns = if dealt && open.is_empty() { Takers::Spread } else { Takers::Serial };
        self.take_slots(scope, stmt, (channel, key, source), turns, &mut steps)?;
        if dealt && !open.is_empty() {
            out.push(self.dealt_slots(open, steps));
            return Ok(());
        }
        for (name, numbers) in open.into_iter().rev() {
            steps = vec![counted_loop(name, numbers, Takers::Serial, steps)];
        }
        out.extend(steps);
        Ok(())
    }

    /// The messages of one key.
    fn take_slots(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        (channel, key, source): (&Channel, Term, Term),
        turns: Takers,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { binder, .. } = &stmt.action else { return Ok(()) };
        let known = vec![("source", source), ("part", Term::int(0))];
        let nothing = Arrived {
            channel: channel.name.clone(),
            row: Term::int(0),
            meta: Term::int(0),
            numbers: known.clone(),
        };
        let object = self.object(&channel.name);
        let counts = arrival(self.ir, channel) == Arrival::Counts;
        let strides = if counts { self.strides(scope, stmt, out)? } else { None };
        let name = self.names.fresh(if strides.is_some() { "turn" } else { "index" });
        let index = match &strides {
            // Turn by turn, the messages that the condition names.
            Some(Strides { first, apart, .. }) => {
                let behind = counting(BinaryOp::Mul, Term::index(&name), apart.clone());
                counting(BinaryOp::Add, first.clone(), behind)
            }
            None if counts => Term::index(&name),
            None => Term::int(0),
        };
        let there = scope.with(binder, Meaning::Message(nothing));
        let call = |what| Term::method(&object, what, vec![key.clone()], Elem::I32);
        let count = counts.then(|| self.named("count", call("count"), out));
        let first = self.first_row(&there, stmt, out)?;
        let mut steps = Vec::new();
        let row = first.plus(index.clone()).converted(&Elem::I32);
        let row = self.named("row", row, &mut steps);
        let arrived = self.slot_at(channel, key.clone(), index.clone());
        let slot = self.bytes("slot", arrived.row, true, &mut steps);
        let meta = Term::constant(Constant::of_channel(channel).at("kMeta"));
        let meta = bytes_behind(slot.clone(), meta);
        let numbers = known.into_iter().chain([("row", row), ("index", index)]).collect();
        let arrived = Arrived { channel: channel.name.clone(), row: slot, meta, numbers };
        let bare = strides.as_ref().and_then(|strides| strides.unfiltered(stmt));
        self.with_message(scope, bare.as_ref().unwrap_or(stmt), arrived, &mut steps)?;
        out.push(match count {
            Some(count) => {
                let to = Term { range: Some((0, i64::from(i32::MAX))), ..count };
                let to = match strides {
                    Some(Strides { first, apart, .. }) => {
                        let rest = counting(BinaryOp::Sub, to, first);
                        Term::call(ep::ceil, vec![rest, apart], Elem::I32)
                    }
                    None => to,
                };
                let numbers = Numbers { from: Term::int(0), to, others: false };
                counted_loop(name, numbers, turns, steps)
            }
            None => {
                let taken = Step::If { condition: call("arrived"), body: steps };
                if turns == Takers::Serial { taken } else { first_warp(vec![taken]) }
            }
        });
        Ok(())
    }

    /// The key of the slot that a part of a gather is in; a turn where one of its indices is negative has
    /// none.
    pub(in crate::schedule) fn slot_of_part(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        (peer, position): (Option<&Expr>, &Expr),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let source = match peer.filter(|_| channel.slot_names.iter().any(|name| name == "source")) {
            Some(peer) => Some(self.index_of_part(scope, peer, out)?),
            None => None,
        };
        let mut given = places(Some(position)).iter();
        let mut indices = Vec::new();
        for axis in self.keyed(channel) {
            let own = match (channel.slot_names[axis].as_str(), &source) {
                ("source", Some(source)) => source.clone(),
                _ => {
                    let own = given.next();
                    let own = own
                        .ok_or_else(|| broken(format!("`{}` needs more indices", channel.name)))?;
                    self.index_of_part(scope, own, out)?
                }
            };
            indices.push(own);
        }
        // Where neither the slot says who fills it nor anybody that it stays empty, the rank has to take part.
        if let Some(peer) = peer.filter(|_| source.is_none() && closings(self.ir, channel) == 0) {
            let rank = self.index_of_part(scope, peer, out)?.wide();
            let args = vec![Term::name("args.group", Elem::I64), rank];
            out.push(Step::SkipUnless(Term::call(ep::is_alive, args, Elem::Bool)));
        }
        self.key(channel, indices, out)
    }

    /// An index of such a slot. What follows may count on one that is there: an expert has no number at a
    /// rank that is none.
    fn index_of_part(&mut self, scope: &Scope, index: &Expr, out: &mut Vec<Step>) -> Lowered<Term> {
        let index = self.scalar(scope, index, out)?;
        let index = self.named("at", index, out);
        if index.range.is_none_or(|(low, _)| low < 0) {
            out.push(Step::SkipUnless(index.clone().test(BinaryOp::Ge, Term::int(0))));
        }
        Ok(index)
    }
}

/// What slots as a whole ask of the roles at their ends.
pub(in crate::schedule) fn check_slots(
    ir: &Pipeline,
    channel: &Channel,
    refuse: &mut dyn FnMut(&Source, Why),
) {
    match arrival(ir, channel) {
        Arrival::Counts => check_counted(ir, channel, refuse),
        Arrival::Words | Arrival::Signals => check_awaited(ir, channel, refuse),
        Arrival::Flags => {
            let mut awaited = false;
            for role in &ir.roles {
                walk::stmts(&role.body, &mut |stmt| {
                    awaited |= matches!(&stmt.action, Action::Await { channel: of } if *of == channel.name);
                });
            }
            if awaited {
                check_awaited(ir, channel, refuse);
            }
        }
    }
    let mut nested = Vec::new();
    for role in &ir.roles {
        for outer in &role.body {
            walk::stmts(walk::nested(outer), &mut |stmt| {
                if closes(stmt, &channel.name) {
                    nested.push(stmt.at.clone());
                }
            });
        }
    }
    nested.iter().for_each(|at| refuse(at, Limit::ClosedInLoop.into()));
}

/// Slots that count what arrives are closed by the one role that fills them.
fn check_counted(ir: &Pipeline, channel: &Channel, refuse: &mut dyn FnMut(&Source, Why)) {
    if channel.slot_names.iter().all(|name| name != "source") {
        refuse(&channel.at, Limit::CountedUnsourced.into());
    }
    if counted_axis(ir, channel) != channel.slot_names.len().checked_sub(1) {
        refuse(&channel.at, Limit::CountedNotLast.into());
    }
    if channel.from.len() > 1 {
        refuse(&channel.at, Limit::CountedByRoles.into());
    }
    if closings(ir, channel) != 1 {
        refuse(&channel.at, Limit::CountedUnclosed.into());
    }
}

/// Who awaits slots waits for one of every peer.
fn check_awaited(ir: &Pipeline, channel: &Channel, refuse: &mut dyn FnMut(&Source, Why)) {
    let mut pushes = 0;
    for role in &ir.roles {
        slot_pushes(channel, &role.body, &mut Vec::new(), &mut |stmt, every| {
            pushes += 1;
            if !every {
                refuse(&stmt.at, Limit::SlotsOfSome.into());
            } else if pushes == 2 {
                refuse(&stmt.at, Limit::SlotsTwice.into());
            }
        });
    }
}

/// Shows every push to `channel`, and whether it serves all peers.
fn slot_pushes<'s>(
    channel: &Channel,
    body: &'s [Stmt],
    loops: &mut Vec<(&'s str, &'s Domain, bool)>,
    see: &mut dyn FnMut(&Stmt, bool),
) {
    for stmt in body {
        match &stmt.action {
            Action::Push { channel: to, peer: Some(Expr::Name { name, .. }), .. }
                if *to == channel.name =>
            {
                let over = loops.iter().find(|(binder, ..)| binder == name);
                let all = over.is_some_and(|(_, domain, _)| domain.is_peers(&channel.per));
                see(stmt, all && !loops.iter().any(|(.., filtered)| *filtered));
            }
            Action::Push { channel: to, .. } if *to == channel.name => see(stmt, false),
            Action::For { binder, domain, filter, body, .. } => {
                loops.push((binder, domain, filter.is_some()));
                slot_pushes(channel, body, loops, see);
                loops.pop();
            }
            _ => {
                loops.push(("", &Domain::Tokens, true));
                slot_pushes(channel, walk::nested(stmt), loops, see);
                loops.pop();
            }
        }
    }
}

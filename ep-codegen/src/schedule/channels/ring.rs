//! Rings: a warp's end takes or gives messages of a stripe one after the other.

use super::kept::Kept;
use super::{End, bytes_behind};
use crate::ir::slots::places;
use crate::ir::{Action, Channel, Elem, Expr, FieldValue, Message, Stmt, walk};
use crate::schedule::cut::Pushing;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Arrived, Meaning, Scope};
use crate::schedule::statements::bind_position;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering};

/// A ring, by the number that the lanes of its end know it by, and whose messages it brings.
struct RingAt {
    ring: Term,
    source: Term,
    part: Term,
}

impl RingAt {
    /// What a statement's message is known by before it has come.
    fn ahead(&self, scope: &Scope, stmt: &Stmt) -> Scope {
        let Action::Receive { binder, channel, .. } = &stmt.action else { return scope.clone() };
        let nothing = Arrived {
            channel: channel.clone(),
            row: Term::int(0),
            meta: Term::int(0),
            numbers: vec![("source", self.source.clone()), ("part", self.part.clone())],
        };
        scope.with(binder, Meaning::Message(nothing))
    }
}

impl<'a> RoleLowering<'a> {
    /// `announce ring[peer] { .. };`
    pub(in crate::schedule) fn announce(
        &mut self,
        scope: &Scope,
        channel: &str,
        peer: &Expr,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (declared, _) = self.carried(channel)?;
        let peer = self.ring(scope, (declared, End::Out), places(Some(peer)), out)?;
        for value in values {
            let word = self.header_word(channel, &value.name);
            let word =
                word.ok_or_else(|| broken(format!("`{channel}` announces no `{}`", value.name)))?;
            let number = self.scalar(scope, &value.value, out)?.converted(&Elem::I32);
            let args = vec![peer.clone(), Term::int(word as i64), number];
            let object = self.object_of(channel, End::Out);
            out.push(Step::Do(Term::method(&object, "announce", args, Elem::I32)));
        }
        Ok(())
    }

    /// Which of the rings that an end keeps an index names.
    pub(in crate::schedule) fn ring(
        &mut self,
        scope: &Scope,
        (channel, end): (&Channel, End),
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match (self.kept(channel, end)?, index) {
            (Kept::Peers, [peer]) | (Kept::PeersOfPart(_), [peer, _]) => {
                self.scalar(scope, peer, out)
            }
            (Kept::PartsOfPeer(_), [_, part]) => self.scalar(scope, part, out),
            _ => Err(broken(format!("`{}` is indexed by one ring here", channel.name))),
        }
    }

    /// The place of a header word of a ring, if `field` is one.
    pub(in crate::schedule) fn header_word(&self, channel: &str, field: &str) -> Option<usize> {
        let (channel, _) = self.carried(channel).ok()?;
        channel.header_word(field)
    }

    pub(super) fn push_ring(
        &mut self,
        scope: &mut Scope,
        channel: &Channel,
        message: &Message,
        to: Term,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let object = self.object_of(&channel.name, End::Out);
        let call = |what| Term::method(&object, what, vec![to.clone()], Elem::I32);
        if self.asks_position(&channel.name) {
            let wanted = format!("{}_position", channel.name);
            let position = self.named(&wanted, call("position"), out);
            bind_position(scope, &channel.name, position);
        }
        let mut steps = Vec::new();
        let slot = self.bytes("slot", call("slot"), false, &mut steps);
        let meta = Term::constant(Constant::of_channel(channel).at("kMeta"));
        let meta = bytes_behind(slot.clone(), meta);
        self.fill_message(scope, message, values, (slot, meta), &mut steps)?;
        steps.push(Step::Do(call("publish")));
        out.push(Step::If { condition: call("reserve"), body: steps });
        Ok(())
    }

    /// Whether the role asks for positions of what it pushes.
    pub(super) fn asks_position(&self, channel: &str) -> bool {
        let mut found = false;
        walk::stmts(&self.role.body, &mut |stmt| {
            walk::exprs(stmt, &mut |part| {
                found |= matches!(part, Expr::OfChannel { channel: of, field, .. }
                    if of == channel && field == "position");
            });
        });
        found
    }

    /// The messages of one ring, or of all that the end keeps as they come.
    pub(super) fn receive_ring(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        channel: &Channel,
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let none = || Term::int(0);
        match (self.kept(channel, End::In)?, index) {
            (Kept::Peers, []) => {
                let at = |ring: Term| RingAt { source: ring.clone(), ring, part: none() };
                self.receive_any(scope, stmt, (channel, "source"), &at, out)
            }
            (Kept::Peers, [peer]) => {
                let ring = self.scalar(scope, peer, out)?;
                let at = RingAt { source: ring.clone(), ring, part: none() };
                self.receive_of_ring(scope, stmt, &channel.name, at, out)
            }
            // Those of one part may wait for room that only another one's being taken makes.
            (Kept::PartsOfPeer(_), [peer]) => {
                let source = self.scalar(scope, peer, out)?;
                let at = |ring: Term| RingAt { source: source.clone(), part: ring.clone(), ring };
                self.receive_any(scope, stmt, (channel, "part"), &at, out)
            }
            (kept @ (Kept::PartsOfPeer(_) | Kept::PeersOfPart(_)), [peer, part]) => {
                let source = self.scalar(scope, peer, out)?;
                let part = self.scalar(scope, part, out)?;
                let by_part = matches!(kept, Kept::PartsOfPeer(_));
                let ring = if by_part { part.clone() } else { source.clone() };
                self.receive_of_ring(scope, stmt, &channel.name, RingAt { ring, source, part }, out)
            }
            _ => Err(broken(format!("`{}` is taken from by peer and part here", channel.name))),
        }
    }

    /// The messages of one ring.
    fn receive_of_ring(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        channel: &str,
        at: RingAt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let object = self.object(channel);
        let count =
            self.header_word(channel, "count").ok_or(broken("a ring announces its count"))?;
        let args = vec![at.ring.clone(), Term::int(count as i64)];
        let count = Term::method(&object, "header", args, Elem::I32);
        let count = self.named("count", count, out);
        let count = Term { range: Some((0, i64::from(i32::MAX))), ..count };
        let mut steps = Vec::new();
        let index = self.names.fresh("index");
        let first = self.first_row(&at.ahead(scope, stmt), stmt, out)?;
        let numbers = Numbers { from: Term::int(0), to: count, others: false };
        if self.turn.is_some() {
            let args = vec![at.ring.clone(), Term::index(&index)];
            steps.push(Step::Do(Term::method(&object, "take", args, Elem::I32)));
        }
        self.take_ring(scope, stmt, (at, Term::index(&index), first), &mut steps)?;
        match self.turn.is_some() {
            true => self.take_turns(index, numbers, steps, out)?,
            false => out.push(counted_loop(index, numbers, Takers::Serial, steps)),
        }
        Ok(())
    }

    /// The next message of a ring, from its arrival until its slot is given back.
    fn take_ring(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        (at, index, first): (RingAt, Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { channel, .. } = &stmt.action else { return Ok(()) };
        let object = self.object(channel);
        let call = |what| Term::method(&object, what, vec![at.ring.clone()], Elem::I32);
        let mut steps = Vec::new();
        let slot = self.bytes("slot", call("slot"), true, &mut steps);
        let (declared, _) = self.carried(channel)?;
        let meta = Term::constant(Constant::of_channel(declared).at("kMeta"));
        let row = first.plus(index.clone()).converted(&Elem::I32);
        let row = self.named("row", row, &mut steps);
        let arrived = Arrived {
            channel: channel.clone(),
            row: slot.clone(),
            meta: bytes_behind(slot, meta),
            numbers: vec![
                ("row", row),
                ("index", index),
                ("source", at.source.clone()),
                ("part", at.part.clone()),
            ],
        };
        self.with_message(scope, stmt, arrived, &mut steps)?;
        steps.push(Step::Do(call("release")));
        out.push(Step::If { condition: call("arrived"), body: steps });
        Ok(())
    }

    /// Messages of all rings that the end keeps, as they come; `name` is what tells these apart.
    fn receive_any(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        (channel, name): (&Channel, &str),
        at: &dyn Fn(Term) -> RingAt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let object = self.object(&channel.name);
        let count =
            self.header_word(&channel.name, "count").ok_or(broken("a ring announces its count"))?;
        let name = self.names.fresh(name);
        let ring = Term::index(&name);
        let next = Term::method(&object, "next", vec![Term::int(count as i64)], Elem::I32);
        let mut steps = Vec::new();
        let taken = Term::method(&object, "taken", vec![ring.clone()], Elem::I32);
        let index = self.named("index", taken, &mut steps);
        let at = at(ring);
        let first = self.first_row(&at.ahead(scope, stmt), stmt, &mut steps)?;
        if self.turn.is_some() {
            self.turn = Some(Pushing::OfRing(Box::new([at.ring.clone(), index.clone()])));
        }
        self.take_ring(scope, stmt, (at, index, first), &mut steps)?;
        out.push(Step::Take { name, next, body: steps });
        Ok(())
    }
}

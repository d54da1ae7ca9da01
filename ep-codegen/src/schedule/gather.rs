//! `for token in domain gather part from channel[peer] at position across peer in peers { .. }`: the parts
//! of a token are brought together, read by the statements of the body, and given back.

use super::channels::End;
use super::scope::{Arrived, Meaning, Parts, Scope};
use super::step::{Step, Takers};
use super::term::{Node, Term};
use super::value::{Numbers, counted_loop};
use super::{Lowered, RoleLowering};
use crate::ir::helpers::taken_of_part;
use crate::ir::slots::comes_in_words;
use crate::ir::{Action, BinaryOp, Channel, Domain, Elem, Expr, NameKind, PeerSet, Stmt, walk};
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};

impl RoleLowering<'_> {
    /// All turns of a gather, taken as `turns` says.
    pub(super) fn gather(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        turns: Takers,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Gather { binder, domain, part, channel, peer, position, across, over, body } =
            &stmt.action
        else {
            return Ok(());
        };
        if scope.by_lane {
            return Err(broken("a whole warp brings parts together"));
        }
        let (declared, _) = self.carried(channel)?;
        let lanes = self.lanes_of(declared, over)?;
        let object = self.parts_object(declared, part, &lanes, out);
        let numbers = self.numbers(scope, domain, out)?;
        if comes_in_words(self.ir, declared) {
            let tokens = vec![numbers.to.clone().converted(&Elem::I32)];
            out.push(Step::Do(Term::method(&object, "take_words", tokens, Elem::I32)));
        }
        let name = self.names.fresh(binder);
        let token = self.index_in(&name, &numbers);
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(token.clone().test(BinaryOp::Ne, self.me())));
        }
        let inner = scope.with(binder, Meaning::Value(token));
        self.claims(&inner, stmt, None, &mut steps)?;
        let place = (peer.as_ref(), position);
        self.expect(&inner, declared, (&object, across, over), place, &mut steps)?;
        let mut parts = Parts {
            part: part.clone(),
            across: across.clone(),
            channel: channel.clone(),
            object: object.clone(),
            peers: lanes.to,
            first: None,
        };
        let mut taken = Vec::new();
        let inner = self.with_first(&inner, &mut parts, body, &mut taken)?;
        let with_parts = inner.with_parts(parts);
        self.body(&with_parts, body, &mut taken);
        let call = |what| Term::method(&object, what, Vec::new(), Elem::Bool);
        taken.push(Step::Do(call("close")));
        steps.push(Step::If { condition: call("open"), body: taken });
        if self.turn.is_some() {
            return self.take_turns(name, numbers, steps, out);
        }
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }

    /// What names mean where some statement takes the first part as it is.
    fn with_first<'s>(
        &mut self,
        scope: &Scope,
        parts: &mut Parts,
        body: &'s [Stmt],
        out: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let visit = |see: &mut dyn FnMut(&'s Expr)| {
            walk::stmts(body, &mut |stmt| walk::exprs(stmt, see));
        };
        let values = taken_of_part(&parts.part, visit);
        if values.is_empty() {
            return Ok(scope.clone());
        }
        let method = |of, args| Term::method(&parts.object, of, args, Elem::U8);
        let name = self.names.fresh(&format!("{}_first", parts.across));
        let value = Term { elem: Elem::I32, ..method("first", Vec::new()) };
        out.push(Step::Let { name: name.clone(), value });
        let first = Term::name(&name, Elem::I32);
        // Where there is none, nothing is read.
        let at = first.clone().test(BinaryOp::Lt, Term::int(0)).choose(Term::int(0), first.clone());
        let (of_row, of_meta) = self.read_of_part(parts, &values)?;
        let mut pointer = |used: bool, of, out: &mut Vec<Step>| match used {
            true => self.bytes(of, method(of, vec![at.clone()]), true, out),
            false => Term::int(0),
        };
        let (row, meta) = (pointer(of_row, "row", out), pointer(of_meta, "meta", out));
        let numbers = Vec::new();
        let arrived = Arrived { channel: parts.channel.clone(), row, meta, numbers };
        let most = parts.peers.range.map_or(i64::from(i32::MAX), |(_, most)| most);
        let index = Term { range: Some((0, most)), ..first };
        let scope = scope.with(&parts.across, Meaning::Value(index));
        let scope = scope.with(&parts.part, Meaning::Message(arrived));
        parts.first = Some(name);
        Ok(scope)
    }

    /// What the lanes of a gather stand for: the peers of its channel, or the numbers that name slots.
    fn lanes_of(&mut self, channel: &Channel, over: &Domain) -> Lowered<Numbers> {
        let kind = channel.kind.traits();
        if kind.lands {
            return Err(broken("rows that have landed are not gathered"));
        }
        let (to, others) = match over {
            _ if !kind.is_indexed => {
                (self.known(channel.per.number())?, channel.per == PeerSet::Others)
            }
            // Those outside of a range are left out.
            Domain::Dim { name }
            | Domain::Range { high: Expr::Name { name, kind: NameKind::Dim }, .. } => {
                (self.number(name), false)
            }
            Domain::Peers { set } => (self.known(set.number())?, *set == PeerSet::Others),
            _ => return Err(Limit::GatheredAcross.into()),
        };
        Ok(Numbers { from: Term::int(0), to, others })
    }

    /// The object that holds the parts of a token.
    fn parts_object(
        &mut self,
        channel: &Channel,
        part: &str,
        lanes: &Numbers,
        out: &mut Vec<Step>,
    ) -> String {
        let team = || Term::name("team", Elem::I32);
        let mut class = self.class_of(channel, End::In);
        let mut source = self.object(&channel.name);
        if let (true, Node::Constant(count)) = (channel.kind.traits().is_indexed, &lanes.to.node) {
            class = ep::SlotParts.of(class).of(count.clone());
            let name = self.names.fresh(&format!("{}_parts", channel.name));
            let args = vec![team(), Term::name(source, Elem::I32)];
            out.push(Step::Object { class: class.clone(), name: name.clone(), args });
            source = name;
        }
        let object = self.names.fresh(&format!("{part}s"));
        let args = vec![team(), Term::name(source, Elem::I32)];
        out.push(Step::Object { class: ep::Parts.of(class), name: object.clone(), args });
        object
    }

    /// Says where the part of each peer is, a lane for each; negative: the peer has none.
    fn expect(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        (object, across, over): (&str, &str, &Domain),
        (index, position): (Option<&Expr>, &Expr),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        out.push(Step::Do(Term::method(object, "clear", Vec::new(), Elem::I32)));
        let all = self.lanes_of(channel, over)?;
        let name = self.names.fresh(across);
        let peer = self.index_in(&name, &all);
        let mut steps = Vec::new();
        let over = self.numbers(scope, over, out)?;
        if over.others || all.others {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ne, self.me())));
        }
        if !over.from.is(0) {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ge, over.from)));
        }
        if over.to != all.to {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Lt, over.to)));
        }
        let inner = scope.of_lane().with(across, Meaning::Value(peer.clone()));
        let entry = match channel.kind.traits().is_indexed {
            true => self.slot_of_part(&inner, channel, (index, position), &mut steps)?,
            false => self.scalar(&inner, position, &mut steps)?,
        };
        let entry = entry.converted(&Elem::I32);
        let call = Term::method(object, "expect", vec![peer, entry], Elem::I32);
        steps.push(Step::Do(call));
        out.push(counted_loop(name, all, Takers::Lanes, steps));
        Ok(())
    }
}

//! Ring channels: roles whose warps are divided over the peers, a stripe after the other.

use super::{Whole, call, cfg_of, method, name, object, team};
use crate::ir::{Action, BinaryOp, Channel, Domain, Elem, Expr, FieldValue, Stmt};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::is_position;
use crate::schedule::scope::{Meaning, Scope, number_of};
use crate::schedule::step::ParamType::{Index, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// The loops of a role `Name[peer]`, around its statements.
    pub(super) fn rings(
        &mut self,
        scope: &Scope,
        binder: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let ring = self.ring_of()?;
        let takes = ring.to == self.role.role.name;
        let peers = self.role.number("ranks");
        let peer = self.role.names.fresh(binder);
        let end = self.role.names.fresh(&ring.name);
        let own =
            Term::small(&peer, 0, peers.range.map_or(i64::from(i32::MAX), |(_, most)| most - 1));
        let mut inner = scope.with(binder, Meaning::Value(own.clone()));
        for word in ["first", "count"] {
            let read = Meaning::Value(method(&end, word, Vec::new()));
            inner.bind(&number_of(&ring.name, word), read);
        }
        let (mut stripes, inner) = self.role.stripes_loop(&inner, Takers::Blocks)?;
        let steps = &mut stripes.body;
        steps.push(Step::Do(method(&end, "open", vec![name(&stripes.binder)])));
        self.ring_statements(&inner, (ring, &end), steps)?;
        if takes {
            let body = &self.role.role.body;
            let received = body.iter().find(|it| matches!(it.action, Action::Receive { .. }));
            steps.extend(received.map(|stmt| self.ending(stmt)));
            steps.push(Step::Do(method(&end, "finish", Vec::new())));
        }
        let kind = if takes { ep::RingConsumer } else { ep::RingProducer };
        let class = kind.of(cfg_of(ring)).of(self.cfg());
        let args = vec![team(), name(&self.mover()), self.sequences(), own];
        out.push(Step::Do(method("team", "split_peers", vec![peers.clone()])));
        out.push(Step::Loop(Loop {
            binder: peer,
            elem: Elem::I32,
            from: Term::int(0),
            to: peers,
            turns: Takers::Parts,
            body: vec![object(class, &end, args), Step::Loop(stripes)],
        }));
        Ok(())
    }

    /// The statements of a stripe. Records at its level are written by one lane of those that share it.
    fn ring_statements(
        &mut self,
        scope: &Scope,
        (ring, end): (&Channel, &str),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut body = self.role.role.body.iter().peekable();
        while let Some(stmt) = body.next() {
            match &stmt.action {
                Action::Record { .. } | Action::Store { .. } => {
                    let mut own = scope.of_lane();
                    let mut once = Vec::new();
                    self.role.one(&mut own, stmt, &mut once);
                    while let Some(next) = body.next_if(|next| {
                        matches!(next.action, Action::Record { .. } | Action::Store { .. })
                    }) {
                        self.role.one(&mut own, next, &mut once);
                    }
                    let once = self.function(&[], &[], |_, _, steps| {
                        *steps = once;
                        Ok(None)
                    })?;
                    out.push(Step::Do(call(ep::once, vec![team(), once])));
                }
                Action::Announce { values, .. } => self.header(scope, (stmt, end), values, out)?,
                Action::For { domain: Domain::Stripe, .. } => {
                    self.ring_send(scope, (ring, end), stmt, out)?;
                }
                Action::For { domain: Domain::Range { low, high }, .. } => {
                    self.ring_send_range(scope, (ring, end), stmt, (low, high), out)?;
                }
                Action::Receive { .. } => self.ring_receive(scope, (ring, end), stmt, out)?,
                _ => return Err(broken("rings are announced, filled and emptied")),
            }
        }
        Ok(())
    }

    /// The numbers of a header stand in one order, whatever that of the declaration.
    fn header(
        &mut self,
        scope: &Scope,
        (stmt, end): (&Stmt, &str),
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        out.push(Step::Says(stmt.at.clone()));
        let mut numbers = Vec::new();
        for word in ["first", "count"] {
            if let Some(value) = values.iter().find(|value| value.name == word) {
                numbers.push(self.role.scalar(scope, &value.value, out)?.converted(&Elem::I32));
            }
        }
        out.push(Step::Do(method(end, "announce", numbers)));
        Ok(())
    }

    /// `for token in stripe where .. { push ring[peer] ..; record ..; }`.
    fn ring_send(
        &mut self,
        scope: &Scope,
        (ring, end): (&Channel, &str),
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, filter, body, .. } = &stmt.action else { return Ok(()) };
        let push = push_of(body)?;
        out.push(Step::Says(stmt.at.clone()));
        let tokens = self.role.span(scope, "tokens", out)?;
        let goes = self.function(&[], &[(Index, binder)], |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(params[0].clone())).of_lane();
            match filter {
                Some(filter) => this.role.scalar(&own, filter, steps).map(Some),
                None => Ok(Some(Term::bool(true))),
            }
        })?;
        let row = self.ring_row(scope, (ring, end), (binder, push))?;
        let params = [(Index, binder.as_str()), (Value(Elem::Bool), "match"), (Index, "position")];
        let each = self.function(&[], &params, |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(params[0].clone()));
            this.records(&own, ring, body, (&params[1], &params[2]), steps)?;
            Ok(None)
        })?;
        let sent = call(ep::for_rows, vec![team(), name(&tokens), goes, row, each]);
        self.ring_sent(end, sent, push, out);
        Ok(())
    }

    /// `for row in a..b { push ring[peer] ..; }`.
    fn ring_send_range(
        &mut self,
        scope: &Scope,
        (ring, end): (&Channel, &str),
        stmt: &Stmt,
        (low, high): (&Expr, &Expr),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, body, .. } = &stmt.action else { return Ok(()) };
        let push = push_of(body)?;
        out.push(Step::Says(stmt.at.clone()));
        let mut ends = Vec::new();
        for number in [low, high] {
            ends.push(self.role.scalar(scope, number, out)?.converted(&Elem::I32));
        }
        let rows = call(ep::span_of, ends);
        let row = self.ring_row(scope, (ring, end), (binder, push))?;
        self.ring_sent(end, call(ep::for_range, vec![team(), rows, row]), push, out);
        Ok(())
    }

    /// Ends a stripe of which `sent` gives the number of rows.
    fn ring_sent(&mut self, end: &str, sent: Term, push: &Stmt, out: &mut Vec<Step>) {
        let sent = self.role.named("sent", sent, out);
        out.push(self.ending(push));
        out.push(Step::Do(method(end, "finish", vec![sent])));
    }

    /// The function that sends one row.
    fn ring_row(
        &mut self,
        scope: &Scope,
        (ring, end): (&Channel, &str),
        (binder, push): (&str, &Stmt),
    ) -> Lowered<Term> {
        let Action::Push { values, .. } = &push.action else {
            return Err(broken("rows are pushed"));
        };
        let params = [(Index, binder), (Index, "position")];
        self.function(&[&push.at], &params, |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(params[0].clone()));
            steps.push(Step::Do(method(end, "wait_credit", vec![params[1].clone()])));
            this.push_row(&own, (ring, end), values, &params[1], steps)?;
            steps.push(Step::Do(method(end, "post", Vec::new())));
            Ok(None)
        })
    }

    /// What a lane records of a token and a peer: a position whether the token goes there or not, any other
    /// value where it does.
    pub(super) fn records(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        body: &[Stmt],
        (goes, position): (&Term, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut own = scope.of_lane();
        for stmt in body {
            let Action::Record { target, value } = &stmt.action else { continue };
            if !is_position(value, channel) {
                let mut steps = Vec::new();
                self.role.one(&mut own, stmt, &mut steps);
                out.push(Step::If { condition: goes.clone(), body: steps });
                continue;
            }
            out.push(Step::Says(stmt.at.clone()));
            let tensor = self.role.tensor(&target.tensor)?;
            let at = self.role.indices(&own, &target.indices, out)?;
            let place = self.role.place(tensor, 0, None, at, None)?;
            let value = call(ep::recorded, vec![goes.clone(), position.clone()]);
            out.push(Step::Set { value: value.converted(&place.elem), place });
        }
        Ok(())
    }

    /// `for message in ring[peer] at .. { store ..; }`.
    fn ring_receive(
        &mut self,
        scope: &Scope,
        (ring, end): (&Channel, &str),
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { binder, body, .. } = &stmt.action else { return Ok(()) };
        let (_, message) = self.role.carried(&ring.name)?;
        let row_field = message.fields.iter().find(|field| field.row);
        out.push(Step::Says(stmt.at.clone()));
        let first = self.role.first_row(scope, stmt, out)?;
        let take = self.function(&[], &[(Index, "position")], |this, params, steps| {
            let position = &params[0];
            let row = this.role.names.fresh("row");
            let messages = this.role.names.fresh(binder);
            let value = match first.is(0) {
                true => position.clone(),
                false => super::binary(BinaryOp::Add, first.clone(), position.clone()),
            };
            let row_of = Term::index(&row);
            steps.push(Step::Let { name: row, value });
            let (mut asks, mut stores) = (Vec::new(), Vec::new());
            for inner in body {
                stores.push(Step::Says(inner.at.clone()));
                if let Action::Store { target, value: Expr::Field { field, .. } } = &inner.action
                    && row_field.is_some_and(|own| own.name == *field)
                {
                    let tensor = this.role.tensor(&target.tensor)?;
                    let place = this.role.place(
                        tensor,
                        0,
                        None,
                        vec![row_of.clone()],
                        Some(Term::int(0)),
                    )?;
                    let to = call(ep::at_leader, vec![place.address()]);
                    let from = method(end, "row", vec![position.clone()]);
                    let mover = this.mover();
                    steps.extend(stores.pop());
                    steps.push(Step::Do(method(&mover, "row", vec![to, from])));
                }
                let of = (ring, binder.as_str(), messages.as_str());
                this.unpack(scope, of, inner, (&mut asks, &mut stores))?;
            }
            let class = Symbol::from(ep::RingMessage).fixed();
            let message = method(end, "message", vec![position.clone(), row_of]);
            steps.push(object(class, &messages, vec![message]));
            steps.append(&mut asks);
            steps.append(&mut stores);
            Ok(None)
        })?;
        out.push(Step::Do(call(ep::for_ring_messages, vec![team(), name(end), take])));
        Ok(())
    }
}

/// The push among some statements.
fn push_of(body: &[Stmt]) -> Lowered<&Stmt> {
    let push = body.iter().find(|inner| matches!(inner.action, Action::Push { .. }));
    push.ok_or_else(|| broken("each turn pushes"))
}

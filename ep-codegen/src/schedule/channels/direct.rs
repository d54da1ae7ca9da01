//! Direct channels: rows that their sender stores where the receiver wants them.

use super::End;
use crate::ir::rows::{is_own_row, row_in_place};
use crate::ir::{Action, Channel, Domain, Elem, Expr, FieldValue, Message, NameKind, Stmt, walk};
use crate::schedule::cut::loops_in_runs;
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};
use crate::schedule::scope::{Arrived, Scope};
use crate::schedule::statements::bind_position;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;
use crate::schedule::value::{Numbers, STRIPE, counted_loop};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// Tells every sender of a direct channel where its rows go.
    pub(in crate::schedule) fn offers(&mut self, out: &mut Vec<Step>) {
        for (channel, end) in self.ends() {
            if channel.kind.traits().lands
                && end == End::In
                && let Err(why) = self.offer_rows(channel, out)
            {
                self.refuse(&channel.at, why);
            }
        }
    }

    fn offer_rows(&mut self, channel: &Channel, out: &mut Vec<Step>) -> Lowered<()> {
        let (_, tensor) = row_in_place(self.ir, channel)
            .ok_or_else(|| Limit::DirectNotInPlace.of(&[&self.role.name, &channel.name]))?;
        let first = tensor.dims.first().ok_or(broken("a tensor without extents"))?;
        let capacity = match first {
            Expr::Name { name, kind: NameKind::Size }
                if self.ir.sizes.iter().any(|size| size.name == *name && size.value.is_some()) =>
            {
                Term::name(format!("args.{name}_capacity"), Elem::I32)
            }
            _ => self.scalar(&Scope::default(), first, out)?.converted(&Elem::I32),
        };
        let args = vec![
            Term::name("team", Elem::I32),
            Term::name(format!("args.{}_at", tensor.name), Elem::I64),
            Term::name(format!("args.{}_meta_at", channel.name), Elem::I64),
            capacity,
        ];
        let call = ep::direct_ready.of(Constant::of_channel(channel));
        out.push(Step::Do(Term::call(call, args, Elem::I32)));
        Ok(())
    }

    /// The stripe that a unit sends or takes. Where nothing is cut into stripes, one warp carries all
    /// rows of a direct channel, and they are its only stripe.
    pub(super) fn stripe_of(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let is_of_team = self.single || self.cut;
        if is_of_team
            && channel.kind.traits().lands
            && scope.find("stripe").is_none()
            && !self.has_stripes()
        {
            return Ok(Term::int(0));
        }
        self.scalar(scope, &STRIPE, out).map_err(|_| Limit::EndOfNoStripe.of(&[&channel.name]))
    }

    /// The position that the next message to a peer gets.
    pub(in crate::schedule) fn next_position(
        &mut self,
        scope: &Scope,
        channel: &str,
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let (declared, _) = self.carried(channel)?;
        if declared.kind.traits().is_indexed {
            return Err(Limit::SlotNotFilled.into());
        }
        let object = self.object_of(channel, End::Out);
        let peer = self.ring(scope, (declared, End::Out), index, out)?;
        let known = self.in_runs.iter().any(|own| own == channel);
        let next = match self.first_of_push(channel, index) {
            _ if known => Term::method(&object, "next", vec![peer], Elem::I32),
            None => Term::method(&object, "position", vec![peer], Elem::I32),
            Some(first) => {
                let first = self.scalar(scope, &first, out)?.converted(&Elem::I32);
                Term::method(&object, "next", vec![peer, first], Elem::I32)
            }
        };
        Ok(self.named("next", next, out))
    }

    /// The position that pushes to these peers give, if the channel needs one.
    fn first_of_push(&self, channel: &str, index: &[Expr]) -> Option<Expr> {
        let mut found = None;
        walk::stmts(&self.role.body, &mut |stmt| {
            if let Action::Push { channel: to, peer, position: Some(position), .. } = &stmt.action
                && to == channel
                && peer.as_ref() == index.first()
            {
                found = Some(position.clone());
            }
        });
        found
    }

    pub(super) fn push_direct(
        &mut self,
        scope: &mut Scope,
        channel: &Channel,
        message: &Message,
        (to, first): (Term, Option<Term>),
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let object = self.object_of(&channel.name, End::Out);
        let mut args = vec![to.clone()];
        args.extend(first);
        let next = Term::method(&object, "next", args, Elem::I32);
        let position = self.named(&format!("{}_position", channel.name), next, out);
        let call = |what| {
            let args = vec![to.clone(), position.clone()];
            Term::method(&object, what, args, Elem::I32)
        };
        let mut steps = Vec::new();
        let row = self.bytes("row", call("row"), false, &mut steps);
        let meta = self.bytes("meta", call("meta"), false, &mut steps);
        self.fill_message(scope, message, values, (row, meta), &mut steps)?;
        let stored = Term::method(&object, "stored", vec![to.clone()], Elem::I32);
        steps.push(Step::Do(stored));
        out.push(Step::If { condition: call("reserve"), body: steps });
        bind_position(scope, &channel.name, position);
        Ok(())
    }

    /// The position of a direct push is that of the stripe's first row for the peer.
    pub(super) fn check_first(&self, peer: &Expr, first: &Expr) -> Lowered<()> {
        let mut moving: Vec<&str> = Vec::new();
        let mut lets: Vec<(&str, &Expr)> = Vec::new();
        walk::stmts(&self.role.body, &mut |stmt| match &stmt.action {
            Action::For {
                binder,
                domain: Domain::Stripe | Domain::Tokens | Domain::Range { .. } | Domain::Row { .. },
                ..
            }
            | Action::Receive { binder, .. } => moving.push(binder),
            Action::Let { name, value } => lets.push((name, value)),
            _ => {}
        });
        // Each peer has a first row, so the position may be read by the peer, or by a `let` of it.
        let mut peers = vec![peer];
        if let Expr::Name { name, .. } = peer {
            peers.extend(values_of(&lets, name));
        }
        let mut parts = vec![first];
        let mut seen: Vec<&str> = Vec::new();
        while let Some(part) = parts.pop() {
            let (mut wrong, mut inside_peer) = (false, 0);
            walk::expr(part, &mut |part| {
                if inside_peer > 0 {
                    inside_peer -= 1;
                    return;
                }
                if peers.contains(&part) {
                    inside_peer = parts_of(part) - 1;
                    return;
                }
                let (Expr::Name { name, .. }
                | Expr::Field { of: name, .. }
                | Expr::Element { tensor: name, .. }) = part
                else {
                    return;
                };
                if !seen.contains(&name.as_str()) {
                    seen.push(name);
                    wrong |= moving.contains(&name.as_str());
                    parts.extend(values_of(&lets, name));
                }
            });
            if wrong {
                return Err(Limit::PositionOfToken.into());
            }
        }
        Ok(())
    }

    /// The messages of a source, of all stripes into which a team cuts what it sends.
    pub(super) fn receive_stripes(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        channel: &Channel,
        source: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let in_runs = loops_in_runs(self.ir, channel, self.rules) > 0;
        if !in_runs || scope.find("stripe").is_some() {
            return self.receive_direct(scope, stmt, &channel.name, source, out);
        }
        let all = (channel, 0, Takers::Serial);
        self.over_stripes(scope, all, out, &mut |this, inner, _, out| {
            this.receive_direct(inner, stmt, &channel.name, source.clone(), out)
        })
    }

    /// Whether one lane can take a message.
    fn takes_by_lane(&self, scope: &Scope, stmt: &Stmt) -> bool {
        let Action::Receive { binder, channel, body, .. } = &stmt.action else { return false };
        let place = self.carried(channel).ok().and_then(|(own, _)| row_in_place(self.ir, own));
        // The row is there.
        let is_row = |inner: &Stmt| match (&inner.action, place) {
            (Action::Store { target, value: Expr::Field { of, .. } }, Some((_, tensor))) => {
                of == binder && target.tensor == tensor.name && is_own_row(&target.indices, binder)
            }
            _ => false,
        };
        let adds = walk::any_stmt(body, &mut |inner| matches!(inner.action, Action::Add { .. }));
        let rest: Vec<Stmt> = body.iter().filter(|inner| !is_row(inner)).cloned().collect();
        !adds && !rest.is_empty() && self.fits_lanes(scope, binder, None, &rest)
    }

    pub(in crate::schedule) fn receive_direct(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        channel: &str,
        source: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { position, .. } = &stmt.action else { return Ok(()) };
        if position.is_some() {
            return Err(Limit::DirectMoved.into());
        }
        let (declared, _) = self.carried(channel)?;
        let stripe = self.stripe_of(scope, declared, out)?;
        let (_, tensor) = row_in_place(self.ir, declared).ok_or(broken("no row in the window"))?;
        let object = self.object(channel);
        let number = |what: &str| Term::index(format!("{object}.{what}()"));
        // Few numbers of a row are the work of a lane, so that those of many rows are under way at once.
        let takers = match self.looks() && !self.cut && self.takes_by_lane(scope, stmt) {
            true => Takers::Lanes,
            false => Takers::Serial,
        };
        let scope = &if takers == Takers::Lanes { scope.of_lane() } else { scope.clone() };
        let mut steps = Vec::new();
        let name = self.names.fresh("index");
        let index = Term::index(&name);
        let row = number("first").plus(index.clone()).converted(&Elem::I32);
        let row = self.named("row", row, &mut steps);
        let row = Term { range: Some((0, i64::from(i32::MAX))), ..row };
        let place = self.place(tensor, 0, None, vec![row.clone()], Some(Term::int(0)))?;
        let bytes = self.bytes("stored", place.address(), true, &mut steps);
        let meta = Term::method(&object, "meta", vec![row.clone()], Elem::U8);
        let meta = self.bytes("meta", meta, true, &mut steps);
        let arrived = Arrived {
            channel: channel.to_string(),
            row: bytes,
            meta,
            numbers: vec![
                ("row", row),
                ("index", index),
                ("source", source.clone()),
                ("part", Term::int(0)),
            ],
        };
        self.with_message(scope, stmt, arrived, &mut steps)?;
        let mut body = Vec::new();
        let mut numbers = Numbers { from: Term::int(0), to: number("rows"), others: false };
        if let Some((share, shares)) = self.share.clone() {
            let own = self.names.fresh("own");
            let args = vec![numbers.to, shares, share];
            let value = Term::call(ep::stripe_span, args, Elem::I32);
            let class = Symbol::from(ep::Span).fixed();
            body.push(Step::Object { class, name: own.clone(), args: vec![value] });
            numbers.from = Term::index(format!("{own}.begin"));
            numbers.to = Term::index(format!("{own}.end"));
        }
        body.push(counted_loop(name, numbers, takers, steps));
        let come = Term::method(&object, "arrived", vec![source, stripe], Elem::Bool);
        out.push(Step::If { condition: come, body });
        Ok(())
    }
}

/// The values of the `let`s of a name.
fn values_of<'a>(lets: &[(&str, &'a Expr)], name: &str) -> Vec<&'a Expr> {
    lets.iter().filter(|(own, _)| *own == name).map(|(_, value)| *value).collect()
}

/// The number of parts of an expression, itself included.
fn parts_of(whole: &Expr) -> usize {
    let mut parts = 0;
    walk::expr(whole, &mut |_| parts += 1);
    parts
}

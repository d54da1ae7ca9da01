//! Roles whose work is dealt by stripes and that send rows of direct channels: several warps send each stripe, a part
//! of it each.
//!
//! What it gains: with one warp for each of a few stripes, the links carry a fraction of what they could. Each warp
//! counts the rows of the stripe before its part, so rows get the positions that a single warp would give them.

use super::runs::{BEGIN, END, PEER};
use super::{Cut, DEPENDENT, ends, first_rows};
use crate::ir::stripes::is_by_stripe;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, Expr, NameKind, PeerSet, Pipeline, Role, Share,
    Source, Stmt, WellKnown, walk,
};
use crate::schedule::channels::End;
use crate::schedule::hazards::{reads, reread};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::where_there;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering, RoleRule, RuleSet};

/// Whether several warps send each stripe of a role, or the statement that keeps them from it with the reason; `None`:
/// the role sends no rows of direct channels by stripes.
pub(in crate::schedule) fn sends_parts(
    ir: &Pipeline,
    role: &Role,
    rules: RuleSet,
) -> Option<Result<(), (Source, &'static str)>> {
    let fits = matches!(role.share, Share::Stripe | Share::Token | Share::Peer { .. });
    let by_stripe = fits && is_by_stripe(ir, role);
    let mut sent = Cut::new(ir, role).sent();
    (rules.has(RoleRule::Cut) && by_stripe && sent.next().is_some())
        .then(|| Cut::new(ir, role).is_in_parts())
}

impl<'p> Cut<'p, '_> {
    /// The direct channels to which the role sends.
    fn sent(self) -> impl Iterator<Item = &'p Channel> {
        let is_own =
            move |it: &&Channel| it.kind.traits().lands && it.from.contains(&self.role.name);
        self.ir.channels.iter().filter(is_own)
    }

    /// Whether the parts of a stripe need neither each other nor an order.
    fn is_in_parts(self) -> Result<(), (Source, &'static str)> {
        let refuse = |stmt: &Stmt, why| Err((stmt.at.clone(), why));
        for stmt in &self.role.body {
            if let Some(why) = self.whole(stmt) {
                return refuse(stmt, why);
            }
        }
        if let Some(stmt) = self.dependent(&self.role.body) {
            return refuse(stmt, DEPENDENT);
        }
        let own = reread(self.role);
        for channel in self.sent() {
            let first = first_rows(&self.role.body, channel);
            let reads = |first: &Expr| own.iter().any(|tensor| reads(first, tensor));
            if first.is_none_or(|first| reads(&first)) {
                let mut pushes =
                    self.role.body.iter().filter(|stmt| walk::pushes_to(stmt, channel));
                let at = pushes.next().map_or(&self.role.at, |stmt| &stmt.at);
                return Err((at.clone(), "where the rows of a stripe begin is not known ahead"));
            }
        }
        let only_sends =
            |it: &Channel| it.to != self.role.name && self.sent().any(|own| own.name == it.name);
        match ends(self.ir, self.role).all(only_sends) {
            true => Ok(()),
            false => Err((self.role.at.clone(), "its other channels need one warp for a stripe")),
        }
    }

    /// Why one warp does a statement for a whole stripe.
    fn whole(self, stmt: &Stmt) -> Option<&'static str> {
        let counts = walk::any_stmt(std::slice::from_ref(stmt), &mut |inner| {
            matches!(inner.action, Action::Count { .. } | Action::Raise { .. })
        });
        let unknown = |it: &Channel| walk::pushes_to(stmt, it) && self.count(stmt, it).is_none();
        match &stmt.action {
            Action::Let { .. } => None,
            _ if counts => Some("it counts for the stripe, or raises a word"),
            Action::For { domain: Domain::Stripe, .. } => match self.order(stmt) {
                None if self.sent().any(unknown) => Some(
                    "how many rows go before those of a turn is not known until one warp has pushed them in order",
                ),
                why => why,
            },
            _ => Some("it is done once for a stripe"),
        }
    }
}

impl<'a> RoleLowering<'a> {
    /// Whether several warps send each stripe.
    pub(in crate::schedule) fn sends_parts(&self) -> bool {
        sends_parts(self.ir, self.role, self.rules).is_some_and(|it| it.is_ok())
    }

    /// The parts of all stripes, in turn.
    pub(in crate::schedule) fn parts_of_stripes(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        let stripes = self.number(WellKnown::Stripes.name());
        let rows = self.striped(&Scope::default(), out)?.converted(&Elem::I32);
        let served = match &self.role.share {
            Share::Peer { binder, set } => Some((binder, set, self.known(set.number())?)),
            _ => None,
        };
        let sets = served.as_ref().map_or(Term::int(1), |(_, _, peers)| peers.clone());
        let longest = Term::call(ep::ceil, vec![rows, stripes.clone()], Elem::I32);
        let cut = Cut::new(self.ir, self.role);
        let channel = cut.sent().next().ok_or(broken("no rows are sent"))?;
        let team = Term::name("team", Elem::I32);
        let to = self.targets(channel, served.is_some(), out)?;
        let class = ep::StripeParts.of(Constant::of_channel(channel));
        let parts = self.names.fresh("parts");
        let args = vec![team, sets.clone(), longest, to];
        out.push(Step::Object { class: class.fixed(), name: parts.clone(), args });
        let (unit, mut steps) = (self.names.fresh("unit"), Vec::new());
        let mut rest = Term::index(&unit);
        let mut scope = Scope::default();
        if let Some((binder, set, peers)) = served {
            let peer = self.taken_from(&mut rest, peers, binder, &mut steps);
            if *set == PeerSet::Others {
                steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ne, self.me())));
            }
            scope.bind(binder, Meaning::Value(peer));
        }
        let part = self.names.fresh("part");
        let args = vec![Term::method(&parts, "at", vec![rest.converted(&Elem::I32)], Elem::I32)];
        let class = Symbol::from(ep::StripePart).fixed();
        steps.push(Step::Object { class, name: part.clone(), args });
        let high = stripes.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
        let own = Term::name(format!("{part}.stripe"), Elem::I32);
        let stripe = self.named("stripe", own, &mut steps);
        let stripe = Term { range: Some((0, high)), ..stripe };
        scope.bind("stripe", Meaning::Value(stripe));
        self.part_of_stripe(scope, &part, &mut steps)?;
        let count = Term::method(&parts, "count", Vec::new(), Elem::I32);
        let to = count.times(sets).converted(&Elem::I32);
        let (elem, from, turns) = (Elem::I32, Term::int(0), Takers::Spread);
        out.push(Step::Loop(Loop { binder: unit, elem, from, to, turns, body: steps }));
        for channel in Cut::new(self.ir, self.role).sent() {
            out.push(self.part_call(channel, "finish", Vec::new()));
        }
        Ok(())
    }

    /// The remainder of a number by `count`; the quotient stays.
    fn taken_from(
        &mut self,
        rest: &mut Term,
        count: Term,
        name: &str,
        out: &mut Vec<Step>,
    ) -> Term {
        let high = count.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
        let of = |op| arithmetic(op, rest.clone(), count.clone()).converted(&Elem::I32);
        let own = self.named(name, of(BinaryOp::Rem), out);
        *rest = of(BinaryOp::Div);
        Term { range: Some((0, high)), ..own }
    }

    fn part_call(&self, channel: &Channel, method: &'static str, args: Vec<Term>) -> Step {
        let object = self.object_of(&channel.name, End::Out);
        Step::Do(Term::method(&object, method, args, Elem::I32))
    }

    /// The statements of a part of a stripe.
    fn part_of_stripe(&mut self, mut scope: Scope, part: &str, out: &mut Vec<Step>) -> Lowered<()> {
        let cut = Cut::new(self.ir, self.role);
        let all = self.span(&scope, "rows", out)?;
        let class = Symbol::from(ep::Span).fixed();
        let own = self.names.fresh("turns");
        let [number, parts] = ["part", "parts"].map(|what| Term::index(format!("{part}.{what}")));
        let args = vec![Term::name(&all, Elem::I32), parts, number];
        let value = Term::call(ep::span_part, args, Elem::I32);
        out.push(Step::Object { class, name: own.clone(), args: vec![value] });
        let end = |span: &str, what| Meaning::Value(Term::index(format!("{span}.{what}")));
        for channel in cut.sent() {
            let mut args = vec![Term::name(part, Elem::I32)];
            args.extend(self.peers_at(&scope, channel, End::Out, out)?);
            out.push(self.part_call(channel, "open_part", args));
        }
        self.first_positions(&scope, &self.role.body, out)?;
        self.in_runs = cut.sent().map(|channel| channel.name.clone()).collect();
        for stmt in &self.role.body {
            if matches!(stmt.action, Action::Let { .. }) {
                self.one(&mut scope, stmt, out);
                continue;
            }
            for channel in cut.sent().filter(|channel| walk::pushes_to(stmt, channel)) {
                let spans = [("begin", &all), ("begin", &own), ("end", &all)];
                let [from, to, end] = spans.map(|(what, span)| end(span, what));
                self.rows_ahead(cut, (&scope, [from, to, end]), (channel, stmt), out)?;
            }
            out.push(Step::Says(stmt.at.clone()));
            let presence = self.presence(&scope, stmt);
            let inner = scope.with(BEGIN, end(&own, "begin")).with(END, end(&own, "end"));
            let mut steps = Vec::new();
            self.turns_between(&inner, stmt, &mut steps)?;
            out.extend(where_there(presence, steps));
        }
        self.in_runs = Vec::new();
        for channel in cut.sent() {
            out.push(self.part_call(channel, "close_part", Vec::new()));
        }
        Ok(())
    }

    /// The peers to which rows of a part go.
    fn targets(
        &mut self,
        channel: &Channel,
        is_shared: bool,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if is_shared || self.peer_of_all(channel).is_some() {
            return Ok(Term::call(ep::one_peer, vec![self.me()], Elem::I32));
        }
        let peers = self.peers_at(&Scope::default(), channel, End::Out, out)?;
        peers.into_iter().next().ok_or(broken("rows go to no peers"))
    }

    /// Says how many rows of a stripe go to each peer before those of its part of a loop.
    fn rows_ahead(
        &mut self,
        cut: Cut<'_, '_>,
        (scope, [from, to, end]): (&Scope, [Meaning; 3]),
        (channel, stmt): (&Channel, &Stmt),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let object = self.object_of(&channel.name, End::Out);
        let only = self.peer_of_all(channel);
        let own = match &only {
            Some(peer) => Some(self.scalar(scope, peer, out)?.converted(&Elem::I32)),
            None => None,
        };
        let pushes = || cut.role.body.iter().filter(|other| walk::pushes_to(other, channel));
        let is_alone = pushes().count() == 1;
        let before = pushes().take_while(|other| !std::ptr::eq(*other, stmt)).map(|it| (it, &end));
        let mut method = "behind";
        for (loops, upto) in before.chain([(stmt, &to)]) {
            let known = cut.rows_of_each(loops, channel, only.as_ref());
            let (binder, turn) = known.ok_or(broken("rows that cannot be counted"))?;
            // A channel whose rows all go to others keeps no count for this rank.
            let turn = match turn {
                Expr::If { condition, yes, .. } if is_alone && is_not_own(&condition) => *yes,
                turn => turn,
            };
            let counts = self.each_turn(scope, (binder, &turn), own.as_ref())?;
            let span = [&from, upto].map(|end| match end {
                Meaning::Value(end) => Ok(end.clone()),
                _ => Err(broken("a span has no ends")),
            });
            let [begin, end] = span;
            let function = match own {
                None => ep::rows_ahead.of(Constant::of_channel(channel).at("kPeers")),
                Some(_) => ep::rows_ahead.of(Term::int(1)),
            };
            let rows = Term::call(function, vec![begin?, end?, counts], Elem::I32);
            let args = match &own {
                None => vec![rows],
                Some(peer) => vec![peer.clone(), rows],
            };
            out.push(Step::Do(Term::method(&object, method, args, Elem::I32)));
            method = "and_behind";
        }
        Ok(())
    }

    /// How many rows a turn of a loop pushes to a peer, or whether it pushes one, as a function of both; each lane asks
    /// for a turn of its own. `only`: the only peer.
    fn each_turn(
        &mut self,
        scope: &Scope,
        (binder, turn): (&str, &Expr),
        only: Option<&Term>,
    ) -> Lowered<Term> {
        let [own, peer] = ["turn", "peer"].map(|name| self.names.fresh(name));
        let to = only.cloned().unwrap_or_else(|| Term::index(&peer));
        let mut inner = scope.with(binder, Meaning::Value(Term::index(&own)));
        inner = inner.with(PEER, Meaning::Value(to));
        inner.by_lane = true;
        let rows = match turn {
            Expr::Cast { value, elem: Elem::I32 } => value,
            turn => turn,
        };
        let mut body = Vec::new();
        let mut gives = self.scalar(&inner, rows, &mut body)?;
        if gives.elem != Elem::Bool {
            gives = gives.converted(&Elem::I32);
        }
        let params = [own, peer].map(|name| Param { kind: ParamType::Index, name }).to_vec();
        Ok(Term::lambda(Lambda { says: Vec::new(), params, body, gives: Some(gives) }))
    }

    /// The peer to which all rows of a channel go: this rank, or the one that the role serves.
    fn peer_of_all(&self, channel: &Channel) -> Option<Expr> {
        let own = |peer: &Expr| match (peer, &self.role.share) {
            (Expr::Name { kind: NameKind::Me, .. }, _) => true,
            (Expr::Name { name, .. }, Share::Peer { binder, .. }) => name == binder,
            _ => false,
        };
        let mut found: Vec<&Expr> = Vec::new();
        walk::stmts(&self.role.body, &mut |stmt| {
            if let Action::Push { channel: to, peer, .. } = &stmt.action
                && *to == channel.name
            {
                found.extend(peer);
            }
        });
        let first = *found.first()?;
        (own(first) && found.iter().all(|peer| *peer == first)).then(|| first.clone())
    }
}

/// Whether a condition says that [`PEER`] is not this rank.
fn is_not_own(condition: &Expr) -> bool {
    let is = |part: &Expr, other: &str| matches!(part, Expr::Name { name, .. } if name == other);
    match condition {
        Expr::Binary { op: BinaryOp::Ne, left, right } => is(left, PEER) && is(right, "me"),
        _ => false,
    }
}

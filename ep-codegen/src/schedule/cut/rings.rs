//! Roles whose work is dealt by stripes and that hold ends of rings: the warps of a block share each stripe.
//!
//! A ring keeps the order of its messages, so a single warp for each stripe would move them one by one. Here the
//! warps take the turns of a loop, or the messages of a ring, as they come free. Each knows how many messages its turn
//! pushes to each ring, takes their positions behind those of the turns before, and moves the rows while others move
//! theirs. The end of the ring tells the peer in order (`ep::Shares`, `RingsEnd`).

use super::runs::PEER;
use super::{Cut, DEPENDENT, ends};
use crate::ir::slots::places;
use crate::ir::stripes::is_by_stripe;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, Expr, PeerSet, Pipeline, Role, Share, Source, Stmt,
    walk,
};
use crate::schedule::channels::End;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::Rings;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::where_there;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering, RoleRule, RuleSet};

/// How the warps that share a stripe carry out a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    /// Each for itself.
    Every,
    /// One of them.
    Once,
    /// All of them go through the turns of a loop, and share what is inside.
    Walk,
    /// They take turns, or the messages of one ring, or tokens.
    Turns,
    /// They take messages of all rings as these come.
    Any,
}

/// The kind of turn that pushes messages.
#[derive(Debug, Clone)]
pub(in crate::schedule) enum Pushing {
    /// One of the stripe's.
    OfStripe,
    /// The message at this index of a ring, which leads to a ring of the same number.
    OfRing(Box<[Term; 2]>),
}

/// Whether the warps of a block share each stripe of a role, or the statement that keeps them from it with the reason;
/// `None`: the role holds no ring by stripes.
pub(in crate::schedule) fn shares_rings(
    ir: &Pipeline,
    role: &Role,
    rules: RuleSet,
) -> Option<Result<(), (Source, &'static str)>> {
    let has_rings = ends(ir, role).any(|it| it.kind.traits().in_order);
    let is_dealt = role.share != Share::Team && is_by_stripe(ir, role);
    (rules.has(RoleRule::Cut) && has_rings && is_dealt).then(|| Cut::new(ir, role).shares_rings())
}

impl<'p> Cut<'p, '_> {
    fn shares_rings(self) -> Result<(), (Source, &'static str)> {
        if !ends(self.ir, self.role).all(|it| it.kind.traits().in_order) {
            return Err((self.role.at.clone(), "its other channels need one warp for a stripe"));
        }
        let (mut pushing, mut any) = (0, false);
        for stmt in &self.role.body {
            let refuse = |why| (stmt.at.clone(), why);
            let kind = self.shared(stmt).map_err(refuse)?;
            if self.out_rings().any(|it| walk::pushes_to(stmt, it)) {
                pushing += 1;
                any |= kind == Shared::Any;
                if any && pushing > 1 {
                    return Err(refuse(
                        "messages of all rings and other statements push to a ring",
                    ));
                }
            }
        }
        match self.dependent(&self.role.body) {
            Some(stmt) => Err((stmt.at.clone(), DEPENDENT)),
            None => Ok(()),
        }
    }

    /// The rings to which the role sends.
    fn out_rings(self) -> impl Iterator<Item = &'p Channel> {
        ends(self.ir, self.role).filter(move |it| it.from.contains(&self.role.name))
    }

    /// How a statement is shared, or why it cannot be.
    fn shared(self, stmt: &Stmt) -> Result<Shared, &'static str> {
        let (mut moves, mut counts, mut asks) = (false, false, false);
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            moves |= matches!(
                inner.action,
                Action::Push { .. } | Action::Receive { .. } | Action::Gather { .. }
            );
            counts |= matches!(
                inner.action,
                Action::Count { .. } | Action::Raise { .. } | Action::AwaitWord { .. }
            );
            walk::exprs(inner, &mut |part| {
                asks |= matches!(part, Expr::OfChannel { field, .. } if field == "position");
            });
        });
        if counts {
            return Err("it counts for the stripe, or raises or awaits a word");
        }
        match &stmt.action {
            Action::Let { .. } => Ok(Shared::Every),
            _ if !moves && asks => Err("where a ring stands is known to one warp"),
            _ if !moves => Ok(Shared::Once),
            Action::For { domain, filter: None, body, .. } if walks(domain, body) => {
                body.iter().try_for_each(|inner| match self.shared(inner)? {
                    Shared::Every | Shared::Walk | Shared::Turns => Ok(()),
                    _ => Err("one warp does a part of each turn"),
                })?;
                Ok(Shared::Walk)
            }
            Action::For { domain: Domain::Peers { set: PeerSet::Others }, .. } => {
                Err("one warp goes through the peers")
            }
            Action::Receive { peer, binder, body, .. } => {
                let index = places(peer.as_ref());
                let is_any = match self.channel_of(stmt).and_then(|it| it.parts_per.as_ref()) {
                    Some(_) => index.len() < 2,
                    None => index.is_empty(),
                };
                if !is_any {
                    return self.in_turns(stmt).map(|()| Shared::Turns);
                }
                if let Some(why) = self.order(stmt) {
                    return Err(why);
                }
                let fits = |channel| self.leads_on(channel, binder, body).is_some();
                match self.out_rings().all(fits) {
                    true => Ok(Shared::Any),
                    false => Err("messages of all rings lead to other rings than their own"),
                }
            }
            Action::For { .. } | Action::Gather { .. } => {
                self.in_turns(stmt)?;
                Ok(Shared::Turns)
            }
            _ => Err("one warp does it"),
        }
    }

    /// Why one warp takes the turns of a statement.
    fn in_turns(self, stmt: &Stmt) -> Result<(), &'static str> {
        if let Some(why) = self.order(stmt) {
            return Err(why);
        }
        let unknown =
            |it: &Channel| walk::pushes_to(stmt, it) && self.rows_of_turn(stmt, it, None).is_none();
        match self.out_rings().any(unknown) {
            true => Err("how many messages a turn pushes is not known ahead of it"),
            false => Ok(()),
        }
    }

    fn channel_of(self, stmt: &Stmt) -> Option<&'p Channel> {
        let (Action::Receive { channel, .. } | Action::Gather { channel, .. }) = &stmt.action
        else {
            return None;
        };
        self.ir.channels.iter().find(|it| it.name == *channel)
    }

    /// How many messages of a ring each message of another one pushes, to the ring of its own number.
    fn leads_on(self, channel: &Channel, binder: &str, body: &[Stmt]) -> Option<i64> {
        let axis = usize::from(channel.parts_per.is_some());
        let (mut all, mut top) = (0, 0);
        walk::stmts(body, &mut |stmt| {
            all += i64::from(
                matches!(&stmt.action, Action::Push { channel: to, .. } if *to == channel.name),
            );
        });
        for stmt in body {
            let Action::Push { channel: to, peer, .. } = &stmt.action else { continue };
            let own = |index: &Expr| {
                matches!(index, Expr::Field { of, field, .. }
                    if of == binder && (field == "source" || field == "part"))
            };
            if *to == channel.name && places(peer.as_ref()).get(axis).is_some_and(own) {
                top += 1;
            }
        }
        (all == top).then_some(top)
    }
}

/// Whether all warps go through the turns of a loop: there are few, and what moves is in loops of its own.
fn walks(domain: &Domain, body: &[Stmt]) -> bool {
    let moves = |stmt: &Stmt| {
        matches!(stmt.action, Action::For { .. } | Action::Receive { .. } | Action::Gather { .. })
    };
    matches!(domain, Domain::Dim { .. } | Domain::Peers { .. })
        && body.iter().all(|stmt| matches!(stmt.action, Action::Let { .. }) || moves(stmt))
}

impl<'a> RoleLowering<'a> {
    /// Whether the warps of a block share each stripe.
    pub(in crate::schedule) fn shares_rings(&self) -> bool {
        !self.single && shares_rings(self.ir, self.role, self.rules).is_some_and(|it| it.is_ok())
    }

    /// Makes the object by which warps share rings, if the role holds any, and says what it needs.
    pub(in crate::schedule) fn open_shares(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        let rings: Vec<_> =
            self.ends().into_iter().filter(|(it, _)| it.kind.traits().in_order).collect();
        if rings.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::new();
        for (channel, end) in rings {
            kept.push(self.kept_number(channel, end)?);
        }
        let mut units = None;
        let mut args = vec![Term::name("team", Elem::I32), Term::name("smem.sequences", Elem::I64)];
        if self.shares_rings() {
            let mut all = Vec::new();
            match &self.role.share.clone() {
                Share::Peer { set, .. } => all.push(self.known(set.number())?),
                Share::SourceStripe => all.push(self.extent_of("source")?),
                Share::Indices { names } => {
                    for name in names.iter().filter(|name| *name != "stripe") {
                        all.push(self.extent_of(name)?);
                    }
                }
                _ => {}
            }
            let numbers: Option<Vec<Constant>> = all.iter().map(Term::as_constant).collect();
            units = Some(numbers.ok_or(broken("units that no number counts"))?);
            args.push(all.into_iter().fold(Term::int(1), Term::times).converted(&Elem::I32));
        }
        let name = self.names.fresh("shares");
        let class = ep::Shares.of(Constant::of_role(self.role));
        out.push(Step::Object { class, name: name.clone(), args });
        self.shares = Some((name, Rings { kept, units }));
        Ok(())
    }

    /// The sequences of the rings at an end of a channel.
    pub(in crate::schedule) fn sequences_of(&self, channel: &Channel, end: End) -> Lowered<Term> {
        let count = match self.kept_number(channel, end)? {
            Some(count) => Term::constant(count),
            None => Term::int(1),
        };
        self.of_shares("take", vec![count])
    }

    fn of_shares(&self, method: &'static str, args: Vec<Term>) -> Lowered<Term> {
        let (name, _) = self.shares.as_ref().ok_or(broken("nobody shares its rings"))?;
        Ok(Term::method(name, method, args, Elem::I32))
    }

    /// Ends the turns of a unit.
    pub(in crate::schedule) fn close_shares(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        if self.shares_rings() {
            out.push(Step::Do(self.of_shares("end", Vec::new())?));
        }
        Ok(())
    }

    /// The statements of a stripe, which the warps of a block share.
    pub(in crate::schedule) fn shared_stmts(
        &mut self,
        scope: &mut Scope,
        body: &'a [Stmt],
        out: &mut Vec<Step>,
    ) {
        let mut once = Vec::new();
        for stmt in body {
            let cut = Cut::new(self.ir, self.role);
            let kind = cut.shared(stmt).unwrap_or(Shared::Once);
            if kind == Shared::Once {
                self.one(scope, stmt, &mut once);
                continue;
            }
            first_part(std::mem::take(&mut once), out);
            if matches!(stmt.action, Action::Let { .. }) {
                self.one(scope, stmt, out);
                continue;
            }
            let presence = self.presence(scope, stmt);
            let mut steps = Vec::new();
            let lowered = match kind {
                Shared::Walk => self.walked(scope, stmt, &mut steps),
                _ => self.in_shared_turns(scope, stmt, &mut steps),
            };
            if let Err(why) = lowered {
                self.refuse(&stmt.at, why);
            }
            out.push(Step::Says(stmt.at.clone()));
            out.extend(where_there(presence, steps));
        }
        first_part(once, out);
    }

    /// A loop through which all warps go.
    fn walked(&mut self, scope: &Scope, stmt: &'a Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        let Action::For { binder, domain, body, .. } = &stmt.action else { return Ok(()) };
        let mut steps = Vec::new();
        let (name, numbers, mut inner) =
            self.counted(scope, binder, domain, body, out, &mut steps)?;
        self.shared_stmts(&mut inner, body, &mut steps);
        out.push(counted_loop(name, numbers, Takers::Serial, steps));
        Ok(())
    }

    /// A loop whose turns the warps take, or messages, or tokens.
    fn in_shared_turns(
        &mut self,
        scope: &Scope,
        stmt: &'a Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        self.turn = Some(Pushing::OfStripe);
        let lowered = match &stmt.action {
            Action::For { .. } => self.shared_loop(scope, stmt, out),
            Action::Gather { .. } => self.gather(scope, stmt, Takers::Parts, out),
            _ => self.statement(&mut scope.clone(), stmt, out),
        };
        self.turn = None;
        lowered
    }

    fn shared_loop(&mut self, scope: &Scope, stmt: &'a Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        let Action::For { binder, domain, filter, body, .. } = &stmt.action else { return Ok(()) };
        let inner = self.with_looks(scope, binder, filter.as_ref(), body, out)?;
        let numbers = self.numbers(&inner, domain, out)?;
        let name = self.names.fresh(binder);
        let index = self.index_in(&name, &numbers);
        let inner = inner.with(binder, Meaning::Value(index));
        let mut steps = Vec::new();
        self.claims(&inner, stmt, None, &mut steps)?;
        self.filtered(&inner, stmt, &mut steps)?;
        self.take_turns(name, numbers, steps, out)
    }

    /// A loop over numbers of which this warp takes some.
    pub(in crate::schedule) fn take_turns(
        &mut self,
        name: String,
        numbers: Numbers,
        mut body: Vec<Step>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let index = self.index_in(&name, &numbers);
        let first = match numbers.from.is(0) {
            true => None,
            false => Some(self.named(&format!("{name}_begin"), numbers.from.clone(), out)),
        };
        let count = arithmetic(BinaryOp::Sub, numbers.to, numbers.from).converted(&Elem::I32);
        let count = self.named(&format!("{name}_count"), count, out);
        let turn = self.names.fresh("turn");
        let value = match first {
            None => Term::index(&turn),
            Some(first) => first.plus(Term::index(&turn)),
        };
        body.insert(0, Step::Let { name, value: value.converted(&index.elem) });
        let next = self.of_shares("next", vec![count])?;
        out.push(Step::Take { name: turn, next, body });
        Ok(())
    }

    /// Takes the positions of all messages that a turn pushes: of those of a loop or gather, or of a message, if it
    /// `passes`.
    pub(in crate::schedule) fn claims(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        passes: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Some(turn) = self.turn.clone() else { return Ok(()) };
        let cut = Cut::new(self.ir, self.role);
        let channels: Vec<&Channel> = cut.out_rings().collect();
        for channel in channels {
            let object = self.object_of(&channel.name, End::Out);
            let call = |method, args| Step::Do(Term::method(&object, method, args, Elem::I32));
            if let Pushing::OfRing(of) = &turn {
                let [ring, index] = &**of;
                let Action::Receive { binder, body, .. } = &stmt.action else { continue };
                let count = cut.leads_on(channel, binder, body).unwrap_or(0);
                let count = match passes {
                    Some(passes) => passes.clone().choose(Term::int(count), Term::int(0)),
                    None => Term::int(count),
                };
                out.push(call("claim", vec![ring.clone(), index.clone(), count]));
                continue;
            }
            if walk::pushes_to(stmt, channel) {
                let mut steps = Vec::new();
                self.expected(scope, (cut, stmt, channel), &mut steps)?;
                match passes {
                    Some(passes) => {
                        out.push(Step::If { condition: passes.clone(), body: steps });
                    }
                    None => out.extend(steps),
                }
            }
            out.push(call("claim", vec![self.of_shares("turn", Vec::new())?]));
        }
        Ok(())
    }

    /// Says how many messages a turn pushes to each ring of a channel.
    fn expected(
        &mut self,
        scope: &Scope,
        (cut, stmt, channel): (Cut<'a, '_>, &Stmt, &Channel),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let unknown = || broken("messages that cannot be counted");
        let object = self.object_of(&channel.name, End::Out);
        let call = |args| Step::Do(Term::method(&object, "expect", args, Elem::I32));
        if let Some(only) = self.only_ring(channel, End::Out) {
            let rows = cut.rows_of_turn(stmt, channel, Some(&only)).ok_or_else(unknown)?;
            let ring = self.scalar(scope, &only, out)?.converted(&Elem::I32);
            let inner = scope.with(PEER, Meaning::Value(ring.clone()));
            let rows = self.scalar(&inner, &rows, out)?.converted(&Elem::I32);
            out.push(call(vec![ring, rows]));
            return Ok(());
        }
        let rows = cut.rows_of_turn(stmt, channel, None).ok_or_else(unknown)?;
        let count = self.kept_number(channel, End::Out)?.ok_or_else(unknown)?;
        let range = Some((1, 1 << 10));
        let to = Term { range, ..Term::constant(count) };
        let numbers = Numbers { from: Term::int(0), to, others: false };
        let name = self.names.fresh("ring");
        let ring = self.index_in(&name, &numbers);
        let inner = scope.of_lane().with(PEER, Meaning::Value(ring.clone()));
        let mut steps = Vec::new();
        let rows = self.scalar(&inner, &rows, &mut steps)?.converted(&Elem::I32);
        steps.push(call(vec![ring, rows]));
        out.push(counted_loop(name, numbers, Takers::Lanes, steps));
        Ok(())
    }
}

/// Steps of one of the warps that share a stripe.
fn first_part(body: Vec<Step>, out: &mut Vec<Step>) {
    if !body.is_empty() {
        let condition = Term::name("team.part", Elem::I32).test(BinaryOp::Eq, Term::int(0));
        out.push(Step::If { condition, body });
    }
}

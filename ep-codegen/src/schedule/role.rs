//! What a role's share deals out: one warp carries each unit, from its first statement to its last.

use super::channels::End;
use super::cut::{first_rows, loops_in_runs};
use super::hazards::reads;
use super::loops::is_indexed_by;
use super::one_warp::has_one_warp;
use super::scope::{Meaning, Scope};
use super::statements::where_there;
use super::step::{Loop, Step, Takers};
use super::term::{Term, arithmetic, counting};
use super::{Lowered, RoleLowering};
use crate::ir::params::{ParamKind, params};
use crate::ir::stripes::is_by_stripe;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, Expr, Fold, NameKind, PeerSet, Share, Stmt, WellKnown,
    walk,
};
use crate::schedule::extents::has_stripes;
use crate::schedule::library::ep;
use crate::schedule::limit::Limit;

impl RoleLowering<'_> {
    /// All steps of the role.
    pub(super) fn role(&mut self) -> Vec<Step> {
        let mut out = Vec::new();
        self.single = !self.cut
            && self.role.share == Share::Team
            && (!self.reread.is_empty() || !self.ends().is_empty());
        self.check_hazards();
        self.own_experts(&mut out);
        self.offers(&mut out);
        self.rooms(&mut out);
        self.fills(&mut out);
        self.open_objects(&mut out);
        let at = self.role.at.clone();
        if let Err(why) = self.units(&mut out) {
            self.refuse(&at, why);
        }
        self.release_ends(&mut out);
        out
    }

    /// Stops the role where the caller's outputs hold fewer rows than it writes in all.
    pub(super) fn rooms(&mut self, out: &mut Vec<Step>) {
        // Where rows land, their senders see for themselves that there is no room.
        let lands =
            |(channel, end): &(&Channel, End)| channel.kind.traits().lands && *end == End::In;
        if self.ends().iter().any(lands) {
            return;
        }
        let capacities: Vec<(String, String)> = params(self.ir)
            .0
            .into_iter()
            .filter_map(|param| match param.kind {
                ParamKind::Capacity { size } => Some((size, param.name)),
                _ => None,
            })
            .collect();
        let mut sizes: Vec<String> = Vec::new();
        walk::stmts(&self.role.body, &mut |stmt| {
            let place = walk::target(stmt);
            let tensor = place.and_then(|place| {
                self.ir.tensors.iter().find(|tensor| tensor.name == place.tensor)
            });
            if let Some(Expr::Name { name, kind: NameKind::Size }) =
                tensor.and_then(|tensor| tensor.dims.first())
                && !sizes.contains(name)
            {
                sizes.push(name.clone());
            }
        });
        for (size, capacity) in capacities.into_iter().filter(|(size, _)| sizes.contains(size)) {
            let Ok(rows) = self.size(&Scope::default(), &size, out) else { continue };
            let args = vec![
                Term::name("team", Elem::I32),
                rows.converted(&Elem::I32),
                Term::name(format!("args.{capacity}"), Elem::I32),
            ];
            out.push(Step::Do(Term::call(ep::require_room, args, Elem::I32)));
        }
    }

    /// The units of the role's work, in turn.
    fn units(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        let scope = Scope::default();
        match &self.role.share.clone() {
            Share::Team if self.cut => self.cut_team(out),
            Share::Team => self.team(&scope, out),
            _ if self.sends_parts() => self.parts_of_stripes(out),
            _ if self.by_slices() => self.slices_of_stripes(out),
            Share::Peer { binder, set } => {
                self.note_stripes();
                self.peers(&scope, binder, set, out)
            }
            Share::Stripe | Share::Token | Share::BlockPerToken
                if is_by_stripe(self.ir, self.role) =>
            {
                let shares = self.shares_rings();
                let takers = if shares { Takers::Blocks } else { Takers::Spread };
                let stripes = self.stripes_loop(&scope, takers)?;
                self.closers = Some(stripes.0.to.clone());
                self.note_stripes();
                self.unit(stripes, out)
            }
            Share::Stripe | Share::Token | Share::BlockPerToken => self.dealt(&scope, out),
            Share::SourceStripe => {
                self.pairs(&scope, &["source".to_string(), "stripe".to_string()], out)
            }
            Share::Indices { names } => self.pairs(&scope, names, out),
        }
    }

    /// Whether the rows of a call are cut into stripes.
    pub(super) fn has_stripes(&self) -> bool {
        has_stripes(self.ir)
    }

    /// A loop over stripes, and what the names mean in it.
    pub(super) fn stripes_loop(&mut self, scope: &Scope, turns: Takers) -> Lowered<(Loop, Scope)> {
        if !self.has_stripes() {
            return Err(Limit::NoStripes.into());
        }
        let name = self.names.fresh("stripe");
        let to = self.number(WellKnown::Stripes.name());
        let high = to.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
        let meaning = Meaning::Value(Term::small(&name, 0, high));
        let repeat =
            Loop { binder: name, elem: Elem::I32, from: Term::int(0), to, turns, body: Vec::new() };
        Ok((repeat, scope.with("stripe", meaning)))
    }

    /// One unit in each turn of a loop.
    fn unit(&mut self, (mut repeat, scope): (Loop, Scope), out: &mut Vec<Step>) -> Lowered<()> {
        let mut body = Vec::new();
        self.carry(&scope, &mut body)?;
        repeat.body = body;
        out.push(Step::Loop(repeat));
        Ok(())
    }

    /// The statements of one unit, between the opening and the closing of its channels.
    pub(super) fn carry(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<()> {
        self.open(scope, out)?;
        let body = &self.role.body;
        let (sends, takes) = body.split_at(self.sent_before_taken());
        let mut scope = scope.clone();
        if self.shares_rings() {
            self.shared_stmts(&mut scope, body, out);
            self.close(out);
            return self.close_shares(out);
        }
        self.first_positions(&scope, sends, out)?;
        self.in_order(&mut scope, sends, out);
        self.in_runs = Vec::new();
        self.close(out);
        self.close_runs(&scope, out)?;
        self.in_order(&mut scope, takes, out);
        Ok(())
    }

    /// Says where the rows of a unit begin for each peer, where that is known ahead of its pushes.
    pub(super) fn first_positions(
        &mut self,
        scope: &Scope,
        sends: &[Stmt],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        for (channel, end) in self.ends() {
            let lands = channel.kind.traits().lands && end == End::Out;
            let is_known = lands && (self.looks() || self.sends_parts());
            let reads_own = |first: &Expr| self.reread.iter().any(|own| reads(first, own));
            let is_known = |first: &Expr| is_known && !reads_own(first);
            let Some(first) = first_rows(sends, channel).filter(is_known) else { continue };
            let object = self.object_of(&channel.name, end);
            let each = (channel, Takers::Lanes);
            self.for_peers(scope, each, out, &mut |this, scope, peer, steps| {
                let first = this.scalar(scope, &first, steps)?.converted(&Elem::I32);
                let begin = Term::method(&object, "begin", vec![peer, first], Elem::I32);
                steps.push(Step::Do(begin));
                Ok(())
            })?;
            self.in_runs.push(channel.name.clone());
        }
        Ok(())
    }

    /// Closes the stripes that the receivers of a direct channel expect of runs, where one warp has sent all rows.
    fn close_runs(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<()> {
        for (channel, end) in self.ends() {
            if end != End::Out || !self.single || loops_in_runs(self.ir, channel, self.rules) == 0 {
                continue;
            }
            let object = self.object_of(&channel.name, End::Out);
            let rest = (channel, 1, Takers::Serial);
            self.over_stripes(scope, rest, out, &mut |this, scope, stripe, steps| {
                let mut args = vec![stripe];
                args.extend(this.peers_at(scope, channel, end, steps)?);
                steps.push(Step::Do(Term::method(&object, "open", args, Elem::I32)));
                steps.push(Step::Do(Term::method(&object, "close", Vec::new(), Elem::I32)));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// How many statements come before the ends are closed: all of them, unless the role takes what it
    /// sends itself. Then its peers do the same, and wait for the end of what was sent.
    fn sent_before_taken(&self) -> usize {
        let body = &self.role.body;
        let both = |channel: &&Channel| {
            channel.kind.traits().ends_when_closed
                && channel.to == self.role.name
                && channel.from.contains(&self.role.name)
        };
        let takes = |stmt: &Stmt| {
            walk::any_stmt(std::slice::from_ref(stmt), &mut |inner| {
                matches!(&inner.action, Action::Receive { channel, .. }
                    if self.ir.channels.iter().filter(both).any(|own| own.name == *channel))
            })
        };
        body.iter().position(takes).unwrap_or(body.len())
    }

    /// `Role[peer]`: each warp takes peers in turn, and goes through the stripes of its block for each. Without
    /// stripes, the warps of the grid take the peers.
    fn peers(
        &mut self,
        scope: &Scope,
        binder: &str,
        set: &PeerSet,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let peers = self.known(set.number())?;
        let name = self.names.fresh(binder);
        let high = peers.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
        let peer = Term::small(&name, 0, high);
        let inner = scope.with(binder, Meaning::Value(peer.clone()));
        let mut body = Vec::new();
        if *set == PeerSet::Others {
            body.push(Step::SkipUnless(peer.test(BinaryOp::Ne, self.me())));
        }
        let served = match set {
            PeerSet::Others => arithmetic(BinaryOp::Sub, peers.clone(), Term::int(1)),
            _ => peers.clone(),
        };
        let turns = match is_by_stripe(self.ir, self.role) {
            true => {
                let stripes = self.stripes_loop(&inner, Takers::Blocks)?;
                self.closers = Some(stripes.0.to.clone().times(served));
                self.unit(stripes, &mut body)?;
                if self.shares_rings() { Takers::Parts } else { Takers::WarpsOfBlock }
            }
            false => {
                self.closers = Some(served);
                self.carry(&inner, &mut body)?;
                Takers::Warps
            }
        };
        let (elem, from) = (Elem::I32, Term::int(0));
        out.push(Step::Loop(Loop { binder: name, elem, from, to: peers, turns, body }));
        Ok(())
    }

    /// Statements of a role whose warps take the turns of its outer loops.
    fn dealt(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<()> {
        self.open(scope, out)?;
        self.closers = Some(Term::method("team", "count", Vec::new(), Elem::I32));
        let mut scope = scope.clone();
        let body = &self.role.body;
        for stmt in body {
            self.dealt_stmt(&mut scope, stmt, out);
        }
        self.close(out);
        Ok(())
    }

    pub(super) fn dealt_stmt(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) {
        let mut steps = Vec::new();
        let lowered = match &stmt.action {
            Action::For { domain: Domain::Once, body, .. } => {
                let presence = self.presence(scope, stmt);
                let carried = self.once(scope, stmt, &mut steps, &mut |this, inner, out| {
                    let mut inner = inner.clone();
                    body.iter().for_each(|stmt| this.dealt_stmt(&mut inner, stmt, out));
                });
                steps = where_there(presence, steps);
                carried
            }
            Action::For { binder, position: None, domain, body, .. }
                if !matches!(domain, Domain::Row { .. }) && adds_apart(binder, body) =>
            {
                let threads =
                    self.fits_lanes(scope, binder, Some(domain), body) && !self.adds_up_many(body);
                let turns = if threads { Takers::Threads } else { Takers::Warps };
                self.turns(scope, stmt, turns, &mut steps)
            }
            Action::Gather { .. } => self.gather(scope, stmt, Takers::Warps, &mut steps),
            // Every warp waits for itself, and says that it is done.
            Action::Let { .. }
            | Action::Await { .. }
            | Action::AwaitWord { .. }
            | Action::Close { .. } => {
                self.one(scope, stmt, out);
                return;
            }
            Action::Raise { .. } => Err(Limit::WordOfTeam.of(&["raise"])),
            _ => {
                self.note_loop(stmt);
                let mut once = Vec::new();
                self.one(scope, stmt, &mut once);
                out.push(one_warp(stmt, once));
                return;
            }
        };
        if let Err(why) = lowered {
            self.refuse(&stmt.at, why);
        }
        out.push(Step::Says(stmt.at.clone()));
        out.extend(steps);
    }

    /// Whether a turn adds up so many numbers that a warp shares them.
    fn adds_up_many(&self, body: &[Stmt]) -> bool {
        let mut found = false;
        walk::stmts(body, &mut |stmt| {
            walk::exprs(stmt, &mut |part| {
                found |= matches!(part, Expr::Fold { fold: Fold::Sum, domain, .. }
                    if matches!(**domain, Domain::Tokens | Domain::Stripe));
            });
        });
        found && self.cut
    }

    /// The role as one team: its loops are spread over all threads, unless one statement needs what
    /// another one has written, or a channel: then one warp does everything in order.
    fn team(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<()> {
        if !self.single {
            return self.dealt(scope, out);
        }
        if self.ends().iter().any(|(channel, _)| channel.kind.traits().opens_in) {
            return Err(Limit::RingOfTeam.into());
        }
        let mut steps = Vec::new();
        self.closers = Some(Term::int(1));
        self.carry(scope, &mut steps)?;
        match has_one_warp(self.role) {
            true => out.extend(steps),
            false => {
                self.note_team();
                out.push(first_warp(steps));
            }
        }
        Ok(())
    }
}

/// Whether no two turns of a loop add to one element.
fn adds_apart(binder: &str, body: &[Stmt]) -> bool {
    let mut apart = true;
    walk::stmts(body, &mut |stmt| {
        if let Action::Add { target, .. } = &stmt.action {
            apart &= is_indexed_by(&target.indices, binder);
        }
    });
    apart
}

/// Steps of one warp of the role: what is written once is the last one's, since loops keep the first ones busy.
pub(super) fn one_warp(stmt: &Stmt, body: Vec<Step>) -> Step {
    if !matches!(stmt.action, Action::Store { .. } | Action::Record { .. }) {
        return first_warp(body);
    }
    let of_team = |what| Term::method("team", what, Vec::new(), Elem::I32);
    let last = counting(BinaryOp::Sub, of_team("count"), Term::int(1));
    Step::If { condition: of_team("index").test(BinaryOp::Eq, last), body }
}

/// Steps of the first warp of the role alone.
pub(super) fn first_warp(body: Vec<Step>) -> Step {
    let first =
        Term::method("team", "index", Vec::new(), Elem::I32).test(BinaryOp::Eq, Term::int(0));
    Step::If { condition: first, body }
}

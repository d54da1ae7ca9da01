//! The steps of a role that is cut.

use super::runs::{BEGIN, END};
use super::{Cut, Deal, PEER, RUNS, Touched, first_rows, loops_in_runs};
use crate::ir::put::mentions;
use crate::ir::{Action, BinaryOp, Channel, Domain, Elem, Expr, PeerSet, Stmt, walk};
use crate::schedule::channels::End;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::role::{first_warp, one_warp};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::where_there;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering};

/// Emits the steps for one peer or one stripe, given its number.
pub(super) type ForEach<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, &Scope, Term, &mut Vec<Step>) -> Lowered<()> + 'f;

/// Emits other steps for a statement, if it has any.
pub(in crate::schedule) type Instead<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, &'a Stmt, &mut Vec<Step>) -> Lowered<bool> + 'f;

/// What stands in the order of a role that is cut.
enum Item<'p> {
    /// Counts the rows of the runs of a loop.
    Counts(&'p Stmt),
    /// A statement of the declaration.
    Says(&'p Stmt),
}

impl<'a> RoleLowering<'a> {
    /// All statements of a role that is cut.
    pub(in crate::schedule) fn cut_team(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        let forwards = self.forwards.clone();
        let cut = Cut { forwards: &forwards, ..Cut::new(self.ir, self.role) };
        self.closers = Some(Term::method("team", "count", Vec::new(), Elem::I32));
        let mut scope = Scope::default();
        let mut since = Touched::default();
        let alone: Vec<(&Channel, Option<[&Stmt; 2]>)> = self.sent_by_one(cut);
        for (channel, _) in alone.iter().filter(|(_, pushes)| pushes.is_none()) {
            self.opened_by_one(channel, out)?;
            self.closed_by_one(channel, out);
        }
        for (item, touched) in self.items(cut) {
            if since.before(&touched) {
                self.meet_all(out);
                since = Touched::default();
            }
            since.add(&touched);
            let stmt = match item {
                Item::Counts(stmt) => {
                    self.counts(cut, &scope, stmt, out)?;
                    continue;
                }
                Item::Says(stmt) => stmt,
            };
            let is_end = |pushes: &Option<[&Stmt; 2]>, end: usize| {
                pushes.is_some_and(|pushes| std::ptr::eq(pushes[end], stmt))
            };
            for (channel, _) in alone.iter().filter(|(_, pushes)| is_end(pushes, 0)) {
                self.opened_by_one(channel, out)?;
            }
            self.dealt_out(cut, &mut scope, stmt, out);
            for (channel, _) in alone.iter().filter(|(_, pushes)| is_end(pushes, 1)) {
                self.closed_by_one(channel, out);
            }
        }
        Ok(())
    }

    /// Statements dealt out to the warps of one block, which meet where a statement needs what others have written.
    /// `instead(self, stmt, out)`: whether it has other steps for a statement.
    pub(in crate::schedule) fn team_of_block(
        &mut self,
        stmts: &[&'a Stmt],
        out: &mut Vec<Step>,
        instead: &mut Instead<'a, '_>,
    ) -> Lowered<()> {
        self.of_block = true;
        let forwards = self.forwards.clone();
        let cut = Cut { forwards: &forwards, ..Cut::new(self.ir, self.role) };
        let (mut scope, mut since) = (Scope::default(), Touched::default());
        for stmt in stmts {
            let touched = Touched::of(cut, stmt);
            if since.before(&touched) {
                out.push(Step::Do(Term::call(ep::meet_block, Vec::new(), Elem::I32)));
                since = Touched::default();
            }
            since.add(&touched);
            if !instead(self, stmt, out)? {
                self.dealt_out(cut, &mut scope, stmt, out);
            }
        }
        Ok(())
    }

    /// The direct channels whose rows one warp of the role sends, with the first and the last statement that pushes to
    /// each, if any does.
    fn sent_by_one<'p>(&self, cut: Cut<'p, '_>) -> Vec<(&'p Channel, Option<[&'p Stmt; 2]>)> {
        let is_own = |channel: &&Channel| {
            channel.kind.traits().opens_out
                && channel.from.contains(&cut.role.name)
                && cut.loops_of(channel).is_none()
        };
        let with_pushes = |channel: &'p Channel| {
            let mut pushes = cut.role.body.iter().filter(|stmt| walk::pushes_to(stmt, channel));
            let first = pushes.next();
            (channel, first.map(|first| [first, pushes.next_back().unwrap_or(first)]))
        };
        cut.ir.channels.iter().filter(is_own).map(with_pushes).collect()
    }

    /// The statements in order, with what each touches. Rows are counted as soon as that can be told.
    fn items<'p>(&self, cut: Cut<'p, '_>) -> Vec<(Item<'p>, Touched)> {
        let mut items: Vec<(Item<'p>, Touched)> = Vec::new();
        for stmt in &cut.role.body {
            let mut touched = Touched::of(cut, stmt);
            if cut.deal(stmt) == Deal::Runs {
                // Counts are kept in the window, under names that no tensor has.
                let own = cut
                    .ir
                    .channels
                    .iter()
                    .filter(|it| it.kind.traits().lands && walk::pushes_to(stmt, it));
                let counts: Vec<String> = own.map(|it| format!("rows of {}", it.name)).collect();
                let rows = Self::loops_that_push(cut, stmt).into_iter();
                let rows: Vec<Expr> = rows.filter_map(|(it, _)| cut.count(stmt, it)).collect();
                let mut ahead = Touched { read: Vec::new(), written: counts.clone() };
                rows.iter().for_each(|it| ahead.add(&Touched::by(cut, it)));
                let behind = items.iter().rposition(|(item, before)| {
                    // A name has its value behind its `let`.
                    let names = matches!(item, Item::Says(Stmt { action: Action::Let { name, .. }, .. })
                        if rows.iter().any(|it| mentions(it, name)));
                    names || before.before(&ahead)
                });
                items.insert(behind.map_or(0, |at| at + 1), (Item::Counts(stmt), ahead));
                touched.read.extend(counts);
            }
            items.push((Item::Says(stmt), touched));
        }
        items
    }

    /// One statement, dealt out to the warps.
    fn dealt_out(
        &mut self,
        cut: Cut<'_, '_>,
        scope: &mut Scope,
        stmt: &'a Stmt,
        out: &mut Vec<Step>,
    ) {
        match cut.deal(stmt) {
            Deal::Every | Deal::Turns | Deal::Parts => self.dealt_stmt(scope, stmt, out),
            Deal::One => {
                self.note_alone(stmt, cut.why(stmt));
                let mut once = Vec::new();
                self.one(scope, stmt, &mut once);
                out.push(one_warp(stmt, once));
            }
            Deal::Messages => {
                out.push(Step::Says(stmt.at.clone()));
                let mut steps = Vec::new();
                let presence = self.presence(scope, stmt);
                if let Err(why) = self.messages(scope, stmt, &mut steps) {
                    self.refuse(&stmt.at, why);
                }
                out.extend(where_there(presence, steps));
            }
            Deal::Runs => {
                out.push(Step::Says(stmt.at.clone()));
                if let Err(why) = self.runs(cut, scope, stmt, out) {
                    self.refuse(&stmt.at, why);
                }
            }
        }
    }

    /// All warps of the role meet.
    fn meet_all(&mut self, out: &mut Vec<Step>) {
        let number = Term::int(self.meets as i64);
        self.meets += 1;
        let meet = ep::meet.of(Constant::of_role(self.role)).of(number);
        out.push(Step::Do(Term::call(meet, vec![Term::name("team", Elem::I32)], Elem::I32)));
    }

    // ---- Rows that go to places in order ----

    /// A loop over the runs of a loop, with the first turn of a run and the first one behind it.
    fn over_runs(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<(Loop, Scope, Vec<Step>)> {
        let run = self.names.fresh("run");
        let part = (Term::small(&run, 0, RUNS - 1), Term::int(RUNS));
        let mut steps = Vec::new();
        let inner = self.part_of(scope, stmt, part, out, &mut steps)?;
        let (from, to) = (Term::int(0), Term::int(RUNS));
        let repeat = Loop {
            binder: run,
            elem: Elem::I32,
            from,
            to,
            turns: Takers::Spread,
            body: Vec::new(),
        };
        Ok((repeat, inner, steps))
    }

    /// The first turn of one of so many parts of a loop and the first one behind it, as [`BEGIN`] and [`END`]; what
    /// is the same for all parts goes `out`.
    fn part_of(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        (part, parts): (Term, Term),
        out: &mut Vec<Step>,
        steps: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let Action::For { domain, .. } = &stmt.action else { return Err(broken("no loop")) };
        let numbers = self.numbers(scope, domain, out)?;
        let from_zero = numbers.from.is(0);
        // Each turn would load it again.
        let first = match from_zero {
            true => numbers.from,
            false => self.named("first", numbers.from, out),
        };
        let turns = match from_zero {
            true => numbers.to.clone(),
            false => {
                let count = arithmetic(BinaryOp::Sub, numbers.to.clone(), first.clone());
                Term::call(ep::max, vec![count.wide(), Term::int(0).wide()], Elem::I64)
            }
        };
        let span = self.names.fresh("turns");
        let args = vec![turns.converted(&Elem::I32), parts, part];
        let class = Symbol::from(ep::Span).fixed();
        let cut = Term::call(ep::stripe_span, args, Elem::I32);
        steps.push(Step::Object { class, name: span.clone(), args: vec![cut] });
        let end = |what| {
            let own = Term::index(format!("{span}.{what}"));
            if from_zero { own } else { first.clone().plus(own) }
        };
        let begin = scope.with(BEGIN, Meaning::Value(end("begin")));
        Ok(begin.with(END, Meaning::Value(end("end"))))
    }

    /// The statements of a unit of the role's work of which this warp takes one of so many shares.
    pub(in crate::schedule) fn share_of_unit(
        &mut self,
        scope: &Scope,
        share: (Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut scope = scope.clone();
        let role = self.role;
        for stmt in &role.body {
            if matches!(stmt.action, Action::Let { .. }) {
                self.one(&mut scope, stmt, out);
                continue;
            }
            if matches!(stmt.action, Action::Receive { .. }) {
                self.share = Some(share.clone());
                self.one(&mut scope, stmt, out);
                self.share = None;
                continue;
            }
            out.push(Step::Says(stmt.at.clone()));
            let (mut ahead, mut steps) = (Vec::new(), Vec::new());
            let presence = self.presence(&scope, stmt);
            let inner = self.part_of(&scope, stmt, share.clone(), &mut ahead, &mut steps)?;
            self.turns_between(&inner, stmt, &mut steps)?;
            ahead.extend(steps);
            out.extend(where_there(presence, ahead));
        }
        Ok(())
    }

    /// The turns of a loop from [`BEGIN`] up to [`END`].
    pub(super) fn turns_between(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, body, .. } = &stmt.action else { return Ok(()) };
        let end = |name| match scope.find(name) {
            Some(Meaning::Value(term)) => Ok(term.clone()),
            _ => Err(broken("a part of a loop without an end")),
        };
        let numbers = Numbers { from: end(BEGIN)?, to: end(END)?, others: self.leaves_out(stmt) };
        let name = self.names.fresh(binder);
        let turn = self.index_in(&name, &numbers);
        let (turns, own) = match self.fits_lanes(scope, binder, Some(domain), body) {
            true => (Takers::Lanes, scope.of_lane()),
            false => (Takers::Serial, scope.clone()),
        };
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(turn.clone().test(BinaryOp::Ne, self.me())));
        }
        let own = own.with(binder, Meaning::Value(turn));
        self.filtered(&own, stmt, &mut steps)?;
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }

    /// The direct channels to which a loop pushes, with the number of the loop among those that do.
    fn loops_that_push<'p>(cut: Cut<'p, '_>, stmt: &Stmt) -> Vec<(&'p Channel, i64)> {
        let number = |channel: &'p Channel| {
            let loops = cut.loops_of(channel)?;
            let at = loops.iter().position(|own| std::ptr::eq(*own, stmt))?;
            Some((channel, at as i64))
        };
        cut.ir.channels.iter().filter_map(number).collect()
    }

    /// Counts what the runs of a loop push to each peer.
    fn counts(
        &mut self,
        cut: Cut<'_, '_>,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (mut runs, inner, mut steps) = self.over_runs(scope, stmt, out)?;
        for (channel, number) in &Self::loops_that_push(cut, stmt) {
            let rows = cut.count(stmt, channel).ok_or(broken("rows that cannot be counted"))?;
            let stripe = Term::small(&runs.binder, 0, RUNS - 1).plus(Term::int(*number * RUNS));
            let object = self.object_of(&channel.name, End::Out);
            let each = (*channel, Takers::Serial);
            self.for_peers(&inner, each, &mut steps, &mut |this, scope, peer, steps| {
                let rows = this.scalar(scope, &rows, steps)?.converted(&Elem::I32);
                let args = vec![peer, stripe.clone(), rows];
                steps.push(Step::Do(Term::method(&object, "count", args, Elem::I32)));
                Ok(())
            })?;
        }
        runs.body = steps;
        out.push(Step::Remark("How many rows each run sends to each peer.".to_string()));
        out.push(Step::Loop(runs));
        Ok(())
    }

    /// A loop over the peers of a channel, each known as [`PEER`].
    pub(in crate::schedule) fn for_peers(
        &mut self,
        scope: &Scope,
        (channel, turns): (&Channel, Takers),
        out: &mut Vec<Step>,
        each: &mut ForEach<'a, '_>,
    ) -> Lowered<()> {
        let to = self.known(channel.per.number())?;
        let numbers = Numbers { from: Term::int(0), to, others: channel.per == PeerSet::Others };
        let name = self.names.fresh("peer");
        let peer = self.index_in(&name, &numbers);
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ne, self.me())));
        }
        let mut inner = scope.with(PEER, Meaning::Value(peer.clone()));
        inner.by_lane |= turns == Takers::Lanes;
        each(self, &inner, peer, &mut steps)?;
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }

    /// The runs of a loop that pushes rows.
    fn runs(
        &mut self,
        cut: Cut<'_, '_>,
        scope: &Scope,
        stmt: &'a Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (mut runs, inner, mut steps) = self.over_runs(scope, stmt, out)?;
        let channels = Self::loops_that_push(cut, stmt);
        let mut closes = Vec::new();
        for (channel, number) in &channels {
            let object = self.object_of(&channel.name, End::Out);
            let stripe = Term::small(&runs.binder, 0, RUNS - 1).plus(Term::int(*number * RUNS));
            let mut args = vec![stripe];
            args.extend(self.peers_at(&inner, channel, End::Out, &mut steps)?);
            steps.push(Step::Do(Term::method(&object, "open", args, Elem::I32)));
            let first =
                first_rows(std::slice::from_ref(stmt), channel).ok_or(broken("no position"))?;
            let each = (*channel, Takers::Serial);
            self.for_peers(&inner, each, &mut steps, &mut |this, scope, peer, steps| {
                let first = this.scalar(scope, &first, steps)?.converted(&Elem::I32);
                let begin = Term::method(&object, "begin_run", vec![peer, first], Elem::I32);
                steps.push(Step::Do(begin));
                Ok(())
            })?;
            closes.push(Step::Do(Term::method(&object, "close", Vec::new(), Elem::I32)));
        }
        self.in_runs = channels.iter().map(|(channel, _)| channel.name.clone()).collect();
        let lowered = self.turns_between(&inner, stmt, &mut steps);
        self.in_runs = Vec::new();
        lowered?;
        steps.extend(closes);
        runs.body = steps;
        out.push(Step::Loop(runs));
        Ok(())
    }

    /// Whether a loop leaves this rank out.
    fn leaves_out(&self, stmt: &Stmt) -> bool {
        matches!(&stmt.action, Action::For { domain: Domain::Peers { set: PeerSet::Others }, .. })
    }

    /// Opens the end of a channel to which one warp sends.
    fn opened_by_one(&mut self, channel: &Channel, out: &mut Vec<Step>) -> Lowered<()> {
        let mut steps = Vec::new();
        let mut args = vec![Term::int(0)];
        args.extend(self.peers_at(&Scope::default(), channel, End::Out, &mut steps)?);
        let object = self.object_of(&channel.name, End::Out);
        steps.push(Step::Do(Term::method(&object, "open", args, Elem::I32)));
        out.push(first_warp(steps));
        Ok(())
    }

    /// Closes it.
    fn closed_by_one(&mut self, channel: &Channel, out: &mut Vec<Step>) {
        let object = self.object_of(&channel.name, End::Out);
        let close = Step::Do(Term::method(&object, "close", Vec::new(), Elem::I32));
        out.push(first_warp(vec![close]));
    }

    // ---- Messages ----

    /// A loop over the messages of a channel, dealt out.
    fn messages(&mut self, scope: &Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        let Action::Receive { channel, peer, .. } = &stmt.action else { return Ok(()) };
        let (declared, _) = self.carried(channel)?;
        if !declared.kind.traits().lands {
            return self.receive_slots(scope, stmt, (declared, peer.as_ref(), true), out);
        }
        let Some(peer) = peer else { return self.messages_of_all(scope, stmt, declared, out) };
        let source = self.scalar(scope, peer, out)?;
        self.over_stripes(scope, (declared, 0, Takers::Spread), out, &mut |this, inner, _, out| {
            this.receive_direct(inner, stmt, channel, source.clone(), out)
        })
    }

    /// The messages of all peers of a direct channel, dealt out by peers and stripes.
    fn messages_of_all(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        channel: &Channel,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (stripes, most) = self.stripes_of(channel);
        let unit = self.names.fresh("unit");
        let name = self.names.fresh("stripe");
        let peers = self.known(channel.per.number())?;
        let high = peers.range.map_or(i64::from(i32::MAX), |(_, high)| high);
        let all = Term { range: Some((0, most * high)), ..stripes.times(peers.clone()) };
        let own = Term::index(&unit);
        let mut steps = Vec::new();
        let of = |op| arithmetic(op, own.clone(), peers.clone()).converted(&Elem::I32);
        let source = self.named("source", of(BinaryOp::Rem), &mut steps);
        let source = Term { range: Some((0, high - 1)), ..source };
        if channel.per == PeerSet::Others {
            steps.push(Step::SkipUnless(source.clone().test(BinaryOp::Ne, self.me())));
        }
        steps.push(Step::Let { name: name.clone(), value: of(BinaryOp::Div) });
        let inner = scope.with("stripe", Meaning::Value(Term::small(&name, 0, most - 1)));
        self.receive_direct(&inner, stmt, &channel.name, source, &mut steps)?;
        let (elem, from, turns) = (Elem::I32, Term::int(0), Takers::Spread);
        let to = all.converted(&Elem::I32);
        out.push(Step::Loop(Loop { binder: unit, elem, from, to, turns, body: steps }));
        Ok(())
    }

    /// How many stripes a direct channel has whose sender cuts loops into runs, and the most that there are.
    fn stripes_of(&self, channel: &Channel) -> (Term, i64) {
        let loops = loops_in_runs(self.ir, channel, self.rules).max(1);
        let stripes = Term::constant(Constant::of_channel(channel).at("kStripes"));
        (stripes, RUNS * loops as i64)
    }

    /// A loop over these stripes from the one with this number on, taken as `turns` says.
    pub(in crate::schedule) fn over_stripes(
        &mut self,
        scope: &Scope,
        (channel, first, turns): (&Channel, i64, Takers),
        out: &mut Vec<Step>,
        each: &mut ForEach<'a, '_>,
    ) -> Lowered<()> {
        let (to, most) = self.stripes_of(channel);
        let name = self.names.fresh("stripe");
        let stripe = Term::small(&name, first, most - 1);
        let inner = scope.with("stripe", Meaning::Value(stripe.clone()));
        let mut steps = Vec::new();
        each(self, &inner, stripe, &mut steps)?;
        let (elem, from) = (Elem::I32, Term::int(first));
        out.push(Step::Loop(Loop { binder: name, elem, from, to, turns, body: steps }));
        Ok(())
    }
}

//! Loops: over the lanes of a warp where every turn is one lane's own work, else one after the other.

#[cfg(any(test, feature = "sabotage"))]
use super::sabotage::{self, Bug};
use super::scope::{Meaning, Scope};
use super::statements::{OTHERWISE, records_position};
use super::step::{Step, Takers};
use super::term::Term;
use super::value::{Numbers, counted_loop};
use super::{Lowered, RoleLowering};
use crate::ir::helpers::casts_to;
use crate::ir::{Action, BinaryOp, CONDITION, Domain, Elem, Expr, Fold, Stmt, walk};
use crate::schedule::extents::writes_long_row;
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};
use crate::schedule::term::Node;

impl RoleLowering<'_> {
    /// `for i in domain where condition { .. }`, in one warp or one lane.
    pub(super) fn repeat(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, position, body, .. } = &stmt.action else {
            return Ok(());
        };
        if *domain == Domain::Once {
            return self.once(scope, stmt, out, &mut |this, inner, out| {
                this.body(inner, body, out);
            });
        }
        if position.is_some() {
            return self.deal_out(scope, stmt, out);
        }
        let turns = match (scope.by_lane, self.fits_lanes(scope, binder, Some(domain), body)) {
            (true, _) => Takers::Alone,
            (false, true) => Takers::Lanes,
            (false, false) => Takers::Serial,
        };
        self.turns(scope, stmt, turns, out)
    }

    /// The turns of a loop, taken as `turns` says.
    pub(super) fn turns(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        turns: Takers,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, filter, body, .. } = &stmt.action else { return Ok(()) };
        let inner = match turns {
            Takers::Lanes | Takers::Threads | Takers::Alone => scope.of_lane(),
            _ => scope.clone(),
        };
        self.placed_loops(&inner, body, out)?;
        let mut steps = Vec::new();
        let inner = self.with_looks(&inner, binder, filter.as_ref(), body, out)?;
        let (name, numbers, inner) = self.counted(&inner, binder, domain, body, out, &mut steps)?;
        self.filtered(&inner, stmt, &mut steps)?;
        let turns = match domain {
            Domain::Row { row } => turns_of(scope, row, turns),
            _ => turns,
        };
        out.push(counted_loop(name, numbers, turns, steps));
        if matches!(turns, Takers::Lanes) && self.writes_reread(body) {
            out.push(Step::Meet);
        }
        Ok(())
    }

    /// The body of a turn, where the condition holds; where it does not, positions are recorded as
    /// those of messages that are not there.
    pub(super) fn filtered(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { filter, body, .. } = &stmt.action else { return Ok(()) };
        let Some(filter) = filter else {
            let inner = self.with_own_row(scope, stmt, out)?;
            self.body(&inner, body, out);
            return Ok(());
        };
        let condition = self.scalar(scope, filter, out)?;
        if !records_position(body) {
            out.push(Step::SkipUnless(condition));
            let inner = self.with_own_row(scope, stmt, out)?;
            self.body(&inner, body, out);
            return Ok(());
        }
        let holds = self.named("goes", condition, out);
        let mut absent = Vec::new();
        self.absent(scope, body, &mut absent);
        if !absent.is_empty() {
            out.push(Step::If { condition: holds.clone().negated(), body: absent });
        }
        out.push(Step::SkipUnless(holds));
        self.body(scope, body, out);
        Ok(())
    }

    /// `if condition { .. }`, with what `carry` makes of its block.
    pub(super) fn once(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
        carry: &mut dyn FnMut(&mut Self, &Scope, &mut Vec<Step>),
    ) -> Lowered<()> {
        let Action::For { filter: Some(filter), body, .. } = &stmt.action else { return Ok(()) };
        let is_else = matches!(filter, Expr::Not { value }
            if matches!(&**value, Expr::Name { name, .. } if name == CONDITION));
        let mut condition = match scope.find(OTHERWISE).filter(|_| is_else) {
            Some(Meaning::Value(otherwise)) => otherwise.clone(),
            _ => self.scalar(scope, filter, out)?,
        };
        if records_position(body) {
            condition = self.named("goes", condition, out);
            let mut absent = Vec::new();
            self.absent(scope, body, &mut absent);
            if !absent.is_empty() {
                out.push(Step::If { condition: condition.clone().negated(), body: absent });
            }
        }
        let mut steps = Vec::new();
        carry(self, scope, &mut steps);
        out.push(Step::If { condition, body: steps });
        Ok(())
    }

    /// A loop in which nothing happens but that positions are recorded as absent.
    pub(super) fn repeat_absent(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, body, .. } = &stmt.action else { return Ok(()) };
        if *domain == Domain::Once {
            self.absent(scope, body, out);
            return Ok(());
        }
        let turns = if scope.by_lane { Takers::Alone } else { Takers::Serial };
        let mut steps = Vec::new();
        let (name, numbers, inner) = self.counted(scope, binder, domain, body, out, &mut steps)?;
        self.absent(&inner, body, &mut steps);
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }

    /// What a loop or fold counts, under its name in the text, with the steps before each turn's `body`; those ahead of
    /// the loop go `out`.
    pub(super) fn counted(
        &mut self,
        scope: &Scope,
        binder: &str,
        domain: &Domain,
        body: &[Stmt],
        out: &mut Vec<Step>,
        steps: &mut Vec<Step>,
    ) -> Lowered<(String, Numbers, Scope)> {
        if let Domain::Row { row } = domain {
            return self.entries(scope, binder, row, body, steps);
        }
        let numbers = self.numbers(scope, domain, out)?;
        let name = self.names.fresh(binder);
        let index = self.index_in(&name, &numbers);
        if numbers.others {
            steps.push(Step::SkipUnless(index.clone().test(BinaryOp::Ne, self.me())));
        }
        let inner = scope.with(binder, Meaning::Value(index));
        Ok((name, numbers, inner))
    }

    /// `for entry in row`: entries of -1, and those beyond what they index, are skipped.
    fn entries(
        &mut self,
        scope: &Scope,
        binder: &str,
        row: &Expr,
        body: &[Stmt],
        steps: &mut Vec<Step>,
    ) -> Lowered<(String, Numbers, Scope)> {
        let width = self.row_width(scope, row)?;
        let k = self.names.fresh("k");
        let entry = self.entry(scope, row, &Term::index(&k), steps)?;
        if !entry.is_whole() {
            return Err(broken("a loop over a row takes whole numbers"));
        }
        let entry = self.named(binder, entry.wide(), steps);
        let mut known = entry.clone().test(BinaryOp::Ge, Term::int(0));
        if let Some(bound) = self.extent_indexed_by(body, binder)? {
            known = known.and(entry.clone().test(BinaryOp::Lt, bound));
        }
        steps.push(Step::SkipUnless(known));
        let numbers = Numbers { from: Term::int(0), to: width, others: false };
        Ok((k, numbers, scope.with(binder, Meaning::Value(entry))))
    }

    /// The extent of the axis that `binder` indexes in the first place that is written.
    fn extent_indexed_by(&mut self, body: &[Stmt], binder: &str) -> Lowered<Option<Term>> {
        let mut found = None;
        walk::stmts(body, &mut |stmt| {
            if let (None, Some(place)) = (&found, walk::target(stmt)) {
                let axis = place
                    .indices
                    .iter()
                    .position(|index| matches!(index, Expr::Name { name, .. } if name == binder));
                found = axis.map(|axis| (place.tensor.clone(), axis));
            }
        });
        let Some((tensor, axis)) = found else { return Ok(None) };
        let Some(extent) = self.tensor(&tensor)?.dims.get(axis).cloned() else { return Ok(None) };
        self.scalar(&Scope::default(), &extent, &mut Vec::new()).map(Some)
    }

    /// Whether every turn of a loop is one lane's own work, and no turn depends on another. `domain`: what the loop runs
    /// over, unless it is over messages.
    pub(super) fn fits_lanes(
        &self,
        scope: &Scope,
        binder: &str,
        domain: Option<&Domain>,
        body: &[Stmt],
    ) -> bool {
        let mut fits = !self.turns_scan(domain, body);
        walk::stmts(body, &mut |stmt| {
            fits &= !writes_long_row(self.ir, stmt);
            fits &= match &stmt.action {
                Action::For { position, .. } => position.is_none(),
                Action::Add { target, .. } => is_indexed_by(&target.indices, binder),
                Action::Store { .. }
                | Action::Record { .. }
                | Action::Count { .. }
                | Action::Let { .. } => true,
                _ => false,
            };
            walk::exprs(stmt, &mut |part| {
                fits &= match part {
                    Expr::OfChannel { channel, field, .. } => {
                        let counts = ["position", "count", "base"];
                        !counts.contains(&field.as_str())
                            && self.header_word(channel, field).is_none()
                    }
                    Expr::Field { of, field, .. } if field == "position" => {
                        !matches!(scope.find(of), Some(Meaning::Placed(..)))
                    }
                    Expr::Call { helper, args } => {
                        Fold::of_parts(helper, args).is_none() && casts_to(helper).is_none()
                    }
                    Expr::Name { .. } => self.cast_of(scope, part).is_none(),
                    _ => true,
                };
            });
        });
        fits && self.keeps_to_itself(binder, body)
    }

    /// Whether what one turn writes no other turn reads.
    fn keeps_to_itself(&self, binder: &str, body: &[Stmt]) -> bool {
        #[cfg(any(test, feature = "sabotage"))]
        if sabotage::is(Bug::TurnsThatDepend) {
            return true;
        }
        let mut apart = true;
        let reread = |name: &String| self.reread.contains(name);
        walk::stmts(body, &mut |stmt| {
            if let Some(place) = walk::target(stmt).filter(|place| reread(&place.tensor)) {
                apart &= is_indexed_by(&place.indices, binder);
            }
            walk::exprs(stmt, &mut |part| {
                if let Expr::Element { tensor, indices } = part
                    && reread(tensor)
                    && walk::writes(body, tensor)
                {
                    apart &= is_indexed_by(indices, binder);
                }
            });
        });
        apart
    }

    fn writes_reread(&self, body: &[Stmt]) -> bool {
        self.reread.iter().any(|name| walk::writes(body, name))
    }

    /// The loops right inside of one over rows that deal out places: each of their numbers counts its
    /// turns through all rows.
    fn placed_loops(&mut self, scope: &Scope, body: &[Stmt], out: &mut Vec<Step>) -> Lowered<()> {
        for stmt in body {
            let Action::For { binder, domain, position: Some(first), .. } = &stmt.action else {
                continue;
            };
            let Domain::Dim { name: count } = domain else {
                return Err(Limit::PlacesOfOther.into());
            };
            let object = self.names.fresh(&format!("{binder}_places"));
            let count = self.number(count);
            let class = match &count.node {
                Node::Constant(count) => ep::PlaceCounters.of(count.clone()),
                _ => return Err(Limit::PlacesOfOther.into()),
            };
            out.push(Step::Object { class, name: object.clone(), args: Vec::new() });
            let name = self.names.fresh(binder);
            let index = Term::index(&name);
            let inner = scope.of_lane().with(binder, Meaning::Value(index.clone()));
            let mut steps = Vec::new();
            let first = self.scalar(&inner, first, &mut steps)?;
            let begin = Term::method(&object, "begin", vec![index, first.wide()], Elem::I64);
            steps.push(Step::Do(begin));
            let numbers = Numbers { from: Term::int(0), to: count, others: false };
            out.push(counted_loop(name, numbers, Takers::Lanes, steps));
            self.places.push((stmt.at.clone(), object));
        }
        Ok(())
    }

    /// `for i in number at first where condition { .. }` inside of a loop over rows.
    fn deal_out(&mut self, scope: &Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        let Action::For { binder, domain, filter, body, .. } = &stmt.action else { return Ok(()) };
        let places = self.places.iter().rev().find(|(at, _)| *at == stmt.at);
        let places = places.map(|(_, object)| object.clone());
        let places =
            places.ok_or(broken("places are dealt out right inside of a loop over rows"))?;
        let scope = &self.with_looks(scope, binder, filter.as_ref(), body, out)?;
        let numbers = self.numbers(scope, domain, out)?;
        let name = self.names.fresh(binder);
        let index = self.index_in(&name, &numbers);
        let mut steps = Vec::new();
        let call = |what| Term::method(&places, what, vec![index.clone()], Elem::I64);
        let plain = scope.with(binder, Meaning::Value(index.clone()));
        if let Some(filter) = filter {
            let condition = self.scalar(&plain, filter, &mut steps)?;
            if records_position(body) {
                let goes = self.named("goes", condition, &mut steps);
                let mut absent = Vec::new();
                let next = self.named(&format!("{binder}_next"), call("next"), &mut absent);
                let there = scope.with(binder, Meaning::Placed(index.clone(), next));
                self.absent(&there, body, &mut absent);
                steps.push(Step::If { condition: goes.clone().negated(), body: absent });
                steps.push(Step::SkipUnless(goes));
            } else {
                steps.push(Step::SkipUnless(condition));
            }
        }
        let position = self.named(&format!("{binder}_position"), call("take"), &mut steps);
        let inner = scope.with(binder, Meaning::Placed(index, position));
        self.body(&inner, body, &mut steps);
        let turns = if scope.by_lane { Takers::Alone } else { Takers::Serial };
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }
}

/// Whether one of the indices is `binder` itself.
pub(super) fn is_indexed_by(indices: &[Expr], binder: &str) -> bool {
    indices.iter().any(|index| matches!(index, Expr::Name { name, .. } if name == binder))
}

/// Chooses who takes the turns of a loop over the entries of a row. A lane that keeps the row in registers unrolls the loop,
/// since an element of a register array needs a constant index.
pub(super) fn turns_of(scope: &Scope, row: &Expr, turns: Takers) -> Takers {
    if scope.looked_at("", row).is_some() { Takers::Unrolled } else { turns }
}

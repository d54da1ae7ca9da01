//! Rows that are packed as they come: what the sender counts for them, and what each lane does for its choice.

use super::packs::{AHEAD, BEFORE};
use super::texts::{call, method};
use super::{OneLaunch, Packs, Turns};
use crate::ir::parts::parts;
use crate::ir::{Action, BinaryOp, Elem, Expr};
use crate::schedule::extents::LANES;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Arrived, Meaning, Scope};
use crate::schedule::step::ParamType::{Bytes, Index, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

/// What a function that gives a list, or a place in it, is given of a message.
const OF_MESSAGE: usize = 4;

impl RoleLowering<'_> {
    /// The turns of a token, a lane each: recorded, and put into the record that goes with its row.
    pub(super) fn counts_turns(
        &mut self,
        scope: &Scope,
        (one, turns): (&OneLaunch<'_>, &Turns<'_>),
        record: &Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        out.push(Step::Says(turns.stmt.at.clone()));
        let (to, lane) = (self.number(turns.width), Term::small("team.lane", 0, LANES - 1));
        let Some(most) = to.range.map(|(_, most)| most).filter(|most| *most > LANES) else {
            return self.counts_turn(scope, (one, turns), (record, lane), out);
        };
        let outer = self.names.clone();
        let binder = self.names.fresh("first");
        let lane = Term::small(&binder, 0, most).plus(lane);
        let mut body = Vec::new();
        self.counts_turn(scope, (one, turns), (record, lane), &mut body)?;
        self.names = outer;
        let (from, turns) = (Term::int(0), Takers::Chunks);
        out.push(Step::Loop(Loop { binder, elem: Elem::I32, from, to, turns, body }));
        Ok(())
    }

    /// The turn of a choice of a token, which a lane has by its number; lanes behind the last choice count for the first.
    fn counts_turn(
        &mut self,
        scope: &Scope,
        (one, turns): (&OneLaunch<'_>, &Turns<'_>),
        (record, lane): (&Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Record { target, .. } = &turns.record.action else {
            return Err(broken("turns are recorded"));
        };
        let width = self.number(turns.width);
        let used = lane.clone().test(BinaryOp::Lt, width.clone());
        let choice = used.clone().choose(lane, Term::int(0));
        let choice = self.named(turns.choice, choice.converted(&Elem::I32), out);
        let mut own = scope.with(turns.choice, Meaning::Value(choice.clone())).of_lane();
        turns.names.iter().for_each(|stmt| self.one(&mut own, stmt, out));
        out.push(Step::Says(turns.record.at.clone()));
        if let Some(listed) = &turns.before {
            let end = self.scalar(&own, &listed.end, out)?.converted(&Elem::I32);
            let value = self.scalar(&own, &listed.value, out)?;
            let earlier = self.row_of_ids(&listed.ids, "earlier", &[])?;
            let before = call(ep::listed_before.of(width), vec![end, value, earlier]);
            let before = self.named("before", before, out);
            let before = Term { range: Some((0, i64::from(i32::MAX))), ..before };
            own.bind(BEFORE, Meaning::Value(before));
        }
        let turn = self.scalar(&own, &turns.value, out)?.converted(&Elem::I32);
        let turn = self.named("turn", turn, out);
        let tensor = self.tensor(&target.tensor)?;
        let at = self.indices(&own, &target.indices, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let mut body = vec![Step::Set { place, value: turn.clone() }];
        if let Some(field) = one.turned(turns) {
            let (_, message) = self.carried(&one.rows.name)?;
            let place = Term::constant(Constant::field(&message.name, &field.name));
            let to = crate::schedule::channels::bytes_behind(record.clone(), place);
            body.push(Step::Do(call(ep::set.of(&Elem::I32), vec![to, choice, turn])));
        }
        out.push(Step::If { condition: used, body });
        Ok(())
    }

    /// Takes the rows to their places, as they come.
    pub(super) fn packs_rows(
        &mut self,
        (one, packs): (&OneLaunch<'_>, &Packs<'_>),
        (scope, taken): (&Scope, &str),
        take: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let list = self.list_of(scope, (one, packs))?;
        let count = self.slot_word((one, &packs.field), "list", &[&one.awaits.at])?;
        let each = self.each_place(scope, (one, packs), taken)?;
        let all = Symbol::method(taken, "for_places").of(self.number(packs.width));
        out.push(Step::Do(call(all, vec![take, list, count, each])));
        Ok(())
    }

    /// The scope of the lane of a choice, where `given` is what it knows of its message.
    fn of_choice(
        &self,
        scope: &Scope,
        (one, packs): (&OneLaunch<'_>, &Packs<'_>),
        given: &[Term],
    ) -> Lowered<Scope> {
        let [row, source, record, choice, ..] = given else {
            return Err(broken("a lane knows its message"));
        };
        let source = Term { range: self.me().range, ..source.clone() };
        let arrived = Arrived {
            channel: one.rows.name.clone(),
            row: record.clone(),
            meta: record.clone(),
            numbers: vec![("row", row.clone()), ("source", source)],
        };
        let own = scope.with(packs.message, Meaning::Message(arrived));
        Ok(own.with(packs.choice, Meaning::Value(choice.clone())).of_lane())
    }

    /// The function that gives the list of a choice: what is named before its place is known.
    fn list_of(
        &mut self,
        scope: &Scope,
        (one, packs): (&OneLaunch<'_>, &Packs<'_>),
    ) -> Lowered<Term> {
        let params = of_message(packs);
        self.function(&[&packs.stmt.at, &packs.place.at], &params, |this, given, steps| {
            let mut own = this.of_choice(scope, (one, packs), given)?;
            let before = packs.names.iter().take_while(|stmt| !std::ptr::eq(**stmt, packs.place));
            before.for_each(|stmt| this.one(&mut own, stmt, steps));
            Ok(Some(this.scalar(&own, &packs.list, steps)?.converted(&Elem::I32)))
        })
    }

    /// What each lane does for its choice, and the whole warp for the row.
    fn each_place(
        &mut self,
        scope: &Scope,
        (one, packs): (&OneLaunch<'_>, &Packs<'_>),
        taken: &str,
    ) -> Lowered<Term> {
        let mut params = of_message(packs).to_vec();
        let (used, is_once) = (Value(Elem::Bool), Value(Elem::Bool));
        params.extend([(Index, "ahead"), (used, "used"), (is_once, "once")]);
        self.function(&[], &params, |this, given, steps| {
            let mut own = this.of_choice(scope, (one, packs), given)?;
            let [ahead, used, is_once] = &given[OF_MESSAGE..] else { return Ok(None) };
            for stmt in &packs.names {
                match (&stmt.action, std::ptr::eq(*stmt, packs.place)) {
                    (Action::Let { name, .. }, true) => {
                        steps.push(Step::Says(stmt.at.clone()));
                        let known = own.with(AHEAD, Meaning::Value(ahead.clone()));
                        let value = this.scalar(&known, &packs.value, steps)?;
                        let place = this.named(name, value.converted(&Elem::I32), steps);
                        let place = Term { range: Some((0, i64::from(i32::MAX))), ..place };
                        own.bind(name, Meaning::Value(place));
                    }
                    _ => this.one(&mut own, stmt, steps),
                }
            }
            steps.push(Step::Says(packs.takes.at.clone()));
            let goes = match packs.filter {
                Some(filter) => used.clone().and(this.scalar(&own, filter, steps)?),
                None => used.clone(),
            };
            let goes = this.named("match", goes, steps);
            steps.push(Step::Says(packs.store.at.clone()));
            let mut once = this.copies_part(&own, (one, packs), (&goes, taken), steps)?;
            for (condition, stmts) in
                [(used, packs.written.clone()), (&goes, packs.records.iter().collect())]
            {
                let mut body = Vec::new();
                stmts.iter().for_each(|stmt| this.one(&mut own, stmt, &mut body));
                if !body.is_empty() {
                    once.push(Step::If { condition: condition.clone(), body });
                }
            }
            steps.push(Step::If { condition: is_once.clone(), body: once });
            Ok(None)
        })
    }

    /// The part of the row goes to the place of each lane; what goes with the row, such as its scales, once.
    fn copies_part(
        &mut self,
        scope: &Scope,
        (one, packs): (&OneLaunch<'_>, &Packs<'_>),
        (goes, taken): (&Term, &str),
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Step>> {
        let Action::Store { target, value: Expr::Field { field, .. } } = &packs.store.action else {
            return Err(broken("a row is stored"));
        };
        let (_, message) = self.carried(&one.rows.name)?;
        let to = self.tensor(&target.tensor)?;
        let mut once = Vec::new();
        for (part, (suffix, ..)) in parts(self.ir, &to.elem).into_iter().enumerate() {
            let own = self.row(scope, (&target.tensor, part), &target.indices, out)?;
            if part == 0 {
                out.push(Step::Do(method(taken, "copy", vec![goes.clone(), own])));
                continue;
            }
            let source = format!("{field}{suffix}");
            let place = Term::constant(Constant::field(&message.name, &source));
            let count = Term::constant(Constant::field_count(&message.name, &source));
            let Some(Meaning::Message(arrived)) = scope.find(packs.message) else {
                return Err(broken("a message has come"));
            };
            let from = crate::schedule::channels::bytes_behind(arrived.meta.clone(), place);
            let args = vec![goes.clone(), own, self.column(to, part)?, from, count];
            once.push(Step::Do(call(ep::copy_field, args)));
        }
        Ok(once)
    }
}

/// What a lane is given of its message.
fn of_message<'p>(packs: &Packs<'p>) -> [(crate::schedule::step::ParamType, &'p str); OF_MESSAGE] {
    [(Index, "row"), (Index, "source"), (Bytes, "record"), (Index, packs.choice)]
}

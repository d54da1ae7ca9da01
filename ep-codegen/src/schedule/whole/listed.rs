//! Rows to the places of the values that they list: the steps of both roles, and what blocks count for them.

use super::{Whole, call, name, team};
use crate::ir::parts::parts;
use crate::ir::{Action, Elem, Expr};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::{Copied, Listed, name_of};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Value};
use crate::schedule::step::Step;
use crate::schedule::term::Term;

/// What blocks have counted.
const COUNTED: &str = "smem.listed";

impl Whole<'_, '_> {
    /// Both roles of such a pair.
    pub(super) fn listed(&mut self, listed: &Listed<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        match self.role.role.name == listed.told.role.name {
            true => self.counts_told(listed, out),
            false => self.rows_copied(&listed.copied, out),
        }
    }

    /// What every block counts as it enters.
    pub(super) fn counts_listed(
        &mut self,
        listed: &Listed<'_>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Listed { copied, told } = listed;
        for stmt in [copied.place, told.first, told.count] {
            out.push(Step::Says(stmt.at.clone()));
        }
        let begin = self.function(&[], &[(Index, "source")], |this, params, steps| {
            let own = this.of_source(&params[0]);
            Ok(Some(this.role.scalar(&own, told.begin, steps)?.converted(&Elem::I32)))
        })?;
        let (Action::For { binder: row, .. }, Action::For { binder: choice, .. }) =
            (&copied.rows.action, &copied.choices.action)
        else {
            return Err(broken("rows and their choices are gone through"));
        };
        let entry = self.entry_listed(copied, (row, choice))?;
        let width = self.role.scalar(&Scope::default(), copied.width, out)?;
        let most = self.role.scalar(&Scope::default(), copied.most, out)?;
        let count = ep::count_listed.of(width).of(most);
        out.push(Step::Do(call(count, vec![name(COUNTED), begin, entry])));
        Ok(())
    }

    fn of_source(&self, source: &Term) -> Scope {
        let source = Term { range: self.role.me().range, ..source.clone() };
        Scope::default().with("source", Meaning::Value(source)).of_lane()
    }

    fn rows_copied(&mut self, copied: &Copied<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let (Action::For { binder: row, .. }, Action::For { binder: choice, .. }) =
            (&copied.rows.action, &copied.choices.action)
        else {
            return Err(broken("rows and their choices are gone through"));
        };
        let value = name_of(copied.entry);
        self.role.rooms(out);
        out.push(Step::Says(copied.rows.at.clone()));
        out.push(Step::Says(copied.choices.at.clone()));
        let width = self.role.scalar(&Scope::default(), copied.width, out)?.converted(&Elem::I32);
        let entry = self.entry_listed(copied, (row, choice))?;
        let each = self.each_choice(copied, [row, choice, value])?;
        let args = vec![team(), name(COUNTED), entry, each];
        out.push(Step::Do(call(ep::for_listed.of(width), args)));
        Ok(())
    }

    /// The function that gives the value of a choice.
    fn entry_listed(&mut self, copied: &Copied<'_>, names: (&str, &str)) -> Lowered<Term> {
        let Action::Let { value, .. } = &copied.entry.action else {
            return Err(broken("a choice has a value"));
        };
        let params = [(Index, names.0), (Index, names.1)];
        self.function(&[&copied.entry.at], &params, |this, params, steps| {
            let own = of_choice(&[names.0, names.1], params);
            this.role.scalar(&own, value, steps).map(Some)
        })
    }

    /// What each lane does for its choice, and the whole warp for the row.
    fn each_choice(&mut self, copied: &Copied<'_>, names: [&str; 3]) -> Lowered<Term> {
        let place = name_of(copied.place);
        let params = [
            (Index, names[0]),
            (Index, names[1]),
            (Index, names[2]),
            (Index, place),
            (Value(Elem::Bool), "used"),
            (Index, "slice"),
            (Index, "slices"),
            (Value(Elem::Bool), "once"),
        ];
        self.function(&[], &params, |this, params, steps| {
            let [_, _, _, at, used, slice, slices, is_once] = params else { return Ok(None) };
            let mut own = of_choice(&names, params).with(place, Meaning::Value(at.clone()));
            copied.names.iter().for_each(|stmt| this.role.one(&mut own, stmt, steps));
            steps.push(Step::Says(copied.takes.at.clone()));
            let takes = this.role.scalar(&own, copied.filter, steps)?;
            let goes = this.role.named("match", used.clone().and(takes), steps);
            steps.push(Step::Says(copied.store.at.clone()));
            let (mut row, mut once) = this.copied(&own, copied, [&goes, slice, slices], steps)?;
            steps.append(&mut row);
            for (condition, stmts) in [(used, copied.written), (&goes, copied.records)] {
                let mut body = Vec::new();
                stmts.iter().for_each(|stmt| this.role.one(&mut own, stmt, &mut body));
                if !body.is_empty() {
                    once.push(Step::If { condition: condition.clone(), body });
                }
            }
            steps.push(Step::If { condition: is_once.clone(), body: once });
            Ok(None)
        })
    }

    /// A slice of the row goes to the place of each lane; and once what goes with the row, such as its scales.
    fn copied(
        &mut self,
        scope: &Scope,
        copied: &Copied<'_>,
        [goes, slice, slices]: [&Term; 3],
        out: &mut Vec<Step>,
    ) -> Lowered<(Vec<Step>, Vec<Step>)> {
        let Action::Store { target, value: Expr::Element { tensor, .. } } = &copied.store.action
        else {
            return Err(broken("a row is stored"));
        };
        let (mut row, mut once) = (Vec::new(), Vec::new());
        let (to, from) = (self.role.tensor(&target.tensor)?, self.role.tensor(tensor)?);
        for part in 0..parts(self.role.ir, &to.elem).len() {
            let own = self.row(scope, (&target.tensor, part), &target.indices, out)?;
            let there = self.row_copied(scope, copied, part, out)?;
            let width = self.role.width(to, part)?;
            let mut args = vec![goes.clone(), own];
            if part == 0 {
                args.extend([there, width, slice.clone(), slices.clone()]);
                row.push(Step::Do(call(ep::copy_slice, args)));
                continue;
            }
            let (beside, away) = (self.column(to, part)?, self.column(from, part)?);
            args.extend([beside, there, away, width]);
            once.push(Step::Do(call(ep::copy_matched, args)));
        }
        Ok((row, once))
    }

    /// The address of a part of the row that is copied.
    fn row_copied(
        &mut self,
        scope: &Scope,
        copied: &Copied<'_>,
        part: usize,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match &copied.store.action {
            Action::Store { value: Expr::Element { tensor, indices }, .. } => {
                self.row(scope, (tensor, part), indices, out)
            }
            _ => Err(broken("a row is stored")),
        }
    }

    /// The counts of each value and source, by a lane of the last block.
    fn counts_told(&mut self, listed: &Listed<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let Listed { copied, told } = listed;
        let (first, count) = (name_of(told.first), name_of(told.count));
        let params = [(Index, told.value), (Index, "source"), (Index, first), (Index, count)];
        let values = self.role.scalar(&Scope::default(), copied.values, out)?;
        let each = self.function(&[], &params, |this, params, steps| {
            let [value, source, first_of, count_of] = params else { return Ok(None) };
            let high = values.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
            let value = Term { range: Some((0, high)), ..value.clone() };
            let mut own = this.of_source(source);
            own.bind(told.value, Meaning::Value(value));
            own.bind(first, Meaning::Value(first_of.clone()));
            own.bind(count, Meaning::Value(count_of.clone()));
            for stmt in told.body {
                this.role.one(&mut own, stmt, steps);
            }
            Ok(None)
        })?;
        out.push(Step::Do(call(ep::for_listed_counts, vec![team(), name(COUNTED), each])));
        Ok(())
    }
}

/// The scope of the lane of a choice.
fn of_choice(names: &[&str], params: &[Term]) -> Scope {
    let mut own = Scope::default().of_lane();
    for (name, param) in names.iter().zip(params) {
        own.bind(name, Meaning::Value(param.clone()));
    }
    own
}

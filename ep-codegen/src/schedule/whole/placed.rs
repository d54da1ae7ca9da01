//! Rows in order of an index: each value of it deals out places, and one loaded row goes to all of its own.

use super::{Whole, binary, call, method, name, team};
use crate::ir::parts::parts;
use crate::ir::rows::moved_row;
use crate::ir::{Action, BinaryOp, Elem, Expr, Place, Stmt};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// `for row in stripe { for expert in .. at .. where .. { store out[expert.position] = x[row]; .. } }`,
    /// a lane for each value of the inner index.
    pub(super) fn placed(
        &mut self,
        scope: &Scope,
        (stmt, row): (&Stmt, &str),
        inner: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, position: Some(first), filter, body } = &inner.action
        else {
            return Err(broken("a loop deals out places"));
        };
        let (mut stripes, scope) = self.role.stripes_loop(scope, Takers::Warps)?;
        let steps = &mut stripes.body;
        steps.push(Step::Says(stmt.at.clone()));
        let span = self.role.span(&scope, "span", steps)?;
        steps.push(Step::Says(inner.at.clone()));
        let numbers = self.role.numbers(&scope, domain, steps)?;
        let range = self.role.index_in(binder, &numbers).range;
        let index = |number: &Term| Term { range, ..number.clone() };
        let count = numbers.to.converted(&Elem::I32);
        let (base, places) = (self.role.names.fresh("base"), self.role.names.fresh("places"));
        let first = self.function(&[], &[(Index, binder)], |this, params, steps| {
            let own = with(&scope, &[(binder, &index(&params[0]))]);
            Ok(Some(this.role.scalar(&own, first, steps)?.converted(&Elem::I32)))
        })?;
        let goes =
            self.function(&[], &[(Index, row), (Index, binder)], |this, params, steps| {
                let own = with(&scope, &[(row, &params[0]), (binder, &index(&params[1]))]);
                let own = this.look_at(&own, std::slice::from_ref(inner), None, steps)?;
                match filter {
                    Some(filter) => this.role.scalar(&own, filter, steps).map(Some),
                    None => Ok(Some(Term::bool(true))),
                }
            })?;
        let moves = self.placed_rows(&scope, row, body)?;
        let each = self.placed_numbers(&scope, (row, binder), body)?;
        let lane = binary(BinaryOp::Add, name(&base), name("team.lane"));
        let of_lane = call(ep::places_of, vec![lane, count.clone(), first]);
        let args = vec![team(), name(&span), name(&places), goes, moves, each];
        let fanout = Step::Do(call(ep::for_fanout, args));
        steps.push(Step::Loop(Loop {
            binder: base,
            elem: Elem::I32,
            from: Term::int(0),
            to: count,
            turns: Takers::Chunks,
            body: vec![Step::Made { name: places, value: of_lane }, fanout],
        }));
        out.push(Step::Loop(stripes));
        if body.iter().any(|stmt| moved_row(self.role.ir, stmt).is_some()) {
            let mover = self.mover();
            out.push(Step::Do(method(&mover, "flush", Vec::new())));
        }
        Ok(())
    }

    /// The function of what a whole warp does with each row.
    fn placed_rows(&mut self, scope: &Scope, row: &str, body: &[Stmt]) -> Lowered<Term> {
        self.function(&[], &[(Index, row), (Index, "position")], |this, params, steps| {
            let own = with(scope, &[(row, &params[0])]);
            for stmt in body {
                if let Action::Store { target, value: Expr::Element { tensor, indices } } =
                    &stmt.action
                    && moved_row(this.role.ir, stmt).is_some()
                {
                    steps.push(Step::Says(stmt.at.clone()));
                    this.move_row(&own, (tensor, indices), (target, &params[1]), steps)?;
                }
            }
            Ok(None)
        })
    }

    /// Moves a row to the place of each lane, and what goes with it, such as its scales.
    fn move_row(
        &mut self,
        scope: &Scope,
        (from, indices): (&str, &[Expr]),
        (target, position): (&Place, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (to, source) = (self.role.tensor(&target.tensor)?, self.role.tensor(from)?);
        for part in 0..parts(self.role.ir, &to.elem).len() {
            let base = name(&format!("args.{}", self.role.part_name(to, part)));
            let stride = self.stride(to, part)?;
            let row = self.row(scope, (from, part), indices, out)?;
            if part == 0 {
                let mover = self.mover();
                let place = call(ep::row_at, vec![base, position.clone(), stride]);
                out.push(Step::Do(method(&mover, "row", vec![place, row])));
                continue;
            }
            let (beside, away) = (self.column(to, part)?, self.column(source, part)?);
            let width = self.role.width(to, part)?;
            let args = vec![base, stride, beside, position.clone(), row, away, width];
            out.push(Step::Do(call(ep::copy_beside, args)));
        }
        Ok(())
    }

    /// The function of what the lane of each value writes.
    fn placed_numbers(
        &mut self,
        scope: &Scope,
        (row, binder): (&str, &str),
        body: &[Stmt],
    ) -> Lowered<Term> {
        let params =
            [(Index, row), (Index, binder), (Value(Elem::Bool), "match"), (Index, "position")];
        self.function(&[], &params, |this, params, steps| {
            let [own_row, index, goes, position] = params else { return Ok(None) };
            let mut own = with(scope, &[(row, own_row)]);
            own.bind(binder, Meaning::Placed(index.clone(), position.clone()));
            for stmt in body.iter().filter(|stmt| moved_row(this.role.ir, stmt).is_none()) {
                let mut written = Vec::new();
                this.role.one(&mut own, stmt, &mut written);
                steps.push(Step::If { condition: goes.clone(), body: written });
            }
            Ok(None)
        })
    }
}

/// The scope of a lane with these numbers.
fn with(scope: &Scope, numbers: &[(&str, &Term)]) -> Scope {
    let mut own = scope.of_lane();
    for (name, number) in numbers {
        own.bind(name, Meaning::Value((*number).clone()));
    }
    own
}

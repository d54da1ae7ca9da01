//! Where the parts of a token are, and the stores of what they add up to.

use super::{Whole, call, method, name};
use crate::ir::{Action, Elem, Expr, Stmt};
use crate::schedule::Lowered;
use crate::schedule::limit::broken;
use crate::schedule::rules::sum_and_bias;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::there;
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::Step;
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// The function that gives the position of the part of a token that a peer has.
    pub(super) fn part_position(&mut self, scope: &Scope, stmt: &Stmt) -> Lowered<Term> {
        let Action::Gather { binder, position, across, .. } = &stmt.action else {
            return Err(broken("parts are gathered"));
        };
        self.function(&[], &[(Index, binder), (Index, across)], |this, params, steps| {
            let [token, peer] = params else { return Ok(None) };
            let peer = Term { range: this.role.number("ranks").range, ..peer.clone() };
            let own = scope
                .with(binder, Meaning::Value(token.clone()))
                .with(across, Meaning::Value(peer))
                .of_lane();
            Ok(Some(this.role.scalar(&own, position, steps)?.converted(&Elem::I32)))
        })
    }

    /// The function that stores what the parts of a token add up to. The sum of the row takes the parts;
    /// those of the other fields come with it.
    pub(super) fn sums(&mut self, scope: &Scope, stmt: &Stmt, sum: &str) -> Lowered<Term> {
        let Action::Gather { binder, part, channel, body, .. } = &stmt.action else {
            return Err(broken("parts are gathered"));
        };
        self.function(&[], &[(Index, binder)], |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(params[0].clone()));
            let mut fields = Vec::new();
            for inner in body {
                let mut stored = vec![Step::Says(inner.at.clone())];
                let is_row = this.sum(&own, (channel, part, sum), inner, &mut stored)?;
                if is_row { &mut *steps } else { &mut fields }.append(&mut stored);
            }
            steps.append(&mut fields);
            Ok(None)
        })
    }

    /// `store out[token] = sum(part.x) + bias[token]`, or of a small field; whether it is the row.
    fn sum(
        &mut self,
        scope: &Scope,
        (channel, part, sum): (&str, &str, &str),
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<bool> {
        let Action::Store { target, value } = &stmt.action else {
            return Err(broken("sums are stored"));
        };
        let (field, bias) =
            sum_and_bias(value, part).ok_or(broken("parts are added up as they are"))?;
        let (_, message) = self.role.carried(channel)?;
        let is_row = message.fields.iter().any(|own| own.row && own.name == field);
        let to = self.written(scope, target, out)?;
        if !is_row {
            let place = Term::constant(Constant::field(&message.name, field));
            let count = Term::constant(Constant::field_count(&message.name, field));
            out.push(Step::Do(method(sum, "store_sum", vec![to, place, count])));
            return Ok(false);
        }
        let Some(Expr::Element { tensor, indices }) = bias else {
            out.push(Step::Do(method(sum, "store_row", vec![to])));
            return Ok(true);
        };
        let tensor = self.role.tensor(tensor)?;
        let row = self.function(&[], &[(Index, "i")], |this, params, steps| {
            let at = this.role.indices(scope, indices, steps)?;
            let copy = (tensor.copies > 1).then(|| params[0].clone());
            Ok(Some(this.role.place(tensor, 0, copy, at, Some(Term::int(0)))?.address()))
        })?;
        // An optional tensor that is absent adds nothing.
        let count = match (tensor.copies > 1, tensor.optional) {
            (true, _) => name(&format!("args.{}_count", tensor.name)),
            (false, true) => there(tensor),
            (false, false) => Term::int(1),
        };
        let store = Symbol::method(sum, "store_row").of(Term::int(tensor.copies));
        out.push(Step::Do(call(store, vec![to, count, row])));
        Ok(true)
    }
}

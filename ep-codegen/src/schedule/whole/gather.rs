//! The rows of a token from all its peers, added up.

use super::{Whole, call, cfg_of, method, name, object, team};
use crate::ir::naming::function_of;
use crate::ir::{Action, Elem, Expr, Stmt};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::sum_and_bias;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::there;
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::Step;
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;

/// The objects of a gather.
struct Names {
    stages: String,
    source: String,
    turns: String,
    sum: String,
    position: String,
}

impl Whole<'_, '_> {
    /// `for token in .. gather part from channel[peer] at .. across peer in .. { store ..; }`.
    pub(super) fn gather(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Gather { domain, part, channel, .. } = &stmt.action else { return Ok(()) };
        let (channel, _) = self.role.carried(channel)?;
        let names = Names {
            stages: self.role.names.fresh("stages"),
            source: self.role.names.fresh(&channel.name),
            turns: self.role.names.fresh("turns"),
            sum: self.role.names.fresh(part),
            position: self.role.names.fresh("position"),
        };
        let own = format!("smem.{}[team.warp]", function_of(&self.role.role.name));
        let class = ep::Gather.of(self.cfg());
        out.push(object(class, &names.stages, vec![name(&own), team()]));
        let source = ep::PullConsumer.of(cfg_of(channel));
        out.push(object(source, &names.source, vec![team()]));
        out.push(Step::Says(stmt.at.clone()));
        let at = self.part_position(scope, stmt)?;
        out.push(Step::Made { name: names.position.clone(), value: at });
        let numbers = self.role.numbers(scope, domain, out)?;
        let class = ep::ClaimedTurns.of(cfg_of(channel));
        let most = numbers.to.converted(&Elem::I32);
        out.push(object(class, &names.turns, vec![team(), most]));
        self.gather_run(scope, stmt, &names, out)?;
        if channel.kind.traits().is_released {
            out.push(Step::Do(method(&names.source, "release", Vec::new())));
        }
        out.push(Step::Do(method(&names.stages, "finish", Vec::new())));
        Ok(())
    }

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

    fn gather_run(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        names: &Names,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let objects = [&names.stages, &names.source, &names.turns, &names.position];
        let args = objects.map(|object| name(object)).to_vec();
        out.push(object(ep::GatherRun.into(), &names.sum, args));
        let stores = self.sums(scope, stmt, &names.sum)?;
        out.push(Step::Do(method(&names.sum, "run", vec![stores])));
        Ok(())
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

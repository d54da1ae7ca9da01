//! Roles that work as one team: their loops are spread over warps and lanes.

use super::{Whole, call, cfg_of, name, object, team};
use crate::ir::parts::meta_sources;
use crate::ir::{Action, BinaryOp, Domain, Elem, Expr, FieldValue, Fold, Stmt};
use crate::schedule::Lowered;
use crate::schedule::channels::{End, Object, bytes_behind};
use crate::schedule::extents::is_one_more;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::{is_prefix, takes_warps};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// The slots at whose ends the role is: an object each, for both ends.
    pub(super) fn slots(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        for (channel, _) in self.role.ends() {
            let known = self.role.objects.iter().any(|object| object.channel == channel.name);
            if !channel.kind.traits().is_indexed || known {
                continue;
            }
            if !self.role.in_words(channel) {
                return Err(broken("such slots hold records of words"));
            }
            let own = self.role.names.fresh(&channel.name);
            out.push(object(ep::SlotChannel.of(cfg_of(channel)), &own, vec![team()]));
            self.role.objects.push(Object {
                channel: channel.name.clone(),
                end: End::In,
                name: own,
            });
        }
        Ok(())
    }

    /// A statement of such a role.
    pub(super) fn of_team(
        &mut self,
        scope: &mut Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        match &stmt.action {
            Action::For { domain, filter: None, body, .. } if takes_warps(body) => {
                out.push(Step::Says(stmt.at.clone()));
                self.turns(scope, (stmt, domain), Takers::Warps, out, |this, own, inner, to| {
                    this.of_warp(own, inner, to)
                })
            }
            Action::For { domain, .. } => {
                out.push(Step::Says(stmt.at.clone()));
                self.turns(scope, (stmt, domain), Takers::Threads, out, |this, own, inner, to| {
                    this.role.one(own, inner, to);
                    Ok(())
                })?;
                out.push(Step::Meet);
                Ok(())
            }
            Action::Await { .. } => {
                self.role.one(scope, stmt, out);
                Ok(())
            }
            Action::Store { value, .. } | Action::Record { value, .. } if is_prefix(value) => {
                let mut body = Vec::new();
                self.of_warp(scope, stmt, &mut body)?;
                let first =
                    super::method("team", "index", Vec::new()).test(BinaryOp::Eq, Term::int(0));
                out.push(Step::If { condition: first, body });
                Ok(())
            }
            Action::Store { .. } | Action::Record { .. } => {
                let once = self.function(&[], &[], |this, _, steps| {
                    this.role.one(&mut scope.of_lane(), stmt, steps);
                    Ok(None)
                })?;
                out.push(Step::Do(call(ep::in_last_warp, vec![team(), once])));
                Ok(())
            }
            _ => Err(broken("a team loops, awaits and writes")),
        }
    }

    /// The turns of a loop, a warp or a lane for each, with what `each` makes of every statement.
    fn turns<F>(
        &mut self,
        scope: &Scope,
        (stmt, domain): (&Stmt, &Domain),
        turns: Takers,
        out: &mut Vec<Step>,
        mut each: F,
    ) -> Lowered<()>
    where
        F: FnMut(&mut Self, &mut Scope, &Stmt, &mut Vec<Step>) -> Lowered<()>,
    {
        let Action::For { binder, filter, body, .. } = &stmt.action else { return Ok(()) };
        let numbers = self.role.numbers(scope, domain, out)?;
        let outer = self.role.names.clone();
        let name = self.role.names.fresh(binder);
        let index = Term { range: self.role.index_in(&name, &numbers).range, ..Term::index(&name) };
        let by_lane = turns != Takers::Warps;
        let own = if by_lane { scope.of_lane() } else { scope.clone() };
        let mut own = own.with(binder, Meaning::Value(index.clone()));
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(index.test(BinaryOp::Ne, self.role.me())));
        }
        if let Some(filter) = filter {
            let holds = self.role.scalar(&own, filter, &mut steps)?;
            steps.push(Step::SkipUnless(holds));
        }
        for inner in body {
            each(self, &mut own, inner, &mut steps)?;
        }
        let (from, to) = (numbers.from.converted(&Elem::I32), numbers.to.converted(&Elem::I32));
        out.push(Step::Loop(Loop { binder: name, elem: Elem::I32, from, to, turns, body: steps }));
        self.role.names = outer;
        Ok(())
    }

    /// A statement in a turn of a warp.
    fn of_warp(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        match &stmt.action {
            Action::Push { channel, peer: Some(peer), values, .. } => {
                out.push(Step::Says(stmt.at.clone()));
                self.tell(scope, channel, peer, values, out)
            }
            Action::Store { value, .. } | Action::Record { value, .. } if is_prefix(value) => {
                out.push(Step::Says(stmt.at.clone()));
                self.prefix_sum(scope, stmt, out)
            }
            Action::For { domain, filter: None, body, .. } if !takes_warps(body) => {
                out.push(Step::Says(stmt.at.clone()));
                self.turns(scope, (stmt, domain), Takers::Lanes, out, |this, own, inner, to| {
                    this.role.one(own, inner, to);
                    Ok(())
                })?;
                out.push(Step::Meet);
                Ok(())
            }
            Action::Store { .. } | Action::Record { .. } => {
                self.role.one(scope, stmt, out);
                Ok(())
            }
            _ => Err(broken("a warp pushes and writes")),
        }
    }

    /// `push slots[peer] { .. };`: what a field is made of is loaded ahead of its first word.
    fn tell(
        &mut self,
        scope: &Scope,
        channel: &str,
        peer: &Expr,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (_, message) = self.role.carried(channel)?;
        let to = self.role.scalar(scope, peer, out)?;
        let words = self.role.names.fresh("words");
        let place = super::method(&self.role.object(channel), "to", vec![to.clone()]);
        out.push(Step::Made { name: words.clone(), value: place });
        for source in meta_sources(self.role.ir, message) {
            let value = values.iter().find(|value| value.name == source.field.name);
            let Some(FieldValue { value, .. }) = value else { continue };
            let element = match value {
                Expr::Call { helper, args } if helper == "owned" => {
                    self.owned(scope, (args, &to), out)?
                }
                _ => self.element(scope, value, 0)?,
            };
            let field = Constant::field(&message.name, &source.name);
            let to = bytes_behind(name(&words), Term::constant(field));
            let put = ep::put.of(&source.elem);
            let count = Term::constant(Constant::field_count(&message.name, &source.name));
            out.push(Step::Do(call(put, vec![to, count, element])));
        }
        Ok(())
    }

    /// The function that gives the entries of the experts of a rank.
    fn owned(
        &mut self,
        scope: &Scope,
        (args, rank): (&[Expr], &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let [Expr::Element { tensor, indices }, _] = args else {
            return Err(broken("`owned` takes a tensor"));
        };
        let tensor = self.role.tensor(tensor)?;
        let theirs = self.role.names.fresh("theirs");
        let value = call(ep::experts_of, vec![name("args.expert_begin"), rank.clone()]);
        out.push(Step::Made { name: theirs.clone(), value });
        self.function(&[], &[(Index, "i")], |this, params, steps| {
            let i = params[0].clone();
            let at = this.role.indices(scope, indices, steps)?;
            let first = name(&format!("{theirs}.first"));
            let entry = super::binary(BinaryOp::Add, first, i.clone());
            let value = this.role.place(tensor, 0, None, at, Some(entry))?;
            let zero = Term::int(0).converted(&value.elem);
            let known = i.test(BinaryOp::Lt, name(&format!("{theirs}.count")));
            Ok(Some(known.choose(value, zero)))
        })
    }

    /// `place = prefix_sum(binder in domain: value)`, a warp's work.
    fn prefix_sum(&mut self, scope: &Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        let (Action::Store { target, value } | Action::Record { target, value }) = &stmt.action
        else {
            return Err(broken("a sum is written"));
        };
        let Expr::Fold { fold: Fold::PrefixSum, binder, domain, body } = value else {
            return Err(broken("a sum is written"));
        };
        let tensor = self.role.tensor(&target.tensor)?;
        let own = |index: &Expr| matches!(index, Expr::Name { name, .. } if name == binder);
        let axis = target.indices.iter().position(own);
        let extent = axis.and_then(|axis| tensor.dims.get(axis));
        // A table with one more entry than the domain takes the total there.
        let total = match &**domain {
            Domain::Dim { name } => {
                extent.is_some_and(|extent| is_one_more(self.role.ir, extent, name))
            }
            _ => false,
        };
        let count = self.role.numbers(scope, domain, out)?.to.converted(&Elem::I32);
        let most = count.range.map_or(i64::from(i32::MAX), |(_, high)| high);
        let index = |of: &Term| Term { range: Some((0, most)), ..of.clone() };
        let value = self.function(&[], &[(Index, binder)], |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(index(&params[0]))).of_lane();
            Ok(Some(this.role.scalar(&own, body, steps)?.converted(&Elem::I32)))
        })?;
        let params = [(Index, binder.as_str()), (Value(Elem::I32), "sum")];
        let sink = self.function(&[], &params, |this, params, steps| {
            let own = scope.with(binder, Meaning::Value(index(&params[0]))).of_lane();
            this.role.write_number(&own, tensor, target, params[1].clone(), steps)?;
            Ok(None)
        })?;
        let function = if total { ep::prefix_sum_and_total } else { ep::prefix_sum };
        out.push(Step::Do(call(function, vec![count, value, sink])));
        Ok(())
    }
}

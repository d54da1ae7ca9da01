//! Loops over the tokens of a stripe with a lane for each: counters and flags.

use super::{Whole, call, method, team};
use crate::ir::{Action, BinaryOp, Domain, Elem, ElemType, Expr, Memory, NameKind, Stmt, walk};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Value};
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::RANKS;
use crate::schedule::term::Term;
use crate::schedule::typed::first_part;
use crate::schedule::value::{Numbers, counted_loop};

impl Whole<'_, '_> {
    /// `for token in stripe { .. }`.
    pub(super) fn count_tokens(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, filter, body, .. } = &stmt.action else { return Ok(()) };
        out.push(Step::Says(stmt.at.clone()));
        let striped = self.striped(scope, out)?;
        let stripes = self.role.number("stripes");
        let params = [(Index, "stripe"), (Index, binder.as_str()), (Value(Elem::Bool), "present")];
        let most = stripes.range.map_or(i64::from(i32::MAX), |(_, high)| high);
        let each = self.function(&[], &params, |this, params, steps| {
            let [stripe, token, present] = params else { return Ok(None) };
            let stripe = Term { range: Some((0, most - 1)), ..stripe.clone() };
            let mut own = scope.of_lane();
            own.bind("stripe", Meaning::Value(stripe));
            own.bind(binder, Meaning::Value(token.clone()));
            if let Some(filter) = filter {
                // A token that is left out counts as one that is not there, before its rows are loaded.
                let value = this.role.scalar(&own, filter, steps)?;
                let value = present.clone().and(value);
                steps.push(Step::Set { place: present.clone(), value });
            }
            own = this.look_at(&own, body, Some(present), steps)?;
            for inner in body {
                this.per_token(&mut own, (inner, present), steps)?;
            }
            Ok(None)
        })?;
        let args = vec![team(), striped, stripes, each];
        out.push(Step::Do(call(ep::for_stripe_tokens, args)));
        Ok(())
    }

    /// One statement of the body.
    fn per_token(
        &mut self,
        scope: &mut Scope,
        (stmt, present): (&Stmt, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::For { binder, domain, position: None, filter, body } = &stmt.action else {
            let mut steps = Vec::new();
            self.role.one(scope, stmt, &mut steps);
            match stmt.action {
                Action::Let { .. } => out.extend(steps),
                _ => out.push(Step::If { condition: present.clone(), body: steps }),
            }
            return Ok(());
        };
        out.push(Step::Says(stmt.at.clone()));
        if let Domain::Row { row } = domain {
            return self.per_entry(scope, (binder, row), (filter.as_ref(), body), out);
        }
        if let Some(flags) = self.flags(scope, stmt, out)? {
            out.push(Step::If { condition: present.clone(), body: vec![flags] });
            return Ok(());
        }
        // What does not depend on the token is counted for all lanes at once.
        let numbers = self.role.numbers(scope, domain, out)?;
        let (by_warp, by_lane): (Vec<&Stmt>, Vec<&Stmt>) =
            body.iter().partition(|inner| numbers.from.is(0) && is_shared_count(inner, binder));
        if !by_warp.is_empty() {
            let count = numbers.to.clone().converted(&Elem::I32);
            let args =
                self.hits(scope, (binder, present), (&numbers, filter.as_ref()), &by_warp)?;
            let args = std::iter::once(count).chain(args).collect();
            out.push(Step::Do(call(ep::for_hits, args)));
        }
        if !by_lane.is_empty() {
            let outer = self.role.names.clone();
            let name = self.role.names.fresh(binder);
            let index = self.role.index_in(&name, &numbers);
            let mut own = scope.with(binder, Meaning::Value(index.clone()));
            let mut steps = Vec::new();
            if numbers.others {
                steps.push(Step::SkipUnless(index.test(BinaryOp::Ne, self.role.me())));
            }
            if let Some(filter) = filter {
                let holds = self.role.scalar(&own, filter, &mut steps)?;
                steps.push(Step::SkipUnless(holds));
            }
            by_lane.iter().for_each(|inner| self.role.one(&mut own, inner, &mut steps));
            let body = vec![counted_loop(name, numbers, Takers::Alone, steps)];
            out.push(Step::If { condition: present.clone(), body });
            self.role.names = outer;
        }
        Ok(())
    }

    /// What `ep::for_hits` calls: whether a number counts for the token of a lane, and what is counted for
    /// all lanes of a warp.
    fn hits(
        &mut self,
        scope: &Scope,
        (binder, present): (&str, &Term),
        (numbers, filter): (&Numbers, Option<&Expr>),
        counts: &[&Stmt],
    ) -> Lowered<[Term; 2]> {
        let range = self.role.index_in(binder, numbers).range;
        let with =
            |number: &Term| scope.with(binder, Meaning::Value(Term { range, ..number.clone() }));
        let holds = self.function(&[], &[(Index, binder)], |this, params, steps| {
            let own = with(&params[0]);
            let mut all = present.clone();
            if numbers.others {
                all = all.and(params[0].clone().test(BinaryOp::Ne, this.role.me()));
            }
            if let Some(filter) = filter {
                all = all.and(this.role.scalar(&own, filter, steps)?);
            }
            Ok(Some(all))
        })?;
        let params = [(Index, binder), (Value(Elem::I32), "hits")];
        let body = self.function(&[], &params, |this, params, steps| {
            let own = with(&params[0]);
            for stmt in counts {
                let Action::Count { target } = &stmt.action else { continue };
                let mut counted = Vec::new();
                this.role.count_many(&own, target, params[1].clone(), &mut counted)?;
                steps.push(Step::Says(stmt.at.clone()));
                match this.role.presence(&own, stmt) {
                    Some(condition) => steps.push(Step::If { condition, body: counted }),
                    None => steps.append(&mut counted),
                }
            }
            Ok(None)
        })?;
        Ok([holds, body])
    }

    /// `for peer in ranks { record table[token, peer] = routed(row, peer); }`: the flags of a token stand side
    /// by side.
    fn flags(&mut self, scope: &Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<Option<Step>> {
        let Action::For { binder, domain: Domain::Dim { name: dim }, filter: None, body, .. } =
            &stmt.action
        else {
            return Ok(None);
        };
        let [Stmt { action: Action::Record { target, value }, at, .. }] = body.as_slice() else {
            return Ok(None);
        };
        let Expr::Call { helper, args } = value else { return Ok(None) };
        let ([row, rank], [token, peer]) = (args.as_slice(), target.indices.as_slice()) else {
            return Ok(None);
        };
        let is_binder = |expr: &Expr| matches!(expr, Expr::Name { name, .. } if name == binder);
        let ranks = |dim: &Expr| matches!(dim, Expr::Name { name, .. } if name == "ranks");
        let tensor = self.role.tensor(&target.tensor)?;
        let flags = tensor.elem == ElemType::Scalar { elem: Elem::Bool }
            && tensor.memory == Memory::Device
            && tensor.dims.last().is_some_and(ranks);
        if dim != "ranks" || helper != "routed" || !flags || !is_binder(rank) || !is_binder(peer) {
            return Ok(None);
        }
        let Some(ranks) = scope.looked_at("routed", row) else { return Ok(None) };
        out.push(Step::Says(at.clone()));
        let to = self.row(scope, (&target.tensor, 0), std::slice::from_ref(token), out)?;
        let flag = self.function(&[], &[(Index, binder)], |_, params, _| {
            Ok(Some(method(ranks, "has", params.to_vec())))
        })?;
        Ok(Some(Step::Do(call(ep::store_flags.of(RANKS), vec![to, flag]))))
    }

    /// `for value in row`: absent and unknown entries are skipped.
    fn per_entry(
        &mut self,
        scope: &Scope,
        (binder, row): (&str, &Expr),
        (filter, body): (Option<&Expr>, &[Stmt]),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Expr::Element { tensor, .. } = row else { return Err(broken("a row is a tensor's")) };
        let elem = first_part(self.role.ir, &self.role.tensor(tensor)?.elem);
        let loaded = scope.looked_at("", row).ok_or(broken("the row is loaded"))?.to_string();
        let each = self.function(&[], &[(Value(elem), binder)], |this, params, steps| {
            let entry = &params[0];
            let mut holds = entry.clone().test(BinaryOp::Ge, Term::int(0));
            let mut known = entry.clone();
            if let Some(bound) = this.extent_indexed_by(body, binder)? {
                known.range = bound.range.map(|(_, high)| (0, high - 1));
                holds = holds.and(entry.clone().test(BinaryOp::Lt, bound));
            }
            let mut own = scope.with(binder, Meaning::Value(known));
            let mut inner = Vec::new();
            let skipped = filter.map(|filter| this.role.scalar(&own, filter, &mut inner));
            let mut counted = Vec::new();
            body.iter().for_each(|stmt| this.role.one(&mut own, stmt, &mut counted));
            match skipped.transpose()? {
                Some(condition) => inner.push(Step::If { condition, body: counted }),
                None => inner.append(&mut counted),
            }
            steps.push(Step::If { condition: holds, body: inner });
            Ok(None)
        })?;
        out.push(Step::Do(method(&loaded, "for_each", vec![each])));
        Ok(())
    }

    /// Extent of the axis that `binder` indexes in the first place that is written.
    fn extent_indexed_by(&mut self, body: &[Stmt], binder: &str) -> Lowered<Option<Term>> {
        for place in body.iter().filter_map(walk::target) {
            let mut indices = place.indices.iter();
            let own = |index: &Expr| matches!(index, Expr::Name { name, .. } if name == binder);
            let axis = indices.position(own);
            let dims = &self.role.tensor(&place.tensor)?.dims;
            if let Some(dim) = axis.and_then(|axis| dims.get(axis)) {
                return self.role.scalar(&Scope::default(), dim, &mut Vec::new()).map(Some);
            }
        }
        Ok(None)
    }
}

/// Whether a statement counts in a place that is the same for all tokens: only `binder`, numbers of the call
/// and the stripe say which.
fn is_shared_count(stmt: &Stmt, binder: &str) -> bool {
    let Action::Count { target } = &stmt.action else { return false };
    let mut shared = true;
    for index in &target.indices {
        walk::expr(index, &mut |part| {
            shared &= match part {
                Expr::Name { name, kind: NameKind::Binder } => name == binder,
                Expr::Element { .. } | Expr::Field { .. } | Expr::OfChannel { .. } => false,
                _ => true,
            };
        });
    }
    shared
}

//! Expressions of the language as values of the emitted text.
//!
//! What takes a loop, a fold or a look at a whole row, becomes steps ahead of the value.

mod helpers;
mod messages;
mod numbers;
mod rows;
mod tensors;

pub(super) use numbers::{Numbers, counted_loop};

use super::scope::{Meaning, Scope};
use super::step::{Step, Takers};
use super::term::{Term, arithmetic};
use super::{Lowered, RoleLowering};
use crate::ir::{BinaryOp, Domain, Elem, Expr, Fold, NameKind};
use crate::schedule::library::{Entity, ep};
use crate::schedule::limit::broken;

impl RoleLowering<'_> {
    /// The value of `expr`; of a row, its element `i`. What has to be done before goes to `out`.
    pub(super) fn value(
        &mut self,
        scope: &Scope,
        expr: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match expr {
            Expr::Int { value } => Ok(Term::int(*value)),
            Expr::Real { bits } => Ok(Term::real(f32::from_bits(*bits))),
            Expr::Bool { value } => Ok(Term::bool(*value)),
            Expr::Name { name, kind } => self.name(scope, name, kind, i, out),
            Expr::Element { tensor, indices } => {
                let known = self.forwards.iter().find(|own| own.tensor == *tensor);
                if let Some(computed) = known.and_then(|own| own.at(indices)) {
                    return self.value(scope, &computed, i, out);
                }
                let tensor = self.tensor(tensor)?;
                self.element(scope, tensor, indices, i, out)
            }
            Expr::Field { of, field, indices } => self.field(scope, of, field, indices, i, out),
            Expr::OfChannel { channel, index, field, indices } => {
                self.of_channel(scope, (channel, index, field, indices), i, out)
            }
            Expr::Call { helper, args } => self.call(scope, helper, args, i, out),
            Expr::Cast { value, elem } => match self.decoded(scope, value, i, out)? {
                Some(decoded) => Ok(decoded.converted(elem)),
                None => Ok(self.value(scope, value, i, out)?.converted(elem)),
            },
            Expr::Not { value } => Ok(self.value(scope, value, i, out)?.negated()),
            Expr::If { condition, yes, no } => {
                let holds = self.scalar(scope, condition, out)?;
                self.choice(scope, holds, (yes, no), i, out)
            }
            Expr::Binary { op, left, right } => self.binary(scope, op, left, right, i, out),
            Expr::Fold { fold: Fold::PrefixSum, .. } => {
                Err(broken("a prefix sum is the whole value of a `store` or `record`"))
            }
            Expr::Fold { fold, binder, domain, body } => {
                self.fold(scope, *fold, (binder, domain, body), i, out)
            }
        }
    }

    /// One number or truth.
    pub(super) fn scalar(
        &mut self,
        scope: &Scope,
        expr: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        self.value(scope, expr, None, out)
    }

    fn name(
        &mut self,
        scope: &Scope,
        name: &str,
        kind: &NameKind,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match kind {
            NameKind::Dim | NameKind::Tune => Ok(self.number(name)),
            NameKind::Arg => {
                let arg = self.ir.args.iter().find(|arg| arg.name == *name);
                let arg = arg.ok_or_else(|| broken(format!("no arg `{name}`")))?;
                let value = Term::name(format!("args.{name}"), arg.elem.clone());
                let range = arg.low.whole().zip(arg.high.whole());
                Ok(Term { range, ..value })
            }
            NameKind::Size => self.size(scope, name, out),
            NameKind::Me => match scope.find("me") {
                Some(Meaning::Value(rank)) => Ok(rank.clone()),
                _ => Ok(self.me()),
            },
            NameKind::Stripe | NameKind::Binder => {
                let name = if *kind == NameKind::Stripe { "stripe" } else { name };
                match scope.find(name) {
                    Some(Meaning::Value(value) | Meaning::Placed(value, _)) => Ok(value.clone()),
                    Some(Meaning::Row(row, there)) => {
                        let (row, mut there) = (row.clone(), there.clone());
                        there.by_lane = scope.by_lane;
                        self.value(&there, &row, i, out)
                    }
                    Some(Meaning::Message(_)) => {
                        Err(broken(format!("`{name}` is a whole message here")))
                    }
                    None if *kind == NameKind::Stripe => Err(broken(
                        "`stripe` has a value only where a role is dealt out by stripes",
                    )),
                    None => Err(broken(format!("`{name}` has no value here"))),
                }
            }
        }
    }

    /// Indices as values.
    pub(super) fn indices(
        &mut self,
        scope: &Scope,
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Term>> {
        indices.iter().map(|index| self.scalar(scope, index, out)).collect()
    }

    /// A value under a name of its own.
    pub(super) fn named(&mut self, wanted: &str, value: Term, out: &mut Vec<Step>) -> Term {
        let name = self.names.fresh(wanted);
        let term = Term { range: value.range, ..Term::name(&name, value.elem.clone()) };
        out.push(Step::Let { name, value });
        term
    }

    fn binary(
        &mut self,
        scope: &Scope,
        op: &BinaryOp,
        left: &Expr,
        right: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if let (BinaryOp::Add, Expr::Element { tensor, indices }) = (op, right)
            && self.adds_what_came(scope, left, self.tensor(tensor)?)
        {
            // Each copy that came is added to what stands on the left, in turn.
            let tensor = self.tensor(tensor)?;
            let value = self.value(scope, left, i, out)?;
            let elem = if value.is_whole() { self.sum_elem(tensor) } else { Elem::F32 };
            let value = value.converted(&elem);
            let name = self.names.fresh("sum");
            out.push(Step::Variable { name: name.clone(), elem: elem.clone(), value });
            let total = Term::name(name, elem);
            let at = self.indices(scope, indices, out)?;
            self.add_copies(tensor, at, i, total.clone(), out)?;
            return Ok(total);
        }
        let first = self.value(scope, left, i, out)?;
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            return self.logical(scope, op, first, right, i, out);
        }
        let second = self.value(scope, right, i, out)?;
        let is_test = !matches!(
            op,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem
        );
        Ok(match is_test {
            false => arithmetic(*op, first, second),
            true if first.is_whole() && second.is_whole() => first.test(*op, second),
            true => first.converted(&Elem::F32).test(*op, second.converted(&Elem::F32)),
        })
    }

    /// `left && right` or `left || right`: what the right side takes to find out is done only where it
    /// counts.
    fn logical(
        &mut self,
        scope: &Scope,
        op: &BinaryOp,
        first: Term,
        right: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let mut ahead = Vec::new();
        let second = self.value(scope, right, i, &mut ahead)?;
        if ahead.is_empty() {
            return Ok(first.test(*op, second));
        }
        let name = self.names.fresh("holds");
        out.push(Step::Variable { name: name.clone(), elem: Elem::Bool, value: first });
        let holds = Term::name(name, Elem::Bool);
        let condition = match op {
            BinaryOp::And => holds.clone(),
            _ => holds.clone().negated(),
        };
        ahead.push(Step::Set { place: holds.clone(), value: second });
        out.push(Step::If { condition, body: ahead });
        Ok(holds)
    }

    /// `if holds { yes } else { no }`: what a value takes to find out is done only where it counts.
    fn choice(
        &mut self,
        scope: &Scope,
        holds: Term,
        (yes, no): (&Expr, &Expr),
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let yes = self.value(scope, yes, i, &mut first)?;
        let no = self.value(scope, no, i, &mut second)?;
        let elem = match (&yes.elem, &no.elem) {
            (yes, no) if yes == no => yes.clone(),
            (Elem::I64, _) | (_, Elem::I64) => Elem::I64,
            _ if yes.is_whole() => Elem::I32,
            _ => Elem::F32,
        };
        let range = yes.range.zip(no.range).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1)));
        let (yes, no) = (yes.converted(&elem), no.converted(&elem));
        if first.is_empty() && second.is_empty() {
            return Ok(Term { range, ..holds.choose(yes, no) });
        }
        let holds = self.named("holds", holds, out);
        let name = self.names.fresh("value");
        let value = Term::int(0).converted(&elem);
        out.push(Step::Variable { name: name.clone(), elem: elem.clone(), value });
        let place = Term::name(name, elem);
        first.push(Step::Set { place: place.clone(), value: yes });
        second.push(Step::Set { place: place.clone(), value: no });
        out.push(Step::If { condition: holds.clone(), body: first });
        out.push(Step::If { condition: holds.negated(), body: second });
        Ok(Term { range, ..place })
    }

    /// `sum(binder in domain: body)` and the like, in order.
    fn fold(
        &mut self,
        scope: &Scope,
        fold: Fold,
        (binder, domain, body): (&str, &Domain, &Expr),
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let mut steps = Vec::new();
        let (name, numbers, inner) = self.counted(scope, binder, domain, &[], out, &mut steps)?;
        let body = match (&fold, body) {
            // A turn that adds nothing ends there. A sum begins at zero and never becomes -0, so zero leaves it as it is.
            (Fold::Sum, Expr::If { condition, yes, no }) if is_zero(no) => {
                let holds = self.scalar(&inner, condition, &mut steps)?;
                steps.push(Step::SkipUnless(holds));
                yes
            }
            _ => body,
        };
        let value = self.value(&inner, body, i, &mut steps)?;
        let total = self.folded(fold, value, out, &mut steps);
        out.push(counted_loop(name, numbers, Takers::Alone, steps));
        Ok(total)
    }

    /// A variable, made in `out`, that each turn of a loop folds a value into, as the last step of its `turn`.
    fn folded(
        &mut self,
        fold: Fold,
        value: Term,
        out: &mut Vec<Step>,
        turn: &mut Vec<Step>,
    ) -> Term {
        let elem = if value.is_whole() { Elem::I64 } else { Elem::F32 };
        let of = |function: Entity, args| Term::call(function, args, elem.clone());
        let begin = |function: Entity| Term::call(function.of(&elem), Vec::new(), elem.clone());
        let (wanted, first) = match fold {
            Fold::Sum | Fold::PrefixSum => ("sum", Term::int(0).converted(&elem)),
            Fold::Max => ("greatest", begin(ep::least)),
            Fold::Min => ("least", begin(ep::greatest)),
        };
        let name = self.names.fresh(wanted);
        out.push(Step::Variable { name: name.clone(), elem: elem.clone(), value: first });
        let total = Term::name(name, elem.clone());
        let (place, value) = (total.clone(), value.converted(&elem));
        turn.push(match fold {
            Fold::Sum | Fold::PrefixSum => Step::Increase { place, value },
            Fold::Max => Step::Set { value: of(ep::greater, vec![place.clone(), value]), place },
            Fold::Min => Step::Set { value: of(ep::lesser, vec![place.clone(), value]), place },
        });
        total
    }
}

/// Whether a value is written as zero.
fn is_zero(value: &Expr) -> bool {
    matches!(value, Expr::Int { value: 0 } | Expr::Real { bits: 0 })
}

/// The current stripe.
pub(super) const STRIPE: Expr = Expr::Name { name: String::new(), kind: NameKind::Stripe };

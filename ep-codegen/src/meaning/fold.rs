//! What loops and sums run over.

use std::rc::Rc;

use super::data::Scalar;
use super::eval::{Arrived, Bind, Bound, Eval, added};
use super::open::Touched;
use super::value::{Value, Written, form};
use super::wrong::{Fault, Found, Stop};
use crate::ir::{BinaryOp, DimKind, Domain, Elem, ElemType, Expr, Fold, NameKind, WellKnown, walk};

/// What a fold has made of its terms so far.
struct Folded {
    fold: Fold,
    value: Option<Value>,
}

impl Folded {
    fn take(&mut self, term: &Value) -> Found<()> {
        let before = match self.value.take() {
            Some(before) => before,
            None if matches!(self.fold, Fold::Max | Fold::Min) => {
                self.value = Some(term.map(&mut Ok)?);
                return Ok(());
            }
            // From zero, so that a sum of -0 is 0.
            None => term.zeros()?,
        };
        let fold = self.fold;
        self.value = Some(match fold {
            Fold::Max | Fold::Min => {
                before.zip(term, fold.word(), &mut |a, b| chosen(fold, a, b))?
            }
            Fold::Sum | Fold::PrefixSum => added(&before, term)?,
        });
        Ok(())
    }
}

/// The greater or the lesser of two elements: the first of equal ones, and the first NaN.
fn chosen(fold: Fold, a: Scalar, b: Scalar) -> Found<Scalar> {
    let keeps = match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) if fold == Fold::Max => a >= b,
        (Scalar::Int(a), Scalar::Int(b)) => a <= b,
        (Scalar::Real(a), Scalar::Real(b)) if fold == Fold::Max => a >= b || a.is_nan(),
        (Scalar::Real(a), Scalar::Real(b)) => a <= b || a.is_nan(),
        _ => return Err(form(fold.word())),
    };
    Ok(if keeps { a } else { b })
}

/// What a fold makes of no terms.
fn nothing(fold: Fold, is_real: bool) -> Value {
    Value::One(match (fold, is_real) {
        (Fold::Max, true) => Scalar::Real(f32::NEG_INFINITY),
        (Fold::Min, true) => Scalar::Real(f32::INFINITY),
        (Fold::Max, false) => Scalar::Int(i64::MIN),
        (Fold::Min, false) => Scalar::Int(i64::MAX),
        (Fold::Sum | Fold::PrefixSum, _) => Scalar::Int(0),
    })
}

impl<'p> Eval<'_, 'p> {
    /// The values that a loop or fold runs over.
    pub(super) fn domain(&mut self, domain: &'p Domain) -> Found<Vec<i64>> {
        let rank = self.actor.rank;
        Ok(match domain {
            Domain::Tokens => (0..self.size(WellKnown::Tokens.name())?).collect(),
            Domain::Stripe => {
                let stripe = self.actor.stripe.ok_or_else(|| form("stripe"))?;
                self.world.stripe_span(rank, stripe).collect()
            }
            Domain::Dim { name } => {
                let missing = || Fault::Missing { what: "number", name: name.clone() };
                (0..self.world.number(name).ok_or_else(missing)?).collect()
            }
            Domain::Peers { set } => self.world.members(set, rank),
            Domain::Range { low, high } => (self.whole(low)?..self.whole(high)?).collect(),
            Domain::Once => vec![0],
            Domain::Row { row } => return self.row_of(row),
            Domain::ReceivedFrom { .. } => return Err(form("the rows received from a peer")),
        })
    }

    /// The numbers of a row; -1 is none. A tensor that may come several times counts its copies.
    fn row_of(&mut self, row: &'p Expr) -> Found<Vec<i64>> {
        if let Expr::Element { tensor, indices } = row
            && indices.is_empty()
            && self.world.ir.tensors.iter().any(|known| known.name == *tensor && known.copies > 1)
        {
            let copies = self.world.memory(self.actor.rank, tensor)?.copies.len();
            return Ok((0..copies as i64).collect());
        }
        let value = self.expr(row)?;
        let row = value.row(Written(row))?;
        let numbers = (0..row.count()).filter_map(|at| match row.get(at) {
            Some(Scalar::Int(value)) => Some(value),
            _ => None,
        });
        Ok(numbers.filter(|value| *value != -1).collect())
    }

    fn size(&self, name: &str) -> Found<i64> {
        let size = self.world.sizes.get(self.actor.rank).and_then(|sizes| sizes.get(name));
        let missing = || Fault::Missing { what: "size", name: name.to_string() };
        size.copied().ok_or_else(|| missing().into())
    }

    /// `body` with `name` bound to a number.
    pub(super) fn with<T>(
        &mut self,
        name: &'p str,
        value: i64,
        body: impl FnOnce(&mut Self) -> Found<T>,
    ) -> Found<T> {
        let bound = Bound::Value(Value::int(value), Touched::Nothing);
        self.binds.push(Bind { name, bound });
        let result = body(self);
        self.binds.pop();
        result
    }

    /// `sum(binder in domain: body)` and the like.
    pub(super) fn fold(
        &mut self,
        fold: Fold,
        binder: &'p str,
        domain: &'p Domain,
        body: &'p Expr,
    ) -> Found<Value> {
        let mut folded = Folded { fold, value: None };
        for value in self.domain(domain)? {
            let term = self.with(binder, value, |inner| inner.expr(body))?;
            folded.take(&term)?;
        }
        Ok(folded.value.unwrap_or_else(|| nothing(fold, self.is_real(body))))
    }

    /// A fold of `value` over the parts of the gather around it, in order of its axis.
    pub(super) fn fold_of_parts(&mut self, fold: Fold, value: &'p Expr) -> Found<Value> {
        let gathered = self.binds.iter().enumerate().rev().find_map(|(at, bind)| {
            let Bound::Gathered { channel, axis, parts } = &bind.bound else { return None };
            Some((at, channel.clone(), axis.clone(), parts.clone()))
        });
        let (at, channel, axis, parts) = gathered.ok_or_else(|| form(Written(value)))?;
        if self.comes_with_nothing(&channel, self.binds[at].name, value) {
            return Err(Stop::Absent);
        }
        let whole = self.binds[at].bound.clone();
        let axis_at = self.binds.iter().rposition(|bind| bind.name == axis);
        let first = axis_at.map(|axis| self.binds[axis].bound.clone());
        let is_real = self.is_real(value);
        let mut folded = Folded { fold, value: None };
        for (number, message) in &parts {
            let touched = message.touched;
            self.binds[at].bound = Bound::Arrived(Arrived {
                message: Rc::clone(message),
                row: None,
                index: 0,
                source: *number,
                part: 0,
                touched,
            });
            if let Some(axis) = axis_at {
                self.binds[axis].bound = Bound::Value(Value::int(*number), Touched::Nothing);
            }
            let term = self.expr(value);
            self.binds[at].bound = whole.clone();
            if let (Some(axis), Some(first)) = (axis_at, &first) {
                self.binds[axis].bound = first.clone();
            }
            folded.take(&term?)?;
        }
        Ok(folded.value.unwrap_or_else(|| nothing(fold, is_real)))
    }

    /// Whether an expression is computed in `f32`, as far as a fold over nothing has to know.
    fn is_real(&self, expr: &Expr) -> bool {
        let float = |elem: &Elem| matches!(elem, Elem::F32 | Elem::Bf16);
        let declared = |elem: &ElemType| {
            let parts = self.world.parts(elem);
            matches!(parts.as_slice(), [(Some(elem), _)] if float(elem))
        };
        let of_tensor = |name: &str| {
            let known = self.world.ir.tensors.iter().find(|known| known.name == name);
            known.is_some_and(|known| declared(&known.elem))
        };
        let of_message = |channel: &str, field: &str| {
            let fields = self.world.ir.carried(channel).map(|(_, message)| &message.fields);
            let field = fields.into_iter().flatten().find(|known| known.name == field);
            field.is_some_and(|known| declared(&known.elem))
        };
        let of_value = |value: &Value| match value {
            Value::One(one) => matches!(one, Scalar::Real(_)),
            Value::Row(row) => {
                row.first().is_some_and(|data| matches!(data.elem(), "f32" | "bf16"))
            }
            _ => false,
        };
        match expr {
            Expr::Real { .. } => true,
            Expr::Int { .. } | Expr::Bool { .. } | Expr::Not { .. } => false,
            Expr::Name { name, kind } => match (kind, self.bound(name)) {
                (_, Some(Bound::Value(value, _))) => of_value(value),
                (NameKind::Arg, _) => matches!(self.world.arg(name), Some(Scalar::Real(_))),
                _ => false,
            },
            Expr::Element { tensor, .. } => match self.bound(tensor) {
                Some(Bound::Value(value, _)) => of_value(value),
                _ => of_tensor(tensor),
            },
            Expr::Field { of, field, .. } => match self.bound(of) {
                Some(Bound::Gathered { channel, .. }) => of_message(channel, field),
                Some(Bound::Arrived(arrived)) => {
                    let fields = &arrived.message.fields;
                    let found = fields.iter().find(|(name, ..)| name == field);
                    found.and_then(|(_, value, _)| value.as_ref()).is_some_and(of_value)
                }
                _ => false,
            },
            Expr::OfChannel { channel, field, .. } => of_message(channel, field),
            Expr::Call { helper, args } => {
                let own = self.world.ir.cuda_fns.iter().find(|own| own.name == *helper);
                let folds = Fold::of_parts(helper, args).is_some();
                own.is_some_and(|own| float(&own.returns))
                    || (folds && args.iter().any(|arg| self.is_real(arg)))
            }
            Expr::Fold { body, .. } => self.is_real(body),
            Expr::Cast { elem, .. } => float(elem),
            Expr::If { yes: left, no: right, .. } | Expr::Binary { left, right, .. } => {
                self.is_real(left) || self.is_real(right)
            }
        }
    }

    /// Whether parts bring nothing of a field in `value`, since its optional tensor is absent: then there
    /// is no fold of it either, be there parts or not.
    pub(super) fn comes_with_nothing(&self, channel: &str, part: &str, value: &Expr) -> bool {
        let fields = self.world.ir.carried(channel).map_or(&[][..], |(_, message)| &message.fields);
        let mut nothing = false;
        walk::expr(value, &mut |inner| {
            let Expr::Field { of, field, .. } = inner else { return };
            let known = fields.iter().find(|known| of == part && known.name == *field);
            let with = known.and_then(|known| known.optional_with.as_ref());
            nothing |= with.is_some_and(|with| self.world.memory(self.actor.rank, with).is_err());
        });
        nothing
    }

    /// Whether `extent` has one place more than the domain, for the total of a prefix sum.
    pub(super) fn is_one_more(&self, extent: &Expr, domain: &Domain) -> bool {
        let formula = |name: &str| {
            let dim = self.world.ir.dims.iter().find(|dim| dim.name == name)?;
            if let DimKind::Derived { value } = &dim.kind { Some(value) } else { None }
        };
        let Domain::Dim { name } = domain else { return false };
        let counts = |expr: &Expr| {
            matches!(expr, Expr::Name { name: other, .. } if other == name)
                || formula(name) == Some(expr)
        };
        let whole = match extent {
            Expr::Name { name, .. } => formula(name).unwrap_or(extent),
            _ => extent,
        };
        matches!(whole, Expr::Binary { op: BinaryOp::Add, left, right }
            if counts(left) && **right == Expr::Int { value: 1 })
    }
}

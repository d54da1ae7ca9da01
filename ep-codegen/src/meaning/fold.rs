//! What loops and sums run over.

use std::rc::Rc;

use super::data::Scalar;
use super::eval::{Arrived, Bind, Bound, Eval, added};
use super::open::Touched;
use super::value::{Value, Written, form};
use super::wrong::{Fault, Found, Stop};
use crate::ir::{BinaryOp, DimKind, Domain, Expr, walk};

impl<'p> Eval<'_, 'p> {
    /// The values that a loop or fold runs over.
    pub(super) fn domain(&mut self, domain: &'p Domain) -> Found<Vec<i64>> {
        let rank = self.actor.rank;
        Ok(match domain {
            Domain::Tokens => (0..self.size("tokens")?).collect(),
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

    pub(super) fn sum(
        &mut self,
        binder: &'p str,
        domain: &'p Domain,
        body: &'p Expr,
    ) -> Found<Value> {
        let mut sum = None;
        for value in self.domain(domain)? {
            let term = self.with(binder, value, |inner| inner.expr(body))?;
            // From zero, so that a sum of -0 is 0.
            let before = match sum.take() {
                Some(before) => before,
                None => term.zeros()?,
            };
            sum = Some(added(&before, &term)?);
        }
        Ok(sum.unwrap_or(Value::int(0)))
    }

    /// `sum(value)` over the parts of the gather around it, in order of its axis.
    pub(super) fn sum_of_parts(&mut self, value: &'p Expr) -> Found<Value> {
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
        let mut sum = None;
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
            let term = term?;
            let before = match sum.take() {
                Some(before) => before,
                None => term.zeros()?,
            };
            sum = Some(added(&before, &term)?);
        }
        Ok(sum.unwrap_or(Value::int(0)))
    }

    /// Whether parts bring nothing of a field in `value`, since its optional tensor is absent: then there
    /// is no sum of it either, be there parts or not.
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

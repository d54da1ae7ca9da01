//! Counts over all tokens of a rank, and sums of the counts of other ranks.

use super::super::Forms;
use super::super::forms::{is_name, mentions_name};
use super::is_ranks;
use crate::ir::put::put;
use crate::ir::typed::elem_of;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, ElemType, Expr, Fold, Memory, Pipeline, Stmt,
};
use crate::schedule::cut::{PEER, own_name};

/// The kind of a count over all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Those that go to a rank.
    Rows,
    /// How often each value stands in the rows of a tensor, or in how many rows (`once`).
    Values { once: bool },
}

/// A table of counts, and the statement that makes it.
pub(crate) struct Counts<'s> {
    pub(crate) stmt: &'s Stmt,
    /// The statement in its loop.
    pub(crate) record: &'s Stmt,
    pub(crate) of: Counted,
    /// The number that bounds the loop.
    pub(crate) count: &'s str,
    pub(crate) table: &'s str,
    /// The tensor whose values are counted.
    pub(crate) values: Option<&'s str>,
}

impl<'s> Forms<'s> {
    /// A table that counts the tokens which go to each rank, or the values in rows of a tensor.
    pub(super) fn counts_of(
        &self,
        stmt: &'s Stmt,
        (token, goes): (&str, &Expr),
    ) -> Option<Counts<'s>> {
        let Action::For {
            binder,
            domain: Domain::Dim { name: count },
            position: None,
            filter: None,
            body,
        } = &stmt.action
        else {
            return None;
        };
        let [record] = body.as_slice() else { return None };
        let Action::Record { target, value } = &record.action else { return None };
        let Expr::Fold { fold: Fold::Sum, binder: own, domain, body } = value else { return None };
        let table = self.tensor(&target.tensor).ok()?;
        let fits = matches!(target.indices.as_slice(), [index] if is_name(index, binder))
            && **domain == Domain::Tokens
            && matches!(table.dims.as_slice(), [all] if is_name(all, count))
            && table.elem == ElemType::Scalar { elem: Elem::I32 }
            && table.memory == Memory::Device
            && !table.optional;
        if !fits {
            return None;
        }
        let (of, values) = if is_ranks(&Domain::Dim { name: count.clone() })
            && condition(self.ir, body).is_some_and(|mut holds| {
                put(&mut holds, own, &own_name(token));
                put(&mut holds, binder, &own_name(PEER));
                all_of(&holds) == all_of(goes)
            }) {
            (Counted::Rows, None)
        } else {
            let (tensor, once) = values_of(body, own, binder)?;
            let of = self.tensor(tensor).ok()?;
            let is_ids = of.elem == ElemType::Scalar { elem: Elem::I64 };
            if !is_ids || of.optional || of.copies > 1 || of.dims.len() != 2 {
                return None;
            }
            (Counted::Values { once }, Some(tensor))
        };
        Some(Counts { stmt, record, of, count, table: &target.tensor, values })
    }
}

/// The condition of a number that is one where the condition holds, and zero elsewhere.
pub(super) fn condition(ir: &Pipeline, number: &Expr) -> Option<Expr> {
    match number {
        Expr::Int { value: 1 } => Some(Expr::Bool { value: true }),
        Expr::Cast { value, elem: Elem::I32 } => {
            (elem_of(ir, value) == Elem::Bool).then(|| (**value).clone())
        }
        Expr::If { condition: holds, yes, no } if **no == (Expr::Int { value: 0 }) => {
            let (left, right) = (holds.clone(), Box::new(condition(ir, yes)?));
            Some(Expr::Binary { op: BinaryOp::And, left, right })
        }
        _ => None,
    }
}

/// The conditions that `&&` joins.
fn all_of(whole: &Expr) -> Vec<&Expr> {
    match whole {
        Expr::Binary { op: BinaryOp::And, left, right } => {
            all_of(left).into_iter().chain(all_of(right)).collect()
        }
        Expr::Bool { value: true } => Vec::new(),
        other => vec![other],
    }
}

/// The tensor of `sum(k in topk: (ids[token, k] == value) as i32)`, or of `listed(ids[token], value) as i32`, and whether a
/// row counts once.
fn values_of<'s>(body: &'s Expr, token: &str, value: &str) -> Option<(&'s str, bool)> {
    let as_i32 = |number: &'s Expr| match number {
        Expr::Cast { value, elem: Elem::I32 } => Some(value.as_ref()),
        _ => None,
    };
    if let Expr::Fold { fold: Fold::Sum, binder, body, .. } = body {
        let Expr::Binary { op: BinaryOp::Eq, left, right } = as_i32(body)? else { return None };
        let Expr::Element { tensor, indices } = &**left else { return None };
        let [row, column] = indices.as_slice() else { return None };
        let own = is_name(row, token) && is_name(column, binder) && is_name(right, value);
        return own.then_some((tensor.as_str(), false));
    }
    let Expr::Call { helper, args } = as_i32(body)? else { return None };
    let [Expr::Element { tensor, indices }, number] = args.as_slice() else { return None };
    let own = matches!(indices.as_slice(), [row] if is_name(row, token));
    (helper == "listed" && own && is_name(number, value)).then_some((tensor.as_str(), true))
}

/// `sum(source in 0..end: slots[source].field[at])`
pub(in crate::schedule::rules) struct SumOfSlots<'e> {
    pub(in crate::schedule::rules) field: &'e str,
    pub(in crate::schedule::rules) end: &'e Expr,
    pub(in crate::schedule::rules) at: &'e Expr,
}

pub(in crate::schedule::rules) fn sum_of_slots<'e>(
    whole: &'e Expr,
    slots: &Channel,
) -> Option<SumOfSlots<'e>> {
    let Expr::Fold { fold: Fold::Sum, binder, domain, body } = whole else {
        return match whole {
            Expr::Cast { value, elem: Elem::I32 | Elem::I64 } => sum_of_slots(value, slots),
            _ => None,
        };
    };
    let Domain::Range { low: Expr::Int { value: 0 }, high: end } = &**domain else { return None };
    let Expr::OfChannel { channel, index, field, indices } = &**body else { return None };
    let [at] = indices.as_slice() else { return None };
    let own = *channel == slots.name
        && matches!(index.as_slice(), [index] if is_name(index, binder))
        && !mentions_name(at, binder);
    own.then_some(SumOfSlots { field, end, at })
}

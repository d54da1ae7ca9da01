//! Counts over all tokens of a rank, and sums of the counts of other ranks.

use super::{Facts, is_name};
use crate::ir::put::{mentions, put};
use crate::ir::typed::elem_of;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, ElemType, Expr, Fold, Memory, Pipeline, Stmt,
    WellKnown, walk,
};
use crate::schedule::cut::{PEER, own_name};

/// A table of counts, and the statement that makes it.
pub(super) struct Counts<'s> {
    pub(super) stmt: &'s Stmt,
    /// The statement in its loop.
    pub(super) record: &'s Stmt,
    /// The number that bounds the loop.
    pub(super) count: &'s str,
    pub(super) table: &'s str,
    /// The values that are counted; `None`: the tokens that go to each rank.
    pub(super) values: Option<Values>,
}

/// Values that are counted in the rows of a tensor.
pub(super) struct Values {
    pub(super) tensor: String,
    /// Whether a value counts once in a row.
    pub(super) once: bool,
    /// The name of the token, and the conditions under which it counts.
    pub(super) token: String,
    pub(super) gates: Vec<Expr>,
}

impl<'s> Facts<'s> {
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
        let values = if WellKnown::Ranks.is(count)
            && condition(self.ir, body).is_some_and(|mut holds| {
                put(&mut holds, own, &own_name(token));
                put(&mut holds, binder, &own_name(PEER));
                all_of(&holds) == all_of(goes)
            }) {
            None
        } else {
            let values = self.values_of(body, own, binder)?;
            let of = self.tensor(&values.tensor).ok()?;
            let is_ids = of.elem == ElemType::Scalar { elem: Elem::I64 };
            if !is_ids || of.optional || of.copies > 1 || of.dims.len() != 2 {
                return None;
            }
            Some(values)
        };
        Some(Counts { stmt, record, count, table: &target.tensor, values })
    }

    /// The values of `sum(k in topk: (ids[token, k] == value) as i32)`, or of `listed(ids[token], value) as i32`, with
    /// conditions of the token as factors or beside them.
    fn values_of(&self, number: &Expr, token: &str, value: &str) -> Option<Values> {
        let new = |(tensor, gates): (String, Vec<Expr>), once| Values {
            tensor,
            once,
            token: token.to_string(),
            gates,
        };
        let gated = |count: &Expr, gate: Option<Expr>| {
            let mut values = self.values_of(count, token, value)?;
            values.gates.push(gate?);
            Some(values)
        };
        let values = match number {
            Expr::Binary { op: BinaryOp::Mul, left, right } => {
                gated(left, condition(self.ir, right))
                    .or_else(|| gated(right, condition(self.ir, left)))?
            }
            Expr::If { condition: gate, yes, no } if **no == (Expr::Int { value: 0 }) => {
                gated(yes, Some((**gate).clone()))?
            }
            Expr::Fold { fold: Fold::Sum, binder, domain, body } => {
                let holds = condition(self.ir, body)?;
                let counted = split(&holds, |it| equal(it, token, value, binder))?;
                let width = self.tensor(&counted.0).ok()?.dims.last()?;
                let is_whole = matches!(&**domain, Domain::Dim { name } if is_name(width, name));
                let is_of_choice = |gate: &Expr| mentions(gate, binder);
                if !is_whole || counted.1.iter().any(is_of_choice) {
                    return None;
                }
                new(counted, false)
            }
            _ => new(split(&condition(self.ir, number)?, |it| listed(it, token, value))?, true),
        };
        let is_known = |gate: &Expr| !mentions(gate, value) && self.is_of_inputs(gate);
        values.gates.iter().all(is_known).then_some(values)
    }

    /// Whether a number reads nothing but inputs that are there.
    fn is_of_inputs(&self, number: &Expr) -> bool {
        let mut all = true;
        walk::expr(number, &mut |part| {
            all &= match part {
                Expr::Element { tensor, .. } => {
                    self.tensor(tensor).is_ok_and(|it| !it.optional && it.is_given())
                }
                Expr::OfChannel { .. } | Expr::Field { .. } => false,
                _ => true,
            };
        });
        all
    }
}

/// The tensor that `of` finds in one of the conditions that `&&` joins, and all other conditions.
fn split<'e>(
    holds: &'e Expr,
    of: impl Fn(&'e Expr) -> Option<&'e str>,
) -> Option<(String, Vec<Expr>)> {
    let (own, others): (Vec<&Expr>, _) = all_of(holds).into_iter().partition(|it| of(it).is_some());
    let [only] = own.as_slice() else { return None };
    Some((of(only)?.to_string(), others.into_iter().cloned().collect()))
}

/// The tensor of `ids[token, choice] == value`.
fn equal<'e>(holds: &'e Expr, token: &str, value: &str, choice: &str) -> Option<&'e str> {
    let Expr::Binary { op: BinaryOp::Eq, left, right } = holds else { return None };
    let Expr::Element { tensor, indices } = &**left else { return None };
    let [row, column] = indices.as_slice() else { return None };
    let own = is_name(row, token) && is_name(column, choice) && is_name(right, value);
    own.then_some(tensor)
}

/// The tensor of `listed(ids[token], value)`.
fn listed<'e>(holds: &'e Expr, token: &str, value: &str) -> Option<&'e str> {
    let Expr::Call { helper, args } = holds else { return None };
    let [Expr::Element { tensor, indices }, number] = args.as_slice() else { return None };
    let own = matches!(indices.as_slice(), [row] if is_name(row, token));
    (helper == "listed" && own && is_name(number, value)).then_some(tensor)
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

/// `sum(source in 0..end: slots[source].field[at])`
pub(super) struct SumOfSlots<'e> {
    pub(super) field: &'e str,
    pub(super) end: &'e Expr,
    pub(super) at: &'e Expr,
}

pub(super) fn sum_of_slots<'e>(whole: &'e Expr, slots: &Channel) -> Option<SumOfSlots<'e>> {
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
        && !mentions(at, binder);
    own.then_some(SumOfSlots { field, end, at })
}

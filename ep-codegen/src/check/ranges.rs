//! What an expression over the shape can be worth, as an interval: enough to say that a limit is
//! exceeded, or a condition false, for *every* legal shape.
//!
//! An interval may be too wide (`a - a` is not known to be 0) and is then silent, never wrong.

use std::collections::BTreeMap;

use super::model::View;
use crate::ast::{BinaryOp, Expr, ExprKind, ShapeEntry};

/// The values between two ends, both possible as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    /// Nothing is less.
    pub(super) low: i128,
    /// Nothing is greater.
    pub(super) high: i128,
}

/// A bound that stands for "no limit"; far from the ends of i128, so that sums cannot overflow.
const FAR: i128 = 1 << 80;

const FLAG: Range = Range { low: 0, high: 1 };

impl Range {
    /// One value.
    pub(super) fn exactly(value: i64) -> Range {
        Range { low: value.into(), high: value.into() }
    }

    fn new(ends: &[i128]) -> Range {
        let ends = ends.iter().map(|end| (*end).clamp(-FAR, FAR));
        Range { low: ends.clone().min().unwrap_or(-FAR), high: ends.max().unwrap_or(FAR) }
    }

    fn ends(self, other: Range, op: impl Fn(i128, i128) -> i128) -> Range {
        Range::new(&[
            op(self.low, other.low),
            op(self.low, other.high),
            op(self.high, other.low),
            op(self.high, other.high),
        ])
    }

    fn flag(always: bool, never: bool) -> Range {
        Range { low: i128::from(always), high: i128::from(!never) }
    }
}

/// The values that `expr` can have over all legal shapes and tunes, if anything is known.
pub(super) fn range(view: &View<'_>, expr: &Expr) -> Option<Range> {
    // Names in order of declaration: a formula knows those above it, so that circles end.
    let mut known = Known::new();
    for entry in &view.shape {
        if let ShapeEntry::Derived { name, value, .. } = entry
            && let Some(range) = of_expr(view, &known, value)
        {
            known.insert(name.to_string(), range);
        }
    }
    of_expr(view, &known, expr)
}

/// Ranges of derived names.
type Known = BTreeMap<String, Range>;

fn of_expr(view: &View<'_>, known: &Known, expr: &Expr) -> Option<Range> {
    let sub = |expr: &Expr| of_expr(view, known, expr);
    match &expr.kind {
        ExprKind::Int(value) => Some(Range::exactly(*value)),
        ExprKind::Bool(value) => Some(Range::exactly((*value).into())),
        ExprKind::Name(name) => of_name(view, known, &name.to_string()),
        ExprKind::Neg { value } => {
            let value = sub(value)?;
            Some(Range { low: -value.high, high: -value.low })
        }
        ExprKind::Not { value } => {
            let value = sub(value)?;
            Some(Range { low: 1 - value.high, high: 1 - value.low })
        }
        ExprKind::Cast { value, .. } => sub(value),
        ExprKind::If { yes, no, .. } => {
            let (yes, no) = (sub(yes)?, sub(no)?);
            Some(Range { low: yes.low.min(no.low), high: yes.high.max(no.high) })
        }
        ExprKind::Binary { op, left, right, .. } => binary(*op, sub(left)?, sub(right)?),
        ExprKind::Call { helper, args } => {
            let [left, right] = args.as_slice() else { return None };
            call(&helper.to_string(), sub(left)?, sub(right)?)
        }
        ExprKind::Real(_)
        | ExprKind::Index { .. }
        | ExprKind::Field { .. }
        | ExprKind::Fold { .. } => None,
    }
}

fn of_name(view: &View<'_>, known: &Known, name: &str) -> Option<Range> {
    if let Some(range) = known.get(name) {
        return Some(*range);
    }
    for entry in &view.shape {
        if let ShapeEntry::Given { name: given, low, high, step, .. } = entry
            && given == name
        {
            let step = step.as_ref().map_or(1, |step| step.value).max(1);
            let steps = high.value.checked_sub(low.value)? / step;
            let top = low.value.checked_add(steps.checked_mul(step)?)?;
            return (low.value <= top).then(|| Range { low: low.value.into(), high: top.into() });
        }
    }
    if let Some(tune) = view.tunes.iter().find(|tune| tune.name == name) {
        let values: Vec<i128> = tune.choices.iter().map(|choice| choice.value.into()).collect();
        return (!values.is_empty()).then(|| Range::new(&values));
    }
    if let Some(arg) = view.args.iter().find(|arg| arg.name == name) {
        let (low, high) = (arg.low.value.whole()?, arg.high.value.whole()?);
        return Some(Range { low: low.into(), high: high.into() });
    }
    let sized = view.sizes.iter().any(|size| size.name == name);
    sized.then_some(Range { low: 0, high: FAR })
}

fn binary(op: BinaryOp, a: Range, b: Range) -> Option<Range> {
    Some(match op {
        BinaryOp::Add => a.ends(b, |a, b| a + b),
        BinaryOp::Sub => a.ends(b, |a, b| a - b),
        BinaryOp::Mul => a.ends(b, i128::saturating_mul),
        BinaryOp::Div if b.low > 0 || b.high < 0 => a.ends(b, |a, b| a / b),
        BinaryOp::Rem if b.low > 0 && a.low >= 0 => Range { low: 0, high: a.high.min(b.high - 1) },
        BinaryOp::Div | BinaryOp::Rem => return None,
        BinaryOp::Lt => Range::flag(a.high < b.low, a.low >= b.high),
        BinaryOp::Le => Range::flag(a.high <= b.low, a.low > b.high),
        BinaryOp::Gt => Range::flag(a.low > b.high, a.high <= b.low),
        BinaryOp::Ge => Range::flag(a.low >= b.high, a.high < b.low),
        BinaryOp::Eq => {
            let apart = a.high < b.low || b.high < a.low;
            Range::flag(a.low == a.high && a == b, apart)
        }
        BinaryOp::Ne => {
            let apart = a.high < b.low || b.high < a.low;
            Range::flag(apart, a.low == a.high && a == b)
        }
        BinaryOp::And => Range { low: a.low.min(b.low), high: a.high.min(b.high) },
        BinaryOp::Or => Range { low: a.low.max(b.low), high: a.high.max(b.high) },
    })
}

fn call(helper: &str, a: Range, b: Range) -> Option<Range> {
    match helper {
        "min" => Some(Range { low: a.low.min(b.low), high: a.high.min(b.high) }),
        "max" => Some(Range { low: a.low.max(b.low), high: a.high.max(b.high) }),
        "ceil" if b.low > 0 && a.low >= 0 => Some(a.ends(b, |a, b| (a + b - 1) / b)),
        // Rounding up grows with the number, and by less than the step.
        "align" if b.low > 0 && a.low >= 0 => {
            Some(Range { low: a.low, high: (a.high + b.high - 1).min(FAR) })
        }
        "bit_xor" if a.low >= 0 && b.low >= 0 => {
            let most = a.high.max(b.high).min(FAR);
            Some(Range { low: 0, high: (1 << (i128::BITS - most.leading_zeros())) - 1 })
        }
        "listed" | "routed" | "routed_node" | "alive" | "has" => Some(FLAG),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_decided_only_when_no_value_disagrees() {
        let (small, large) = (Range { low: 1, high: 4 }, Range { low: 4, high: 9 });
        let decided = |op| binary(op, small, large).expect("comparisons always have a range");
        assert_eq!(decided(BinaryOp::Le), Range { low: 1, high: 1 });
        assert_eq!(decided(BinaryOp::Lt), FLAG);
        assert_eq!(decided(BinaryOp::Gt), Range { low: 0, high: 0 });
    }

    #[test]
    fn nothing_overflows() {
        let far = Range { low: -FAR, high: FAR };
        for op in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul] {
            let range = binary(op, far, far).expect("sums and products have a range");
            assert!(range.low >= -FAR && range.high <= FAR);
        }
        assert_eq!(binary(BinaryOp::Div, far, far), None);
    }
}

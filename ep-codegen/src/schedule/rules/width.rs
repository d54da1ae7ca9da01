//! Whole numbers have 64 bits in the language, and 32 in the text of rules where all that goes in has: a
//! role where the two may differ is composed.

use super::{Checked, Forms};
use crate::ir::{
    Action, BinaryOp, DimKind, Domain, Elem, ElemType, Expr, FieldValue, NameKind, Place, Role,
    Stmt, walk,
};
use crate::schedule::typed::{elem_of, field_of, first_part};

/// What a number of 32 bits holds at most.
const MOST: i128 = i32::MAX as i128;

impl Forms<'_> {
    pub(super) fn check_widths(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            if found.is_ok() && self.is_cut(stmt) {
                found = self.refuse(&stmt.at, "a 32-bit number may be truncated here");
            }
        });
        found
    }

    /// Whether a value of a statement may need more bits than the text of a rule gives it. What is stored
    /// in 32 bits needs no more than their low bits all the way.
    fn is_cut(&self, stmt: &Stmt) -> bool {
        match &stmt.action {
            Action::Store { target, value }
            | Action::Record { target, value }
            | Action::Add { target, value } => self.exceeds(value, self.is_wide_place(target)),
            Action::For { filter: Some(condition), .. }
            | Action::Receive { filter: Some(condition), .. } => self.exceeds(condition, true),
            Action::Let { value, .. } => self.exceeds(value, true),
            Action::Push { channel, values, .. } => {
                values.iter().any(|FieldValue { name, value }| {
                    let elem = field_of(self.ir, channel, name).map(|field| &field.elem);
                    self.exceeds(value, elem.is_none_or(|elem| self.is_wide(elem)))
                })
            }
            _ => false,
        }
    }

    fn is_wide_place(&self, target: &Place) -> bool {
        self.tensor(&target.tensor).map_or(true, |tensor| self.is_wide(&tensor.elem))
    }

    fn is_wide(&self, elem: &ElemType) -> bool {
        !is_narrow(&first_part(self.ir, elem))
    }

    /// Whether a part of an expression may come out wrong in 32 bits; `exact`: more than its low 32 bits
    /// count.
    fn exceeds(&self, whole: &Expr, exact: bool) -> bool {
        let cut = || exact && is_narrow(&elem_of(self.ir, whole)) && self.bound(whole) > MOST;
        match whole {
            Expr::Binary { op: BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul, left, right } => {
                cut() || self.exceeds(left, exact) || self.exceeds(right, exact)
            }
            Expr::Binary { left, right, .. } => {
                self.exceeds(left, true) || self.exceeds(right, true)
            }
            Expr::Fold { body, .. } => cut() || self.exceeds(body, exact),
            Expr::Not { value } => self.exceeds(value, true),
            Expr::If { condition, yes, no } => {
                self.exceeds(condition, true) || self.exceeds(yes, exact) || self.exceeds(no, exact)
            }
            Expr::Cast { value, elem } => self.exceeds(value, !is_narrow(elem)),
            // What does not fit 32 bits does not fit when it is rounded up.
            Expr::Call { helper, args } if helper == "align" => {
                args.iter().any(|arg| self.exceeds(arg, exact))
            }
            Expr::Call { args, .. } => args.iter().any(|arg| self.exceeds(arg, true)),
            Expr::Element { indices, .. } | Expr::Field { indices, .. } => {
                indices.iter().any(|index| self.exceeds(index, false))
            }
            _ => false,
        }
    }

    /// The greatest magnitude of a number.
    fn bound(&self, whole: &Expr) -> i128 {
        match whole {
            Expr::Int { value } => i128::from(*value).abs(),
            Expr::Name { name, kind } => match kind {
                NameKind::Dim | NameKind::Tune => self.most(name),
                NameKind::Me => self.most("ranks"),
                _ => MOST,
            },
            Expr::Binary { op, left, right } => {
                let (left, right) = (self.bound(left), self.bound(right));
                match op {
                    BinaryOp::Add | BinaryOp::Sub => left.saturating_add(right),
                    BinaryOp::Mul => left.saturating_mul(right),
                    BinaryOp::Div => left,
                    BinaryOp::Rem => right,
                    _ => 1,
                }
            }
            Expr::Cast { value, .. } => self.bound(value),
            Expr::If { yes, no, .. } => self.bound(yes).max(self.bound(no)),
            Expr::Call { helper, args } if helper == "max" || helper == "min" => {
                args.iter().map(|arg| self.bound(arg)).max().unwrap_or(MOST)
            }
            Expr::Call { .. } => MOST,
            Expr::Fold { domain, body, .. } => {
                let turns = match &**domain {
                    Domain::Dim { name } => self.most(name),
                    Domain::Peers { .. } => self.most("ranks"),
                    _ => MOST,
                };
                turns.saturating_mul(self.bound(body))
            }
            _ => match elem_of(self.ir, whole) {
                Elem::Bool => 1,
                Elem::U8 => 255,
                Elem::I8 => 128,
                _ => MOST + 1,
            },
        }
    }

    /// The greatest value of a number of the shape, or a tune.
    fn most(&self, name: &str) -> i128 {
        let dim = self.ir.dims.iter().find(|dim| dim.name == name).map(|dim| &dim.kind);
        let tune = self.ir.tunes.iter().find(|tune| tune.name == name);
        match (dim, tune.and_then(|tune| tune.choices.iter().max())) {
            (Some(DimKind::Given { high, .. }), _) | (_, Some(high)) => i128::from(*high),
            _ => MOST,
        }
    }
}

/// Whether whole numbers of a type fit 32 bits.
pub(super) fn is_narrow(elem: &Elem) -> bool {
    matches!(elem, Elem::Bool | Elem::U8 | Elem::I8 | Elem::I32)
}

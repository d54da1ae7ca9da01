//! Expressions.

use super::{Lowering, Named};
use crate::ast;
use crate::ir::helpers::FIRST;
use crate::ir::{self, WellKnown};

impl Lowering {
    /// Whether `name` is declared as `what` and no binder hides it.
    pub(super) fn is(&self, name: &str, what: Named) -> bool {
        !self.binders.iter().any(|binder| binder == name) && self.names.get(name) == Some(&what)
    }

    pub(super) fn exprs(&mut self, list: &[ast::Expr]) -> Vec<ir::Expr> {
        list.iter().map(|expr| self.expr(expr)).collect()
    }

    pub(super) fn expr(&mut self, expr: &ast::Expr) -> ir::Expr {
        match &expr.kind {
            ast::ExprKind::Int(value) => ir::Expr::Int { value: *value },
            ast::ExprKind::Real(value) => ir::Expr::Real { bits: value.to_bits() },
            ast::ExprKind::Bool(value) => ir::Expr::Bool { value: *value },
            ast::ExprKind::Name(name) => self.name(name.to_string(), Vec::new()),
            ast::ExprKind::Index { base, indices } => {
                let indices = self.exprs(indices);
                self.indexed(base, indices)
            }
            ast::ExprKind::Field { base, field } => self.field(base, field.to_string(), Vec::new()),
            ast::ExprKind::Call { helper, args } if helper == FIRST && args.len() == 1 => {
                self.expr(&args[0])
            }
            ast::ExprKind::Call { helper, args } => {
                ir::Expr::Call { helper: helper.to_string(), args: self.exprs(args) }
            }
            ast::ExprKind::Fold { helper, binder, domain, body } => {
                let domain = Box::new(self.domain(domain));
                let bound = self.binders.len();
                self.binders.push(binder.to_string());
                let body = Box::new(self.expr(body));
                self.binders.truncate(bound);
                let fold = ir::Fold::of_word(&helper.to_string()).unwrap_or(ir::Fold::Sum);
                ir::Expr::Fold { fold, binder: binder.to_string(), domain, body }
            }
            ast::ExprKind::Cast { value, elem } => ir::Expr::Cast {
                value: Box::new(self.expr(value)),
                elem: scalar(&elem.to_string()).unwrap_or(ir::Elem::F32),
            },
            ast::ExprKind::Not { value } => ir::Expr::Not { value: Box::new(self.expr(value)) },
            ast::ExprKind::If { condition, yes, no } => ir::Expr::If {
                condition: Box::new(self.expr(condition)),
                yes: Box::new(self.expr(yes)),
                no: Box::new(self.expr(no)),
            },
            ast::ExprKind::Neg { value } => match value.kind {
                ast::ExprKind::Int(value) => ir::Expr::Int { value: value.wrapping_neg() },
                _ => ir::Expr::of_two(
                    ir::BinaryOp::Sub,
                    ir::Expr::Int { value: 0 },
                    self.expr(value),
                ),
            },
            ast::ExprKind::Binary { op, left, right, .. } => {
                ir::Expr::of_two(*op, self.expr(left), self.expr(right))
            }
        }
    }

    /// A range whose end is behind its last value.
    pub(super) fn range_of(&mut self, values: &ast::Values) -> ir::Values {
        let mut high = self.expr(&values.high);
        if values.inclusive {
            high = next(high);
        }
        ir::Values {
            low: self.expr(&values.low),
            high,
            ascending: values.ascending.is_some(),
            step: values.step.as_ref().map(|step| self.expr(step)),
            distinct: values.distinct.is_some(),
        }
    }

    /// `base[indices]`: of a tensor, of a field, or of an index that goes on (`a[i][j]`).
    fn indexed(&mut self, base: &ast::Expr, mut indices: Vec<ir::Expr>) -> ir::Expr {
        match &base.kind {
            ast::ExprKind::Name(name) => self.name(name.to_string(), indices),
            ast::ExprKind::Field { base, field } => self.field(base, field.to_string(), indices),
            ast::ExprKind::Index { base, indices: outer } => {
                let mut all = self.exprs(outer);
                all.append(&mut indices);
                self.indexed(base, all)
            }
            _ => self.expr(base),
        }
    }

    /// `base.field[indices]`: of a channel, or of a message, a part or a cast row.
    fn field(&mut self, base: &ast::Expr, field: String, indices: Vec<ir::Expr>) -> ir::Expr {
        let (name, index) = match &base.kind {
            ast::ExprKind::Name(name) => (name.to_string(), Vec::new()),
            ast::ExprKind::Index { base: inner, indices } => match &inner.kind {
                ast::ExprKind::Name(name) => (name.to_string(), self.exprs(indices)),
                _ => return self.expr(base),
            },
            _ => return self.expr(base),
        };
        if name == "stripe" {
            return self.of_stripe(&field);
        }
        if self.is(&name, Named::Channel) {
            return ir::Expr::OfChannel { channel: name, index, field, indices };
        }
        ir::Expr::Field { of: name, field, indices }
    }

    /// `stripe.first` or `stripe.count`, as numbers of the rows that all stripes share.
    fn of_stripe(&self, field: &str) -> ir::Expr {
        let stripe = || self.name("stripe".to_string(), Vec::new());
        let stripes = || self.name(WellKnown::Stripes.name().to_string(), Vec::new());
        let size = self.striped.as_ref().map(|(size, _)| size.clone()).unwrap_or_default();
        let rows = || self.name(size.clone(), Vec::new());
        let each = || ir::Expr::of_two(ir::BinaryOp::Div, rows(), stripes());
        // So many stripes have one row more.
        let longer = || ir::Expr::of_two(ir::BinaryOp::Rem, rows(), stripes());
        match field {
            "first" => {
                let args = vec![stripe(), longer()];
                let more = ir::Expr::Call { helper: "min".to_string(), args };
                let before = ir::Expr::of_two(ir::BinaryOp::Mul, stripe(), each());
                ir::Expr::of_two(ir::BinaryOp::Add, before, more)
            }
            _ => {
                let is_longer = ir::Expr::of_two(ir::BinaryOp::Lt, stripe(), longer());
                let more = ir::Expr::Cast { value: Box::new(is_longer), elem: ir::Elem::I32 };
                ir::Expr::of_two(ir::BinaryOp::Add, each(), more)
            }
        }
    }

    /// `name` or `name[indices]`.
    fn name(&self, name: String, indices: Vec<ir::Expr>) -> ir::Expr {
        let bound = self.binders.contains(&name);
        let declared = self.names.get(&name).filter(|_| !bound);
        let kind = match declared {
            _ if !indices.is_empty() => return ir::Expr::Element { tensor: name, indices },
            Some(Named::Tensor | Named::Channel) => {
                return ir::Expr::Element { tensor: name, indices };
            }
            Some(Named::Dim) => ir::NameKind::Dim,
            Some(Named::Tune) => ir::NameKind::Tune,
            Some(Named::Arg) => ir::NameKind::Arg,
            Some(Named::Size) => ir::NameKind::Size,
            // `warps shared by stripe` binds `stripe` to what it means anyway.
            None if name == "stripe" => ir::NameKind::Stripe,
            None if name == "me" && !bound => ir::NameKind::Me,
            None => ir::NameKind::Binder,
        };
        ir::Expr::Name { name, kind }
    }
}

/// One more than a number.
pub(super) fn next(number: ir::Expr) -> ir::Expr {
    match number {
        ir::Expr::Int { value } => ir::Expr::Int { value: value.saturating_add(1) },
        other => ir::Expr::of_two(ir::BinaryOp::Add, other, ir::Expr::Int { value: 1 }),
    }
}

/// The scalar type of this name.
pub(crate) fn scalar(name: &str) -> Option<ir::Elem> {
    Some(match name {
        "bool" => ir::Elem::Bool,
        "u8" => ir::Elem::U8,
        "i8" => ir::Elem::I8,
        "i32" => ir::Elem::I32,
        "i64" => ir::Elem::I64,
        "f32" => ir::Elem::F32,
        "bf16" => ir::Elem::Bf16,
        "e4m3" => ir::Elem::E4m3,
        "ue8m0" => ir::Elem::Ue8m0,
        _ => return None,
    })
}

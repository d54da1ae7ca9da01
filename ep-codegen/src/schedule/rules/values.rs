//! What one lane writes, and the values that it makes: everything that rules have a text for.

use super::{Checked, Forms, Unfit};
use crate::ir::parts::parts;
use crate::ir::typed::{elem_of, first_part, is_plain, rank_of};
use crate::ir::{
    Action, CudaParam, Elem, ElemType, Expr, Fold, Memory, NameKind, Place, Stmt, Tensor, walk,
};

/// Helpers of the language that have a device function.
const EMITTED_HELPERS: [&str; 8] =
    ["align", "ceil", "listed", "local", "max", "min", "owner", "routed"];

impl Forms<'_> {
    /// A write of one lane, or a name for a value.
    pub(super) fn check_write(&self, stmt: &Stmt) -> Checked {
        match &stmt.action {
            Action::Store { target, value } | Action::Record { target, value } => {
                self.check_target(stmt, target)?;
                self.check_value(stmt, target, value)
            }
            Action::Let { value, .. } => {
                if rank_of(self.ir, value) > 0 {
                    return self
                        .refuse(&stmt.at, "`let` can name only one value, and this is a row");
                }
                self.refuse_optional(stmt, value)?;
                self.check_expr(stmt, value)
            }
            _ => Ok(()),
        }
    }

    fn elem(&self, tensor: &str) -> Result<Elem, Unfit> {
        Ok(first_part(self.ir, &self.tensor(tensor)?.elem))
    }

    /// A place that single elements are written to.
    pub(super) fn check_target(&self, stmt: &Stmt, target: &Place) -> Checked {
        for index in &target.indices {
            self.check_expr(stmt, index)?;
        }
        let tensor = self.tensor(&target.tensor)?;
        if target.indices.len() + 1 < tensor.dims.len() {
            return self.refuse(&stmt.at, "a statement can write only one element or one row");
        }
        if parts(self.ir, &tensor.elem).len() > 1 {
            return self.refuse(&stmt.at, "a row with scales can be written only as a whole");
        }
        if tensor.memory == Memory::Host && self.elem(&target.tensor)? != Elem::I32 {
            return self.refuse(&stmt.at, "a tensor `to host` has to be `i32`");
        }
        Ok(())
    }

    /// A value that is computed, or an element that is copied as it is.
    pub(super) fn check_value(&self, stmt: &Stmt, target: &Place, value: &Expr) -> Checked {
        self.check_copy(stmt, &self.elem(&target.tensor)?, value)
    }

    fn check_copy(&self, stmt: &Stmt, to: &Elem, value: &Expr) -> Checked {
        let from = elem_of(self.ir, value);
        match value {
            Expr::Element { tensor, indices } if from == *to => {
                self.check_tensor(stmt, self.tensor(tensor)?, indices.len())?;
                indices.iter().try_for_each(|index| self.check_expr(stmt, index))
            }
            Expr::OfChannel { .. } if from == *to => self.check_parts(stmt, value),
            Expr::Call { .. } if from == *to => self.check_expr(stmt, value),
            _ if !is_plain(to) => self.refuse(&stmt.at, NOT_PLAIN),
            _ => self.check_expr(stmt, value),
        }
    }

    /// What is read element by element: declared as one part, and all but one index given.
    pub(super) fn check_tensor(&self, stmt: &Stmt, tensor: &Tensor, indices: usize) -> Checked {
        if tensor.copies > 1 {
            return self.refuse(
                &stmt.at,
                "a tensor that may be given several times can only be added in \
            a gather",
            );
        }
        if parts(self.ir, &tensor.elem).len() > 1 {
            return self.refuse(&stmt.at, "a row with scales can be moved only as a whole");
        }
        if indices + 1 < tensor.dims.len() {
            return self.refuse(&stmt.at, "an expression can read only one element or one row");
        }
        Ok(())
    }

    /// Every part of an expression that is computed.
    pub(super) fn check_expr(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = Ok(());
        // What a function of the user takes as it is.
        let mut taken: Vec<&Expr> = Vec::new();
        walk::expr(whole, &mut |part| {
            if let Expr::Call { helper, args } = part
                && let Some(own) = self.ir.cuda_fns.iter().find(|own| own.name == *helper)
            {
                let same = |(param, arg): &(&CudaParam, &Expr)| param.elem == elem_of(self.ir, arg);
                taken.extend(own.params.iter().zip(args).filter(same).map(|(_, arg)| arg));
            }
            if found.is_ok() {
                found = match part {
                    Expr::Element { tensor, indices }
                        if taken.iter().any(|own| std::ptr::eq(*own, part)) =>
                    {
                        self.tensor(tensor)
                            .and_then(|tensor| self.check_tensor(stmt, tensor, indices.len()))
                    }
                    _ => self.check_part(stmt, part),
                };
            }
        });
        found
    }

    /// The parts of an expression, but not the expression itself.
    fn check_parts(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = Ok(());
        walk::expr(whole, &mut |part| {
            if found.is_ok() && !std::ptr::eq(part, whole) {
                found = self.check_part(stmt, part);
            }
        });
        match whole {
            Expr::OfChannel { .. } => found.and(self.check_slot(stmt, whole)),
            _ => found,
        }
    }

    fn check_part(&self, stmt: &Stmt, part: &Expr) -> Checked {
        match part {
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                self.check_tensor(stmt, tensor, indices.len())?;
                if !is_plain(&elem_of(self.ir, part)) {
                    return self.refuse(&stmt.at, NOT_PLAIN);
                }
                Ok(())
            }
            Expr::OfChannel { .. } => {
                if !is_plain(&elem_of(self.ir, part)) {
                    return self.refuse(&stmt.at, NOT_PLAIN);
                }
                self.check_slot(stmt, part)
            }
            Expr::Field { of, .. } if self.tensor(of).is_ok() => {
                self.refuse(&stmt.at, "a row with scales can be moved only as a whole")
            }
            Expr::Cast { elem, .. } if !is_plain(elem) => self.refuse(&stmt.at, NOT_PLAIN),
            Expr::Call { helper, args } => self.check_call(stmt, helper, args),
            Expr::Fold { fold: Fold::PrefixSum, .. } => {
                self.refuse(&stmt.at, "a prefix sum is stored as it is")
            }
            _ => Ok(()),
        }
    }

    fn check_call(&self, stmt: &Stmt, helper: &str, args: &[Expr]) -> Checked {
        if self.ir.cuda_fns.iter().any(|own| own.name == helper) {
            return Ok(());
        }
        if !EMITTED_HELPERS.contains(&helper) {
            return self.refuse(&stmt.at, &format!("none has `{helper}` here"));
        }
        let wide = |arg: &Expr| !is_narrow(&elem_of(self.ir, arg));
        if ["align", "ceil", "max", "min"].contains(&helper) && args.iter().any(wide) {
            return self.refuse(&stmt.at, &format!("`{helper}` takes 32-bit integers"));
        }
        match (helper, args.first()) {
            ("listed" | "routed", Some(Expr::Element { tensor, .. })) => {
                if self.elem(tensor)? != Elem::I64 {
                    return self.refuse(&stmt.at, &format!("`{helper}` takes a row of `i64`"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// `slots[source].field[i]`.
    fn check_slot(&self, stmt: &Stmt, part: &Expr) -> Checked {
        let Expr::OfChannel { channel, index, field, indices } = part else { return Ok(()) };
        let channel = self.channel(channel)?;
        if !channel.kind.traits().is_indexed {
            return Ok(());
        }
        let known = self.message(channel)?.fields.iter().find(|own| own.name == *field);
        match known {
            Some(known) if index.len() == 1 && indices.len() <= 1 && known.dims.len() <= 1 => {
                Ok(())
            }
            _ => self.refuse(&stmt.at, "a field of a slot can have at most one index"),
        }
    }

    /// No row of numbers is loaded here.
    pub(super) fn refuse_rows(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = None;
        walk::expr(whole, &mut |part| {
            if let Expr::Call { helper, .. } = part
                && ["routed", "listed"].contains(&helper.as_str())
            {
                found = Some(helper);
            }
        });
        match found {
            Some(helper) => self.refuse(&stmt.at, &format!("none has `{helper}` here")),
            None => Ok(()),
        }
    }

    pub(super) fn refuse_optional(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut optional = false;
        walk::expr(whole, &mut |part| {
            optional |= matches!(part, Expr::Element { tensor, .. }
                if self.tensor(tensor).is_ok_and(|tensor| tensor.optional));
        });
        if optional {
            return self.refuse(
                &stmt.at,
                "an optional tensor can be used only in a statement that can be skipped",
            );
        }
        Ok(())
    }
}

pub(super) const NOT_PLAIN: &str = "`bf16` and narrower floats can be copied, moved, and added in a \
 gather; no class has other arithmetic on them";

pub(super) fn is_name(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::Name { name: own, .. } if own == name)
}

pub(super) fn mentions_name(whole: &Expr, name: &str) -> bool {
    let mut found = false;
    walk::expr(whole, &mut |part| found |= is_name(part, name));
    found
}

/// Whether an expression names no binder but these and those of its own sums: a function of them gives it.
pub(super) fn is_of(whole: &Expr, binders: &[&str]) -> bool {
    let mut known: Vec<&str> = binders.to_vec();
    walk::expr(whole, &mut |part| {
        if let Expr::Fold { binder, .. } = part {
            known.push(binder);
        }
    });
    let mut all = true;
    walk::expr(whole, &mut |part| {
        if let Expr::Name { name, kind: NameKind::Binder | NameKind::Stripe } = part {
            all &= known.contains(&name.as_str());
        }
    });
    all
}

pub(super) fn is_bf16(elem: &ElemType, ir: &crate::ir::Pipeline) -> bool {
    matches!(parts(ir, elem).as_slice(), [(_, Elem::Bf16, _)])
}

/// Whether whole numbers of a type fit 32 bits.
fn is_narrow(elem: &Elem) -> bool {
    matches!(elem, Elem::Bool | Elem::U8 | Elem::I8 | Elem::I32)
}

//! The push of a dispatch in one launch, and the fields that it sends.

use super::packs::row_cast;
use super::{Checked, Facts};
use crate::ir::parts::parts;
use crate::ir::typed::rank_of;
use crate::ir::{Channel, Expr, Field, FieldValue, Memory, Place, Stmt, walk};

impl Facts<'_> {
    /// A place of one element that is always there.
    pub(super) fn check_element(&self, stmt: &Stmt, target: &Place) -> Checked {
        let tensor = self.tensor(&target.tensor)?;
        if target.indices.len() != tensor.dims.len() || tensor.optional {
            return self.refuse(
                &stmt.at,
                "this statement can write only one element of a tensor that is not optional",
            );
        }
        if tensor.memory == Memory::Host {
            return self
                .refuse(&stmt.at, "only a role that is one team can write a tensor `to host`");
        }
        Ok(())
    }

    /// A row of a tensor, and small fields beside it.
    pub(super) fn check_push(
        &self,
        stmt: &Stmt,
        channel: &Channel,
        values: &[FieldValue],
    ) -> Checked {
        let message = self.message(channel)?;
        if !message.fields.iter().any(|field| field.row) {
            return self.refuse(&stmt.at, "a message of this kind of channel needs a `row`");
        }
        for value in values {
            let Some(field) = message.fields.iter().find(|field| field.name == value.name) else {
                continue;
            };
            if field.row
                && let Some(row) = row_cast(&value.value)
            {
                self.check_cast(stmt, (message, field), row)?;
            } else if field.row {
                self.check_pushed_row(stmt, field, &value.value)?;
            } else {
                self.check_field(stmt, field, &value.value)?;
            }
        }
        Ok(())
    }

    fn check_pushed_row(&self, stmt: &Stmt, field: &Field, value: &Expr) -> Checked {
        let Expr::Element { tensor, indices } = value else {
            return self
                .refuse(&stmt.at, "a row that is pushed has to be an unchanged row of a tensor");
        };
        let tensor = self.tensor(tensor)?;
        let same = parts(self.ir, &tensor.elem) == parts(self.ir, &field.elem);
        if !same || rank_of(self.ir, value) != 1 || tensor.optional || tensor.copies > 1 {
            return self
                .refuse(&stmt.at, "a row that is pushed has to be an unchanged row of a tensor");
        }
        indices.iter().try_for_each(|index| self.refuse_optional(stmt, index))
    }

    /// The value of a small field reads no tensor that may be absent, but the one that the field goes with.
    fn check_field(&self, stmt: &Stmt, field: &Field, value: &Expr) -> Checked {
        if parts(self.ir, &field.elem).len() != 1 {
            return self.refuse(&stmt.at, "only the row of a message can have scales");
        }
        let mut absent = Ok(());
        walk::expr(value, &mut |part| {
            if let Expr::Element { tensor, .. } = part
                && field.optional_with.as_ref() != Some(tensor)
                && absent.is_ok()
            {
                absent = self.refuse_optional(stmt, part);
            }
        });
        absent
    }
}

/// `channel[peer].position`
pub(super) fn is_position(value: &Expr, channel: &Channel) -> bool {
    matches!(value, Expr::OfChannel { channel: of, field, .. }
        if *of == channel.name && field == "position")
}

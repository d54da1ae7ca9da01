//! Loops that take messages or gather parts.

use super::forms::{is_bf16, is_name};
use super::sum_and_bias;
use super::{Checked, Forms, Unfit};
use crate::ir::parts::parts;
use crate::ir::typed::field_of;
use crate::ir::{Action, Channel, Domain, Elem, Expr, Memory, PeerSet, Stmt};

impl Forms<'_> {
    /// `for token in .. gather part from .. { store ..; }`.
    pub(super) fn check_gather(&self, stmt: &Stmt) -> Checked {
        let Action::Gather { part, channel, peer, position, across, over, body, .. } = &stmt.action
        else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        let all = match over {
            Domain::Peers { set } => *set == PeerSet::All,
            Domain::Dim { name } => name == "ranks",
            _ => false,
        };
        if !all || !peer.as_ref().is_some_and(|peer| is_name(peer, across)) {
            return self.refuse(&stmt.at, "the gather has to be across `ranks`");
        }
        self.refuse_optional(stmt, position)?;
        let mut rows = 0;
        for inner in body {
            rows += usize::from(self.check_gathered(inner, channel, part)?);
        }
        if rows != 1 {
            return self.refuse(&stmt.at, "a gather has to store the sum of the row once");
        }
        Ok(())
    }

    /// Whether it is the sum of the row that `stmt` stores.
    fn check_gathered(&self, stmt: &Stmt, channel: &Channel, part: &str) -> Result<bool, Unfit> {
        let Action::Store { target, value } = &stmt.action else { return Err(self.no_form(stmt)) };
        let (field, bias) = sum_and_bias(value, part).ok_or_else(|| self.no_form(stmt))?;
        let out = self.tensor(&target.tensor)?;
        let Some(field) = field_of(self.ir, &channel.name, field) else {
            return Err(self.no_form(stmt));
        };
        for index in &target.indices {
            self.refuse_optional(stmt, index)?;
        }
        if target.indices.len() + 1 != out.dims.len()
            || (out.optional && field.optional_with.is_none())
            || out.memory == Memory::Host
        {
            return self.refuse(&stmt.at, "a sum has to be stored to one row, in device memory");
        }
        if field.row {
            if !is_bf16(&field.elem, self.ir) || !is_bf16(&out.elem, self.ir) {
                return self
                    .refuse(&stmt.at, "rows that are added, and their sum, have to be `bf16`");
            }
        } else if bias.is_some() {
            return Err(self.no_form(stmt));
        } else if ![&field.elem, &out.elem]
            .iter()
            .all(|elem| matches!(parts(self.ir, elem).as_slice(), [(_, Elem::F32, _)]))
        {
            return self.refuse(&stmt.at, "fields that are added, and their sum, have to be `f32`");
        }
        if let Some(Expr::Element { tensor, indices }) = bias {
            let tensor = self.tensor(tensor)?;
            if !is_bf16(&tensor.elem, self.ir)
                || indices.len() + 1 != tensor.dims.len()
                || indices.len() > 1
            {
                return self.refuse(&stmt.at, "a bias is a row of `bf16`");
            }
            for index in indices {
                self.refuse_optional(stmt, index)?;
            }
        }
        Ok(field.row)
    }
}

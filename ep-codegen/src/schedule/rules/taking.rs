//! Loops that take messages or gather parts.

use super::sum_and_bias;
use super::values::{NOT_PLAIN, is_bf16, is_name};
use super::{Checked, Forms, Unfit};
use crate::ir::parts::parts;
use crate::ir::rows::is_own_row;
use crate::ir::{
    Action, Channel, Domain, Elem, Expr, Field, Memory, NameKind, PeerSet, Place, Stmt, walk,
};
use crate::schedule::typed::{field_of, is_plain};
use crate::schedule::whole::fields_of;

impl Forms<'_> {
    /// The first statements of `for message in channel[peer] at .. { store ..; }`.
    pub(super) fn check_messages(&self, stmt: &Stmt, body: &[Stmt]) -> Checked {
        let Action::Receive { binder, channel, position, filter, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        if filter.is_some() {
            return self.refuse(&stmt.at, "a loop that takes messages cannot have a `where`");
        }
        if position.is_some() {
            return self.refuse(
                &stmt.at,
                "the sender chooses the position of each row, so the loop cannot have \
                an `at`",
            );
        }
        let mut rows = 0;
        for inner in body {
            let (Action::Store { target, value } | Action::Record { target, value }) =
                &inner.action
            else {
                return Err(self.no_form(inner));
            };
            rows += usize::from(self.check_unpacked(inner, channel, binder, target, value)?);
            if rows > 1 {
                return self.refuse(&inner.at, "the row of a message can be stored only once");
            }
        }
        Ok(())
    }

    /// Whether it is the row that `stmt` stores.
    fn check_unpacked(
        &self,
        stmt: &Stmt,
        channel: &Channel,
        binder: &str,
        target: &Place,
        value: &Expr,
    ) -> Result<bool, Unfit> {
        let tensor = self.tensor(&target.tensor)?;
        if !is_own_row(&target.indices, binder) || tensor.memory == Memory::Host {
            let why = format!(
                "fields of a message have to be written at `{binder}.row`, in device memory"
            );
            return self.refuse(&stmt.at, &why);
        }
        let fields = self.whole_fields(stmt, channel, binder, value)?;
        let field = fields[0];
        if tensor.optional && fields.iter().all(|field| field.optional_with.is_none()) {
            let why = format!(
                "`{}` may be absent, and the field `{}` is always present",
                tensor.name, field.name
            );
            return self.refuse(&stmt.at, &why);
        }
        self.refuse_rows(stmt, value)?;
        self.refuse_optional(stmt, value)?;
        let same = parts(self.ir, &tensor.elem) == parts(self.ir, &field.elem);
        let copied = matches!(value, Expr::Field { .. });
        match (copied && same, field.row) {
            (true, row) => return Ok(row),
            (false, true) => {
                return self.refuse(&stmt.at, "the row of a message has to be stored unchanged");
            }
            _ => {}
        }
        let plain = |elem| parts(self.ir, elem).iter().all(|(_, elem, _)| is_plain(elem));
        if !plain(&tensor.elem) || !fields.iter().all(|field| plain(&field.elem)) {
            return self.refuse(&stmt.at, NOT_PLAIN);
        }
        self.check_expr(stmt, value)?;
        Ok(false)
    }

    /// The fields that a value is made from, element by element: each as a whole, and all of one extent.
    fn whole_fields<'m>(
        &'m self,
        stmt: &Stmt,
        channel: &Channel,
        binder: &str,
        value: &Expr,
    ) -> Result<Vec<&'m Field>, Unfit> {
        let mut is_whole = true;
        walk::expr(value, &mut |part| match part {
            Expr::Field { of, indices, .. } if of == binder => is_whole &= indices.is_empty(),
            Expr::Name { kind: NameKind::Binder | NameKind::Stripe, .. } => {
                is_whole = false;
            }
            Expr::OfChannel { .. } => is_whole = false,
            _ => {}
        });
        let message = self.message(channel)?;
        let declared = |name: &&str| message.fields.iter().find(|field| field.name == *name);
        let read = fields_of(value, binder);
        let fields: Vec<&Field> = read.iter().filter_map(declared).collect();
        let alike = fields.windows(2).all(|pair| pair[0].dims == pair[1].dims);
        let rows = fields.len() > 1 && fields.iter().any(|field| field.row);
        if !is_whole || fields.is_empty() || fields.len() < read.len() || !alike || rows {
            return self.refuse(
                &stmt.at,
                "the value has to be computed from whole fields of the message, of one extent",
            );
        }
        Ok(fields)
    }

    // ---- Gathering ----

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
        self.check_here(stmt, position)?;
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
            self.check_here(stmt, index)?;
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
                self.check_here(stmt, index)?;
            }
        }
        Ok(field.row)
    }
}

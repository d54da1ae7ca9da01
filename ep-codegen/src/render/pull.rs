//! Pull channels: peers read a tensor where it lies in the window.

use super::names::channel_cfg;
use super::{Rendered, Renderer};
use crate::ir::{Action, Expr, FieldValue, Stmt};

impl Renderer<'_> {
    /// `push parts { x: x };`: offers the tensors and waits until all peers have read them.
    pub(super) fn pull_offer(&self, stmt: &Stmt) -> Rendered {
        let Action::Push { channel, values, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        let message = self.message(channel)?;
        let offset = |row: bool| {
            let field = message.fields.iter().find(|field| field.row == row)?;
            let value = values.iter().find(|value| value.name == field.name)?;
            match value {
                FieldValue { value: Expr::Element { tensor, .. }, .. } => {
                    Some(format!("args.{tensor}_at"))
                }
                _ => None,
            }
        };
        let rows = offset(true).ok_or_else(|| self.no_form(stmt))?;
        self.step(
            "pull_offer",
            &[
                ("comment", &self.comment(stmt)),
                ("channel_cfg", &channel_cfg(channel)),
                ("rows", &rows),
                ("meta", &offset(false).unwrap_or_else(|| "0".to_string())),
            ],
        )
    }
}

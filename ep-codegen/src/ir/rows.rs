//! Rows that peers reach where they lie.

use super::walk::{nested, stmts};
use super::{Action, Channel, Expr, FieldValue, Memory, Pipeline, Stmt, Tensor};

/// The tensor whose rows peers read, by a pull channel, or store, by a direct one, where they lie; and
/// the statement that says so. A row lands at its position; what is stored elsewhere is a copy.
pub fn row_in_place<'a>(ir: &'a Pipeline, channel: &Channel) -> Option<(&'a Stmt, &'a Tensor)> {
    let (_, message) = ir.carried(&channel.name)?;
    let row = message.fields.iter().find(|field| field.row)?;
    let tensor = |name: &String| ir.tensors.iter().find(|tensor| tensor.name == *name);
    let mut found = None;
    if channel.kind.traits().offers {
        let mut look = |stmt: &'a Stmt| {
            if let Action::Push { channel: pushed, values, .. } = &stmt.action
                && *pushed == channel.name
                && let Some(value) = values.iter().find(|value| value.name == row.name)
                && let FieldValue { value: Expr::Element { tensor: name, .. }, .. } = value
            {
                found = tensor(name).map(|tensor| (stmt, tensor));
            }
        };
        let offers = ir.roles.iter().filter(|role| channel.from.contains(&role.name));
        offers.for_each(|role| stmts(&role.body, &mut look));
    } else if channel.kind.traits().lands {
        let role = ir.roles.iter().find(|role| role.name == channel.to)?;
        let takes = |stmt: &&Stmt| match &stmt.action {
            Action::Receive { channel: from, .. } => *from == channel.name,
            _ => false,
        };
        let mut look = |stmt: &'a Stmt| {
            if let Action::Store { target, value: Expr::Field { of, field, .. } } = &stmt.action
                && *field == row.name
                && is_own_row(&target.indices, of)
                && let Some(tensor) = tensor(&target.tensor)
                && tensor.memory == Memory::Window
            {
                found = Some((stmt, tensor));
            }
        };
        stmts(nested(role.body.iter().find(takes)?), &mut look);
    }
    found
}

/// Whether a place is that of a message's own row.
pub fn is_own_row(indices: &[Expr], message: &str) -> bool {
    matches!(indices, [Expr::Field { of, field, .. }] if of == message && field == "row")
}

//! Rows that are moved as they are, and rows that peers reach where they lie.

use super::walk::{nested, stmts};
use super::{Action, Channel, Expr, FieldValue, Memory, Pipeline, Stmt, Tensor};

/// The tensor of whose row `stmt` puts a copy in a place: `store out[expert.position] = x[row];`.
pub fn moved_row<'a>(ir: &'a Pipeline, stmt: &Stmt) -> Option<&'a Tensor> {
    let Action::Store { target, value: Expr::Element { tensor, indices } } = &stmt.action else {
        return None;
    };
    let [Expr::Field { field, .. }] = target.indices.as_slice() else { return None };
    let from = ir.tensors.iter().find(|candidate| candidate.name == *tensor)?;
    (field == "position" && indices.len() + 1 == from.dims.len()).then_some(from)
}

/// The tensor whose rows peers read, by a pull channel, or store, by a direct one, where they lie; and
/// the statement that says so.
pub fn row_in_place<'a>(ir: &'a Pipeline, channel: &Channel) -> Option<(&'a Stmt, &'a Tensor)> {
    let (_, message) = ir.carried(&channel.name)?;
    let row = message.fields.iter().find(|field| field.row)?;
    let tensor = |name: &String| ir.tensors.iter().find(|tensor| tensor.name == *name);
    let mut found = None;
    let mut look = |stmt: &'a Stmt| match &stmt.action {
        Action::Push { channel: pushed, values, .. } if *pushed == channel.name => {
            let value = values.iter().find(|value| value.name == row.name);
            if let Some(FieldValue { value: Expr::Element { tensor: name, .. }, .. }) = value {
                found = tensor(name).map(|tensor| (stmt, tensor));
            }
        }
        Action::Store { target, value: Expr::Field { field, .. } } if *field == row.name => {
            let window = tensor(&target.tensor).filter(|it| it.memory == Memory::Window);
            found = window.map(|tensor| (stmt, tensor)).or(found);
        }
        _ => {}
    };
    if channel.kind.traits().offers {
        let offers = ir.roles.iter().filter(|role| channel.from.contains(&role.name));
        offers.for_each(|role| stmts(&role.body, &mut look));
    } else if channel.kind.traits().lands {
        let role = ir.roles.iter().find(|role| role.name == channel.to)?;
        let takes = |stmt: &&Stmt| match &stmt.action {
            Action::Receive { channel: from, .. } => *from == channel.name,
            _ => false,
        };
        stmts(nested(role.body.iter().find(takes)?), &mut look);
    }
    found
}

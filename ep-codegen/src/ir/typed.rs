//! The element type of an expression, as the emitted C++ computes it.

use super::parts::parts;
use super::{Elem, ElemType, Expr, Field, NameKind, Pipeline};

/// Whether C++ computes with elements of this type as they are.
pub(crate) fn is_plain(elem: &Elem) -> bool {
    matches!(elem, Elem::Bool | Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64 | Elem::F32)
}

/// The element type of `expr`; what only a message or a part of one has counts as a whole number.
pub(crate) fn elem_of(ir: &Pipeline, expr: &Expr) -> Elem {
    match expr {
        Expr::Bool { .. } | Expr::Not { .. } => Elem::Bool,
        Expr::Real { .. } => Elem::F32,
        Expr::Int { value } if i32::try_from(*value).is_err() => Elem::I64,
        Expr::Name { name, kind: NameKind::Arg } => {
            ir.args.iter().find(|arg| arg.name == *name).map_or(Elem::I32, |arg| arg.elem.clone())
        }
        Expr::Element { tensor, .. } => {
            let found = ir.tensors.iter().find(|known| known.name == *tensor);
            found.map_or(Elem::I32, |tensor| first_part(ir, &tensor.elem))
        }
        Expr::OfChannel { channel, field, .. } => {
            let found = field_of(ir, channel, field);
            found.map_or(Elem::I32, |field| first_part(ir, &field.elem))
        }
        Expr::Call { helper, .. } => match ir.cuda_fns.iter().find(|own| own.name == *helper) {
            Some(own) => own.returns.clone(),
            None if ["alive", "any", "has", "listed", "routed"].contains(&helper.as_str()) => {
                Elem::Bool
            }
            None if helper == "routed_bits" => Elem::I64,
            None => Elem::I32,
        },
        Expr::Cast { elem, .. } => elem.clone(),
        Expr::Binary { op, left, right } if op.is_arithmetic() => {
            joined(&elem_of(ir, left), &elem_of(ir, right))
        }
        Expr::Binary { .. } => Elem::Bool,
        Expr::If { yes, no, .. } => match (elem_of(ir, yes), elem_of(ir, no)) {
            (yes, no) if yes == no => yes,
            (yes, no) => joined(&yes, &no),
        },
        Expr::Fold { body, .. } => joined(&elem_of(ir, body), &Elem::I32),
        Expr::Int { .. } | Expr::Name { .. } | Expr::Field { .. } => Elem::I32,
    }
}

/// The element type of the row itself; a variant without parts is an error elsewhere.
pub(crate) fn first_part(ir: &Pipeline, elem: &ElemType) -> Elem {
    parts(ir, elem).into_iter().next().map_or(Elem::I32, |(_, elem, _)| elem)
}

/// What C++ computes of the two.
fn joined(a: &Elem, b: &Elem) -> Elem {
    match [a, b] {
        both if both.iter().any(|elem| !is_plain(elem)) => Elem::Bf16,
        both if both.contains(&&Elem::F32) => Elem::F32,
        both if both.contains(&&Elem::I64) => Elem::I64,
        _ => Elem::I32,
    }
}

/// How many indices `expr` still takes: 0 for one value.
pub(crate) fn rank_of(ir: &Pipeline, expr: &Expr) -> usize {
    match expr {
        Expr::Element { tensor, indices } => {
            let found = ir.tensors.iter().find(|known| known.name == *tensor);
            found.map_or(0, |tensor| tensor.dims.len().saturating_sub(indices.len()))
        }
        Expr::OfChannel { channel, field, indices, .. } => {
            let found = field_of(ir, channel, field);
            found.map_or(0, |field| field.dims.len().saturating_sub(indices.len()))
        }
        Expr::Call { helper, .. } if ["listed", "routed"].contains(&helper.as_str()) => 0,
        Expr::Call { args, .. } => args.iter().map(|arg| rank_of(ir, arg)).max().unwrap_or(0),
        Expr::Cast { value, .. } | Expr::Not { value } => rank_of(ir, value),
        Expr::Binary { left: one, right: other, .. } | Expr::If { yes: one, no: other, .. } => {
            rank_of(ir, one).max(rank_of(ir, other))
        }
        Expr::Fold { body, .. } => rank_of(ir, body),
        _ => 0,
    }
}

/// A field of the message that `channel` carries.
pub(crate) fn field_of<'a>(ir: &'a Pipeline, channel: &str, field: &str) -> Option<&'a Field> {
    let (_, message) = ir.carried(channel)?;
    message.fields.iter().find(|known| known.name == field)
}

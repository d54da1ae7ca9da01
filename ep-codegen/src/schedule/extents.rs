//! Extents that are equal, or one apart, whatever they are called.

use crate::ir::{BinaryOp, DimKind, Expr, Pipeline};

/// Whether an extent is the number `count`, by name or by formula.
pub(crate) fn is_extent(ir: &Pipeline, extent: &Expr, count: &str) -> bool {
    matches!(extent, Expr::Name { name, .. } if name == count)
        || formula(ir, count).is_some_and(|formula| formula == extent)
}

/// Whether an extent has one place more than `count`, for the total.
pub(crate) fn is_one_more(ir: &Pipeline, extent: &Expr, count: &str) -> bool {
    let whole = match extent {
        Expr::Name { name, .. } => formula(ir, name).unwrap_or(extent),
        _ => extent,
    };
    matches!(whole, Expr::Binary { op: BinaryOp::Add, left, right }
        if is_extent(ir, left, count) && **right == Expr::Int { value: 1 })
}

fn formula<'a>(ir: &'a Pipeline, name: &str) -> Option<&'a Expr> {
    match &ir.dims.iter().find(|dim| dim.name == name)?.kind {
        DimKind::Derived { value } => Some(value),
        DimKind::Given { .. } => None,
    }
}

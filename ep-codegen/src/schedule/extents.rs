//! Extents that are equal, or one apart, whatever they are called, and what they may be.

use crate::ir::{BinaryOp, DimKind, Expr, Pipeline, Stmt, WellKnown, walk};

/// Lanes of a warp.
pub(super) const LANES: i64 = 32;

/// The values that a number of the shape, or a tune, may have where a condition such as `ranks <= 64` holds.
pub(crate) fn range_of(ir: &Pipeline, name: &str) -> Option<(i64, i64)> {
    if let Some(tune) = ir.tunes.iter().find(|tune| tune.name == name) {
        return Some((*tune.choices.first()?, *tune.choices.last()?));
    }
    match &ir.dims.iter().find(|dim| dim.name == name)?.kind {
        DimKind::Given { low, high, .. } => {
            let bounds = ir.requires.iter().filter_map(|require| at_most(&require.condition, name));
            Some((*low, bounds.fold(*high, i64::min)))
        }
        // What the plan takes fits: every constant has 32 bits.
        DimKind::Derived { .. } => Some((0, i64::from(i32::MAX))),
    }
}

/// The number in `name <= number`.
fn at_most(condition: &Expr, name: &str) -> Option<i64> {
    let Expr::Binary { op: BinaryOp::Le, left, right } = condition else { return None };
    match (&**left, &**right) {
        (Expr::Name { name: bounded, .. }, Expr::Int { value }) if bounded == name => Some(*value),
        _ => None,
    }
}

/// Whether the rows of a call are cut into stripes.
pub(crate) fn has_stripes(ir: &Pipeline) -> bool {
    let dims = ir.dims.iter().map(|dim| &dim.name);
    dims.chain(ir.tunes.iter().map(|tune| &tune.name)).any(|name| WellKnown::Stripes.is(name))
}

/// Whether a statement writes a row that may have more values than a warp has lanes, which share it then.
pub(crate) fn writes_long_row(ir: &Pipeline, stmt: &Stmt) -> bool {
    written_row(ir, stmt).iter().any(|extent| match extent {
        Expr::Int { value } => *value > LANES,
        Expr::Name { name, .. } => range_of(ir, name).is_none_or(|(_, high)| high > LANES),
        _ => true,
    })
}

/// The extents of what a statement writes at once: none, if it writes an element or nothing.
pub(crate) fn written_row<'a>(ir: &'a Pipeline, stmt: &Stmt) -> &'a [Expr] {
    let Some(place) = walk::target(stmt) else { return &[] };
    let tensor = ir.tensors.iter().find(|known| known.name == place.tensor);
    tensor.and_then(|tensor| tensor.dims.get(place.indices.len()..)).unwrap_or_default()
}

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

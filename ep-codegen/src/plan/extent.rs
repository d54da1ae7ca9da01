//! How much memory a kernel writes that the caller gives: tables, and outputs of one element type.

use super::numbers::{Numbers, eval};
use crate::ir::parts::{elem_bytes, parts};
use crate::ir::{Expr, Memory, NameKind, Pipeline, Tensor, TensorKind};

/// The extent of a tensor that a pipeline writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Tensor as declared.
    pub tensor: String,
    /// Whether it is a table of the handle; otherwise an output.
    pub is_table: bool,
    /// Whether the host reads it.
    pub to_host: bool,
    /// The size that counts its rows; none if the shape says how many there are.
    pub size: Option<String>,
    /// Bytes of a row, or of the whole tensor if no size counts its rows.
    pub bytes: i64,
}

/// The extents of what a selected pipeline writes, in the order of the declaration.
pub(super) fn extents(ir: &Pipeline, numbers: &Numbers) -> Vec<Extent> {
    ir.tensors.iter().filter_map(|tensor| extent(ir, tensor, numbers)).collect()
}

fn extent(ir: &Pipeline, tensor: &Tensor, numbers: &Numbers) -> Option<Extent> {
    let is_table = tensor.kind == TensorKind::Table && tensor.from_handle.is_none();
    let [(_, elem, _)] = &parts(ir, &tensor.elem)[..] else { return None };
    if !is_table && tensor.kind != TensorKind::Output {
        return None;
    }
    let size = match tensor.dims.first() {
        Some(Expr::Name { name, kind: NameKind::Size }) => Some(name.clone()),
        _ => None,
    };
    let fixed = tensor.dims.iter().skip(usize::from(size.is_some()));
    let elements: Option<i64> = fixed.map(|dim| eval(dim, numbers)).product();
    Some(Extent {
        tensor: tensor.name.clone(),
        is_table,
        to_host: tensor.memory == Memory::Host,
        size,
        bytes: elements? * elem_bytes(elem),
    })
}

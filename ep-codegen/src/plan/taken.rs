//! The tensors that every call of a kernel takes, and how long their rows are: what the host has to look
//! at before a kernel follows an address.

use super::numbers::{Numbers, eval};
use crate::ir::parts::{align, parts};
use crate::ir::{ElemType, Expr, NameKind, Pipeline, Tensor};

/// One part of a tensor that no call leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Tensor as declared.
    pub tensor: String,
    /// Index of the part.
    pub part: usize,
    /// The size that counts its rows; none if the shape says how many there are.
    pub size: Option<String>,
    /// Elements of a row, where the shape says how many.
    pub row: Option<i64>,
}

/// Those of a selected pipeline, in the order of the declaration.
pub(super) fn taken(ir: &Pipeline, numbers: &Numbers) -> Vec<Taken> {
    let required = ir.tensors.iter().filter(|tensor| !tensor.optional && tensor.copies == 1);
    required.flat_map(|tensor| of(ir, tensor, numbers)).collect()
}

fn of(ir: &Pipeline, tensor: &Tensor, numbers: &Numbers) -> Vec<Taken> {
    let size = match tensor.dims.first() {
        Some(Expr::Name { name, kind: NameKind::Size }) => Some(name.clone()),
        _ => None,
    };
    let is_bits = matches!(tensor.elem, ElemType::Bits { .. });
    let row: Option<i64> = tensor.dims.iter().skip(1).map(|dim| eval(dim, numbers)).product();
    let all = parts(ir, &tensor.elem).into_iter().enumerate();
    let part = |(part, (_, _, block)): (usize, (String, _, i64))| Taken {
        tensor: tensor.name.clone(),
        part,
        size: size.clone(),
        // A scale stands for a block of values; bits are packed into words.
        row: row.filter(|_| !is_bits).map(|row| align(row, block) / block),
    };
    all.map(part).collect()
}

/// Scales of a tensor of three extents: those of each list of rows lie by row or by column, and one list lies behind
/// another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lists {
    /// Tensor as declared.
    pub tensor: String,
    /// Index of the part.
    pub part: usize,
    /// Rows of a list.
    pub rows: i64,
    /// Scales of a row.
    pub columns: i64,
}

/// Those of a selected pipeline.
pub(super) fn lists(ir: &Pipeline, numbers: &Numbers) -> Vec<Lists> {
    let mut found = Vec::new();
    for tensor in &ir.tensors {
        let [_, .., rows, columns] = tensor.dims.as_slice() else { continue };
        let (Some(rows), Some(columns)) = (eval(rows, numbers), eval(columns, numbers)) else {
            continue;
        };
        for (part, (_, _, block)) in parts(ir, &tensor.elem).into_iter().enumerate().skip(1) {
            let (tensor, columns) = (tensor.name.clone(), align(columns, block) / block);
            found.push(Lists { tensor, part, rows, columns });
        }
    }
    found
}

//! The requirements for one tensor of a call, and the reasons to refuse it.

use ep_codegen::ir::{Elem, text};

use super::spec::Sizes;
use crate::args::fill_a_list;
use crate::error::TensorFault;
use crate::tensor::Given;

/// Kernels move rows in units of this many bytes.
const UNIT_BYTES: u64 = 16;

/// An extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dim {
    Is(u64),
    /// That, or more.
    Least(u64),
    /// A size that calls say.
    Said(usize),
    /// A size that only the device knows.
    Found(usize),
    /// What no shape says.
    Unknown,
}

impl Dim {
    pub(super) fn value(self, sizes: &Sizes) -> Option<u64> {
        match self {
            Dim::Is(value) | Dim::Least(value) => Some(value),
            Dim::Said(size) | Dim::Found(size) => sizes.get(size).copied(),
            Dim::Unknown => None,
        }
    }
}

/// What a tensor is to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory that a caller brings.
    Device,
    /// As above, reached by the host.
    Host,
    /// In the window, where peers reach it.
    Window,
    /// Of a handle that a caller brings.
    Handle,
    /// Of the handle that the call leaves.
    Table,
}

/// A tensor that a call takes.
#[derive(Debug)]
pub(super) struct TensorSpec {
    pub(super) name: String,
    pub(super) elem: Elem,
    /// Of an element.
    pub(super) bytes: u64,
    pub(super) dims: Vec<Dim>,
    pub(super) kind: Kind,
    pub(super) is_output: bool,
    /// Whether rows may lie apart, and columns too.
    pub(super) rows_apart: bool,
    pub(super) columns_apart: bool,
    /// Bytes from one row to the next, where peers count on it.
    pub(super) stride_bytes: Option<u64>,
    /// Elements of a row.
    pub(super) inner: u64,
    /// Whether it has elements when there are the most of everything.
    pub(super) has_elements: bool,
    /// Where it lies among the tables, or in a region of the window.
    pub(super) at: u64,
    pub(super) most_bytes: u64,
}

impl TensorSpec {
    /// Elements from one row to the next, where this crate lays it out.
    pub(super) fn row_stride(&self) -> i64 {
        match self.stride_bytes {
            Some(apart) => (apart / self.bytes) as i64,
            None => self.inner as i64,
        }
    }

    /// Elements from row to row and from column to column: of the last two axes, since kernels know how much a
    /// list of rows takes.
    pub(super) fn apart(&self, given: &Given<'_>) -> [u64; 2] {
        let axes = &given.strides[given.strides.len().saturating_sub(2)..];
        let stride = |axis: usize| axes.get(axis).map_or(0, |stride| *stride as u64);
        [stride(0), stride(1)]
    }

    pub(super) fn check(&self, given: &Given<'_>, sizes: &Sizes) -> Result<(), TensorFault> {
        if *given.elem != self.elem {
            let (have, want) = (text::elem(given.elem), text::elem(&self.elem));
            return Err(TensorFault::Element { have, want });
        }
        let want = |dim: &Dim| match dim {
            Dim::Found(_) => None,
            dim => dim.value(sizes),
        };
        let fits = |(have, dim): (&u64, &Dim)| match dim {
            Dim::Least(least) => have >= least,
            dim => want(dim).is_none_or(|want| want == *have),
        };
        if given.extents.len() != self.dims.len() || !given.extents.iter().zip(&self.dims).all(fits)
        {
            let have = given.extents.to_vec();
            return Err(TensorFault::Extents { have, want: self.dims.iter().map(want).collect() });
        }
        let needed = self.kind == Kind::Handle && self.has_elements;
        let is_empty = given.extents.contains(&0) && !needed;
        if is_empty {
            return Ok(());
        }
        if given.address == 0 {
            return Err(TensorFault::Absent);
        }
        self.check_place(given)
    }

    /// Where the elements lie.
    fn check_place(&self, given: &Given<'_>) -> Result<(), TensorFault> {
        let Some(row) = given.strides.first() else { return Ok(()) };
        // A list of what it has is made for an error alone: calls allocate nothing.
        let (have, inner) = (|| given.strides.to_vec(), self.inner as i64);
        if self.columns_apart {
            if !columns_fit(given) {
                let have = have();
                return Err(match given.extents.len() {
                    2 => TensorFault::Strides { have, row: inner, or_more: true },
                    _ => TensorFault::Lists { have, list: inner },
                });
            }
        } else {
            let mut dense = 1;
            for (axis, stride) in given.strides.iter().enumerate().skip(1).rev() {
                if *stride != dense && given.extents[axis] > 1 {
                    return Err(TensorFault::Strides {
                        have: have(),
                        row: inner,
                        or_more: self.rows_apart,
                    });
                }
                dense *= given.extents[axis] as i64;
            }
            let fits = match self.stride_bytes {
                Some(apart) => row.saturating_mul(self.bytes as i64) == apart as i64,
                None if given.extents[0] == 1 => *row >= 0,
                None if self.rows_apart => *row >= inner,
                None => *row == inner,
            };
            if !fits {
                let (row, or_more) =
                    (self.row_stride(), self.rows_apart && self.stride_bytes.is_none());
                return Err(TensorFault::Strides { have: have(), row, or_more });
            }
        }
        self.check_alignment(given.address, *row)
    }

    fn check_alignment(&self, address: u64, row: i64) -> Result<(), TensorFault> {
        let row_bytes = self.inner * self.bytes;
        let moved = matches!(self.elem, Elem::Bf16 | Elem::E4m3) && self.dims.len() > 1;
        if moved && row_bytes.is_multiple_of(UNIT_BYTES) {
            let apart = row as u64 * self.bytes;
            if !address.is_multiple_of(UNIT_BYTES) || !apart.is_multiple_of(UNIT_BYTES) {
                let (apart, multiple) = (Some(apart), UNIT_BYTES);
                return Err(TensorFault::Address { address, apart, multiple });
            }
        } else if !address.is_multiple_of(self.bytes) {
            return Err(TensorFault::Address { address, apart: None, multiple: self.bytes });
        }
        Ok(())
    }
}

/// Whether rows whose columns lie apart do not overlap. Where they are in lists, each list takes as much as its elements
/// do, row by row or column by column, and lists lie one behind another.
fn columns_fit(given: &Given<'_>) -> bool {
    let Given { strides, extents, .. } = *given;
    let ([outer @ .., row, column], [lists @ .., rows, columns]) = (strides, extents) else {
        return true;
    };
    let (rows, columns) = (*rows as i64, *columns as i64);
    if *row <= 0 || *column <= 0 {
        return false;
    }
    if outer.is_empty() {
        let by_row = *row >= columns.saturating_mul(*column) || rows == 1;
        let by_column = *column >= rows.saturating_mul(*row) || columns == 1;
        return by_row || by_column;
    }
    let mut apart = rows.saturating_mul(columns);
    fill_a_list([rows, columns], [*row, *column])
        && outer.iter().zip(lists).rev().all(|(stride, lists)| {
            let fits = *stride == apart || *lists == 1;
            apart = apart.saturating_mul(*lists as i64);
            fits
        })
}

/// Elements of a row of these dims.
pub(super) fn row_of(dims: &[Dim]) -> u64 {
    let known = |dim: &Dim| if let Dim::Is(value) = dim { *value } else { 1 };
    dims.iter().skip(1).map(known).product()
}

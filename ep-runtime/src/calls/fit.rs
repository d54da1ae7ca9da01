//! One tensor of a call: what it has to be, and why it is refused.

use std::fmt;

use ep_codegen::ir::{Elem, text};

use super::spec::Sizes;
use crate::tensor::Given;

/// Kernels move rows in units of so many bytes.
const UNIT_BYTES: u64 = 16;

/// An extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dim {
    Is(u64),
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
            Dim::Is(value) => Some(value),
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
    /// Where it lies among the tables, or in a region of the window.
    pub(super) at: u64,
    pub(super) most_bytes: u64,
}

/// Why a tensor does not fit a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorFault {
    /// It is not there.
    Absent,
    /// It is there, but calls of these options take none.
    NotTaken,
    /// It holds values of another type.
    Element {
        /// What it holds.
        have: &'static str,
        /// What it has to.
        want: &'static str,
    },
    /// It has other extents.
    Extents {
        /// Those that it has.
        have: Vec<u64>,
        /// Those that it has to have; none where any will do.
        want: Vec<Option<u64>>,
    },
    /// Its elements lie otherwise than kernels find them.
    Strides {
        /// In elements.
        have: Vec<i64>,
        /// Elements from one row to the next.
        row: i64,
        /// Whether that is the least, not the only right one.
        or_more: bool,
    },
    /// It begins where no kernel can read or write it.
    Address {
        /// Where.
        address: u64,
        /// Bytes from one row to the next, where that has to be a multiple too.
        apart: Option<u64>,
        /// What it has to be a multiple of.
        multiple: u64,
    },
    /// Peers have to reach it, and it lies outside of the kernel's window.
    OutsideWindow {
        /// Where.
        address: u64,
    },
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFault::Absent => f.write_str("is absent"),
            TensorFault::NotTaken => f.write_str("is given, but these options take none"),
            TensorFault::Element { have, want } => write!(f, "holds {have}, not {want}"),
            TensorFault::Extents { have, want } => {
                let any =
                    |extent: &Option<u64>| extent.map_or("_".to_string(), |it| it.to_string());
                let want: Vec<String> = want.iter().map(any).collect();
                write!(f, "has extents {have:?}, not [{}]", want.join(", "))
            }
            TensorFault::Strides { have, row, or_more } => {
                let least = if *or_more { " or more" } else { "" };
                write!(
                    f,
                    "has strides {have:?}, not rows side by side, {row}{least} elements apart"
                )
            }
            TensorFault::Address { address, apart: None, multiple } => {
                write!(f, "begins at {address:#x}, which is no multiple of {multiple}")
            }
            TensorFault::Address { address, apart: Some(apart), multiple } => write!(
                f,
                "begins at {address:#x} and has its rows {apart} bytes apart: both have to be multiples \
                 of {multiple}"
            ),
            TensorFault::OutsideWindow { address } => {
                write!(f, "lies at {address:#x}, outside of the window in which peers reach it")
            }
        }
    }
}

impl TensorSpec {
    /// Elements from one row to the next, where this crate lays it out.
    pub(super) fn row_stride(&self) -> i64 {
        match self.stride_bytes {
            Some(apart) => (apart / self.bytes) as i64,
            None => self.inner() as i64,
        }
    }

    /// Elements of a row.
    pub(super) fn inner(&self) -> u64 {
        let known = |dim: &Dim| if let Dim::Is(value) = dim { *value } else { 1 };
        self.dims.iter().skip(1).map(known).product()
    }

    pub(super) fn check(
        &self,
        given: &Given<'_>,
        sizes: &Sizes,
        most: &Sizes,
    ) -> Result<(), TensorFault> {
        if *given.elem != self.elem {
            let (have, want) = (text::elem(given.elem), text::elem(&self.elem));
            return Err(TensorFault::Element { have, want });
        }
        let want = |dim: &Dim| match dim {
            Dim::Found(_) => None,
            dim => dim.value(sizes),
        };
        let pairs = || given.extents.iter().zip(self.dims.iter().map(want));
        if given.extents.len() != self.dims.len()
            || pairs().any(|(have, want)| want.is_some_and(|want| want != *have))
        {
            let have = given.extents.to_vec();
            return Err(TensorFault::Extents { have, want: self.dims.iter().map(want).collect() });
        }
        let needed = self.dims.iter().all(|dim| dim.value(most) != Some(0));
        let is_empty = given.extents.contains(&0) && !(self.kind == Kind::Handle && needed);
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
        let (have, inner) = (given.strides.to_vec(), self.inner() as i64);
        if self.columns_apart {
            let [row, column] = *given.strides else { return Ok(()) };
            let (rows, columns) = (given.extents[0] as i64, given.extents[1] as i64);
            let fits = row >= columns.saturating_mul(column) || column >= rows.saturating_mul(row);
            if row < 1 || column < 1 || !fits {
                return Err(TensorFault::Strides { have, row: inner, or_more: true });
            }
        } else {
            let mut dense = 1;
            for (axis, stride) in given.strides.iter().enumerate().skip(1).rev() {
                if *stride != dense && given.extents[axis] > 1 {
                    return Err(TensorFault::Strides {
                        have,
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
                return Err(TensorFault::Strides { have, row, or_more });
            }
        }
        self.check_alignment(given.address, *row)
    }

    fn check_alignment(&self, address: u64, row: i64) -> Result<(), TensorFault> {
        let row_bytes = self.inner() * self.bytes;
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

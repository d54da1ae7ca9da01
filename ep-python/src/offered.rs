//! Combine inputs: the experts of a rank leave their rows there, or have them copied.

use std::sync::Arc;

use ep_runtime::args::Rows;
use ep_runtime::backend::{RowCopy, Stream};
use ep_runtime::buffer;
use pyo3::prelude::*;

use crate::arguments::{RowsTuple, rows};
use crate::buffer::Home;
use crate::errors::{Failure, at_once, launched};
use crate::group::raw_stream;
use crate::tensor::{Element, Tensor};

/// A combine input in the window.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Offered {
    pub(crate) inner: Arc<buffer::Offered>,
    pub(crate) rank: usize,
    pub(crate) home: Home,
}

#[pymethods]
impl Offered {
    /// bf16 rows, in the order in which the dispatch received theirs.
    fn x(&self, py: Python<'_>) -> PyResult<Tensor> {
        let rows = at_once(py, || Ok(self.inner.x()?))?;
        let shape = [self.home.capacity(), self.home.options.hidden];
        Ok(self.home.tensor(&self.inner, self.rank, Element::Bf16, rows, shape))
    }

    /// f32 weights of the rows, for a buffer that moves weights.
    fn weights(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        if !self.home.options.weights {
            return Ok(None);
        }
        let rows = at_once(py, || Ok(self.inner.weights()?))?;
        let shape = [self.home.capacity(), self.home.options.topk];
        Ok(Some(self.home.tensor(&self.inner, self.rank, Element::F32, rows, shape)))
    }

    /// Copies rows and weights of the caller to the first rows, on a stream that comes behind all calls so
    /// far; an address of 0 is no copy.
    fn fill(
        &self,
        py: Python<'_>,
        count: u64,
        x: RowsTuple,
        weights: RowsTuple,
        stream: u64,
    ) -> PyResult<()> {
        let given = (count, x, weights);
        let stream = raw_stream(stream);
        launched(py, &self.home.group, || fill(&self.inner, &self.home, self.rank, given, stream))
    }
}

/// Copies so many rows and weights to the first rows of a combine input.
pub(crate) fn fill(
    offered: &buffer::Offered,
    home: &Home,
    rank: usize,
    (count, x, weights): (u64, RowsTuple, RowsTuple),
    stream: Stream,
) -> Result<(), Failure> {
    if count == 0 {
        return Ok(());
    }
    let (options, group, capacity) = (&home.options, &home.group, home.capacity() as u64);
    if count > capacity {
        let what = format!("`rows` has {count} rows, and a combine input {capacity}");
        return Err(Failure::mismatch(what));
    }
    let (x, weights) = (rows(x), rows(weights));
    let copies = [
        (x.address != 0).then(|| copy(x, offered.x()?, options.hidden, 2, count)),
        (weights.address != 0).then(|| copy(weights, offered.weights()?, options.topk, 4, count)),
    ];
    let copies = copies.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    group.await_calls(rank, stream)?;
    let backend = group.backend();
    copies.iter().try_for_each(|copy| backend.copy_rows(rank, stream, copy))?;
    Ok(())
}

/// Rows of so many values, each in one piece.
fn copy(from: Rows, to: Rows, values: usize, bytes: u64, rows: u64) -> Result<RowCopy, Failure> {
    // A single row is nowhere near another one.
    let apart = if rows > 1 { from.row_stride } else { values as i64 };
    let stride = u64::try_from(apart).unwrap_or(0);
    if from.column_stride != 1 || stride < values as u64 {
        let (row, column) = (from.row_stride, from.column_stride);
        return Err(Failure::mismatch(format!(
            "rows of {values} values are copied from where they lie side by side, not {row} apart with \
             values {column} apart"
        )));
    }
    Ok(RowCopy {
        to: to.address,
        to_stride: to.row_stride as u64 * bytes,
        from: from.address,
        from_stride: stride * bytes,
        row_bytes: values as u64 * bytes,
        rows,
    })
}

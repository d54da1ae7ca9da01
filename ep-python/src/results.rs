//! Results of a buffer's calls: handles and outputs, and the expansion of an output by expert.

use std::sync::Arc;

use ep_runtime::args::Rows;
use ep_runtime::buffer::{self, ExpandOptions, ExpandedOutput, PlainOutput};
use ep_runtime::error::CallError;
use ep_runtime::tensor::DeviceTensor;
use pyo3::prelude::*;

use crate::arguments::{CallTuple, RowsTuple, call, rows};
use crate::buffer::{Buffer, Home, elements_of};
use crate::errors::{at_once, launched, released};
use crate::tensor::{Element, Tensor};

/// The tables of one dispatch on one rank.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Handle {
    pub(crate) inner: Arc<buffer::Handle>,
    pub(crate) home: Home,
}

#[pymethods]
impl Handle {
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    #[getter]
    fn tokens(&self) -> usize {
        self.inner.tokens()
    }

    /// Rows that arrive, and routed entries for each local expert; waits for the counts.
    fn counts(&self, py: Python<'_>) -> PyResult<(usize, Vec<usize>)> {
        let counts = || {
            let counts = self.inner.counts()?;
            Ok((counts.received, counts.per_expert))
        };
        match self.arriving(py)? {
            Some(_) => launched(py, &self.home.group, counts),
            None => released(py, counts),
        }
    }

    /// Rows that arrive, if that is known already.
    fn arriving(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        launched(py, &self.home.group, || Ok(self.inner.arriving()?))
    }

    /// Rows from rank to rank, summed up over the ranks before each: `i32[ranks + 1, ranks]`.
    fn rank_prefix(&self, py: Python<'_>) -> PyResult<Tensor> {
        self.table(py, |inner| Ok(inner.layout()?.rank_prefix))
    }

    /// The token of each row that arrives, on its own rank.
    fn sources(&self, py: Python<'_>) -> PyResult<Tensor> {
        self.table(py, |inner| Ok(inner.dispatch()?.recv_src))
    }
}

impl Handle {
    fn table<const RANK: usize>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&buffer::Handle) -> Result<DeviceTensor<i32, RANK>, CallError> + Send,
    ) -> PyResult<Tensor> {
        let table = at_once(py, || Ok(of(&self.inner)?))?;
        let mut shape = [1; 2];
        for (extent, of) in shape.iter_mut().zip(table.extents()) {
            *extent = of as usize;
        }
        Ok(self.home.tensor(&self.inner, self.inner.rank(), Element::I32, table.as_rows(), shape))
    }
}

/// The output of one dispatch on one rank.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Received {
    pub(crate) inner: Arc<buffer::Received>,
    pub(crate) home: Home,
}

impl Received {
    fn tensor(&self, element: Element, rows: Rows, columns: usize) -> Tensor {
        let shape = [self.home.capacity(), columns];
        self.home.tensor(&self.inner, self.inner.rank(), element, rows, shape)
    }
}

#[pymethods]
impl Received {
    /// The rows, with room for all that may come.
    fn x(&self, py: Python<'_>) -> PyResult<Tensor> {
        let rows = at_once(py, || Ok(self.inner.x()?))?;
        let (element, _) = elements_of(self.home.options.payload);
        Ok(self.tensor(element, rows, self.home.options.hidden))
    }

    /// Whether it has rows and scales alone.
    #[getter]
    fn is_cached(&self) -> bool {
        self.inner.is_cached()
    }

    /// Their scales, if the payload has any.
    fn scale(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        let options = &self.home.options;
        let (_, Some(element)) = elements_of(options.payload) else { return Ok(None) };
        let rows = at_once(py, || Ok(self.inner.scale()?))?;
        Ok(Some(self.tensor(element, rows, options.payload.scales(options.hidden))))
    }

    /// Local experts of each row, -1 for others.
    fn topk_idx(&self, py: Python<'_>) -> PyResult<Tensor> {
        let topk = self.home.options.topk;
        let address = at_once(py, || Ok(self.inner.topk_idx()?))?;
        Ok(self.tensor(Element::I64, Rows::new(address, topk as i64), topk))
    }

    /// Weights of all experts of each row.
    fn topk_weights(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        let topk = self.home.options.topk;
        if !self.home.options.weights {
            return Ok(None);
        }
        let address = at_once(py, || Ok(self.inner.topk_weights()?))?;
        Ok(Some(self.tensor(Element::F32, Rows::new(address, topk as i64), topk)))
    }

    /// Copies rows and what belongs to them into memory of the caller; an address of 0 is no copy.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn copy_to(
        &self,
        py: Python<'_>,
        rows_to_copy: usize,
        x: RowsTuple,
        scale: RowsTuple,
        topk_idx: u64,
        topk_weights: u64,
        how: CallTuple,
    ) -> PyResult<()> {
        launched(py, &self.home.group, || {
            let to = PlainOutput { x: rows(x), scale: rows(scale), topk_idx, topk_weights };
            Ok(self.inner.copy_to(rows_to_copy, &to, &call(how)?)?)
        })
    }
}

/// Copies received rows to one place for each of their experts.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Expander {
    inner: buffer::Expander,
    home: Home,
}

#[pymethods]
impl Expander {
    #[new]
    fn new(py: Python<'_>, buffer: &Buffer, rows: usize, alignment: i32) -> PyResult<Expander> {
        released(py, || {
            let options = ExpandOptions { alignment, ..ExpandOptions::new(rows) };
            let inner = buffer::Expander::new(&buffer.inner, options)?;
            Ok(Expander { inner, home: buffer.home.clone() })
        })
    }

    /// `x` and `scale`: where the rows go; `source`: where it is said which row each is a copy of.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn expand(
        &self,
        py: Python<'_>,
        handle: &Handle,
        received: &Received,
        x: u64,
        scale: RowsTuple,
        source: u64,
        how: CallTuple,
    ) -> PyResult<()> {
        launched(py, &self.home.group, || {
            let to = ExpandedOutput { x, scale: rows(scale), source };
            Ok(self.inner.expand(&handle.inner, &received.inner, &to, &call(how)?)?)
        })
    }

    /// Where the rows of each local expert begin, and where the last one's end; until the next call.
    fn expert_first(&self, py: Python<'_>, rank: usize) -> PyResult<Tensor> {
        let address = at_once(py, || Ok(self.inner.expert_first(rank)?))?;
        Ok(self.table(rank, address, 1))
    }

    /// How many rows each local expert has; until the next call.
    fn rows_per_expert(&self, py: Python<'_>, rank: usize) -> PyResult<Tensor> {
        let address = at_once(py, || Ok(self.inner.rows_per_expert(rank)?))?;
        Ok(self.table(rank, address, 0))
    }
}

impl Expander {
    /// A number for each local expert, and `more` of them.
    fn table(&self, rank: usize, address: u64, more: usize) -> Tensor {
        let count = self.home.options.local_experts(self.home.group.ranks()) + more;
        let (owner, rows) = (Arc::new(self.inner.clone()), Rows::new(address, count as i64));
        self.home.tensor(&owner, rank, Element::I32, rows, [1, count])
    }
}

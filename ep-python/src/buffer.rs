//! Buffers, their calls, and what calls leave.

use std::sync::Arc;

use ep_runtime::args::Rows;
use ep_runtime::buffer::{
    self, BufferOptions, BufferTunes, BuiltIn, CombineInput, CombineOutput, DispatchInput,
    ExpandOptions, ExpandedOutput, MemoryUsage, Payload, Placement, PlainOutput, Via,
};
use ep_runtime::error::CallError;
use ep_runtime::ir::Transport;
use ep_runtime::plan::Arch;
use ep_runtime::tensor::DeviceTensor;
use pyo3::prelude::*;

use crate::arguments::{CallTuple, RowsTuple, call, named, rows};
use crate::errors::{Failure, released};
use crate::group::{Group, raw_stream};
use crate::offered::Offered;
use crate::tensor::{Element, Tensor};

/// Bytes on each rank: control, outputs, combine inputs, tables, and on the host.
type Bytes = (u64, u64, u64, u64, u64);

fn bytes_of(usage: MemoryUsage) -> Bytes {
    let MemoryUsage { control, outputs, combine_inputs, tables, host } = usage;
    (control, outputs, combine_inputs, tables, host)
}

/// Tokens, address of their number or 0, `x`, scales, `topk_idx`, `topk_weights`.
type InputTuple = (usize, u64, RowsTuple, RowsTuple, u64, u64);

/// What a buffer is made for, by the names of [`BufferOptions`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    tokens: usize,
    hidden: usize,
    topk: usize,
    experts: usize,
    payload: String,
    via: String,
    capacity: Option<usize>,
    live: usize,
    handles: Option<usize>,
    shared_rows: bool,
    graphs_keep: bool,
    weights: bool,
    biases: usize,
    cached: bool,
    one_launch: Option<bool>,
    push_combine: Option<bool>,
    alignment: i32,
    placement: Option<Vec<i32>>,
    settings: Vec<(String, String, String)>,
}

impl Options {
    fn resolve(self) -> Result<BufferOptions, Failure> {
        let payloads = Payload::ALL.map(Payload::name);
        let payload =
            named("payload", &self.payload, Payload::from_name(&self.payload), &payloads)?;
        let via = named("via", &self.via, Via::from_name(&self.via), &Via::ALL.map(Via::name))?;
        let placement = match self.placement {
            None => None,
            Some(begin) => Some(Placement::new(begin).ok_or_else(|| {
                Failure::mismatch("a placement is ascending numbers from 0 on".to_string())
            })?),
        };
        let mut tunes = BufferTunes::default();
        for (pipeline, name, value) in self.settings {
            let number = value.parse().ok().ok_or_else(|| {
                Failure::mismatch(format!("`{name}` of {pipeline} takes a number, not `{value}`"))
            })?;
            *tunes.by_name(&pipeline, &name)? = Some(number);
        }
        let BufferOptions { nodes, carrier, rates, .. } = BufferOptions::new(0, 0, 0, 0);
        Ok(BufferOptions {
            hidden: self.hidden,
            topk: self.topk,
            experts: self.experts,
            tokens: self.tokens,
            nodes,
            carrier,
            payload,
            via,
            capacity: self.capacity,
            live: self.live,
            handles: self.handles,
            shared_rows: self.shared_rows,
            graphs_keep: self.graphs_keep,
            weights: self.weights,
            biases: self.biases,
            cached: self.cached,
            one_launch: self.one_launch,
            push_combine: self.push_combine,
            alignment: self.alignment,
            placement,
            tunes,
            rates,
        })
    }
}

fn input((tokens, tokens_from, x, scale, topk_idx, topk_weights): InputTuple) -> DispatchInput {
    let (x, scale) = (rows(x), rows(scale));
    DispatchInput { tokens, tokens_from, x, scale, topk_idx, topk_weights }
}

/// Dispatch and combine for one shape.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Buffer {
    inner: buffer::Buffer,
    home: Home,
}

/// What views of a buffer's memory need to know of its group.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) group: ep_runtime::group::Group,
    /// Ordinals of the local ranks' GPUs; empty in the emulator.
    devices: Vec<i32>,
    pub(crate) options: Arc<BufferOptions>,
}

impl Home {
    pub(crate) fn tensor<T: Send + Sync + 'static>(
        &self,
        owner: &Arc<T>,
        rank: usize,
        element: Element,
        rows: Rows,
        shape: [usize; 2],
    ) -> Tensor {
        let index = self.group.local_index(rank).unwrap_or(0);
        Tensor {
            owner: Arc::clone(owner) as Arc<dyn std::any::Any + Send + Sync>,
            group: self.group.clone(),
            rank,
            device: self.devices.get(index).copied(),
            address: rows.address,
            shape: shape.iter().map(|extent| *extent as i64).collect(),
            strides: vec![rows.row_stride, rows.column_stride],
            element,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.options.capacity(self.group.ranks())
    }
}

#[pymethods]
impl Buffer {
    /// Emits, compiles and loads the kernels and allocates everything, on all ranks together.
    #[new]
    fn new(py: Python<'_>, group: &Group, options: Options) -> PyResult<Buffer> {
        released(py, || {
            let options = options.resolve()?;
            let home = Home {
                group: group.inner.clone(),
                devices: group.devices.clone(),
                options: Arc::new(options.clone()),
            };
            let inner = buffer::Buffer::new(&group.inner, options, &BuiltIn)?;
            Ok(Buffer { inner, home })
        })
    }

    /// Whether an output holds all tokens of all ranks, so that no dispatch waits for its counts.
    #[getter]
    fn holds_worst_case(&self) -> bool {
        self.inner.holds_worst_case()
    }

    /// Rows that an output holds.
    #[getter]
    fn capacity(&self) -> usize {
        self.home.capacity()
    }

    /// Most experts of any rank.
    #[getter]
    fn local_experts(&self) -> usize {
        self.home.options.local_experts(self.home.group.ranks())
    }

    /// Bytes on each rank: control, outputs, combine inputs, tables, and on the host.
    #[getter]
    fn memory(&self) -> Bytes {
        bytes_of(self.inner.memory())
    }

    /// The bytes of a buffer that is not made: on each of `ranks` ranks of `nodes` nodes.
    #[staticmethod]
    fn memory_of(py: Python<'_>, ranks: usize, nodes: usize, options: Options) -> PyResult<Bytes> {
        released(py, || {
            let carrier = (nodes > 1).then_some(Transport::Rdma);
            let options = BufferOptions { nodes, carrier, ..options.resolve()? };
            Ok(bytes_of(MemoryUsage::of(&options, ranks, Arch::Sm90a, &BuiltIn)?))
        })
    }

    /// The bytes of a buffer that is not made, of rows that pass through a network between `nodes` nodes.
    #[staticmethod]
    fn network_of(py: Python<'_>, ranks: usize, nodes: usize, options: Options) -> PyResult<u64> {
        released(py, || {
            let carrier = (nodes > 1).then_some(Transport::Rdma);
            let options = BufferOptions { nodes, carrier, ..options.resolve()? };
            Ok(MemoryUsage::of_network(&options, ranks, Arch::Sm90a, &BuiltIn)?)
        })
    }

    fn exchange_counts(
        &self,
        py: Python<'_>,
        rank: usize,
        sent: InputTuple,
        how: CallTuple,
    ) -> PyResult<Handle> {
        released(py, || {
            let inner = self.inner.exchange_counts(rank, &input(sent), &call(how)?)?;
            Ok(Handle { inner: Arc::new(inner), home: self.home.clone() })
        })
    }

    fn dispatch_counted(
        &self,
        py: Python<'_>,
        handle: &Handle,
        sent: InputTuple,
        how: CallTuple,
    ) -> PyResult<Received> {
        released(py, || {
            let inner = self.inner.dispatch_counted(&handle.inner, &input(sent), &call(how)?)?;
            Ok(Received { inner: Arc::new(inner), home: self.home.clone() })
        })
    }

    fn dispatch(
        &self,
        py: Python<'_>,
        rank: usize,
        sent: InputTuple,
        how: CallTuple,
    ) -> PyResult<(Handle, Received)> {
        released(py, || {
            let (handle, received) = self.inner.dispatch(rank, &input(sent), &call(how)?)?;
            let handle = Handle { inner: Arc::new(handle), home: self.home.clone() };
            Ok((handle, Received { inner: Arc::new(received), home: self.home.clone() }))
        })
    }

    fn cached_dispatch(
        &self,
        py: Python<'_>,
        handle: &Handle,
        sent: InputTuple,
        how: CallTuple,
    ) -> PyResult<Received> {
        released(py, || {
            let inner = self.inner.cached_dispatch(&handle.inner, &input(sent), &call(how)?)?;
            Ok(Received { inner: Arc::new(inner), home: self.home.clone() })
        })
    }

    /// A combine input in the window, for a call on a stream.
    fn offer(&self, py: Python<'_>, rank: usize, stream: u64) -> PyResult<Offered> {
        released(py, || {
            let inner = Arc::new(self.inner.offer_on(rank, raw_stream(stream))?);
            Ok(Offered { inner, rank, home: self.home.clone() })
        })
    }

    /// `in_place`: the output whose rows the experts have worked on, else those of `offered`.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn combine(
        &self,
        py: Python<'_>,
        handle: &Handle,
        in_place: Option<&Received>,
        offered: Option<&Offered>,
        biases: Vec<RowsTuple>,
        combined: u64,
        combined_weights: u64,
        how: CallTuple,
    ) -> PyResult<()> {
        released(py, || {
            let weights = offered.map(|offered| offered.inner.as_ref());
            let rows_in = match (in_place, weights) {
                (Some(received), weights) => CombineInput::InPlace(&received.inner, weights),
                (None, Some(offered)) => CombineInput::Offered(offered),
                (None, None) => {
                    return Err(Failure::mismatch("a combine without rows".to_string()));
                }
            };
            let biases: Vec<Rows> = biases.into_iter().map(rows).collect();
            let output = CombineOutput { combined, combined_weights };
            Ok(self.inner.combine(&handle.inner, rows_in, &biases, &output, &call(how)?)?)
        })
    }
}

/// The tables of one dispatch on one rank.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Handle {
    inner: Arc<buffer::Handle>,
    home: Home,
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
        released(py, || {
            let counts = self.inner.counts()?;
            Ok((counts.received, counts.per_expert))
        })
    }

    /// Rows that arrive, if that is known already.
    fn arriving(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        released(py, || Ok(self.inner.arriving()?))
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
        let table = released(py, || Ok(of(&self.inner)?))?;
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
    inner: Arc<buffer::Received>,
    home: Home,
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
        let rows = released(py, || Ok(self.inner.x()?))?;
        let element = match self.home.options.payload {
            Payload::Bf16 => Element::Bf16,
            Payload::Fp8 | Payload::Fp8Packed => Element::Fp8,
        };
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
        let element = match options.payload {
            Payload::Bf16 => return Ok(None),
            Payload::Fp8 => Element::F32,
            Payload::Fp8Packed => Element::U8,
        };
        let rows = released(py, || Ok(self.inner.scale()?))?;
        Ok(Some(self.tensor(element, rows, options.payload.scales(options.hidden))))
    }

    /// Local experts of each row, -1 for others.
    fn topk_idx(&self, py: Python<'_>) -> PyResult<Tensor> {
        let topk = self.home.options.topk;
        let address = released(py, || Ok(self.inner.topk_idx()?))?;
        Ok(self.tensor(Element::I64, Rows::new(address, topk as i64), topk))
    }

    /// Weights of all experts of each row.
    fn topk_weights(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        let topk = self.home.options.topk;
        if !self.home.options.weights {
            return Ok(None);
        }
        let address = released(py, || Ok(self.inner.topk_weights()?))?;
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
        released(py, || {
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
        released(py, || {
            let to = ExpandedOutput { x, scale: rows(scale), source };
            Ok(self.inner.expand(&handle.inner, &received.inner, &to, &call(how)?)?)
        })
    }

    /// Where the rows of each local expert begin, and where the last one's end; until the next call.
    fn expert_first(&self, py: Python<'_>, rank: usize) -> PyResult<Tensor> {
        let address = released(py, || Ok(self.inner.expert_first(rank)?))?;
        Ok(self.table(rank, address, 1))
    }

    /// How many rows each local expert has; until the next call.
    fn rows_per_expert(&self, py: Python<'_>, rank: usize) -> PyResult<Tensor> {
        let address = released(py, || Ok(self.inner.rows_per_expert(rank)?))?;
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

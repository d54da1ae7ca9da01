//! Buffers and their calls.

use std::sync::Arc;

use ep_runtime::args::Rows;
use ep_runtime::buffer::{
    self, BufferOptions, BufferTunes, BuiltIn, CombineInput, CombineOutput, DispatchInput,
    MemoryUsage, Payload, Placement, Via,
};
use ep_runtime::ir::Transport;
use ep_runtime::plan::Arch;
use pyo3::prelude::*;

use crate::arguments::{CallTuple, RowsTuple, call, named, rows};
use crate::dlpack::Looks;
use crate::errors::{Failure, launched, released};
use crate::group::{Group, raw_stream};
use crate::offered::{Offered, fill};
use crate::results::{Handle, Received};
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

/// Sums of rows, and those of weights in a buffer that moves any.
type SumsTuple<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Address and strides of rows that are not there.
const NOWHERE: RowsTuple = (0, 0, 1);

/// The types of a payload's values and of its scales.
pub(crate) fn elements_of(payload: Payload) -> (Element, Option<Element>) {
    match payload {
        Payload::Bf16 => (Element::Bf16, None),
        Payload::Fp8 => (Element::Fp8, Some(Element::F32)),
        Payload::Fp8Packed => (Element::Fp8, Some(Element::U8)),
    }
}

fn input((tokens, tokens_from, x, scale, topk_idx, topk_weights): InputTuple) -> DispatchInput {
    let (x, scale) = (rows(x), rows(scale));
    DispatchInput { tokens, tokens_from, x, scale, topk_idx, topk_weights }
}

/// Dispatch and combine for one shape.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Buffer {
    pub(crate) inner: buffer::Buffer,
    pub(crate) home: Home,
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
        self.launched(py, || {
            let (handle, received) = self.inner.dispatch(rank, &input(sent), &call(how)?)?;
            let handle = Handle { inner: Arc::new(handle), home: self.home.clone() };
            Ok((handle, Received { inner: Arc::new(received), home: self.home.clone() }))
        })
    }

    /// Dispatches torch tensors: rows, scales, experts and weights. Returns None if one of them has the wrong type, shape
    /// or device.
    fn dispatch_tensors(
        &self,
        py: Python<'_>,
        looks: &Looks,
        place: (usize, Option<i32>),
        tensors: [Option<Bound<'_, PyAny>>; 4],
        how: CallTuple,
    ) -> PyResult<Option<(Handle, Received)>> {
        let found = self.look(looks, &tensors, place.1);
        found.map(|sent| self.dispatch(py, place.0, sent, how)).transpose()
    }

    fn cached_dispatch(
        &self,
        py: Python<'_>,
        handle: &Handle,
        sent: InputTuple,
        how: CallTuple,
    ) -> PyResult<Received> {
        self.launched(py, || {
            let inner = self.inner.cached_dispatch(&handle.inner, &input(sent), &call(how)?)?;
            Ok(Received { inner: Arc::new(inner), home: self.home.clone() })
        })
    }

    /// A combine input in the window, for a call on a stream.
    fn offer(&self, py: Python<'_>, rank: usize, stream: u64) -> PyResult<Offered> {
        self.launched(py, || {
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
        self.launched(py, || {
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

    /// Combines torch tensors of rows and weights, which it copies to a combine input. The results are allocated like
    /// `likes`. Returns None if a tensor has the wrong type, shape or device, or too few rows.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn combine_tensors<'py>(
        &self,
        py: Python<'py>,
        looks: &Looks,
        device: Option<i32>,
        handle: &Handle,
        rows: &Bound<'py, PyAny>,
        weights: Option<&Bound<'py, PyAny>>,
        likes: SumsTuple<'py>,
        how: CallTuple,
    ) -> PyResult<Option<SumsTuple<'py>>> {
        let options = &self.home.options;
        let found = looks.rows_of(rows, Element::Bf16, options.hidden as i64, device);
        let Some((count, x)) = found else { return Ok(None) };
        let factors = match weights {
            None => NOWHERE,
            Some(weights) => {
                let found = looks.rows_of(weights, Element::F32, options.topk as i64, device);
                match found.filter(|(more, _)| *more == count) {
                    Some((_, at)) => at,
                    None => return Ok(None),
                }
            }
        };
        let arrived = launched(py, &self.home.group, || Ok(handle.inner.arriving()?))?;
        if arrived.is_some_and(|arrived| (count as usize) < arrived) {
            return Ok(None);
        }
        let Some((combined, combined_at)) = looks.made_like(&likes.0)? else { return Ok(None) };
        let (mut weighed, mut weighed_at) = (None, 0);
        if let Some(like) = &likes.1 {
            let Some((tensor, at)) = looks.made_like(like)? else { return Ok(None) };
            (weighed, weighed_at) = (Some(tensor), at);
        }
        let (rank, stream) = (handle.inner.rank(), raw_stream(how.0));
        self.launched(py, || {
            let offered = self.inner.offer_on(rank, stream)?;
            fill(&offered, &self.home, rank, (count as u64, x, factors), stream)?;
            let output = CombineOutput { combined: combined_at, combined_weights: weighed_at };
            let input = CombineInput::Offered(&offered);
            Ok(self.inner.combine(&handle.inner, input, &[], &output, &call(how)?)?)
        })?;
        Ok(Some((combined, weighed)))
    }
}

impl Buffer {
    /// Runs `work`, which launches; if outputs hold fewer rows than may come, it waits for counts.
    fn launched<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        match self.inner.holds_worst_case() {
            true => launched(py, &self.home.group, work),
            false => released(py, work),
        }
    }

    /// Finds the addresses of rows, scales, experts and weights; none if a tensor has the wrong type, shape or device.
    fn look(
        &self,
        looks: &Looks,
        [x, scale, topk_idx, topk_weights]: &[Option<Bound<'_, PyAny>>; 4],
        device: Option<i32>,
    ) -> Option<InputTuple> {
        let options = &self.home.options;
        let (values, scales) = elements_of(options.payload);
        let (tokens, x) = looks.rows_of(x.as_ref()?, values, options.hidden as i64, device)?;
        let factors = match (scale, scales) {
            (None, None) => NOWHERE,
            (Some(scale), Some(element)) => {
                let columns = options.payload.scales(options.hidden) as i64;
                let (rows, at) = looks.rows_of(scale, element, columns, device)?;
                (rows == tokens).then_some(at)?
            }
            _ => return None,
        };
        let entries = [tokens as u64, options.topk as u64];
        let dense = |tensor: &Option<Bound<'_, PyAny>>, element| match tensor {
            None => Some(0),
            Some(tensor) => looks.dense_of((tensor, element, entries), device),
        };
        let (ids, weights) = (dense(topk_idx, Element::I64)?, dense(topk_weights, Element::F32)?);
        (topk_weights.is_none() || options.weights).then_some((
            tokens as usize,
            0,
            x,
            factors,
            ids,
            weights,
        ))
    }
}

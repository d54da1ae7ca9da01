//! Low latency: calls of few tokens whose two phases are launched apart. All memory is the caller's.

use ep_runtime::AnyPipeline;
use ep_runtime::args::Rows;
use ep_runtime::buffer::Placement;
use ep_runtime::calls::{CallKernel, Machine};
use ep_runtime::error::CallError;
use ep_runtime::ir::Transport;
use ep_runtime::pipelines::{LowLatencyCombine, LowLatencyDispatch};
use ep_runtime::pipelines::{low_latency_combine as combine, low_latency_dispatch as dispatch};
use ep_runtime::plan::Arch;
use ep_runtime::tensor::DeviceTensor;
use pyo3::prelude::*;

use crate::arguments::{CallTuple, RowsTuple, call, named, rows};
use crate::dlpack::Looks;
use crate::errors::{Failure, launched, released};
use crate::group::Group;
use crate::tensor::Element;

/// Bytes of a line of memory.
pub(crate) const LINE: u64 = 128;

/// What the package calls a table, the type of its elements, the first of them, its extents, and its strides unless it is
/// dense.
pub(crate) type NamedTable = (&'static str, &'static str, u64, Vec<u64>, Option<Vec<i64>>);

/// A kernel's numbers, and the experts of each local rank on its device.
pub(crate) struct Shape {
    pub(crate) group: ep_runtime::group::Group,
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) topk: usize,
    pub(crate) local_experts: usize,
    expert_begin: Vec<DeviceTensor<i32, 1>>,
}

impl Shape {
    pub(crate) fn new(
        group: &Group,
        [tokens, hidden, topk, experts]: [usize; 4],
        placement: Option<Vec<i32>>,
    ) -> Result<Shape, Failure> {
        let group = group.inner.clone();
        let ranks = group.ranks();
        let local_experts = experts.div_ceil(ranks.max(1));
        let fits = |it: &Placement| {
            let begin = it.begin();
            let most = begin.windows(2).all(|ends| (ends[1] - ends[0]) as usize <= local_experts);
            most && begin.len() == ranks + 1 && begin.last() == Some(&(experts as i32))
        };
        let placement =
            placement.map_or_else(|| Some(Placement::even(experts, ranks)), Placement::new);
        let placement = placement.filter(fits).ok_or_else(|| {
            Failure::mismatch(format!(
                "a placement of {experts} experts on {ranks} ranks needs {} ascending numbers from 0 to \
                 {experts}, {local_experts} apart at most",
                ranks + 1
            ))
        })?;
        let on_each = |rank| DeviceTensor::from_slice(&group, rank, [ranks + 1], placement.begin());
        let expert_begin = group.local().map(on_each).collect::<Result<_, _>>()?;
        Ok(Shape { group, tokens, hidden, topk, local_experts, expert_begin })
    }

    pub(crate) fn expert_begin(&self, rank: usize) -> Result<DeviceTensor<i32, 1>, Failure> {
        Ok(self.expert_begin[self.group.local_index(rank)?].clone())
    }

    /// A call whose first phase was launched.
    fn pending(&self, sent: Sent) -> Pending {
        Pending { sent, group: self.group.clone() }
    }

    /// Rows that a local expert may get.
    pub(crate) fn rows(&self) -> u64 {
        (self.group.ranks() * self.tokens) as u64
    }

    /// Where the tables begin in which a dispatch says what its rows are, in words, and where they end.
    fn table_ends(&self) -> [u64; 5] {
        let (experts, ranks) = (self.local_experts as u64, self.group.ranks() as u64);
        let src_info = experts;
        let range_first = src_info + experts * self.rows();
        let range_count = range_first + experts * ranks;
        [0, src_info, range_first, range_count, range_count + experts * ranks]
    }

    /// All that a dispatch leaves beside its rows, in memory of its own: scales, if the payload has any, and these tables.
    pub(crate) fn named_tables(&self, payload: dispatch::Payload) -> Vec<NamedTable> {
        let (experts, ranks) = (self.local_experts as u64, self.group.ranks() as u64);
        let [counts, src_info, range_first, range_count, _] = self.table_ends();
        let first = self.scale_bytes(payload) / 4;
        let words =
            |name, begin, extents| (name, Element::I32.name(), first + begin, extents, None);
        let mut named = vec![
            words("counts", counts, vec![experts]),
            words("src_info", src_info, vec![experts, self.rows()]),
            words("range_first", range_first, vec![experts, ranks]),
            words("range_count", range_count, vec![experts, ranks]),
        ];
        if let Some(element) = scales_of(payload) {
            let scales: DeviceTensor<f32, 3> = self.scales(payload, 0);
            let (extents, strides) = (scales.extents().to_vec(), scales.strides().to_vec());
            named.push(("scale", element.name(), 0, extents, Some(strides)));
        }
        named
    }

    /// Bytes of the scales, ahead of the tables, which begin a line.
    pub(crate) fn scale_bytes(&self, payload: dispatch::Payload) -> u64 {
        let bytes = scales_of(payload).map_or(0, Element::bytes) as u64;
        let scales: DeviceTensor<f32, 3> = self.scales(payload, 0);
        (bytes * scales.extents().iter().product::<u64>()).next_multiple_of(LINE)
    }

    /// Scales of packed rows: those of an expert column by column, as products of FP8 read them; bytes lie with their row.
    fn scales<E>(&self, payload: dispatch::Payload, address: u64) -> DeviceTensor<E, 3> {
        let by_row = self.packed(address, self.hidden.div_ceil(128));
        if payload != dispatch::Payload::Fp8 {
            return by_row;
        }
        let ([_, rows, _], [list, ..]) = (by_row.extents(), by_row.strides());
        // SAFETY: the same elements, in another order.
        unsafe { DeviceTensor::from_raw(address, by_row.extents(), [list, 1, rows as i64]) }
    }

    /// Address of the counts, the other tables, and where these end, if they begin at `at`.
    pub(crate) fn tables(&self, at: u64) -> (u64, dispatch::Handle, u64) {
        let (experts, ranks) = (self.local_experts as u64, self.group.ranks() as u64);
        let [counts, src_info, range_first, range_count, end] =
            self.table_ends().map(|words| at + 4 * words);
        let handle = dispatch::Handle {
            src_info: dense(src_info, [experts, self.rows()]),
            range_first: dense(range_first, [experts, ranks]),
            range_count: dense(range_count, [experts, ranks]),
        };
        (counts, handle, end)
    }

    /// What a dispatch reads.
    pub(crate) fn inputs(
        &self,
        rank: usize,
        tokens: u64,
        x: RowsTuple,
        topk_idx: u64,
    ) -> Result<dispatch::Inputs, Failure> {
        Ok(dispatch::Inputs {
            x: apart(rows(x), [tokens, self.hidden as u64]),
            topk_idx: dense(topk_idx, [tokens, self.topk as u64]),
            expert_begin: self.expert_begin(rank)?,
        })
    }

    /// Makes what a dispatch leaves like `likes`, and sends what it reads of tensors with places for rows and for all
    /// else; no answer if one of them is of another kind or place.
    pub(crate) fn send_tensors<'py, T>(
        &self,
        looks: &Looks,
        device: Option<i32>,
        x: &Bound<'py, PyAny>,
        topk_idx: &Bound<'py, PyAny>,
        likes: &[Bound<'py, PyAny>; 2],
        send: impl FnOnce(InputTuple, [u64; 2]) -> PyResult<T>,
    ) -> PyResult<Option<SentTuple<'py, T>>> {
        let Some(inputs) = self.look(looks, x, topk_idx, device) else { return Ok(None) };
        let Some((left, left_at)) = looks.made_like(&likes[0])? else { return Ok(None) };
        let Some((packed, packed_at)) = looks.made_like(&likes[1])? else { return Ok(None) };
        let sent = send(inputs, [packed_at, left_at])?;
        Ok(Some((inputs.0, inputs.2, left_at, [left, packed], sent)))
    }

    /// What a dispatch reads of tensors; none if one of them is of another kind or place.
    fn look(
        &self,
        looks: &Looks,
        x: &Bound<'_, PyAny>,
        topk_idx: &Bound<'_, PyAny>,
        device: Option<i32>,
    ) -> Option<InputTuple> {
        let (tokens, x) = looks.rows_of(x, Element::Bf16, self.hidden as i64, device)?;
        let tokens = tokens as u64;
        let ids = looks.dense_of((topk_idx, Element::I64, [tokens, self.topk as u64]), device)?;
        Some((tokens, x, ids))
    }

    /// What a combine reads and writes as tensors: rows, weights and sums.
    pub(crate) fn look_back(
        &self,
        looks: &Looks,
        [x, topk_weights, combined]: [&Bound<'_, PyAny>; 3],
        tokens: u64,
        device: Option<i32>,
    ) -> Option<[u64; 3]> {
        let (experts, hidden) = (self.local_experts as u64, self.hidden as u64);
        let x = looks.dense_of((x, Element::Bf16, [experts, self.rows(), hidden]), device)?;
        let weights = (topk_weights, Element::F32, [tokens, self.topk as u64]);
        let combined = (combined, Element::Bf16, [tokens, hidden]);
        Some([x, looks.dense_of(weights, device)?, looks.dense_of(combined, device)?])
    }

    /// Where it leaves rows, scales and counts, and what it adds to.
    pub(crate) fn outputs(
        &self,
        payload: dispatch::Payload,
        [packed, scale, counts]: [u64; 3],
        [statistics, wait_ns, arrived_rows, arrived_parts]: AddedTuple,
    ) -> dispatch::Outputs {
        let experts = [self.local_experts as u64];
        dispatch::Outputs {
            packed_x: payload_tensor(self, payload, packed, scale),
            packed_count: dense(counts, experts),
            statistics: given(statistics, experts),
            wait_ns: given(wait_ns, [self.group.ranks() as u64]),
            arrived_rows: given(arrived_rows, self.tiles()),
            arrived_parts: given(arrived_parts, experts),
        }
    }

    /// Extents of words of which each is one for so many rows of an expert.
    fn tiles(&self) -> [u64; 2] {
        [self.local_experts as u64, self.rows().div_ceil(64)]
    }

    /// A row for each packed one.
    pub(crate) fn packed<E>(&self, address: u64, columns: usize) -> DeviceTensor<E, 3> {
        dense(address, [self.local_experts as u64, self.rows(), columns as u64])
    }
}

/// Statistics, waits, and words for each tile and each expert: what a dispatch adds to, unless it is at address 0.
pub(crate) type AddedTuple = [u64; 4];

/// Tokens of a dispatch, its rows, and where its `topk_idx` lies.
pub(crate) type InputTuple = (u64, RowsTuple, u64);

/// Tokens of a dispatch, where its `topk_idx` and what it leaves beside its rows lie, that and its rows, and what goes on.
pub(crate) type SentTuple<'py, T> = (u64, u64, u64, [Bound<'py, PyAny>; 2], T);

/// The words of experts and of tiles that a combine waits for, and what they come to.
type WordsTuple = (u64, u64, i32);

/// A tensor of the caller, unless there is none at address 0.
fn given<E, const RANK: usize>(
    address: u64,
    extents: [u64; RANK],
) -> Option<DeviceTensor<E, RANK>> {
    (address != 0).then(|| dense(address, extents))
}

/// A tensor of the caller whose elements lie side by side.
pub(crate) fn dense<E, const RANK: usize>(
    address: u64,
    extents: [u64; RANK],
) -> DeviceTensor<E, RANK> {
    let mut strides = [1; RANK];
    for axis in (1..RANK).rev() {
        strides[axis - 1] = strides[axis] * extents[axis] as i64;
    }
    // SAFETY: the package passes arrays of the rank, and keeps them until the calls have run.
    unsafe { DeviceTensor::from_raw(address, extents, strides) }
}

/// Rows of the caller, which may lie apart.
fn apart<E>(of: Rows, extents: [u64; 2]) -> DeviceTensor<E, 2> {
    // SAFETY: as above.
    unsafe { DeviceTensor::from_raw(of.address, extents, [of.row_stride, of.column_stride]) }
}

/// The payload that is called so.
pub(crate) fn payload_named(name: &str) -> Result<dispatch::Payload, Failure> {
    use dispatch::Payload::{Bf16, Fp8, Fp8Packed};
    let all = [("bf16", Bf16), ("fp8", Fp8), ("fp8-packed", Fp8Packed)];
    let found = all.iter().find(|(known, _)| *known == name).map(|(_, arm)| *arm);
    named("payload", name, found, &all.map(|(name, _)| name))
}

/// The type of its scales.
fn scales_of(payload: dispatch::Payload) -> Option<Element> {
    match payload {
        dispatch::Payload::Bf16 => None,
        dispatch::Payload::Fp8 => Some(Element::F32),
        dispatch::Payload::Fp8Packed => Some(Element::U8),
    }
}

/// Packed rows, and their scales if they have any.
fn payload_tensor(
    shape: &Shape,
    payload: dispatch::Payload,
    x: u64,
    scale: u64,
) -> dispatch::PayloadTensor<3> {
    match payload {
        dispatch::Payload::Bf16 => {
            dispatch::PayloadTensor::Bf16 { x: shape.packed(x, shape.hidden) }
        }
        dispatch::Payload::Fp8 => {
            let (x, scale) = (shape.packed(x, shape.hidden), shape.scales(payload, scale));
            dispatch::PayloadTensor::Fp8 { x, scale }
        }
        dispatch::Payload::Fp8Packed => {
            let (x, scale) = (shape.packed(x, shape.hidden), shape.scales(payload, scale));
            dispatch::PayloadTensor::Fp8Packed { x, scale }
        }
    }
}

/// How rows come back.
fn wire_named(wire: &str) -> Result<combine::Wire, Failure> {
    let all = [("bf16", combine::Wire::Bf16), ("logfmt", combine::Wire::Logfmt)];
    let found = all.iter().find(|(name, _)| *name == wire).map(|(_, arm)| *arm);
    named("wire", wire, found, &all.map(|(name, _)| name))
}

/// A machine that need not be there.
pub(crate) fn machine(ranks: usize, nodes: usize) -> Machine {
    let carrier = (nodes > 1).then_some(Transport::Rdma);
    Machine { ranks, carrier, arch: Arch::Sm90a, leaves_out_absent: false }
}

/// Sends a row for each expert of a token, and packs what arrives by expert.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct LowLatencyDispatcher {
    kernel: dispatch::Kernel,
    payload: dispatch::Payload,
    shape: Shape,
}

#[pymethods]
impl LowLatencyDispatcher {
    /// Emits, compiles and loads the kernels and maps their window, on all ranks together.
    #[new]
    fn new(
        py: Python<'_>,
        group: &Group,
        numbers: [usize; 4],
        payload: &str,
        placement: Option<Vec<i32>>,
    ) -> PyResult<LowLatencyDispatcher> {
        released(py, || {
            let payload = payload_named(payload)?;
            let [tokens, hidden, topk, experts] = numbers;
            let (nodes, max_tokens) = (group.inner.nodes(), tokens);
            let own = dispatch::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
            let options = dispatch::Options { payload, ..Default::default() };
            let shape = Shape::new(group, numbers, placement)?;
            let kernel = LowLatencyDispatch::prepare(&group.inner, own, options)?;
            Ok(LowLatencyDispatcher { kernel, payload, shape })
        })
    }

    /// Most experts of any rank.
    #[getter]
    fn local_experts(&self) -> usize {
        self.shape.local_experts
    }

    /// Bytes of device memory on each rank.
    #[getter]
    fn device_bytes(&self) -> u64 {
        self.kernel.core.device_bytes()
    }

    /// The bytes of kernels that are not made, on each of `ranks` ranks of `nodes` nodes: of device memory, and of rows
    /// that pass through a network.
    #[staticmethod]
    fn bytes_of(
        py: Python<'_>,
        ranks: usize,
        nodes: usize,
        numbers: [usize; 4],
        payload: &str,
    ) -> PyResult<(u64, u64)> {
        released(py, || {
            let [tokens, hidden, topk, experts] = numbers;
            let own = dispatch::Shape { nodes, hidden, topk, experts, max_tokens: tokens, tokens };
            let options =
                dispatch::Options { payload: payload_named(payload)?, ..Default::default() };
            let entry = AnyPipeline::of::<LowLatencyDispatch>();
            let bytes = dispatch::Kernel::chosen(&own, &options, |chosen| {
                let machine = machine(ranks, nodes);
                let device = CallKernel::bytes(&machine, &entry, chosen)?;
                Ok::<_, CallError>((device, CallKernel::network_bytes(&machine, &entry, chosen)?))
            })?;
            Ok(bytes)
        })
    }

    /// What a call leaves beside its rows.
    #[getter]
    fn tables(&self) -> Vec<NamedTable> {
        self.shape.named_tables(self.payload)
    }

    /// What a word of an expert comes to when all of its rows have.
    #[getter]
    fn parts(&self) -> usize {
        self.shape.group.ranks() * self.kernel.core.plan().numbers["shares"] as usize
    }

    /// Launches the call; of one that goes on later, the first phase. The second one packs the rows.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        x: RowsTuple,
        topk_idx: u64,
        packed: u64,
        left: u64,
        added: AddedTuple,
        later: bool,
        how: CallTuple,
    ) -> PyResult<Option<Pending>> {
        let inputs = (tokens, x, topk_idx);
        launched(py, &self.shape.group, || {
            self.put(rank, inputs, [packed, left], added, later, how)
        })
    }

    /// Launches the call for torch tensors; if `later`, only the first phase. Allocates the outputs like `likes`: one
    /// tensor for scales, counts and tables, then one for the rows. Returns the number of tokens, the addresses of
    /// `topk_idx` and of the first output, the outputs, and the call between its phases if `later`. Returns None if a
    /// tensor has the wrong class, type, shape or device.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send_tensors<'py>(
        &self,
        py: Python<'py>,
        looks: &Looks,
        place: (usize, Option<i32>),
        x: &Bound<'py, PyAny>,
        topk_idx: &Bound<'py, PyAny>,
        likes: [Bound<'py, PyAny>; 2],
        later: bool,
        how: CallTuple,
    ) -> PyResult<Option<SentTuple<'py, Option<Pending>>>> {
        let (rank, device) = place;
        self.shape.send_tensors(looks, device, x, topk_idx, &likes, |inputs, places| {
            launched(py, &self.shape.group, || self.put(rank, inputs, places, [0; 4], later, how))
        })
    }
}

impl LowLatencyDispatcher {
    /// Launches a call of so many tokens, with rows and experts at these addresses. Rows and all else are left at these
    /// places.
    fn put(
        &self,
        rank: usize,
        (tokens, x, topk_idx): InputTuple,
        [packed, left]: [u64; 2],
        added: AddedTuple,
        later: bool,
        how: CallTuple,
    ) -> Result<Option<Pending>, Failure> {
        let shape = &self.shape;
        let inputs = shape.inputs(rank, tokens, x, topk_idx)?;
        let (counts, into, _) = shape.tables(left + shape.scale_bytes(self.payload));
        let outputs = shape.outputs(self.payload, [packed, left, counts], added);
        let args = dispatch::Args::default();
        let how = call(how)?;
        if !later {
            self.kernel.launch_into(rank, &how, &inputs, &outputs, &args, &into)?;
            return Ok(None);
        }
        let sent = self.kernel.send_into(rank, &how, &inputs, &outputs, &args, &into)?;
        Ok(Some(shape.pending(Sent::Dispatch(sent))))
    }
}

/// Sends the rows of the experts back, and adds them up with weights.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct LowLatencyCombiner {
    kernel: combine::Kernel,
    shape: Shape,
}

#[pymethods]
impl LowLatencyCombiner {
    /// Emits, compiles and loads the kernels and maps their window, on all ranks together.
    #[new]
    fn new(
        py: Python<'_>,
        group: &Group,
        numbers: [usize; 4],
        wire: &str,
        placement: Option<Vec<i32>>,
    ) -> PyResult<LowLatencyCombiner> {
        released(py, || {
            let wire = wire_named(wire)?;
            let [tokens, hidden, topk, experts] = numbers;
            let (nodes, max_tokens) = (group.inner.nodes(), tokens);
            let own = combine::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
            let shape = Shape::new(group, numbers, placement)?;
            let options = combine::Options { wire, ..Default::default() };
            let kernel = LowLatencyCombine::prepare(&group.inner, own, options)?;
            Ok(LowLatencyCombiner { kernel, shape })
        })
    }

    /// Bytes of device memory on each rank.
    #[getter]
    fn device_bytes(&self) -> u64 {
        self.kernel.core.device_bytes()
    }

    /// The bytes of kernels that are not made, on each of `ranks` ranks of `nodes` nodes: of device memory, and of rows
    /// that pass through a network.
    #[staticmethod]
    fn bytes_of(
        py: Python<'_>,
        ranks: usize,
        nodes: usize,
        numbers: [usize; 4],
        wire: &str,
    ) -> PyResult<(u64, u64)> {
        released(py, || {
            let [tokens, hidden, topk, experts] = numbers;
            let own = combine::Shape { nodes, hidden, topk, experts, max_tokens: tokens, tokens };
            let options = combine::Options { wire: wire_named(wire)?, ..Default::default() };
            let entry = AnyPipeline::of::<LowLatencyCombine>();
            let bytes = combine::Kernel::chosen(&own, &options, |chosen| {
                let machine = machine(ranks, nodes);
                let device = CallKernel::bytes(&machine, &entry, chosen)?;
                Ok::<_, CallError>((device, CallKernel::network_bytes(&machine, &entry, chosen)?))
            })?;
            Ok(bytes)
        })
    }

    /// Launches the call; of one that goes on later, the first phase. The second one leaves the sums.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        x: u64,
        topk_idx: u64,
        topk_weights: u64,
        combined: u64,
        tables: u64,
        waits: u64,
        words: WordsTuple,
        later: bool,
        how: CallTuple,
    ) -> PyResult<Option<Pending>> {
        let inputs = [x, topk_idx, topk_weights];
        let places = [combined, tables, waits];
        launched(py, &self.shape.group, || {
            self.put(rank, tokens, inputs, places, words, later, how)
        })
    }

    /// Launches the call for torch tensors; if `later`, only the first phase. `of` has the number of tokens and the
    /// addresses of `topk_idx` and of the tables of the dispatch. Returns the call between its phases if `later`.
    /// Returns None if a tensor has the wrong class, type, shape or device.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send_tensors(
        &self,
        py: Python<'_>,
        looks: &Looks,
        place: (usize, Option<i32>),
        x: &Bound<'_, PyAny>,
        topk_weights: &Bound<'_, PyAny>,
        combined: &Bound<'_, PyAny>,
        of: (u64, u64, u64),
        later: bool,
        how: CallTuple,
    ) -> PyResult<Option<(Option<Pending>,)>> {
        let ((rank, device), (tokens, topk_idx, tables)) = (place, of);
        let tensors = [x, topk_weights, combined];
        let found = self.shape.look_back(looks, tensors, tokens, device);
        let Some([x, weights, combined]) = found else { return Ok(None) };
        let (inputs, places) = ([x, topk_idx, weights], [combined, tables, 0]);
        let sent = launched(py, &self.shape.group, || {
            self.put(rank, tokens, inputs, places, (0, 0, 1), later, how)
        })?;
        Ok(Some((sent,)))
    }
}

impl LowLatencyCombiner {
    /// Launches a call of so many tokens, with rows, experts and weights at these addresses. Sums are left at the first of
    /// the places, of which the second one has the tables of the dispatch, and the third one waits that are added to.
    #[expect(clippy::too_many_arguments, reason = "addresses of one kind stand together already")]
    fn put(
        &self,
        rank: usize,
        tokens: u64,
        [x, topk_idx, topk_weights]: [u64; 3],
        [combined, tables, waits]: [u64; 3],
        words: WordsTuple,
        later: bool,
        how: CallTuple,
    ) -> Result<Option<Pending>, Failure> {
        let shape = &self.shape;
        let topk = shape.topk as u64;
        let inputs = combine::Inputs {
            x: shape.packed(x, shape.hidden),
            topk_idx: dense(topk_idx, [tokens, topk]),
            topk_weights: dense(topk_weights, [tokens, topk]),
            expert_begin: shape.expert_begin(rank)?,
            expert_done: given(words.0, [shape.local_experts as u64]),
            tile_done: given(words.1, shape.tiles()),
        };
        let outputs = combine::Outputs {
            combined: dense(combined, [tokens, shape.hidden as u64]),
            wait_ns: given(waits, [shape.group.ranks() as u64]),
        };
        let args = combine::Args { done_at: words.2, ..Default::default() };
        let (_, from, _) = shape.tables(tables);
        let how = call(how)?;
        if !later {
            self.kernel.launch(rank, &how, &inputs, &outputs, &from, &args)?;
            return Ok(None);
        }
        let sent = self.kernel.send(rank, &how, &inputs, &outputs, &from, &args)?;
        Ok(Some(shape.pending(Sent::Combine(sent))))
    }
}

enum Sent {
    Dispatch(dispatch::Pending),
    Combine(combine::Pending),
}

/// A call between its phases.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Pending {
    sent: Sent,
    group: ep_runtime::group::Group,
}

#[pymethods]
impl Pending {
    /// Launches the second phase, on any stream.
    fn recv(&self, py: Python<'_>, how: CallTuple) -> PyResult<()> {
        launched(py, &self.group, || {
            let how = call(how)?;
            match &self.sent {
                Sent::Dispatch(sent) => sent.recv(&how).map(drop)?,
                Sent::Combine(sent) => sent.recv(&how).map(drop)?,
            }
            Ok(())
        })
    }
}

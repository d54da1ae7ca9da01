//! Low latency with rows that travel once for each rank. All memory of results is the caller's.

use ep_runtime::per_rank::{self, Dispatched, PerRank, Weights};
use ep_runtime::pipelines::{low_latency_dispatch as dispatch, packed_dispatch};
use pyo3::prelude::*;

use crate::arguments::{CallTuple, RowsTuple, call};
use crate::dlpack::Looks;
use crate::errors::{Failure, launched, released};
use crate::group::Group;
use crate::low_latency::{
    InputTuple, LINE, NamedTable, SentTuple, Shape, dense, machine, payload_named,
};
use crate::tensor::Element;

/// Sends a row for each rank of a token, and brings back a sum of each.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct PerRankKernels {
    kernels: PerRank,
    payload: dispatch::Payload,
    shape: Shape,
    experts: u64,
    weights_ahead: bool,
}

/// Which call passes the weights.
fn weights_of(ahead: bool) -> Weights {
    if ahead { Weights::AtDispatch } else { Weights::AtCombine }
}

/// A dispatch that has been launched.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct PerRankSent(Dispatched);

#[pymethods]
impl PerRankKernels {
    /// Emits, compiles and loads the kernels and maps their windows, on all ranks together.
    #[new]
    fn new(
        py: Python<'_>,
        group: &Group,
        numbers: [usize; 4],
        payload: &str,
        placement: Option<Vec<i32>>,
        weights_ahead: bool,
    ) -> PyResult<PerRankKernels> {
        released(py, || {
            let payload = payload_named(payload)?;
            let [max_tokens, hidden, topk, experts] = numbers;
            let shape = Shape::new(group, numbers, placement)?;
            let own = per_rank::Shape { hidden, topk, experts, max_tokens };
            let kernels = PerRank::prepare(&group.inner, own, payload, weights_of(weights_ahead))?;
            let experts = experts as u64;
            Ok(PerRankKernels { kernels, payload, shape, experts, weights_ahead })
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
        self.kernels.device_bytes()
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
        weights_ahead: bool,
    ) -> PyResult<(u64, u64)> {
        released(py, || {
            let [max_tokens, hidden, topk, experts] = numbers;
            let own = per_rank::Shape { hidden, topk, experts, max_tokens };
            let payload = payload_named(payload)?;
            let (machine, weights) = (machine(ranks, nodes), weights_of(weights_ahead));
            Ok(PerRank::bytes(&machine, nodes, own, payload, weights)?)
        })
    }

    /// What a dispatch leaves beside its rows, as that of `LowLatencyDispatcher`, and behind it what its combine alone
    /// reads.
    #[getter]
    fn tables(&self) -> Vec<NamedTable> {
        let mut named = self.shape.named_tables(self.payload);
        let first = self.shape.scale_bytes(self.payload);
        let (_, _, begin) = self.shape.tables(first);
        // The memory may begin within a line.
        let bytes = self.all_tables(first).2 - begin + LINE;
        named.push(("of_combine", Element::I32.name(), begin / 4, vec![bytes.div_ceil(4)], None));
        named
    }

    /// Launches a dispatch, with weights if they come ahead.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        x: RowsTuple,
        topk_idx: u64,
        topk_weights: u64,
        packed: u64,
        left: u64,
        statistics: u64,
        how: CallTuple,
    ) -> PyResult<PerRankSent> {
        let (inputs, places) = ((tokens, x, topk_idx), [packed, left]);
        launched(py, &self.shape.group, || {
            self.put(rank, inputs, topk_weights, places, statistics, how)
        })
    }

    /// Launches a dispatch of torch tensors, without weights. Allocates the outputs like `likes`: one tensor for
    /// scales, counts and tables, then one for the rows. Returns the number of tokens, the addresses of `topk_idx` and
    /// of the first output, the outputs, and what a combine needs of the dispatch. Returns None if a tensor has the
    /// wrong class, type, shape or device.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send_tensors<'py>(
        &self,
        py: Python<'py>,
        looks: &Looks,
        place: (usize, Option<i32>),
        x: &Bound<'py, PyAny>,
        topk_idx: &Bound<'py, PyAny>,
        likes: [Bound<'py, PyAny>; 2],
        how: CallTuple,
    ) -> PyResult<Option<SentTuple<'py, PerRankSent>>> {
        let (rank, device) = place;
        self.shape.send_tensors(looks, device, x, topk_idx, &likes, |inputs, places| {
            launched(py, &self.shape.group, || self.put(rank, inputs, 0, places, 0, how))
        })
    }

    /// Launches a combine of tensors of torch, whose weights did not come ahead: whether they are of its kind and place.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send_back_tensors(
        &self,
        py: Python<'_>,
        looks: &Looks,
        device: Option<i32>,
        x: &Bound<'_, PyAny>,
        topk_weights: &Bound<'_, PyAny>,
        combined: &Bound<'_, PyAny>,
        of: (usize, u64),
        sent: &PerRankSent,
        how: CallTuple,
    ) -> PyResult<bool> {
        let ((rank, tokens), tensors) = (of, [x, topk_weights, combined]);
        let found = self.shape.look_back(looks, tensors, tokens, device);
        let Some([x, weights, combined]) = found else { return Ok(false) };
        self.send_back(py, rank, tokens, x, weights, combined, sent, how)?;
        Ok(true)
    }

    /// Launches a combine, with weights unless they came ahead.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send_back(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        x: u64,
        topk_weights: u64,
        combined: u64,
        sent: &PerRankSent,
        how: CallTuple,
    ) -> PyResult<()> {
        launched(py, &self.shape.group, || {
            let shape = &self.shape;
            let rows = shape.packed(x, shape.hidden);
            let extents = [tokens, shape.topk as u64];
            let weights = (!self.weights_ahead).then(|| dense(topk_weights, extents));
            let combined = dense(combined, [tokens, shape.hidden as u64]);
            let how = call(how)?;
            let weights = weights.as_ref();
            Ok(self.kernels.combine(rank, &how, &rows, weights, &sent.0, &combined)?)
        })
    }
}

impl PerRankKernels {
    /// Launches a dispatch of so many tokens, with rows, experts and weights at these addresses. Rows and all else are left
    /// at these places.
    fn put(
        &self,
        rank: usize,
        (tokens, x, topk_idx): InputTuple,
        topk_weights: u64,
        [packed, left]: [u64; 2],
        statistics: u64,
        how: CallTuple,
    ) -> Result<PerRankSent, Failure> {
        let shape = &self.shape;
        let inputs = shape.inputs(rank, tokens, x, topk_idx)?;
        let (counts, tables, _) = self.all_tables(left + shape.scale_bytes(self.payload));
        let outputs = shape.outputs(self.payload, [packed, left, counts], [statistics, 0, 0, 0]);
        let weights = self.weights_ahead.then(|| dense(topk_weights, [tokens, shape.topk as u64]));
        let (how, weights) = (call(how)?, weights.as_ref());
        let sent = self.kernels.dispatch(rank, &how, &inputs, weights, &outputs, &tables)?;
        Ok(PerRankSent(sent))
    }

    /// Address of the counts, the tables of a dispatch, and where these end, if they begin at `at`.
    fn all_tables(&self, at: u64) -> (u64, per_rank::Tables, u64) {
        let shape = &self.shape;
        let (local, ranks, topk) =
            (shape.local_experts as u64, shape.group.ranks() as u64, shape.topk as u64);
        let (tokens, most) = (shape.tokens as u64, shape.rows());
        let (counts, named, mut end) = shape.tables(at);
        let mut next = |words: u64| {
            let begin = end.next_multiple_of(LINE);
            end = begin + 4 * words;
            begin
        };
        let mut tables = packed_dispatch::Handle {
            src_info: named.src_info,
            range_first: named.range_first,
            range_count: named.range_count,
            tokens_per_rank: dense(next(ranks), [ranks]),
            tokens_per_expert: dense(next(self.experts), [self.experts]),
            packed_row: dense(next(most * topk), [most, topk]),
            packed_weight: dense(next(local * most), [local * most]),
            ..Default::default()
        };
        match shape.group.nodes() {
            1 => {
                tables.rank_prefix = dense(next((ranks + 1) * ranks), [ranks + 1, ranks]);
                tables.recv_src = dense(next(most), [most]);
                tables.send_row = dense(next(tokens * ranks), [tokens, ranks]);
                tables.send_turn = dense(next(tokens * topk), [tokens, topk]);
            }
            _ => {
                tables.came_first = dense(next(ranks + 1), [ranks + 1]);
                tables.send_place = dense(next(tokens * ranks), [tokens, ranks]);
                tables.places = dense(next(tokens * topk), [tokens, topk]);
                tables.turns = dense(next(tokens * topk), [tokens, topk]);
            }
        }
        (counts, tables, end)
    }
}

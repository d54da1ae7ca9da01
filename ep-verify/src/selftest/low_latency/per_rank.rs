//! Rows that travel once for each rank, and sums that come back once from each.

use std::sync::{Arc, Mutex, PoisonError};

use ep_runtime::buffer::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::per_rank::{Dispatched, PerRank, Shape, Tables, Weights};
use ep_runtime::pipelines::low_latency_dispatch::Outputs;
use ep_runtime::tensor::{Bf16, DeviceTensor};

use super::{Calls, Given, Left, LowLatencyCase, Way};

/// The kernels of a case.
pub(super) fn prepare(group: &Group, case: &LowLatencyCase) -> Result<Arc<PerRank>, CallError> {
    let LowLatencyCase { tokens, hidden, topk, experts, payload, .. } = *case;
    let shape = Shape { hidden, topk, experts, max_tokens: tokens };
    let weights =
        if case.way == Way::PerRankLate { Weights::AtCombine } else { Weights::AtDispatch };
    PerRank::prepare(group, shape, payload, weights).map(Arc::new)
}

/// The calls of one rank.
pub(super) struct OfRank {
    kernels: Arc<PerRank>,
    rank: usize,
    given: Given,
    /// Whether weights come with the combine.
    is_late: bool,
    came: Outputs,
    tables: Tables,
    /// The last dispatch.
    sent: Mutex<Option<Dispatched>>,
    /// What the experts make of the packed rows.
    x: DeviceTensor<Bf16, 3>,
    combined: DeviceTensor<Bf16, 2>,
}

impl OfRank {
    /// The calls of a rank, which read what it is `given`.
    pub(super) fn new(
        kernels: &Arc<PerRank>,
        group: &Group,
        case: &LowLatencyCase,
        rank: usize,
        given: &Given,
    ) -> Result<OfRank, CallError> {
        let (local, rows) = case.packed(group.ranks());
        Ok(OfRank {
            kernels: Arc::clone(kernels),
            rank,
            given: given.clone(),
            is_late: case.way == Way::PerRankLate,
            came: kernels.outputs(rank)?,
            tables: kernels.tables(rank)?,
            sent: Mutex::default(),
            x: DeviceTensor::zeros(group, rank, [local, rows, case.hidden])?,
            combined: DeviceTensor::zeros(group, rank, [case.tokens, case.hidden])?,
        })
    }
}

impl Calls for OfRank {
    fn send_rows(&self, call: &CallOptions, tokens: usize, _apart: bool) -> Result<(), CallError> {
        let inputs = self.given.inputs(tokens);
        let weights = (!self.is_late).then(|| self.given.topk_weights.first(tokens));
        let (came, tables) = (&self.came, &self.tables);
        let sent =
            self.kernels.dispatch(self.rank, call, &inputs, weights.as_ref(), came, tables)?;
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
        Ok(())
    }

    fn send_back(&self, call: &CallOptions, tokens: usize, _apart: bool) -> Result<(), CallError> {
        let weights = self.is_late.then(|| self.given.topk_weights.first(tokens));
        let combined = self.combined.first(tokens);
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sent) = &*sent else {
            let what = "a combine belongs to a dispatch, and there was none".to_owned();
            return Err(CallError::Mismatch { what });
        };
        self.kernels.combine(self.rank, call, &self.x, weights.as_ref(), sent, &combined)
    }

    fn left(&self) -> Left {
        let Tables { src_info, range_first, range_count, .. } = &self.tables;
        let tables = [src_info, range_first, range_count];
        Left::of(&self.came, tables, &self.x, &self.combined)
    }

    #[cfg(test)]
    fn spoil_made(&self) {
        self.x.fill(0).unwrap();
    }
}

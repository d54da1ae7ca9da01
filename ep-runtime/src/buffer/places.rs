//! The memory that calls of a buffer take in turn, as the tensors of its pipelines: what one of them
//! leaves is what another one reads or writes again.

use super::far::FarTables;
use super::held::{HeldOffer, HeldOutput};
use super::kernels::{Combine, Kernels, NearKernels};
use super::options::BufferOptions;
use crate::args::Rows;
use crate::error::CallError;
use crate::group::Group;
use crate::memory::DeviceMemory;
use crate::pipelines::{decode_dispatch, layout, nvl_dispatch};
use crate::tensor::{Bf16, DeviceTensor, Element, TensorMemory};

/// The tables of a handle, for as many tokens as a call may have.
pub(super) struct Tables {
    pub(super) layout: layout::Handle,
    pub(super) dispatch: nvl_dispatch::Handle,
    /// What a dispatch in one launch leaves: tables of both.
    pub(super) one_launch: decode_dispatch::Handle,
    /// What calls between nodes leave.
    pub(super) far: Option<FarTables>,
}

impl Tables {
    pub(super) fn new(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        kernels: &Kernels,
    ) -> Result<Tables, CallError> {
        match kernels {
            Kernels::Near(near) => Tables::near(group, rank, options, near),
            Kernels::Far(far) => far.tables(rank),
        }
    }

    fn near(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        kernels: &NearKernels,
    ) -> Result<Tables, CallError> {
        let (layout, mut dispatch) = (kernels.layout.tables(rank)?, kernels.dispatch.tables(rank)?);
        let mut recv_src = dispatch.recv_src.clone();
        if has_all_sources(options, group.ranks(), matches!(kernels.combine, Combine::Stored(_))) {
            recv_src = DeviceTensor::zeros(group, rank, [options.tokens * group.ranks()])?;
            dispatch.recv_src = recv_src.first(options.capacity(group.ranks()));
        }
        let recv_per_expert = match &kernels.one_launch {
            Some(_) => DeviceTensor::zeros(group, rank, [options.local_experts(group.ranks())])?,
            None => DeviceTensor::default(),
        };
        let one_launch = decode_dispatch::Handle {
            recv_per_expert,
            tokens_per_rank: layout.tokens_per_rank.clone(),
            tokens_per_expert: layout.tokens_per_expert.clone(),
            rank_prefix: layout.rank_prefix.clone(),
            recv_src,
            send_row: dispatch.send_row.clone(),
        };
        Ok(Tables { layout, dispatch, one_launch, far: None })
    }
}

/// Whether a table has the source of every row that could come, where an output holds fewer: a combine
/// that stores rows is declared to read as many.
pub(super) fn has_all_sources(options: &BufferOptions, ranks: usize, is_stored: bool) -> bool {
    is_stored && options.capacity(ranks) < options.tokens * ranks
}

/// An output.
pub(super) struct OutputMemory {
    pub(super) outputs: nvl_dispatch::Outputs,
    pub(super) held: HeldOutput,
}

impl OutputMemory {
    pub(super) fn new(kernels: &Kernels, rank: usize) -> Result<OutputMemory, CallError> {
        let outputs = match kernels {
            Kernels::Near(near) => near.dispatch.outputs(rank)?,
            Kernels::Far(far) => far.outputs(rank)?,
        };
        let held = HeldOutput::new(rank, kernels, &outputs)?;
        Ok(OutputMemory { outputs, held })
    }

    /// Its rows, and their scales if the payload has any.
    pub(super) fn rows(&self) -> (Rows, Rows) {
        match &self.outputs.recv_x {
            nvl_dispatch::PayloadTensor::Bf16 { x } => (x.as_rows(), Rows::default()),
            nvl_dispatch::PayloadTensor::Fp8 { x, scale } => (x.as_rows(), scale.as_rows()),
            nvl_dispatch::PayloadTensor::Fp8Packed { x, scale } => (x.as_rows(), scale.as_rows()),
        }
    }

    /// Sets every byte of it.
    pub(super) fn fill(&self, byte: u8) -> Result<(), CallError> {
        let nvl_dispatch::Outputs { recv_x, recv_topk_idx, recv_topk_weights, rows_records } =
            &self.outputs;
        match recv_x {
            nvl_dispatch::PayloadTensor::Bf16 { x } => x.fill(byte)?,
            nvl_dispatch::PayloadTensor::Fp8 { x, scale } => {
                x.fill(byte)?;
                scale.fill(byte)?;
            }
            nvl_dispatch::PayloadTensor::Fp8Packed { x, scale } => {
                x.fill(byte)?;
                scale.fill(byte)?;
            }
        }
        recv_topk_idx.iter().try_for_each(|it| it.fill(byte))?;
        recv_topk_weights.iter().try_for_each(|it| it.fill(byte))?;
        rows_records.iter().try_for_each(|it| it.fill(byte))
    }
}

/// A combine input.
pub(super) struct OfferMemory {
    pub(super) x: DeviceTensor<Bf16, 2>,
    pub(super) weights: Option<DeviceTensor<f32, 2>>,
    pub(super) held: HeldOffer,
}

impl OfferMemory {
    pub(super) fn new(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        kernels: &Kernels,
    ) -> Result<OfferMemory, CallError> {
        let (x, weights) = match kernels {
            Kernels::Near(NearKernels { combine: Combine::Fetched(kernel), .. }) => {
                let offers = kernel.offers(rank)?;
                (offers.x, offers.weights)
            }
            _ => {
                let weights =
                    || in_lines(group, rank, options, options.topk, options.weights_stride());
                let x = in_lines(group, rank, options, options.hidden, options.combine_stride())?;
                (x, options.weights.then(weights).transpose()?)
            }
        };
        let held = HeldOffer::new(rank, kernels, &x, weights.as_ref())?;
        Ok(OfferMemory { x, weights, held })
    }
}

/// As many rows as an output has, `apart` values from one to the next, outside of the window.
fn in_lines<E: Element>(
    group: &Group,
    rank: usize,
    options: &BufferOptions,
    width: usize,
    apart: u64,
) -> Result<DeviceTensor<E, 2>, CallError> {
    let rows = options.capacity(group.ranks()) as u64;
    let memory = DeviceMemory::zeroed(group.backend(), rank, rows * apart * E::BYTES as u64)?;
    let at = memory.address();
    let memory = TensorMemory::Device(memory).into();
    Ok(DeviceTensor::within(&memory, at, [rows, width as u64], [apart as i64, 1]))
}

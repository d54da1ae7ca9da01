//! The inputs of a case: made from the seed for all ranks, and copied to the local ones.

use std::panic::resume_unwind;

use super::Case;
use crate::oracle::{Oracle, Random, random_bf16, random_bytes, random_scales};
use ep_runtime::args::Rows;
use ep_runtime::backend::{Backend, BackendError};
use ep_runtime::buffer::Payload;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::DeviceMemory;

/// The inputs of all ranks, by rank.
#[derive(Default)]
pub(super) struct HostData {
    /// Token rows, dense.
    pub(super) x: Vec<Vec<u8>>,
    /// Their scales, dense.
    pub(super) scale: Vec<Vec<u8>>,
    /// What the experts make of the received rows: bf16, dense, in order of arrival.
    pub(super) made: Vec<Vec<u8>>,
    /// Weights that come back with them, `f32[received, topk]`.
    pub(super) made_weights: Vec<Vec<u8>>,
    /// Biases of each rank.
    pub(super) biases: Vec<Vec<Vec<u8>>>,
}

impl HostData {
    /// The routing of all ranks with all that follows from it, and all values.
    pub(super) fn random(case: &Case, ranks: usize) -> (Oracle, HostData) {
        let options = &case.options;
        let mut random = Random::new(case.seed);
        let routings = case.tokens.iter().map(|tokens| case.routing.routing(*tokens, &mut random));
        let oracle = Oracle::new(options.experts, options.placement(ranks), routings.collect());
        // A sequence for each rank, so that one rank's inputs do not depend on the others'; large
        // ones take a while, so each is drawn on a thread of its own.
        let drawn: Vec<OneRank> = std::thread::scope(|scope| {
            let oracle = &oracle;
            let draw = |rank| scope.spawn(move || OneRank::random(case, oracle, rank));
            let threads: Vec<_> = (0..ranks).map(draw).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|drawn| drawn.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        let mut host = HostData::default();
        for one in drawn {
            host.x.push(one.x);
            host.scale.push(one.scale);
            host.made.push(one.made);
            host.made_weights.push(one.made_weights);
            host.biases.push(one.biases);
        }
        (oracle, host)
    }
}

/// The inputs of one rank, each as in [`HostData`].
struct OneRank {
    x: Vec<u8>,
    scale: Vec<u8>,
    made: Vec<u8>,
    made_weights: Vec<u8>,
    biases: Vec<Vec<u8>>,
}

impl OneRank {
    fn random(case: &Case, oracle: &Oracle, rank: usize) -> OneRank {
        let options = &case.options;
        let mut random = Random::new(case.seed ^ ((rank as u64 + 1) << 32));
        let (tokens, arrivals) = (case.tokens[rank], oracle.arrivals(rank).len());
        let values = tokens * options.hidden;
        let scales = tokens * options.payload.scales(options.hidden);
        // The order of the draws is a part of what a seed means.
        let x = match options.payload {
            Payload::Bf16 => random_bf16(values, &mut random),
            Payload::Fp8 | Payload::Fp8Packed => random_bytes(values, &mut random),
        };
        let scale = match options.payload.scale_bytes() {
            4 => random_scales(scales, &mut random),
            bytes => random_bytes(scales * bytes as usize, &mut random),
        };
        let made = random_bf16(arrivals * options.hidden, &mut random);
        let made_weights = random_scales(arrivals * options.topk, &mut random);
        let biases = (0..options.biases).map(|_| random_bf16(values, &mut random)).collect();
        OneRank { x, scale, made, made_weights, biases }
    }
}

/// The memory of one rank.
pub(super) struct RankData {
    pub(super) x: DeviceMemory,
    pub(super) scale: DeviceMemory,
    pub(super) topk_idx: DeviceMemory,
    pub(super) topk_weights: DeviceMemory,
    pub(super) biases: Vec<DeviceMemory>,
    pub(super) combined: DeviceMemory,
    pub(super) combined_weights: DeviceMemory,
}

impl RankData {
    pub(super) fn new(
        group: &Group,
        rank: usize,
        case: &Case,
        oracle: &Oracle,
        host: &HostData,
    ) -> Result<RankData, CallError> {
        let options = &case.options;
        let tokens = case.tokens[rank] as u64;
        let rows = |bytes: usize| DeviceMemory::new(group.backend(), rank, tokens * bytes as u64);
        let scales =
            options.payload.scales(options.hidden) * options.payload.scale_bytes() as usize;
        let biases = (0..options.biases).map(|_| rows(2 * options.hidden));
        let data = RankData {
            x: rows(options.hidden * options.payload.value_bytes() as usize)?,
            scale: rows(scales)?,
            topk_idx: rows(8 * options.topk)?,
            topk_weights: rows(4 * options.topk)?,
            biases: biases.collect::<Result<Vec<_>, _>>()?,
            combined: rows(2 * options.hidden)?,
            combined_weights: rows(4 * options.topk)?,
        };
        data.write(rank, oracle, host)?;
        Ok(data)
    }

    /// Writes the inputs of a rank: those that it was made for, or fewer tokens.
    pub(super) fn write(
        &self,
        rank: usize,
        oracle: &Oracle,
        host: &HostData,
    ) -> Result<(), CallError> {
        let routing = oracle.routing(rank);
        let experts: Vec<u8> = routing.experts.iter().flat_map(|e| e.to_le_bytes()).collect();
        let weights: Vec<u8> = routing.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.x.write(0, &host.x[rank])?;
        self.scale.write(0, &host.scale[rank])?;
        self.topk_idx.write(0, &experts)?;
        self.topk_weights.write(0, &weights)?;
        for (memory, bias) in self.biases.iter().zip(&host.biases[rank]) {
            memory.write(0, bias)?;
        }
        Ok(())
    }

    /// Overwrites what the combine is to write.
    pub(super) fn poison_sums(&self, byte: u8) -> Result<(), CallError> {
        self.combined.fill(ep_runtime::backend::Stream::OWN, byte)?;
        Ok(self.combined_weights.fill(ep_runtime::backend::Stream::OWN, byte)?)
    }
}

/// Writes dense rows of `values` values of `value_bytes` to rows that may be padded.
pub(super) fn write_rows(
    backend: &dyn Backend,
    rank: usize,
    to: Rows,
    value_bytes: usize,
    values: usize,
    rows: &[u8],
) -> Result<(), BackendError> {
    let (width, stride) = (values * value_bytes, to.row_stride as usize * value_bytes);
    if stride == width {
        return backend.write(rank, to.address, rows);
    }
    let mut padded = vec![0; rows.len() / width.max(1) * stride];
    for (to, from) in padded.chunks_mut(stride.max(1)).zip(rows.chunks(width.max(1))) {
        to[..from.len()].copy_from_slice(from);
    }
    backend.write(rank, to.address, &padded)
}

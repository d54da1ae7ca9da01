//! A layer of experts on a group: the calls that a user of the crate makes.

use ep_runtime::args::Rows;
use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, DispatchInput,
    Handle, Offered, Received,
};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::DeviceMemory;

use super::Problem;
use super::experts::{values, work_of_rank};

/// Blocks of each kernel.
const BLOCKS: u32 = 6;

/// A buffer, and the memory of each rank.
pub(super) struct Layer {
    group: Group,
    buffer: Buffer,
    ranks: Vec<RankMemory>,
}

struct RankMemory {
    x: DeviceMemory,
    topk_idx: DeviceMemory,
    topk_weights: DeviceMemory,
    combined: DeviceMemory,
    combined_weights: DeviceMemory,
}

impl Layer {
    pub(super) fn new(
        group: &Group,
        options: &BufferOptions,
        problem: &Problem,
    ) -> Result<Layer, CallError> {
        let buffer = Buffer::new(group, options.clone(), &BuiltIn)?;
        let backend = group.backend();
        let ranks = group.local().map(|rank| {
            let filled = |bytes: Vec<u8>| {
                let memory = DeviceMemory::new(backend, rank, bytes.len() as u64)?;
                memory.write(0, &bytes)?;
                Ok::<DeviceMemory, CallError>(memory)
            };
            let routing = problem.oracle.routing(rank);
            let sums = |bytes: usize| DeviceMemory::new(backend, rank, bytes as u64);
            Ok(RankMemory {
                x: filled(problem.tokens[rank].bytes.clone())?,
                topk_idx: filled(routing.experts.iter().flat_map(|e| e.to_le_bytes()).collect())?,
                topk_weights: filled(
                    routing.weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
                )?,
                combined: sums(2 * options.tokens * options.hidden)?,
                combined_weights: sums(4 * options.tokens * options.topk)?,
            })
        });
        let ranks = ranks.collect::<Result<Vec<_>, CallError>>()?;
        Ok(Layer { group: group.clone(), buffer, ranks })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// One pass through the layer: how many rows arrived anywhere, and the sums of each rank.
    pub(super) fn forward(&self, problem: &Problem) -> Result<(usize, Vec<Vec<u16>>), CallError> {
        let call = CallOptions::sms(BLOCKS);
        let mut dispatched = Vec::new();
        for rank in self.group.local() {
            dispatched.push(self.buffer.dispatch(rank, &self.input(rank), &call)?);
        }
        self.sync()?;
        let mut rows = 0;
        let mut offered = Vec::new();
        for (handle, received) in &dispatched {
            rows += handle.counts()?.received;
            offered.push(self.compute(problem, handle, received)?);
        }
        for ((handle, _), offered) in dispatched.iter().zip(&offered) {
            let own = &self.ranks[handle.rank()];
            let output = CombineOutput {
                combined: own.combined.address(),
                combined_weights: own.combined_weights.address(),
            };
            self.buffer.combine(handle, CombineInput::Offered(offered), &[], &output, &call)?;
        }
        self.sync()?;
        let sums = self.ranks.iter().map(|own| {
            let mut bytes = vec![0; problem.options.tokens * problem.options.hidden * 2];
            own.combined.read(0, &mut bytes)?;
            Ok(values(&bytes))
        });
        Ok((rows, sums.collect::<Result<Vec<_>, CallError>>()?))
    }

    fn input(&self, rank: usize) -> DispatchInput {
        let (own, options) = (&self.ranks[rank], self.buffer.options());
        DispatchInput {
            tokens: options.tokens,
            tokens_from: 0,
            x: Rows::new(own.x.address(), options.hidden as i64),
            scale: Rows::default(),
            topk_idx: own.topk_idx.address(),
            topk_weights: own.topk_weights.address(),
        }
    }

    /// The experts of a rank work on the rows that it received, as many as the counts say.
    fn compute(
        &self,
        problem: &Problem,
        handle: &Handle,
        received: &Received,
    ) -> Result<Offered, CallError> {
        let (rank, options) = (handle.rank(), self.buffer.options());
        let count = handle.counts()?.received;
        let (x, width) = (received.x()?, options.hidden * 2);
        let stride = x.row_stride as usize * 2;
        let rows = self.read(rank, x.address, count * stride)?;
        let chosen = self.read(rank, received.topk_idx()?, count * options.topk * 8)?;
        let weights = self.read(rank, received.topk_weights()?, count * options.topk * 4)?;
        // The receiver numbers its experts from 0.
        let first = problem.oracle.placement().experts(rank).start;
        let mut made = Vec::new();
        for row in 0..count {
            let of_row = row * options.topk..(row + 1) * options.topk;
            let chosen = of_row.filter_map(|at| {
                let local = i64::from_le_bytes(eight(&chosen, at)?);
                let weight = f32::from_le_bytes(four(&weights, at)?);
                (local >= 0).then_some(((first + local) as usize, weight))
            });
            let chosen: Vec<(usize, f32)> = chosen.collect();
            let row = values(&rows[row * stride..row * stride + width]);
            made.extend(work_of_rank(&row, chosen.iter().copied()));
        }
        let offered = self.buffer.offer(rank)?;
        self.write_rows(
            rank,
            offered.x()?,
            2,
            &made.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>(),
        )?;
        self.write_rows(rank, offered.weights()?, 4, &weights)?;
        Ok(offered)
    }

    fn read(&self, rank: usize, from: u64, bytes: usize) -> Result<Vec<u8>, CallError> {
        let mut to = vec![0; bytes];
        self.group.backend().read(rank, from, &mut to)?;
        Ok(to)
    }

    /// Writes dense rows, as many as there are bytes for, to rows that may be padded.
    fn write_rows(
        &self,
        rank: usize,
        to: Rows,
        value_bytes: usize,
        dense: &[u8],
    ) -> Result<(), CallError> {
        let options = self.buffer.options();
        let values = if value_bytes == 2 { options.hidden } else { options.topk };
        let stride = to.row_stride as usize * value_bytes;
        let mut padded = Vec::new();
        for row in dense.chunks(values * value_bytes) {
            let end = padded.len() + stride;
            padded.extend_from_slice(row);
            padded.resize(end, 0);
        }
        Ok(self.group.backend().write(rank, to.address, &padded)?)
    }

    fn sync(&self) -> Result<(), CallError> {
        self.group.local().try_for_each(|rank| self.group.sync(rank))
    }
}

fn eight(bytes: &[u8], index: usize) -> Option<[u8; 8]> {
    bytes.get(8 * index..8 * index + 8)?.try_into().ok()
}

fn four(bytes: &[u8], index: usize) -> Option<[u8; 4]> {
    bytes.get(4 * index..4 * index + 4)?.try_into().ok()
}

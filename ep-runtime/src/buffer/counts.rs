//! Where a kernel leaves the counts of a handle for the host: words that say when they have come.

use std::sync::Arc;

use crate::backend::{Backend, BackendError};
use crate::error::CallError;
use crate::memory::{HostMemory, align_up};
use crate::pipelines::layout;
use crate::tensor::DeviceTensor;

/// Blocks of counts that each handle has: so many calls in a row may drop theirs unread before one waits.
pub(super) const COUNT_BLOCKS: usize = 16;

/// What no count can be: host words hold it until the kernel has written the count.
const NOT_YET: u32 = u32::MAX;

/// Words that are looked at together, on the stack: a call allocates nothing.
const CHUNK: usize = 64;

/// The blocks of counts of one handle.
pub(super) struct CountMemory {
    memory: HostMemory,
    local_experts: usize,
    /// Counts are rounded up to this: kernels between nodes leave that to the host.
    alignment: usize,
}

impl CountMemory {
    /// Bytes of all blocks.
    pub(super) fn bytes(local_experts: usize) -> u64 {
        COUNT_BLOCKS as u64 * block_bytes(local_experts)
    }

    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        rank: usize,
        local_experts: usize,
        alignment: usize,
    ) -> Result<CountMemory, BackendError> {
        let memory = HostMemory::new(backend, rank, CountMemory::bytes(local_experts))?;
        let counts = CountMemory { memory, local_experts, alignment };
        for block in 0..COUNT_BLOCKS {
            let (received, per_expert) = counts.at(block);
            let name = |at: u64, words: usize, name: &str| {
                let at = counts.memory.address() + at;
                backend.name_memory(rank, at, 4 * words as u64, name, &[]);
            };
            name(received, 1, "received");
            name(per_expert, local_experts, "received_per_expert");
        }
        Ok(counts)
    }

    /// Where a block has its two parts.
    fn at(&self, block: usize) -> (u64, u64) {
        let at = block as u64 * block_bytes(self.local_experts);
        (at, at + align_up(4))
    }

    /// A block as the kernel that counts writes it.
    pub(super) fn outputs(&self, block: usize) -> layout::Outputs {
        let (received, per_expert) = self.at(block);
        let first = self.memory.address();
        layout::Outputs {
            received: DeviceTensor::borrowed(first + received, [1]),
            received_per_expert: DeviceTensor::borrowed(
                first + per_expert,
                [self.local_experts as u64],
            ),
        }
    }

    /// Makes a block say that nothing has come.
    pub(super) fn reset(&self, block: usize) -> Result<(), CallError> {
        self.fill(block, NOT_YET)
    }

    fn fill(&self, block: usize, word: u32) -> Result<(), CallError> {
        let (received, per_expert) = self.at(block);
        self.memory.write(received, &[word])?;
        for first in (0..self.local_experts).step_by(CHUNK) {
            let words = [word; CHUNK];
            let words = &words[..CHUNK.min(self.local_experts - first)];
            self.memory.write(per_expert + 4 * first as u64, words)?;
        }
        Ok(())
    }

    /// Whether the kernel has written all words of a block.
    pub(super) fn has_come(&self, block: usize) -> Result<bool, CallError> {
        let (received, per_expert) = self.at(block);
        Ok(self.have_come(received, 1)? && self.have_come(per_expert, self.local_experts)?)
    }

    fn have_come(&self, at: u64, count: usize) -> Result<bool, CallError> {
        for first in (0..count).step_by(CHUNK) {
            let mut words = [NOT_YET; CHUNK];
            let words = &mut words[..CHUNK.min(count - first)];
            self.memory.read(at + 4 * first as u64, words)?;
            if words.contains(&NOT_YET) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The counts of a block.
    pub(super) fn read(&self, block: usize) -> Result<Counts, CallError> {
        let (received_at, per_expert_at) = self.at(block);
        let (mut received, mut per_expert) = ([0], vec![0; self.local_experts]);
        self.memory.read(received_at, &mut received)?;
        self.memory.read(per_expert_at, &mut per_expert)?;
        let aligned = |word: u32| (word as usize).next_multiple_of(self.alignment);
        let per_expert = per_expert.into_iter().map(aligned).collect();
        Ok(Counts { received: received[0] as usize, per_expert })
    }

    /// Writes a block as a kernel does that counts no rows.
    #[cfg(test)]
    pub(super) fn come(&self, block: usize) {
        self.fill(block, 0).unwrap();
    }
}

fn block_bytes(local_experts: usize) -> u64 {
    align_up(4) + align_up(4 * local_experts as u64)
}

/// How many rows arrive at a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Number of rows in the output.
    pub received: usize,
    /// Routed entries for each local expert, rounded up to the buffer's alignment.
    pub per_expert: Vec<usize>,
}

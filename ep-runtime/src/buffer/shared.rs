//! What all handles and outputs of a buffer keep alive.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counts::{COUNT_BLOCKS, CountMemory};
use super::handles::Handle;
use super::held::{HeldCounts, HeldTables};
use super::inputs::DispatchInput;
use super::kernels::Kernels;
use super::lease::Pool;
use super::memory::MemoryUsage;
use super::options::BufferOptions;
use super::places::{OfferMemory, OutputMemory, Tables};
use crate::error::CallError;
use crate::group::Group;
use crate::tensor::DeviceTensor;

/// Everything of one rank that calls take from.
pub(super) struct RankMemory {
    handles: Vec<HandleMemory>,
    pub(super) outputs: Vec<OutputMemory>,
    pub(super) offers: Vec<OfferMemory>,
    /// Where experts live: calls have its address.
    _expert_begin: DeviceTensor<i32, 1>,
    pub(super) state: Mutex<RankState>,
}

/// What a handle stands for.
pub(super) struct HandleMemory {
    pub(super) tables: Tables,
    pub(super) held: HeldTables,
    pub(super) counts: CountMemory,
    /// Of each block of its counts.
    pub(super) held_counts: [HeldCounts; COUNT_BLOCKS],
}

/// What changes from call to call.
pub(super) struct RankState {
    pub(super) handles: Pool,
    pub(super) outputs: Pool,
    pub(super) offered: Pool,
    /// The blocks of counts of each handle.
    pub(super) counts: Vec<CountBlocks>,
}

/// The blocks of counts of one handle, which its calls take in turn: where a handle is dropped unread, the
/// next call need not wait until the kernel of the last one has written its counts.
#[derive(Default)]
pub(super) struct CountBlocks {
    next: usize,
    /// Whether a launched kernel writes a block, and has not been seen to have written it.
    pub(super) is_written: [bool; COUNT_BLOCKS],
}

impl CountBlocks {
    /// The block of the next call.
    pub(super) fn take(&mut self) -> usize {
        let taken = self.next;
        self.next = (taken + 1) % COUNT_BLOCKS;
        taken
    }
}

/// What handles and outputs keep alive.
pub(super) struct Shared {
    // Dropped in this order: kernels before the memory whose addresses they were given.
    pub(super) kernels: Kernels,
    pub(super) ranks: Vec<RankMemory>,
    pub(super) memory: MemoryUsage,
    /// Whether a place for rows is an output and a combine input.
    pub(super) has_shared_rows: bool,
    pub(super) options: BufferOptions,
    pub(super) group: Group,
}

impl RankMemory {
    pub(super) fn new(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        kernels: &Kernels,
    ) -> Result<RankMemory, CallError> {
        let ranks = group.ranks();
        let begin = options.placement(ranks);
        let expert_begin = DeviceTensor::from_slice(group, rank, [ranks + 1], begin.begin())?;
        let handle = |_| {
            let (local_experts, alignment) =
                (options.local_experts(ranks), options.alignment.max(1) as usize);
            let counts = CountMemory::new(group.backend(), rank, local_experts, alignment)?;
            let tables = Tables::new(group, rank, options, kernels)?;
            let held = HeldTables::new(rank, kernels, &tables, &expert_begin)?;
            let mut held_counts: [HeldCounts; COUNT_BLOCKS] = Default::default();
            for (block, held) in held_counts.iter_mut().enumerate() {
                *held = HeldCounts::new(rank, kernels, &counts.outputs(block))?;
            }
            Ok(HandleMemory { tables, held, counts, held_counts })
        };
        let outputs = (0..options.live).map(|_| OutputMemory::new(kernels, rank));
        let offers = (0..options.live).map(|_| OfferMemory::new(group, rank, options, kernels));
        let state = RankState {
            handles: Pool::new(options.handles()),
            outputs: Pool::new(options.live),
            offered: Pool::new(options.live),
            counts: (0..options.handles()).map(|_| CountBlocks::default()).collect(),
        };
        Ok(RankMemory {
            handles: (0..options.handles()).map(handle).collect::<Result<_, CallError>>()?,
            outputs: outputs.collect::<Result<_, _>>()?,
            offers: offers.collect::<Result<_, _>>()?,
            _expert_begin: expert_begin,
            state: Mutex::new(state),
        })
    }

    /// The memory of a handle that is leased.
    pub(super) fn handle(&self, index: usize) -> &HandleMemory {
        &self.handles[index]
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RankState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(super) fn rank(&self, rank: usize) -> Result<&RankMemory, CallError> {
        Ok(&self.ranks[self.group.local_index(rank)?])
    }

    pub(super) fn check_tokens(&self, tokens: usize) -> Result<(), CallError> {
        if tokens <= self.options.tokens {
            return Ok(());
        }
        let (need, have) = (tokens as u64, self.options.tokens as u64);
        Err(CallError::TooLarge { what: "tokens", need, have })
    }

    /// Fails for a handle of another buffer or of another number of tokens.
    pub(super) fn same_tokens(
        &self,
        handle: &Handle,
        input: &DispatchInput,
    ) -> Result<(), CallError> {
        self.own(handle)?;
        if (input.tokens, input.tokens_from) == (handle.tokens(), handle.tokens_from()) {
            return Ok(());
        }
        if input.tokens_from != handle.tokens_from() {
            let what = "`tokens_from` is not the address that the handle was made with";
            return Err(CallError::Mismatch { what: what.to_string() });
        }
        let (got, want) = (input.tokens, handle.tokens());
        let what = format!("the call has {got} tokens, and its handle is for {want}");
        Err(CallError::Mismatch { what })
    }

    /// Fails for a handle of another buffer.
    pub(super) fn own(&self, handle: &Handle) -> Result<(), CallError> {
        if handle.belongs_to(self) {
            return Ok(());
        }
        let what = "the handle belongs to another buffer".to_string();
        Err(CallError::Mismatch { what })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nothing may be freed while a kernel that knows its address is in flight; every such
        // kernel ends, since its waits are bounded.
        for rank in self.group.local() {
            let _ = self.group.settle(rank);
        }
    }
}

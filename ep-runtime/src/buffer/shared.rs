//! What the clones of a buffer, its handles and its outputs share, and keep alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::handles::Handle;
use super::inputs::DispatchInput;
use super::lease::Pool;
use super::memory::{Blocks, COUNT_BLOCKS, MemoryLayout};
use super::options::BufferOptions;
use super::payload::PayloadRows;
use super::standard::StandardPipeline;
use crate::args::Rows;
use crate::calls::CallOptions;
use crate::error::CallError;
use crate::group::{Group, waived};
use crate::launch::Prepared;
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::tune::{Traffic, Tuning};

/// Everything of one rank that calls take from.
pub(super) struct RankMemory {
    pub(super) tables: DeviceMemory,
    pub(super) counts: Vec<HostMemory>,
    pub(super) unpacked: DeviceMemory,
    pub(super) placement: DeviceMemory,
    pub(super) state: Mutex<RankState>,
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
    pub(super) layout_kernel: Prepared,
    pub(super) dispatch: Prepared,
    pub(super) cached: Option<Prepared>,
    pub(super) combine: Prepared,
    /// A whole dispatch, where few tokens go.
    pub(super) one_launch: Option<Prepared>,
    /// What it leaves out that cached dispatches read.
    pub(super) stripes: Option<Prepared>,
    pub(super) ranks: Vec<RankMemory>,
    pub(super) window: Arc<Window>,
    /// What the counts of a handle hold before the kernel has written them.
    pub(super) no_counts: Vec<u32>,
    pub(super) layout: MemoryLayout,
    pub(super) traffic: Traffic,
    pub(super) options: BufferOptions,
    pub(super) group: Group,
}

impl RankMemory {
    pub(super) fn new(
        group: &Group,
        rank: usize,
        options: &BufferOptions,
        layout: &MemoryLayout,
    ) -> Result<RankMemory, CallError> {
        let backend = group.backend();
        let (live, handles) = (options.live as u64, options.handles() as u64);
        let bytes = COUNT_BLOCKS as u64 * layout.counts.bytes();
        let counts = (0..handles).map(|_| HostMemory::new(backend, rank, bytes));
        let begin = options.placement(group.ranks());
        let begin: Vec<u8> = begin.begin().iter().flat_map(|first| first.to_le_bytes()).collect();
        let placement = DeviceMemory::new(backend, rank, begin.len() as u64)?;
        placement.write(0, &begin)?;
        let state = RankState {
            handles: Pool::new(options.handles()),
            outputs: Pool::new(options.live),
            offered: Pool::new(options.live),
            counts: (0..handles).map(|_| CountBlocks::default()).collect(),
        };
        Ok(RankMemory {
            tables: DeviceMemory::zeroed(backend, rank, handles * layout.tables.bytes())?,
            counts: counts.collect::<Result<Vec<_>, _>>()?,
            unpacked: DeviceMemory::zeroed(backend, rank, live * layout.unpacked.bytes())?,
            placement,
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RankState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(super) fn prepared(&self, pipeline: StandardPipeline) -> Option<&Prepared> {
        match pipeline {
            StandardPipeline::Layout => Some(&self.layout_kernel),
            StandardPipeline::NvlDispatch => Some(&self.dispatch),
            StandardPipeline::NvlDispatchCached => self.cached.as_ref(),
            StandardPipeline::NvlCombine | StandardPipeline::DecodeCombine => (pipeline
                == self.options.combine_pipeline(self.group.ranks()))
            .then_some(&self.combine),
            StandardPipeline::DecodeDispatch => self.one_launch.as_ref(),
            StandardPipeline::DecodeStripes => self.stripes.as_ref(),
        }
    }

    /// Whether a table is one that a dispatch in one launch leaves to the first cached dispatch.
    pub(super) fn makes_stripes(&self, table: &str) -> bool {
        let extents = self.stripes.iter().flat_map(|stripes| &stripes.plan().extents);
        extents.into_iter().any(|extent| extent.tensor == table)
    }

    /// SMs of a direct dispatch that send to other ranks, which may be all of them.
    pub(super) fn remote_sms(&self, call: &CallOptions) -> u32 {
        let sms = call.sms.unwrap_or(self.dispatch.usual_sms());
        let most = sms.max(1);
        let chosen = || Tuning::split(&self.options.rates, &self.traffic, sms).remote;
        call.remote_sms.unwrap_or_else(chosen).clamp(1, most)
    }

    pub(super) fn rank(&self, rank: usize) -> Result<&RankMemory, CallError> {
        Ok(&self.ranks[self.group.local_index(rank)?])
    }

    /// Says what lies where, for reports.
    pub(super) fn name_memory(&self) -> Result<(), CallError> {
        let (backend, layout) = (self.group.backend(), &self.layout);
        // Rows come straight into an output, and are fetched from there or from a combine input.
        let fetching = waived(self.combine.plan(), |_| true);
        let dispatches = [Some(&self.dispatch), self.cached.as_ref(), self.one_launch.as_ref()];
        let dispatches = dispatches.into_iter().flatten();
        let mut arriving: Vec<&str> =
            dispatches.flat_map(|it| waived(it.plan(), |_| true)).collect();
        arriving.extend(&fetching);
        let none = Vec::new();
        for (rank, own) in self.group.local().zip(&self.ranks) {
            let name_all = |what: &str, at: u64, blocks: &Blocks, waived: &[&str]| {
                for (name, start, bytes) in blocks.parts() {
                    backend.name_memory(rank, at + start, bytes, &format!("{what}{name}"), waived);
                }
            };
            let tables = own.tables.address();
            for (counts, step) in own.counts.iter().zip(0..) {
                name_all("", tables + step * layout.tables.bytes(), &layout.tables, &none);
                for block in 0..COUNT_BLOCKS as u64 {
                    let at = counts.address() + block * layout.counts.bytes();
                    name_all("", at, &layout.counts, &none);
                }
            }
            let (window, unpacked) = (self.window.own(rank)?, own.unpacked.address());
            for index in 0..self.options.live {
                let at = unpacked + index as u64 * layout.unpacked.bytes();
                name_all("output ", at, &layout.unpacked, &none);
                name_all(
                    "output ",
                    window + layout.received_at(index),
                    &layout.received,
                    &arriving,
                );
                let offered = window + layout.offered_at(index);
                name_all("combine input ", offered, &layout.offered, &fetching);
            }
        }
        Ok(())
    }

    /// No rows of the buffer's payload.
    pub(super) fn no_rows(&self) -> PayloadRows {
        let (payload, hidden) = (self.options.payload, self.options.hidden);
        PayloadRows { payload, rows: 0, hidden, x: Rows::default(), scale: Rows::default() }
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
            let what = "the number of tokens is found in another place than that of the handle";
            return Err(CallError::Mismatch { what: what.to_string() });
        }
        let (got, want) = (input.tokens, handle.tokens());
        let what = format!("{got} tokens, but the handle is one of {want}");
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

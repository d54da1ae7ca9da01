//! What a call leaves: handles with their tables, outputs, and inputs of combines.
//!
//! All of it was allocated with the buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::arguments::{CallValue, CallValues};
use super::inputs::DispatchInput;
use super::lease::{Lease, LeaseKind};
use super::shared::{RankMemory, RankState, Shared};
use crate::args::Rows;
use crate::call_order::Turn;
use crate::calls::CallOptions;
use crate::error::CallError;
use crate::memory::HostMemory;

/// What no count can be: host words hold it until the kernel has written the count.
pub(super) const NOT_YET: u32 = u32::MAX;

/// Words that are looked at together, on the stack: a call allocates nothing.
const CHUNK: usize = 64;

/// How many rows arrive at a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Rows in the output.
    pub received: usize,
    /// Routed entries for each local expert, rounded up to the buffer's alignment.
    pub per_expert: Vec<usize>,
}

/// The tables of one dispatch on one rank: what its combine and cached dispatches read.
pub struct Handle {
    lease: Lease,
    /// Which of its blocks of counts the kernel writes.
    block: usize,
    tokens: usize,
    tokens_from: u64,
    /// Its counts come with every replay of a graph.
    is_captured: bool,
    /// Longest wait of the kernel that writes the counts.
    timeout: Duration,
    /// Whether a dispatch has recorded the way back; counts alone have none.
    has_way_back: AtomicBool,
    /// Whether the tables of stripes are still to be made.
    lacks_stripes: AtomicBool,
}

impl Handle {
    /// A handle whose earlier counts have arrived.
    pub(super) fn take(
        shared: &Arc<Shared>,
        rank: usize,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<Handle, CallError> {
        let lease = Lease::take(shared, rank, LeaseKind::Handle)?;
        let block = shared.rank(rank)?.state().counts[lease.index].take();
        let (tokens, tokens_from) = (input.tokens, input.tokens_from);
        let timeout = call.timeout.unwrap_or_else(|| shared.group.timeout());
        let [has_way_back, lacks_stripes] = [false; 2].map(AtomicBool::new);
        let handle = Handle {
            lease,
            block,
            tokens,
            tokens_from,
            is_captured: false,
            timeout,
            has_way_back,
            lacks_stripes,
        };
        // An earlier call's handle was dropped unread: its counts must not come after the words are
        // reset.
        // Usually they are there, and no driver is asked.
        let may_wait =
            || shared.group.is_captured(rank, call.stream).map(|is_captured| !is_captured);
        if handle.is_counting()? && (handle.has_counts()? || may_wait()?) {
            handle.wait_for_counts()?;
        }
        Ok(handle)
    }

    /// Makes it ready for a call in this turn.
    pub(super) fn begin(&mut self, turn: &Turn<'_>) -> Result<(), CallError> {
        self.is_captured = turn.is_captured();
        // Only what is captured leaves counts alone that may still come.
        if self.is_counting()? {
            return Ok(());
        }
        let shared = &self.lease.shared;
        let (received, per_expert) = shared.no_counts.split_at(1);
        let (memory, at) = self.counts_at()?;
        memory.write(at + shared.layout.places.received, received)?;
        Ok(memory.write(at + shared.layout.places.per_expert, per_expert)?)
    }

    fn is_counting(&self) -> Result<bool, CallError> {
        Ok(self.own()?.state().counts[self.lease.index].is_written[self.block])
    }

    /// Notes that the kernel which writes the counts is in the stream.
    pub(super) fn counting(&self, state: &mut RankState) {
        state.counts[self.lease.index].is_written[self.block] |= !self.is_captured;
    }

    /// Notes that the kernel which records the way back is in the stream.
    pub(super) fn sent(&self) {
        self.has_way_back.store(true, Ordering::Relaxed);
    }

    /// The same of one that counts by itself: it makes no tables of stripes.
    pub(super) fn sent_in_one_launch(&self) {
        self.sent();
        self.lacks_stripes.store(true, Ordering::Relaxed);
    }

    /// Whether a cached dispatch has to make the tables of stripes first.
    pub(super) fn lacks_stripes(&self) -> bool {
        self.lacks_stripes.load(Ordering::Relaxed)
    }

    /// Notes that the kernel which makes them is in the stream. Replays of a captured dispatch leave others.
    pub(super) fn has_stripes(&self) {
        self.lacks_stripes.store(self.is_captured, Ordering::Relaxed);
    }

    /// Fails if no row has gone anywhere by this handle's tables, so that none can come back.
    pub(super) fn require_way_back(&self) -> Result<(), CallError> {
        if self.has_way_back.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = "the handle has counts alone: its rows come back after a `dispatch_counted`";
        Err(CallError::Mismatch { what: what.to_string() })
    }

    /// What a graph that uses the handle has to keep.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    fn own(&self) -> Result<&RankMemory, CallError> {
        self.lease.shared.rank(self.lease.rank)
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.lease.rank
    }

    /// Tokens of the dispatch on this rank; the most there may be, if the device has their number.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Where the device finds how many tokens there are; 0: the host knew it.
    pub(super) fn tokens_from(&self) -> u64 {
        self.tokens_from
    }

    /// How many rows arrive. Waits for the exchange of counts, not for the rows. After captured calls:
    /// what the last replay that was waited for has left.
    pub fn counts(&self) -> Result<Counts, CallError> {
        match self.is_captured {
            true => self.require_replay()?,
            false => self.wait_for_counts()?,
        }
        let mut words = self.lease.shared.no_counts.clone();
        let (received, per_expert) = words.split_at_mut(1);
        let (memory, at) = self.counts_at()?;
        let places = &self.lease.shared.layout.places;
        memory.read(at + places.received, received)?;
        memory.read(at + places.per_expert, per_expert)?;
        let received = received.first().map_or(0, |word| *word as usize);
        Ok(Counts { received, per_expert: per_expert.iter().map(|word| *word as usize).collect() })
    }

    /// Device address of a table, for a pipeline of the user; none if the dispatch lacks it.
    pub fn table(&self, name: &str) -> Option<u64> {
        if self.lacks_stripes() && self.lease.shared.makes_stripes(name) {
            return None;
        }
        let tables = self.own().ok()?.tables.address();
        Some(tables + self.tables_at() + self.lease.shared.layout.tables.at(name)?)
    }

    /// Where the totals of all ranks are.
    pub(super) fn rank_prefix(&self) -> Result<u64, CallError> {
        let places = &self.lease.shared.layout.places;
        Ok(self.own()?.tables.address() + self.tables_at() + places.rank_prefix)
    }

    pub(super) fn belongs_to(&self, shared: &Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.lease.shared), shared)
    }

    pub(super) fn bind(&self, values: &mut CallValues) -> Result<(), CallError> {
        let own = self.own()?;
        let (counts, at) = self.counts_at()?;
        values
            .set(CallValue::Tokens, self.tokens as u64)
            .set(CallValue::TokensFrom, self.tokens_from)
            .set(CallValue::Tables, own.tables.address() + self.tables_at())
            .set(CallValue::Counts, counts.address() + at);
        Ok(())
    }

    /// Fails on every rank alike if the output of any rank is too small. The table of totals is the
    /// same everywhere, so all ranks decide alike.
    pub(super) fn require_capacity(&self) -> Result<(), CallError> {
        self.wait_for_counts()?;
        let shared = &self.lease.shared;
        let ranks = shared.group.ranks();
        let totals_at =
            self.tables_at() + shared.layout.places.rank_prefix + 4 * (ranks * ranks) as u64;
        // The counts came before the kernel's last store: the table is complete after the call.
        shared.group.settle(self.rank())?;
        let have = shared.options.capacity(ranks) as u64;
        for first in (0..ranks).step_by(CHUNK) {
            let mut totals = [0; 4 * CHUNK];
            let totals = &mut totals[..4 * CHUNK.min(ranks - first)];
            self.own()?.tables.read(totals_at + 4 * first as u64, totals)?;
            for (rank, total) in (first..).zip(totals.chunks_exact(4)) {
                let need = u64::from(u32::from_le_bytes([total[0], total[1], total[2], total[3]]));
                if need > have {
                    return Err(CallError::OutputTooSmall { rank, need, have });
                }
            }
        }
        Ok(())
    }

    /// Its block of counts: the memory, and where it begins there.
    fn counts_at(&self) -> Result<(&HostMemory, u64), CallError> {
        let bytes = self.lease.shared.layout.counts.bytes();
        Ok((&self.own()?.counts[self.lease.index], self.block as u64 * bytes))
    }

    fn tables_at(&self) -> u64 {
        self.lease.index as u64 * self.lease.shared.layout.tables.bytes()
    }

    /// Whether the kernel has written all words of `received` and `received_per_expert`.
    fn has_counts(&self) -> Result<bool, CallError> {
        let (memory, block_at) = self.counts_at()?;
        let has = |at: u64, count: usize| {
            for first in (0..count).step_by(CHUNK) {
                let mut words = [NOT_YET; CHUNK];
                let words = &mut words[..CHUNK.min(count - first)];
                memory.read(block_at + at + 4 * first as u64, words)?;
                if words.contains(&NOT_YET) {
                    return Ok::<bool, CallError>(false);
                }
            }
            Ok(true)
        };
        let (places, local_experts) =
            (&self.lease.shared.layout.places, self.lease.shared.no_counts.len() - 1);
        Ok(has(places.received, 1)? && has(places.per_expert, local_experts)?)
    }

    fn require_replay(&self) -> Result<(), CallError> {
        if self.has_counts()? {
            return Ok(());
        }
        let what = "the counts of a captured dispatch come with a replay of its graph: wait for one \
                    first";
        Err(CallError::Capture { what: what.to_string() })
    }

    /// Waits until the kernel has written the counts.
    fn wait_for_counts(&self) -> Result<(), CallError> {
        let (rank, group) = (self.rank(), &self.lease.shared.group);
        let begun = Instant::now();
        // Where kernels run inside `poll`, what one `poll` has not brought will not come.
        let runs_alone = group.backend().runs_alone();
        let patience = if runs_alone { self.timeout.saturating_mul(2) } else { Duration::ZERO };
        for turn in 1u64.. {
            if self.has_counts()? {
                break;
            }
            std::hint::spin_loop();
            // Looking at the device costs more than looking at the words.
            if turn % 64 == 0 || !runs_alone {
                group.explain(rank, group.backend().poll(rank))?;
                if turn > 1 && begun.elapsed() > patience {
                    return Err(CallError::Silent { rank, what: "the counts" });
                }
            }
        }
        self.own()?.state().counts[self.lease.index].is_written[self.block] = false;
        Ok(())
    }
}

/// The output of one dispatch on one rank.
pub struct Received {
    lease: Lease,
}

impl Received {
    pub(super) fn take(shared: &Arc<Shared>, rank: usize) -> Result<Received, CallError> {
        Ok(Received { lease: Lease::take(shared, rank, LeaseKind::Output)? })
    }

    /// What a graph that uses the output has to keep.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.lease.rank
    }

    /// Rows of the payload's values.
    pub fn x(&self) -> Result<Rows, CallError> {
        let shared = &self.lease.shared;
        let window = shared.window.own(self.lease.rank)?;
        let rows = shared.layout.places.received_rows;
        let stride = shared.options.row_stride() as i64;
        Ok(Rows::new(window + self.region_at() + rows, stride))
    }

    /// Scales of the rows, if the payload has any.
    pub fn scale(&self) -> Result<Rows, CallError> {
        let options = &self.lease.shared.options;
        match options.payload.scales(options.hidden) {
            0 => Ok(Rows::default()),
            scales => Ok(Rows::new(self.unpacked("scale")?, scales as i64)),
        }
    }

    /// Device address of `i64[capacity, topk]`: local experts of each row, -1 for others.
    pub fn topk_idx(&self) -> Result<u64, CallError> {
        self.unpacked("recv_topk_idx")
    }

    /// Device address of `f32[capacity, topk]`.
    pub fn topk_weights(&self) -> Result<u64, CallError> {
        self.unpacked("recv_topk_weights")
    }

    fn region_at(&self) -> u64 {
        self.lease.shared.layout.received_at(self.lease.index)
    }

    fn unpacked(&self, name: &str) -> Result<u64, CallError> {
        let shared = &self.lease.shared;
        let unpacked = shared.rank(self.lease.rank)?.unpacked.address();
        let block = self.lease.index as u64 * shared.layout.unpacked.bytes();
        Ok(unpacked + block + shared.layout.unpacked.at(name).unwrap_or(0))
    }

    pub(super) fn bind(&self, values: &mut CallValues) -> Result<(), CallError> {
        let shared = &self.lease.shared;
        let own = shared.rank(self.lease.rank)?;
        let unpacked = self.lease.index as u64 * shared.layout.unpacked.bytes();
        values
            .set(CallValue::Received, shared.window.own(self.lease.rank)? + self.region_at())
            .set(CallValue::ReceivedAt, self.region_at())
            .set(CallValue::Unpacked, own.unpacked.address() + unpacked);
        Ok(())
    }
}

/// A combine input in the window: the experts of one rank leave their rows here.
pub struct Offered {
    lease: Lease,
}

impl Offered {
    pub(super) fn take(shared: &Arc<Shared>, rank: usize) -> Result<Offered, CallError> {
        Ok(Offered { lease: Lease::take(shared, rank, LeaseKind::Offered)? })
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// bf16 rows, in the order in which the dispatch received theirs.
    pub fn x(&self) -> Result<Rows, CallError> {
        let stride = self.lease.shared.options.combine_stride();
        self.within(self.rows_at(), stride)
    }

    /// f32 weights of the rows, for a buffer that moves weights.
    pub fn weights(&self) -> Result<Rows, CallError> {
        let stride = self.lease.shared.options.weights_stride();
        self.within(self.weights_at(), stride)
    }

    fn within(&self, at: u64, stride: u64) -> Result<Rows, CallError> {
        let window = self.lease.shared.window.own(self.lease.rank)?;
        Ok(Rows::new(window + at, stride as i64))
    }

    /// Where they are in the window.
    fn rows_at(&self) -> u64 {
        let layout = &self.lease.shared.layout;
        layout.offered_at(self.lease.index) + layout.places.offered_rows
    }

    fn weights_at(&self) -> u64 {
        let layout = &self.lease.shared.layout;
        layout.offered_at(self.lease.index) + layout.places.offered_weights
    }
}

/// Where a combine reads its rows.
#[derive(Clone, Copy)]
pub enum CombineInput<'a> {
    /// From a combine input.
    Offered(&'a Offered),
    /// From the output of a BF16 dispatch, where the experts worked in place; weights, if the
    /// buffer moves them, come from a combine input.
    InPlace(&'a Received, Option<&'a Offered>),
}

impl CombineInput<'_> {
    /// What a graph that reads them has to keep.
    pub(super) fn leases(&self) -> [Option<Lease>; 2] {
        match self {
            CombineInput::Offered(offered) => [Some(offered.lease.clone()), None],
            CombineInput::InPlace(received, offered) => {
                [Some(received.lease.clone()), offered.map(|offered| offered.lease.clone())]
            }
        }
    }

    pub(super) fn bind(
        &self,
        shared: &Arc<Shared>,
        rank: usize,
        values: &mut CallValues,
    ) -> Result<(), CallError> {
        self.check(shared, rank)?;
        let (x, x_at, weights) = match self {
            CombineInput::Offered(offered) => (offered.x()?, offered.rows_at(), Some(*offered)),
            CombineInput::InPlace(received, weights) => {
                let rows = shared.layout.places.received_rows;
                (received.x()?, received.region_at() + rows, *weights)
            }
        };
        values
            .set(CallValue::X, x.address)
            .set(CallValue::XStride, x.row_stride as u64)
            .set(CallValue::XAt, x_at);
        if let Some(offered) = weights {
            values.set(CallValue::Weights, offered.weights()?.address);
            values.set(CallValue::WeightsAt, offered.weights_at());
        }
        Ok(())
    }

    /// The memory belongs to this rank of this buffer, and holds bf16 rows.
    fn check(&self, shared: &Arc<Shared>, rank: usize) -> Result<(), CallError> {
        let wrong = |what: &str| Err(CallError::Mismatch { what: what.to_string() });
        let (offered, received) = match self {
            CombineInput::Offered(offered) => (Some(*offered), None),
            CombineInput::InPlace(received, offered) => (*offered, Some(*received)),
        };
        if received.is_some() && shared.options.payload != super::Payload::Bf16 {
            return wrong("only a BF16 output can be combined in place");
        }
        if shared.options.weights && offered.is_none() {
            return wrong("the buffer moves weights, but the combine has none");
        }
        let offered = offered.map(|offered| &offered.lease);
        let received = received.map(|received| &received.lease);
        for lease in offered.into_iter().chain(received) {
            if !Arc::ptr_eq(&lease.shared, shared) {
                return wrong("the combine input belongs to another buffer");
            }
            if lease.rank != rank {
                return wrong("the combine input belongs to another rank than the handle");
            }
        }
        Ok(())
    }
}

//! Results of calls: handles with their tables, outputs, and inputs of combines. The buffer allocates all
//! of these when it is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::held::HeldCounts;
use super::inputs::DispatchInput;
use super::lease::{Lease, LeaseKind};
use super::places::{OfferMemory, OutputMemory};
use super::shared::{HandleMemory, RankMemory, RankState, Shared};
use super::tensors::kept;
use crate::args::Rows;
use crate::backend::{Kept, Stream};
use crate::call_order::Turn;
use crate::calls::{CallOptions, Held};
use crate::error::CallError;
use crate::pipelines::{layout, nvl_dispatch};
use crate::tensor::DeviceTensor;

/// A host that waits for counts looks at their words all the time for so long, and sees them at once: in a loop of calls
/// of few tokens they come sooner.
const LOOKING: Duration = Duration::from_micros(100);

/// Then it lets other threads of the machine run between two looks, until it has waited for so long.
const YIELDING: Duration = Duration::from_millis(20);

/// Then it sleeps between two looks, for a part of the time that it has waited, and at most for so long.
const PAUSE: Duration = Duration::from_millis(1);

/// Totals that are looked at together, on the stack: a call allocates nothing.
const CHUNK: usize = 64;

/// The tables of one dispatch on one rank, which its combine and its cached dispatches read.
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
    /// Whether a dispatch in one launch has counted, which has no stripes.
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
        let lease = Lease::take(shared, rank, LeaseKind::Handle, call.stream)?;
        let own = shared.rank(rank)?;
        let block = own.state().counts[lease.index].take();
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
        if handle.is_counting()? && (handle.memory()?.counts.has_come(block)? || may_wait()?) {
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
        self.memory()?.counts.reset(self.block)
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

    /// Notes that a dispatch in one launch is in the stream, which makes no tables of stripes.
    pub(super) fn sent_in_one_launch(&self) {
        self.sent();
        self.lacks_stripes.store(true, Ordering::Relaxed);
    }

    /// Fails if no row has gone anywhere by this handle's tables, so that none can come back or follow.
    pub(super) fn require_way_back(&self) -> Result<(), CallError> {
        if self.has_way_back.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = "the handle has only counts: make its `dispatch_counted` first";
        Err(CallError::Mismatch { what: what.to_string() })
    }

    /// What a graph that uses the handle has to keep.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    fn own(&self) -> Result<&RankMemory, CallError> {
        self.lease.shared.rank(self.lease.rank)
    }

    /// Its tables and counts.
    pub(super) fn memory(&self) -> Result<&HandleMemory, CallError> {
        Ok(self.own()?.handle(self.lease.index))
    }

    /// Its counts, as the kernel that counts writes them.
    pub(super) fn counts_to(&self) -> Result<&HeldCounts, CallError> {
        Ok(&self.memory()?.held_counts[self.block])
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.lease.rank
    }

    /// Tokens of the dispatch on this rank. If the device has their number, this is the upper limit.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Where the device finds how many tokens there are; 0: the host knew it.
    pub(super) fn tokens_from(&self) -> u64 {
        self.tokens_from
    }

    /// The word where a kernel finds how many tokens there are; none: the host knew it.
    pub(super) fn tokens_word(&self) -> Option<DeviceTensor<i32, 1>> {
        (self.tokens_from != 0).then(|| DeviceTensor::borrowed(self.tokens_from, [1]))
    }

    /// How many rows arrive. Waits for the exchange of counts, not for the rows. For captured calls,
    /// returns the counts of the last replay that was waited for.
    pub fn counts(&self) -> Result<Counts, CallError> {
        match self.is_captured {
            true => self.require_replay()?,
            false => self.wait_for_counts()?,
        }
        self.memory()?.counts.read(self.block)
    }

    /// The tables of `layout`, for a pipeline of the user. The tables of stripes are absent if rows went
    /// between nodes or in one launch.
    pub fn layout(&self) -> Result<layout::Handle, CallError> {
        let (memory, tables) = (kept(&self.lease), &self.memory()?.tables);
        let of = &tables.layout;
        let absent = layout::Handle::default();
        let stripes = match self.lacks_stripes.load(Ordering::Relaxed) {
            true => &absent,
            false => of,
        };
        Ok(layout::Handle {
            tokens_per_rank: of.tokens_per_rank.kept_by(&memory),
            tokens_per_expert: of.tokens_per_expert.kept_by(&memory),
            in_rank: stripes.in_rank.first(self.tokens).kept_by(&memory),
            stripe_tokens: stripes.stripe_tokens.kept_by(&memory),
            rank_prefix: of.rank_prefix.kept_by(&memory),
            stripe_prefix: stripes.stripe_prefix.kept_by(&memory),
        })
    }

    /// The tables of `nvl-dispatch`, for a pipeline of the user. The tables for the combine are absent if
    /// rows went between nodes.
    pub fn dispatch(&self) -> Result<nvl_dispatch::Handle, CallError> {
        let (memory, of) = (kept(&self.lease), &self.memory()?.tables.dispatch);
        Ok(nvl_dispatch::Handle {
            recv_src: of.recv_src.kept_by(&memory),
            send_head: of.send_head.first(self.tokens).kept_by(&memory),
            recv_first: of.recv_first.kept_by(&memory),
            recv_count: of.recv_count.kept_by(&memory),
            send_row: of.send_row.first(self.tokens).kept_by(&memory),
        })
    }

    pub(super) fn belongs_to(&self, shared: &Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.lease.shared), shared)
    }

    /// Fails on every rank alike if the output of any rank is too small. The table of totals is the
    /// same everywhere, so all ranks decide alike.
    pub(super) fn require_capacity(&self) -> Result<(), CallError> {
        self.wait_for_counts()?;
        let shared = &self.lease.shared;
        let ranks = shared.group.ranks();
        let prefix = self.memory()?.tables.layout.rank_prefix.address();
        let totals_at = prefix + 4 * (ranks * ranks) as u64;
        // The counts came before the kernel's last store: the table is complete after the call.
        shared.group.settle(self.rank())?;
        let have = shared.options.capacity(ranks) as u64;
        for first in (0..ranks).step_by(CHUNK) {
            let mut totals = [0; 4 * CHUNK];
            let totals = &mut totals[..4 * CHUNK.min(ranks - first)];
            shared.group.backend().read(self.rank(), totals_at + 4 * first as u64, totals)?;
            for (rank, total) in (first..).zip(totals.chunks_exact(4)) {
                let need = u64::from(u32::from_le_bytes([total[0], total[1], total[2], total[3]]));
                if need > have {
                    return Err(CallError::OutputTooSmall { rank, need, have });
                }
            }
        }
        Ok(())
    }

    /// How many rows arrive, if the number is already known. `None` for a captured call, because its
    /// replays differ.
    pub fn arriving(&self) -> Result<Option<usize>, CallError> {
        let counts = &self.memory()?.counts;
        if self.is_captured || !counts.has_come(self.block)? {
            return Ok(None);
        }
        Ok(Some(counts.read(self.block)?.received))
    }

    fn require_replay(&self) -> Result<(), CallError> {
        if self.memory()?.counts.has_come(self.block)? {
            return Ok(());
        }
        let what = "a captured dispatch has counts only after a replay of its graph: wait for a replay first";
        Err(CallError::Capture { what: what.to_string() })
    }

    /// Waits until the kernel has written the counts.
    fn wait_for_counts(&self) -> Result<(), CallError> {
        let (rank, group) = (self.rank(), &self.lease.shared.group);
        let begun = Instant::now();
        // Where kernels run inside `poll`, what one `poll` has not brought will not come.
        let runs_alone = group.backend().runs_alone();
        let patience = if runs_alone { self.timeout.saturating_mul(2) } else { Duration::ZERO };
        let mut waited = Duration::ZERO;
        for turn in 1u64.. {
            if self.memory()?.counts.has_come(self.block)? {
                break;
            }
            if turn % 64 == 0 {
                waited = begun.elapsed();
            }
            pause_after(waited);
            // Looking at the device takes as long as dozens of looks at the words.
            if waited >= LOOKING && turn % 64 == 0 || !runs_alone {
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

/// Pauses between two looks at the words, depending on how long the host has waited.
fn pause_after(waited: Duration) {
    if waited < LOOKING {
        std::hint::spin_loop();
    } else if waited < YIELDING {
        thread::yield_now();
    } else {
        thread::sleep((waited / 64).min(PAUSE));
    }
}

/// The output of one dispatch on one rank.
pub struct Received {
    lease: Lease,
    is_cached: bool,
}

impl Received {
    pub(super) fn take(
        shared: &Arc<Shared>,
        rank: usize,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        let lease = Lease::take(shared, rank, LeaseKind::Output, call.stream)?;
        Ok(Received { lease, is_cached: false })
    }

    /// That of a cached dispatch.
    pub(super) fn take_cached(
        shared: &Arc<Shared>,
        rank: usize,
        call: &CallOptions,
    ) -> Result<Received, CallError> {
        Ok(Received { is_cached: true, ..Received::take(shared, rank, call)? })
    }

    /// Whether this is the output of a cached dispatch, which has only rows and scales.
    pub fn is_cached(&self) -> bool {
        self.is_cached
    }

    fn require_experts(&self) -> Result<(), CallError> {
        if !self.is_cached {
            return Ok(());
        }
        let what = "a cached dispatch moves only rows and scales: experts and weights are in the output \
        of the first dispatch";
        Err(CallError::Mismatch { what: what.to_string() })
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
        Ok(self.memory()?.rows().0)
    }

    /// Scales of the rows, if the payload has any.
    pub fn scale(&self) -> Result<Rows, CallError> {
        Ok(self.memory()?.rows().1)
    }

    /// Device address of `i64[capacity, topk]`: local experts of each row, -1 for others. An error for a
    /// cached dispatch.
    pub fn topk_idx(&self) -> Result<u64, CallError> {
        self.require_experts()?;
        Ok(self.memory()?.outputs.recv_topk_idx.as_ref().map_or(0, DeviceTensor::address))
    }

    /// Device address of `f32[capacity, topk]`; 0 for a buffer that moves no weights. An error for a cached
    /// dispatch.
    pub fn topk_weights(&self) -> Result<u64, CallError> {
        self.require_experts()?;
        Ok(self.memory()?.outputs.recv_topk_weights.as_ref().map_or(0, DeviceTensor::address))
    }

    pub(super) fn memory(&self) -> Result<&OutputMemory, CallError> {
        Ok(&self.lease.shared.rank(self.lease.rank)?.outputs[self.lease.index])
    }
}

/// A combine input in the window. The experts of one rank write their rows here.
pub struct Offered {
    lease: Lease,
}

impl Offered {
    pub(super) fn take(
        shared: &Arc<Shared>,
        rank: usize,
        stream: Stream,
    ) -> Result<Offered, CallError> {
        Ok(Offered { lease: Lease::take(shared, rank, LeaseKind::Offered, stream)? })
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// bf16 rows, in the order in which the dispatch received its rows.
    pub fn x(&self) -> Result<Rows, CallError> {
        Ok(self.memory()?.x.as_rows())
    }

    /// f32 weights of the rows, for a buffer that moves weights.
    pub fn weights(&self) -> Result<Rows, CallError> {
        Ok(self.memory()?.weights.as_ref().map_or_else(Rows::default, DeviceTensor::as_rows))
    }

    pub(super) fn memory(&self) -> Result<&OfferMemory, CallError> {
        Ok(&self.lease.shared.rank(self.lease.rank)?.offers[self.lease.index])
    }
}

/// Where a combine reads its rows.
#[derive(Clone, Copy)]
pub enum CombineInput<'a> {
    /// Reads a combine input.
    Offered(&'a Offered),
    /// Reads the output of a BF16 dispatch, where the experts worked in place. If the buffer moves weights,
    /// they come from a combine input.
    InPlace(&'a Received, Option<&'a Offered>),
}

impl CombineInput<'_> {
    /// What a graph that reads them has to keep.
    pub(super) fn kept(&self) -> [Option<Kept>; 2] {
        match self {
            CombineInput::Offered(offered) => [Some(offered.lease.kept()), None],
            CombineInput::InPlace(received, offered) => {
                [Some(received.lease.kept()), offered.map(|offered| offered.lease.kept())]
            }
        }
    }

    /// The rows, and their weights if there are any.
    pub(super) fn held(
        &self,
        shared: &Arc<Shared>,
        rank: usize,
    ) -> Result<(&Held, Option<&Held>), CallError> {
        self.check(shared, rank)?;
        let (x, offered) = match self {
            CombineInput::Offered(offered) => (Some(&offered.memory()?.held.x), Some(*offered)),
            CombineInput::InPlace(received, offered) => {
                (received.memory()?.held.combine.as_ref(), *offered)
            }
        };
        let Some(x) = x else {
            return wrong("only a BF16 output can be combined in place");
        };
        let weights = offered.map(|offered| Ok::<_, CallError>(&offered.memory()?.held.weights));
        Ok((x, weights.transpose()?))
    }

    /// The memory belongs to this rank of this buffer, and holds bf16 rows.
    fn check(&self, shared: &Arc<Shared>, rank: usize) -> Result<(), CallError> {
        let (offered, received) = match self {
            CombineInput::Offered(offered) => (Some(*offered), None),
            CombineInput::InPlace(received, offered) => (*offered, Some(*received)),
        };
        if shared.options.weights && offered.is_none() {
            return wrong("the buffer moves weights, and this combine has no weights");
        }
        let offered = offered.map(|offered| &offered.lease);
        let received = received.map(|received| &received.lease);
        for lease in offered.into_iter().chain(received) {
            if !Arc::ptr_eq(&lease.shared, shared) {
                return wrong("the combine input belongs to another buffer");
            }
            if lease.rank != rank {
                return wrong("the combine input and the handle belong to different ranks");
            }
        }
        Ok(())
    }
}

fn wrong<T>(what: &str) -> Result<T, CallError> {
    Err(CallError::Mismatch { what: what.to_string() })
}

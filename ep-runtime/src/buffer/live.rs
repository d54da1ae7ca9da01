//! What a call leaves: handles with their tables, outputs, and inputs of combines.
//!
//! All of it was allocated with the buffer; taking one is taking a number from a pool, and dropping
//! it gives the number back. What is still in flight then stays valid: the next user comes later in
//! the same stream order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::slots::{Slot, Slots};
use super::{RankState, Shared};
use crate::args::Rows;
use crate::error::CallError;

/// What no count can be: host words hold it until the kernel has written the count.
pub(super) const NOT_YET: u32 = u32::MAX;

/// Free numbers, and something for each of them.
pub(super) struct Pool<T> {
    free: Vec<usize>,
    items: Vec<T>,
}

impl<T: Default> Pool<T> {
    pub(super) fn new(count: usize) -> Pool<T> {
        let items = (0..count).map(|_| T::default()).collect();
        Pool { free: (0..count).rev().collect(), items }
    }

    fn take(&mut self, what: &'static str, rank: usize) -> Result<usize, CallError> {
        let live = self.items.len();
        self.free.pop().ok_or(CallError::AllInUse { what, rank, live })
    }
}

/// One set of tables.
#[derive(Debug, Default)]
pub(super) struct TablesSlot {
    /// The kernel that writes its counts was launched and has not been seen to finish.
    counting: bool,
}

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
    shared: Arc<Shared>,
    rank: usize,
    tokens: usize,
    index: usize,
}

impl Handle {
    pub(super) fn take(
        shared: &Arc<Shared>,
        rank: usize,
        tokens: usize,
    ) -> Result<Handle, CallError> {
        let (index, counting) = {
            let mut state = shared.rank(rank)?.state();
            let index = state.handles.take("handles", rank)?;
            (index, state.handles.items[index].counting)
        };
        let handle = Handle { shared: Arc::clone(shared), rank, tokens, index };
        if counting {
            // An earlier user dropped it unread: its counts must not come after the words are
            // reset.
            handle.wait_for_counts()?;
        }
        let (received, per_expert) = shared.no_counts.split_at(1);
        let memory = &shared.rank(rank)?.counts[index];
        memory.write(handle.count_at("received"), received)?;
        memory.write(handle.count_at("received_per_expert"), per_expert)?;
        Ok(handle)
    }

    /// Notes that the kernel which writes the counts is in the stream.
    pub(super) fn counting(&self, state: &mut RankState) {
        state.handles.items[self.index].counting = true;
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Tokens of the dispatch on this rank.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How many rows arrive. Waits for the exchange of counts, not for the rows.
    pub fn counts(&self) -> Result<Counts, CallError> {
        let words = self.wait_for_counts()?;
        let received = words.first().map_or(0, |word| *word as usize);
        let per_expert = words.iter().skip(1).map(|word| *word as usize).collect();
        Ok(Counts { received, per_expert })
    }

    /// Device address of a table, for a pipeline of the user; none if the dispatch has no such one.
    pub fn table(&self, name: &str) -> Option<u64> {
        let tables = self.shared.rank(self.rank).ok()?.tables.address();
        Some(tables + self.tables_at() + self.shared.layout.tables.at(name)?)
    }

    pub(super) fn belongs_to(&self, shared: &Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.shared), shared)
    }

    pub(super) fn bind(&self, slots: &mut Slots) -> Result<(), CallError> {
        let own = self.shared.rank(self.rank)?;
        slots
            .set(Slot::Tables, own.tables.address() + self.tables_at())
            .set(Slot::Counts, own.counts[self.index].address());
        Ok(())
    }

    /// Fails on every rank alike if the output of any rank is too small. The table of totals is the
    /// same everywhere, so all ranks decide alike.
    pub(super) fn require_capacity(&self) -> Result<(), CallError> {
        self.wait_for_counts()?;
        let ranks = self.shared.group.ranks();
        let mut totals = vec![0; 4 * ranks];
        let table = self.shared.layout.tables.at("rank_prefix").unwrap_or(0);
        let at = self.tables_at() + table + 4 * (ranks * ranks) as u64;
        let stream = self.shared.rank(self.rank)?.state().last;
        // The counts came before the kernel's last store: the table is complete after the stream.
        self.shared.group.backend().sync(self.rank, stream)?;
        self.shared.rank(self.rank)?.tables.read(at, &mut totals)?;
        let have = self.shared.options.capacity(ranks) as u64;
        for (rank, total) in totals.chunks_exact(4).enumerate() {
            let need = u64::from(u32::from_le_bytes([total[0], total[1], total[2], total[3]]));
            if need > have {
                return Err(CallError::OutputTooSmall { rank, need, have });
            }
        }
        Ok(())
    }

    fn tables_at(&self) -> u64 {
        self.index as u64 * self.shared.layout.tables.bytes()
    }

    fn count_at(&self, name: &str) -> u64 {
        self.shared.layout.counts.at(name).unwrap_or(0)
    }

    /// The words `received` and `received_per_expert`, once the kernel has written all of them.
    fn wait_for_counts(&self) -> Result<Vec<u32>, CallError> {
        let own = self.shared.rank(self.rank)?;
        let group = &self.shared.group;
        let begun = Instant::now();
        // Where kernels run inside `poll`, what one `poll` has not brought will not come.
        let runs_alone = group.backend().runs_alone();
        let patience = if runs_alone { group.timeout() * 2 } else { Duration::ZERO };
        let mut words = self.shared.no_counts.clone();
        for turn in 1u64.. {
            let (received, per_expert) = words.split_at_mut(1);
            own.counts[self.index].read(self.count_at("received"), received)?;
            own.counts[self.index].read(self.count_at("received_per_expert"), per_expert)?;
            if !words.contains(&NOT_YET) {
                break;
            }
            std::hint::spin_loop();
            // Looking at the device costs more than looking at the words.
            if turn % 64 == 0 || !runs_alone {
                group.explain(self.rank, group.backend().poll(self.rank))?;
                if turn > 1 && begun.elapsed() > patience {
                    return Err(CallError::Silent { rank: self.rank, what: "the counts" });
                }
            }
        }
        own.state().handles.items[self.index].counting = false;
        Ok(words)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        give_back(&self.shared, self.rank, |state| state.handles.free.push(self.index));
    }
}

/// The output of one dispatch on one rank.
pub struct Received {
    shared: Arc<Shared>,
    rank: usize,
    index: usize,
}

impl Received {
    pub(super) fn take(shared: &Arc<Shared>, rank: usize) -> Result<Received, CallError> {
        let index = shared.rank(rank)?.state().outputs.take("outputs", rank)?;
        Ok(Received { shared: Arc::clone(shared), rank, index })
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Rows of the payload's values.
    pub fn x(&self) -> Result<Rows, CallError> {
        let window = self.shared.window.own(self.rank)?;
        let rows = self.shared.layout.received.at("rows").unwrap_or(0);
        let stride = self.shared.options.row_stride() as i64;
        Ok(Rows::new(window + self.region_at() + rows, stride))
    }

    /// Scales of the rows, if the payload has any.
    pub fn scale(&self) -> Result<Rows, CallError> {
        let scales = self.shared.options.payload.scales(self.shared.options.hidden);
        match scales {
            0 => Ok(Rows::default()),
            _ => Ok(Rows::new(self.unpacked("scale")?, scales as i64)),
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
        self.shared.layout.received_at(self.index)
    }

    fn unpacked(&self, name: &str) -> Result<u64, CallError> {
        let unpacked = self.shared.rank(self.rank)?.unpacked.address();
        let block = self.index as u64 * self.shared.layout.unpacked.bytes();
        Ok(unpacked + block + self.shared.layout.unpacked.at(name).unwrap_or(0))
    }

    pub(super) fn bind(&self, slots: &mut Slots) -> Result<(), CallError> {
        let own = self.shared.rank(self.rank)?;
        let unpacked = self.index as u64 * self.shared.layout.unpacked.bytes();
        slots
            .set(Slot::Received, self.shared.window.own(self.rank)? + self.region_at())
            .set(Slot::ReceivedAt, self.region_at())
            .set(Slot::Unpacked, own.unpacked.address() + unpacked);
        Ok(())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        give_back(&self.shared, self.rank, |state| state.outputs.free.push(self.index));
    }
}

/// A combine input in the window: the experts of one rank leave their rows here.
pub struct Offered {
    shared: Arc<Shared>,
    rank: usize,
    index: usize,
}

impl Offered {
    pub(super) fn take(shared: &Arc<Shared>, rank: usize) -> Result<Offered, CallError> {
        let index = shared.rank(rank)?.state().offered.take("combine inputs", rank)?;
        Ok(Offered { shared: Arc::clone(shared), rank, index })
    }

    /// bf16 rows, in the order in which the dispatch received theirs.
    pub fn x(&self) -> Result<Rows, CallError> {
        let rows = self.window_at("rows");
        let stride = self.shared.options.combine_stride() as i64;
        Ok(Rows::new(self.shared.window.own(self.rank)? + rows, stride))
    }

    /// f32 weights of the rows, for a buffer that moves weights.
    pub fn weights(&self) -> Result<Rows, CallError> {
        let weights = self.window_at("weights");
        let stride = self.shared.options.weights_stride() as i64;
        Ok(Rows::new(self.shared.window.own(self.rank)? + weights, stride))
    }

    fn window_at(&self, name: &str) -> u64 {
        let region = self.shared.layout.offered_at(self.index);
        region + self.shared.layout.offered.at(name).unwrap_or(0)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        give_back(&self.shared, self.rank, |state| state.offered.free.push(self.index));
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
    pub(super) fn bind(
        &self,
        shared: &Arc<Shared>,
        rank: usize,
        slots: &mut Slots,
    ) -> Result<(), CallError> {
        self.check(shared, rank)?;
        let (x, x_at, weights) = match self {
            CombineInput::Offered(offered) => {
                (offered.x()?, offered.window_at("rows"), Some(*offered))
            }
            CombineInput::InPlace(received, weights) => {
                let rows = shared.layout.received.at("rows").unwrap_or(0);
                (received.x()?, received.region_at() + rows, *weights)
            }
        };
        slots.set(Slot::X, x.address).set(Slot::XStride, x.row_stride as u64).set(Slot::XAt, x_at);
        if let Some(offered) = weights {
            slots.set(Slot::Weights, offered.weights()?.address);
            slots.set(Slot::WeightsAt, offered.window_at("weights"));
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
        let offered = offered.map(|offered| (&offered.shared, offered.rank));
        let received = received.map(|received| (&received.shared, received.rank));
        for (owner, own) in offered.into_iter().chain(received) {
            if !Arc::ptr_eq(owner, shared) {
                return wrong("the combine input belongs to another buffer");
            }
            if own != rank {
                return wrong("the combine input belongs to another rank than the handle");
            }
        }
        Ok(())
    }
}

/// Returns a number to its pool.
fn give_back(shared: &Shared, rank: usize, back: impl FnOnce(&mut RankState)) {
    if let Ok(own) = shared.rank(rank) {
        back(&mut own.state());
    }
}

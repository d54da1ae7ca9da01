//! Measures plain pushes of bytes: to every other rank, as the link carries them, and to all ranks, as an
//! SM stores them.

use std::sync::Arc;
use std::time::Duration;

use crate::args::{Bindings, Rows};
use crate::backend::{Event, Stream};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, GroupKernel, control_bytes};
use crate::handwritten::HandwrittenKernel;
use crate::memory::{DeviceMemory, Window};

/// Bytes that move at once; volumes are rounded up to whole ones.
const PIECE_BYTES: u64 = 4096;

/// What `pushes.cu` keeps in shared memory: 8 warps with 4 pieces and their barriers each.
const SHARED_BYTES: i64 = 8 * 4 * (4096 + 8);

/// Grids that are tried: more blocks move more, until the wire is full.
const BLOCKS: [u32; 5] = [8, 16, 24, 32, 64];

/// The kernel.
pub const PUSH_TEXT: &str = include_str!("pushes.cu");

const WARMUP: u32 = 3;
const ROUNDS: u32 = 10;

/// Where every rank pushes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Every other rank.
    Others,
    /// Every rank, including the rank itself.
    All,
}

impl Destination {
    /// Number of destinations, in a group of `ranks` ranks.
    pub fn peers(self, ranks: usize) -> u64 {
        match self {
            Destination::Others => ranks as u64 - 1,
            Destination::All => ranks as u64,
        }
    }
}

/// The shortest time in which all ranks push `bytes` each to the others together, with the number of blocks
/// that took it. `None` on devices without bulk copies, for a group of one rank, and between nodes.
pub fn wire_time(group: &Group, bytes: u64) -> Result<Option<(Duration, u32)>, CallError> {
    let backend = group.backend();
    if bytes == 0 || !can_be_timed(group, Destination::Others) {
        return Ok(None);
    }
    let pushes = Pushes::new(group, Destination::Others, bytes)?;
    let mut best: Option<(Duration, u32)> = None;
    for blocks in BLOCKS {
        if group.local().any(|rank| backend.sms(rank) < blocks) {
            break;
        }
        let time = pushes.time(blocks)?;
        if best.is_none_or(|(shortest, _)| time < shortest) {
            best = Some((time, blocks));
        }
    }
    // Whole pieces were moved; the caller's bytes are a part of them.
    let share = bytes as f64 / pushes.all_bytes() as f64;
    Ok(best.map(|(time, blocks)| (time.mul_f64(share), blocks)))
}

/// Bytes per second that each rank pushes with this many blocks. `None` in the cases of [`wire_time`].
pub fn push_rate(
    group: &Group,
    destination: Destination,
    bytes: u64,
    blocks: u32,
) -> Result<Option<f64>, CallError> {
    if !can_be_timed(group, destination) {
        return Ok(None);
    }
    let pushes = Pushes::new(group, destination, bytes)?;
    let seconds = pushes.time(blocks)?.as_secs_f64();
    Ok((seconds > 0.0).then(|| pushes.all_bytes() as f64 / seconds))
}

fn can_be_timed(group: &Group, destination: Destination) -> bool {
    let backend = group.backend();
    let has_peers = destination.peers(group.ranks()) > 0;
    group.nodes() == 1 && has_peers && backend.arch().has_tma() && backend.runs_alone()
}

/// A prepared plain push by every rank.
pub struct Pushes {
    group: Group,
    destination: Destination,
    kernel: GroupKernel,
    window: Arc<Window>,
    from: Vec<DeviceMemory>,
    /// To each peer.
    bytes: u64,
    clocks: Vec<(Event, Event)>,
}

impl Pushes {
    /// Prepares a push of `bytes` from each rank to all its peers together; rounding may add some.
    pub fn new(group: &Group, destination: Destination, bytes: u64) -> Result<Pushes, CallError> {
        if group.nodes() > 1 {
            let nodes = group.nodes();
            let what = format!(
                "plain pushes reach only the ranks of one node, and this group has {nodes}"
            );
            return Err(CallError::Mismatch { what });
        }
        let (backend, ranks) = (group.backend(), group.ranks() as u64);
        let each = bytes / destination.peers(group.ranks());
        let bytes = each.next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
        let made = HandwrittenKernel {
            name: "Wire",
            entry: "wire_push",
            numbers: &["ranks", "first", "peers"],
            pointers: &["from"],
            wide_numbers: &["bytes"],
            threads: 256,
            shared_bytes: SHARED_BYTES,
            window_bytes: (ranks * bytes) as i64,
            blocks_min: 1,
            waits: true,
            enters: true,
        };
        let plan = made.plan(backend.arch());
        let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
        let cuda = PUSH_TEXT.to_string();
        let emitted = Emitted { cuda, plan };
        let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
        let from = group.local().map(|rank| {
            let memory = DeviceMemory::new(backend, rank, bytes)?;
            memory.write(0, &sent_by(rank, bytes))?;
            Ok::<DeviceMemory, CallError>(memory)
        });
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let group = group.clone();
        let clocks = Vec::new();
        let mut pushes = Pushes { group, destination, kernel, window, from, bytes, clocks };
        for rank in pushes.group.local() {
            let backend = pushes.group.backend();
            pushes.clocks.push((backend.create_event(rank)?, backend.create_event(rank)?));
        }
        Ok(pushes)
    }

    /// Bytes from each rank to each of its peers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address at a local rank where the bytes of `source` arrive.
    pub fn region(&self, rank: usize, source: usize) -> Result<u64, CallError> {
        Ok(self.window.own(rank)? + source as u64 * self.bytes)
    }

    /// The bytes that a rank sends to each of its peers.
    pub fn sent_by(&self, rank: usize) -> Vec<u8> {
        sent_by(rank, self.bytes)
    }

    /// Bytes from each rank.
    fn all_bytes(&self) -> u64 {
        self.bytes * self.destination.peers(self.group.ranks())
    }

    /// Queues one push on every local rank.
    pub fn push(&self, blocks: u32) -> Result<(), CallError> {
        let ranks = self.group.ranks();
        for (rank, from) in self.group.local().zip(&self.from) {
            let mut bindings = Bindings::new();
            bindings
                .number("ranks", ranks as i64)
                .number("first", i64::from(self.destination == Destination::Others))
                .number("peers", self.destination.peers(ranks) as i64)
                .number("bytes", self.bytes as i64)
                .tensor("from", Rows::new(from.address(), 1));
            self.kernel.launch(rank, Stream::OWN, blocks, &bindings)?;
        }
        Ok(())
    }

    /// Mean time of a push by all ranks at once: that of the slowest.
    fn time(&self, blocks: u32) -> Result<Duration, CallError> {
        let backend = self.group.backend();
        backend.gather("measure the wire", u64::from(blocks))?;
        for round in 0..WARMUP + ROUNDS {
            if round == WARMUP {
                for (rank, (start, _)) in self.group.local().zip(&self.clocks) {
                    backend.record(rank, Stream::OWN, start)?;
                }
            }
            self.push(blocks)?;
        }
        let mut slowest = Duration::ZERO;
        for (rank, (_, stop)) in self.group.local().zip(&self.clocks) {
            backend.record(rank, Stream::OWN, stop)?;
        }
        for (rank, (start, stop)) in self.group.local().zip(&self.clocks) {
            self.group.sync(rank)?;
            slowest = slowest.max(backend.elapsed(rank, start, stop)? / ROUNDS);
        }
        let local = u64::try_from(slowest.as_nanos()).unwrap_or(u64::MAX);
        let all = backend.gather("compare times", local)?;
        Ok(Duration::from_nanos(all.into_iter().max().unwrap_or(local)))
    }
}

/// Words of a linear congruential generator: no row of zeros, which a device might move faster.
fn sent_by(rank: usize, bytes: u64) -> Vec<u8> {
    let next = |word: &u64| {
        Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    let words = std::iter::successors(next(&(rank as u64 + 1)), next).take(bytes as usize / 8);
    words.flat_map(u64::to_le_bytes).collect()
}

impl Drop for Pushes {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, (start, stop)) in self.group.local().zip(std::mem::take(&mut self.clocks)) {
            let _ = backend.destroy_event(rank, start);
            let _ = backend.destroy_event(rank, stop);
        }
    }
}

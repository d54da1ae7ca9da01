//! What the wire itself gives: every rank pushes plain bytes to every other one. And what a copy
//! gives: every rank pushes to itself.

use std::sync::Arc;
use std::time::Duration;

use super::hand::HandMade;
use crate::args::{Bindings, Rows};
use crate::backend::{Event, Stream};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, Kernel, control_bytes};
use crate::memory::{DeviceMemory, Window};
use crate::oracle::{Differences, Random, random_bytes};

/// Bytes that move at once; volumes are rounded up to whole ones.
const PIECE_BYTES: u64 = 4096;

/// What `wire.cu` keeps in shared memory: 8 warps with 4 pieces and their barriers each.
const SHARED_BYTES: i64 = 8 * 4 * (4096 + 8);

/// Grids that are tried: more blocks move more, until the wire is full.
const BLOCKS: [u32; 5] = [8, 16, 24, 32, 64];

const WARMUP: u32 = 3;
const ROUNDS: u32 = 10;

/// Where every rank pushes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Every other rank.
    Others,
    /// The rank itself.
    Own,
    /// Every rank, itself too.
    All,
}

impl Destination {
    /// How many ranks that is, for each of `ranks`.
    fn peers(self, ranks: usize) -> u64 {
        match self {
            Destination::Others => ranks as u64 - 1,
            Destination::Own => 1,
            Destination::All => ranks as u64,
        }
    }
}

/// The shortest time in which all ranks push `bytes` each to the others together, with the number
/// of blocks that took it. None on devices without bulk copies, and for a group of one.
pub fn wire_time(group: &Group, bytes: u64) -> Result<Option<(Duration, u32)>, CallError> {
    let backend = group.backend();
    if bytes == 0 || !can_be_timed(group, Destination::Others) {
        return Ok(None);
    }
    let copies = Copies::new(group, Destination::Others, bytes)?;
    let mut best: Option<(Duration, u32)> = None;
    for blocks in BLOCKS {
        if group.local().any(|rank| backend.multiprocessors(rank) < blocks) {
            break;
        }
        let time = copies.time(blocks)?;
        if best.is_none_or(|(shortest, _)| time < shortest) {
            best = Some((time, blocks));
        }
    }
    // Whole pieces were moved; the caller's bytes are a part of them.
    let share = bytes as f64 / copies.all_bytes() as f64;
    Ok(best.map(|(time, blocks)| (time.mul_f64(share), blocks)))
}

/// Bytes a second that each rank pushes with so many blocks. None where [`wire_time`] has none.
pub fn push_rate(
    group: &Group,
    destination: Destination,
    bytes: u64,
    blocks: u32,
) -> Result<Option<f64>, CallError> {
    if !can_be_timed(group, destination) {
        return Ok(None);
    }
    let copies = Copies::new(group, destination, bytes)?;
    let seconds = copies.time(blocks)?.as_secs_f64();
    Ok((seconds > 0.0).then(|| copies.all_bytes() as f64 / seconds))
}

/// Pushes random bytes once and compares what has arrived. Nothing to compare on devices without
/// bulk copies.
pub fn check_pushes(
    group: &Group,
    destination: Destination,
    bytes: u64,
) -> Result<Differences, CallError> {
    if !group.backend().arch().has_tma() || destination.peers(group.ranks()) == 0 {
        return Ok(Differences::default());
    }
    let copies = Copies::new(group, destination, bytes)?;
    copies.push(2)?;
    group.local().try_for_each(|rank| group.sync(rank))?;
    group.backend().gather("all pushes are done", 0)?;
    copies.compare()
}

fn can_be_timed(group: &Group, destination: Destination) -> bool {
    let backend = group.backend();
    destination.peers(group.ranks()) > 0 && backend.arch().has_tma() && backend.runs_alone()
}

struct Copies {
    group: Group,
    destination: Destination,
    kernel: Kernel,
    window: Arc<Window>,
    from: Vec<DeviceMemory>,
    /// To each peer.
    bytes: u64,
    clocks: Vec<(Event, Event)>,
}

impl Copies {
    /// For `bytes` from each rank to all its peers together, and what rounding adds.
    fn new(group: &Group, destination: Destination, bytes: u64) -> Result<Copies, CallError> {
        let (backend, ranks) = (group.backend(), group.ranks() as u64);
        let each = bytes / destination.peers(group.ranks());
        let bytes = each.next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
        let made = HandMade {
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
        };
        let plan = made.plan(backend.arch());
        let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
        let cuda = super::WIRE_TEXT.to_string();
        let emitted = Emitted { cuda, plan };
        let kernel = Kernel::prepare(group, &window, 0, &emitted)?;
        let from = group.local().map(|rank| {
            let memory = DeviceMemory::new(backend, rank, bytes)?;
            memory.write(0, &sent_by(rank, bytes))?;
            Ok::<DeviceMemory, CallError>(memory)
        });
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let group = group.clone();
        let clocks = Vec::new();
        let mut copies = Copies { group, destination, kernel, window, from, bytes, clocks };
        for rank in copies.group.local() {
            let backend = copies.group.backend();
            copies.clocks.push((backend.create_event(rank)?, backend.create_event(rank)?));
        }
        Ok(copies)
    }

    /// Bytes from each rank.
    fn all_bytes(&self) -> u64 {
        self.bytes * self.destination.peers(self.group.ranks())
    }

    /// Queues one push on every local rank.
    fn push(&self, blocks: u32) -> Result<(), CallError> {
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

    /// What every rank has got from its peers; each of them has a region of the window.
    fn compare(&self) -> Result<Differences, CallError> {
        let mut found = Differences::default();
        let mut got = vec![0; self.bytes as usize];
        for rank in self.group.local() {
            for source in 0..self.group.ranks() {
                let sends = match self.destination {
                    Destination::Others => source != rank,
                    Destination::Own => source == rank,
                    Destination::All => true,
                };
                if !sends {
                    continue;
                }
                let region = self.window.own(rank)? + source as u64 * self.bytes;
                self.group.backend().read(rank, region, &mut got)?;
                let want = sent_by(source, self.bytes);
                let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
                found.note(wrong.is_none(), || {
                    let at = wrong.unwrap_or(0);
                    let (have, want) = (got[at], want[at]);
                    format!("rank {rank} from {source}, byte {at}: {have:#04x}, not {want:#04x}")
                });
            }
        }
        Ok(found)
    }
}

/// What a rank sends to each of its peers.
fn sent_by(rank: usize, bytes: u64) -> Vec<u8> {
    random_bytes(bytes as usize, &mut Random::new(rank as u64))
}

impl Drop for Copies {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, (start, stop)) in self.group.local().zip(std::mem::take(&mut self.clocks)) {
            let _ = backend.destroy_event(rank, start);
            let _ = backend.destroy_event(rank, stop);
        }
    }
}

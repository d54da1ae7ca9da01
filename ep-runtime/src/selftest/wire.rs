//! What the wire itself gives: every rank pushes plain bytes to every other one.

use std::sync::Arc;
use std::time::Duration;

use super::hand::HandMade;
use crate::args::{Bindings, Rows};
use crate::backend::{Event, Stream};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, Kernel};
use crate::memory::{DeviceMemory, Window};

/// Bytes that move at once; volumes are rounded up to whole ones.
const PIECE_BYTES: u64 = 4096;

/// What `wire.cu` keeps in shared memory: 8 warps with 4 pieces and their barriers each.
const SHARED_BYTES: i64 = 8 * 4 * (4096 + 8);

/// Grids that are tried: more blocks move more, until the wire is full.
const BLOCKS: [u32; 5] = [8, 16, 24, 32, 64];

const WARMUP: u32 = 3;
const ROUNDS: u32 = 10;

/// The shortest time in which all ranks push `bytes` each to the others together, with the number
/// of blocks that took it. None on devices without bulk copies, and for a group of one.
pub fn wire_time(group: &Group, bytes: u64) -> Result<Option<(Duration, u32)>, CallError> {
    let (backend, ranks) = (group.backend(), group.ranks());
    if ranks < 2 || bytes == 0 || !backend.arch().has_tma() || !backend.runs_alone() {
        return Ok(None);
    }
    let each = (bytes / (ranks as u64 - 1)).next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
    let wire = Wire::new(group, each)?;
    let mut best: Option<(Duration, u32)> = None;
    for blocks in BLOCKS {
        if group.local().any(|rank| backend.multiprocessors(rank) < blocks) {
            break;
        }
        let time = wire.time(blocks)?;
        if best.is_none_or(|(shortest, _)| time < shortest) {
            best = Some((time, blocks));
        }
    }
    // Whole pieces were moved; the caller's bytes are a part of them.
    let moved = each * (ranks as u64 - 1);
    Ok(best.map(|(time, blocks)| (time.mul_f64(bytes as f64 / moved as f64), blocks)))
}

struct Wire {
    group: Group,
    kernel: Kernel,
    from: Vec<DeviceMemory>,
    bytes: u64,
    clocks: Vec<(Event, Event)>,
}

impl Wire {
    fn new(group: &Group, bytes: u64) -> Result<Wire, CallError> {
        let (backend, ranks) = (group.backend(), group.ranks() as u64);
        let plan = HandMade {
            name: "Wire",
            entry: "wire_push",
            numbers: &["ranks"],
            pointers: &["from"],
            wide_numbers: &["bytes"],
            threads: 256,
            shared_bytes: SHARED_BYTES,
            window_bytes: (ranks * bytes) as i64,
            blocks_min: 1,
        };
        let window = Arc::new(Window::new(backend, ranks * bytes)?);
        let cuda = include_str!("wire.cu").to_string();
        let emitted = Emitted { cuda, plan: plan.plan(backend.arch()) };
        let kernel = Kernel::prepare(group, &window, 0, &emitted)?;
        let from = group.local().map(|rank| DeviceMemory::zeroed(backend, rank, bytes));
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let mut wire = Wire { group: group.clone(), kernel, from, bytes, clocks: Vec::new() };
        for rank in group.local() {
            wire.clocks.push((backend.create_event(rank)?, backend.create_event(rank)?));
        }
        Ok(wire)
    }

    /// Mean time of a push by all ranks at once: that of the slowest.
    fn time(&self, blocks: u32) -> Result<Duration, CallError> {
        let backend = self.group.backend();
        backend.gather("measure the wire", u64::from(blocks))?;
        for round in 0..WARMUP + ROUNDS {
            for (index, rank) in self.group.local().enumerate() {
                if round == WARMUP {
                    backend.record(rank, Stream::OWN, &self.clocks[index].0)?;
                }
                let mut bindings = Bindings::new();
                bindings
                    .number("ranks", self.group.ranks() as i64)
                    .number("bytes", self.bytes as i64)
                    .tensor("from", Rows::new(self.from[index].address(), 1));
                self.kernel.launch(rank, Stream::OWN, blocks, &bindings)?;
            }
        }
        let mut slowest = Duration::ZERO;
        for (rank, (start, stop)) in self.group.local().zip(&self.clocks) {
            backend.record(rank, Stream::OWN, stop)?;
            self.group.sync(rank)?;
            slowest = slowest.max(backend.elapsed(rank, start, stop)? / ROUNDS);
        }
        let local = u64::try_from(slowest.as_nanos()).unwrap_or(u64::MAX);
        let all = backend.gather("compare times", local)?;
        Ok(Duration::from_nanos(all.into_iter().max().unwrap_or(local)))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, (start, stop)) in self.group.local().zip(std::mem::take(&mut self.clocks)) {
            let _ = backend.destroy_event(rank, start);
            let _ = backend.destroy_event(rank, stop);
        }
    }
}

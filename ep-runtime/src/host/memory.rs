//! The memory of an emulated machine by address. A freed block is reused for the next block of its size.

use std::collections::BTreeMap;

use ep_emu::{Address, Failure, World};

use crate::backend::BackendError;

/// What every byte of a new block of device memory is: nothing may rely on zeros.
const FRESH: u8 = 0xcd;

/// Which side reaches a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// Its rank alone; any content.
    Device,
    /// Its rank and the host; zeros.
    Host,
    /// Every rank; zeros.
    Window,
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    rank: usize,
    reach: Reach,
    bytes: u64,
}

/// The blocks of all ranks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    used: BTreeMap<u64, Kind>,
    /// Freed, while what is queued may use them.
    ending: Vec<(u64, Kind)>,
    free: BTreeMap<Kind, Vec<u64>>,
}

impl Blocks {
    /// A new block, aligned to 256 bytes.
    pub(super) fn alloc(
        &mut self,
        world: &mut World,
        rank: usize,
        reach: Reach,
        bytes: u64,
    ) -> Result<u64, BackendError> {
        let kind = Kind { rank, reach, bytes: bytes.max(1) };
        let again = self.free.get_mut(&kind).and_then(Vec::pop);
        let address = match again {
            Some(address) => address,
            None => new_block(world, kind).map_err(|failure| BackendError::Failed {
                call: "World::alloc",
                rank: Some(rank),
                code: 0,
                text: failure.message,
            })?,
        };
        let content = if reach == Reach::Device { FRESH } else { 0 };
        // Memory of a new window is zero already, and touching it would back all of it with pages.
        if (again.is_some() || content != 0)
            && let Some(all) = world.bytes_mut(Address(address), kind.bytes as usize)
        {
            all.fill(content);
        }
        self.used.insert(address, kind);
        Ok(address)
    }

    /// Bytes that a rank has on its device and in windows.
    pub(super) fn device_bytes(&self, rank: usize) -> u64 {
        let own = self.used.values().filter(|kind| kind.rank == rank && kind.reach != Reach::Host);
        own.map(|kind| kind.bytes).sum()
    }

    /// Frees a block; it is used again once `give_back` has it.
    pub(super) fn free(&mut self, rank: usize, address: u64) -> Result<(), BackendError> {
        if self.used.get(&address).is_none_or(|kind| kind.rank != rank) {
            let what = format!("{address:#x} is not a block of rank {rank}");
            return Err(BackendError::Wrong { what });
        }
        self.ending.extend(self.used.remove(&address).map(|kind| (address, kind)));
        Ok(())
    }

    /// Gives back what has been freed of ranks that use nothing any more.
    pub(super) fn give_back(&mut self, is_idle: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut given_back = Vec::new();
        for (address, kind) in self.ending.extract_if(.., |(_, kind)| is_idle(kind.rank)) {
            self.free.entry(kind).or_default().push(address);
            given_back.push(address);
        }
        given_back
    }
}

fn new_block(world: &mut World, kind: Kind) -> Result<u64, Failure> {
    let (rank, bytes) = (kind.rank as u32, kind.bytes as usize);
    let address = match kind.reach {
        Reach::Device => world.alloc_local(rank, bytes, "device memory"),
        Reach::Host => world.alloc_local(rank, bytes, "host memory"),
        Reach::Window => world.alloc(rank, bytes, "window"),
    };
    Ok(address?.0)
}

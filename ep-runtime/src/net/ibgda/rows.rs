//! The memory for rows and counters: where it is, and how the card gets at it.

use std::ptr;
use std::sync::Arc;

use super::super::rows::{self, RowsOn, UNIT};
use super::device::Device;
use super::objects::{Domain, Memory, Region};
use super::places::CardPlaces;
use crate::backend::{Backend, CardAccess};
use crate::memory::{DeviceMemory, HostMemory};
use crate::net_error::NetError;

/// What holds them.
enum Block {
    Device { _memory: DeviceMemory, access: [CardAccess; 2] },
    Host(HostMemory),
}

/// Rows and counters of one rank, each in whole units.
pub(super) struct Rows {
    block: Block,
    pub(super) on: RowsOn,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) rank: usize,
    /// Where kernels and cards find them.
    pub(super) address: u64,
    /// Units before them in their block.
    skipped: u64,
    /// Bytes of rows, and of counters.
    parts: [u64; 2],
}

impl Rows {
    /// In the memory of the GPU if a card reaches that and nobody wants otherwise.
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        rank: usize,
        places: &CardPlaces,
        on_host: bool,
    ) -> Result<Rows, NetError> {
        let data = places.counters(0, 0);
        let parts = [data, places.row_bytes() - data];
        let backend = Arc::clone(backend);
        if !on_host {
            let (memory, address) = rows::units(&backend, rank, places.row_bytes())?;
            let skipped = address - memory.address();
            let [first, second] = [(address, parts[0]), (address + data, parts[1])]
                .map(|(at, bytes)| backend.reach_by_card(rank, at, bytes));
            let access = [first?, second?];
            if let [Some(on), other] = access.each_ref().map(RowsOn::of)
                && other == Some(on)
            {
                let block = Block::Device { _memory: memory, access };
                return Ok(Rows { block, on, backend, rank, address, skipped, parts });
            }
        }
        let memory = HostMemory::new(&backend, rank, places.row_bytes() + UNIT)?;
        let host = memory.host() as u64;
        let skipped = host.next_multiple_of(UNIT) - host;
        let (address, on) = (memory.address() + skipped, RowsOn::Host);
        Ok(Rows { block: Block::Host(memory), on, backend, rank, address, skipped, parts })
    }

    /// Registers rows, which the bus may reorder, and counters, which it may not: nothing comes to memory
    /// after an add that was sent before it.
    pub(super) fn register(
        &self,
        device: &Device,
        domain: &Domain,
    ) -> Result<[Region; 2], NetError> {
        let [data, counters] = self.parts;
        let memory = |index: usize, at: u64, bytes: u64| match &self.block {
            Block::Device { access, .. } => Memory {
                address: self.address + at,
                bytes: bytes as usize,
                host: ptr::null_mut(),
                access: Some(&access[index]),
            },
            Block::Host(memory) => Memory {
                address: self.address + at,
                bytes: bytes as usize,
                host: memory.host().wrapping_add((self.skipped + at) as usize).cast(),
                access: None,
            },
        };
        let first = Region::new(device, domain, memory(0, 0, data), true)?;
        let second = Region::new(device, domain, memory(1, data, counters), false)?;
        Ok([first, second])
    }
}

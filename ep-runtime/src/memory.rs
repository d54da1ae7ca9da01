//! Memory that frees itself: device blocks, host blocks and symmetric windows.

use std::sync::Arc;

use crate::backend::{Backend, BackendError, HostBlock, Mapping, Stream};

/// The alignment of everything that is laid out inside a larger block.
pub const ALIGNMENT: u64 = 256;

/// Rounds up to a multiple of [`ALIGNMENT`].
pub fn align_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// A block of device memory of one rank.
pub struct DeviceMemory {
    backend: Arc<dyn Backend>,
    rank: usize,
    address: u64,
    bytes: u64,
}

impl DeviceMemory {
    /// Allocates `bytes` (at least one) with arbitrary content.
    pub fn new(
        backend: &Arc<dyn Backend>,
        rank: usize,
        bytes: u64,
    ) -> Result<DeviceMemory, BackendError> {
        // Not rounded up: the host backend finds what is stored behind the last byte.
        let bytes = bytes.max(1);
        let address = backend.alloc(rank, bytes)?;
        Ok(DeviceMemory { backend: Arc::clone(backend), rank, address, bytes })
    }

    /// Allocates `bytes` that are zero before any later launch runs.
    pub fn zeroed(
        backend: &Arc<dyn Backend>,
        rank: usize,
        bytes: u64,
    ) -> Result<DeviceMemory, BackendError> {
        let memory = DeviceMemory::new(backend, rank, bytes)?;
        memory.fill(Stream::OWN, 0)?;
        backend.sync(rank, Stream::OWN)?;
        Ok(memory)
    }

    /// The rank whose memory it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets every byte, in stream order.
    pub fn fill(&self, stream: Stream, byte: u8) -> Result<(), BackendError> {
        self.backend.fill(self.rank, stream, self.address, byte, self.bytes)
    }

    /// Copies `from` to the byte offset `at`.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), BackendError> {
        self.inside(at, from.len())?;
        self.backend.write(self.rank, self.address + at, from)
    }

    /// Copies from the byte offset `at`, after the work in the rank's own stream.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.inside(at, to.len())?;
        self.backend.read(self.rank, self.address + at, to)
    }

    fn inside(&self, at: u64, len: usize) -> Result<(), BackendError> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let what = format!("{len} bytes at {at} are outside of a block of {} bytes", self.bytes);
        Err(BackendError::Wrong { what })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A failure here means that the device is lost, and its memory with it.
        let _ = self.backend.free(self.rank, self.address);
    }
}

/// A block of host memory that kernels of one rank can access.
pub struct HostMemory {
    backend: Arc<dyn Backend>,
    rank: usize,
    block: HostBlock,
}

impl HostMemory {
    /// Allocates zeroed host memory.
    pub fn new(
        backend: &Arc<dyn Backend>,
        rank: usize,
        bytes: u64,
    ) -> Result<HostMemory, BackendError> {
        let block = backend.alloc_host(rank, align_up(bytes.max(1)))?;
        Ok(HostMemory { backend: Arc::clone(backend), rank, block })
    }

    /// The rank whose kernels can access the block.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Address for kernels.
    pub fn address(&self) -> u64 {
        self.block.device
    }

    /// Address for the host, as long as the block lives; null if the host cannot reach it.
    pub(crate) fn host(&self) -> *mut u8 {
        self.block.host as *mut u8
    }

    /// The block, for [`Backend::hold`].
    pub fn block(&self) -> &HostBlock {
        &self.block
    }

    /// Reads words at the byte offset `at` as they are now.
    pub fn read(&self, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        self.backend.read_host(&self.block, at, to)
    }

    /// Writes words at the byte offset `at`.
    pub fn write(&self, at: u64, from: &[u32]) -> Result<(), BackendError> {
        self.backend.write_host(&self.block, at, from)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.block);
        // A failure here means that the device is lost, and its memory with it.
        let _ = self.backend.free_host(self.rank, block);
    }
}

/// A symmetric window, the same bytes on every rank.
pub struct Window {
    backend: Arc<dyn Backend>,
    mapping: Mapping,
    /// The memory of a window that no other rank reaches, for each local rank; empty for a mapped window.
    own: Vec<DeviceMemory>,
}

impl Window {
    /// Maps a zeroed window on all ranks. Every process of the group must make this call together.
    pub fn new(backend: &Arc<dyn Backend>, bytes: u64) -> Result<Window, BackendError> {
        let mapping = backend.map_window(align_up(bytes.max(1)))?;
        Ok(Window { backend: Arc::clone(backend), mapping, own: Vec::new() })
    }

    /// Allocates a zeroed window for each local rank that no other rank reaches. Other processes take no part.
    pub(crate) fn unshared(backend: &Arc<dyn Backend>, bytes: u64) -> Result<Window, BackendError> {
        let bytes = align_up(bytes.max(1));
        let own = backend.local().map(|rank| DeviceMemory::zeroed(backend, rank, bytes));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let bases = own.iter().map(|memory| {
            let mut bases = vec![0; backend.ranks()];
            bases[memory.rank()] = memory.address();
            bases
        });
        let mapping = Mapping { id: 0, bytes, bases: bases.collect() };
        Ok(Window { backend: Arc::clone(backend), mapping, own })
    }

    /// Maps a zeroed window on all ranks of a group on one machine, of whatever node.
    pub(crate) fn of_machine(
        backend: &Arc<dyn Backend>,
        bytes: u64,
    ) -> Result<Window, BackendError> {
        let mapping = backend.map_machine_window(align_up(bytes.max(1)))?;
        Ok(Window { backend: Arc::clone(backend), mapping, own: Vec::new() })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Size on every rank.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes
    }

    /// The windows of all ranks as the local rank `rank` sees them.
    pub fn bases(&self, rank: usize) -> Result<&[u64], BackendError> {
        let index = rank.checked_sub(self.backend.local().start);
        index
            .and_then(|index| self.mapping.bases.get(index))
            .map(Vec::as_slice)
            .ok_or_else(|| BackendError::Wrong { what: format!("rank {rank} is not local") })
    }

    /// The window of the local rank `rank` itself.
    pub fn own(&self, rank: usize) -> Result<u64, BackendError> {
        let base = self.bases(rank)?.get(rank).copied();
        base.ok_or_else(|| BackendError::Wrong { what: format!("rank {rank} has no window") })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let backend = self.backend.as_ref();
        // Peers may still be reading: their kernels end within the timeout, ours are waited for. Where that cannot be,
        // the window stays.
        if backend.local().any(|rank| backend.require_no_capture(rank).is_err()) {
            return;
        }
        for rank in backend.local() {
            let _ = backend.sync(rank, Stream::OWN);
        }
        if self.own.is_empty() {
            let _ = backend.unmap_window(&self.mapping);
        }
    }
}

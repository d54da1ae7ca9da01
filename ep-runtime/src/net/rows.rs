//! Where the rows of a network are: in GPU memory that a network card can access, or in host memory.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::endpoint::{Block, OnGpu};
use crate::backend::{Backend, CardAccess};
use crate::memory::DeviceMemory;
use crate::net_error::NetError;

/// What a system maps at once, of all that there are.
pub(super) const UNIT: u64 = 64 << 10;

/// Where the rows are that a network moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsOn {
    /// In GPU memory, which the card accesses by a dma-buf.
    GpuByDmaBuf,
    /// In GPU memory, which the card accesses through the kernel module nvidia_peermem.
    GpuByPeerMemory,
    /// In host memory, which the GPU accesses over its bus.
    Host,
}

impl RowsOn {
    /// Where they are if a card reaches the memory of the GPU so; none: it does not.
    pub(super) fn of(access: &CardAccess) -> Option<RowsOn> {
        match access {
            CardAccess::DmaBuf(_) => Some(RowsOn::GpuByDmaBuf),
            CardAccess::PeerMemory => Some(RowsOn::GpuByPeerMemory),
            CardAccess::None => None,
        }
    }
}

impl fmt::Display for RowsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowsOn::GpuByDmaBuf => "in GPU memory, by dma-buf",
            RowsOn::GpuByPeerMemory => "in GPU memory, by nvidia_peermem",
            RowsOn::Host => "in host memory",
        })
    }
}

/// Zeroed device memory for whole units, and where the first of them begins.
pub(super) fn units(
    backend: &Arc<dyn Backend>,
    rank: usize,
    bytes: u64,
) -> Result<(DeviceMemory, u64), NetError> {
    let memory = DeviceMemory::zeroed(backend, rank, bytes.next_multiple_of(UNIT) + UNIT)?;
    let start = memory.address().next_multiple_of(UNIT);
    Ok((memory, start))
}

/// Rows in the memory of a GPU, for libfabric.
pub(super) struct GpuRows {
    _memory: DeviceMemory,
    start: u64,
    bytes: u64,
    device: u64,
    access: CardAccess,
    /// How a card reaches them.
    pub(super) on: RowsOn,
}

impl GpuRows {
    /// Fails where no card reaches the memory of this rank's GPU.
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        (rank, device): (usize, i32),
        bytes: u64,
    ) -> Result<GpuRows, NetError> {
        let (memory, start) = units(backend, rank, bytes)?;
        let access = backend.reach_by_card(rank, start, bytes.next_multiple_of(UNIT))?;
        let why = || format!("cards do not reach the memory of GPU {device} in order");
        let on = RowsOn::of(&access).ok_or_else(|| NetError::NoGpuRows { why: why() })?;
        let device = u64::from(device.unsigned_abs());
        Ok(GpuRows { _memory: memory, start, bytes, device, access, on })
    }

    /// Where kernels find them.
    pub(super) fn address(&self) -> u64 {
        self.start
    }

    /// They are the first that a network has.
    pub(super) fn block(&self) -> Block<'_> {
        let dma_buf = match &self.access {
            CardAccess::DmaBuf(descriptor) => Some(descriptor.as_fd()),
            _ => None,
        };
        let gpu = Some(OnGpu { device: self.device, dma_buf });
        Block { first: 0, start: self.start, bytes: self.bytes, gpu }
    }
}

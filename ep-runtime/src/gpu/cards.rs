//! Access between a GPU and a network card: the card accesses the GPU's memory, and the GPU's kernels
//! access the card's registers. **None of this has run with a card.**

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use cudarc::driver::sys;

use super::driver::{attribute, check};
use crate::backend::{BackendError, CardAccess};

/// The kernel module that looks up GPU memory for the drivers of cards.
const PEER_MEMORY: &str = "/sys/module/nvidia_peermem";

/// Whether that module is loaded.
pub(crate) fn has_peer_memory() -> bool {
    Path::new(PEER_MEMORY).exists()
}

/// How a card reaches memory of the device, whose context is current.
pub(super) fn reach(
    rank: usize,
    ordinal: c_int,
    (at, bytes): (u64, u64),
) -> Result<CardAccess, BackendError> {
    use sys::CUGPUDirectRDMAWritesOrdering as Ordering;
    use sys::CUdevice_attribute_enum as Attribute;
    let ordering = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
    // Kernels of the own device read rows as soon as they see a counter that was written behind them.
    let owner = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as u32;
    if attribute(ordinal, ordering)? < owner {
        return Ok(CardAccess::None);
    }
    if attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? == 0 {
        let supported = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
        let is_reached = has_peer_memory() && attribute(ordinal, supported)? != 0;
        return Ok(if is_reached { CardAccess::PeerMemory } else { CardAccess::None });
    }
    let mut descriptor: c_int = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: for this kind of handle the call writes one descriptor; a wrong range is refused.
    let result = unsafe {
        let to = (&raw mut descriptor).cast();
        sys::cuMemGetHandleForAddressRange(to, at, bytes as usize, kind, 0)
    };
    check("cuMemGetHandleForAddressRange", Some(rank), result)?;
    // SAFETY: the driver has just made the descriptor for us.
    Ok(CardAccess::DmaBuf(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// Maps registers that this process has mapped for the kernels of the current context.
pub(super) fn map(rank: usize, host: u64, bytes: u64) -> Result<u64, BackendError> {
    let host = host as *mut c_void;
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE
        | sys::CU_MEMHOSTREGISTER_DEVICEMAP
        | sys::CU_MEMHOSTREGISTER_IOMEMORY;
    // SAFETY: the range is a register page of a card, mapped until its owner has undone this.
    let result = unsafe { sys::cuMemHostRegister_v2(host, bytes as usize, flags) };
    check("cuMemHostRegister", Some(rank), result).map_err(with_advice)?;
    let mut device = 0;
    // SAFETY: the range was just registered; the call writes one address.
    let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
    if let Err(error) = check("cuMemHostGetDevicePointer", Some(rank), result) {
        let _ = unmap(rank, host as u64);
        return Err(error);
    }
    Ok(device)
}

/// Undoes `map`.
pub(super) fn unmap(rank: usize, host: u64) -> Result<(), BackendError> {
    // SAFETY: the range was registered by `map`, or the driver refuses it.
    let result = unsafe { sys::cuMemHostUnregister(host as *mut c_void) };
    check("cuMemHostUnregister", Some(rank), result)
}

/// What most often keeps registers from being mapped.
fn with_advice(error: BackendError) -> BackendError {
    match error {
        BackendError::Failed { call, rank, code, text } => {
            let text = format!(
                "{text}; the driver maps registers of other devices with the option \
                 NVreg_RegistryDwords=\"PeerMappingOverride=1;\" of the module nvidia"
            );
            BackendError::Failed { call, rank, code, text }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_that_are_not_mapped_say_which_option_does_it() {
        let text = "CUDA_ERROR_NOT_PERMITTED (operation not permitted)".to_string();
        let failed =
            BackendError::Failed { call: "cuMemHostRegister", rank: Some(1), code: 800, text };
        let said = with_advice(failed).to_string();
        assert!(
            said.starts_with(
                "cuMemHostRegister failed for rank 1 with 800: CUDA_ERROR_NOT_PERMITTED"
            )
        );
        assert!(said.contains("PeerMappingOverride=1"), "{said}");
    }
}

//! Windows of the ranks of one process: memory of one device that all the others have mapped.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::driver::{check, handle};
use crate::backend::BackendError;

/// How windows are shared among the devices of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Virtual memory management: one mapping, access granted to exactly the group's devices.
    #[default]
    Mapped,
    /// Ordinary allocations with peer access between the contexts.
    PeerAccess,
}

/// One rank's window as this process mapped it.
#[derive(Debug)]
pub(super) struct RankWindow {
    pub(super) address: u64,
    bytes: usize,
    /// The physical memory behind it; none for an ordinary allocation.
    memory: Option<sys::CUmemGenericAllocationHandle>,
}

impl RankWindow {
    /// Memory on `owner` that every device in `users` can read and write. With
    /// [`Sharing::PeerAccess`] the owner's context is current and peers are already enabled.
    pub(super) fn new(
        rank: usize,
        owner: c_int,
        users: &[c_int],
        bytes: u64,
        sharing: Sharing,
    ) -> Result<RankWindow, BackendError> {
        match sharing {
            Sharing::Mapped => map(rank, owner, users, bytes),
            Sharing::PeerAccess => {
                let mut address = 0;
                // SAFETY: writes one address; the owner's context is current.
                let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
                check("cuMemAlloc", Some(rank), result)?;
                Ok(RankWindow { address, bytes: bytes as usize, memory: None })
            }
        }
    }

    /// Gives the memory back; nothing may use it any more.
    pub(super) fn release(self, rank: usize) -> Result<(), BackendError> {
        let Some(memory) = self.memory else {
            // SAFETY: the address came from cuMemAlloc and is freed once, since `self` is consumed.
            return check("cuMemFree", Some(rank), unsafe { sys::cuMemFree_v2(self.address) });
        };
        // SAFETY: address and size are those of the one mapping and reservation made in `map`, and
        // `self` is consumed, so each is undone once; all three are tried even if one fails.
        let results = unsafe {
            [
                ("cuMemUnmap", sys::cuMemUnmap(self.address, self.bytes)),
                ("cuMemRelease", sys::cuMemRelease(memory)),
                ("cuMemAddressFree", sys::cuMemAddressFree(self.address, self.bytes)),
            ]
        };
        results.into_iter().try_for_each(|(call, result)| check(call, Some(rank), result))
    }
}

/// Creates physical memory on `owner`, gives it an address and lets `users` in.
fn map(rank: usize, owner: c_int, users: &[c_int], bytes: u64) -> Result<RankWindow, BackendError> {
    let properties = properties(owner)?;
    let mut granule = 0;
    // SAFETY: reads the properties and writes one size.
    let result = unsafe {
        let recommended =
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        sys::cuMemGetAllocationGranularity(&mut granule, &properties, recommended)
    };
    check("cuMemGetAllocationGranularity", Some(rank), result)?;
    let bytes = (bytes as usize).next_multiple_of(granule.max(1));
    let mut memory = 0;
    // SAFETY: reads the properties and writes one handle.
    let result = unsafe { sys::cuMemCreate(&mut memory, bytes, &properties, 0) };
    check("cuMemCreate", Some(rank), result)?;
    let address = match place(rank, bytes, granule, memory) {
        Ok(address) => address,
        Err(error) => {
            // SAFETY: the handle was made above and nothing has mapped it.
            let _ = unsafe { sys::cuMemRelease(memory) };
            return Err(error);
        }
    };
    let window = RankWindow { address, bytes, memory: Some(memory) };
    match grant(rank, &window, users) {
        Ok(()) => Ok(window),
        Err(error) => {
            let _ = window.release(rank);
            Err(error)
        }
    }
}

fn properties(owner: c_int) -> Result<sys::CUmemAllocationProp, BackendError> {
    Ok(sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(owner)?,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    })
}

fn location(ordinal: c_int) -> Result<sys::CUmemLocation, BackendError> {
    let id = handle(ordinal)?;
    Ok(sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id })
}

/// Reserves addresses and maps `memory` there.
fn place(
    rank: usize,
    bytes: usize,
    granule: usize,
    memory: sys::CUmemGenericAllocationHandle,
) -> Result<u64, BackendError> {
    let mut address = 0;
    // SAFETY: writes one address; 0 asks for any place.
    let result = unsafe { sys::cuMemAddressReserve(&mut address, bytes, granule, 0, 0) };
    check("cuMemAddressReserve", Some(rank), result)?;
    // SAFETY: the range was just reserved with this size, and the memory has this size.
    let result = unsafe { sys::cuMemMap(address, bytes, 0, memory, 0) };
    if let Err(error) = check("cuMemMap", Some(rank), result) {
        // SAFETY: reserved above, not mapped.
        let _ = unsafe { sys::cuMemAddressFree(address, bytes) };
        return Err(error);
    }
    Ok(address)
}

/// Lets the devices in `users` read and write the window.
fn grant(rank: usize, window: &RankWindow, users: &[c_int]) -> Result<(), BackendError> {
    let mut access = Vec::with_capacity(users.len());
    for user in users {
        access.push(sys::CUmemAccessDesc {
            location: location(*user)?,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        });
    }
    // SAFETY: the range is mapped; the driver reads `access.len()` descriptions.
    let result =
        unsafe { sys::cuMemSetAccess(window.address, window.bytes, access.as_ptr(), access.len()) };
    check("cuMemSetAccess", Some(rank), result)
}

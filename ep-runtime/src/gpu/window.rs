//! Windows: memory of one device that all other devices have mapped, in this process or in others.

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

/// How windows are passed between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exchange {
    /// Virtual memory management, by file descriptors. A window lives for as long as any process has it
    /// mapped, even after its owner has died.
    #[default]
    Descriptors,
    /// CUDA IPC, for machines that do not support descriptors. The owner may free a window only when all
    /// others have closed it. Processes therefore drop their windows in one order and wait for each other;
    /// memory that another process has not closed stays allocated. A window whose owner has died may become
    /// invalid.
    Ipc,
}

/// The environment variable that selects how windows are exchanged.
pub const EXCHANGE_VARIABLE: &str = "EPFORGE_EXCHANGE";

impl Exchange {
    /// The way with this name.
    pub fn from_name(name: &str) -> Option<Exchange> {
        match name {
            "descriptors" => Some(Exchange::Descriptors),
            "ipc" => Some(Exchange::Ipc),
            _ => None,
        }
    }
}

/// Which devices or processes may map the memory of a window.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reach<'a> {
    /// These devices of this process.
    Devices(&'a [c_int], Sharing),
    /// The owner here, and other processes that get it by an exchange.
    Processes(Exchange),
}

/// What is behind a window's address.
#[derive(Debug, Clone, Copy)]
enum Backing {
    /// Physical memory that was mapped there.
    Mapped(sys::CUmemGenericAllocationHandle),
    /// An ordinary allocation.
    Allocated,
    /// An allocation of another process, opened by CUDA IPC.
    #[cfg(target_os = "linux")]
    Opened,
}

/// What another process opens an allocation by.
#[cfg(target_os = "linux")]
pub(super) type IpcHandle = [u8; 64];

/// Allocations of whole units of this size lie alone in what CUDA IPC shares.
const IPC_UNIT: usize = 2 << 20;

/// One rank's window as this process mapped it.
#[derive(Debug)]
pub(super) struct RankWindow {
    pub(super) address: u64,
    bytes: usize,
    backing: Backing,
}

impl RankWindow {
    /// Memory on `owner`, whose context is current; with [`Sharing::PeerAccess`] peers are enabled.
    pub(super) fn new(
        rank: usize,
        owner: c_int,
        reach: Reach<'_>,
        bytes: u64,
    ) -> Result<RankWindow, BackendError> {
        use sys::CUmemAllocationHandleType as Handle;
        let (users, shared) = match reach {
            Reach::Devices(users, Sharing::Mapped) => (users, Handle::CU_MEM_HANDLE_TYPE_NONE),
            Reach::Processes(Exchange::Descriptors) => {
                (&[owner][..], Handle::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            }
            Reach::Devices(_, Sharing::PeerAccess) => {
                return RankWindow::allocate(rank, bytes as usize);
            }
            Reach::Processes(Exchange::Ipc) => {
                return RankWindow::allocate(rank, (bytes as usize).next_multiple_of(IPC_UNIT));
            }
        };
        let properties = properties(owner, shared)?;
        let mut granule = 0;
        // SAFETY: reads the properties and writes one size.
        let result = unsafe {
            use sys::CUmemAllocationGranularity_flags as Granularity;
            let recommended = Granularity::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
            sys::cuMemGetAllocationGranularity(&mut granule, &properties, recommended)
        };
        check("cuMemGetAllocationGranularity", Some(rank), result)?;
        let bytes = (bytes as usize).next_multiple_of(granule.max(1));
        let mut memory = 0;
        // SAFETY: reads the properties and writes one handle.
        let result = unsafe { sys::cuMemCreate(&mut memory, bytes, &properties, 0) };
        check("cuMemCreate", Some(rank), result)?;
        RankWindow::place(rank, memory, bytes, users)
    }

    /// An ordinary allocation in the current context.
    fn allocate(rank: usize, bytes: usize) -> Result<RankWindow, BackendError> {
        let mut address = 0;
        // SAFETY: writes one address; the owner's context is current.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        check("cuMemAlloc", Some(rank), result)?;
        Ok(RankWindow { address, bytes, backing: Backing::Allocated })
    }

    /// How it goes to other processes.
    #[cfg(target_os = "linux")]
    pub(super) fn exchange(&self) -> Exchange {
        match self.backing {
            Backing::Mapped(_) => Exchange::Descriptors,
            Backing::Allocated | Backing::Opened => Exchange::Ipc,
        }
    }

    /// What another process opens it by.
    #[cfg(target_os = "linux")]
    pub(super) fn ipc_handle(&self, rank: usize) -> Result<IpcHandle, BackendError> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: writes one handle; the address is that of an allocation of the current context, or
        // the driver refuses it.
        let result = unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address) };
        check("cuIpcGetMemHandle", Some(rank), result)?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Opens the window of a rank in another process, for the device whose context is current.
    #[cfg(target_os = "linux")]
    pub(super) fn open(
        rank: usize,
        handle: &IpcHandle,
        bytes: usize,
    ) -> Result<RankWindow, BackendError> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: writes one address; the driver refuses a handle that it has not made.
        let result = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) };
        check("cuIpcOpenMemHandle", Some(rank), result)?;
        Ok(RankWindow { address, bytes, backing: Backing::Opened })
    }

    /// Bytes that are mapped: those asked for, rounded up to what the device maps at once.
    #[cfg(target_os = "linux")]
    pub(super) fn mapped_bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor by which another process can map the memory.
    #[cfg(target_os = "linux")]
    pub(super) fn export(&self, rank: usize) -> Result<std::os::fd::OwnedFd, BackendError> {
        use std::os::fd::FromRawFd;
        let Backing::Mapped(memory) = self.backing else {
            let what = "a window with peer access has no descriptor for another process";
            return Err(BackendError::Wrong { what: what.to_string() });
        };
        let mut descriptor: c_int = -1;
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind of handle the call writes one descriptor.
        let result = unsafe {
            let to = (&raw mut descriptor).cast();
            sys::cuMemExportToShareableHandle(to, memory, kind, 0)
        };
        check("cuMemExportToShareableHandle", Some(rank), result)?;
        // SAFETY: the driver has just made the descriptor for us.
        Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) })
    }

    /// Maps the window of a rank in another process for the device `user` of this one.
    #[cfg(target_os = "linux")]
    pub(super) fn import(
        rank: usize,
        descriptor: std::os::fd::BorrowedFd<'_>,
        bytes: usize,
        user: c_int,
    ) -> Result<RankWindow, BackendError> {
        use std::os::fd::AsRawFd;
        let mut memory = 0;
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind of handle the driver takes the descriptor's number in the place of
        // a pointer, and keeps its own reference to what it names.
        let result = unsafe {
            let handle = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
            sys::cuMemImportFromShareableHandle(&mut memory, handle, kind)
        };
        check("cuMemImportFromShareableHandle", Some(rank), result)?;
        RankWindow::place(rank, memory, bytes, &[user])
    }

    /// Gives memory an address and lets `users` in; takes the memory back when that fails.
    fn place(
        rank: usize,
        memory: sys::CUmemGenericAllocationHandle,
        bytes: usize,
        users: &[c_int],
    ) -> Result<RankWindow, BackendError> {
        let address = match map(rank, bytes, memory) {
            Ok(address) => address,
            Err(error) => {
                // SAFETY: the caller has just made the handle and nothing has mapped it.
                let _ = unsafe { sys::cuMemRelease(memory) };
                return Err(error);
            }
        };
        let window = RankWindow { address, bytes, backing: Backing::Mapped(memory) };
        match grant(rank, &window, users) {
            Ok(()) => Ok(window),
            Err(error) => {
                let _ = window.release(rank);
                Err(error)
            }
        }
    }

    /// Gives the memory back; nothing may use it any more.
    pub(super) fn release(self, rank: usize) -> Result<(), BackendError> {
        let memory = match self.backing {
            Backing::Mapped(memory) => memory,
            Backing::Allocated => {
                // SAFETY: the address came from cuMemAlloc and is freed once, since `self` is
                // consumed.
                return check("cuMemFree", Some(rank), unsafe { sys::cuMemFree_v2(self.address) });
            }
            #[cfg(target_os = "linux")]
            Backing::Opened => {
                // SAFETY: the address came from `open` and is closed once, since `self` is consumed.
                let result = unsafe { sys::cuIpcCloseMemHandle(self.address) };
                return check("cuIpcCloseMemHandle", Some(rank), result);
            }
        };
        // SAFETY: address and size are those of the one mapping and reservation made in `place`,
        // and `self` is consumed, so each is undone once; all three are tried even if one fails.
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

fn properties(
    owner: c_int,
    shared: sys::CUmemAllocationHandleType,
) -> Result<sys::CUmemAllocationProp, BackendError> {
    Ok(sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: shared,
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
fn map(
    rank: usize,
    bytes: usize,
    memory: sys::CUmemGenericAllocationHandle,
) -> Result<u64, BackendError> {
    let mut address = 0;
    // SAFETY: writes one address; zeros ask for any place and the usual alignment.
    let result = unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) };
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

//! The part of libfabric's C interface that a transport needs, declared by hand and opened at run time.
//!
//! The structs keep the order of the C headers. A struct that the library allocates is declared up to the
//! last member that is read here. A struct that is allocated here ends in zeroed space, so that a newer
//! library may look for later members there. Versions 1.17 to 2.5 only added members at the ends.

use std::ffi::{c_char, c_int, c_void};

pub(super) type Pointer = *mut c_void;

/// What a function of another use is declared as: it is never called.
pub(super) type Unused = *const c_void;

/// `FI_VERSION(1, 20)`: no later meaning is relied on. It is the first that knows dma-bufs.
pub(super) const KNOWN_API: u32 = 1 << 16 | 20;

pub(super) const CAP_MSG: u64 = 1 << 1;
pub(super) const CAP_RMA: u64 = 1 << 2;
pub(super) const CAP_WRITE: u64 = 1 << 9;
pub(super) const CAP_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const CAP_HMEM: u64 = 1 << 47;

/// A completion that carries the immediate of a peer's write.
pub(super) const REMOTE_CQ_DATA: u64 = 1 << 17;

pub(super) const BIND_RECEIVE: u64 = 1 << 10;
pub(super) const BIND_TRANSMIT: u64 = 1 << 11;

/// `fi_getinfo`: the node is one of this side.
pub(super) const SOURCE: u64 = 1 << 57;

pub(super) const MODE_CONTEXT: u64 = 1 << 59;
pub(super) const MODE_CONTEXT2: u64 = 1 << 52;
pub(super) const MODE_RX_CQ_DATA: u64 = 1 << 56;

pub(super) const MR_LOCAL: c_int = 1 << 2;
pub(super) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const MR_ALLOCATED: c_int = 1 << 5;
pub(super) const MR_PROV_KEY: c_int = 1 << 6;
pub(super) const MR_ENDPOINT: c_int = 1 << 9;
pub(super) const MR_HMEM: c_int = 1 << 10;

/// A registration of a dma-buf instead of an address.
pub(super) const REGISTER_DMA_BUF: u64 = 1 << 40;

/// `FI_HMEM_CUDA`: the memory is that of a GPU that CUDA drives.
pub(super) const MEMORY_OF_CUDA: u32 = 1;

pub(super) const OPTION_OF_ENDPOINT: c_int = 0;

/// `FI_OPT_CUDA_API_PERMITTED`, a bool.
pub(super) const OPTION_CUDA_CALLS: c_int = 10;

pub(super) const EP_RDM: u32 = 3;
pub(super) const THREAD_DOMAIN: u32 = 3;
pub(super) const CQ_FORMAT_DATA: u32 = 3;
pub(super) const CONTROL_ENABLE: c_int = 6;

pub(super) const EAGAIN: isize = -11;
pub(super) const EAVAIL: isize = -259;

/// `struct fi_info`.
#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: Pointer,
    pub(super) dest_addr: Pointer,
    pub(super) handle: *mut Fid,
    pub(super) tx: *mut TxAttr,
    pub(super) rx: Pointer,
    pub(super) ep: *mut EpAttr,
    pub(super) domain: *mut DomainAttr,
    pub(super) fabric: *mut FabricAttr,
}

/// `struct fi_tx_attr`, its beginning.
#[repr(C)]
pub(super) struct TxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
}

/// `struct fi_ep_attr`, its beginning.
#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: u32,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
}

/// `struct fi_domain_attr`, its beginning.
#[repr(C)]
pub(super) struct DomainAttr {
    pub(super) domain: *mut Domain,
    pub(super) name: *mut c_char,
    pub(super) threading: u32,
    pub(super) control_progress: u32,
    pub(super) data_progress: u32,
    pub(super) resource_mgmt: u32,
    pub(super) av_type: u32,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttr {
    pub(super) fabric: *mut FabricObject,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

/// `struct fid`: the head of every object.
#[repr(C)]
pub(super) struct Fid {
    class: usize,
    context: Pointer,
    pub(super) ops: *const FidOps,
}

/// `struct fi_ops`.
#[repr(C)]
pub(super) struct FidOps {
    size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, Pointer) -> c_int,
}

/// A function that opens an object below `Parent`.
type Open<Parent, Attr, Object> =
    unsafe extern "C" fn(*mut Parent, Attr, *mut *mut Object, Pointer) -> c_int;

/// `struct fid_fabric`.
#[repr(C)]
pub(super) struct FabricObject {
    pub(super) fid: Fid,
    pub(super) ops: *const FabricOps,
}

/// `struct fi_ops_fabric`, its beginning.
#[repr(C)]
pub(super) struct FabricOps {
    size: usize,
    pub(super) domain: Open<FabricObject, *mut Info, Domain>,
}

/// `struct fid_domain`.
#[repr(C)]
pub(super) struct Domain {
    pub(super) fid: Fid,
    pub(super) ops: *const DomainOps,
    pub(super) mr: *const MrOps,
}

/// `struct fi_ops_domain`, its beginning.
#[repr(C)]
pub(super) struct DomainOps {
    size: usize,
    pub(super) av_open: Open<Domain, *const AvAttr, Av>,
    pub(super) cq_open: Open<Domain, *const CqAttr, Cq>,
    pub(super) endpoint: Open<Domain, *mut Info, Ep>,
}

/// `struct fi_ops_mr`, its beginning.
#[repr(C)]
pub(super) struct MrOps {
    size: usize,
    pub(super) register: Register,
    regv: Unused,
    pub(super) register_attr: RegisterAttr,
}

/// Domain, start, bytes, access, offset, wished key, flags, result, context.
type Register = unsafe extern "C" fn(
    *mut Fid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut Mr,
    Pointer,
) -> c_int;

/// Domain, what, flags, result.
pub(super) type RegisterAttr =
    unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut Mr) -> c_int;

/// `struct fi_mr_attr`. The library reads as much of it as the version that `getinfo` was asked for has.
#[repr(C)]
pub(super) struct MrAttr {
    /// An `Iov`, or a `DmaBuf` where the flags say so.
    pub(super) memory: *const c_void,
    pub(super) count: usize,
    pub(super) access: u64,
    pub(super) offset: u64,
    pub(super) requested_key: u64,
    pub(super) context: Pointer,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
    pub(super) memory_of: u32,
    /// The number of the GPU: a union with 64 bits.
    pub(super) device: u64,
    pub(super) later: [u64; 8],
}

/// `struct iovec`.
#[repr(C)]
pub(super) struct Iov {
    pub(super) start: *const c_void,
    pub(super) bytes: usize,
}

/// `struct fi_mr_dmabuf`.
#[repr(C)]
pub(super) struct DmaBuf {
    pub(super) descriptor: c_int,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) start: *const c_void,
}

/// `struct fid_mr`.
#[repr(C)]
pub(super) struct Mr {
    pub(super) fid: Fid,
    pub(super) descriptor: Pointer,
    pub(super) key: u64,
}

/// `struct fid_av`.
#[repr(C)]
pub(super) struct Av {
    pub(super) fid: Fid,
    pub(super) ops: *const AvOps,
}

/// `struct fi_ops_av`, its beginning.
#[repr(C)]
pub(super) struct AvOps {
    size: usize,
    pub(super) insert:
        unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, Pointer) -> c_int,
}

/// `struct fid_cq`.
#[repr(C)]
pub(super) struct Cq {
    pub(super) fid: Fid,
    pub(super) ops: *const CqOps,
}

/// `struct fi_ops_cq`.
#[repr(C)]
pub(super) struct CqOps {
    size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Cq, *mut CqEntry, usize) -> isize,
    readfrom: Unused,
    pub(super) readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
    sread: Unused,
    sreadfrom: Unused,
    signal: Unused,
    pub(super) strerror:
        unsafe extern "C" fn(*mut Cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `struct fid_ep`.
#[repr(C)]
pub(super) struct Ep {
    pub(super) fid: Fid,
    pub(super) ops: *const EpOps,
    pub(super) cm: *const CmOps,
    pub(super) msg: *const MsgOps,
    pub(super) rma: *const RmaOps,
}

/// `struct fi_ops_ep`, its beginning.
#[repr(C)]
pub(super) struct EpOps {
    size: usize,
    cancel: Unused,
    getopt: Unused,
    pub(super) setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
}

/// `struct fi_ops_cm`, its beginning.
#[repr(C)]
pub(super) struct CmOps {
    size: usize,
    setname: Unused,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, Pointer, *mut usize) -> c_int,
}

/// `struct fi_ops_msg`, its beginning.
#[repr(C)]
pub(super) struct MsgOps {
    size: usize,
    pub(super) receive:
        unsafe extern "C" fn(*mut Ep, Pointer, usize, Pointer, u64, Pointer) -> isize,
}

/// `struct fi_ops_rma`, its beginning.
#[repr(C)]
pub(super) struct RmaOps {
    size: usize,
    reads: [Unused; 3],
    writes: [Unused; 3],
    inject: Unused,
    pub(super) write_data: WriteData,
    pub(super) inject_data: InjectData,
}

/// From, bytes, descriptor, immediate, peer, to, key, context.
type WriteData = unsafe extern "C" fn(
    *mut Ep,
    *const c_void,
    usize,
    Pointer,
    u64,
    u64,
    u64,
    u64,
    Pointer,
) -> isize;

/// From, bytes, immediate, peer, to, key: the bytes may change as soon as it returns.
type InjectData = unsafe extern "C" fn(*mut Ep, *const c_void, usize, u64, u64, u64, u64) -> isize;

/// `struct fi_av_attr`.
#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: u32,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: Pointer,
    pub(super) flags: u64,
    pub(super) later: [u64; 4],
}

/// `struct fi_cq_attr`.
#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: u32,
    pub(super) wait_obj: u32,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: u32,
    pub(super) wait_set: Pointer,
    pub(super) later: [u64; 8],
}

/// `struct fi_cq_data_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub(super) context: Pointer,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: Pointer,
    pub(super) data: u64,
}

impl CqEntry {
    pub(super) const EMPTY: CqEntry = CqEntry {
        context: std::ptr::null_mut(),
        flags: 0,
        len: 0,
        buf: std::ptr::null_mut(),
        data: 0,
    };
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub(super) struct CqError {
    pub(super) context: Pointer,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: Pointer,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: Pointer,
    pub(super) err_data_size: usize,
    pub(super) later: [u64; 8],
}

/// The functions that the library exports; all else is reached through its objects.
pub(super) struct Api {
    pub(super) version: unsafe extern "C" fn() -> u32,
    pub(super) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub(super) freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) fabric:
        unsafe extern "C" fn(*mut FabricAttr, *mut *mut FabricObject, Pointer) -> c_int,
    pub(super) strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

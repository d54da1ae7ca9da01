//! The part of libibverbs and of libmlx5 that opens a card for kernels, declared by hand and opened at run time.
//!
//! Structs keep the order of the C headers. One that a library fills ends in zeroed room, where a newer
//! library may write later members.

use std::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`, which only the library looks into; so it is with the next ones.
pub(super) enum IbDevice {}
/// `struct ibv_context`
pub(super) enum IbContext {}
/// `struct ibv_pd`
pub(super) enum IbPd {}
/// `struct ibv_ah`
pub(super) enum IbAh {}
/// `struct mlx5dv_devx_obj`
pub(super) enum DevxObject {}

pub(super) const PORT_ACTIVE: u32 = 4;
pub(super) const LINK_INFINIBAND: u8 = 1;
pub(super) const LINK_ETHERNET: u8 = 2;
pub(super) const GID_ROCE_V2: u32 = 2;

pub(super) const ACCESS_LOCAL_WRITE: u32 = 1;
pub(super) const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub(super) const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Optional: a library or kernel that does not know it leaves it out.
pub(super) const ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

/// Of `mlx5dv_open_device`: commands of our own.
pub(super) const CONTEXT_DEVX: u32 = 1;

/// What `mlx5dv_init_obj` is asked for.
pub(super) const OBJECT_AH: u64 = 1 << 5;
pub(super) const OBJECT_PD: u64 = 1 << 6;

/// Kinds of register pages, the best first: one that nobody else has, one that is not cached, any.
pub(super) const REGISTER_PAGES: [u32; 3] = [1 << 31, 1, 0];

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
    pub(super) later: [u64; 8],
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(super) struct DeviceAttr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) guids: [u64; 2],
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: u32,
    pub(super) max_sge: [c_int; 2],
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: u32,
    pub(super) others: [c_int; 13],
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
    pub(super) later: [u64; 8],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `union ibv_gid`, which is aligned as a number of 64 bits.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Gid(pub(super) [u8; 16]);

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct IbMr {
    pub(super) context: *mut IbContext,
    pub(super) pd: *mut IbPd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct mlx5dv_context_attr`.
#[repr(C)]
pub(super) struct ContextAttr {
    pub(super) flags: u32,
    pub(super) comp_mask: u64,
}

/// `struct mlx5dv_devx_umem`, its beginning.
#[repr(C)]
pub(super) struct DevxUmem {
    pub(super) umem_id: u32,
}

/// `struct mlx5dv_devx_uar`, its beginning.
#[repr(C)]
pub(super) struct DevxUar {
    pub(super) reg_addr: *mut c_void,
    pub(super) base_addr: *mut c_void,
    pub(super) page_id: u32,
}

/// `struct mlx5dv_obj`: for each kind of object one that goes in, and what is filled.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Objects {
    pub(super) qp: InOut,
    pub(super) cq: InOut,
    pub(super) srq: InOut,
    pub(super) rwq: InOut,
    pub(super) dm: InOut,
    pub(super) ah: InOut,
    pub(super) pd: InOut,
    pub(super) later: [InOut; 4],
}

/// A member of `struct mlx5dv_obj`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InOut {
    pub(super) object: *mut c_void,
    pub(super) filled: *mut c_void,
}

/// `struct mlx5dv_pd`.
#[repr(C)]
#[derive(Default)]
pub(super) struct FilledPd {
    pub(super) pdn: u32,
    pub(super) comp_mask: u64,
    pub(super) later: [u64; 4],
}

/// `struct mlx5dv_ah`.
#[repr(C)]
pub(super) struct FilledAh {
    pub(super) av: *const AddressVector,
    pub(super) comp_mask: u64,
    pub(super) later: [u64; 4],
}

/// `struct mlx5_wqe_av`.
#[repr(C)]
pub(super) struct AddressVector {
    pub(super) key: u64,
    pub(super) dqp_dct: u32,
    pub(super) stat_rate_sl: u8,
    pub(super) fl_mlid: u8,
    pub(super) rlid: u16,
    pub(super) reserved0: [u8; 4],
    pub(super) rmac: [u8; 6],
    pub(super) tclass: u8,
    pub(super) hop_limit: u8,
    pub(super) grh_gid_fl: u32,
    pub(super) rgid: [u8; 16],
}

/// A command of ours and room for the answer, with their bytes.
type Answered<Target> = unsafe extern "C" fn(
    *mut Target,
    command: *const c_void,
    usize,
    answer: *mut c_void,
    usize,
) -> c_int;

/// The functions that the two libraries export, by their names without prefix.
pub(super) struct Api {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbDevice,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut IbDevice),
    pub(super) get_device_name: unsafe extern "C" fn(*mut IbDevice) -> *const c_char,
    pub(super) open_device: unsafe extern "C" fn(*mut IbDevice) -> *mut IbContext,
    pub(super) close_device: unsafe extern "C" fn(*mut IbContext) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut IbContext, *mut DeviceAttr) -> c_int,
    pub(super) query_port: unsafe extern "C" fn(*mut IbContext, u8, *mut PortAttr) -> c_int,
    /// Context, port, index, entry, flags, bytes of an entry.
    pub(super) query_gid_ex:
        unsafe extern "C" fn(*mut IbContext, u32, u32, *mut GidEntry, u32, usize) -> c_int,
    pub(super) alloc_pd: unsafe extern "C" fn(*mut IbContext) -> *mut IbPd,
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut IbPd) -> c_int,
    /// Start, bytes, how the card calls the start, access.
    pub(super) reg_mr_iova2:
        unsafe extern "C" fn(*mut IbPd, *mut c_void, usize, u64, u32) -> *mut IbMr,
    /// Offset in the dma-buf, bytes, how the card calls the start, descriptor, access. Older libraries
    /// have none.
    pub(super) reg_dmabuf_mr: Option<RegisterDmaBuf>,
    pub(super) dereg_mr: unsafe extern "C" fn(*mut IbMr) -> c_int,
    pub(super) create_ah: unsafe extern "C" fn(*mut IbPd, *mut AhAttr) -> *mut IbAh,
    pub(super) destroy_ah: unsafe extern "C" fn(*mut IbAh) -> c_int,
    pub(super) is_supported: unsafe extern "C" fn(*mut IbDevice) -> bool,
    pub(super) open_mlx5: unsafe extern "C" fn(*mut IbDevice, *mut ContextAttr) -> *mut IbContext,
    pub(super) init_obj: unsafe extern "C" fn(*mut Objects, u64) -> c_int,
    pub(super) general_cmd: Answered<IbContext>,
    pub(super) obj_create: unsafe extern "C" fn(
        *mut IbContext,
        *const c_void,
        usize,
        *mut c_void,
        usize,
    ) -> *mut DevxObject,
    pub(super) obj_modify: Answered<DevxObject>,
    pub(super) obj_destroy: unsafe extern "C" fn(*mut DevxObject) -> c_int,
    pub(super) umem_reg:
        unsafe extern "C" fn(*mut IbContext, *mut c_void, usize, u32) -> *mut DevxUmem,
    pub(super) umem_dereg: unsafe extern "C" fn(*mut DevxUmem) -> c_int,
    pub(super) alloc_uar: unsafe extern "C" fn(*mut IbContext, u32) -> *mut DevxUar,
    pub(super) free_uar: unsafe extern "C" fn(*mut DevxUar),
    pub(super) query_eqn: unsafe extern "C" fn(*mut IbContext, u32, *mut u32) -> c_int,
}

/// The function that registers a dma-buf.
pub(super) type RegisterDmaBuf =
    unsafe extern "C" fn(*mut IbPd, u64, usize, u64, c_int, c_int) -> *mut IbMr;

//! A double of libibverbs and libmlx5: it notes every call, can let any of them fail, and knows what was not
//! closed.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use super::command::{self, OPCODE, qp};
use super::library::Verbs;
use super::sys::*;

/// A port of the one card that there is.
#[derive(Clone, Copy)]
pub(super) struct DoublePort {
    pub(super) state: u32,
    pub(super) link: u8,
    pub(super) lid: u16,
    pub(super) mtu: u32,
}

/// The libraries as one thread sees them.
pub(super) struct Double {
    pub(super) ports: Vec<DoublePort>,
    /// Kind and first bytes of each GID; none: the place is empty.
    pub(super) gids: Vec<Option<(u32, [u8; 16])>>,
    pub(super) is_mlx5: bool,
    pub(super) atomics: (u64, u64),
    pub(super) calls: Vec<&'static str>,
    /// Commands to the firmware, in order.
    pub(super) commands: Vec<Vec<u8>>,
    /// Regions: start, bytes, how the card calls the start, access.
    pub(super) regions: Vec<(u64, usize, u64, u32)>,
    /// Addresses that the system was asked the way to.
    pub(super) asked_ways: Vec<[u8; 16]>,
    /// The number of the call that fails, and its name once it has: the same call fails again behind it.
    pub(super) fails: Option<usize>,
    pub(super) failed: Option<&'static str>,
    /// What is open.
    pub(super) open: Vec<Object>,
    /// What no library would bear: an object closed before what was made with it, a wrong number.
    pub(super) wrong: Vec<String>,
    made: u64,
}

/// An object that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// What has made it.
    pub(super) call: &'static str,
    place: usize,
    /// The device that it belongs to, by its place; its own if it is one.
    device: usize,
    /// Its number, and that of the completion queue of a queue pair.
    numbers: (u64, u64),
}

impl Object {
    /// Whether another object has to be closed before it.
    fn holds(&self, other: &Object) -> bool {
        let is_queue = ["CREATE_CQ", "CREATE_QP"].contains(&other.call);
        let is_of_domain = other.call.starts_with("ibv_reg_") || other.call == "ibv_create_ah";
        other.device == self.device
            && other.place != self.place
            && match self.call {
                "ibv_open_device" | "mlx5dv_open_device" => true,
                "ibv_alloc_pd" => is_of_domain || other.call == "CREATE_QP",
                "mlx5dv_devx_umem_reg" | "mlx5dv_devx_alloc_uar" => is_queue,
                "CREATE_CQ" => other.call == "CREATE_QP" && other.numbers.1 == self.numbers.0,
                _ => false,
            }
    }
}

/// An IPv4 address as a GID.
pub(super) const IPV4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
/// An address of one link.
pub(super) const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
/// The Ethernet address of the next hop.
pub(super) const MAC: [u8; 6] = [2, 4, 6, 8, 10, 12];

pub(super) const ETHERNET: DoublePort =
    DoublePort { state: PORT_ACTIVE, link: LINK_ETHERNET, lid: 0, mtu: 5 };
pub(super) const INFINIBAND: DoublePort =
    DoublePort { state: PORT_ACTIVE, link: LINK_INFINIBAND, lid: 0x31, mtu: 4 };

impl Double {
    fn new() -> Double {
        Double {
            ports: vec![ETHERNET],
            gids: vec![Some((1, LOCAL)), Some((2, LOCAL)), None, Some((2, IPV4))],
            is_mlx5: true,
            atomics: (0xf, 0xc),
            calls: Vec::new(),
            commands: Vec::new(),
            regions: Vec::new(),
            asked_ways: Vec::new(),
            fails: None,
            failed: None,
            open: Vec::new(),
            wrong: Vec::new(),
            made: 0,
        }
    }

    /// Notes a call; whether it fails.
    fn note(&mut self, call: &'static str) -> bool {
        let again = self.failed == Some(call) && self.calls.last() == Some(&call);
        let fails = again || self.fails == Some(self.calls.len());
        self.calls.push(call);
        if fails {
            self.failed = Some(call);
            // SAFETY: the place belongs to this thread.
            unsafe { *libc::__errno_location() = libc::EINVAL };
        }
        fails
    }
}

thread_local! {
    static DOUBLE: RefCell<Double> = RefCell::new(Double::new());
}

/// Does something with the libraries of this thread.
pub(super) fn double<T>(body: impl FnOnce(&mut Double) -> T) -> T {
    DOUBLE.with(|it| body(&mut it.borrow_mut()))
}

/// Begins anew, with other ports or settings.
pub(super) fn begin(change: impl FnOnce(&mut Double)) -> &'static Verbs {
    let mut fresh = Double::new();
    change(&mut fresh);
    DOUBLE.with(|it| *it.borrow_mut() = fresh);
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    VERBS.get_or_init(|| Verbs { folder: PathBuf::from("/lib"), api: api() })
}

/// Notes what is wrong unless it holds: a test looks at it, since no panic passes the C interface.
fn expect(holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        let what = what();
        double(|it| it.wrong.push(what));
    }
}

/// What a call makes of a device or of what belongs to one, unless it fails.
fn make<T>(call: &'static str, of: usize, object: T) -> *mut T {
    if double(|it| it.note(call)) {
        return ptr::null_mut();
    }
    open(call, of, (0, 0), object)
}

fn open<T>(call: &'static str, of: usize, numbers: (u64, u64), object: T) -> *mut T {
    let made = Box::into_raw(Box::new(object));
    let place = made as usize;
    double(|it| {
        let parent = it.open.iter().find(|object| object.place == of);
        let device = parent.map_or(place, |parent| parent.device);
        it.open.push(Object { call, place, device, numbers });
    });
    made
}

/// Closes what one of the `calls` has made, behind all that was made with it.
fn close<T>(closing: &'static str, calls: &[&'static str], made: *mut T) -> c_int {
    double(|it| it.calls.push(closing));
    let place = made as usize;
    let known = double(|it| it.open.iter().position(|object| object.place == place));
    let Some(index) = known else {
        expect(false, || format!("{closing} of what is not open"));
        return 0;
    };
    let object = double(|it| it.open.remove(index));
    let left = double(|it| it.open.iter().find(|other| object.holds(other)).copied());
    expect(left.is_none(), || format!("{closing} before {left:?}"));
    expect(calls.contains(&object.call), || format!("{closing} of {object:?}"));
    // SAFETY: `open` boxed an object of this type, and it was open until now.
    drop(unsafe { Box::from_raw(made) });
    0
}

fn make_opaque<T, P>(call: &'static str, of: *mut P) -> *mut T {
    make(call, of as usize, 0u64).cast()
}

fn close_opaque<T>(closing: &'static str, calls: &[&'static str], made: *mut T) -> c_int {
    close(closing, calls, made.cast::<u64>())
}

fn code(call: &'static str) -> c_int {
    if double(|it| it.note(call)) { libc::EINVAL } else { 0 }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut IbDevice {
    // One device, which nobody looks into, and the end of the list.
    let list = make("ibv_get_device_list", 0, [16usize, 0]);
    // SAFETY: the caller gives a place for the number.
    unsafe { *count = 1 };
    list.cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut IbDevice) {
    close("ibv_free_device_list", &["ibv_get_device_list"], list.cast::<[usize; 2]>());
}

unsafe extern "C" fn get_device_name(_: *mut IbDevice) -> *const c_char {
    c"mlx5_0".as_ptr()
}

unsafe extern "C" fn is_supported(_: *mut IbDevice) -> bool {
    double(|it| it.is_mlx5)
}

unsafe extern "C" fn open_device(device: *mut IbDevice) -> *mut IbContext {
    make_opaque("ibv_open_device", device)
}

unsafe extern "C" fn open_mlx5(device: *mut IbDevice, asked: *mut ContextAttr) -> *mut IbContext {
    // SAFETY: the caller gives a struct.
    let flags = unsafe { (*asked).flags };
    expect(flags == CONTEXT_DEVX, || format!("a context with {flags:#x}"));
    make_opaque("mlx5dv_open_device", device)
}

unsafe extern "C" fn close_device(context: *mut IbContext) -> c_int {
    close_opaque("ibv_close_device", &["ibv_open_device", "mlx5dv_open_device"], context)
}

unsafe extern "C" fn query_device(_: *mut IbContext, attributes: *mut DeviceAttr) -> c_int {
    // SAFETY: the caller gives a struct.
    unsafe {
        (*attributes).phys_port_cnt = double(|it| it.ports.len()) as u8;
        (*attributes).max_qp_rd_atom = 16;
        (*attributes).max_qp_init_rd_atom = 8;
    }
    code("ibv_query_device")
}

unsafe extern "C" fn query_port(_: *mut IbContext, number: u8, port: *mut PortAttr) -> c_int {
    let DoublePort { state, link, lid, mtu } = double(|it| it.ports[usize::from(number) - 1]);
    let gid_tbl_len = double(|it| it.gids.len()) as c_int;
    // SAFETY: the caller gives a struct.
    unsafe {
        *port = PortAttr { state, active_mtu: mtu, gid_tbl_len, lid, link_layer: link, ..*port };
    }
    code("ibv_query_port")
}

unsafe extern "C" fn query_gid_ex(
    _: *mut IbContext,
    _: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    bytes: usize,
) -> c_int {
    expect((flags, bytes) == (0, 32), || format!("an entry of {bytes} bytes with {flags:#x}"));
    let found = double(|it| it.gids[index as usize]);
    if code("_ibv_query_gid_ex") != 0 {
        return libc::EINVAL;
    }
    let Some((gid_type, gid)) = found else { return libc::ENODATA };
    // SAFETY: the caller gives a struct.
    unsafe { *entry = GidEntry { gid: Gid(gid), gid_type, ..GidEntry::default() } };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut IbContext) -> *mut IbPd {
    make_opaque("ibv_alloc_pd", context)
}

unsafe extern "C" fn dealloc_pd(domain: *mut IbPd) -> c_int {
    close_opaque("ibv_dealloc_pd", &["ibv_alloc_pd"], domain)
}

fn region(call: &'static str, pd: *mut IbPd, what: (u64, usize, u64, u32)) -> *mut IbMr {
    let number = double(|it| {
        it.regions.push(what);
        it.regions.len() as u32
    });
    let (start, length, ..) = what;
    let (context, addr) = (ptr::null_mut(), start as *mut c_void);
    let (lkey, rkey) = (0x1000 + number, 0x2000 + number);
    make(call, pd as usize, IbMr { context, pd, addr, length, handle: 0, lkey, rkey })
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut IbPd,
    start: *mut c_void,
    bytes: usize,
    at: u64,
    access: u32,
) -> *mut IbMr {
    region("ibv_reg_mr_iova2", pd, (start as u64, bytes, at, access))
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut IbPd,
    offset: u64,
    bytes: usize,
    at: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut IbMr {
    expect(descriptor >= 0, || format!("descriptor {descriptor}"));
    region("ibv_reg_dmabuf_mr", pd, (offset, bytes, at, access.cast_unsigned()))
}

unsafe extern "C" fn dereg_mr(region: *mut IbMr) -> c_int {
    close("ibv_dereg_mr", &["ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr"], region)
}

unsafe extern "C" fn create_ah(domain: *mut IbPd, wanted: *mut AhAttr) -> *mut IbAh {
    // SAFETY: the caller gives a struct.
    let wanted = unsafe { *wanted };
    let chosen = (wanted.is_global, wanted.port_num, wanted.sgid_index);
    let has_port = double(|it| (1..=it.ports.len()).contains(&wanted.port_num.into()));
    expect(has_port && chosen == (1, wanted.port_num, 3), || format!("a way by {chosen:?}"));
    double(|it| it.asked_ways.push(wanted.dgid.0));
    let vector = AddressVector {
        key: 0,
        dqp_dct: 0,
        stat_rate_sl: 0,
        fl_mlid: 0,
        rlid: 0,
        reserved0: [0; 4],
        rmac: MAC,
        tclass: 0,
        hop_limit: 0,
        grh_gid_fl: 0,
        rgid: wanted.dgid.0,
    };
    make("ibv_create_ah", domain as usize, vector).cast()
}

unsafe extern "C" fn destroy_ah(way: *mut IbAh) -> c_int {
    close("ibv_destroy_ah", &["ibv_create_ah"], way.cast::<AddressVector>())
}

unsafe extern "C" fn init_obj(objects: *mut Objects, kind: u64) -> c_int {
    if code("mlx5dv_init_obj") != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller gives the objects of the kind, and the structs to be filled.
    unsafe {
        match kind {
            OBJECT_PD => (*(*objects).pd.filled.cast::<FilledPd>()).pdn = 0x77,
            OBJECT_AH => {
                let vector = (*objects).ah.object.cast_const().cast();
                (*(*objects).ah.filled.cast::<FilledAh>()).av = vector;
            }
            _ => return libc::EINVAL,
        }
    }
    0
}

/// Notes a command; whether it fails, as the firmware says it, and the answer.
fn command(
    call: &'static str,
    asked: (*const c_void, usize),
    answer: (*mut c_void, usize),
) -> bool {
    // SAFETY: the caller gives both buffers with their bytes.
    let (asked, answer) = unsafe {
        (
            std::slice::from_raw_parts(asked.0.cast::<u8>(), asked.1),
            std::slice::from_raw_parts_mut(answer.0.cast::<u8>(), answer.1),
        )
    };
    double(|it| {
        it.commands.push(asked.to_vec());
        it.made += 1;
        answer[9..12].copy_from_slice(&(0x100 + it.made as u32).to_be_bytes()[1..]);
        if OPCODE.read(asked) == u64::from(command::QUERY_HCA_CAP.1) {
            let (operations, sizes) = it.atomics;
            let at = |index: usize, number: u64| (16 + index, (number as u16).to_be_bytes());
            for (at, bytes) in [at(0x90 / 8, operations), at(0xb0 / 8, sizes)] {
                answer[at..at + 2].copy_from_slice(&bytes);
            }
        }
        let fails = it.note(call);
        if fails {
            answer[0] = 0x3;
        }
        fails
    })
}

unsafe extern "C" fn general_cmd(
    _: *mut IbContext,
    asked: *const c_void,
    bytes: usize,
    answer: *mut c_void,
    room: usize,
) -> c_int {
    if command("QUERY_HCA_CAP", (asked, bytes), (answer, room)) { libc::EREMOTEIO } else { 0 }
}

/// The name of a command by its opcode.
fn named(asked: *const c_void) -> &'static str {
    // SAFETY: a command has an opcode.
    let opcode = unsafe { u16::from_be_bytes(*asked.cast::<[u8; 2]>()) };
    let all = [
        command::CREATE_CQ,
        command::CREATE_QP,
        command::RST2INIT_QP,
        command::INIT2RTR_QP,
        command::RTR2RTS_QP,
    ];
    all.into_iter().find(|(_, known)| *known == opcode).expect("a known command").0
}

unsafe extern "C" fn obj_create(
    context: *mut IbContext,
    asked: *const c_void,
    bytes: usize,
    answer: *mut c_void,
    room: usize,
) -> *mut DevxObject {
    let call = named(asked);
    if command(call, (asked, bytes), (answer, room)) {
        // SAFETY: the place belongs to this thread.
        unsafe { *libc::__errno_location() = libc::EREMOTEIO };
        return ptr::null_mut();
    }
    // SAFETY: the caller gives a command of so many bytes.
    let asked = unsafe { std::slice::from_raw_parts(asked.cast::<u8>(), bytes) };
    let number = double(|it| 0x100 + it.made);
    open(call, context as usize, (number, qp::CQ_SENT.read(asked)), 0u64).cast()
}

unsafe extern "C" fn obj_modify(
    _: *mut DevxObject,
    asked: *const c_void,
    bytes: usize,
    answer: *mut c_void,
    room: usize,
) -> c_int {
    if command(named(asked), (asked, bytes), (answer, room)) { libc::EREMOTEIO } else { 0 }
}

unsafe extern "C" fn obj_destroy(object: *mut DevxObject) -> c_int {
    close_opaque("mlx5dv_devx_obj_destroy", &["CREATE_CQ", "CREATE_QP"], object)
}

unsafe extern "C" fn umem_reg(
    context: *mut IbContext,
    start: *mut c_void,
    _: usize,
    access: u32,
) -> *mut DevxUmem {
    let is_right = access == ACCESS_LOCAL_WRITE && (start as usize).is_multiple_of(4096);
    expect(is_right, || format!("queues at {start:?} with access {access:#x}"));
    make("mlx5dv_devx_umem_reg", context as usize, DevxUmem { umem_id: 0x55 })
}

unsafe extern "C" fn umem_dereg(umem: *mut DevxUmem) -> c_int {
    close("mlx5dv_devx_umem_dereg", &["mlx5dv_devx_umem_reg"], umem)
}

unsafe extern "C" fn alloc_uar(context: *mut IbContext, _: u32) -> *mut DevxUar {
    let (reg_addr, base_addr) = (0x7000_0800 as *mut c_void, 0x7000_0000 as *mut c_void);
    let page = DevxUar { reg_addr, base_addr, page_id: 0x66 };
    make("mlx5dv_devx_alloc_uar", context as usize, page)
}

unsafe extern "C" fn free_uar(page: *mut DevxUar) {
    close("mlx5dv_devx_free_uar", &["mlx5dv_devx_alloc_uar"], page);
}

unsafe extern "C" fn query_eqn(_: *mut IbContext, vector: u32, number: *mut u32) -> c_int {
    // SAFETY: the caller gives a place for the number.
    unsafe { *number = 9 + vector };
    code("mlx5dv_devx_query_eqn")
}

fn api() -> Api {
    Api {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid_ex,
        alloc_pd,
        dealloc_pd,
        reg_mr_iova2,
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_ah,
        destroy_ah,
        is_supported,
        open_mlx5,
        init_obj,
        general_cmd,
        obj_create,
        obj_modify,
        obj_destroy,
        umem_reg,
        umem_dereg,
        alloc_uar,
        free_uar,
        query_eqn,
    }
}

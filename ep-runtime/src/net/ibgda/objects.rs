//! What is made on an open card, each closed by its owner: domain, regions, register page, queue pairs.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::command::{self, Answer, Command, cq, qp};
use super::device::Device;
use super::end::PortEnd;
use super::library::Verbs;
use super::places::{LOG_PAGE, PairPlaces};
use super::sys::{
    self, AddressVector, AhAttr, DevxObject, DevxUar, DevxUmem, FilledAh, FilledPd, IbMr, IbPd,
    InOut, Objects,
};
use crate::backend::{Backend, CardAccess};
use crate::net_error::NetError;

/// Retries before a peer is given up, of one that does not answer and of one that is not ready: 7 of the
/// latter is without end.
const RETRIES: u64 = 7;

/// How long a card waits for an answer: 4.096 us times 2 to this power, 4.3 s.
const ACK_TIMEOUT: u64 = 20;

/// What a peer is told that is not ready; as long as 0.64 ms.
const NOT_READY_TIMER: u64 = 12;

/// Messages are at most 2 to this power.
const LOG_MESSAGE_BYTES: u64 = 30;

/// Atomics of up to 8 bytes.
const ATOMICS_UP_TO_8: u64 = 3;

/// The path that is in use, of two that a connection could have.
const MIGRATED: u64 = 3;

/// A queue pair that receives nothing but what is written into its memory.
const NO_RECEIVES: u64 = 3;

/// Hops of a packet between networks.
const HOPS: u8 = 255;

/// The masked add, among the atomics of a card, and its size as a power of two.
const MASKED_ADD: u64 = 1 << 3;
const LOG_ADD_BYTES: u64 = 2;

/// How an object is closed.
enum Close<T> {
    Code(unsafe extern "C" fn(*mut T) -> c_int),
    Plain(unsafe extern "C" fn(*mut T)),
}

/// An object of the libraries that its owner closes, before the ones that it was made with.
pub(super) struct Owned<T> {
    made: NonNull<T>,
    close: Close<T>,
}

// SAFETY: the libraries let any thread use and close their objects, one at a time as here.
unsafe impl<T> Send for Owned<T> {}

impl<T> Owned<T> {
    fn get(&self) -> *mut T {
        self.made.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the library made it, and it is closed once. What fails to close is left to the end of the
        // process.
        unsafe {
            match self.close {
                Close::Code(close) => drop(close(self.get())),
                Close::Plain(close) => close(self.get()),
            }
        }
    }
}

/// Fails unless a card adds to words of 32 bits, which is how kernels give signals.
pub(super) fn check_atomics(device: &Device) -> Result<(), NetError> {
    let (name, opcode) = command::QUERY_HCA_CAP;
    let asked = Command::new(name, opcode, command::CAP_COMMAND_BYTES)
        .with(command::OP_MOD, command::ATOMIC_CAPS);
    let answer = Answer::new(command::CAP_ANSWER_BYTES);
    let send = device.verbs().api.general_cmd;
    let answer = device.called().ask(&asked, answer, |asked, bytes, answer, room| {
        // SAFETY: the context is open; both buffers have so many bytes.
        unsafe { send(device.context(), asked, bytes, answer, room) }
    })?;
    let kinds = answer.get(command::ATOMIC_OPERATIONS);
    let sizes = answer.get(command::ATOMIC_SIZES);
    if kinds & MASKED_ADD != 0 && sizes >> LOG_ADD_BYTES & 1 != 0 {
        return Ok(());
    }
    let name = &device.name;
    let why = format!(
        "{name} cannot add to words of 4 bytes (operations {kinds:#x}, sizes {sizes:#x}): ConnectX-5 and newer can"
    );
    Err(NetError::NoCard { why })
}

/// A protection domain and its number.
pub(super) struct Domain {
    owned: Owned<IbPd>,
    pub(super) number: u32,
}

impl Domain {
    pub(super) fn new(device: &Device) -> Result<Domain, NetError> {
        let api = &device.verbs().api;
        // SAFETY: the context is open, and outlives what is made of it (`Opened`).
        let made = unsafe { (api.alloc_pd)(device.context()) };
        let made = device.called().made("ibv_alloc_pd", made)?;
        let owned = Owned { made, close: Close::Code(api.dealloc_pd) };
        let mut filled = FilledPd::default();
        let object = InOut { object: owned.get().cast(), filled: (&raw mut filled).cast() };
        let mut objects = Objects { pd: object, ..none_of_all() };
        // SAFETY: the call reads the domain, which is live, and fills a struct whose room holds later members.
        let code = unsafe { (api.init_obj)(&mut objects, sys::OBJECT_PD) };
        device.called().done("mlx5dv_init_obj", code)?;
        Ok(Domain { owned, number: filled.pdn })
    }
}

fn none_of_all() -> Objects {
    let none = InOut { object: ptr::null_mut(), filled: ptr::null_mut() };
    Objects {
        qp: none,
        cq: none,
        srq: none,
        rwq: none,
        dm: none,
        ah: none,
        pd: none,
        later: [none; 4],
    }
}

/// Memory that the card reads and writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory<'a> {
    /// Where kernels find it: the card uses the same addresses.
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// Where the processor finds it; null in device memory.
    pub(super) host: *mut c_void,
    /// How a card reaches device memory.
    pub(super) access: Option<&'a CardAccess>,
}

/// A registered region.
pub(super) struct Region {
    _owned: Owned<IbMr>,
    pub(super) key: u32,
    pub(super) own_key: u32,
}

impl Region {
    /// `relaxed`: writes may pass others on the bus.
    pub(super) fn new(
        device: &Device,
        domain: &Domain,
        memory: Memory<'_>,
        relaxed: bool,
    ) -> Result<Region, NetError> {
        use std::os::fd::AsRawFd;
        let api = &device.verbs().api;
        let relaxed = if relaxed { sys::ACCESS_RELAXED_ORDERING } else { 0 };
        let access = sys::ACCESS_LOCAL_WRITE
            | sys::ACCESS_REMOTE_WRITE
            | sys::ACCESS_REMOTE_ATOMIC
            | relaxed;
        let (domain, Memory { address, bytes, host, .. }) = (domain.owned.get(), memory);
        let (call, made) = match memory.access {
            Some(CardAccess::DmaBuf(descriptor)) => {
                let call = "ibv_reg_dmabuf_mr";
                let register = api.reg_dmabuf_mr.ok_or_else(|| device.called().lacks(call))?;
                let descriptor = descriptor.as_raw_fd();
                // SAFETY: the domain is live; the descriptor names the memory, which outlives the region.
                (call, unsafe {
                    register(domain, 0, bytes, address, descriptor, access.cast_signed())
                })
            }
            Some(_) => {
                let start = address as *mut c_void;
                // SAFETY: as above; the module that looks up GPU memory by its address is there.
                ("ibv_reg_mr_iova2", unsafe {
                    (api.reg_mr_iova2)(domain, start, bytes, address, access)
                })
            }
            // SAFETY: as above, of host memory.
            None => ("ibv_reg_mr_iova2", unsafe {
                (api.reg_mr_iova2)(domain, host, bytes, address, access)
            }),
        };
        let made = device.called().made(call, made)?;
        // SAFETY: the region was just made.
        let (own_key, key) = unsafe { (made.as_ref().lkey, made.as_ref().rkey) };
        Ok(Region { _owned: Owned { made, close: Close::Code(api.dereg_mr) }, key, own_key })
    }
}

/// Host memory that commands name by a number, and offsets in it.
pub(super) struct Umem {
    _owned: Owned<DevxUmem>,
    number: u32,
}

impl Umem {
    pub(super) fn new(device: &Device, start: *mut c_void, bytes: usize) -> Result<Umem, NetError> {
        let api = &device.verbs().api;
        // SAFETY: the context is open; the memory has so many bytes and outlives its registration.
        let made =
            unsafe { (api.umem_reg)(device.context(), start, bytes, sys::ACCESS_LOCAL_WRITE) };
        let made = device.called().made("mlx5dv_devx_umem_reg", made)?;
        // SAFETY: it was just made.
        let number = unsafe { made.as_ref().umem_id };
        Ok(Umem { _owned: Owned { made, close: Close::Code(api.umem_dereg) }, number })
    }
}

/// A page of registers of the card, whose doorbell kernels reach.
pub(super) struct Registers {
    doorbell: MappedDoorbell,
    _owned: Owned<DevxUar>,
    number: u32,
}

/// The doorbell as kernels of a rank see it.
struct MappedDoorbell {
    backend: Arc<dyn Backend>,
    rank: usize,
    host: u64,
    address: u64,
}

impl Drop for MappedDoorbell {
    fn drop(&mut self) {
        // A failure here means that the device is lost.
        let _ = self.backend.unmap_registers(self.rank, self.host);
    }
}

/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 8;

impl Registers {
    pub(super) fn new(
        device: &Device,
        backend: &Arc<dyn Backend>,
        rank: usize,
    ) -> Result<Registers, NetError> {
        let api = &device.verbs().api;
        let kinds = sys::REGISTER_PAGES.into_iter();
        // SAFETY: the context is open. Older libraries and cards know fewer kinds.
        let mut tried = kinds.map(|kind| unsafe { (api.alloc_uar)(device.context(), kind) });
        let made = tried.find(|made| !made.is_null()).unwrap_or(ptr::null_mut());
        let made = device.called().made("mlx5dv_devx_alloc_uar", made)?;
        let owned = Owned { made, close: Close::Plain(api.free_uar) };
        // SAFETY: it was just made.
        let (host, number) = unsafe { (made.as_ref().reg_addr as u64, made.as_ref().page_id) };
        let address = backend.map_registers(rank, host, DOORBELL_BYTES)?;
        let doorbell = MappedDoorbell { backend: Arc::clone(backend), rank, host, address };
        Ok(Registers { doorbell, _owned: owned, number })
    }

    /// Where kernels ring.
    pub(super) fn doorbell(&self) -> u64 {
        self.doorbell.address
    }
}

/// The number of the queue of events that a completion queue names, and never writes to.
pub(super) fn events(device: &Device) -> Result<u32, NetError> {
    let mut number = 0;
    // SAFETY: the context is open; the call writes one number.
    let code = unsafe { (device.verbs().api.query_eqn)(device.context(), 0, &mut number) };
    device.called().done("mlx5dv_devx_query_eqn", code).map(|()| number)
}

/// A queue pair with its completions.
pub(super) struct QueuePair {
    pair: Owned<DevxObject>,
    _completions: Owned<DevxObject>,
    pub(super) number: u32,
}

/// What all queue pairs of a card share.
pub(super) struct Made<'a> {
    pub(super) device: &'a Device,
    pub(super) domain: &'a Domain,
    pub(super) umem: &'a Umem,
    pub(super) registers: &'a Registers,
    pub(super) events: u32,
}

impl Made<'_> {
    fn create(&self, asked: &Command) -> Result<(Owned<DevxObject>, u32), NetError> {
        let api: &'static sys::Api = &self.device.verbs().api;
        let mut made = ptr::null_mut();
        let answer = Answer::new(command::QUEUE_ANSWER_BYTES);
        let answer = self.device.called().ask(asked, answer, |asked, bytes, answer, room| {
            // SAFETY: the context is open; both buffers have so many bytes.
            made = unsafe { (api.obj_create)(self.device.context(), asked, bytes, answer, room) };
            if made.is_null() { -1 } else { 0 }
        });
        let made =
            NonNull::new(made).map(|made| Owned { made, close: Close::Code(api.obj_destroy) });
        let answer = answer?;
        let made = made.ok_or_else(|| NetError::Call {
            call: asked.name(),
            why: "it made nothing".to_string(),
        })?;
        Ok((made, answer.get(command::NUMBER) as u32))
    }

    /// A queue pair of so many slots whose queues lie at such places of the memory.
    pub(super) fn queue_pair(&self, at: &PairPlaces, slots: usize) -> Result<QueuePair, NetError> {
        let (log_slots, umem) = (u64::from(slots.ilog2()), u64::from(self.umem.number));
        let page = u64::from(self.registers.number);
        let asked = Command::of_queue(command::CREATE_CQ)
            .with(cq::COLLAPSED, 1)
            .with(cq::MAY_OVERRUN, 1)
            .with(cq::LOG_SIZE, log_slots)
            .with(cq::REGISTER_PAGE, page)
            .with(cq::EVENTS, self.events.into())
            .with(cq::LOG_PAGE_BYTES, LOG_PAGE - command::LOG_LEAST_PAGE)
            .with(cq::RECORD_UMEM_VALID, 1)
            .with(cq::RECORD_UMEM, umem)
            .with(cq::RECORD_AT, at.completion_record)
            .with(cq::UMEM_VALID, 1)
            .with(cq::UMEM, umem)
            .with(cq::UMEM_AT, at.completions);
        let (completions, number) = self.create(&asked)?;
        let asked = Command::of_queue(command::CREATE_QP)
            .with(qp::PATH_STATE, MIGRATED)
            .with(qp::DOMAIN, self.domain.number.into())
            .with(qp::REGISTER_PAGE, page)
            .with(qp::CQ_SENT, number.into())
            .with(qp::CQ_RECEIVED, number.into())
            .with(qp::RECEIVES, NO_RECEIVES)
            .with(qp::LOG_SLOTS, log_slots)
            .with(qp::LOG_PAGE_BYTES, LOG_PAGE - command::LOG_LEAST_PAGE)
            .with(qp::RECORD_UMEM_VALID, 1)
            .with(qp::RECORD_UMEM, umem)
            .with(qp::RECORD_AT, at.records)
            .with(qp::UMEM_VALID, 1)
            .with(qp::UMEM, umem)
            .with(qp::UMEM_AT, at.entries);
        let (pair, number) = self.create(&asked)?;
        Ok(QueuePair { pair, _completions: completions, number })
    }
}

/// Which of its kinds of traffic a fabric takes packets for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kind {
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
}

impl QueuePair {
    /// Joins it to the queue pair `peer_number` of a card that `there` describes.
    pub(super) fn connect(
        &self,
        (device, domain): (&Device, &Domain),
        kind: Kind,
        there: &PortEnd,
        peer_number: u32,
    ) -> Result<(), NetError> {
        let port = device.port;
        let asked = Command::of_queue(command::RST2INIT_QP)
            .with(command::NUMBER, self.number.into())
            .with(qp::TAKES_WRITES, 1)
            .with(qp::TAKES_ATOMICS, 1)
            .with(qp::ATOMIC_MODE, ATOMICS_UP_TO_8)
            .with(qp::PORT, port.number.into())
            .with(qp::PATH_STATE, MIGRATED);
        self.modify(device, &asked)?;
        let (taken, sent) = device.log_atomics;
        let asked = Command::of_queue(command::INIT2RTR_QP)
            .with(command::NUMBER, self.number.into())
            .with(qp::MTU, port.mtu.min(there.mtu).into())
            .with(qp::LOG_MESSAGE_BYTES, LOG_MESSAGE_BYTES)
            .with(qp::PEER, peer_number.into())
            .with(qp::NOT_READY_TIMER, NOT_READY_TIMER)
            .with(qp::LOG_ATOMICS_TAKEN, taken.into());
        let asked = self.with_path(asked, (device, domain), kind, there, peer_number)?;
        self.modify(device, &asked)?;
        let asked = Command::of_queue(command::RTR2RTS_QP)
            .with(command::NUMBER, self.number.into())
            .with(qp::LOG_ATOMICS_SENT, sent.min(there.log_atomics).into())
            .with(qp::RETRIES, RETRIES)
            .with(qp::NOT_READY_RETRIES, RETRIES)
            .with(qp::ACK_TIMEOUT, ACK_TIMEOUT);
        self.modify(device, &asked)
    }

    fn modify(&self, device: &Device, asked: &Command) -> Result<(), NetError> {
        let answer = Answer::new(command::QUEUE_ANSWER_BYTES);
        let send = device.verbs().api.obj_modify;
        let done = device.called().ask(asked, answer, |asked, bytes, answer, room| {
            // SAFETY: the queue pair is live; both buffers have so many bytes.
            unsafe { send(self.pair.get(), asked, bytes, answer, room) }
        });
        done.map(drop)
    }

    /// How packets find the peer: by its LID within an InfiniBand subnet, else by its GID, and on Ethernet
    /// by the address of the next hop besides.
    fn with_path(
        &self,
        asked: Command,
        (device, domain): (&Device, &Domain),
        Kind { service_level, traffic_class }: Kind,
        there: &PortEnd,
        peer_number: u32,
    ) -> Result<Command, NetError> {
        let port = device.port;
        let is_global = port.is_ethernet || port.gid.0[..8] != there.gid[..8] || there.lid == 0;
        let asked = match is_global {
            true => asked
                .with_bytes(qp::GID, &there.gid)
                .with(qp::OWN_GID, port.gid_index.into())
                .with(qp::HOPS, HOPS.into())
                .with(qp::TRAFFIC_CLASS, traffic_class.into()),
            false => asked,
        };
        if !port.is_ethernet {
            return Ok(asked
                .with(qp::LID, there.lid.into())
                .with(qp::GLOBAL, is_global.into())
                .with(qp::SERVICE_LEVEL, service_level.into()));
        }
        let mac = next_hop(device, domain, there)?;
        // Ports from 0xc000 on are free; the pair chooses one, so that pairs take different ways.
        let port = 0xc000 | (self.number ^ peer_number) & 0x3fff;
        Ok(asked
            .with_bytes(qp::MAC, &mac)
            .with(qp::UDP_PORT, port.into())
            .with(qp::DSCP, u64::from(traffic_class >> 2))
            .with(qp::PRIORITY, u64::from(service_level & 7)))
    }
}

/// The Ethernet address to which packets for a peer go first, which the system finds out.
fn next_hop(device: &Device, domain: &Domain, there: &PortEnd) -> Result<[u8; 6], NetError> {
    let verbs: &'static Verbs = device.verbs();
    let mut wanted = AhAttr {
        dgid: sys::Gid(there.gid),
        sgid_index: device.port.gid_index,
        hop_limit: HOPS,
        is_global: 1,
        port_num: device.port.number,
        ..AhAttr::default()
    };
    // SAFETY: the domain is live; the call reads the attributes.
    let made = unsafe { (verbs.api.create_ah)(domain.owned.get(), &mut wanted) };
    let made = device.called().made("ibv_create_ah", made)?;
    let way = Owned { made, close: Close::Code(verbs.api.destroy_ah) };
    let mut filled = FilledAh { av: ptr::null(), comp_mask: 0, later: [0; 4] };
    let object = InOut { object: way.get().cast(), filled: (&raw mut filled).cast() };
    let mut objects = Objects { ah: object, ..none_of_all() };
    // SAFETY: the call reads the handle, which is live, and fills a struct with room for later members.
    let code = unsafe { (verbs.api.init_obj)(&mut objects, sys::OBJECT_AH) };
    device.called().done("mlx5dv_init_obj", code)?;
    let vector: *const AddressVector = filled.av;
    let vector = device.called().made("mlx5dv_init_obj", vector.cast_mut())?;
    // SAFETY: the vector belongs to the handle, which is live.
    Ok(unsafe { vector.as_ref().rmac })
}

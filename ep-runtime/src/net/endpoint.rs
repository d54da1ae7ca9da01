//! One rank's end of the network: a libfabric endpoint that writes into the memory of its peers with a
//! number for each write, and receives the numbers of their writes.
//!
//! One thread uses the endpoint. All `unsafe` of the data path is here: callers name places by their offset
//! in the registered memory, and the offsets are checked.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::fabric::{Fabric, InfoList, text_at};
use super::provider::Provider;
use super::swept::{self, HeldFile};
use super::sys::{
    self, Av, AvAttr, Cq, CqAttr, CqEntry, CqError, DmaBuf, Domain, Ep, FabricObject, Fid, Iov, Mr,
    MrAttr,
};
use crate::join::unique_name;
use crate::net_error::NetError;

/// Most bytes of an endpoint's address.
const NAME_MAX: usize = 256;

/// What blocks are registered for.
const ACCESS: u64 = sys::CAP_WRITE | sys::CAP_REMOTE_WRITE;

/// Completions that are looked at in one turn.
const AT_ONCE: usize = 64;

/// The most writes that are under way at once, however many the provider takes.
const IN_FLIGHT_MAX: usize = 512;

/// A block of memory that peers may write into, and that writes come from.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// Offsets of the network before it.
    pub(super) first: u64,
    /// Its address.
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) gpu: Option<OnGpu<'a>>,
}

/// What registers memory of a GPU.
#[derive(Clone, Copy)]
pub(super) struct OnGpu<'a> {
    /// Its number.
    pub(super) device: u64,
    /// What stands for the block; none: its address does.
    pub(super) dma_buf: Option<BorrowedFd<'a>>,
}

/// The most blocks of one rank.
const BLOCKS_MAX: usize = 2;

/// How a peer is reached; it travels through the join protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    /// The endpoint's address, in the provider's form.
    pub(super) name: Vec<u8>,
    /// Its blocks, in the order of their offsets.
    pub(super) blocks: Vec<Reached>,
}

/// How a block of a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reached {
    /// Offsets of the network before it.
    pub(super) first: u64,
    /// What an offset of the network is counted from there.
    pub(super) base: u64,
    /// The key of the block.
    pub(super) key: u64,
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.blocks.len() as u8];
        for Reached { first, base, key } in &self.blocks {
            bytes.extend([first, base, key].into_iter().flat_map(|number| number.to_le_bytes()));
        }
        bytes.extend(&self.name);
        bytes
    }

    /// None: these are not the bytes of a card.
    pub(super) fn decode(bytes: &[u8]) -> Option<Card> {
        let (count, mut rest) = bytes.split_first()?;
        let mut blocks = Vec::new();
        let mut number = || {
            let (number, behind) = rest.split_first_chunk()?;
            rest = behind;
            Some(u64::from_le_bytes(*number))
        };
        for _ in 0..*count {
            blocks.push(Reached { first: number()?, base: number()?, key: number()? });
        }
        let fits = (1..=BLOCKS_MAX).contains(&blocks.len()) && (1..=NAME_MAX).contains(&rest.len());
        fits.then(|| Card { name: rest.to_vec(), blocks })
    }
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The write of this number has left: what it read may change.
    Sent(usize),
    /// A peer's write has landed, with this number.
    Landed(u32),
    /// The write of this number, if the library says which, will never land.
    Failed(Option<usize>, String),
}

/// What a write of libfabric keeps while it is under way: `struct fi_context2`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Context([u64; 8]);

/// Objects of libfabric, closed in the order of their members.
struct Objects {
    mrs: Vec<Object<Mr>>,
    ep: Object<Ep>,
    av: Object<Av>,
    cq: Object<Cq>,
    _domain: Object<Domain>,
    _fabric: Object<FabricObject>,
}

/// An object that its owner closes.
struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    /// What `open` made.
    fn new(
        fabric: &Fabric,
        call: &'static str,
        open: impl FnOnce(*mut *mut T) -> i32,
    ) -> Result<Object<T>, NetError> {
        let mut made = ptr::null_mut();
        fabric.check(call, open(&mut made) as isize)?;
        let made = NonNull::new(made);
        made.map(Object).ok_or_else(|| NetError::Call { call, why: "it made nothing".to_string() })
    }

    fn get(&self) -> *mut T {
        self.0.as_ptr()
    }

    fn fid(&self) -> *mut Fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: every object begins with its `Fid`; it is live, and closed once. What fails to close is
        // left to the end of the process.
        unsafe {
            let _ = ((*(*self.fid()).ops).close)(self.fid());
        }
    }
}

/// How a peer is reached from here.
struct Peer {
    address: u64,
    blocks: Vec<Reached>,
}

/// A registered block.
struct Region {
    first: u64,
    bytes: u64,
    start: u64,
    /// What the provider wants to be told of writes that come from there.
    descriptor: *mut c_void,
    is_on_gpu: bool,
}

/// Where a write comes from and goes to, in the terms of the library.
struct Way {
    from: *const c_void,
    descriptor: *mut c_void,
    address: u64,
    to: u64,
    key: u64,
}

/// An open endpoint.
pub(super) struct Endpoint {
    fabric: &'static Fabric,
    objects: Objects,
    /// Keeps other processes from removing the shared memory of `shm`; dropped after the objects.
    _held: HeldFile,
    regions: Vec<Region>,
    /// Whether offsets of peers count from an address or from 0.
    by_address: bool,
    contexts: Box<[Context]>,
    /// Where the library writes completions. It is kept: to empty it for each look costs as much as a
    /// descriptor.
    entries: Box<[CqEntry]>,
    peers: Vec<Option<Peer>>,
    /// Bytes up to which `inject` takes a write.
    inject_max: u64,
}

// SAFETY: it is used by one thread at a time, which is what `FI_THREAD_DOMAIN` asks for; its pointers are
// into the library's objects and into memory that it does not own but that outlives it (`Network`).
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint of the provider and registers `blocks`, in the order of their offsets, which
    /// outlive it. Fails where one is on a GPU and the provider does not reach it by itself.
    pub(super) fn open(
        fabric: &'static Fabric,
        provider: Provider,
        source: Option<&str>,
        blocks: &[Block<'_>],
    ) -> Result<Endpoint, NetError> {
        let has_gpu = blocks.iter().any(|block| block.gpu.is_some());
        // Shared memory that the library names by the number of its process is taken for that of one which was killed, or
        // which has the same number in another container.
        let own = if provider == Provider::Shm { Some(unique_name()?) } else { None };
        if own.is_some() {
            swept::sweep();
        }
        let list = fabric.list(provider, source.or(own.as_deref()), has_gpu)?;
        let none = || NetError::NoProvider {
            provider: provider.name(),
            why: "it offers nothing".to_string(),
        };
        let info = list.first().ok_or_else(none)?;
        // SAFETY: an info of the list has all its parts and is alive as long as the list.
        let (mr_mode, tx) = unsafe { ((*(*info).domain).mr_mode, &*(*info).tx) };
        let (in_flight, inject_max) = (tx.size, tx.inject_size as u64);
        let objects = open_objects(fabric, &list, info, blocks, mr_mode)?;
        let held = own.as_deref().map(HeldFile::of).unwrap_or_default();
        let is_told = mr_mode & (sys::MR_LOCAL | sys::MR_HMEM) != 0;
        let region = |(block, mr): (&Block<'_>, &Object<Mr>)| Region {
            first: block.first,
            bytes: block.bytes,
            start: block.start,
            // SAFETY: the region was just made.
            descriptor: if is_told { unsafe { (*mr.get()).descriptor } } else { ptr::null_mut() },
            is_on_gpu: block.gpu.is_some(),
        };
        let regions = blocks.iter().zip(&objects.mrs).map(region).collect();
        let count = in_flight.clamp(1, IN_FLIGHT_MAX);
        Ok(Endpoint {
            fabric,
            objects,
            _held: held,
            regions,
            by_address: mr_mode & sys::MR_VIRT_ADDR != 0,
            contexts: vec![Context([0; 8]); count].into(),
            entries: vec![CqEntry::EMPTY; AT_ONCE].into(),
            peers: Vec::new(),
            // Elsewhere a write that was taken may fail, and nothing would say which peer it was for.
            inject_max: if provider == Provider::Shm { inject_max } else { 0 },
        })
    }

    /// Writes that can be under way at once: their numbers are below it.
    pub(super) fn in_flight_max(&self) -> usize {
        self.contexts.len()
    }

    /// How this rank is reached.
    pub(super) fn card(&self) -> Result<Card, NetError> {
        let mut name = vec![0u8; NAME_MAX];
        let mut bytes = name.len();
        let ep = self.objects.ep.get();
        // SAFETY: the endpoint is live, and the call writes at most `bytes` bytes.
        let code = unsafe {
            ((*(*ep).cm).getname)(&raw mut (*ep).fid, name.as_mut_ptr().cast(), &mut bytes)
        };
        self.fabric.check("fi_getname", code as isize)?;
        name.truncate(bytes);
        let reached = |(region, mr): (&Region, &Object<Mr>)| {
            let start = if self.by_address { region.start } else { 0 };
            // SAFETY: the region is registered as long as the endpoint is open.
            let key = unsafe { (*mr.get()).key };
            Reached { first: region.first, base: start.wrapping_sub(region.first), key }
        };
        let blocks = self.regions.iter().zip(&self.objects.mrs).map(reached).collect();
        Ok(Card { name, blocks })
    }

    /// Makes the peers reachable, by rank; none at this rank's own place.
    pub(super) fn connect(&mut self, cards: &[Option<Card>]) -> Result<(), NetError> {
        for card in cards {
            let Some(card) = card else {
                self.peers.push(None);
                continue;
            };
            let (av, mut address) = (self.objects.av.get(), 0);
            // SAFETY: the address vector is live; the name is one of the same provider, as long as it says
            // itself, in a buffer of the longest.
            let inserted = unsafe {
                let mut name = card.name.clone();
                name.resize(NAME_MAX, 0);
                ((*(*av).ops).insert)(av, name.as_ptr().cast(), 1, &mut address, 0, ptr::null_mut())
            };
            if inserted != 1 {
                let why = self.fabric.words(isize::try_from(inserted).unwrap_or(-22).min(-22));
                return Err(NetError::Call { call: "fi_av_insert", why });
            }
            self.peers.push(Some(Peer { address, blocks: card.blocks.clone() }));
        }
        Ok(())
    }

    /// Posts a write of `bytes` from the offset `from` here to the offset `to` at `peer`. `number` is free:
    /// no event has still to come for it. False: the network takes nothing now.
    pub(super) fn write(
        &mut self,
        number: usize,
        peer: usize,
        (to, from, bytes): (u64, u64, u64),
        immediate: u32,
    ) -> Result<bool, NetError> {
        let way = self.way(peer, (to, from, bytes));
        let Some((way, context)) = way.zip(self.contexts.get_mut(number)) else {
            let why = format!("{bytes} bytes at {from} to rank {peer} as write {number}");
            return Err(NetError::Call { call: "fi_writedata", why });
        };
        let ep = self.objects.ep.get();
        // SAFETY: the endpoint is live; the source lies in the registered memory, and the context belongs
        // to this write until its event.
        let code = unsafe {
            ((*(*ep).rma).write_data)(
                ep,
                way.from,
                bytes as usize,
                way.descriptor,
                u64::from(immediate),
                way.address,
                way.to,
                way.key,
                ptr::from_mut(context).cast(),
            )
        };
        match code {
            sys::EAGAIN => Ok(false),
            code => self.fabric.check("fi_writedata", code).map(|()| true),
        }
    }

    /// Whether `inject` takes a write of so many bytes from there.
    pub(super) fn injects(&self, from: u64, bytes: u64) -> bool {
        bytes <= self.inject_max && self.region(from, bytes).is_some_and(|region| !region.is_on_gpu)
    }

    /// Posts a short write, which has left when this returns: no event comes for it. False: the network
    /// takes nothing now.
    pub(super) fn inject(
        &mut self,
        peer: usize,
        (to, from, bytes): (u64, u64, u64),
        immediate: u32,
    ) -> Result<bool, NetError> {
        let way = self.way(peer, (to, from, bytes)).filter(|_| self.injects(from, bytes));
        let Some(way) = way else {
            let why = format!("{bytes} bytes at {from} to rank {peer}");
            return Err(NetError::Call { call: "fi_inject_writedata", why });
        };
        let ep = self.objects.ep.get();
        // SAFETY: the endpoint is live; the source lies in the registered memory, and is read before the
        // call returns.
        let code = unsafe {
            let (bytes, immediate) = (bytes as usize, u64::from(immediate));
            ((*(*ep).rma).inject_data)(ep, way.from, bytes, immediate, way.address, way.to, way.key)
        };
        match code {
            sys::EAGAIN => Ok(false),
            code => self.fabric.check("fi_inject_writedata", code).map(|()| true),
        }
    }

    /// The block that has these bytes.
    #[inline]
    fn region(&self, from: u64, bytes: u64) -> Option<&Region> {
        let has = |region: &&Region| {
            let end = from.checked_sub(region.first).and_then(|at| at.checked_add(bytes));
            end.is_some_and(|end| end <= region.bytes)
        };
        self.regions.iter().find(has)
    }

    /// The way of a write, if the peer is reached and the memory here has the bytes that it is to get.
    #[inline]
    fn way(&self, peer: usize, (to, from, bytes): (u64, u64, u64)) -> Option<Way> {
        let region = self.region(from, bytes)?;
        let peer = self.peers.get(peer)?.as_ref()?;
        let there = peer.blocks.iter().rfind(|block| block.first <= to)?;
        Some(Way {
            from: (region.start + (from - region.first)) as *const c_void,
            descriptor: region.descriptor,
            address: peer.address,
            to: there.base.wrapping_add(to),
            key: there.key,
        })
    }

    /// What has happened since; this is what makes the network move.
    pub(super) fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), NetError> {
        let cq = self.objects.cq.get();
        let (entries, most) = (self.entries.as_mut_ptr(), self.entries.len());
        // SAFETY: the queue is live, and the call writes at most as many entries.
        let read = unsafe { ((*(*cq).ops).read)(cq, entries, most) };
        match read {
            sys::EAGAIN => return Ok(()),
            sys::EAVAIL => {
                events.push(self.failure());
                return Ok(());
            }
            read => self.fabric.check("fi_cq_read", read)?,
        }
        for entry in self.entries.iter().take(read.unsigned_abs()) {
            if entry.flags & sys::REMOTE_CQ_DATA != 0 {
                events.push(Event::Landed(entry.data as u32));
            } else if let Some(number) = self.number(entry.context) {
                events.push(Event::Sent(number));
            }
        }
        Ok(())
    }

    /// The write that a context belongs to.
    fn number(&self, context: *mut c_void) -> Option<usize> {
        let apart = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let number = apart / size_of::<Context>();
        (number < self.contexts.len()).then_some(number)
    }

    /// The write that has failed, and why.
    fn failure(&mut self) -> Event {
        let cq = self.objects.cq.get();
        // SAFETY: all members of the entry may be zero.
        let mut entry: CqError = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is live; the call fills the entry, whose room holds that of newer libraries. The
        // text is the library's own.
        let provider = unsafe {
            if ((*(*cq).ops).readerr)(cq, &mut entry, 0) != 1 {
                return Event::Failed(None, "the network failed without a reason".to_string());
            }
            let strerror = (*(*cq).ops).strerror;
            text_at(strerror(cq, entry.prov_errno, entry.err_data, ptr::null_mut(), 0))
        };
        let why = format!("{}, {provider}", self.fabric.words(entry.err as isize));
        Event::Failed(self.number(entry.context), why)
    }
}

/// Opens everything that an endpoint is made of, from the outside in.
fn open_objects(
    fabric: &'static Fabric,
    list: &InfoList,
    info: *mut sys::Info,
    blocks: &[Block<'_>],
    mr_mode: i32,
) -> Result<Objects, NetError> {
    let none = ptr::null_mut();
    debug_assert!(ptr::eq(list.fabric, fabric));
    // SAFETY: `info` is an offer of the live list with all its parts. Each object is made by one that is
    // live, with attributes whose unused members are zero, and closed before it: `Objects` drops its
    // members in order. The memory outlives its registration.
    unsafe {
        let made = Object::new(fabric, "fi_fabric", |made| {
            (fabric.api.fabric)((*info).fabric, made, none)
        })?;
        let outer = made.get();
        let domain = Object::new(fabric, "fi_domain", |made| {
            ((*(*outer).ops).domain)(outer, info, made, none)
        })?;
        let inner = domain.get();
        let ops = &*(*inner).ops;
        let wanted = AvAttr { ..std::mem::zeroed() };
        let av =
            Object::new(fabric, "fi_av_open", |made| (ops.av_open)(inner, &wanted, made, none))?;
        let wanted = CqAttr { size: 8192, format: sys::CQ_FORMAT_DATA, ..std::mem::zeroed() };
        let cq =
            Object::new(fabric, "fi_cq_open", |made| (ops.cq_open)(inner, &wanted, made, none))?;
        let ep =
            Object::new(fabric, "fi_endpoint", |made| (ops.endpoint)(inner, info, made, none))?;
        let bind = (*(*ep.fid()).ops).bind;
        fabric.check("fi_ep_bind", bind(ep.fid(), av.fid(), 0) as isize)?;
        let both = sys::BIND_TRANSMIT | sys::BIND_RECEIVE;
        fabric.check("fi_ep_bind", bind(ep.fid(), cq.fid(), both) as isize)?;
        if blocks.iter().any(|block| block.gpu.is_some()) {
            forbid_cuda_calls(fabric, &ep)?;
        }
        let enable = |fid: *mut Fid| ((*(*fid).ops).control)(fid, sys::CONTROL_ENABLE, none);
        fabric.check("fi_enable", enable(ep.fid()) as isize)?;
        let mut mrs = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let mr = register(fabric, inner, block, 1 + index as u64)?;
            if mr_mode & sys::MR_ENDPOINT != 0 {
                let bind = (*(*mr.fid()).ops).bind;
                fabric.check("fi_mr_bind", bind(mr.fid(), ep.fid(), 0) as isize)?;
                fabric.check("fi_mr_enable", enable(mr.fid()) as isize)?;
            }
            mrs.push(mr);
        }
        Ok(Objects { mrs, ep, av, cq, _domain: domain, _fabric: made })
    }
}

/// Fails if the provider copies GPU memory by calls of CUDA: they wait for kernels, which wait for these
/// bytes, and may return before the bytes are there.
///
/// # Safety
///
/// The endpoint is live and not enabled.
unsafe fn forbid_cuda_calls(fabric: &Fabric, ep: &Object<Ep>) -> Result<(), NetError> {
    let permitted = false;
    // SAFETY: the caller says that the endpoint is live; the option is a bool.
    let code = unsafe {
        let setopt = (*(*ep.get()).ops).setopt;
        let (level, option) = (sys::OPTION_OF_ENDPOINT, sys::OPTION_CUDA_CALLS);
        setopt(ep.fid(), level, option, ptr::from_ref(&permitted).cast(), size_of::<bool>())
    };
    let why = |code: isize| format!("the provider needs calls of CUDA: {}", fabric.words(code));
    if code == 0 { Ok(()) } else { Err(NetError::NoGpuRows { why: why(code as isize) }) }
}

/// Registers a block, with this key where the provider takes one.
///
/// # Safety
///
/// The domain is live, and the block outlives what is returned.
unsafe fn register(
    fabric: &Fabric,
    domain: *mut Domain,
    block: &Block<'_>,
    key: u64,
) -> Result<Object<Mr>, NetError> {
    // SAFETY: the caller says that the domain is live, so that it has all its functions; what is registered
    // is there as long as its registration.
    unsafe {
        let (fid, ops) = (&raw mut (*domain).fid, &*(*domain).mr);
        match &block.gpu {
            Some(gpu) => register_on_gpu(fabric, (ops.register_attr, fid), block, gpu, key),
            None => Object::new(fabric, "fi_mr_reg", |made| {
                let (start, bytes) = (block.start as *const c_void, block.bytes as usize);
                (ops.register)(fid, start, bytes, ACCESS, 0, key, 0, made, ptr::null_mut())
            }),
        }
    }
}

/// Registers a block on a GPU, with this key where the provider takes one: by the dma-buf of the block, or by
/// its address if it has none.
///
/// # Safety
///
/// The domain is live, and the block outlives what is returned. The function is that of the domain.
unsafe fn register_on_gpu(
    fabric: &Fabric,
    (register, domain): (sys::RegisterAttr, *mut Fid),
    block: &Block<'_>,
    gpu: &OnGpu<'_>,
    requested_key: u64,
) -> Result<Object<Mr>, NetError> {
    let (start, bytes) = (block.start as *const c_void, block.bytes as usize);
    let by_address = Iov { start, bytes };
    let descriptor = gpu.dma_buf.map_or(-1, |descriptor| descriptor.as_raw_fd());
    let by_descriptor = DmaBuf { descriptor, offset: 0, bytes, start };
    let (memory, flags) = match gpu.dma_buf {
        None => (ptr::from_ref(&by_address).cast(), 0),
        Some(_) => (ptr::from_ref(&by_descriptor).cast(), sys::REGISTER_DMA_BUF),
    };
    // SAFETY: all members may be zero.
    let rest: MrAttr = unsafe { std::mem::zeroed() };
    let (memory_of, device) = (sys::MEMORY_OF_CUDA, gpu.device);
    let wanted =
        MrAttr { memory, count: 1, access: ACCESS, requested_key, memory_of, device, ..rest };
    Object::new(fabric, "fi_mr_regattr", |made| {
        // SAFETY: as above; what `wanted` points to lives until the call returns.
        unsafe { register(domain, &wanted, flags, made) }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::alone::is_alone;

    #[test]
    fn cards_survive_the_way_and_others_are_none() {
        let one = Reached { first: 0, base: 7, key: u64::MAX };
        let other = Reached { first: 4096, base: 4, key: 2 };
        for blocks in [vec![one], vec![one, other]] {
            let card = Card { name: vec![1, 2, 3], blocks };
            assert_eq!(Card::decode(&card.encode()), Some(card.clone()));
        }
        let long = [&[1][..], &[0; 25 + NAME_MAX]].concat();
        let none = [&[0][..], &[0; 24]].concat();
        let three = [&[3][..], &[0; 80]].concat();
        for bytes in [&[][..], &[1; 24], &[1; 25], &[2; 49], &long, &none, &three] {
            assert_eq!(Card::decode(bytes), None, "{} bytes", bytes.len());
        }
    }

    /// What a killed process left has the number of this one in its name, as in containers where programs always have
    /// the same number. Run again alone: other tests open endpoints meanwhile.
    #[test]
    fn what_a_killed_process_left_is_in_nobodys_way() {
        let Ok(fabric) = Fabric::find() else { return eprintln!("skipped: no libfabric") };
        if fabric.offers(Provider::Shm, None).is_err() {
            return eprintln!("skipped: no libfabric with shm");
        }
        if !is_alone("net::endpoint::tests::what_a_killed_process_left_is_in_nobodys_way") {
            return;
        }
        let mut room = [0; 512];
        let mut open = || Endpoint::open(fabric, Provider::Shm, None, &[host(0, &mut room)]);
        let first = open().unwrap();
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
        let region = mapped.lines().find_map(|line| Some(&line[line.find("/dev/shm/")?..]));
        let region = region.unwrap();
        let file = File::open(region).unwrap();
        // SAFETY: the descriptor is open, and the call touches no memory.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        assert_eq!(locked, -1, "nobody sweeps the file of an open endpoint");
        let left = std::fs::read(region).unwrap();
        drop(first);
        // SAFETY: it changes nothing.
        let (process, user) = (std::process::id(), unsafe { libc::getuid() });
        let stale: Vec<_> =
            (0..40).map(|number| format!("/dev/shm/{process}:{user}:{number}")).collect();
        for path in &stale {
            // Memory that nobody has written takes none.
            std::fs::write(path, &left[..4096]).unwrap();
            File::options().write(true).open(path).unwrap().set_len(left.len() as u64).unwrap();
        }
        let opened = open();
        let still_there = stale.iter().filter(|path| std::fs::remove_file(path).is_ok()).count();
        assert!(opened.is_ok(), "{:?}", opened.err());
        assert_eq!(still_there, stale.len(), "what it met is not its own to remove");
    }

    fn host(first: u64, room: &mut [u64]) -> Block<'static> {
        let (start, bytes) = (room.as_mut_ptr() as u64, 8 * room.len() as u64);
        Block { first, start, bytes, gpu: None }
    }

    /// Two endpoints of this process with so many blocks each, whose offsets lie behind one another.
    fn pair(
        fabric: &'static Fabric,
        provider: Provider,
        rooms: [&mut [Vec<u64>]; 2],
    ) -> [Endpoint; 2] {
        let mut ends = rooms.map(|rooms| {
            let mut first = 0;
            let mut blocks = Vec::new();
            for room in rooms {
                blocks.push(host(first, room));
                first += 8 * room.len() as u64;
            }
            Endpoint::open(fabric, provider, None, &blocks).unwrap()
        });
        let cards = [0, 1].map(|end| Some(ends[end].card().unwrap()));
        ends[0].connect(&[None, cards[1].clone()]).unwrap();
        ends[1].connect(&[cards[0].clone(), None]).unwrap();
        ends
    }

    /// The library, if it has the provider.
    fn with(provider: Provider) -> Option<&'static Fabric> {
        let fabric = Fabric::find().ok().filter(|fabric| fabric.offers(provider, None).is_ok());
        if fabric.is_none() {
            eprintln!("skipped: no libfabric with {provider}");
        }
        fabric
    }

    #[test]
    fn short_writes_through_shared_memory_leave_at_once() {
        let Some(fabric) = with(Provider::Shm) else { return };
        let (mut from, mut to) = ([vec![0; 1 << 13]], [vec![0; 1 << 13]]);
        let [mut here, mut there] = pair(fabric, Provider::Shm, [&mut from, &mut to]);
        let short = here.inject_max;
        assert!(short >= 16 && here.injects(0, short) && !here.injects(0, short + 1));
        assert!(here.inject(1, (0, 0, short + 1), 0).is_err());
        let (mut sent, mut landed) = (Vec::new(), Vec::new());
        from[0][3] = 7;
        while !here.inject(1, (8, 24, 8), 5).unwrap() {
            there.poll(&mut landed).unwrap();
            here.poll(&mut sent).unwrap();
        }
        // It is not this word any more that goes.
        from[0][3] = 8;
        while landed.is_empty() {
            there.poll(&mut landed).unwrap();
            here.poll(&mut sent).unwrap();
        }
        assert_eq!((landed, to[0][1]), (vec![Event::Landed(5)], 7));
        assert_eq!(sent, []);
    }

    /// Ranks need not have as many blocks: one may have its rows on a GPU, and the other not.
    #[test]
    fn writes_go_between_the_blocks_that_have_their_offsets() {
        for provider in [Provider::Shm, Provider::Tcp] {
            let Some(fabric) = with(provider) else { continue };
            let (mut apart, mut one) = ([vec![1, 2, 3, 4], vec![5, 6]], [vec![0; 6]]);
            let [mut here, mut there] = pair(fabric, provider, [&mut apart, &mut one]);
            // From the second block to the other's only one, and from that to the first block.
            for (end, way) in [(0, (0, 32, 16)), (1, (8, 0, 8))] {
                let (mut sent, mut landed) = (Vec::new(), Vec::new());
                let peer = 1 - end;
                let ends = if end == 0 { [&mut here, &mut there] } else { [&mut there, &mut here] };
                let [from, to] = ends;
                while !from.write(0, peer, way, 9).unwrap() {
                    to.poll(&mut landed).unwrap();
                    from.poll(&mut sent).unwrap();
                }
                while landed.is_empty() || sent.is_empty() {
                    to.poll(&mut landed).unwrap();
                    from.poll(&mut sent).unwrap();
                }
                assert_eq!((sent, landed), (vec![Event::Sent(0)], vec![Event::Landed(9)]));
            }
            assert_eq!(
                (&one[0][..2], &apart[0][..]),
                (&[5, 6][..], &[1, 5, 3, 4][..]),
                "{provider}"
            );
            // What no block has alone is refused: across both, and behind the last.
            for from in [24, 40] {
                let error = here.write(0, 1, (0, from, 16), 0).unwrap_err().to_string();
                let text = format!("fi_writedata failed: 16 bytes at {from} to rank 1 as write 0");
                assert_eq!(error, text);
            }
        }
    }

    thread_local! {
        /// What was registered last: flags, the four numbers that stand for the memory, and the rest in order.
        static ASKED: Cell<[u64; 10]> = const { Cell::new([0; 10]) };
    }

    unsafe extern "C" fn note(
        _: *mut Fid,
        wanted: *const MrAttr,
        flags: u64,
        _: *mut *mut Mr,
    ) -> i32 {
        // SAFETY: `register_on_gpu` gives a whole attribute, whose memory is what the flags say.
        let (wanted, [descriptor, offset, bytes, start]) = unsafe {
            let wanted = &*wanted;
            let memory = if flags == 0 {
                let Iov { start, bytes } = &*wanted.memory.cast();
                [0, 0, *bytes as u64, *start as u64]
            } else {
                let DmaBuf { descriptor, offset, bytes, start } = &*wanted.memory.cast();
                [*descriptor as u64, *offset, *bytes as u64, *start as u64]
            };
            (wanted, memory)
        };
        let &MrAttr { count, access, requested_key, memory_of, device, .. } = wanted;
        let rest = [count as u64, access, requested_key, memory_of.into(), device];
        let [count, access, key, memory_of, device] = rest;
        ASKED.set([flags, descriptor, offset, bytes, start, count, access, key, memory_of, device]);
        -12
    }

    /// A GPU and a provider that reaches it are rare: what such a provider is asked for.
    #[test]
    fn memory_of_a_gpu_is_registered_as_such() {
        let Ok(fabric) = Fabric::find() else { return eprintln!("skipped: no libfabric") };
        let file = File::open("/dev/null").unwrap();
        let number = file.as_raw_fd() as u64;
        let access = 1 << 9 | 1 << 13;
        for (dma_buf, flags, descriptor) in [(None, 0, 0), (Some(file.as_fd()), 1 << 40, number)] {
            let gpu = Some(OnGpu { device: 3, dma_buf });
            let block = Block { first: 0, start: 1 << 20, bytes: 4096, gpu };
            let (gpu, domain) = (block.gpu.as_ref().unwrap(), ptr::null_mut());
            // SAFETY: `note` uses no domain, and registers nothing.
            let made = unsafe { register_on_gpu(fabric, (note, domain), &block, gpu, 2) };
            let error = made.map(drop).unwrap_err().to_string();
            assert!(error.starts_with("fi_mr_regattr failed: "), "{error}");
            assert_eq!(ASKED.get(), [flags, descriptor, 0, 4096, 1 << 20, 1, access, 2, 1, 3]);
        }
    }
}

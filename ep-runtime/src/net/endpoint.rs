//! One rank's end of the network: an endpoint of libfabric that writes into the memory of its peers, a
//! number with each write, and hears the numbers of theirs.
//!
//! One thread uses it. All `unsafe` of the data path is here: callers name places by their offset in the
//! registered memory, which is checked.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use super::fabric::{Fabric, InfoList, text_at};
use super::provider::Provider;
use super::sys::{
    self, Av, AvAttr, Cq, CqAttr, CqEntry, CqError, Domain, Ep, FabricObject, Fid, Mr,
};
use crate::net_error::NetError;

/// Most bytes of an endpoint's address.
const NAME_MAX: usize = 256;

/// Completions that are looked at in one turn.
const AT_ONCE: usize = 64;

/// The most writes that are under way at once, however many the provider takes.
const IN_FLIGHT_MAX: usize = 512;

/// Memory that peers may write into, and that writes come from.
#[derive(Clone, Copy)]
pub(super) struct Registered {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

/// How a peer is reached; it travels through the join protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    /// The endpoint's address, in the provider's form.
    pub(super) name: Vec<u8>,
    /// What an offset in its memory is counted from.
    pub(super) base: u64,
    /// The key of its memory.
    pub(super) key: u64,
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        [&self.base.to_le_bytes()[..], &self.key.to_le_bytes(), &self.name].concat()
    }

    /// None: these are not the bytes of a card.
    pub(super) fn decode(bytes: &[u8]) -> Option<Card> {
        let (base, rest) = bytes.split_first_chunk()?;
        let (key, name) = rest.split_first_chunk()?;
        let fits = (1..=NAME_MAX).contains(&name.len());
        let (base, key) = (u64::from_le_bytes(*base), u64::from_le_bytes(*key));
        fits.then(|| Card { name: name.to_vec(), base, key })
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
    mr: Object<Mr>,
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
#[derive(Clone, Copy)]
struct Peer {
    address: u64,
    base: u64,
    key: u64,
}

/// An open endpoint.
pub(super) struct Endpoint {
    fabric: &'static Fabric,
    objects: Objects,
    memory: Registered,
    /// Whether offsets of peers count from an address or from 0.
    by_address: bool,
    /// What the provider wants to be told of the memory that writes come from.
    descriptor: *mut c_void,
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
    /// Opens an endpoint of the provider and registers `memory`, which outlives it.
    pub(super) fn open(
        fabric: &'static Fabric,
        provider: Provider,
        source: Option<&str>,
        memory: Registered,
    ) -> Result<Endpoint, NetError> {
        let list = fabric.list(provider, source, false)?;
        let none = || NetError::NoProvider {
            provider: provider.name(),
            why: "it offers nothing".to_string(),
        };
        let info = list.first().ok_or_else(none)?;
        // SAFETY: an info of the list has all its parts and is alive as long as the list.
        let (mr_mode, tx) = unsafe { ((*(*info).domain).mr_mode, &*(*info).tx) };
        let (in_flight, inject_max) = (tx.size, tx.inject_size as u64);
        let objects = open_objects(fabric, &list, info, memory, mr_mode)?;
        // SAFETY: the region was just made.
        let registered = unsafe { (*objects.mr.get()).descriptor };
        let local = mr_mode & sys::MR_LOCAL != 0;
        let count = in_flight.clamp(1, IN_FLIGHT_MAX);
        Ok(Endpoint {
            fabric,
            objects,
            memory,
            by_address: mr_mode & sys::MR_VIRT_ADDR != 0,
            descriptor: if local { registered } else { ptr::null_mut() },
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
        let (code, key) = unsafe {
            let code =
                ((*(*ep).cm).getname)(&raw mut (*ep).fid, name.as_mut_ptr().cast(), &mut bytes);
            (code, (*self.objects.mr.get()).key)
        };
        self.fabric.check("fi_getname", code as isize)?;
        name.truncate(bytes);
        let base = if self.by_address { self.memory.start.as_ptr() as u64 } else { 0 };
        Ok(Card { name, base, key })
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
            self.peers.push(Some(Peer { address, base: card.base, key: card.key }));
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
        let Some((reached, context)) =
            self.reached(peer, from, bytes).zip(self.contexts.get_mut(number))
        else {
            let why = format!("{bytes} bytes at {from} to rank {peer} as write {number}");
            return Err(NetError::Call { call: "fi_writedata", why });
        };
        let ep = self.objects.ep.get();
        // SAFETY: the endpoint is live; the source lies in the registered memory, and the context belongs
        // to this write until its event.
        let code = unsafe {
            let from = self.memory.start.as_ptr().add(from as usize);
            ((*(*ep).rma).write_data)(
                ep,
                from.cast(),
                bytes as usize,
                self.descriptor,
                u64::from(immediate),
                reached.address,
                reached.base.wrapping_add(to),
                reached.key,
                ptr::from_mut(context).cast(),
            )
        };
        match code {
            sys::EAGAIN => Ok(false),
            code => self.fabric.check("fi_writedata", code).map(|()| true),
        }
    }

    /// Whether `inject` takes a write of so many bytes.
    pub(super) fn injects(&self, bytes: u64) -> bool {
        bytes <= self.inject_max
    }

    /// Posts a short write, which has left when this returns: no event comes for it. False: the network
    /// takes nothing now.
    pub(super) fn inject(
        &mut self,
        peer: usize,
        (to, from, bytes): (u64, u64, u64),
        immediate: u32,
    ) -> Result<bool, NetError> {
        let Some(reached) = self.reached(peer, from, bytes).filter(|_| self.injects(bytes)) else {
            let why = format!("{bytes} bytes at {from} to rank {peer}");
            return Err(NetError::Call { call: "fi_inject_writedata", why });
        };
        let ep = self.objects.ep.get();
        // SAFETY: the endpoint is live; the source lies in the registered memory, and is read before the
        // call returns.
        let code = unsafe {
            let from = self.memory.start.as_ptr().add(from as usize);
            ((*(*ep).rma).inject_data)(
                ep,
                from.cast(),
                bytes as usize,
                u64::from(immediate),
                reached.address,
                reached.base.wrapping_add(to),
                reached.key,
            )
        };
        match code {
            sys::EAGAIN => Ok(false),
            code => self.fabric.check("fi_inject_writedata", code).map(|()| true),
        }
    }

    /// How a peer is reached, if it is and the memory here has the bytes that it is to get.
    fn reached(&self, peer: usize, from: u64, bytes: u64) -> Option<Peer> {
        let inside = from.checked_add(bytes).is_some_and(|end| end <= self.memory.bytes as u64);
        self.peers.get(peer).copied().flatten().filter(|_| inside)
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
    memory: Registered,
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
        let enable = |fid: *mut Fid| ((*(*fid).ops).control)(fid, sys::CONTROL_ENABLE, none);
        fabric.check("fi_enable", enable(ep.fid()) as isize)?;
        let access = sys::CAP_WRITE | sys::CAP_REMOTE_WRITE;
        let mr = Object::new(fabric, "fi_mr_reg", |made| {
            let start = memory.start.as_ptr().cast_const().cast();
            let register = (*(*inner).mr).register;
            register(&raw mut (*inner).fid, start, memory.bytes, access, 0, 1, 0, made, none)
        })?;
        if mr_mode & sys::MR_ENDPOINT != 0 {
            let bind = (*(*mr.fid()).ops).bind;
            fabric.check("fi_mr_bind", bind(mr.fid(), ep.fid(), 0) as isize)?;
            fabric.check("fi_mr_enable", enable(mr.fid()) as isize)?;
        }
        Ok(Objects { mr, ep, av, cq, _domain: domain, _fabric: made })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_survive_the_way_and_others_are_none() {
        let card = Card { name: vec![1, 2, 3], base: 7, key: u64::MAX };
        assert_eq!(Card::decode(&card.encode()), Some(card.clone()));
        for bytes in [&[][..], &[0; 15], &[0; 16], &[0; 17 + NAME_MAX]] {
            assert_eq!(Card::decode(bytes), None, "{} bytes", bytes.len());
        }
    }

    /// Two endpoints of this process, each with room for `bytes`, and that room.
    fn pair(fabric: &'static Fabric, bytes: usize) -> [(Endpoint, Box<[u64]>); 2] {
        let mut ends = [(); 2].map(|()| {
            let mut room = vec![0; bytes.div_ceil(8)].into_boxed_slice();
            let start = NonNull::new(room.as_mut_ptr().cast()).unwrap();
            let memory = Registered { start, bytes };
            (Endpoint::open(fabric, Provider::Shm, None, memory).unwrap(), room)
        });
        let cards = [0, 1].map(|end| Some(ends[end].0.card().unwrap()));
        ends[0].0.connect(&[None, cards[1].clone()]).unwrap();
        ends[1].0.connect(&[cards[0].clone(), None]).unwrap();
        ends
    }

    #[test]
    fn short_writes_through_shared_memory_leave_at_once() {
        let fabric = match Fabric::find() {
            Ok(fabric) if fabric.offers(Provider::Shm, None).is_ok() => fabric,
            _ => return eprintln!("skipped: no libfabric with shm"),
        };
        let [(mut here, mut from), (mut there, to)] = pair(fabric, 1 << 16);
        let short = here.inject_max;
        assert!(short >= 16 && here.injects(short) && !here.injects(short + 1));
        assert!(here.inject(1, (0, 0, short + 1), 0).is_err());
        let (mut sent, mut landed) = (Vec::new(), Vec::new());
        from[3] = 7;
        while !here.inject(1, (8, 24, 8), 5).unwrap() {
            there.poll(&mut landed).unwrap();
            here.poll(&mut sent).unwrap();
        }
        // It is not this word any more that goes.
        from[3] = 8;
        while landed.is_empty() {
            there.poll(&mut landed).unwrap();
            here.poll(&mut sent).unwrap();
        }
        assert_eq!((landed, to[1]), (vec![Event::Landed(5)], 7));
        assert_eq!(sent, []);
    }
}

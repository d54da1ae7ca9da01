//! One rank's network: its memory, the queues that kernels write to, and the thread that drains them.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cores::Core;
use super::endpoint::{Block, Card, Endpoint};
use super::fabric::Fabric;
use super::host_queue::HostQueue;
use super::layout::{Layout, WINDOW};
use super::provider::Provider;
use super::proxy::{LINGER, Proxy, Shared, Timing};
use super::rows::{GpuRows, RowsOn};
use super::shared_memory::SharedMemory;
use super::together::Together;
use super::view::{NetPart, Places, Views};
use crate::backend::Backend;
use crate::error::CallError;
use crate::group::{Group, Watched};
use crate::join::Store;
use crate::memory::{DeviceMemory, HostMemory};
use crate::net_error::NetError;

/// Options of a network. All ranks must use the same options, except `source`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetOptions {
    /// The kind of network.
    pub provider: Provider,
    /// An address of this machine, which selects the device; `None`: libfabric's first choice.
    pub source: Option<String>,
    /// Bytes for rows on each rank, which peers write into.
    pub data_bytes: u64,
    /// Number of queues of each rank. Traffic through different queues never waits for one another.
    pub queues: usize,
    /// Number of descriptors in a queue, a power of two.
    pub slots: usize,
    /// Number of counters of each source and queue.
    pub counters: usize,
    /// Time from one sign of life to the next.
    pub pulse: Duration,
    /// Silence of a peer after which it counts as dead.
    pub silence: Duration,
    /// How long a kernel on the host may wait while nothing moves and all peers are alive.
    pub patience: Duration,
    /// Whether the network's thread has a core of its own, on the NUMA node where the network is joined.
    /// With fewer than four cores, or if no other core is free, the thread runs on any core.
    pub pinned: bool,
    /// Whether rows stay in host memory even if a card can access GPU memory.
    pub rows_on_host: bool,
}

impl NetOptions {
    /// Options for a group, whose kernels say how many bytes they need.
    pub fn of_group(provider: Provider) -> NetOptions {
        NetOptions { queues: 2, ..NetOptions::new(provider, 0) }
    }

    /// Options of this provider for `data_bytes` bytes of rows in total.
    pub fn new(provider: Provider, data_bytes: u64) -> NetOptions {
        NetOptions {
            provider,
            source: None,
            data_bytes,
            queues: 1,
            slots: 1024,
            counters: 64,
            pulse: Duration::from_millis(200),
            silence: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            pinned: true,
            rows_on_host: false,
        }
    }
}

/// Statistics of a proxy, the thread that carries rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetStats {
    /// Number of descriptors that it has taken.
    pub requests: u64,
    /// Number of writes that it has posted for them.
    pub writes: u64,
    /// Bytes of those that have left.
    pub bytes: u64,
    /// Number of peers' writes that have landed here.
    pub landed: u64,
}

/// One rank's end of a network.
pub struct Network {
    rank: usize,
    layout: Layout,
    memory: NetMemory,
    /// The queues that threads have.
    given: Mutex<Vec<bool>>,
    views: Views,
    shared: Arc<Shared>,
    /// What the group asks.
    _failure: Arc<Watched>,
    _core: Option<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Connects the ranks of `store` by a network; each of them makes this call. `local` is the rank of
    /// `group` whose kernels use the network. The group is stopped when the network fails.
    pub fn join(
        group: &Group,
        local: usize,
        store: &Store,
        options: &NetOptions,
    ) -> Result<Network, NetError> {
        let (member, backend) = (store.member(), group.backend());
        let layout = Layout {
            ranks: member.ranks,
            data_bytes: options.data_bytes,
            queues: options.queues,
            slots: options.slots,
            counters: options.counters,
            ports: 1,
        };
        // All come to the first step, so that nobody waits for one that has refused.
        let fits = layout.check();
        let brought: Vec<u8> =
            layout.numbers().iter().flat_map(|(_, number)| number.to_le_bytes()).collect();
        // Another provider is another step, which the store names.
        let step = format!("compare networks over {}", options.provider);
        let brought = store.gather(&step, &brought)?;
        fits?;
        agree(&layout, member.rank, &brought)?;
        let opened = Opened::new(backend, local, &layout, options);
        let brought = match &opened {
            Ok(opened) => [&[OPENED][..], &opened.card.encode()].concat(),
            Err(error) => [&[FAILED][..], error.to_string().as_bytes()].concat(),
        };
        let brought = store.gather("connect a network", &brought)?;
        let Opened { mut endpoint, memory, .. } = opened?;
        endpoint.connect(&others(&brought, member.rank, Card::decode)?)?;
        let together = Together::new(options.provider, brought.concat());
        // Nobody sends before all can hear.
        store.meet("open a network")?;
        let views = Views::new(backend, local, (&layout, member.rank), memory.places(&layout))?;
        let shared = Arc::new(Shared::default());
        let failure = watch(group, &shared, (layout.ranks, options.patience))?;
        let timing = Timing { pulse: options.pulse, silence: options.silence };
        let proxy = Proxy::new(member.rank, layout, timing, memory.words, endpoint, &shared);
        let named = std::thread::Builder::new().name(format!("ep-net-{}", member.rank));
        let thread = named.spawn(move || together.end(proxy.run()));
        let thread = thread
            .map_err(|error| NetError::Call { call: "start a thread", why: error.to_string() })?;
        let core = if options.pinned { Core::claim() } else { None };
        core.iter().for_each(|core| core.keep(&thread));
        let (rank, _failure) = (member.rank, failure);
        let given = Mutex::new(vec![false; layout.queues]);
        Ok(Network {
            rank,
            layout,
            memory,
            given,
            views,
            shared,
            _failure,
            _core: core,
            thread: Some(thread),
        })
    }

    /// The rank of this end.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The address of `ep::Net`, an argument of kernels.
    pub fn address(&self) -> u64 {
        self.views.all.address()
    }

    /// `ep::Net` for one kernel that has a part of the network.
    pub fn part(&self, part: NetPart) -> Result<DeviceMemory, NetError> {
        self.views.part(part)
    }

    /// Where rows are. If they are not in the rank's GPU memory although no option forbids it, the error
    /// says why.
    pub fn rows_on(&self) -> (RowsOn, Option<&NetError>) {
        let on = self.memory.on_gpu.as_ref().map_or(RowsOn::Host, |rows| rows.on);
        (on, self.memory.why_on_host.as_ref())
    }

    /// The first `bytes` of its rows, for another endpoint, which goes before this network does.
    pub(super) fn first_rows(&self, bytes: u64) -> Block<'_> {
        match &self.memory.on_gpu {
            Some(rows) => Block { bytes, ..rows.block() },
            None => self.memory.words.block(bytes),
        }
    }

    /// A queue for a thread, which no kernel uses. `None` if there is no such queue, or if it was taken
    /// before.
    pub fn queue(&self, queue: usize, patience: Duration) -> Option<HostQueue<'_>> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !std::mem::replace(given.get_mut(queue)?, true);
        let (memory, layout) = (self.memory.words, &self.layout);
        is_first.then_some(HostQueue { memory, layout, queue, next: 0, taken: 0, patience })
    }

    /// The sum that `source` has added to a counter here.
    pub fn counter(&self, source: usize, queue: usize, counter: usize) -> Result<u32, NetError> {
        let Layout { ranks, queues, counters, .. } = self.layout;
        for (what, value, end) in
            [("ranks", source, ranks), ("queues", queue, queues), ("counters", counter, counters)]
        {
            if value >= end {
                let (value, most) = (value as u64, end as u64 - 1);
                return Err(NetError::Option { what, value, least: 0, most });
            }
        }
        Ok(self.memory.words.acquire_half(self.layout.counter(source, queue, counter)))
    }

    /// Why the network has failed, if it has.
    pub fn failure(&self) -> Option<NetError> {
        self.shared.failure.get().cloned()
    }

    /// The statistics so far.
    pub fn stats(&self) -> NetStats {
        self.shared.counts.read()
    }

    /// What the thread knows, as long as it runs.
    pub(super) fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }
}

/// Tells the group and its backend of the network's failure.
fn watch(
    group: &Group,
    shared: &Arc<Shared>,
    (ranks, patience): (usize, Duration),
) -> Result<Arc<Watched>, NetError> {
    let (network, peers) = (Arc::downgrade(shared), ranks - 1);
    group.backend().wait_for(Arc::new(move |idle| {
        let network = network.upgrade().filter(|it| it.failure.get().is_none());
        // What peers sent before they left, and what is sent to them, still comes to its end.
        let is_alone = |it: Arc<Shared>| it.left.load(Ordering::Acquire) >= peers;
        network.is_some_and(|it| idle < if is_alone(it) { LINGER } else { patience })
    }))?;
    let network = Arc::clone(shared);
    let failure: Arc<Watched> =
        Arc::new(move || network.failure.get().cloned().map(CallError::Network));
    group.watch(&failure);
    Ok(failure)
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so in `failure`.
            let _ = thread.join();
        }
    }
}

/// Fails if a rank wants another network than this one.
pub(super) fn agree(layout: &Layout, rank: usize, brought: &[Vec<u8>]) -> Result<(), NetError> {
    for (index, (what, own)) in layout.numbers().into_iter().enumerate() {
        for (other, theirs) in brought.iter().enumerate() {
            let bytes = theirs.get(8 * index..8 * index + 8).and_then(|it| it.try_into().ok());
            let value = bytes.map_or(0, u64::from_le_bytes);
            if value != own {
                let (here, there) = ((rank, own), (other, value));
                return Err(NetError::Disagreement { what, here, there });
            }
        }
    }
    Ok(())
}

/// What a rank brings begins with: how it is reached follows, or why it is not.
pub(super) const OPENED: u8 = 1;
pub(super) const FAILED: u8 = 0;

/// The memory of one rank: rows on its GPU and the words behind them in a host block, or all in that.
struct NetMemory {
    on_gpu: Option<GpuRows>,
    why_on_host: Option<NetError>,
    host: HostMemory,
    words: SharedMemory,
}

impl NetMemory {
    fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        layout: &Layout,
        on_gpu: Option<GpuRows>,
    ) -> Result<NetMemory, NetError> {
        let first = if on_gpu.is_some() { layout.inboxes() } else { 0 };
        let bytes = layout.bytes() - first;
        let host = HostMemory::new(backend, local, bytes)?;
        let start = NonNull::new(host.host()).ok_or(NetError::Option {
            what: "bytes of host memory",
            value: 0,
            least: bytes,
            most: bytes,
        })?;
        // SAFETY: the block is kept until the thread that uses the words has ended; kernels access the words
        // by the functions of `net.cuh`, which are whole words.
        let words = unsafe { SharedMemory::new(start, first, bytes) };
        Ok(NetMemory { on_gpu, why_on_host: None, host, words })
    }

    /// What is registered with the network.
    fn blocks(&self, layout: &Layout) -> Vec<Block<'_>> {
        let rows = self.on_gpu.iter().map(GpuRows::block);
        rows.chain([self.words.block(layout.registered(WINDOW))]).collect()
    }

    /// Where kernels find it.
    fn places(&self, layout: &Layout) -> Places {
        let base = self.host.address().wrapping_sub(self.words.first());
        let data = self.on_gpu.as_ref().map_or(base, GpuRows::address);
        Places::of_queues(layout, data, base)
    }
}

/// An end of a network that nobody knows yet. The endpoint goes before the memory that it has registered.
struct Opened {
    endpoint: Endpoint,
    card: Card,
    memory: NetMemory,
}

impl Opened {
    /// Rows are in GPU memory if the network reaches that and nobody wants otherwise.
    fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        layout: &Layout,
        options: &NetOptions,
    ) -> Result<Opened, NetError> {
        let fabric = Fabric::find()?;
        let with = |rows| {
            Opened::with(fabric, NetMemory::new(backend, local, layout, rows)?, layout, options)
        };
        let Some(device) = backend.device(local).filter(|_| !options.rows_on_host) else {
            return with(None);
        };
        // An offer is cheap to ask for, and memory is not.
        let on_gpu = fabric
            .list(options.provider, options.source.as_deref(), true)
            .and_then(|_| GpuRows::new(backend, (local, device), layout.inboxes()))
            .and_then(|rows| with(Some(rows)));
        on_gpu.or_else(|why| {
            let mut opened = with(None)?;
            opened.memory.why_on_host = Some(why);
            Ok(opened)
        })
    }

    fn with(
        fabric: &'static Fabric,
        memory: NetMemory,
        layout: &Layout,
        options: &NetOptions,
    ) -> Result<Opened, NetError> {
        let source = options.source.as_deref();
        let endpoint = Endpoint::open(fabric, options.provider, source, &memory.blocks(layout))?;
        let card = endpoint.card()?;
        Ok(Opened { endpoint, card, memory })
    }
}

/// What all ranks but this one have brought.
pub(super) fn others<T>(
    brought: &[Vec<u8>],
    rank: usize,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<Option<T>>, NetError> {
    let mut all = Vec::new();
    for (peer, bytes) in brought.iter().enumerate() {
        let card = match bytes.split_first() {
            Some((&OPENED, card)) => decode(card),
            Some((&FAILED, why)) => {
                let why = String::from_utf8_lossy(why).into_owned();
                return Err(NetError::Absent { peer, why });
            }
            _ => None,
        };
        let why = || format!("rank {peer} sent an address of {} bytes", bytes.len());
        let card = card.ok_or_else(|| NetError::Protocol { rank, why: why() })?;
        all.push((peer != rank).then_some(card));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Reached;
    use super::*;
    use crate::fake::FakeBackend;

    #[test]
    fn ranks_that_want_other_networks_are_named() {
        let layout =
            Layout { ranks: 2, data_bytes: 64, queues: 2, slots: 32, counters: 4, ports: 1 };
        let brought = |layout: &Layout| -> Vec<u8> {
            layout.numbers().iter().flat_map(|(_, number)| number.to_le_bytes()).collect()
        };
        let other = Layout { slots: 64, ..layout };
        assert_eq!(agree(&layout, 0, &[brought(&layout), brought(&layout)]), Ok(()));
        let error = agree(&layout, 0, &[brought(&layout), brought(&other)]).unwrap_err();
        let text = "rank 1 uses a network of 64 slots a queue, and rank 0 uses one of 32";
        assert_eq!(error.to_string(), text);
        assert!(agree(&layout, 0, &[brought(&layout), vec![1]]).is_err());
    }

    #[test]
    fn a_card_that_is_none_is_refused() {
        let blocks = vec![Reached { first: 0, base: 0, key: 1 }];
        let card = Card { name: vec![1], blocks };
        let brought = [&[OPENED][..], &card.encode()].concat();
        let all = others(&[brought.clone(), brought.clone()], 1, Card::decode).unwrap();
        assert_eq!(all, [Some(card), None]);
        let said =
            |bytes: &[u8]| others(&[brought.clone(), bytes.to_vec()], 0, Card::decode).unwrap_err();
        let error = said(&[OPENED, 0, 0]).to_string();
        assert!(error.ends_with("rank 1 sent an address of 3 bytes"), "{error}");
        let text = "rank 1 cannot join the network: no card";
        assert_eq!(said(&[&[FAILED][..], b"no card"].concat()).to_string(), text);
        assert!(others(&[brought.clone(), Vec::new()], 0, Card::decode).is_err());
    }

    /// What keeps rows in host memory, on a fake whose memory a card reaches or does not.
    fn why_on_host(has_gpus: bool, card_access: u32, options: &NetOptions) -> Option<String> {
        let fake = FakeBackend::new(1);
        fake.has_gpus.store(has_gpus, Ordering::Relaxed);
        fake.card_access.store(card_access, Ordering::Relaxed);
        let layout =
            Layout { ranks: 1, data_bytes: 1000, queues: 1, slots: 32, counters: 4, ports: 1 };
        let backend: Arc<dyn Backend> = fake.clone();
        let opened = Opened::new(&backend, 0, &layout, options).unwrap();
        assert!(opened.memory.on_gpu.is_none());
        // All of it is in the host block, and nothing is left of the try.
        assert_eq!((opened.memory.words.first(), fake.live()), (0, 1));
        opened.memory.why_on_host.map(|why| why.to_string())
    }

    #[test]
    fn rows_that_no_card_reaches_stay_in_host_memory() {
        let offers = Fabric::find().and_then(|fabric| fabric.offers(Provider::Shm, None));
        if !offers.is_ok_and(|offers| offers.iter().any(|offer| offer.gpu_memory)) {
            return eprintln!("skipped: no libfabric whose shm takes GPU memory");
        }
        let shm = NetOptions::new(Provider::Shm, 0);
        let said = |access| why_on_host(true, access, &shm).unwrap();
        let begin = "rows cannot be in GPU memory: ";
        let why = "cards do not reach the memory of GPU 0 in order";
        assert_eq!(said(0), format!("{begin}{why}"));
        // It copies them itself, with or without CUDA here.
        for access in [1, 2] {
            let why = said(access);
            let text = format!("{begin}the provider needs calls of CUDA: ");
            assert!(why.starts_with(&text), "{why}");
        }
        let tcp = why_on_host(true, 2, &NetOptions::new(Provider::Tcp, 0)).unwrap();
        assert!(tcp.starts_with("libfabric has no provider for tcp here: "), "{tcp}");
        let on_host = NetOptions { rows_on_host: true, ..shm.clone() };
        // Nobody has to be told of what was wanted so, nor where there is no GPU.
        assert_eq!((why_on_host(true, 2, &on_host), why_on_host(false, 2, &shm)), (None, None));
    }
}

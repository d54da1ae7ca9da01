//! A network card that kernels of one rank write to themselves: opened, connected to the cards of all
//! peers, and described to kernels in the same way as the model of a card.
//!
//! libibverbs and libmlx5 open the device, register memory, and carry commands to its firmware (DEVX),
//! which make the queues: a completion queue whose entries overwrite one another cannot be made in another
//! way. Queues are in host memory that kernels can access. Rows are in device memory if a card can access
//! it, otherwise also in host memory. **None of this has run on a card**: tests compare every call and
//! every command with a mock.

mod command;
mod device;
#[cfg(test)]
mod double;
mod end;
#[cfg(test)]
mod layouts;
mod library;
mod nearest;
mod objects;
mod places;
mod rows;
mod sys;
#[cfg(test)]
mod tests;

use std::ptr::NonNull;
use std::sync::Arc;

pub use device::CardPort;
pub use library::Verbs;
pub(crate) use nearest::{card_places, nearest};

use super::layout::Layout;
use super::mlx5::{BLOCK_BYTES, COMPLETION_WORD_AT, INVALID};
use super::network::{FAILED, OPENED, agree, others};
use super::pair_words::PairWords;
use super::rows::RowsOn;
use super::view::{Ends, NetPart, Places, Views};
use crate::backend::{Backend, Stream};
use crate::group::Group;
use crate::join::Store;
use crate::memory::{DeviceMemory, HostMemory};
use crate::net_error::NetError;
use device::Device;
use end::{CardEnd, PortEnd};
use nearest::Seat;
use objects::{Domain, Kind, Made, QueuePair, Registers, Umem};
use places::{CardPlaces, PAGE, PairPlaces};
use rows::Rows;

/// Options of a network of cards. All ranks must use the same options, except `devices` and `rows_on_host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardOptions {
    /// The cards of each rank of a node in turn, such as `mlx5_0` or `mlx5_0:1`, as many as it has `ports`; empty: of those
    /// with an active port, the nearest ones to the GPU of the rank by their places on the PCIe bus.
    pub devices: Vec<String>,
    /// Number of ports of each rank, which its queue pairs take in turn: at most as many as there are queues.
    pub ports: usize,
    /// Service level of packets on InfiniBand, from 0 to 15; on Ethernet their priority, from 0 to 7.
    pub service_level: u8,
    /// Traffic class of packets with a GID; on Ethernet its upper 6 bits are the DSCP.
    pub traffic_class: u8,
    /// Whether rows are in host memory even if the card can access GPU memory.
    pub rows_on_host: bool,
    /// Bytes for rows on each rank, which peers write into.
    pub data_bytes: u64,
    /// Number of queues of each rank.
    pub queues: usize,
    /// Number of entries in a queue pair, a power of two.
    pub slots: usize,
    /// Number of counters of each source and queue.
    pub counters: usize,
}

impl CardOptions {
    /// Options for `data_bytes` bytes of rows in total.
    pub fn new(data_bytes: u64) -> CardOptions {
        CardOptions {
            devices: Vec::new(),
            ports: 1,
            service_level: 0,
            traffic_class: 0,
            rows_on_host: false,
            data_bytes,
            queues: 2,
            slots: 1024,
            counters: 64,
        }
    }

    /// The names of the cards of a local rank, one for each of its ports; none: the nearest one.
    fn devices_of(&self, index: usize) -> Vec<Option<&str>> {
        let named = |port: usize| {
            let at = (index * self.ports + port).checked_rem(self.devices.len())?;
            self.devices.get(at).map(String::as_str)
        };
        (0..self.ports).map(named).collect()
    }
}

/// One rank's end of a network of cards.
pub struct CardNetwork {
    device: String,
    rows_on: RowsOn,
    views: Views,
    opened: Opened,
}

impl CardNetwork {
    /// Connects the ranks of `store` by their cards; each of them makes this call. `local` is the rank of
    /// `group` whose kernels use the network.
    pub fn join(
        group: &Group,
        local: usize,
        store: &Store,
        options: &CardOptions,
    ) -> Result<CardNetwork, NetError> {
        // Ranks of a node differ in it, whether they share a process or not.
        let index = local - group.backend().node().start;
        let open = || {
            let verbs = Verbs::find()?;
            let seat = Seat::of(group.backend().as_ref(), local);
            Device::open_all(verbs, &options.devices_of(index), &seat)
        };
        CardNetwork::join_with(group.backend(), local, store, options, open)
    }

    fn join_with(
        backend: &Arc<dyn Backend>,
        local: usize,
        store: &Store,
        options: &CardOptions,
        open: impl FnOnce() -> Result<Vec<Device>, NetError>,
    ) -> Result<CardNetwork, NetError> {
        let member = store.member();
        let layout = Layout {
            ranks: member.ranks,
            data_bytes: options.data_bytes,
            queues: options.queues,
            slots: options.slots,
            counters: options.counters,
            ports: options.ports,
        };
        // All come to a step, so that nobody waits for one that has failed.
        let level = u64::from(options.service_level);
        let what = "the service level of packets";
        let fits = layout.check_pairs().and(match level {
            0..16 => Ok(()),
            value => Err(NetError::Option { what, value, least: 0, most: 15 }),
        });
        let brought: Vec<u8> =
            layout.numbers().iter().flat_map(|(_, number)| number.to_le_bytes()).collect();
        let brought = store.gather("compare networks of cards", &brought)?;
        fits?;
        agree(&layout, member.rank, &brought)?;
        let opened = Opened::new(backend, local, (layout, member.rank), options, open);
        let brought = store.gather("open cards", &told(&opened, Opened::end))?;
        let opened = opened?;
        let pairs = layout.ranks * layout.queues;
        // Who fails at a step leaves behind it, and all know.
        let ends =
            others(&brought, member.rank, |bytes| CardEnd::decode(bytes, layout.ports, pairs))?;
        let connected = opened.connect(&ends);
        let views = connected.and_then(|()| opened.views(backend, local, &ends));
        let brought = store.gather("connect cards", &told(&views, |_| Vec::new()))?;
        let views = views?;
        // Nobody sends before all can receive.
        others(&brought, member.rank, |_| Some(()))?;
        let names: Vec<&str> = opened.cards.iter().map(|card| card.device.name.as_str()).collect();
        let (device, rows_on) = (names.join("+"), opened.rows.on);
        Ok(CardNetwork { device, rows_on, views, opened })
    }

    /// The card and its port, such as `mlx5_0:1`, or several of them with `+` between them.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Where the rows are.
    pub fn rows_on(&self) -> RowsOn {
        self.rows_on
    }

    /// The address of `ep::Net`, an argument of kernels.
    pub fn address(&self) -> u64 {
        self.views.all.address()
    }

    /// `ep::Net` for one kernel that has a part of the network.
    pub fn part(&self, part: NetPart) -> Result<DeviceMemory, NetError> {
        self.views.part(part)
    }
}

impl Drop for CardNetwork {
    fn drop(&mut self) {
        // Kernels that still run write to queues that are closed now. They end within their timeout.
        let Rows { backend, rank, .. } = &self.opened.rows;
        let _ = backend.sync(*rank, Stream::OWN);
    }
}

/// All ports of all cards of this machine. The error of a card takes the place of its ports.
pub fn card_ports(verbs: &'static Verbs) -> Result<Vec<Result<CardPort, NetError>>, NetError> {
    device::ports(verbs)
}

/// What a rank tells the others of a step.
fn told<T>(step: &Result<T, NetError>, what: impl FnOnce(&T) -> Vec<u8>) -> Vec<u8> {
    match step {
        Ok(done) => [vec![OPENED], what(done)].concat(),
        Err(error) => [&[FAILED][..], error.to_string().as_bytes()].concat(),
    }
}

/// The cards of a rank with its queues, and the memory that they use. Each goes before what it was made with.
struct Opened {
    layout: Layout,
    rank: usize,
    kind: Kind,
    /// By peer and queue; none to the own rank.
    pairs: Vec<Option<QueuePair>>,
    /// By port.
    cards: Vec<Card>,
    queues: Queues,
    rows: Rows,
}

/// A port of a card, and what is made on it once. Each goes before what it was made with.
struct Card {
    events: u32,
    registers: Registers,
    umem: Umem,
    regions: [objects::Region; 2],
    domain: Domain,
    device: Device,
}

impl Card {
    fn new(
        (backend, local): (&Arc<dyn Backend>, usize),
        device: Device,
        (queues, bytes): (&Queues, usize),
        rows: &Rows,
    ) -> Result<Card, NetError> {
        objects::check_atomics(&device)?;
        let domain = Domain::new(&device)?;
        let regions = rows.register(&device, &domain)?;
        let umem = Umem::new(&device, queues.host.as_ptr().cast(), bytes)?;
        let registers = Registers::new(&device, backend, local)?;
        let events = objects::events(&device)?;
        Ok(Card { events, registers, umem, regions, domain, device })
    }

    fn queue_pair(&self, at: &PairPlaces, slots: usize) -> Result<QueuePair, NetError> {
        let Card { events, registers, umem, domain, device, .. } = self;
        Made { device, domain, umem, registers, events: *events }.queue_pair(at, slots)
    }

    /// How it is reached.
    fn end(&self) -> PortEnd {
        let (port, [data, counters]) = (self.device.port, &self.regions);
        PortEnd {
            is_ethernet: port.is_ethernet,
            mtu: port.mtu,
            log_atomics: self.device.log_atomics.0,
            lid: port.lid,
            gid: port.gid.0,
            data_key: data.key,
            counters_key: counters.key,
        }
    }
}

/// Host memory for queues, from the begin of a page on.
struct Queues {
    _memory: HostMemory,
    host: NonNull<u8>,
    address: u64,
}

// SAFETY: the pointer is into memory that the struct keeps, and no thread reads it through that.
unsafe impl Send for Queues {}

impl Queues {
    fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        places: &CardPlaces,
    ) -> Result<Queues, NetError> {
        let bytes = places.queues_bytes() + PAGE;
        let memory = HostMemory::new(backend, local, bytes)?;
        let host = memory.host() as u64;
        let skipped = host.next_multiple_of(PAGE) - host;
        let unreached =
            NetError::Option { what: "bytes of host memory", value: 0, least: bytes, most: bytes };
        let host = NonNull::new(memory.host()).ok_or(unreached)?;
        // No completion has been written.
        let Layout { ranks, queues, .. } = places.0;
        for (peer, queue) in (0..ranks).flat_map(|peer| (0..queues).map(move |queue| (peer, queue)))
        {
            let at = skipped + places.pair(peer, queue).completions;
            memory.write(at, &[INVALID; BLOCK_BYTES / 4])?;
        }
        let address = memory.address() + skipped;
        // SAFETY: the block is a page longer than what is used of it.
        let host = unsafe { host.add(skipped as usize) };
        Ok(Queues { _memory: memory, host, address })
    }
}

impl Opened {
    fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        (layout, rank): (Layout, usize),
        options: &CardOptions,
        open: impl FnOnce() -> Result<Vec<Device>, NetError>,
    ) -> Result<Opened, NetError> {
        let places = CardPlaces(layout);
        // What comes later is closed first if a step fails.
        let devices = open()?;
        let rows = Rows::new(backend, local, &places, options.rows_on_host)?;
        let queues = Queues::new(backend, local, &places)?;
        let memory = (&queues, places.queues_bytes() as usize);
        let mut cards = Vec::new();
        for device in devices {
            cards.push(Card::new((backend, local), device, memory, &rows)?);
        }
        let mut pairs = Vec::new();
        for peer in 0..layout.ranks {
            for queue in 0..layout.queues {
                let card: &Card = &cards[layout.port(rank, peer, queue)];
                let pair = || card.queue_pair(&places.pair(peer, queue), layout.slots);
                pairs.push((peer != rank).then(pair).transpose()?);
            }
        }
        let kind =
            Kind { service_level: options.service_level, traffic_class: options.traffic_class };
        Ok(Opened { layout, rank, kind, pairs, cards, queues, rows })
    }

    fn pair(&self, peer: usize, queue: usize) -> Option<&QueuePair> {
        self.pairs.get(self.layout.flow(peer, queue))?.as_ref()
    }

    /// How this rank is reached.
    fn card_end(&self) -> CardEnd {
        let counters_at = CardPlaces(self.layout).counters(0, 0);
        CardEnd {
            ports: self.cards.iter().map(Card::end).collect(),
            data: self.rows.address,
            counters: self.rows.address + counters_at,
            pairs: self.pairs.iter().map(|it| it.as_ref().map_or(0, |it| it.number)).collect(),
        }
    }

    fn end(&self) -> Vec<u8> {
        self.card_end().encode()
    }

    /// Joins every queue pair to that of its peer.
    fn connect(&self, ends: &[Option<CardEnd>]) -> Result<(), NetError> {
        let own = self.card_end();
        for (peer, there) in ends.iter().enumerate() {
            let Some(there) = there else { continue };
            own.meets(self.rank, there, peer)?;
            for queue in 0..self.layout.queues {
                let theirs = there.pairs[self.layout.flow(self.rank, queue)];
                let port = self.layout.port(self.rank, peer, queue);
                let Card { device, domain, .. } = &self.cards[port];
                if let Some(pair) = self.pair(peer, queue) {
                    pair.connect((device, domain), self.kind, &there.ports[port], theirs)?;
                }
            }
        }
        Ok(())
    }

    /// `ep::QueuePair` of all queue pairs; that to the own rank is all zeros.
    fn table(&self, ends: &[Option<CardEnd>]) -> Vec<u8> {
        let places = CardPlaces(self.layout);
        let mut table = Vec::new();
        for (peer, there) in ends.iter().enumerate() {
            for queue in 0..self.layout.queues {
                let port = self.layout.port(self.rank, peer, queue);
                let Card { registers, regions: [data, counters], .. } = &self.cards[port];
                let words = there.as_ref().zip(self.pair(peer, queue)).map(|(there, pair)| {
                    let at = places.pair(peer, queue);
                    let ours = places.counters(self.rank, queue) - places.counters(0, 0);
                    PairWords {
                        entries: self.queues.address + at.entries,
                        done: self.queues.address + at.completions + COMPLETION_WORD_AT as u64,
                        record: self.queues.address + at.record(),
                        doorbell: registers.doorbell(),
                        data: there.data,
                        counters: there.counters + ours,
                        before: self.rows.address + places.before(peer, queue),
                        data_key: there.ports[port].data_key,
                        counters_key: there.ports[port].counters_key,
                        own_data_key: data.own_key,
                        own_counters_key: counters.own_key,
                        number: pair.number,
                        first: 0,
                    }
                });
                table.extend(words.unwrap_or_default().encode());
            }
        }
        table
    }

    /// What kernels are told.
    fn views(
        &self,
        backend: &Arc<dyn Backend>,
        local: usize,
        ends: &[Option<CardEnd>],
    ) -> Result<Views, NetError> {
        let words = self.table(ends);
        let table = DeviceMemory::zeroed(backend, local, words.len() as u64)?;
        table.write(0, &words)?;
        let counters = self.rows.address + CardPlaces(self.layout).counters(0, 0);
        let places = Places { data: self.rows.address, counters, ends: Ends::Pairs };
        Views::at((backend, local), (&self.layout, self.rank), places, table)
    }
}

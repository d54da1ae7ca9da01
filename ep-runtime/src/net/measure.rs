//! Measures a network between two ranks through the queue and the thread that drains it, compared with a
//! plain loop of writes over the same provider.
//!
//! Rank 0 sends and rank 1 answers. Rows are not adjacent, so none are merged. Both methods move the same
//! rows of the same memory, because the cost of a copy depends on the pages.

use std::io;
use std::time::{Duration, Instant};

use super::cores::{self, Core};
use super::endpoint::{Block, Card, Endpoint, Event};
use super::fabric::Fabric;
use super::host_queue::HostQueue;
use super::network::{NetOptions, Network};
use super::provider::Provider;
use super::proxy::Rest;
use crate::join::Store;
use crate::net_error::NetError;

/// Bytes between rows, beside their own: what keeps them from being joined.
const APART: u64 = 64;

/// The longest row, and how many different ones there are.
const ROW_MAX: u64 = 16 << 10;
const ROWS: u64 = 256;

/// Longest wait for the other rank.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of the measured network.
pub struct Measured<'a> {
    network: &'a Network,
    plain: Plain,
    rank: usize,
    /// What was counted by the counters so far.
    counted: u32,
    queue: HostQueue<'a>,
    /// That of the calling thread, which stays on it, as the network's does on another one.
    _core: Option<Core>,
}

/// Keeps the calling thread, and the processes that it starts, on the NUMA node where it runs. Otherwise
/// the cost of a row would depend on where the system places the two ends.
pub fn stay_near() -> io::Result<()> {
    cores::stay_near()
}

/// Options of a network for measurements.
pub fn options(provider: Provider) -> NetOptions {
    let data_bytes = 2 * ROWS * (ROW_MAX + APART);
    // On busy machines a thread may not run for a while.
    NetOptions { slots: 4096, silence: PATIENCE, ..NetOptions::new(provider, data_bytes) }
}

impl<'a> Measured<'a> {
    /// Prepares the measurement. Both ranks make this call, and then the same measurements in the same
    /// order.
    pub fn new(
        store: &Store,
        provider: Provider,
        network: &'a Network,
    ) -> Result<Measured<'a>, NetError> {
        let plain = Plain::open(provider, store, network.first_rows(ROWS * (ROW_MAX + APART)))?;
        let taken = NetError::Option { what: "queues", value: 0, least: 0, most: 0 };
        let queue = network.queue(0, PATIENCE).ok_or(taken)?;
        let core = Core::claim();
        if let Some(core) = &core {
            core.keep_here();
        }
        let rank = store.member().rank;
        Ok(Measured { network, plain, rank, counted: 0, queue, _core: core })
    }

    fn lost(&self) -> NetError {
        let silent = NetError::Silent { rank: self.rank, peer: 1 - self.rank, waited: PATIENCE };
        self.network.failure().unwrap_or(silent)
    }

    fn expect(&self, done: bool) -> Result<(), NetError> {
        if done { Ok(()) } else { Err(self.lost()) }
    }

    /// The median time from a signal to its answer, halved.
    pub fn latency(&mut self, rounds: u32) -> Result<Duration, NetError> {
        let peer = 1 - self.rank;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            self.counted = self.counted.wrapping_add(1);
            if self.rank == 0 {
                let sent = self.queue.signal(peer, 0, 1);
                self.expect(sent)?;
            }
            let heard = self.queue.wait_counter(peer, 0, self.counted);
            self.expect(heard)?;
            if self.rank == 1 {
                let sent = self.queue.signal(peer, 0, 1);
                self.expect(sent)?;
            }
            times.push(begun.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2] / 2)
    }

    /// Rows per second through the queue, from the first descriptor to the answer to the last one.
    pub fn queued(&mut self, bytes: u32, rows: u32) -> Result<f64, NetError> {
        let (peer, begun) = (1 - self.rank, Instant::now());
        self.counted = self.counted.wrapping_add(1);
        if self.rank == 0 {
            for row in 0..rows {
                let at = place(row);
                let put = self.queue.put(peer, at, at, bytes);
                self.expect(put)?;
            }
            let sent = self.queue.signal(peer, 0, 1);
            self.expect(sent)?;
        }
        let heard = self.queue.wait_counter(peer, 0, self.counted);
        self.expect(heard)?;
        if self.rank == 1 {
            let sent = self.queue.signal(peer, 0, 1);
            self.expect(sent)?;
        }
        Ok(f64::from(rows) / begun.elapsed().as_secs_f64())
    }

    /// Rows per second of a plain loop of writes.
    pub fn plain(&mut self, bytes: u32, rows: u32) -> Result<f64, NetError> {
        let begun = Instant::now();
        match self.rank {
            0 => {
                self.plain.send(bytes, rows)?;
                self.plain.receive(1)?;
            }
            _ => {
                self.plain.receive(rows)?;
                self.plain.send(8, 1)?;
            }
        }
        Ok(f64::from(rows) / begun.elapsed().as_secs_f64())
    }
}

fn place(row: u32) -> u64 {
    u64::from(row) % ROWS * (ROW_MAX + APART)
}

/// An endpoint, and nothing between it and who uses it.
struct Plain {
    endpoint: Endpoint,
    rank: usize,
    free: Vec<usize>,
    heard: u32,
    events: Vec<Event>,
}

impl Plain {
    fn open(provider: Provider, store: &Store, rows: Block<'_>) -> Result<Plain, NetError> {
        let mut endpoint = Endpoint::open(Fabric::find()?, provider, None, &[rows])?;
        let cards = store.gather("connect plainly", &endpoint.card()?.encode())?;
        let rank = store.member().rank;
        let others = cards
            .iter()
            .enumerate()
            .map(|(peer, card)| Card::decode(card).filter(|_| peer != rank));
        endpoint.connect(&others.collect::<Vec<_>>())?;
        store.meet("measure")?;
        let free = (0..endpoint.in_flight_max()).collect();
        Ok(Plain { endpoint, rank, free, heard: 0, events: Vec::new() })
    }

    fn send(&mut self, bytes: u32, rows: u32) -> Result<(), NetError> {
        let all = self.free.len();
        for row in 0..rows {
            let at = place(row);
            let mut rest = Rest::default();
            loop {
                if let Some(write) = self.free.last().copied()
                    && self.endpoint.write(write, 1 - self.rank, (at, at, bytes.into()), row)?
                {
                    self.free.pop();
                    break;
                }
                self.poll()?;
                rest.pause();
            }
        }
        let mut rest = Rest::default();
        while self.free.len() < all {
            self.poll()?;
            rest.pause();
        }
        Ok(())
    }

    fn receive(&mut self, rows: u32) -> Result<(), NetError> {
        let (begun, mut rest, mut before) = (Instant::now(), Rest::default(), self.heard);
        while self.heard < rows {
            self.poll()?;
            if self.heard != before {
                (rest, before) = (Rest::default(), self.heard);
            } else if begun.elapsed() > PATIENCE {
                let (rank, peer) = (self.rank, 1 - self.rank);
                return Err(NetError::Silent { rank, peer, waited: PATIENCE });
            }
            rest.pause();
        }
        self.heard -= rows;
        Ok(())
    }

    fn poll(&mut self) -> Result<(), NetError> {
        self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                Event::Sent(write) => self.free.push(write),
                Event::Landed(_) => self.heard += 1,
                Event::Failed(_, why) => {
                    let peer = Some(1 - self.rank);
                    return Err(NetError::Lost { rank: self.rank, peer, why });
                }
            }
        }
        Ok(())
    }
}

//! The thread that carries one rank's rows. The thread takes requests of kernels, posts them, counts what lands,
//! and watches the peers, because a network does not report a dead one.

mod ends;
mod peers;
mod rest;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Event};
use super::layout::Layout;
use super::network::NetStats;
use super::queue::{self, DESCRIPTOR_BYTES, Joined, Limits, Request, STAMP_AT};
use super::shared_memory::SharedMemory;
use super::stream::{Landing, Number, Pulse, Sending};
use crate::net_error::NetError;
use ends::{Batch, PeerEnd, QueueEnd, Write};
pub(super) use rest::Rest;

/// Descriptors of a queue that are looked at together, and so can be joined.
const BATCH: usize = 128;

/// Turns between two looks at the clock, which take as long as a descriptor. All that is timed lasts many
/// times longer than so many turns.
const TURNS_TIMED: u32 = 8;

/// Requests that wait for the network before no more are taken from the queue.
const WAITING_MAX: usize = 1024;

/// How long one that leaves waits for what is still on its way.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// What a proxy and the rest of the process know of one another.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) failure: OnceLock<NetError>,
    pub(super) leaving: AtomicBool,
    /// Peers that have left: nothing more comes from them.
    pub(super) left: AtomicUsize,
    pub(super) counts: Counts,
}

/// What a proxy has done so far.
#[derive(Default)]
pub(super) struct Counts {
    /// Descriptors taken.
    pub(super) requests: AtomicU64,
    /// Writes posted for them.
    pub(super) writes: AtomicU64,
    /// Bytes of those.
    pub(super) bytes: AtomicU64,
    /// Writes of peers that have landed.
    pub(super) landed: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) -> NetStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NetStats {
            requests: load(&self.requests),
            writes: load(&self.writes),
            bytes: load(&self.bytes),
            landed: load(&self.landed),
        }
    }
}

/// Adds to a count that the proxy alone writes.
fn add(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// From one sign of life to the next.
    pub(super) pulse: Duration,
    /// Silence of a peer after which it is given up.
    pub(super) silence: Duration,
}

/// The state of the thread.
pub(super) struct Proxy {
    rank: usize,
    layout: Layout,
    timing: Timing,
    memory: SharedMemory,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    queues: Vec<QueueEnd>,
    peers: Vec<PeerEnd>,
    landings: Vec<Landing>,
    sendings: Vec<Sending>,
    writes: Vec<Write>,
    free: Vec<usize>,
    events: Vec<Event>,
    joined: Joined,
    /// Whether a peer may have to be told what has landed.
    owes: bool,
    looked: Instant,
    leaving_since: Option<Instant>,
}

impl Proxy {
    pub(super) fn new(
        rank: usize,
        layout: Layout,
        timing: Timing,
        memory: SharedMemory,
        endpoint: Endpoint,
        shared: &Arc<Shared>,
    ) -> Proxy {
        let now = Instant::now();
        let queue = |_| QueueEnd {
            taken: 0,
            batches: VecDeque::new(),
            first_batch: 0,
            waiting: vec![VecDeque::new(); layout.ranks],
            waiting_count: 0,
        };
        let peer = |_| PeerEnd { heard: now, said: now, refused: None, left: false, told: false };
        let flows = layout.ranks * layout.queues;
        let in_flight = endpoint.in_flight_max();
        Proxy {
            rank,
            layout,
            timing,
            memory,
            endpoint,
            shared: Arc::clone(shared),
            queues: (0..layout.queues).map(queue).collect(),
            peers: (0..layout.ranks).map(peer).collect(),
            landings: vec![Landing::default(); flows],
            sendings: vec![Sending::default(); flows],
            writes: vec![Write { peer: rank, batch: None }; in_flight],
            free: (0..in_flight).rev().collect(),
            events: Vec::new(),
            joined: Joined::new(layout.ranks),
            owes: false,
            looked: now,
            leaving_since: None,
        }
    }

    /// Works until this rank leaves, or something fails; then the endpoint may be closed.
    pub(super) fn run(mut self) -> Endpoint {
        let _ended = Ended { rank: self.rank, shared: Arc::clone(&self.shared) };
        let mut rest = Rest::default();
        loop {
            let now = Instant::now();
            for _ in 0..TURNS_TIMED {
                match self.turn(now) {
                    Ok(true) => rest = Rest::default(),
                    Ok(false) => rest.pause(),
                    Err(error) => return self.give_up(error),
                }
            }
            match self.look_around(now) {
                Ok(false) => {}
                Ok(true) => return self.endpoint,
                Err(error) => return self.give_up(error),
            }
        }
    }

    /// Moves what there is to move, if anything.
    fn turn(&mut self, now: Instant) -> Result<bool, NetError> {
        let mut busy = self.hear(now)?;
        for queue in 0..self.queues.len() {
            busy |= self.take(queue)?;
            busy |= self.send(queue, now)?;
        }
        busy |= self.answer(now)?;
        Ok(busy)
    }

    /// Sees to the peers; whether this rank has left.
    fn look_around(&mut self, now: Instant) -> Result<bool, NetError> {
        self.look_after_peers(now)?;
        Ok(self.shared.leaving.load(Ordering::Relaxed) && self.has_left(now)?)
    }

    /// What the network has to say.
    fn hear(&mut self, now: Instant) -> Result<bool, NetError> {
        let mut events = std::mem::take(&mut self.events);
        self.endpoint.poll(&mut events)?;
        let heard = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Sent(write) => self.finish(write),
                Event::Landed(number) => self.land(number, now)?,
                Event::Failed(write, why) => {
                    let peer = write.map(|write| self.writes[write].peer);
                    if !peer.is_some_and(|peer| self.peers[peer].left) {
                        return Err(NetError::Lost { rank: self.rank, peer, why });
                    }
                    write.into_iter().for_each(|write| self.finish(write));
                }
            }
        }
        self.events = events;
        Ok(heard)
    }

    /// A write has left.
    fn finish(&mut self, write: usize) {
        self.free.push(write);
        if let Some((queue, batch)) = self.writes[write].batch.take() {
            self.queues[queue].close(batch);
            self.tell_done(queue);
        }
    }

    /// Tells kernels whose sources may be written again.
    fn tell_done(&mut self, index: usize) {
        if let Some(done) = self.queues[index].done() {
            self.memory.release(self.layout.progress(index) + 4, done);
        }
    }

    /// Drops what waits for a peer that has left.
    fn forget(&mut self, peer: usize) {
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            let dropped = std::mem::take(&mut queue.waiting[peer]);
            queue.waiting_count -= dropped.len();
            dropped.iter().for_each(|(_, batch)| queue.close(*batch));
            self.tell_done(index);
        }
    }

    /// A write of a peer has landed.
    fn land(&mut self, number: u32, now: Instant) -> Result<(), NetError> {
        let (rank, layout, memory) = (self.rank, self.layout, self.memory);
        let wrong = |why: String| NetError::Protocol { rank, why };
        let (said, source, queue) = Number::decode(number, &layout).map_err(wrong)?;
        if source == rank {
            return Err(wrong("it names this rank as its source".to_string()));
        }
        self.peers[source].heard = now;
        let flow = layout.flow(source, queue);
        match said {
            Number::Put(place) | Number::Signal(place) => {
                add(&self.shared.counts.landed, 1);
                let is_signal = matches!(said, Number::Signal(_));
                let mut outside = None;
                let landed = self.landings[flow].land(place, is_signal, |place| {
                    let word = memory.acquire(layout.inbox(source, queue, place));
                    let (counter, count) = (word as u32 as usize, (word >> 32) as u32);
                    match counter < layout.counters {
                        true => memory.release_sum(layout.counter(source, queue, counter), count),
                        false => outside = Some(counter),
                    }
                });
                landed.map_err(wrong)?;
                self.owes |= self.owed(source, queue).is_some();
                match outside {
                    None => Ok(()),
                    Some(counter) => Err(wrong(format!("it counts at counter {counter}"))),
                }
            }
            Number::Landed(count) => self.sendings[flow].landed(count).map_err(wrong),
            Number::Alive(Pulse::Well) => Ok(()),
            Number::Alive(Pulse::Leaving) => {
                self.peers[source].left = true;
                self.owes = true;
                self.forget(source);
                self.shared.left.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Number::Alive(Pulse::GaveUp(on)) => Err(NetError::GaveUp { rank, peer: source, on }),
        }
    }

    /// Takes what kernels have put into a queue.
    fn take(&mut self, index: usize) -> Result<bool, NetError> {
        let (layout, memory, rank) = (self.layout, self.memory, self.rank);
        let limits = Limits {
            ranks: layout.ranks,
            rank,
            data_bytes: layout.data_bytes,
            counters: layout.counters,
        };
        let queue = &mut self.queues[index];
        if queue.waiting_count >= WAITING_MAX {
            return Ok(false);
        }
        let before = queue.taken;
        while (queue.taken.wrapping_sub(before) as usize) < BATCH {
            let number = queue.taken;
            let at = layout.descriptor(index, number);
            let stamp = memory.acquire(at + STAMP_AT);
            if !queue::has_come(stamp, number, layout.slots) {
                break;
            }
            let words = [memory.load(at), memory.load(at + 8), memory.load(at + 16), stamp];
            let wrong = |why| NetError::Descriptor { rank, queue: index, number, why };
            let request = Request::read(&words, &limits).map_err(wrong)?;
            // Whoever has left wants nothing more, such as the credit of its last rows.
            if !self.peers[request.peer()].left {
                self.joined.add(request);
            }
            queue.taken = number.wrapping_add(1);
        }
        let taken = queue.taken.wrapping_sub(before);
        if taken == 0 {
            return Ok(false);
        }
        let number = queue.first_batch + queue.batches.len() as u64;
        let mut open = 0;
        for request in self.joined.take() {
            queue.waiting[request.peer()].push_back((request, number));
            open += 1;
        }
        queue.waiting_count += open;
        queue.batches.push_back(Batch { end: queue.taken, open });
        memory.release(layout.progress(index), queue.taken);
        self.tell_done(index);
        add(&self.shared.counts.requests, u64::from(taken));
        add(&self.shared.counts.writes, open as u64);
        Ok(true)
    }

    /// Posts what waits in a queue, as far as the network takes it.
    fn send(&mut self, index: usize, now: Instant) -> Result<bool, NetError> {
        let mut sent = false;
        for peer in 0..self.peers.len() {
            if self.queues[index].waiting_count == 0 {
                break;
            }
            while let Some((request, batch)) = self.queues[index].waiting[peer].front().copied() {
                if !self.post_request(index, request, batch, now)? {
                    break;
                }
                let queue = &mut self.queues[index];
                queue.waiting[peer].pop_front();
                queue.waiting_count -= 1;
                sent = true;
            }
        }
        Ok(sent)
    }

    fn post_request(
        &mut self,
        index: usize,
        request: Request,
        batch: u64,
        now: Instant,
    ) -> Result<bool, NetError> {
        // The rest is kept for what ranks tell one another.
        let spare = self.writes.len() / 8;
        let Some(write) = self.free.last().copied().filter(|_| self.free.len() > spare) else {
            return Ok(false);
        };
        let (layout, peer) = (self.layout, request.peer());
        let flow = layout.flow(peer, index);
        let Some(place) = self.sendings[flow].place() else {
            self.peers[peer].refused.get_or_insert(now);
            return Ok(false);
        };
        let (way, number) = match request {
            Request::Put { to, from, bytes, .. } => {
                ((to, from, u64::from(bytes)), Number::Put(place))
            }
            Request::Signal { counter, count, .. } => {
                let from = layout.outbox(write);
                self.memory.store(from, u64::from(count) << 32 | u64::from(counter));
                ((layout.inbox(self.rank, index, place), from, 8), Number::Signal(place))
            }
        };
        let (write, bytes) = ((write, Write { peer, batch: Some((index, batch)) }), way.2);
        let posted = self.post(write, way, number.encode(self.rank, index), now)?;
        if posted {
            self.sendings[flow].posted();
            add(&self.shared.counts.bytes, bytes);
        }
        Ok(posted)
    }

    /// Posts the free write that was looked at last.
    fn post(
        &mut self,
        (write, about): (usize, Write),
        way: (u64, u64, u64),
        number: u32,
        now: Instant,
    ) -> Result<bool, NetError> {
        let (end, injects) = (&mut self.peers[about.peer], self.endpoint.injects(way.1, way.2));
        let posted = match injects {
            true => self.endpoint.inject(about.peer, way, number)?,
            false => self.endpoint.write(write, about.peer, way, number)?,
        };
        if !posted {
            end.refused.get_or_insert(now);
            return Ok(false);
        }
        (end.refused, end.said) = (None, now);
        self.writes[write] = about;
        self.free.pop();
        if injects {
            self.finish(write);
        }
        Ok(true)
    }
}

/// Says that the thread has ended, however it has.
struct Ended {
    rank: usize,
    shared: Arc<Shared>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        if !self.shared.leaving.load(Ordering::Relaxed) {
            let _ = self.shared.failure.set(NetError::Proxy { rank: self.rank });
        }
    }
}

/// The last word of a descriptor lies in it.
const _: () = assert!(STAMP_AT + 8 == DESCRIPTOR_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_by_itself_is_a_failure() {
        let end = |leaving: bool| {
            let shared = Arc::new(Shared::default());
            shared.leaving.store(leaving, Ordering::Relaxed);
            let guard = Ended { rank: 3, shared: Arc::clone(&shared) };
            let thread = std::thread::spawn(move || {
                let _guard = guard;
                // As an assertion of the thread would.
                std::panic::resume_unwind(Box::new("no more"));
            });
            assert!(thread.join().is_err());
            shared.failure.get().cloned()
        };
        assert_eq!(end(false), Some(NetError::Proxy { rank: 3 }));
        assert_eq!(end(true), None, "it was asked to");
    }
}

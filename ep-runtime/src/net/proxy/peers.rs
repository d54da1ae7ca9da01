//! What ranks tell one another beside rows: what has landed, that they are alive, that they leave, and that
//! they have given up.

use std::time::{Duration, Instant};

use super::{LINGER, Proxy, Rest, Timing, Write};
use crate::net::endpoint::{Endpoint, Event};
use crate::net::stream::{Number, Pulse, Sending};
use crate::net_error::NetError;

/// How long one that gives up tries to tell the others.
const LAST_WORDS: Duration = Duration::from_millis(200);

impl Proxy {
    /// Posts what a rank tells another one, which moves no rows.
    fn tell(
        &mut self,
        peer: usize,
        queue: usize,
        number: Number,
        now: Instant,
    ) -> Result<bool, NetError> {
        let Some(write) = self.free.last().copied() else { return Ok(false) };
        let way = (self.layout.pulse(self.rank), self.layout.outbox(write), 8);
        self.post((write, Write { peer, batch: None }), way, number.encode(self.rank, queue), now)
    }

    /// How much of a peer's that has landed it is to be told of now, if it is.
    pub(super) fn owed(&self, peer: usize, queue: usize) -> Option<u16> {
        // One that leaves waits for it.
        self.landings[self.layout.flow(peer, queue)].owed(self.peers[peer].left)
    }

    /// Tells peers how much of theirs has landed.
    pub(super) fn answer(&mut self, now: Instant) -> Result<bool, NetError> {
        let mut told = false;
        if !std::mem::take(&mut self.owes) {
            return Ok(told);
        }
        for peer in 0..self.layout.ranks {
            for queue in 0..self.layout.queues {
                let Some(count) = self.owed(peer, queue) else { continue };
                if self.tell(peer, queue, Number::Landed(count), now)? {
                    self.landings[self.layout.flow(peer, queue)].told(count);
                    told = true;
                } else {
                    self.owes = true;
                }
            }
        }
        Ok(told)
    }

    /// Gives signs of life, and looks for those of the peers.
    pub(super) fn look_after_peers(&mut self, now: Instant) -> Result<(), NetError> {
        let Timing { pulse, silence } = self.timing;
        if now.duration_since(self.looked) < pulse / 4 {
            return Ok(());
        }
        // A process that was stopped itself has heard nobody meanwhile, and hears them now.
        let late = now.duration_since(self.looked).saturating_sub(pulse);
        self.looked = now;
        let rank = self.rank;
        for peer in (0..self.layout.ranks).filter(|peer| *peer != rank) {
            let end = &mut self.peers[peer];
            if end.left {
                continue;
            }
            end.heard += late.min(now.duration_since(end.heard));
            let waited = now.duration_since(end.heard);
            if waited > silence {
                return Err(NetError::Silent { rank, peer, waited });
            }
            if let Some(waited) = end.refused.map(|since| now.duration_since(since))
                && waited > silence
            {
                return Err(NetError::Stuck { rank, peer, waited });
            }
            if now.duration_since(end.said) >= pulse {
                self.tell(peer, 0, Number::Alive(Pulse::Well), now)?;
            }
        }
        Ok(())
    }

    /// Whether this rank can go: all peers know it, and nothing of its own is on its way.
    pub(super) fn has_left(&mut self, now: Instant) -> Result<bool, NetError> {
        let since = *self.leaving_since.get_or_insert(now);
        let mut told = true;
        let rank = self.rank;
        for peer in (0..self.layout.ranks).filter(|peer| *peer != rank) {
            if !self.peers[peer].told && !self.peers[peer].left {
                let said = self.tell(peer, 0, Number::Alive(Pulse::Leaving), now)?;
                self.peers[peer].told = said;
                told &= said;
            }
        }
        let (queues, peers) = (self.layout.queues, &self.peers);
        let quiet =
            |(flow, sending): (usize, &Sending)| sending.is_quiet() || peers[flow / queues].left;
        let is_over = told
            && self.free.len() == self.writes.len()
            && self.queues.iter().all(|queue| queue.waiting_count == 0)
            && self.sendings.iter().enumerate().all(quiet);
        Ok(is_over || now.duration_since(since) > LINGER)
    }

    /// Ends with an error, which the peers hear if they still can.
    pub(super) fn give_up(mut self, error: NetError) -> Endpoint {
        let on = error.culprit().filter(|culprit| *culprit != self.rank);
        // The first one stays; whoever asks meanwhile is not kept waiting.
        let _ = self.shared.failure.set(error);
        let begun = Instant::now();
        let mut untold: Vec<usize> =
            (0..self.layout.ranks).filter(|peer| *peer != self.rank && Some(*peer) != on).collect();
        untold.retain(|peer| !self.peers[*peer].left);
        let mut rest = Rest::default();
        while begun.elapsed() < LAST_WORDS {
            let number = Number::Alive(Pulse::GaveUp(on));
            untold.retain(|peer| matches!(self.tell(*peer, 0, number, begun), Ok(false)));
            let mut events = Vec::new();
            // Nothing that comes now changes what is said.
            let _ = self.endpoint.poll(&mut events);
            for event in &events {
                if let Event::Sent(write) = event {
                    self.free.push(*write);
                }
            }
            if untold.is_empty() && self.free.len() == self.writes.len() {
                break;
            }
            rest.pause();
        }
        self.endpoint
    }
}

//! Lanes that poll, kept by the addresses they poll so that a write wakes exactly them.

use std::collections::BTreeMap;

use super::{Machine, Outcome};
use crate::abi::Pc;
use crate::failure::WaitSite;
use crate::state::Idx;
use crate::state::lane::State;
use crate::state::parking::Parking;

impl Machine<'_> {
    /// Parks the running lane if this load shows that it polls; returns whether it did.
    pub(crate) fn park_if_polling(&mut self, at: usize, value: u64) -> bool {
        let here = self.here();
        if !self.lanes[here].polling.note(at, value) {
            return false;
        }
        let base = self.heap.base();
        for (at, _) in self.lanes[here].polling.addresses() {
            let bucket = Parking::bucket(at.wrapping_sub(base) >> 6);
            self.parking.buckets[bucket].push(here);
        }
        self.parking.count += 1;
        self.lanes[here].state = State::Poll;
        true
    }

    /// The running lane begins to wait for something. If it waited for something else before, it has come on, which a
    /// kernel that writes rows by plain stores does not show otherwise.
    pub(crate) fn begin_wait(&mut self, site: WaitSite) -> Outcome<()> {
        let here = self.here();
        if self.blocks[self.block_of(here)].has_brought_next {
            return Err(self.waits_beside_next(here));
        }
        let lane = self.lane();
        if lane.site.replace(site) != Some(site) {
            lane.polling.forget();
            self.progress += 1;
        }
        Ok(())
    }

    /// A value at `at` has changed: whoever polls it may run again.
    pub(crate) fn touch(&mut self, at: usize, bytes: usize) {
        self.progress += 1;
        if self.parking.count == 0 {
            return;
        }
        let offset = at.wrapping_sub(self.heap.base());
        let lines = offset >> 6..=(offset + bytes.max(1) - 1) >> 6;
        if lines.end() - lines.start() > self.parking.count {
            self.wake_all_touched(at, bytes);
            return;
        }
        for line in lines {
            let bucket = Parking::bucket(line);
            let mut index = 0;
            while let Some(lane) = self.parking.buckets[bucket].get(index).copied() {
                if self.polls(lane, at, bytes) {
                    self.wake_poller(lane);
                } else {
                    index += 1;
                }
            }
        }
    }

    fn polls(&self, lane: Idx, at: usize, bytes: usize) -> bool {
        let polled = self.lanes[lane].polling.addresses();
        polled.iter().any(|(polled, _)| polled + 8 > at && *polled < at + bytes)
    }

    /// For writes that span more lines than there are parked lanes.
    fn wake_all_touched(&mut self, at: usize, bytes: usize) {
        let mut woken: Vec<Idx> = Vec::new();
        for bucket in &self.parking.buckets {
            woken.extend(bucket.iter().copied().filter(|lane| self.polls(*lane, at, bytes)));
        }
        for lane in woken {
            if self.lanes[lane].state == State::Poll {
                self.wake_poller(lane);
            }
        }
    }

    /// Makes the warp of a lane look again: the lane can see something new, and no write will announce it.
    pub(crate) fn forget_looks(&mut self, lane: Idx) {
        self.wake_poller(lane);
        let first = lane - lane % 32;
        self.lanes[first..first + 32].iter_mut().for_each(|mate| mate.polling.forget());
    }

    /// Wakes a lane and the parked lanes of its warp: a warp may poll many flags in one loop, a
    /// lane each, and leave the loop only when each lane has looked again.
    fn wake_poller(&mut self, lane: Idx) {
        let first = lane - lane % 32;
        for mate in first..first + 32 {
            if self.lanes[mate].state == State::Poll {
                self.unpark(mate);
            }
        }
    }

    pub(crate) fn unpark(&mut self, lane: Idx) {
        let base = self.heap.base();
        let lanes = &mut self.lanes;
        for (at, _) in lanes[lane].polling.addresses() {
            let bucket = Parking::bucket(at.wrapping_sub(base) >> 6);
            self.parking.buckets[bucket].retain(|parked| *parked != lane);
        }
        self.parking.count -= 1;
        lanes[lane].polling.forget();
        self.make_ready(lane);
    }

    /// Lets a parked lane look again, so often before it parks.
    fn wake(&mut self, lane: Idx, looks: u32) {
        let grace = looks * self.lanes[lane].polling.words();
        self.unpark(lane);
        self.lanes[lane].polling.grace = grace;
    }

    /// Lets the parked lanes of one warp of each loop look again, so often before they park.
    pub(crate) fn wake_one_of_each_loop(&mut self, looks: u32) {
        let mut warps: BTreeMap<Pc, Idx> = BTreeMap::new();
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            if lane.state == State::Poll && *warps.entry(lane.pc).or_insert(lane.warp) == lane.warp
            {
                self.wake(index, looks);
            }
        }
    }

    /// Lets every parked lane look again, so often before it parks; returns how many there were.
    pub(crate) fn wake_all(&mut self, looks: u32) -> usize {
        let parked: Vec<Idx> =
            (0..self.lanes.len()).filter(|lane| self.lanes[*lane].state == State::Poll).collect();
        for lane in &parked {
            self.wake(*lane, looks);
        }
        parked.len()
    }
}

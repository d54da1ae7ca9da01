//! What every lane waits for when nothing can run any more.

use std::collections::BTreeMap;

use super::Machine;
use crate::abi::Pc;
use crate::failure::{Wait, WaitSite};
use crate::state::Idx;
use crate::state::lane::State;
use crate::symbols::mark;

/// What a lane does that a fault has stopped.
const STOPPED: &str = "stopped by a fault";

impl Machine<'_> {
    /// Keeps what the lanes wait for now.
    pub(crate) fn note_deadlock(&mut self) {
        let waits = self.waits();
        let mut head = "no lane can run and no copy is under way".to_owned();
        if self.engine.stalled() > 0 {
            head.push_str(&format!(" ({} stalled by a fault)", self.engine.stalled()));
        }
        self.deadlock = Some((head, waits));
    }

    /// What the running lane waited for has come. In a deadlock whose waits may expire, it has done so since others
    /// gave up.
    pub(crate) fn met(&mut self) {
        let here = self.here();
        let Some((_, waits)) = &mut self.deadlock else { return };
        let (lane, warp) = (&self.lanes[here], &self.warps[here / 32]);
        let block = &self.blocks[warp.block];
        let (site, own) = (lane.site, (block.rank, block.view.index[0], warp.index));
        let of_lane =
            |wait: &&mut Wait| (wait.rank, wait.block, wait.warp) == own && wait.site == site;
        waits.iter_mut().filter(of_lane).for_each(|wait| wait.met = true);
    }

    /// What those wait for that no fault has stopped.
    pub(crate) fn waits_of_the_living(&self) -> Vec<Wait> {
        let mut waits = self.waits();
        waits.retain(|wait| wait.what != STOPPED);
        waits
    }

    /// What every waiting group of lanes waits for.
    fn waits(&self) -> Vec<Wait> {
        /// Lanes, the site they named, and whether they only follow others.
        type Group = (u32, Option<WaitSite>, bool);
        let mut groups: BTreeMap<(Idx, Pc, String), Group> = BTreeMap::new();
        for (lane, state) in self.waiting() {
            let site = self.lanes[lane].site.filter(|_| state == State::Poll);
            let key = (lane / 32, self.lanes[lane].pc, self.what(lane, state));
            let entry = groups.entry(key).or_insert((0, site, false));
            entry.0 |= 1 << (lane % 32);
            // Lanes that only wait for lanes of their warp, which are listed themselves.
            entry.2 = matches!(state, State::Warp { mask } if self.all_wait(lane, mask));
        }
        let listed = groups.into_iter().filter(|(_, (.., follows))| !follows);
        let wait = |((warp, pc, what), (lanes, site, _)): ((Idx, Pc, String), (u32, _, bool))| {
            let entry = &self.warps[warp];
            let block = &self.blocks[entry.block];
            let (rank, index) = (block.rank, block.view.index[0]);
            let place = mark(pc);
            Wait { rank, block: index, warp: entry.index, lanes, site, what, place, met: false }
        };
        listed.map(wait).collect()
    }

    /// Whether the lanes that a meeting of `mask` misses wait for something else.
    fn all_wait(&self, lane: Idx, mask: u32) -> bool {
        let first = lane - lane % 32;
        let (arrived, _) = self.meeting(lane / 32, mask);
        let missing = (0..32).filter(|bit| (mask & !arrived) >> bit & 1 != 0);
        missing
            .map(|bit| self.lanes[first + bit].state)
            .all(|state| matches!(state, State::Poll | State::Bulk { .. } | State::Barrier { .. }))
    }

    fn what(&self, index: Idx, state: State) -> String {
        let lane = &self.lanes[index];
        let slot = self.block_of(index);
        if self.warps[lane.warp].frozen {
            return STOPPED.to_owned();
        }
        match state {
            State::Poll => {
                let polled = lane.polling.addresses().iter();
                let words: Vec<String> =
                    polled.map(|(at, value)| self.polled_word(slot, *at, *value)).collect();
                match words.is_empty() {
                    true => "polls many words".to_owned(),
                    false => format!("polls {}", words.join(", ")),
                }
            }
            State::Warp { mask } => {
                let (arrived, name) = self.meeting(lane.warp, mask);
                let missing = mask & !arrived;
                format!("{name} of mask {mask:08x}, lanes {missing:08x} have not arrived")
            }
            State::Barrier { id } => {
                let barrier = &self.blocks[slot].barriers[usize::from(id)];
                format!("barrier {id}, {} of {} threads", barrier.arrived, barrier.wanted)
            }
            State::Bulk { open, read_only } => {
                let read = if read_only { ".read" } else { "" };
                format!("its bulk groups (wait_group{read} {open})")
            }
            State::Ready => "could run".to_owned(),
            State::Done => "has left".to_owned(),
        }
    }

    fn polled_word(&self, slot: Idx, at: usize, value: u64) -> String {
        if let Some(mbarrier) = self.describe_mbarrier(slot, at) {
            return mbarrier;
        }
        let place = self.place(at.wrapping_sub(self.heap.base()));
        format!("{place} == {value:#x}")
    }
}

//! The report of a deadlock: who waits for what and on whom, and the circle if there is one.

use std::collections::{BTreeMap, BTreeSet};

use crate::abi::Pc;
use crate::failure::{Wait, WaitSite};
use crate::lane::{Idx, State};
use crate::machine::Machine;
use crate::symbols::mark;

/// Lines of a report.
const LINES: usize = 24;

impl Machine<'_> {
    /// Keeps what the lanes wait for now.
    pub(crate) fn note_deadlock(&mut self) {
        let waits = self.waits();
        let mut head = "no lane can run and no copy is under way".to_owned();
        if self.engine.stalled() > 0 {
            head.push_str(&format!(" ({} stalled by a fault)", self.engine.stalled()));
        }
        self.deadlock = Some((head + &render(&waits), waits));
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
            Wait { rank, block: index, warp: entry.index, lanes, site, what, place: mark(pc) }
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
            return "stopped by a fault".to_owned();
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
                format!("{name} of mask {mask:08x}, lanes {missing:08x} have not come")
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
        let place = self.heap.describe(at.wrapping_sub(self.heap.base()));
        format!("{place} == {value:#x}")
    }
}

/// A line for all waits of a rank at one place of the kernel, with the first of them; then the
/// circle.
fn render(waits: &[Wait]) -> String {
    type Key<'w> = (u32, &'w str, Option<(u32, u32, u32)>);
    let mut lines: BTreeMap<Key<'_>, Vec<&Wait>> = BTreeMap::new();
    for wait in waits {
        let site = wait.site.map(|site| (site.role, site.channel, site.kind));
        lines.entry((wait.rank, &wait.place, site)).or_default().push(wait);
    }
    let mut text = String::new();
    for ((rank, place, site), waits) in lines.iter().take(LINES) {
        let first = waits[0];
        let (block, warp, lanes) = (first.block, first.warp, first.lanes);
        let what = &first.what;
        text.push_str(&format!(
            "\n  rank {rank} block {block} warp {warp} lanes {lanes:08x}: {what}"
        ));
        text.push_str(&format!(" at {place}"));
        if let Some((role, channel, kind)) = site {
            let sites = || waits.iter().filter_map(|wait| wait.site);
            let peers = numbers(sites().map(|site| site.peer));
            let stripes = numbers(sites().map(|site| site.stripe));
            text.push_str(&format!(
                " (role {role}, channel {channel}, waiting {kind}, stripe {stripes}, peer {peers})"
            ));
        }
        if waits.len() > 1 {
            text.push_str(&format!("; {} more like it", waits.len() - 1));
        }
    }
    if lines.len() > LINES {
        text.push_str(&format!("\n  and {} more", lines.len() - LINES));
    }
    if let Some(circle) = circle(waits) {
        let ranks: Vec<String> = circle.iter().map(|rank| format!("rank {rank}")).collect();
        text.push_str(&format!("\n  a circle: {} wait for each other", ranks.join(" -> ")));
    }
    text
}

/// The different numbers, in order.
fn numbers(all: impl Iterator<Item = i32>) -> String {
    let all: BTreeSet<i32> = all.collect();
    let texts: Vec<String> = all.iter().map(i32::to_string).collect();
    texts.join(" ")
}

/// Ranks of which each waits for the next and the last for the first, by the peers that the waits
/// name.
fn circle(waits: &[Wait]) -> Option<Vec<u32>> {
    let mut edges: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for wait in waits {
        if let Some(peer) = wait.site.and_then(|site| u32::try_from(site.peer).ok())
            && peer != wait.rank
        {
            edges.entry(wait.rank).or_default().push(peer);
        }
    }
    for start in edges.keys() {
        let mut path = vec![*start];
        let mut at = *start;
        // Following first edges is enough to show one circle, not to find every one.
        while let Some(next) = edges.get(&at).and_then(|peers| peers.first()) {
            if let Some(begin) = path.iter().position(|known| known == next) {
                return Some(path.split_off(begin));
            }
            path.push(*next);
            at = *next;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(rank: u32, peer: i32) -> Wait {
        let site = WaitSite { role: 0, channel: 0, kind: 0, stripe: 0, peer };
        let (what, place) = (String::new(), String::new());
        Wait { rank, block: 0, warp: 0, lanes: 1, site: Some(site), what, place }
    }

    #[test]
    fn a_circle_is_found_behind_its_entry() {
        assert_eq!(circle(&[wait(0, 1), wait(1, 2), wait(2, 1)]), Some(vec![1, 2]));
        assert_eq!(circle(&[wait(0, 1), wait(1, -1)]), None);
        assert_eq!(circle(&[wait(0, 0)]), None, "own warps are not peers");
    }
}

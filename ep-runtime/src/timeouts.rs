//! Timeouts in words: what the warps of a stopped group were waiting for, and what the ranks that they
//! waited for were doing.

mod peers;
mod wait;

use std::collections::BTreeSet;
use std::fmt;

use ep_codegen::plan::Plan;

use crate::backend::BackendError;
use crate::memory::HostMemory;

pub use peers::{CallBeside, PeerReport, PeerState};
pub(crate) use peers::{Calls, PRESENCES_AT, Progress, STATE_WORDS};
pub(crate) use wait::WRITTEN_AT;
#[cfg(any(feature = "host", test))]
pub(crate) use wait::WaitNumbers;
pub use wait::{RECORD_BYTES, RECORD_CAPACITY, StuckWait};

use wait::RECORD_WORDS;

/// All waits that the local ranks recorded when their group was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// Waits for peers come first: waits that expired before the others, in order of rank.
    pub waits: Vec<StuckWait>,
    /// What the ranks are doing that others wait for.
    pub peers: Vec<PeerReport>,
    /// The calls that ranks of other groups on the same GPUs are in.
    pub beside: Vec<CallBeside>,
    /// What network cards that are kernels have not carried out.
    pub network: Vec<String>,
}

impl Timeouts {
    pub(crate) fn new(mut waits: Vec<StuckWait>) -> Timeouts {
        // A call that has not ended keeps those behind it: what is nearest to a cause comes first.
        waits.sort_by_key(|wait| (wait.is_inner(), !wait.expired, wait.epoch, wait.rank));
        Timeouts { waits, ..Timeouts::default() }
    }

    /// The records of one pipeline on one rank.
    pub(crate) fn read(
        rank: usize,
        plan: &Plan,
        records: &HostMemory,
    ) -> Result<Vec<StuckWait>, BackendError> {
        let mut waits = Vec::new();
        for slot in 0..u64::from(RECORD_CAPACITY) {
            let mut words = [0; RECORD_WORDS.len()];
            records.read(slot * RECORD_BYTES, &mut words)?;
            waits.extend(StuckWait::read(rank, plan, &words));
        }
        Ok(waits)
    }

    /// Which rank waits for which, as pairs of ranks without duplicates. Pairs come from waits that
    /// expired. For a rank where only waits for its own warps expired, they come from waits that were cut
    /// short. Ranks that wait for the rank which caused the stop are included no matter how their wait
    /// ended.
    pub fn edges(&self) -> Vec<(usize, usize)> {
        let expired = |rank: usize| self.outer().any(|wait| wait.expired && wait.rank == rank);
        let counted = self.outer().filter(|wait| wait.expired || !expired(wait.rank));
        let causes = self.causes().map(|why| (why.rank, why.peer));
        each_once(counted.filter_map(edge).chain(causes))
    }

    /// Waits for peers.
    fn outer(&self) -> impl Iterator<Item = &StuckWait> {
        self.waits.iter().filter(|wait| !wait.is_inner())
    }

    /// Ranks that wait for each other, unless they do so because another one is elsewhere. If those
    /// whose waits ran out do not, then with those whose waits were cut short.
    fn circle(&self) -> Option<String> {
        if self.causes().next().is_some() {
            return None;
        }
        circle(&self.edges()).or_else(|| circle(&each_once(self.outer().filter_map(edge))))
    }

    /// Ranks that others wait for, and that wait for no rank themselves.
    fn causes(&self) -> impl Iterator<Item = &PeerReport> {
        self.peers.iter().filter(|why| why.state.is_cause())
    }
}

impl fmt::Display for Timeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        f.write_str("the group is stopped")?;
        let (gone, others): (Vec<&PeerReport>, Vec<&PeerReport>) =
            self.peers.iter().partition(|why| why.state == PeerState::Gone);
        for (index, why) in gone.iter().enumerate() {
            write!(f, "{} {why}", if index == 0 { ":" } else { "," })?;
        }
        for (from, to) in self.edges() {
            write!(f, "; rank {from} waits on rank {to}")?;
        }
        if let Some(circle) = self.circle() {
            write!(f, "; {circle}")?;
        }
        for why in others {
            write!(f, "\n  {why}")?;
        }
        for call in &self.beside {
            write!(f, "\n  {call}")?;
        }
        for text in &self.network {
            write!(f, "\n  {text}")?;
        }
        let like = |a: &StuckWait, b: &StuckWait| {
            let kind = |it: &StuckWait| (it.rank, it.peer, it.expired);
            kind(a) == kind(b)
                && (&a.pipeline, &a.role) == (&b.pipeline, &b.role)
                && (&a.channel, &a.waiting_for) == (&b.channel, &b.waiting_for)
        };
        let mut kinds: Vec<(&StuckWait, usize)> = Vec::new();
        for wait in &self.waits {
            match kinds.iter_mut().find(|(first, _)| like(first, wait)) {
                Some((_, more)) => *more += 1,
                None => kinds.push((wait, 0)),
            }
        }
        for (wait, more) in kinds.iter().take(SHOWN) {
            write!(f, "\n  {wait}")?;
            if *more > 0 {
                write!(f, "; {more} more like it")?;
            }
        }
        match kinds.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} other kinds of waits"),
        }
    }
}

/// The rank that waits, and the one that it waits for.
fn edge(wait: &StuckWait) -> Option<(usize, usize)> {
    Some((wait.rank, wait.peer?))
}

fn each_once(edges: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    edges.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Ranks of which each waits for the next and the last for the first, in words, if there are any.
pub(crate) fn circle(edges: &[(usize, usize)]) -> Option<String> {
    let next = |rank: usize| {
        edges.iter().find(|(from, to)| *from == rank && to != from).map(|(_, to)| *to)
    };
    for (start, _) in edges {
        let mut path = vec![*start];
        // Following first edges is enough to show one circle, not to find every one.
        while let Some(rank) = next(path[path.len() - 1]) {
            if let Some(begin) = path.iter().position(|known| *known == rank) {
                let ranks: Vec<String> =
                    path[begin..].iter().map(|rank| format!("rank {rank}")).collect();
                return Some(format!("a cycle: {} wait for each other", ranks.join(" -> ")));
            }
            path.push(rank);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::plan_of;

    /// Rank 0's wait for rank 1 has expired; what rank 1 was waiting for then was cut short.
    #[test]
    fn a_wait_that_was_cut_short_closes_a_circle_or_tells_the_cause() {
        let plan = plan_of("NvlDispatch", vec![]);
        let wait = |rank: usize, peer: u32, expired: u32| {
            StuckWait::read(rank, &plan, &[0, 0, 0, 5, expired, 7, peer, 9, 4, 3, 1, 6, 1]).unwrap()
        };
        assert_eq!(Timeouts::new(vec![wait(1, 2, 1)]).edges(), [(1, 2)]);
        let mut timeouts = Timeouts::new(vec![wait(0, 1, 1), wait(1, 0, 0)]);
        assert!(timeouts.to_string().contains("; a cycle: rank 0 -> rank 1 wait for each other"));
        let why = |state| PeerReport {
            rank: 0,
            pipeline: "NvlDispatch".to_string(),
            call: 3,
            peer: 2,
            state,
        };
        timeouts.peers = vec![why(PeerState::Inside)];
        assert!(timeouts.to_string().contains("a cycle"));
        timeouts.peers = vec![why(PeerState::NotCome)];
        let text = timeouts.to_string();
        let head = "the group is stopped; rank 0 waits on rank 1; rank 0 waits on rank 2; rank 1 waits on \
                rank 0\n  rank 2 has not made call 3 of NvlDispatch\n";
        assert!(text.starts_with(head), "{text}");
        timeouts.peers = vec![why(PeerState::Gone)];
        let text = timeouts.to_string();
        let head = "the group is stopped: the process of rank 2 has ended; rank 0 waits on rank 1; rank 0 waits on \
                rank 2; rank 1 waits on rank 0\n  rank 0: NvlDispatch ";
        assert!(text.starts_with(head), "{text}");
    }

    /// Ranks 0 and 1 are a call ahead of rank 2, for which they wait.
    #[test]
    fn waits_of_an_earlier_call_come_first() {
        let plan = plan_of("NvlDispatch", vec![]);
        let wait = |rank: usize, peer: u32, epoch: u32| {
            StuckWait::read(rank, &plan, &[0, 0, 0, 5, 1, 7, peer, 9, 4, epoch, 1, 6, 1]).unwrap()
        };
        let timeouts = Timeouts::new(vec![wait(0, 2, 4), wait(1, 2, 4), wait(2, 3, 3)]);
        let order: Vec<usize> = timeouts.waits.iter().map(|wait| wait.rank).collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn a_circle_is_found_behind_its_entry() {
        let text = "a cycle: rank 1 -> rank 2 wait for each other";
        assert_eq!(circle(&[(0, 1), (1, 2), (2, 1)]).as_deref(), Some(text));
        assert_eq!(circle(&[(0, 1)]), None);
        assert_eq!(circle(&[(0, 0)]), None, "own warps are not peers");
    }
}

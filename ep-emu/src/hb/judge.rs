//! What is wrong between two accesses, if anything.

use super::cells::Event;
use super::{Checker, Obs, Party, Rule, Rules};
use crate::abi::Scope;
use crate::state::Idx;

impl Checker {
    /// Whether a kept read is known to the party, so that its own read replaces it.
    pub(super) fn follows(&self, party: Party, earlier: Event) -> bool {
        let access = earlier.access;
        !access.is_bulk() && self.ordered(party, access.warp(), 1 << access.lane(), earlier.epoch)
    }

    /// The rule that an access breaks against an earlier one.
    pub(super) fn judge(
        &self,
        party: Party,
        now: (Event, bool),
        earlier: (Event, bool),
        at: usize,
    ) -> Option<Rule> {
        let rule = if earlier.0.access.is_bulk() {
            self.judge_after_bulk(party, now, earlier, at)
        } else {
            self.judge_after_plain(party, now, earlier, at)
        };
        let of_callers =
            self.is_caller(now.0.access.warp()) || self.is_caller(earlier.0.access.warp());
        let rule = if of_callers { rule.map(|_| Rule::Lent) } else { rule };
        rule.filter(|rule| self.rules.has(*rule) && !self.is_waived(*rule, at))
    }

    fn is_waived(&self, rule: Rule, at: usize) -> bool {
        let covers = |part: &&(usize, usize, Rules)| at >= part.0 && at < part.0 + part.1;
        self.waived.iter().filter(covers).any(|part| part.2.has(rule))
    }

    fn judge_after_plain(
        &self,
        party: Party,
        (now, writes): (Event, bool),
        (earlier, wrote): (Event, bool),
        at: usize,
    ) -> Option<Rule> {
        let (warp, lane) = (earlier.access.warp(), earlier.access.lane());
        if let Some(rule) = self.judge_read_only(party, (now, writes), (earlier, wrote)) {
            return Some(rule);
        }
        let strong = (now.access.scope(), earlier.access.scope());
        let same_size = now.access.size() == earlier.access.size();
        if let (Some(mine), Some(theirs)) = strong
            && same_size
            && self.distance(party, warp) <= mine.min(theirs)
        {
            return None;
        }
        if !self.ordered(party, warp, 1 << lane, earlier.epoch) {
            let own = matches!(party, Party::Lane(me) if me / 32 == warp)
                && earlier.epoch >= self.warps[warp].entered;
            return Some(match strong {
                (Some(_), Some(_)) if !same_size => Rule::WholeWords,
                (Some(_), Some(_)) => Rule::Scopes,
                _ if own => Rule::Lanes,
                _ => Rule::Warps,
            });
        }
        let Party::Lane(me) = party else { return None };
        if !now.access.is_bulk() {
            return None;
        }
        if at >= self.shared_from {
            let fenced = self.shared_fenced(party, warp, lane, earlier.epoch);
            let rule = if wrote { Rule::WriterFence } else { Rule::ReaderFence };
            return (!fenced).then_some(rule);
        }
        let fenced = self.fenced(me, warp, 1 << lane, earlier.epoch);
        let rule = if writes { Rule::CreditFence } else { Rule::LoadFence };
        (!fenced).then_some(rule)
    }

    /// M5: what a launch reads through the read-only path is what was there when it began.
    fn judge_read_only(
        &self,
        party: Party,
        (now, writes): (Event, bool),
        (earlier, wrote): (Event, bool),
    ) -> Option<Rule> {
        let (warp, lane) = (earlier.access.warp(), earlier.access.lane());
        if now.access.is_read_only()
            && wrote
            && let Party::Lane(me) = party
        {
            let rank = &self.ranks[self.warps[me / 32].rank as usize];
            let before = rank.start[warp].has_any(1 << lane, earlier.epoch);
            return (!before).then_some(Rule::ReadOnly);
        }
        if writes && !wrote && earlier.access.is_read_only() {
            let reader = &self.warps[warp];
            let running = self.ranks[reader.rank as usize].running;
            return (running && earlier.epoch >= reader.entered).then_some(Rule::ReadOnly);
        }
        None
    }

    fn judge_after_bulk(
        &self,
        party: Party,
        (now, writes): (Event, bool),
        (earlier, wrote): (Event, bool),
        at: usize,
    ) -> Option<Rule> {
        let record = &self.records[(earlier.epoch - self.first) as usize];
        let ordered = |obs: &&Obs| self.ordered(party, obs.warp, obs.mask, obs.epoch);
        let mut known = record.observed.iter().filter(ordered).peekable();
        if known.peek().is_none() {
            return Some(Rule::BulkWait);
        }
        if wrote && !known.clone().any(|obs| obs.full) {
            return Some(Rule::FullWait);
        }
        let Party::Lane(me) = party else { return None };
        if !now.access.is_bulk() || at >= self.shared_from {
            return None;
        }
        // A warp's own copies need no fence between them; others' reach it through generic memory.
        let fenced =
            known.any(|obs| obs.warp == me / 32 || self.fenced(me, obs.warp, obs.mask, obs.epoch));
        let rule = if writes { Rule::CreditFence } else { Rule::LoadFence };
        (!fenced).then_some(rule)
    }

    /// The narrowest scope that holds a party and a warp (or actor).
    fn distance(&self, party: Party, warp: Idx) -> Scope {
        match party {
            Party::Lane(me) if warp < self.warps.len() => {
                let (mine, theirs) = (&self.warps[me / 32], &self.warps[warp]);
                if mine.block == theirs.block {
                    Scope::Cta
                } else if mine.rank == theirs.rank {
                    Scope::Gpu
                } else {
                    Scope::Sys
                }
            }
            _ => Scope::Sys,
        }
    }

    /// Whether what one of the lanes of `mask` of `warp` did at `epoch` happens before the party's
    /// next operation. `warp` may stand for an actor.
    #[inline(always)]
    pub(super) fn ordered(&self, party: Party, warp: Idx, mask: u32, epoch: u32) -> bool {
        match party {
            Party::Lane(me) => {
                let state = &self.warps[me / 32];
                let mine = &state.lanes[me % 32];
                // What an earlier block did in this place is not the block's own.
                if warp == me / 32 && epoch >= state.entered {
                    let (group, until) = mine.group;
                    if mask >> (me % 32) & 1 != 0
                        || epoch <= state.synced
                        || (mask & group != 0 && epoch <= until)
                    {
                        return true;
                    }
                }
                state.seen[warp].has_any(mask, epoch) || mine.seen.has_any(warp, mask, epoch)
            }
            Party::Actor(actor) => {
                warp == self.warps.len() + actor
                    || self.actors[actor].seen[warp].has_any(mask, epoch)
            }
        }
    }

    /// Whether a fence for the async proxy, on this side, stands between what one of the lanes of
    /// `mask` of `warp` did at `epoch` and the lane's next bulk copy.
    pub(super) fn fenced(&self, me: Idx, warp: Idx, mask: u32, epoch: u32) -> bool {
        let state = &self.warps[me / 32];
        state.fenced[warp].has_any(mask, epoch)
            || state.lanes[me % 32].fenced.has_any(warp, mask, epoch)
    }

    /// Whether `lane` of `warp` itself fenced its shared accesses of `epoch` (M3) before what the
    /// party has seen of it.
    pub(super) fn shared_fenced(&self, party: Party, warp: Idx, lane: u32, epoch: u32) -> bool {
        let log = &self.warps[warp].lanes[lane as usize].shared_fences;
        let next = log.partition_point(|fence| *fence < epoch);
        log.get(next).is_some_and(|fence| self.ordered(party, warp, 1 << lane, *fence))
    }
}

//! Broken rules in words, and accesses outside what a lane may reach.

use super::cells::Event;
use super::{Party, Race, Rule};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::lane::Idx;
use crate::machine::{Fault, Machine, Outcome};

impl Machine<'_> {
    /// The access stays inside one buffer, and that buffer is one the lane may reach.
    pub(super) fn check_reach(
        &mut self,
        lane: Idx,
        offset: usize,
        bytes: usize,
        writes: bool,
        pc: Pc,
    ) -> Outcome<()> {
        let Some(checker) = &self.checker else { return Ok(()) };
        let (shared_from, on) = (checker.shared_from, checker.rules.has(Rule::Bounds));
        let block = &self.blocks[self.block_of(lane)];
        let own = offset.wrapping_sub(block.shared);
        let why = if offset >= shared_from {
            let fits = own.saturating_add(bytes) <= block.view.shared_bytes as usize;
            if fits || !on {
                return Ok(());
            }
            "outside the block's shared memory"
        } else {
            match self.heap.region_of(offset, bytes) {
                Some(region) if region.local && region.rank != block.rank => {
                    "to another rank's local memory"
                }
                None => "outside every buffer",
                Some(_) => return Ok(()),
            }
        };
        if !on {
            return Ok(());
        }
        let word = if writes { "write" } else { "read" };
        let place = self.heap.describe(offset);
        let who = self.who(lane);
        let message = format!("{who}: a {word} of {bytes} bytes {why}: {place},");
        Err(Box::new(Fault::new(FailureKind::OutOfBounds, message, pc)))
    }

    /// Puts a broken rule into words.
    pub(super) fn race(&self, race: Race) -> Box<Fault> {
        let name = |event: Event, writes: bool| {
            let proxy = if event.access.is_bulk() { "bulk " } else { "" };
            let strong = if event.access.scope().is_some() { "strong " } else { "" };
            format!("{proxy}{strong}{}", if writes { "write" } else { "read" })
        };
        let place = match race.rule {
            Rule::MbarrierInit => "an mbarrier".to_owned(),
            _ => self.heap.describe(race.at),
        };
        let message =
            format!("{} of {place} by {}", name(race.now, race.writes), self.party(race.party));
        let mut fault = Fault::new(FailureKind::Race, message, race.pc);
        let earlier = format!(
            "after the {} by {}",
            name(race.earlier, race.wrote),
            self.event_party(race.earlier)
        );
        let checker = self.checker.as_ref();
        let earlier_pc = checker.map_or(0, |checker| checker.pc(race.earlier.pc));
        fault.explain = format!("{} [{}]", race.rule.explain(), race.rule.name());
        fault.more.push((earlier, earlier_pc));
        if let Some(missed) = checker.and_then(|checker| checker.missed)
            && matches!(race.rule, Rule::Warps | Rule::BulkWait | Rule::Lanes)
        {
            let scopes = format!(
                "note: an acquire of scope {:?} and a release of scope {:?} met where {:?} was \
                 needed; the release",
                missed.acquired, missed.released, missed.needed
            );
            fault.more.push((scopes.to_lowercase(), missed.release));
            fault.more.push(("and the acquire".to_owned(), missed.acquire));
        }
        Box::new(fault)
    }

    fn party(&self, party: Party) -> String {
        match party {
            Party::Lane(lane) => self.who(lane),
            Party::Actor(actor) => self.actor_name(actor),
        }
    }

    fn event_party(&self, event: Event) -> String {
        let warp = event.access.warp();
        if warp < self.warps.len() {
            self.who(warp * 32 + event.access.lane() as usize)
        } else {
            self.actor_name(warp - self.warps.len())
        }
    }

    fn actor_name(&self, actor: usize) -> String {
        self.actor_names.get(actor).cloned().unwrap_or_default()
    }
}

//! Broken rules in words, and accesses outside what a lane may reach.

use super::cells::Event;
use super::sync::Missed;
use super::{Checker, Party, Race, Rule};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::lane::Idx;
use crate::machine::{Fault, Machine, Outcome};

impl Missed {
    /// Why the release that was seen did not order.
    fn explain(&self) -> String {
        let Self { needed, released, looked, .. } = self;
        let text = match (self.acquires, self.fence) {
            (true, _) => format!(
                "an acquire of scope {looked:?} and a release of scope {released:?} met where \
                 {needed:?} was needed"
            ),
            _ if released < needed => {
                format!("a look met a release of scope {released:?} where {needed:?} was needed")
            }
            (false, Some(fence)) if fence < *needed => format!(
                "a relaxed look saw a release that orders the two, and the fence after it has scope \
                 {fence:?} where {needed:?} was needed"
            ),
            _ => {
                "a relaxed look saw a release that orders the two, and no acquire or fence followed"
                    .to_owned()
            }
        };
        text.to_lowercase()
    }
}

impl Checker {
    /// Whether the block of a lane's event is not the one that is there now.
    fn left(&self, event: Event) -> bool {
        let warp = event.access.warp();
        if event.access.is_bulk() {
            let rank = &self.ranks[self.warps[warp].rank as usize];
            return !rank.records.contains(&(event.epoch - self.first));
        }
        event.epoch < self.warps[warp].entered
    }

    /// The look of the party's block, its own lane first, at a release that would have ordered the
    /// two accesses of a race.
    fn missed_by(&self, race: &Race) -> Option<&Missed> {
        let Party::Lane(me) = race.party else { return None };
        if !matches!(race.rule, Rule::Warps | Rule::BulkWait | Rule::Lanes) {
            return None;
        }
        let (earlier, block) = (race.earlier, self.warps[me / 32].block);
        let orders = |missed: &&Missed| {
            let access = earlier.access;
            if access.is_bulk() {
                let record = &self.records[(earlier.epoch - self.first) as usize];
                record.observed.iter().any(|obs| missed.view[obs.warp].has_any(obs.mask, obs.epoch))
            } else {
                missed.view[access.warp()].has_any(1 << access.lane(), earlier.epoch)
            }
        };
        let own = &self.warps[me / 32].lanes;
        let others = self.warps.iter().filter(|warp| warp.block == block);
        let all = own[me % 32..=me % 32].iter().chain(own).chain(others.flat_map(|it| &it.lanes));
        all.flat_map(|lane| &lane.missed).find(orders)
    }
}

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
        let on = |checker: &Checker| checker.rules.has(Rule::Bounds);
        let Some(why) = self.out_of_reach(lane, offset, bytes) else { return Ok(()) };
        if !self.checker.as_ref().is_some_and(on) {
            return Ok(());
        }
        let word = if writes { "write" } else { "read" };
        let place = self.place(offset);
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
            _ => self.place(race.at),
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
        if let Some(missed) = checker.and_then(|checker| checker.missed_by(&race)) {
            fault.more.push((format!("note: {}; the release", missed.explain()), missed.release));
            let look = if missed.acquires { "and the acquire" } else { "and the look" };
            fault.more.push((look.to_owned(), missed.look));
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
        let (warp, lane) = (event.access.warp(), event.access.lane());
        if warp >= self.warps.len() {
            return self.actor_name(warp - self.warps.len());
        }
        let left = |checker: &Checker| checker.left(event);
        match self.checker.as_ref().is_some_and(left) {
            // Its place has another block now.
            true => {
                let rank = self.rank_of(warp * 32);
                let index = self.warps[warp].index;
                format!("rank {rank} warp {index} lane {lane} of a block that has left")
            }
            false => self.who(warp * 32 + lane as usize),
        }
    }

    fn actor_name(&self, actor: usize) -> String {
        self.actor_names.get(actor).cloned().unwrap_or_default()
    }
}

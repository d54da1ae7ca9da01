//! What the checker sees, and what it found in words.

use super::{Fault, Machine, Outcome};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::hb::{Checker, Event, Party, Race};
use crate::heap::Reach;
use crate::rules::Rule;
use crate::state::Idx;

impl Machine<'_> {
    /// Lets the checker see something, and fails if it found a rule broken.
    #[inline(always)]
    pub(crate) fn checked(&mut self, see: impl FnOnce(&mut Checker)) -> Outcome<()> {
        let Some(checker) = &mut self.checker else { return Ok(()) };
        see(checker);
        match checker.take_found() {
            None => Ok(()),
            Some(race) => Err(self.race(*race)),
        }
    }

    /// A plain access of the kernel, reported by the instrumentation.
    pub(crate) fn plain_access(
        &mut self,
        lane: Idx,
        at: usize,
        bytes: usize,
        writes: bool,
        pc: Pc,
    ) -> Outcome<()> {
        let offset = at.wrapping_sub(self.heap.base());
        self.lanes[lane].pc = pc;
        self.check_reach(lane, offset, bytes, writes, pc)?;
        self.note_loan(lane, offset, bytes);
        self.checked(|checker| checker.plain(lane, (offset, bytes), writes, pc))
    }

    /// A lane touches memory: where it is a tensor of another rank's call, that one's kernel has to last until then.
    pub(super) fn note_loan(&mut self, lane: Idx, offset: usize, bytes: usize) {
        let Some(checker) = &mut self.checker else { return };
        let toucher = self.blocks[self.warps[self.lanes[lane].warp].block].rank;
        let region = self.heap.region_of(offset, bytes);
        let Some(region) = region.filter(|it| it.reach == Reach::All && it.rank != toucher) else {
            return;
        };
        let stream = &self.streams[region.rank as usize];
        let call = stream.at.checked_sub(usize::from(!stream.running));
        let call = call.and_then(|at| stream.launches.get(at));
        if call.is_some_and(|it| self.heap.is_tensor(region, offset, &it.launch.tensors)) {
            checker.touched_by_other(region.rank, (offset, bytes));
        }
    }

    /// The access stays inside one buffer, and that buffer is one the lane may reach.
    pub(super) fn check_reach(
        &mut self,
        lane: Idx,
        offset: usize,
        bytes: usize,
        writes: bool,
        pc: Pc,
    ) -> Outcome<()> {
        let Some(why) = self.out_of_reach(lane, offset, bytes) else { return Ok(()) };
        if !self.checker.as_ref().is_some_and(Checker::holds_bounds) {
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
        fault.more.extend(checker.into_iter().flat_map(|checker| checker.explain_missed(&race)));
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
        let (names, ranks) = (&self.actor_names, self.streams.len());
        match actor.checked_sub(names.len()) {
            None => names[actor].clone(),
            Some(rank) if rank < ranks => {
                format!("the next work after the kernel of rank {rank}")
            }
            Some(other) => {
                format!("a kernel that runs at the same time as that of rank {}", other % ranks)
            }
        }
    }
}

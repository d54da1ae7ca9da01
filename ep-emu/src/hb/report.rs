//! What a report says beyond the two accesses.

use std::rc::Rc;

use super::cells::Event;
use super::clock::View;
use super::{Checker, Party, Race, Rule};
use crate::abi::{Pc, Scope};

/// A look at a released word that did not acquire the release, for reports.
#[derive(Clone, Debug)]
pub(super) struct Missed {
    pub(super) look: Pc,
    pub(super) release: Pc,
    /// The scope that both ends need.
    pub(super) needed: Scope,
    pub(super) released: Scope,
    pub(super) looked: Scope,
    pub(super) acquires: bool,
    /// The widest fence since.
    pub(super) fence: Option<Scope>,
    /// What the release would have ordered.
    pub(super) view: Rc<View>,
}

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
                format!("a load met a release of scope {released:?} where {needed:?} was needed")
            }
            (false, Some(fence)) if fence < *needed => format!(
                "a relaxed load saw a release that orders the two, and the fence after it has scope \
                {fence:?} where {needed:?} was needed"
            ),
            _ => {
                "a relaxed load saw a release that orders the two, and no acquire or fence followed"
                    .to_owned()
            }
        };
        text.to_lowercase()
    }
}

impl Checker {
    /// Whether the block of a lane's event is not the one that is there now.
    pub(crate) fn left(&self, event: Event) -> bool {
        let warp = event.access.warp();
        if event.access.is_bulk() {
            let rank = &self.ranks[self.warps[warp].rank as usize];
            return !rank.records.contains(&(event.epoch - self.first));
        }
        event.epoch < self.warps[warp].entered
    }

    /// Lines about the look that saw what would have ordered the two accesses of a race.
    pub(crate) fn explain_missed(&self, race: &Race) -> Vec<(String, Pc)> {
        let Some(missed) = self.missed_by(race) else { return Vec::new() };
        let look = if missed.acquires { "and the acquire" } else { "and the look" };
        vec![
            (format!("note: {}; the release", missed.explain()), missed.release),
            (look.to_owned(), missed.look),
        ]
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

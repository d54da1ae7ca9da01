//! The happens-before checker.
//!
//! Two accesses of which one writes must be ordered: by releases that were acquired with scopes
//! that hold both ends, by warp and block barriers, by mbarriers, by the launches of a rank. Bulk
//! copies run in a proxy of their own: what they did is known to who waited for them, and what
//! they touch must have been fenced for them (rules M1 to M4 of the device library).
//!
//! - [`clock`]: what a warp has seen of the others.
//! - [`cells`]: the last accesses of every four bytes.
//! - [`sync`]: what orders, by way of [`words`] among others.
//! - [`judge`]: what is wrong between two accesses.
//! - [`older`]: what a look that nothing orders may still find.
//! - [`report`]: what a report adds.
//!
//! Where it keeps less than everything (one read a cell, three lanes apart in a view), it can miss
//! a race in one run; it never reports one that is not there.

mod cells;
mod clock;
mod judge;
mod older;
mod report;
mod sync;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use crate::abi::{Pc, Qualifiers, Scope};
use crate::heap::Heap;
use crate::rules::{Rule, Rules};
use crate::state::Idx;

use cells::{Access, Conflict};
use clock::{Parts, Pool, View, join};
use older::OlderWords;
use report::Missed;
use sync::{Mbarrier, Prepared};
use words::Words;

pub(crate) use cells::{Cells, Event};

/// Bits of a place inside a library.
const PLACE_BITS: u32 = 24;

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    Lane(Idx),
    Actor(usize),
}

/// What a lane has beyond its warp.
#[derive(Debug, Default)]
struct LaneState {
    /// Whether it knows of the launches before its own.
    entered: bool,
    /// Views acquired since the warp last met.
    seen: Parts,
    /// Views at its last fence for the async proxy on global memory.
    fenced: Parts,
    /// What relaxed loads of each word read, by the scope that is needed to acquire it: for the next
    /// acquire of that word, or the next fence.
    looked: BTreeMap<usize, [Parts; 3]>,
    /// What its last fence prepared for relaxed stores.
    prepared: Option<Prepared>,
    /// What it released into each word, by scope: its own later stores there carry it on.
    released: BTreeMap<(usize, Scope), Rc<View>>,
    /// Its last looks at releases that it did not acquire, for reports.
    missed: VecDeque<Missed>,
    /// Epochs of its fences for the async proxy on shared memory.
    shared_fences: Vec<u32>,
    /// The last meeting of a part of the warp: its lanes and epoch.
    group: (u32, u32),
    /// The last word read, its version, and how.
    last_read: (usize, u32, u32),
    /// Its bulk groups that may still need a wait: number and record.
    groups: VecDeque<(u64, u32)>,
}

/// What a warp has seen.
#[derive(Debug)]
struct WarpState {
    rank: u32,
    block: Idx,
    epoch: u32,
    /// Lanes are ordered with each other up to this epoch.
    synced: u32,
    /// Epoch at which its block entered.
    entered: u32,
    seen: View,
    fenced: View,
    /// Lanes that have views of their own.
    dirty: u32,
    keep: Vec<Rc<View>>,
    lanes: [LaneState; 32],
}

/// A rank's launches.
#[derive(Debug)]
struct RankState {
    /// What was over when its launch began.
    start: Rc<View>,
    end: View,
    running: bool,
    /// Bulk records of the running launch.
    records: Vec<u32>,
    /// Memory of its caller that other ranks have touched since the last launch ended, as offset and length.
    touched_by_others: Vec<(usize, usize)>,
    /// What a kernel beside reads.
    told: Vec<ToldOf>,
}

/// Words by offset, and the memory of which they tell a kernel beside, as offset and length.
type ToldOf = (Range<usize>, Vec<(usize, usize)>);

/// An actor's clock.
#[derive(Debug)]
struct ActorState {
    seen: View,
    epoch: u32,
}

/// That a bulk copy has ended, as some lanes know it.
#[derive(Clone, Copy, Debug)]
struct Obs {
    warp: Idx,
    mask: u32,
    epoch: u32,
    /// To its end, or only its reads.
    full: bool,
}

impl Obs {
    fn new(lane: Idx, epoch: u32, full: bool) -> Self {
        Self { warp: lane / 32, mask: 1 << (lane % 32), epoch, full }
    }
}

/// Bulk copies that end together: a bulk group, or the loads of one phase of an mbarrier.
#[derive(Debug)]
struct Record {
    /// The lane that issued the first of them.
    lane: Idx,
    observed: Vec<Obs>,
}

impl Record {
    fn observe(&mut self, new: Obs) {
        let same =
            |old: &&mut Obs| (old.warp, old.epoch, old.full) == (new.warp, new.epoch, new.full);
        match self.observed.iter_mut().find(same) {
            Some(old) => old.mask |= new.mask,
            None => self.observed.push(new),
        }
    }
}

/// A broken rule, before it is put into words.
#[derive(Debug)]
pub(crate) struct Race {
    pub(crate) rule: Rule,
    pub(crate) at: usize,
    pub(crate) party: Party,
    pub(crate) now: Event,
    pub(crate) writes: bool,
    pub(crate) pc: Pc,
    pub(crate) earlier: Event,
    pub(crate) wrote: bool,
}

/// The checker's state.
pub(crate) struct Checker {
    base: usize,
    /// Offsets from here on are shared memory.
    shared_from: usize,
    rules: Rules,
    waived: Vec<(usize, usize, Rules)>,
    /// Always there but during an access, which reads the rest of the checker.
    cells: Option<Cells>,
    first: u32,
    pool: Pool,
    warps: Vec<WarpState>,
    ranks: Vec<RankState>,
    /// Those of the machine, and behind them for each rank its caller, a kernel that runs beside it and writes, and
    /// one that reads.
    actors: Vec<ActorState>,
    /// The first caller, and the first of such kernels.
    callers: usize,
    writers: usize,
    readers: usize,
    words: Words,
    /// None where they are not asked for, and once nobody will use the data any more.
    older: Option<OlderWords>,
    mbarriers: Vec<Mbarrier>,
    records: Vec<Record>,
    modules: Vec<usize>,
    found: Option<Box<Race>>,
}

/// What a checker is made for.
pub(crate) struct Setup {
    pub(crate) ranks: usize,
    pub(crate) warps: usize,
    pub(crate) actors: usize,
    /// Offset from which the arena is shared memory.
    pub(crate) shared_from: usize,
    pub(crate) rules: Rules,
    /// Where the kernel libraries lie.
    pub(crate) modules: Vec<usize>,
    pub(crate) cells: Cells,
    /// First epoch.
    pub(crate) first: u32,
    /// What decides over looks that may find older values; None: they find none.
    pub(crate) older_seed: Option<u64>,
}

impl Checker {
    /// A checker of a run.
    pub(crate) fn new(heap: &Heap, setup: Setup) -> Self {
        let [writers, readers, agents] = [1, 2, 3].map(|each| setup.actors + each * setup.ranks);
        let mut pool = Pool::new(setup.warps + agents);
        let warps = (0..setup.warps).map(|_| WarpState {
            rank: 0,
            block: 0,
            epoch: setup.first,
            synced: 0,
            entered: 0,
            seen: pool.empty(),
            fenced: pool.empty(),
            dirty: 0,
            keep: Vec::new(),
            lanes: Default::default(),
        });
        let warps = warps.collect();
        let mut rank = || RankState {
            start: Rc::new(pool.empty()),
            end: pool.empty(),
            running: false,
            records: Vec::new(),
            touched_by_others: Vec::new(),
            told: Vec::new(),
        };
        let ranks = (0..setup.ranks).map(|_| rank()).collect();
        let actor = |_| ActorState { seen: pool.empty(), epoch: setup.first };
        let actors = (0..agents).map(actor).collect();
        let parts = heap.parts().iter().map(|part| (part.from, part.bytes, part.waived));
        Self {
            base: heap.base(),
            shared_from: setup.shared_from,
            rules: setup.rules,
            waived: parts.filter(|(.., waived)| *waived != Rules::NONE).collect(),
            cells: Some(setup.cells),
            first: setup.first,
            pool,
            warps,
            ranks,
            actors,
            callers: setup.actors,
            writers,
            readers,
            words: Words::default(),
            older: setup.older_seed.map(OlderWords::new),
            mbarriers: Vec::new(),
            records: Vec::new(),
            modules: setup.modules,
            found: None,
        }
    }

    /// From here on nobody will use the data: a stopped team drains without waiting for its copies.
    /// Only accesses outside the buffers still matter.
    pub(crate) fn void_data(&mut self) {
        let bounds = self.rules.has(Rule::Bounds);
        self.rules = if bounds { Rules::NONE.with(Rule::Bounds) } else { Rules::NONE };
        self.older = None;
    }

    /// A broken rule, if one has been found.
    pub(crate) fn take_found(&mut self) -> Option<Box<Race>> {
        self.found.take()
    }

    /// Whether plain accesses have to stay inside the buffers.
    pub(crate) fn holds_bounds(&self) -> bool {
        self.rules.has(Rule::Bounds)
    }

    /// The cells, and the last epoch of the run.
    pub(crate) fn into_cells(self) -> Option<(Cells, u32)> {
        let epochs = self.warps.iter().map(|warp| warp.epoch);
        let epochs = epochs.chain(self.actors.iter().map(|actor| actor.epoch));
        let records = self.first + self.records.len() as u32;
        let last = epochs.max().unwrap_or(0).max(records);
        self.cells.map(|cells| (cells, last))
    }

    /// A place as cells keep it.
    fn place(&self, pc: Pc) -> u32 {
        let mut bases = self.modules.iter().enumerate();
        let found = bases.find(|(_, base)| pc.wrapping_sub(**base) >> PLACE_BITS == 0);
        found.map_or(u32::MAX, |(index, base)| (index as u32) << PLACE_BITS | (pc - base) as u32)
    }

    /// The place that cells kept.
    pub(crate) fn pc(&self, place: u32) -> Pc {
        let base = self.modules.get((place >> PLACE_BITS) as usize);
        base.map_or(0, |base| base + (place & ((1 << PLACE_BITS) - 1)) as usize)
    }

    /// Compares an access with those before it and keeps it; a broken rule is left in `found`.
    fn access(&mut self, party: Party, range: (usize, usize), now: Event, writes: bool, pc: Pc) {
        if self.found.is_some() {
            return;
        }
        let Some(mut cells) = self.cells.take() else { return };
        let this = &*self;
        let conflict = cells.visit(
            range,
            now,
            writes,
            |earlier, wrote| this.judge(party, (now, writes), (earlier, wrote), range.0),
            |earlier| this.follows(party, earlier),
        );
        self.cells = Some(cells);
        if let Some(Conflict { event, wrote, at, rule }) = conflict {
            let at = at.max(range.0);
            let race = Race { rule, at, party, now, writes, pc, earlier: event, wrote };
            self.found = Some(Box::new(race));
        }
    }

    fn event(&self, lane: Idx, pc: Pc) -> Event {
        let access = Access::new(lane / 32, (lane % 32) as u32);
        Event { access, epoch: self.warps[lane / 32].epoch, pc: self.place(pc) }
    }

    /// A plain access of the kernel.
    pub(crate) fn plain(&mut self, lane: Idx, range: (usize, usize), writes: bool, pc: Pc) {
        let event = self.event(lane, pc);
        self.access(Party::Lane(lane), range, event, writes, pc);
    }

    /// A load through the read-only path.
    pub(crate) fn read_only(&mut self, lane: Idx, at: usize, bytes: usize, pc: Pc) {
        let mut event = self.event(lane, pc);
        event.access = event.access.read_only();
        self.access(Party::Lane(lane), (at.wrapping_sub(self.base), bytes), event, false, pc);
    }

    fn strong(&mut self, lane: Idx, at: usize, bytes: u32, how: Qualifiers, writes: bool, pc: Pc) {
        let mut event = self.event(lane, pc);
        event.access = event.access.strong(how.scope(), bytes);
        self.access(Party::Lane(lane), (at, bytes as usize), event, writes, pc);
    }

    /// A strong load of a word that holds `now`. Gives what it held before, if the load finds that.
    pub(crate) fn strong_load(
        &mut self,
        lane: Idx,
        (at, bytes): (usize, u32),
        now: u64,
        how: Qualifiers,
        pc: Pc,
    ) -> Option<u64> {
        let at = at.wrapping_sub(self.base);
        self.strong(lane, at, bytes, how, false, pc);
        let older = self.older_value(lane, (at, bytes), now, how, pc);
        if older.is_none() {
            self.order_load(lane, at, how, pc);
        }
        older
    }

    /// A strong store; `values`: what the word held, and what it will hold.
    pub(crate) fn strong_store(
        &mut self,
        lane: Idx,
        (at, bytes): (usize, u32),
        values: (u64, u64),
        how: Qualifiers,
        pc: Pc,
    ) {
        let at = at.wrapping_sub(self.base);
        self.strong(lane, at, bytes, how, true, pc);
        self.keep_older(self.moment(lane), (at, bytes), values);
        self.order_store(lane, at, how, pc);
    }

    /// An atomic; `values` as of a store, None for a compare that failed.
    pub(crate) fn atomic(
        &mut self,
        lane: Idx,
        (at, bytes): (usize, u32),
        values: Option<(u64, u64)>,
        how: Qualifiers,
        pc: Pc,
    ) {
        let (at, writes) = (at.wrapping_sub(self.base), values.is_some());
        self.strong(lane, at, bytes, how, writes, pc);
        if let Some(values) = values {
            self.keep_older(self.moment(lane), (at, bytes), values);
        }
        self.order_atomic(lane, at, how, writes, pc);
    }

    /// A use of an mbarrier comes after its initialisation.
    fn check_mbarrier(&mut self, lane: Idx, id: u32, pc: Pc) {
        let (warp, initialiser, epoch, init_pc) = self.mbarriers[id as usize].init;
        let party = Party::Lane(lane);
        let known = self.ordered(party, warp, 1 << initialiser, epoch);
        if !known && self.rules.has(Rule::MbarrierInit) && self.found.is_none() {
            let access = Access::new(warp, initialiser);
            let earlier = Event { access, epoch, pc: self.place(init_pc) };
            let (rule, at) = (Rule::MbarrierInit, self.shared_from);
            let now = self.event(lane, pc);
            let race = Race { rule, at, party, now, writes: true, pc, earlier, wrote: true };
            self.found = Some(Box::new(race));
        }
    }

    /// `mbarrier.arrive`.
    pub(crate) fn mbarrier_arrive(&mut self, lane: Idx, id: u32, pc: Pc) {
        self.check_mbarrier(lane, id, pc);
        self.order_arrive(lane, id);
    }

    /// A test found a phase complete.
    pub(crate) fn mbarrier_seen(&mut self, lane: Idx, id: u32, pc: Pc) {
        self.check_mbarrier(lane, id, pc);
        self.order_seen(lane, id);
    }

    fn new_record(&mut self, lane: Idx) -> u32 {
        let index = self.records.len() as u32;
        self.records.push(Record { lane, observed: Vec::new() });
        let rank = self.warps[lane / 32].rank as usize;
        self.ranks[rank].records.push(index);
        index
    }

    fn bulk(&mut self, lane: Idx, record: u32, (to, from): (usize, usize), bytes: u32, pc: Pc) {
        let event = self.event(lane, pc);
        let access = event.access.bulk();
        let event = Event { access, epoch: self.first + record, ..event };
        let (party, bytes) = (Party::Lane(lane), bytes as usize);
        self.access(party, (from.wrapping_sub(self.base), bytes), event, false, pc);
        self.access(party, (to.wrapping_sub(self.base), bytes), event, true, pc);
    }

    /// A bulk load is issued.
    pub(crate) fn bulk_load(
        &mut self,
        lane: Idx,
        ends: (usize, usize),
        bytes: u32,
        id: u32,
        pc: Pc,
    ) {
        self.check_mbarrier(lane, id, pc);
        let record = match self.mbarriers[id as usize].record {
            Some(record) => record,
            None => {
                let record = self.new_record(lane);
                self.mbarriers[id as usize].record = Some(record);
                record
            }
        };
        self.bulk(lane, record, ends, bytes, pc);
    }

    /// A bulk store is issued, in the lane's group of this number.
    pub(crate) fn bulk_store(
        &mut self,
        lane: Idx,
        ends: (usize, usize),
        bytes: u32,
        group: u64,
        pc: Pc,
    ) {
        let newest = self.warps[lane / 32].lanes[lane % 32].groups.back().copied();
        let record = match newest {
            Some((number, record)) if number == group => record,
            _ => {
                let record = self.new_record(lane);
                self.warps[lane / 32].lanes[lane % 32].groups.push_back((group, record));
                record
            }
        };
        self.bulk(lane, record, ends, bytes, pc);
    }

    /// A lane is about to touch what the caller of another rank has lent to its kernel.
    pub(crate) fn touched_by_other(&mut self, owner: u32, (at, bytes): (usize, usize)) {
        let state = &mut self.ranks[owner as usize];
        if !state.running {
            let caller = self.callers + owner as usize;
            let epoch = self.actors[caller].epoch - 1;
            return self.actor_access(caller, epoch, (at, bytes), true);
        }
        let ranges = &mut state.touched_by_others;
        match ranges.last_mut() {
            Some(last) if at >= last.0 && at <= last.0 + last.1 => {
                last.1 = last.1.max(at + bytes - last.0);
            }
            _ => ranges.push((at, bytes)),
        }
    }

    /// The kernel of a rank is over, and its caller writes over what others have touched.
    fn caller_writes(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        let mut ranges = std::mem::take(&mut state.touched_by_others);
        ranges.sort_unstable();
        ranges.dedup();
        let caller = self.callers + rank;
        let agent = self.warps.len() + caller;
        join(&mut self.actors[caller].seen, &state.end);
        let epoch = self.actors[caller].epoch;
        self.actors[caller].epoch += 1;
        state.end[agent].add_all(epoch);
        for range in ranges {
            self.actor_access(caller, epoch, range, true);
        }
    }

    /// A kernel that runs beside that of `rank` reads memory, as offset and length, once words have told of it.
    pub(crate) fn told_beside(
        &mut self,
        rank: u32,
        words: (usize, usize),
        memory: Vec<(usize, usize)>,
    ) {
        self.ranks[rank as usize].told.push((words.0..words.0 + words.1, memory));
    }

    /// The kernel of a rank is over: one that runs beside it has seen all words that tell it of memory, nothing else of
    /// what the kernel did, and reads.
    fn beside_reads(&mut self, rank: usize) {
        let told = std::mem::take(&mut self.ranks[rank].told);
        let actor = self.readers + rank;
        for (words, memory) in &told {
            let mut view = self.pool.copy(&self.ranks[rank].start);
            let raised = self.words.words.iter().filter(|(at, _)| words.contains(at));
            raised.for_each(|(_, word)| word.told(&mut view, Scope::Gpu));
            self.actors[actor].seen = view;
            for range in memory {
                self.actor_access(actor, self.actors[actor].epoch, *range, false);
            }
        }
        // It has read before the caller launches another one.
        let agent = self.warps.len() + actor;
        self.ranks[rank].end[agent].add_all(self.actors[actor].epoch);
        self.actors[actor].epoch += 1;
        self.ranks[rank].told = told;
    }

    /// Whether an agent stands for the caller of a rank.
    fn is_caller(&self, agent: usize) -> bool {
        agent
            .checked_sub(self.warps.len())
            .is_some_and(|it| (self.callers..self.writers).contains(&it))
    }

    /// A kernel that runs beside that of `rank` writes memory, as offset and length, before it raises its words.
    pub(crate) fn written_beside(&mut self, rank: u32, range: (usize, usize)) {
        let actor = self.writers + rank as usize;
        self.actor_access(actor, self.actors[actor].epoch, range, true);
    }

    /// Begins an epoch of the kernel beside that of `rank`: words raised before publish nothing of that epoch.
    pub(crate) fn goes_on_beside(&mut self, rank: u32) {
        self.actors[self.writers + rank as usize].epoch += 1;
    }

    /// An actor reads or writes.
    pub(crate) fn actor_accesses(&mut self, actor: usize, at: usize, bytes: usize, writes: bool) {
        let range = (at.wrapping_sub(self.base), bytes);
        self.actor_access(actor, self.actors[actor].epoch, range, writes);
    }

    fn actor_access(&mut self, actor: usize, epoch: u32, range: (usize, usize), writes: bool) {
        let access = Access::new(self.warps.len() + actor, 0);
        let event = Event { access, epoch, pc: u32::MAX };
        self.access(Party::Actor(actor), range, event, writes, 0);
    }
}

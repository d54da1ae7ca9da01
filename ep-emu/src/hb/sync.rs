//! What orders: releases and acquires with their scopes, fences, meetings, barriers, launches.

use std::ops::Range;
use std::rc::Rc;

use super::clock::{Entry, Parts, Pool, View, join};
use super::older::Moment;
use super::report::Missed;
use super::words::{Owner, Released, Word, add};
use super::{Access, ActorState, Checker, Event, LaneState, Obs, Party, Rule, Rules, WarpState};
use crate::abi::{Pc, Qualifiers, Scope};
use crate::state::Idx;

/// The checker's part of an mbarrier.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Who initialised it: warp, lane, epoch, place.
    pub(super) init: (Idx, u32, u32, Pc),
    /// What arrivals of the phase in progress brought.
    pending: Option<Rc<View>>,
    /// What a lane that saw a phase complete may rely on.
    done: Option<Rc<View>>,
    /// The record of bulk loads of the phase in progress.
    pub(super) record: Option<u32>,
    /// Records of the last two completed phases.
    completed: [Option<u32>; 2],
}

/// What a release fence prepared for the lane's later relaxed stores.
#[derive(Debug)]
pub(super) struct Prepared {
    scope: Scope,
    view: Rc<View>,
}

/// Looks that a lane keeps for reports.
const MISSED: usize = 8;

impl Checker {
    /// All that happened before the lane's next operation, with its own epoch, which ends.
    fn snapshot(&mut self, lane: Idx) -> View {
        let (warp, bit) = (lane / 32, lane % 32);
        let state = &mut self.warps[warp];
        let mut view = self.pool.copy(&state.seen);
        state.lanes[bit].seen.join_into(&mut view);
        let own = &mut view[warp];
        own.add_all(state.synced);
        own.add_lane(bit as u32, state.epoch);
        let (mask, epoch) = state.lanes[bit].group;
        if epoch > state.synced {
            for member in (0..32).filter(|member| mask >> member & 1 != 0) {
                own.add_lane(member, epoch);
            }
        }
        state.epoch += 1;
        view
    }

    fn owner(&self, lane: Idx) -> Owner {
        let warp = &self.warps[lane / 32];
        Owner { rank: Some(warp.rank), block: Some(warp.block) }
    }

    /// A release of `lane` into the word at `at`; `keeps`: what earlier releases put there stays
    /// (an atomic continues their release sequence).
    fn release(&mut self, lane: Idx, at: usize, scope: Scope, keeps: bool, pc: Pc) {
        let view = Rc::new(self.snapshot(lane));
        let new = Released { scope, owner: self.owner(lane), view: Rc::clone(&view), pc };
        self.words.put(at, new, keeps, &mut self.pool);
        self.warps[lane / 32].lanes[lane % 32].released.insert((at, scope), view);
    }

    /// A relaxed write: publishes what an earlier fence of the lane prepared and what the lane itself
    /// released into this word, and otherwise ends the release sequence, unless it is an atomic.
    /// The scope that counts is that of the pattern's first operation; the write's own only decides who
    /// may read it.
    fn relaxed_write(&mut self, lane: Idx, at: usize, keeps: bool, pc: Pc) {
        let owner = self.owner(lane);
        if !keeps {
            self.words.clear(at, &mut self.pool);
        }
        let state = &self.warps[lane / 32].lanes[lane % 32];
        let prepared = state.prepared.iter().map(|prepared| (prepared.scope, &prepared.view));
        let own = state.released.range((at, Scope::Cta)..=(at, Scope::Sys));
        let own = own.map(|((_, released), view)| (*released, view));
        for (scope, view) in prepared.chain(own) {
            let new = Released { scope, owner, view: Rc::clone(view), pc };
            self.words.put(at, new, true, &mut self.pool);
        }
    }

    /// A read of the word at `at`: takes over what was released there, at once (`acquires`) or when
    /// the lane acquires the word or fences later.
    pub(super) fn order_load(&mut self, lane: Idx, at: usize, how: Qualifiers, pc: Pc) {
        self.take_looked(lane, at, how);
        let Some(word) = self.words.words.get(&at) else { return };
        let warp = &mut self.warps[lane / 32];
        let known = (at, word.version, how.0);
        if warp.lanes[lane % 32].last_read == known {
            return;
        }
        warp.lanes[lane % 32].last_read = known;
        let look = Look { lane: lane % 32, at, how, pc };
        look.take_over(warp, word, self.rules, &mut self.pool);
    }

    /// A read that finds what a word held before.
    pub(super) fn order_older(
        &mut self,
        lane: Idx,
        at: usize,
        word: &Word,
        how: Qualifiers,
        pc: Pc,
    ) {
        self.take_looked(lane, at, how);
        let look = Look { lane: lane % 32, at, how, pc };
        look.take_over(&mut self.warps[lane / 32], word, self.rules, &mut self.pool);
    }

    /// An acquire takes what relaxed looks of the lane at the word have found.
    fn take_looked(&mut self, lane: Idx, at: usize, how: Qualifiers) {
        let warp = &mut self.warps[lane / 32];
        let state = &mut warp.lanes[lane % 32];
        if how.acquires()
            && let Some(looked) = state.looked.get_mut(&at)
        {
            for parts in &mut looked[..=how.scope() as usize] {
                state.seen.take_all(parts, &mut self.pool);
                parts.clear(&mut self.pool);
            }
            warp.dirty |= 1 << (lane % 32);
        }
    }

    /// `st` with an order.
    pub(super) fn order_store(&mut self, lane: Idx, at: usize, how: Qualifiers, pc: Pc) {
        if how.releases() {
            self.release(lane, at, how.scope(), false, pc);
            return;
        }
        self.relaxed_write(lane, at, false, pc);
        let warp = &self.warps[lane / 32];
        if how.releases_entry() && warp.lanes[lane % 32].entered {
            let view = Rc::clone(&self.ranks[warp.rank as usize].start);
            let new = Released { scope: how.scope(), owner: self.owner(lane), view, pc };
            self.words.put(at, new, true, &mut self.pool);
        }
    }

    /// An atomic with an order; `writes` is false for a compare that failed.
    pub(super) fn order_atomic(
        &mut self,
        lane: Idx,
        at: usize,
        how: Qualifiers,
        writes: bool,
        pc: Pc,
    ) {
        self.order_load(lane, at, how, pc);
        if writes && how.releases() {
            self.release(lane, at, how.scope(), true, pc);
        } else if writes {
            self.relaxed_write(lane, at, true, pc);
        }
    }

    /// `fence.acq_rel`: earlier relaxed reads acquire, later relaxed writes release.
    pub(crate) fn fence(&mut self, lane: Idx, scope: Scope) {
        let warp = &mut self.warps[lane / 32];
        let state = &mut warp.lanes[lane % 32];
        for looked in state.looked.values_mut() {
            for parts in &mut looked[..=scope as usize] {
                state.seen.take_all(parts, &mut self.pool);
                parts.clear(&mut self.pool);
            }
        }
        if scope == Scope::Sys {
            state.looked.clear();
        }
        for missed in &mut state.missed {
            missed.fence = missed.fence.max(Some(scope));
        }
        warp.dirty |= 1 << (lane % 32);
        if let Some(older) = &mut self.older {
            older.clear();
        }
        let view = Rc::new(self.snapshot(lane));
        let state = &mut self.warps[lane / 32].lanes[lane % 32];
        if let Some(old) = state.prepared.replace(Prepared { scope, view }) {
            self.pool.give(old.view);
        }
    }

    /// `fence.proxy.async`: for global memory the lane's later bulk copies may rely on all that it
    /// has seen (M2, M4); for shared memory its own earlier accesses are done with (M3).
    pub(crate) fn fence_proxy(&mut self, lane: Idx, global: bool, shared: bool) {
        let bit = lane % 32;
        if shared {
            let warp = &mut self.warps[lane / 32];
            warp.lanes[bit].shared_fences.push(warp.epoch);
            warp.epoch += 1;
        }
        if global {
            let view = Rc::new(self.snapshot(lane));
            let warp = &mut self.warps[lane / 32];
            warp.lanes[bit].fenced.clear(&mut self.pool);
            warp.lanes[bit].fenced.take(&view, &mut self.pool);
            warp.dirty |= 1 << bit;
        }
    }

    /// `__syncwarp`: the lanes of `mask` see what each other has seen.
    pub(crate) fn warp_meets(&mut self, warp: Idx, mask: u32) {
        if mask == u32::MAX {
            self.fold_lanes(warp);
            let state = &mut self.warps[warp];
            state.synced = state.epoch;
            state.epoch += 1;
            return;
        }
        let state = &mut self.warps[warp];
        let members = || (0..32usize).filter(|lane| mask >> lane & 1 != 0);
        let (mut seen, mut fenced) = (Parts::default(), Parts::default());
        for lane in members() {
            seen.take_all(&state.lanes[lane].seen, &mut self.pool);
            fenced.take_all(&state.lanes[lane].fenced, &mut self.pool);
        }
        for lane in members() {
            let lane = &mut state.lanes[lane];
            lane.group = (mask, state.epoch);
            lane.seen.clone_from(&seen);
            lane.fenced.clone_from(&fenced);
        }
        state.epoch += 1;
        state.dirty |= mask;
    }

    /// What single lanes have seen becomes the warp's.
    fn fold_lanes(&mut self, warp: Idx) {
        let state = &mut self.warps[warp];
        let dirty = std::mem::take(&mut state.dirty);
        let mut joined: [*const View; 2] = [std::ptr::null(); 2];
        for lane in (0..32).filter(|lane| dirty >> lane & 1 != 0) {
            let lane = &mut state.lanes[lane];
            let both = [(&mut lane.seen, &mut state.seen), (&mut lane.fenced, &mut state.fenced)];
            for ((parts, total), last) in both.into_iter().zip(&mut joined) {
                for part in parts.drain() {
                    // Lanes of a warp mostly saw the very same view, one after another.
                    if !std::ptr::eq(*last, &*part) {
                        join(total, &part);
                        *last = &*part;
                        state.keep.push(part);
                    }
                }
            }
        }
        for part in state.keep.drain(..) {
            self.pool.give(part);
        }
    }

    /// A block barrier is complete: its warps see each other. (A warp that only arrived may have
    /// run on; taking its present state can hide a race, but never invents one.)
    pub(crate) fn barrier_completes(&mut self, warps: &[(Idx, u32)]) {
        let mut total = self.pool.empty();
        for (warp, _) in warps {
            self.fold_lanes(*warp);
            let state = &mut self.warps[*warp];
            join(&mut total, &state.seen);
            total[*warp].add_all(state.epoch);
            state.synced = state.epoch;
            state.epoch += 1;
        }
        for (warp, _) in warps {
            self.warps[*warp].seen.copy_from_slice(&total);
        }
        self.pool.give(Rc::new(total));
    }

    /// `mbarrier.init`.
    pub(crate) fn mbarrier_init(&mut self, lane: Idx, id: u32, pc: Pc) {
        let epoch = self.warps[lane / 32].epoch;
        let init = (lane / 32, (lane % 32) as u32, epoch, pc);
        let fresh =
            Mbarrier { init, pending: None, done: None, record: None, completed: [None; 2] };
        assert_eq!(id as usize, self.mbarriers.len(), "mbarriers are numbered in order");
        self.mbarriers.push(fresh);
    }

    /// `mbarrier.arrive`: a release at block scope into the phase in progress.
    pub(super) fn order_arrive(&mut self, lane: Idx, id: u32) {
        let view = Rc::new(self.snapshot(lane));
        match &mut self.mbarriers[id as usize].pending {
            Some(pending) => add(pending, &view, &mut self.pool),
            pending @ None => *pending = Some(view),
        }
    }

    /// The phase in progress is complete.
    pub(crate) fn mbarrier_completes(&mut self, id: u32) {
        let mbarrier = &mut self.mbarriers[id as usize];
        if let Some(pending) = mbarrier.pending.take() {
            match &mut mbarrier.done {
                Some(done) => add(done, &pending, &mut self.pool),
                done @ None => *done = Some(pending),
            }
        }
        mbarrier.completed = [mbarrier.record.take(), mbarrier.completed[0]];
    }

    /// A test found a phase complete: an acquire at block scope, and the end of its bulk loads.
    pub(super) fn order_seen(&mut self, lane: Idx, id: u32) {
        let mbarrier = &self.mbarriers[id as usize];
        let warp = &mut self.warps[lane / 32];
        let state = &mut warp.lanes[lane % 32];
        if let Some(done) = &mbarrier.done {
            state.seen.take(done, &mut self.pool);
            warp.dirty |= 1 << (lane % 32);
        }
        for record in mbarrier.completed.into_iter().flatten() {
            self.records[record as usize].observe(Obs::new(lane, warp.epoch, true));
        }
    }

    /// A bulk wait of `lane` covers its groups below `covered`.
    pub(crate) fn bulk_waited(&mut self, lane: Idx, covered: u64, read_only: bool) {
        let full = !(read_only && self.rules.has(Rule::FullWait));
        let warp = &mut self.warps[lane / 32];
        let epoch = warp.epoch;
        let state = &mut warp.lanes[lane % 32];
        for (number, record) in &state.groups {
            if *number < covered {
                self.records[*record as usize].observe(Obs::new(lane, epoch, full));
            }
        }
        while full && state.groups.front().is_some_and(|(number, _)| *number < covered) {
            state.groups.pop_front();
        }
    }

    /// A launch of `rank` starts: it sees all that the rank's earlier launches did.
    pub(crate) fn launch_starts(&mut self, rank: usize) {
        let rank = &mut self.ranks[rank];
        let start = Rc::new(self.pool.copy(&rank.end));
        self.pool.give(std::mem::replace(&mut rank.start, start));
        rank.records.clear();
        rank.running = true;
    }

    /// A launch of `rank` has ended, and every bulk copy of it.
    pub(crate) fn launch_ends(&mut self, rank: usize) {
        let ended = &mut self.ranks[rank];
        ended.running = false;
        for record in ended.records.drain(..) {
            let record = &mut self.records[record as usize];
            let warp = record.lane / 32;
            let epoch = self.warps[warp].epoch - 1;
            record.observe(Obs { warp, mask: u32::MAX, epoch, full: true });
        }
        self.beside_reads(rank);
        self.caller_writes(rank);
    }

    /// A block enters the slot `block` of `warps`; its shared memory is new. One of a launch that comes early knows
    /// nothing of those before it.
    pub(crate) fn block_enters(
        &mut self,
        (rank, block): (u32, Idx),
        warps: Range<Idx>,
        (shared, bytes): (usize, usize),
        comes_early: bool,
    ) {
        let start = &self.ranks[rank as usize].start;
        for warp in warps {
            let state = &mut self.warps[warp];
            for view in [&mut state.seen, &mut state.fenced] {
                if comes_early {
                    view.fill(Entry::default());
                } else {
                    view.copy_from_slice(start);
                }
            }
            (state.rank, state.block, state.dirty) = (rank, block, 0);
            state.epoch += 1;
            (state.synced, state.entered) = (state.epoch - 1, state.epoch);
            for lane in &mut state.lanes {
                *lane = LaneState { entered: !comes_early, ..Default::default() };
            }
        }
        if let Some(cells) = &mut self.cells {
            cells.clear(shared, bytes);
        }
    }

    /// `griddepcontrol.wait`: the lane knows what the launches before its own did.
    pub(crate) fn after_last_kernel(&mut self, lane: Idx) {
        let warp = &mut self.warps[lane / 32];
        let state = &mut warp.lanes[lane % 32];
        if std::mem::replace(&mut state.entered, true) {
            return;
        }
        let start = &self.ranks[warp.rank as usize].start;
        state.seen.take(start, &mut self.pool);
        state.fenced.take(start, &mut self.pool);
        warp.dirty |= 1 << (lane % 32);
    }

    /// The block of `warps` has left the kernel.
    pub(crate) fn block_ends(&mut self, rank: u32, warps: Range<Idx>) {
        for warp in warps {
            self.fold_lanes(warp);
            let state = &mut self.warps[warp];
            let end = &mut self.ranks[rank as usize].end;
            join(end, &state.seen);
            end[warp].add_all(state.epoch);
            state.epoch += 1;
        }
    }

    /// A kernel that runs beside that of `rank` has raised the word at an offset, behind all that it has written.
    pub(crate) fn raised_beside(&mut self, rank: u32, at: usize) {
        let owner = Owner { rank: Some(rank), block: None };
        self.actor_tells(self.writers + rank as usize, at, (Scope::Gpu, owner));
    }

    /// A word takes what an actor has seen and done.
    fn actor_tells(&mut self, actor: usize, at: usize, (scope, owner): (Scope, Owner)) {
        let ActorState { seen, epoch } = &self.actors[actor];
        let mut view = self.pool.copy(seen);
        view[self.warps.len() + actor].add_all(*epoch);
        let new = Released { scope, owner, view: Rc::new(view), pc: 0 };
        self.words.put(at, new, true, &mut self.pool);
    }

    /// An actor reads a word that lanes release at system scope.
    pub(crate) fn actor_acquires(&mut self, actor: usize, at: usize) {
        let Some(word) = self.words.words.get(&at.wrapping_sub(self.base)) else { return };
        word.told(&mut self.actors[actor].seen, Scope::Sys);
    }

    /// An actor writes a word that lanes acquire.
    pub(crate) fn actor_releases(
        &mut self,
        actor: usize,
        (at, bytes): (usize, u32),
        values: (u64, u64),
    ) {
        let (at, warp) = (at.wrapping_sub(self.base), self.warps.len() + actor);
        let epoch = self.actors[actor].epoch;
        let access = Access::new(warp, 0).strong(Scope::Sys, bytes);
        let event = Event { access, epoch, pc: u32::MAX };
        self.access(Party::Actor(actor), (at, bytes as usize), event, true, 0);
        self.keep_older(Moment { warp, mask: 1, epoch }, (at, bytes), values);
        self.actor_tells(actor, at, (Scope::Sys, Owner { rank: None, block: None }));
        self.actors[actor].epoch += 1;
    }
}

/// A read of a word by a lane of a warp.
struct Look {
    lane: usize,
    at: usize,
    how: Qualifiers,
    pc: Pc,
}

impl Look {
    /// Takes over what has been released into the word.
    fn take_over(&self, warp: &mut WarpState, word: &Word, rules: Rules, pool: &mut Pool) {
        let state = &mut warp.lanes[self.lane];
        for released in &word.released {
            let needed = released.owner.distance(warp.rank, warp.block);
            let (looked, acquires) = (self.how.scope(), self.how.acquires());
            // The scope of a relaxed look only decides whose words it may read.
            let narrow = released.scope < needed || (acquires && looked < needed);
            let narrow = narrow && rules.has(Rule::Scopes);
            if acquires && !narrow {
                state.seen.take(&released.view, pool);
                continue;
            }
            if !narrow {
                let looked = state.looked.entry(self.at).or_default();
                looked[needed as usize].take(&released.view, pool);
            }
            state.missed.truncate(MISSED - 1);
            state.missed.push_front(Missed {
                look: self.pc,
                release: released.pc,
                needed,
                released: released.scope,
                looked,
                acquires,
                fence: None,
                view: Rc::clone(&released.view),
            });
        }
        warp.dirty |= 1 << self.lane;
    }
}

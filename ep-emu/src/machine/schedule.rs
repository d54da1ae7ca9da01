//! Who runs next: the seeded choice, its policies, and what happens when nothing can run.

use std::thread;
use std::time::{Duration, Instant};

use super::{Fault, Machine};
use crate::failure::FailureKind;
use crate::state::Idx;
use crate::state::lane::State;
use crate::state::schedule::{Policy, Turn, Victims};

/// Virtual time of one step, and of finding nothing to run.
const STEP_NS: u64 = 10;
const IDLE_NS: u64 = 100_000;
/// Virtual time that makes every bounded wait expire.
const EXPIRY_NS: u64 = 1 << 42;
/// How often a lane may look after that, at all words of its loop, without parking again: waits look at the clock only
/// every so many turns.
const EXPIRY_LOOKS: u32 = 300;
/// Loads that a lane of a stopped rank may do without parking: enough for many waits to see the word.
const STOP_LOADS: u32 = 4096;
/// Where waits may run out, as much of the longest one passes at once, so that whoever waits looks several
/// times meanwhile; and how often at most in a run.
const WAIT_PARTS: u64 = 4;
const MOST_PARTS: u32 = 256;
/// Fruitless rounds of waking everybody before it is a deadlock.
const FRUITLESS_ROUNDS: u32 = 6;
/// In this one of them a warp of each loop may look so often: it may be one that ends.
const PATIENT_ROUND: u32 = 4;
const PATIENT_LOOKS: u32 = 1024;
/// How long a run that waits for the outside stays busy, and how long its pauses are then.
const BUSY_WAIT: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(20);
/// A turn lasts this many steps, doubled up to so many times.
const TURN_STEPS: (u64, usize) = (64, 12);
/// Chance in 1024 that the running warp drops to the lowest priority.
const DROPS: u32 = 2;

impl Machine<'_> {
    /// The next lane, or none when the run is over.
    pub(crate) fn pick(&mut self, stay: Option<Idx>) -> Option<Idx> {
        loop {
            if self.failure.is_some() || self.refill || self.stuck {
                return None;
            }
            self.stats.steps += 1;
            self.clock_ns += STEP_NS;
            if self.stats.steps > self.schedule.max_steps {
                self.fail_livelock();
                return None;
            }
            self.apply_timed_faults();
            if self.schedule.rng.chance(self.schedule.bulk) {
                self.engine_step(false);
            }
            if let Some(warp) = self.pick_warp(stay) {
                return Some(self.pick_lane(warp));
            }
            if self.live == 0 && !self.streams_left() && !self.carries_on() {
                return None;
            }
            if !self.engine_step(true) {
                self.idle();
            }
        }
    }

    fn pick_warp(&mut self, stay: Option<Idx>) -> Option<Idx> {
        if let Some(warp) = stay
            && self.warps[warp].ready != 0
            && !self.warps[warp].frozen
            && self.schedule.rng.chance(self.schedule.stay)
        {
            return Some(warp);
        }
        if self.schedule.ready.is_empty() {
            return None;
        }
        let faults = self.schedule.faults();
        if faults.dead_rank.is_none() && faults.slow_ranks.is_empty() {
            return self.pick_by_policy();
        }
        for _ in 0..64 {
            let warp = self.pick_by_policy()?;
            let rank = self.blocks[self.warps[warp].block].rank;
            let slow = self.schedule.faults().slow_ranks.contains(&rank);
            let skip = slow && !self.schedule.rng.chance(16);
            if !self.warps[warp].frozen && !skip {
                return Some(warp);
            }
        }
        self.schedule.ready.iter().copied().find(|warp| !self.warps[*warp].frozen)
    }

    fn pick_by_policy(&mut self) -> Option<Idx> {
        if self.stats.steps >= self.schedule.turn_ends {
            self.next_turn();
        }
        let count = self.schedule.ready.len();
        match self.schedule.turn {
            Turn::Uniform => Some(self.schedule.ready[self.schedule.rng.below(count)]),
            Turn::Priorities { salt } => {
                if self.schedule.rng.chance(DROPS) {
                    self.schedule.dropped = self.current.map(|lane| self.lanes[lane].warp);
                }
                let dropped = self.schedule.dropped;
                let priority = |warp: &&Idx| {
                    let mixed = (**warp as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    if Some(**warp) == dropped { 0 } else { mixed | 1 }
                };
                self.schedule.ready.iter().max_by_key(priority).copied()
            }
            Turn::Starve(victims) => {
                for _ in 0..8 {
                    let warp = self.schedule.ready[self.schedule.rng.below(count)];
                    if !self.is_starved(victims, warp) {
                        return Some(warp);
                    }
                }
                let mut ready = self.schedule.ready.iter();
                match ready.find(|warp| !self.is_starved(victims, **warp)) {
                    Some(fed) => Some(*fed),
                    // Copies under way may free others, who come before the victims.
                    None if self.engine.is_busy() => None,
                    None => Some(self.schedule.ready[self.schedule.rng.below(count)]),
                }
            }
        }
    }

    /// Draws what the policy does next.
    fn next_turn(&mut self) {
        let warps = self.warps.len();
        let schedule = &mut self.schedule;
        let rng = &mut schedule.rng;
        let drawn =
            [Policy::Uniform, Policy::Priorities, Policy::Starve, Policy::Starve][rng.below(4)];
        let policy = if schedule.policy == Policy::Mixed { drawn } else { schedule.policy };
        schedule.turn = match policy {
            Policy::Mixed | Policy::Uniform => Turn::Uniform,
            Policy::Priorities => Turn::Priorities { salt: rng.bits() },
            Policy::Starve => {
                let warp = rng.below(warps);
                let block = self.warps[warp].block;
                Turn::Starve(match rng.below(4) {
                    0 => Victims::Rank(self.blocks[block].rank),
                    1 => Victims::Block(block),
                    2 => Victims::Warp(warp),
                    _ => Victims::Parity(self.blocks[block].view.index[0] % 2),
                })
            }
        };
        let (least, doublings) = TURN_STEPS;
        schedule.turn_ends = self.stats.steps + (least << rng.below(doublings));
    }

    fn is_starved(&self, victims: Victims, warp: Idx) -> bool {
        let block = self.warps[warp].block;
        match victims {
            Victims::Rank(rank) => self.blocks[block].rank == rank,
            Victims::Block(victim) => block == victim,
            Victims::Warp(victim) => warp == victim,
            Victims::Parity(parity) => self.blocks[block].view.index[0] % 2 == parity,
        }
    }

    fn pick_lane(&mut self, warp: Idx) -> Idx {
        let ready = self.warps[warp].ready;
        let lane = match self.schedule.lane_order {
            0 => ready.trailing_zeros(),
            1 => 31 - ready.leading_zeros(),
            _ => {
                let turn = self.schedule.rng.below(32) as u32;
                (ready.rotate_right(turn).trailing_zeros() + turn) % 32
            }
        };
        let lane = self.first_lane(warp) + lane as usize;
        self.take_ready(lane);
        self.stats.schedule =
            (self.stats.schedule ^ lane as u64).wrapping_mul(0x0000_0100_0000_01b3);
        lane
    }

    /// Steps since the world's first run.
    pub(crate) fn steps(&self) -> u64 {
        self.steps_before + self.stats.steps
    }

    fn apply_timed_faults(&mut self) {
        let steps = self.steps();
        let faults = &self.schedule.faults;
        let (dead, stopped) = (faults.dead_rank, faults.stopped_rank);
        let late = faults.late_rank.is_some_and(|(_, step)| step == steps);
        if let Some((rank, step)) = dead
            && steps == step
        {
            self.kill(rank);
        }
        if let Some((rank, step)) = stopped
            && steps >= step
            && !self.schedule.stopped
        {
            self.raise_stop_word(rank);
        }
        self.refill |= late;
    }

    fn kill(&mut self, rank: u32) {
        for block in 0..self.blocks.len() {
            if self.blocks[block].rank == rank {
                self.live -= u64::from(self.blocks[block].live);
                for warp in self.blocks[block].warps() {
                    self.warps[warp].frozen = true;
                }
            }
        }
    }

    /// Its lanes see the word at their next look at it; what they leave undone is nobody's data.
    fn raise_stop_word(&mut self, rank: u32) {
        self.schedule.stopped = true;
        let Some(at) = self.stop_words.get(rank as usize).copied().flatten() else { return };
        // SAFETY: `World::set_stop_word` took a word inside a buffer.
        unsafe { crate::memory::write(at, 1, 4) };
        self.touch(at, 4);
        // Waits look at it only every so many turns, so for a while none of them parks.
        for lane in 0..self.lanes.len() {
            if self.rank_of(lane) == rank {
                let expiry = EXPIRY_LOOKS * self.lanes[lane].polling.words();
                if self.lanes[lane].state == State::Poll {
                    self.unpark(lane);
                }
                self.lanes[lane].polling.grace = STOP_LOADS.max(expiry);
            }
        }
        if let Some(checker) = &mut self.checker {
            checker.void_data();
        }
    }

    /// Nothing can run by itself: time passes, and every polling lane looks again. Loops over many
    /// words, and words that plain stores change, are found only this way.
    fn idle(&mut self) {
        self.stats.idle += 1;
        if self.progress != self.schedule.progress {
            (self.schedule.progress, self.schedule.rounds) = (self.progress, 0);
            self.idle_since = None;
        }
        if self.waits_for_actors() || (!self.schedule.expired && self.waits_for_outside()) {
            return;
        }
        self.clock_ns += IDLE_NS;
        self.schedule.rounds += 1;
        if self.schedule.rounds <= FRUITLESS_ROUNDS {
            if self.schedule.expired {
                self.clock_ns += EXPIRY_NS;
                self.wake_all(EXPIRY_LOOKS);
            } else if self.late_rank_is_out() && self.longest_wait_ns.is_none() {
                self.let_late_rank_in();
            } else if self.schedule.rounds == PATIENT_ROUND {
                self.wake_one_of_each_loop(PATIENT_LOOKS);
            } else if self.wake_all(0) == 0 {
                self.schedule.rounds = FRUITLESS_ROUNDS;
            }
        } else if self.schedule.expired {
            self.stuck = true;
        } else if let Some(ns) = self.longest_wait_ns.filter(|_| self.ran_out < MOST_PARTS) {
            (self.ran_out, self.schedule.rounds) = (self.ran_out + 1, 0);
            self.clock_ns += ns / WAIT_PARTS + 1;
            self.wake_all(EXPIRY_LOOKS);
            // Whoever waits for it has looked once, and so much time has passed since.
            if self.late_rank_is_out() && u64::from(self.ran_out) == WAIT_PARTS + 1 {
                self.let_late_rank_in();
            }
        } else {
            // The report is made from what the lanes do now; then the waits are allowed to expire,
            // as they would on a device: the kernel writes its own records and drains.
            self.note_deadlock();
            (self.schedule.expired, self.schedule.rounds) = (true, 0);
            if let Some(checker) = &mut self.checker {
                checker.void_data();
            }
        }
    }

    fn let_late_rank_in(&mut self) {
        (self.schedule.faults.late_rank, self.refill) = (None, true);
    }

    /// Moves the clock to when an actor has something to do again.
    fn waits_for_actors(&mut self) -> bool {
        let due = self.actors.iter().filter_map(|actor| actor.due_ns()).min();
        due.filter(|due| *due > self.clock_ns).map(|due| self.clock_ns = due).is_some()
    }

    /// Whether actors still carry what ranks of other processes wait for, when no lane is left.
    fn carries_on(&mut self) -> bool {
        !self.outside.is_empty()
            && ((0..self.actors.len()).any(|actor| self.actor_step(actor))
                || self.waits_for_actors())
    }

    /// Lets real time pass, and all look again, if something can still come from outside.
    fn waits_for_outside(&mut self) -> bool {
        let begun = Instant::now();
        let idle = begun.duration_since(*self.idle_since.get_or_insert(begun));
        if !self.outside.iter().any(|may_come| may_come(idle)) {
            return false;
        }
        match idle < BUSY_WAIT {
            true => thread::yield_now(),
            false => thread::sleep(PAUSE),
        }
        self.clock_ns += u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
        self.wake_all(0);
        true
    }

    fn fail_livelock(&mut self) {
        let pc = self.current.map_or(0, |lane| self.lanes[lane].pc);
        let steps = self.stats.steps - 1;
        let message = format!("lanes ran for {steps} steps without ending, the last one");
        self.fail(Fault::new(FailureKind::Livelock, message, pc));
    }

    /// Lanes that wait, for reports: index and state.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Idx, State)> + '_ {
        let lanes = self.lanes.iter().enumerate().map(|(index, lane)| (index, lane.state));
        lanes.filter(|(_, state)| !matches!(state, State::Done))
    }
}

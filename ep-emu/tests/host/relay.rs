//! Rows through a ring: bulk copies, credits, several launches, faults.

use std::sync::Arc;
use std::time::Duration;

use ep_emu::{Address, Build, Failure, Kernel, Launch, Program, Rules, RunStats, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source, words};

pub(crate) const ROW_WORDS: usize = 64;
const DEPTH: usize = 4;

/// The buffers of one rank.
struct Rank {
    input: Address,
    output: Address,
    slots: Address,
    tail: Address,
    head: Address,
}

/// A ring of ranks that relay rows.
pub(crate) struct Relay {
    pub(crate) world: World,
    program: Arc<Program>,
    ranks: Vec<Rank>,
    rows: usize,
}

impl Relay {
    pub(crate) fn new(spec: Spec, rows: usize, build: Build, edits: &[(&str, &str)]) -> Self {
        let program = compile(&source("relay.cu", edits), build);
        let count = spec.ranks;
        let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        let mut ranks = Vec::new();
        for rank in 0..count {
            let mut buffer = |bytes, name: &str| alloc(&mut world, rank, bytes, name);
            ranks.push(Rank {
                input: buffer(rows * ROW_WORDS * 4, "input"),
                output: buffer(rows * ROW_WORDS * 4, "output"),
                slots: buffer(DEPTH * ROW_WORDS * 4, "slots"),
                tail: buffer(4, "tail"),
                head: buffer(4, "head"),
            });
        }
        for (rank, buffers) in ranks.iter().enumerate() {
            let input = world.bytes_mut(buffers.input, rows * ROW_WORDS * 4).expect("a buffer");
            for (index, word) in input.chunks_exact_mut(4).enumerate() {
                word.copy_from_slice(&((rank << 24 | index) as u32).to_le_bytes());
            }
        }
        Self { world, program, ranks, rows }
    }

    fn kernel(&self) -> Kernel {
        self.program.kernel("relay").expect("the kernel")
    }

    /// The `call`-th launch of every rank.
    fn call(&self, call: usize) -> Vec<Launch> {
        let count = self.ranks.len();
        let launch_of = |rank: usize| {
            let (here, next) = (&self.ranks[rank], &self.ranks[(rank + 1) % count]);
            let before = &self.ranks[(rank + count - 1) % count];
            let mut launch = launch(&self.program, "relay", 2, 64);
            launch.kernel = self.kernel();
            launch.shared_bytes = 1024;
            launch.args = bytes(&[
                here.input.0,
                here.output.0,
                next.slots.0,
                here.slots.0,
                next.tail.0,
                here.tail.0,
                before.head.0,
                here.head.0,
                (call * self.rows) as u64 | (self.rows as u64) << 32,
            ]);
            launch
        };
        (0..count).map(launch_of).collect()
    }

    pub(crate) fn lists(&self, calls: usize) -> Vec<Vec<Launch>> {
        let all: Vec<Vec<Launch>> = (0..calls).map(|call| self.call(call)).collect();
        (0..self.ranks.len())
            .map(|rank| all.iter().map(|call| call[rank].clone()).collect())
            .collect()
    }

    pub(crate) fn run(&mut self, calls: usize) -> Result<RunStats, Failure> {
        let lists = self.lists(calls);
        self.world.run(lists)
    }

    pub(crate) fn run_isolated(&mut self, calls: usize) -> Result<RunStats, Failure> {
        let lists = self.lists(calls);
        self.world.run_isolated(lists, Duration::from_secs(60))
    }

    /// Waives policies in the slots of every rank, or in its output.
    pub(crate) fn waive(&mut self, rules: Rules, in_slots: bool) {
        for rank in &self.ranks {
            let at = if in_slots { rank.slots } else { rank.output };
            self.world.name_part(at, DEPTH * ROW_WORDS * 4, "ring", rules);
        }
    }

    /// Rows that are not what the rank before sent.
    pub(crate) fn wrong_rows(&self) -> usize {
        let count = self.ranks.len();
        let row_is_wrong = |rank: usize, row: usize| {
            let before = (rank + count - 1) % count;
            let output = words(&self.world, self.ranks[rank].output, self.rows * ROW_WORDS);
            let index = row * ROW_WORDS;
            (index..index + ROW_WORDS).any(|at| output[at] != (before << 24 | at) as u32 + 1)
        };
        let all = (0..count).flat_map(|rank| (0..self.rows).map(move |row| (rank, row)));
        all.filter(|(rank, row)| row_is_wrong(*rank, *row)).count()
    }
}

fn spec(ranks: u32, seed: u64) -> Spec {
    Spec { ranks, seed, ..Spec::default() }
}

#[test]
fn rows_arrive_in_every_schedule() {
    let mut relay = Relay::new(spec(3, 1), 11, Build::Plain, &[]);
    let mut schedules = std::collections::HashSet::new();
    for (call, seed) in (1..100).enumerate() {
        relay.world.set_spec(spec(3, seed));
        let launches = relay.call(call).into_iter().map(|launch| vec![launch]).collect();
        let stats = relay.world.run(launches).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(relay.wrong_rows(), 0, "seed {seed}");
        schedules.insert(stats.schedule);
    }
    assert_eq!(schedules.len(), 99, "every seed is another schedule");
}

#[test]
fn ranks_run_ahead_through_several_launches() {
    for seed in 1..30 {
        let mut relay = Relay::new(spec(4, seed), 7, Build::Plain, &[]);
        relay.run(5).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(relay.wrong_rows(), 0, "seed {seed}");
    }
}

#[test]
fn a_seed_replays_in_every_build_and_process() {
    for seed in [3, 4, 5] {
        let run = |build, isolated| {
            // Those are shown by checked runs alone.
            let spec = Spec { shows_older: false, ..spec(2, seed) };
            let mut relay = Relay::new(spec, 9, build, &[]);
            let result = if isolated { relay.run_isolated(2) } else { relay.run(2) };
            assert_eq!(relay.wrong_rows(), 0);
            result.unwrap_or_else(|failure| panic!("{failure}"))
        };
        let fast = run(Build::Plain, false);
        assert_eq!(fast, run(Build::Plain, true));
        assert_eq!(fast, run(Build::Checked, false));
        assert_eq!(fast, run(Build::Sanitized, true));
    }
}

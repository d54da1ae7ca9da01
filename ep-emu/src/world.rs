//! A world: the memory of some ranks, and runs of kernels in it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::actor::{Actor, Outside};
use crate::calls::{self, TABLE};
use crate::failure::{Failure, FailureKind, RunStats};
use crate::fiber::{self, SANITIZED_STACK_BYTES, STACK_BYTES, Stacks};
use crate::hb::{Cells, Checker, Setup};
use crate::heap::{ALIGNMENT, ARENA_BYTES, Address, Heap, LaunchTensor, Part, Reach};
use crate::machine::Machine;
use crate::os::{self, PAGE};
use crate::program::Build;
use crate::rules::Rules;
use crate::state::Idx;
use crate::state::bulk::Engine;
use crate::state::lane::{Block, Lane, Warp};
use crate::state::parking::Parking;
use crate::state::schedule::{Faults, Policy, Schedule};
use crate::state::stream::{Launch, Prepared, Stream};
use crate::symbols::Symbols;
use crate::{message, run, worker};

/// Zeros for [`World::alloc_in`], which other processes can hold as well.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    os::memory_file((bytes as usize).next_multiple_of(PAGE))
}

/// Kernel libraries and the table are of the whole process: one world runs at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// How long a sanitized run may take.
const SANITIZED_LIMIT: Duration = Duration::from_secs(600);

/// What a world is made of and how it runs.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Ranks.
    pub ranks: u32,
    /// Decides every choice of the scheduler.
    pub seed: u64,
    /// How it chooses.
    pub policy: Policy,
    /// Blocks of a rank that are resident at once (its multiprocessors).
    pub max_resident_blocks: u32,
    /// Phases that a rank may be ahead of the slowest one.
    pub max_ahead: u64,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// Steps after which a run is a livelock.
    pub max_steps: u64,
    /// Most dynamic shared memory of a block.
    pub max_shared_bytes: u32,
    /// What a checked run holds against the memory model.
    pub rules: Rules,
    /// Whether looks of a checked run may find what a word held before, where the memory model allows it.
    pub shows_older: bool,
    /// Waits run out after so many ns, as kernels expect: time passes where nothing else can happen. None: that
    /// nothing can happen is a deadlock.
    pub longest_wait_ns: Option<u64>,
    /// The mutation that holds in woven texts; 0: none; or [`REACHING`](crate::mutation::REACHING).
    pub mutation: u32,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            ranks: 1,
            seed: 1,
            policy: Policy::Mixed,
            max_resident_blocks: 132,
            max_ahead: 2,
            faults: Faults::default(),
            max_steps: 2_000_000_000,
            max_shared_bytes: 227 << 10,
            rules: Rules::ALL,
            shows_older: true,
            longest_wait_ns: None,
            mutation: 0,
        }
    }
}

/// A kernel that runs beside those of its rank, on another stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The rank.
    pub rank: u32,
    /// What it does, in order.
    pub steps: Vec<Raising>,
    /// What it reads behind words that the rank's kernels raise.
    pub told: Vec<Told>,
}

/// Words that a kernel of the caller raises, and what it writes before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raising {
    /// What it writes: first byte and length.
    pub written: Vec<(Address, usize)>,
    /// The words, at the scope of its device.
    pub raised: Vec<Address>,
}

/// Memory that a kernel reads when words have told it that all of that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The words: first byte and length.
    pub words: (Address, usize),
    /// The memory.
    pub memory: Vec<(Address, usize)>,
}

/// The memory of some ranks, kept from run to run.
pub struct World {
    spec: Spec,
    heap: Heap,
    stacks: Option<Stacks>,
    actors: Vec<Box<dyn Actor>>,
    beside: Vec<Beside>,
    outside: Vec<Outside>,
    /// What checked runs keep: their cells and the last epoch.
    cells: Option<(Cells, u32)>,
    /// Where each rank's stop word is.
    stop_words: Vec<Option<usize>>,
    /// Steps of all runs that ended well.
    steps: u64,
    /// Whether a run has used memory behind the last buffer, as the shared memory of its blocks.
    has_run: bool,
}

fn refuse(message: String) -> Failure {
    Failure::new(FailureKind::Launch, message)
}

impl World {
    /// An empty world.
    pub fn new(spec: Spec) -> Result<Self, Failure> {
        if !fiber::SUPPORTED {
            let message = "the host backend runs only on Linux (x86_64, aarch64)".to_owned();
            return Err(refuse(message));
        }
        let heap = Heap::new().map_err(|error| refuse(format!("no memory: {error}")))?;
        let stop_words = vec![None; spec.ranks as usize];
        Ok(Self {
            spec,
            heap,
            stacks: None,
            actors: Vec::new(),
            beside: Vec::new(),
            outside: Vec::new(),
            cells: None,
            stop_words,
            steps: 0,
            has_run: false,
        })
    }

    /// What the world was made of.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// For another run with another seed, policy or fault; the number of ranks stays.
    pub fn set_spec(&mut self, spec: Spec) {
        assert_eq!(spec.ranks, self.spec.ranks, "the ranks of a world are fixed");
        self.spec = spec;
    }

    /// A buffer of zeros on `rank`, aligned to 256 bytes, which every rank can reach.
    pub fn alloc(&mut self, rank: u32, bytes: usize, name: &str) -> Result<Address, Failure> {
        self.zeros((rank, Reach::All), bytes, name)
    }

    /// As [`World::alloc`]; an access of another rank is an error: no plain one goes
    /// unseen in a checked run, no strong one or bulk copy in any.
    pub fn alloc_local(&mut self, rank: u32, bytes: usize, name: &str) -> Result<Address, Failure> {
        self.zeros((rank, Reach::Rank), bytes, name)
    }

    fn zeros(&mut self, owner: (u32, Reach), bytes: usize, name: &str) -> Result<Address, Failure> {
        let from = self.heap.alloc(owner, bytes, ALIGNMENT, name)?;
        let at = Address((self.heap.base() + from) as u64);
        // Until then all of it is zero, and touching it would back it with pages.
        if self.has_run
            && let Some(all) = self.heap.bytes_mut(at, bytes)
        {
            all.fill(0);
        }
        Ok(at)
    }

    /// A buffer on `rank` in a [`memory_file`], which every rank can reach, also those of worlds in other processes
    /// that hold the file. Its length is that of the file. The checker knows nothing of what other worlds do.
    pub fn alloc_in(&mut self, file: &File, rank: u32, name: &str) -> Result<Address, Failure> {
        let length = file.metadata().map(|known| known.len() as usize);
        let failed = |error: io::Error| refuse(format!("{name}: {error}"));
        let bytes = length.map_err(failed)?.next_multiple_of(PAGE);
        let from = self.heap.alloc((rank, Reach::All), bytes, PAGE, name)?;
        self.heap.place(from, Some(file)).map_err(failed)?;
        Ok(Address((self.heap.base() + from) as u64))
    }

    /// Leaves the file of a buffer that [`World::alloc_in`] made, which holds zeros from then on.
    pub fn leave_file(&mut self, at: Address) -> Result<(), Failure> {
        let from = (at.0 as usize).wrapping_sub(self.heap.base());
        self.heap.place(from, None).map_err(|error| refuse(format!("a window: {error}")))
    }

    /// Names a part of a buffer in reports, and waives checker policies in it. What lies between its
    /// end and the next multiple of 256 bytes belongs to nobody, unless another part does.
    pub fn name_part(&mut self, at: Address, bytes: usize, name: &str, waived: Rules) {
        let from = (at.0 as usize).wrapping_sub(self.heap.base());
        self.heap.name_part(Part { from, bytes, name: name.to_owned(), waived });
    }

    /// The named parts of all buffers: name, first byte, bytes.
    pub fn parts(&self) -> impl Iterator<Item = (&str, Address, usize)> {
        let at = |from: usize| Address((self.heap.base() + from) as u64);
        self.heap.parts().iter().map(move |part| (part.name.as_str(), at(part.from), part.bytes))
    }

    /// Says which 32-bit word stops the kernels of `rank` when it is 1; nothing outside one buffer.
    pub fn set_stop_word(&mut self, rank: u32, at: Address) {
        let inside = self.heap.bytes(at, 4).is_some();
        if let Some(word) = self.stop_words.get_mut(rank as usize).filter(|_| inside) {
            *word = Some(at.0 as usize);
        }
    }

    /// Says how long kernels wait that go on when a wait runs out: [`Spec::longest_wait_ns`].
    pub fn set_longest_wait(&mut self, ns: u64) {
        self.spec.longest_wait_ns = Some(ns);
    }

    /// Forgets the parts of the buffer at `at`, which will hold something else.
    pub fn forget_parts(&mut self, at: Address) {
        self.heap.forget_parts((at.0 as usize).wrapping_sub(self.heap.base()));
    }

    /// The bytes at `at`; `None` outside one buffer.
    pub fn bytes(&self, at: Address, bytes: usize) -> Option<&[u8]> {
        self.heap.bytes(at, bytes)
    }

    /// The bytes at `at`, to be written; `None` outside one buffer.
    pub fn bytes_mut(&mut self, at: Address, bytes: usize) -> Option<&mut [u8]> {
        self.heap.bytes_mut(at, bytes)
    }

    /// Adds an actor, such as a network card.
    pub fn add_actor(&mut self, actor: Box<dyn Actor>) {
        self.actors.push(actor);
    }

    /// Kernels that run beside the launches of each rank, until the next call of this: checked runs take what they write for
    /// unordered with all that has not seen a word of theirs, and let them read what they are told of when a launch ends.
    pub fn run_beside(&mut self, kernels: Vec<Beside>) {
        self.beside = kernels;
    }

    /// Lets runs wait, in real time, for what comes from outside; until nothing can come, no wait is a
    /// deadlock. Runs in a process of its own do not see it.
    pub fn add_outside(&mut self, outside: Outside) {
        self.outside.push(outside);
    }

    /// Runs the launches of each rank, one list a rank, in the calling process; sanitized programs
    /// run isolated, since their findings end the process.
    pub fn run(&mut self, launches: Vec<Vec<Launch>>) -> Result<RunStats, Failure> {
        let mut programs = launches.iter().flatten().map(|launch| &launch.kernel.program);
        if !worker::inside() && programs.any(|program| program.build() == Build::Sanitized) {
            return self.run_isolated(launches, SANITIZED_LIMIT);
        }
        if worker::inside() {
            // The lock may have been another thread's when this process was forked.
            let result = self.run_unlocked(launches);
            return self.count_steps(result);
        }
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.run_unlocked(launches);
        self.count_steps(result)
    }

    /// As [`World::run`], in a process of its own: a kernel that crashes or never ends becomes a
    /// failure. Buffers keep what the kernels wrote.
    pub fn run_isolated(
        &mut self,
        launches: Vec<Vec<Launch>>,
        limit: Duration,
    ) -> Result<RunStats, Failure> {
        self.has_run = true;
        let symbols = Symbols::of(&launches);
        let seed = self.spec.seed;
        let answer = worker::isolate(limit, |_| message::encode(&self.run_unlocked(launches)));
        let result = match answer {
            Ok(answer) => message::decode(&answer),
            Err(end) => Err(end.into_failure(&symbols, seed)),
        };
        self.count_steps(result)
    }

    fn count_steps(&mut self, result: Result<RunStats, Failure>) -> Result<RunStats, Failure> {
        self.steps += result.as_ref().map_or(0, |stats| stats.steps);
        result
    }

    /// For a process that runs nothing else.
    fn run_unlocked(&mut self, launches: Vec<Vec<Launch>>) -> Result<RunStats, Failure> {
        self.check(&launches)?;
        self.has_run = true;
        let regions = self.heap.count();
        let symbols = Symbols::of(&launches);
        let tensors: Vec<LaunchTensor> =
            launches.iter().flatten().flat_map(|launch| &launch.tensors).cloned().collect();
        let result = self.run_checked(launches);
        let result = self.check_guards(result, &tensors);
        self.heap.truncate(regions);
        result.map_err(|failure| symbols.resolve_failure(failure, self.spec.seed))
    }

    /// A run that came to its end, or drained, has written nothing outside the buffers.
    fn check_guards(
        &mut self,
        result: Result<RunStats, Failure>,
        tensors: &[LaunchTensor],
    ) -> Result<RunStats, Failure> {
        let strays = self.heap.take_strays();
        let ended =
            result.as_ref().map_or_else(|failure| failure.kind == FailureKind::Deadlock, |_| true);
        if strays.is_empty() || !ended {
            return result;
        }
        let places = strays.iter().map(|(offset, bytes)| {
            let place = self.heap.describe(*offset, tensors);
            format!("a store outside of all buffers changed {bytes} bytes: {place}")
        });
        let mut message = places.collect::<Vec<String>>().join("\n");
        message.push_str("\n  a checked run names the access");
        if let Err(failure) = result {
            message.push_str(&format!("\nwhile draining after a deadlock: {}", failure.message));
        }
        Err(Failure::new(FailureKind::OutOfBounds, message))
    }

    fn check(&self, launches: &[Vec<Launch>]) -> Result<(), Failure> {
        if launches.len() != self.spec.ranks as usize {
            let (lists, ranks) = (launches.len(), self.spec.ranks);
            return Err(refuse(format!("{lists} lists of launches for {ranks} ranks")));
        }
        for launch in launches.iter().flatten() {
            let name = launch.kernel.name();
            let (args, wanted) = (launch.args.len(), launch.kernel.args_bytes());
            let (blocks, resident) = (launch.blocks, self.spec.max_resident_blocks);
            let problem = if launch.threads == 0
                || launch.threads > 1024
                || !launch.threads.is_multiple_of(32)
            {
                format!("{} threads a block", launch.threads)
            } else if blocks == 0 {
                "an empty grid".to_owned()
            } else if args != wanted {
                format!("{args} bytes of arguments, and the kernel takes {wanted}")
            } else if launch.shared_bytes > self.spec.max_shared_bytes {
                let most = self.spec.max_shared_bytes;
                format!("{} bytes of shared memory, and the maximum is {most}", launch.shared_bytes)
            } else if launch.cooperative && blocks > resident {
                format!("a cooperative grid of {blocks} blocks, of which {resident} fit (M8)")
            } else {
                continue;
            };
            return Err(refuse(format!("{name}: {problem}")));
        }
        Ok(())
    }

    fn run_checked(&mut self, launches: Vec<Vec<Launch>>) -> Result<RunStats, Failure> {
        let checked =
            launches.iter().flatten().all(|launch| launch.kernel.program.build().is_checked());
        let sanitizer = launches.iter().flatten().find_map(|launch| launch.kernel.program.poison());
        let seed = self.spec.seed;
        let schedule =
            Schedule::new(seed, self.spec.policy, self.spec.faults.clone(), self.spec.max_steps);
        let shape = Shape::of(&launches, self.spec.max_resident_blocks);
        let modules = launches.iter().flatten().map(|launch| launch.kernel.program.base());
        let modules = modules.collect();
        let shared_from = self.heap.used();
        let (blocks, warps, lanes, slots) = self.tables(&shape)?;
        let streams = self.streams(launches, slots)?;
        if let Some(poison) = sanitizer {
            self.heap.poison(poison, true);
        }
        let bytes = if sanitizer.is_some() { SANITIZED_STACK_BYTES } else { STACK_BYTES };
        let stacks = match self.stacks.take().filter(|kept| kept.suffice(lanes.len(), bytes)) {
            Some(kept) => kept,
            None => Stacks::new(lanes.len(), bytes).map_err(|error| refuse(error.to_string()))?,
        };
        let checker = match checked {
            true => Some(self.checker(warps.len(), shared_from, modules)?),
            false => None,
        };
        let mut machine = Machine {
            heap: &mut self.heap,
            stacks,
            lanes,
            warps,
            blocks,
            streams,
            schedule,
            parking: Parking::new(),
            engine: Engine::new(),
            checker,
            stats: RunStats::default(),
            clock_ns: 0,
            progress: 0,
            refill: true,
            live: 0,
            failure: None,
            deadlock: None,
            stuck: false,
            longest_wait_ns: self.spec.longest_wait_ns,
            ran_out: 0,
            actor_names: self.actors.iter().map(|actor| actor.name()).collect(),
            actors: std::mem::take(&mut self.actors),
            outside: self.outside.clone(),
            idle_since: None,
            next_mbarrier: 0,
            stop_words: self.stop_words.clone(),
            steps_before: self.steps,
            entry: calls::lane_main,
            max_ahead: self.spec.max_ahead,
            current: None,
            floor: 0,
            main_sp: 0,
        };
        run::enter(&mut machine);
        while machine.failure.is_none() && !machine.stuck && machine.engine_step(true) {}
        let result = finish(&mut machine);
        if let Some(poison) = sanitizer {
            machine.heap.poison(poison, false);
        }
        self.stacks = Some(machine.stacks);
        self.actors = machine.actors;
        self.cells = machine.checker.and_then(Checker::into_cells);
        result
    }
}

/// How many slots and lanes the runs of a world's launches need.
struct Shape {
    /// Block slots of each rank.
    slots: Vec<usize>,
    warps: usize,
    shared_bytes: usize,
}

impl Shape {
    fn of(launches: &[Vec<Launch>], resident: u32) -> Self {
        let most = |list: &[Launch]| {
            let blocks = list.iter().map(|launch| launch.blocks.min(resident)).max();
            blocks.unwrap_or(0) as usize
        };
        let all = || launches.iter().flatten();
        Self {
            slots: launches.iter().map(|list| most(list)).collect(),
            warps: all().map(|launch| launch.threads / 32).max().unwrap_or(1) as usize,
            shared_bytes: all().map(|launch| launch.shared_bytes).max().unwrap_or(0) as usize,
        }
    }
}

/// Block slots, warps, lanes, and the slots of each rank.
type Tables = (Vec<Block>, Vec<Warp>, Vec<Lane>, Vec<Range<Idx>>);

impl World {
    fn tables(&mut self, shape: &Shape) -> Result<Tables, Failure> {
        let mut blocks = Vec::new();
        let mut warps = Vec::new();
        let mut slots = Vec::new();
        for (rank, count) in shape.slots.iter().enumerate() {
            slots.push(blocks.len()..blocks.len() + count);
            for slot in 0..*count {
                let name = format!("shared memory of block slot {slot}");
                let bytes = shape.shared_bytes.next_multiple_of(16);
                let shared = self.heap.alloc((rank as u32, Reach::Block), bytes, 1024, &name)?;
                let first_warp = warps.len();
                warps.extend((0..shape.warps).map(|index| Warp::empty(blocks.len(), index)));
                let at = (self.heap.base() + shared) as *mut u8;
                blocks.push(Block::empty(rank as u32, first_warp, (shared, bytes, at)));
            }
        }
        let lanes = (0..warps.len() * 32).map(|index| Lane::empty(index / 32)).collect();
        Ok((blocks, warps, lanes, slots))
    }

    fn streams(
        &self,
        launches: Vec<Vec<Launch>>,
        slots: Vec<Range<Idx>>,
    ) -> Result<Vec<Stream>, Failure> {
        let watched = (self.heap.base() as u64, self.heap.used() as u64);
        let mut streams = Vec::new();
        for (list, slots) in launches.into_iter().zip(slots) {
            let mut prepared = Vec::new();
            for launch in list {
                launch.kernel.program.mutate(self.spec.mutation);
                let bind =
                    launch.kernel.program.bind().map_err(|error| refuse(error.to_string()))?;
                prepared.push(Prepared::new(launch, bind, &TABLE, watched));
            }
            streams.push(Stream {
                launches: prepared,
                at: 0,
                phases_run: 0,
                running: false,
                next_block: 0,
                ended: 0,
                slots,
            });
        }
        Ok(streams)
    }

    fn checker(
        &mut self,
        warps: usize,
        shared_from: usize,
        mut modules: Vec<usize>,
    ) -> Result<Checker, Failure> {
        modules.sort_unstable();
        modules.dedup();
        let (mut cells, last) = match self.cells.take() {
            Some(kept) => kept,
            None => (Cells::new(ARENA_BYTES).map_err(|error| refuse(error.to_string()))?, 0),
        };
        let first = cells.restart(last, self.heap.used());
        let setup = Setup {
            ranks: self.spec.ranks as usize,
            warps,
            actors: self.actors.len(),
            shared_from,
            rules: self.spec.rules,
            modules,
            cells,
            first,
            older_seed: self.spec.shows_older.then_some(self.spec.seed),
        };
        let mut checker = Checker::new(&self.heap, setup);
        let offset = |at: &Address| (at.0 as usize).wrapping_sub(self.heap.base());
        for Beside { rank, steps, told } in &self.beside {
            for Raising { written, raised } in steps {
                written
                    .iter()
                    .for_each(|(at, bytes)| checker.written_beside(*rank, (offset(at), *bytes)));
                raised.iter().for_each(|at| checker.raised_beside(*rank, offset(at)));
                checker.goes_on_beside(*rank);
            }
            for Told { words: (at, bytes), memory } in told {
                let memory = memory.iter().map(|(at, bytes)| (offset(at), *bytes)).collect();
                checker.told_beside(*rank, (offset(at), *bytes), memory);
            }
        }
        Ok(checker)
    }
}

/// The result of a machine that has come to its end.
fn finish(machine: &mut Machine<'_>) -> Result<RunStats, Failure> {
    machine.stats.clock_ns = machine.clock_ns;
    if let Some(mut failure) = machine.failure.take() {
        if let Some((head, waits)) = machine.deadlock.take() {
            failure.message.push_str(&format!("\nwhile draining after a deadlock: {head}"));
            failure.waits = waits;
        }
        return Err(failure);
    }
    let left = if machine.live == 0 { Vec::new() } else { machine.waits_of_the_living() };
    match machine.deadlock.take() {
        Some((message, waits)) => {
            let drained = machine.live == 0;
            Err(Failure { drained, waits, left, ..Failure::new(FailureKind::Deadlock, message) })
        }
        None => Ok(machine.stats.clone()),
    }
}

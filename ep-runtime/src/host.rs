//! Ranks on the host: the emitted text runs in the emulator, with all ranks of a group in this process.
//!
//! Calls of such a group look like calls of a group of GPUs, but kernels run at other times. A launch only
//! queues a kernel. [`Backend::sync`] or [`Backend::poll`] of any rank with queued work runs everything
//! that all ranks have queued. One thread must therefore launch for all ranks before it waits for any of
//! them. All streams of a rank are one queue, in the order of the calls, except for captured work.
//!
//! The scheduler decides every step by a seed ([`HostOptions::spec`]), which replays the run.
//!
//! ```no_run
//! use ep_runtime::buffer::{Buffer, BufferOptions, CallOptions, BuiltIn, DispatchInput};
//! use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
//!
//! # fn inputs(_: usize) -> DispatchInput { DispatchInput::default() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = HostOptions { build: Build::Checked, ..HostOptions::new(4) };
//! let group = HostBackend::new(&Programs::find()?, options)?.group()?;
//! let buffer = Buffer::new(&group, BufferOptions::new(64, 1024, 4, 16), &BuiltIn)?;
//! let mut dispatched = Vec::new();
//! for rank in group.local() {
//!     dispatched.push(buffer.dispatch(rank, &inputs(rank), &CallOptions::sms(6))?);
//! }
//! for rank in group.local() {
//!     group.sync(rank)?; // The first one runs the kernels of all ranks.
//! }
//! # Ok(())
//! # }
//! ```

mod calls;
mod capture;
mod functions;
mod memory;
#[cfg(target_os = "linux")]
mod processes;
mod programs;
mod queue;
mod tensors;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ep_codegen::plan::Arch;
use ep_emu::{Actor, Address, World};

pub use ep_emu::{Build, Failure, FailureKind, Faults, Policy, Rule, Rules, RunStats, Spec, Wait};
pub use ep_emu::{mutant, mutation};
pub use functions::Functions;
pub use programs::Programs;

use crate::backend::{Backend, BackendError};
use crate::error::CallError;
use crate::group::{Group, GroupOptions};
use crate::timeouts::StuckWait;
use queue::Machine;

/// Longest wait of a kernel on the host. The clock counts steps of the scheduler, so a wait says nothing
/// about time. The emulator detects a wait that can never end, and such a wait expires at once.
pub const TIMEOUT: Duration = Duration::from_secs(3600);

/// Most ranks of the emulator: 128 nodes of 8 ranks.
pub const MOST_RANKS: u32 = 1024;

/// Options of a group on the host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The ranks that live in this process; the others are reached over a network.
    pub local: Range<usize>,
    /// Ranks, seed, policy, faults and limits of the emulator.
    pub spec: Spec,
    /// How texts are compiled; [`Build::Checked`] also checks the order of all accesses.
    pub build: Build,
    /// The target architecture of texts, with TMA or without.
    pub arch: Arch,
    /// Time limit of a separate process that runs the kernels, so that a crash becomes an error; `None`:
    /// kernels run in this process.
    pub isolation: Option<Duration>,
}

impl HostOptions {
    /// `ranks` ranks with the first seed, in the fastest build.
    pub fn new(ranks: usize) -> HostOptions {
        HostOptions {
            local: 0..ranks,
            spec: Spec { ranks: u32::try_from(ranks).unwrap_or(u32::MAX), ..Spec::default() },
            build: Build::Plain,
            arch: Arch::Sm90a,
            isolation: None,
        }
    }
}

/// The ranks of a group in the emulator.
pub struct HostBackend {
    programs: Arc<Programs>,
    options: HostOptions,
    machine: Mutex<Machine>,
    /// How it meets the ranks of other processes, with some of which it shares windows.
    #[cfg(target_os = "linux")]
    others: Option<processes::Processes>,
}

impl HostBackend {
    /// Ranks with empty memory.
    pub fn new(
        programs: &Arc<Programs>,
        options: HostOptions,
    ) -> Result<Arc<HostBackend>, BackendError> {
        HostBackend::open(programs, options).map(Arc::new)
    }

    fn open(programs: &Arc<Programs>, options: HostOptions) -> Result<HostBackend, BackendError> {
        if options.spec.ranks > MOST_RANKS {
            let ranks = options.spec.ranks;
            let what =
                format!("{ranks} ranks are too many: the emulator runs at most {MOST_RANKS}");
            return Err(BackendError::Wrong { what });
        }
        if options.local.is_empty() || options.local.end > options.spec.ranks as usize {
            let (local, ranks) = (&options.local, options.spec.ranks);
            let what = format!("ranks {local:?} of {ranks} cannot run here");
            return Err(BackendError::Wrong { what });
        }
        let world = World::new(options.spec.clone())
            .map_err(|failure| BackendError::Missing { what: failure.message })?;
        let machine = Machine::new(world, options.isolation);
        let programs = Arc::clone(programs);
        Ok(HostBackend {
            programs,
            options,
            machine: Mutex::new(machine),
            #[cfg(target_os = "linux")]
            others: None,
        })
    }

    /// A group of all ranks.
    pub fn group(self: &Arc<HostBackend>) -> Result<Group, CallError> {
        Group::new(
            Arc::clone(self) as Arc<dyn Backend>,
            GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() },
        )
    }

    /// Adds a part of the machine that is no lane, such as a network card.
    pub(crate) fn add_actor(&self, actor: Box<dyn Actor>) {
        self.machine().world.add_actor(actor);
    }

    /// Sets the counters of all rings to `rows`, their values after that many rows: they wrap at 2^32.
    /// Returns the number of counters. No call may have been made.
    pub fn start_rings_at(&self, rows: u32) -> usize {
        let mut machine = self.machine();
        let ring_of = |name: &str, end: &str| name.strip_suffix(end).map(str::to_owned);
        let rings: BTreeSet<String> =
            machine.world.parts().filter_map(|(name, ..)| ring_of(name, ".tail")).collect();
        let is_counter = |name: &str| {
            let ends = [".tail", ".head", ".taken", ".sent"];
            ends.iter().any(|end| ring_of(name, end).is_some_and(|ring| rings.contains(&ring)))
        };
        let counters = machine.world.parts().filter(|(name, ..)| is_counter(name));
        let counters: Vec<(Address, usize)> = counters.map(|(_, at, bytes)| (at, bytes)).collect();
        let mut count = 0;
        for (at, bytes) in counters {
            for word in machine.world.bytes_mut(at, bytes).unwrap_or_default().chunks_exact_mut(4) {
                word.copy_from_slice(&rows.to_le_bytes());
                count += 1;
            }
        }
        count
    }

    /// The options of this backend.
    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    /// Bytes of device memory that a rank holds now, windows included.
    pub fn device_bytes(&self, rank: usize) -> u64 {
        self.machine().blocks.device_bytes(rank)
    }

    /// Totals over all runs so far; the schedule is that of the last run.
    pub fn stats(&self) -> RunStats {
        self.machine().stats.clone()
    }

    /// The last run that failed, as the emulator saw it. If waits expired in it, as after a deadlock, the
    /// calls themselves return what the kernels recorded.
    pub fn failure(&self) -> Option<Failure> {
        self.machine().failure.clone()
    }

    /// The last run that failed, in words: its kind, what happened, and the seed that replays it.
    pub fn report(&self) -> Option<String> {
        let machine = self.machine();
        let failure = machine.failure.as_ref()?;
        let (kind, seed) = (failure.kind.name(), failure.seed);
        Some(format!("{kind}: {} (seed {seed})", machine.report(failure)))
    }

    /// What lanes waited for in the last run that failed, in the form of timeout records. Ranks that a
    /// fault has stopped have no entry, and neither do waits that ended after other ranks had given up.
    pub fn waits(&self) -> Vec<StuckWait> {
        let machine = self.machine();
        let dead = machine.world.spec().faults.dead_rank.map(|(rank, _)| rank);
        let waits = machine.failure.iter().flat_map(|failure| &failure.waits);
        let living = waits.filter(|wait| Some(wait.rank) != dead && !wait.met);
        living.filter_map(|wait| machine.named(wait)).collect()
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the machine, and drops what graphs kept after it is unlocked again: that
    /// may free memory of the same machine.
    fn letting_go<T>(
        &self,
        rank: usize,
        change: impl FnOnce(&mut Machine) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let (result, dropped) = {
            let mut machine = self.of(rank)?;
            (change(&mut machine), std::mem::take(&mut machine.dropped))
        };
        drop(dropped);
        result
    }

    /// The machine, for something about a rank.
    fn of(&self, rank: usize) -> Result<MutexGuard<'_, Machine>, BackendError> {
        if self.local().contains(&rank) {
            return Ok(self.machine());
        }
        let what = format!("rank {rank} is not local: this process drives {:?}", self.local());
        Err(BackendError::Wrong { what })
    }
}

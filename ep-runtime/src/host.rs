//! Ranks on the host: the emitted text runs in the emulator, all ranks of a group in this process.
//!
//! A group of such ranks is called like one of GPUs. What differs is when kernels run: a launch only
//! queues, and [`Backend::sync`] or [`Backend::poll`] of any rank with something in its queue runs
//! what all ranks have queued. So one thread launches for all ranks before it waits for any of them.
//! All streams of a rank are one queue, in the order of the calls, but for what is captured.
//!
//! The scheduler decides every step by a seed, which replays it: [`HostOptions::spec`].
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

mod capture;
mod functions;
mod memory;
mod programs;
mod queue;
mod tensors;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ep_codegen::plan::{Arch, Plan};
use ep_emu::{Actor, Address, World};

pub use ep_emu::{Build, Failure, FailureKind, Faults, Policy, Rule, Rules, RunStats, Spec, Wait};
pub use ep_emu::{mutant, mutation};
pub use functions::Functions;
pub use programs::Programs;

use crate::backend::{
    Backend, BackendError, Block, Capture, Captured, Code, Event, HostBlock, Image, Kept,
    KernelLaunch, Mapping, MayCome, RowCopy, Stream,
};
use crate::error::CallError;
use crate::group::{Group, GroupOptions};
use memory::Reach;
use queue::{Loaded, Machine, Work};
use tensors::Told;

/// Longest wait of a kernel on the host. Its clock counts steps of the scheduler, so that a wait
/// says nothing about time; one that can never end is found by itself, and then expires.
pub const TIMEOUT: Duration = Duration::from_secs(3600);

/// How a group runs on the host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The ranks that live in this process; all others are reached over a network.
    pub local: Range<usize>,
    /// Ranks, seed, policy, faults and limits of the emulator.
    pub spec: Spec,
    /// How texts are compiled; [`Build::Checked`] also checks the order of all accesses.
    pub build: Build,
    /// What texts are emitted for: with TMA, or without.
    pub arch: Arch,
    /// Runs kernels in a process of their own, which may take so long; a crash becomes an error.
    pub isolation: Option<Duration>,
}

impl HostOptions {
    /// `ranks` ranks with the first seed, as fast as it goes.
    pub fn new(ranks: usize) -> HostOptions {
        HostOptions {
            local: 0..ranks,
            spec: Spec { ranks: u32::try_from(ranks).unwrap_or(u32::MAX), ..Spec::default() },
            build: Build::Fast,
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
}

impl HostBackend {
    /// Ranks with nothing in their memory.
    pub fn new(
        programs: &Arc<Programs>,
        options: HostOptions,
    ) -> Result<Arc<HostBackend>, BackendError> {
        if options.local.is_empty() || options.local.end > options.spec.ranks as usize {
            let (local, ranks) = (&options.local, options.spec.ranks);
            let what = format!("ranks {local:?} of {ranks} are none to run here");
            return Err(BackendError::Wrong { what });
        }
        let world = World::new(options.spec.clone())
            .map_err(|failure| BackendError::Missing { what: failure.message })?;
        let machine = Machine::new(world, options.isolation);
        let programs = Arc::clone(programs);
        Ok(Arc::new(HostBackend { programs, options, machine: Mutex::new(machine) }))
    }

    /// A group of all ranks.
    pub fn group(self: &Arc<HostBackend>) -> Result<Group, CallError> {
        Group::new(Arc::clone(self) as Arc<dyn Backend>, GroupOptions { timeout: TIMEOUT })
    }

    /// Adds a part of the machine that is no lane, such as a network card.
    pub(crate) fn add_actor(&self, actor: Box<dyn Actor>) {
        self.machine().world.add_actor(actor);
    }

    /// Lets the counters of all rings stand at `rows`, as they do after so many rows: they wrap at 2^32.
    /// Says how many there are. No call may have been made.
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

    /// How it runs.
    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    /// What all runs did so far, added up; the schedule is that of the last one.
    pub fn stats(&self) -> RunStats {
        self.machine().stats.clone()
    }

    /// The last run that failed. When its waits expired by themselves, as they do after a deadlock,
    /// calls return what the kernels recorded, and this is what the emulator saw.
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

impl Backend for HostBackend {
    fn name(&self) -> String {
        format!("host, {} ranks, seed {}", self.ranks(), self.options.spec.seed)
    }

    fn ranks(&self) -> usize {
        self.options.spec.ranks as usize
    }

    fn local(&self) -> Range<usize> {
        self.options.local.clone()
    }

    fn gather(&self, _: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        Ok(vec![value])
    }

    fn wait_for(&self, may_come: MayCome) -> Result<(), BackendError> {
        if self.options.isolation.is_some() || self.options.build == Build::Sanitized {
            let what = "kernels that run in a process of their own see no network".to_string();
            return Err(BackendError::Wrong { what });
        }
        self.machine().world.add_outside(may_come);
        Ok(())
    }

    fn arch(&self) -> Arch {
        self.options.arch
    }

    fn sms(&self, _: usize) -> u32 {
        self.options.spec.max_resident_blocks
    }

    fn runs_alone(&self) -> bool {
        false
    }

    /// The image is the text: what it compiles to is found again by it.
    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError> {
        self.programs.program(name, cuda, self.options.build)?;
        Ok(cuda.as_bytes().into())
    }

    fn load(
        &self,
        rank: usize,
        image: &Image,
        entry: &str,
        block: Block,
    ) -> Result<Code, BackendError> {
        let no_text = |_| BackendError::Wrong { what: "the image is no emitted text".to_string() };
        let cuda = std::str::from_utf8(image).map_err(no_text)?;
        let program = self.programs.program(entry, cuda, self.options.build)?;
        let kernel = program.kernel(entry);
        let kernel = kernel.map_err(|error| BackendError::Compile {
            name: entry.to_string(),
            log: error.to_string(),
        })?;
        let mut machine = self.of(rank)?;
        machine.codes.push(Some(Loaded { rank, kernel, block }));
        Ok(Code(machine.codes.len() as u64 - 1))
    }

    fn unload(&self, rank: usize, code: Code) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.code(rank, code)?;
        machine.codes[code.0 as usize] = None;
        Ok(())
    }

    fn alloc(&self, rank: usize, bytes: u64) -> Result<u64, BackendError> {
        self.of(rank)?.alloc(rank, Reach::Device, bytes)
    }

    fn free(&self, rank: usize, address: u64) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        // What is queued may use it. A run that fails has been reported, or is by the next call.
        let _ = machine.drain(rank);
        machine.world.forget_parts(Address(address));
        machine.blocks.free(rank, address)
    }

    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.bytes(to, from.len() as u64)?;
        machine.require_running(rank, Stream::OWN)?;
        machine.put(rank, Stream::OWN, Work::Write { to, from: from.to_vec() });
        Ok(())
    }

    fn read(&self, rank: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.require_running(rank, Stream::OWN)?;
        machine.drain(rank)?;
        to.copy_from_slice(machine.bytes(from, to.len() as u64)?);
        Ok(())
    }

    fn fill(
        &self,
        rank: usize,
        stream: Stream,
        at: u64,
        byte: u8,
        bytes: u64,
    ) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.bytes(at, bytes)?;
        machine.put(rank, stream, Work::Fill { at, byte, bytes });
        Ok(())
    }

    fn copy_rows(&self, rank: usize, stream: Stream, copy: &RowCopy) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        for (to, from) in copy.places() {
            machine.bytes(from, copy.row_bytes)?;
            machine.bytes(to, copy.row_bytes)?;
        }
        machine.put(rank, stream, Work::Copy(*copy));
        Ok(())
    }

    fn name_memory(&self, rank: usize, at: u64, bytes: u64, name: &str, waived: &[&str]) {
        let rules = waived.iter().filter_map(|policy| Rule::named(policy));
        let rules = rules.filter(|rule| rule.is_policy()).fold(Rules::NONE, Rules::with);
        if let Ok(mut machine) = self.of(rank) {
            machine.world.name_part(Address(at), bytes as usize, name, rules);
        }
    }

    fn name_pipeline(&self, number: u32, plan: &Arc<Plan>) {
        self.machine().pipelines.insert(number, Arc::clone(plan));
    }

    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError> {
        let bytes = bytes.max(4).next_multiple_of(4);
        let address = self.of(rank)?.alloc(rank, Reach::Host, bytes)?;
        Ok(HostBlock { host: address, device: address, bytes })
    }

    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError> {
        match block.host {
            0 => Ok(()),
            address => self.free(rank, address),
        }
    }

    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        let from = words(block, at, to.len())?;
        let mut machine = self.machine();
        let bytes = machine.bytes(from, 4 * to.len() as u64)?;
        for (word, bytes) in to.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError> {
        let to = words(block, at, from.len())?;
        let bytes: Vec<u8> = from.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.machine().bytes(to, bytes.len() as u64)?.copy_from_slice(&bytes);
        Ok(())
    }

    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        let mut machine = self.machine();
        let bases = self.local().map(|rank| machine.alloc(rank, Reach::Window, bytes));
        let bases = bases.collect::<Result<Vec<u64>, _>>()?;
        let id = machine.windows.keys().next_back().map_or(0, |last| last + 1);
        machine.windows.insert(id, bases.clone());
        // Those of other processes are nowhere.
        let mut all = vec![0; self.ranks()];
        all[self.local()].copy_from_slice(&bases);
        Ok(Mapping { id, bytes, bases: vec![all; bases.len()] })
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        let bases = self.machine().windows.remove(&mapping.id);
        let unknown = || format!("window {} is not mapped", mapping.id);
        let bases = bases.ok_or_else(|| BackendError::Wrong { what: unknown() })?;
        self.local().zip(bases).try_for_each(|(rank, base)| self.free(rank, base))
    }

    fn resident(&self, rank: usize, code: Code) -> Result<(u32, Block), BackendError> {
        let machine = self.of(rank)?;
        Ok((self.sms(rank), machine.code(rank, code)?.block))
    }

    fn enqueue(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        let loaded = machine.code(rank, launch.code)?;
        let (kernel, block) = (loaded.kernel.clone(), loaded.block);
        machine.check()?;
        let Told { tensors, stop_word } = tensors::told_by(&machine.pipelines, launch.args);
        if let Some(word) = stop_word {
            machine.world.set_stop_word(rank as u32, word);
        }
        let work = ep_emu::Launch {
            kernel,
            blocks: launch.blocks,
            threads: block.threads,
            shared_bytes: block.shared_bytes,
            cooperative: launch.waits,
            args: launch.args.to_vec(),
            tensors,
        };
        machine.put(rank, stream, Work::Kernel(work));
        Ok(())
    }

    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError> {
        Ok(self.of(rank)?.capture(rank, stream))
    }

    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        self.of(rank)?.begin_capture(rank, stream)
    }

    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError> {
        self.letting_go(rank, |machine| machine.end_capture(rank, stream))
    }

    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError> {
        self.of(rank)?.keep(rank, stream, kept)
    }

    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError> {
        self.of(rank)?.replay(rank, stream, captured)
    }

    fn destroy_captured(&self, rank: usize, captured: Captured) -> Result<(), BackendError> {
        self.letting_go(rank, |machine| {
            machine.destroy_captured(captured);
            Ok(())
        })
    }

    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.require_running(rank, stream)?;
        machine.drain(rank)
    }

    fn poll(&self, rank: usize) -> Result<(), BackendError> {
        self.of(rank)?.drain(rank)
    }

    fn create_event(&self, rank: usize) -> Result<Event, BackendError> {
        let mut machine = self.of(rank)?;
        machine.events.push(None);
        Ok(Event(machine.events.len() as u64 - 1))
    }

    fn destroy_event(&self, rank: usize, _: Event) -> Result<(), BackendError> {
        self.of(rank).map(|_| ())
    }

    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        let mut machine = self.of(rank)?;
        machine.note_event(rank, stream, event.0);
        machine.put(rank, stream, Work::Event { number: event.0 as usize });
        Ok(())
    }

    /// Nothing to wait for: all streams of a rank are one queue.
    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        self.of(rank)?.require_inside(rank, stream, event.0)
    }

    /// Time of the emulator's clock, which counts steps: it compares nothing but schedules.
    fn elapsed(&self, rank: usize, from: &Event, to: &Event) -> Result<Duration, BackendError> {
        let machine = self.of(rank)?;
        let passed = |event: &Event| machine.events.get(event.0 as usize).copied().flatten();
        match (passed(from), passed(to)) {
            (Some(from), Some(to)) => Ok(Duration::from_nanos(to.saturating_sub(from))),
            _ => Err(BackendError::Wrong { what: "an event has not passed yet".to_string() }),
        }
    }

    fn hold(
        &self,
        rank: usize,
        stream: Stream,
        block: &HostBlock,
        at: u64,
        value: u32,
    ) -> Result<(), BackendError> {
        let at = words(block, at, 1)?;
        self.of(rank)?.put(rank, stream, Work::Hold { at, value });
        Ok(())
    }
}

/// The address of `count` words at byte `at` of a block.
fn words(block: &HostBlock, at: u64, count: usize) -> Result<u64, BackendError> {
    let end = at.checked_add(4 * count as u64);
    if !at.is_multiple_of(4) || end.is_none_or(|end| end > block.bytes) {
        let what = format!("{count} words at {at} lie outside a block of {} bytes", block.bytes);
        return Err(BackendError::Wrong { what });
    }
    Ok(block.host + at)
}

impl Machine {
    /// The bytes at an address that lies inside one block.
    fn bytes(&mut self, at: u64, bytes: u64) -> Result<&mut [u8], BackendError> {
        let outside = || format!("{bytes} bytes at {at:#x} lie outside every block");
        if bytes == 0 {
            return Ok(&mut []);
        }
        let found = self.world.bytes_mut(Address(at), bytes as usize);
        found.ok_or_else(|| BackendError::Wrong { what: outside() })
    }

    fn alloc(&mut self, rank: usize, reach: Reach, bytes: u64) -> Result<u64, BackendError> {
        self.blocks.alloc(&mut self.world, rank, reach, bytes)
    }
}

//! The calls of [`Backend`] on the host, each passed to the emulator.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ep_codegen::plan::{Arch, Plan};
use ep_emu::{Address, Build, Rule, Rules};

use super::HostBackend;
use super::memory::Reach;
use super::queue::{Loaded, Machine, Work};
use super::tensors::{Told, told_by};
use crate::backend::{
    Backend, BackendError, Block, Capture, Captured, Code, Event, HostBlock, Image, Kept,
    KernelBeside, KernelLaunch, Mapping, MayCome, RowCopy, Stream,
};

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

    fn emulator(&self) -> Option<&dyn Any> {
        Some(self)
    }

    #[cfg(target_os = "linux")]
    fn node(&self) -> Range<usize> {
        self.others.as_ref().map_or(self.local(), |others| others.node())
    }

    #[cfg(target_os = "linux")]
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        self.others.as_ref().map_or(Ok(vec![value]), |others| others.gather(label, value))
    }

    #[cfg(not(target_os = "linux"))]
    fn gather(&self, _: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        Ok(vec![value])
    }

    #[cfg(target_os = "linux")]
    fn say(&self, doing: &str) {
        self.others.iter().for_each(|others| others.say(doing));
    }

    #[cfg(target_os = "linux")]
    fn has_left(&self, rank: usize) -> bool {
        self.others.as_ref().is_some_and(|others| others.has_left(rank))
    }

    fn wait_for(&self, may_come: MayCome) -> Result<(), BackendError> {
        if self.options.isolation.is_some() || self.options.build == Build::Sanitized {
            let what = "kernels that run in a separate process cannot use a network".to_string();
            return Err(BackendError::Wrong { what });
        }
        self.machine().world.add_outside(may_come);
        Ok(())
    }

    fn let_waits_run_out(&self, after: Duration) {
        self.machine().world.set_longest_wait(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
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
        let no_text =
            |_| BackendError::Wrong { what: "the image is not an emitted text".to_string() };
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
        machine.blocks.free(rank, address)?;
        machine.run_host_work();
        machine.give_back();
        Ok(())
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

    fn run_beside(&self, kernels: &[KernelBeside]) {
        let range = |(at, bytes): &(u64, u64)| (Address(*at), *bytes as usize);
        let there = |it: &KernelBeside| ep_emu::Beside {
            rank: it.rank as u32,
            steps: it
                .steps
                .iter()
                .map(|step| ep_emu::Raising {
                    written: step.written.iter().map(range).collect(),
                    raised: step.raised.iter().map(|at| Address(*at)).collect(),
                })
                .collect(),
            told: it
                .told
                .iter()
                .map(|(words, memory)| ep_emu::Told {
                    words: range(words),
                    memory: memory.iter().map(range).collect(),
                })
                .collect(),
        };
        self.machine().world.run_beside(kernels.iter().map(there).collect());
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
        #[cfg(target_os = "linux")]
        if let Some(others) = &self.others {
            return self.map_shared(others, others.node(), bytes);
        }
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

    #[cfg(target_os = "linux")]
    fn map_machine_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        match &self.others {
            Some(others) => self.map_shared(others, 0..self.ranks(), bytes),
            None => self.map_window(bytes),
        }
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        #[cfg(target_os = "linux")]
        if self.others.is_some() {
            return self.unmap_shared(mapping);
        }
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
        let Told { tensors, stop_word } = told_by(&machine.pipelines, launch.args);
        if let Some(word) = stop_word {
            machine.world.set_stop_word(rank as u32, word);
        }
        let work = ep_emu::Launch {
            kernel,
            blocks: launch.blocks,
            threads: block.threads,
            shared_bytes: block.shared_bytes,
            cooperative: launch.waits,
            comes_early: launch.enters && self.arch().has_early_launch(),
            phases: launch.phases,
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
        let what = format!("{count} words at {at} are outside of a block of {} bytes", block.bytes);
        return Err(BackendError::Wrong { what });
    }
    Ok(block.host + at)
}

impl Machine {
    /// The bytes at an address that lies inside one block.
    pub(super) fn bytes(&mut self, at: u64, bytes: u64) -> Result<&mut [u8], BackendError> {
        let outside = || format!("{bytes} bytes at {at:#x} are outside of all blocks");
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

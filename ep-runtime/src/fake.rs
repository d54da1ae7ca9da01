//! A backend without a device, for tests of everything above [`Backend`]: memory is plain bytes,
//! and a kernel is a Rust function that reads its `struct Args` as a kernel would.
//!
//! What is local runs when it comes to the front of its stream; a kernel that talks to its peers runs
//! when it is at the front everywhere, for all ranks at once.

mod allocations;
mod kernels;
mod streams;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ep_codegen::ir::Elem;
use ep_codegen::plan::{Arch, Config, MessageLayout, Numbers, Param, ParamKind, Plan, plan};

use crate::backend::{
    Backend, BackendError, Block, Capture, Captured, Code, Event, HostBlock, Image, Kept, Launch,
    Mapping, RowCopy, Stream,
};
use crate::buffer::{Declared, Emit, StandardPipeline};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::join::Store;
use allocations::Pause;
use streams::{Streams, Work};

pub(crate) use allocations::allocations_of;

/// The address of a rank's first byte: a wrong rank in an address shows at once.
const RANK_SPACE: u64 = 1 << 40;

/// How long a wait gives other threads to launch.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a fake device holds and has to do.
#[derive(Default)]
pub(crate) struct World {
    blocks: BTreeMap<u64, Vec<u8>>,
    ends: Vec<u64>,
    streams: Streams,
    plans: BTreeMap<String, Plan>,
    codes: Vec<(usize, String)>,
    windows: BTreeMap<u64, Vec<u64>>,
    /// Kernels written by hand that have run.
    pub(crate) met: u64,
}

/// Ranks that exist in memory alone.
pub(crate) struct FakeBackend {
    ranks: usize,
    /// Whether it looks as if kernels ran by themselves: whoever waits gives other threads the time
    /// to launch what is missing.
    pub(crate) runs_alone: AtomicBool,
    /// How it meets the ranks that are not here, in other processes as far as it knows.
    others: Option<Store>,
    /// Whether compiling `Layout` takes a second.
    pub(crate) compiles_slowly: AtomicBool,
    /// What each rank has of its device.
    pub(crate) multiprocessors: AtomicU32,
    world: Mutex<World>,
}

impl FakeBackend {
    pub(crate) fn new(ranks: usize) -> Arc<FakeBackend> {
        FakeBackend::with(ranks, None)
    }

    /// The one rank of a member of a group.
    pub(crate) fn joined(store: Store) -> Arc<FakeBackend> {
        FakeBackend::with(store.member().ranks, Some(store))
    }

    fn with(ranks: usize, others: Option<Store>) -> Arc<FakeBackend> {
        let world = World {
            ends: (0..ranks as u64).map(|rank| (rank + 1) * RANK_SPACE).collect(),
            ..World::default()
        };
        Arc::new(FakeBackend {
            ranks,
            runs_alone: AtomicBool::new(false),
            others,
            compiles_slowly: AtomicBool::new(false),
            multiprocessors: AtomicU32::new(132),
            world: Mutex::new(world),
        })
    }

    /// The device; what it allocates meanwhile is its own.
    pub(crate) fn world(&self) -> Locked<'_> {
        let pause = Pause::new();
        Locked { world: self.world.lock().unwrap(), _pause: pause }
    }
}

/// The device while somebody looks at it.
pub(crate) struct Locked<'a> {
    world: MutexGuard<'a, World>,
    _pause: Pause,
}

impl Deref for Locked<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl World {
    fn alloc(&mut self, rank: usize, bytes: u64) -> u64 {
        let address = self.ends[rank];
        self.ends[rank] += bytes.next_multiple_of(256) + 256;
        // Fresh memory is never zero by chance.
        self.blocks.insert(address, vec![0xcd; bytes as usize]);
        address
    }

    /// The longest waits of the kernels that are queued, in the order of their streams.
    pub(crate) fn timeouts_ns(&self) -> Vec<u64> {
        self.streams.timeouts_ns()
    }

    /// Whether an address lies in allocated memory.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let block = self.blocks.range(..=address).next_back();
        block.is_some_and(|(start, block)| address - start < block.len() as u64)
    }

    /// The bytes at an address; a range outside every block is a bug of the caller.
    fn at(&mut self, address: u64, bytes: u64) -> &mut [u8] {
        let (start, block) = self.blocks.range_mut(..=address).next_back().unwrap();
        let offset = (address - start) as usize;
        let end = offset + bytes as usize;
        assert!(end <= block.len(), "{bytes} bytes at {address:#x} lie outside every block");
        &mut block[offset..end]
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> String {
        "memory".to_string()
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn local(&self) -> Range<usize> {
        let own = self.others.as_ref().map(|store| store.member().rank);
        own.map_or(0..self.ranks, |own| own..own + 1)
    }

    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let Some(store) = &self.others else { return Ok(vec![value]) };
        let brought = store.gather(label, &value.to_le_bytes())?;
        Ok(brought.into_iter().map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect())
    }

    fn say(&self, doing: &str) {
        self.others.iter().for_each(|store| store.say(doing));
    }

    fn arch(&self) -> Arch {
        Arch::Sm90a
    }

    fn multiprocessors(&self, _: usize) -> u32 {
        self.multiprocessors.load(Ordering::Relaxed)
    }

    fn runs_alone(&self) -> bool {
        self.runs_alone.load(Ordering::Relaxed)
    }

    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError> {
        if name == "layout" && self.compiles_slowly.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(cuda.as_bytes().into())
    }

    fn load(&self, rank: usize, image: &Image, _: &str, _: Block) -> Result<Code, BackendError> {
        let mut world = self.world();
        world.codes.push((rank, String::from_utf8(image.to_vec()).unwrap()));
        Ok(Code(world.codes.len() as u64 - 1))
    }

    fn unload(&self, _: usize, _: Code) -> Result<(), BackendError> {
        Ok(())
    }

    fn alloc(&self, rank: usize, bytes: u64) -> Result<u64, BackendError> {
        Ok(self.world().alloc(rank, bytes))
    }

    fn free(&self, _: usize, address: u64) -> Result<(), BackendError> {
        self.world()
            .blocks
            .remove(&address)
            .map(|_| ())
            .ok_or_else(|| BackendError::Wrong { what: format!("{address:#x} is not allocated") })
    }

    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError> {
        self.sync(rank, Stream::OWN)?;
        self.world().at(to, from.len() as u64).copy_from_slice(from);
        Ok(())
    }

    fn read(&self, rank: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.sync(rank, Stream::OWN)?;
        to.copy_from_slice(self.world().at(from, to.len() as u64));
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
        self.world().streams.put(rank, stream.raw(), Work::Fill { at, byte, bytes });
        Ok(())
    }

    fn copy_rows(&self, rank: usize, stream: Stream, copy: &RowCopy) -> Result<(), BackendError> {
        self.world().streams.put(rank, stream.raw(), Work::Copy(*copy));
        Ok(())
    }

    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError> {
        let mut world = self.world();
        let device = world.alloc(rank, bytes);
        world.at(device, bytes).fill(0);
        Ok(HostBlock { host: 0, device, bytes })
    }

    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError> {
        self.free(rank, block.device)
    }

    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        let mut world = self.world();
        let bytes = world.at(block.device + at, 4 * to.len() as u64);
        for (word, bytes) in to.iter_mut().zip(bytes.chunks(4)) {
            *word = u32::from_le_bytes(bytes.try_into().unwrap());
        }
        Ok(())
    }

    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError> {
        let mut world = self.world();
        let bytes = world.at(block.device + at, 4 * from.len() as u64);
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(from) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let places = (block.device + at..).step_by(4);
        world.streams.words.extend(places.zip(from.iter().copied()));
        Ok(())
    }

    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        let mut world = self.world();
        let bases: Vec<u64> = (0..self.ranks).map(|rank| world.alloc(rank, bytes)).collect();
        bases.iter().for_each(|base| world.at(*base, bytes).fill(0));
        let id = world.windows.len() as u64;
        world.windows.insert(id, bases.clone());
        Ok(Mapping { id, bytes, bases: vec![bases; self.local().len()] })
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        let bases = self.world().windows.remove(&mapping.id).unwrap_or_default();
        (0..bases.len()).try_for_each(|rank| self.free(rank, bases[rank]))
    }

    fn launch(&self, rank: usize, stream: Stream, launch: &Launch) -> Result<(), BackendError> {
        let mut world = self.world();
        let (owner, text) = world.codes[launch.code.0 as usize].clone();
        assert_eq!(owner, rank, "a kernel is launched for the rank it was loaded for");
        let (blocks, args) = (launch.blocks, launch.args.to_vec());
        world.streams.put(rank, stream.raw(), Work::Kernel { text, blocks, args, turn: 0 });
        Ok(())
    }

    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError> {
        Ok(self.world().streams.capture(rank, stream.raw()).map(Capture))
    }

    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        self.world().streams.begin(rank, stream.raw());
        Ok(())
    }

    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError> {
        self.world().streams.end(rank, stream.raw())
    }

    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError> {
        self.world().streams.keep(rank, stream.raw(), kept);
        Ok(())
    }

    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError> {
        self.world().streams.replay(rank, stream.raw(), captured);
        Ok(())
    }

    fn destroy_captured(&self, _: usize, captured: Captured) -> Result<(), BackendError> {
        // Dropping what was kept frees memory of this world.
        let kept = self.world().streams.destroy(captured);
        drop(kept);
        Ok(())
    }

    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut world = self.world();
            world.streams.require_running(rank, stream.raw())?;
            world.run();
            if world.streams.is_empty(rank, stream.raw()) {
                return Ok(());
            }
            drop(world);
            if !self.runs_alone() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let what = format!("rank {rank} waits for a launch that nobody made");
        Err(BackendError::Wrong { what })
    }

    fn poll(&self, _: usize) -> Result<(), BackendError> {
        self.world().run();
        Ok(())
    }

    fn create_stream(&self, _: usize) -> Result<Stream, BackendError> {
        // SAFETY: any number is a stream here.
        Ok(unsafe { Stream::from_raw(self.world().streams.number()) })
    }

    fn create_event(&self, _: usize) -> Result<Event, BackendError> {
        Ok(Event(self.world().streams.number()))
    }

    fn destroy_event(&self, _: usize, _: Event) -> Result<(), BackendError> {
        Ok(())
    }

    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        self.world().streams.record(rank, stream.raw(), event.0);
        Ok(())
    }

    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        self.world().streams.wait(rank, stream.raw(), event.0)
    }

    fn elapsed(&self, _: usize, _: &Event, _: &Event) -> Result<Duration, BackendError> {
        Ok(Duration::from_micros(1))
    }

    fn hold(
        &self,
        rank: usize,
        stream: Stream,
        block: &HostBlock,
        at: u64,
        value: u32,
    ) -> Result<(), BackendError> {
        let work = Work::Hold { at: block.device + at, value };
        self.world().streams.put(rank, stream.raw(), work);
        Ok(())
    }
}

/// Plans the declared pipelines; the text is a key by which the fake device finds the plan.
pub(crate) struct FakeEmit(pub(crate) Arc<FakeBackend>);

impl Emit for FakeEmit {
    fn emit(
        &self,
        pipeline: StandardPipeline,
        arch: Arch,
        settings: &[(String, String)],
    ) -> Result<Emitted, CallError> {
        let ir = (Declared::entry(pipeline).ir)();
        let mut config = Config::new(&ir, arch);
        for (name, value) in settings {
            config.set(&ir, name, value)?;
        }
        let mut plan = plan(&ir, &config)?;
        // A region of its own for each plan, so that offsets that ignore it miss their target.
        plan.window_bytes = plan.window_bytes.max(1000);
        let text = format!("{pipeline:?} {settings:?}");
        self.0.world().plans.insert(text.clone(), plan.clone());
        Ok(Emitted { cuda: text, plan })
    }
}

/// A plan with the given members behind the group.
pub(crate) fn plan_of(name: &str, members: Vec<(&str, ParamKind)>) -> Plan {
    let mut params = vec![Param { name: "group".into(), kind: ParamKind::Group, offset: 0 }];
    for (index, (name, kind)) in members.into_iter().enumerate() {
        params.push(Param { name: name.into(), kind, offset: 64 + 8 * index as i64 });
    }
    Plan {
        pipeline: name.to_string(),
        entry: name.to_lowercase(),
        arch: Arch::Sm90a,
        arms: Vec::new(),
        numbers: Numbers::new(),
        cfg: Vec::new(),
        args_bytes: 56 + 8 * params.len() as i64,
        params,
        window: Vec::new(),
        window_bytes: 0,
        threads: 32,
        shared_bytes: 0,
        roles: Vec::new(),
        blocks_min: 1,
        waits: false,
        messages: Vec::<MessageLayout>::new(),
        pairs: Vec::new(),
        waivers: Vec::new(),
        extents: Vec::new(),
        strides: Vec::new(),
    }
}

/// A pointer member of `f32`.
pub(crate) fn pointer(tensor: &str) -> ParamKind {
    ParamKind::Pointer {
        tensor: tensor.to_string(),
        part: 0,
        copy: 0,
        elem: Elem::F32,
        read_only: false,
    }
}

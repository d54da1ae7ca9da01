//! A backend without a device, for tests of what happens before a kernel runs: memory is plain bytes,
//! and kernels are taken and never run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ep_codegen::ir::Elem;
use ep_codegen::plan::{Arch, MessageLayout, Numbers, Param, ParamKind, Plan};
use ep_codegen::schedule::Recipe;

#[cfg(target_os = "linux")]
use crate::backend::CardAccess;
use crate::backend::{
    Accompanied, Backend, BackendError, Block, Busy, Capture, Captured, Code, Companion, Event,
    HostBlock, Image, Kept, KernelLaunch, Mapping, RowCopy, Stream,
};
use crate::join::Store;

/// How far from where the host finds registers kernels find them.
pub(crate) const REGISTERS_ARE_BEHIND: u64 = 1 << 50;

/// Ranks that exist in memory alone.
pub(crate) struct FakeBackend {
    ranks: usize,
    /// How it meets the ranks that are not here, in other processes as far as it knows.
    others: Option<Arc<Store>>,
    /// The ranks whose windows it reaches.
    node: Range<usize>,
    /// What it does before it compiles `Layout`.
    pub(crate) before_layout: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What each rank has of its device.
    pub(crate) sms: AtomicU32,
    /// Kernels that were launched so far.
    pub(crate) launches: AtomicU32,
    /// Whether its streams are being captured.
    pub(crate) is_captured: AtomicBool,
    /// What graphs keep.
    pub(crate) kept: Mutex<Vec<Kept>>,
    /// How often the handle of a stream was given to a new one.
    pub(crate) renewed: AtomicU64,
    /// How a card reaches device memory: not at all, by its address, by a dma-buf.
    pub(crate) card_access: AtomicU32,
    /// Whether its ranks have a GPU.
    pub(crate) has_gpus: AtomicBool,
    /// Whether kernels are said to run by themselves.
    pub(crate) runs_alone: AtomicBool,
    /// Whether kernels get to registers of a card.
    pub(crate) maps_registers: AtomicBool,
    /// Kernels that run beside all others, by rank, with their arguments.
    pub(crate) companions: Companions,
    /// Whether launches stay in flight.
    pub(crate) in_flight: Arc<AtomicBool>,
    /// What a driver was asked for on the way of calls.
    asked: Mutex<Vec<&'static str>>,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
    next: AtomicU64,
}

impl FakeBackend {
    pub(crate) fn new(ranks: usize) -> Arc<FakeBackend> {
        FakeBackend::with(ranks, None, 0..ranks)
    }

    /// The one rank of a member of a group.
    pub(crate) fn joined(store: Store) -> Arc<FakeBackend> {
        FakeBackend::of_node(&Arc::new(store), 1)
    }

    /// The one rank of a member of a group of `nodes` nodes.
    pub(crate) fn of_node(store: &Arc<Store>, nodes: usize) -> Arc<FakeBackend> {
        let node = store.node(nodes).unwrap();
        FakeBackend::with(store.member().ranks, Some(Arc::clone(store)), node)
    }

    fn with(ranks: usize, others: Option<Arc<Store>>, node: Range<usize>) -> Arc<FakeBackend> {
        Arc::new(FakeBackend {
            ranks,
            others,
            node,
            before_layout: OnceLock::new(),
            sms: AtomicU32::new(132),
            launches: AtomicU32::new(0),
            is_captured: AtomicBool::new(false),
            kept: Mutex::default(),
            renewed: AtomicU64::new(0),
            card_access: AtomicU32::new(0),
            has_gpus: AtomicBool::new(false),
            runs_alone: AtomicBool::new(false),
            maps_registers: AtomicBool::new(true),
            companions: Companions::default(),
            in_flight: Arc::default(),
            asked: Mutex::default(),
            blocks: Mutex::default(),
            next: AtomicU64::new(1 << 40),
        })
    }

    /// Blocks of memory that were not freed.
    pub(crate) fn live(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }

    /// What a driver was asked for since the last time.
    pub(crate) fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn ask(&self, what: &'static str) {
        self.asked.lock().unwrap().push(what);
    }

    fn allocate(&self, bytes: u64, byte: u8) -> u64 {
        let taken = bytes.next_multiple_of(256) + 256;
        let address = self.next.fetch_add(taken, Ordering::Relaxed);
        self.blocks.lock().unwrap().insert(address, vec![byte; bytes as usize]);
        address
    }

    /// Does something with the bytes at an address; a range outside every block is a bug of the caller.
    fn with_bytes<T>(&self, address: u64, bytes: u64, body: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut blocks = self.blocks.lock().unwrap();
        let (start, block) = blocks.range_mut(..=address).next_back().unwrap();
        let offset = (address - start) as usize;
        body(&mut block[offset..offset + bytes as usize])
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

    fn node(&self) -> Range<usize> {
        self.node.clone()
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

    fn sms(&self, _: usize) -> u32 {
        self.sms.load(Ordering::Relaxed)
    }

    fn runs_alone(&self) -> bool {
        self.runs_alone.load(Ordering::Relaxed)
    }

    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError> {
        if name == "layout" {
            self.before_layout.get().into_iter().for_each(|before| before());
        }
        Ok(cuda.as_bytes().into())
    }

    fn load(&self, _: usize, _: &Image, _: &str, _: Block) -> Result<Code, BackendError> {
        Ok(Code(0))
    }

    fn unload(&self, _: usize, _: Code) -> Result<(), BackendError> {
        self.ask("unload");
        Ok(())
    }

    fn alloc(&self, _: usize, bytes: u64) -> Result<u64, BackendError> {
        Ok(self.allocate(bytes, 0xcd))
    }

    fn free(&self, _: usize, address: u64) -> Result<(), BackendError> {
        let freed = self.blocks.lock().unwrap().remove(&address);
        let unknown = || BackendError::Wrong { what: format!("{address:#x} is not allocated") };
        freed.map(|_| ()).ok_or_else(unknown)
    }

    fn write(&self, _: usize, to: u64, from: &[u8]) -> Result<(), BackendError> {
        self.with_bytes(to, from.len() as u64, |bytes| bytes.copy_from_slice(from));
        Ok(())
    }

    fn read(&self, _: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.with_bytes(from, to.len() as u64, |bytes| to.copy_from_slice(bytes));
        Ok(())
    }

    fn fill(&self, _: usize, _: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), BackendError> {
        self.with_bytes(at, bytes, |bytes| bytes.fill(byte));
        Ok(())
    }

    fn copy_rows(&self, _: usize, _: Stream, _: &RowCopy) -> Result<(), BackendError> {
        Ok(())
    }

    fn alloc_host(&self, _: usize, bytes: u64) -> Result<HostBlock, BackendError> {
        let device = self.allocate(bytes, 0);
        let host = self.with_bytes(device, bytes, |block| block.as_mut_ptr() as u64);
        Ok(HostBlock { host, device, bytes })
    }

    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError> {
        self.free(rank, block.device)
    }

    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        self.with_bytes(block.device + at, 4 * to.len() as u64, |bytes| {
            for (word, bytes) in to.iter_mut().zip(bytes.chunks(4)) {
                *word = u32::from_le_bytes(bytes.try_into().unwrap());
            }
        });
        Ok(())
    }

    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError> {
        self.with_bytes(block.device + at, 4 * from.len() as u64, |bytes| {
            for (bytes, word) in bytes.chunks_exact_mut(4).zip(from) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        });
        Ok(())
    }

    fn device(&self, rank: usize) -> Option<i32> {
        self.has_gpus.load(Ordering::Relaxed).then_some(rank as i32)
    }

    #[cfg(target_os = "linux")]
    fn reach_by_card(&self, _: usize, _: u64, _: u64) -> Result<CardAccess, BackendError> {
        self.ask("reach by card");
        Ok(match self.card_access.load(Ordering::Relaxed) {
            0 => CardAccess::None,
            1 => CardAccess::PeerMemory,
            _ => CardAccess::DmaBuf(std::fs::File::open("/dev/null").unwrap().into()),
        })
    }

    fn map_registers(&self, _: usize, host: u64, _: u64) -> Result<u64, BackendError> {
        self.ask("map registers");
        match self.maps_registers.load(Ordering::Relaxed) {
            true => Ok(host + REGISTERS_ARE_BEHIND),
            false => {
                Err(BackendError::Missing { what: "registers stay where they are".to_string() })
            }
        }
    }

    fn unmap_registers(&self, _: usize, _: u64) -> Result<(), BackendError> {
        self.ask("unmap registers");
        Ok(())
    }

    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        let base = |rank| if self.node.contains(&rank) { self.allocate(bytes, 0) } else { 0 };
        let bases: Vec<u64> = (0..self.ranks).map(base).collect();
        Ok(Mapping { id: 0, bytes, bases: vec![bases; self.local().len()] })
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        self.ask("unmap");
        let bases = mapping.bases.first().into_iter().flatten().filter(|base| **base != 0);
        bases.into_iter().try_for_each(|base| self.free(0, *base))
    }

    fn resident(&self, rank: usize, _: Code) -> Result<(u32, Block), BackendError> {
        Ok((self.sms(rank), Block { threads: 32, shared_bytes: 0 }))
    }

    fn enqueue(&self, _: usize, _: Stream, _: &KernelLaunch) -> Result<(), BackendError> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.ask("launch");
        Ok(())
    }

    fn accompany(&self, companion: Companion) -> Result<Box<dyn Accompanied>, BackendError> {
        let Companion { rank, args, .. } = companion;
        self.companions.lock().unwrap().push((rank, args));
        let (companions, in_flight) = (self.companions.clone(), self.in_flight.clone());
        Ok(Box::new(Beside { rank, companions, in_flight }))
    }

    fn capture(&self, _: usize, _: Stream) -> Result<Option<Capture>, BackendError> {
        self.ask("capture");
        Ok(self.is_captured.load(Ordering::Relaxed).then_some(Capture(1)))
    }

    fn begin_capture(&self, _: usize, _: Stream) -> Result<(), BackendError> {
        no_captures()
    }

    fn end_capture(&self, _: usize, _: Stream) -> Result<Captured, BackendError> {
        no_captures()
    }

    fn keep(&self, _: usize, _: Stream, kept: Kept) -> Result<(), BackendError> {
        self.kept.lock().unwrap().push(kept);
        Ok(())
    }

    fn replay(&self, _: usize, _: Stream, _: &Captured) -> Result<(), BackendError> {
        no_captures()
    }

    fn destroy_captured(&self, _: usize, _: Captured) -> Result<(), BackendError> {
        no_captures()
    }

    fn sync(&self, _: usize, _: Stream) -> Result<(), BackendError> {
        Ok(())
    }

    fn poll(&self, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn stream_number(&self, _: usize, stream: Stream) -> Option<u64> {
        self.ask("number");
        Some(self.renewed.load(Ordering::Relaxed) << 32 | stream.raw())
    }

    fn create_event(&self, _: usize) -> Result<Event, BackendError> {
        Ok(Event(0))
    }

    fn destroy_event(&self, _: usize, _: Event) -> Result<(), BackendError> {
        Ok(())
    }

    fn record(&self, _: usize, _: Stream, _: &Event) -> Result<(), BackendError> {
        self.ask("record");
        Ok(())
    }

    fn wait_event(&self, _: usize, _: Stream, _: &Event) -> Result<(), BackendError> {
        self.ask("wait");
        Ok(())
    }

    fn elapsed(&self, _: usize, _: &Event, _: &Event) -> Result<Duration, BackendError> {
        Ok(Duration::ZERO)
    }

    fn hold(&self, _: usize, _: Stream, _: &HostBlock, _: u64, _: u32) -> Result<(), BackendError> {
        Ok(())
    }
}

/// By rank, the arguments of kernels.
type Companions = Arc<Mutex<Vec<(usize, Vec<u8>)>>>;

struct Beside {
    rank: usize,
    companions: Companions,
    in_flight: Arc<AtomicBool>,
}

impl Accompanied for Beside {
    fn change(&self, args: &[u8]) -> Result<(), Busy> {
        if self.in_flight.load(Ordering::Relaxed) {
            return Err(Busy { rank: self.rank });
        }
        let mut companions = self.companions.lock().unwrap();
        companions.iter_mut().filter(|it| it.0 == self.rank).for_each(|it| it.1 = args.to_vec());
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.companions.lock().unwrap().retain(|it| it.0 != self.rank);
    }
}

fn no_captures<T>() -> Result<T, BackendError> {
    Err(BackendError::Wrong { what: "nothing is captured in memory".to_string() })
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
        kernels: vec![name.to_lowercase()],
        joined: None,
        arch: Arch::Sm90a,
        arms: Vec::new(),
        numbers: Numbers::new(),
        cfg: Vec::new(),
        args_bytes: 56 + 8 * params.len() as i64,
        params,
        window: Vec::new(),
        window_bytes: 0,
        network: Vec::new(),
        network_bytes: 0,
        network_counters: 0,
        carrier: None,
        threads: 32,
        shared_bytes: 0,
        roles: Vec::new(),
        recipe: Recipe::default(),
        blocks_min: 1,
        waits: false,
        enters: true,
        skips_ranks: false,
        leaves_out_absent: false,
        messages: Vec::<MessageLayout>::new(),
        pairs: Vec::new(),
        waivers: Vec::new(),
        taken: Vec::new(),
        extents: Vec::new(),
        strides: Vec::new(),
        lists: Vec::new(),
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

//! What the run time needs of a machine: memory, windows, launches and time.
//!
//! One backend drives some or all ranks of a group: on GPUs each rank is a device (or shares one),
//! on the host all ranks live in the emulator. Everything above this trait is written once.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ep_codegen::plan::{Arch, Plan};

/// A queue of work of one rank; the backend gives every rank one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(u64);

impl Stream {
    /// The rank's own stream.
    pub const OWN: Stream = Stream(0);

    /// The driver's default stream, on which programs run that name none. Nobody destroys it.
    pub const DEFAULT: Stream = Stream(1);

    /// A stream of the caller, by its driver handle (`CUstream`); 0 means the rank's own.
    ///
    /// # Safety
    ///
    /// The handle is a stream of the device of every rank it is used for, and outlives its use.
    pub unsafe fn from_raw(handle: u64) -> Stream {
        Stream(handle)
    }

    /// The driver handle; 0 for the rank's own stream.
    pub fn raw(self) -> u64 {
        self.0
    }
}

/// A kernel that was loaded for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub(crate) u64);

/// A point in a stream of one rank.
#[derive(Debug, PartialEq, Eq)]
pub struct Event(pub(crate) u64);

impl Event {
    /// The driver handle, for [`Signal::from_raw`].
    pub fn raw(&self) -> u64 {
        self.0
    }
}

/// A capture that is going on. Every stream that has joined it has the same number, which no other
/// capture of the backend ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capture(pub(crate) u64);

/// Captured work that can be launched any number of times.
#[derive(Debug, PartialEq, Eq)]
pub struct Captured(pub(crate) u64);

impl Captured {
    /// The number by which its backend knows it.
    pub fn raw(&self) -> u64 {
        self.0
    }
}

/// What a graph keeps alive: it is dropped when the graph can run no more.
pub type Kept = Box<dyn Send>;

/// Whether something can still come from outside after so long a wait.
pub type MayCome = Arc<dyn Fn(Duration) -> bool + Send + Sync>;

/// An event of the caller, by its driver handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal(u64);

impl Signal {
    /// An event of the caller, by its driver handle (`CUevent`).
    ///
    /// # Safety
    ///
    /// The handle is an event of the device of every rank it is used for, and outlives its use.
    pub unsafe fn from_raw(handle: u64) -> Signal {
        Signal(handle)
    }

    /// The event behind it, for as long as it is looked at.
    pub fn event(self) -> Event {
        Event(self.0)
    }
}

/// What [`Backend::compile`] makes of an emitted kernel: a CUBIN, or what a host backend loads.
pub type Image = Arc<[u8]>;

/// Host memory that kernels of one rank read and write: timeout records, counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HostBlock {
    /// Where the host finds it; only the backend that made it may look there.
    pub(crate) host: u64,
    /// Where kernels find it.
    pub(crate) device: u64,
    /// Size in bytes, a multiple of 4.
    pub(crate) bytes: u64,
}

impl HostBlock {
    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.device
    }
}

/// A symmetric window: as many bytes on every rank, each reachable from all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Number by which the backend knows it.
    pub id: u64,
    /// Size on every rank.
    pub bytes: u64,
    /// For each local rank, in order: the address of every rank's window as that rank sees it; 0 where it
    /// does not reach it.
    pub bases: Vec<Vec<u64>>,
}

/// How a network card reaches device memory.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub enum CardAccess {
    /// By a dma-buf of exactly the memory.
    DmaBuf(std::os::fd::OwnedFd),
    /// By its address, which a module of the kernel looks up.
    PeerMemory,
    /// Not at all, or without promising the order that kernels rely on.
    None,
}

/// The shape of a kernel's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Threads.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

/// One kernel launch.
#[derive(Debug, Clone, Copy)]
pub struct KernelLaunch<'a> {
    /// What [`Backend::load`] returned for this rank.
    pub code: Code,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Whether its blocks wait for one another, or several of them for other ranks, so that all of them
    /// have to be resident at once.
    pub waits: bool,
    /// Whether it first waits for the end of the kernel before it in its stream, as `ep::enter` does, so
    /// that it may be brought to the SMs ahead of that.
    pub enters: bool,
    /// How many phases of a call it runs: other ranks may launch them one by one.
    pub phases: u32,
    /// The kernel's one argument, `struct Args`.
    pub args: &'a [u8],
}

/// Rows that are copied within the memory of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// Address of the first row there.
    pub to: u64,
    /// Bytes from one row to the next there, at least those of a row.
    pub to_stride: u64,
    /// Address of the first row here.
    pub from: u64,
    /// Bytes from one row to the next here, at least those of a row.
    pub from_stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// How many.
    pub rows: u64,
}

impl RowCopy {
    /// Where each row goes, and where it comes from.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let RowCopy { to, to_stride, from, from_stride, rows, .. } = *self;
        (0..rows).map(move |row| (to + row * to_stride, from + row * from_stride))
    }
}

/// A kernel of the caller that runs beside those of a group, on another stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelBeside {
    /// Its rank.
    pub rank: usize,
    /// What it does, in order.
    pub steps: Vec<StepBeside>,
    /// What it reads: words of the group's kernels by address and bytes, and the memory of which they tell it.
    pub told: Vec<ToldMemory>,
}

/// A step of a kernel of the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepBeside {
    /// What it writes: address and bytes.
    pub written: Vec<(u64, u64)>,
    /// The words that it raises when all of that is written.
    pub raised: Vec<u64>,
}

/// Words by address and bytes, and the memory that is there once they have been raised.
pub type ToldMemory = ((u64, u64), Vec<(u64, u64)>);

/// A machine that runs emitted kernels for some ranks of a group.
///
/// Ranks are numbered over the whole group; every method that takes one wants a local rank.
/// Implementations never panic on wrong numbers: they return [`BackendError::Wrong`].
pub trait Backend: Send + Sync {
    /// The machine in a few words, such as `4 x NVIDIA H200`.
    fn name(&self) -> String;

    /// Ranks of the group.
    fn ranks(&self) -> usize;

    /// The ranks that this process drives.
    fn local(&self) -> Range<usize>;

    /// The ranks whose windows those reach, of this process or of others on the same machine.
    fn node(&self) -> Range<usize> {
        self.local()
    }

    /// Waits until every process of the group has come to the step `label`, and gives what each of
    /// them brought; just `value` when all ranks are local.
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError>;

    /// Says what this process does next, for the errors of processes that wait for it.
    fn say(&self, doing: &str) {
        let _ = doing;
    }

    /// Whether the process of a rank is gone.
    fn has_left(&self, rank: usize) -> bool {
        let _ = rank;
        false
    }

    /// Lets kernels wait for what comes from outside of a backend that runs them itself, as long as
    /// `may_come` says that something can; its argument is how long nothing has moved.
    fn wait_for(&self, may_come: MayCome) -> Result<(), BackendError> {
        drop(may_come);
        Ok(())
    }

    /// Lets kernels wait in vain for so long and go on, on a backend that would take that for a deadlock.
    fn let_waits_run_out(&self, after: Duration) {
        let _ = after;
    }

    /// What kernels are compiled for.
    fn arch(&self) -> Arch;

    /// SMs that the rank may fill; ranks of one device share them evenly.
    fn sms(&self, rank: usize) -> u32;

    /// The GPU of a local rank, by its number on this machine; none where ranks have no GPU.
    fn device(&self, rank: usize) -> Option<i32> {
        let _ = rank;
        None
    }

    /// Whether kernels run while the host does something else. If not, they run inside
    /// [`Backend::sync`] and [`Backend::poll`], and one thread has to launch for all ranks.
    fn runs_alone(&self) -> bool;

    /// Compiles emitted text.
    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError>;

    /// Loads a kernel completely, so that its first launch waits for nothing (M8).
    fn load(
        &self,
        rank: usize,
        image: &Image,
        entry: &str,
        block: Block,
    ) -> Result<Code, BackendError>;

    /// Unloads a kernel; no launch of it may be in flight.
    fn unload(&self, rank: usize, code: Code) -> Result<(), BackendError>;

    /// Allocates device memory, aligned to 256 bytes, with any content. May wait for the device.
    fn alloc(&self, rank: usize, bytes: u64) -> Result<u64, BackendError>;

    /// Frees what [`Backend::alloc`] returned. May wait for the device.
    fn free(&self, rank: usize, address: u64) -> Result<(), BackendError>;

    /// Copies to the device behind what is in the rank's own stream; `from` may be reused at once.
    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError>;

    /// Copies from the device behind what is in the rank's own stream, and waits for it.
    fn read(&self, rank: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError>;

    /// Sets bytes in stream order.
    fn fill(
        &self,
        rank: usize,
        stream: Stream,
        at: u64,
        byte: u8,
        bytes: u64,
    ) -> Result<(), BackendError>;

    /// Copies rows, in stream order.
    fn copy_rows(&self, rank: usize, stream: Stream, copy: &RowCopy) -> Result<(), BackendError>;

    /// Says what a piece of memory holds, to a backend that reports on what kernels touch.
    /// `waived`: policies of its checker that the accesses there need not keep.
    fn name_memory(&self, rank: usize, at: u64, bytes: u64, name: &str, waived: &[&str]) {
        let _ = (rank, at, bytes, name, waived);
    }

    /// Says which kernels run beside those of the group until the next call of this, to a backend that
    /// checks what is ordered.
    fn run_beside(&self, kernels: &[KernelBeside]) {
        let _ = kernels;
    }

    /// Says what a loaded kernel was planned as, by the number that its records carry, to a backend
    /// that reports on what kernels do.
    fn name_pipeline(&self, number: u32, plan: &Arc<Plan>) {
        let _ = (number, plan);
    }

    /// Allocates zeroed host memory that kernels of `rank` can reach.
    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError>;

    /// Frees what [`Backend::alloc_host`] returned.
    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError>;

    /// Reads words of a host block as they are now; `at` is a byte offset. Waits for nothing.
    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError>;

    /// Writes words of a host block; `at` is a byte offset. Waits for nothing.
    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError>;

    /// How a network card reaches `bytes` of device memory from `at` on, both whole pages.
    #[cfg(target_os = "linux")]
    fn reach_by_card(&self, rank: usize, at: u64, bytes: u64) -> Result<CardAccess, BackendError> {
        let _ = (rank, at, bytes);
        Ok(CardAccess::None)
    }

    /// Lets kernels of a rank write to registers of another device, which this process has mapped at `host`;
    /// gives where kernels find them.
    fn map_registers(&self, rank: usize, host: u64, bytes: u64) -> Result<u64, BackendError> {
        let _ = (rank, host, bytes);
        let what = format!("kernels on {} cannot ring the doorbell of a network card", self.name());
        Err(BackendError::Missing { what })
    }

    /// Undoes [`Backend::map_registers`].
    fn unmap_registers(&self, rank: usize, host: u64) -> Result<(), BackendError> {
        let _ = (rank, host);
        Ok(())
    }

    /// Maps a window of at least `bytes` on every rank, all zero. Every process of the group calls
    /// it with the same number and returns once all windows are zero and reachable.
    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError>;

    /// Unmaps a window; no kernel that knows it may be in flight on any rank.
    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError>;

    /// How many blocks of a kernel can be resident at once on what the rank has of its device, and what
    /// they are.
    fn resident(&self, rank: usize, code: Code) -> Result<(u32, Block), BackendError>;

    /// Fails if blocks that wait for one another are more than can be resident at once.
    fn check_blocks(
        &self,
        rank: usize,
        code: Code,
        blocks: u32,
        waits: bool,
    ) -> Result<(), BackendError> {
        match self.resident(rank, code)? {
            (have, block) if waits && blocks > have => {
                Err(BackendError::TooManyBlocks { need: blocks, have, block })
            }
            _ => Ok(()),
        }
    }

    /// Launches a kernel.
    fn launch(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError> {
        self.check_blocks(rank, launch.code, launch.blocks, launch.waits)?;
        self.enqueue(rank, stream, launch)
    }

    /// Puts a kernel into a stream, whose blocks fit.
    fn enqueue(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError>;

    /// The capture that records what is put into `stream`, whoever began it; none: it runs.
    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError>;

    /// Begins to record what is put into `stream`, until [`Backend::end_capture`] on the same thread.
    /// Meanwhile the stream cannot be waited for, and no event of it by other streams.
    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError>;

    /// Ends what [`Backend::begin_capture`] began.
    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError>;

    /// Keeps something for as long as what `stream` is capturing can run; the backend may drop it on
    /// any thread.
    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError>;

    /// Launches captured work, in stream order.
    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError>;

    /// Destroys captured work; what is in flight runs on.
    fn destroy_captured(&self, rank: usize, captured: Captured) -> Result<(), BackendError>;

    /// Waits until a stream is empty.
    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError>;

    /// Called in a loop by a host that waits for a word in a host block: lets the backend work, and
    /// reports a device that has failed meanwhile.
    fn poll(&self, rank: usize) -> Result<(), BackendError>;

    /// Creates one more stream of a rank, unordered with its own. Where a rank has but one queue, it
    /// is that one.
    fn create_stream(&self, rank: usize) -> Result<Stream, BackendError> {
        let _ = rank;
        Ok(Stream::OWN)
    }

    /// Destroys what [`Backend::create_stream`] made, when it is empty.
    fn destroy_stream(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let _ = (rank, stream);
        Ok(())
    }

    /// A number that the stream has for itself as long as the process lives, where streams have any.
    fn stream_number(&self, rank: usize, stream: Stream) -> Option<u64> {
        let _ = (rank, stream);
        None
    }

    /// Creates an event that orders streams and tells no time, which costs less than one that does.
    fn create_mark(&self, rank: usize) -> Result<Event, BackendError> {
        self.create_event(rank)
    }

    /// Creates an event.
    fn create_event(&self, rank: usize) -> Result<Event, BackendError>;

    /// Destroys an event.
    fn destroy_event(&self, rank: usize, event: Event) -> Result<(), BackendError>;

    /// Puts an event behind all that is in the stream.
    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError>;

    /// Makes what follows in `stream` wait for `event`.
    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError>;

    /// Time between two events of one rank that have both passed.
    fn elapsed(&self, rank: usize, from: &Event, to: &Event) -> Result<Duration, BackendError>;

    /// Makes what follows in `stream` wait until the word at byte `at` of `block` is at least
    /// `value`: work of several ranks, queued behind it, starts at one moment.
    fn hold(
        &self,
        rank: usize,
        stream: Stream,
        block: &HostBlock,
        at: u64,
        value: u32,
    ) -> Result<(), BackendError>;
}

impl dyn Backend + '_ {
    /// Fails while a rank's own stream is being captured: who waited for it would end the capture.
    pub(crate) fn require_no_capture(&self, rank: usize) -> Result<(), BackendError> {
        match self.capture(rank, Stream::OWN)? {
            None => Ok(()),
            Some(_) => {
                let what = format!(
                    "rank {rank}'s own stream is being captured: end that before a wait for it"
                );
                Err(BackendError::Wrong { what })
            }
        }
    }
}

/// Why a backend could not do what it was asked.
#[derive(Clone, PartialEq, Eq)]
pub enum BackendError {
    /// A library, device or ability is missing; the text says which, and what to do.
    Missing {
        /// What is missing, as a sentence.
        what: String,
    },
    /// A call of the driver failed.
    Failed {
        /// The call, such as `cuMemCreate`.
        call: &'static str,
        /// The rank it was made for, if it was for one.
        rank: Option<usize>,
        /// The driver's code.
        code: u32,
        /// The driver's name and words for it.
        text: String,
    },
    /// A kernel did not compile.
    Compile {
        /// Kernel.
        name: String,
        /// What the compiler said.
        log: String,
    },
    /// More blocks than can be resident at once, so that they would wait for one another for ever.
    TooManyBlocks {
        /// Blocks asked for.
        need: u32,
        /// Blocks that fit on what this rank has of its device.
        have: u32,
        /// The shape of a block.
        block: Block,
    },
    /// A kernel did what the emulator of the host does not let pass.
    Kernel {
        /// What it is, in a word or two.
        kind: &'static str,
        /// What happened and where; may have several lines.
        report: String,
        /// Seed of the schedule that replays it.
        seed: u64,
    },
    /// The processes of the group did not come together, or came apart.
    Group {
        /// What happened, as a sentence.
        what: String,
    },
    /// A number that no correct caller passes: a rank that is not local, a range outside a block.
    Wrong {
        /// What is wrong with it, as a sentence.
        what: String,
    },
}

/// What `main` prints of it: the sentence.
impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendError::Missing { what }
            | BackendError::Group { what }
            | BackendError::Wrong { what } => f.write_str(what),
            BackendError::Failed { call, rank, code, text } => {
                write!(f, "{call} failed")?;
                if let Some(rank) = rank {
                    write!(f, " for rank {rank}")?;
                }
                write!(f, " with {code}: {text}")
            }
            BackendError::Compile { name, log } => write!(f, "{name} does not compile:\n{log}"),
            BackendError::Kernel { kind, report, seed } => {
                write!(f, "{kind}: {report} (seed {seed})")
            }
            BackendError::TooManyBlocks { need, have, block } => write!(
                f,
                "{need} blocks of {} threads and {} bytes of shared memory wait for one another, \
                 but only {have} fit at once",
                block.threads, block.shared_bytes
            ),
        }
    }
}

impl std::error::Error for BackendError {}

//! The interface to a machine: memory, windows, launches and time.
//!
//! One backend drives some or all ranks of a group. On GPUs each rank is a device (or shares one); on the
//! host all ranks live in the emulator. Everything above this trait is written once.

use std::any::Any;
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

    /// The driver's default stream, which programs use that name no stream. Nothing destroys this stream.
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

/// An object that a graph keeps alive, and that is dropped when the graph can no longer run.
pub type Kept = Box<dyn Send>;

/// Whether something can still arrive from outside after a wait of this length.
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

    /// The event of this signal, borrowed for as long as it is used.
    pub fn event(self) -> Event {
        Event(self.0)
    }
}

/// The result of [`Backend::compile`]: a CUBIN, or what a host backend loads.
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
    /// The address for kernels.
    pub fn address(&self) -> u64 {
        self.device
    }
}

/// A symmetric window: the same number of bytes on every rank, accessible from all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Number that identifies the window in the backend.
    pub id: u64,
    /// Size on every rank.
    pub bytes: u64,
    /// For each local rank, in order: the address of every rank's window as that rank sees it, or 0 if it
    /// cannot access that window.
    pub bases: Vec<Vec<u64>>,
}

/// How a network card accesses device memory.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub enum CardAccess {
    /// By a dma-buf of exactly this memory.
    DmaBuf(std::os::fd::OwnedFd),
    /// By its address, which a kernel module looks up.
    PeerMemory,
    /// Not at all, or without the ordering that kernels rely on.
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
    /// Whether all of its blocks have to be resident at once, because they wait for one another, or because
    /// several of them wait for other ranks.
    pub waits: bool,
    /// Whether the kernel first waits for the end of its predecessor in the stream, as `ep::enter` does, so
    /// that it may be launched before that end.
    pub enters: bool,
    /// Number of phases of a call in this launch; other ranks may launch the phases one by one. 0 for a kernel without
    /// channels, which other ranks need not launch.
    pub phases: u32,
    /// The kernel's one argument, `struct Args`.
    pub args: &'a [u8],
}

/// Writes a word that a kernel reads.
pub type Stop = Box<dyn Fn(u32) -> Result<(), BackendError> + Send + Sync>;

/// A kernel that runs beside all others of its device, as long as any of them is in flight. It keeps its state in memory,
/// and may be stopped and started again.
pub struct Companion {
    /// The rank whose device it runs on.
    pub rank: usize,
    /// What [`Backend::load`] returned for this rank.
    pub code: Code,
    /// Blocks of the grid, all of which are resident at once.
    pub blocks: u32,
    /// The kernel's one argument. Its last 4 bytes are for the number of the start.
    pub args: Vec<u8>,
    /// Memory that is zero when the kernel starts: address and bytes.
    pub control: (u64, u64),
    /// Writes a word for the kernel, which ends soon after that has become the number of its start.
    pub stop: Stop,
}

/// A launch of this rank is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// The rank.
    pub rank: usize,
}

/// A kernel that runs beside all others of its device until this is dropped. Nothing that needs it may be in flight then.
pub trait Accompanied: Send + Sync {
    /// Stops the kernel and gives it other arguments, with which the next launch starts it. Fails while a launch of the
    /// process is in flight, which may need the kernel.
    fn change(&self, args: &[u8]) -> Result<(), Busy>;
}

/// Rows that are copied within the memory of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// Address of the first destination row.
    pub to: u64,
    /// Bytes from one destination row to the next, at least the size of a row.
    pub to_stride: u64,
    /// Address of the first source row.
    pub from: u64,
    /// Bytes from one source row to the next, at least the size of a row.
    pub from_stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: u64,
}

impl RowCopy {
    /// The destination and the source of each row.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let RowCopy { to, to_stride, from, from_stride, rows, .. } = *self;
        (0..rows).map(move |row| (to + row * to_stride, from + row * from_stride))
    }
}

/// A kernel of the caller that runs beside the group's kernels, on another stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelBeside {
    /// The rank of the kernel.
    pub rank: usize,
    /// The steps of the kernel, in order.
    pub steps: Vec<StepBeside>,
    /// What it reads: words of the group's kernels by address and bytes, and the memory that those words
    /// publish.
    pub told: Vec<ToldMemory>,
}

/// A step of a kernel of the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepBeside {
    /// Memory that the step writes: address and bytes.
    pub written: Vec<(u64, u64)>,
    /// The words that the step raises once everything is written.
    pub raised: Vec<u64>,
}

/// Words by address and bytes, and the memory that is ready once they have been raised.
pub type ToldMemory = ((u64, u64), Vec<(u64, u64)>);

/// A machine that runs emitted kernels for some ranks of a group.
///
/// Ranks are numbered over the whole group. Methods that take a rank expect a local one. Implementations
/// never panic on wrong numbers: they return [`BackendError::Wrong`].
pub trait Backend: Send + Sync {
    /// The machine in a few words, such as `4 x NVIDIA H200`.
    fn name(&self) -> String;

    /// The emulator behind this backend, a `HostBackend`, if there is one.
    fn emulator(&self) -> Option<&dyn Any> {
        None
    }

    /// Ranks of the group.
    fn ranks(&self) -> usize;

    /// The ranks that this process drives.
    fn local(&self) -> Range<usize>;

    /// The ranks whose windows the local ranks access, in this process or in others on the same machine.
    fn node(&self) -> Range<usize> {
        self.local()
    }

    /// Waits until every process of the group has reached the step `label`, and returns the value of each;
    /// just `value` if all ranks are local.
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError>;

    /// Announces what this process does next, for the errors of processes that wait for it.
    fn say(&self, doing: &str) {
        let _ = doing;
    }

    /// Whether the process of a rank is gone.
    fn has_left(&self, rank: usize) -> bool {
        let _ = rank;
        false
    }

    /// Lets kernels wait for outside events on a backend that runs the kernels itself, as long as
    /// `may_come` says that something can arrive. Its argument is how long nothing has moved.
    fn wait_for(&self, may_come: MayCome) -> Result<(), BackendError> {
        drop(may_come);
        Ok(())
    }

    /// Lets waits of kernels expire after this time and kernels go on, on a backend that would report a
    /// deadlock instead.
    fn let_waits_run_out(&self, after: Duration) {
        let _ = after;
    }

    /// The target architecture of kernels.
    fn arch(&self) -> Arch;

    /// SMs that the rank may fill. Ranks on one device share its SMs evenly.
    fn sms(&self, rank: usize) -> u32;

    /// The GPU of a local rank, by its number on this machine; `None` if ranks have no GPU.
    fn device(&self, rank: usize) -> Option<i32> {
        let _ = rank;
        None
    }

    /// Whether kernels run while the host does something else. If not, they run inside [`Backend::sync`]
    /// and [`Backend::poll`], and one thread has to launch for all ranks.
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

    /// Copies to the device, after the work in the rank's own stream. `from` may be reused at once.
    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError>;

    /// Copies from the device, after the work in the rank's own stream, and waits for the copy.
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

    /// Names a piece of memory for a backend that reports accesses of kernels. `waived`: policies of its
    /// checker that accesses to this memory need not follow.
    fn name_memory(&self, rank: usize, at: u64, bytes: u64, name: &str, waived: &[&str]) {
        let _ = (rank, at, bytes, name, waived);
    }

    /// Sets the kernels that run beside those of the group until the next call of this method, for a
    /// backend that checks the order of accesses.
    fn run_beside(&self, kernels: &[KernelBeside]) {
        let _ = kernels;
    }

    /// Sets the plan of a loaded kernel, under the number that its records carry, for a backend that
    /// reports on kernels.
    fn name_pipeline(&self, number: u32, plan: &Arc<Plan>) {
        let _ = (number, plan);
    }

    /// Allocates zeroed host memory that kernels of `rank` can reach.
    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError>;

    /// Frees what [`Backend::alloc_host`] returned.
    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError>;

    /// Reads words of a host block as they are now; `at` is a byte offset. Does not wait.
    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError>;

    /// Writes words of a host block; `at` is a byte offset. Does not wait.
    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError>;

    /// How a network card accesses `bytes` of device memory starting at `at`, both whole pages.
    #[cfg(target_os = "linux")]
    fn reach_by_card(&self, rank: usize, at: u64, bytes: u64) -> Result<CardAccess, BackendError> {
        let _ = (rank, at, bytes);
        Ok(CardAccess::None)
    }

    /// Lets kernels of a rank write to registers of another device, which this process has mapped at
    /// `host`. Returns their address for kernels.
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

    /// Maps a window of at least `bytes` on every rank, all zero. Every process of the group makes this
    /// call with the same number. The call returns once all windows are zero and accessible.
    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError>;

    /// As [`Backend::map_window`], on all ranks of the group, of whatever node. All of them are on this machine.
    fn map_machine_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        if self.node() == (0..self.ranks()) {
            return self.map_window(bytes);
        }
        let what = format!("{} does not share memory with ranks of other nodes", self.name());
        Err(BackendError::Missing { what })
    }

    /// Unmaps a window. No kernel that knows it may be in flight on any rank.
    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError>;

    /// How many blocks of a kernel can be resident at once on the rank's share of its device, with a
    /// description of that share.
    fn resident(&self, rank: usize, code: Code) -> Result<(u32, Block), BackendError>;

    /// Fails if more blocks wait for one another than can be resident at once.
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

    /// Puts a kernel whose blocks fit into a stream.
    fn enqueue(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError>;

    /// Runs a kernel beside all others of its device.
    fn accompany(&self, companion: Companion) -> Result<Box<dyn Accompanied>, BackendError> {
        drop(companion);
        let what = format!("{} cannot run several kernels at a time", self.name());
        Err(BackendError::Missing { what })
    }

    /// The capture that records work put into `stream`, no matter who began it; `None`: work runs.
    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError>;

    /// Begins to record work put into `stream`, until [`Backend::end_capture`] on the same thread.
    /// Meanwhile the host cannot wait for the stream, and other streams cannot wait for its events.
    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError>;

    /// Ends the capture that [`Backend::begin_capture`] began.
    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError>;

    /// Keeps an object for as long as the work that `stream` is capturing can run. The backend may drop it
    /// on any thread.
    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError>;

    /// Launches captured work, in stream order.
    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError>;

    /// Destroys captured work. Work in flight still completes.
    fn destroy_captured(&self, rank: usize, captured: Captured) -> Result<(), BackendError>;

    /// Waits until a stream is empty.
    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError>;

    /// Called in a loop by a host that waits for a word in a host block: lets the backend work, and reports
    /// a device that has failed meanwhile.
    fn poll(&self, rank: usize) -> Result<(), BackendError>;

    /// Creates one more stream of a rank, unordered with its own. If a rank has only one queue, returns
    /// that one.
    fn create_stream(&self, rank: usize) -> Result<Stream, BackendError> {
        let _ = rank;
        Ok(Stream::OWN)
    }

    /// Destroys what [`Backend::create_stream`] made, when it is empty.
    fn destroy_stream(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let _ = (rank, stream);
        Ok(())
    }

    /// A number that no other stream gets as long as the process lives, if streams have such numbers.
    fn stream_number(&self, rank: usize, stream: Stream) -> Option<u64> {
        let _ = (rank, stream);
        None
    }

    /// Creates an event that orders streams and records no time. Such an event costs less than one with a
    /// time.
    fn create_mark(&self, rank: usize) -> Result<Event, BackendError> {
        self.create_event(rank)
    }

    /// Creates an event.
    fn create_event(&self, rank: usize) -> Result<Event, BackendError>;

    /// Destroys an event.
    fn destroy_event(&self, rank: usize, event: Event) -> Result<(), BackendError>;

    /// Puts an event after all work in the stream.
    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError>;

    /// Makes later work in `stream` wait for `event`.
    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError>;

    /// Time between two events of one rank that have both passed.
    fn elapsed(&self, rank: usize, from: &Event, to: &Event) -> Result<Duration, BackendError>;

    /// Makes later work in `stream` wait until the word at byte `at` of `block` is at least `value`. Queued
    /// work of several ranks can then start at one moment.
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
    /// Fails while a rank's own stream is being captured, because waiting for it would end the capture.
    pub(crate) fn require_no_capture(&self, rank: usize) -> Result<(), BackendError> {
        match self.capture(rank, Stream::OWN)? {
            None => Ok(()),
            Some(_) => {
                let what = format!(
                    "the own stream of rank {rank} is being captured: end the capture before a wait for \
                    the stream"
                );
                Err(BackendError::Wrong { what })
            }
        }
    }
}

/// Why a backend could not carry out a call.
#[derive(Clone, PartialEq, Eq)]
pub enum BackendError {
    /// A library, device or feature is missing. The text says which, and what to do.
    Missing {
        /// The missing part, as a sentence.
        what: String,
    },
    /// A driver call failed.
    Failed {
        /// The name of the call, such as `cuMemCreate`.
        call: &'static str,
        /// The rank of the call, if it has one.
        rank: Option<usize>,
        /// The driver's error code.
        code: u32,
        /// The driver's name and text for the code.
        text: String,
    },
    /// A kernel did not compile.
    Compile {
        /// The kernel.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// More blocks than can be resident at once, so they would wait for one another forever.
    TooManyBlocks {
        /// Number of blocks requested.
        need: u32,
        /// Number of blocks that fit on this rank's share of its device.
        have: u32,
        /// The shape of a block.
        block: Block,
    },
    /// A kernel did something that the emulator of the host does not allow.
    Kernel {
        /// The kind of error, in a word or two.
        kind: &'static str,
        /// What happened and where; may have several lines.
        report: String,
        /// Seed of the schedule that replays the error.
        seed: u64,
    },
    /// The processes of the group did not join, or one left.
    Group {
        /// What happened, as a sentence.
        what: String,
    },
    /// A number that no correct caller passes: a rank that is not local, a range outside a block.
    Wrong {
        /// The error, as a sentence.
        what: String,
    },
}

/// Prints the sentence, because `main` prints errors in this form.
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

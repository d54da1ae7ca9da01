//! The host backend with streams as unkind as a device may make them: what no event orders runs in the
//! reverse order of the streams. A kernel runs when every rank has come to it, for all ranks at once.
//!
//! Memory and kernels are those of the host backend, which has one queue a rank.

mod allocations;
mod streams;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ep_runtime::backend::{
    Backend, BackendError, Block, Capture, Captured, Code, Event, HostBlock, Image, Kept,
    KernelLaunch, Mapping, RowCopy, Stream,
};
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;

use allocations::Pause;
use streams::{Kernel, Next, Streams, Work};

pub(crate) use allocations::allocations_of;

/// How long a wait gives other threads to launch.
const PATIENCE: Duration = Duration::from_secs(5);

/// The C++ compiler; none on a machine without one.
pub(crate) fn programs() -> Option<&'static Arc<Programs>> {
    static PROGRAMS: LazyLock<Option<Arc<Programs>>> = LazyLock::new(|| {
        // Where the tests on the host keep their programs: beside the folder that this test is in.
        let test = std::env::current_exe().ok();
        let target = test.as_ref().and_then(|test| test.parent()?.parent()?.parent());
        let folder = target.map_or_else(std::env::temp_dir, PathBuf::from).join("tmp").join("host");
        match Programs::find_with(&folder) {
            Ok(programs) => Some(programs),
            Err(error) => {
                // Past the capture of the harness, which hides what passing tests print.
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
                None
            }
        }
    });
    PROGRAMS.as_ref()
}

/// Ranks whose streams nothing orders but events.
pub(crate) struct UnorderedBackend {
    host: Arc<HostBackend>,
    /// Whether it looks as if kernels ran by themselves: whoever waits gives other threads the time
    /// to launch what is missing.
    pub(crate) runs_alone: AtomicBool,
    /// Whether a dropped graph lets go of what it kept later, piece by piece, as a driver does.
    pub(crate) lets_go_late: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: Streams,
    /// Every loaded kernel, with what it was loaded from and its name.
    codes: Vec<(Code, Image, String)>,
    windows: BTreeMap<u64, Mapping>,
    /// How often each kernel has run, by name.
    runs: BTreeMap<String, u64>,
}

/// The streams while somebody looks at them; what this allocates meanwhile is a driver's.
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    _pause: Pause,
}

impl UnorderedBackend {
    /// None on a machine without a C++ compiler.
    pub(crate) fn new(ranks: usize) -> Option<Arc<UnorderedBackend>> {
        let host = HostBackend::new(programs()?, HostOptions::new(ranks)).unwrap();
        Some(Arc::new(UnorderedBackend {
            host,
            runs_alone: AtomicBool::new(false),
            lets_go_late: AtomicBool::new(false),
            state: Mutex::default(),
        }))
    }

    /// How often the kernel of this name has run on all ranks.
    pub(crate) fn runs(&self, name: &str) -> u64 {
        self.lock().state.runs.get(name).copied().unwrap_or(0)
    }

    /// The longest waits of the kernels that are queued, in the order of their streams.
    pub(crate) fn timeouts_ns(&self) -> Vec<u64> {
        self.lock().state.streams.timeouts_ns()
    }

    /// Whether an address lies in a window that is mapped.
    pub(crate) fn maps(&self, address: u64) -> bool {
        let locked = self.lock();
        let mut windows = locked.state.windows.values();
        windows.any(|window| {
            let mut bases = window.bases.iter().flatten();
            bases.any(|base| (*base..*base + window.bytes).contains(&address))
        })
    }

    fn lock(&self) -> Locked<'_> {
        let pause = Pause::new();
        Locked { state: self.state.lock().unwrap(), _pause: pause }
    }

    fn put(&self, rank: usize, stream: Stream, work: Work) {
        self.lock().state.streams.put(rank, stream.raw(), work);
    }

    /// Runs what can run.
    fn run(&self, state: &mut State) -> Result<(), BackendError> {
        while let Some(next) = state.streams.next(self.ranks()) {
            match next {
                Next::Kernel(kernels) => {
                    for (rank, kernel) in kernels.iter().enumerate() {
                        let Kernel { code, blocks, waits, phases, ref args, .. } = *kernel;
                        let launch =
                            KernelLaunch { code, blocks, waits, enters: false, phases, args };
                        self.host.launch(rank, Stream::OWN, &launch)?;
                    }
                    (0..self.ranks()).try_for_each(|rank| self.host.sync(rank, Stream::OWN))?;
                    let name = kernels.first().map(|kernel| kernel.name.clone());
                    *state.runs.entry(name.unwrap_or_default()).or_default() += 1;
                }
                Next::Alone(rank, Work::Fill { at, byte, bytes }) => {
                    self.host.fill(rank, Stream::OWN, at, byte, bytes)?;
                }
                Next::Alone(rank, Work::Copy(copy)) => {
                    self.host.copy_rows(rank, Stream::OWN, &copy)?;
                }
                Next::Alone(_, Work::Mark(mark)) => state.streams.pass(mark),
                Next::Alone(..) => {}
            }
        }
        Ok(())
    }
}

impl Backend for UnorderedBackend {
    fn name(&self) -> String {
        "host with unordered streams".to_string()
    }

    fn ranks(&self) -> usize {
        self.host.ranks()
    }

    fn local(&self) -> Range<usize> {
        self.host.local()
    }

    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let _pause = Pause::new();
        self.host.gather(label, value)
    }

    fn arch(&self) -> Arch {
        self.host.arch()
    }

    fn sms(&self, rank: usize) -> u32 {
        self.host.sms(rank)
    }

    fn runs_alone(&self) -> bool {
        self.runs_alone.load(Ordering::Relaxed)
    }

    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError> {
        self.host.compile(name, cuda)
    }

    fn load(
        &self,
        rank: usize,
        image: &Image,
        entry: &str,
        block: Block,
    ) -> Result<Code, BackendError> {
        let code = self.host.load(rank, image, entry, block)?;
        self.lock().state.codes.push((code, Arc::clone(image), entry.to_string()));
        Ok(code)
    }

    fn unload(&self, rank: usize, code: Code) -> Result<(), BackendError> {
        self.host.unload(rank, code)
    }

    fn alloc(&self, rank: usize, bytes: u64) -> Result<u64, BackendError> {
        self.host.alloc(rank, bytes)
    }

    fn free(&self, rank: usize, address: u64) -> Result<(), BackendError> {
        self.host.free(rank, address)
    }

    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError> {
        self.sync(rank, Stream::OWN)?;
        self.host.write(rank, to, from)
    }

    fn read(&self, rank: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.sync(rank, Stream::OWN)?;
        self.host.read(rank, from, to)
    }

    fn fill(
        &self,
        rank: usize,
        stream: Stream,
        at: u64,
        byte: u8,
        bytes: u64,
    ) -> Result<(), BackendError> {
        self.put(rank, stream, Work::Fill { at, byte, bytes });
        Ok(())
    }

    fn copy_rows(&self, rank: usize, stream: Stream, copy: &RowCopy) -> Result<(), BackendError> {
        self.put(rank, stream, Work::Copy(*copy));
        Ok(())
    }

    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError> {
        self.host.alloc_host(rank, bytes)
    }

    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError> {
        self.host.free_host(rank, block)
    }

    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        let _pause = Pause::new();
        self.host.read_host(block, at, to)
    }

    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError> {
        let mut locked = self.lock();
        self.host.write_host(block, at, from)?;
        let places = (block.address() + at..).step_by(4);
        locked.state.streams.words.extend(places.zip(from.iter().copied()));
        Ok(())
    }

    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        let mapping = self.host.map_window(bytes)?;
        self.lock().state.windows.insert(mapping.id, mapping.clone());
        Ok(mapping)
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        self.lock().state.windows.remove(&mapping.id);
        self.host.unmap_window(mapping)
    }

    fn resident(&self, rank: usize, code: Code) -> Result<(u32, Block), BackendError> {
        self.host.resident(rank, code)
    }

    fn enqueue(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError> {
        let mut locked = self.lock();
        let state = &mut locked.state;
        let loaded = state.codes.iter().find(|(code, ..)| *code == launch.code);
        let (_, image, name) = loaded.expect("a kernel is loaded before it is launched");
        let kernel = Kernel {
            code: launch.code,
            image: Arc::clone(image),
            name: name.clone(),
            blocks: launch.blocks,
            waits: launch.waits,
            phases: launch.phases,
            args: launch.args.to_vec(),
            turn: 0,
        };
        state.streams.put(rank, stream.raw(), Work::Kernel(kernel));
        Ok(())
    }

    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError> {
        let capture = self.lock().state.streams.capture(rank, stream.raw());
        // The host backend gives out the numbers of captures.
        capture.map_or(Ok(None), |number| self.host.capture(rank, stand_in(number)))
    }

    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let number = self.lock().state.streams.begin(rank, stream.raw());
        self.host.begin_capture(rank, stand_in(number))
    }

    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError> {
        let mut locked = self.lock();
        let (number, ended) = locked.state.streams.end(rank, stream.raw())?;
        let captured = self.host.end_capture(rank, stand_in(number))?;
        if let Err(error) = ended {
            drop(locked);
            self.host.destroy_captured(rank, captured)?;
            return Err(error);
        }
        locked.state.streams.store(number, &captured);
        Ok(captured)
    }

    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError> {
        let capture = self.lock().state.streams.capture(rank, stream.raw());
        let kept = match self.lets_go_late.load(Ordering::Relaxed) {
            true => Late::keep(kept),
            false => kept,
        };
        self.host.keep(rank, stand_in(capture.expect("the stream is captured")), kept)
    }

    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError> {
        self.lock().state.streams.replay(rank, stream.raw(), captured);
        Ok(())
    }

    fn destroy_captured(&self, rank: usize, captured: Captured) -> Result<(), BackendError> {
        self.lock().state.streams.destroy(&captured);
        // Drops what was kept, which frees memory of this backend.
        self.host.destroy_captured(rank, captured)
    }

    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut locked = self.lock();
            locked.state.streams.require_running(rank, stream.raw())?;
            self.run(&mut locked.state)?;
            if locked.state.streams.is_empty(rank, stream.raw()) {
                return Ok(());
            }
            drop(locked);
            if !self.runs_alone() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let what = format!("rank {rank} waits for a launch that no rank has made");
        Err(BackendError::Wrong { what })
    }

    fn poll(&self, _: usize) -> Result<(), BackendError> {
        let mut locked = self.lock();
        self.run(&mut locked.state)
    }

    fn create_stream(&self, _: usize) -> Result<Stream, BackendError> {
        // SAFETY: any number is a stream here.
        Ok(unsafe { Stream::from_raw(self.lock().state.streams.number()) })
    }

    fn create_event(&self, rank: usize) -> Result<Event, BackendError> {
        self.host.create_event(rank)
    }

    fn destroy_event(&self, rank: usize, event: Event) -> Result<(), BackendError> {
        self.host.destroy_event(rank, event)
    }

    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        self.lock().state.streams.record(rank, stream.raw(), event.raw());
        Ok(())
    }

    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        self.lock().state.streams.wait(rank, stream.raw(), event.raw())
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
        self.put(rank, stream, Work::Hold { at: block.address() + at, value });
        Ok(())
    }
}

/// Something that a thread drops some time after this is dropped.
struct Late {
    kept: Option<Kept>,
    after: Duration,
}

impl Late {
    fn keep(kept: Kept) -> Kept {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let after = Duration::from_millis(10 * (1 + COUNT.fetch_add(1, Ordering::Relaxed) % 5));
        Box::new(Late { kept: Some(kept), after })
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let (kept, after) = (self.kept.take(), self.after);
        std::thread::spawn(move || {
            std::thread::sleep(after);
            drop(kept);
        });
    }
}

/// The stream of the host backend that stands for a capture: it is captured, and nothing is put there.
fn stand_in(number: u64) -> Stream {
    // SAFETY: any number is a stream of the host backend.
    unsafe { Stream::from_raw((1 << 48) + number) }
}

//! Kernels that run beside all others of their device: network cards that are kernels.
//!
//! They run from the first launch until some time after the last launch has ended. They do not run for longer, because
//! the driver waits for all kernels of a device when it frees memory or unloads code.
//!
//! That wait holds a lock of the driver, and so does a launch that waits for room in its queue. A thread that asks the
//! driver meanwhile waits as well. The thread that stops companions must therefore never ask the driver: streams write
//! to host memory how far they are, and companions read from host memory whether to stop.
//!
//! The arguments of a companion change only while no launch is in flight, because a kernel that was launched needs its
//! companions until its end.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::capture;
use super::driver::check;
use super::kernel::Function;
use crate::backend::{Accompanied, BackendError, Busy, Companion, KernelLaunch};

/// How often a thread looks whether kernels are in flight.
const LOOK: Duration = Duration::from_micros(200);

/// How long none is before companions are stopped: one call follows another within this time.
const PATIENCE: Duration = Duration::from_millis(2);

/// Streams of all ranks that may launch beside companions.
const MARKS_MAX: usize = 1024;

/// All companions of a process.
#[derive(Default)]
pub(super) struct Companions {
    has_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: Vec<Beside>,
    next: u64,
    is_running: bool,
    /// How often companions were started: not 0 while they run.
    starts: u32,
    has_thread: bool,
    /// The ranks of the launches that threads are making now.
    begun: Vec<usize>,
    /// By rank and handle of the stream.
    marks: BTreeMap<(usize, usize), Arc<Mark>>,
    words: Option<Arc<Words>>,
    idle_since: Option<Instant>,
}

/// A companion with a stream of its own.
struct Beside {
    number: u64,
    context: sys::CUcontext,
    stream: sys::CUstream,
    function: Function,
    companion: Companion,
    /// The number of its last start.
    started: u32,
}

/// How far a stream is with its launches.
struct Mark {
    words: Arc<Words>,
    index: usize,
    /// The number of its last launch. Held while a thread launches, so that numbers are written in order.
    last: Mutex<u32>,
}

/// Page-locked words, one for each mark, that all devices may write.
struct Words {
    host: *const AtomicU32,
    device: u64,
}

// SAFETY: driver handles belong to the process; the driver may be called with them from any thread.
unsafe impl Send for State {}
// SAFETY: the words are atomic, and live until the last of their owners goes.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// The companion of this number, which ends when this is dropped.
struct Running {
    number: u64,
    companions: Arc<Companions>,
}

fn enter(rank: usize, context: sys::CUcontext) -> Result<(), BackendError> {
    // SAFETY: the context was retained when its rank was opened and outlives all companions.
    check("cuCtxSetCurrent", Some(rank), unsafe { sys::cuCtxSetCurrent(context) })
}

impl Beside {
    fn start(&mut self, number: u32) -> Result<(), BackendError> {
        let Companion { rank, blocks, control: (at, bytes), .. } = self.companion;
        enter(rank, self.context)?;
        let mut args = self.companion.args.clone();
        if let Some(last) = args.last_chunk_mut() {
            *last = number.to_le_bytes();
        }
        // SAFETY: the companion owns the memory; a wrong address fails the context, not the host.
        let result = unsafe { sys::cuMemsetD8Async(at, 0, bytes as usize, self.stream) };
        check("cuMemsetD8Async", Some(rank), result)?;
        let launch = KernelLaunch {
            code: self.companion.code,
            blocks,
            waits: true,
            enters: false,
            phases: 1,
            args: &args,
        };
        self.function.launch(self.stream, &launch, [false, false])?;
        self.started = number;
        Ok(())
    }

    /// Tells the companion to end, without asking the driver.
    fn stop(&self) {
        let _ = (self.companion.stop)(self.started);
    }

    fn await_end(&self) {
        let _relaxed = capture::relaxed();
        if enter(self.companion.rank, self.context).is_ok() {
            // SAFETY: the stream lives as long as `self`. A failure means that the device is lost.
            let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if enter(self.companion.rank, self.context).is_ok() {
            // SAFETY: made once in `add`, and empty.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

impl Words {
    /// Allocates them; a context is current.
    fn new(rank: usize) -> Result<Words, BackendError> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        let (bytes, mut host) = (MARKS_MAX * size_of::<u32>(), ptr::null_mut::<c_void>());
        // SAFETY: writes one address of `bytes` page-locked bytes.
        let result = unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) };
        check("cuMemHostAlloc", Some(rank), result)?;
        let mut words = Words { host: host.cast(), device: 0 };
        // SAFETY: `host` was just allocated with DEVICEMAP; then zeroed before anyone knows it.
        let result = unsafe {
            ptr::write_bytes(host.cast::<u8>(), 0, bytes);
            sys::cuMemHostGetDevicePointer_v2(&mut words.device, host, 0)
        };
        check("cuMemHostGetDevicePointer", Some(rank), result).map(|()| words)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: allocated once in `new`. It fails if no context is left, and then the memory is gone.
        let _ = unsafe { sys::cuMemFreeHost(self.host.cast_mut().cast()) };
    }
}

impl Mark {
    /// Launches, and has the stream write the number of the launch when that has ended.
    fn launch(
        &self,
        rank: usize,
        stream: sys::CUstream,
        launch: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        launch()?;
        let next = last.wrapping_add(1);
        let at = self.words.device + (self.index * size_of::<u32>()) as u64;
        // SAFETY: the word lives as long as the mark, which the state keeps.
        let result = unsafe { sys::cuStreamWriteValue32_v2(stream, at, next, 0) };
        check("cuStreamWriteValue32", Some(rank), result)?;
        *last = next;
        Ok(())
    }

    /// Whether all launches have ended; no thread launches now.
    fn is_over(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the index is that of a word, and words live as long as the mark.
        let word = unsafe { &*self.words.host.add(self.index) };
        word.load(Ordering::Acquire) == last
    }
}

impl State {
    /// Starts the companions that do not run.
    fn start(&mut self) -> Result<(), BackendError> {
        self.idle_since = None;
        if !std::mem::replace(&mut self.is_running, true) {
            self.starts = self.starts.wrapping_add(1).max(1);
        }
        let number = self.starts;
        let mut resting = self.all.iter_mut().filter(|beside| beside.started != number);
        resting.try_for_each(|beside| beside.start(number))
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.is_running, false) {
            self.all.iter().for_each(Beside::stop);
        }
    }

    fn mark(&mut self, rank: usize, stream: sys::CUstream) -> Result<Arc<Mark>, BackendError> {
        let (index, words) = (self.marks.len(), &self.words);
        let mark = || {
            let words = words.clone().filter(|_| index < MARKS_MAX);
            let words = words.ok_or_else(|| BackendError::Missing {
                what: format!(
                    "at most {MARKS_MAX} streams launch beside network cards that are kernels"
                ),
            })?;
            Ok::<_, BackendError>(Arc::new(Mark { words, index, last: Mutex::new(0) }))
        };
        match self.marks.entry((rank, stream as usize)) {
            Entry::Occupied(known) => Ok(Arc::clone(known.get())),
            Entry::Vacant(place) => Ok(Arc::clone(place.insert(mark()?))),
        }
    }

    /// A rank with a launch in flight.
    fn busy(&self) -> Option<usize> {
        let begun = self.begun.first().copied();
        let open = || self.marks.iter().find(|(_, mark)| !mark.is_over());
        begun.or_else(|| open().map(|((rank, _), _)| *rank))
    }

    /// Stops everything that has had nothing to accompany for a while.
    fn look(&mut self) {
        if !self.is_running || self.busy().is_some() {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE {
            self.stop();
        }
    }
}

impl Companions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a companion, with its context and its code, until what is returned is dropped.
    pub(super) fn add(
        self: &Arc<Companions>,
        context: sys::CUcontext,
        function: Function,
        companion: Companion,
    ) -> Result<Box<dyn Accompanied>, BackendError> {
        let rank = companion.rank;
        enter(rank, context)?;
        let stream = own_stream(rank)?;
        let mut added = Beside { number: 0, context, stream, function, companion, started: 0 };
        let known = self.state().words.clone();
        // If another thread was faster, its words count, and these are freed when the state is not locked any more.
        let words = known.map_or_else(|| Words::new(rank).map(Arc::new), Ok)?;
        let mut state = self.state();
        state.words.get_or_insert_with(|| Arc::clone(&words));
        if !state.has_thread {
            // It looks for companions once the state is not locked any more.
            let own = Arc::clone(self);
            let thread = thread::Builder::new().name("ep-companions".to_string());
            let spawned = thread.spawn(move || own.watch());
            spawned.map_err(|error| BackendError::Missing {
                what: format!("the thread that watches kernels could not start: {error}"),
            })?;
            state.has_thread = true;
        }
        state.next += 1;
        added.number = state.next;
        let number = added.number;
        state.all.push(added);
        self.has_any.store(true, Ordering::Release);
        Ok(Box::new(Running { number, companions: Arc::clone(self) }))
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Launches into a stream, with all companions running.
    pub(super) fn beside(
        &self,
        own: (usize, sys::CUcontext),
        stream: sys::CUstream,
        launch: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mark = {
            let mut state = self.state();
            state.start()?;
            enter(own.0, own.1)?;
            let mark = state.mark(own.0, stream)?;
            state.begun.push(own.0);
            mark
        };
        // Not under the lock: a launch waits while its queue is full, and that may wait for another rank's launch.
        let done = mark.launch(own.0, stream, launch);
        let begun = &mut self.state().begun;
        if let Some(at) = begun.iter().position(|rank| *rank == own.0) {
            begun.swap_remove(at);
        }
        done
    }

    fn watch(&self) {
        loop {
            thread::sleep(LOOK);
            let mut state = self.state();
            if state.all.is_empty() {
                state.has_thread = false;
                return;
            }
            state.look();
        }
    }
}

impl Accompanied for Running {
    fn change(&self, args: &[u8]) -> Result<(), Busy> {
        let mut state = self.companions.state();
        if let Some(rank) = state.busy() {
            return Err(Busy { rank });
        }
        // No launch needs a companion that has been told to end, so the driver can be asked under the lock.
        state.stop();
        if let Some(own) = state.all.iter_mut().find(|it| it.number == self.number) {
            own.await_end();
            own.companion.args = args.to_vec();
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = {
            let mut state = self.companions.state();
            let at = state.all.iter().position(|it| it.number == self.number);
            let ended = at.map(|at| state.all.swap_remove(at));
            if state.all.is_empty() {
                self.companions.has_any.store(false, Ordering::Release);
                state.is_running = false;
            }
            ended
        };
        if let Some(ended) = ended {
            ended.stop();
            ended.await_end();
        }
    }
}

/// A stream that shares no hardware queue with those of ranks: it has the highest priority. A context is current.
fn own_stream(rank: usize) -> Result<sys::CUstream, BackendError> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: writes two numbers.
    let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    check("cuCtxGetStreamPriorityRange", Some(rank), result)?;
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: writes one handle.
    let result = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, greatest) };
    check("cuStreamCreateWithPriority", Some(rank), result)?;
    Ok(stream)
}

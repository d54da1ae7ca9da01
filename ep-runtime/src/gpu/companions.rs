//! Kernels that run beside all others of their device: network cards that are kernels.
//!
//! They run from the launch before which there was none in flight until some time after the last one has ended. They
//! do not run for longer, because the driver waits for all kernels of a device when it frees memory or unloads code.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::driver::check;
use super::kernel::Function;
use crate::backend::{BackendError, Companion, KernelLaunch};

/// How often a thread looks whether kernels are in flight.
const LOOK: Duration = Duration::from_micros(200);

/// How long none is before companions are stopped: one call follows another within this time.
const PATIENCE: Duration = Duration::from_millis(2);

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
    /// Launches that have begun and are not marked yet.
    begun: u32,
    /// The end of the last launch in each stream, by rank and handle.
    marks: BTreeMap<(usize, usize), Mark>,
    idle_since: Option<Instant>,
}

/// A companion with a stream of its own.
struct Beside {
    set: u64,
    context: sys::CUcontext,
    stream: sys::CUstream,
    function: Function,
    companion: Companion,
}

/// An event behind a launch.
struct Mark {
    context: sys::CUcontext,
    event: sys::CUevent,
}

// SAFETY: driver handles belong to the process; the driver may be called with them from any thread.
unsafe impl Send for State {}

/// Companions that end when this is dropped.
struct Set {
    number: u64,
    companions: Arc<Companions>,
}

fn enter(rank: usize, context: sys::CUcontext) -> Result<(), BackendError> {
    // SAFETY: the context was retained when its rank was opened and outlives all companions.
    check("cuCtxSetCurrent", Some(rank), unsafe { sys::cuCtxSetCurrent(context) })
}

impl Beside {
    fn start(&self, number: u32) -> Result<(), BackendError> {
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
        self.function.launch(self.stream, &launch, [false, false])
    }

    fn stop(&self, number: u32) {
        let _ = (self.companion.stop)(number);
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

impl State {
    fn start(&mut self) -> Result<(), BackendError> {
        self.idle_since = None;
        if !self.is_running {
            self.starts = self.starts.wrapping_add(1).max(1);
            self.all.iter().try_for_each(|beside| beside.start(self.starts))?;
            self.is_running = true;
        }
        Ok(())
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.is_running, false) {
            self.all.iter().for_each(|beside| beside.stop(self.starts));
        }
    }

    /// The event behind the launches in a stream; the context of the rank is current.
    fn mark(
        &mut self,
        (rank, context): (usize, sys::CUcontext),
        stream: sys::CUstream,
    ) -> Result<sys::CUevent, BackendError> {
        let key = (rank, stream as usize);
        if let Some(mark) = self.marks.get(&key) {
            return Ok(mark.event);
        }
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one handle.
        let result = unsafe { sys::cuEventCreate(&mut event, flags) };
        check("cuEventCreate", Some(rank), result)?;
        self.marks.insert(key, Mark { context, event });
        Ok(event)
    }

    /// Whether no launch is in flight. A device that has failed runs none.
    fn is_idle(&self) -> bool {
        let has_begun = self.begun > 0;
        !has_begun
            && self.marks.iter().all(|((rank, _), mark)| {
                let is_entered = enter(*rank, mark.context).is_ok();
                // SAFETY: the event lives as long as its mark.
                let found = is_entered.then(|| unsafe { sys::cuEventQuery(mark.event) });
                found != Some(sys::CUresult::CUDA_ERROR_NOT_READY)
            })
    }

    /// Stops everything that has had nothing to accompany for a while.
    fn look(&mut self) {
        if !self.is_running || !self.is_idle() {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE {
            self.stop();
        }
    }

    fn forget_marks(&mut self) {
        for ((rank, _), mark) in std::mem::take(&mut self.marks) {
            if enter(rank, mark.context).is_ok() {
                // SAFETY: made once in `mark`, and not used any more.
                let _ = unsafe { sys::cuEventDestroy_v2(mark.event) };
            }
        }
    }
}

impl Companions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds companions, each with its context and its code, until what is returned is dropped.
    pub(super) fn add(
        self: &Arc<Companions>,
        companions: Vec<(sys::CUcontext, Function, Companion)>,
    ) -> Result<Box<dyn Send>, BackendError> {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        let set = Set { number, companions: Arc::clone(self) };
        let mut added = Vec::new();
        for (context, function, companion) in companions {
            enter(companion.rank, context)?;
            let mut stream = ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: writes one handle.
            let result = unsafe { sys::cuStreamCreate(&mut stream, flags) };
            check("cuStreamCreate", Some(companion.rank), result)?;
            added.push(Beside { set: number, context, stream, function, companion });
        }
        if state.is_running {
            added.iter().try_for_each(|beside| beside.start(state.starts))?;
        }
        state.all.extend(added);
        self.has_any.store(true, Ordering::Release);
        if !std::mem::replace(&mut state.has_thread, true) {
            let own = Arc::clone(self);
            let thread = thread::Builder::new().name("ep-companions".to_string());
            let spawned = thread.spawn(move || own.watch());
            spawned.map_err(|error| BackendError::Missing {
                what: format!("the thread that watches kernels could not start: {error}"),
            })?;
        }
        drop(state);
        Ok(Box::new(set))
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
        let event = {
            let mut state = self.state();
            state.start()?;
            enter(own.0, own.1)?;
            let event = state.mark(own, stream)?;
            state.begun += 1;
            event
        };
        // Not under the lock: a launch waits while its queue is full, and that may wait for another rank's launch.
        let done = launch().and_then(|()| {
            // SAFETY: the event was made in this context and lives as long as there are companions; the stream is the
            // one of the launch.
            check("cuEventRecord", Some(own.0), unsafe { sys::cuEventRecord(event, stream) })
        });
        self.state().begun -= 1;
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

impl Drop for Set {
    fn drop(&mut self) {
        let mut state = self.companions.state();
        let all = std::mem::take(&mut state.all);
        let (ended, rest): (Vec<Beside>, Vec<Beside>) =
            all.into_iter().partition(|beside| beside.set == self.number);
        if state.is_running {
            ended.iter().for_each(|beside| beside.stop(state.starts));
        }
        state.all = rest;
        if state.all.is_empty() {
            self.companions.has_any.store(false, Ordering::Release);
            state.is_running = false;
            state.forget_marks();
        }
    }
}

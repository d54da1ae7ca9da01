//! The order of a rank's calls: each comes after all earlier ones, on whatever streams they are.
//!
//! The kernels of a rank share control memory, and two that ran side by side could each keep the
//! blocks of the other from becoming resident. So a group orders all of them, with an event where
//! the stream changes. What is captured runs later: it takes no part in the order before it is
//! replayed, and only follows the earlier calls of its own capture.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, BackendError, Capture, Event, Stream};
use crate::error::CallError;

/// Where the calls of one rank have come to.
pub(crate) struct Order {
    state: Mutex<State>,
    rank: usize,
    /// Behind the last call, if that was not on the rank's own stream.
    last: Event,
    /// Behind the last call of a capture, when the next one is on another stream.
    fork: Event,
}

struct State {
    /// Whether `last` marks the last call; if not, it is in the rank's own stream.
    marked: bool,
    /// The last captured call.
    captured: Option<(Capture, Stream)>,
}

impl Order {
    pub(crate) fn new(backend: &dyn Backend, rank: usize) -> Result<Order, BackendError> {
        let last = backend.create_event(rank)?;
        let fork = backend.create_event(rank)?;
        let state = Mutex::new(State { marked: false, captured: None });
        Ok(Order { state, rank, last, fork })
    }

    /// The right to put the next call into `stream`, which from here on is behind all earlier ones.
    /// Until it is dropped no other call of the rank gets it.
    pub(crate) fn turn<'a>(
        &'a self,
        backend: &'a dyn Backend,
        stream: Stream,
    ) -> Result<Turn<'a>, CallError> {
        let mut state = self.state();
        let capture = backend.capture(self.rank, stream)?;
        self.follow(&state, backend, stream, capture)?;
        if let Some(capture) = capture {
            state.captured = Some((capture, stream));
        }
        Ok(Turn { order: self, state, backend, stream, capture })
    }

    /// Puts what comes next in `stream` behind the calls so far.
    pub(crate) fn await_calls(
        &self,
        backend: &dyn Backend,
        stream: Stream,
    ) -> Result<(), CallError> {
        let state = self.state();
        let capture = backend.capture(self.rank, stream)?;
        self.follow(&state, backend, stream, capture)
    }

    fn follow(
        &self,
        state: &State,
        backend: &dyn Backend,
        stream: Stream,
        capture: Option<Capture>,
    ) -> Result<(), CallError> {
        if let Some(capture) = capture {
            return self.follow_captured(state, backend, stream, capture);
        }
        if state.marked {
            return Ok(backend.wait_event(self.rank, stream, &self.last)?);
        }
        if stream == Stream::OWN {
            return Ok(());
        }
        if backend.capture(self.rank, Stream::OWN)?.is_some() {
            let rank = self.rank;
            let what = format!(
                "rank {rank}'s own stream is being captured: end that before a call on another stream"
            );
            return Err(CallError::Capture { what });
        }
        backend.record(self.rank, Stream::OWN, &self.last)?;
        Ok(backend.wait_event(self.rank, stream, &self.last)?)
    }

    fn follow_captured(
        &self,
        state: &State,
        backend: &dyn Backend,
        stream: Stream,
        capture: Capture,
    ) -> Result<(), CallError> {
        match state.captured {
            Some((last_capture, last)) if last_capture == capture && last != stream => {
                backend.record(self.rank, last, &self.fork)?;
                Ok(backend.wait_event(self.rank, stream, &self.fork)?)
            }
            _ => Ok(()),
        }
    }

    /// Waits until all calls have run.
    pub(crate) fn settle(&self, backend: &dyn Backend) -> Result<(), BackendError> {
        if self.state().marked {
            backend.wait_event(self.rank, Stream::OWN, &self.last)?;
        }
        backend.sync(self.rank, Stream::OWN)
    }

    pub(crate) fn destroy(self, backend: &dyn Backend) {
        // A failure means that the device is lost, and its events with it.
        let _ = backend.destroy_event(self.rank, self.last);
        let _ = backend.destroy_event(self.rank, self.fork);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to launch on a stream; see [`Order::turn`].
pub(crate) struct Turn<'a> {
    order: &'a Order,
    state: MutexGuard<'a, State>,
    backend: &'a dyn Backend,
    stream: Stream,
    capture: Option<Capture>,
}

impl Turn<'_> {
    pub(crate) fn rank(&self) -> usize {
        self.order.rank
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    /// Whether what is launched is captured instead of run.
    pub(crate) fn is_captured(&self) -> bool {
        self.capture.is_some()
    }
}

impl Drop for Turn<'_> {
    /// Marks where the stream has come to, also after a call that has failed half-way: the caller
    /// may destroy its stream before the next call.
    fn drop(&mut self) {
        if self.capture.is_some() {
            return;
        }
        self.state.marked = self.stream != Stream::OWN;
        if self.state.marked {
            // A failure means that the device is lost, which the next call finds.
            let _ = self.backend.record(self.order.rank, self.stream, &self.order.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::buffer::BufferOptions;
    use crate::fake::{FakeBackend, FakeEmit};
    use crate::group::{Group, GroupOptions};
    use crate::selftest::{Case, Selftest};
    use std::sync::Arc;

    /// Streams of a caller; the fake device runs later ones first where nothing orders them.
    fn streams() -> [Stream; 3] {
        // SAFETY: the fake device takes any number for a stream.
        [Stream::OWN, unsafe { Stream::from_raw(1) }, unsafe { Stream::from_raw(2) }]
    }

    fn case(dispatch: Stream, combine: Stream) -> Case {
        let mut case = Case::even(BufferOptions::new(8, 64, 2, 5), 2, 12);
        case.dispatch.stream = dispatch;
        case.combine.stream = combine;
        case
    }

    /// The fake device fails when the kernels of a rank run in another order than that of the calls.
    #[test]
    fn calls_on_several_streams_run_in_the_order_of_the_calls() {
        let backend = FakeBackend::new(2);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let emit = FakeEmit(Arc::clone(&backend));
        // One buffer after another, and two at once, all in one group.
        let other = Selftest::new(&group, &emit, case(streams()[2], streams()[0])).unwrap();
        for dispatch in streams() {
            for combine in streams() {
                let test = Selftest::new(&group, &emit, case(dispatch, combine)).unwrap();
                // Nothing runs before all of it is queued.
                test.queue_one().unwrap();
                other.queue_one().unwrap();
                let findings = test.check().unwrap();
                assert!(findings.is_good(), "{dispatch:?} {combine:?}: {findings}");
                assert!(other.check().unwrap().is_good());
            }
        }
    }

    /// A capture of the caller's own, with a second stream that joined it.
    #[test]
    fn captured_calls_on_two_streams_keep_their_order() {
        let [own, first, second] = streams();
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let mut case = Case { tokens: vec![8], ..case(first, second) };
        case.options.live = 2;
        let test = Selftest::new(&group, &FakeEmit(Arc::clone(&backend)), case).unwrap();
        backend.begin_capture(0, first).unwrap();
        let joined = backend.create_event(0).unwrap();
        backend.record(0, first, &joined).unwrap();
        backend.wait_event(0, second, &joined).unwrap();
        test.queue_one().unwrap();
        let captured = backend.end_capture(0, first).unwrap();
        for stream in [first, own, second] {
            test.check().unwrap();
            group.await_calls(0, stream).unwrap();
            backend.replay(0, stream, &captured).unwrap();
            group.follow(0, stream).unwrap();
            assert!(test.check().unwrap().is_good());
        }
        backend.destroy_captured(0, captured).unwrap();
    }

    #[test]
    fn an_own_stream_that_is_captured_orders_nothing() {
        let [own, first, _] = streams();
        let backend = FakeBackend::new(1);
        let group = Group::new(backend, GroupOptions::default()).unwrap();
        let calls = || group.follow(0, first);
        let error = group.capture(0, own, calls).err().unwrap();
        let text =
            "rank 0's own stream is being captured: end that before a call on another stream";
        assert_eq!(error.to_string(), text);
        group.follow(0, first).unwrap();
        // From now on the caller's stream is behind the last call.
        group.capture(0, own, || group.follow(0, first)).unwrap();
    }
}

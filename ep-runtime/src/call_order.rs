//! The order of a rank's calls: each comes after all earlier ones, on whatever streams they are.
//!
//! The kernels of a rank share control memory, and two that ran side by side could each keep the
//! blocks of the other from becoming resident. So a group orders all of them, with an event where
//! the stream changes. The event is recorded behind each call on a stream of the caller, who may destroy it
//! before the next call; on those that last, only when the next call is elsewhere. What is captured runs later: it takes
//! no part in the order before it is replayed, and only follows the earlier calls of its own capture.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, BackendError, Capture, Event, Stream};
use crate::error::CallError;

/// Where the calls of one rank have come to.
pub(crate) struct CallOrder {
    state: Mutex<State>,
    rank: usize,
    /// Behind the last call, once something needs it.
    last: Event,
    /// Behind the last call of a capture, when the next one is on another stream.
    fork: Event,
}

struct State {
    last: LastCall,
    /// The last captured call.
    captured: Option<(Capture, Stream)>,
}

/// Where the last call is that was not captured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastCall {
    /// In a stream that lasts: the rank's own, or the driver's default one.
    Lasting(Stream),
    /// In another one, with the event `last` behind it. A number is of this stream and of no later one,
    /// while handles are used again.
    Elsewhere(Option<u64>),
}

impl LastCall {
    /// Of a call that is now put into `stream`.
    fn on(backend: &dyn Backend, rank: usize, stream: Stream) -> LastCall {
        match stream {
            Stream::OWN | Stream::DEFAULT => LastCall::Lasting(stream),
            stream => LastCall::Elsewhere(backend.stream_number(rank, stream)),
        }
    }

    /// Whether a call `later` comes behind it without being told to.
    fn orders(self, later: LastCall) -> bool {
        self == later && self != LastCall::Elsewhere(None)
    }
}

impl CallOrder {
    pub(crate) fn new(backend: &dyn Backend, rank: usize) -> Result<CallOrder, BackendError> {
        let last = backend.create_mark(rank)?;
        let fork = backend.create_mark(rank)?;
        let state = Mutex::new(State { last: LastCall::Lasting(Stream::OWN), captured: None });
        Ok(CallOrder { state, rank, last, fork })
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
        let own = match capture {
            Some(capture) => {
                self.follow_captured(&state, backend, stream, capture)?;
                state.captured = Some((capture, stream));
                None
            }
            None => Some(self.follow(&state, backend, stream)?),
        };
        Ok(Turn { order: self, state, backend, stream, own })
    }

    /// Puts what comes next in `stream` behind the calls so far.
    pub(crate) fn await_calls(
        &self,
        backend: &dyn Backend,
        stream: Stream,
    ) -> Result<(), CallError> {
        let state = self.state();
        match backend.capture(self.rank, stream)? {
            Some(capture) => self.follow_captured(&state, backend, stream, capture),
            None => self.follow(&state, backend, stream).map(drop),
        }
    }

    /// Puts what comes next in `stream` behind the last call, and gives what it is as the last one.
    fn follow(
        &self,
        state: &State,
        backend: &dyn Backend,
        stream: Stream,
    ) -> Result<LastCall, CallError> {
        let next = LastCall::on(backend, self.rank, stream);
        if state.last.orders(next) {
            return Ok(next);
        }
        let (own, rank) = (Stream::OWN, self.rank);
        if state.last == LastCall::Lasting(own) && backend.capture(rank, own)?.is_some() {
            let what = format!(
                "the own stream of rank {rank} is being captured: end the capture before a call on \
                another stream"
            );
            return Err(CallError::Capture { what });
        }
        self.mark(state.last, backend)?;
        backend.wait_event(rank, stream, &self.last)?;
        Ok(next)
    }

    /// Sees to it that the event is behind the last call.
    fn mark(&self, last: LastCall, backend: &dyn Backend) -> Result<(), BackendError> {
        match last {
            LastCall::Lasting(stream) => backend.record(self.rank, stream, &self.last),
            LastCall::Elsewhere(_) => Ok(()),
        }
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
        backend.require_no_capture(self.rank)?;
        let last = self.state().last;
        if last != LastCall::Lasting(Stream::OWN) {
            self.mark(last, backend)?;
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

/// The right to launch on a stream; see [`CallOrder::turn`].
pub(crate) struct Turn<'a> {
    order: &'a CallOrder,
    state: MutexGuard<'a, State>,
    backend: &'a dyn Backend,
    stream: Stream,
    /// What the order remembers of it; nothing if it is captured.
    own: Option<LastCall>,
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
        self.own.is_none()
    }
}

impl Drop for Turn<'_> {
    /// Marks where the stream has come to, also after a call that has failed half-way: the caller
    /// may destroy its stream before the next call.
    fn drop(&mut self) {
        let Some(own) = self.own else { return };
        self.state.last = own;
        if let LastCall::Elsewhere(_) = own {
            // A failure means that the device is lost, which the next call finds.
            let _ = self.backend.record(self.order.rank, self.stream, &self.order.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::fake::FakeBackend;

    /// Calls on each of these streams in turn, and what the driver is asked for around each.
    #[test]
    fn events_stand_where_the_order_needs_them() {
        let backend = FakeBackend::new(1);
        let order = CallOrder::new(backend.as_ref(), 0).unwrap();
        // SAFETY: nothing runs on it.
        let other = unsafe { Stream::from_raw(77) };
        backend.asked();
        let asked = |stream| {
            drop(order.turn(backend.as_ref(), stream).unwrap());
            backend.asked().into_iter().filter(|it| *it != "capture").collect::<Vec<_>>()
        };
        for (stream, wanted) in [
            (Stream::OWN, &[] as &[&str]),
            (Stream::DEFAULT, &["record", "wait"]),
            (Stream::DEFAULT, &[]),
            // Its owner may destroy it behind the call.
            (other, &["number", "record", "wait", "record"]),
            (other, &["number", "record"]),
            (Stream::DEFAULT, &["wait"]),
            (Stream::OWN, &["record", "wait"]),
        ] {
            assert_eq!(asked(stream), wanted, "{stream:?}");
        }
        drop(order.turn(backend.as_ref(), Stream::DEFAULT).unwrap());
        backend.asked();
        order.settle(backend.as_ref()).unwrap();
        assert_eq!(
            backend.asked()[..3],
            ["capture", "record", "wait"],
            "what is waited for is behind the last call"
        );
        backend.is_captured.store(true, Ordering::Relaxed);
        let error = order.settle(backend.as_ref()).unwrap_err().to_string();
        assert_eq!(
            error,
            "the own stream of rank 0 is being captured: end the capture before a wait for the \
                stream"
        );
        assert_eq!(backend.asked(), ["capture"]);
        backend.is_captured.store(false, Ordering::Relaxed);
        drop(order.turn(backend.as_ref(), Stream::OWN).unwrap());
        order.destroy(backend.as_ref());
    }
}

//! Streams and events that a group has created. Dropping one destroys it.

use crate::backend::{Event, Signal, Stream};
use crate::error::CallError;
use crate::group::Group;

/// A stream of a rank, unordered with its own one.
pub struct OwnedStream {
    group: Group,
    rank: usize,
    stream: Stream,
}

/// A point in a stream of a rank.
pub struct OwnedEvent {
    group: Group,
    rank: usize,
    /// Until it is dropped.
    event: Option<Event>,
}

impl Group {
    /// Creates one more stream of a local rank. On the host a rank has one queue, and this returns it.
    pub fn stream(&self, rank: usize) -> Result<OwnedStream, CallError> {
        let stream = self.backend().create_stream(rank)?;
        Ok(OwnedStream { group: self.clone(), rank, stream })
    }

    /// An event of a local rank.
    pub fn event(&self, rank: usize) -> Result<OwnedEvent, CallError> {
        let event = Some(self.backend().create_event(rank)?);
        Ok(OwnedEvent { group: self.clone(), rank, event })
    }
}

impl OwnedStream {
    /// The stream, for calls, as long as this value is kept.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Waits until the stream is empty.
    pub fn sync(&self) -> Result<(), CallError> {
        Ok(self.group.backend().sync(self.rank, self.stream)?)
    }
}

impl OwnedEvent {
    /// The event, for [`CallOptions`](crate::calls::CallOptions), as long as this value is kept.
    pub fn signal(&self) -> Signal {
        let handle = self.event.as_ref().map_or(0, Event::raw);
        // SAFETY: the event is of this rank's device, and its owner keeps it while calls use it.
        unsafe { Signal::from_raw(handle) }
    }

    /// Puts the event after all work in a stream.
    pub fn record(&self, stream: Stream) -> Result<(), CallError> {
        let event = self.signal().event();
        Ok(self.group.backend().record(self.rank, stream, &event)?)
    }

    /// Makes later work in a stream wait for the event.
    pub fn precede(&self, stream: Stream) -> Result<(), CallError> {
        let event = self.signal().event();
        Ok(self.group.backend().wait_event(self.rank, stream, &event)?)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // A failure means that the device is lost, and its streams with it.
        let _ = self.group.backend().destroy_stream(self.rank, self.stream);
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            // A failure means that the device is lost, and its events with it.
            let _ = self.group.backend().destroy_event(self.rank, event);
        }
    }
}

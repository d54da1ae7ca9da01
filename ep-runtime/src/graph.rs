//! Calls that are captured once and replayed many times.
//!
//! The number of tokens may change from replay to replay: the device reads it from memory.
//!
//! ```no_run
//! use ep_runtime::backend::Stream;
//! use ep_runtime::buffer::{Buffer, CallOptions, CombineInput, CombineOutput, DispatchInput, Offered};
//! use ep_runtime::error::CallError;
//! use ep_runtime::group::Group;
//!
//! # fn experts() {}
//! # fn layer(group: &Group, buffer: &Buffer, rank: usize, most: usize, count: u64, made: &Offered,
//! #     tensors: DispatchInput, sums: &CombineOutput) -> Result<(), CallError> {
//! let input = DispatchInput { tokens: most, tokens_from: count, ..tensors };
//! let call = CallOptions::sms(24);
//! let (graph, _) = group.capture(rank, Stream::OWN, || {
//!     let (handle, received) = buffer.dispatch(rank, &input, &call)?;
//!     experts(); // Launched on the same stream; they read `received` and write `made`.
//!     buffer.combine(&handle, CombineInput::Offered(made), &[], sums, &call)?;
//!     Ok((handle, received))
//! })?;
//! loop {
//!     // Write the next tokens, their routing and their number, in stream order.
//!     graph.replay(Stream::OWN)?;
//! }
//! # }
//! ```

use crate::backend::{Captured, Stream};
use crate::error::CallError;
use crate::group::Group;

/// Calls of one rank, captured by [`Group::capture`]. A graph keeps everything alive that its calls use,
/// except memory of the caller. You may drop handles and outputs of captured calls; no other call gets them
/// before the graph is dropped.
pub struct Graph {
    group: Group,
    rank: usize,
    captured: Option<Captured>,
}

impl Group {
    /// Captures the calls that `calls` makes on `stream` for `rank`, and no others. The calls run when the
    /// graph is replayed. A call that has to wait for something on the host is refused.
    ///
    /// You can also capture a stream yourself. Launch such a graph between [`Group::await_calls`] and
    /// [`Group::follow`].
    pub fn capture<T>(
        &self,
        rank: usize,
        stream: Stream,
        calls: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<(Graph, T), CallError> {
        self.check(rank)?;
        if self.backend().capture(rank, stream)?.is_some() {
            let what = format!("the stream of rank {rank} is being captured already");
            return Err(CallError::Capture { what });
        }
        self.backend().begin_capture(rank, stream)?;
        let mut open = Open { group: self, rank, stream, is_open: true };
        let made = calls();
        open.is_open = false;
        let captured = self.backend().end_capture(rank, stream);
        let graph = |captured| Graph { group: self.clone(), rank, captured: Some(captured) };
        match made {
            Ok(made) => Ok((graph(captured?), made)),
            Err(error) => {
                drop(captured.map(graph));
                Err(error)
            }
        }
    }
}

/// A capture that has to be ended even if the calls panic.
struct Open<'a> {
    group: &'a Group,
    rank: usize,
    stream: Stream,
    is_open: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(captured) = self.group.backend().end_capture(self.rank, self.stream)
        {
            let _ = self.group.backend().destroy_captured(self.rank, captured);
        }
    }
}

impl Graph {
    /// The rank whose calls the graph holds.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Puts the calls into `stream`, after all earlier calls of the rank.
    pub fn replay(&self, stream: Stream) -> Result<(), CallError> {
        self.group.check(self.rank)?;
        let turn = self.group.turn(self.rank, stream)?;
        if turn.is_captured() {
            let what = "a graph cannot be part of another one: replay it on a stream that is not \
                        being captured";
            return Err(CallError::Capture { what: what.to_string() });
        }
        match &self.captured {
            Some(captured) => Ok(self.group.backend().replay(self.rank, stream, captured)?),
            None => Ok(()),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(captured) = self.captured.take() {
            // A failure means that the device is lost, and the graph with it.
            let _ = self.group.backend().destroy_captured(self.rank, captured);
        }
    }
}

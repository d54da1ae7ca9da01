//! Options of one call.

use std::time::Duration;

use crate::backend::{Signal, Stream};

/// Options of one call. The default is the rank's own stream, with as many SMs as saturate the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallOptions {
    /// Stream to run on. A call waits for all earlier calls of its rank, on whatever streams. A captured
    /// call waits when it is replayed.
    pub stream: Stream,
    /// SMs that every kernel of the call takes, with one block on each; `None`: as many as saturate the
    /// link. A kernel whose roles need more blocks gets as many as they need, and one whose blocks work in pairs leaves an
    /// odd one out.
    pub sms: Option<u32>,
    /// Longest wait inside a kernel of the call; `None`: that of the group.
    pub timeout: Option<Duration>,
    /// An event that the call waits for, such as one recorded after the kernel that produces its inputs.
    pub after: Option<Signal>,
    /// An event recorded after the call, for streams that use its results.
    pub done: Option<Signal>,
}

impl CallOptions {
    /// The rank's own stream and `sms` SMs.
    pub fn sms(sms: u32) -> CallOptions {
        CallOptions { sms: Some(sms), ..CallOptions::default() }
    }
}

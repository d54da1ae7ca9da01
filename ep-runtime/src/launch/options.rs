//! How one call runs.

use std::time::Duration;

use crate::backend::{Signal, Stream};

/// How one call runs; the default is the rank's own stream with as many SMs as fill the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallOptions {
    /// Stream to run on. A call waits for all earlier ones of its rank, on whatever streams; one that
    /// is captured waits when it is replayed.
    pub stream: Stream,
    /// SMs that every kernel of the call takes, a block each; `None`: as many as fill the link. A kernel
    /// whose roles need more gets as many as they need.
    pub sms: Option<u32>,
    /// SMs of a direct dispatch of a [`Buffer`](crate::buffer::Buffer) that send to other ranks; if these
    /// are all, they serve their own rank as well. `None`: chosen by the buffer's rates.
    pub remote_sms: Option<u32>,
    /// Longest wait inside a kernel of the call; `None`: that of the group.
    pub timeout: Option<Duration>,
    /// What the call comes after, such as an event behind the kernel that makes its inputs.
    pub after: Option<Signal>,
    /// Recorded behind the call, for streams that go on with what it leaves.
    pub done: Option<Signal>,
}

impl CallOptions {
    /// The rank's own stream and `sms` SMs.
    pub fn sms(sms: u32) -> CallOptions {
        CallOptions { sms: Some(sms), ..CallOptions::default() }
    }
}

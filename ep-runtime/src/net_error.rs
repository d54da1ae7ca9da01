//! Errors of networks. Each names the rank that noticed it, the rank that it is about, and the numbers.

use std::fmt;
use std::time::Duration;

use crate::backend::BackendError;
use crate::join::JoinError;

/// Why a network does not move rows.
#[derive(Debug, Clone, PartialEq)]
pub enum NetError {
    /// No usable library was found. The text says what was tried and what to do.
    NoLibrary {
        /// The reason, as a sentence.
        why: String,
    },
    /// Rows cannot be in GPU memory.
    NoGpuRows {
        /// The reason.
        why: String,
    },
    /// The libfabric that was found has no such provider on this machine.
    NoProvider {
        /// The provider.
        provider: &'static str,
        /// The library's message, or what is missing.
        why: String,
    },
    /// A call of libfabric failed.
    Call {
        /// The call.
        call: &'static str,
        /// The library's message.
        why: String,
    },
    /// There is no card that kernels can write to, or the named card is missing.
    NoCard {
        /// The reason, as a sentence.
        why: String,
    },
    /// A call on a card failed.
    Card {
        /// The call, or the command to its firmware.
        call: &'static str,
        /// The device and its port.
        device: String,
        /// The system's message, and what to do.
        why: String,
    },
    /// The ranks did not join.
    Join(JoinError),
    /// Another rank could not open its end.
    Absent {
        /// The rank.
        peer: usize,
        /// The reason, in that rank's words.
        why: String,
    },
    /// The memory of a rank could not be allocated or used.
    Memory(BackendError),
    /// An option is out of its range.
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value of the option.
        value: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// Two ranks request different networks.
    Disagreement {
        /// The option that differs.
        what: &'static str,
        /// This rank, and its value.
        here: (usize, u64),
        /// A rank with another value, and that value.
        there: (usize, u64),
    },
    /// A kernel was made for another kind of network than the one that it should share.
    Carrier {
        /// The kernel's pipeline.
        pipeline: String,
        /// Whether the kernels of the network write to cards themselves.
        is_card: bool,
    },
    /// A kernel has written a descriptor that cannot be executed.
    Descriptor {
        /// The rank of the kernel.
        rank: usize,
        /// The queue.
        queue: usize,
        /// The number of the descriptor, counted from the first one.
        number: u32,
        /// The fault, as a clause.
        why: String,
    },
    /// A kernel has written an entry into a queue pair that its card cannot execute.
    Entry {
        /// The rank of the kernel.
        rank: usize,
        /// The rank that the queue pair connects to.
        peer: usize,
        /// The queue.
        queue: usize,
        /// The number of the entry, counted from the first one.
        number: u32,
        /// The fault, as a clause.
        why: String,
    },
    /// A peer has been silent for too long: it is dead or stopped, or the link is cut.
    Silent {
        /// The rank that waited.
        rank: usize,
        /// The silent rank.
        peer: usize,
        /// How long it was silent.
        waited: Duration,
    },
    /// The network has accepted nothing for a peer for too long, although the peer shows signs of life.
    Stuck {
        /// The rank that waited.
        rank: usize,
        /// The peer.
        peer: usize,
        /// How long the rank waited.
        waited: Duration,
    },
    /// The network reports that a peer cannot be reached any more.
    Lost {
        /// The rank that noticed.
        rank: usize,
        /// The lost rank, if the network names it.
        peer: Option<usize>,
        /// The library's message.
        why: String,
    },
    /// A peer has given up and gives the reason.
    GaveUp {
        /// The rank that heard it.
        rank: usize,
        /// The rank that has given up.
        peer: usize,
        /// The rank that it blames, if it knows one.
        on: Option<usize>,
    },
    /// A message arrived that no member of this group sends.
    Protocol {
        /// The rank that received it.
        rank: usize,
        /// The fault of the message, as a clause.
        why: String,
    },
    /// The thread that carries a rank's rows has ended.
    Proxy {
        /// The rank of that thread.
        rank: usize,
    },
}

impl NetError {
    /// The rank that caused the error, if known.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            NetError::Silent { peer, .. }
            | NetError::Stuck { peer, .. }
            | NetError::Absent { peer, .. } => Some(*peer),
            NetError::Lost { peer, .. } => *peer,
            NetError::GaveUp { peer, on, .. } => Some(on.unwrap_or(*peer)),
            NetError::Descriptor { rank, .. }
            | NetError::Entry { rank, .. }
            | NetError::Proxy { rank } => Some(*rank),
            _ => None,
        }
    }
}

impl From<JoinError> for NetError {
    fn from(error: JoinError) -> NetError {
        NetError::Join(error)
    }
}

impl From<BackendError> for NetError {
    fn from(error: BackendError) -> NetError {
        NetError::Memory(error)
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetError::NoLibrary { why } | NetError::NoCard { why } => f.write_str(why),
            NetError::Card { call, device, why } => write!(f, "{call} failed on {device}: {why}"),
            NetError::NoGpuRows { why } => write!(f, "rows cannot be in GPU memory: {why}"),
            NetError::NoProvider { provider, why } => {
                write!(f, "libfabric has no provider for {provider} here: {why}")
            }
            NetError::Call { call, why } => write!(f, "{call} failed: {why}"),
            NetError::Join(error) => error.fmt(f),
            NetError::Absent { peer, why } => {
                write!(f, "rank {peer} cannot join the network: {why}")
            }
            NetError::Memory(error) => error.fmt(f),
            NetError::Option { what, value, least, most } if least == most => {
                write!(f, "a network can have only {most} {what}, not {value}")
            }
            NetError::Option { what, value, least, most } => {
                write!(f, "a network can have {least} to {most} {what}, not {value}")
            }
            NetError::Disagreement { what, here, there } => write!(
                f,
                "rank {} uses a network of {} {what}, and rank {} uses one of {}",
                there.0, there.1, here.0, here.1
            ),
            NetError::Carrier { pipeline, is_card } => {
                let (own, other) = if *is_card { ("rdma", "ibgda") } else { ("ibgda", "rdma") };
                write!(f, "{pipeline} was prepared for {own}, and the network is for {other}")
            }
            NetError::Descriptor { rank, queue, number, why } => {
                write!(f, "rank {rank}: descriptor {number} of its queue {queue} {why}")
            }
            NetError::Entry { rank, peer, queue, number, why } => write!(
                f,
                "rank {rank}: entry {number} of its queue pair to rank {peer} for queue {queue} {why}"
            ),
            NetError::Silent { rank, peer, waited } => write!(
                f,
                "rank {rank} has received nothing from rank {peer} for {waited:.1?}: rank {peer} is \
                dead or stopped, or the link between the two is down"
            ),
            NetError::Stuck { rank, peer, waited } => write!(
                f,
                "rank {rank} could not send to rank {peer} for {waited:.1?}, and rank {peer} is alive"
            ),
            NetError::Lost { rank, peer: Some(peer), why } => {
                write!(f, "rank {rank} has lost its connection to rank {peer}: {why}")
            }
            NetError::Lost { rank, peer: None, why } => {
                write!(f, "rank {rank} has lost a connection: {why}")
            }
            NetError::GaveUp { rank, peer, on: Some(on) } => {
                write!(f, "rank {peer} reported to rank {rank} that it has given up on rank {on}")
            }
            NetError::GaveUp { rank, peer, on: None } => {
                write!(f, "rank {peer} reported to rank {rank} that it has given up")
            }
            NetError::Protocol { rank, why } => {
                write!(f, "rank {rank} received a message that no member of its group sends: {why}")
            }
            NetError::Proxy { rank } => {
                write!(f, "the thread that carries the rows of rank {rank} has ended")
            }
        }
    }
}

impl std::error::Error for NetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NetError::Join(error) => Some(error),
            NetError::Memory(error) => Some(error),
            _ => None,
        }
    }
}

//! What a network can fail with: each names who noticed, who is meant, and the numbers.

use std::fmt;
use std::time::Duration;

use crate::backend::BackendError;
use crate::join::JoinError;

/// Why rows do not move over a network.
#[derive(Debug, Clone, PartialEq)]
pub enum NetError {
    /// There is no library that can be used; the text says what was tried and what to do.
    NoLibrary {
        /// Why, as a sentence.
        why: String,
    },
    /// Rows cannot be in GPU memory.
    NoGpuRows {
        /// Why.
        why: String,
    },
    /// The libfabric that was found has no such provider on this machine.
    NoProvider {
        /// Which.
        provider: &'static str,
        /// What the library says, or what is missing.
        why: String,
    },
    /// A call of libfabric failed.
    Call {
        /// The call.
        call: &'static str,
        /// The library's words for it.
        why: String,
    },
    /// There is no card that kernels can write to, or not the one that was named.
    NoCard {
        /// Why, as a sentence.
        why: String,
    },
    /// A call on a card failed.
    Card {
        /// The call, or the command to its firmware.
        call: &'static str,
        /// Device and port.
        device: String,
        /// The system's words for it, and what to do.
        why: String,
    },
    /// The ranks did not come together.
    Join(JoinError),
    /// Another rank could not open its end.
    Absent {
        /// Which.
        peer: usize,
        /// Why, in its words.
        why: String,
    },
    /// The memory of a rank could not be had.
    Memory(BackendError),
    /// An option is out of its range.
    Option {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// Two ranks want different networks.
    Disagreement {
        /// What differs.
        what: &'static str,
        /// This rank, and what it is here.
        here: (usize, u64),
        /// A rank where it is different, and what it is there.
        there: (usize, u64),
    },
    /// A kernel is made for another kind of network than it is to share.
    Carrier {
        /// Its pipeline.
        pipeline: String,
        /// Whether the network is that of cards to which kernels speak themselves.
        is_card: bool,
    },
    /// A kernel has written a descriptor that cannot be carried out.
    Descriptor {
        /// Rank of the kernel.
        rank: usize,
        /// Queue.
        queue: usize,
        /// Number of the descriptor, counted from the first one.
        number: u32,
        /// What is wrong, as a clause.
        why: String,
    },
    /// A kernel has written an entry into a queue pair that its card cannot carry out.
    Entry {
        /// Rank of the kernel.
        rank: usize,
        /// Whom the queue pair reaches.
        peer: usize,
        /// Queue.
        queue: usize,
        /// Number of the entry, counted from the first one.
        number: u32,
        /// What is wrong, as a clause.
        why: String,
    },
    /// Nothing has been heard of a peer for too long: it is dead or stopped, or the link is cut.
    Silent {
        /// Who waited.
        rank: usize,
        /// For whom.
        peer: usize,
        /// How long.
        waited: Duration,
    },
    /// The network has taken nothing for a peer for too long, although the peer is heard.
    Stuck {
        /// Who waited.
        rank: usize,
        /// For whom.
        peer: usize,
        /// How long.
        waited: Duration,
    },
    /// The network says that a peer cannot be reached any more.
    Lost {
        /// Who noticed.
        rank: usize,
        /// Who is lost, if the network says it.
        peer: Option<usize>,
        /// The library's words for it.
        why: String,
    },
    /// A peer has given up and says why.
    GaveUp {
        /// Who heard it.
        rank: usize,
        /// Who has given up.
        peer: usize,
        /// The rank that it blames, if it knows one.
        on: Option<usize>,
    },
    /// A message came that no member of this group sends.
    Protocol {
        /// Who got it.
        rank: usize,
        /// What is wrong with it, as a clause.
        why: String,
    },
    /// The thread that carries a rank's rows has ended.
    Proxy {
        /// Whose.
        rank: usize,
    },
}

impl NetError {
    /// The rank that is to blame, as far as one is known.
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
            NetError::Option { what, value, least, most } => {
                write!(f, "{value} {what} of a network, there can be {least} to {most}")
            }
            NetError::Disagreement { what, here, there } => write!(
                f,
                "rank {} joins a network of {} {what}, rank {} one of {}",
                there.0, there.1, here.0, here.1
            ),
            NetError::Carrier { pipeline, is_card } => {
                let (own, other) = if *is_card { ("rdma", "ibgda") } else { ("ibgda", "rdma") };
                write!(f, "{pipeline} is made for {own}, and the network is one for {other}")
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
                "rank {rank} has heard nothing of rank {peer} for {waited:.1?}: it is dead or \
                 stopped, or the link between them is cut"
            ),
            NetError::Stuck { rank, peer, waited } => write!(
                f,
                "rank {rank} could send nothing to rank {peer} for {waited:.1?}, which is alive"
            ),
            NetError::Lost { rank, peer: Some(peer), why } => {
                write!(f, "rank {rank} has lost its connection to rank {peer}: {why}")
            }
            NetError::Lost { rank, peer: None, why } => {
                write!(f, "rank {rank} has lost a connection: {why}")
            }
            NetError::GaveUp { rank, peer, on: Some(on) } => {
                write!(f, "rank {peer} has given up on rank {on}, as it told rank {rank}")
            }
            NetError::GaveUp { rank, peer, on: None } => {
                write!(f, "rank {peer} has given up, as it told rank {rank}")
            }
            NetError::Protocol { rank, why } => {
                write!(f, "rank {rank} got a message that no member of its group sends: {why}")
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

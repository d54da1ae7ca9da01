//! What joining can fail with.

use std::fmt;
use std::io;
use std::time::Duration;

/// Why processes did not come together, or came apart.
#[derive(Clone, PartialEq, Eq)]
pub enum JoinError {
    /// Ranks that did not come before the deadline.
    Missing {
        /// Which.
        ranks: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
        /// What some of them said last that they do.
        doing: Vec<(usize, String)>,
    },
    /// Rank 0 does not take this rank, or nothing that proved itself was at its address.
    Refused {
        /// Why, as a sentence.
        why: String,
    },
    /// A rank was there and is gone.
    Lost {
        /// Which.
        rank: usize,
    },
    /// Nodes of which some would have more ranks than others.
    Uneven {
        /// Ranks of the group.
        ranks: usize,
        /// How many nodes they were to be.
        nodes: usize,
    },
    /// Ranks of one node that are not on one machine, or do not reach each other's sockets there.
    Apart {
        /// The node.
        node: usize,
        /// Its first rank.
        first: usize,
        /// One that is elsewhere.
        other: usize,
    },
    /// Two ranks are at different steps.
    Order {
        /// A rank.
        rank: usize,
        /// What it does.
        does: String,
        /// What rank 0 does.
        root_does: String,
    },
    /// A gather brings more than one message holds.
    TooLong {
        /// Bytes that were brought.
        bytes: usize,
        /// Bytes that one rank may bring.
        most: usize,
    },
    /// An address, id or environment variable is not usable.
    Address {
        /// Why, as a sentence.
        why: String,
    },
    /// A socket failed.
    Socket {
        /// What it was used for.
        during: &'static str,
        /// What the system says.
        reason: String,
    },
}

/// What `main` prints of it: the sentence.
impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Missing { ranks, waited, doing } => {
                let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{plural} {} did not come within {waited:?}", names.join(", "))?;
                doing.iter().try_for_each(|(rank, what)| {
                    write!(f, "; what rank {rank} said last is `{what}`")
                })
            }
            JoinError::Refused { why } | JoinError::Address { why } => f.write_str(why),
            JoinError::Lost { rank } => write!(f, "rank {rank} has left the group"),
            JoinError::Uneven { ranks, nodes } => {
                write!(f, "{ranks} ranks are no {nodes} nodes of equally many")
            }
            JoinError::Apart { node, first, other } => write!(
                f,
                "rank {other} is on another machine, or in another network namespace, than rank {first}, and \
                 both are of node {node}: ranks are numbered node by node, equally many on each"
            ),
            JoinError::Order { rank, does, root_does } => {
                write!(f, "rank {rank} is at `{does}` while rank 0 is at `{root_does}`")
            }
            JoinError::TooLong { bytes, most } => {
                write!(f, "a rank brings {bytes} bytes, and one message holds {most}")
            }
            JoinError::Socket { during, reason } => write!(f, "{during}: {reason}"),
        }
    }
}

impl std::error::Error for JoinError {}

/// What the system says of a socket that was used for something.
pub(super) fn socket(during: &'static str) -> impl Fn(io::Error) -> JoinError {
    move |error| JoinError::Socket { during, reason: error.to_string() }
}

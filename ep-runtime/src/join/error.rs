//! Errors of joining.

use std::fmt;
use std::io;
use std::time::Duration;

/// Why processes did not join, or one left.
#[derive(Clone, PartialEq, Eq)]
pub enum JoinError {
    /// Ranks did not join before the deadline.
    Missing {
        /// The missing ranks.
        ranks: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
        /// The last steps that some of them announced.
        doing: Vec<(usize, String)>,
    },
    /// Rank 0 refuses this rank, or no process at rank 0's address proved itself.
    Refused {
        /// The reason, as a sentence.
        why: String,
    },
    /// A rank joined and has left.
    Lost {
        /// The rank.
        rank: usize,
    },
    /// Nodes with different numbers of ranks.
    Uneven {
        /// Number of ranks in the group.
        ranks: usize,
        /// Requested number of nodes.
        nodes: usize,
    },
    /// Ranks of one node that are not on one machine, or cannot reach each other's sockets there.
    Apart {
        /// The node.
        node: usize,
        /// Its first rank.
        first: usize,
        /// A rank on another machine.
        other: usize,
    },
    /// Two ranks are at different steps.
    Order {
        /// A rank.
        rank: usize,
        /// The step of that rank.
        does: String,
        /// The step of rank 0.
        root_does: String,
    },
    /// A rank's data for a gather is larger than one message.
    TooLong {
        /// Bytes of the data.
        bytes: usize,
        /// Maximum number of bytes per rank.
        most: usize,
    },
    /// An address, id or environment variable is invalid.
    Address {
        /// The reason, as a sentence.
        why: String,
    },
    /// A socket failed.
    Socket {
        /// The use of the socket.
        during: &'static str,
        /// The system's message.
        reason: String,
    },
}

/// Prints the sentence, because `main` prints errors in this form.
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
                write!(f, "{plural} {} did not join within {waited:?}", names.join(", "))?;
                doing.iter().try_for_each(|(rank, what)| {
                    write!(f, "; what rank {rank} said last is `{what}`")
                })
            }
            JoinError::Refused { why } | JoinError::Address { why } => f.write_str(why),
            JoinError::Lost { rank } => write!(f, "rank {rank} has left the group"),
            JoinError::Uneven { ranks, nodes } => {
                write!(f, "{ranks} ranks cannot form {nodes} nodes with the same number of ranks")
            }
            JoinError::Apart { node, first, other } => write!(
                f,
                "ranks {first} and {other} both belong to node {node} and are on different machines or \
                in different network namespaces: number ranks node by node, with the same number on each node"
            ),
            JoinError::Order { rank, does, root_does } => {
                write!(f, "rank {rank} is at `{does}` while rank 0 is at `{root_does}`")
            }
            JoinError::TooLong { bytes, most } => {
                write!(f, "a rank sends {bytes} bytes, and one message holds at most {most}")
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

//! Errors of calls. Every error carries the numbers that explain it.

use std::fmt;

use ep_codegen::plan::PlanError;

use crate::backend::BackendError;
use crate::emit::EmitError;
#[cfg(target_os = "linux")]
use crate::net_error::NetError;
use crate::timeouts::Timeouts;

/// Why a call was not made, or failed.
#[derive(Clone, PartialEq)]
pub enum CallError {
    /// An error of the device, driver or compiler.
    Backend(BackendError),
    /// An error in the shape.
    Plan(PlanError),
    /// A kernel could not be emitted.
    Emit {
        /// Pipeline.
        pipeline: String,
        /// Why.
        reason: String,
    },
    /// A member of `struct Args` has no value.
    Unbound {
        /// Pipeline.
        pipeline: String,
        /// Member.
        name: String,
    },
    /// A number of a call is outside what the buffer or the kernel was made for.
    TooLarge {
        /// What, as a noun phrase.
        what: &'static str,
        /// Value of the call.
        need: u64,
        /// Limit of the buffer.
        have: u64,
    },
    /// The rows that arrive do not fit. Every rank returns this error before any row moves.
    OutputTooSmall {
        /// Rank whose output is too small.
        rank: usize,
        /// Rows that would arrive there.
        need: u64,
        /// Rows that fit.
        have: u64,
    },
    /// All handles or outputs of a rank are in use.
    AllInUse {
        /// What ran out.
        what: &'static str,
        /// Rank.
        rank: usize,
        /// How many there are.
        live: usize,
    },
    /// Fewer blocks than the kernel's roles need.
    TooFewBlocks {
        /// Pipeline.
        pipeline: String,
        /// Blocks of the call.
        have: u32,
        /// Blocks that run every role.
        need: u32,
    },
    /// An argument does not fit the call, or the buffer.
    Mismatch {
        /// What does not fit, as a sentence.
        what: String,
    },
    /// A tensor of a call differs from its pipeline's declaration.
    Tensor {
        /// Pipeline.
        pipeline: String,
        /// Tensor.
        tensor: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// Two ranks make different buffers. Every rank returns this error, and no buffer is made.
    Disagreement {
        /// What differs.
        what: &'static str,
        /// This rank.
        rank: usize,
        /// What it is here.
        value: String,
        /// A rank where it is different.
        other: usize,
        /// What it is there.
        other_value: String,
    },
    /// A graph cannot contain this; the text says what to do instead.
    Capture {
        /// What, as a sentence.
        what: String,
    },
    /// A wait of a kernel expired. From now on every call of the group returns this error.
    Timeout(Timeouts),
    /// The network between the ranks has failed. From now on every call returns this error.
    #[cfg(target_os = "linux")]
    Network(NetError),
    /// The words of a kernel never arrived, although no kernel reported a wait.
    Silent {
        /// Rank.
        rank: usize,
        /// What did not come.
        what: &'static str,
    },
}

/// Why a tensor does not fit a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorFault {
    /// The tensor is absent.
    Absent,
    /// The tensor is present, but calls with these options take none.
    NotTaken,
    /// The tensor has another element type.
    Element {
        /// What it holds.
        have: &'static str,
        /// What it has to.
        want: &'static str,
    },
    /// The tensor has other extents.
    Extents {
        /// Those that it has.
        have: Vec<u64>,
        /// Those that it has to have; none where any will do.
        want: Vec<Option<u64>>,
    },
    /// The strides of the tensor are not those that kernels expect.
    Strides {
        /// In elements.
        have: Vec<i64>,
        /// Elements from one row to the next.
        row: i64,
        /// Whether that is the least, not the only right one.
        or_more: bool,
    },
    /// The rows of the tensor are in lists that are not laid out as kernels expect.
    Lists {
        /// In elements.
        have: Vec<i64>,
        /// Elements of a list.
        list: i64,
    },
    /// The tensor begins at an address that no kernel can read or write.
    Address {
        /// Where.
        address: u64,
        /// Bytes from one row to the next, where that has to be a multiple too.
        apart: Option<u64>,
        /// What it has to be a multiple of.
        multiple: u64,
    },
    /// Peers have to access the tensor, and it is outside the kernel's window.
    OutsideWindow {
        /// Where.
        address: u64,
    },
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFault::Absent => f.write_str("is absent"),
            TensorFault::NotTaken => f.write_str("is given, but these options take none"),
            TensorFault::Element { have, want } => write!(f, "holds {have}, not {want}"),
            TensorFault::Extents { have, want } => {
                let any =
                    |extent: &Option<u64>| extent.map_or("_".to_string(), |it| it.to_string());
                let want: Vec<String> = want.iter().map(any).collect();
                write!(f, "has extents {have:?}, not [{}]", want.join(", "))
            }
            TensorFault::Strides { have, row, or_more } => {
                let least = if *or_more { " or more" } else { "" };
                write!(
                    f,
                    "has strides {have:?}, not rows side by side, {row}{least} elements apart"
                )
            }
            TensorFault::Lists { have, list } => {
                write!(
                    f,
                    "has strides {have:?}, not lists of rows that take {list} elements each, one behind \
                     another"
                )
            }
            TensorFault::Address { address, apart: None, multiple } => {
                write!(f, "begins at {address:#x}, which is no multiple of {multiple}")
            }
            TensorFault::Address { address, apart: Some(apart), multiple } => write!(
                f,
                "begins at {address:#x} and has its rows {apart} bytes apart: both have to be multiples \
                 of {multiple}"
            ),
            TensorFault::OutsideWindow { address } => {
                write!(f, "lies at {address:#x}, outside of the window in which peers reach it")
            }
        }
    }
}

impl From<BackendError> for CallError {
    fn from(error: BackendError) -> CallError {
        CallError::Backend(error)
    }
}

#[cfg(target_os = "linux")]
impl From<NetError> for CallError {
    fn from(error: NetError) -> CallError {
        CallError::Network(error)
    }
}

impl From<PlanError> for CallError {
    fn from(error: PlanError) -> CallError {
        CallError::Plan(error)
    }
}

impl From<EmitError> for CallError {
    fn from(error: EmitError) -> CallError {
        match error {
            EmitError::Plan(error) => CallError::Plan(error),
            EmitError::NoText(name) => {
                CallError::Emit { pipeline: name.to_string(), reason: error.to_string() }
            }
        }
    }
}

/// What `main` prints of it: the sentence.
impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Backend(error) => error.fmt(f),
            CallError::Plan(error) => error.fmt(f),
            CallError::Emit { pipeline, reason } => write!(f, "{pipeline}: {reason}"),
            CallError::Unbound { pipeline, name } => {
                write!(f, "{pipeline}: `{name}` has no value in this call")
            }
            CallError::TooLarge { what, need, have } => {
                write!(f, "{need} {what}, where {have} is the most")
            }
            CallError::OutputTooSmall { rank, need, have } => {
                write!(f, "rank {rank} would receive {need} rows, its output holds {have}")
            }
            CallError::AllInUse { what, rank, live } => {
                write!(f, "rank {rank}: all {live} {what} are in use; drop one, or make more")
            }
            CallError::TooFewBlocks { pipeline, have, need } => {
                write!(f, "{pipeline}: {have} blocks, its roles need {need}")
            }
            CallError::Tensor { pipeline, tensor, fault } => {
                write!(f, "{pipeline}: `{tensor}` {fault}")
            }
            CallError::Mismatch { what } | CallError::Capture { what } => f.write_str(what),
            CallError::Disagreement { what, rank, value, other, other_value } => write!(
                f,
                "rank {other} makes a buffer with {what} {other_value}, rank {rank} one with {what} \
                 {value}"
            ),
            CallError::Timeout(timeouts) => timeouts.fmt(f),
            #[cfg(target_os = "linux")]
            CallError::Network(error) => error.fmt(f),
            CallError::Silent { rank, what } => {
                write!(f, "rank {rank}: {what} did not come, and no kernel says what it waits for")
            }
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallError::Backend(error) => Some(error),
            CallError::Plan(error) => Some(error),
            _ => None,
        }
    }
}

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
        /// The pipeline.
        pipeline: String,
        /// The reason.
        reason: String,
    },
    /// A member of `struct Args` has no value.
    Unbound {
        /// The pipeline.
        pipeline: String,
        /// The name of the member.
        name: String,
    },
    /// A number of a call is outside what the buffer or the kernel was made for.
    TooLarge {
        /// The excess quantity, as a noun phrase.
        what: &'static str,
        /// The value of the call.
        need: u64,
        /// The limit of the buffer.
        have: u64,
    },
    /// The rows that arrive do not fit. Every rank returns this error before any row moves.
    OutputTooSmall {
        /// The rank whose output is too small.
        rank: usize,
        /// Number of rows that would arrive there.
        need: u64,
        /// Number of rows that fit.
        have: u64,
    },
    /// All handles or outputs of a rank are in use.
    AllInUse {
        /// The kind of object that ran out.
        what: &'static str,
        /// The rank.
        rank: usize,
        /// The number of such objects.
        live: usize,
    },
    /// Fewer blocks than the kernel's roles need.
    TooFewBlocks {
        /// The pipeline.
        pipeline: String,
        /// Number of blocks of the call.
        have: u32,
        /// Number of blocks that its roles need.
        need: u32,
    },
    /// An argument does not fit the call, or the buffer.
    Mismatch {
        /// The mismatch, as a sentence.
        what: String,
    },
    /// A tensor of a call differs from its pipeline's declaration.
    Tensor {
        /// The pipeline.
        pipeline: String,
        /// The tensor.
        tensor: String,
        /// The fault of the tensor.
        fault: TensorFault,
    },
    /// Two ranks make different buffers. Every rank returns this error, and no buffer is made.
    Disagreement {
        /// The option that differs.
        what: &'static str,
        /// This rank.
        rank: usize,
        /// The option's value on this rank.
        value: String,
        /// A rank with another value.
        other: usize,
        /// The option's value on that rank.
        other_value: String,
    },
    /// A graph cannot contain this; the text says what to do instead.
    Capture {
        /// The refused action, as a sentence.
        what: String,
    },
    /// A wait of a kernel expired. From now on every call of the group returns this error.
    Timeout(Timeouts),
    /// The network between the ranks has failed. From now on every call returns this error.
    #[cfg(target_os = "linux")]
    Network(NetError),
    /// The words of a kernel never arrived, although no kernel reported a wait.
    Silent {
        /// The rank.
        rank: usize,
        /// The words that did not arrive.
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
        /// The element type of the tensor.
        have: &'static str,
        /// The required element type.
        want: &'static str,
    },
    /// The tensor has other extents.
    Extents {
        /// The extents of the tensor.
        have: Vec<u64>,
        /// The required extents; `None` for an extent that may have any value.
        want: Vec<Option<u64>>,
    },
    /// The strides of the tensor are not those that kernels expect.
    Strides {
        /// The stride of the tensor, in elements.
        have: Vec<i64>,
        /// The required number of elements from one row to the next.
        row: i64,
        /// Whether larger strides are valid too.
        or_more: bool,
    },
    /// The rows of the tensor are in lists that are not laid out as kernels expect.
    Lists {
        /// The stride of the tensor, in elements.
        have: Vec<i64>,
        /// Number of elements in a list.
        list: i64,
    },
    /// The tensor begins at an address that no kernel can read or write.
    Address {
        /// The address.
        address: u64,
        /// Bytes from one row to the next, if these have to be a multiple too.
        apart: Option<u64>,
        /// The number that the address has to be a multiple of.
        multiple: u64,
    },
    /// Peers have to access the tensor, and it is outside the kernel's window.
    OutsideWindow {
        /// The address.
        address: u64,
    },
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFault::Absent => f.write_str("is absent"),
            TensorFault::NotTaken => f.write_str("is given, but these options do not take it"),
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
                    "has strides {have:?}, and its rows have to be {row}{least} elements apart"
                )
            }
            TensorFault::Lists { have, list } => {
                write!(
                    f,
                    "has strides {have:?}, and has to consist of consecutive lists of rows of {list} \
                    elements each"
                )
            }
            TensorFault::Address { address, apart: None, multiple } => {
                write!(f, "begins at {address:#x}, which is not a multiple of {multiple}")
            }
            TensorFault::Address { address, apart: Some(apart), multiple } => write!(
                f,
                "begins at {address:#x} and has its rows {apart} bytes apart: both have to be multiples \
                 of {multiple}"
            ),
            TensorFault::OutsideWindow { address } => {
                write!(f, "is at {address:#x}, outside of the window that peers can access")
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

/// Prints the sentence, because `main` prints errors in this form.
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
                write!(f, "{need} {what}, and the maximum is {have}")
            }
            CallError::OutputTooSmall { rank, need, have } => {
                write!(f, "rank {rank} would receive {need} rows, and its output holds {have}")
            }
            CallError::AllInUse { what, rank, live } => {
                write!(f, "rank {rank}: all {live} {what} are in use; drop one, or make more")
            }
            CallError::TooFewBlocks { pipeline, have, need } => {
                write!(f, "{pipeline} has {have} blocks, and its roles need {need}")
            }
            CallError::Tensor { pipeline, tensor, fault } => {
                write!(f, "{pipeline}: `{tensor}` {fault}")
            }
            CallError::Mismatch { what } | CallError::Capture { what } => f.write_str(what),
            CallError::Disagreement { what, rank, value, other, other_value } => write!(
                f,
                "rank {other} makes a buffer with {what} {other_value}, and rank {rank} makes one with \
                {what} {value}"
            ),
            CallError::Timeout(timeouts) => timeouts.fmt(f),
            #[cfg(target_os = "linux")]
            CallError::Network(error) => error.fmt(f),
            CallError::Silent { rank, what } => {
                write!(
                    f,
                    "rank {rank}: {what} did not arrive, and no kernel reports what it waits for"
                )
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

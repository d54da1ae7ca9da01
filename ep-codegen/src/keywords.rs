//! The words of the language. All of them are contextual: a pipeline may use any as a name.

use crate::ast::{ParamKind, PeerSet, TensorKind, Transport};
use crate::ir::ChannelKind;

/// The words that begin what stands in a `pipeline!` block.
pub const BLOCK: &[&str] = &["pipeline", "pub", "fragment", "items", "fragments"];

/// The words that begin a declaration.
pub const ITEMS: &[&str] = &[
    "shape", "variant", "tune", "arg", "size", "input", "output", "inout", "table", "message",
    "channel", "role", "phase", "when", "uses", "use", "cuda",
];

/// The words that begin a statement.
pub const STATEMENTS: &[&str] = &[
    "for", "if", "announce", "push", "store", "record", "add", "count", "raise", "let", "await",
    "close", "when",
];

/// The words that declare tensors.
pub const TENSORS: &[(&str, TensorKind)] = &[
    ("input", TensorKind::Input),
    ("output", TensorKind::Output),
    ("inout", TensorKind::Inout),
    ("table", TensorKind::Table),
];

/// The kinds of a channel.
pub const CHANNEL_KINDS: &[(&str, ChannelKind)] = ChannelKind::WORDS;

/// What carries a channel.
pub const TRANSPORTS: &[(&str, Transport)] =
    &[("nvlink", Transport::Nvlink), ("rdma", Transport::Rdma), ("ibgda", Transport::Ibgda)];

/// The peer sets.
pub const PEER_SETS: &[(&str, PeerSet)] = &[
    ("all", PeerSet::All),
    ("others", PeerSet::Others),
    ("local", PeerSet::Local),
    ("rail", PeerSet::Rail),
];

/// What a parameter of a fragment stands for.
pub const PARAM_KINDS: &[(&str, ParamKind)] = &[
    ("value", ParamKind::Value),
    ("tensor", ParamKind::Tensor),
    ("channel", ParamKind::Channel),
    ("message", ParamKind::Message),
    ("name", ParamKind::Name),
    ("variant", ParamKind::Variant),
    ("block", ParamKind::Block),
];

/// The scalar element types.
pub const ELEMS: &[&str] = &["bool", "u8", "i8", "i32", "i64", "f32", "bf16", "e4m3", "ue8m0"];

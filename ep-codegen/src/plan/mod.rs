//! Specialising a pipeline for one shape: after this nothing is undecided.
//!
//! One table ([`Plan::cfg`], [`Plan::window`], [`Plan::params`]) gives the emitted `struct Cfg`, the
//! comments above it and what the host allocates and passes, so that they cannot disagree.

mod arch;
mod args;
mod build;
mod config;
mod counted;
mod error;
mod extent;
mod message;
mod numbers;
mod prologue;
mod roles;
mod shared;
mod window;

pub use arch::Arch;
pub use args::{has_row_stride, params};
pub use build::{camel, constant, plan};
pub use config::{Config, kebab, snake};
pub use counted::{Counting, counted, has_last, is_given, sums};
pub use error::PlanError;
pub use extent::Extent;
pub use message::{
    LINE_BYTES, MessageLayout, MetaField, MetaSource, align, elem_bytes, meta_sources, parts,
    row_field,
};
pub use numbers::{Numbers, eval, resolve};
pub use roles::{
    RoleUse, RoleWarps, block_groups, has_sequences, moved_row, role_use, row_in_place,
};

use crate::ir::facts::Pair;
use crate::ir::{Elem, Waiver};

/// A pipeline specialised for one shape and target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Pipeline name as declared (`NvlDispatch`).
    pub pipeline: String,
    /// Symbol of the kernel (`nvl_dispatch`).
    pub entry: String,
    /// Target.
    pub arch: Arch,
    /// Chosen arms as (axis, arm).
    pub arms: Vec<(String, String)>,
    /// Values of dims and tunes.
    pub numbers: Numbers,
    /// Members of the emitted `struct Cfg`, in order.
    pub cfg: Vec<CfgGroup>,
    /// Members of the emitted `struct Args`, in order.
    pub params: Vec<Param>,
    /// Size of `struct Args`.
    pub args_bytes: i64,
    /// Memory of the caller that the kernel writes.
    pub extents: Vec<Extent>,
    /// Tensors in whose rows peers read or write where they lie, with the bytes from one row to the next.
    pub strides: Vec<(String, i64)>,
    /// The control memory that every rank has at the same offset of its window.
    pub window: Vec<Region>,
    /// Bytes of all regions.
    pub window_bytes: i64,
    /// Threads per block.
    pub threads: i64,
    /// Dynamic shared memory per block.
    pub shared_bytes: i64,
    /// Roles and their warps.
    pub roles: Vec<RoleWarps>,
    /// Fewest blocks that run every role.
    pub blocks_min: i64,
    /// Whether blocks wait for one another, or several of them for other ranks: all of them have to be
    /// resident at once then.
    pub waits: bool,
    /// Messages as laid out for their channels.
    pub messages: Vec<MessageLayout>,
    /// Every release and the acquire that sees it.
    pub pairs: Vec<Pair>,
    /// Policies of the checker that channels waive, by channel.
    pub waivers: Vec<(String, Waiver)>,
}

/// A nested struct of `Cfg`; the first group has no name and holds the top-level members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CfgGroup {
    /// Struct name, empty for the top level.
    pub name: String,
    /// Members.
    pub members: Vec<CfgMember>,
}

/// A constant of `Cfg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CfgMember {
    /// `kName`.
    pub name: String,
    /// Its value.
    pub value: i64,
    /// Its type.
    pub kind: CfgKind,
}

/// C++ type of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CfgKind {
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `ep::u64`
    Offset,
}

/// A member of `struct Args`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name.
    pub name: String,
    /// What the host passes.
    pub kind: ParamKind,
    /// Offset inside `struct Args`.
    pub offset: i64,
}

/// What a member of `struct Args` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamKind {
    /// `ep::Group`.
    Group,
    /// A row count (`tokens`), `int`.
    Size,
    /// Where the device finds the row count of a call that a graph replays, or null; then
    /// [`ParamKind::Size`] is the most that it may be.
    SizeFrom {
        /// The size.
        size: String,
    },
    /// How many rows the outputs with this extent hold, `int`.
    Capacity {
        /// The size that counts the rows in use.
        size: String,
    },
    /// A run-time arg.
    Arg {
        /// Element type.
        elem: Elem,
    },
    /// How many of an `up to n` tensor the caller brings, `int`.
    Copies {
        /// Tensor as declared.
        tensor: String,
    },
    /// Device address of a tensor part; copy `i` of an `up to n` tensor is named `name[i]`.
    Pointer {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part; 0 for a scalar element type.
        part: usize,
        /// Index of the copy of an `up to n` tensor.
        copy: i64,
        /// Element type.
        elem: Elem,
        /// Whether the kernel only reads it.
        read_only: bool,
    },
    /// Elements from one index of the first extent to the next, `i64`.
    RowStride {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part.
        part: usize,
    },
    /// Elements from one index of the second extent to the next, `i64` (scales only).
    ColumnStride {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part.
        part: usize,
    },
    /// Offset of a window tensor from the start of the window, `u64`.
    WindowOffset {
        /// Tensor as declared.
        tensor: String,
    },
    /// Offset of the meta records that a direct channel brings, `u64`.
    MetaOffset {
        /// Channel.
        channel: String,
    },
}

/// A region of the control memory of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// `channel.what`.
    pub name: String,
    /// Offset from the start of the plan's control memory.
    pub offset: i64,
    /// Bytes.
    pub bytes: i64,
    /// Who writes it.
    pub writer: String,
    /// Who reads it.
    pub reader: String,
    /// What the bytes are made of.
    pub formula: String,
}

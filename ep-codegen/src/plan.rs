//! Specialising a pipeline for one shape: after this nothing is undecided.
//!
//! One table ([`Plan::cfg`], [`Plan::window`], [`Plan::params`]) gives the emitted `struct Cfg`, the
//! comments above it and what the host allocates and passes, so that they cannot disagree.

mod arch;
mod build;
mod channels;
mod config;
mod counted;
mod error;
mod extent;
mod joined;
mod message;
mod network;
mod numbers;
mod prologue;
mod roles;
mod shared;
mod taken;
mod window;

pub use arch::Arch;
pub use build::plan;
pub use config::Config;
pub use error::PlanError;
pub use extent::Extent;
pub use joined::joined;
pub use message::{MessageLayout, MetaField};
pub use numbers::{Numbers, eval, resolve};
pub use prologue::Body;
pub use roles::{RoleUse, RoleWarps, block_groups, has_sequences, role_use};
pub use taken::{Lists, Taken};

pub use crate::ir::counting::{Counting, counted, has_last, is_given, sums};
pub use crate::ir::naming::{camel, constant, kebab, snake};
pub use crate::ir::params::{Param, ParamKind, has_row_stride, params};
pub use crate::ir::parts::{
    LINE_BYTES, MetaSource, align, elem_bytes, meta_sources, parts, row_field,
};
pub use crate::ir::rows::row_in_place;

use crate::ir::facts::Pair;
use crate::ir::{Blocks, Transport, Waiver};
use crate::schedule::{Recipe, RoleRecipe, Warps};

/// A pipeline specialised for one shape and target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Pipeline name as declared (`NvlDispatch`).
    pub pipeline: String,
    /// Name of the module (`nvl_dispatch`).
    pub entry: String,
    /// Symbols of its kernels, one for each phase in order.
    pub kernels: Vec<String>,
    /// Symbol of the kernel that runs all phases, where one can.
    pub joined: Option<String>,
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
    /// Tensors that every call takes.
    pub taken: Vec<Taken>,
    /// Memory of the caller that the kernel writes.
    pub extents: Vec<Extent>,
    /// Tensors in whose rows peers read or write where they lie, with the bytes from one row to the next.
    pub strides: Vec<(String, i64)>,
    /// Tensors whose scales lie in lists of rows.
    pub lists: Vec<Lists>,
    /// The control memory that every rank has at the same offset of its window.
    pub window: Vec<Region>,
    /// Bytes of all regions.
    pub window_bytes: i64,
    /// The memory of a network that every rank has at the same offset of its rows.
    pub network: Vec<Region>,
    /// Bytes of all of it.
    pub network_bytes: i64,
    /// Counters of the network, of each source.
    pub network_counters: i64,
    /// What carries them, and the rows, if anything does.
    pub carrier: Option<Transport>,
    /// Threads per block.
    pub threads: i64,
    /// Dynamic shared memory per block.
    pub shared_bytes: i64,
    /// Roles and their warps.
    pub roles: Vec<RoleWarps>,
    /// How each role is carried out.
    pub recipe: Recipe,
    /// Fewest blocks that run every role.
    pub blocks_min: i64,
    /// Whether blocks wait for one another, or several of them for other ranks: all of them have to be
    /// resident at once then.
    pub waits: bool,
    /// Whether its kernels first wait for the end of the one before them in their stream, as `ep::enter`
    /// does: they may be brought to the SMs ahead of that.
    pub enters: bool,
    /// Whether a rank may be left out of calls: nothing waits for it.
    pub skips_ranks: bool,
    /// Whether its kernels go on without a rank that does not answer, which only a group that does so can run.
    pub leaves_out_absent: bool,
    /// Messages as laid out for their channels.
    pub messages: Vec<MessageLayout>,
    /// Every release and the acquire that sees it.
    pub pairs: Vec<Pair>,
    /// Policies of the checker that channels waive, by channel.
    pub waivers: Vec<(String, Waiver)>,
}

impl Plan {
    /// Whether calls say how far the rows of a tensor's part lie apart, and whether its columns.
    pub fn strides_of(&self, tensor: &str, part: usize) -> (bool, bool) {
        let has = |wanted: &ParamKind| self.params.iter().any(|param| param.kind == *wanted);
        let rows = ParamKind::RowStride { tensor: tensor.to_string(), part };
        let columns = ParamKind::ColumnStride { tensor: tensor.to_string(), part };
        (has(&rows), has(&columns))
    }

    /// The warps that have a part of a role's work, with the numbers of this plan.
    pub fn who(&self, role: &RoleRecipe) -> String {
        let warps = self.roles.iter().find(|own| own.name == role.role).map_or(1, |own| own.count);
        let units = match &role.warps {
            Warps::Each(numbers) => numbers.iter().map(|it| eval(it, &self.numbers)).product(),
            Warps::Blocks(stripes) => eval(stripes, &self.numbers),
            Warps::All | Warps::One => None,
        };
        role.who(warps, units)
    }

    /// A line for each role that leaves blocks of a grid without work, since it has fewer stripes.
    pub fn idle(&self, grid: i64) -> Vec<String> {
        let line = |role: &RoleRecipe| {
            let Warps::Blocks(stripes) = &role.warps else { return None };
            let stripes = eval(stripes, &self.numbers)?;
            let blocks = match role.blocks {
                Blocks::All => grid,
                Blocks::Even => grid - grid / 2,
                Blocks::Odd => grid / 2,
                _ => return None,
            };
            (stripes < blocks).then(|| {
                format!(
                    "{}: stripes = {stripes} leave {} of {blocks} blocks without work",
                    role.role,
                    blocks - stripes
                )
            })
        };
        self.recipe.roles.iter().filter_map(line).collect()
    }
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

fn int(name: &str, value: i64) -> CfgMember {
    CfgMember { name: name.to_string(), value, kind: CfgKind::Int }
}

fn flag(name: &str, value: bool) -> CfgMember {
    CfgMember { name: name.to_string(), value: i64::from(value), kind: CfgKind::Bool }
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

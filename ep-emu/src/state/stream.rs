//! Launches, and how far each rank is in its list.

use super::Idx;
use crate::abi::{Bind, LaneView, Table};
use crate::heap::LaunchTensor;
use crate::program::Kernel;

/// One launch of a kernel on one rank.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads a block, a multiple of 32.
    pub threads: u32,
    /// Dynamic shared memory a block.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once (M8).
    pub cooperative: bool,
    /// Whether it may begin before the launch before it is over: it has to wait for that.
    pub comes_early: bool,
    /// How many phases of a call it runs: another rank may launch them one by one.
    pub phases: u32,
    /// The kernel's parameters, laid out as CUDA does.
    pub args: Vec<u8>,
    /// What its pointers point to, for reports.
    pub tensors: Vec<LaunchTensor>,
}

/// A rank's list of launches and how far it is.
pub(crate) struct Stream {
    pub(crate) launches: Vec<Prepared>,
    /// The launch that runs or is next.
    pub(crate) at: usize,
    /// Phases of those before it.
    pub(crate) phases_run: u64,
    pub(crate) running: bool,
    /// Blocks of the running launch that have not entered yet.
    pub(crate) next_block: u32,
    /// Blocks of it that have ended.
    pub(crate) ended: u32,
    /// First block slot of the rank, and how many it has.
    pub(crate) slots: std::ops::Range<Idx>,
}

/// A launch with its library bound.
pub(crate) struct Prepared {
    pub(crate) launch: Launch,
    /// The parameters, aligned as the kernel may want them.
    pub(crate) args: Vec<u128>,
    pub(crate) module: *mut *const LaneView,
}

impl Prepared {
    /// Binds the launch's library to the runtime.
    pub(crate) fn new(launch: Launch, bind: Bind, table: &Table, watched: (u64, u64)) -> Self {
        // SAFETY: `bind` is the shim's function; the table outlives every library.
        let module = unsafe { bind(table, watched.0, watched.1) };
        let mut args = vec![0u128; launch.args.len().div_ceil(16).max(1)];
        for (index, byte) in launch.args.iter().enumerate() {
            args[index / 16] |= u128::from(*byte) << (index % 16 * 8);
        }
        Self { launch, args, module }
    }
}

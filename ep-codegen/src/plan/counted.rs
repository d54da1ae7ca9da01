//! The counters of a plan whose sums are in the window.

use super::numbers::{Numbers, eval};
use crate::ir::Pipeline;
use crate::ir::counting::{Counting, counted, has_last, sums};

/// Counters of a block in shared memory, in bytes; what is more is added to the sums one by one.
const SHARED_BYTES_MAX: i64 = 32 * 1024;
/// Bytes of a counter, and of the word behind the counters of a block.
const WORD_BYTES: i64 = 4;

/// The counters of a plan whose sums are in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counters {
    /// First counter and number of counters of each tensor.
    pub(super) tensors: Vec<(String, i64, i64)>,
    /// Roles that count.
    pub(super) roles: Vec<String>,
}

impl Counters {
    /// `None` for a pipeline without any.
    pub(super) fn of(ir: &Pipeline, numbers: &Numbers) -> Option<Counters> {
        let mut tensors = Vec::new();
        let mut first = 0;
        for (tensor, _) in counted(ir).into_iter().filter(|(_, kind)| *kind == Counting::Summed) {
            let count = tensor.dims.iter().map(|dim| eval(dim, numbers).unwrap_or(0)).product();
            tensors.push((tensor.name.clone(), first, count));
            first += count;
        }
        let roles = ir.roles.iter().filter(|role| sums(ir, role)).map(|role| role.name.clone());
        (!tensors.is_empty() || has_last(ir)).then(|| Counters { tensors, roles: roles.collect() })
    }

    /// Counters of all tensors.
    pub(super) fn count(&self) -> i64 {
        self.tensors.iter().map(|(_, _, count)| count).sum()
    }

    /// Bytes of their sums.
    pub(super) fn bytes(&self) -> i64 {
        WORD_BYTES * self.count()
    }

    /// Whether a block counts in shared memory.
    pub(super) fn in_shared(&self) -> bool {
        self.bytes() <= SHARED_BYTES_MAX
    }

    /// `sizeof(ep::CounterSmem<Counted>)`.
    pub(super) fn shared_bytes(&self) -> i64 {
        // At least one counter, and the word behind them.
        match self.in_shared() {
            true => self.bytes().max(WORD_BYTES) + WORD_BYTES,
            false => 2 * WORD_BYTES,
        }
    }

    /// What the sums are made of.
    pub(super) fn formula(&self) -> String {
        let terms = self.tensors.iter().map(|(name, _, count)| format!("{count} {name}"));
        format!("({}) x {WORD_BYTES}", terms.collect::<Vec<_>>().join(" + "))
    }
}

//! Calls whose phases are launched separately. Other work runs between them, and the call occupies no SM
//! then.

use std::sync::Arc;

use super::{CallKernel, CallOptions, LeftTables};
use crate::error::CallError;
use crate::tensor::{Given, TensorMemory};

/// A call whose first phase has been launched, with everything that the others need. The memory of its
/// tensors lives as long as this value.
pub struct PhasedCall {
    kernel: CallKernel,
    rank: usize,
    values: Vec<u64>,
    memory: Vec<Arc<TensorMemory>>,
    left: LeftTables,
}

impl CallKernel {
    /// Launches the first phase of a call.
    pub fn begin(
        &self,
        rank: usize,
        call: &CallOptions,
        given: &[Option<Given<'_>>],
        numbers: &[u64],
    ) -> Result<PhasedCall, CallError> {
        self.inner.group.check(rank)?;
        let bound = self.bind(rank, call, given, numbers)?;
        self.put(rank, call, 0..1, &bound.values, bound.memory(given))?;
        let (memory, values) = (bound.memory(given).cloned().collect(), bound.values.clone());
        Ok(PhasedCall { kernel: self.clone(), rank, values, memory, left: bound.left })
    }
}

impl PhasedCall {
    /// Launches a phase. Only the next phase is accepted.
    pub fn go_on(&self, phase: usize, call: &CallOptions) -> Result<(), CallError> {
        let inner = self.kernel.inner.as_ref();
        inner.group.check(self.rank)?;
        inner.prepared.check_blocks(self.rank, call)?;
        let memory = self.memory.iter();
        self.kernel.put(self.rank, call, phase..phase + 1, &self.values, memory)
    }

    /// The kernel, and the tables that the call fills.
    pub fn left(&self) -> (&CallKernel, &LeftTables) {
        (&self.kernel, &self.left)
    }
}

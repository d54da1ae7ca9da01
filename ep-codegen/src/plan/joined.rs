//! Whether one kernel can run all phases of a call, for callers who do nothing in between: its warps go on to
//! the next phase as they come, and no block waits for another one.

use super::roles::role_use;
use crate::ir::counting::{counted, has_last};
use crate::ir::naming::kernel_of;
use crate::ir::{Pipeline, Role, walk};
use crate::schedule::Ways;

/// The symbol of the kernel that runs all phases of a selected pipeline, if one can.
pub fn joined(ir: &Pipeline, ways: &Ways) -> Option<String> {
    // Counters are stored, and roles on the last block run, when a kernel ends.
    let waits_for_end = !counted(ir).is_empty() || has_last(ir);
    let in_registers = |role: &Role| !role_use(ways, role).has_memory();
    let is_joined = ir.phases().len() > 1
        && !waits_for_end
        && ir.roles.iter().all(in_registers)
        && !hands_over(ir);
    is_joined.then(|| kernel_of(ir, None))
}

/// Whether a phase writes a tensor that another one has to do with: the end of a kernel alone orders the two.
fn hands_over(ir: &Pipeline) -> bool {
    ir.roles.iter().any(|writer| {
        let others = || ir.roles.iter().filter(|other| other.phase != writer.phase);
        let mut found = false;
        walk::stmts(&writer.body, &mut |stmt| {
            let Some(place) = walk::target(stmt) else { return };
            found |= others().any(|other| walk::mentioned_in(&other.body, &place.tensor));
        });
        found
    })
}

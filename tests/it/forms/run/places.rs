//! Room in the window for what peers reach.

use ep_runtime::group::control_bytes;
use ep_runtime::ir::Pipeline;
use ep_runtime::memory::align_up;
use ep_runtime::plan::{ParamKind, Plan, row_in_place};

use super::Call;

/// Where tensors and records are in the window, at one place for all ranks.
pub(super) struct Places {
    pub(super) starts: Vec<(String, u64)>,
    pub(super) end: u64,
}

impl Places {
    /// Ranks hold different numbers of rows; each has room for the most.
    pub(super) fn new(ir: &Pipeline, plan: &Plan, calls: &[Call]) -> Places {
        let end = align_up(control_bytes(plan).max(1));
        let mut places = Places { starts: Vec::new(), end };
        let mut names: Vec<&str> = Vec::new();
        for given in calls.iter().flat_map(|call| &call.tensors) {
            if given.is_in_window(plan) && !names.contains(&given.name.as_str()) {
                names.push(&given.name);
            }
        }
        for name in names {
            let held = calls.iter().flat_map(|call| &call.tensors).filter(|it| it.name == name);
            places.place(name, held.map(|given| given.bytes(plan).len() as u64).max());
        }
        for param in &plan.params {
            if let ParamKind::MetaOffset { channel } = &param.kind {
                places.place(channel, meta_bytes(ir, plan, channel, calls));
            }
        }
        places
    }

    fn place(&mut self, name: &str, bytes: Option<u64>) {
        self.starts.push((name.to_string(), self.end));
        self.end = align_up(self.end + bytes.unwrap_or(0).max(1));
    }
}

/// Bytes of the records of a direct channel: one beside each row of its output.
fn meta_bytes(ir: &Pipeline, plan: &Plan, channel: &str, calls: &[Call]) -> Option<u64> {
    let (channel, message) = ir.carried(channel)?;
    let (_, rows) = row_in_place(ir, channel)?;
    let layout = plan.messages.iter().find(|layout| layout.name == message.name)?;
    let held = calls.iter().flat_map(|call| &call.tensors).filter(|it| it.name == rows.name);
    held.map(|given| (given.start.len() / given.width) as u64 * layout.meta_bytes as u64).max()
}

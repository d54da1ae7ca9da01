//! A kernel between a dispatch and its combine, as the experts of a layer are: what it reads and
//! writes by plain accesses has to be ordered with the copies of the calls around it.

use std::sync::Arc;

use ep_runtime::Emitted;
use ep_runtime::args::Bindings;
use ep_runtime::backend::Stream;
use ep_runtime::buffer::{Handle, Offered, Received};
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::memory::Window;

/// The kernel.
pub(crate) const TEXT: &str = include_str!("experts.cu");

const BLOCKS: u32 = 2;

/// bf16 values in 16 bytes.
const VALUES: usize = 8;

/// Experts that give back the rows that they get.
pub(super) struct Experts {
    kernel: GroupKernel,
    ranks: usize,
    hidden: usize,
}

impl Experts {
    pub(super) fn new(group: &Group, hidden: usize) -> Result<Experts, CallError> {
        let made = HandwrittenKernel {
            name: "Experts",
            entry: "experts_copy",
            numbers: &["ranks", "quads"],
            pointers: &["x", "made", "rank_prefix"],
            wide_numbers: &["x_stride", "made_stride"],
            threads: 128,
            shared_bytes: 0,
            window_bytes: 0,
            blocks_min: 1,
            waits: false,
            enters: false,
        };
        let plan = made.plan(group.backend().arch());
        let window = Arc::new(Window::new(group.backend(), control_bytes(&plan))?);
        let emitted = Emitted { cuda: TEXT.to_string(), plan };
        let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
        Ok(Experts { kernel, ranks: group.ranks(), hidden })
    }

    /// Queues their work behind the dispatch that left `received`.
    pub(super) fn work(
        &self,
        handle: &Handle,
        received: &Received,
        offered: &Offered,
    ) -> Result<(), CallError> {
        let (x, made) = (received.x()?, offered.x()?);
        let mut bindings = Bindings::new();
        bindings
            .number("ranks", self.ranks as i64)
            .number("quads", (self.hidden / VALUES) as i64)
            .number("x_stride", x.row_stride / VALUES as i64)
            .number("made_stride", made.row_stride / VALUES as i64)
            .tensor("x", x)
            .tensor("made", made)
            .tensor("rank_prefix", handle.layout()?.rank_prefix.as_rows());
        self.kernel.launch(handle.rank(), Stream::OWN, BLOCKS, &bindings)
    }
}

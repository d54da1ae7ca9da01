//! Counters: how they start at zero, what adds to them, and who stores them.

use super::{Rendered, Renderer};
use crate::ir::counting::counted_in;
use crate::ir::{Expr, Memory, Tensor, WellKnown};
use crate::plan::{Counting, counted, has_last, is_given};
use crate::schedule::library::ep;
use crate::schedule::{self, Constant};

/// How many sequences the rings of a block have.
pub(super) const SEQUENCES: Constant = Constant::known("", "kSequences");

impl Renderer<'_> {
    /// Whether the sums of some counters are in the window.
    pub(super) fn has_sums(&self) -> bool {
        counted(self.ir).iter().any(|(_, kind)| *kind == Counting::Summed) || has_last(self.ir)
    }

    /// Whether what a phase counts is added up as it ends, or roles on its last block wait for that.
    pub(super) fn adds_up(&self, phase: Option<&str>, has_last: bool) -> bool {
        has_last || counted_in(self.ir, phase).iter().any(|(_, kind)| *kind == Counting::Summed)
    }

    /// What a block zeroes for itself as it enters a phase, and what all blocks zero before they meet.
    pub(super) fn zeroes(&self, phase: Option<&str>, has_last: bool) -> (Vec<String>, Vec<String>) {
        let counted = counted_in(self.ir, phase);
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        if crate::plan::has_sequences(self.ir, &self.ways) {
            let (clear, count) = (self.library(ep::clear), self.constant(SEQUENCES));
            own.push(format!("{clear}(smem.sequences, {count});"));
        }
        let zeroed = |kind: &Counting| matches!(kind, Counting::Summed | Counting::ByStripe);
        if counted.iter().any(|(tensor, kind)| zeroed(kind) && !is_given(tensor)) {
            own.push("// Counters start at zero.".to_string());
        }
        if self.adds_up(phase, has_last) {
            own.push("smem.counters.clear();".to_string());
        }
        for (tensor, kind) in counted.into_iter().filter(|(tensor, _)| !is_given(tensor)) {
            let name = &tensor.name;
            match kind {
                Counting::Summed => {}
                Counting::ByStripe => own.push(format!(
                    "{}(args.{name}, {}, {});",
                    self.library(ep::clear_stripes),
                    self.constant(Constant::number(WellKnown::Stripes.name())),
                    self.extents(tensor, 1)
                )),
                Counting::Cleared => {
                    let clear = self.library(ep::clear_tensor);
                    let call = format!("{clear}(args.{name}, {});", self.extents(tensor, 0));
                    shared.push(match tensor.optional {
                        true => format!("if (args.{name} != nullptr) {call}"),
                        false => call,
                    });
                }
            }
        }
        (own, shared)
    }

    /// Product of the extents from the one with this number on.
    fn extents(&self, tensor: &Tensor, from: usize) -> String {
        let role = self.ir.roles.first();
        let extent = |dim: &Expr| schedule::number(self.ir, role?, dim);
        let extents = tensor.dims.iter().skip(from).filter_map(extent);
        let product = extents.reduce(|all, extent| all.times(extent));
        product.map_or_else(|| "1".to_string(), |product| self.term(&product))
    }

    /// The last step of a phase: the last block out stores what all have counted.
    pub(super) fn leave(&self, phase: Option<&str>, last: &[String]) -> Rendered {
        if !self.adds_up(phase, !last.is_empty()) {
            return Ok(format!("{}(args.group, call);", self.library(ep::leave)));
        }
        let leave = self.library(ep::leave_counted);
        let summed =
            counted_in(self.ir, phase).into_iter().filter(|(_, kind)| *kind == Counting::Summed);
        let stores = summed.map(|(tensor, _)| self.sum_store(tensor)).collect::<Vec<_>>();
        let stores = stores.join("\n");
        let remark = "// The last block to leave stores what all blocks have counted.";
        if last.is_empty() {
            return Ok(format!(
                "{remark}\n\
                 {leave}(args.group, call, smem.counters, [&](int i, ep::i32 sum) {{\n\
                 {stores}\n}});"
            ));
        }
        Ok(format!(
            "{remark}\n\
             const auto store = [&](int i, ep::i32 sum) {{\n{stores}\n}};\n\
             // Then the roles on the last block.\n\
             const auto last = [&] {{\n{}\n}};\n\
             {leave}(args.group, call, smem.counters, store, last);",
            last.join("\n")
        ))
    }

    fn sum_store(&self, tensor: &Tensor) -> String {
        let (name, first) = (&tensor.name, self.constant(Constant::counted(&tensor.name)));
        let place = format!("args.{name}[i - {first}]");
        let store = match tensor.memory {
            Memory::Host => format!("{}(&{place}, sum);", self.library(ep::store_host)),
            _ if is_given(tensor) => format!("{place} += sum;"),
            _ => format!("{place} = sum;"),
        };
        let (is_between, count) = (self.library(ep::is_between), self.extents(tensor, 0));
        format!("if ({is_between}(i, {first}, {count})) {{\n{store}\n}}")
    }
}

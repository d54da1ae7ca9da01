//! How the tensors that a pipeline counts into, and the outputs that it adds to, start at zero.

use std::collections::BTreeMap;

use super::{
    Action, Blocks, Domain, Elem, ElemType, Expr, Memory, NameKind, Pipeline, Place, Role, Share,
    Stmt, Tensor, TensorKind, walk,
};

/// How a counted tensor starts at zero, and who adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Each stripe has counters of its own, which the block of the stripe zeroes and adds to.
    ByStripe,
    /// Sums in the window that are zero between calls; the last block out stores them.
    Summed,
    /// All blocks zero it, and meet before they count: the extents are known in a call only, or other
    /// statements than `count` write it.
    Cleared,
}

/// The tensors that are counted into, and the outputs that are added to, in order of their first statement.
pub fn counted(ir: &Pipeline) -> Vec<(&Tensor, Counting)> {
    let mut counts: BTreeMap<&str, Vec<(&Role, &Place, bool)>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for role in &ir.roles {
        for (place, by_token) in counts_of(ir, role) {
            if !order.contains(&place.tensor.as_str()) {
                order.push(&place.tensor);
            }
            counts.entry(&place.tensor).or_default().push((role, place, by_token));
        }
    }
    let tensor = |name: &&str| ir.tensors.iter().find(|tensor| tensor.name == **name);
    let kind = |tensor: &Tensor| counting(ir, tensor, &counts[tensor.name.as_str()]);
    order.iter().filter_map(tensor).map(|tensor| (tensor, kind(tensor))).collect()
}

/// Those that the roles of a phase count into.
pub fn counted_in<'a>(ir: &'a Pipeline, phase: Option<&str>) -> Vec<(&'a Tensor, Counting)> {
    let of_phase = |(tensor, _): &(&Tensor, Counting)| {
        let mut roles = ir.roles.iter().filter(|role| role.phase.as_deref() == phase);
        roles.any(|role| counts_of(ir, role).iter().any(|(place, _)| place.tensor == tensor.name))
    };
    counted(ir).into_iter().filter(of_phase).collect()
}

/// Whether `role` counts into a tensor whose sums are in the window.
pub fn sums(ir: &Pipeline, role: &Role) -> bool {
    let counted = counted(ir);
    let summed = |place: &Place| {
        counted
            .iter()
            .any(|(tensor, kind)| tensor.name == place.tensor && *kind == Counting::Summed)
    };
    counts_of(ir, role).iter().any(|(place, _)| summed(place))
}

/// The places that a role counts in or adds to, from zero, and whether a loop over the tokens of a stripe is
/// around.
fn counts_of<'a>(ir: &Pipeline, role: &'a Role) -> Vec<(&'a Place, bool)> {
    let mut found = Vec::new();
    let is_new = |place: &Place| {
        ir.tensors.iter().any(|tensor| tensor.name == place.tensor && !is_given(tensor))
    };
    for stmt in &role.body {
        let by_token = matches!(&stmt.action, Action::For { domain: Domain::Stripe, .. });
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| match &inner.action {
            Action::Count { target } => found.push((target, by_token)),
            Action::Add { target, .. } if is_new(target) => found.push((target, by_token)),
            _ => {}
        });
    }
    found
}

fn counting(ir: &Pipeline, tensor: &Tensor, counts: &[(&Role, &Place, bool)]) -> Counting {
    let (first, ..) = counts[0];
    let words = tensor.elem == ElemType::Scalar { elem: Elem::I32 };
    let of_stripe = |(role, place, by_token): &(&Role, &Place, bool)| {
        let stripe =
            matches!(place.indices.first(), Some(Expr::Name { kind: NameKind::Stripe, .. }));
        stripe && *by_token && role.name == first.name
    };
    if is_written_otherwise(ir, &tensor.name) || is_read(ir, first, &tensor.name) {
        return Counting::Cleared;
    }
    let owned = first.blocks == Blocks::All && first.share == Share::Stripe;
    if owned && words && tensor.memory == Memory::Device && counts.iter().all(of_stripe) {
        return Counting::ByStripe;
    }
    let mut fixed = true;
    for dim in &tensor.dims {
        walk::expr(dim, &mut |part| {
            fixed &= !matches!(part, Expr::Name { kind: NameKind::Size, .. });
        });
    }
    if fixed { Counting::Summed } else { Counting::Cleared }
}

fn is_written_otherwise(ir: &Pipeline, name: &str) -> bool {
    let mut found = false;
    let other = |stmt: &Stmt| {
        !matches!(stmt.action, Action::Count { .. })
            && walk::target(stmt).is_some_and(|place| place.tensor == name)
    };
    for role in &ir.roles {
        walk::stmts(&role.body, &mut |stmt| found |= other(stmt));
    }
    found
}

/// Whether a role reads the tensor before all blocks of the phase that counts are done.
fn is_read(ir: &Pipeline, counts: &Role, name: &str) -> bool {
    let together = |role: &&Role| role.blocks != Blocks::Last && role.phase == counts.phase;
    ir.roles.iter().filter(together).any(|role| walk::reads(&role.body, name))
}

/// Whether some role runs on the block that is done last: the counters say which one that is.
pub fn has_last(ir: &Pipeline) -> bool {
    ir.roles.iter().any(|role| role.blocks == Blocks::Last)
}

/// Whether a counted tensor starts with what the caller gives.
pub fn is_given(tensor: &Tensor) -> bool {
    tensor.kind == TensorKind::Inout
}

//! Describes the memory behind the pointers of a launch by the plan of its pipeline: names and rows for
//! reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use ep_codegen::plan::{ParamKind, Plan, elem_bytes};
use ep_emu::{Address, LaunchTensor};

use crate::args::{PIPELINE_AT, STOP_AT, WINDOW_AT};

/// What a launch says of memory: its tensors, and the word that stops it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) tensors: Vec<LaunchTensor>,
    pub(super) stop_word: Option<Address>,
}

/// What a launch with these arguments says, whose pipeline is one of `pipelines`.
pub(super) fn told_by(pipelines: &BTreeMap<u32, Arc<Plan>>, args: &[u8]) -> Told {
    let own = |(number, plan): &(&u32, &Arc<Plan>)| {
        let at = group_at(plan).map(|at| at + PIPELINE_AT);
        let bytes = at.and_then(|at| args.get(at..at + 4));
        bytes.is_some_and(|bytes| bytes == number.to_le_bytes())
            && plan.args_bytes == args.len() as i64
    };
    let Some((_, plan)) = pipelines.iter().find(own) else { return Told::default() };
    let stop = group_at(plan).and_then(|at| word(args, at + STOP_AT));
    Told { tensors: tensors(plan, args), stop_word: stop.map(Address) }
}

/// Where the arguments of a plan's kernels hold the group.
fn group_at(plan: &Plan) -> Option<usize> {
    let group = plan.params.iter().find(|param| param.kind == ParamKind::Group)?;
    usize::try_from(group.offset).ok()
}

fn word(args: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; 8] = args.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn tensors(plan: &Plan, args: &[u8]) -> Vec<LaunchTensor> {
    let window = group_at(plan).and_then(|at| word(args, at + WINDOW_AT));
    let word = |offset: i64| word(args, usize::try_from(offset).ok()?);
    let mut tensors = Vec::new();
    let dense = |tensor: &str| {
        let dense = plan.extents.iter().find(|extent| extent.tensor == *tensor);
        dense.filter(|extent| extent.size.is_some()).map(|extent| extent.bytes as u64)
    };
    for param in &plan.params {
        if let (ParamKind::WindowOffset { tensor }, Some(window)) = (&param.kind, window) {
            // Other ranks read it where it lies, and no kernel of its own has its address.
            let Some(at) = word(param.offset).filter(|at| *at != 0) else { continue };
            let (at, row_bytes) = (Address(window.wrapping_add(at)), dense(tensor).unwrap_or(0));
            tensors.push(LaunchTensor { name: tensor.clone(), at, row_bytes });
        }
        let ParamKind::Pointer { tensor, part, elem, .. } = &param.kind else { continue };
        let Some(at) = word(param.offset).filter(|at| *at != 0) else { continue };
        let stride = plan.params.iter().find(|other| match &other.kind {
            ParamKind::RowStride { tensor: of, part: its } => of == tensor && its == part,
            _ => false,
        });
        let stride = stride.and_then(|stride| word(stride.offset));
        let apart = stride.map(|stride| stride.saturating_mul(elem_bytes(elem) as u64));
        let row_bytes = apart.or_else(|| dense(tensor)).unwrap_or(0);
        tensors.push(LaunchTensor { name: param.name.clone(), at: Address(at), row_bytes });
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ArgsMap, GroupArgs, Operand};
    use crate::fake::{plan_of, pointer};

    #[test]
    fn tensors_have_the_names_of_their_members_and_their_strides() {
        let stride = ParamKind::RowStride { tensor: "x".into(), part: 0 };
        let params = vec![("x", pointer("x")), ("x_stride", stride), ("y", pointer("y"))];
        let plan = Arc::new(plan_of("Scale", params));
        let operand = |name: &str| if name == "x_stride" { 24 } else { 4096 * name.len() as u64 };
        let map = ArgsMap::new(&plan, |param| match param.name.as_str() {
            "y" => Some(Operand::Fixed(0)),
            name => Some(Operand::Fixed(operand(name))),
        })
        .unwrap();
        let block = map.block(&GroupArgs { pipeline: 7, stop: 64, ..GroupArgs::default() });
        let args = block.bytes();
        let pipelines = BTreeMap::from([(6, Arc::clone(&plan)), (7, Arc::clone(&plan))]);
        let ParamKind::Pointer { elem, .. } = pointer("x") else { panic!("a pointer") };
        let row_bytes = 24 * elem_bytes(&elem) as u64;
        let x = LaunchTensor { name: "x".to_string(), at: Address(4096), row_bytes };
        let told = Told { tensors: vec![x], stop_word: Some(Address(64)) };
        assert_eq!(told_by(&pipelines, args), told, "an absent tensor is none");
        assert_eq!(told_by(&BTreeMap::from([(6, plan)]), args), Told::default());
    }
}

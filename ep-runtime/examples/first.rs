//! The first program of docs/calls.md: sends rows to the ranks of their experts and returns their sums.

use ep_runtime::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::tensor::{Bf16, DeviceTensor};

fn main() -> Result<(), CallError> {
    let (tokens, hidden, topk, experts) = (4, 64, 2, 8);
    let group = Group::on_host(2)?; // With GPUs: Group::on_gpus(2)?
    let options =
        BufferOptions { weights: false, ..BufferOptions::new(tokens, hidden, topk, experts) };
    let buffer = Buffer::new(&group, options, &BuiltIn)?;
    let call = CallOptions::default();
    let mut ranks = Vec::new();
    for rank in group.local() {
        let x = vec![Bf16::from(1.5); tokens * hidden];
        let x = DeviceTensor::from_slice(&group, rank, [tokens, hidden], &x)?;
        let experts: Vec<i64> = vec![0, 7, 1, 2, 4, 5, 3, 6]; // Two for each token.
        let experts = DeviceTensor::from_slice(&group, rank, [tokens, topk], &experts)?;
        ranks.push((rank, x, experts, DeviceTensor::zeros(&group, rank, [tokens, hidden])?));
    }
    for (rank, x, experts, sums) in &ranks {
        let input = buffer.input(x, experts, None)?;
        let (handle, received) = buffer.dispatch(*rank, &input, &call)?;
        // Launch your experts on the rows of `received` here. This program leaves the rows unchanged.
        let rows = CombineInput::InPlace(&received, None);
        buffer.combine(&handle, rows, &[], &buffer.output(tokens, sums, None)?, &call)?;
    }
    for (rank, _, _, sums) in &ranks {
        group.sync(*rank)?;
        let first = sums.read()?.into_iter().step_by(hidden).map(f32::from);
        // A row went to each rank that has at least one of its experts: to one rank, or to two.
        assert_eq!(first.collect::<Vec<f32>>(), [3.0, 1.5, 1.5, 3.0]);
    }
    Ok(())
}

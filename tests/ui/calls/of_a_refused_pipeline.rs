// Who calls a pipeline that is not emitted makes no mistake by it.
use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use weights::{Args, Inputs, Kernel, Options, Outputs, Shape};

ep_runtime::pipeline! {
    pipeline Weights {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=64, stripes: 1..=64 }
        size tokens;
        input topk_idx: i64[tokens, topk];
        inout chosen: u8[experts];
        role Weigh on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    add chosen[expert] = 1;
                }
            }
        }
    }
}

fn prepared(group: &Group) -> Result<Kernel, CallError> {
    let shape = Shape { topk: 2, experts: 8, stripes: 4, tokens: 16 };
    Weights::prepare(group, shape, Options { live: 2, ..Options::default() })
}

fn main() -> Result<(), CallError> {
    let group = Group::on_host(1)?;
    let (kernel, call) = (prepared(&group)?, CallOptions::default());
    let topk_idx = ep_runtime::tensor::DeviceTensor::zeros(&group, 0, [16, 2])?;
    let outputs: Outputs = kernel.outputs(0)?;
    kernel.launch(0, &call, &Inputs { topk_idx }, &outputs, &Args::default())?;
    Ok(())
}

//! A router with one expert per token. Each expert takes a limited number of tokens from each rank: the first
//! ones, in the order of the tokens. The others are dropped, and their rank learns which.

use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipeline;
use ep_runtime::tensor::{Bf16, DeviceTensor};

use top1_dispatch::{Args, Inputs, Options, Shape};

pipeline! {
    /// Sends each token to its expert, as long as the expert has room.
    pub pipeline Top1Dispatch {
        shape {
            ranks: 1..=64, hidden: 16..=8192 step 16, experts: 1..=4096, max_tokens: 1..=1024,
            capacity: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        size tokens in 0..=max_tokens;
        input
            x: bf16[tokens, hidden],
            expert: i64[tokens, 1] in -1..experts,
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output
            rows_x: bf16[local_experts, ranks * capacity, hidden],
            count: i32[local_experts, ranks],
            // Counts the earlier tokens with the same expert; a token with `capacity` or more of them is dropped.
            before: i32[tokens];
        message Row { row x: bf16[hidden] }
        channel rows: slots<Row> over nvlink from Send to Take per all {
            slot: [expert: local_experts, source, arrival: capacity], epochs: 2,
        };

        role Send on even blocks, 8 warps, warps shared by token {
            for token in tokens {
                let before_it = sum(t in 0..token: (expert[t, 0] == expert[token, 0]) as i32);
                store before[token] = before_it;
                for e in expert[token] where before_it < capacity {
                    push rows[owner(e)] at local(e, owner(e)) { x: x[token] };
                }
            }
            close rows;
        }
        role Take on odd blocks, 8 warps, warps shared by (expert, source) {
            store count[expert, source] = rows[expert, source].count;
            for message in rows[expert, source] at source * capacity {
                store rows_x[expert, message.row] = message.x;
            }
        }
    }
}

const SHAPE: Shape = Shape { hidden: 32, experts: 4, max_tokens: 8, capacity: 2, tokens: 5 };

fn main() -> Result<(), CallError> {
    run(&Group::on_host(2)?) // With GPUs: Group::on_gpus(2)?
}

/// Makes one call: on each rank five tokens, of which three want expert 3.
pub(crate) fn run(group: &Group) -> Result<(), CallError> {
    let kernel = Top1Dispatch::prepare(group, SHAPE, Options::default())?;
    let Shape { hidden, tokens, .. } = SHAPE;
    let mut ranks = Vec::new();
    for rank in group.local() {
        let x = vec![Bf16::from(rank as f32 + 1.0); tokens * hidden];
        let x = DeviceTensor::from_slice(group, rank, [tokens, hidden], &x)?;
        let expert = DeviceTensor::from_slice(group, rank, [tokens, 1], &[3, 0, 3, -1, 3])?;
        let expert_begin = DeviceTensor::from_slice(group, rank, [3], &[0, 2, 4])?;
        ranks.push((rank, Inputs { x, expert, expert_begin }, kernel.outputs(rank)?));
    }
    for (rank, inputs, outputs) in &ranks {
        kernel.launch(*rank, &CallOptions::default(), inputs, outputs, &Args::default())?;
    }
    for (rank, _, outputs) in &ranks {
        group.sync(*rank)?;
        assert_eq!(outputs.before.read()?, [0, 0, 1, 0, 2]);
        // Expert 0 gets a token from each rank. Expert 3 gets two and has no room for the last one.
        let wanted = if *rank == 0 { [1, 1, 0, 0] } else { [0, 0, 2, 2] };
        assert_eq!(outputs.count.read()?, wanted);
    }
    Ok(())
}

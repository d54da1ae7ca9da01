//! An all-reduce of few rows, as a fallback if nothing faster is available. Every rank sends its rows to all
//! ranks, and each sums the rows in the order of the ranks, so all ranks get the same bits.

use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipeline;
use ep_runtime::tensor::{Bf16, DeviceTensor};

use all_gather_sum::{Inputs, Options, Shape};

pipeline! {
    /// Sums the rows of all ranks on every rank.
    pub pipeline AllGatherSum {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, rows: 1..=8192 }
        input x: bf16[rows, hidden];
        output sum: bf16[rows, hidden];
        message Part { row x: bf16[hidden] }
        // Each row has its own place at each rank, so no counts and no headers are needed.
        channel parts: slots<Part> over nvlink from Give to Sum per all { slot: [source, row: rows] };

        role Give on all blocks, 8 warps, warps shared by row {
            for peer in ranks {
                push parts[peer] at row { x: x[row] };
            }
        }
        role Sum on all blocks, 8 warps, warps shared by token {
            for r in rows gather part from parts[source] at r across source in ranks {
                store sum[r] = sum(part.x);
            }
        }
    }
}

const SHAPE: Shape = Shape { hidden: 64, rows: 3 };

/// What a rank has, in each of its rows.
fn value(rank: usize, row: usize) -> f32 {
    (rank + 1) as f32 * (row + 1) as f32
}

fn main() -> Result<(), CallError> {
    run(&Group::on_host(4)?) // With GPUs: Group::on_gpus(4)?
}

/// Makes one call.
pub(crate) fn run(group: &Group) -> Result<(), CallError> {
    let kernel = AllGatherSum::prepare(group, SHAPE, Options::default())?;
    let Shape { hidden, rows } = SHAPE;
    let mut ranks = Vec::new();
    for rank in group.local() {
        let x: Vec<Bf16> = (0..rows * hidden).map(|i| value(rank, i / hidden).into()).collect();
        let x = DeviceTensor::from_slice(group, rank, [rows, hidden], &x)?;
        ranks.push((rank, Inputs { x }, kernel.outputs(rank)?));
    }
    for (rank, inputs, outputs) in &ranks {
        kernel.launch(*rank, &CallOptions::default(), inputs, outputs)?;
    }
    for (rank, _, outputs) in &ranks {
        group.sync(*rank)?;
        let first = outputs.sum.read()?.into_iter().step_by(hidden).map(f32::from);
        let wanted = (0..rows).map(|row| (0..group.ranks()).map(|rank| value(rank, row)).sum());
        assert_eq!(first.collect::<Vec<f32>>(), wanted.collect::<Vec<f32>>(), "rank {rank}");
    }
    Ok(())
}

//! A dispatch of two payloads: a small second payload, such as the ids of its adapters, travels with each row.
//! The second payload is a field of the message, and the compiler lays it out.

use ep_runtime::buffer::Placement;
use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipeline;
use ep_runtime::pipelines::{Layout, layout};
use ep_runtime::tensor::{Bf16, DeviceTensor};

use adapter_dispatch::{Args, Inputs, Options, Shape};

pipeline! {
    /// Sends each token's row and its adapters to every rank that has at least one of its experts.
    pub pipeline AdapterDispatch {
        shape { ranks: 1..=64, hidden: 16..=8192 step 16, adapters: 1..=64, stripes: 1..=64 }
        size tokens;
        size received = rank_prefix[ranks, me];
        // The tables of `Layout` say which tokens go where, and at which rows they arrive.
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input x: bf16[tokens, hidden], adapter: i32[tokens, adapters];
        output recv_x: bf16[received, hidden] in window, recv_adapter: i32[received, adapters];
        message Token { row x: bf16[hidden], adapter: i32[adapters] }
        // Rows are stored in the receiver's output; small fields arrive in records beside them.
        channel rows: direct<Token> over nvlink from Send to Take per all;

        role Send on even blocks, 8 warps, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] {
                        x: x[token], adapter: adapter[token],
                    };
                }
            }
        }
        role Take on odd blocks, 8 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
                store recv_adapter[message.row] = message.adapter;
            }
        }
    }
}

/// The experts that every rank's tokens want: there are four, and each rank has two.
const EXPERTS: [[i64; 2]; 3] = [[0, 3], [1, 0], [2, -1]];

fn main() -> Result<(), CallError> {
    run(&Group::on_host(2)?) // With GPUs: Group::on_gpus(2)?
}

/// Makes one call on two ranks.
pub(crate) fn run(group: &Group) -> Result<(), CallError> {
    let (tokens, hidden, adapters, stripes) = (EXPERTS.len(), 32, 2, 4);
    let counts = layout::Shape { tokens, topk: 2, experts: 4, stripes };
    let layout = Layout::prepare(group, counts, layout::Options::default())?;
    let received = group.ranks() * tokens;
    let shape = Shape { hidden, adapters, stripes, tokens, received };
    let kernel = AdapterDispatch::prepare(group, shape, Options::default())?;
    let placement = Placement::even(4, group.ranks());
    let mut ranks = Vec::new();
    for rank in group.local() {
        let topk_idx = DeviceTensor::from_slice(group, rank, [tokens, 2], EXPERTS.as_flattened())?;
        let begin = placement.begin();
        let expert_begin = DeviceTensor::from_slice(group, rank, [begin.len()], begin)?;
        let to = layout::Inputs { topk_idx, expert_begin };
        let x: Vec<Bf16> = (0..tokens * hidden).map(|i| value(rank, i / hidden)).collect();
        let x = DeviceTensor::from_slice(group, rank, [tokens, hidden], &x)?;
        let adapter: Vec<i32> = (0..tokens).flat_map(|token| ids(rank, token)).collect();
        let adapter = DeviceTensor::from_slice(group, rank, [tokens, adapters], &adapter)?;
        let inputs = Inputs { x, adapter };
        ranks.push((rank, to, layout.outputs(rank)?, inputs, kernel.outputs(rank)?));
    }
    let call = CallOptions::default();
    for (rank, to, counts, inputs, rows) in &ranks {
        let routes = layout.launch(*rank, &call, to, counts, &Default::default())?;
        kernel.launch(*rank, &call, inputs, rows, &routes, &Args::default())?;
    }
    for (rank, _, _, _, rows) in &ranks {
        group.sync(*rank)?;
        // In order of rank and token: rank 0 has experts of the first two tokens, rank 1 of the first and the last.
        let came = if *rank == 0 { [0, 1] } else { [0, 2] };
        let came = (0..2).flat_map(|source| came.map(|token| (source, token)));
        let came: Vec<(usize, usize)> = came.collect();
        let (x, adapter) = (rows.recv_x.read()?, rows.recv_adapter.read()?);
        for (row, (source, token)) in came.into_iter().enumerate() {
            assert_eq!(x[row * hidden..][..hidden], vec![value(source, token); hidden]);
            assert_eq!(adapter[row * adapters..][..adapters], ids(source, token));
        }
    }
    Ok(())
}

/// What a token's row holds.
fn value(rank: usize, token: usize) -> Bf16 {
    Bf16::from((10 * rank + token) as f32)
}

/// The adapters of a token.
fn ids(rank: usize, token: usize) -> [i32; 2] {
    [(100 * rank + token) as i32, -1]
}

//! `expand`: sorts the rows that a rank has received by expert, as a grouped GEMM reads them.

use crate::pipeline;
pub use expand::*;

pipeline! {
    /// Counts the received rows of each expert of this rank and computes where they go, then copies each row
    /// once for each of its local experts.
    ///
    /// `expert_idx` is the `recv_topk_idx` of a dispatch: local numbers of experts, -1 for experts of other
    /// ranks. A row that names an expert twice counts once.
    ///
    /// The rows of `expert` begin at `expert_first[expert]`, a multiple of `alignment`, and the last
    /// expert's rows end at `expert_first[local_experts]`. `stripe_first[expert, stripe]` is the first row
    /// of the stripe among those of the expert.
    ///
    /// The rows of an expert are in the same order as in `x`: by source rank, then token. `expanded_src` is
    /// the row of `x` that each one copies. Between the last row of an expert and the next multiple of the
    /// alignment it is -1, and `expanded_x` is unchanged.
    pub pipeline Expand {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096,
            stripes: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        use payload;
        size received = rank_prefix[ranks, me];
        size expanded = expert_first[local_experts];
        arg { alignment: i32 = 1 in 1..=65536 }
        uses handle super::Layout { rank_prefix: i32[ranks + 1, ranks] };
        input x: payload[received, hidden], expert_idx: i64[received, topk] in -1..local_experts;
        output expanded_x: payload[expanded, hidden], expanded_src: i32[expanded];
        table rows_per_expert: i32[local_experts], stripe_rows: i32[stripes, local_experts];
        table expert_first: i32[local_experts + 1], stripe_first: i32[local_experts, stripes];
        tune {
            stages: 3 in [2, 3, 4, 6], piece: 3584 in [1024, 2048, 3584, 7168],
            move_warps: 8 in [4, 8, 12, 16],
        }

        phase count {
            role Count on all blocks, 8 warps, warps shared by stripe {
                for row in stripe {
                    for expert in local_experts where listed(expert_idx[row], expert) {
                        count rows_per_expert[expert];
                        count stripe_rows[stripe, expert];
                    }
                }
            }
            role Prefix on last block, 16 warps {
                record expert_first[expert] = prefix_sum(expert in local_experts: align(rows_per_expert[expert], alignment));
                for expert in local_experts {
                    record stripe_first[expert, s] = prefix_sum(s in stripes: stripe_rows[s, expert]);
                }
            }
        }
        phase copy {
            role Move on all blocks, move_warps warps, warps shared by stripe {
                for row in stripe {
                    for expert in local_experts at expert_first[expert] + stripe_first[expert, stripe]
                        where listed(expert_idx[row], expert)
                    {
                        store expanded_x[expert.position] = x[row];
                        store expanded_src[expert.position] = row;
                    }
                }
            }
            role Pad on all blocks, 1 warps {
                for expert in local_experts {
                    for place in expert_first[expert] + rows_per_expert[expert]..expert_first[expert + 1] {
                        store expanded_src[place] = -1;
                    }
                }
            }
        }
    }
}

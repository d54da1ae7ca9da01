//! `low-latency-dispatch`: sends a row for each expert directly into a slot that nobody else writes. No
//! counts are sent before the rows.

use crate::pipeline;
pub use low_latency_dispatch::*;

pipeline! {
    /// Sends each token's row to the ranks of its experts and packs the rows per expert.
    ///
    /// The two phases may be launched separately, so that other work runs while the rows travel. Together
    /// they are one kernel.
    pub pipeline LowLatencyDispatch {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, hidden: 16..=32768 step 16, topk: 1..=32,
            experts: 1..=4096, max_tokens: 1..=8192,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            let tiles = ceil(ranks * max_tokens, 64),
            require nodes * local_ranks == ranks,
        }
        use payload;
        // `once`: from so many ranks on, a token's row is filled once for all ranks of other nodes.
        tune { stages: 3 in [2, 3, 4], shares: 4 in [1, 2, 4, 8], once: 32 in [1, 32, 2048] }
        size tokens in 0..=max_tokens;
        input
            x: bf16[tokens, hidden],
            topk_idx: i64[tokens, topk] in -1..experts distinct,
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output packed_x: payload[local_experts, ranks * max_tokens, hidden], packed_count: i32[local_experts];
        // What arrives for each expert is added up over calls.
        inout statistics: optional i32[local_experts];
        // How long each rank was waited for, in ns.
        inout wait_ns: optional i64[ranks];
        // What a kernel that runs beside this one may wait for: rows that have come of each 64 rows of an
        // expert, and parts of an expert that are whole, of ranks * shares.
        inout arrived_rows: optional i32[local_experts, tiles], arrived_parts: optional i32[local_experts];
        table
            src_info: i32[local_experts, ranks * max_tokens],
            range_first: i32[local_experts, ranks],
            range_count: i32[local_experts, ranks];

        message Row { row x: payload[hidden], src: i32 }
        // A sender names the expert; the source is itself, and the arrival is counted.
        channel rows: slots<Row> over nvlink | ibgda | rdma from Cast to Pack per all {
            slot: [expert: local_experts, source, arrival: max_tokens], epochs: 2,
            waited: wait_ns, once: ranks / once,
        };

        phase send {
            role Cast on all blocks, one block a token {
                for token in tokens {
                    when payload is Bf16 {
                        for expert in topk_idx[token] where alive(owner(expert)) {
                            push rows[owner(expert)] at local(expert, owner(expert)) { x: x[token], src: token };
                        }
                    }
                    when payload is Fp8 | Fp8Packed {
                        let row = cast_e4m3(x[token], 128);
                        for expert in topk_idx[token] where alive(owner(expert)) {
                            push rows[owner(expert)] at local(expert, owner(expert)) { x: row, src: token };
                        }
                    }
                }
                close rows;
            }
        }
        phase recv {
            // Several warps share what a source sends to an expert.
            role Pack on all blocks, warps shared by (expert, source, share) {
                let first = rows[expert, source].base;
                let count = rows[expert, source].count;
                if share == 0 {
                    record range_first[expert, source] = first;
                    record range_count[expert, source] = count;
                    add statistics[expert] = count;
                }
                if share == 0 && source == ranks - 1 {
                    store packed_count[expert] = first + count;
                }
                for message in rows[expert, source] at first where message.index % shares == share {
                    store packed_x[expert, message.row] = message.x;
                    record src_info[expert, message.row] = message.src;
                    raise arrived_rows[expert, message.row / 64];
                }
                raise arrived_parts[expert];
            }
        }
    }
}

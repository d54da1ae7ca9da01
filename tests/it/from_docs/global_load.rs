//! What a balancing loss looks at: how many tokens of all ranks chose each expert, and the sum of the gates
//! that they gave it.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds up counts and gates by expert on each rank, and then over all of them.
    pub pipeline GlobalLoad {
        shape { ranks: 1..=64, topk: 1..=16, experts: 1..=64, stripes: 1..=8 }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, gates: f32[tokens, topk];
        inout gate_sum: f32[experts];
        table chosen: i32[experts];
        output load: i64[experts], all_gates: f32[experts], most: i32[1] to host;
        message Load { chosen: i32[experts], gates: f32[experts] }
        channel loads: slots<Load> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };

        role Count on all blocks, 4 warps, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] { count chosen[expert]; }
                for slot in topk where topk_idx[token, slot] >= 0 {
                    add gate_sum[topk_idx[token, slot]] = gates[token, slot];
                }
            }
        }
        role Exchange on last block {
            for peer in ranks { push loads[peer] { chosen: chosen, gates: gate_sum }; }
            await loads;
            for expert in experts {
                store load[expert] = sum(source in ranks: loads[source].chosen[expert]);
                store all_gates[expert] = sum(source in ranks: loads[source].gates[expert]);
            }
            store most[0] = sum(source in ranks: loads[source].chosen[0]);
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<GlobalLoad>(&[("ranks", 2), ("topk", 2), ("experts", 3), ("stripes", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("topk_idx", [2, 2], [0, 2, 2, -1])
                .give("gates", [2, 2], [0.5, 0.25, 1.0, 7.0])
                .give("gate_sum", [3], [0.0])
                .want("load", [1, 1, 2])
                .want("all_gates", [0.5, 2.0, 1.25])
                .want("most", [1])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 2], [1, -1])
                .give("gates", [1, 2], [2.0, 3.0])
                .give("gate_sum", [3], [0.0])
                .want("load", [1, 1, 2])
                .want("all_gates", [0.5, 2.0, 1.25])
                .want("most", [1])
        })
}

//! A pipeline-parallel hand-over: every rank quantises its rows and sends them to the next one.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Rows go to the rank behind this one as e4m3 with a scale for every 32 values.
    pub pipeline QuantisedShift {
        shape { ranks: 1..=64, hidden: 32..=4096 step 32 }
        variant payload { Fp8 { x: e4m3, scale: f32 block 32 } }
        size tokens in 0..=16;
        input x: bf16[tokens, hidden];
        output y: payload[16, hidden], sums: f32[16];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Row { row x: payload[hidden], token: i32, sum: f32 }
        channel next: ring<Row> over nvlink from Send to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send on even blocks, 4 warps, warps shared by stripe {
            for peer in ranks {
                announce next[peer] { count: sum(token in stripe: (peer == (me + 1) % ranks) as i32) };
            }
            for token in stripe {
                push next[(me + 1) % ranks] {
                    x: cast_e4m3(x[token], 32), token: token, sum: sum(i in hidden: x[token, i]),
                };
            }
        }
        role Take[peer] on odd blocks {
            for row in next[peer] {
                store y[row.token] = row.x;
                store sums[row.token] = row.sum;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<QuantisedShift>(&[("ranks", 2), ("hidden", 32)])
}

//! `decode-stripes`: derives the tables that a cached dispatch reads from those of `decode-dispatch`.

use crate::pipeline;
pub use decode_stripes::*;

pipeline! {
    /// Counts the tokens that each stripe sends to each rank, as `layout` counts them.
    ///
    /// A dispatch in one launch has no stripes. Only a cached dispatch of the same tokens needs them, and
    /// its first call makes them.
    pub pipeline DecodeStripes {
        shape { ranks: 1..=64, stripes: 1..=1024 }
        size tokens;
        uses handle super::DecodeDispatch { send_row: i32[tokens, ranks] };
        table in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks];
        table stripe_prefix: i32[ranks, stripes];

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = send_row[token, peer] >= 0;
                }
                for peer in ranks where send_row[token, peer] >= 0 {
                    count stripe_tokens[stripe, peer];
                }
            }
        }
        role Stripes on last block, 4 warps {
            for peer in ranks {
                record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer]);
            }
        }
    }
}

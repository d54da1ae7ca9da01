//! Numbers that all ranks tell one another, and positions that are made of them.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Tells every rank how many rows come from each other one, and where they begin.
    pub pipeline ExchangeThenScan {
        shape { ranks: 1..=64 }
        arg { align_to: i32 = 4 in 1..=64 }
        input rows_to: i32[ranks] in 0..100;
        table first_row: i32[ranks + 1, ranks], padded: i32[ranks + 1];
        output received: i32[1] to host;
        message Counts { rows: i32[ranks] }
        channel counts: slots<Counts> over nvlink from Talk to Talk per all { slot: [source], epochs: 2 };

        role Talk on block 0 {
            for peer in ranks {
                push counts[peer] { rows: rows_to };
            }
            await counts;
            for dest in ranks {
                record first_row[source, dest] = prefix_sum(source in ranks: counts[source].rows[dest]);
            }
            record padded[source] = prefix_sum(source in ranks: align(counts[source].rows[me], align_to));
            store received[0] = sum(source in ranks: counts[source].rows[me]);
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ExchangeThenScan>(&[("ranks", 2)])
        .set("align_to", 4)
        .rank(|rank| {
            rank.give("rows_to", [2], [3, 5])
                .want("first_row", [0, 0, 3, 5, 5, 12])
                .want("padded", [0, 4, 8])
                .want("received", [5])
        })
        .rank(|rank| {
            rank.give("rows_to", [2], [2, 7])
                .want("first_row", [0, 0, 3, 5, 5, 12])
                .want("padded", [0, 8, 16])
                .want("received", [12])
        })
}

// A role whose slots one warp of the grid fills in order, one that is declared so, and one whose warning is turned off.
ep_runtime::pipeline! {
    pub pipeline Slow {
        shape { ranks: 1..=64 }
        output sums: i32[ranks];
        table own: i32[ranks];
        message Count { rows: i32 }
        channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source, number: 2], epochs: 2 };
        role Exchange on all blocks {
            for peer in ranks {
                record own[peer] = peer;
            }
            for peer in ranks {
                push totals[peer] { rows: own[peer] };
            }
            close totals;
            for message in totals {
                store sums[message.source] = message.rows;
            }
        }
    }
    pub pipeline Meant {
        shape { ranks: 1..=64 }
        output sums: i32[ranks];
        table own: i32[ranks];
        message Count { rows: i32 }
        channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source, number: 2], epochs: 2 };
        role Exchange on block 0, 1 warps {
            for peer in ranks {
                record own[peer] = peer;
            }
            for peer in ranks {
                push totals[peer] { rows: own[peer] };
            }
            close totals;
            for message in totals {
                store sums[message.source] = message.rows;
            }
        }
    }
}

#[allow(deprecated, reason = "the exchange is small")]
mod known {
    ep_runtime::pipeline! {
        pub pipeline Known {
            shape { ranks: 1..=64 }
            output sums: i32[ranks];
            table own: i32[ranks];
            message Count { rows: i32 }
            channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source, number: 2], epochs: 2 };
            role Exchange on all blocks {
                for peer in ranks {
                    record own[peer] = peer;
                }
                for peer in ranks {
                    push totals[peer] { rows: own[peer] };
                }
                close totals;
                for message in totals {
                    store sums[message.source] = message.rows;
                }
            }
        }
    }
}

fn main() {}

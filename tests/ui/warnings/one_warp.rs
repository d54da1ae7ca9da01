// A role that one warp of the grid carries out, one that is declared so, and one whose warning is turned off.
ep_runtime::pipeline! {
    pub pipeline Slow {
        shape { ranks: 1..=64 }
        output sums: i32[ranks];
        table own: i32[ranks];
        message Count { rows: i32 }
        channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };
        role Exchange on all blocks {
            for peer in ranks {
                record own[peer] = peer;
            }
            for peer in ranks {
                push totals[peer] { rows: own[peer] };
            }
            await totals;
            for peer in ranks {
                store sums[peer] = totals[peer].rows;
            }
        }
    }
    pub pipeline Meant {
        shape { ranks: 1..=64 }
        output sums: i32[ranks];
        table own: i32[ranks];
        message Count { rows: i32 }
        channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };
        role Exchange on block 0, 1 warps {
            for peer in ranks {
                record own[peer] = peer;
            }
            for peer in ranks {
                push totals[peer] { rows: own[peer] };
            }
            await totals;
            for peer in ranks {
                store sums[peer] = totals[peer].rows;
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
            channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };
            role Exchange on all blocks {
                for peer in ranks {
                    record own[peer] = peer;
                }
                for peer in ranks {
                    push totals[peer] { rows: own[peer] };
                }
                await totals;
                for peer in ranks {
                    store sums[peer] = totals[peer].rows;
                }
            }
        }
    }
}

fn main() {}

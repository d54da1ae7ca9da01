// Roles whose slots one warp of the grid fills in order: by itself and in a fragment, declared so, and with the warning turned off.
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
    items counted {
        shape { ranks: 1..=64 }
        output sums: i32[ranks];
        table own: i32[ranks];
        message Count { rows: i32 }
        channel totals: slots<Count> over nvlink from Exchange to Exchange per all { slot: [source, number: 2], epochs: 2 };
    }
    fragment swap(own: tensor, totals: channel, sums: tensor) {
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
    pub pipeline Meant {
        use counted;
        role Exchange on block 0, 1 warps {
            swap(own, totals, sums);
        }
    }
    pub pipeline Shared {
        use counted;
        role Exchange on all blocks {
            swap(own, totals, sums);
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

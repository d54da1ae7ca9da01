// A handle belongs to a pipeline that leaves no table.
ep_runtime::pipeline! {
    pipeline Halves {
        shape { ranks: 1..=64 }
        input ours: i32[ranks];
        output theirs: i32[ranks];
        message Word { value: i32 }
        channel words: slots<Word> over nvlink from Give to Take per all { slot: [source], epochs: 2 };
        phase send {
            role Give on block 0 {
                for peer in ranks {
                    push words[peer] { value: ours[peer] };
                }
            }
        }
        phase recv {
            role Take on block 0 {
                await words;
                for source in ranks {
                    store theirs[source] = words[source].value;
                }
            }
        }
    }

    pipeline Exchange {
        shape { ranks: 1..=64 }
        uses handle Halves;
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
        role Swap on block 0 {
            for peer in ranks {
                push counts[peer] { rows: tokens_per_rank[peer] };
            }
            await counts;
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

fn main() {}

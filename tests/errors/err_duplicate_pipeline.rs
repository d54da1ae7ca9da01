// Two pipelines of one block have one name.
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
}

fn main() {}

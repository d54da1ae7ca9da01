//- phase_in_phase
// A phase stands inside a phase.
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
            phase last {
            role Take on block 0 {
                await words;
                for source in ranks {
                    store theirs[source] = words[source].value;
                }
            }
            }
        }
    }
}

//- phase_in_when
// A phase stands inside a `when`.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            phase once {
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
                }
            }
            }
        }
        phase twice {
        when via is Twice {
            role Doubled on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token] + x[token];
                }
            }
        }
        }
    }
}

//- role_outside_phases
// A role stands outside the phases.
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
        role Take on block 0 {
            await words;
            for source in ranks {
                store theirs[source] = words[source].value;
            }
        }
    }
}

//- tensor_in_phase
// A tensor is declared inside a phase.
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
            output more: i32[ranks];
            role Take on block 0 {
                await words;
                for source in ranks {
                    store theirs[source] = words[source].value;
                    store more[source] = source;
                }
            }
        }
    }
}

//- handle_circle
// Two pipelines need each other's handle.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        uses handle Combine;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispatch;
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        table done: i32[tokens];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
                record done[token] = 1;
            }
        }
    }
}

//- handle_extent_undeclared
// A table of a handle has an extent that is not declared here.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks], seen: i32[stripes];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            record seen[stripe] = 1;
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispatch;
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                let first = seen[0];
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_of_nothing
// No table of a handle is listed.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle super::Dispatch { send_row: i32[tokens, ranks] };
        uses handle super::Layout {};
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_table_differs
// A table is read as another type than it is recorded.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispatch { send_row: i64[tokens, ranks] };
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_table_in_two_arms
// Two handles under different arms bring a table of one name, and a caller may pass both.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        variant via { One, Other }
        size tokens;
        size received;
        when via is One { uses handle super::Dispatch { send_row: i32[tokens, ranks] }; }
        when via is Other { uses handle super::Other { send_row: i32[tokens, ranks] }; }
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_table_optional
// A table of a handle is more than its type.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle super::Dispatch { send_row: optional i32[tokens, ranks] };
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_table_twice
// Two handles bring a table of one name.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle super::Dispatch { send_row: i32[tokens, ranks] };
        uses handle super::Other { send_row: i32[tokens, ranks] };
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_table_unknown
// A handle has no such table.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispatch { send_row: i32[tokens, ranks], send_rows: i32[tokens] };
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_unknown
// A handle belongs to a pipeline that this block does not have.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispach;
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_without_tables
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

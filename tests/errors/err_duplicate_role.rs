// Two roles have one name.
ep_runtime::pipeline! {
    pipeline Chain {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        output back: bf16[received, hidden];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel here: ring<Row> over nvlink from Far to Far per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on blocks 0..8 {
            announce there[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe {
                push there[peer] { x: x[token] };
            }
        }
        role Far[peer] on blocks 8..16 {
            announce here[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in there[peer] {
                push here[peer] { x: message.x };
            }
        }
        role Far[peer] on other blocks {
            for message in here[peer] at here[peer].first {
                store back[message.row] = message.x;
            }
        }
    }
}

fn main() {}

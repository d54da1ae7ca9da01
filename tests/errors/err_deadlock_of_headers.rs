// Two roles announce only what they have heard from each other.
ep_runtime::pipeline! {
    pipeline Circle {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        input x: bf16[tokens, hidden];
        output near: bf16[tokens, hidden], far: bf16[tokens, hidden];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel back: ring<Row> over nvlink from Far to Near per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on even blocks {
            announce there[peer] { first: back[peer].first, count: back[peer].count };
            for token in stripe {
                push there[peer] { x: x[token] };
            }
            for message in back[peer] at 0 {
                store near[message.row] = message.x;
            }
        }
        role Far[peer] on odd blocks {
            announce back[peer] { first: there[peer].first, count: there[peer].count };
            for token in stripe {
                push back[peer] { x: x[token] };
            }
            for message in there[peer] at 0 {
                store far[message.row] = message.x;
            }
        }
    }
}

fn main() {}

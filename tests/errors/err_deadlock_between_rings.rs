// Two roles pass rows to each other through rings, and neither can begin.
ep_runtime::pipeline! {
    pipeline Circle {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        input first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel back: ring<Row> over nvlink from Far to Near per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on even blocks {
            announce there[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in back[peer] {
                push there[peer] { ..message };
            }
        }
        role Far[peer] on odd blocks {
            announce back[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in there[peer] {
                push back[peer] { ..message };
            }
        }
    }
}

fn main() {}

// A field with the name of a number that every slot has.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input rows_to: i32[ranks];
        table rows: i32[ranks, ranks];
        message Counts { count: i32[ranks] }
        channel counts: slots<Counts> over nvlink from Talk to Talk per all { slot: [source] };
        role Talk on block 0 {
            for peer in ranks { push counts[peer] { count: rows_to }; }
            await counts;
            for source in ranks {
                for peer in ranks { record rows[source, peer] = 1; }
            }
        }
    }
}

fn main() {}

//- fragment_with_a_statements_name
// A call of it would read as the statement.
ep_runtime::pipeline! {
    fragment count(to: tensor) {
        add to[0] = 1;
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks, warps shared by rank {
            store y[rank] = rank;
        }
    }
}

//- fragment_with_a_standard_name
// The standard ones are there in every block.
ep_runtime::pipeline! {
    items payload {
        variant payload { Bf16 { x: bf16 }, Wide { x: f32 } }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks, warps shared by rank {
            store y[rank] = rank;
        }
    }
}

//- fragment_sees_a_tensor
// Only parameters connect a fragment with the place of use.
ep_runtime::pipeline! {
    fragment fill(value: value) {
        for rank in ranks { store y[rank] = value; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fill(1); }
    }
}

//- value_as_a_target
// What is written is a tensor.
ep_runtime::pipeline! {
    fragment fill(to: value) {
        for rank in ranks { store to[rank] = rank; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fill(y); }
    }
}

//- fragment_of_itself
// It would never end.
ep_runtime::pipeline! {
    fragment fill(to: tensor) {
        again(to);
    }
    fragment again(to: tensor) {
        for rank in ranks { fill(to); }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fill(y); }
    }
}

//- statements_as_declarations
// Statements stand in roles.
ep_runtime::pipeline! {
    fragment fill(to: tensor) {
        for rank in ranks { store to[rank] = rank; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        use fill;
        output y: i32[ranks];
        role All on all blocks { fill(y); }
    }
}

//- declarations_as_statements
// Declarations do not stand in roles.
ep_runtime::pipeline! {
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks, warps shared by rank {
            payload();
            store y[rank] = rank;
        }
    }
}

//- argument_left_out
// There is one for each parameter.
ep_runtime::pipeline! {
    fragment fill(to: tensor, value: value) {
        for rank in ranks { store to[rank] = value; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fill(y); }
    }
}

//- number_for_a_tensor
// A tensor is named, not computed.
ep_runtime::pipeline! {
    fragment fill(to: tensor, value: value) {
        for rank in ranks { store to[rank] = value; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fill(ranks, 1); }
    }
}

//- index_for_a_message
// `row` counts, and brings nothing.
ep_runtime::pipeline! {
    pipeline Take {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        size rows;
        output x: bf16[rows, hidden], ids: i64[rows, topk], weights: f32[rows, topk];
        table src: i32[rows];
        role All on all blocks {
            for row in rows { unpack(row, 1, x, src, ids, weights); }
        }
    }
}

//- binder_over_a_number_of_a_fragment
// `fill` means the number of ranks.
ep_runtime::pipeline! {
    fragment fill(to: tensor) {
        for rank in ranks { store to[rank] = rank; }
    }
    pipeline Tell {
        shape { peers: 1..=64 }
        output y: i32[peers];
        role All on all blocks {
            for ranks in 0..1 { fill(y); }
        }
    }
}

//- argument_that_grows
// Each fragment writes its argument sixteen times into that of the next one.
ep_runtime::pipeline! {
    fragment once(n: value, to: tensor) { store to[0] = n; }
    fragment more(n: value, to: tensor) { once(n + n + n + n + n + n + n + n + n + n + n + n + n + n + n + n, to); }
    fragment many(n: value, to: tensor) { more(n + n + n + n + n + n + n + n + n + n + n + n + n + n + n + n, to); }
    fragment even_more(n: value, to: tensor) { many(n + n + n + n + n + n + n + n + n + n + n + n + n + n + n + n, to); }
    fragment most(n: value, to: tensor) { even_more(n + n + n + n + n + n + n + n + n + n + n + n + n + n + n + n, to); }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { most(1, y); }
    }
}

//! What the lanes of a warp add up together, and what the warps of a block do for a row together: they leave what
//! the declarations mean; and what each of them has to do for itself.

use ep_codegen::schedule::{RoleRule, RuleSet};

use super::apart::agrees;
use super::run::Form;

/// Rows are copied to places that earlier rows decide, added up by lists with gaps and by conditions, and cast.
const LOCAL: &str = "
    shape { ranks: 1..=64, hidden: 8..=4096 step 8, topk: 1..=32, experts: 1..=32, most: 0..=64 }
    variant payload { Cast { x: e4m3, scale: f32 block 128 } }
    size tokens in 0..=most;
    input
        x: bf16[tokens, hidden], y: f32[experts, hidden], w: f32[experts],
        ids: i64[tokens, topk] in -1..experts distinct;
    output
        copied: bf16[experts, most, hidden], places: i64[tokens, topk], listed_before: i32[tokens, experts],
        same: bf16[tokens, hidden], sums: bf16[tokens, hidden],
        plain: f32[tokens, hidden], some: f32[tokens, hidden], made: payload[tokens, hidden];
    role Move on all blocks, 3 warps, one block a token {
        for t in tokens {
            for c in topk {
                let e = ids[t, c];
                let place = sum(before in 0..t: listed(ids[before], e) as i32);
                store places[t, c] = place;
                for once in 0..1 where e >= 0 { store copied[e, place] = x[t]; }
            }
        }
    }
    role Find on all blocks, 2 warps, one block a token {
        for t in tokens {
            store same[t] = x[t];
            for e in experts {
                store listed_before[t, e] = sum(before in 0..t: listed(ids[before], e) as i32) * (e % 3);
            }
        }
    }
    role Add on all blocks, 5 warps, one block a token {
        for t in tokens {
            store sums[t] = sum(e in ids[t]: w[e] * y[e]) as bf16;
            store plain[t] = sum(e in experts: y[e]);
            store some[t] = sum(c in topk: if ids[t, c] > 1 { w[ids[t, c]] * y[ids[t, c]] } else { 0.0 });
        }
    }
    role Scale on all blocks, 2 warps, one block a token {
        for t in tokens { store made[t] = cast_e4m3(x[t], 128); }
    }";

/// Rows of less than a turn of a warp, of some, and of more than all warps have; lists longer than rows are loaded at
/// once.
#[test]
fn work_on_a_row_is_shared() {
    let shapes = [(8, 1, 0), (136, 5, 9), (304, 8, 40), (2304, 9, 6), (4096, 20, 3)];
    let shapes = shapes.map(|(hidden, topk, most)| {
        [("hidden", hidden), ("topk", topk), ("most", most), ("experts", 23)]
    });
    let shapes = shapes.each_ref().map(|it| &it[..]);
    let holds = [
        "ep::rows_with<Cfg::kTopk>(",
        "ep::rows_with_each<Cfg::kTopk>(",
        "unit / Cfg::kTopk",
        "unit / Cfg::Add::kSlices",
        "ep::slices_of<Cfg::Scale::kSlices>",
        "ep::sum_some_rows<float, Cfg::kTopk,",
        "ep::sum_some_rows<float, Cfg::kExperts,",
        "ep::row_if(args.ids[t * args.ids_stride + c] > 1,",
        "ep::cast_slice<float>",
    ];
    agrees(LOCAL, &shapes, &holds);
}

/// A role that has these tensors and does this.
fn role(tensors: &str, body: &str) -> String {
    format!(
        "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, few: 1..=8, many: 1..=99 }}
         size tokens in 0..=99;
         input x: bf16[tokens, hidden], n: i32[many], f: f32[many], ids: i64[many, few];
         output o: bf16[tokens, hidden];
         {tensors}
         role Work on all blocks, 2 warps, one block a token {{
             for t in tokens {{ store o[t] = x[t]; {body} }}
         }}"
    )
}

/// Whether a role is the same without a rule.
fn is_left(rule: RoleRule, source: &str) -> bool {
    let shape = [("ranks", 3), ("hidden", 64), ("few", 8), ("many", 9)];
    let form = Form::new(source, &shape);
    form.text(RuleSet::All) == form.text(RuleSet::Without(rule))
}

/// Floats have an order, a few numbers are not worth it, and what lanes do apart they add up apart.
#[test]
fn only_long_sums_of_whole_numbers_are_shared() {
    let to_i32 = |sum: &str| role("output s: i32[tokens];", &format!("store s[t] = {sum};"));
    let lanes = "for m in many { store s[t, m] = sum(k in 0..m: n[k]); }";
    for (left, source) in [
        (false, to_i32("sum(m in many: listed(ids[m], 3) as i32)")),
        (false, to_i32("sum(m in many: n[m])")),
        (false, to_i32("sum(m in many: sum(k in few: n[m] * k))")),
        (false, to_i32("sum(m in t..many: n[m] * (m % 2 == 0) as i32)")),
        (true, to_i32("sum(m in few: n[m])")),
        (true, role("output s: f32[tokens];", "store s[t] = sum(m in many: f[m]);")),
        (true, role("output s: i32[tokens, many];", lanes)),
    ] {
        assert_eq!(is_left(RoleRule::Sums, &source), left, "{source}");
    }
}

/// Rows are counted by neighbouring elements, where nothing but rows is counted.
#[test]
fn rows_that_list_a_number_are_counted_together() {
    for (together, sum) in [
        (true, "listed(ids[m], t) as i32"),
        (true, "listed(ids[many - 1 - m], m) as i32"),
        (false, "(listed(ids[m], t) as i32) * 2"),
        (false, "listed(ids[m], t) as i32 * n[m]"),
    ] {
        let source =
            role("output s: i32[tokens];", &format!("store s[t] = sum(m in many: {sum});"));
        let shape = [("ranks", 3), ("hidden", 64), ("few", 8), ("many", 9)];
        let text = Form::new(&source, &shape).text(RuleSet::All);
        assert_eq!(text.contains("ep::rows_with<Cfg::kFew>("), together, "{sum}");
    }
}

/// Warps do not share what is added to, what stands beside another statement, or what has no number of turns.
#[test]
fn what_a_warp_does_in_order_is_left_to_it() {
    let copies = "output copied: bf16[tokens, few, hidden];";
    let turns = |then: &str| format!("for c in few {{ store copied[t, c] = x[t]; {then} }}");
    let alone = |tensors: &str, body: &str| {
        role(tensors, body)
            .replace("store o[t] = x[t];", "")
            .replace("output o: bf16[tokens, hidden];", "")
    };
    let and = |more: &str| format!("{copies} {more}");
    for (left, source) in [
        (false, alone(copies, &turns(""))),
        (false, alone(&and("output own: i32[tokens, few];"), &turns("store own[t, c] = t;"))),
        (true, role(copies, &turns(""))),
        (true, alone(&and("inout sum: i32[few];"), &turns("add sum[c] = t;"))),
        (true, alone(&and("table sum: i32[few];"), &turns("count sum[c];"))),
        (true, alone(copies, &turns("").replace("few {", "0..n[t] {"))),
    ] {
        assert_eq!(is_left(RoleRule::Apart, &source), left, "{source}");
    }
}

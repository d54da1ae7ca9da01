//! What lowering adds to the words of a declaration.

use super::lower;
use crate::ir::{self, text};
use crate::syntax::parse;

fn lowered(source: &str) -> Vec<ir::Pipeline> {
    let tokens = source.parse().expect("the test's brackets are balanced");
    let (file, errors) = parse(tokens);
    assert!(errors.is_empty(), "{}", errors.to_text(source));
    file.pipelines.iter().map(|pipeline| lower(&file, pipeline)).collect()
}

fn names(tensors: &[ir::Tensor]) -> Vec<&str> {
    tensors.iter().map(|tensor| tensor.name.as_str()).collect()
}

/// The statements of the first role as text.
fn actions(ir: &ir::Pipeline) -> Vec<String> {
    let mut out = Vec::new();
    ir::walk::stmts(&ir.roles[0].body, &mut |stmt| out.push(text::action(&stmt.action)));
    out
}

#[test]
fn a_handle_of_the_same_block_brings_what_is_read() {
    let all = lowered(
        "pipeline A { table kept: i32[ranks], left: bool[ranks]; }
         pipeline B {
            uses handle A;
            output x: i32[ranks];
            role R on block 0 { for r in ranks { store x[r] = kept[r]; } }
        }",
    );
    assert_eq!(all[1].uses, ["A"]);
    assert_eq!(names(&all[1].tensors), ["kept", "x"]);
    assert_eq!(all[1].tensors[0].from_handle.as_deref(), Some("A"));
}

#[test]
fn a_listed_table_goes_with_the_arms_that_read_it() {
    let ir = &lowered(
        "pipeline B {
            variant via { Near, Far }
            when via is Near { uses handle a::A { t: i32[n] }; role R on block 0 { store x[0] = t[0]; } }
            when via is Far { uses handle a::A { t: i32[n] }; uses handle a::A { u: i32[n] }; }
        }",
    )[0];
    assert_eq!(names(&ir.tensors), ["t", "t", "u"]);
    let chosen: Vec<Vec<String>> = ir
        .choices()
        .iter()
        .map(|choice| names(&ir.select(choice).tensors).into_iter().map(String::from).collect())
        .collect();
    assert_eq!(chosen, [vec!["t"], vec![]]);
}

#[test]
fn names_mean_what_is_nearest() {
    let ir = &lowered(
        "pipeline P {
            shape { n: 1..=2 }
            role R on block 0 {
                for n in tokens { let m = n + me; store t[n] = m; }
                store t[n] = m[0];
            }
        }",
    )[0];
    let mut kinds = Vec::new();
    ir::walk::stmts(&ir.roles[0].body, &mut |stmt| {
        ir::walk::exprs(stmt, &mut |expr| {
            if let ir::Expr::Name { name, kind } = expr {
                kinds.push(format!("{name} {kind:?}"));
            }
        });
    });
    assert_eq!(kinds, ["n Binder", "me Me", "n Binder", "m Binder", "n Dim"]);
}

#[test]
fn the_rest_of_a_message_is_spelled_out() {
    let ir = &lowered(
        "pipeline P {
            role Pass[peer] on all blocks {
                for m in far { push near[peer, m.source] { ..m, b: 1 }; }
            }
            message M { a: i32, b: i32, c: i32 }
            channel far: ring<M> over rdma from X to Pass per rail;
            channel near: ring<M> over nvlink from Pass to Y per local, one part per nodes;
        }",
    )[0];
    assert_eq!(actions(ir), ["for m in far", "push near[peer, m.source] { b: 1, a: m.a, c: m.c }"]);
    // The binder runs over the peers of the channel that it indexes.
    let set = ir::PeerSet::Local;
    assert_eq!(ir.roles[0].share, ir::Share::Peer { binder: "peer".to_string(), set });
}

#[test]
fn slots_have_names_and_extents() {
    let ir = &lowered(
        "pipeline P {
            channel c: slots<M> over nvlink from A to B per all { slot: [expert: 4, source], epochs: 2 };
            role A on block 0 { push c[peer] at [1, 2] { }; }
        }",
    )[0];
    let channel = &ir.channels[0];
    assert_eq!(channel.slot_names, ["expert", "source"]);
    let extents: Vec<String> = channel.slot.iter().map(text::expr).collect();
    assert_eq!(extents, ["4", "ranks"]);
    assert_eq!(actions(ir), ["push c[peer] at [1, 2] {}"]);
}

#[test]
fn guards_and_phases_reach_the_items_and_statements_inside() {
    let ir = &lowered(
        "pipeline P {
            variant mode { Fresh, Cached }
            phase send {
                role A on block 0 {
                    when mode is Fresh | Cached { when mode is Fresh { count t[0]; } }
                    count t[1];
                }
            }
        }",
    )[0];
    let role = &ir.roles[0];
    assert_eq!(role.phase.as_deref(), Some("send"));
    let guards: Vec<usize> = role.body.iter().map(|stmt| stmt.when.len()).collect();
    assert_eq!(guards, [2, 0]);
}

#[test]
fn a_name_that_only_positions_use_is_its_value() {
    let of = |lets: &str, position: &str, more: &str| {
        let ir = &lowered(&format!(
            "pipeline P {{
                channel rows: direct<M> over nvlink from A to B per all;
                role A on all blocks, warps shared by token {{
                    for t in stripe {{ for p in ranks {{ {lets} push rows[p] at {position} {{ }}; {more} }} }}
                }}
            }}"
        ))[0];
        actions(ir)
    };
    let plain = of("", "f[p] + b[p, stripe]", "");
    assert_eq!(of("let begin = f[p]; let all = begin + b[p, stripe];", "all", ""), plain);
    // A name that something else uses too stays, and one that a fold hides a part of.
    assert_eq!(of("let begin = f[p];", "begin", "store n[0] = begin;").len(), 5);
    assert_eq!(of("let begin = f[p];", "sum(p in ranks: begin)", "").len(), 4);
    // Names of names do not grow without end.
    let doubled = |n: usize| {
        let more = (1..n).map(|at| format!("let n{at} = n{0} + n{0};", at - 1));
        of(&format!("let n0 = f[p]; {}", more.collect::<String>()), &format!("n{}", n - 1), "")
    };
    assert!(doubled(40).iter().all(|action| action.len() < 4000));
}

#[test]
fn a_loop_over_all_ranks_but_this_one_is_over_the_others() {
    let loops = |head: &str| {
        let ir = &lowered(&format!(
            "pipeline P {{
                shape {{ ranks: 1..=8 }}
                role A on block 0 {{ for p in {head} {{ count t[p]; }} }}
            }}"
        ))[0];
        actions(ir).remove(0)
    };
    assert_eq!(loops("ranks where p != me"), "for p in others");
    assert_eq!(loops("ranks where a[p] && me != p && b[p]"), "for p in others where a[p] && b[p]");
    for other in ["ranks where p != you", "ranks where p != me || b[p]", "others where p != me"] {
        assert_eq!(loops(other), format!("for p in {other}"));
    }
}

#[test]
fn a_stripe_knows_its_first_row_and_how_many_it_has() {
    let ir = &lowered(
        "pipeline P {
            shape { stripes: 1..=8 }
            size received = r[me];
            size rows;
            role A on all blocks, warps shared by stripe {
                store f[stripe] = stripe.first;
                store n[stripe] = stripe.count;
            }
        }",
    )[0];
    assert_eq!(
        actions(ir),
        [
            "store f[stripe] = stripe * (rows / stripes) + min(stripe, rows % stripes)",
            "store n[stripe] = rows / stripes + (stripe < rows % stripes) as i32",
        ]
    );
}

#[test]
fn a_loop_with_one_turn_is_a_condition_unless_its_number_counts() {
    let ir = &lowered(
        "pipeline B {
            output x: i32[8];
            role R on block 0 {
                if a { store x[0] = 1; } else if b { store x[1] = 1; }
                for once in 0..1 where a { store x[2] = 1; }
                for n in 0..1 where a { store x[n] = 1; }
            }
        }",
    )[0];
    let found = [
        "if a",
        "then",
        "store x[0] = 1",
        "else",
        "if b",
        "store x[1] = 1",
        "if a",
        "store x[2] = 1",
        "for n in 0..1 where a",
        "store x[n] = 1",
    ];
    assert_eq!(actions(ir), found);
}

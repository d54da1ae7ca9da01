//! Words that a call raises for other kernels of its rank, and those that it waits for.

use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::ir::Pipeline;
use ep_runtime::jit::Arch;

use super::apart::GATHER;
use super::meaning::held;
use super::run::{Call, Form, accepted};

/// What a role does is counted by eights, and another role waits for each eight.
const EIGHTS: &str = "
    shape { ranks: 1..=64, items: 1..=40, let groups = ceil(items, 8) }
    arg { least: i32 = 1 in 1..=4 }
    input x: i32[items] in 0..99, told: optional i32[groups], start: i32[1];
    inout done: i32[groups], heard: optional i32[1];
    output y: i32[items], seen: i32[groups];
    role Work on all blocks, 2 warps, warps shared by item {
        await told[item / 8] >= least;
        store y[item] = x[item] + 1;
        raise done[item / 8];
    }
    role Wait on all blocks, 1 warps, warps shared by group {
        await start[0] >= 5;
        for once in 0..1 {
            await done[group] >= min(items - group * 8, 8);
            store seen[group] = group;
        }
        raise heard[0];
    }";

fn of(source: &str) -> Pipeline {
    accepted(source).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn a_role_hears_of_what_another_one_has_done() {
    let ir = of(EIGHTS);
    for seed in 0..6 {
        let numbers = [("ranks", 1 + seed as i64 % 2), ("items", [1, 8, 29][seed as usize % 3])];
        let found = held(std::slice::from_ref(&ir), &numbers, seed);
        found.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

#[test]
fn a_word_that_nobody_raises_so_far_is_waited_for_in_vain() {
    let sources = [
        EIGHTS.replace("items - group * 8, 8)", "items - group * 8, 8) + 1"),
        EIGHTS.replace(
            "raise done[item / 8];",
            "for once in 0..1 where item != 3 { raise done[item / 8]; }",
        ),
    ];
    for source in sources {
        let error = held(&[of(&source)], &[("items", 12)], 1).unwrap_err();
        assert!(
            error.contains("Wait") && error.contains("in a word of `done`, rank [0]"),
            "{error}"
        );
    }
}

/// A kernel that is given one less than it waits for says what it lacks, and one that is given it goes on.
#[test]
fn a_kernel_waits_for_what_it_is_given() {
    if crate::host::programs().is_none() {
        return;
    }
    let source = "shape { ranks: 1..=64 }
        input start: i32[2], other: optional i32[2]; output seen: i32[2];
        role Wait on block 0, 2 warps, warps shared by rank {
            await other[rank] >= 3;
            await start[rank] >= -1;
            store seen[rank] = 7;
        }";
    let form = Form::new(source, &[("ranks", 2)]);
    let run = |start: f64| {
        let call = |_: usize| {
            Call::new().give("start", 1, vec![start, -1.0]).want("seen", 1, vec![7.0, 7.0])
        };
        let run = || form.run((Arch::Sm90a, RuleSet::All), 1, &call);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map(drop)
    };
    assert!(run(-1.0).is_ok());
    let panic = run(-2.0).unwrap_err();
    let error = panic.downcast_ref::<String>().expect("a text");
    let text = "Wait waits for another kernel to raise a word of Start (call 1, wants 4294967295, sees 4294967294";
    assert!(error.contains(text), "{error}");
}

/// Messages of a ring are counted as their rows are stored, by the warp that stores them.
#[test]
fn rows_of_a_ring_are_published_where_they_are_stored() {
    let ring = |tells: &str| {
        format!(
            "shape {{ ranks: 1..=8, hidden: 16..=64 step 16, stripes: 1..=1, most: 1..=99 }}
            size tokens in 0..=most;
            input x: bf16[tokens, hidden], to: bool[tokens, ranks];
            inout told: i32[ranks, 13];
            output out: bf16[ranks * 99, hidden];
            message Token {{ row x: bf16[hidden], src: i32 }}
            channel ring: ring<Token> over nvlink from Send to Recv per all {{
                depth: 16, chunk: 4, header: [count],
            }};
            role Send[peer] on even blocks {{
                announce ring[peer] {{ count: sum(t in stripe: to[t, peer] as i32) }};
                for t in stripe where to[t, peer] {{ push ring[peer] {{ x: x[t], src: t }}; }}
            }}
            role Recv[peer] on odd blocks {{
                for message in ring[peer] at peer * 99 {{
                    store out[message.row] = message.x;
                    {tells}
                }}
            }}"
        )
    };
    let (told, silent) = (ring("raise told[peer, message.index / 8];"), ring(""));
    let shape = [("ranks", 3), ("hidden", 64), ("stripes", 1), ("most", 40)];
    let recv = |source: &str, rules: RuleSet| {
        let text = Form::new(source, &shape).text(rules);
        let (_, recv) = text.split_once("/// role Recv").expect("there is such a role");
        recv.to_string()
    };
    let steps = RuleSet::Without(RoleRule::OneLaunch);
    let stages = |source: &str| recv(source, steps).contains("mover.");
    assert_eq!([stages(&silent), stages(&told)], [true, false]);
    // Nor does the library take such a role as a whole.
    assert_eq!(recv(&told, RuleSet::All), recv(&told, steps));
    for seed in 0..2 {
        let found = held(&[of(&told)], &shape, seed);
        found.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// A warp whose rows are still on their way to slots publishes them before it waits for a word.
#[test]
fn rows_in_slots_are_sent_before_a_wait() {
    let source = "shape { ranks: 1..=8, hidden: 16..=64 step 16 }
        input x: bf16[ranks, hidden];
        input got: i32[1];
        output out: bf16[1, hidden];
        message Row { row x: bf16[hidden] }
        channel rows: slots<Row> over nvlink from Send to Take per all { slot: [source, one: 1] };
        role Send on block 0, 1 warps {
            for peer in ranks {
                push rows[peer] at 0 { x: x[peer] };
                await got[0] >= peer + 1;
            }
        }
        role Take on all blocks, 1 warps {
            for one in 0..1 gather part from rows[source] at one across source in ranks {
                store out[one] = sum(part.x);
            }
        }";
    let text = Form::new(source, &[("ranks", 3), ("hidden", 64)]).text(RuleSet::All);
    let waits = text.find("ep::await_word(").expect("the role waits");
    let (before, _) = text.split_at(waits);
    let asked = before.rfind("if (!ep::has_come(").unwrap_or_else(|| panic!("{text}"));
    assert!(before[asked..].contains("ep::settle(mover, rows);"), "{text}");
}

/// A token that several warps would add up raises its words once: one warp adds it up then.
#[test]
fn a_sum_raises_its_words_once() {
    let told = GATHER
        .replace("output o:", "inout told: i32[2]; output o:")
        .replace("store o[", "raise told[0]; raise told[1]; store o[");
    assert!(told.contains("raise"));
    for seed in 0..2 {
        let found = held(&[of(&told)], &[("ranks", 3), ("hidden", 2304), ("topk", 3)], seed);
        found.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Messages that come in any order are counted where they lie: what each place adds is as fixed as anything, unless
/// what a message holds decides it.
#[test]
fn messages_in_any_order_are_counted_in_order() {
    let ir = of("
        shape { ranks: 1..=64, most: 1..=40 }
        size tokens in 0..=most;
        input to: i32[tokens] in 0..ranks;
        inout told: i32[ranks, 10], odd: i32[ranks, 10];
        output srcs: i32[ranks, 40];
        message Row { src: i32 }
        channel rows: slots<Row> over nvlink from Send to Take per all { slot: [source, arrival: 40] };
        role Send on all blocks, 2 warps, one block a token {
            for t in tokens { push rows[to[t]] { src: t }; }
            close rows;
        }
        role Take on all blocks, 2 warps, warps shared by source {
            for message in rows[source] {
                store srcs[source, message.row] = message.src;
                raise told[source, message.row / 4];
                for once in 0..1 where message.src % 2 == 1 { count odd[source, message.row / 4]; }
            }
        }");
    for seed in 0..8 {
        let found = held(std::slice::from_ref(&ir), &[("ranks", 2), ("most", 40)], seed);
        found.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

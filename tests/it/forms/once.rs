//! Messages with the same bytes for all receivers: a sender fills one slot for all far ones, and fills it again when all of them
//! have read it.

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::RuleSet;
use ep_runtime::Pipeline as _;
use ep_runtime::ir::Pipeline;
use ep_runtime::ir::Transport;
use ep_runtime::ir::once::message_index;
use ep_runtime::pipelines::{LowLatencyDispatch, PackedDispatch};

use super::meaning::{held_by, only};
use super::planted::all_are_found;
use super::run::{Form, accepted};
use crate::usual;

/// A row for each expert, and one for each rank.
fn dispatches() -> [Pipeline; 2] {
    [LowLatencyDispatch::ir(), only(PackedDispatch::ir(), "via", "Slots")]
}

/// Calls of few tokens by so many nodes of so many ranks.
fn judged(
    all: &[Pipeline],
    (nodes, local_ranks): (i64, i64),
    seed: u64,
    call: &dyn Fn(Drawn) -> Drawn,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let ranks = nodes * local_ranks;
    let numbers = [
        ("ranks", ranks),
        ("nodes", nodes),
        ("hidden", 144),
        ("max_tokens", ranks - 1),
        ("experts", 2 * ranks + 1),
        ("topk", 4),
        ("once", 1),
    ];
    let once = format!("static constexpr int kOnce = {};", ranks - 1);
    held_by(all, &numbers, seed, call, &|form| {
        assert!(form.text(RuleSet::All).contains(&once));
        run(form)
    })
}

#[test]
fn a_row_is_filled_once_for_all_far_ranks() {
    let shapes = [(2, 2), (3, 1), (2, 3), (4, 2), (5, 1)];
    for (seed, shape) in usual::some((0..).zip(shapes), 2) {
        for carrier in [Transport::Rdma, Transport::Ibgda] {
            let over = |mut drawn: Drawn| {
                drawn.config.carrier = Some(carrier);
                drawn
            };
            let held = judged(&dispatches(), shape, seed, &over, &|form| form);
            held.unwrap_or_else(|words| panic!("{shape:?}, seed {seed}, {carrier:?}: {words}"));
        }
    }
}

/// Nobody waits for what a rank has read that is left out.
#[test]
fn far_ranks_are_left_out_where_rows_are_filled_once() {
    for seed in usual::some(0..2, 1) {
        let held = judged(
            &dispatches()[..1],
            (2, 2),
            seed,
            &|mut drawn| {
                drawn.ranks[2].alive = false;
                drawn
            },
            &|form| form,
        );
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Bugs of messages that are filled once.
const BUGS: &str = "
== a slot is sent before it is filled
in ep/net_slot_rows.cuh
-             seen = team_.leader() ? load_relaxed_gpu(word) : kIsFilled;
+             seen = kIsFilled;

== the filler does not release the slot
in ep/net_slot_rows.cuh
-             if (team_.leader()) add_release_gpu(word, kIsFilled);
+             if (team_.leader()) fetch_add_relaxed_gpu(word, kIsFilled);

== a warp that sends the slot has not seen it
in ep/net_slot_rows.cuh
-         if (is_filled && team_.leader()) load_acquire_gpu(word);

== every warp fills the slot
in ep/net_slot_rows.cuh
-         return __shfl_sync(kAllLanes, before, 0) == 0;
+         return __shfl_sync(kAllLanes, before, 0) != kIsFilled;

== the slots of the call before are filled again
in ep/net_slot_rows.cuh
-         return static_cast<u64>(near_.set() * Slots::kOnce + message_) * Slots::kFarBytes;
+         return static_cast<u64>(message_) * Slots::kFarBytes;

== messages count as filled in the next call
in ep/slot_rows.cuh
-         End::forget_messages();

== the far slots of a warp's message are not filled
in ep/slot_rows.cuh
-             if (has_far_ && fills_far()) left_ |= far & ~(far - 1);
+             if (has_far_) fills_far();
";

#[test]
fn planted_bugs_of_rows_that_are_filled_once_are_found_at_length() {
    all_are_found(BUGS, 12, |_, seed, planted| {
        judged(&dispatches(), (5, 1), seed, &|drawn| drawn, planted)
    });
}

/// Rows of rank 0 for all ranks. Nothing but credit keeps it from calls ahead.
const GIVEN: &str = "
    shape { nodes: 2..=4, hidden: 8..=64, max_tokens: 1..=8, lines: 1..=8, let ranks = nodes, let local_ranks = ceil(ranks, nodes) }
    size tokens in 0..=max_tokens;
    input x: bf16[tokens, hidden];
    output out: bf16[max_tokens, hidden];
    message Row { row x: bf16[hidden], src: i32 }
    channel rows: slots<Row> over nvlink | ibgda | rdma from Send to Take per all {
        slot: [line: lines, source, arrival: max_tokens], epochs: 2, once: 1,
    };
    role Send on all blocks, 6 warps, one block a token {
        for token in tokens {
            for peer in ranks where me == 0 {
                push rows[peer] at 0 { x: x[token], src: token };
            }
        }
        close rows;
    }
    role Take on all blocks, 2 warps, warps shared by line {
        for m in rows[line, 0] {
            store out[m.src] = m.x;
        }
    }";

fn given(seed: u64, run: &dyn Fn(Form) -> Form) -> Result<(), String> {
    let numbers = [("nodes", 4), ("hidden", 24), ("max_tokens", 6), ("lines", 2)];
    held_by(&[accepted(GIVEN)?], &numbers, seed, &|drawn| drawn, &|form| run(form.calls(6)))
}

/// Far ranks that a warp does not send to are waited for all the same.
const BUG_AHEAD: &str = "
== a slot is filled again before all far ranks have read it
in ep/slot_rows.cuh
-             await_free(peer, peer < kPeers && !End::is_near(peer) && End::joins(peer));
";

#[test]
fn a_slot_is_filled_again_when_all_far_ranks_have_read_it() {
    given(0, &|form| form).unwrap_or_else(|words| panic!("{words}"));
    all_are_found(BUG_AHEAD, 6, |_, seed, planted| given(seed, planted));
}

/// Rows of which a table says something that the role has written before.
fn with_table(written: &str) -> String {
    let role = format!(
        "role Send on all blocks, 6 warps, warps shared by send {{
        for token in send..min(send + 1, tokens) {{
            {written}
        }}
        close rows;
    }}
    "
    );
    let (before, rest) = GIVEN.split_once("role Send").expect("there is one");
    let (_, after) = rest.split_once("role Take").expect("there is one");
    let before = before.replace("let ranks", "let sends = max_tokens, let ranks");
    format!("{before}{role}role Take{after}")
        .replace("message Row", "table seen: i32[max_tokens];\n    message Row")
}

/// What the compiler knows of messages: the index on which alone their bytes depend.
#[test]
fn the_compiler_knows_which_messages_are_alike() {
    let index = |source: &str| {
        let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
        message_index(&ir, &ir.channels[0]).map(|index| index.name.to_string())
    };
    let changed = |from: &str, to: &str| {
        assert!(GIVEN.contains(from), "{from}");
        index(&GIVEN.replace(from, to))
    };
    let push = "push rows[peer] at 0 { x: x[token], src: token };";
    let named = |of: &str| format!("let own = {of}; {}", push.replace("src: token", "src: own"));
    assert_eq!(index(GIVEN).as_deref(), Some("token"));
    assert_eq!(changed(push, &named("token")).as_deref(), Some("token"));
    assert_eq!(changed(push, &named("peer")), None, "a value depends on the peer");
    assert_eq!(changed("src: token", "src: peer"), None, "a value depends on the peer");
    assert_eq!(changed("x: x[token]", "x: x[0]").as_deref(), Some("token"));
    assert_eq!(changed(push, &[push, push].concat()), None, "there are two pushes");
    let sent = "for peer in ranks { RECORD push rows[peer] at 0 { x: x[send], src: seen[send] }; }";
    let before = format!("record seen[send] = send; {}", sent.replace("RECORD", ""));
    assert_eq!(index(&with_table(&before)).as_deref(), Some("send"));
    let inside = with_table(&sent.replace("RECORD", "record seen[send] = peer;"));
    assert_eq!(index(&inside), None, "the table changes from peer to peer");
}

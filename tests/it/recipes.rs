//! How roles are carried out, and what is said of those that do not use all of their warps.

use ep_codegen::schedule::{Recipe, RuleSet};
use ep_codegen::{expansion, lower, syntax};
use ep_runtime::pipelines::DecodeDispatch;
use ep_runtime::{AnyPipeline, ir, pipelines};

/// The macro warns of it, or rustc of this attribute.
#[expect(deprecated, reason = "one warp of the grid fills slots in order")]
mod slow {
    ep_runtime::pipeline! {
        pub pipeline Exchange {
            shape { ranks: 1..=64 }
            output sums: i32[ranks];
            message Count { rows: i32 }
            channel totals: slots<Count> over nvlink from All to All per all { slot: [source, number: 2], epochs: 2 };
            role All on all blocks {
                for peer in ranks {
                    push totals[peer] { rows: peer };
                }
                close totals;
                for message in totals {
                    store sums[message.source] = message.rows;
                }
            }
        }
    }
}

const DECODE: &str = include_str!("../../ep-runtime/src/pipelines/decode_dispatch.rs");
const EXPAND: &str = include_str!("../../ep-runtime/src/pipelines/expand.rs");
const LOW_LATENCY: &str = include_str!("../../ep-runtime/src/pipelines/low_latency_dispatch.rs");
const PACKED: &str = include_str!("../../ep-runtime/src/pipelines/packed_dispatch.rs");

/// The IR of a declaration with one text in place of another.
fn changed(source: &str, from: &str, to: &str) -> ir::Pipeline {
    assert!(source.contains(from), "{from}");
    let source = source.replacen(from, to, 1);
    let block = syntax::blocks(&source).expect("it is made of tokens").remove(0);
    let (file, errors) = expansion::front_end(block, &|path| Err(format!("{path} is not here")));
    assert!(errors.is_empty(), "{}", errors.to_text(&source));
    lower::lower(&file, &file.pipelines[0])
}

/// The recipes of a declaration with one text in place of another, for the first choice of arms and 8 warps a block.
fn recipes(source: &str, from: &str, to: &str) -> String {
    let ir = changed(source, from, to);
    let recipe = Recipe::of(&ir.select(&ir.choices().remove(0)), RuleSet::All);
    let mut lines = Vec::new();
    for role in &recipe.roles {
        lines.push(format!("{}: {}; {}", role.role, role.who(8, None), role.how()));
        lines.extend(role.reasons().iter().map(|reason| format!("  {reason}")));
    }
    lines.extend(recipe.warnings().map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

/// One team whose statements `%` stands for, on some blocks.
fn team(on: &str, statements: &str) -> String {
    format!(
        "pipeline! {{ pipeline Team {{
            shape {{ ranks: 1..=64 }}
            output sums: i32[ranks];
            message Count {{ rows: i32 }}
            channel totals: slots<Count> over nvlink from All to All per all {{ slot: [source], epochs: 2 }};
            role All on {on} {{ {statements} }}
        }} }}"
    )
}

/// A team without channels that reads what it writes.
const REREAD: &str = "pipeline! { pipeline Team {
    shape { experts: 1..=64 }
    table counts: i32[experts], twice: i32[experts];
    role All on all blocks {
        for expert in experts { record counts[expert] = expert; }
        for expert in experts { record twice[expert] = 2 * counts[expert]; }
    }
} }";

/// Rows that each rank sends by stripes, in a role whose body is `statements` and that records `tables`.
fn stripes(tables: &str, statements: &str) -> String {
    format!(
        "pipeline! {{ pipeline Stripes {{
            shape {{ ranks: 1..=64, hidden: 16..=4096 step 16 }}
            size tokens;
            size all_tokens = begins[ranks];
            input x: bf16[tokens, ranks, hidden], begins: i32[ranks + 1];
            output y: bf16[all_tokens, hidden] in window;
            {tables}
            tune {{ stripes: 4 in [1, 2, 4, 8] }}
            message Row {{ row x: bf16[hidden] }}
            channel rows: direct<Row> over nvlink from Send to Take per all;
            role Send on all blocks, 4 warps, warps shared by token {{ {statements} }}
            role Take on all blocks, 4 warps, warps shared by (source, stripe) {{
                for row in rows[source] {{ store y[row.row] = row.x; }}
            }}
        }} }}"
    )
}

const PUSHES: &str = "for token in stripe {
    for peer in ranks { push rows[peer] at begins[me] + stripe.first { x: x[token, peer] }; }
}";

const EXCHANGE: &str = "
    for peer in ranks { push totals[peer] { rows: peer }; }
    await totals;
    for peer in ranks { store sums[peer] = totals[peer].rows; }";

#[test]
fn a_recipe_says_who_carries_out_a_role_and_what_keeps_the_others_from_it() {
    let text = |title: &str, recipes: String| format!("== {title}\n{recipes}\n\n");
    let exchange = |on| recipes(&team(on, EXCHANGE), "", "");
    let mut out = text("decode-dispatch", recipes(DECODE, "", ""));
    let near = [
        (
            "+ 0 in the count",
            "(topk_idx[token, choice] == expert)",
            "(topk_idx[token + 0, choice] == expert)",
        ),
        (
            "+ 0 in the sends",
            "where routed(topk_idx[token], peer)",
            "where routed(topk_idx[token + 0], peer)",
        ),
    ];
    for (title, from, to) in near {
        out += &text(&format!("decode-dispatch, {title}"), recipes(DECODE, from, to));
    }
    let (from, to) = ("if expert >= 0 && again == 0", "if again == 0 && expert >= 0");
    out += &text("packed-dispatch", recipes(PACKED, "", ""));
    out += &text("packed-dispatch, sides of && exchanged", recipes(PACKED, from, to));
    for on in ["all blocks", "block 0", "block 0, 1 warps"] {
        out += &text(&format!("an exchange on {on}"), exchange(on));
    }
    out += &text("a team that reads what it writes", recipes(REREAD, "", ""));
    out += &text("low-latency-dispatch", recipes(LOW_LATENCY, "", ""));
    out += &text("expand", recipes(EXPAND, "", ""));
    out += &text("rows by stripes", recipes(&stripes("", PUSHES), "", ""));
    for (title, tables, statement) in [
        ("a number for each stripe", "table seen: i32[stripes];", "record seen[stripe] = stripe;"),
        (
            "turns that add to one number",
            "inout total: i32[1];",
            "for token in stripe { add total[0] = token; }",
        ),
    ] {
        let more = stripes(tables, &format!("{PUSHES} {statement}"));
        out += &text(&format!("rows by stripes, {title}"), recipes(&more, "", ""));
    }
    insta::assert_snapshot!(out);
}

/// What a command line says of these pipelines: on the output, and beside it.
fn said(line: &str, entries: &[AnyPipeline]) -> (String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = ep_cli::run(format!("epforge {line}").split(' '), entries, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    let (out, err) = (text(out), text(err));
    assert_eq!(code, 0, "{line}: {err}");
    (out, err)
}

#[test]
fn a_role_on_one_warp_is_said_wherever_one_looks() {
    let entries = [AnyPipeline::of::<slow::Exchange>(), AnyPipeline::of::<DecodeDispatch>()];
    let (text, warnings) = said("emit exchange --ranks 8", &entries);
    assert!(
        text.contains(
            "\n//   All: 8 warps on all blocks; composed: ep::SlotRowsOut, ep::SlotRowsIn\n"
        ),
        "{text}"
    );
    let warning =
        "warning: +6 `for peer in ranks`: this part of `All` runs on one warp of the grid: ";
    assert!(warnings.starts_with(warning), "{warnings}");
    let (_, warnings) = said("emit exchange --ranks 8 --kernels plain", &entries);
    assert_eq!(warnings, "", "whoever asks for a plain text knows");
    let (listed, _) = said("list", &entries);
    let words: Vec<&str> = listed.lines().filter_map(|it| it.split_whitespace().nth(1)).collect();
    assert_eq!(words, ["one-warp", "all-warps"], "{listed}");
}

#[test]
fn a_changed_copy_is_not_shown_the_times_of_the_standard_pipeline() {
    let slow = || changed(DECODE, "src: token,", "src: token + 0 * tokens_per_rank[me],");
    let original = AnyPipeline::of::<DecodeDispatch>();
    let copy = AnyPipeline::compiled(slow(), original.texts().to_vec(), original.handles());
    let times = "measured in CUDA graphs";
    for (entries, line, is_measured) in [
        (&pipelines::ALL[..], "explain decode-dispatch", true),
        (&pipelines::ALL[..], "explain decode-dispatch --kernels plain", false),
        (&[copy], "explain decode-dispatch", false),
    ] {
        let (told, _) = said(line, entries);
        assert_eq!(told.contains(times), is_measured, "{line}: {told}");
        assert_eq!(told.contains("ep::OnceOut"), is_measured, "{told}");
    }
}

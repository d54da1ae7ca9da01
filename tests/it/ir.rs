//! The front end on all standard pipelines: IR and facts as snapshots.

use ep_codegen::ir::{self, text};
use ep_codegen::print;
use ep_codegen::schedule::{self, RuleSet};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::{
    Expand, Layout, LowLatencyCombine, LowLatencyDispatch, NodeCombine, NodeDispatch, NvlCombine,
    NvlDispatch,
};

/// IR and facts of one pipeline.
fn shown(ir: &ir::Pipeline) -> String {
    format!("{}{}", text::pipeline(ir), text::facts_by_choice(ir))
}

#[test]
fn standard_pipelines() {
    insta::assert_snapshot!("layout", shown(&Layout::ir()));
    insta::assert_snapshot!("nvl_dispatch", shown(&NvlDispatch::ir()));
    insta::assert_snapshot!("nvl_combine", shown(&NvlCombine::ir()));
    insta::assert_snapshot!("expand", shown(&Expand::ir()));
}

#[test]
fn pipelines_over_nodes_and_of_low_latency() {
    insta::assert_snapshot!("node_dispatch", shown(&NodeDispatch::ir()));
    insta::assert_snapshot!("node_combine", shown(&NodeCombine::ir()));
    insta::assert_snapshot!("low_latency_dispatch", shown(&LowLatencyDispatch::ir()));
    insta::assert_snapshot!("low_latency_combine", shown(&LowLatencyCombine::ir()));
}

/// The steps of every role of two hops, and the names of what prevents a text.
fn drafted(ir: &ir::Pipeline) -> String {
    let selected = ir.select(&ir.choices().remove(0));
    let mut out = String::new();
    for role in &selected.roles {
        let (draft, refusals) = schedule::draft(&selected, role, RuleSet::None);
        let says = |at: &ir::Source| format!("// +{} {}", at.line, at.text);
        out += &format!("{}\n{}\n", role.at.text, print::steps(&draft.steps, &says));
        for refusal in refusals {
            out += &format!("refused at +{}: {}\n", refusal.at.line, refusal.why);
        }
    }
    out
}

#[test]
fn two_hops_have_a_schedule() {
    insta::assert_snapshot!("node_dispatch_steps", drafted(&NodeDispatch::ir()));
    insta::assert_snapshot!("node_combine_steps", drafted(&NodeCombine::ir()));
}

/// rustc's spans and those of a parsed text must give the same lines, or the digests of a tool and
/// of the macro would differ.
#[test]
fn macro_and_library_agree() {
    fn agree<P: Pipeline>(source: &str) {
        let of_file = ep_tests::lowered(source).into_iter().find(|ir| ir.name == P::ir().name);
        assert_eq!(Some(P::ir().text()), of_file.map(|ir| ir.text()));
        assert_eq!(P::ir().digest(), P::DIGEST);
    }
    agree::<Layout>(include_str!("../../ep-runtime/src/pipelines/layout.rs"));
    agree::<NvlDispatch>(include_str!("../../ep-runtime/src/pipelines/nvl_dispatch.rs"));
    agree::<NvlCombine>(include_str!("../../ep-runtime/src/pipelines/nvl_combine.rs"));
    agree::<NodeDispatch>(include_str!("../../ep-runtime/src/pipelines/node_dispatch.rs"));
    agree::<NodeCombine>(include_str!("../../ep-runtime/src/pipelines/node_combine.rs"));
    let source = include_str!("../../ep-runtime/src/pipelines/low_latency_dispatch.rs");
    agree::<LowLatencyDispatch>(source);
    let source = include_str!("../../ep-runtime/src/pipelines/low_latency_combine.rs");
    agree::<LowLatencyCombine>(source);
    agree::<Expand>(include_str!("../../ep-runtime/src/pipelines/expand.rs"));
}

//! The front end on all standard pipelines: IR and facts as snapshots.

use ep_codegen::ir::{self, text};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::{Expand, ExpertLayout, ExpertPrefix, Layout, NvlCombine, NvlDispatch};

/// IR and facts of one pipeline.
fn shown(ir: &ir::Pipeline) -> String {
    format!("{}{}", text::pipeline(ir), text::facts_by_choice(ir))
}

/// The IR of the only pipeline in a file, without the macro.
fn lowered(source: &str) -> ir::Pipeline {
    let mut pipelines = ep_tests::lowered(source);
    assert_eq!(pipelines.len(), 1);
    pipelines.remove(0)
}

#[test]
fn standard_pipelines() {
    insta::assert_snapshot!("layout", shown(&Layout::ir()));
    insta::assert_snapshot!("nvl_dispatch", shown(&NvlDispatch::ir()));
    insta::assert_snapshot!("nvl_combine", shown(&NvlCombine::ir()));
    insta::assert_snapshot!("expert_layout", shown(&ExpertLayout::ir()));
    insta::assert_snapshot!("expert_prefix", shown(&ExpertPrefix::ir()));
    insta::assert_snapshot!("expand", shown(&Expand::ir()));
}

#[test]
fn pipelines_that_are_declared_only() {
    for (name, source) in [
        ("node_dispatch", include_str!("../inputs/node_dispatch.rs")),
        ("node_combine", include_str!("../inputs/node_combine.rs")),
        ("low_latency_dispatch", include_str!("../inputs/low_latency_dispatch.rs")),
        ("low_latency_combine", include_str!("../inputs/low_latency_combine.rs")),
    ] {
        insta::assert_snapshot!(name, shown(&lowered(source)));
    }
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
    let expand = include_str!("../../ep-runtime/src/pipelines/expand.rs");
    agree::<ExpertLayout>(expand);
    agree::<ExpertPrefix>(expand);
    agree::<Expand>(expand);
}

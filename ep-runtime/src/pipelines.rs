//! The standard pipelines, declared as any user would declare them.
//!
//! Each file declares one pipeline, or a few that belong together. The types of a pipeline's calls are in a
//! module with its name: [`layout::Shape`], [`nvl_dispatch::Inputs`].

pub mod decode_combine;
pub mod decode_dispatch;
pub mod expand;
pub mod layout;
pub mod local_layout;
pub mod low_latency_combine;
pub mod low_latency_dispatch;
pub mod merge_combine;
pub mod node_combine;
pub mod node_dispatch;
pub mod node_layout;
pub mod nvl_combine;
pub mod nvl_dispatch;
pub mod packed_dispatch;

pub use decode_combine::DecodeCombine;
pub use decode_dispatch::DecodeDispatch;
pub use expand::Expand;
pub use layout::Layout;
pub use local_layout::LocalLayout;
pub use low_latency_combine::LowLatencyCombine;
pub use low_latency_dispatch::LowLatencyDispatch;
pub use merge_combine::MergeCombine;
pub use node_combine::NodeCombine;
pub use node_dispatch::NodeDispatch;
pub use node_layout::NodeLayout;
pub use nvl_combine::NvlCombine;
pub use nvl_dispatch::NvlDispatch;
pub use packed_dispatch::PackedDispatch;

use crate::pipeline::AnyPipeline;

/// Every standard pipeline.
pub const ALL: [AnyPipeline; 14] = [
    AnyPipeline::of::<Layout>(),
    AnyPipeline::of::<NvlDispatch>(),
    AnyPipeline::of::<NvlCombine>(),
    AnyPipeline::of::<DecodeDispatch>(),
    AnyPipeline::of::<DecodeCombine>(),
    AnyPipeline::of::<Expand>(),
    AnyPipeline::of::<NodeLayout>(),
    AnyPipeline::of::<NodeDispatch>(),
    AnyPipeline::of::<NodeCombine>(),
    AnyPipeline::of::<LowLatencyDispatch>(),
    AnyPipeline::of::<LowLatencyCombine>(),
    AnyPipeline::of::<PackedDispatch>(),
    AnyPipeline::of::<MergeCombine>(),
    AnyPipeline::of::<LocalLayout>(),
];

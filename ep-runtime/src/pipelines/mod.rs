//! The standard pipelines, declared as any user would declare them.
//!
//! Each file declares one; its handle is `<Layout as Pipeline>::Handle`.

pub mod declared;
pub mod expand;
pub mod layout;
pub mod nvl_combine;
pub mod nvl_dispatch;

pub use declared::low_latency_combine::LowLatencyCombine;
pub use declared::low_latency_dispatch::LowLatencyDispatch;
pub use declared::node_combine::NodeCombine;
pub use declared::node_dispatch::NodeDispatch;
pub use expand::{Expand, ExpertLayout, ExpertPrefix};
pub use layout::Layout;
pub use nvl_combine::NvlCombine;
pub use nvl_dispatch::NvlDispatch;

use crate::emit::Entry;

/// Every standard pipeline, those that are emitted first.
pub const ENTRIES: [Entry; 10] = [
    Entry::of::<Layout>(),
    Entry::of::<NvlDispatch>(),
    Entry::of::<NvlCombine>(),
    Entry::of::<ExpertLayout>(),
    Entry::of::<ExpertPrefix>(),
    Entry::of::<Expand>(),
    Entry::of::<NodeDispatch>(),
    Entry::of::<NodeCombine>(),
    Entry::of::<LowLatencyDispatch>(),
    Entry::of::<LowLatencyCombine>(),
];

//! The configurations whose CUDA is kept in `generated/`: shapes that people run.

use ep_runtime::jit::Arch;

/// One pipeline in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// Name of the pipeline, as on the command line.
    pub pipeline: &'static str,
    /// Name of the configuration, unique within the pipeline.
    pub name: &'static str,
    /// Target.
    pub arch: Arch,
    /// What differs from the reference shape and the defaults, as for `--set`.
    pub set: &'static [(&'static str, &'static str)],
}

use Arch::{Sm80, Sm90a, Sm100a, Sm120a};

/// Settings of a cached call: it sends rows only. The receivers have the indices and weights from the first call.
const CACHED: [(&str, &str); 5] = [
    ("mode", "cached"),
    ("topk_idx", "0"),
    ("recv_topk_idx", "0"),
    ("topk_weights", "0"),
    ("recv_topk_weights", "0"),
];

/// Every configuration, in order of pipeline. The models are named for their shapes alone.
#[rustfmt::skip] // A table: one row per configuration.
pub const CONFIGURATIONS: &[Configuration] = &[
    row("layout", "deepseek-v3", Sm90a, &[]),
    row("layout", "deepseek-v3-4-ranks", Sm90a, &[("ranks", "4")]),
    row("layout", "deepseek-v3-4-ranks-ring", Sm90a, &[("ranks", "4"), ("stripes", "12")]),
    row("layout", "deepseek-v3-2-ranks", Sm90a, &[("ranks", "2")]),
    row("layout", "gpt-oss-120b", Sm80, &[("ranks", "4"), ("experts", "128"), ("stripes", "12")]),
    row("nvl-dispatch", "deepseek-v3-bf16", Sm90a, &[]),
    row("nvl-dispatch", "deepseek-v3-fp8", Sm90a, &[("payload", "fp8")]),
    row("nvl-dispatch", "deepseek-v3-fp8-cached", Sm90a, &[("payload", "fp8"), ("mode", "cached")]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-bf16", Sm90a, &[("ranks", "4")]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-fp8", Sm90a, &[("ranks", "4"), ("payload", "fp8")]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-bf16-cached", Sm90a, &[("ranks", "4"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-fp8-cached", Sm90a, &[("ranks", "4"), ("payload", "fp8"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-bf16-ring", Sm90a, &[("ranks", "4"), ("via", "ring")]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-fp8-ring", Sm90a, &[("ranks", "4"), ("payload", "fp8"), ("via", "ring")]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-bf16-ring-cached", Sm90a, &[("ranks", "4"), ("via", "ring"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-4-ranks-fp8-ring-cached", Sm90a, &[("ranks", "4"), ("payload", "fp8"), ("via", "ring"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-2-ranks-bf16", Sm90a, &[("ranks", "2")]),
    row("nvl-dispatch", "deepseek-v3-2-ranks-fp8", Sm90a, &[("ranks", "2"), ("payload", "fp8")]),
    row("nvl-dispatch", "deepseek-v3-2-ranks-bf16-cached", Sm90a, &[("ranks", "2"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-2-ranks-fp8-cached", Sm90a, &[("ranks", "2"), ("payload", "fp8"), CACHED[0], CACHED[1], CACHED[2], CACHED[3], CACHED[4]]),
    row("nvl-dispatch", "deepseek-v3-bf16-ring", Sm90a, &[("via", "ring")]),
    row("nvl-dispatch", "kimi-k2-fp8-packed", Sm100a, &[("payload", "fp8-packed"), ("experts", "384")]),
    row("nvl-dispatch", "gpt-oss-120b-bf16", Sm90a, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("nvl-dispatch", "qwen3-235b-fp8-ring", Sm120a, &[("payload", "fp8"), ("via", "ring"), ("hidden", "4096"), ("experts", "128")]),
    row("low-latency-dispatch", "deepseek-v3-fp8", Sm90a, &[("payload", "fp8")]),
    row("low-latency-dispatch", "deepseek-v3-bf16", Sm90a, &[]),
    row("low-latency-dispatch", "deepseek-v3-2x8-fp8", Sm90a, &[("ranks", "16"), ("nodes", "2"), ("payload", "fp8")]),
    row("low-latency-dispatch", "deepseek-v3-2x8-fp8-ibgda", Sm90a, &[("ranks", "16"), ("nodes", "2"), ("payload", "fp8"), ("network", "ibgda")]),
    row("low-latency-dispatch", "qwen3-235b-2x8-fp8", Sm120a, &[("ranks", "16"), ("nodes", "2"), ("payload", "fp8"), ("hidden", "4096"), ("experts", "128")]),
    row("low-latency-dispatch", "deepseek-v3-8x8-fp8-packed", Sm100a, &[("ranks", "64"), ("nodes", "8"), ("payload", "fp8-packed")]),
    row("low-latency-dispatch", "deepseek-v3-32x8-fp8", Sm90a, &[("ranks", "256"), ("nodes", "32"), ("payload", "fp8")]),
    row("low-latency-dispatch", "gpt-oss-120b-bf16", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("low-latency-combine", "deepseek-v3", Sm90a, &[]),
    row("low-latency-combine", "deepseek-v3-logfmt", Sm90a, &[("wire", "logfmt")]),
    row("low-latency-combine", "deepseek-v3-2x8", Sm90a, &[("ranks", "16"), ("nodes", "2")]),
    row("low-latency-combine", "qwen3-235b-2x8", Sm120a, &[("ranks", "16"), ("nodes", "2"), ("hidden", "4096"), ("experts", "128")]),
    row("low-latency-combine", "deepseek-v3-8x8", Sm100a, &[("ranks", "64"), ("nodes", "8")]),
    row("low-latency-combine", "deepseek-v3-32x8", Sm90a, &[("ranks", "256"), ("nodes", "32")]),
    row("low-latency-combine", "gpt-oss-120b", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("decode-dispatch", "deepseek-v3-fp8", Sm90a, &[("payload", "fp8"), ("max_tokens", "128")]),
    row("decode-dispatch", "deepseek-v3-2-ranks-fp8", Sm90a, &[("ranks", "2"), ("payload", "fp8"), ("max_tokens", "512")]),
    row("decode-dispatch", "gpt-oss-120b-bf16", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128"), ("max_tokens", "128")]),
    row("decode-combine", "deepseek-v3", Sm90a, &[]),
    row("decode-combine", "gpt-oss-120b", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("bias", "0")]),
    row("expand", "deepseek-v3-fp8", Sm90a, &[("payload", "fp8"), ("stripes", "1024")]),
    row("packed-dispatch", "deepseek-v3-fp8", Sm90a, &[("payload", "fp8"), ("max_tokens", "128")]),
    row("packed-dispatch", "deepseek-v3-2-ranks-fp8-packed", Sm100a, &[("ranks", "2"), ("payload", "fp8-packed"), ("max_tokens", "128")]),
    row("packed-dispatch", "gpt-oss-120b-bf16", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128"), ("max_tokens", "128")]),
    row("packed-dispatch", "deepseek-v3-2x8-fp8", Sm90a, &[("via", "slots"), ("ranks", "16"), ("nodes", "2"), ("payload", "fp8"), ("max_tokens", "128"), ("topk_weights", "1")]),
    row("packed-dispatch", "deepseek-v3-32x8-fp8", Sm90a, &[("via", "slots"), ("ranks", "256"), ("nodes", "32"), ("payload", "fp8"), ("max_tokens", "128"), ("topk_weights", "1"), ("shares", "8")]),
    row("merge-combine", "deepseek-v3", Sm90a, &[]),
    row("merge-combine", "deepseek-v3-2x8", Sm90a, &[("via", "slots"), ("ranks", "16"), ("nodes", "2")]),
    row("merge-combine", "deepseek-v3-32x8", Sm90a, &[("via", "slots"), ("ranks", "256"), ("nodes", "32"), ("shares", "8")]),
    row("merge-combine", "deepseek-v3-2x8-asked", Sm90a, &[("via", "asked"), ("ranks", "16"), ("nodes", "2")]),
    row("merge-combine", "gpt-oss-120b", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("merge-combine", "deepseek-v3-spread", Sm90a, &[("via", "spread")]),
    row("merge-combine", "gpt-oss-120b-spread", Sm80, &[("via", "spread"), ("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("nvl-combine", "deepseek-v3-pull", Sm90a, &[]),
    row("nvl-combine", "deepseek-v3-4-ranks-pull", Sm90a, &[("ranks", "4")]),
    row("nvl-combine", "deepseek-v3-4-ranks-ring", Sm90a, &[("ranks", "4"), ("via", "ring")]),
    row("nvl-combine", "deepseek-v3-2-ranks-pull", Sm90a, &[("ranks", "2")]),
    row("nvl-combine", "deepseek-v3-ring", Sm90a, &[("via", "ring")]),
    row("nvl-combine", "kimi-k2-pull", Sm100a, &[]),
    row("local-layout", "deepseek-v3", Sm90a, &[]),
    row("local-layout", "deepseek-v3-2x8", Sm90a, &[("across", "nodes"), ("ranks", "16"), ("nodes", "2")]),
    row("node-layout", "deepseek-v3-2x8", Sm90a, &[("nodes", "2"), ("local_ranks", "8"), ("stripes", "12")]),
    row("node-layout", "deepseek-v3-8x8", Sm90a, &[("nodes", "8"), ("local_ranks", "8"), ("stripes", "12")]),
    row("node-layout", "deepseek-v3-4x8", Sm100a, &[("nodes", "4"), ("local_ranks", "8"), ("stripes", "12")]),
    row("node-layout", "gpt-oss-120b-2x4", Sm80, &[("nodes", "2"), ("local_ranks", "4"), ("topk", "4"), ("experts", "128"), ("stripes", "12")]),
    row("node-dispatch", "deepseek-v3-2x8-bf16", Sm90a, &[("nodes", "2"), ("local_ranks", "8")]),
    row("node-dispatch", "deepseek-v3-8x8-fp8", Sm90a, &[("nodes", "8"), ("local_ranks", "8"), ("payload", "fp8")]),
    row("node-dispatch", "deepseek-v3-4x8-fp8-cached", Sm100a, &[("nodes", "4"), ("local_ranks", "8"), ("payload", "fp8"), ("mode", "cached")]),
    row("node-dispatch", "gpt-oss-120b-2x4-bf16", Sm80, &[("nodes", "2"), ("local_ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("experts", "128")]),
    row("node-dispatch", "qwen3-235b-4x8-fp8-packed", Sm120a, &[("nodes", "4"), ("local_ranks", "8"), ("payload", "fp8-packed"), ("hidden", "4096"), ("experts", "128")]),
    row("node-combine", "deepseek-v3-2x8", Sm90a, &[("nodes", "2"), ("local_ranks", "8")]),
    row("node-combine", "deepseek-v3-8x8", Sm90a, &[("nodes", "8"), ("local_ranks", "8")]),
    row("node-combine", "deepseek-v3-4x8", Sm100a, &[("nodes", "4"), ("local_ranks", "8")]),
    row("node-combine", "qwen3-235b-4x8", Sm120a, &[("nodes", "4"), ("local_ranks", "8"), ("hidden", "4096")]),
    row("node-combine", "gpt-oss-120b-2x4", Sm120a, &[("nodes", "2"), ("local_ranks", "4"), ("hidden", "2880"), ("topk", "4")]),
    row("nvl-combine", "gpt-oss-120b-pull", Sm80, &[("ranks", "4"), ("hidden", "2880"), ("topk", "4"), ("bias", "0")]),
];

const fn row(
    pipeline: &'static str,
    name: &'static str,
    arch: Arch,
    set: &'static [(&'static str, &'static str)],
) -> Configuration {
    Configuration { pipeline, name, arch, set }
}

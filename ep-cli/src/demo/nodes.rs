//! `epforge demo --nodes 2`: a process for each node, whose ranks are in its emulator. Rows take two hops to
//! the ranks of their experts and come back, and few rows one, through libfabric from process to process.

use ep_runtime::AnyPipeline;
use ep_runtime::net::Provider;
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, NodeCombine, NodeDispatch, NodeLayout,
};

use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::machine::{Machine, Perturb};
use crate::nodes::{Between, NodeOptions};
use crate::problem::Problem;
use crate::talk::Talk;
use crate::wire::{Joint, provider};

/// Ranks of a node.
const LOCAL_RANKS: usize = 2;
const TOKENS: usize = 24;
const SEED: u64 = 1;

/// What is shown: pipelines with settings.
type Settings = &'static [(&'static str, &'static str)];
const CASES: [(AnyPipeline, Settings); 6] = [
    (AnyPipeline::of::<NodeLayout>(), &[STRIPES]),
    (AnyPipeline::of::<NodeDispatch>(), &[("payload", "bf16"), ("mode", "fresh"), HIDDEN, STRIPES]),
    (AnyPipeline::of::<NodeDispatch>(), &[("payload", "fp8"), ("mode", "cached"), HIDDEN, STRIPES]),
    (AnyPipeline::of::<NodeCombine>(), &[HIDDEN, STRIPES]),
    (AnyPipeline::of::<LowLatencyDispatch>(), &[("payload", "fp8"), HIDDEN, MAX_TOKENS]),
    (AnyPipeline::of::<LowLatencyCombine>(), &[HIDDEN, MAX_TOKENS]),
];
const HIDDEN: (&str, &str) = ("hidden", "512");
const STRIPES: (&str, &str) = ("stripes", "4");
const MAX_TOKENS: (&str, &str) = ("max_tokens", "24");

/// Options of a demo over nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Nodes {
    /// Start this many node processes, which exchange rows through libfabric
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub(crate) nodes: Option<u32>,
    /// Provider of libfabric
    #[arg(long, value_name = "libfabric:PROVIDER", default_value = "libfabric:tcp", value_parser = provider, requires = "nodes")]
    net: Provider,
    #[command(flatten)]
    node: NodeOptions,
}

/// Runs it with `nodes` nodes.
pub(super) fn run(options: &Nodes, nodes: usize, talk: &mut Talk<'_>) -> Result<(), Failure> {
    let problem = |settings: Settings| {
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Problem {
            ranks: Some((nodes * LOCAL_RANKS) as u32),
            nodes: Some(nodes as u32),
            tokens: Some(TOKENS),
            set: settings.iter().map(own).collect(),
            kernels: Kernels::Chosen,
        }
    };
    let cases = CASES.iter().map(|(entry, settings)| (*entry, problem(settings)));
    let between = Between {
        options: &options.node,
        joint: Joint::Fabric(options.net),
        nodes,
        local_ranks: LOCAL_RANKS,
        machine: Machine::Host,
        sms: None,
        perturb: Perturb::default(),
        seed: SEED,
        cases: cases.collect(),
    };
    between.run("demo", talk)
}

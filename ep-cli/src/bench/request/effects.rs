//! Refuses options that the calls to be timed do not read.

use ep_runtime::buffer::{BuiltIn, StandardPipeline};

use super::{Options, Probe};
use crate::failure::Failure;
use crate::machine::Machine;

/// Numbers of the shape, which all calls read.
const SHAPE: [&str; 3] = ["hidden", "topk", "experts"];

/// Other names of `--set` that calls of a buffer read, within one node and between nodes.
const OF_BUFFERS: [&str; 3] = ["weights", "bias", "alignment"];

/// Names of `--set` that choose kernels within one node.
const WITHIN_NODE: [&str; 3] = ["via", "one_launch", "push_combine"];

/// The pipelines between nodes that have tunes.
const FAR: [StandardPipeline; 2] = [StandardPipeline::NodeDispatch, StandardPipeline::NodeCombine];

/// The pipelines within one node that have tunes.
const NEAR: [StandardPipeline; 4] = [
    StandardPipeline::NvlDispatch,
    StandardPipeline::NvlCombine,
    StandardPipeline::DecodeDispatch,
    StandardPipeline::DecodeCombine,
];

impl Options {
    /// Refuses options that have no effect on this backend or between nodes.
    pub(super) fn have_effect(&self) -> Result<(), Failure> {
        self.perturb.check(self.backend)?;
        if self.backend == Machine::Host {
            self.for_host()?;
        } else if self.low_latency.is_some() && self.seed.is_some() {
            return wrong(
                "on GPUs, `--seed` has no effect on low-latency calls, whose inputs are the same in each run",
            );
        }
        let is_list = self.tokens.len() > 1 || self.routing.len() > 1 || self.sms.len() > 1;
        if self.kill.is_some() && is_list {
            return wrong(
                "with `--kill` there is one check: `--tokens`, `--routing` and `--sms` take one value each",
            );
        }
        match self.probe {
            Some(Probe::Yes | Probe::Only) if self.nodes.is_some() => {
                wrong("between nodes, `--probe` has no effect: the probe is for ranks of one node")
            }
            _ => Ok(()),
        }
    }

    /// Refuses options that only GPUs have.
    fn for_host(&self) -> Result<(), Failure> {
        let of_gpus = [
            ("processes", self.processes && self.nodes.is_none()),
            ("devices", self.devices.is_some()),
            ("cooperative", self.cooperative.is_some()),
            ("sharing", self.sharing.is_some()),
        ];
        if self.timeout_ms.is_some() {
            return wrong(
                "`--timeout-ms` has no effect on the host, where a wait has a limit of its own",
            );
        }
        match of_gpus.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => wrong(&format!(
                "`--{name}` has no effect on the host, which has all ranks in one process"
            )),
        }
    }

    /// Refuses names of `--set` that the calls of a buffer, or low-latency calls, do not read.
    pub(super) fn numbers_have_effect(&self, set: &[(String, String)]) -> Result<(), Failure> {
        let (place, own) = match (self.low_latency, self.nodes) {
            (Some(_), _) => ("in low-latency calls", &[][..]),
            (None, Some(_)) => ("between nodes", &FAR[..]),
            (None, None) => ("within one node", &NEAR[..]),
        };
        let is_read = |name: &str| {
            SHAPE.contains(&name)
                || self.low_latency.is_none()
                    && (OF_BUFFERS.contains(&name)
                        || self.nodes.is_none() && WITHIN_NODE.contains(&name)
                        || own.iter().any(|pipeline| has_tune(*pipeline, name)))
        };
        match set.iter().map(|(name, _)| name.as_str()).find(|name| !is_read(name)) {
            None => Ok(()),
            Some("payload") => wrong("use `--payload` instead of `--set payload`: it takes a list"),
            Some(name) => wrong(&format!("{place}, `{name}` has no effect")),
        }
    }
}

/// Whether a name of `--set` is a tune of the pipeline.
fn has_tune(pipeline: StandardPipeline, name: &str) -> bool {
    let (only, tune) = match name.split_once('.') {
        Some((only, tune)) => (Some(only), tune),
        None => (None, name),
    };
    let is_meant = only.is_none_or(|only| only == pipeline.name());
    is_meant && BuiltIn::entry(pipeline).ir().tunes.iter().any(|own| own.name == tune)
}

fn wrong(sentence: &str) -> Result<(), Failure> {
    Err(Failure::WrongUse(sentence.to_owned()))
}

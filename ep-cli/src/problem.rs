//! The problem that `run`, `check` and `demo` put to the standard pipelines: the part of the command
//! line that they share.

use std::sync::Arc;

use ep_runtime::backend::BackendError;
use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, Emit, MemoryUsage, Payload, StandardPipeline, Via,
};
use ep_runtime::error::CallError;
use ep_runtime::gpu::{GpuBackend, GpuOptions, compile_with};
use ep_runtime::jit::{Arch, Cache, Jit, Nvrtc};
use ep_runtime::{AnyPipeline, Emitted};
use ep_verify::selftest::Operation;

use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::numbers::count;
use crate::selection::{REFERENCE_SHAPE, assignment, find, refused, twice};
use crate::suggestion::did_you_mean;

pub(crate) const PROBLEM_HELP: &str = "\
Names for --set: hidden, topk, experts, payload, via, one_launch, push_combine and
weights (0 or 1), bias (0 to 2), alignment, and the tunes of the pipelines, such as depth=32 or nvl-dispatch.stages=4.";

/// The default number of ranks.
const RANKS: u32 = 4;

/// The shape number that `--tokens` sets, in pipelines that have it.
pub(crate) const MAX_TOKENS: &str = "max_tokens";

/// Most ranks of a problem.
pub(crate) const MOST_RANKS: i64 = 1024;

/// The options that choose a problem.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Problem {
    /// Number of ranks, short for --set ranks=N; 4 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    pub(crate) ranks: Option<u32>,
    /// Number of nodes, short for --set nodes=N; by default the fewest that the pipeline accepts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    pub(crate) nodes: Option<u32>,
    /// Maximum tokens of a rank; in a pipeline with max_tokens, short for --set max_tokens=N
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) tokens: Option<usize>,
    /// A number of the shape, a variant, or a tune
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, String)>,
    #[arg(long, value_enum, default_value_t, help = Kernels::HELP)]
    pub(crate) kernels: Kernels,
}

/// How far through the standard pipelines a problem goes; each needs those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Layout.
    Counts,
    /// Fresh and cached dispatches.
    Dispatch,
    /// Combines.
    Combine,
}

/// What a name asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked {
    /// Standard pipelines, which have an oracle.
    Standard(Reach),
    /// Any other, which its declaration is the oracle of.
    Declared(AnyPipeline),
}

impl Asked {
    /// What `name` asks for: a pipeline of `entries` or `dispatch+combine`. One that is called like a
    /// standard pipeline and is another does not stand for it.
    pub(crate) fn of(entries: &[AnyPipeline], name: &str) -> Result<Asked, Failure> {
        if name == "dispatch+combine" {
            return Ok(Asked::Standard(Reach::Combine));
        }
        Ok(Asked::entry(find(entries, name)?))
    }

    /// The reference for results: the oracle for a standard pipeline, the declaration for any other.
    pub(crate) fn entry(entry: &AnyPipeline) -> Asked {
        let all = [Reach::Counts, Reach::Dispatch, Reach::Combine];
        let last = |reach: &Reach| reach.pipelines().last().map(|last| BuiltIn::entry(*last));
        let is_it = |reach: &Reach| last(reach).is_some_and(|last| last.digest == entry.digest);
        match all.into_iter().find(is_it) {
            Some(reach) => Asked::Standard(reach),
            None => Asked::Declared(*entry),
        }
    }
}

impl Reach {
    /// The pipelines that it launches.
    pub(crate) fn pipelines(self) -> &'static [StandardPipeline] {
        use StandardPipeline as Standard;
        const ALL: [Standard; 3] = [Standard::Layout, Standard::NvlDispatch, Standard::NvlCombine];
        match self {
            Reach::Counts => &ALL[..1],
            Reach::Dispatch => &ALL[..2],
            Reach::Combine => &ALL,
        }
    }

    /// Those that a buffer launches for it.
    pub(crate) fn launched(self, buffer: &Buffer) -> Vec<StandardPipeline> {
        match self {
            Reach::Counts => self.pipelines().to_vec(),
            Reach::Dispatch => Operation::Dispatch.pipelines(buffer),
            Reach::Combine => Operation::Both.pipelines(buffer),
        }
    }
}

impl Problem {
    /// Moves `ranks` and `nodes` from `--set` to the options of these names.
    pub(crate) fn settled(&self) -> Result<Problem, Failure> {
        let mut settled = self.clone();
        settled.ranks = taken(&mut settled.set, "ranks", self.ranks)?;
        settled.nodes = taken(&mut settled.set, "nodes", self.nodes)?;
        Ok(settled)
    }

    /// The number of ranks, or its default.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks.unwrap_or(RANKS)
    }

    /// Refuses `--nodes` for a pipeline without nodes.
    pub(crate) fn without_nodes(&self, name: &str) -> Result<(), Failure> {
        match self.nodes {
            None => Ok(()),
            Some(_) => Err(wrong(format!("{name} has no nodes: `--nodes` has no effect"))),
        }
    }

    /// The number of nodes and of ranks per node. `fewest` is the default number of nodes.
    pub(crate) fn shared(&self, fewest: u32) -> Result<(u32, u32), Failure> {
        let each = self.set.iter().find(|(name, _)| name == "local_ranks");
        let Some((_, each)) = each else {
            let (ranks, nodes) = (self.ranks(), self.nodes.unwrap_or(fewest));
            return match ranks.is_multiple_of(nodes) {
                true => Ok((nodes, ranks / nodes)),
                false => {
                    Err(wrong(format!("{ranks} ranks cannot be divided evenly into {nodes} nodes")))
                }
            };
        };
        let each = in_range("local_ranks", each)?;
        let nodes = self.nodes.or(self.ranks.map(|ranks| ranks / each)).unwrap_or(fewest).max(1);
        let ranks = nodes * each;
        match self.ranks {
            Some(asked) if asked != ranks => Err(wrong(format!(
                "{asked} ranks are not {nodes} nodes of {each} ranks: `--ranks`, `--nodes` and \
                 `local_ranks` contradict one another"
            ))),
            _ if i64::from(ranks) > MOST_RANKS => Err(wrong(format!(
                "{nodes} nodes of {each} ranks are {ranks} ranks, and `--ranks` takes 1..={MOST_RANKS}"
            ))),
            _ => Ok((nodes, each)),
        }
    }

    /// The buffer that is asked for; `hidden`, `topk` and `experts` are those of `base` unless set.
    pub(crate) fn options(&self, base: BufferOptions) -> Result<BufferOptions, Failure> {
        let mut options = base;
        if let Some(tokens) = self.tokens {
            options.tokens = tokens;
        }
        for (index, (name, value)) in self.set.iter().enumerate() {
            if self.set[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(twice(name, None));
            }
            self::set(&mut options, name, value)?;
        }
        Ok(options)
    }

    /// Where the kernels come from.
    pub(crate) fn source(&self) -> &'static dyn Emit {
        self.kernels.source()
    }

    /// Whether a name is set.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.set.iter().any(|(own, _)| own == name)
    }

    /// `--ranks 4 --set hidden=128`: the options as they stand on a command line.
    pub(crate) fn words(&self) -> String {
        let tokens = self.tokens.map(|tokens| format!(" --tokens {tokens}")).unwrap_or_default();
        let set = self.set.iter().filter(|(name, _)| self.tokens.is_none() || name != MAX_TOKENS);
        let set = set.map(|(name, value)| format!(" --set {name}={value}"));
        let kernels = self.kernels.words();
        let nodes = self.nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
        format!("--ranks {}{nodes}{tokens}{}{kernels}", self.ranks(), set.collect::<String>())
    }
}

/// The shape that published figures use, with few tokens, and the pipelines that count and send apart.
pub(crate) fn reference_options() -> BufferOptions {
    let number = |name: &str| {
        let known = REFERENCE_SHAPE.iter().find(|(known, _)| *known == name);
        known.map_or(1, |(_, value)| usize::try_from(*value).unwrap_or(1))
    };
    let options = BufferOptions::new(64, number("hidden"), number("topk"), number("experts"));
    BufferOptions { one_launch: Some(false), push_combine: Some(false), ..options }
}

/// The names of a buffer's own numbers and variants.
const NAMES: [&str; 10] = [
    "hidden",
    "topk",
    "experts",
    "payload",
    "via",
    "one_launch",
    "push_combine",
    "weights",
    "bias",
    "alignment",
];

/// Sets a number of a buffer, a variant, or a tune of its kernels.
pub(crate) fn set(options: &mut BufferOptions, name: &str, value: &str) -> Result<(), Failure> {
    match name {
        "hidden" => options.hidden = number(name, value)?,
        "topk" => options.topk = number(name, value)?,
        "experts" => options.experts = number(name, value)?,
        "bias" => options.biases = number(name, value)?,
        "alignment" => {
            let most = i32::MAX;
            let number = value.parse().ok().filter(|number| (1..=most).contains(number));
            options.alignment = number.ok_or_else(|| {
                wrong(format!("`alignment` is a number from 1 to {most}, not `{value}`"))
            })?;
        }
        "weights" => options.weights = flag(name, value)?,
        "one_launch" => options.one_launch = Some(flag(name, value)?),
        "push_combine" => options.push_combine = Some(flag(name, value)?),
        "payload" => {
            let names = Payload::ALL.map(Payload::name);
            options.payload = Payload::from_name(value).ok_or_else(|| {
                let (all, hint) = (names.join(", "), did_you_mean(value, names));
                wrong(format!("`payload` is one of {all}, not `{value}`{hint}"))
            })?;
        }
        "via" => {
            options.via = Via::from_name(value).ok_or_else(|| {
                let hint = did_you_mean(value, ["direct", "ring"]);
                wrong(format!("`via` is direct or ring, not `{value}`{hint}"))
            })?;
        }
        _ => return set_tune(options, name, value),
    }
    Ok(())
}

/// The pipelines of few tokens, and between nodes, that have tunes.
const OTHERS: [StandardPipeline; 4] = [
    StandardPipeline::DecodeDispatch,
    StandardPipeline::DecodeCombine,
    StandardPipeline::NodeDispatch,
    StandardPipeline::NodeCombine,
];

/// A tune of every pipeline that has it, or of the one before the point. The plan checks the value.
fn set_tune(options: &mut BufferOptions, name: &str, value: &str) -> Result<(), Failure> {
    let (only, tune) = match name.split_once('.') {
        Some((pipeline, tune)) => (Some(pipeline), tune),
        None => (None, name),
    };
    let mut known = Vec::new();
    let mut found = false;
    let of_calls = Reach::Combine.pipelines().iter().chain(&OTHERS);
    for pipeline in of_calls {
        let ir = BuiltIn::entry(*pipeline).ir();
        known.extend(ir.tunes.iter().map(|tune| tune.name.clone()));
        let is_meant = only.is_none_or(|only| only == pipeline.name());
        // The stripes of a combine are those of its dispatch, which passes them on.
        let combines = [StandardPipeline::NvlCombine, StandardPipeline::NodeCombine];
        let is_passed = tune == "stripes" && combines.contains(pipeline);
        if is_meant && !is_passed && ir.tunes.iter().any(|it| it.name == tune) {
            found = true;
            let own = options.tunes.by_name(pipeline.name(), tune).map_err(failed)?;
            *own = Some(number(name, value)?);
        }
    }
    if found {
        return Ok(());
    }
    known.sort();
    known.dedup();
    let hint = did_you_mean(name, NAMES.into_iter().chain(known.iter().map(String::as_str)));
    let (names, tunes) = (NAMES.join(", "), known.join(", "));
    Err(wrong(format!(
        "`{name}` does not exist; choose one of {names}, or one of the tunes {tunes}{hint}"
    )))
}

fn wrong(sentence: String) -> Failure {
    Failure::WrongUse(sentence)
}

/// Removes `name` from `set` and returns its value, or `given`, the value of the option of that name.
pub(crate) fn taken(
    set: &mut Vec<(String, String)>,
    name: &str,
    given: Option<u32>,
) -> Result<Option<u32>, Failure> {
    let mut number = given;
    for (_, value) in set.extract_if(.., |(own, _)| own == name) {
        if number.is_some() {
            return Err(twice(name, given.map(|_| name)));
        }
        number = Some(in_range(name, &value)?);
    }
    Ok(number)
}

/// Parses a number of ranks or nodes.
fn in_range(name: &str, value: &str) -> Result<u32, Failure> {
    let number = value.parse().ok().filter(|number| (1..=MOST_RANKS).contains(number));
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong(format!("`{name}` is {value}, it takes 1..={MOST_RANKS}")))
}

fn flag(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(wrong(format!("`{name}` is 0 or 1, not `{value}`"))),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|_| wrong(format!("`{name}` takes a number, not `{value}`")))
}

/// The kernels of a buffer whose kernels come from `source`.
pub(crate) fn emit(
    source: &dyn Emit,
    options: &BufferOptions,
    pipelines: &[StandardPipeline],
    ranks: usize,
    arch: Arch,
) -> Result<Vec<Emitted>, Failure> {
    let emit = |pipeline: StandardPipeline, stripes: Option<i64>| {
        let config = options.config_of(pipeline, ranks, arch, stripes).map_err(failed)?;
        source.emit(pipeline, &config).map_err(failed)
    };
    // The stripes of the dispatch are those of the others.
    let dispatch = emit(StandardPipeline::NvlDispatch, None)?;
    let stripes = dispatch.plan.numbers.get("stripes").copied();
    pipelines.iter().map(|pipeline| emit(*pipeline, stripes)).collect()
}

/// Refuses what no buffer for so many ranks can be made of.
pub(crate) fn checked(options: &BufferOptions, ranks: usize) -> Result<(), Failure> {
    MemoryUsage::of(options, ranks, Arch::Sm90a, &BuiltIn).map(drop).map_err(unfit)
}

/// An option that no buffer can be made with.
pub(crate) fn unfit(error: CallError) -> Failure {
    match error {
        CallError::Mismatch { .. } | CallError::TooLarge { .. } => wrong(error.to_string()),
        other => failed(other),
    }
}

/// Refuses a problem whose rows alone this machine cannot hold: the rows of all ranks as they are
/// brought, in the memory of the rank, and as they have to come.
pub(crate) fn fits_here(options: &BufferOptions, ranks: usize) -> Result<(), Failure> {
    let values = [ranks, options.tokens, options.hidden].map(|number| number as u128);
    let need = 3 * 2 * values.iter().product::<u128>();
    match memory_here() {
        Some(have) if need > u128::from(have) => Err(Failure::Failed(format!(
            "the rows of {ranks} ranks take {} GiB, and this machine has {} GiB left",
            need.div_ceil(1 << 30),
            have >> 30
        ))),
        _ => Ok(()),
    }
}

/// Bytes that this machine has left; none where it does not say.
fn memory_here() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The kinds of memory of a buffer, as objects name them, and their bytes on each rank.
pub(crate) fn memory_parts(usage: &MemoryUsage) -> [(&'static str, u64); 5] {
    let MemoryUsage { control, outputs, combine_inputs, tables, host } = *usage;
    [
        ("control", control),
        ("outputs", outputs),
        ("combine_inputs", combine_inputs),
        ("tables", tables),
        ("host", host),
    ]
}

/// A call that failed, with the exit code of its kind.
pub(crate) fn failed(error: CallError) -> Failure {
    match error {
        CallError::Plan(error) => refused(error),
        other => Failure::Failed(other.to_string()),
    }
}

/// A machine that failed.
pub(crate) fn no_machine(error: BackendError) -> Failure {
    Failure::Failed(error.to_string())
}

/// The GPUs of this machine, shared if there are fewer than ranks.
pub(crate) fn gpus(ranks: usize) -> Result<Arc<GpuBackend>, Failure> {
    let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let options = GpuOptions::spread(ranks).map_err(no_machine)?;
    let nvrtc = Nvrtc::find().map_err(|error| text(&error))?;
    let cache = Cache::at(None).map_err(|error| text(&error))?;
    let backend = GpuBackend::new(&options, compile_with(Arc::new(Jit::new(nvrtc, cache))));
    Ok(Arc::new(backend.map_err(no_machine)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(set: &[(&str, &str)]) -> Result<BufferOptions, String> {
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let problem = Problem {
            ranks: None,
            nodes: None,
            tokens: Some(9),
            set: set.collect(),
            kernels: Kernels::Chosen,
        };
        problem.options(reference_options()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn names_reach_the_pipelines_that_have_them() {
        let made = options(&[("hidden", "256"), ("via", "ring"), ("depth", "32")]).unwrap();
        assert_eq!((made.hidden, made.via, made.tokens), (256, Via::Ring, 9));
        let depths = (made.tunes.nvl_dispatch.depth, made.tunes.nvl_combine.depth);
        assert_eq!(depths, (Some(32), Some(32)));
        let made = options(&[("nvl-combine.stages", "4"), ("stripes", "8")]).unwrap();
        let stages = (made.tunes.nvl_dispatch.stages, made.tunes.nvl_combine.stages);
        assert_eq!(stages, (None, Some(4)));
        let stripes = (made.tunes.nvl_dispatch.stripes, made.tunes.nvl_combine.stripes);
        assert_eq!(stripes, (Some(8), None));
    }

    #[test]
    fn wrong_names_and_values_are_named() {
        let error = options(&[("depht", "32")]).unwrap_err();
        assert!(
            error.starts_with("error: `depht` does not exist; choose one of hidden"),
            "{error}"
        );
        assert!(error.contains("chunk, depth"), "{error}");
        assert!(error.ends_with("; did you mean `depth`?"), "{error}");
        let error = options(&[("depth", "deep")]).unwrap_err();
        assert_eq!(error, "error: `depth` takes a number, not `deep`");
        let error = options(&[("topk", "many")]).unwrap_err();
        assert_eq!(error, "error: `topk` takes a number, not `many`");
        let error = options(&[("payload", "fp4")]).unwrap_err();
        assert_eq!(
            error,
            "error: `payload` is one of bf16, fp8, fp8-packed, not `fp4`; did you mean `fp8`?"
        );
    }
}

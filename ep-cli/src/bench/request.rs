//! What the command line of `bench` asks for.

mod effects;
mod of_pipeline;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ep_runtime::buffer::{BufferOptions, CallOptions, Payload};
use ep_runtime::gpu::Sharing;
use ep_runtime::net::{Carrier, NetOptions};
use ep_verify::selftest::{Case, Mode, Operation, Repeats, Way};

use super::routing::RoutingName;
use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::machine::{GpuRequest, Machine, Perturb, SharingName};
use crate::numbers::{count, millis, positive};
use crate::problem::{Problem, checked, fits_here, taken};
use crate::processes;
use crate::selection::assignment;
use crate::suggestion::did_you_mean;
use crate::wire::{Joint, Net};

/// Tokens per rank of the published shape, and of a run on the host.
const TOKENS: usize = 4096;
const HOST_TOKENS: usize = 8;

/// Most tokens of a low-latency call, and tokens per rank without a word about them.
const MOST_FEW_TOKENS: usize = 8192;
const FEW_TOKENS: usize = 128;

/// Longest wait of a kernel.
const TIMEOUT_MS: u64 = 5000;

/// All options but the two that draw results.
const MEASURES: [&str; 30] = [
    "pipeline",
    "backend",
    "ranks",
    "nodes",
    "kind",
    "devices",
    "processes",
    "kill",
    "tokens",
    "routing",
    "kernels",
    "graph",
    "low_latency",
    "payload",
    "set",
    "capacity",
    "live",
    "op",
    "mode",
    "sms",
    "combine_sms",
    "iterations",
    "warmup",
    "random",
    "probe",
    "timeout_ms",
    "cooperative",
    "sharing",
    "perturb",
    "seed",
];

/// Options of `bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = crate::problem::PROBLEM_HELP)]
pub(crate) struct Options {
    /// A pipeline to time by itself, on inputs drawn from its declaration: calls in a loop and in graphs. Without a
    /// name, the calls of a buffer are timed
    #[arg(conflicts_with_all = ["nodes", "kind", "low_latency", "routing", "payload", "capacity", "live", "op", "mode", "combine_sms", "random", "outputs", "kill", "chart", "draw"])]
    pub(crate) pipeline: Option<String>,
    /// Where calls run; on the host every call is checked and none is timed
    #[arg(long, value_enum, default_value_t = Machine::Gpu)]
    pub(crate) backend: Machine,
    /// Number of ranks, assigned to the GPUs in turn; by default the number of GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    /// Time calls between this many nodes instead, which the ranks are divided into. By default over network cards that
    /// are kernels: each node is on one GPU, and nodes take the GPUs in turn. Over libfabric, such as --net shm, each
    /// node is a process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64), conflicts_with_all = ["devices", "random", "outputs", "chart", "cooperative"])]
    nodes: Option<u32>,
    #[command(flatten)]
    net: Net,
    /// GPU of each rank; ranks may share a GPU
    #[arg(long, value_name = "GPU", value_delimiter = ',', conflicts_with = "ranks")]
    devices: Option<Vec<i32>>,
    /// Start one process per rank
    #[arg(long, conflicts_with_all = ["cooperative", "sharing"])]
    pub(crate) processes: bool,
    /// Kill the process of this rank while calls run. The others must name the rank and, if there is one node, continue in
    /// a new group
    #[arg(long, value_name = "RANK", requires = "processes", conflicts_with_all = ["graph", "op", "mode", "iterations", "warmup", "random", "probe", "outputs", "chart"])]
    pub(crate) kill: Option<usize>,
    /// Tokens of every rank, one run per value; `9/4/0` gives the tokens of each rank
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = token_counts)]
    tokens: Vec<TokenCounts>,
    /// Where tokens go, one run per value: even, zipf:EXPONENT, or hot:SHARE of the entries to rank 0. +absent:SHARE
    /// sets entries to -1; +repeated:SHARE makes entries repeat another entry of their token
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["even"], value_parser = RoutingName::parse)]
    routing: Vec<RoutingName>,
    #[arg(long, value_enum, default_value_t, help = Kernels::HELP)]
    pub(crate) kernels: Kernels,
    /// Capture N calls in a graph, and replay the graph
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) graph: Option<u32>,
    /// Time low-latency calls instead: dispatch, combine and both, in graphs. Rows are cast on the way and travel
    /// per-expert, or once per-rank. Every token has the maximum number of experts, spread evenly
    #[arg(long, value_name = "WAY", value_parser = way, num_args = 0..=1, default_missing_value = "per-expert", requires = "graph", conflicts_with_all = ["routing", "kernels", "capacity", "live", "combine_sms", "random", "outputs", "kill"])]
    low_latency: Option<Way>,
    /// Element type of rows
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = payload, default_values = ["bf16", "fp8"])]
    payload: Vec<Payload>,
    /// A number of the shape, a variant, or a tune
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Rows that an output holds; the worst case by default
    #[arg(long, value_name = "ROWS", value_parser = count)]
    capacity: Option<usize>,
    /// Number of outputs in use at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
    live: usize,
    /// Run only these operations
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = operation)]
    op: Vec<Operation>,
    /// Run only these modes: loop, calls back to back; iso, one call after all ranks have met
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = mode)]
    mode: Vec<Mode>,
    /// SMs of a call, one run per value; by default chosen from the machine's rates
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..))]
    sms: Vec<u32>,
    /// SMs of a combine; by default those of the call
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    combine_sms: Option<u32>,
    /// Timed calls, or replays of a graph; 0: check only
    #[arg(long, value_name = "N", value_parser = count)]
    iterations: Option<usize>,
    /// Number of calls before the timed ones
    #[arg(long, value_name = "N", value_parser = count)]
    warmup: Option<usize>,
    /// Check this many small random problems first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count)]
    pub(crate) random: usize,
    /// Whether to test first that ranks reach each other; by default yes, if they are on one node
    #[arg(long, value_enum)]
    probe: Option<Probe>,
    /// Longest wait of a kernel on GPUs; 5000 by default
    #[arg(long, value_name = "MS", value_parser = millis)]
    timeout_ms: Option<u64>,
    /// Whether launches are cooperative; by default they are unless ranks share a GPU
    #[arg(long, value_name = "BOOL")]
    cooperative: Option<bool>,
    /// How GPUs of one process reach each other's windows; by default mapped
    #[arg(long, value_enum)]
    sharing: Option<SharingName>,
    #[command(flatten)]
    perturb: Perturb,
    /// Seed for routing and values, and on the host for the schedule; 1 by default
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Print a digest of all outputs of each rank
    #[arg(long)]
    pub(crate) outputs: bool,
    /// Draw times against SMs into this SVG file; times of graphs are drawn against tokens
    #[arg(long, value_name = "SVG")]
    pub(crate) chart: Option<PathBuf>,
    /// Measure nothing; draw these results
    #[arg(long, value_name = "JSONL", requires = "chart", conflicts_with_all = MEASURES)]
    pub(crate) draw: Option<PathBuf>,
}

/// Whether to test first that ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Test, then continue
    Yes,
    /// Do not test
    No,
    /// Test, then end
    Only,
}

fn payload(text: &str) -> Result<Payload, String> {
    Payload::from_name(text).ok_or_else(|| none_of(text, &Payload::ALL.map(Payload::name)))
}

fn none_of(text: &str, names: &[&str]) -> String {
    let hint = did_you_mean(text, names.iter().copied());
    format!("it is not one of {}{hint}", names.join(", "))
}

fn operation(text: &str) -> Result<Operation, String> {
    let found = Operation::ALL.into_iter().find(|operation| operation.name() == text);
    found.ok_or_else(|| none_of(text, &Operation::ALL.map(Operation::name)))
}

fn way(text: &str) -> Result<Way, String> {
    let found = Way::ALL.into_iter().find(|way| way.name() == text);
    found.ok_or_else(|| none_of(text, &Way::ALL.map(Way::name)))
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = [Mode::Loop, Mode::Iso].into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "it is neither loop nor iso".to_owned())
}

/// Tokens of all ranks alike, or of each.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TokenCounts(Vec<usize>);

fn token_counts(text: &str) -> Result<TokenCounts, String> {
    let counts = text.split('/').map(str::parse).collect::<Result<Vec<usize>, _>>();
    counts
        .map(TokenCounts)
        .map_err(|_| "it is neither a number of tokens nor a list such as 9/4/0".to_owned())
}

impl TokenCounts {
    fn of_ranks(&self, ranks: usize) -> Result<Vec<usize>, Failure> {
        match self.0[..] {
            [one] => Ok(vec![one; ranks]),
            _ if self.0.len() == ranks => Ok(self.0.clone()),
            _ => {
                let count = self.0.len();
                Err(Failure::WrongUse(format!("{count} token counts for {ranks} ranks")))
            }
        }
    }
}

/// Tokens of each rank, and where they go.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) tokens: Vec<usize>,
    pub(crate) routing: RoutingName,
}

/// What to run, with nothing left open.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) gpus: GpuRequest,
    pub(crate) batches: Vec<Batch>,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) modes: Vec<Mode>,
    pub(crate) repeats: Repeats,
    pub(crate) seed: u64,
    /// How rows of low-latency calls travel, if those are timed.
    pub(crate) low_latency: Option<Way>,
    sms: Vec<u32>,
    combine_sms: Option<u32>,
    options: BufferOptions,
}

/// SMs of the calls of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sms {
    pub(crate) dispatch: CallOptions,
    pub(crate) combine: CallOptions,
}

impl Options {
    /// Whether to test first that ranks reach each other.
    pub(crate) fn probe(&self) -> Probe {
        self.probe.unwrap_or(Probe::Yes)
    }

    /// The seed for routing and values.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// How many ranks there are, if the command line says so; takes the number from `set`.
    fn asked_ranks(&self, set: &mut Vec<(String, String)>) -> Result<Option<usize>, Failure> {
        let asked = taken(set, "ranks", self.ranks)?;
        if self.devices.is_some() && asked.is_some() {
            let what = "`--devices` gives the number of ranks, so `ranks` has no effect";
            return Err(Failure::WrongUse(what.to_owned()));
        }
        let devices = self.devices.as_ref().map(Vec::len);
        Ok(devices.or(asked.map(|ranks| ranks as usize)))
    }

    /// The tokens of each rank, with each routing.
    fn batches(&self, ranks: usize) -> Result<Vec<Batch>, Failure> {
        let usual = match (self.backend, self.low_latency) {
            (Machine::Host, _) => HOST_TOKENS,
            (Machine::Gpu, Some(_)) => FEW_TOKENS,
            (Machine::Gpu, None) => TOKENS,
        };
        let usual = [TokenCounts(vec![usual])];
        let counts = if self.tokens.is_empty() { &usual[..] } else { &self.tokens[..] };
        let mut batches = Vec::new();
        for counts in counts {
            let tokens = counts.of_ranks(ranks)?;
            let of = |routing: &RoutingName| (tokens.clone(), routing.clone());
            let made = self.routing.iter().map(of);
            batches.extend(made.map(|(tokens, routing)| Batch { tokens, routing }));
        }
        match self.low_latency {
            Some(_) => Self::for_low_latency(batches),
            None => Ok(batches),
        }
    }

    /// Refuses tokens that low-latency calls do not have.
    fn for_low_latency(batches: Vec<Batch>) -> Result<Vec<Batch>, Failure> {
        let wrong = |what: String| Err(Failure::WrongUse(what));
        for Batch { tokens, .. } in &batches {
            if let Some(most) = tokens.iter().find(|count| **count > MOST_FEW_TOKENS) {
                let most_few = MOST_FEW_TOKENS;
                return wrong(format!(
                    "low-latency calls take at most {most_few} tokens, not {most}"
                ));
            }
            if tokens.iter().any(|count| *count != tokens[0]) {
                let what =
                    "low-latency calls are timed with the same number of tokens on every rank";
                return wrong(what.to_owned());
            }
        }
        Ok(batches)
    }

    /// How many nodes there are, and what carries rows between them, if calls between nodes are timed. No carrier: models
    /// of cards in one emulator.
    pub(crate) fn nodes(&self) -> Result<Option<(usize, Option<Carrier>)>, Failure> {
        let wrong = |what: &str| Err(Failure::WrongUse(what.to_owned()));
        let Some(nodes) = self.nodes else {
            return match self.net.is_given() {
                true => wrong("`--net` connects nodes: give their number, such as `--nodes 2`"),
                false => Ok(None),
            };
        };
        let is_one_emulator = self.backend == Machine::Host && !self.processes;
        let over = match (self.net.cards(), self.net.joint()) {
            (_, Some(Joint::Fabric(provider))) => Some(NetOptions::of_group(*provider).into()),
            (None, None) if !self.net.is_given() && is_one_emulator => None,
            (Some(_), _) if is_one_emulator => {
                return wrong(
                    "`--net card` works only on GPUs and with `--processes`: in one emulator, cards are models",
                );
            }
            (None, joint) if self.net.is_given() => {
                let name = joint.map_or("model".to_owned(), Joint::to_string);
                return wrong(&format!(
                    "between nodes, `bench` times calls over card, tcp, shm, verbs or efa, not `{name}`"
                ));
            }
            (cards, _) => Some(Carrier::Card(cards.cloned().unwrap_or_default())),
        };
        Ok(Some((nodes as usize, over)))
    }

    /// The request on a machine with `found` GPUs.
    pub(crate) fn request(&self, found: usize) -> Result<Request, Failure> {
        let on_host = self.backend == Machine::Host;
        self.have_effect()?;
        let fewest = self.nodes.unwrap_or(1) as usize;
        let usual = if on_host { 2.max(fewest) } else { found.max(fewest) };
        let mut set = self.set.clone();
        let ranks = self.asked_ranks(&mut set)?.unwrap_or(usual);
        if let Some(nodes) = self.nodes.filter(|nodes| !ranks.is_multiple_of(*nodes as usize)) {
            let what =
                format!("{ranks} ranks cannot form {nodes} nodes with the same number of ranks");
            return Err(Failure::WrongUse(what));
        }
        let batches = self.batches(ranks)?;
        if let Some(killed) = self.kill.filter(|killed| *killed >= ranks) {
            return Err(Failure::WrongUse(format!(
                "rank {killed} does not exist: there are {ranks} ranks"
            )));
        }
        let problem = Problem {
            ranks: Some(ranks as u32),
            nodes: None,
            tokens: None,
            set,
            kernels: self.kernels,
        };
        let mut options = crate::problem::reference_options();
        (options.one_launch, options.push_combine) = (None, None);
        options = problem.options(options)?;
        self.numbers_have_effect(&problem.set)?;
        options.capacity = self.capacity;
        // Each call of a graph keeps an output, beside those of the calls before and after.
        options.live = self.live.max(self.graph.map_or(0, |calls| calls as usize + 2));
        let most = batches.iter().flat_map(|batch| &batch.tokens).copied().max().unwrap_or(0);
        let largest = BufferOptions { tokens: most, ..options.clone() };
        checked(&largest, ranks)?;
        if on_host {
            fits_here(&largest, ranks)?;
        }
        let [iterations, warmup] = match (on_host, self.graph) {
            (true, _) => [2, 1],
            (false, None) => [50, 10],
            (false, Some(_)) => [1000, 20],
        };
        Ok(Request {
            gpus: self.gpu_request(ranks),
            batches,
            payloads: self.payload.clone(),
            operations: self.operations()?,
            modes: if self.mode.is_empty() {
                vec![Mode::Loop, Mode::Iso]
            } else {
                self.mode.clone()
            },
            repeats: Repeats {
                iterations: self.iterations.unwrap_or(iterations),
                warmup: self.warmup.unwrap_or(warmup),
                graph: self.graph,
            },
            seed: self.seed(),
            low_latency: self.low_latency,
            sms: self.sms.clone(),
            combine_sms: self.combine_sms,
            options,
        })
    }

    /// Those that were asked for, or all that can be timed so.
    fn operations(&self) -> Result<Vec<Operation>, Failure> {
        let waits = |operation: &Operation| {
            self.graph.is_some() && *operation == Operation::DispatchCounted
        };
        if self.op.iter().any(waits) {
            let what = "a graph cannot contain a dispatch whose counts the host waits for: leave out \
            `dispatch-counted` or `--graph`";
            return Err(Failure::WrongUse(what.to_owned()));
        }
        if self.nodes.is_some() {
            return self.operations_between();
        }
        let is_known =
            |operation: &Operation| self.low_latency.is_none() || operation.is_of_few_tokens();
        if let Some(operation) = self.op.iter().find(|operation| !is_known(operation)) {
            let what = format!(
                "low-latency calls have no `{}`: time dispatch, combine or both",
                operation.name()
            );
            return Err(Failure::WrongUse(what));
        }
        match self.op[..] {
            [] => Ok(Operation::ALL.into_iter().filter(|it| !waits(it) && is_known(it)).collect()),
            _ => Ok(self.op.clone()),
        }
    }

    /// Those between nodes.
    fn operations_between(&self) -> Result<Vec<Operation>, Failure> {
        let all = match self.low_latency {
            Some(_) => &[Operation::Dispatch, Operation::Combine][..],
            None => &[Operation::Dispatch, Operation::CachedDispatch, Operation::Combine][..],
        };
        if let Some(operation) = self.op.iter().find(|operation| !all.contains(operation)) {
            let names: Vec<&str> = all.iter().map(|operation| operation.name()).collect();
            let (name, names) = (operation.name(), names.join(", "));
            let what = format!("`{name}` cannot run between nodes: time {names}");
            return Err(Failure::WrongUse(what));
        }
        Ok(if self.op.is_empty() { all.to_vec() } else { self.op.clone() })
    }

    fn gpu_request(&self, ranks: usize) -> GpuRequest {
        GpuRequest {
            ranks,
            devices: self.devices.clone(),
            is_member: self.processes && processes::is_member(),
            sharing: match self.sharing {
                None | Some(SharingName::Mapped) => Sharing::Mapped,
                Some(SharingName::Peer) => Sharing::PeerAccess,
            },
            cooperative: self.cooperative,
            kept_sms: 0,
            timeout: Duration::from_millis(self.timeout_ms.unwrap_or(TIMEOUT_MS)),
            leaves_out_absent: false,
            perturb: self.perturb.seed,
        }
    }
}

impl Request {
    /// What a buffer for `payload` is made for.
    pub(crate) fn buffer(&self, payload: Payload, batch: &Batch) -> BufferOptions {
        let tokens = batch.tokens.iter().copied().max().unwrap_or(0);
        BufferOptions { payload, tokens, ..self.options.clone() }
    }

    /// The problem with rows of one kind.
    pub(crate) fn case(&self, options: BufferOptions, batch: &Batch, sms: Sms) -> Case {
        Case {
            tokens: batch.tokens.clone(),
            routing: batch.routing.options(&options, self.gpus.ranks),
            dispatch: sms.dispatch,
            combine: sms.combine,
            seed: self.seed,
            options,
        }
    }

    /// The numbers of SMs to run with, none above what a rank may fill: `share`. Without any,
    /// `tuned` SMs.
    pub(crate) fn sweep(&self, share: u32, tuned: u32) -> Vec<Sms> {
        let sms = if self.sms.is_empty() { vec![tuned] } else { self.sms.clone() };
        let mut sms: Vec<u32> = sms.into_iter().map(|sms| sms.min(share.max(1))).collect();
        sms.dedup();
        let both = |sms: u32| Sms {
            dispatch: CallOptions::sms(sms),
            combine: CallOptions::sms(self.combine_sms.unwrap_or(sms).min(share.max(1))),
        };
        sms.into_iter().map(both).collect()
    }

    /// The request of a group that has lost one rank. The others keep their GPUs, wherever those
    /// came from.
    pub(crate) fn without(&self, rank: usize, count: usize) -> Request {
        let mut fewer = self.clone();
        let devices = (0..self.gpus.ranks).filter(|own| *own != rank);
        fewer.gpus.devices = Some(devices.map(|own| self.gpus.device(own, count)).collect());
        fewer.gpus.ranks -= 1;
        for batch in &mut fewer.batches {
            batch.tokens.remove(rank);
        }
        fewer
    }

    /// A small problem of any shape; the same one for the same seed and index.
    pub(crate) fn random_case(&self, index: usize, share: u32) -> Case {
        let seed = self.seed.wrapping_add(index as u64);
        let mut case = Case::random(self.gpus.ranks, seed, share);
        case.options.via = self.options.via;
        case.options.tunes = self.options.tunes;
        case
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn request(line: &str) -> Result<Request, String> {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.options.request(4).map_err(|failure| failure.to_string())
    }

    #[test]
    fn one_token_count_is_for_all_ranks() {
        let made = request("--ranks 3 --tokens 7 --set hidden=64 --set experts=9").unwrap();
        assert_eq!(made.batches[0].tokens, [7, 7, 7]);
        let options = made.buffer(Payload::Fp8, &made.batches[0]);
        assert_eq!((options.tokens, options.hidden, options.live), (7, 64, 2));
        let case = made.case(options, &made.batches[0], made.sweep(132, 12)[0]);
        assert_eq!((case.routing.experts, case.dispatch.sms), (9, Some(12)));
        assert_eq!(request("").unwrap().gpus.ranks, 4, "as many as there are GPUs");
        assert_eq!(request("--devices 0,0").unwrap().gpus.ranks, 2);
        assert_eq!(request("--perturb 9").unwrap().gpus.perturb, Some(9));
    }

    #[test]
    fn low_latency_calls_may_be_drawn() {
        let made = request("--low-latency --graph 4 --chart few.svg").unwrap();
        assert_eq!(made.low_latency, Some(Way::PerExpert));
    }

    #[test]
    fn a_sweep_stays_within_the_share_of_a_rank() {
        let made = request("--sms 8,16,200,300 --combine-sms 24").unwrap();
        let sweep = made.sweep(132, 12);
        let sms: Vec<u32> = sweep.iter().filter_map(|sms| sms.dispatch.sms).collect();
        assert_eq!(sms, [8, 16, 132]);
        assert!(sweep.iter().all(|it| it.combine.sms == Some(24)));
    }

    #[test]
    fn wrong_words_are_named() {
        for (line, part) in [
            ("--ranks 2 --tokens 1/2/3", "3 token counts for 2 ranks"),
            ("--tokens 1/x", "it is neither a number of tokens nor a list such as 9/4/0"),
            ("--routing evn", "it is not even, zipf:EXPONENT or hot:SHARE"),
            ("--graph 0", "0 is not in 1..=64"),
            ("--graph 4 --op both,dispatch-counted", "leave out `dispatch-counted`"),
            ("--payload fp4", "it is not one of bf16, fp8, fp8-packed"),
            ("--op speed", "it is not one of dispatch, dispatch-counted, counts"),
            ("--mode fast", "it is neither loop nor iso"),
            ("--ranks 2 --kill 2 --processes", "rank 2 does not exist: there are 2"),
            ("--kill 1", "--processes"),
            ("--set depht=3", "`depht` does not exist"),
            ("--draw a.jsonl", "--chart"),
            ("--low-latency", "--graph <N>"),
            ("--graph 4 --low-latency per-token", "it is not one of per-expert, per-rank"),
            ("--low-latency --graph 4 --routing even", "cannot be used with"),
            ("--low-latency --graph 4 --op counts", "low-latency calls have no `counts`"),
            (
                "--low-latency --graph 4 --tokens 3/4 --ranks 2",
                "the same number of tokens on every rank",
            ),
            ("--low-latency --graph 4 --tokens 9000", "at most 8192 tokens"),
            ("--backend host --perturb 3", "`--perturb` is for `--backend gpu`"),
            ("--perturb x", "--perturb <SEED>"),
        ] {
            let error = request(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        let conflict = "cannot be used with";
        let far = "between nodes, `via` has no effect";
        for (line, part) in [
            ("layout --net card", conflict),
            ("--draw a.jsonl --chart a.svg --nodes 2", conflict),
            ("--draw a.jsonl --chart a.svg --seed 1", conflict),
            ("--nodes 2 --cooperative true", conflict),
            ("--nodes 2 --probe only", "between nodes, `--probe` has no effect"),
            ("--nodes 2 --set via=ring", far),
            ("--nodes 2 --set nvl-dispatch.stages=4", "`nvl-dispatch.stages` has no effect"),
            ("--set node-dispatch.stages=4", "within one node, `node-dispatch.stages` has"),
            ("--set rdma_depth=64", "within one node, `rdma_depth` has no effect"),
            ("--set payload=fp8", "use `--payload`"),
            ("--processes --sharing peer", conflict),
            ("--processes --kill 1 --graph 4", conflict),
            ("--processes --kill 1 --op dispatch", conflict),
            ("--processes --kill 1 --probe no", conflict),
            ("--processes --kill 1 --sms 8,16", "take one value each"),
            ("--low-latency --graph 4 --kernels cut", conflict),
            ("--low-latency --graph 4 --live 3", conflict),
            ("--low-latency --graph 4 --seed 3", "`--seed` has no effect"),
            ("--low-latency --graph 4 --set via=ring", "`via` has no effect"),
            ("--low-latency --graph 4 --nodes 2 --set stages=4", "`stages` has no effect"),
            ("--backend host --sharing peer", "`--sharing` has no effect on the host"),
            ("--backend host --timeout-ms 9", "`--timeout-ms` has no effect on the host"),
        ] {
            let error = request(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
        for line in [
            "--nodes 2 --set node-dispatch.stages=4 --set bias=1 --kernels cut --graph 4",
            "--set nvl-dispatch.stages=4 --set via=direct --kernels cut --graph 4",
            "--low-latency --graph 4 --nodes 2 --set hidden=128 --set topk=2 --set experts=4",
            "--low-latency --graph 4 --backend host --tokens 2 --seed 3",
        ] {
            request(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn survivors_keep_their_gpus() {
        let fewer = request("--ranks 4 --tokens 1/2/3/4").unwrap().without(1, 4);
        assert_eq!(fewer.gpus.devices, Some(vec![0, 2, 3]));
        assert_eq!(fewer.batches[0].tokens, [1, 3, 4]);
    }

    #[test]
    fn every_token_count_meets_every_routing() {
        let made = request("--ranks 2 --tokens 1,9/4 --routing even,hot:0.9+absent:0.1").unwrap();
        let found: Vec<(&[usize], &str)> =
            made.batches.iter().map(|it| (&it.tokens[..], it.routing.text())).collect();
        let hot = "hot:0.9+absent:0.1";
        let want: [(&[usize], &str); 4] =
            [(&[1, 1], "even"), (&[1, 1], hot), (&[9, 4], "even"), (&[9, 4], hot)];
        assert_eq!(found, want);
        assert_eq!(made.buffer(Payload::Bf16, &made.batches[2]).tokens, 9);
    }

    #[test]
    fn a_graph_has_outputs_for_its_calls_and_no_waits() {
        let made = request("--graph 8 --tokens 4").unwrap();
        assert_eq!(made.buffer(Payload::Bf16, &made.batches[0]).live, 10);
        assert!(!made.operations.contains(&Operation::DispatchCounted));
        assert!(made.operations.contains(&Operation::Both));
        assert_eq!(made.repeats, Repeats { iterations: 1000, warmup: 20, graph: Some(8) });
    }
}

//! `epforge demo --nodes 2`: a process for each node, whose ranks are in its emulator. Rows take two hops to
//! the ranks of their experts and come back, and few rows one, through libfabric from process to process.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ep_runtime::AnyPipeline;
use ep_runtime::backend::Backend;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_runtime::join::{ID_VARIABLE, Member, Store, UniqueId};
use ep_runtime::net::{Fabric, NetOptions, NetPart, Network, Provider};
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, NodeCombine, NodeDispatch, NodeNotify,
};
use ep_verify::declared::Declared;

use super::Talk;
use crate::declared::{Calls, ROUNDS, Subject};
use crate::failure::Failure;
use crate::problem::{Problem, failed, no_machine};
use crate::program;

/// Ranks of a node.
const LOCAL_RANKS: usize = 2;
const TOKENS: usize = 24;
const SEED: u64 = 1;

/// How long processes wait for one another: the slowest may have to compile first.
const DEADLINE: Duration = Duration::from_secs(120);

/// What is shown: pipelines with settings.
type Settings = &'static [(&'static str, &'static str)];
const CASES: [(AnyPipeline, Settings); 6] = [
    (AnyPipeline::of::<NodeNotify>(), &[STRIPES]),
    (AnyPipeline::of::<NodeDispatch>(), &[("payload", "bf16"), ("mode", "fresh"), HIDDEN, STRIPES]),
    (AnyPipeline::of::<NodeDispatch>(), &[("payload", "fp8"), ("mode", "cached"), HIDDEN, STRIPES]),
    (AnyPipeline::of::<NodeCombine>(), &[HIDDEN, STRIPES]),
    (AnyPipeline::of::<LowLatencyDispatch>(), &[("payload", "fp8"), HIDDEN, MAX_TOKENS]),
    (AnyPipeline::of::<LowLatencyCombine>(), &[HIDDEN, MAX_TOKENS]),
];
const MAX_TOKENS: (&str, &str) = ("max_tokens", "24");
const HIDDEN: (&str, &str) = ("hidden", "512");
const STRIPES: (&str, &str) = ("stripes", "4");

/// Options of a demo over nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Nodes {
    /// A process for each of so many nodes, with rows between them through libfabric
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub(crate) nodes: Option<u32>,
    /// What libfabric is to use
    #[arg(long, value_name = "libfabric:PROVIDER", default_value = "libfabric:tcp", value_parser = provider, requires = "nodes")]
    net: Provider,
    /// Silence of a peer after which it is given up, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600), requires = "nodes")]
    silence: u64,
    /// Be this node, of those that the address in EPFORGE_ID brings together
    #[arg(long, value_name = "I", requires = "nodes")]
    node: Option<u32>,
    /// The address of this node, which chooses the device
    #[arg(long, value_name = "ADDRESS", requires = "node")]
    source: Option<IpAddr>,
}

fn provider(text: &str) -> Result<Provider, String> {
    match text.strip_prefix("libfabric:") {
        Some(name) => name.parse(),
        None => Err(format!("`{text}` is no network between processes: `libfabric:tcp` is")),
    }
}

/// Runs it with `nodes` nodes.
pub(super) fn run(options: &Nodes, nodes: usize, talk: &mut Talk<'_>) -> Result<(), Failure> {
    let Some(node) = options.node else { return start(options, nodes, talk) };
    if node as usize >= nodes {
        return Err(Failure::WrongUse(format!("there is no node {node} of {nodes}")));
    }
    let id = UniqueId::from_environment().map_err(|error| Failure::Failed(error.to_string()))?;
    Node { options, nodes, node: node as usize }.run(&id, talk)
}

/// Starts a process for each node, and waits for all of them.
fn start(options: &Nodes, nodes: usize, talk: &mut Talk<'_>) -> Result<(), Failure> {
    let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let fabric = Fabric::find().map_err(|error| text(&error))?;
    fabric.offers(options.net, None).map_err(|error| text(&error))?;
    let id = UniqueId::local().map_err(|error| text(&error))?;
    let begun = Instant::now();
    talk.say(&format!(
        "{nodes} nodes of {LOCAL_RANKS} ranks, a process each, over libfabric:{}",
        options.net
    ))?;
    let mut children = Vec::new();
    for node in 0..nodes {
        let mut command = program::again().map_err(|error| text(&error))?;
        command.args(program::words()).args(["--node", &node.to_string()]);
        match node {
            0 => id.hand_to(&mut command, ID_VARIABLE),
            _ => id.give_to(&mut command, ID_VARIABLE),
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        children.push(command.spawn().map_err(|error| text(&error))?);
    }
    // Each is read to its end by a thread of its own, so that none waits for room in a pipe.
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(move || child.wait_with_output()))
        .collect();
    let mut wrong = Vec::new();
    for (node, reader) in readers.into_iter().enumerate() {
        let output = reader.join().map_err(|_| text(&"a reader of a process panicked"))?;
        let output = output.map_err(|error| text(&error))?;
        write!(talk.out, "{}", String::from_utf8_lossy(&output.stdout))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            wrong.push(format!("node {node} ({}): {}", output.status, said.trim_end()));
        }
    }
    let verdict = if wrong.is_empty() { "ok" } else { "failed" };
    let seconds = begun.elapsed().as_secs_f64();
    talk.end(&format!("demo {verdict}: {nodes} nodes of {LOCAL_RANKS} ranks, in {seconds:.1} s"))?;
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(wrong.join("\n"))),
    }
}

/// One node.
struct Node<'a> {
    options: &'a Nodes,
    nodes: usize,
    node: usize,
}

impl Node<'_> {
    /// Makes the calls of this node's ranks, and compares what they leave.
    fn run(&self, id: &UniqueId, talk: &mut Talk<'_>) -> Result<(), Failure> {
        let programs = Programs::find().map_err(no_machine)?;
        let mut cases = Vec::new();
        for (entry, settings) in &CASES {
            let subject = Subject::new(entry, &programs)?;
            let calls = subject.calls(&self.problem(settings), Arch::Sm90a, SEED, SEED)?;
            cases.push((entry.name, subject, calls));
        }
        let first = self.node * LOCAL_RANKS;
        let local = first..first + LOCAL_RANKS;
        let host = HostOptions { build: Build::Fast, local, ..HostOptions::new(self.ranks()) };
        let backend = HostBackend::new(&programs, host).map_err(no_machine)?;
        let group = backend.group().map_err(failed)?;
        // What takes long comes before the others wait.
        for (_, _, calls) in &cases {
            for kernel in &calls.emitted.plan.kernels {
                backend.compile(kernel, &calls.emitted.cuda).map_err(no_machine)?;
            }
        }
        let (parts, bytes, counters) =
            NetPart::place(cases.iter().map(|(_, _, calls)| &calls.emitted.plan));
        let networks = self.join(id, &group, bytes, counters)?;
        talk.say(&format!("node {}: its ranks have joined", self.node))?;
        for ((name, subject, calls), part) in cases.iter().zip(parts) {
            let equal = self.compare(&group, &networks, (subject, calls), part)?;
            let ranks = group.local();
            let shape = calls.shape();
            talk.say(&format!("node {}, ranks {ranks:?}: {name}, {shape}: {equal}", self.node))?;
        }
        Ok(())
    }

    fn ranks(&self) -> usize {
        self.nodes * LOCAL_RANKS
    }

    fn problem(&self, settings: Settings) -> Problem {
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Problem {
            ranks: self.ranks() as u32,
            nodes: Some(self.nodes as u32),
            tokens: Some(TOKENS),
            set: settings.iter().map(own).collect(),
            plain: false,
        }
    }

    /// Every local rank's end of one network.
    fn join(
        &self,
        id: &UniqueId,
        group: &Group,
        data_bytes: u64,
        counters: usize,
    ) -> Result<Vec<Network>, Failure> {
        let silence = Duration::from_secs(self.options.silence);
        let options = NetOptions {
            counters,
            queues: 2,
            source: self.options.source.map(|source| source.to_string()),
            pulse: silence / 10,
            silence,
            ..NetOptions::new(self.options.net, data_bytes)
        };
        let ranks = self.ranks();
        let one = |rank: usize| {
            let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
            let store = Store::join(id, Member { rank, ranks }, DEADLINE);
            let store = store.map_err(|error| text(&error))?;
            Network::join(group, rank, &store, &options).map_err(|error| text(&error))
        };
        // Each of them waits for all others.
        std::thread::scope(|scope| {
            let joining: Vec<_> =
                group.local().map(|rank| scope.spawn(move || one(rank))).collect();
            let panicked = |_| Failure::Failed("a rank panicked while it joined".to_string());
            joining.into_iter().map(|it| it.join().map_err(panicked)?).collect()
        })
    }

    /// Makes the calls of one kernel; how much was compared.
    fn compare(
        &self,
        group: &Group,
        networks: &[Network],
        (subject, calls): (&Subject, &Calls),
        part: NetPart,
    ) -> Result<String, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
        let declared = Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &subject.functions());
        let declared = declared.map_err(|error| wrong(&error))?;
        let views = networks.iter().map(|network| network.part(part));
        let views = views.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
        let addresses: Vec<u64> = views.iter().map(|view| view.address()).collect();
        let findings =
            declared.check_over(group, calls.blocks_min(), &addresses).map_err(failed)?;
        match findings.is_good() {
            true => Ok(findings.to_string()),
            false => Err(Failure::Failed(findings.to_string())),
        }
    }
}

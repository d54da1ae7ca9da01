//! Nodes that are processes, or of a process for each rank: ranks are in emulators or on GPUs, and libfabric or
//! network cards carry rows from node to node. Each process compares what the calls of its ranks leave with what
//! their declarations mean.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ep_runtime::AnyPipeline;
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::Programs;
use ep_runtime::join::{ID_VARIABLE, Member, Store, UniqueId};
use ep_runtime::memory::DeviceMemory;
use ep_runtime::net::{
    CardNetwork, CardOptions, CardTraffic, Carrier, Fabric, NetError, NetOptions, NetPart, Network,
    Provider, ResidentNetwork, Verbs,
};
use ep_verify::declared::Declared;

use crate::declared::{CALLS, Calls, ROUNDS, Subject};
use crate::failure::Failure;
use crate::machine::{GpuRequest, Machine, Perturb, Ranks};
use crate::problem::{Problem, failed, no_machine};
use crate::program;
use crate::talk::Talk;
use crate::wire::Joint;

/// How long processes wait for one another by default.
const DEADLINE: Duration = Duration::from_secs(120);

/// The silence after which a peer is given up by default.
const SILENCE: Duration = Duration::from_secs(10);

/// Queues of each rank's network.
const QUEUES: usize = 2;

/// Options of commands whose nodes may be processes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeOptions {
    /// Give up a peer after this silence, in seconds; 10 by default
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=600), requires = "nodes")]
    silence: Option<u64>,
    /// How long a process waits for the others to join, in seconds; 120 by default. The slowest process may
    /// compile first
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400), requires = "nodes")]
    deadline: Option<u64>,
    /// Number of random calls of each kernel between node processes; each call runs twice; 3 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "nodes")]
    calls: Option<u32>,
    /// Run as this node of the group that joins at the address in EPFORGE_ID
    #[arg(long, value_name = "I", requires = "nodes")]
    node: Option<u32>,
    /// Start one process per rank instead of one per node, as torchrun does; ranks of a node share windows
    #[arg(long, requires = "nodes", conflicts_with = "node")]
    processes: bool,
    /// Run as this rank of --processes
    #[arg(long, value_name = "R", requires = "processes")]
    rank: Option<u32>,
    /// Address of this node; it selects the network device
    #[arg(long, value_name = "ADDRESS", requires = "nodes")]
    source: Option<IpAddr>,
}

impl NodeOptions {
    /// Refuses all of these options where nodes share a process.
    pub(crate) fn check_absent(&self) -> Result<(), Failure> {
        let NodeOptions { silence, deadline, calls, node, processes, rank, source } = self;
        let given = [
            ("silence", silence.is_some()),
            ("deadline", deadline.is_some()),
            ("calls", calls.is_some()),
            ("node", node.is_some()),
            ("processes", *processes),
            ("rank", rank.is_some()),
            ("source", source.is_some()),
        ];
        refuse_given(&given, "without processes that a network connects: add `--net libfabric:tcp`")
    }

    /// Refuses all of these options but `calls` where cards that are kernels join the nodes.
    pub(crate) fn check_cards(&self) -> Result<(), Failure> {
        NodeOptions { calls: None, ..self.clone() }.check_absent()
    }

    /// How many random calls of each kernel there are.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.map_or(CALLS, u64::from)
    }

    /// How long a process waits for the others to join.
    fn deadline(&self) -> Duration {
        self.deadline.map_or(DEADLINE, Duration::from_secs)
    }

    /// Whether there is a process for each rank.
    pub(crate) fn are_ranks(&self) -> bool {
        self.processes
    }

    /// Refuses options that this network ignores.
    pub(crate) fn check(&self, joint: &Joint) -> Result<(), Failure> {
        match joint {
            Joint::Fabric(_) => Ok(()),
            Joint::Cards(_) | Joint::Played(_) => {
                let given =
                    [("silence", self.silence.is_some()), ("source", self.source.is_some())];
                refuse_given(&given, &format!("over `{joint}`"))
            }
        }
    }
}

fn refuse_given(given: &[(&str, bool)], place: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::WrongUse(format!("`--{name}` has no effect {place}"))),
    }
}

/// Some pipelines between nodes.
pub(crate) struct Between<'a> {
    /// Which node this is, and how peers are watched.
    pub(crate) options: &'a NodeOptions,
    /// What carries their rows.
    pub(crate) joint: Joint,
    /// How many there are.
    pub(crate) nodes: usize,
    /// Ranks of each.
    pub(crate) local_ranks: usize,
    /// Where they run.
    pub(crate) machine: Machine,
    /// SMs of each kernel; none: as few as run every role.
    pub(crate) sms: Option<u32>,
    /// What disturbs kernels on GPUs.
    pub(crate) perturb: Perturb,
    /// Seed of the shapes and of all values.
    pub(crate) seed: u64,
    /// What is called.
    pub(crate) cases: Vec<(AnyPipeline, Problem)>,
}

impl Between<'_> {
    /// Starts a process for each node, or is one of them.
    pub(crate) fn run(&self, what: &'static str, talk: &mut Talk<'_>) -> Result<(), Failure> {
        let NodeOptions { node, rank, .. } = *self.options;
        let Some(index) = node.or(rank) else { return self.start(what, talk) };
        let (kind, count) = self.kind();
        if index as usize >= count {
            return Err(Failure::WrongUse(format!(
                "{kind} {index} does not exist: there are {count}"
            )));
        }
        let id = UniqueId::from_environment().map_err(|error| text(&error))?;
        Process { between: self, index: index as usize }.run(&id, talk)
    }

    fn ranks(&self) -> usize {
        self.nodes * self.local_ranks
    }

    /// What there is a process for, and how many of them.
    fn kind(&self) -> (&'static str, usize) {
        match self.options.processes {
            true => ("rank", self.ranks()),
            false => ("node", self.nodes),
        }
    }

    /// Starts all processes, and waits for them.
    fn start(&self, what: &'static str, talk: &mut Talk<'_>) -> Result<(), Failure> {
        let (nodes, local_ranks, joint) = (self.nodes, self.local_ranks, &self.joint);
        // Report a missing library or provider once, before any process starts.
        let there = match joint {
            Joint::Fabric(provider) => {
                Fabric::find().and_then(|fabric| fabric.offers(*provider, None)).map(drop)
            }
            Joint::Cards(_) => Verbs::find().map(drop),
            Joint::Played(_) => Ok(()),
        };
        there.map_err(|error| text(&error))?;
        let id = UniqueId::local().map_err(|error| text(&error))?;
        let begun = Instant::now();
        let (kind, count) = self.kind();
        talk.say(&format!(
            "{nodes} nodes of {local_ranks} ranks, a process for each {kind}, over {joint}"
        ))?;
        let mut children = Vec::new();
        for index in 0..count {
            let mut command = program::again().map_err(|error| text(&error))?;
            command.args(program::words()).args([format!("--{kind}"), index.to_string()]);
            match index {
                0 => id.hand_to(&mut command, ID_VARIABLE),
                _ => id.give_to(&mut command, ID_VARIABLE),
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            children.push(command.spawn().map_err(|error| text(&error))?);
        }
        let mut wrong = Vec::new();
        for (index, output) in self.outputs(children, talk)? {
            write!(talk.out, "{}", String::from_utf8_lossy(&output.stdout))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!("{kind} {index} ({}): {}", output.status, said.trim_end()));
            }
        }
        let verdict = if wrong.is_empty() { "ok" } else { "failed" };
        let seconds = begun.elapsed().as_secs_f64();
        let line =
            format!("{what} {verdict}: {nodes} nodes of {local_ranks} ranks, in {seconds:.1} s");
        talk.end(what, &line)?;
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(wrong.join("\n"))),
        }
    }

    /// Waits for all processes and returns their output in order. Reports a failed process at once, since the
    /// others may still wait for it.
    fn outputs(
        &self,
        children: Vec<Child>,
        talk: &mut Talk<'_>,
    ) -> Result<BTreeMap<usize, Output>, Failure> {
        let count = children.len();
        let (sender, ended) = mpsc::channel();
        // One thread reads each process, so that no process blocks on a full pipe.
        for (index, child) in children.into_iter().enumerate() {
            let sender = sender.clone();
            std::thread::spawn(move || sender.send((index, child.wait_with_output())));
        }
        drop(sender);
        let mut outputs = BTreeMap::new();
        for (index, output) in ended {
            let output = output.map_err(|error| text(&error))?;
            if !output.status.success() && outputs.len() + 1 < count {
                let (kind, seconds) = (self.kind().0, self.options.deadline().as_secs());
                talk.say(&format!(
                    "{kind} {index} has failed ({}): if it had not joined, the others wait for it up to \
                     {seconds} s, as --deadline says",
                    output.status
                ))?;
            }
            outputs.insert(index, output);
        }
        Ok(outputs)
    }
}

/// One rank's end of a network.
enum End {
    Fabric(Box<Network>),
    Card(Box<CardNetwork>),
    Played(usize, Box<ResidentNetwork>),
}

impl End {
    fn part(&self, part: NetPart) -> Result<DeviceMemory, NetError> {
        match self {
            End::Fabric(network) => network.part(part),
            End::Card(card) => card.part(part),
            End::Played(rank, network) => network.part(*rank, part),
        }
    }

    /// What it has done, or where rows were.
    fn said(&self) -> String {
        match self {
            End::Fabric(network) => {
                let (rank, landed) = (network.rank(), network.stats().landed);
                let place = match network.rows_on() {
                    (on, None) => on.to_string(),
                    (on, Some(why)) => format!("{on} ({why})"),
                };
                format!("{landed} writes have landed on rank {rank}, {place}")
            }
            End::Card(card) => format!("{} moved rows {}", card.device(), card.rows_on()),
            End::Played(rank, network) => {
                let traffic = network.traffic().unwrap_or_default();
                let CardTraffic { entries, bytes, .. } =
                    traffic.get(*rank).copied().unwrap_or_default();
                format!("the card of rank {rank} carried {bytes} bytes in {entries} entries")
            }
        }
    }
}

/// One of the processes: a node, or a rank.
struct Process<'a> {
    between: &'a Between<'a>,
    index: usize,
}

impl Process<'_> {
    /// Makes the calls of this process' ranks, and compares what they leave.
    fn run(&self, id: &UniqueId, talk: &mut Talk<'_>) -> Result<(), Failure> {
        let programs = Programs::find().map_err(no_machine)?;
        let (kind, index) = (self.between.kind().0, self.index);
        let (group, store) = self.group(id, &programs)?;
        let (arch, seed) = (group.backend().arch(), self.between.seed);
        let mut cases = Vec::new();
        for (entry, problem) in &self.between.cases {
            let subject = Subject::new(entry, &programs)?;
            let count = self.between.options.calls();
            let calls = subject.some_calls(count, problem, arch, (seed, seed))?;
            // What takes long comes before the others wait.
            for kernel in &calls.emitted.plan.kernels {
                group.backend().compile(kernel, &calls.emitted.cuda).map_err(no_machine)?;
            }
            cases.push((entry.name, subject, calls));
        }
        let plans = cases.iter().map(|(_, _, calls)| &calls.emitted.plan);
        let placed = NetPart::place(plans, &self.between.joint.carrier());
        let (parts, bytes, counters) = placed.map_err(|error| text(&error))?;
        let networks = self.join((id, store), &group, (bytes.max(1), counters.max(1)))?;
        talk.say(&format!("{kind} {index}: its ranks have joined"))?;
        for ((name, subject, calls), part) in cases.iter().zip(parts) {
            let begun = Instant::now();
            let equal = self.compare(&group, &networks, (subject, calls), part)?;
            let (ranks, shape) = (group.local(), calls.shape());
            let seconds = begun.elapsed().as_secs_f64();
            talk.say(&format!(
                "{kind} {index}, ranks {ranks:?}: {name}, {shape}: {equal}, in {seconds:.1} s"
            ))?;
        }
        let said: Vec<String> = networks.iter().map(End::said).collect();
        talk.say(&format!("{kind} {index}: {}", said.join(", ")))
    }

    /// Its ranks, of all that there are; and what has brought it to the others, if one rank is all it has.
    fn group(
        &self,
        id: &UniqueId,
        programs: &Arc<Programs>,
    ) -> Result<(Group, Option<Arc<Store>>), Failure> {
        let Between { nodes, machine, perturb, seed, ref joint, options, .. } = *self.between;
        let (ranks, each) = (self.between.ranks(), self.between.ranks() / self.between.kind().1);
        let local = self.index * each..(self.index + 1) * each;
        let timeout = GroupOptions::default().timeout;
        let request = GpuRequest::threads(ranks, timeout).perturbed(perturb);
        if !options.processes {
            let joined = match machine {
                Machine::Host => Ranks::on_host_of_node(programs, (local, ranks), seed, Group::new),
                Machine::Gpu => Ranks::of_node(&request, local, Group::new),
            };
            return Ok((joined?.group, None));
        }
        let store = Store::join(id, Member { rank: self.index, ranks }, options.deadline());
        let store = Arc::new(store.map_err(|error| text(&error))?);
        let over = match joint {
            Joint::Fabric(provider) => self.net(*provider, (0, 0)).into(),
            Joint::Cards(cards) => Carrier::Ibgda(cards.clone()),
            Joint::Played(options) => Carrier::Card(options.clone()),
        };
        let joined = match machine {
            Machine::Host => Ranks::on_host_of_process(programs, &store, nodes, &over, seed),
            Machine::Gpu => Ranks::of_process(&request, &store, nodes, &over),
        };
        Ok((joined?.group, Some(store)))
    }

    /// Every local rank's end of one network, for so many bytes and counters.
    fn join(
        &self,
        (id, store): (&UniqueId, Option<Arc<Store>>),
        group: &Group,
        needs: (u64, usize),
    ) -> Result<Vec<End>, Failure> {
        let ranks = self.between.ranks();
        let one = |rank: usize| {
            let store = match &store {
                Some(store) => Arc::clone(store),
                None => {
                    let deadline = self.between.options.deadline();
                    let store = Store::join(id, Member { rank, ranks }, deadline);
                    Arc::new(store.map_err(|error| text(&error))?)
                }
            };
            self.end((group, rank), &store, needs)
        };
        // Each of them waits for all others.
        std::thread::scope(|scope| {
            let one = &one;
            let joining: Vec<_> =
                group.local().map(|rank| scope.spawn(move || one(rank))).collect();
            let panicked = |_| Failure::Failed("a rank panicked while it joined".to_string());
            joining.into_iter().map(|it| it.join().map_err(panicked)?).collect()
        })
    }

    /// A network for so many bytes and counters.
    fn net(&self, provider: Provider, (data_bytes, counters): (u64, usize)) -> NetOptions {
        let silence = self.between.options.silence.map_or(SILENCE, Duration::from_secs);
        NetOptions {
            counters,
            queues: QUEUES,
            source: self.between.options.source.map(|source| source.to_string()),
            pulse: silence / 10,
            silence,
            ..NetOptions::new(provider, data_bytes)
        }
    }

    /// The end of one rank.
    fn end(
        &self,
        (group, rank): (&Group, usize),
        store: &Store,
        (data_bytes, counters): (u64, usize),
    ) -> Result<End, Failure> {
        let end = match &self.between.joint {
            Joint::Fabric(provider) => {
                let net = self.net(*provider, (data_bytes, counters));
                Network::join(group, rank, store, &net)
                    .map(|network| End::Fabric(Box::new(network)))
            }
            Joint::Cards(cards) => {
                let cards = CardOptions { data_bytes, counters, ..cards.clone() };
                CardNetwork::join(group, rank, store, &cards).map(|card| End::Card(Box::new(card)))
            }
            Joint::Played(_) => ResidentNetwork::new(group, (data_bytes, counters))
                .map(|network| End::Played(rank, Box::new(network))),
        };
        end.map_err(|error| text(&error))
    }

    /// Makes the calls of one kernel; how much was compared.
    fn compare(
        &self,
        group: &Group,
        networks: &[End],
        (subject, calls): (&Subject, &Calls),
        part: NetPart,
    ) -> Result<String, Failure> {
        let declared = Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &subject.functions());
        let declared = declared.map_err(|error| text(&error))?;
        let views = networks.iter().map(|network| network.part(part));
        let views = views.collect::<Result<Vec<_>, _>>().map_err(|error| text(&error))?;
        let addresses: Vec<u64> = views.iter().map(|view| view.address()).collect();
        let sms = self.between.sms.unwrap_or(calls.blocks_min());
        let findings = declared.check_over(group, sms, &addresses).map_err(failed)?;
        match findings.is_good() {
            true => Ok(findings.to_string()),
            false => Err(Failure::Failed(findings.to_string())),
        }
    }
}

fn text(error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

//! Typed calls between nodes that are processes: this test program again, two ranks each, or one.

mod calls;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::Backend;
use ep_runtime::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions};
use ep_runtime::error::CallError;
use ep_runtime::gpu::{self, GpuBackend};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::mutant::Mutant;
use ep_runtime::host::{HostBackend, HostOptions, Programs, TIMEOUT};
use ep_runtime::join::{Member, Store, UniqueId};
use ep_runtime::net::{CardOptions, Carrier, ModelOptions, NetError, NetOptions, Provider};
use ep_runtime::pipelines::{LowLatencyDispatch, NodeLayout, low_latency_dispatch, node_layout};
use ep_runtime::tensor::{Bf16, DeviceTensor};
use ep_runtime::tune::{Destination, Pushes};

use crate::exchange::compiler;
use crate::gpu::turn;
use crate::host::can_use;
use crate::processes::ID;

#[path = "../../examples/two_hops.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod two_hops;

const NODE: &str = "EPFORGE_TEST_NODE";
const PROVIDER: &str = "EPFORGE_TEST_PROVIDER";
const RANK: &str = "EPFORGE_TEST_RANK_OF_NODES";
const TASK: &str = "EPFORGE_TEST_TASK";
const NODES: usize = 2;
const EACH: usize = 2;

/// What a process runs; in the program of the tests themselves it does nothing.
#[test]
fn one_node() {
    let (Ok(node), Ok(provider)) = (std::env::var(NODE), std::env::var(PROVIDER)) else { return };
    let node: usize = node.parse().expect("a node");
    let provider: Provider = provider.parse().expect("a provider");
    let id = UniqueId::from_variable(ID).expect("an id").expect("an id");
    let local = node * EACH..(node + 1) * EACH;
    let host = HostOptions { local, ..HostOptions::new(NODES * EACH) };
    let backend = HostBackend::new(&Programs::find().expect("a compiler"), host).expect("ranks");
    let net = NetOptions { queues: 2, ..NetOptions::new(provider, 0) };
    let options = GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() };
    let deadline = Duration::from_secs(100);
    let group = Group::over_network(backend as Arc<dyn Backend>, options, &id, &net, deadline);
    let group = group.unwrap();
    assert_eq!((group.nodes(), group.ranks()), (NODES, NODES * EACH));
    match provider {
        Provider::Tcp => calls::agree_with_one_node(&group, calls::Case::Plain),
        _ => two_hops::run(&group).unwrap(),
    }
}

/// What a process of one rank runs: on a node of its own or with another rank on its node, in the emulator, or on GPUs.
#[test]
fn one_rank() {
    let (Ok(rank), Ok(carrier)) = (std::env::var(RANK), std::env::var(PROVIDER)) else { return };
    let task = std::env::var(TASK).expect("a task");
    let (place, task) = task.split_once(' ').expect("a place and a task");
    let each = if place == "alone" { 1 } else { EACH };
    let member = Member { rank: rank.parse().expect("a rank"), ranks: NODES * each };
    let id = UniqueId::from_variable(ID).expect("an id").expect("an id");
    let store = Store::join(&id, member, Duration::from_secs(100)).expect("all ranks");
    let (store, local) = (Arc::new(store), member.rank..member.rank + 1);
    let mut carrier: Carrier = carrier.parse().expect("a carrier");
    if let Carrier::Libfabric(net) = &mut carrier {
        net.silence = Duration::from_secs(if task == "lost" { 3 } else { 20 });
    }
    let (backend, timeout): (Arc<dyn Backend>, Duration) = match place {
        "gpus" => {
            let device = (member.rank % gpu::devices().expect("GPUs").len()) as i32;
            let compile = compiler().expect("NVRTC");
            let backend = GpuBackend::join_node(device, &store, NODES, compile).unwrap();
            (Arc::new(carrier.beside(backend, NODES)), Duration::from_secs(20))
        }
        _ => {
            let host = HostOptions { local, ..HostOptions::new(member.ranks) };
            let programs = Programs::find().expect("a compiler");
            (HostBackend::join_node(&programs, host, &store, NODES).expect("a rank"), TIMEOUT)
        }
    };
    let options = GroupOptions { timeout, ..GroupOptions::default() };
    let group = Group::over_store(backend, options, &store, &carrier).unwrap();
    assert_eq!((group.nodes(), group.ranks(), group.local().len()), (NODES, member.ranks, 1));
    match task {
        "calls" => calls::agree_with_one_node(&group, calls::Case::Plain),
        "hops" => two_hops::run(&group).unwrap(),
        _ => lose_the_last(&group, member),
    }
}

/// Makes calls until the process of the last rank has ended, which all others say.
fn lose_the_last(group: &Group, member: Member) {
    let shape = BufferOptions { weights: false, cached: false, ..BufferOptions::new(2, 16, 1, 4) };
    let buffer = Buffer::new(group, shape, &BuiltIn).unwrap();
    let x = DeviceTensor::from_slice(group, member.rank, [2, 16], &[Bf16::from(1.0); 32]).unwrap();
    let experts = DeviceTensor::from_slice(group, member.rank, [2, 1], &[0, 3]).unwrap();
    let input = buffer.input(&x, &experts, None).unwrap();
    let last = member.ranks - 1;
    for call in 0..1000 {
        let left = buffer.dispatch(member.rank, &input, &CallOptions::sms(12));
        match left.and_then(|_| group.sync(member.rank)) {
            // Nothing is given back, as when a process is killed.
            Ok(()) if member.rank == last && call == 3 => std::process::exit(0),
            Ok(()) => {}
            Err(error @ (CallError::Network(_) | CallError::Timeout(_))) => {
                let said = error.to_string();
                return assert!(said.contains(&format!("rank {last}")), "{said}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nobody has missed rank {last}");
}

/// Runs a test of this program in so many processes, which differ in one variable.
fn run_processes(test: &str, count: usize, (variable, task): (&str, &str), carrier: &str) {
    let id = UniqueId::local().expect("an id");
    let start = |index: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env(variable, index.to_string()).env(TASK, task);
        command.env(PROVIDER, carrier);
        match index {
            0 => id.hand_to(&mut command, ID),
            _ => id.give_to(&mut command, ID),
        }
        command.spawn().expect("this program")
    };
    let children: Vec<Child> = (0..count).map(start).collect();
    for (index, child) in children.into_iter().enumerate() {
        let ended = child.wait_with_output().expect("a child");
        let [out, errors] =
            [&ended.stdout, &ended.stderr].map(|said| String::from_utf8_lossy(said));
        let status = ended.status;
        assert!(status.success(), "{carrier}, {task}, {variable} {index}: {status}: {out}{errors}");
    }
}

#[test]
fn rows_go_between_processes_and_back() {
    for provider in [Provider::Tcp, Provider::Shm] {
        if can_use(provider) {
            run_processes("nodes::one_node", NODES, (NODE, ""), provider.name());
        }
    }
}

#[test]
fn rows_go_between_processes_of_one_rank_at_length() {
    for (provider, task) in [(Provider::Tcp, "alone calls"), (Provider::Shm, "alone lost")] {
        if can_use(provider) {
            run_processes("nodes::one_rank", NODES, (RANK, task), provider.name());
        }
    }
}

/// Two processes on each of two nodes, with models of network cards between them.
#[test]
fn rows_go_between_processes_over_cards() {
    run_processes("nodes::one_rank", NODES * EACH, (RANK, "shared hops"), "card:50GB/s,3us");
}

#[test]
fn calls_go_between_processes_over_cards_at_length() {
    for task in ["shared calls", "shared lost"] {
        run_processes("nodes::one_rank", NODES * EACH, (RANK, task), "card");
    }
}

/// Two processes on each of two nodes, which share GPUs if need be.
#[test]
fn rows_go_between_processes_of_one_gpu() {
    let Some(_turn) = turn() else { return };
    let mut carriers = vec!["card"];
    carriers.extend(
        [Provider::Shm, Provider::Tcp].into_iter().filter(|it| can_use(*it)).map(Provider::name),
    );
    for carrier in carriers {
        for task in ["gpus hops", "gpus calls", "gpus lost"] {
            run_processes("nodes::one_rank", NODES * EACH, (RANK, task), carrier);
        }
    }
}

/// A kernel whose ranks would look for each other where they are not is refused by all.
#[test]
fn kernels_of_other_nodes_are_refused() {
    let programs = Programs::find().expect("a C++ compiler");
    let backend = HostBackend::new(&programs, HostOptions::new(4)).unwrap();
    let shape = |nodes: usize, local_ranks: usize| node_layout::Shape {
        nodes,
        local_ranks,
        topk: 2,
        experts: 8,
        stripes: 4,
        tokens: 4,
    };
    let refused = |group: &Group, nodes: usize, local_ranks: usize| {
        let prepared = NodeLayout::prepare(group, shape(nodes, local_ranks), Default::default());
        prepared.err().expect("it is refused").to_string()
    };
    let one = backend.group().unwrap();
    assert_eq!(refused(&one, 2, 2), "NodeLayout was made for 2 nodes, and the group has 1");
    let two = Group::over_model(&backend, 2, &ModelOptions::default()).unwrap();
    assert_eq!(refused(&two, 4, 1), "NodeLayout was made for 4 nodes, and the group has 2");
    assert_eq!(refused(&two, 2, 1), "NodeLayout was made for 2 ranks, and the group has 4");
    let pushes = Pushes::new(&two, Destination::Others, 1 << 20).err().expect("it is refused");
    assert_eq!(
        pushes.to_string(),
        "plain pushes reach only the ranks of one node, and this group has 2"
    );
    let odd = Group::over_model(&backend, 3, &ModelOptions::default()).err().unwrap().to_string();
    assert_eq!(odd, "ranks 0..4 of 4 do not form 3 nodes with the same number of ranks");
}

/// The emulator has no doorbell of a real card, on a machine without cards or with some.
#[test]
fn nodes_over_cards_want_libraries_a_card_and_gpus() {
    let programs = Programs::find().expect("a C++ compiler");
    let id = UniqueId::local().expect("an id");
    let prepared = &|rank: usize| {
        let host = HostOptions { local: rank..rank + 1, ..HostOptions::new(2) };
        let backend = HostBackend::new(&programs, host).expect("a rank") as Arc<dyn Backend>;
        let options = GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() };
        let (cards, deadline) = (CardOptions::new(0), Duration::from_secs(60));
        let group = Group::over_ibgda(backend, options, &id, &cards, deadline).unwrap();
        let (nodes, hidden, topk, experts, tokens) = (2, 64, 2, 8, 8);
        let shape =
            low_latency_dispatch::Shape { nodes, hidden, topk, experts, tokens, max_tokens: 8 };
        LowLatencyDispatch::prepare(&group, shape, Default::default()).err()
    };
    let errors = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || prepared(rank)));
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    for error in errors {
        assert!(matches!(error, Some(CallError::Network(_))), "{error:?}");
    }
}

/// The error of a dispatch of few tokens by all ranks.
fn dispatched(group: &Group) -> CallError {
    let options =
        BufferOptions { weights: false, cached: false, ..BufferOptions::new(2, 16, 1, 4) };
    let buffer = Buffer::new(group, options, &BuiltIn).unwrap();
    let mut kept = Vec::new();
    for rank in group.local() {
        let x = DeviceTensor::from_slice(group, rank, [2, 16], &[Bf16::from(1.0); 32]).unwrap();
        let experts = DeviceTensor::from_slice(group, rank, [2, 1], &[2, 3]).unwrap();
        let input = buffer.input(&x, &experts, None).unwrap();
        match buffer.dispatch(rank, &input, &CallOptions::sms(12)) {
            Ok(left) => kept.push(left),
            Err(error) => return error,
        }
    }
    let error = group.sync(2).unwrap_err();
    assert_eq!(group.check(0).unwrap_err(), error);
    error
}

/// The one that waits says for whom, as within a node.
#[test]
fn a_dead_link_is_a_timeout_that_names_both_ends() {
    let programs = Programs::find().expect("a C++ compiler");
    for over in [Group::over_model, Group::over_cards] {
        let backend = HostBackend::new(&programs, HostOptions::new(4)).unwrap();
        let net = ModelOptions { dead_links: vec![(0, 2)], ..ModelOptions::default() };
        let error = dispatched(&over(&backend, 2, &net).unwrap());
        let CallError::Timeout(timeouts) = &error else { panic!("{error}") };
        assert!(timeouts.waits.iter().any(|it| (it.rank, it.peer) == (2, Some(0))), "{error}");
    }
}

/// What no card can do.
const NO_OPCODE: &str = "
== a signal is an atomic that no card has
in ep/ibgda.cuh
-     static constexpr u32 kAddHalf = 0x08000015;  // masked fetch-and-add, of 4 bytes
+     static constexpr u32 kAddHalf = 0x0800001f;
";

#[test]
fn an_entry_that_no_card_carries_out_is_an_error_of_the_call() {
    let bugs = Mutant::parse(NO_OPCODE).expect("a bug");
    let programs = Programs::find().expect("a C++ compiler").planted(&bugs[0]);
    let backend = HostBackend::new(&programs, HostOptions::new(4)).unwrap();
    let error = dispatched(&Group::over_cards(&backend, 2, &ModelOptions::default()).unwrap());
    let CallError::Network(NetError::Entry { rank, peer, why, .. }) = &error else {
        panic!("{error}")
    };
    assert_ne!(rank / 2, peer / 2, "within a node no card is asked: {error}");
    assert_eq!(why, "has the opcode 0x1f with modifier 0x08");
}

//! Two nodes, a process each, with libfabric between them: dispatch and combine in two hops, and at low latency in
//! one, through a cable that delays and loses, and through one that is cut.

#[path = "../../ep-runtime/tests/net/cable.rs"]
mod cable;

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ep_runtime::join::{ID_VARIABLE, UniqueId};
use ep_runtime::net::{Fabric, Provider};
use ep_runtime::pipelines;

use cable::{Cable, ENDS, Wire};

/// The words of a node's command line, and where it leaves what it says.
const LINE: &str = "EPFORGE_TEST_NODE";
const SAID: &str = "EPFORGE_TEST_SAID";

/// Longest that nodes on a busy machine take for what they do in seconds.
const LONG: Duration = Duration::from_secs(300);

/// What a process runs; in the program of the tests themselves it does nothing.
#[test]
fn one_node() {
    let (Ok(line), Ok(said)) = (std::env::var(LINE), std::env::var(SAID)) else { return };
    let mut out = File::create(&said).expect("the folder of the build");
    let mut err = File::create(format!("{said}.wrong")).expect("the folder of the build");
    let code = ep_cli::run(line.split(' '), &pipelines::ALL, &mut out, &mut err);
    std::process::exit(code.into());
}

/// Two nodes at the ends of a cable.
struct Nodes {
    folder: PathBuf,
    children: Vec<Child>,
    cable: Option<Cable>,
}

impl Nodes {
    /// The demo; a peer is silent for so many seconds before it is given up.
    fn start(name: &str, wire: Wire, silence: u64) -> Option<Nodes> {
        let line = |node: usize| format!("demo --node {node} --silence {silence}");
        Nodes::run(name, wire, line)
    }

    /// Commands, one at each end. None: this machine has no libfabric, or this process may make no namespaces.
    fn run(name: &str, wire: Wire, line: impl Fn(usize) -> String + Sync) -> Option<Nodes> {
        crate::host::programs()?;
        let found = Fabric::find().and_then(|fabric| fabric.offers(Provider::Tcp, None));
        if let Err(error) = found {
            let required =
                std::env::var_os("EPFORGE_REQUIRE_LIBFABRIC").is_some_and(|it| it == "1");
            assert!(!required, "{error} (EPFORGE_REQUIRE_LIBFABRIC=1 is set)");
            return skipped(&format!("no libfabric with tcp: {error}"));
        }
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("the folder of the build");
        // Nobody else is there, so that any port is free.
        let id = UniqueId::with_secret(SocketAddr::from((ENDS[0], 7000)), [7; 16]);
        let start = |node: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "nodes::one_node"]);
            let line = format!("epforge {} --nodes 2 --source {}", line(node), ENDS[node]);
            command.env(LINE, line).env(SAID, folder.join(node.to_string()));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            id.give_to(&mut command, ID_VARIABLE);
            command.spawn().expect("this program")
        };
        match Cable::lay(wire, start) {
            Ok((cable, children)) => {
                Some(Nodes { folder, children: children.into(), cable: Some(cable) })
            }
            Err(error) => skipped(&format!("no network namespaces: {error}")),
        }
    }

    /// What a node has said so far, and what went wrong.
    fn said(&self, node: usize) -> (String, String) {
        let read = |name: String| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        (read(node.to_string()), read(format!("{node}.wrong")))
    }

    fn wait_until_joined(&mut self) {
        let until = Instant::now() + LONG;
        while !(0..2).all(|node| self.said(node).0.contains("have joined")) {
            let said = (self.said(0), self.said(1));
            assert!(Instant::now() < until, "the nodes do not join: {said:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for both, and gives their exit codes.
    fn wait(&mut self) -> [Option<i32>; 2] {
        let until = Instant::now() + LONG;
        [0, 1].map(|node| {
            loop {
                if let Some(status) = self.children[node].try_wait().expect("a child") {
                    return status.code();
                }
                assert!(Instant::now() < until, "node {node} does not end: {:?}", self.said(node));
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Past the capture of the test harness: a skipped test is said.
fn skipped<T>(why: &str) -> Option<T> {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
    None
}

/// 20 ms each way, and one packet of a hundred lost.
#[test]
fn rows_come_through_a_bad_cable_at_length() {
    let wire = Wire { delay: Duration::from_millis(20), loss: 10 };
    let Some(mut nodes) = Nodes::start("bad-cable", wire, 60) else { return };
    let codes = nodes.wait();
    let said = [nodes.said(0), nodes.said(1)];
    assert_eq!(codes, [Some(0), Some(0)], "{said:?}");
    for (out, _) in &said {
        assert_eq!(out.matches("values equal").count(), 6, "{out}");
    }
    assert!(nodes.cable.take().map_or(0, Cable::lost) > 0, "the cable is a good one");
}

/// Both ends find out by themselves, in time, and name the other.
#[test]
fn a_cut_cable_is_an_error_of_both_nodes_at_length() {
    let wire = Wire { delay: Duration::from_millis(20), loss: 0 };
    let Some(mut nodes) = Nodes::start("cut-cable", wire, 3) else { return };
    nodes.wait_until_joined();
    let begun = Instant::now();
    nodes.cable.iter().for_each(Cable::cut);
    let codes = nodes.wait();
    let took = begun.elapsed();
    let said = [nodes.said(0), nodes.said(1)];
    assert_eq!(codes, [Some(1), Some(1)], "{said:?}");
    for (_, wrong) in &said {
        assert!(
            wrong.contains("has received nothing from rank") || wrong.contains("given up"),
            "{wrong}"
        );
    }
    assert!(took < Duration::from_secs(60), "it took {took:?}");
}

/// Ranks that are processes find one another as nodes of one rank each, which share no socket but those of TCP.
#[test]
fn nodes_have_a_process_for_each_rank() {
    let run =
        "run node-layout+low-latency-dispatch --ranks 2 --net libfabric:tcp --calls 3 --processes";
    let line = |rank: usize| format!("{run} --rank {rank}");
    let wire = Wire { delay: Duration::from_millis(1), loss: 0 };
    let Some(mut nodes) = Nodes::run("processes", wire, line) else { return };
    let codes = nodes.wait();
    let said = [nodes.said(0), nodes.said(1)];
    assert_eq!(codes, [Some(0), Some(0)], "{said:?}");
    for (rank, (out, _)) in said.iter().enumerate() {
        assert_eq!(out.matches("values equal").count(), 2, "{out}");
        assert!(out.contains(&format!("rank {rank}: its ranks have joined")), "{out}");
    }
}

#[test]
fn a_process_for_a_rank_that_does_not_exist_is_refused() {
    let said = |words: &str| {
        let (line, mut err) = (format!("epforge run node-layout --nodes 2 {words}"), Vec::new());
        let code = ep_cli::run(line.split(' '), &pipelines::ALL, &mut Vec::new(), &mut err);
        assert_eq!(code, 2, "{line}");
        String::from_utf8(err).expect("text")
    };
    let beyond = said("--ranks 2 --net libfabric:tcp --processes --rank 2");
    assert!(beyond.contains("rank 2 does not exist: there are 2"), "{beyond}");
    let both = said("--ranks 2 --net libfabric:tcp --processes --node 1");
    assert!(both.contains("cannot be used with"), "{both}");
}

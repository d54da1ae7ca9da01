//! The processes of a test: this test program again, a rank each.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ep_runtime::join::UniqueId;

use crate::exchange::{Ended, Exchange};

const EXCHANGE: &str = "EPFORGE_TEST_EXCHANGE";
const RANK: &str = "EPFORGE_TEST_RANK";
const RESULT: &str = "EPFORGE_TEST_RESULT";
pub(crate) const ID: &str = "EPFORGE_TEST_ID";

/// What a process runs; in the program of the tests themselves it does nothing.
#[test]
fn one_rank() {
    let (Ok(exchange), Ok(rank), Ok(result)) =
        (std::env::var(EXCHANGE), std::env::var(RANK), std::env::var(RESULT))
    else {
        return;
    };
    let exchange = Exchange::decode(&exchange).expect("what `Processes` passed");
    let rank = rank.parse().expect("a rank");
    let id = UniqueId::from_variable(ID).expect("an id").expect("an id");
    let ended = exchange
        .run(&id, rank, || fs::write(format!("{result}.runs"), places(rank)).expect("a file"));
    let text = match ended {
        Ok(wrong) => format!("ok {wrong}"),
        Err(error) => format!("error {error}"),
    };
    let fresh = format!("{result}.fresh");
    fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &result)).expect("a file");
}

/// Which CPUs the thread of a network of this process may run on, as the system lists them.
fn places(rank: usize) -> String {
    let is_of_network = |thread: &fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.trim() == format!("ep-net-{rank}")
    };
    // A thread names itself, when it runs.
    let thread = loop {
        let mut threads = fs::read_dir("/proc/self/task").expect("threads").flatten();
        match threads.find(is_of_network) {
            Some(thread) => break thread,
            None => std::thread::yield_now(),
        }
    };
    let status = fs::read_to_string(thread.path().join("status")).expect("what it does");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("where it may run").trim().to_string()
}

/// The ranks of one exchange.
pub(crate) struct Processes {
    pub(crate) children: Vec<Child>,
    folder: PathBuf,
}

impl Processes {
    /// All ranks on this machine.
    pub(crate) fn start(exchange: &Exchange) -> Processes {
        Processes::start_with(exchange, |_, _| {})
    }

    /// All ranks on this machine; `change` says how one is started otherwise.
    pub(crate) fn start_with(
        exchange: &Exchange,
        change: impl Fn(usize, &mut Command),
    ) -> Processes {
        let id = UniqueId::local().expect("an id");
        let mut processes = Processes::none();
        for rank in 0..exchange.ranks {
            let mut command = processes.command(exchange, rank);
            change(rank, &mut command);
            match rank {
                0 => id.hand_to(&mut command, ID),
                _ => id.give_to(&mut command, ID),
            }
            processes.children.push(command.spawn().expect("this program"));
        }
        processes
    }

    /// No ranks yet.
    pub(crate) fn none() -> Processes {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("exchange-{}-{number}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("the folder of the build");
        Processes { children: Vec::new(), folder }
    }

    /// How to start a rank, but for its id.
    pub(crate) fn command(&self, exchange: &Exchange, rank: usize) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "processes::one_rank"]).stdout(Stdio::null());
        command.env(EXCHANGE, exchange.encode()).env(RANK, rank.to_string());
        command.env(RESULT, self.result(rank));
        command
    }

    fn result(&self, rank: usize) -> PathBuf {
        self.folder.join(rank.to_string())
    }

    /// Waits until the kernels of all ranks have begun, and a little longer.
    pub(crate) fn wait_until_running(&self) {
        let until = Instant::now() + Duration::from_secs(100);
        let runs = |rank: usize| self.folder.join(format!("{rank}.runs")).exists();
        while !(0..self.children.len()).all(runs) {
            assert!(Instant::now() < until, "the ranks do not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
    }

    /// Where the network of a rank may run, once it has begun.
    pub(crate) fn places(&self, rank: usize) -> String {
        let path = self.result(rank).with_extension("runs");
        fs::read_to_string(path).expect("what it has written")
    }

    pub(crate) fn signal(&self, rank: usize, signal: i32) {
        let process = i32::try_from(self.children[rank].id()).expect("a process id");
        // SAFETY: the call touches no memory; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    }

    /// Waits for one rank; panics when it takes longer.
    pub(crate) fn wait_for(&mut self, rank: usize, most: Duration) -> Ended {
        let until = Instant::now() + most;
        let place = self.result(rank);
        while self.children[rank].try_wait().expect("a child").is_none() {
            assert!(Instant::now() < until, "rank {rank} does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        let text = fs::read_to_string(place).unwrap_or_else(|_| "error it died".to_string());
        match text.split_once(' ') {
            Some(("ok", wrong)) => Ok(wrong.parse().expect("a number")),
            Some((_, error)) => Err(error.to_string()),
            None => Err(text),
        }
    }

    /// Waits for all ranks.
    pub(crate) fn wait(&mut self, most: Duration) -> Vec<Ended> {
        (0..self.children.len()).map(|rank| self.wait_for(rank, most)).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

//! Rows between processes, over good cables and bad ones, and what is said when one end is gone.

mod model;

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ep_runtime::join::UniqueId;

use ep_runtime::net::{Fabric, Provider};

use crate::cable::{self, Cable, Wire};
use crate::exchange::Exchange;
use crate::processes::{self, Processes};

/// Whether the provider can be had; `EPFORGE_REQUIRE_LIBFABRIC=1` makes a failure of it if not.
pub(crate) fn can_use(provider: Provider) -> bool {
    let found = Fabric::find().and_then(|fabric| fabric.offers(provider, None));
    let Err(error) = found else { return true };
    let required = std::env::var_os("EPFORGE_REQUIRE_LIBFABRIC").is_some_and(|it| it == "1");
    assert!(!required, "{error} (EPFORGE_REQUIRE_LIBFABRIC=1 is set)");
    // Past the capture of the test harness: a skipped test is said.
    let _ = writeln!(std::io::stderr(), "skipped: no libfabric with {provider}: {error}");
    false
}

/// Longest that ranks on a busy machine take for what they do in seconds.
pub(crate) const LONG: Duration = Duration::from_secs(120);

#[test]
fn rows_come_over_as_they_were() {
    for provider in [Provider::Tcp, Provider::Shm] {
        for (ranks, rows, words) in [(2, 40, 700), (3, 33, 5)] {
            if can_use(provider) {
                let exchange = Exchange { ranks, rows, words, ..Exchange::over(provider) };
                let ended = Processes::start(&exchange).wait(LONG);
                assert_eq!(ended, vec![Ok(0); ranks], "{provider}, {ranks} ranks");
            }
        }
    }
}

/// CPUs of a machine whose NUMA nodes have four cores, whatever each core has of threads.
const CPUS: usize = 16;

#[test]
fn threads_of_networks_stay_on_cores_of_their_own() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < CPUS {
        let _ = writeln!(std::io::stderr(), "skipped: {cpus} CPUs, of {CPUS} that it takes");
        return;
    }
    if !can_use(Provider::Shm) {
        return;
    }
    let until = Instant::now() + LONG;
    loop {
        let mut processes = Processes::start(&Exchange::over(Provider::Shm));
        processes.wait_until_running();
        let places = [0, 1].map(|rank| processes.places(rank));
        assert_eq!(processes.wait(LONG), vec![Ok(0); 2]);
        if places.iter().all(|place| place.parse::<usize>().is_ok()) {
            assert_ne!(places[0], places[1]);
            return;
        }
        // Networks of other tests may have all that there are.
        assert!(Instant::now() < until, "{places:?}");
    }
}

/// The kernel of a rank that is killed is waited for by the other one, whose error names it.
#[test]
fn a_rank_that_dies_is_named() {
    for provider in [Provider::Tcp, Provider::Shm] {
        if !can_use(provider) {
            continue;
        }
        let silence = Duration::from_secs(2);
        let exchange = Exchange { rounds: 1 << 20, silence, ..Exchange::over(provider) };
        let mut processes = Processes::start(&exchange);
        processes.wait_until_running();
        let begun = Instant::now();
        processes.signal(1, libc::SIGKILL);
        let error = processes.wait(LONG)[0].clone().expect_err("rank 1 is dead");
        let took = begun.elapsed();
        let lost = "rank 0 has lost its connection to rank 1: ";
        let silent = "rank 0 has received nothing from rank 1 for 2";
        assert!(error.starts_with(lost) || error.starts_with(silent), "{provider}: {error}");
        assert!(took < silence * 5, "{provider}: it took {took:?}");
    }
}

/// A rank that is stopped gives no sign of life. When it goes on, it hears that it was given up.
#[test]
fn a_rank_that_is_stopped_is_named() {
    if !can_use(Provider::Tcp) {
        return;
    }
    let silence = Duration::from_secs(2);
    let exchange = Exchange { rounds: 1 << 20, silence, ..Exchange::over(Provider::Tcp) };
    let mut processes = Processes::start(&exchange);
    processes.wait_until_running();
    processes.signal(1, libc::SIGSTOP);
    let error = processes.wait_for(0, LONG).expect_err("rank 1 is stopped");
    assert!(error.starts_with("rank 0 has received nothing from rank 1 for 2"), "{error}");
    processes.signal(1, libc::SIGCONT);
    let error = processes.wait_for(1, LONG).expect_err("rank 0 has given up");
    assert!(error.contains("rank 0"), "{error}");
}

/// A kernel that writes nonsense into its queue moves nothing, and its group hears why.
#[test]
fn a_descriptor_that_cannot_be_carried_out_is_named() {
    if !can_use(Provider::Shm) {
        return;
    }
    let exchange = Exchange { is_short: true, ..Exchange::over(Provider::Shm) };
    let errors: Vec<String> = Processes::start(&exchange)
        .wait(LONG)
        .into_iter()
        .map(|ended| ended.expect_err("there is no room"))
        .collect();
    let named = |(rank, error): (usize, &String)| {
        error.starts_with(&format!("rank {rank}: descriptor "))
            && error.contains(" of its queue 0 puts 2800 bytes from ")
    };
    assert!(errors.iter().enumerate().any(named), "{errors:?}");
    let told = |error: &String| error.contains("has given up") || error.contains("descriptor");
    assert!(errors.iter().all(told), "{errors:?}");
}

/// A rank without libfabric keeps nobody waiting: all hear what it lacks.
#[test]
fn a_rank_that_cannot_join_says_why() {
    if !can_use(Provider::Tcp) {
        return;
    }
    let begun = Instant::now();
    let without = |rank: usize, command: &mut std::process::Command| {
        if rank == 1 {
            command.env("EPFORGE_LIBFABRIC", "/no/such/library");
        }
    };
    let mut processes = Processes::start_with(&Exchange::over(Provider::Tcp), without);
    let errors = processes.wait(LONG).into_iter().map(|ended| ended.expect_err("rank 1 has none"));
    let errors: Vec<String> = errors.collect();
    assert!(errors[1].starts_with("there is no libfabric: "), "{errors:?}");
    assert_eq!(errors[0], format!("rank 1 cannot join the network: {}", errors[1]));
    // Less than a store waits for a rank that does not come.
    assert!(begun.elapsed() < Duration::from_secs(50));
}

/// Two ranks with a cable between them; none where this process may make no namespaces.
fn at_both_ends(exchange: &Exchange, wire: Wire) -> Option<(Cable, Processes)> {
    // Nobody else is there, so that any port is free.
    let address = SocketAddr::from((cable::ENDS[0], 7000));
    let id = UniqueId::with_secret(address, [7; 16]);
    let mut processes = Processes::none();
    let start = |rank: usize| {
        let exchange = Exchange { source: cable::ENDS[rank].to_string(), ..exchange.clone() };
        let mut command = processes.command(&exchange, rank);
        id.give_to(&mut command, processes::ID);
        command.spawn().expect("this program")
    };
    match Cable::lay(wire, start) {
        Ok((cable, children)) => {
            processes.children.extend(children);
            Some((cable, processes))
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: no network namespaces: {error}");
            None
        }
    }
}

/// 20 ms each way, and one packet of a hundred lost.
#[test]
fn rows_come_through_a_bad_cable() {
    let wire = Wire { delay: Duration::from_millis(20), loss: 10 };
    let exchange = Exchange { rounds: 3, ..Exchange::over(Provider::Tcp) };
    if !can_use(Provider::Tcp) {
        return;
    }
    let Some((cable, mut processes)) = at_both_ends(&exchange, wire) else { return };
    assert_eq!(processes.wait(LONG), [Ok(0), Ok(0)]);
    assert!(cable.lost() > 0, "the cable is a good one");
}

/// No network reports a cut cable: each end finds out by itself, in time, and names the other end.
#[test]
fn a_cut_cable_is_an_error_at_both_ends() {
    let wire = Wire { delay: Duration::ZERO, loss: 0 };
    let silence = Duration::from_secs(2);
    let exchange = Exchange { rounds: 1 << 20, silence, ..Exchange::over(Provider::Tcp) };
    if !can_use(Provider::Tcp) {
        return;
    }
    let Some((cable, mut processes)) = at_both_ends(&exchange, wire) else { return };
    processes.wait_until_running();
    let begun = Instant::now();
    cable.cut();
    for (rank, other) in [(0, 1), (1, 0)] {
        let error = processes.wait_for(rank, LONG).expect_err("the cable is cut");
        let silent = format!("rank {rank} has received nothing from rank {other} for 2");
        assert!(error.starts_with(&silent), "{error}");
    }
    let took = begun.elapsed();
    assert!(took < silence * 5, "it took {took:?}");
}

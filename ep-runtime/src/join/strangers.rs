//! Tests that a stranger who can reach the port of a group cannot harm it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use super::clock::stopped;
use super::*;

/// A deadline that does not come while clocks are stopped.
const NEVER: Duration = Duration::from_secs(10);

/// Where they are not, one that comes only when a test hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stranger does.
#[derive(Clone, Copy)]
enum Stranger {
    /// Says nothing.
    Idle,
    /// Says what a caller says, a byte now and then.
    Drips,
    /// Talks at once and of something else.
    Garbage,
}

/// Presses on `address` until `done` with `strangers` connections, which do these things in turn; says
/// when all of them are there.
fn press(
    address: SocketAddr,
    strangers: usize,
    kinds: &[Stranger],
    (there, done): (Sender<()>, &AtomicBool),
) {
    let mut open: Vec<TcpStream> = Vec::new();
    let mut turn = 0;
    while !done.load(Ordering::Relaxed) {
        for number in open.len()..strangers {
            let Ok(mut stream) = TcpStream::connect(address) else { break };
            stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
            if let Stranger::Garbage = kinds[number % kinds.len()] {
                let _ = stream.write_all(&[0xa5; 4096]);
            }
            open.push(stream);
        }
        // Nobody need listen any more.
        let _ = there.send(());
        for (number, stream) in open.iter_mut().enumerate() {
            if let Stranger::Drips = kinds[number % kinds.len()] {
                // Those that come late begin in the middle, which is garbage too.
                let _ = stream.write_all(&[*b"epforge2".get(turn).unwrap_or(&0)]);
            }
        }
        // Whoever was turned away comes again.
        open.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            let over = matches!(stream.read(&mut [0; 64]), Ok(0))
                || stream.take_error().is_ok_and(|error| error.is_some());
            stream.set_nonblocking(false).unwrap();
            !over
        });
        turn += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The group of `ranks` that forms while `strangers` press, who are there first. No time passes for the
/// ranks: what they wait for does not end by itself. Gives whom rank 0 turned away.
fn under_pressure(
    ranks: usize,
    strangers: usize,
    kinds: &[Stranger],
) -> Result<Vec<String>, JoinError> {
    let id = UniqueId::local().unwrap();
    let done = AtomicBool::new(false);
    let join = |rank: usize| {
        stopped::clock(|| {
            let store = Store::join(&id, Member { rank, ranks }, NEVER)?;
            store.meet("formed")?;
            Ok(store.refused())
        })
    };
    let (there, pressed) = mpsc::channel();
    std::thread::scope(|scope| {
        let join = &join;
        // So many wait only where somebody takes them in.
        let root = scope.spawn(move || join(0));
        scope.spawn(|| press(id.address(), strangers, kinds, (there, &done)));
        pressed.recv().unwrap();
        let others: Vec<_> = (1..ranks).map(|rank| scope.spawn(move || join(rank))).collect();
        let others: Vec<_> = others.into_iter().map(|thread| thread.join().unwrap()).collect();
        let root = root.join().unwrap();
        done.store(true, Ordering::Relaxed);
        others.into_iter().collect::<Result<Vec<_>, _>>().and(root)
    })
}

#[test]
fn a_group_forms_while_two_idle_connections_wait() {
    let refused = under_pressure(2, 2, &[Stranger::Idle]);
    assert_eq!(refused, Ok(Vec::new()), "nobody had to go first");
}

#[test]
fn a_group_of_4_forms_while_200_strangers_press() {
    let kinds = [Stranger::Idle, Stranger::Drips, Stranger::Garbage];
    let formed = under_pressure(4, 200, &kinds);
    assert!(formed.is_ok(), "{formed:?}");
}

/// A byte now and then must not hold the deadline: the missing rank is missed while they still come.
#[test]
fn a_missing_rank_is_missed_in_time_whoever_drips() {
    const DRIPS: usize = 3000;
    let id = UniqueId::local().unwrap();
    let done = AtomicBool::new(false);
    let mut stream = TcpStream::connect(id.address()).unwrap();
    std::thread::scope(|scope| {
        let dripping = scope.spawn(|| {
            let mut drips = 0;
            while drips < DRIPS && !done.load(Ordering::Relaxed) {
                if stream.write_all(&[0]).is_err() {
                    let Ok(again) = TcpStream::connect(id.address()) else { break };
                    stream = again;
                }
                drips += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            drips
        });
        let joined = Store::join(&id, Member { rank: 0, ranks: 2 }, Duration::from_secs(1));
        done.store(true, Ordering::Relaxed);
        assert_eq!(joined.err().unwrap().to_string(), "rank 1 did not join within 1s");
        assert!(dripping.join().unwrap() < DRIPS);
    });
}

/// Nobody can take the port between the making of an id and the joining of rank 0.
#[test]
fn the_port_of_an_id_is_never_let_go() {
    let id = UniqueId::local().unwrap();
    assert!(TcpListener::bind(id.address()).is_err());
    let joined = Store::join(&id, Member { rank: 0, ranks: 1 }, NEVER);
    assert!(joined.is_ok());
}

/// A stranger that came to the port first is not taken for rank 0, and does not end the search.
#[test]
fn a_stranger_at_the_port_of_rank_0_is_passed() {
    let squatter = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let id = UniqueId::with_secret(squatter.local_addr().unwrap(), [7; 16]);
    let join = |rank: usize| Store::join(&id, Member { rank, ranks: 2 }, PATIENCE)?.meet("formed");
    std::thread::scope(|scope| {
        let join = &join;
        let caller = scope.spawn(move || join(1));
        let (mut stream, _) = squatter.accept().unwrap();
        let _ = stream.write_all(&[0; 64]);
        let root = scope.spawn(move || join(0));
        std::thread::sleep(Duration::from_millis(200));
        drop((stream, squatter));
        assert_eq!((root.join().unwrap(), caller.join().unwrap()), (Ok(()), Ok(())));
    });
}

/// A rank that another job left behind, with the same secret at the same address, is a stranger. It
/// is there first and wants the same rank.
#[test]
fn a_rank_of_another_job_does_not_join() {
    let id = UniqueId::local().unwrap();
    let of = |job: &str| id.clone().of_job(job);
    let member = |rank: usize| Member { rank, ranks: 2 };
    std::thread::scope(|scope| {
        let today = of("today");
        let root = scope.spawn(move || stopped::clock(|| Store::join(&today, member(0), NEVER)));
        // As many tries as there are pauses in that time.
        let short = Duration::from_millis(100);
        let stale = stopped::clock(|| Store::join(&of("yesterday"), member(1), short));
        let said = stale.err().unwrap().to_string();
        assert!(
            said.ends_with("does not know the secret, or belongs to another group or job"),
            "{said}"
        );
        let other = UniqueId::with_secret(([127, 0, 0, 1], 1).into(), [7; 16]);
        assert!(other.key() != UniqueId::with_secret(id.address(), [7; 16]).key());
        let own = Store::join(&of("today"), member(1), PATIENCE);
        assert!(own.is_ok() && root.join().unwrap().is_ok());
    });
}

/// A rank whose first connection broke comes again, and has its place.
#[test]
fn a_rank_that_comes_again_gets_its_place() {
    let id = UniqueId::local().unwrap();
    let join = |rank: usize| Store::join(&id, Member { rank, ranks: 3 }, PATIENCE)?.meet("formed");
    std::thread::scope(|scope| {
        let join = &join;
        let root = scope.spawn(move || join(0));
        let stream = TcpStream::connect(id.address()).unwrap();
        let (member, key) = (Member { rank: 1, ranks: 3 }, id.key());
        let first = handshake::ask(stream, &key, member, soon());
        let taken = Store::join(&id, member, PATIENCE).err().unwrap().to_string();
        let text = "wants to be rank 1 of 3; there are 3 ranks, and that rank has already joined";
        assert_eq!(taken, text);
        drop(first.ok().unwrap());
        let others = [1, 2].map(|rank| scope.spawn(move || join(rank)));
        assert_eq!(root.join().unwrap(), Ok(()));
        assert_eq!(others.map(|other| other.join().unwrap()), [Ok(()), Ok(())]);
    });
}

/// What a member brings is bounded, and so is what one that lies about it can make others hold.
#[test]
fn what_a_rank_brings_is_bounded() {
    let id = UniqueId::local().unwrap();
    let join = |rank: usize| Store::join(&id, Member { rank, ranks: 2 }, PATIENCE);
    std::thread::scope(|scope| {
        let root = scope.spawn(|| join(0).unwrap().gather("much", &[]));
        let store = join(1).unwrap();
        let error = store.gather("much", &[0; BROUGHT_MAX + 1]).unwrap_err().to_string();
        assert_eq!(error, "a rank sends 1048577 bytes, and one message holds at most 1048576");
        // Past the check of its own side. Rank 0 may hang up before it has read all of this.
        if let Links::Leaf(link) = &mut *store.links() {
            let _ = link.send(&[b"much", &[0; FRAME_MAX]], soon());
        }
        assert_eq!(root.join().unwrap(), Err(JoinError::Lost { rank: 1 }));
    });
}

/// The parent's port goes to the process of rank 0 and is never free; run again as that process.
#[test]
fn a_port_is_handed_to_the_process_of_rank_0() {
    const ID: &str = "EPFORGE_TEST_ID";
    if let Some(id) = UniqueId::from_variable(ID).unwrap() {
        let listener = id.listener().expect("it was handed over");
        let about = format!("/proc/self/fdinfo/{}", listener.as_raw_fd());
        let about = std::fs::read_to_string(about).unwrap();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = libc::c_int::from_str_radix(flags.trim(), 8).unwrap();
        assert!(flags & libc::O_CLOEXEC != 0, "it goes no further");
        let again = UniqueId::from_variable(ID).unwrap().unwrap();
        assert!(again.listener().is_none(), "only once");
        return;
    }
    let id = UniqueId::local().unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let name = "join::strangers::a_port_is_handed_to_the_process_of_rank_0";
    command.args(["--exact", name]).stdout(std::process::Stdio::null());
    id.hand_to(&mut command, ID);
    assert!(TcpListener::bind(id.address()).is_err(), "it is not free meanwhile");
    assert!(command.status().unwrap().success());
    drop(command);
    assert!(TcpListener::bind(id.address()).is_ok(), "nobody keeps it");
}

/// Processes that one process starts form a group, and when its rank 0 is gone the others form the
/// next one, at a port that was theirs from the beginning; run again as each of them.
#[test]
fn processes_form_a_group_and_the_next_one() {
    const IDS: [&str; 2] = ["EPFORGE_TEST_GROUP", "EPFORGE_TEST_NEXT"];
    let deadline = Duration::from_secs(20);
    if let Some(id) = UniqueId::from_variable(IDS[0]).unwrap() {
        let Member { rank, ranks } = Member::from_environment().unwrap();
        let store = Store::join(&id, Member { rank, ranks }, deadline).unwrap();
        let all = store.gather("ranks", &[rank as u8]).unwrap();
        assert_eq!(all, [[0], [1], [2]]);
        if rank == 0 {
            return;
        }
        while !store.has_left(0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let next = UniqueId::from_variable(IDS[1]).unwrap().unwrap();
        let member = Member { rank: rank - 1, ranks: ranks - 1 };
        Store::join(&next, member, deadline).unwrap().meet("on").unwrap();
        return;
    }
    let ids = [UniqueId::local().unwrap(), UniqueId::local().unwrap()];
    let start = |rank: usize| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "join::strangers::processes_form_a_group_and_the_next_one";
        command.args(["--exact", name]).stdout(std::process::Stdio::null());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
        for (first, (id, name)) in ids.iter().zip(IDS).enumerate() {
            match rank == first {
                true => id.hand_to(&mut command, name),
                false => id.give_to(&mut command, name),
            }
        }
        command.spawn().unwrap()
    };
    for mut process in [0, 1, 2].map(start) {
        assert!(process.wait().unwrap().success());
    }
}

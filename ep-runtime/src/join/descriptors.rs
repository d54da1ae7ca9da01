//! Passes file descriptors between processes: over unix sockets, to processes of the same user only.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::error::socket;
use super::id::unique_name;
use super::key::{CODE_BYTES, Key};
use super::room::{PROOF_TIME, Refusals, Room, Talk};
use super::{JoinError, Member, Store, clock, timed};

/// Bytes of a rank.
const RANK: usize = 4;

/// What a descriptor's code is for.
const PURPOSE: &str = "descriptor";

/// Gives `descriptor` to every other rank of `among` and returns theirs, in order; `None` for this rank.
/// All ranks make this call together, each with the ranks of its machine that take part.
pub fn exchange_descriptors(
    store: &Store,
    label: &str,
    among: Range<usize>,
    descriptor: BorrowedFd<'_>,
) -> Result<Vec<Option<OwnedFd>>, JoinError> {
    let Member { rank: own, ranks } = store.member;
    if among.start > among.end || among.end > ranks {
        let why = format!("ranks {among:?} are not among {ranks}");
        return Err(JoinError::Refused { why });
    }
    let name = unique_name()?;
    let listener = listen(&name).map_err(socket("listen for descriptors"))?;
    let names = store.gather(label, name.as_bytes())?;
    let until = super::after(store.deadline);
    let giver = Giver { key: &store.key, name: name.as_bytes(), own, descriptor };
    std::thread::scope(|scope| {
        let giving = scope.spawn(|| giver.give(&listener, among.clone(), until));
        let mut received = Vec::with_capacity(among.len());
        for (rank, name) in among.clone().zip(&names[among.clone()]) {
            received.push(match rank == own {
                true => None,
                false => Some(take(name, &store.key, own, until).map_err(|error| {
                    let during = "take a descriptor";
                    JoinError::Socket { during, reason: format!("from rank {rank}: {error}") }
                })?),
            });
        }
        match giving.join() {
            Ok(given) => given.map(|()| received),
            Err(_) => Err(JoinError::Lost { rank: own }),
        }
    })
}

/// An abstract name: nothing is left behind in the file system, whatever happens.
fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?)
}

/// What hands out a descriptor.
#[derive(Clone, Copy)]
struct Giver<'a> {
    key: &'a Key,
    /// The socket's.
    name: &'a [u8],
    own: usize,
    descriptor: BorrowedFd<'a>,
}

impl Giver<'_> {
    /// Hands the descriptor to every other one of some ranks. Whoever is of another user or of no rank gets
    /// nothing, and holds nobody up.
    fn give(
        &self,
        door: &UnixListener,
        ranks: Range<usize>,
        until: Instant,
    ) -> Result<(), JoinError> {
        let during = "give a descriptor";
        let mut room = Room::behind(door).map_err(socket(during))?;
        let mut refused = Refusals::default();
        let mut waiting: Vec<usize> = ranks.filter(|rank| *rank != self.own).collect();
        while !waiting.is_empty() {
            if clock::now() >= until {
                let reason = format!("ranks {waiting:?} did not ask for it");
                return Err(JoinError::Socket { during, reason });
            }
            let given = room.turn(until, &mut refused, || Ok(*self)).map_err(socket(during))?;
            for taker in given {
                waiting.retain(|waiting| *waiting != taker.proof);
            }
        }
        Ok(())
    }
}

/// One that asks has to say its rank, and the code that only a member of the group can make for it.
impl<S: AsRawFd> Talk<S> for Giver<'_> {
    type Proof = usize;

    fn wants(&self) -> usize {
        RANK + CODE_BYTES
    }

    fn hear(&mut self, stream: &mut S, message: &[u8]) -> Result<Option<usize>, String> {
        let told = |error: io::Error| error.to_string();
        same_user(stream).map_err(told)?;
        let (rank, code) = message.split_first_chunk::<RANK>().ok_or("says too little")?;
        if !self.key.verifies(code, PURPOSE, &[self.name, rank]) {
            return Err("is of no rank of the group".to_string());
        }
        send_descriptors(stream, &[self.descriptor.as_raw_fd()]).map_err(told)?;
        Ok(Some(u32::from_le_bytes(*rank) as usize))
    }
}

/// Asks the process that listens at an abstract name for its descriptor, again if strangers have
/// taken its time.
fn take(name: &[u8], key: &Key, own: usize, until: Instant) -> io::Result<OwnedFd> {
    loop {
        let soon = until.min(clock::now() + 2 * PROOF_TIME);
        match take_once(name, key, own, soon) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionRefused && soon < until => {
                clock::pause(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn take_once(name: &[u8], key: &Key, own: usize, until: Instant) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    same_user(&stream)?;
    let rank = (own as u32).to_le_bytes();
    let code = key.code(PURPOSE, &[name, &rank]);
    timed::write(&mut stream, &[rank.as_slice(), &code].concat(), until)?;
    timed::bound(&stream, until)?;
    receive_descriptor(&stream)
}

/// Room for this many descriptors: whatever comes is ours, and is closed if it is not the one.
const RECEIVED_MAX: usize = 8;

/// A control message with descriptors, as `CMSG_SPACE` lays it out.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptors: [RawFd; RECEIVED_MAX],
}

/// Fails unless the process at the other end belongs to the user of this one.
fn same_user(stream: &impl AsRawFd) -> io::Result<()> {
    let mut other = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most `bytes` bytes into `other`, which has its layout; geteuid has
    // no conditions.
    let (result, own) = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let value = (&raw mut other).cast();
        let result = libc::getsockopt(stream.as_raw_fd(), level, name, value, &mut bytes);
        (result, libc::geteuid())
    };
    match result {
        0 if other.uid == own => Ok(()),
        0 => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {}, and this process to user {own}", other.uid),
        )),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send_descriptors(stream: &impl AsRawFd, descriptors: &[RawFd]) -> io::Result<()> {
    let count = descriptors.len().min(RECEIVED_MAX);
    let bytes = size_of_val(&descriptors[..count]) as libc::c_uint;
    let mut control = Control {
        header: libc::cmsghdr {
            // SAFETY: the macro computes with a number.
            cmsg_len: unsafe { libc::CMSG_LEN(bytes) } as _,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        descriptors: [-1; RECEIVED_MAX],
    };
    control.descriptors[..count].copy_from_slice(&descriptors[..count]);
    // SAFETY: as above.
    let space = unsafe { libc::CMSG_SPACE(bytes) } as usize;
    let sent = with_message(&mut [1], &mut control, space, |message| {
        // SAFETY: every pointer in the header leads to a local that outlives the call, with its size.
        unsafe { libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
    });
    match sent {
        (1, _) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The one descriptor of the next message. All that came with it are closed if it is not one.
fn receive_descriptor(stream: &impl AsRawFd) -> io::Result<OwnedFd> {
    let empty = libc::cmsghdr { cmsg_len: 0 as _, cmsg_level: 0, cmsg_type: 0 };
    let mut control = Control { header: empty, descriptors: [-1; RECEIVED_MAX] };
    let (read, received) = with_message(&mut [0], &mut control, size_of::<Control>(), |message| {
        // SAFETY: as in `send_descriptors`; the call writes within the sizes given.
        unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) }
    });
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    let head = size_of::<libc::cmsghdr>();
    let is_rights = received >= head
        && (control.header.cmsg_level, control.header.cmsg_type)
            == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let bytes = if is_rights { control.header.cmsg_len - head } else { 0 };
    let count = (bytes / size_of::<RawFd>()).min(RECEIVED_MAX);
    let mut owned: Vec<OwnedFd> = control.descriptors[..count]
        .iter()
        // SAFETY: the kernel has just made these descriptors for us and nobody else knows them.
        .map(|raw| unsafe { OwnedFd::from_raw_fd(*raw) })
        .collect();
    match (read, owned.len(), owned.pop()) {
        (1, 1, Some(one)) => Ok(one),
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, count, _) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message arrived with {count} descriptors instead of one"),
        )),
    }
}

/// Makes a call with the header of a message of one byte and `control`; gives what the call gave and
/// the bytes of control data after it.
fn with_message(
    byte: &mut [u8; 1],
    control: &mut Control,
    control_bytes: usize,
    call: impl FnOnce(&mut libc::msghdr) -> isize,
) -> (isize, usize) {
    let mut slice = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a header of zeros is one without name, data and flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    message.msg_controllen = control_bytes as _;
    let result = call(&mut message);
    (result, message.msg_controllen as usize)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom};
    use std::os::fd::AsFd;

    use super::super::UniqueId;
    use super::*;
    use crate::alone::is_alone;

    /// Two nodes of two and three.
    #[test]
    fn every_rank_gets_the_files_of_the_others_of_its_node() {
        let id = UniqueId::local().unwrap();
        let folder =
            std::env::temp_dir().join(format!("epforge-descriptors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run = |rank: usize| {
            let store =
                Store::join(&id, Member { rank, ranks: 5 }, Duration::from_secs(10)).unwrap();
            let node = if rank < 2 { 0..2 } else { 2..5 };
            let path = folder.join(rank.to_string());
            std::fs::write(&path, format!("of rank {rank}")).unwrap();
            let file = File::open(&path).unwrap();
            (node.clone(), exchange_descriptors(&store, "files", node, file.as_fd()).unwrap())
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..5).map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (rank, (node, received)) in all.into_iter().enumerate() {
            assert_eq!(received.len(), node.len());
            for (from, descriptor) in node.zip(received) {
                assert_eq!(descriptor.is_none(), from == rank);
                let Some(descriptor) = descriptor else { continue };
                let (mut file, mut text) = (File::from(descriptor), String::new());
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, format!("of rank {from}"));
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn key() -> Key {
        Key::of_group(&[7; 16], "test")
    }

    /// A giver at a name of its own, and what asks it: connections that say nothing, as many as a
    /// stranger likes, do not hold up a rank. They came first, and are there when it has been served.
    #[test]
    fn idle_connections_hold_no_rank_up() {
        let name = unique_name().unwrap();
        let listener = listen(&name).unwrap();
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let idle: Vec<UnixStream> =
            (0..20).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
        let (key, file) = (key(), File::open("/dev/null").unwrap());
        let giver = Giver { key: &key, name: name.as_bytes(), own: 0, descriptor: file.as_fd() };
        let until = Instant::now() + Duration::from_secs(10);
        let is_open = |idle: &UnixStream| {
            idle.set_nonblocking(true).unwrap();
            let read = (&*idle).read(&mut [0]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        std::thread::scope(|scope| {
            let giving =
                scope.spawn(|| clock::stopped::clock(|| giver.give(&listener, 0..3, until)));
            assert!(take(name.as_bytes(), &key, 1, until).is_ok());
            assert!(idle.iter().all(is_open));
            assert!(take(name.as_bytes(), &key, 2, until).is_ok());
            assert_eq!(giving.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_wrong_code_gets_nothing() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let (key, other) = (key(), Key::of_group(&[7; 16], "another"));
        let mut giver = Giver { key: &key, name: b"name", own: 0, descriptor: file.as_fd() };
        let rank = 1u32.to_le_bytes();
        let mut ask = |key: &Key, name: &[u8], rank: [u8; 4]| {
            let code = key.code(PURPOSE, &[name, &1u32.to_le_bytes()]);
            giver.hear(&mut ours, &[rank.as_slice(), &code].concat())
        };
        let no = Err("is of no rank of the group".to_string());
        assert_eq!(ask(&other, b"name", rank), no);
        assert_eq!(ask(&key, b"another", rank), no);
        assert_eq!(ask(&key, b"name", 2u32.to_le_bytes()), no);
        assert_eq!(ask(&key, b"name", rank), Ok(Some(1)));
        assert!(receive_descriptor(&theirs).is_ok());
    }

    /// Descriptors of this process.
    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    /// Run again alone: other tests open and close descriptors meanwhile.
    #[test]
    fn descriptors_that_nobody_asked_for_are_closed() {
        if !is_alone("join::descriptors::tests::descriptors_that_nobody_asked_for_are_closed") {
            return;
        }
        let file = File::open("/dev/null").unwrap();
        for count in [0, 2, 3, RECEIVED_MAX] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send_descriptors(&ours, &vec![file.as_raw_fd(); count]).unwrap();
            let before = open_descriptors();
            let error = receive_descriptor(&theirs).unwrap_err();
            let text = format!("a message arrived with {count} descriptors instead of one");
            assert_eq!((error.to_string(), open_descriptors()), (text, before));
        }
    }
}

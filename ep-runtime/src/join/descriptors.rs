//! File descriptors from process to process: over unix sockets, to processes of the same user only.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::id::random;
use super::{JoinError, Store, socket};

/// Gives `descriptor` to every other rank and returns theirs, by rank; none for this one. All ranks
/// are on one machine.
pub fn exchange_descriptors(
    store: &Store,
    label: &str,
    descriptor: BorrowedFd<'_>,
) -> Result<Vec<Option<OwnedFd>>, JoinError> {
    let (own, ranks) = (store.member.rank, store.member.ranks);
    let name = format!("epforge-{:032x}", u128::from_le_bytes(random()?));
    let listener = listen(&name).map_err(socket("listen for descriptors"))?;
    let names = store.gather(label, name.as_bytes())?;
    let token = token(&store.secret);
    std::thread::scope(|scope| {
        let giving = scope.spawn(|| give(&listener, ranks - 1, &token, descriptor, store.deadline));
        let mut received = Vec::with_capacity(ranks);
        for (rank, name) in names.iter().enumerate() {
            received.push(match rank == own {
                true => None,
                false => Some(take(name, &token, store.deadline).map_err(|error| {
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

/// What a process of the group shows on a unix socket, beside its user.
fn token(secret: &[u8; 16]) -> [u8; 32] {
    Sha256::digest([b"descriptors of ".as_slice(), secret].concat()).into()
}

/// An abstract name: nothing is left behind in the file system, whatever happens.
fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?)
}

/// Hands the descriptor to `count` processes that show the token.
fn give(
    listener: &UnixListener,
    count: usize,
    token: &[u8; 32],
    descriptor: BorrowedFd<'_>,
    deadline: Duration,
) -> Result<(), JoinError> {
    let during = || socket("give a descriptor");
    listener.set_nonblocking(true).map_err(during())?;
    let begun = Instant::now();
    let mut given = 0;
    while given < count {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if begun.elapsed() > deadline {
                    let reason = format!("{} ranks did not ask for it", count - given);
                    return Err(JoinError::Socket { during: "give a descriptor", reason });
                }
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => return Err(during()(error)),
        };
        // Whoever is of another user or shows another token gets nothing, and ends nothing.
        if give_one(stream, token, descriptor).is_ok() {
            given += 1;
        }
    }
    Ok(())
}

fn give_one(
    mut stream: UnixStream,
    token: &[u8; 32],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(super::PROOF_TIME))?;
    same_user(&stream)?;
    let mut shown = [0; 32];
    stream.read_exact(&mut shown)?;
    if shown != *token {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    send_descriptor(&stream, descriptor)
}

/// Asks the process that listens at an abstract name for its descriptor.
fn take(name: &[u8], token: &[u8; 32], deadline: Duration) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    stream.set_read_timeout(Some(deadline))?;
    same_user(&stream)?;
    stream.write_all(token)?;
    receive_descriptor(&stream)
}

// The few socket calls that the standard library does not offer, as <sys/socket.h> of Linux
// declares them; the standard library links the C library anyway.

#[repr(C)]
struct IoSlice {
    base: *mut c_void,
    bytes: usize,
}

#[repr(C)]
struct MessageHeader {
    name: *mut c_void,
    name_bytes: c_uint,
    slices: *mut IoSlice,
    slice_count: usize,
    control: *mut c_void,
    control_bytes: usize,
    flags: c_int,
}

/// A control message with one descriptor, as `CMSG_SPACE(sizeof(int))` lays it out.
#[repr(C)]
struct DescriptorMessage {
    bytes: usize,
    level: c_int,
    kind: c_int,
    descriptor: c_int,
    padding: c_int,
}

#[repr(C)]
#[derive(Default)]
struct Credentials {
    process: c_int,
    user: c_uint,
    group: c_uint,
}

unsafe extern "C" {
    fn sendmsg(socket: c_int, message: *const MessageHeader, flags: c_int) -> isize;
    fn recvmsg(socket: c_int, message: *mut MessageHeader, flags: c_int) -> isize;
    fn getsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        bytes: *mut c_uint,
    ) -> c_int;
    fn geteuid() -> c_uint;
}

const SOL_SOCKET: c_int = 1;
const SCM_RIGHTS: c_int = 1;
const SO_PEERCRED: c_int = 17;
const MSG_NOSIGNAL: c_int = 0x4000;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;

/// `CMSG_LEN(sizeof(int))`.
const ONE_DESCRIPTOR: usize = 20;

/// Fails unless the process at the other end belongs to the user of this one.
fn same_user(stream: &UnixStream) -> io::Result<()> {
    let mut other = Credentials::default();
    let mut bytes = size_of::<Credentials>() as c_uint;
    // SAFETY: the option writes at most `bytes` bytes of `struct ucred` into `other`, which has its
    // layout; geteuid has no conditions.
    let (result, own) = unsafe {
        let value = (&raw mut other).cast();
        (getsockopt(stream.as_raw_fd(), SOL_SOCKET, SO_PEERCRED, value, &mut bytes), geteuid())
    };
    match result {
        0 if other.user == own => Ok(()),
        0 => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send_descriptor(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut byte = 1u8;
    let mut slice = IoSlice { base: (&raw mut byte).cast(), bytes: 1 };
    let mut control = DescriptorMessage {
        bytes: ONE_DESCRIPTOR,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptor: descriptor.as_raw_fd(),
        padding: 0,
    };
    let message = header(&mut slice, &mut control);
    // SAFETY: every pointer in the header leads to a local that outlives the call, with its size.
    match unsafe { sendmsg(stream.as_raw_fd(), &message, MSG_NOSIGNAL) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0u8;
    let mut slice = IoSlice { base: (&raw mut byte).cast(), bytes: 1 };
    let mut control = DescriptorMessage { bytes: 0, level: 0, kind: 0, descriptor: -1, padding: 0 };
    let mut message = header(&mut slice, &mut control);
    // SAFETY: as in `send_descriptor`; the call writes within the sizes given.
    let read = unsafe { recvmsg(stream.as_raw_fd(), &mut message, MSG_CMSG_CLOEXEC) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    let whole = control.bytes == ONE_DESCRIPTOR
        && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let raw: RawFd = control.descriptor;
    if read != 1 || !whole || raw < 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn header(slice: &mut IoSlice, control: &mut DescriptorMessage) -> MessageHeader {
    MessageHeader {
        name: std::ptr::null_mut(),
        name_bytes: 0,
        slices: slice,
        slice_count: 1,
        control: (control as *mut DescriptorMessage).cast(),
        control_bytes: size_of::<DescriptorMessage>(),
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsFd;

    use super::super::{Member, UniqueId};
    use super::*;

    #[test]
    fn the_layouts_are_those_of_linux() {
        assert_eq!(size_of::<MessageHeader>(), 56);
        assert_eq!(size_of::<DescriptorMessage>(), 24);
        assert_eq!(std::mem::offset_of!(DescriptorMessage, descriptor), 16);
        assert_eq!(size_of::<Credentials>(), 12);
    }

    #[test]
    fn every_rank_gets_the_files_of_the_others() {
        let id = UniqueId::local().unwrap();
        let folder =
            std::env::temp_dir().join(format!("epforge-descriptors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run = |rank: usize| {
            let member = Member { rank, ranks: 3 };
            let store = Store::join(&id, member, Duration::from_secs(10)).unwrap();
            let path = folder.join(rank.to_string());
            std::fs::write(&path, format!("of rank {rank}")).unwrap();
            let file = File::open(&path).unwrap();
            exchange_descriptors(&store, "files", file.as_fd()).unwrap()
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (rank, received) in all.into_iter().enumerate() {
            for (from, descriptor) in received.into_iter().enumerate() {
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

    #[test]
    fn a_wrong_token_gets_nothing() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[0; 32]).unwrap();
        let file = File::open("/dev/null").unwrap();
        let result = give_one(ours, &[1; 32], file.as_fd());
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}

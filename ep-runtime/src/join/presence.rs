//! Which processes of a group are still there.
//!
//! Each one listens on a unix socket for as long as it is in the group, and answers nothing: as long
//! as the socket exists, the system itself takes connections. So a process that is busy, or stopped
//! in a debugger, is there, and one that has died is not, however it died.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::JoinError;
use super::error::socket;
use super::id::random;

/// The sockets of a group.
pub(super) struct Presence {
    _own: UnixListener,
    /// Names of the sockets of all ranks.
    pub(super) others: Vec<Vec<u8>>,
}

impl Presence {
    /// Begins to be there; the others know it by the name.
    pub(super) fn new() -> Result<(Presence, String), JoinError> {
        let name = format!("epforge-{:032x}", u128::from_le_bytes(random()?));
        let listen =
            |name: &str| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?);
        let _own = listen(&name).map_err(socket("listen for signs of life"))?;
        Ok((Presence { _own, others: Vec::new() }, name))
    }

    /// Whether nobody listens any more. In doubt a rank is there.
    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.others.get(rank).is_some_and(|name| refuses(name))
    }
}

/// Whether nobody listens at an abstract name. It waits for nothing: a strange process may have filled
/// the queue of connections, which shows that somebody listens.
fn refuses(name: &[u8]) -> bool {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
    let Some(place) = address.sun_path.get_mut(1..=name.len()) else { return false };
    for (to, from) in place.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let bytes = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call makes a socket that nobody else knows.
    let stream = match unsafe { libc::socket(libc::AF_UNIX, kind, 0) } {
        // SAFETY: as above.
        descriptor @ 0.. => unsafe { OwnedFd::from_raw_fd(descriptor) },
        _ => return false,
    };
    // SAFETY: the call reads `bytes` bytes of `address`, which has as many.
    let connected = unsafe {
        let address = (&raw const address).cast();
        libc::connect(stream.as_raw_fd(), address, bytes as libc::socklen_t)
    };
    connected != 0 && io::Error::last_os_error().kind() == io::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many connections wait in its queue, a process is there until it is not.
    #[test]
    fn a_full_queue_is_a_sign_of_life() {
        let (presence, name) = Presence::new().unwrap();
        let other = Presence { others: vec![name.into_bytes()], ..Presence::new().unwrap().0 };
        // Each look waits in the queue itself, which holds far fewer.
        assert!((0..5000).all(|_| !other.has_left(0)));
        assert!(!other.has_left(1), "nobody knows it");
        drop(presence);
        assert!(other.has_left(0));
    }
}

//! Which processes of a group are still there.
//!
//! Each process listens on a unix socket for as long as it is in the group, and never answers: as long as
//! the socket exists, the system itself accepts connections. A process that is busy, or stopped in a
//! debugger, therefore counts as present. A process that has died does not, no matter how it died. This
//! works only among processes of one machine; nothing is known about the others.

use std::fs;
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
    /// This process.
    card: Card,
    /// Those of all ranks.
    others: Vec<Card>,
}

/// What others know a process by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Card {
    /// The name of its socket.
    name: Vec<u8>,
    /// Where such a name means something: the machine, and the network namespace there.
    place: Vec<u8>,
}

impl Card {
    /// What a process says of itself; one that says something else is nowhere.
    fn read(said: &[u8]) -> Card {
        let mut parts = said.splitn(2, |byte| *byte == b' ').map(<[u8]>::to_vec);
        Card { name: parts.next().unwrap_or_default(), place: parts.next().unwrap_or_default() }
    }
}

impl Presence {
    /// Begins to be there.
    pub(super) fn new() -> Result<Presence, JoinError> {
        let name = format!("epforge-{:032x}", u128::from_le_bytes(random()?));
        let listen =
            |name: &str| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?);
        let _own = listen(&name).map_err(socket("listen for signs of life"))?;
        let card = Card { name: name.into_bytes(), place: place() };
        Ok(Presence { _own, card, others: Vec::new() })
    }

    /// What the others are to hear of it.
    pub(super) fn says(&self) -> Vec<u8> {
        [self.card.name.as_slice(), b" ", &self.card.place].concat()
    }

    /// Takes what all ranks have said.
    pub(super) fn hear(&mut self, said: &[Vec<u8>]) {
        self.others = said.iter().map(|said| Card::read(said)).collect();
    }

    /// Whether nobody listens any more. In doubt a rank is there.
    pub(super) fn has_left(&self, rank: usize) -> bool {
        let other = self.others.get(rank).filter(|other| other.place == self.card.place);
        other.is_some_and(|other| refuses(&other.name))
    }

    /// Whether two ranks find one another by names of sockets.
    pub(super) fn are_near(&self, one: usize, other: usize) -> bool {
        let place = |rank: usize| self.others.get(rank).map(|card| &card.place);
        place(one) == place(other)
    }
}

/// The machine and the network namespace of this process, as the system names them.
fn place() -> Vec<u8> {
    let machine = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let sockets = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", machine.trim(), sockets.display()).into_bytes()
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
        let presence = Presence::new().unwrap();
        let mut other = Presence::new().unwrap();
        other.hear(&[presence.says()]);
        // Each look waits in the queue itself, which holds far fewer.
        assert!((0..5000).all(|_| !other.has_left(0)));
        assert!(!other.has_left(1), "nobody knows it");
        drop(presence);
        assert!(other.has_left(0));
    }

    /// Its name says nothing here, whether it listens there or not.
    #[test]
    fn nobody_knows_who_is_left_on_another_machine() {
        let (presence, gone) = (Presence::new().unwrap(), Presence::new().unwrap());
        let said = |name: &[u8], place: &str| [name, b" ", place.as_bytes()].concat();
        let mut other = Presence::new().unwrap();
        let name = gone.card.name.clone();
        let elsewhere = said(&name, "another net:[1]");
        other.hear(&[presence.says(), gone.says(), elsewhere.clone(), elsewhere, name]);
        drop(gone);
        let left: Vec<bool> = (0..6).map(|rank| other.has_left(rank)).collect();
        assert_eq!(left, [false, true, false, false, false, false]);
        assert!(other.are_near(0, 1) && other.are_near(2, 3));
        assert!(!other.are_near(1, 2) && !other.are_near(0, 4));
    }
}

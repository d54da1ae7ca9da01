//! Which processes of a group are still there.
//!
//! Each one listens on a unix socket for as long as it is in the group, and answers nothing: as long
//! as the socket exists, the system itself takes connections. So a process that is busy, or stopped
//! in a debugger, is there, and one that has died is not, however it died.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Duration;

use super::JoinError;
use super::error::socket;
use super::id::random;

/// How long a connection may take; the system makes it at once.
const PATIENCE: Duration = Duration::from_millis(200);

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
        let Some(name) = self.others.get(rank).cloned() else { return false };
        let (tell, told) = mpsc::channel();
        // On a thread: a strange process may have filled the queue of connections.
        let thread = std::thread::Builder::new().spawn(move || {
            let address = SocketAddr::from_abstract_name(&name);
            let connected = address.and_then(|address| UnixStream::connect_addr(&address));
            let _ = tell.send(connected.err().map(|error| error.kind()));
        });
        if thread.is_err() {
            return false;
        }
        told.recv_timeout(PATIENCE) == Ok(Some(io::ErrorKind::ConnectionRefused))
    }
}

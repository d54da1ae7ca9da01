//! Connections that have proved nothing yet. All of them are served side by side, each until its own
//! deadline. When the limit of connections is reached, the one that has waited longest is dropped. No
//! stranger can therefore make others wait.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::clock;

/// Connections that are looked at side by side.
const PLACES: usize = 256;

/// Connections taken in before those that are there get a turn.
const TAKEN_AT_ONCE: usize = 32;

/// How long one connection may take to prove itself.
pub(super) const PROOF_TIME: Duration = Duration::from_secs(2);

/// Connections turned away that are told one by one.
const TOLD: usize = 32;

/// A listener of a kind that the room takes connections from.
pub(super) trait Door: AsRawFd {
    /// Its connections.
    type Stream: Read + Write + AsRawFd;
    /// The next connection, which does not block, and where it comes from.
    fn open(&self) -> io::Result<(Self::Stream, String)>;
    /// Makes the listener one that does not block.
    fn ready(&self) -> io::Result<()>;
}

impl Door for TcpListener {
    type Stream = TcpStream;

    fn open(&self) -> io::Result<(TcpStream, String)> {
        let (stream, from) = self.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok((stream, from.to_string()))
    }

    fn ready(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl Door for UnixListener {
    type Stream = UnixStream;

    fn open(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, "a process of this machine".to_string()))
    }

    fn ready(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// What a connection has to say before it is let in.
pub(super) trait Talk<S> {
    /// What the group gets of one that is let in.
    type Proof;

    /// Bytes of the message that it has to send next.
    fn wants(&self) -> usize;

    /// Hears that message; a proof ends the talk, an error turns the connection away.
    fn hear(&mut self, stream: &mut S, message: &[u8]) -> Result<Option<Self::Proof>, String>;
}

/// Connections that were turned away.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: Vec<String>,
    more: usize,
}

impl Refusals {
    pub(super) fn add(&mut self, from: impl fmt::Display, why: &str) {
        match self.told.len() < TOLD {
            true => self.told.push(format!("{from}: {why}")),
            false => self.more += 1,
        }
    }

    /// A sentence each, and how many there were besides.
    pub(super) fn sentences(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.told.iter().cloned().chain(more).collect()
    }
}

/// A connection in the room.
struct Guest<S, T> {
    stream: S,
    from: String,
    until: Instant,
    talk: T,
    said: Vec<u8>,
}

/// A connection that has proved itself.
pub(super) struct Admitted<S, P> {
    /// It still does not block.
    pub(super) stream: S,
    pub(super) from: String,
    pub(super) proof: P,
}

/// The room behind a door.
pub(super) struct Room<'a, D: Door, T> {
    door: &'a D,
    places: usize,
    guests: Vec<Guest<D::Stream, T>>,
}

impl<'a, D: Door, T: Talk<D::Stream>> Room<'a, D, T> {
    pub(super) fn behind(door: &'a D) -> io::Result<Room<'a, D, T>> {
        door.ready()?;
        Ok(Room { door, places: PLACES, guests: Vec::new() })
    }

    /// Waits until something happens, but not past `until`; gives those who have proved themselves.
    pub(super) fn turn(
        &mut self,
        until: Instant,
        refused: &mut Refusals,
        talk: impl Fn() -> Result<T, String>,
    ) -> io::Result<Vec<Admitted<D::Stream, T::Proof>>> {
        self.wait(until)?;
        for _ in 0..TAKEN_AT_ONCE {
            match self.door.open() {
                Ok((stream, from)) => match talk() {
                    Ok(talk) => self.take_in(stream, from, talk, refused),
                    Err(why) => refused.add(from, &why),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A connection that was gone before it was taken, or no descriptor left for it:
                // nothing that ends the group. Who waits longest gives back what it holds.
                Err(error) => {
                    if !self.guests.is_empty() {
                        refused.add(self.guests.remove(0).from, &format!("made room: {error}"));
                    }
                    clock::pause(Duration::from_millis(1));
                    break;
                }
            }
        }
        Ok(self.serve(refused))
    }

    fn take_in(&mut self, stream: D::Stream, from: String, talk: T, refused: &mut Refusals) {
        if self.guests.len() >= self.places {
            refused.add(self.guests.remove(0).from, "made room for others");
        }
        let until = clock::now() + PROOF_TIME;
        self.guests.push(Guest { stream, from, until, talk, said: Vec::new() });
    }

    /// Hears everybody once.
    fn serve(&mut self, refused: &mut Refusals) -> Vec<Admitted<D::Stream, T::Proof>> {
        let now = clock::now();
        let (mut proved, mut waiting) = (Vec::new(), Vec::new());
        for mut guest in self.guests.drain(..) {
            match guest.hear() {
                Ok(Some(proof)) => {
                    proved.push(Admitted { stream: guest.stream, from: guest.from, proof });
                }
                Ok(None) if now < guest.until => waiting.push(guest),
                Ok(None) => {
                    refused.add(guest.from, "took too long to prove that it knows the secret")
                }
                Err(why) => refused.add(guest.from, &why),
            }
        }
        self.guests = waiting;
        proved
    }

    /// Waits for a word of anybody, for a new connection, for the end of somebody's time, or for
    /// `until`.
    fn wait(&self, until: Instant) -> io::Result<()> {
        let first = self.guests.iter().map(|guest| guest.until).fold(until, Instant::min);
        let left = first.saturating_duration_since(clock::now());
        // Rounded up: a wait of zero would be a busy one.
        let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
        let watched =
            |descriptor: RawFd| libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let guests = self.guests.iter().map(|guest| watched(guest.stream.as_raw_fd()));
        let mut watched: Vec<libc::pollfd> =
            std::iter::once(watched(self.door.as_raw_fd())).chain(guests).collect();
        let count = watched.len() as libc::nfds_t;
        // SAFETY: the call reads and writes `count` entries of `watched`, which outlives it.
        match unsafe { libc::poll(watched.as_mut_ptr(), count, millis) } {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl<S: Read, T: Talk<S>> Guest<S, T> {
    /// Hears what has come; nothing if more has to come.
    fn hear(&mut self) -> Result<Option<T::Proof>, String> {
        loop {
            let wanted = self.talk.wants();
            let mut some = vec![0; wanted - self.said.len()];
            match self.stream.read(&mut some) {
                Ok(0) => return Err("left without a proof".to_string()),
                Ok(read) => self.said.extend_from_slice(&some[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.said.len() == wanted {
                let message = std::mem::take(&mut self.said);
                if let Some(proof) = self.talk.hear(&mut self.stream, &message)? {
                    return Ok(Some(proof));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets in who says `in`.
    struct Word;

    impl<S> Talk<S> for Word {
        type Proof = ();

        fn wants(&self) -> usize {
            2
        }

        fn hear(&mut self, _: &mut S, message: &[u8]) -> Result<Option<()>, String> {
            if message == b"in" { Ok(Some(())) } else { Err("said something else".to_string()) }
        }
    }

    /// However many strangers are there, who proves itself is let in, and the memory is bounded.
    #[test]
    fn a_full_room_makes_room() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut room = Room::behind(&listener).unwrap();
        room.places = 4;
        let mut refused = Refusals::default();
        let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut member = TcpStream::connect(address).unwrap();
        member.write_all(b"in").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut proved = Vec::new();
        while proved.is_empty() && Instant::now() < until {
            proved = room.turn(until, &mut refused, || Ok(Word)).unwrap();
            assert!(room.guests.len() <= 4);
        }
        assert_eq!(proved.len(), 1);
        let said = refused.sentences();
        assert!(said.len() >= 16 && said[0].ends_with("made room for others"), "{said:?}");
        drop(idle);
    }

    /// Who says nothing has its time, and no more.
    #[test]
    fn an_idle_connection_is_turned_away_in_time() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut room = Room::<_, Word>::behind(&listener).unwrap();
        let mut refused = Refusals::default();
        let _idle = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        clock::stopped::clock(|| {
            let until = clock::now() + 2 * PROOF_TIME;
            let mut told = || {
                room.turn(until, &mut refused, || Ok(Word)).unwrap();
                (room.guests.len(), refused.sentences())
            };
            assert_eq!(told(), (1, Vec::new()));
            clock::stopped::advance(PROOF_TIME - Duration::from_nanos(1));
            assert_eq!(told(), (1, Vec::new()));
            clock::stopped::advance(Duration::from_nanos(1));
            let (guests, said) = told();
            assert_eq!((guests, said.len()), (0, 1));
            assert!(
                said[0].ends_with("took too long to prove that it knows the secret"),
                "{said:?}"
            );
        });
    }

    #[test]
    fn what_is_told_of_strangers_is_bounded() {
        let mut refused = Refusals::default();
        (0..1000).for_each(|number| refused.add(number, "says nothing"));
        let said = refused.sentences();
        assert_eq!((said.len(), said[TOLD].as_str()), (TOLD + 1, "and 968 more"));
    }
}

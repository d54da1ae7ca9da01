//! How the processes of a group find one another: a small store over TCP, with a secret.
//!
//! Rank 0 listens at the address of the group's [`UniqueId`]; the others connect, and both ends
//! prove that they know the id's secret before anything else is said. After that the only operation
//! is [`Store::gather`]: every rank brings some bytes under the same label and gets those of all
//! ranks.

mod descriptors;
mod handshake;
mod id;
mod presence;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use descriptors::exchange_descriptors;
pub use id::{ID_VARIABLE, Member, SECRET_VARIABLE, UniqueId};

use handshake::Refusal;
use presence::Presence;

/// Largest message of a gather; a wrong length must not become an allocation.
const MESSAGE_MAX: usize = 1 << 20;

/// How long one connection may take to prove itself before the next one is looked at.
const PROOF_TIME: Duration = Duration::from_secs(2);

/// Why processes did not come together, or came apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinError {
    /// Ranks that did not come before the deadline.
    Missing {
        /// Which.
        ranks: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
        /// What some of them said last that they do.
        doing: Vec<(usize, String)>,
    },
    /// The other end does not know the secret, or wants another group.
    Refused {
        /// Why, as a sentence.
        why: String,
    },
    /// A rank was there and is gone.
    Lost {
        /// Which.
        rank: usize,
    },
    /// Two ranks are at different steps.
    Order {
        /// A rank.
        rank: usize,
        /// What it does.
        does: String,
        /// What rank 0 does.
        root_does: String,
    },
    /// An address, id or environment variable is not usable.
    Address {
        /// Why, as a sentence.
        why: String,
    },
    /// A socket failed.
    Socket {
        /// What it was used for.
        during: &'static str,
        /// What the system says.
        reason: String,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Missing { ranks, waited, doing } => {
                let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{plural} {} did not come within {waited:?}", names.join(", "))?;
                doing.iter().try_for_each(|(rank, what)| {
                    write!(f, "; what rank {rank} said last is `{what}`")
                })
            }
            JoinError::Refused { why } | JoinError::Address { why } => f.write_str(why),
            JoinError::Lost { rank } => write!(f, "rank {rank} has left the group"),
            JoinError::Order { rank, does, root_does } => {
                write!(f, "rank {rank} is at `{does}` while rank 0 is at `{root_does}`")
            }
            JoinError::Socket { during, reason } => write!(f, "{during}: {reason}"),
        }
    }
}

impl std::error::Error for JoinError {}

fn socket(during: &'static str) -> impl Fn(io::Error) -> JoinError {
    move |error| JoinError::Socket { during, reason: error.to_string() }
}

/// The connections of one rank.
pub struct Store {
    member: Member,
    secret: [u8; 16],
    deadline: Duration,
    links: Mutex<Links>,
    /// What each rank said last that it does; leaves hear rank 0 alone.
    said: Mutex<Vec<String>>,
    presence: Presence,
    refused: Vec<Refusal>,
}

/// Rank 0 has a connection to every other rank, they have one to it.
enum Links {
    Root(Vec<TcpStream>),
    Leaf(TcpStream),
}

impl Store {
    /// Joins the group of `id`. Fails when not everyone has come after `deadline`, which is also
    /// the longest wait of every later step.
    pub fn join(id: &UniqueId, member: Member, deadline: Duration) -> Result<Store, JoinError> {
        if member.rank >= member.ranks {
            let why = format!("a group of {} ranks has no rank {}", member.ranks, member.rank);
            return Err(JoinError::Address { why });
        }
        let mut refused = Vec::new();
        let links = match member.rank {
            0 => {
                let listener = TcpListener::bind(id.address()).map_err(socket("listen"))?;
                Links::Root(welcome(&listener, id, member, deadline, &mut refused)?)
            }
            _ => Links::Leaf(call(id, member, deadline)?),
        };
        let said = Mutex::new(vec![String::new(); member.ranks]);
        let links = Mutex::new(links);
        let secret = *id.secret();
        let (presence, name) = Presence::new()?;
        let mut store = Store { member, secret, deadline, links, said, presence, refused };
        store.presence.others = store.gather("join", name.as_bytes())?;
        Ok(store)
    }

    /// Whether the process of a rank is gone, or has left the group. On one machine, as the ranks of
    /// a window are.
    pub fn has_left(&self, rank: usize) -> bool {
        rank != self.member.rank && self.presence.has_left(rank)
    }

    /// This process.
    pub fn member(&self) -> Member {
        self.member
    }

    /// Connections that rank 0 has turned away, a sentence each.
    pub fn refused(&self) -> Vec<String> {
        self.refused.iter().map(Refusal::to_string).collect()
    }

    /// Brings `bytes` and gets what every rank brought, by rank. `label` says what this is about;
    /// ranks that come with different labels all get [`JoinError::Order`].
    pub fn gather(&self, label: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, JoinError> {
        match &mut *self.links() {
            Links::Root(peers) => self.gather_as_root(peers, label, bytes),
            Links::Leaf(root) => {
                send(root, &[label.as_bytes(), bytes]).map_err(|_| JoinError::Lost { rank: 0 })?;
                let parts = self.hear(root, 0).map_err(|error| self.silent_root(&error))?;
                decode_answer(parts)
            }
        }
    }

    /// Says what this process does next, for the errors of those that wait for it. Whoever is gone
    /// hears nothing, and is found by the next gather.
    pub fn say(&self, doing: &str) {
        let parts = [doing.as_bytes()];
        match &mut *self.links() {
            Links::Root(peers) => peers.iter_mut().for_each(|peer| drop(send(peer, &parts))),
            Links::Leaf(root) => drop(send(root, &parts)),
        }
    }

    /// The next message of a rank that is more than a word about what it does.
    fn hear(&self, from: &mut TcpStream, rank: usize) -> io::Result<Vec<Vec<u8>>> {
        loop {
            let mut parts = receive(from)?;
            if parts.len() != 1 {
                return Ok(parts);
            }
            let said = String::from_utf8_lossy(&parts.pop().unwrap_or_default()).into_owned();
            self.said()[rank] = said;
        }
    }

    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, ranks: Vec<usize>) -> JoinError {
        let said = self.said();
        let doing = ranks.iter().map(|rank| (*rank, said[*rank].clone()));
        let doing = doing.filter(|(_, what)| !what.is_empty()).collect();
        JoinError::Missing { ranks, waited: self.deadline, doing }
    }

    /// Waits until every rank has come here.
    pub fn meet(&self, label: &str) -> Result<(), JoinError> {
        self.gather(label, &[]).map(|_| ())
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gather_as_root(
        &self,
        peers: &mut [TcpStream],
        label: &str,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        let result = self.collect(peers, label, bytes);
        let answer = encode_answer(&result);
        let parts: Vec<&[u8]> = answer.iter().map(Vec::as_slice).collect();
        let mut lost = None;
        for (index, peer) in peers.iter_mut().enumerate() {
            if send(peer, &parts).is_err() {
                lost = lost.or(Some(JoinError::Lost { rank: index + 1 }));
            }
        }
        match (result, lost) {
            (Ok(_), Some(lost)) => Err(lost),
            (result, _) => result,
        }
    }

    /// What every rank brought. Ranks are read in order, each until the deadline.
    fn collect(
        &self,
        peers: &mut [TcpStream],
        label: &str,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        let begun = Instant::now();
        let mut all = vec![bytes.to_vec()];
        let mut missing = Vec::new();
        for (index, peer) in peers.iter_mut().enumerate() {
            let rank = index + 1;
            let left = self.deadline.saturating_sub(begun.elapsed());
            // A zero timeout would mean to wait for ever.
            let left = left.max(Duration::from_millis(1));
            peer.set_read_timeout(Some(left)).map_err(socket("set a deadline"))?;
            let mut parts = match self.hear(peer, rank) {
                Ok(parts) if parts.len() == 2 => parts,
                Err(error) if is_timeout(&error) => {
                    missing.push(rank);
                    continue;
                }
                _ => return Err(JoinError::Lost { rank }),
            };
            let brought = parts.pop().unwrap_or_default();
            let does = String::from_utf8_lossy(&parts.pop().unwrap_or_default()).into_owned();
            if does != label {
                return Err(JoinError::Order { rank, does, root_does: label.to_string() });
            }
            all.push(brought);
        }
        match missing.is_empty() {
            true => Ok(all),
            false => Err(self.missing(missing)),
        }
    }

    fn silent_root(&self, error: &io::Error) -> JoinError {
        match is_timeout(error) {
            true => self.missing(vec![0]),
            false => JoinError::Lost { rank: 0 },
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Rank 0: waits for all the others; connections that prove nothing are turned away.
fn welcome(
    listener: &TcpListener,
    id: &UniqueId,
    member: Member,
    deadline: Duration,
    refused: &mut Vec<Refusal>,
) -> Result<Vec<TcpStream>, JoinError> {
    listener.set_nonblocking(true).map_err(socket("listen"))?;
    let begun = Instant::now();
    let mut peers: Vec<Option<TcpStream>> = (1..member.ranks).map(|_| None).collect();
    while peers.iter().any(Option::is_none) {
        if begun.elapsed() > deadline {
            let missing = (1..member.ranks).filter(|rank| peers[rank - 1].is_none());
            let ranks = missing.collect();
            return Err(JoinError::Missing { ranks, waited: deadline, doing: Vec::new() });
        }
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => return Err(socket("accept")(error)),
        };
        let taken = |rank: usize| rank == 0 || peers.get(rank - 1).is_none_or(Option::is_some);
        match handshake::answer(stream, id, member.ranks, taken) {
            Ok((rank, stream)) => peers[rank - 1] = Some(stream),
            Err(why) => refused.push(Refusal { from, why }),
        }
    }
    Ok(peers.into_iter().flatten().collect())
}

/// Any other rank: connects to rank 0, which may not listen yet.
fn call(id: &UniqueId, member: Member, deadline: Duration) -> Result<TcpStream, JoinError> {
    let begun = Instant::now();
    loop {
        let left = deadline.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let doing = Vec::new();
            return Err(JoinError::Missing { ranks: vec![0], waited: deadline, doing });
        }
        match TcpStream::connect_timeout(&id.address(), left) {
            Ok(stream) => {
                let stream = handshake::ask(stream, id, member)?;
                // Rank 0 waits for the slowest up to the deadline before it can answer.
                let patience = deadline.saturating_add(PROOF_TIME);
                stream.set_read_timeout(Some(patience)).map_err(socket("set a deadline"))?;
                return Ok(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Sends parts as one message: their number, then each with its length.
fn send(stream: &mut TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    let mut message = (parts.len() as u32).to_le_bytes().to_vec();
    for part in parts {
        message.extend((part.len() as u32).to_le_bytes());
        message.extend_from_slice(part);
    }
    stream.write_all(&message)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<Vec<u8>>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a message of impossible size");
    let number = |stream: &mut TcpStream| {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes)?;
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| wrong())
    };
    let count = number(stream)?;
    if count > MESSAGE_MAX {
        return Err(wrong());
    }
    let mut parts = Vec::new();
    for _ in 0..count {
        let bytes = number(stream)?;
        if bytes > MESSAGE_MAX {
            return Err(wrong());
        }
        let mut part = vec![0; bytes];
        stream.read_exact(&mut part)?;
        parts.push(part);
    }
    Ok(parts)
}

/// Rank 0's answer: `ok` and what all brought, or the error that all get.
fn encode_answer(result: &Result<Vec<Vec<u8>>, JoinError>) -> Vec<Vec<u8>> {
    let text = |word: &str| word.as_bytes().to_vec();
    match result {
        Ok(all) => [text("ok")].into_iter().chain(all.iter().cloned()).collect(),
        Err(JoinError::Order { rank, does, root_does }) => {
            vec![text("order"), text(&rank.to_string()), text(does), text(root_does)]
        }
        Err(JoinError::Lost { rank }) => vec![text("lost"), text(&rank.to_string())],
        Err(JoinError::Missing { ranks, waited, doing }) => {
            let millis = waited.as_millis().to_string();
            let said = |rank: &usize| doing.iter().find(|(of, _)| of == rank);
            let ranks = ranks.iter().flat_map(|rank| {
                [text(&rank.to_string()), text(said(rank).map_or("", |(_, what)| what))]
            });
            [text("missing"), text(&millis)].into_iter().chain(ranks).collect()
        }
        Err(other) => vec![text("failed"), text(&other.to_string())],
    }
}

fn decode_answer(parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, JoinError> {
    let words: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse().ok()).unwrap_or(0);
    let word = |index: usize| words.get(index).map_or(String::new(), |word| word.to_string());
    match words.first().map(|word| word.as_ref()) {
        Some("ok") => Ok(parts.into_iter().skip(1).collect()),
        Some("order") => {
            Err(JoinError::Order { rank: number(1), does: word(2), root_does: word(3) })
        }
        Some("lost") => Err(JoinError::Lost { rank: number(1) }),
        Some("missing") => {
            let ranks = (2..words.len()).step_by(2);
            let doing = ranks.clone().map(|index| (number(index), word(index + 1)));
            Err(JoinError::Missing {
                ranks: ranks.map(number).collect(),
                waited: Duration::from_millis(number(1) as u64),
                doing: doing.filter(|(_, what)| !what.is_empty()).collect(),
            })
        }
        _ => Err(JoinError::Socket { during: "gather at rank 0", reason: word(1) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> UniqueId {
        UniqueId::local().unwrap()
    }

    /// Runs `body` as every rank of a group, each on a thread.
    fn together<T: Send>(
        ranks: usize,
        deadline: Duration,
        body: impl Fn(Store) -> T + Sync,
    ) -> Vec<T> {
        let id = id();
        std::thread::scope(|scope| {
            let start = |rank| {
                let (id, body) = (id.clone(), &body);
                scope.spawn(move || {
                    body(Store::join(&id, Member { rank, ranks }, deadline).unwrap())
                })
            };
            let threads: Vec<_> = (0..ranks).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn everyone_gets_what_everyone_brought() {
        let results = together(3, SOON, |store| {
            store.meet("start").unwrap();
            store.gather("numbers", &[store.member().rank as u8]).unwrap()
        });
        assert_eq!(results, vec![vec![vec![0], vec![1], vec![2]]; 3]);
        assert_eq!(together(1, SOON, |store| store.gather("alone", b"x").unwrap()), [[b"x"]]);
    }

    #[test]
    fn a_missing_rank_is_named() {
        let deadline = Duration::from_millis(80);
        let joined = Store::join(&id(), Member { rank: 0, ranks: 2 }, deadline);
        let error = joined.err().unwrap();
        assert_eq!(error.to_string(), "rank 1 did not come within 80ms");
        let joined = Store::join(&id(), Member { rank: 1, ranks: 2 }, deadline);
        assert_eq!(joined.err().unwrap().to_string(), "rank 0 did not come within 80ms");
    }

    #[test]
    fn who_has_left_is_known_to_all() {
        let meeting = std::sync::Barrier::new(3);
        let results = together(3, SOON, |store| {
            let member = store.member().rank;
            let before = (0..3).any(|rank| store.has_left(rank));
            meeting.wait();
            // The socket of rank 1 closes, as when its process ends.
            let store = Some(store).filter(|_| member != 1);
            meeting.wait();
            let left = store.as_ref().map(|store| [0, 1, 2].map(|rank| store.has_left(rank)));
            meeting.wait();
            (before, left)
        });
        let left = Some([false, true, false]);
        assert_eq!(results, [(false, left), (false, None), (false, left)]);
    }

    /// Rank 2 says what it does and is late: all the others hear it, also through rank 0.
    #[test]
    fn what_a_late_rank_does_is_named_everywhere() {
        let deadline = Duration::from_millis(300);
        let (late, wake) = std::sync::mpsc::channel::<()>();
        let wake = Mutex::new(Some(wake));
        let results = together(3, deadline, |store| {
            store.meet("start").unwrap();
            if store.member().rank == 2 {
                store.say("load Layout");
                store.say("compile NvlDispatch");
                // Until the others have given up.
                let wake = wake.lock().unwrap().take().unwrap();
                let _ = wake.recv_timeout(SOON);
                return String::new();
            }
            let error = store.meet("ready").unwrap_err().to_string();
            if store.member().rank == 0 {
                late.send(()).unwrap();
            }
            error
        });
        let text =
            "rank 2 did not come within 300ms; what rank 2 said last is `compile NvlDispatch`";
        assert_eq!(results, [text, text, ""]);
    }

    #[test]
    fn a_rank_that_does_something_else_is_named_everywhere() {
        let results = together(3, SOON, |store| {
            let label = if store.member().rank == 2 { "leave" } else { "map" };
            store.meet(label).unwrap_err().to_string()
        });
        assert_eq!(results, vec!["rank 2 is at `leave` while rank 0 is at `map`"; 3]);
    }

    #[test]
    fn a_rank_that_has_gone_is_named() {
        let results = together(3, SOON, |store| match store.member().rank {
            1 => None,
            _ => Some(store.meet("next").unwrap_err()),
        });
        assert_eq!(results[0], Some(JoinError::Lost { rank: 1 }));
        assert_eq!(results[2], Some(JoinError::Lost { rank: 1 }));
    }

    #[test]
    fn a_stranger_is_turned_away() {
        let id = id();
        let stranger = UniqueId::with_secret(id.address(), [7; 16]);
        std::thread::scope(|scope| {
            let root = scope
                .spawn(|| Store::join(&id, Member { rank: 0, ranks: 2 }, SOON).unwrap().refused());
            let refused = Store::join(&stranger, Member { rank: 1, ranks: 2 }, SOON);
            assert!(matches!(refused.err(), Some(JoinError::Refused { .. })));
            let wrong = Store::join(&id, Member { rank: 2, ranks: 3 }, SOON);
            assert!(matches!(wrong.err(), Some(JoinError::Refused { .. })));
            let _second = Store::join(&id, Member { rank: 1, ranks: 2 }, SOON).unwrap();
            assert_eq!(root.join().unwrap().len(), 2);
        });
    }
}

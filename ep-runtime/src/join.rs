//! How the processes of a group find one another: a small store over TCP, with a secret.
//!
//! Rank 0 listens at the address of the group's [`UniqueId`]. The others connect, and both ends first prove
//! that they know the id's secret. After that the only operation is [`Store::gather`]: every rank
//! contributes some bytes under the same label and gets those of all ranks. `SECURITY.md` states the
//! guarantees.

mod answer;
mod clock;
mod descriptors;
mod error;
#[cfg(test)]
mod fuzz;
mod gate;
mod handed;
mod handshake;
mod id;
mod key;
mod link;
mod presence;
mod room;
#[cfg(test)]
mod strangers;
mod timed;

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use descriptors::exchange_descriptors;
pub use error::JoinError;
pub use id::{ID_VARIABLE, JOB_VARIABLE, Member, SECRET_VARIABLE, UniqueId};
pub(crate) use id::{NAME_PREFIX, unique_name};

use crate::backend::BackendError;
use gate::{Meeting, soon};
use key::Key;
use link::Link;
use presence::Presence;
use room::{PROOF_TIME, Refusals};

/// Most bytes that one rank brings to a gather.
const BROUGHT_MAX: usize = 1 << 20;

/// Most bytes of a label, and of a word about what a rank does.
const WORD_MAX: usize = 1 << 10;

/// Most bytes of a frame with what one rank brings, its label and their lengths.
const FRAME_MAX: usize = BROUGHT_MAX + WORD_MAX + 64;

/// The connections of one rank.
pub struct Store {
    member: Member,
    key: Key,
    deadline: Duration,
    links: Mutex<Links>,
    /// What each rank said last that it does; leaves hear rank 0 alone.
    said: Mutex<Vec<String>>,
    presence: Presence,
    refused: Refusals,
}

/// Rank 0 has a connection to every other rank, they have one to it.
enum Links {
    Root(Vec<Link>),
    Leaf(Link),
}

impl From<JoinError> for BackendError {
    fn from(error: JoinError) -> BackendError {
        BackendError::Group { what: error.to_string() }
    }
}

impl Store {
    /// Joins the group of `id`. Fails if a rank has not joined after `deadline`, which is also the longest
    /// wait of every later step.
    pub fn join(id: &UniqueId, member: Member, deadline: Duration) -> Result<Store, JoinError> {
        if member.rank >= member.ranks {
            let why = format!("a group of {} ranks has no rank {}", member.ranks, member.rank);
            return Err(JoinError::Address { why });
        }
        let (key, until) = (id.key(), after(deadline));
        let meeting = Meeting { key: &key, member, deadline, until };
        let mut refused = Refusals::default();
        let links = match member.rank {
            0 => Links::Root(meeting.welcome(&meeting.listen(id)?, &mut refused)?),
            _ => Links::Leaf(meeting.call(id)?),
        };
        let said = Mutex::new(vec![String::new(); member.ranks]);
        let links = Mutex::new(links);
        let presence = Presence::new()?;
        let mut store = Store { member, key, deadline, links, said, presence, refused };
        // The last one may have come in the last moment.
        let all = store.gather_until("join", &store.presence.says(), until + PROOF_TIME)?;
        store.presence.hear(&all);
        Ok(store)
    }

    /// The ranks of this rank's node, in a group of `nodes` nodes with the same number of ranks each,
    /// numbered node by node. All ranks make this call together. All fail if two of them pass different
    /// numbers of nodes, or if the ranks of some node are not on one machine.
    pub fn node(&self, nodes: usize) -> Result<Range<usize>, JoinError> {
        let Member { rank, ranks } = self.member;
        // Another number is another step, which the store names.
        self.meet(&format!("join {nodes} nodes"))?;
        if nodes == 0 || !ranks.is_multiple_of(nodes) {
            return Err(JoinError::Uneven { ranks, nodes });
        }
        let each = ranks / nodes;
        let first = |rank: usize| rank / each * each;
        match (0..ranks).find(|other| !self.presence.are_near(first(*other), *other)) {
            Some(other) => Err(JoinError::Apart { node: other / each, first: first(other), other }),
            None => Ok(first(rank)..first(rank) + each),
        }
    }

    /// The first rank that is on another machine than rank 0, if there is one. All ranks find the same.
    pub(crate) fn elsewhere(&self) -> Option<usize> {
        (1..self.member.ranks).find(|rank| !self.presence.are_near(0, *rank))
    }

    /// Whether the process of a rank has ended, or has left the group. A rank on another machine always
    /// counts as present, because its state is unknown.
    pub fn has_left(&self, rank: usize) -> bool {
        rank != self.member.rank && self.presence.has_left(rank)
    }

    /// This process as a member of the group.
    pub fn member(&self) -> Member {
        self.member
    }

    /// Connections that rank 0 has rejected: one sentence for each of the first ones, and the number of the
    /// others.
    pub fn refused(&self) -> Vec<String> {
        self.refused.sentences()
    }

    /// Sends `bytes` and receives the bytes of every rank, by rank. `label` names the step. If ranks pass
    /// different labels, all of them get [`JoinError::Order`].
    pub fn gather(&self, label: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, JoinError> {
        self.gather_until(label, bytes, after(self.deadline))
    }

    /// Sends a number and receives that of every rank, as [`Store::gather`] does.
    pub(crate) fn gather_numbers(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let number = |(rank, bytes): (usize, Vec<u8>)| {
            bytes.try_into().map(u64::from_le_bytes).map_err(|bytes: Vec<u8>| BackendError::Group {
                what: format!("rank {rank} sent {} bytes, and a number has 8", bytes.len()),
            })
        };
        self.gather(label, &value.to_le_bytes())?.into_iter().enumerate().map(number).collect()
    }

    fn gather_until(
        &self,
        label: &str,
        bytes: &[u8],
        until: Instant,
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        if bytes.len() > BROUGHT_MAX {
            return Err(JoinError::TooLong { bytes: bytes.len(), most: BROUGHT_MAX });
        }
        let label = cut(label);
        match &mut *self.links() {
            Links::Root(peers) => self.gather_as_root(peers, label, bytes, until),
            Links::Leaf(root) => {
                let sent = root.send(&[label.as_bytes(), bytes], until);
                sent.map_err(|_| JoinError::Lost { rank: 0 })?;
                // Rank 0 waits for the slowest up to the deadline before it can answer.
                let most = self.member.ranks.saturating_mul(FRAME_MAX);
                let parts = self.hear(root, 0, most, until + PROOF_TIME);
                answer::decode(parts.map_err(|error| self.silent_root(&error))?, self.member.ranks)
            }
        }
    }

    /// Announces what this process does next, for the errors of processes that wait for it. The next gather
    /// detects a process that has ended.
    pub fn say(&self, doing: &str) {
        let parts = [cut(doing).as_bytes()];
        match &mut *self.links() {
            Links::Root(peers) => {
                peers.iter_mut().for_each(|peer| drop(peer.send(&parts, soon())));
            }
            Links::Leaf(root) => drop(root.send(&parts, soon())),
        }
    }

    /// The next message of a rank that is more than a word about what it does.
    fn hear(
        &self,
        from: &mut Link,
        rank: usize,
        most: usize,
        until: Instant,
    ) -> io::Result<Vec<Vec<u8>>> {
        loop {
            let mut parts = from.receive(most, until)?;
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

    /// Waits until every rank has made this call.
    pub fn meet(&self, label: &str) -> Result<(), JoinError> {
        self.gather(label, &[]).map(|_| ())
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gather_as_root(
        &self,
        peers: &mut [Link],
        label: &str,
        bytes: &[u8],
        until: Instant,
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        let result = self.collect(peers, label, bytes, until);
        let answer = answer::encode(&result);
        let parts: Vec<&[u8]> = answer.iter().map(Vec::as_slice).collect();
        let mut lost = None;
        let until = soon();
        for (index, peer) in peers.iter_mut().enumerate() {
            if peer.send(&parts, until).is_err() {
                lost = lost.or(Some(JoinError::Lost { rank: index + 1 }));
            }
        }
        match (result, lost) {
            (Ok(_), Some(lost)) => Err(lost),
            (result, _) => result,
        }
    }

    /// What every rank brought. Ranks are read in order, all until the same moment.
    fn collect(
        &self,
        peers: &mut [Link],
        label: &str,
        bytes: &[u8],
        until: Instant,
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        let mut all = vec![bytes.to_vec()];
        let mut missing = Vec::new();
        for (index, peer) in peers.iter_mut().enumerate() {
            let rank = index + 1;
            // What has come in time is heard, however long the ranks before it took.
            let until = until.max(clock::now() + Duration::from_millis(1));
            let mut parts = match self.hear(peer, rank, FRAME_MAX, until) {
                Ok(parts) if parts.len() == 2 => parts,
                Err(error) if timed::is_timeout(&error) => {
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
        match error.kind() {
            _ if timed::is_timeout(error) => self.missing(vec![0]),
            io::ErrorKind::InvalidData => {
                JoinError::Socket { during: "hear rank 0", reason: error.to_string() }
            }
            _ => JoinError::Lost { rank: 0 },
        }
    }
}

/// The moment when a wait is over; one that is too far to be told comes in a year.
fn after(deadline: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    clock::now() + deadline.min(YEAR)
}

/// A label or word, as long as a frame allows.
fn cut(word: &str) -> &str {
    let mut end = word.len().min(WORD_MAX);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    &word[..end]
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
        assert_eq!(error.to_string(), "rank 1 did not join within 80ms");
        let joined = Store::join(&id(), Member { rank: 1, ranks: 2 }, deadline);
        assert_eq!(joined.err().unwrap().to_string(), "rank 0 did not join within 80ms");
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
        let deadline = Duration::from_secs(3);
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
        let text = "rank 2 did not join within 3s; what rank 2 said last is `compile NvlDispatch`";
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
    fn ranks_are_numbered_node_by_node() {
        let nodes = together(4, SOON, |store| store.node(2).unwrap());
        assert_eq!(nodes, [0..2, 0..2, 2..4, 2..4]);
        assert_eq!(together(3, SOON, |store| store.node(1).unwrap()), vec![0..3; 3]);
        let said = |ranks: usize, nodes: fn(usize) -> usize| {
            together(ranks, SOON, move |store| {
                store.node(nodes(store.member().rank)).unwrap_err().to_string()
            })
        };
        assert_eq!(
            said(3, |_| 2),
            vec!["3 ranks cannot form 2 nodes with the same number of ranks"; 3]
        );
        assert_eq!(
            said(2, |_| 0),
            vec!["2 ranks cannot form 0 nodes with the same number of ranks"; 2]
        );
        let text = "rank 1 is at `join 2 nodes` while rank 0 is at `join 4 nodes`";
        assert_eq!(said(4, |rank| if rank == 1 { 2 } else { 4 }), vec![text; 4]);
    }

    /// Rank 2 says that it is elsewhere: all hear which node has it.
    #[test]
    fn a_node_is_one_machine() {
        let said = together(4, SOON, |mut store| {
            let own = match store.member().rank {
                2 => b"a-name another-machine".to_vec(),
                _ => store.presence.says(),
            };
            store.presence.hear(&store.gather("places", &own).unwrap());
            [1, 2, 4].map(|nodes| store.node(nodes).map_err(|error| error.to_string()).err())
        });
        let apart = |rank: usize, first: usize, node: usize| {
            Some(format!(
                "ranks {first} and {rank} both belong to node {node} and are on different machines or \
                in different network namespaces: number ranks node by node, with the same number on \
                each node"
            ))
        };
        assert_eq!(said, vec![[apart(2, 0, 0), apart(3, 2, 1), None]; 4]);
    }

    #[test]
    fn a_stranger_is_turned_away() {
        let id = id();
        let stranger = UniqueId::with_secret(id.address(), [7; 16]);
        std::thread::scope(|scope| {
            let root = scope
                .spawn(|| Store::join(&id, Member { rank: 0, ranks: 2 }, SOON).unwrap().refused());
            let short = Duration::from_millis(100);
            // It is turned away as often as it pauses in that time.
            let refused = clock::stopped::clock(|| {
                Store::join(&stranger, Member { rank: 1, ranks: 2 }, short)
            });
            let text = format!(
                "rank 0 did not join within 100ms: the process that listens at {} does not know the \
                secret, or belongs to another group or job",
                id.address()
            );
            assert_eq!(refused.err().unwrap().to_string(), text);
            // Rank 0 has proved itself, so that its word is final.
            let wrong = Store::join(&id, Member { rank: 2, ranks: 3 }, SOON);
            let text = "wants to be rank 2 of 3; there are 2 ranks, and there is no such rank";
            assert_eq!(wrong.err().unwrap().to_string(), text);
            let _second = Store::join(&id, Member { rank: 1, ranks: 2 }, SOON).unwrap();
            assert!(root.join().unwrap().len() >= 2);
        });
    }
}

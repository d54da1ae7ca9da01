//! How a group comes together: rank 0 opens, the others call, and strangers are in nobody's way.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::error::socket;
use super::handshake::{self, Hearing, Proved, Unwelcome};
use super::key::Key;
use super::link::Link;
use super::room::{PROOF_TIME, Refusals, Room};
use super::{JoinError, Member, UniqueId, answer, clock};

/// How long to wait before the next try, for a port or for rank 0.
const PAUSE: Duration = Duration::from_millis(5);

/// What is to come together, and until when.
#[derive(Clone, Copy)]
pub(super) struct Meeting<'a> {
    pub(super) key: &'a Key,
    pub(super) member: Member,
    pub(super) deadline: Duration,
    pub(super) until: Instant,
}

impl Meeting<'_> {
    fn missing(&self, ranks: Vec<usize>) -> JoinError {
        JoinError::Missing { ranks, waited: self.deadline, doing: Vec::new() }
    }

    /// The listener of rank 0: the one that has been the id's all along, or a new one. Somebody else
    /// may have the port for a while.
    pub(super) fn listen(&self, id: &UniqueId) -> Result<TcpListener, JoinError> {
        if let Some(listener) = id.listener() {
            return Ok(listener);
        }
        loop {
            match TcpListener::bind(id.address()) {
                Ok(listener) => return Ok(listener),
                Err(error) if error.kind() == ErrorKind::AddrInUse && !self.is_over() => {
                    clock::pause(PAUSE);
                }
                Err(error) => return Err(socket("listen")(error)),
            }
        }
    }

    /// Rank 0: waits for all the others, whose connections come in the order of their ranks.
    /// Whoever proves nothing is turned away. If some do not come, the others hear which.
    pub(super) fn welcome(
        &self,
        listener: &TcpListener,
        refused: &mut Refusals,
    ) -> Result<Vec<Link>, JoinError> {
        let mut room = Room::behind(listener).map_err(socket("listen"))?;
        let mut peers: Vec<Option<Link>> = (1..self.member.ranks).map(|_| None).collect();
        while peers.iter().any(Option::is_none) {
            if self.is_over() {
                let ranks = 1..self.member.ranks;
                let error = self.missing(ranks.filter(|rank| peers[rank - 1].is_none()).collect());
                let parts = answer::encode(&Err(error.clone()));
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                // Whoever does not take it finds out by itself.
                peers.iter_mut().flatten().for_each(|peer| drop(peer.send(&parts, soon())));
                return Err(error);
            }
            let hearing = || Hearing::new(self.key);
            let proved = room.turn(self.until, refused, hearing).map_err(socket("accept"))?;
            for caller in proved {
                if let Err(why) = self.seat(&mut peers, caller.stream, &caller.proof) {
                    refused.add(caller.from, &why);
                }
            }
            // One that has left meanwhile may come again.
            for place in peers.iter_mut().filter(|place| place.as_ref().is_some_and(Link::is_gone))
            {
                *place = None;
            }
        }
        Ok(peers.into_iter().flatten().collect())
    }

    /// Gives a caller that has proved itself its place, or says to it why not.
    fn seat(
        &self,
        peers: &mut [Option<Link>],
        stream: TcpStream,
        caller: &Proved,
    ) -> Result<(), String> {
        let Member { rank, ranks } = caller.member;
        let own = self.member.ranks;
        let refusal = |what: &str| {
            Some(format!("wants to be rank {rank} of {ranks}; there are {own} ranks, and {what}"))
        };
        let place = rank.checked_sub(1).and_then(|index| peers.get_mut(index));
        let place = place.filter(|_| ranks == own);
        let why = match &place {
            None => refusal("there is no such rank"),
            Some(Some(link)) if !link.is_gone() => refusal("that rank has already joined"),
            Some(_) => None,
        };
        let told = caller.tell(stream, why.as_deref(), soon());
        if let Some(why) = why {
            return Err(why);
        }
        let link = told.map_err(|error| format!("took no welcome: {error}"))?;
        if let Some(place) = place {
            *place = Some(link);
        }
        Ok(())
    }

    /// Any other rank: connects to rank 0, which may not listen yet, and past strangers that listen
    /// in its place.
    pub(super) fn call(&self, id: &UniqueId) -> Result<Link, JoinError> {
        let mut stranger = None;
        loop {
            let left = self.until.saturating_duration_since(clock::now());
            if left.is_zero() {
                let (address, waited) = (id.address(), self.deadline);
                return Err(match stranger {
                    None => self.missing(vec![0]),
                    Some(what) => JoinError::Refused {
                        why: format!(
                            "rank 0 did not join within {waited:?}: the process that listens at \
                            {address} {what}"
                        ),
                    },
                });
            }
            let Ok(stream) = TcpStream::connect_timeout(&id.address(), left.min(PROOF_TIME)) else {
                clock::pause(PAUSE);
                continue;
            };
            match handshake::ask(stream, self.key, self.member, soon().min(self.until)) {
                Ok(link) => return Ok(link),
                Err(Unwelcome::Refused(error)) => return Err(error),
                Err(Unwelcome::Stranger(what)) => stranger = what.or(stranger),
            }
            clock::pause(PAUSE);
        }
    }

    fn is_over(&self) -> bool {
        clock::now() >= self.until
    }
}

/// When a connection has to have said its next word.
pub(super) fn soon() -> Instant {
    clock::now() + PROOF_TIME
}

//! Proves the secret in both directions without sending it.
//!
//! ```text
//! caller  -> root    magic, caller's challenge, rank, ranks
//! root    -> caller  root's challenge, proof for both challenges
//! caller  -> root    proof for both challenges
//! root    -> caller  a frame of the session: welcome, or why not
//! ```
//!
//! Proofs are codes under the key of the group, which is derived from its secret, address and job: a
//! process with the secret of another job has another key. All later frames have codes under a key that is
//! derived from both challenges too.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::id::random;
use super::key::{CODE_BYTES, Key};
use super::link::Link;
use super::room::Talk;
use super::{JoinError, Member, timed};

const MAGIC: [u8; 8] = *b"epforge2";

/// Bytes of a challenge.
const CHALLENGE: usize = 32;

/// Bytes of a rank and the number of ranks.
const MEMBER: usize = 8;

/// Longest frame that says whether a caller is welcome.
const VERDICT_MAX: usize = 1 << 10;

/// What is told of one whose proof is wrong.
const NO_MEMBER: &str = "does not know the secret, or belongs to another group or job";

/// What both ends have said before anything is proved.
struct Transcript {
    caller: [u8; CHALLENGE],
    root: [u8; CHALLENGE],
    member: [u8; MEMBER],
}

impl Transcript {
    fn parts(&self) -> [&[u8]; 3] {
        [&self.caller, &self.root, &self.member]
    }

    /// `side` keeps the proof of one end from serving as that of the other.
    fn proof(&self, key: &Key, side: &str) -> [u8; CODE_BYTES] {
        key.code(side, &self.parts())
    }

    fn proves(&self, key: &Key, side: &str, proof: &[u8]) -> bool {
        key.verifies(proof, side, &self.parts())
    }

    fn session(&self, key: &Key) -> Key {
        key.derive("session", &self.parts())
    }
}

/// Why a caller is not in.
pub(super) enum Unwelcome {
    /// What listens has proved nothing: it may be a stranger, and rank 0 may still come. With what
    /// it did, if it did anything.
    Stranger(Option<String>),
    /// Rank 0 has said no, and has proved that it is rank 0.
    Refused(JoinError),
}

/// The caller's side.
pub(super) fn ask(
    mut stream: TcpStream,
    key: &Key,
    member: Member,
    until: Instant,
) -> Result<Link, Unwelcome> {
    let silent = |error: io::Error| {
        let what = (!timed::is_timeout(&error)).then(|| format!("proves nothing: {error}"));
        Unwelcome::Stranger(what)
    };
    let caller = random().map_err(Unwelcome::Refused)?;
    let member = member_bytes(member);
    stream.set_nodelay(true).map_err(silent)?;
    let hello = [MAGIC.as_slice(), &caller, &member].concat();
    timed::write(&mut stream, &hello, until).map_err(silent)?;
    let root: [u8; CHALLENGE] = timed::read(&mut stream, until).map_err(silent)?;
    let shown: [u8; CODE_BYTES] = timed::read(&mut stream, until).map_err(silent)?;
    let said = Transcript { caller, root, member };
    if !said.proves(key, "root", &shown) {
        return Err(Unwelcome::Stranger(Some(NO_MEMBER.to_string())));
    }
    timed::write(&mut stream, &said.proof(key, "caller"), until).map_err(silent)?;
    let mut link = Link::new(stream, &said.session(key), false);
    let verdict = link.receive(VERDICT_MAX, until).map_err(silent)?;
    match verdict.as_slice() {
        [] => Ok(link),
        [why, ..] => {
            let why = String::from_utf8_lossy(why).into_owned();
            Err(Unwelcome::Refused(JoinError::Refused { why }))
        }
    }
}

/// A caller that has proved itself, as rank 0 sees it.
pub(super) struct Proved {
    /// Who it is, by its own words.
    pub(super) member: Member,
    session: Key,
}

impl Proved {
    /// Says whether it is welcome: `refusal` says why not. `stream` does not block yet.
    pub(super) fn tell(
        &self,
        stream: TcpStream,
        refusal: Option<&str>,
        until: Instant,
    ) -> io::Result<Link> {
        stream.set_nonblocking(false)?;
        let mut link = Link::new(stream, &self.session, true);
        let why: Vec<&[u8]> = refusal.iter().map(|why| why.as_bytes()).collect();
        link.send(&why, until)?;
        Ok(link)
    }
}

/// The side of rank 0, for one caller.
pub(super) struct Hearing<'a> {
    key: &'a Key,
    root: [u8; CHALLENGE],
    said: Option<Transcript>,
}

impl<'a> Hearing<'a> {
    pub(super) fn new(key: &'a Key) -> Result<Hearing<'a>, String> {
        let root = random().map_err(|error| error.to_string())?;
        Ok(Hearing { key, root, said: None })
    }

    /// The first message of a caller.
    fn hello(&self, message: &[u8]) -> Result<Transcript, String> {
        let rest = message.strip_prefix(&MAGIC).ok_or("speaks another protocol")?;
        let (caller, rest) = rest.split_first_chunk().ok_or("says too little")?;
        let member = rest.try_into().map_err(|_| "says too much")?;
        Ok(Transcript { caller: *caller, root: self.root, member })
    }
}

impl<S: Write> Talk<S> for Hearing<'_> {
    type Proof = Proved;

    fn wants(&self) -> usize {
        match self.said {
            None => MAGIC.len() + CHALLENGE + MEMBER,
            Some(_) => CODE_BYTES,
        }
    }

    fn hear(&mut self, stream: &mut S, message: &[u8]) -> Result<Option<Proved>, String> {
        let Some(said) = &self.said else {
            let said = self.hello(message)?;
            let answer = [said.root, said.proof(self.key, "root")].concat();
            // So few bytes fit into the buffers of any connection.
            stream.write_all(&answer).map_err(|error| format!("takes no answer: {error}"))?;
            self.said = Some(said);
            return Ok(None);
        };
        if !said.proves(self.key, "caller", message) {
            return Err(NO_MEMBER.to_string());
        }
        let session = said.session(self.key);
        Ok(Some(Proved { member: member_of(&said.member), session }))
    }
}

fn member_bytes(member: Member) -> [u8; MEMBER] {
    let mut bytes = [0; MEMBER];
    bytes[..4].copy_from_slice(&(member.rank as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(member.ranks as u32).to_le_bytes());
    bytes
}

fn member_of(bytes: &[u8; MEMBER]) -> Member {
    let number =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Member { rank: number(0) as usize, ranks: number(4) as usize }
}

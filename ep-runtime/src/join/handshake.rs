//! Proving the secret, both ways, without sending it.
//!
//! ```text
//! caller  -> root    magic, caller's challenge, rank, ranks
//! root    -> caller  root's challenge, proof for the caller's challenge
//! caller  -> root    proof for the root's challenge
//! root    -> caller  0: welcome; 1: refused
//! ```

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use sha2::{Digest, Sha256};

use super::id::random;
use super::{JoinError, Member, PROOF_TIME, UniqueId, socket};

const MAGIC: [u8; 8] = *b"epforge1";

/// A connection that was turned away.
pub(super) struct Refusal {
    pub(super) from: SocketAddr,
    pub(super) why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.from, self.why)
    }
}

/// What only someone with the secret can say about two challenges. `side` keeps the proof of one
/// end from serving as that of the other.
fn proof(id: &UniqueId, side: &str, first: &[u8], second: &[u8], member: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [id.secret().as_slice(), side.as_bytes(), first, second, member] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// Compares without telling by its time how much is right.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

fn member_bytes(member: Member) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(member.rank as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(member.ranks as u32).to_le_bytes());
    bytes
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The caller's side.
pub(super) fn ask(
    mut stream: TcpStream,
    id: &UniqueId,
    member: Member,
) -> Result<TcpStream, JoinError> {
    let during = || socket("prove the secret to rank 0");
    let own = random()?;
    let who = member_bytes(member);
    stream.set_nodelay(true).map_err(during())?;
    stream.set_read_timeout(Some(PROOF_TIME)).map_err(during())?;
    stream.write_all(&[MAGIC.as_slice(), &own, &who].concat()).map_err(during())?;
    let refused = |why: &str| JoinError::Refused { why: why.to_string() };
    // A root that has seen enough closes the connection.
    let theirs: [u8; 16] =
        read(&mut stream).map_err(|_| refused("rank 0 refuses this rank or number of ranks"))?;
    let shown: [u8; 32] = read(&mut stream).map_err(during())?;
    if !equal(&shown, &proof(id, "root", &own, &theirs, &who)) {
        return Err(refused("what listens at rank 0's address does not know the group's secret"));
    }
    stream
        .write_all(&proof(id, "caller", &theirs, &own, &who))
        .map_err(|_| refused("rank 0 does not accept the secret"))?;
    match read(&mut stream) {
        Ok([0]) => Ok(stream),
        _ => Err(refused("rank 0 does not accept the secret")),
    }
}

/// The side of rank 0: the rank that has proved itself, or why the connection is turned away.
pub(super) fn answer(
    mut stream: TcpStream,
    id: &UniqueId,
    ranks: usize,
    taken: impl Fn(usize) -> bool,
) -> Result<(usize, TcpStream), String> {
    let failed = |error: io::Error| format!("proves nothing: {error}");
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(PROOF_TIME)).map_err(failed)?;
    let magic: [u8; 8] = read(&mut stream).map_err(failed)?;
    if magic != MAGIC {
        return Err("speaks another protocol".to_string());
    }
    let theirs: [u8; 16] = read(&mut stream).map_err(failed)?;
    let who: [u8; 8] = read(&mut stream).map_err(failed)?;
    let own = random().map_err(|error| error.to_string())?;
    let shown = proof(id, "root", &theirs, &own, &who);
    stream.write_all(&[own.as_slice(), &shown].concat()).map_err(failed)?;
    let proved: [u8; 32] = read(&mut stream).map_err(failed)?;
    if !equal(&proved, &proof(id, "caller", &own, &theirs, &who)) {
        let _ = stream.write_all(&[1]);
        return Err("does not know the secret".to_string());
    }
    let number =
        |at: usize| u32::from_le_bytes([who[at], who[at + 1], who[at + 2], who[at + 3]]) as usize;
    let (rank, theirs) = (number(0), number(4));
    if theirs != ranks || taken(rank) {
        let _ = stream.write_all(&[1]);
        return Err(format!(
            "wants to be rank {rank} of {theirs}; there are {ranks} and it is taken"
        ));
    }
    stream.write_all(&[0]).map_err(failed)?;
    Ok((rank, stream))
}

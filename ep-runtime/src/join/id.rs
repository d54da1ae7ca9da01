//! The identity of a group: the address where rank 0 listens, and the secret that its members share.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::process::Command;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use super::JoinError;
use super::error::socket;
use super::handed;
use super::key::Key;

/// The environment variable that holds a group's id.
pub const ID_VARIABLE: &str = "EPFORGE_ID";

/// The environment variable that holds the secret if a launcher provides only an address.
pub const SECRET_VARIABLE: &str = "EPFORGE_SECRET";

/// The environment variable that names the job of a group if a launcher provides only an address.
pub const JOB_VARIABLE: &str = "EPFORGE_JOB";

/// What launchers call a job. Not its restarts: torchrun counts them on each machine by itself.
const LAUNCHER_JOBS: [&str; 2] = ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"];

/// One process of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The rank of the process.
    pub rank: usize,
    /// Number of ranks in the group.
    pub ranks: usize,
}

impl Member {
    /// The member that a launcher's environment describes (`RANK`, `WORLD_SIZE`, as torchrun sets them).
    pub fn from_environment() -> Result<Member, JoinError> {
        let number = |name: &str| {
            let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
            value
                .ok_or_else(|| JoinError::Address { why: format!("{name} is not set to a number") })
        };
        Ok(Member { rank: number("RANK")?, ranks: number("WORLD_SIZE")? })
    }
}

/// Identifies a group. Any process that knows the id can join.
///
/// An id that this process created keeps its port from then on. Clones share the port. Rank 0 listens at
/// it, here or in the process that the id is [handed](UniqueId::hand_to) to.
#[derive(Clone)]
pub struct UniqueId {
    address: SocketAddr,
    secret: [u8; 16],
    /// What all ranks call it besides: where rank 0 is, and the job.
    name: String,
    listener: Arc<Mutex<Option<TcpListener>>>,
}

/// Two ids are equal if their address, secret and name are. Who keeps the port does not count.
impl PartialEq for UniqueId {
    fn eq(&self, other: &UniqueId) -> bool {
        (self.address, self.secret, &self.name) == (other.address, other.secret, &other.name)
    }
}

impl Eq for UniqueId {}

impl UniqueId {
    /// A new group on this machine only, at a free port of the loopback interface.
    pub fn local() -> Result<UniqueId, JoinError> {
        UniqueId::at(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// A new group whose rank 0 listens at a free port of the interface with this address.
    pub fn at(interface: IpAddr) -> Result<UniqueId, JoinError> {
        let listener = TcpListener::bind((interface, 0)).map_err(socket("find a free port"))?;
        let address = listener.local_addr().map_err(socket("find a free port"))?;
        let id = UniqueId::with_secret(address, random()?);
        Ok(UniqueId { listener: Arc::new(Mutex::new(Some(listener))), ..id })
    }

    /// A group at a known address with a known secret.
    pub fn with_secret(address: SocketAddr, secret: [u8; 16]) -> UniqueId {
        UniqueId { address, secret, name: address.to_string(), listener: Arc::default() }
    }

    /// This id for one job. Ranks of another job with the same address and secret cannot join.
    pub fn of_job(mut self, job: &str) -> UniqueId {
        self.name = format!("{} of {job}", self.name);
        self
    }

    /// The id in `EPFORGE_ID`. Under a launcher such as torchrun, the id is the port after `MASTER_PORT` at
    /// `MASTER_ADDR` with the secret in `EPFORGE_SECRET` (32 hexadecimal digits), for the job that
    /// `EPFORGE_JOB` or the launcher names.
    pub fn from_environment() -> Result<UniqueId, JoinError> {
        if let Some(id) = UniqueId::from_variable(ID_VARIABLE)? {
            return Ok(id);
        }
        let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
        // The launcher's own store listens at the port itself.
        let port = port.parse::<u16>().ok().and_then(|port| port.checked_add(1));
        let port =
            port.ok_or_else(|| JoinError::Address { why: "MASTER_PORT is no port".into() })?;
        let address = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next());
        let why = format!("MASTER_ADDR `{host}` has no address");
        let address = address.ok_or(JoinError::Address { why })?;
        let secret = secret_from(&variable(SECRET_VARIABLE)?)?;
        // A name may have another address on another machine.
        let name = format!("{host}:{port}");
        let id = UniqueId { name, ..UniqueId::with_secret(address, secret) };
        let job = std::env::var(JOB_VARIABLE).unwrap_or_else(|_| launcher_job());
        Ok(if job.is_empty() { id } else { id.of_job(&job) })
    }

    /// The id in an environment variable, with its port if this process was handed it; `None` if the
    /// variable is not set.
    pub fn from_variable(name: &str) -> Result<Option<UniqueId>, JoinError> {
        let Ok(text) = std::env::var(name) else { return Ok(None) };
        let id: UniqueId = text.parse()?;
        let listener = handed::take(name, id.address);
        Ok(Some(UniqueId { listener: Arc::new(Mutex::new(listener)), ..id }))
    }

    /// Puts the id into an environment variable of a process to be started.
    pub fn give_to(&self, command: &mut Command, name: &str) {
        command.env(name, self.to_string());
    }

    /// As [`UniqueId::give_to`], for the process that will be rank 0. That process also gets the port,
    /// which no other process can take in between.
    pub fn hand_to(&self, command: &mut Command, name: &str) {
        self.give_to(command, name);
        if let Some(listener) = self.listener() {
            handed::give(command, name, listener);
        }
    }

    /// The listener, if this id still keeps it.
    pub(super) fn listener(&self) -> Option<TcpListener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The address where rank 0 listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its members prove themselves with.
    pub(super) fn key(&self) -> Key {
        Key::of_group(&self.secret, &self.name)
    }
}

fn variable(name: &str) -> Result<String, JoinError> {
    std::env::var(name).map_err(|_| JoinError::Address { why: format!("{name} is not set") })
}

/// What the launcher calls this job; empty if it has no name.
fn launcher_job() -> String {
    let named = LAUNCHER_JOBS.iter().filter_map(|name| {
        let value = std::env::var(name).ok()?;
        Some(format!("{name}={value}"))
    });
    named.collect::<Vec<_>>().join(" ")
}

/// The text form, `address/secret` or `address/secret/name`: give it to the members of the group and to nobody else.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.address)?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        match self.name == self.address.to_string() {
            true => Ok(()),
            false => write!(f, "/{}", self.name),
        }
    }
}

/// Without the secret, which must not get into logs.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({})", self.address)
    }
}

impl FromStr for UniqueId {
    type Err = JoinError;

    fn from_str(text: &str) -> Result<UniqueId, JoinError> {
        let wrong = || JoinError::Address {
            why: "an id is an address and 32 hexadecimal digits, such as 127.0.0.1:4000/00ff.."
                .into(),
        };
        let (address, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (secret, name) = rest.split_once('/').map_or((rest, None), |(a, b)| (a, Some(b)));
        let address = address.parse().map_err(|_| wrong())?;
        let id = UniqueId::with_secret(address, secret_from(secret).map_err(|_| wrong())?);
        Ok(match name {
            None => id,
            Some(name) => UniqueId { name: name.to_string(), ..id },
        })
    }
}

fn secret_from(text: &str) -> Result<[u8; 16], JoinError> {
    let mut secret = [0; 16];
    let whole = text.len() == 2 * secret.len() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (index, byte) in secret.iter_mut().enumerate().filter(|_| whole) {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap_or(0);
    }
    match whole {
        true => Ok(secret),
        false => Err(JoinError::Address { why: "a secret is 32 hexadecimal digits".to_string() }),
    }
}

/// The prefix of unique names.
pub(crate) const NAME_PREFIX: &str = "epforge-";

/// A name on this machine that nobody else takes.
pub(crate) fn unique_name() -> Result<String, JoinError> {
    Ok(format!("{NAME_PREFIX}{:032x}", u128::from_le_bytes(random()?)))
}

/// Random bytes of the system, for names, secrets and challenges.
pub(super) fn random<const N: usize>() -> Result<[u8; N], JoinError> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(socket("read random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = UniqueId::local().unwrap();
        assert_eq!(id.to_string().parse::<UniqueId>().unwrap(), id);
        assert_ne!(UniqueId::local().unwrap().secret, id.secret);
        assert!(!format!("{id:?}").contains('/'));
        let of_job = id.clone().of_job("7/8");
        assert_eq!(of_job.to_string().parse::<UniqueId>().unwrap(), of_job);
        assert!(of_job != id);
    }

    #[test]
    fn wrong_ids_are_refused() {
        for text in ["", "127.0.0.1:1", "127.0.0.1:1/00", "x/00112233445566778899aabbccddeeff"] {
            assert!(text.parse::<UniqueId>().is_err(), "{text}");
        }
        let letters = format!("127.0.0.1:1/{}", "é".repeat(16));
        assert!(letters.parse::<UniqueId>().is_err());
    }

    /// Run again with the environment of a launcher.
    #[test]
    fn a_launcher_gives_address_and_job() {
        const EXPECTED: &str = "EPFORGE_TEST_EXPECTED";
        if let Ok(expected) = std::env::var(EXPECTED) {
            assert_eq!(UniqueId::from_environment().unwrap().to_string(), expected);
            return;
        }
        let secret = "00112233445566778899aabbccddeeff";
        let run = |more: &[(&str, &str)], expected: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let name = "join::id::tests::a_launcher_gives_address_and_job";
            command.args(["--exact", name]).stdout(std::process::Stdio::null()).env_clear();
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "4000");
            command.env(SECRET_VARIABLE, secret).envs(more.iter().copied());
            let expected = format!("127.0.0.1:4001/{secret}{expected}");
            assert!(command.env(EXPECTED, &expected).status().unwrap().success(), "{expected}");
        };
        run(&[], "");
        let slurm = ("SLURM_JOB_ID", "7");
        run(&[slurm], "/127.0.0.1:4001 of SLURM_JOB_ID=7");
        let torch = ("TORCHELASTIC_RUN_ID", "x");
        run(&[slurm, torch], "/127.0.0.1:4001 of TORCHELASTIC_RUN_ID=x SLURM_JOB_ID=7");
        run(&[slurm, (JOB_VARIABLE, "mine")], "/127.0.0.1:4001 of mine");
    }
}

//! What names a group: where rank 0 listens, and the secret that its members share.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

use super::{JoinError, socket};

/// The environment variable that holds a group's id.
pub const ID_VARIABLE: &str = "EPFORGE_ID";

/// The environment variable that holds the secret where a launcher gives only an address.
pub const SECRET_VARIABLE: &str = "EPFORGE_SECRET";

/// One process of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: usize,
    /// Ranks of the group.
    pub ranks: usize,
}

impl Member {
    /// The member that a launcher's environment describes (`RANK`, `WORLD_SIZE`, as torchrun sets
    /// them).
    pub fn from_environment() -> Result<Member, JoinError> {
        let number = |name: &str| {
            let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
            value
                .ok_or_else(|| JoinError::Address { why: format!("{name} is not set to a number") })
        };
        Ok(Member { rank: number("RANK")?, ranks: number("WORLD_SIZE")? })
    }
}

/// Names a group; whoever knows it can join.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    address: SocketAddr,
    secret: [u8; 16],
}

impl UniqueId {
    /// A new group on this machine alone, at a free port of the loopback interface.
    pub fn local() -> Result<UniqueId, JoinError> {
        UniqueId::at(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// A new group whose rank 0 listens at a free port of the interface with this address.
    pub fn at(interface: IpAddr) -> Result<UniqueId, JoinError> {
        let listener = TcpListener::bind((interface, 0)).map_err(socket("find a free port"))?;
        let address = listener.local_addr().map_err(socket("find a free port"))?;
        Ok(UniqueId { address, secret: random()? })
    }

    /// A group at a known address with a known secret.
    pub fn with_secret(address: SocketAddr, secret: [u8; 16]) -> UniqueId {
        UniqueId { address, secret }
    }

    /// The id in `EPFORGE_ID`; or, under a launcher such as torchrun, the port behind `MASTER_PORT`
    /// at `MASTER_ADDR` with the secret in `EPFORGE_SECRET` (32 hexadecimal digits).
    pub fn from_environment() -> Result<UniqueId, JoinError> {
        if let Ok(id) = std::env::var(ID_VARIABLE) {
            return id.parse();
        }
        let variable = |name: &str| {
            std::env::var(name)
                .map_err(|_| JoinError::Address { why: format!("{name} is not set") })
        };
        let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
        // The launcher's own store listens at the port itself.
        let port = port.parse::<u16>().ok().and_then(|port| port.checked_add(1));
        let port =
            port.ok_or_else(|| JoinError::Address { why: "MASTER_PORT is no port".into() })?;
        let address = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next());
        let why = format!("MASTER_ADDR `{host}` has no address");
        let address = address.ok_or(JoinError::Address { why })?;
        let secret = secret_from(&variable(SECRET_VARIABLE)?)?;
        Ok(UniqueId { address, secret })
    }

    /// Where rank 0 listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn secret(&self) -> &[u8; 16] {
        &self.secret
    }
}

/// The text form, `address/secret`: give it to the members of the group and to nobody else.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.address)?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
        let (address, secret) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        Ok(UniqueId { address, secret: secret_from(secret).map_err(|_| wrong())? })
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

/// Random bytes of the system, for secrets and challenges.
pub(super) fn random() -> Result<[u8; 16], JoinError> {
    let mut bytes = [0; 16];
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
    }

    #[test]
    fn wrong_ids_are_refused() {
        for text in ["", "127.0.0.1:1", "127.0.0.1:1/00", "x/00112233445566778899aabbccddeeff"] {
            assert!(text.parse::<UniqueId>().is_err(), "{text}");
        }
        let letters = format!("127.0.0.1:1/{}", "é".repeat(16));
        assert!(letters.parse::<UniqueId>().is_err());
    }
}

//! The networks that can carry rows, and libfabric's offers for each on this machine.

use std::fmt;
use std::str::FromStr;

/// A kind of network, by its name in libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// Sockets: any machine, any network.
    Tcp,
    /// Shared memory: processes on one machine.
    Shm,
    /// InfiniBand and RoCE.
    Verbs,
    /// The Elastic Fabric Adapter.
    Efa,
}

impl Provider {
    /// All providers.
    pub const ALL: [Provider; 4] = [Provider::Tcp, Provider::Shm, Provider::Verbs, Provider::Efa];

    /// The name of the provider.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Tcp => "tcp",
            Provider::Shm => "shm",
            Provider::Verbs => "verbs",
            Provider::Efa => "efa",
        }
    }

    /// What libfabric calls endpoints of this kind that take connections by themselves, best first.
    /// Before 1.18 `tcp` had none of its own.
    pub(super) fn stacks(self) -> &'static [&'static str] {
        match self {
            Provider::Tcp => &["tcp", "net", "tcp;ofi_rxm"],
            Provider::Shm => &["shm"],
            Provider::Verbs => &["verbs;ofi_rxm"],
            Provider::Efa => &["efa"],
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(name: &str) -> Result<Provider, String> {
        let known = Provider::ALL.into_iter().find(|provider| provider.name() == name);
        known.ok_or_else(|| {
            let names = Provider::ALL.map(Provider::name).join(", ");
            format!("the network `{name}` does not exist; choose one of {names}")
        })
    }
}

/// An offer of libfabric for a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The stack of providers, such as `tcp;ofi_rxm`.
    pub stack: String,
    /// The device, such as `lo` or `mlx5_0`.
    pub device: String,
    /// Version of the provider.
    pub version: (u32, u32),
    /// Bytes of the number that a write can carry.
    pub immediate_bytes: usize,
    /// Number of writes that can be in flight at once.
    pub in_flight: usize,
    /// Whether writes land in the order in which they were posted.
    pub ordered: bool,
    /// Whether it takes GPU memory.
    pub gpu_memory: bool,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offer { stack, device, version: (major, minor), in_flight, .. } = self;
        let order = if self.ordered { "in order" } else { "in any order" };
        let memory = if self.gpu_memory { "GPU memory too" } else { "host memory" };
        write!(
            f,
            "{stack} {major}.{minor} on {device}: {in_flight} writes under way, {order}, {memory}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_known_by_their_names() {
        for provider in Provider::ALL {
            assert_eq!(provider.name().parse(), Ok(provider));
        }
        let error = "sockets".parse::<Provider>().unwrap_err();
        assert_eq!(
            error,
            "the network `sockets` does not exist; choose one of tcp, shm, verbs, efa"
        );
    }
}

//! Networks between the nodes of a group, by the names that users give them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ep_codegen::ir::Transport;

use super::{CardOptions, NetOptions, Provider, RESIDENT_SMS, ResidentOptions};
use crate::gpu::GpuBackend;

/// The environment variable that names the network between nodes if a call does not.
pub const NET_VARIABLE: &str = "EPFORGE_NET";

/// A network between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carrier {
    /// libfabric: `tcp`, `shm`, `verbs` or `efa`.
    Libfabric(NetOptions),
    /// Network cards with mlx5 work queues that kernels write to: `ibgda`, or `ibgda:mlx5_0,mlx5_1,sl=3` to name the card of
    /// each rank of a node in turn, and the service level.
    Ibgda(CardOptions),
    /// Such cards played by a kernel on the GPU of each rank, or by models in the emulator, between processes of one
    /// machine: `card`, or `card:50GB/s,3us`.
    Card(ResidentOptions),
}

impl Carrier {
    /// The carrier that `EPFORGE_NET` names. If the variable is unset: sockets, which every machine has.
    pub fn from_environment() -> Result<Carrier, String> {
        match std::env::var(NET_VARIABLE) {
            Ok(name) => name.parse().map_err(|error| format!("{NET_VARIABLE}: {error}")),
            Err(_) => Ok(NetOptions::of_group(Provider::Tcp).into()),
        }
    }

    /// Keeps SMs of the GPU free for cards that are kernels, if ranks of several nodes reach each other over these.
    pub fn beside(&self, backend: GpuBackend, nodes: usize) -> GpuBackend {
        match self.takes_sms() && nodes > 1 {
            true => backend.beside_cards(RESIDENT_SMS),
            false => backend,
        }
    }

    /// Whether its cards are kernels, which need SMs of the GPU of each rank.
    pub(crate) fn takes_sms(&self) -> bool {
        matches!(self, Carrier::Card(_))
    }

    /// The transport that channels have to list.
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Carrier::Libfabric(_) => Transport::Rdma,
            Carrier::Ibgda(_) | Carrier::Card(_) => Transport::Ibgda,
        }
    }
}

impl From<NetOptions> for Carrier {
    fn from(options: NetOptions) -> Carrier {
        Carrier::Libfabric(options)
    }
}

/// Without the devices of cards, which differ from rank to rank.
impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Libfabric(options) => write!(f, "{}", options.provider),
            Carrier::Ibgda(options) => {
                let shared = CardOptions { devices: Vec::new(), ..options.clone() }.to_string();
                write!(f, "ibgda{}{shared}", if shared.is_empty() { "" } else { ":" })
            }
            Carrier::Card(options) => write!(f, "card:{options}"),
        }
    }
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Carrier, String> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "ibgda" => settings.parse().map(Carrier::Ibgda),
            "card" => settings.parse().map(Carrier::Card),
            _ => {
                let provider = Provider::ALL.into_iter().find(|provider| provider.name() == text);
                let names = Provider::ALL.map(Provider::name).join(", ");
                provider.map(|provider| NetOptions::of_group(provider).into()).ok_or_else(|| {
                    format!(
                        "the network `{text}` does not exist; choose one of {names}, ibgda, card"
                    )
                })
            }
        }
    }
}

/// The settings after `ibgda:`, such as `mlx5_0,mlx5_1,sl=3,tc=106,queues=4,ports=2`. Each port has a queue unless
/// `queues` says otherwise.
impl FromStr for CardOptions {
    type Err = String;

    fn from_str(settings: &str) -> Result<CardOptions, String> {
        let mut options = CardOptions::new(0);
        let mut queues = None;
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let Some((name, value)) = setting.split_once('=') else {
                options.devices.push(setting.to_string());
                continue;
            };
            let number = |least: u8, most: u8| {
                let number = value.parse().ok().filter(|number| (least..=most).contains(number));
                number.ok_or_else(|| format!("`{name}` is {value}, and it takes {least} to {most}"))
            };
            match name {
                "sl" => options.service_level = number(0, 15)?,
                "tc" => options.traffic_class = number(0, 255)?,
                "queues" => queues = Some(number(1, 8)?.into()),
                "ports" => options.ports = number(1, 8)?.into(),
                _ => return Err(format!("`{setting}` is no setting of a network card")),
            }
        }
        let (ports, usual) = (options.ports, options.queues.max(options.ports));
        options.queues = queues.unwrap_or(usual);
        if ports > options.queues {
            let queues = options.queues;
            return Err(format!("`ports` is {ports}, and each port takes one of {queues} queues"));
        }
        Ok(options)
    }
}

impl fmt::Display for CardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = CardOptions::new(0);
        let mut settings = self.devices.clone();
        let mut note = |name: &str, number: usize, usual: usize| {
            if number != usual {
                settings.push(format!("{name}={number}"));
            }
        };
        note("sl", self.service_level.into(), usual.service_level.into());
        note("tc", self.traffic_class.into(), usual.traffic_class.into());
        note("queues", self.queues, usual.queues.max(self.ports));
        note("ports", self.ports, usual.ports);
        f.write_str(&settings.join(","))
    }
}

/// The settings after `card:`, such as `50GB/s,3us`.
impl FromStr for ResidentOptions {
    type Err = String;

    fn from_str(settings: &str) -> Result<ResidentOptions, String> {
        let mut options = ResidentOptions::default();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let wrong = || format!("`{setting}` is no setting of a card");
            let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
            if let Some(rate) = setting.strip_suffix("GB/s") {
                options.bytes_per_us = 1000 * u64::from(number(rate).ok_or_else(wrong)?);
            } else if let Some(ports) = setting.strip_prefix("ports=") {
                let ports = number(ports).filter(|ports| *ports <= 8);
                options.ports = ports.ok_or_else(wrong)? as usize;
            } else if let Some(seed) = setting.strip_prefix("late=") {
                options.seed = number(seed).ok_or_else(wrong)?;
            } else if let Some(link) = setting.strip_prefix("fail=") {
                let (link, entry) = link.split_once('@').ok_or_else(wrong)?;
                let (from, to) = link.split_once('-').ok_or_else(wrong)?;
                let rank = |text: &str| text.parse::<usize>().map_err(|_| wrong());
                let entry = entry.parse().map_err(|_| wrong())?;
                options.failing.push((rank(from)?, rank(to)?, entry));
            } else {
                options.latency = duration(setting).ok_or_else(wrong)?;
            }
        }
        Ok(options)
    }
}

impl fmt::Display for ResidentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResidentOptions { bytes_per_us, ports, latency, seed, failing } = self;
        write!(f, "{}GB/s,{}ns", bytes_per_us / 1000, latency.as_nanos())?;
        if *ports != 1 {
            write!(f, ",ports={ports}")?;
        }
        if *seed != 0 {
            write!(f, ",late={seed}")?;
        }
        failing.iter().try_for_each(|(from, to, entry)| write!(f, ",fail={from}-{to}@{entry}"))
    }
}

/// A time such as `2us`: a whole number of a unit.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().ok()?;
    match unit {
        "ns" => Some(Duration::from_nanos(number)),
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_are_known_by_their_names() {
        let read = |text: &str| text.parse::<Carrier>().unwrap();
        for provider in Provider::ALL {
            assert_eq!(read(provider.name()), NetOptions::of_group(provider).into());
        }
        let devices = vec!["mlx5_0:1".to_string(), "mlx5_1".to_string()];
        let cards = CardOptions { devices, ..CardOptions::new(0) };
        assert_eq!(read("ibgda:mlx5_0:1,mlx5_1"), Carrier::Ibgda(cards));
        assert_eq!(read("card"), Carrier::Card(ResidentOptions::default()));
        let Carrier::Ibgda(cards) = read("ibgda:mlx5_0,sl=3,tc=106,queues=4") else { panic!() };
        assert_eq!((cards.service_level, cards.traffic_class, cards.queues), (3, 106, 4));
        assert_eq!(cards.to_string(), "mlx5_0,sl=3,tc=106,queues=4");
        let Carrier::Ibgda(cards) = read("ibgda:ports=4") else { panic!() };
        assert_eq!((cards.queues, cards.ports), (4, 4), "each port has a queue");
        for text in [
            "tcp",
            "ibgda",
            "ibgda:sl=3",
            "ibgda:ports=4",
            "ibgda:queues=4,ports=2",
            "card:50GB/s,3000ns,ports=2",
            "card:50GB/s,3000ns",
            "card:7GB/s,10ns,late=3,fail=0-2@100",
        ] {
            assert_eq!(read(text).to_string(), text);
        }
        let said = |text: &str| text.parse::<Carrier>().unwrap_err();
        let text =
            "the network `sockets` does not exist; choose one of tcp, shm, verbs, efa, ibgda, card";
        assert_eq!(said("sockets"), text);
        assert_eq!(said("ibgda:sl=16"), "`sl` is 16, and it takes 0 to 15");
        let text = "`ports` is 4, and each port takes one of 2 queues";
        assert_eq!(said("ibgda:queues=2,ports=4"), text);
        assert_eq!(said("card:ports=9"), "`ports=9` is no setting of a card");
        assert_eq!(said("ibgda:lane=1"), "`lane=1` is no setting of a network card");
        assert_eq!(said("card:0GB/s"), "`0GB/s` is no setting of a card");
        assert_eq!(said("card:fail=0-2"), "`fail=0-2` is no setting of a card");
    }
}

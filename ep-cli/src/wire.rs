//! `--net`: the network between nodes, whose ranks run in this process, or in one for each.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ep_runtime::error::CallError;
use ep_runtime::host::HostBackend;
use ep_runtime::ir::Transport;
use ep_runtime::net::{
    CardOptions, ModelNetwork, ModelOptions, Provider, ResidentOptions, duration,
};
use ep_runtime::plan::Plan;

use crate::failure::Failure;

/// The option of `run`, `check` and `bench`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Net {
    /// The network between nodes, if the pipeline has several nodes. By default a model of a network, with these
    /// settings after a colon: latency=2us, ordered, bytes-per-us=100 (of each link), receives-per-us=100 (of all links
    /// to a port), ports=2 (of each rank's cards, with network=ibgda), dead=0-2 (nothing arrives at rank 2 from rank 0). For `run` and `bench` with one process per node: tcp, shm, verbs or efa, the
    /// providers of libfabric, which are also called libfabric:tcp and so on. For `run` alone: ibgda:mlx5_0,mlx5_1 (GPUs write to the cards of their ranks in turn; not yet run on
    /// hardware; also sl=3, tc=106, queues=4 and ports=2). For `run` and `bench` on GPUs of this
    /// machine: card, network cards that are kernels, with these settings after a colon: 50GB/s and 3us (the rate and
    /// the latency of a link, here those by default), ports=2 (links of each rank), late=7 (puts land in random order, from this seed), fail=0-2@100
    /// (entry 100 from rank 0 to rank 2 fails). --processes with card in the emulator has models of these cards
    #[arg(long = "net", value_name = "NETWORK")]
    kind: Option<Kind>,
}

impl Net {
    /// The network between processes, if one is named.
    pub(crate) fn joint(&self) -> Option<&Joint> {
        match &self.kind {
            Some(Kind::Joint(joint)) => Some(joint),
            Some(Kind::Model(_) | Kind::Card(_)) | None => None,
        }
    }

    /// The network between processes of one rank each, if one is named.
    pub(crate) fn joint_of_ranks(&self) -> Option<Joint> {
        self.cards().cloned().map(Joint::Played).or_else(|| self.joint().cloned())
    }

    /// Network cards that are kernels, if these are asked for.
    pub(crate) fn cards(&self) -> Option<&ResidentOptions> {
        match &self.kind {
            Some(Kind::Card(options)) => Some(options),
            Some(Kind::Model(_) | Kind::Joint(_)) | None => None,
        }
    }

    /// Whether any network is named.
    pub(crate) fn is_given(&self) -> bool {
        self.kind.is_some()
    }

    /// Fails where ranks of one process are wanted.
    pub(crate) fn check_model(&self) -> Result<(), Failure> {
        let what = match &self.kind {
            None | Some(Kind::Model(_)) => return Ok(()),
            Some(Kind::Joint(joint)) => {
                format!("`{joint}` connects processes: use `model` for ranks of one process")
            }
            Some(Kind::Card(_)) => {
                "`card` works only on GPUs: use `model` in the emulator".to_owned()
            }
        };
        Err(Failure::WrongUse(what))
    }

    /// Refuses options of the model that have no effect. `nodes` is the number of nodes and of ranks per node
    /// of a pipeline that uses a network.
    pub(crate) fn has_effect(&self, name: &str, nodes: Option<(u32, u32)>) -> Result<(), Failure> {
        let Some(Kind::Model(options)) = &self.kind else { return Ok(()) };
        let Some((nodes, each)) = nodes else {
            let what = format!("{name} sends nothing between nodes here: `--net` has no effect");
            return Err(Failure::WrongUse(what));
        };
        let (ranks, each) = ((nodes * each) as usize, each as usize);
        for (from, to) in &options.dead_links {
            let what = match from.max(to) {
                last if *last >= ranks => {
                    format!("rank {last} does not exist: there are {ranks} ranks")
                }
                _ if from / each == to / each => format!("ranks {from} and {to} are on one node"),
                _ => continue,
            };
            let what = format!("`dead={from}-{to}` is not a link between nodes: {what}");
            return Err(Failure::WrongUse(what));
        }
        Ok(())
    }

    /// The network that a plan asks for, if it does.
    pub(crate) fn network(
        &self,
        backend: &Arc<HostBackend>,
        plan: &Plan,
    ) -> Result<Option<ModelNetwork>, CallError> {
        let usual = ModelOptions::default();
        let options = match &self.kind {
            None => &usual,
            Some(Kind::Model(options)) => options,
            Some(Kind::Joint(_) | Kind::Card(_)) => return Ok(None),
        };
        ModelNetwork::of_plan(backend, plan, options).map_err(CallError::Network)
    }
}

/// A network.
#[derive(Debug, Clone)]
enum Kind {
    /// A model, which behaves so.
    Model(ModelOptions),
    /// One between processes.
    Joint(Joint),
    /// Kernels that play network cards.
    Card(ResidentOptions),
}

/// What joins processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Joint {
    /// libfabric, which uses that.
    Fabric(Provider),
    /// Cards that kernels write to.
    Cards(CardOptions),
    /// Cards that are kernels, or models in the emulator.
    Played(ResidentOptions),
}

impl Joint {
    /// What carries rows, as channels list it.
    pub(crate) fn carrier(&self) -> Transport {
        match self {
            Joint::Fabric(_) => Transport::Rdma,
            Joint::Cards(_) | Joint::Played(_) => Transport::Ibgda,
        }
    }
}

impl fmt::Display for Joint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Joint::Fabric(provider) => write!(f, "libfabric:{provider}"),
            Joint::Cards(cards) if *cards == CardOptions::new(0) => f.write_str("ibgda"),
            Joint::Cards(cards) => write!(f, "ibgda:{cards}"),
            Joint::Played(options) => write!(f, "card:{options}"),
        }
    }
}

/// `libfabric:PROVIDER`
pub(crate) fn provider(text: &str) -> Result<Provider, String> {
    match text.strip_prefix("libfabric:") {
        Some(name) => name.parse(),
        None => Err(format!(
            "`{text}` is not a network between processes; use one such as `libfabric:tcp`"
        )),
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        if text.starts_with("libfabric:") {
            return provider(text).map(|provider| Kind::Joint(Joint::Fabric(provider)));
        }
        // Its name in EPFORGE_NET.
        if let Ok(provider) = text.parse() {
            return Ok(Kind::Joint(Joint::Fabric(provider)));
        }
        let mut options = ModelOptions::default();
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name == "ibgda" {
            return settings.parse().map(|cards| Kind::Joint(Joint::Cards(cards)));
        }
        if name == "card" {
            return settings.parse().map(Kind::Card);
        }
        if name != "model" {
            return Err(format!(
                "`{name}` is not a network; use `model`, `card`, `tcp`, `shm`, `verbs`, `efa` or `ibgda`"
            ));
        }
        let mut given = Vec::new();
        let bytes = |value: &str| value.parse().ok().filter(|bytes| *bytes > 0);
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let wrong = || format!("`{setting}` is no setting of a network");
            let what = if name == "ordered" { "reorder" } else { name };
            if what != "dead" && given.contains(&what) {
                return Err(format!("`{setting}` contradicts another setting of the network"));
            }
            given.push(what);
            match name {
                "latency" => options.latency = duration(value).ok_or_else(wrong)?,
                "bytes-per-us" => options.bytes_per_us = bytes(value).ok_or_else(wrong)?,
                "receives-per-us" => options.receives_per_us = bytes(value).ok_or_else(wrong)?,
                "ports" => {
                    let ports = value.parse().ok().filter(|ports| (1..=8).contains(ports));
                    options.ports = ports.ok_or_else(wrong)?;
                }
                "reorder" if value.is_empty() => options.reorder = true,
                "ordered" if value.is_empty() => options.reorder = false,
                "dead" => {
                    let (from, to) = value.split_once('-').ok_or_else(wrong)?;
                    let rank = |text: &str| text.parse::<usize>().map_err(|_| wrong());
                    options.dead_links.push((rank(from)?, rank(to)?));
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Kind::Model(options))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn settings_are_read_or_named() {
        let read = |text: &str| match text.parse::<Kind>() {
            Ok(Kind::Model(options)) => options,
            other => panic!("{other:?}"),
        };
        let latency = Duration::from_micros(30);
        let dead_links = vec![(0, 2)];
        let expected = ModelOptions {
            latency,
            bytes_per_us: 50,
            receives_per_us: 70,
            ports: 2,
            reorder: false,
            dead_links,
        };
        let given =
            "model:latency=30us,ordered,bytes-per-us=50,receives-per-us=70,ports=2,dead=0-2";
        assert_eq!(read(given), expected);
        assert_eq!(read("model"), ModelOptions::default());
        let said = |text: &str| text.parse::<Kind>().map(drop).unwrap_err();
        assert_eq!(said("model:latency=2"), "`latency=2` is no setting of a network");
        assert_eq!(said("model:dead=3"), "`dead=3` is no setting of a network");
        let no_bytes = "`bytes-per-us=0` is no setting of a network";
        assert_eq!(said("model:bytes-per-us=0"), no_bytes);
        let both = "`ordered` contradicts another setting of the network";
        assert_eq!(said("model:reorder,ordered"), both);
        let networks = "`model`, `card`, `tcp`, `shm`, `verbs`, `efa` or `ibgda`";
        assert_eq!(said("tpc"), format!("`tpc` is not a network; use {networks}"));
        assert!(said("libfabric:tpc").contains("tpc"));
    }

    #[test]
    fn settings_of_cards_are_read_or_named() {
        let read = |text: &str| match text.parse::<Kind>() {
            Ok(Kind::Card(options)) => options,
            other => panic!("{other:?}"),
        };
        assert_eq!(read("card"), ResidentOptions::default());
        let (latency, failing) = (Duration::from_micros(1), vec![(0, 2, 100)]);
        let expected =
            ResidentOptions { bytes_per_us: 400_000, ports: 2, latency, seed: 7, failing };
        assert_eq!(read("card:400GB/s,1us,ports=2,late=7,fail=0-2@100"), expected);
        let said = |text: &str| text.parse::<Kind>().map(drop).unwrap_err();
        assert_eq!(said("card:0GB/s"), "`0GB/s` is no setting of a card");
        assert_eq!(said("card:fail=0-2"), "`fail=0-2` is no setting of a card");
    }

    #[test]
    fn what_joins_processes_is_read_and_said() {
        let read = |text: &str| match text.parse::<Kind>() {
            Ok(Kind::Joint(joint)) => joint,
            other => panic!("{other:?}"),
        };
        for text in ["shm", "libfabric:shm"] {
            assert_eq!(read(text), Joint::Fabric(Provider::Shm));
        }
        for text in ["libfabric:shm", "ibgda:mlx5_0:1,mlx5_1,sl=3", "ibgda", "ibgda:tc=106"] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("ibgda").carrier(), Transport::Ibgda);
    }
}

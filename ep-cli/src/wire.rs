//! `--net`: the network between nodes, whose ranks run in this process, or in one for each.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::error::CallError;
use ep_runtime::host::HostBackend;
use ep_runtime::net::{ModelNetwork, ModelOptions, Provider};
use ep_runtime::plan::Plan;

use crate::failure::Failure;

/// The option of `run` and `check`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Net {
    /// The network between nodes, where a pipeline has any: a model of one, with what follows a colon of
    /// latency=2us, ordered, bytes-per-us=100, dead=0-2 (nothing comes from rank 0 to rank 2); or, for `run`,
    /// libfabric:tcp and the like, with a process for each node
    #[arg(long = "net", value_name = "NETWORK", default_value = "model")]
    kind: Kind,
}

impl Net {
    /// What joins processes, if they are to be joined.
    pub(crate) fn provider(&self) -> Option<Provider> {
        match self.kind {
            Kind::Fabric(provider) => Some(provider),
            Kind::Model(_) => None,
        }
    }

    /// Fails where ranks of one process are wanted.
    pub(crate) fn check_model(&self) -> Result<(), Failure> {
        match self.provider() {
            None => Ok(()),
            Some(provider) => Err(Failure::WrongUse(format!(
                "`libfabric:{provider}` joins processes: ranks of one have `model`"
            ))),
        }
    }

    /// The network that a plan asks for, if it does.
    pub(crate) fn network(
        &self,
        backend: &Arc<HostBackend>,
        plan: &Plan,
    ) -> Result<Option<ModelNetwork>, CallError> {
        let Kind::Model(options) = &self.kind else { return Ok(None) };
        ModelNetwork::of_plan(backend, plan, options).map_err(CallError::Network)
    }
}

/// A network.
#[derive(Debug, Clone)]
enum Kind {
    /// A model, which behaves so.
    Model(ModelOptions),
    /// libfabric, which uses that.
    Fabric(Provider),
}

impl Default for Kind {
    fn default() -> Kind {
        Kind::Model(ModelOptions::default())
    }
}

/// `libfabric:PROVIDER`
pub(crate) fn provider(text: &str) -> Result<Provider, String> {
    match text.strip_prefix("libfabric:") {
        Some(name) => name.parse(),
        None => Err(format!("`{text}` is no network between processes: `libfabric:tcp` is")),
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        if text.starts_with("libfabric:") {
            return provider(text).map(Kind::Fabric);
        }
        let mut options = ModelOptions::default();
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name != "model" {
            return Err(format!("`{name}` is no network: `model` and `libfabric:tcp` are"));
        }
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let wrong = || format!("`{setting}` is no setting of a network");
            match name {
                "latency" => options.latency = duration(value).ok_or_else(wrong)?,
                "bytes-per-us" => options.bytes_per_us = value.parse().map_err(|_| wrong())?,
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

/// `2us`: a whole number of a unit.
fn duration(text: &str) -> Option<Duration> {
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
    fn settings_are_read_or_named() {
        let read = |text: &str| match text.parse::<Kind>() {
            Ok(Kind::Model(options)) => options,
            other => panic!("{other:?}"),
        };
        let latency = Duration::from_micros(30);
        let dead_links = vec![(0, 2)];
        let expected = ModelOptions { latency, bytes_per_us: 50, reorder: false, dead_links };
        assert_eq!(read("model:latency=30us,ordered,bytes-per-us=50,dead=0-2"), expected);
        assert_eq!(read("model"), ModelOptions::default());
        let said = |text: &str| text.parse::<Kind>().map(drop).unwrap_err();
        assert_eq!(said("model:latency=2"), "`latency=2` is no setting of a network");
        assert_eq!(said("model:dead=3"), "`dead=3` is no setting of a network");
        assert_eq!(said("tcp"), "`tcp` is no network: `model` and `libfabric:tcp` are");
        assert!(matches!("libfabric:shm".parse::<Kind>(), Ok(Kind::Fabric(Provider::Shm))));
        assert!(said("libfabric:tpc").contains("tpc"));
    }
}

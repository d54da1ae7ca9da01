//! `--net`: the network between the nodes of ranks that run in this process.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::error::CallError;
use ep_runtime::host::HostBackend;
use ep_runtime::net::{ModelNetwork, ModelOptions};
use ep_runtime::plan::Plan;

/// The option of `run` and `check`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Net {
    /// The network between nodes, where a pipeline has any: a model of one, with what follows a colon of
    /// latency=2us, ordered, bytes-per-us=100, dead=0-2 (nothing comes from rank 0 to rank 2)
    #[arg(long = "net", value_name = "model[:..]", default_value = "model")]
    model: Model,
}

impl Net {
    /// The network that a plan asks for, if it does.
    pub(crate) fn network(
        &self,
        backend: &Arc<HostBackend>,
        plan: &Plan,
    ) -> Result<Option<ModelNetwork>, CallError> {
        ModelNetwork::of_plan(backend, plan, &self.model.0).map_err(CallError::Network)
    }
}

/// How the model behaves.
#[derive(Debug, Clone, Default)]
struct Model(ModelOptions);

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Model, String> {
        let mut options = ModelOptions::default();
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name != "model" {
            return Err(format!(
                "`{name}` is no network that ranks of one process have: `model` is"
            ));
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
        Ok(Model(options))
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
        let Model(read) = "model:latency=30us,ordered,bytes-per-us=50,dead=0-2".parse().unwrap();
        let latency = Duration::from_micros(30);
        let dead_links = vec![(0, 2)];
        let expected = ModelOptions { latency, bytes_per_us: 50, reorder: false, dead_links };
        assert_eq!(read, expected);
        let Model(plain) = "model".parse().unwrap();
        assert_eq!(plain, ModelOptions::default());
        let said = |text: &str| text.parse::<Model>().map(drop).unwrap_err();
        assert_eq!(said("model:latency=2"), "`latency=2` is no setting of a network");
        assert_eq!(said("model:dead=3"), "`dead=3` is no setting of a network");
        assert!(said("tcp").starts_with("`tcp` is no network that ranks of one process have"));
    }
}

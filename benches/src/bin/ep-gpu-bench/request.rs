//! What the command line asks for.

use std::time::Duration;

use ep_runtime::buffer::{BufferOptions, CallOptions, Payload, Setting, Via};
use ep_runtime::gpu::Sharing;
use ep_runtime::oracle::{Random, RoutingOptions};
use ep_runtime::selftest::Case;

/// Every name that the program takes.
pub(crate) const USAGE: &str = "\
usage: ep-gpu-bench [name=value]..
  ranks=N               ranks, spread over the GPUs in turn
  devices=0,1,..        GPU of each rank; more ranks than GPUs share them
  processes=1           a process for each rank
  kill=RANK             with processes: end one after the check, look what the others say
  tokens=N[,N..]        tokens per rank, or of each rank
  hidden= topk= experts=
  payload=bf16|fp8|fp8-packed   via=direct|ring
  sms= combine_sms= remote=     blocks of a dispatch, of a combine, of its remote senders
  capacity=ROWS live=N alignment=N weights=0|1 biases=0..2 cached=0|1
  skew=X absent=SHARE repeated=SHARE seed=N
  iterations=N warmup=N         0 iterations: check only
  random=N                      first check N random shapes
  probe=1|0|only                whether to look first if ranks reach each other
  timeout_ms=N cooperative=0|1 sharing=mapped|peer
  PIPELINE.NAME=VALUE           a tune, such as nvl-dispatch.stages=4";

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// Ranks of the group.
    pub(crate) ranks: usize,
    /// GPU of each rank.
    pub(crate) devices: Option<Vec<i32>>,
    /// Whether each rank is a process of its own.
    pub(crate) processes: bool,
    /// How windows are shared.
    pub(crate) sharing: Sharing,
    /// Whether launches are cooperative.
    pub(crate) cooperative: Option<bool>,
    /// Rank whose process ends in the middle.
    pub(crate) kill: Option<usize>,
    /// Longest wait of a kernel.
    pub(crate) timeout: Duration,
    /// Timed calls.
    pub(crate) iterations: usize,
    /// Calls before them.
    pub(crate) warmup: usize,
    /// Random shapes to check first.
    pub(crate) random: usize,
    /// Whether to look first if ranks reach each other.
    pub(crate) probe: bool,
    /// Whether to end after that.
    pub(crate) probe_only: bool,
    tokens: Vec<usize>,
    options: BufferOptions,
    routing: RoutingOptions,
    sms: Option<u32>,
    combine_sms: Option<u32>,
    remote: Option<u32>,
    seed: u64,
}

impl Request {
    /// The shape that results are compared on: 4096 tokens of 7168 values to 8 of 256 experts.
    fn standard() -> Request {
        let options = BufferOptions { live: 2, ..BufferOptions::new(4096, 7168, 8, 256) };
        Request {
            ranks: 1,
            devices: None,
            processes: false,
            kill: None,
            sharing: Sharing::Mapped,
            cooperative: None,
            timeout: Duration::from_secs(5),
            iterations: 50,
            warmup: 10,
            random: 0,
            probe: true,
            probe_only: false,
            tokens: vec![4096],
            routing: RoutingOptions::even(8, 256),
            options,
            sms: None,
            combine_sms: None,
            remote: None,
            seed: 1,
        }
    }

    /// Reads `name=value` words; the error is a sentence.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Request, String> {
        let mut request = Request::standard();
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("`{word}` is not name=value"))?;
            request.set(name, value)?;
        }
        if let Some(devices) = &request.devices {
            request.ranks = devices.len();
        }
        if request.ranks == 0 {
            return Err("`ranks` is at least 1".to_string());
        }
        match request.tokens.len() {
            1 => request.tokens = vec![request.tokens[0]; request.ranks],
            count if count == request.ranks => {}
            count => return Err(format!("{count} token counts for {} ranks", request.ranks)),
        }
        if request.kill.is_some_and(|rank| !request.processes || rank >= request.ranks) {
            return Err("`kill` names a rank of a group with processes=1".to_string());
        }
        request.options.tokens = request.tokens.iter().copied().max().unwrap_or(0);
        request.routing.topk = request.options.topk;
        request.routing.experts = request.options.experts;
        Ok(request)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some((pipeline, name)) = name.split_once('.') {
            let (pipeline, name, value) = (pipeline.into(), name.into(), value.into());
            self.options.settings.push(Setting { pipeline, name, value });
            return Ok(());
        }
        match name {
            "ranks" => self.ranks = number(name, value)?,
            "devices" => self.devices = Some(list(name, value)?),
            "kill" => self.kill = Some(number(name, value)?),
            "processes" => self.processes = flag(name, value)?,
            "tokens" => self.tokens = list(name, value)?,
            "sms" => self.sms = Some(number(name, value)?),
            "combine_sms" => self.combine_sms = Some(number(name, value)?),
            "remote" => self.remote = Some(number(name, value)?),
            "seed" => self.seed = number(name, value)?,
            "iterations" => self.iterations = number(name, value)?,
            "warmup" => self.warmup = number(name, value)?,
            "random" => self.random = number(name, value)?,
            "probe" => {
                self.probe_only = value == "only";
                self.probe = self.probe_only || flag(name, value)?;
            }
            "skew" => self.routing.skew = number(name, value)?,
            "absent" => self.routing.absent = number(name, value)?,
            "repeated" => self.routing.repeated = number(name, value)?,
            "timeout_ms" => self.timeout = Duration::from_millis(number(name, value)?),
            "cooperative" => self.cooperative = Some(flag(name, value)?),
            "sharing" => {
                self.sharing = match value {
                    "mapped" => Sharing::Mapped,
                    "peer" => Sharing::PeerAccess,
                    _ => return Err(format!("`sharing` is mapped or peer, not {value}")),
                }
            }
            _ => return self.set_option(name, value),
        }
        Ok(())
    }

    fn set_option(&mut self, name: &str, value: &str) -> Result<(), String> {
        let options = &mut self.options;
        match name {
            "hidden" => options.hidden = number(name, value)?,
            "topk" => options.topk = number(name, value)?,
            "experts" => options.experts = number(name, value)?,
            "capacity" => options.capacity = Some(number(name, value)?),
            "live" => options.live = number(name, value)?,
            "alignment" => options.alignment = number(name, value)?,
            "weights" => options.weights = flag(name, value)?,
            "biases" => options.biases = number(name, value)?,
            "cached" => options.cached = flag(name, value)?,
            "payload" => {
                options.payload =
                    Payload::from_name(value).ok_or_else(|| format!("no payload `{value}`"))?;
            }
            "via" => {
                options.via = Via::from_name(value).ok_or_else(|| format!("no way `{value}`"))?;
            }
            _ => return Err(format!("there is no `{name}`")),
        }
        Ok(())
    }

    /// The GPU of a rank on a machine with `count` of them.
    pub(crate) fn device(&self, rank: usize, count: usize) -> i32 {
        match &self.devices {
            Some(devices) => devices.get(rank).copied().unwrap_or(0),
            None => (rank % count.max(1)) as i32,
        }
    }

    /// The request of a group that has lost one rank.
    pub(crate) fn without(&self, rank: usize) -> Request {
        let mut fewer = self.clone();
        // Survivors keep their GPUs, wherever those came from.
        let devices = (0..self.ranks).map(|rank| self.device(rank, self.ranks));
        fewer.devices =
            Some(devices.enumerate().filter(|(own, _)| *own != rank).map(|d| d.1).collect());
        fewer.tokens.remove(rank);
        fewer.ranks -= 1;
        fewer
    }

    /// The problem that was asked for; `share` are the multiprocessors that a rank may fill.
    pub(crate) fn case(&self, share: u32) -> Case {
        let dispatch = self.sms.unwrap_or(24).min(share.max(1));
        let combine = self.combine_sms.or(self.sms).unwrap_or(24).min(share.max(1));
        Case {
            options: self.options.clone(),
            tokens: self.tokens.clone(),
            routing: self.routing,
            dispatch: CallOptions { remote_blocks: self.remote, ..CallOptions::blocks(dispatch) },
            combine: CallOptions::blocks(combine),
            seed: self.seed,
        }
    }

    /// A small problem of any shape; the same one for the same seed and index.
    pub(crate) fn random_case(&self, index: usize, share: u32) -> Case {
        let mut random = Random::new(self.seed.wrapping_add(index as u64) << 16);
        // Mostly small, now and then large.
        let mut below = |usual: usize, rare: usize| {
            let bound = if random.chance(0.2) { rare } else { usual };
            random.below(bound)
        };
        let (experts, topk) = (1 + below(64, 512), 1 + below(8, 32));
        let hidden = 16 * (1 + below(64, 512));
        let tokens: Vec<usize> = (0..self.ranks).map(|_| below(64, 1000)).collect();
        let highest = tokens.iter().copied().max().unwrap_or(0).max(1);
        let mut options = BufferOptions::new(highest, hidden, topk, experts);
        options.payload = Payload::ALL[random.below(Payload::ALL.len())];
        options.via = self.options.via;
        options.weights = random.chance(0.7);
        options.biases = random.below(3);
        options.alignment = 1 + random.below(128) as i32;
        options.settings = self.options.settings.clone();
        let routing = RoutingOptions {
            first: 0,
            skew: if random.chance(0.3) { 3.0 } else { 0.0 },
            absent: if random.chance(0.3) { 0.3 } else { 0.0 },
            repeated: if random.chance(0.3) { 0.3 } else { 0.0 },
            ..RoutingOptions::even(topk, experts)
        };
        let mut blocks =
            |least: usize| (least + random.below(32)).min(share.max(least as u32) as usize) as u32;
        let (dispatch, combine) = (blocks(2), blocks(2));
        Case {
            options,
            tokens,
            routing,
            dispatch: CallOptions::blocks(dispatch),
            combine: CallOptions::blocks(combine),
            seed: self.seed.wrapping_add(index as u64),
        }
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{name}` takes a number, not `{value}`"))
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("`{name}` is 0 or 1, not `{value}`")),
    }
}

fn list<T: std::str::FromStr>(name: &str, value: &str) -> Result<Vec<T>, String> {
    value.split(',').map(|item| number(name, item)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Request, String> {
        Request::parse(words.iter().map(|word| word.to_string()))
    }

    #[test]
    fn one_token_count_is_for_all_ranks() {
        let request = parse(&["ranks=3", "tokens=7", "hidden=64", "experts=9"]).unwrap();
        let case = request.case(132);
        assert_eq!(case.tokens, [7, 7, 7]);
        assert_eq!(case.options.tokens, 7);
        assert_eq!(case.routing.experts, 9);
        assert_eq!(parse(&["devices=0,0"]).unwrap().ranks, 2);
    }

    #[test]
    fn wrong_words_are_named() {
        assert_eq!(parse(&["ranks"]).unwrap_err(), "`ranks` is not name=value");
        assert_eq!(parse(&["ranks=x"]).unwrap_err(), "`ranks` takes a number, not `x`");
        assert_eq!(parse(&["speed=9"]).unwrap_err(), "there is no `speed`");
        assert_eq!(parse(&["ranks=2", "tokens=1,2,3"]).unwrap_err(), "3 token counts for 2 ranks");
    }

    #[test]
    fn random_cases_repeat_and_differ() {
        let request = parse(&["ranks=2"]).unwrap();
        assert_eq!(request.random_case(3, 132), request.random_case(3, 132));
        assert_ne!(request.random_case(3, 132), request.random_case(4, 132));
    }
}

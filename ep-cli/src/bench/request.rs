//! What the command line of `bench` asks for.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ep_runtime::buffer::{BufferOptions, CallOptions, Payload};
use ep_runtime::gpu::Sharing;
use ep_verify::oracle::RoutingOptions;
use ep_verify::selftest::{Case, Mode, Operation, Repeats};

use crate::failure::Failure;
use crate::machine::{GpuRequest, Machine, SharingName};
use crate::problem::Problem;
use crate::processes;
use crate::selection::assignment;

/// Tokens per rank of the published shape, and of a run on the host.
const TOKENS: usize = 4096;
const HOST_TOKENS: usize = 8;

/// Options of `bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = crate::problem::PROBLEM_HELP)]
pub(crate) struct Options {
    /// Where it runs; on the host everything is checked and nothing timed
    #[arg(long, value_enum, default_value_t = Machine::Gpu)]
    pub(crate) backend: Machine,
    /// Number of ranks, spread over the GPUs in turn; without it as many as there are GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    /// GPU of each rank; more ranks than GPUs share them
    #[arg(long, value_name = "GPU", value_delimiter = ',', conflicts_with = "ranks")]
    devices: Option<Vec<i32>>,
    /// A process for each rank
    #[arg(long)]
    pub(crate) processes: bool,
    /// End the process of one rank after the check; the others have to go on in a new group
    #[arg(long, value_name = "RANK", requires = "processes")]
    pub(crate) kill: Option<usize>,
    /// Tokens of every rank, or of each
    #[arg(long, value_name = "N", value_delimiter = ',')]
    tokens: Vec<usize>,
    /// What rows consist of
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = payload, default_values = ["bf16", "fp8"])]
    payload: Vec<Payload>,
    /// A number of the shape, a variant, or a tune
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Rows that an output holds; without it the worst case
    #[arg(long, value_name = "ROWS")]
    capacity: Option<usize>,
    /// Outputs that may be in use at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    live: usize,
    /// Only these operations
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = operation)]
    op: Vec<Operation>,
    /// Only this way of calling: loop, back to back; iso, one call after all ranks have met
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = mode)]
    mode: Vec<Mode>,
    /// SMs of a call, one run for each; without it what the machine's rates give
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..))]
    sms: Vec<u32>,
    /// SMs of a combine, if others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    combine_sms: Option<u32>,
    /// Those of a direct dispatch that send to other ranks; without it what the rates give
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    remote: Option<u32>,
    /// Timed calls; 0: check only
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// Calls before them
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,
    /// Check so many small random problems first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) random: usize,
    /// Whether to look first if ranks reach each other
    #[arg(long, value_enum, default_value_t = Probe::Yes)]
    pub(crate) probe: Probe,
    /// Longest wait of a kernel
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    /// Whether launches are cooperative; without it unless ranks share a GPU
    #[arg(long, value_name = "BOOL")]
    cooperative: Option<bool>,
    /// How windows reach the other GPUs of one process
    #[arg(long, value_enum, default_value_t = SharingName::Mapped)]
    sharing: SharingName,
    /// 0: all experts alike; larger: the first ones get more and more
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    skew: f64,
    /// Share of entries that are -1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    absent: f64,
    /// Share of entries that repeat an earlier one of their token
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    repeated: f64,
    /// Seed of routing and values
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print a digest of all outputs of each rank
    #[arg(long)]
    pub(crate) outputs: bool,
    /// Draw times against SMs into this SVG
    #[arg(long, value_name = "SVG")]
    pub(crate) chart: Option<PathBuf>,
    /// Measure nothing, draw these results
    #[arg(long, value_name = "JSONL", requires = "chart")]
    pub(crate) draw: Option<PathBuf>,
}

/// Whether to look first if ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Look, then go on
    Yes,
    /// Do not
    No,
    /// Look and end
    Only,
}

fn payload(text: &str) -> Result<Payload, String> {
    let names = || Payload::ALL.map(Payload::name).join(", ");
    Payload::from_name(text).ok_or_else(|| format!("it is none of {}", names()))
}

fn operation(text: &str) -> Result<Operation, String> {
    let names = || Operation::ALL.map(Operation::name).join(", ");
    let found = Operation::ALL.into_iter().find(|operation| operation.name() == text);
    found.ok_or_else(|| format!("it is none of {}", names()))
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = [Mode::Loop, Mode::Iso].into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "it is neither loop nor iso".to_owned())
}

/// What to run, with nothing left open.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) gpus: GpuRequest,
    pub(crate) tokens: Vec<usize>,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) modes: Vec<Mode>,
    pub(crate) repeats: Repeats,
    pub(crate) seed: u64,
    sms: Vec<u32>,
    combine_sms: Option<u32>,
    remote: Option<u32>,
    options: BufferOptions,
    routing: RoutingOptions,
}

/// SMs of the calls of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sms {
    pub(crate) dispatch: CallOptions,
    pub(crate) combine: CallOptions,
}

impl Options {
    /// The request on a machine with `found` GPUs.
    pub(crate) fn request(&self, found: usize) -> Result<Request, Failure> {
        let on_host = self.backend == Machine::Host;
        let usual = if on_host { 2 } else { found.max(1) };
        let ranks = match (&self.devices, self.ranks) {
            (Some(devices), _) => devices.len(),
            (None, Some(ranks)) => ranks as usize,
            (None, None) => usual,
        };
        let tokens = match self.tokens[..] {
            [] => vec![if on_host { HOST_TOKENS } else { TOKENS }; ranks],
            [one] => vec![one; ranks],
            _ if self.tokens.len() == ranks => self.tokens.clone(),
            _ => {
                let count = self.tokens.len();
                return Err(Failure::WrongUse(format!("{count} token counts for {ranks} ranks")));
            }
        };
        if let Some(killed) = self.kill.filter(|killed| *killed >= ranks) {
            return Err(Failure::WrongUse(format!("there is no rank {killed} of {ranks}")));
        }
        let problem =
            Problem { ranks: ranks as u32, tokens: None, set: self.set.clone(), plain: false };
        let mut options = problem.options(crate::problem::reference_options())?;
        options.tokens = tokens.iter().copied().max().unwrap_or(0);
        options.capacity = self.capacity;
        options.live = self.live;
        let routing = RoutingOptions {
            skew: self.skew,
            absent: self.absent,
            repeated: self.repeated,
            ..RoutingOptions::even(options.topk, options.experts)
        };
        let [iterations, warmup] = if on_host { [2, 1] } else { [50, 10] };
        let all = |chosen: &[Operation]| match chosen {
            [] => Operation::ALL.to_vec(),
            some => some.to_vec(),
        };
        Ok(Request {
            gpus: self.gpu_request(ranks),
            tokens,
            payloads: self.payload.clone(),
            operations: all(&self.op),
            modes: if self.mode.is_empty() {
                vec![Mode::Loop, Mode::Iso]
            } else {
                self.mode.clone()
            },
            repeats: Repeats {
                iterations: self.iterations.unwrap_or(iterations),
                warmup: self.warmup.unwrap_or(warmup),
            },
            seed: self.seed,
            sms: self.sms.clone(),
            combine_sms: self.combine_sms,
            remote: self.remote,
            options,
            routing,
        })
    }

    fn gpu_request(&self, ranks: usize) -> GpuRequest {
        GpuRequest {
            ranks,
            devices: self.devices.clone(),
            is_member: self.processes && processes::is_member(),
            sharing: match self.sharing {
                SharingName::Mapped => Sharing::Mapped,
                SharingName::Peer => Sharing::PeerAccess,
            },
            cooperative: self.cooperative,
            timeout: Duration::from_millis(self.timeout_ms),
        }
    }
}

impl Request {
    /// What a buffer for `payload` is made for.
    pub(crate) fn buffer(&self, payload: Payload) -> BufferOptions {
        BufferOptions { payload, ..self.options.clone() }
    }

    /// The problem with rows of one kind.
    pub(crate) fn case(&self, options: BufferOptions, sms: Sms) -> Case {
        Case {
            tokens: self.tokens.clone(),
            routing: self.routing,
            dispatch: sms.dispatch,
            combine: sms.combine,
            seed: self.seed,
            options,
        }
    }

    /// The numbers of SMs to run with, none above what a rank may fill: `share`. Without any,
    /// `tuned` SMs.
    pub(crate) fn sweep(&self, share: u32, tuned: u32) -> Vec<Sms> {
        let sms = if self.sms.is_empty() { vec![tuned] } else { self.sms.clone() };
        let mut sms: Vec<u32> = sms.into_iter().map(|sms| sms.min(share.max(1))).collect();
        sms.dedup();
        let both = |sms: u32| Sms {
            dispatch: CallOptions { remote_sms: self.remote, ..CallOptions::sms(sms) },
            combine: CallOptions::sms(self.combine_sms.unwrap_or(sms).min(share.max(1))),
        };
        sms.into_iter().map(both).collect()
    }

    /// The request of a group that has lost one rank. The others keep their GPUs, wherever those
    /// came from.
    pub(crate) fn without(&self, rank: usize, count: usize) -> Request {
        let mut fewer = self.clone();
        let devices = (0..self.gpus.ranks).filter(|own| *own != rank);
        fewer.gpus.devices = Some(devices.map(|own| self.gpus.device(own, count)).collect());
        fewer.gpus.ranks -= 1;
        fewer.tokens.remove(rank);
        fewer
    }

    /// A small problem of any shape; the same one for the same seed and index.
    pub(crate) fn random_case(&self, index: usize, share: u32) -> Case {
        let seed = self.seed.wrapping_add(index as u64);
        let mut case = Case::random(self.gpus.ranks, seed, share);
        case.options.via = self.options.via;
        case.options.settings = self.options.settings.clone();
        case
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn request(line: &str) -> Result<Request, String> {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.options.request(4).map_err(|failure| failure.to_string())
    }

    #[test]
    fn one_token_count_is_for_all_ranks() {
        let made = request("--ranks 3 --tokens 7 --set hidden=64 --set experts=9").unwrap();
        assert_eq!(made.tokens, [7, 7, 7]);
        let options = made.buffer(Payload::Fp8);
        assert_eq!((options.tokens, options.hidden, options.live), (7, 64, 2));
        let case = made.case(options, made.sweep(132, 12)[0]);
        assert_eq!((case.routing.experts, case.dispatch.sms), (9, 12));
        assert_eq!(request("").unwrap().gpus.ranks, 4, "as many as there are GPUs");
        assert_eq!(request("--devices 0,0").unwrap().gpus.ranks, 2);
    }

    #[test]
    fn a_sweep_stays_within_the_share_of_a_rank() {
        let made = request("--sms 8,16,200,300 --remote 6 --combine-sms 24").unwrap();
        let sweep = made.sweep(132, 12);
        let sms: Vec<u32> = sweep.iter().map(|sms| sms.dispatch.sms).collect();
        assert_eq!(sms, [8, 16, 132]);
        assert!(sweep.iter().all(|it| it.combine.sms == 24));
        assert!(sweep.iter().all(|it| it.dispatch.remote_sms == Some(6)));
    }

    #[test]
    fn wrong_words_are_named() {
        for (line, part) in [
            ("--ranks 2 --tokens 1,2,3", "3 token counts for 2 ranks"),
            ("--payload fp4", "it is none of bf16, fp8, fp8-packed"),
            ("--op speed", "it is none of dispatch, dispatch-counted, counts"),
            ("--mode fast", "it is neither loop nor iso"),
            ("--ranks 2 --kill 2 --processes", "there is no rank 2 of 2"),
            ("--kill 1", "--processes"),
            ("--set depht=3", "there is no `depht`"),
            ("--draw a.jsonl", "--chart"),
        ] {
            let error = request(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn survivors_keep_their_gpus() {
        let fewer = request("--ranks 4 --tokens 1,2,3,4").unwrap().without(1, 4);
        assert_eq!((fewer.gpus.devices, fewer.tokens), (Some(vec![0, 2, 3]), vec![1, 3, 4]));
    }
}

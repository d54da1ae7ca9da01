//! Reads the command line of `bench NAME`.

use ep_verify::selftest::Repeats;

use super::{HOST_TOKENS, Options, TOKENS, TokenCounts};
use crate::declared::Subject;
use crate::failure::Failure;
use crate::machine::{GpuRequest, Machine};
use crate::problem::{MAX_TOKENS, Problem};

/// SMs of a call, if the pipeline does not need more.
const USUAL_SMS: u32 = 24;

impl Options {
    /// The GPUs and the problems to time one pipeline on a machine with `found` GPUs: one problem per number of tokens.
    pub(crate) fn problems(
        &self,
        found: usize,
        subject: &Subject,
    ) -> Result<(GpuRequest, Vec<Problem>), Failure> {
        self.have_effect()?;
        let mut set = self.set.clone();
        let asked = self.asked_ranks(&mut set)?;
        let usual = if self.backend == Machine::Host { 2 } else { found.max(1) };
        let ranks = asked.or(subject.has("ranks").then_some(usual)).map(|ranks| ranks as u32);
        let tokens = match self.tokens[..] {
            [] if set.iter().any(|(name, _)| name == MAX_TOKENS) => vec![None],
            [] if self.backend == Machine::Host => vec![Some(HOST_TOKENS)],
            [] => vec![Some(TOKENS)],
            _ => {
                let all = self.tokens.iter().map(|tokens| tokens.of_each().map(Some));
                all.collect::<Result<_, _>>()?
            }
        };
        let problem = |tokens| {
            let (nodes, set) = (None, set.clone());
            Problem { ranks, nodes, tokens, set, kernels: self.kernels }
        };
        let problems = tokens.into_iter().map(|tokens| subject.asked(&problem(tokens)));
        let problems = problems.collect::<Result<Vec<_>, _>>()?;
        let ranks = problems.first().map_or(Ok(1), |problem| subject.ranks(problem))?;
        Ok((self.gpu_request(ranks), problems))
    }

    /// How many rounds of calls of a pipeline are timed, and of how many calls.
    pub(crate) fn rounds(&self) -> Repeats {
        let [iterations, warmup, calls] = match self.backend {
            Machine::Host => [1, 0, 2],
            Machine::Gpu => [50, 5, 10],
        };
        Repeats {
            iterations: self.iterations.unwrap_or(iterations),
            warmup: self.warmup.unwrap_or(warmup),
            graph: Some(self.graph.unwrap_or(calls as u32)),
        }
    }

    /// The numbers of SMs of a pipeline that needs `fewest`, none above what a rank may fill: `share`.
    pub(crate) fn blocks(&self, fewest: u32, share: u32) -> Vec<u32> {
        let usual = if self.backend == Machine::Host { fewest } else { fewest.max(USUAL_SMS) };
        let asked = if self.sms.is_empty() { vec![usual] } else { self.sms.clone() };
        let mut blocks: Vec<u32> = asked.into_iter().map(|sms| sms.min(share.max(1))).collect();
        blocks.dedup();
        blocks
    }
}

impl TokenCounts {
    /// As many on every rank.
    fn of_each(&self) -> Result<usize, Failure> {
        match self.0[..] {
            [one] => Ok(one),
            _ => Err(Failure::WrongUse(
                "a single pipeline is timed with the same number of tokens on every rank"
                    .to_owned(),
            )),
        }
    }
}

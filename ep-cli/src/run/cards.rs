//! `epforge run --net card`: nodes on the GPUs of this process, with network cards that are kernels.

use std::time::{Duration, Instant};

use ep_runtime::AnyPipeline;
use ep_runtime::group::Group;
use ep_runtime::host::Programs;
use ep_runtime::net::{CardTraffic, ResidentNetwork, ResidentOptions};
use ep_verify::Findings;
use ep_verify::declared::Declared;

use super::Options;
use crate::declared::{Calls, ROUNDS, Subject};
use crate::failure::Failure;
use crate::machine::{GpuRequest, Machine, Ranks};
use crate::problem::{failed, no_machine};
use crate::talk::Talk;

/// Longest wait of a kernel. Cards on one machine lose nothing, so that only an entry that fails makes one expire.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the calls of all pipelines, and compares what they leave.
pub(super) fn run(
    options: &Options,
    cards: &ResidentOptions,
    entries: &[AnyPipeline],
    talk: &mut Talk<'_>,
) -> Result<(), Failure> {
    if options.backend == Machine::Host {
        let what = "`card` works only on GPUs: in the emulator, `--set network=ibgda` models cards";
        return Err(Failure::WrongUse(what.to_string()));
    }
    let (nodes, each) = options.nodes("card")?;
    let cases = options.cases(entries, true)?;
    let programs = Programs::find().map_err(no_machine)?;
    let request = GpuRequest::threads((nodes * each) as usize, TIMEOUT).perturbed(options.perturb);
    let ranks = Ranks::over_cards(&request, each as usize, cards)?;
    let group = &ranks.group;
    talk.say(&format!("{nodes} nodes of {each} ranks on {}, over cards", group.backend().name()))?;
    for (entry, problem) in &cases {
        let subject = Subject::new(entry, &programs)?;
        let (arch, seed) = (group.backend().arch(), options.seed);
        let calls = subject.some_calls(options.node.calls(), problem, arch, (seed, seed))?;
        let begun = Instant::now();
        let (findings, traffic) = check(group, (&subject, &calls), options.sms)?;
        let (shape, seconds) = (calls.shape(), begun.elapsed().as_secs_f64());
        talk.say(&format!("{}, {shape}: {findings}, in {seconds:.1} s; {traffic}", entry.name))?;
        if !findings.is_good() {
            return Err(Failure::Failed(findings.to_string()));
        }
    }
    talk.end("run", "run ok")
}

/// The results of one kernel's calls, and the traffic of the cards during the calls.
fn check(
    group: &Group,
    (subject, calls): (&Subject, &Calls),
    sms: Option<u32>,
) -> Result<(Findings, String), Failure> {
    let declared = Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &subject.functions());
    let declared = declared.map_err(|wrong| Failure::Failed(wrong.to_string()))?;
    let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let network = ResidentNetwork::of_plan(group, &calls.emitted.plan);
    let network = network.map_err(|error| text(&error))?;
    let addresses = network.as_ref().map(ResidentNetwork::addresses).unwrap_or_default();
    let sms = sms.unwrap_or(calls.blocks_min());
    let findings = declared.check_over(group, sms, &addresses).map_err(failed)?;
    let traffic = match &network {
        Some(network) => network.traffic().map_err(|error| text(&error))?,
        None => Vec::new(),
    };
    let sum = |part: fn(&CardTraffic) -> u64| traffic.iter().map(part).sum::<u64>();
    let (entries, doorbells) = (sum(|it| it.entries), sum(|it| it.doorbells));
    let words = format!("{entries} entries, {doorbells} doorbells, {} bytes", sum(|it| it.bytes));
    Ok((findings, words))
}

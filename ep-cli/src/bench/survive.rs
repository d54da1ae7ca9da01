//! The end of one rank in the middle of calls: the others have to learn from a call which one it was, within the
//! call's timeout, and to go on in a new group if they were one node.

use std::process::Command;
use std::time::{Duration, Instant};

use ep_runtime::error::CallError;
use ep_verify::selftest::Selftest;

use super::check;
use super::request::Request;
use super::talk::Talk;
use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::machine::{Ranks, gpus};
use crate::problem::failed;

/// The shell command that kills this process while it makes calls.
const KILLER: &str = "sleep 0.2; kill -KILL $PPID";

/// How long calls go on, at most.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the part of this process, whose one rank may be `killed`.
pub(super) fn run(
    ranks: Ranks,
    request: &Request,
    kernels: Kernels,
    killed: usize,
    talk: &mut Talk<'_>,
) -> Result<(), Failure> {
    let test = problem(&ranks, request, kernels)?;
    check(&test, "with all ranks", talk)?;
    let rank = ranks.local().start;
    if rank == killed {
        let killer = Command::new("sh").args(["-c", KILLER]).spawn();
        killer.map_err(|error| Failure::Failed(format!("sh cannot be started: {error}")))?;
    }
    let (error, waited) = until_error(&test)?;
    let is_named = match &error {
        CallError::Timeout(timeouts) => timeouts.edges().iter().any(|(_, to)| *to == killed),
        CallError::Network(error) => error.culprit() == Some(killed),
        _ => false,
    };
    if waited > ranks.group.timeout() * 3 || !is_named {
        return Err(Failure::Failed(format!("after {waited:?}: {error}")));
    }
    // Each of the nodes may learn it in another way.
    talk.speaks |= ranks.group.nodes() > 1;
    talk.say(&format!("rank {rank} after {waited:?}: {error}"))?;
    if ranks.group.nodes() > 1 {
        return Ok(());
    }
    drop((test, ranks));
    let fewer = request.without(killed, gpus()?);
    let ranks = Ranks::without(&fewer.gpus, killed)?;
    check(&problem(&ranks, &fewer, kernels)?, "in a new group", talk)
}

/// Makes calls until one fails; how long that one took.
fn until_error(test: &Selftest) -> Result<(CallError, Duration), Failure> {
    let first = Instant::now();
    while first.elapsed() < LIMIT {
        let begun = Instant::now();
        if let Err(error) = test.dispatch_alone() {
            return Ok((error, begun.elapsed()));
        }
    }
    Err(Failure::Failed("nobody noticed the end".to_owned()))
}

fn problem(ranks: &Ranks, request: &Request, kernels: Kernels) -> Result<Selftest, Failure> {
    let payload = request.payloads.first().copied();
    let Some(batch) = request.batches.first() else {
        return Err(Failure::WrongUse("a run needs tokens".to_owned()));
    };
    let buffer = request.buffer(payload.unwrap_or(ep_runtime::buffer::Payload::Bf16), batch);
    let share = ranks.sms();
    let sweep = request.sweep(share, share.min(16));
    let Some(sms) = sweep.first() else {
        return Err(Failure::WrongUse("a run needs SMs".to_owned()));
    };
    let case = request.case(buffer, batch, *sms);
    Selftest::new(&ranks.group, kernels.source(), case).map_err(failed)
}

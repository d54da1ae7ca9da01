//! The end of one rank in the middle of everything: the others have to learn it from a call, within
//! its timeout, and to go on in a new group.

use std::time::Instant;

use ep_runtime::error::CallError;
use ep_verify::selftest::Selftest;

use super::check;
use super::request::Request;
use super::talk::Talk;
use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::machine::{Ranks, gpus};
use crate::problem::failed;

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
        std::process::abort();
    }
    let begun = Instant::now();
    let error = test.dispatch_alone().err();
    let waited = begun.elapsed();
    let error = error.ok_or_else(|| Failure::Failed("nobody noticed the end".to_owned()))?;
    let CallError::Timeout(timeouts) = &error else { return Err(failed(error)) };
    let is_named = timeouts.edges().iter().any(|(_, to)| *to == killed);
    if waited > request.gpus.timeout * 3 || !is_named {
        return Err(Failure::Failed(format!("after {waited:?}: {error}")));
    }
    talk.say(&format!("rank {rank} after {waited:?}: {error}"))?;
    drop((test, ranks));
    let fewer = request.without(killed, gpus()?);
    let ranks = Ranks::without(&fewer.gpus, killed)?;
    check(&problem(&ranks, &fewer, kernels)?, "in a new group", talk)
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

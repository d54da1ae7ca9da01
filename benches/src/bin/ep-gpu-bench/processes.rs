//! A process for each rank: the first one starts the others and waits for them.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use ep_runtime::gpu::{Compile, GpuBackend};
use ep_runtime::join::{ID_VARIABLE, Member, Store, UniqueId};

use super::{Failure, wrong};

/// How long processes wait for one another: the slowest may have to compile first.
const DEADLINE: Duration = Duration::from_secs(120);

/// The variable with the id of the group that survivors of a lost rank make.
const NEXT_ID_VARIABLE: &str = "EPFORGE_NEXT_ID";

/// Whether this process is one of several, started by [`spawn`] or by a launcher.
pub(crate) fn is_child() -> bool {
    std::env::var_os("RANK").is_some()
}

/// Runs this program once per rank; fails if any of them does, but for the one that is to be
/// killed.
pub(crate) fn spawn(ranks: usize, kill: Option<usize>) -> Result<(), Failure> {
    let id = UniqueId::local().map_err(wrong)?.to_string();
    let next = UniqueId::local().map_err(wrong)?.to_string();
    let program = std::env::current_exe().map_err(wrong)?;
    let mut children = Vec::new();
    for rank in 0..ranks {
        let child = Command::new(&program)
            .args(std::env::args_os().skip(1))
            .env(ID_VARIABLE, &id)
            .env(NEXT_ID_VARIABLE, &next)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .spawn();
        children.push(child.map_err(wrong)?);
    }
    let mut failed = Vec::new();
    for (rank, child) in children.iter_mut().enumerate() {
        let status: ExitStatus = child.wait().map_err(wrong)?;
        if status.success() == (kill == Some(rank)) {
            failed.push(rank);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Wrong(format!("ranks {failed:?} ended otherwise than they should"))),
    }
}

/// Joins the group that the environment names, on the device that belongs to the rank.
pub(crate) fn join(device: impl Fn(usize) -> i32, compile: Compile) -> Result<GpuBackend, Failure> {
    let id = UniqueId::from_environment().map_err(wrong)?;
    enter(&id, Member::from_environment().map_err(wrong)?, device, compile)
}

/// Joins the group of those that are left without `lost`; `device` is asked for the new rank.
pub(crate) fn join_again(
    lost: usize,
    device: impl Fn(usize) -> i32,
    compile: Compile,
) -> Result<GpuBackend, Failure> {
    let id: UniqueId = std::env::var(NEXT_ID_VARIABLE).map_err(wrong)?.parse().map_err(wrong)?;
    let Member { rank, ranks } = Member::from_environment().map_err(wrong)?;
    let rank = if rank > lost { rank - 1 } else { rank };
    enter(&id, Member { rank, ranks: ranks - 1 }, device, compile)
}

fn enter(
    id: &UniqueId,
    member: Member,
    device: impl Fn(usize) -> i32,
    compile: Compile,
) -> Result<GpuBackend, Failure> {
    let store = Store::join(id, member, DEADLINE).map_err(wrong)?;
    GpuBackend::join(device(member.rank), store, compile).map_err(wrong)
}

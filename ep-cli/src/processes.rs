//! A process for each rank: the first one starts the others and waits for them.

use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use ep_runtime::gpu::{Compile, GpuBackend};

use crate::failure::Failure;
use crate::program;

/// How long processes wait for one another: the slowest may have to compile first.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Whether this process is one of several, started by [`command`] or by a launcher.
pub(crate) fn is_member() -> bool {
    std::env::var_os("RANK").is_some()
}

/// Runs this program again, once per rank or per node, with the same arguments; fails if any of them does, but
/// for the one that is to be killed.
pub(crate) fn spawn(count: usize, killed: Option<usize>) -> Result<(), Failure> {
    let mut children = start(commands(count, &program::words(), killed)?)?;
    let mut ended = Vec::new();
    for child in &mut children {
        ended.push(child.wait().map_err(failed)?);
    }
    expect(&ended, killed)
}

/// Runs this program once per rank with other arguments, and gives what rank 0 printed.
pub(crate) fn output(
    ranks: usize,
    arguments: &[OsString],
    variables: &[(&str, OsString)],
    killed: Option<usize>,
) -> Result<Output, Failure> {
    let mut commands = commands(ranks, arguments, killed)?;
    for command in &mut commands {
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let children = start(commands)?;
    // Each is read to its end by a thread of its own, so that none waits for room in a pipe.
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(move || child.wait_with_output()))
        .collect();
    let mut outputs = Vec::new();
    for reader in readers {
        let output = reader.join().map_err(|_| failed("a reader of a process panicked"))?;
        outputs.push(output.map_err(failed)?);
    }
    let ended: Vec<ExitStatus> = outputs.iter().map(|output| output.status).collect();
    expect(&ended, killed).map_err(|failure| {
        let said = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr));
        Failure::Failed(format!("{}\n{}", failure.sentence(), said.collect::<String>().trim_end()))
    })?;
    outputs.into_iter().next().ok_or_else(|| failed("a group has a rank"))
}

/// Starts all of them or none: those that run would wait for one that does not.
fn start(commands: Vec<Command>) -> Result<Vec<Child>, Failure> {
    let mut children = Vec::new();
    for mut command in commands {
        match command.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                for child in &mut children {
                    child.kill().and_then(|()| child.wait()).map_err(failed)?;
                }
                return Err(failed(format!(
                    "{:?} cannot be started: {error}",
                    command.get_program()
                )));
            }
        }
    }
    Ok(children)
}

/// All processes have ended well, but for the one that was to be killed.
fn expect(ended: &[ExitStatus], killed: Option<usize>) -> Result<(), Failure> {
    let ranks = ended.iter().enumerate();
    let wrong = ranks.filter(|(rank, status)| status.success() == (killed == Some(*rank)));
    let wrong: Vec<String> = wrong.map(|(rank, status)| format!("{rank} ({status})")).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(failed(format!(
            "these processes ended otherwise than they should: {}",
            wrong.join(", ")
        ))),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

#[cfg(not(target_os = "linux"))]
use elsewhere::commands;
#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{join, join_again, meet, place};
#[cfg(target_os = "linux")]
use linux::commands;
#[cfg(target_os = "linux")]
pub(crate) use linux::{join, join_again, meet, place};

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_one_that_cannot_be_started() {
        let (mut of_first, to_here) = std::io::pipe().unwrap();
        let mut first = Command::new("sleep");
        first.arg("600").stdout(to_here);
        let error = start(vec![first, Command::new("no-such-program")]).err().unwrap();
        assert!(error.sentence().starts_with("\"no-such-program\" cannot be started: "));
        // Its end of the pipe is open for as long as it runs.
        assert_eq!(std::io::Read::read(&mut of_first, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn only_the_killed_one_may_end_badly() {
        use std::os::unix::process::ExitStatusExt;
        let (good, bad, killed) =
            (ExitStatus::from_raw(0), ExitStatus::from_raw(1 << 8), ExitStatus::from_raw(6));
        assert!(expect(&[good, good], None).is_ok());
        assert!(expect(&[good, killed, good], Some(1)).is_ok());
        let text = |ended: &[ExitStatus], killed| match expect(ended, killed) {
            Ok(()) => String::new(),
            Err(failure) => failure.sentence(),
        };
        assert!(text(&[good, bad], None).contains("1 (exit status: 1)"));
        assert!(text(&[bad, killed], Some(1)).contains("0 (exit status: 1)"));
        assert!(text(&[good, good], Some(1)).contains("1 (exit status: 0)"), "it lives on");
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::Arc;

    use ep_runtime::join::{ID_VARIABLE, JoinError, Member, Store, UniqueId};

    use super::*;
    use crate::problem::no_machine;

    /// The variable with the id of the group that survivors of a lost rank make.
    const NEXT_ID_VARIABLE: &str = "EPFORGE_NEXT_ID";

    /// This program once per rank of a new group. The first rank gets the group's port, and the first
    /// one that survives `killed` that of the next group.
    pub(super) fn commands(
        ranks: usize,
        arguments: &[OsString],
        killed: Option<usize>,
    ) -> Result<Vec<Command>, Failure> {
        let id = UniqueId::local().map_err(failed)?;
        let next = UniqueId::local().map_err(failed)?;
        let survivor = usize::from(killed == Some(0));
        let command = |rank: usize| {
            let mut command = program::again().map_err(failed)?;
            command.args(arguments).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", ranks.to_string());
            for (id, name, first) in [(&id, ID_VARIABLE, 0), (&next, NEXT_ID_VARIABLE, survivor)] {
                match rank == first {
                    true => id.hand_to(&mut command, name),
                    false => id.give_to(&mut command, name),
                }
            }
            Ok(command)
        };
        (0..ranks).map(command).collect()
    }

    /// The group that the environment names, and this process among its processes, each of which has a rank or a node.
    pub(crate) fn place() -> Result<(UniqueId, Member), Failure> {
        let id = UniqueId::from_environment().map_err(failed)?;
        Ok((id, Member::from_environment().map_err(failed)?))
    }

    /// Meets the processes of the group that the environment names.
    pub(crate) fn meet() -> Result<Arc<Store>, Failure> {
        let (id, member) = place()?;
        Store::join(&id, member, DEADLINE).map(Arc::new).map_err(failed)
    }

    /// Joins the group that the environment names, on the device that belongs to the rank.
    pub(crate) fn join(
        device: impl Fn(usize) -> i32,
        compile: Compile,
    ) -> Result<GpuBackend, Failure> {
        let (id, member) = place()?;
        enter(&id, member, device, compile)
    }

    /// Joins the group of those that are left without `lost`; `device` is asked for the new rank.
    pub(crate) fn join_again(
        lost: usize,
        device: impl Fn(usize) -> i32,
        compile: Compile,
    ) -> Result<GpuBackend, Failure> {
        let missing = || JoinError::Address { why: format!("{NEXT_ID_VARIABLE} is not set") };
        let id = UniqueId::from_variable(NEXT_ID_VARIABLE).map_err(failed)?;
        let id = id.ok_or_else(missing).map_err(failed)?;
        let Member { rank, ranks } = Member::from_environment().map_err(failed)?;
        let rank = if rank > lost { rank - 1 } else { rank };
        enter(&id, Member { rank, ranks: ranks - 1 }, device, compile)
    }

    fn enter(
        id: &UniqueId,
        member: Member,
        device: impl Fn(usize) -> i32,
        compile: Compile,
    ) -> Result<GpuBackend, Failure> {
        let store = Store::join(id, member, DEADLINE).map_err(failed)?;
        GpuBackend::join(device(member.rank), store, compile).map_err(no_machine)
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::*;

    fn needs_linux<T>() -> Result<T, Failure> {
        Err(failed("ranks in processes of their own need Linux"))
    }

    pub(super) fn commands(
        _: usize,
        _: &[OsString],
        _: Option<usize>,
    ) -> Result<Vec<Command>, Failure> {
        needs_linux()
    }

    pub(crate) fn place<T>() -> Result<T, Failure> {
        needs_linux()
    }

    pub(crate) fn meet<T>() -> Result<T, Failure> {
        needs_linux()
    }

    pub(crate) fn join(_: impl Fn(usize) -> i32, _: Compile) -> Result<GpuBackend, Failure> {
        needs_linux()
    }

    pub(crate) fn join_again(
        _: usize,
        _: impl Fn(usize) -> i32,
        _: Compile,
    ) -> Result<GpuBackend, Failure> {
        needs_linux()
    }
}

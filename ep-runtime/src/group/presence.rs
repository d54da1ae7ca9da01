//! Which ranks take part in calls: ranks that a caller leaves out, ranks that are left out because they do
//! not answer, and ranks that rejoin.
//!
//! A rank that is left out counts no calls, and receives no credit. When it rejoins, all ranks therefore
//! clear their counters: while no rank is inside a call, each clears its words of the pipelines that can do
//! without a rank, and the next call counts as the first. This works no matter what the rank left
//! unfinished, if its kernels have ended.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::kernel::state_offset;
use super::{Group, Recorder, control_bytes};
use crate::backend::{Backend, Stream};
use crate::error::CallError;
use crate::memory::{DeviceMemory, Window};
use crate::timeouts::PRESENCES_AT;

/// `ep::Presence` of every rank.
pub(super) struct Presences {
    window: Window,
    /// For each local rank, where those of all ranks are.
    all: Vec<DeviceMemory>,
}

/// Bytes of `ep::Presence`; its first word has a bit for each rank that is absent.
const PRESENCE_BYTES: u64 = 16;

impl Presences {
    /// Those of a group whose kernels wait so long for a rank.
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        timeout: Duration,
        has_nodes: bool,
    ) -> Result<Presences, CallError> {
        let ranks = backend.ranks();
        if has_nodes || ranks > 64 {
            let which = if has_nodes { "several nodes".into() } else { format!("{ranks} ranks") };
            let what = format!(
                "a group of {which} cannot leave out ranks that do not answer: only one node of at most \
                64 ranks can"
            );
            return Err(CallError::Mismatch { what });
        }
        let window = Window::new(backend, PRESENCE_BYTES)?;
        let of = |rank| {
            let bases = window.bases(rank)?.iter().flat_map(|base| base.to_le_bytes());
            let bases: Vec<u8> = bases.collect();
            let all = DeviceMemory::new(backend, rank, bases.len() as u64)?;
            all.write(0, &bases)?;
            backend.name_memory(rank, all.address(), all.bytes(), "places of presences", &[]);
            backend.name_memory(rank, window.own(rank)?, PRESENCE_BYTES, "presence", &[]);
            Ok::<_, CallError>(all)
        };
        let all = backend.local().map(of).collect::<Result<_, _>>()?;
        backend.let_waits_run_out(timeout);
        Ok(Presences { window, all })
    }
}

impl Group {
    /// The ranks that calls of the local rank `rank` have found absent and go on without. Empty unless
    /// [`GroupOptions::leaves_out_absent`](super::GroupOptions::leaves_out_absent) is set. Waits until all
    /// calls of `rank` have run. In the call that found a rank absent, the results for that rank are
    /// missing or incomplete.
    pub fn absent(&self, rank: usize) -> Result<Vec<usize>, CallError> {
        let Some(presences) = &self.shared.presences else { return Ok(Vec::new()) };
        self.sync(rank)?;
        let mut bits = [0; 8];
        self.backend().read(rank, presences.window.own(rank)?, &mut bits)?;
        let bits = u64::from_le_bytes(bits);
        Ok((0..self.ranks()).filter(|other| bits >> other & 1 != 0).collect())
    }

    /// Whether kernels that can do without a rank go on without one that does not answer.
    pub fn leaves_out_absent(&self) -> bool {
        self.shared.presences.is_some()
    }

    /// Tells the kernels of a pipeline where they find who is absent, if they look.
    pub(super) fn tell_presences(&self, recorder: &Recorder) -> Result<(), CallError> {
        let plan = &recorder.plan;
        if !plan.leaves_out_absent {
            return Ok(());
        }
        let Some(presences) = &self.shared.presences else {
            let name = &plan.pipeline;
            let what = format!(
                "{name} was emitted to continue without ranks that do not answer, and its group does \
                not continue without them"
            );
            return Err(CallError::Mismatch { what });
        };
        for (rank, all) in self.local().zip(&presences.all) {
            let state = recorder.window.own(rank)? + recorder.control_at + state_offset(plan);
            self.backend().write(rank, state + PRESENCES_AT, &all.address().to_le_bytes())?;
        }
        Ok(())
    }

    /// Leaves a rank out of later calls, or takes it back in.
    ///
    /// With `is_out`, this process no longer waits for the rank, and data sent to it is dropped. All other
    /// ranks must make the same call, and the rank itself must make no calls. A graph continues with the
    /// ranks that it was captured with.
    ///
    /// Without `is_out`, every process makes this call, including the process of the rank, after the calls
    /// without the rank have been launched on all ranks of the process. The call waits for those calls and
    /// for all processes. Calls between their phases are dropped. Ranks that were found absent also return.
    pub fn leave_out(&self, rank: usize, is_out: bool) -> Result<(), CallError> {
        if rank >= self.ranks().min(64) {
            let ranks = self.ranks();
            let what = format!("rank {rank} is not one of the first 64 of {ranks} ranks");
            return Err(CallError::Mismatch { what });
        }
        if is_out {
            self.shared.alive.fetch_and(!(1 << rank), Ordering::Relaxed);
            return Ok(());
        }
        let _alone = self.shared.returns.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shared.alive.load(Ordering::Relaxed);
        let alive = before | 1 << rank;
        let may_be_absent = self.shared.presences.is_some();
        if self.local().len() == self.ranks() && alive == before && !may_be_absent {
            return Ok(());
        }
        self.begin_again(rank, alive)?;
        self.shared.alive.store(alive, Ordering::Relaxed);
        Ok(())
    }

    /// The ranks that take part in a call of a pipeline, a bit for each.
    pub(super) fn who_is_in(&self, recorder: &Recorder) -> Result<u64, CallError> {
        let (plan, alive) = (&recorder.plan, self.shared.alive.load(Ordering::Relaxed));
        let name = &plan.pipeline;
        if alive != u64::MAX && !plan.skips_ranks {
            let rank = (!alive).trailing_zeros();
            let what = format!("{name} waits for every rank, and rank {rank} is left out");
            return Err(CallError::Mismatch { what });
        }
        if recorder.is_stale.load(Ordering::Relaxed) {
            let what = format!(
                "{name} uses a network, whose counters continue, and was prepared before a rank came \
                back: prepare {name} again"
            );
            return Err(CallError::Mismatch { what });
        }
        Ok(alive)
    }

    /// Clears what calls without `rank` have left, on all ranks between two calls.
    fn begin_again(&self, rank: usize, alive: u64) -> Result<(), CallError> {
        let step = format!("take rank {rank} back in");
        self.local().try_for_each(|local| self.sync(local))?;
        let all = self.gather(&step, alive)?;
        if let Some((other, theirs)) = all.iter().enumerate().find(|(_, it)| **it != alive) {
            let (here, there) = (out(alive, self.ranks()), out(*theirs, self.ranks()));
            let what = format!(
                "rank {rank} comes back, and the process of rank {other} leaves out {there}, but this \
                process leaves out {here}"
            );
            return Err(CallError::Mismatch { what });
        }
        let recorders = self.shared.recorders().clone();
        for recorder in recorders.iter().filter(|recorder| recorder.plan.skips_ranks) {
            match recorder.plan.network_counters {
                0 => self.clear(recorder)?,
                _ => recorder.is_stale.store(true, Ordering::Relaxed),
            }
        }
        if let Some(presences) = &self.shared.presences {
            for rank in self.local() {
                let at = presences.window.own(rank)?;
                self.backend().fill(rank, Stream::OWN, at, 0, PRESENCE_BYTES)?;
                self.backend().sync(rank, Stream::OWN)?;
            }
        }
        self.gather(&format!("{step}, all cleared"), 0)?;
        Ok(())
    }

    /// Makes the words of a pipeline what they were when it was prepared.
    fn clear(&self, recorder: &Recorder) -> Result<(), CallError> {
        let backend = self.backend().as_ref();
        for (rank, next) in self.local().zip(&recorder.next) {
            let at = recorder.window.own(rank)? + recorder.control_at;
            backend.fill(rank, Stream::OWN, at, 0, control_bytes(&recorder.plan))?;
            backend.sync(rank, Stream::OWN)?;
            next.store(0, Ordering::Relaxed);
        }
        self.tell_presences(recorder)
    }
}

/// The ranks without a bit, in words.
fn out(alive: u64, ranks: usize) -> String {
    let out = (0..ranks.min(64)).filter(|rank| alive >> rank & 1 == 0);
    let names: Vec<String> = out.map(|rank| rank.to_string()).collect();
    match names.as_slice() {
        [] => "no rank".to_string(),
        [one] => format!("rank {one}"),
        several => format!("ranks {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fake::{FakeBackend, plan_of};
    use crate::group::GroupOptions;
    use crate::join::{Member, Store, UniqueId};
    use crate::memory::Window;

    /// Takes rank 1 back in, in three processes that each leave out the ranks of `out` first. Returns each
    /// process's report, a word of a pipeline that can do without a rank, and a word of one that cannot.
    fn returned(out: impl Fn(usize) -> Vec<usize> + Sync) -> Vec<(String, [u8; 2])> {
        let id = UniqueId::local().unwrap();
        let one = |rank: usize| {
            let member = Member { rank, ranks: 3 };
            let backend =
                FakeBackend::joined(Store::join(&id, member, Duration::from_secs(60)).unwrap());
            let group = Group::new(backend, GroupOptions::default()).unwrap();
            let enlisted = [true, false].map(|skips_ranks| {
                let plan =
                    Arc::new(crate::plan::Plan { skips_ranks, ..plan_of("Talk", Vec::new()) });
                let window = Arc::new(Window::new(group.backend(), 1024).unwrap());
                group.backend().write(rank, window.own(rank).unwrap() + 256, &[7]).unwrap();
                (group.enlist(&plan, &window, 256).unwrap(), window)
            });
            out(rank).iter().for_each(|rank| group.leave_out(*rank, true).unwrap());
            let said =
                group.leave_out(1, false).map_or_else(|it| it.to_string(), |()| "back".into());
            let left = enlisted.each_ref().map(|(_, window)| {
                let mut byte = [0];
                group.backend().read(rank, window.own(rank).unwrap() + 256, &mut byte).unwrap();
                byte[0]
            });
            (said, left)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || one(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_processes_clear_their_counters_when_a_rank_rejoins() {
        let back = ("back".to_string(), [0, 7]);
        // The process of the rank itself has left nobody out.
        let who = |rank: usize| if rank == 1 { vec![] } else { vec![1] };
        assert_eq!(returned(who), [back.clone(), back.clone(), back]);
    }

    #[test]
    fn processes_agree_on_who_is_in() {
        let said = returned(|rank| if rank == 2 { vec![0, 1] } else { vec![1] });
        let first = "rank 1 comes back, and the process of rank 2 leaves out rank 0, but this process leaves out no rank";
        let last = "rank 1 comes back, and the process of rank 0 leaves out no rank, but this process leaves out rank 0";
        let wanted = [first, first, last].map(|words| (words.to_string(), [7, 7]));
        assert_eq!(said, wanted);
    }
}

//! A first look at a machine: do words travel between ranks, and does a wait for a word that never
//! comes end with a report? Needs no emitted kernel.

use std::sync::Arc;
use std::time::Duration;

use crate::findings::Findings;
use crate::oracle::Differences;
use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, GroupOptions, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::memory::{DeviceMemory, Window};

/// The kernel.
pub(crate) const TEXT: &str = include_str!("probe.cu");

/// How long the wait for the missing word lasts.
const PATIENCE: Duration = Duration::from_millis(300);

/// Exchanges words among all ranks, makes one rank fall silent, and exchanges again in a new group.
pub fn probe(backend: &Arc<dyn Backend>) -> Result<Findings, CallError> {
    let mut findings = Findings::default();
    findings.merge(exchange(backend, 3)?);
    findings.add("a silent rank is named", silence(backend)?);
    // The devices have survived, and so has everything that belongs to no group.
    findings.merge(exchange(backend, 1)?);
    Ok(findings)
}

/// The probe's kernel on all ranks, with its group.
pub(super) struct Probe {
    group: Group,
    kernel: GroupKernel,
    heard: Vec<DeviceMemory>,
}

impl Probe {
    /// Returns when all ranks have loaded it.
    pub(super) fn new(group: Group) -> Result<Probe, CallError> {
        let (backend, ranks) = (group.backend(), group.ranks());
        let made = HandwrittenKernel {
            name: "Probe",
            entry: "probe_exchange",
            numbers: &["ranks", "absent"],
            pointers: &["heard"],
            wide_numbers: &[],
            threads: 64,
            shared_bytes: 0,
            window_bytes: 8 * ranks as i64,
            blocks_min: 2,
            waits: true,
            enters: true,
        };
        let plan = made.plan(backend.arch());
        // Not at the start of the window, so that an offset that was forgotten shows.
        let control_at = 256;
        let bytes = control_at + control_bytes(&plan);
        let window = Arc::new(Window::new(backend, bytes)?);
        let emitted = Emitted { cuda: TEXT.to_string(), plan };
        let kernel = GroupKernel::prepare(&group, &window, control_at, &emitted)?;
        let heard = group.local().map(|rank| DeviceMemory::zeroed(backend, rank, 4 * ranks as u64));
        let heard = heard.collect::<Result<Vec<_>, _>>()?;
        // Compiling and loading may take longer somewhere than the kernels of the others wait.
        backend.gather("look whether words travel", 0)?;
        Ok(Probe { group, kernel, heard })
    }

    /// Launches on a local rank: what comes behind begins there when all ranks have come so far.
    pub(super) fn launch(&self, rank: usize, absent: i64) -> Result<(), CallError> {
        let heard = &self.heard[self.group.local_index(rank)?];
        let mut bindings = Bindings::new();
        bindings
            .number("ranks", self.group.ranks() as i64)
            .number("absent", absent)
            .tensor("heard", Rows::new(heard.address(), 1));
        self.kernel.launch(rank, Stream::OWN, 2, &bindings)
    }

    /// Launches on every local rank and waits for all.
    fn round(&self, absent: i64) -> Result<(), CallError> {
        self.group.local().try_for_each(|rank| self.launch(rank, absent))?;
        self.group.local().try_for_each(|rank| self.group.sync(rank))
    }
}

fn impatient(backend: &Arc<dyn Backend>) -> Result<Group, CallError> {
    Group::new(Arc::clone(backend), GroupOptions { timeout: PATIENCE, ..GroupOptions::default() })
}

fn exchange(backend: &Arc<dyn Backend>, rounds: usize) -> Result<Findings, CallError> {
    let probe = Probe::new(impatient(backend)?)?;
    let mut findings = Findings::default();
    for round in 0..rounds {
        probe.round(-1)?;
        for (rank, heard) in probe.group.local().zip(&probe.heard) {
            let mut differences = Differences::default();
            let mut words = vec![0; 4 * probe.group.ranks()];
            heard.read(0, &mut words)?;
            heard.fill(Stream::OWN, 0)?;
            for (peer, word) in words.chunks_exact(4).enumerate() {
                let got = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let equal = got == peer as u32 + 1;
                differences.note(equal, || format!("from rank {peer}: {got}, not {}", peer + 1));
            }
            findings.add(format!("round {round}: rank {rank} hears all"), differences);
        }
    }
    Ok(findings)
}

/// The last rank writes nothing: every rank has to report that it waits for it.
fn silence(backend: &Arc<dyn Backend>) -> Result<Differences, CallError> {
    let probe = Probe::new(impatient(backend)?)?;
    let absent = probe.group.ranks() - 1;
    let mut differences = Differences::default();
    let report = match probe.round(absent as i64) {
        Ok(()) => "no error".to_string(),
        Err(CallError::Timeout(timeouts)) => {
            let waited = |rank| timeouts.edges().contains(&(rank, absent));
            for rank in probe.group.local() {
                differences
                    .note(waited(rank), || format!("rank {rank} reports nothing: {timeouts}"));
            }
            return Ok(differences);
        }
        Err(error) => error.to_string(),
    };
    differences.note(false, || format!("expected a timeout, got {report}"));
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use ep_runtime::host::{HostBackend, HostOptions, Programs, TIMEOUT};

    use super::*;

    /// A process that has ranks 2 and 3 of two nodes: ranks 0 and 1 have no windows there.
    #[test]
    fn ranks_of_one_node_meet_without_the_other_node() {
        let programs = Programs::find().expect("a compiler");
        let backend =
            HostBackend::new(&programs, HostOptions { local: 2..4, ..HostOptions::new(4) });
        let options = GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() };
        let group = Group::new(backend.expect("ranks"), options).expect("a group");
        let probe = Probe::new(group).expect("a probe");
        probe.round(-1).expect("a round");
        for heard in &probe.heard {
            let mut words = vec![0; 16];
            heard.read(0, &mut words).expect("what came");
            let words: Vec<u8> = words.into_iter().step_by(4).collect();
            assert_eq!(words, [0, 0, 3, 4]);
        }
    }
}

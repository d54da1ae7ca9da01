//! The core that the thread of a network keeps to itself.
//!
//! The core belongs to the NUMA node on which the network is joined, because its memory is allocated there.
//! A lock on a file of the core, which is released when its holder dies, keeps the threads of all networks
//! of a machine apart: two threads that spin on one core wait for whole time slices of the system. At most
//! half of a node's cores are taken, because each rank has another thread that fills its queue.

use std::fs::{self, File};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::thread::JoinHandle;

/// Cores of a node below which threads of networks stay where the system puts them.
const LEAST: usize = 4;

/// A core that no other network of this machine has, as long as this is kept.
pub(super) struct Core {
    cpu: usize,
    _locked: File,
}

impl Core {
    /// A core near the calling thread; none where there are few, or where all are taken.
    pub(super) fn claim() -> Option<Core> {
        Core::claim_of(&to_claim(&cores_of(&near())))
    }

    fn claim_of(cpus: &[usize]) -> Option<Core> {
        cpus.iter().find_map(|cpu| {
            let file = File::open(siblings_of(*cpu)).ok()?;
            // SAFETY: the descriptor is open, and the call touches no memory.
            let code = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
            (code == 0).then_some(Core { cpu: *cpu, _locked: file })
        })
    }

    /// Keeps a thread on it. Where the system does not allow it, the thread runs on any.
    pub(super) fn keep(&self, thread: &JoinHandle<()>) {
        let _ = keep_on(thread.as_pthread_t(), &[self.cpu]);
    }

    /// Keeps the calling thread on this core. Where the system does not allow it, the thread runs on any.
    pub(super) fn keep_here(&self) {
        // SAFETY: the call takes nothing.
        let _ = keep_on(unsafe { libc::pthread_self() }, &[self.cpu]);
    }
}

/// Keeps the calling thread, and what it starts, on the NUMA node where it runs.
pub(super) fn stay_near() -> io::Result<()> {
    // SAFETY: the call takes nothing.
    keep_on(unsafe { libc::pthread_self() }, &near())
}

fn keep_on(thread: libc::pthread_t, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a set is an array of bits, which may all be zero; `CPU_SET` leaves out what is beyond it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        cpus.iter().for_each(|cpu| libc::CPU_SET(*cpu, &mut set));
        set
    };
    // SAFETY: the thread is the calling one or one that its owner has not joined, and the call reads the
    // set, which is as long as it says.
    match unsafe { libc::pthread_setaffinity_np(thread, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// What the calling thread may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: a set is an array of bits, which may all be zero; the call writes as much as it is told.
    let (code, set) = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), set)
    };
    // SAFETY: all numbers lie inside the set.
    let has = |cpu: &usize| code == 0 && unsafe { libc::CPU_ISSET(*cpu, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(has).collect()
}

/// What of it is on the NUMA node where the thread runs; all of it if the system does not say.
fn near() -> Vec<usize> {
    // SAFETY: the call takes nothing.
    let here = unsafe { libc::sched_getcpu() };
    let nodes = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let lists = nodes.filter_map(|node| read_list(&node.path().join("cpulist")));
    let node = lists.into_iter().find(|list| list.iter().any(|cpu| *cpu as i32 == here));
    let is_near = |cpu: &usize| node.as_ref().is_none_or(|node| node.contains(cpu));
    allowed().into_iter().filter(is_near).collect()
}

/// The first one of `cpus` on each core.
fn cores_of(cpus: &[usize]) -> Vec<usize> {
    let is_first = |cpu: &usize| {
        let siblings = read_list(Path::new(&siblings_of(*cpu))).unwrap_or_default();
        !siblings.iter().any(|other| other < cpu && cpus.contains(other))
    };
    cpus.iter().copied().filter(is_first).collect()
}

/// The cores that networks may have, of all of a node.
fn to_claim(cores: &[usize]) -> Vec<usize> {
    let kept = if cores.len() < LEAST { cores.len() } else { cores.len().div_ceil(2) };
    cores[kept..].to_vec()
}

fn siblings_of(cpu: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
}

fn read_list(path: &Path) -> Option<Vec<usize>> {
    list(fs::read_to_string(path).ok()?.trim())
}

/// `0-3,8` as numbers.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list(""), Some(vec![]), "a node with memory alone");
        assert_eq!(list("0-x"), None);
    }

    #[test]
    fn few_cores_are_left_to_the_system_and_half_of_many() {
        assert_eq!(to_claim(&[0, 1, 2]), []);
        assert_eq!(to_claim(&[0, 2, 4, 6]), [4, 6]);
        assert_eq!(to_claim(&[0, 1, 2, 3, 4]), [3, 4]);
    }

    #[test]
    fn threads_of_a_machine_get_cores_of_their_own() {
        let cpus: Vec<usize> = cores_of(&allowed()).into_iter().take(2).collect();
        let claimed: Vec<Core> = cpus.iter().filter_map(|_| Core::claim_of(&cpus)).collect();
        let got: Vec<usize> = claimed.iter().map(|core| core.cpu).collect();
        assert_eq!(got, cpus);
        assert!(Core::claim_of(&cpus).is_none(), "all are taken");
        let (begin, begun) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            begun.recv().unwrap();
            tell.send(allowed()).unwrap();
        });
        claimed[0].keep(&thread);
        begin.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), [cpus[0]]);
        drop(claimed);
        assert!(Core::claim_of(&cpus).is_some(), "its owner has gone");
    }
}

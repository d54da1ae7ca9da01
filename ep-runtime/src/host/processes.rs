//! Ranks of the emulator in separate processes, which share windows as files of memory.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ep_emu::{Address, Build, memory_file};

use super::{HostBackend, HostOptions, Programs};
use crate::backend::{BackendError, Mapping, MayCome};
use crate::join::{Member, Store, exchange_descriptors};

/// How long a kernel waits while nothing moves. Another process may compile meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long it waits once a process has ended.
const AFTER_END: Duration = Duration::from_secs(3);

/// The processes of a group, of which those of a node share windows.
pub(super) struct Processes {
    store: Arc<Store>,
    node: Range<usize>,
    /// Whether others write to windows of this rank.
    hears: AtomicBool,
}

impl HostBackend {
    /// The rank of this process, in a group of `nodes` nodes on this machine whose processes have joined `store`.
    /// `options.local` is that rank. Windows are shared among the ranks of its node;
    /// [`Group::over_store`](crate::group::Group::over_store) connects the others. The checker sees one process only,
    /// so kernels run in the plain build.
    pub fn join_node(
        programs: &Arc<Programs>,
        options: HostOptions,
        store: &Arc<Store>,
        nodes: usize,
    ) -> Result<Arc<HostBackend>, BackendError> {
        let member = store.member();
        let (own, ranks) = (member.rank..member.rank + 1, options.spec.ranks as usize);
        if options.local != own || ranks != member.ranks {
            let (local, all) = (&options.local, member.ranks);
            let what = format!(
                "ranks {local:?} of {ranks} are not those of a process of {own:?} of {all}"
            );
            return Err(BackendError::Wrong { what });
        }
        if options.isolation.is_some() || options.build != Build::Plain {
            let what = "ranks in processes of their own run in the plain build, and not isolated";
            return Err(BackendError::Wrong { what: what.to_string() });
        }
        let node = store.node(nodes)?;
        let mut backend = HostBackend::open(programs, options)?;
        let (store, hears) = (Arc::clone(store), AtomicBool::new(false));
        backend.others = Some(Processes { store, node, hears });
        Ok(Arc::new(backend))
    }

    /// A window of the ranks `among`, each of which makes it.
    pub(super) fn map_shared(
        &self,
        others: &Processes,
        among: Range<usize>,
        bytes: u64,
    ) -> Result<Mapping, BackendError> {
        let rank = self.options.local.start;
        let own = memory_file(bytes);
        let own = own.map_err(|error| failed("memfd_create", rank, error.to_string()))?;
        let whose = if among.len() == others.node.len() { "its node" } else { "all ranks" };
        let label = format!("map a window of {bytes} bytes on {whose}");
        let files = exchange_descriptors(&others.store, &label, among.clone(), own.as_fd())?;
        let mut own = Some(own);
        let mut bases = vec![0; self.options.spec.ranks as usize];
        let mut machine = self.machine();
        if among.len() > 1 && !others.hears.swap(true, Ordering::Relaxed) {
            machine.world.add_outside(others.may_come());
        }
        for (rank, file) in among.zip(files) {
            let file = file.map(File::from).or_else(|| own.take());
            let Some(file) = file else { continue };
            let placed = machine.world.alloc_in(&file, rank as u32, "window");
            bases[rank] = placed.map_err(|failure| failed("mmap", rank, failure.message))?.0;
        }
        let id = machine.windows.keys().next_back().map_or(0, |last| last + 1);
        machine.windows.insert(id, bases.clone());
        Ok(Mapping { id, bytes, bases: vec![bases] })
    }

    pub(super) fn unmap_shared(&self, mapping: &Mapping) -> Result<(), BackendError> {
        let mut machine = self.machine();
        let bases = machine.windows.remove(&mapping.id).unwrap_or_default();
        let parts = bases.into_iter().enumerate().filter(|(_, base)| *base != 0);
        parts.into_iter().try_for_each(|(rank, base)| {
            machine.world.forget_parts(Address(base));
            let left = machine.world.leave_file(Address(base));
            left.map_err(|failure| failed("mmap", rank, failure.message))
        })
    }
}

fn failed(call: &'static str, rank: usize, text: String) -> BackendError {
    BackendError::Failed { call, rank: Some(rank), code: 0, text }
}

impl Processes {
    /// Whether something can still come from other processes.
    fn may_come(&self) -> MayCome {
        let store = Arc::clone(&self.store);
        Arc::new(move |idle| {
            let Member { rank: own, ranks } = store.member();
            let others = (0..ranks).filter(|rank| *rank != own);
            let (left, here): (Vec<_>, Vec<_>) = others.partition(|rank| store.has_left(*rank));
            !here.is_empty() && idle < if left.is_empty() { PATIENCE } else { AFTER_END }
        })
    }

    pub(super) fn node(&self) -> Range<usize> {
        self.node.clone()
    }

    pub(super) fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        self.store.gather_numbers(label, value)
    }

    pub(super) fn say(&self, doing: &str) {
        self.store.say(doing);
    }

    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.store.has_left(rank)
    }
}

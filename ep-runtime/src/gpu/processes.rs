//! Ranks in separate processes: windows pass between processes as file descriptors, or by CUDA IPC if
//! descriptors are not supported.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::window::{EXCHANGE_VARIABLE, Exchange, RankWindow};
use super::{Compile, GpuBackend, Others, Rank, driver};
use crate::backend::BackendError;
use crate::join::{Store, exchange_descriptors};

impl GpuBackend {
    /// The rank of this process on the GPU `ordinal`, in a group whose processes have joined `store`. All
    /// processes run on one machine and belong to one user.
    ///
    /// Windows are exchanged as `EPFORGE_EXCHANGE` says (`descriptors` or `ipc`). If it is unset, they are
    /// exchanged as descriptors if every rank supports them. If one rank needs CUDA IPC, all ranks use it.
    pub fn join(ordinal: i32, store: Store, compile: Compile) -> Result<GpuBackend, BackendError> {
        GpuBackend::join_node(ordinal, &Arc::new(store), 1, compile)
    }

    /// Keeps so many SMs of the GPU free for network cards that are kernels, which run beside those of the rank. Launches lose
    /// the cooperative attribute, because the driver may run cooperative grids one after another. Other processes on
    /// the same GPU have to take turns with this one, as they do without MPS.
    pub(crate) fn beside_cards(mut self, sms: u32) -> GpuBackend {
        self.kept_sms = sms;
        self.cooperative = false;
        self
    }

    /// As [`GpuBackend::join`], for a group of `nodes` nodes, each on a machine of its own or all on one.
    /// Windows are shared only among the ranks of this rank's node;
    /// [`Group::over_store`](crate::group::Group::over_store) connects the others.
    pub fn join_node(
        ordinal: i32,
        store: &Arc<Store>,
        nodes: usize,
        compile: Compile,
    ) -> Result<GpuBackend, BackendError> {
        let wanted = wanted_exchange(std::env::var(EXCHANGE_VARIABLE).ok().as_deref())?;
        let member = store.member();
        let mut backend = GpuBackend::open(&[ordinal], compile)?;
        let own = own_exchange(ordinal, wanted, driver::gives_descriptors(ordinal)?)?;
        let node = store.node(nodes)?;
        let others = Processes { store: Arc::clone(store) };
        let all = others.gather("choose how windows are exchanged", own as u64)?;
        backend.exchange = match all.contains(&(Exchange::Ipc as u64)) {
            true => Exchange::Ipc,
            false => Exchange::Descriptors,
        };
        backend.first = member.rank;
        backend.total = member.ranks;
        backend.node = node;
        backend.others = Some(Box::new(others));
        // Several processes may be given one device without knowing it of each other.
        backend.cooperative = true;
        backend.ranks.push(Rank::open(member.rank, ordinal, 1)?);
        Ok(backend)
    }
}

fn wanted_exchange(value: Option<&str>) -> Result<Option<Exchange>, BackendError> {
    let unknown = |name: &str| BackendError::Wrong {
        what: format!("{EXCHANGE_VARIABLE} is `{name}`, not `descriptors` or `ipc`"),
    };
    let named = value.filter(|name| !name.is_empty());
    named.map(|name| Exchange::from_name(name).ok_or_else(|| unknown(name))).transpose()
}

/// What a rank takes if it is left to it.
fn own_exchange(
    ordinal: i32,
    wanted: Option<Exchange>,
    gives_descriptors: bool,
) -> Result<Exchange, BackendError> {
    match (wanted, gives_descriptors) {
        (Some(Exchange::Descriptors), false) => Err(BackendError::Missing {
            what: format!(
                "GPU {ordinal} cannot export descriptors of its memory: exchange windows by ipc"
            ),
        }),
        (Some(wanted), _) => Ok(wanted),
        (None, true) => Ok(Exchange::Descriptors),
        (None, false) => Ok(Exchange::Ipc),
    }
}

/// The processes of a group.
struct Processes {
    store: Arc<Store>,
}

impl Others for Processes {
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        self.store.gather_numbers(label, value)
    }

    fn say(&self, doing: &str) {
        self.store.say(doing);
    }

    fn has_left(&self, rank: usize) -> bool {
        self.store.has_left(rank)
    }

    fn share(
        &self,
        label: &str,
        user: c_int,
        own: RankWindow,
        among: Range<usize>,
    ) -> Result<Vec<RankWindow>, BackendError> {
        let first = among.start;
        let exchanged = match own.exchange() {
            Exchange::Descriptors => self.by_descriptors(label, user, &own, among),
            Exchange::Ipc => self.by_ipc(label, &own, among),
        };
        let rank = self.store.member().rank;
        match exchanged {
            Ok(mut windows) => {
                windows.insert(rank - first, own);
                Ok(windows)
            }
            Err(error) => {
                // Another process may have opened it by CUDA IPC.
                if own.exchange() == Exchange::Descriptors {
                    let _ = own.release(rank);
                }
                Err(error)
            }
        }
    }
}

impl Processes {
    /// The windows of all other ranks of `among`, in order.
    fn by_descriptors(
        &self,
        label: &str,
        user: c_int,
        own: &RankWindow,
        among: Range<usize>,
    ) -> Result<Vec<RankWindow>, BackendError> {
        let descriptor = own.export(self.store.member().rank)?;
        let received = exchange_descriptors(&self.store, label, among.clone(), descriptor.as_fd())?;
        let others = among.zip(received);
        let others = others.filter_map(|(rank, descriptor)| Some((rank, descriptor?)));
        all_or_none(others.map(|(rank, descriptor)| {
            RankWindow::import(rank, descriptor.as_fd(), own.mapped_bytes(), user)
        }))
    }

    /// Opens the same windows by CUDA IPC, into the current context.
    fn by_ipc(
        &self,
        label: &str,
        own: &RankWindow,
        among: Range<usize>,
    ) -> Result<Vec<RankWindow>, BackendError> {
        let rank = self.store.member().rank;
        let handles = self.store.gather(label, &own.ipc_handle(rank)?)?;
        let others = handles.into_iter().enumerate();
        let others = others.filter(|(other, _)| among.contains(other) && *other != rank);
        all_or_none(others.map(|(other, handle)| {
            let handle = handle.try_into().map_err(|_| BackendError::Group {
                what: format!("the handle that rank {other} sent does not open a window"),
            })?;
            RankWindow::open(other, &handle, own.mapped_bytes())
        }))
    }
}

/// All windows; those that were made are released when a later one fails.
fn all_or_none(
    windows: impl Iterator<Item = Result<RankWindow, BackendError>>,
) -> Result<Vec<RankWindow>, BackendError> {
    let mut made = Vec::new();
    for window in windows {
        match window {
            Ok(window) => made.push(window),
            Err(error) => {
                for (index, window) in made.into_iter().enumerate() {
                    let _ = window.release(index);
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exchange_follows_the_machine_unless_it_is_named() {
        assert_eq!(wanted_exchange(None).unwrap(), None);
        assert_eq!(wanted_exchange(Some("")).unwrap(), None);
        assert_eq!(wanted_exchange(Some("ipc")).unwrap(), Some(Exchange::Ipc));
        let error = wanted_exchange(Some("vmm")).unwrap_err();
        assert_eq!(error.to_string(), "EPFORGE_EXCHANGE is `vmm`, not `descriptors` or `ipc`");
        let own = |wanted, gives| own_exchange(3, wanted, gives);
        assert_eq!(own(None, true).unwrap(), Exchange::Descriptors);
        assert_eq!(own(None, false).unwrap(), Exchange::Ipc);
        assert_eq!(own(Some(Exchange::Ipc), true).unwrap(), Exchange::Ipc);
        let error = own(Some(Exchange::Descriptors), false).unwrap_err();
        let text = "GPU 3 cannot export descriptors of its memory: exchange windows by ipc";
        assert_eq!(error.to_string(), text);
    }
}

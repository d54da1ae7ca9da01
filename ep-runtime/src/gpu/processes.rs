//! Ranks in separate processes: windows pass between processes as file descriptors, or by CUDA IPC if
//! descriptors are not supported.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::window::{EXCHANGE_VARIABLE, Exchange, RankWindow};
use super::{Compile, GpuBackend, Others, Rank, driver};
use crate::backend::BackendError;
use crate::join::{JoinError, Store, exchange_descriptors};

impl From<JoinError> for BackendError {
    fn from(error: JoinError) -> BackendError {
        BackendError::Group { what: error.to_string() }
    }
}

impl GpuBackend {
    /// The rank of this process on the GPU `ordinal`, in a group whose processes have joined `store`. All
    /// processes run on one machine and belong to one user.
    ///
    /// Windows are exchanged as `EPFORGE_EXCHANGE` says (`descriptors` or `ipc`). If it is unset, they are
    /// exchanged as descriptors if every rank supports them. If one rank needs CUDA IPC, all ranks use it.
    pub fn join(ordinal: i32, store: Store, compile: Compile) -> Result<GpuBackend, BackendError> {
        GpuBackend::join_node(ordinal, &Arc::new(store), 1, compile)
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
        let others = Processes { store: Arc::clone(store), node: store.node(nodes)? };
        let all = others.gather("choose how windows are exchanged", own as u64)?;
        backend.exchange = match all.contains(&(Exchange::Ipc as u64)) {
            true => Exchange::Ipc,
            false => Exchange::Descriptors,
        };
        backend.first = member.rank;
        backend.total = member.ranks;
        backend.node = others.node.clone();
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

/// The processes of a group, of which those of a node share windows.
struct Processes {
    store: Arc<Store>,
    node: Range<usize>,
}

impl Others for Processes {
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let brought = self.store.gather(label, &value.to_le_bytes())?;
        let number = |(rank, bytes): (usize, Vec<u8>)| {
            bytes.try_into().map(u64::from_le_bytes).map_err(|bytes: Vec<u8>| BackendError::Group {
                what: format!("rank {rank} sent {} bytes, and a number has 8", bytes.len()),
            })
        };
        brought.into_iter().enumerate().map(number).collect()
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
    ) -> Result<Vec<RankWindow>, BackendError> {
        let exchanged = match own.exchange() {
            Exchange::Descriptors => self.by_descriptors(label, user, &own),
            Exchange::Ipc => self.by_ipc(label, &own),
        };
        let rank = self.store.member().rank;
        match exchanged {
            Ok(mut windows) => {
                windows.insert(rank - self.node.start, own);
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
    /// The windows of all other ranks of the node, in order.
    fn by_descriptors(
        &self,
        label: &str,
        user: c_int,
        own: &RankWindow,
    ) -> Result<Vec<RankWindow>, BackendError> {
        let descriptor = own.export(self.store.member().rank)?;
        let node = self.node.clone();
        let received = exchange_descriptors(&self.store, label, node, descriptor.as_fd())?;
        let others = self.node.clone().zip(received);
        let others = others.filter_map(|(rank, descriptor)| Some((rank, descriptor?)));
        all_or_none(others.map(|(rank, descriptor)| {
            RankWindow::import(rank, descriptor.as_fd(), own.mapped_bytes(), user)
        }))
    }

    /// The same, into the current context.
    fn by_ipc(&self, label: &str, own: &RankWindow) -> Result<Vec<RankWindow>, BackendError> {
        let rank = self.store.member().rank;
        let handles = self.store.gather(label, &own.ipc_handle(rank)?)?;
        let others = handles.into_iter().enumerate();
        let others = others.filter(|(other, _)| self.node.contains(other) && *other != rank);
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

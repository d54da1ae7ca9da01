//! Ranks in processes of their own: windows go from process to process as file descriptors, or by
//! CUDA IPC where these are not supported.

use std::ffi::c_int;
use std::os::fd::AsFd;

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
    /// The rank of this process on the GPU `ordinal`, in a group whose processes have joined
    /// `store`. All of them are on one machine and belong to one user.
    ///
    /// Windows are exchanged as `EPFORGE_EXCHANGE` says (`descriptors` or `ipc`); without it by
    /// descriptors where every rank supports them. One rank that takes CUDA IPC makes all take it.
    pub fn join(ordinal: i32, store: Store, compile: Compile) -> Result<GpuBackend, BackendError> {
        let wanted = wanted_exchange(std::env::var(EXCHANGE_VARIABLE).ok().as_deref())?;
        GpuBackend::join_with(ordinal, store, wanted, compile)
    }

    /// As [`GpuBackend::join`], with the exchange that the caller wants.
    pub fn join_with(
        ordinal: i32,
        store: Store,
        wanted: Option<Exchange>,
        compile: Compile,
    ) -> Result<GpuBackend, BackendError> {
        let member = store.member();
        let mut backend = GpuBackend::open(&[ordinal], compile)?;
        let own = own_exchange(ordinal, wanted, driver::gives_descriptors(ordinal)?)?;
        let all = Others::gather(&store, "choose how windows are exchanged", own as u64)?;
        backend.exchange = match all.contains(&(Exchange::Ipc as u64)) {
            true => Exchange::Ipc,
            false => Exchange::Descriptors,
        };
        backend.first = member.rank;
        backend.total = member.ranks;
        backend.others = Some(Box::new(store));
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
                "GPU {ordinal} gives no descriptors of its memory: exchange windows by ipc"
            ),
        }),
        (Some(wanted), _) => Ok(wanted),
        (None, true) => Ok(Exchange::Descriptors),
        (None, false) => Ok(Exchange::Ipc),
    }
}

impl Others for Store {
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let brought = Store::gather(self, label, &value.to_le_bytes())?;
        let number = |(rank, bytes): (usize, Vec<u8>)| {
            bytes.try_into().map(u64::from_le_bytes).map_err(|bytes: Vec<u8>| BackendError::Group {
                what: format!("rank {rank} brings {} bytes for a number of 8", bytes.len()),
            })
        };
        brought.into_iter().enumerate().map(number).collect()
    }

    fn say(&self, doing: &str) {
        Store::say(self, doing);
    }

    fn has_left(&self, rank: usize) -> bool {
        Store::has_left(self, rank)
    }

    fn share(
        &self,
        label: &str,
        user: c_int,
        own: RankWindow,
    ) -> Result<Vec<RankWindow>, BackendError> {
        let exchanged = match own.exchange() {
            Exchange::Descriptors => by_descriptors(self, label, user, &own),
            Exchange::Ipc => by_ipc(self, label, &own),
        };
        match exchanged {
            Ok(mut windows) => {
                windows.insert(self.member().rank, own);
                Ok(windows)
            }
            Err(error) => {
                // Another process may have opened it by CUDA IPC.
                if own.exchange() == Exchange::Descriptors {
                    let _ = own.release(self.member().rank);
                }
                Err(error)
            }
        }
    }
}

/// The windows of all other ranks, in order.
fn by_descriptors(
    store: &Store,
    label: &str,
    user: c_int,
    own: &RankWindow,
) -> Result<Vec<RankWindow>, BackendError> {
    let descriptor = own.export(store.member().rank)?;
    let received = exchange_descriptors(store, label, descriptor.as_fd())?;
    let others = received.into_iter().enumerate();
    let others = others.filter_map(|(rank, descriptor)| Some((rank, descriptor?)));
    all_or_none(others.map(|(rank, descriptor)| {
        RankWindow::import(rank, descriptor.as_fd(), own.mapped_bytes(), user)
    }))
}

/// As [`by_descriptors`], into the current context.
fn by_ipc(store: &Store, label: &str, own: &RankWindow) -> Result<Vec<RankWindow>, BackendError> {
    let rank = store.member().rank;
    let handles = store.gather(label, &own.ipc_handle(rank)?)?;
    let others = handles.into_iter().enumerate().filter(|(other, _)| *other != rank);
    all_or_none(others.map(|(other, handle)| {
        let handle = handle.try_into().map_err(|_| BackendError::Group {
            what: format!("what rank {other} sent opens no window"),
        })?;
        RankWindow::open(other, &handle, own.mapped_bytes())
    }))
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
        let text = "GPU 3 gives no descriptors of its memory: exchange windows by ipc";
        assert_eq!(error.to_string(), text);
    }
}

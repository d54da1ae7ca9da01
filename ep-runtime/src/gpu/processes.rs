//! Ranks in processes of their own: windows go from process to process as file descriptors.

use std::ffi::c_int;
use std::os::fd::AsFd;

use super::window::RankWindow;
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
    pub fn join(ordinal: i32, store: Store, compile: Compile) -> Result<GpuBackend, BackendError> {
        let member = store.member();
        let mut backend = GpuBackend::open(&[ordinal], compile)?;
        if !driver::maps_memory(ordinal)? {
            let what = format!("GPU {ordinal} has no virtual memory management");
            return Err(BackendError::Missing { what });
        }
        backend.first = member.rank;
        backend.total = member.ranks;
        backend.others = Some(Box::new(store));
        // Several processes may be given one device without knowing it of each other.
        backend.cooperative = true;
        backend.ranks.push(Rank::open(member.rank, ordinal, 1)?);
        Ok(backend)
    }
}

impl Others for Store {
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        let brought = Store::gather(self, label, &value.to_le_bytes())?;
        let number = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(brought.into_iter().map(number).collect())
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
        let member = self.member();
        let descriptor = own.export(member.rank)?;
        let bytes = own.mapped_bytes();
        let received = exchange_descriptors(self, label, descriptor.as_fd());
        let (mut windows, mut own) = (Vec::with_capacity(member.ranks), Some(own));
        let import = || {
            for (rank, descriptor) in received?.into_iter().enumerate() {
                windows.push(match (descriptor, own.take()) {
                    (None, Some(own)) => own,
                    (Some(descriptor), kept) => {
                        own = kept;
                        RankWindow::import(rank, descriptor.as_fd(), bytes, user)?
                    }
                    (None, None) => return Err(JoinError::Lost { rank }.into()),
                });
            }
            Ok(())
        };
        let result: Result<(), BackendError> = import();
        match result {
            Ok(()) => Ok(windows),
            Err(error) => {
                for window in windows.into_iter().chain(own) {
                    let _ = window.release(member.rank);
                }
                Err(error)
            }
        }
    }
}

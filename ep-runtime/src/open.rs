//! Groups in one line: of this machine's GPUs, of the processes of a launcher, and in the emulator.

use std::sync::Arc;

use crate::backend::BackendError;
use crate::error::CallError;
use crate::gpu::{Compile, GpuBackend, GpuOptions, compile_with};
use crate::group::{Group, GroupOptions};
use crate::jit::{Cache, Jit, Nvrtc};

/// How long the processes of a launcher wait for one another.
#[cfg(target_os = "linux")]
const JOIN_TIME: std::time::Duration = std::time::Duration::from_secs(120);

impl Group {
    /// `ranks` ranks in this process, a GPU for each; GPUs are shared if there are fewer. Kernels are
    /// compiled by the NVRTC that is found, and kept in the cache.
    pub fn on_gpus(ranks: usize) -> Result<Group, CallError> {
        let backend = GpuBackend::new(&GpuOptions::spread(ranks)?, compiler()?)?;
        Group::new(Arc::new(backend), GroupOptions::default())
    }

    /// The rank that a launcher has given to this process, on the GPU `LOCAL_RANK`: of torchrun, or
    /// of whatever sets the same variables. A secret is wanted beside them: `EPFORGE_SECRET`. Where
    /// `LOCAL_WORLD_SIZE` says that a node has only some of the ranks, `EPFORGE_NET` names the network
    /// between nodes, or it is `tcp`.
    #[cfg(target_os = "linux")]
    pub fn from_torchrun() -> Result<Group, CallError> {
        use crate::join::{Member, Store, UniqueId};
        use crate::net::Carrier;
        let joined = UniqueId::from_environment()
            .and_then(|id| Store::join(&id, Member::from_environment()?, JOIN_TIME));
        let store = Arc::new(joined.map_err(BackendError::from)?);
        let each = std::env::var("LOCAL_WORLD_SIZE").ok();
        let nodes = nodes_of(store.member().ranks, each.as_deref())?;
        let over = Carrier::from_environment().map_err(|what| CallError::Mismatch { what })?;
        let backend = GpuBackend::join_node(local_rank()?, &store, nodes, compiler()?)?;
        let backend = over.beside(backend, nodes);
        Group::over_store(Arc::new(backend), GroupOptions::default(), &store, &over)
    }

    /// `ranks` ranks in the emulator, which needs a C++ compiler and no GPU.
    #[cfg(feature = "host")]
    pub fn on_host(ranks: usize) -> Result<Group, CallError> {
        use crate::host::{HostBackend, HostOptions, Programs};
        HostBackend::new(&Programs::find()?, HostOptions::new(ranks))?.group()
    }
}

/// NVRTC, with the cache of this user.
fn compiler() -> Result<Compile, BackendError> {
    let missing = |what: String| BackendError::Missing { what };
    let nvrtc = Nvrtc::find().map_err(|error| missing(error.to_string()))?;
    let cache = Cache::at(None).map_err(|error| missing(error.to_string()))?;
    Ok(compile_with(Arc::new(Jit::new(nvrtc, cache))))
}

/// How many nodes so many ranks are on, if a launcher says how many each has.
#[cfg(target_os = "linux")]
fn nodes_of(ranks: usize, each: Option<&str>) -> Result<usize, BackendError> {
    let Some(value) = each else { return Ok(1) };
    let each = value.parse().ok().filter(|each| *each > 0 && ranks.is_multiple_of(*each));
    each.map(|each: usize| ranks / each).ok_or_else(|| {
        let what = format!(
            "LOCAL_WORLD_SIZE is `{value}`, and the number of ranks, {ranks}, is not a \
        multiple of it"
        );
        BackendError::Missing { what }
    })
}

/// The GPU of this process among those of its machine.
#[cfg(target_os = "linux")]
fn local_rank() -> Result<i32, BackendError> {
    let value = std::env::var("LOCAL_RANK").unwrap_or_default();
    value.parse().map_err(|_| {
        let what = format!("LOCAL_RANK is `{value}`, not the number of a GPU of this machine");
        BackendError::Missing { what }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_says_how_many_ranks_a_node_has() {
        assert_eq!(nodes_of(6, None).unwrap(), 1);
        assert_eq!(nodes_of(6, Some("6")).unwrap(), 1);
        assert_eq!(nodes_of(6, Some("2")).unwrap(), 3);
        for wrong in ["4", "0", "", "two"] {
            let text = format!(
                "LOCAL_WORLD_SIZE is `{wrong}`, and the number of ranks, 6, is not a \
            multiple of it"
            );
            assert_eq!(nodes_of(6, Some(wrong)).unwrap_err().to_string(), text);
        }
    }
}

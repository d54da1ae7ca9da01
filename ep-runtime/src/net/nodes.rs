//! Groups whose nodes a network joins: each is a process of its own, or all are in one emulator.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::{CardNetwork, CardOptions, NetOptions, NetPart, Network};
use crate::backend::{Backend, BackendError};
use crate::error::CallError;
use crate::group::{Group, GroupOptions, Net, Wire};
use crate::join::{Member, Store, UniqueId};
use crate::memory::DeviceMemory;
use crate::net_error::NetError;

/// Processes, one for each node.
struct Processes {
    nodes: usize,
    over: Over,
    /// Of each local rank.
    stores: Vec<Store>,
}

/// What carries their rows.
enum Over {
    Fabric(NetOptions),
    Cards(CardOptions),
}

impl Group {
    /// The ranks of this node, which `backend` has, and those of other processes, which join with the same
    /// `id`: libfabric carries what they tell one another. Waits so long for all of them, and at each later
    /// step that they take together. Kernels say how many bytes and counters they need of a network.
    pub fn over_network(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        net: &NetOptions,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        Group::over_processes(backend, options, id, Over::Fabric(net.clone()), deadline)
    }

    /// The same over network cards that kernels write to themselves, which have mlx5 work queues: for GPUs.
    /// Every channel of theirs to other machines lists `ibgda`. **It has not run on hardware yet.**
    pub fn over_ibgda(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        cards: &CardOptions,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        Group::over_processes(backend, options, id, Over::Cards(cards.clone()), deadline)
    }

    fn over_processes(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        over: Over,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        let (ranks, local) = (backend.ranks(), backend.local());
        let each = local.len().max(1);
        if !ranks.is_multiple_of(each) || !local.start.is_multiple_of(each) {
            let what = format!("ranks {local:?} of {ranks} are no node, as all nodes are equal");
            return Err(CallError::Mismatch { what });
        }
        let join = |rank: usize| Store::join(id, Member { rank, ranks }, deadline);
        let stores = at_once(local, join).map_err(BackendError::from)?;
        let wire = Processes { nodes: ranks / each, over, stores };
        Group::joined(backend, options, Some(Box::new(wire)))
    }
}

impl Wire for Processes {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn carrier(&self) -> Transport {
        match self.over {
            Over::Fabric(_) => Transport::Rdma,
            Over::Cards(_) => Transport::Ibgda,
        }
    }

    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, CallError> {
        let one = |store: &Store| store.gather(label, &value.to_le_bytes());
        let brought = at_once(&self.stores, one).map_err(BackendError::from)?;
        let number = |bytes: &Vec<u8>| bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        Ok(brought.first().into_iter().flatten().map(number).collect())
    }

    fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError> {
        let plans = plans.iter().copied();
        let (parts, data_bytes, counters) = NetPart::place(plans, &self.carrier())?;
        let ranks = || group.local().zip(&self.stores);
        match &self.over {
            Over::Fabric(options) => {
                let options = NetOptions { data_bytes, counters, ..options.clone() };
                let join = |(rank, store)| Network::join(group, rank, store, &options);
                opened(at_once(ranks(), join)?, &parts, Network::part)
            }
            Over::Cards(options) => {
                let data_bytes = data_bytes.max(1);
                let options = CardOptions { data_bytes, counters, ..options.clone() };
                let join = |(rank, store)| CardNetwork::join(group, rank, store, &options);
                opened(at_once(ranks(), join)?, &parts, CardNetwork::part)
            }
        }
    }
}

/// The ends of all local ranks, and the part that each kernel has of them.
fn opened<End: Send + 'static>(
    ends: Vec<End>,
    parts: &[NetPart],
    part_of: impl Fn(&End, NetPart) -> Result<DeviceMemory, NetError>,
) -> Result<Net, CallError> {
    let views = parts.iter().map(|part| ends.iter().map(|end| part_of(end, *part)).collect());
    let views = views.collect::<Result<Vec<_>, NetError>>()?;
    Ok(Net { views, _ends: Mutex::new(Box::new(ends)) })
}

/// Does something for each rank, all at once: each waits for all others.
fn at_once<I: Send, T: Send, E: Send>(
    ranks: impl IntoIterator<Item = I>,
    one: impl Fn(I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    thread::scope(|scope| {
        let one = &one;
        let begin = |item: I| scope.spawn(move || one(item));
        let threads: Vec<_> = ranks.into_iter().map(begin).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, Result<T, E>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // All end before the first error is told.
        let ended: Vec<Result<T, E>> = threads.into_iter().map(end).collect();
        ended.into_iter().collect()
    })
}

#[cfg(feature = "host")]
mod modelled {
    use super::*;
    use crate::host::{HostBackend, TIMEOUT};
    use crate::net::model::{ModelNetwork, ModelOptions};

    /// Nodes in one emulator.
    struct Modelled {
        nodes: usize,
        backend: Arc<HostBackend>,
        options: ModelOptions,
        carrier: Transport,
    }

    impl Group {
        /// All ranks of an emulator as so many nodes, with a model of a network between them.
        pub fn over_model(
            backend: &Arc<HostBackend>,
            nodes: usize,
            net: &ModelOptions,
        ) -> Result<Group, CallError> {
            Group::modelled(backend, nodes, net, Transport::Rdma)
        }

        /// The same with kernels that speak to a network card of their rank, and models of the cards. Every
        /// channel of theirs to other machines lists `ibgda`.
        pub fn over_cards(
            backend: &Arc<HostBackend>,
            nodes: usize,
            net: &ModelOptions,
        ) -> Result<Group, CallError> {
            Group::modelled(backend, nodes, net, Transport::Ibgda)
        }

        fn modelled(
            backend: &Arc<HostBackend>,
            nodes: usize,
            net: &ModelOptions,
            carrier: Transport,
        ) -> Result<Group, CallError> {
            let ranks = backend.ranks();
            if backend.local().len() != ranks || nodes == 0 || !ranks.is_multiple_of(nodes) {
                let local = backend.local();
                let what =
                    format!("ranks {local:?} of {ranks} are no {nodes} nodes of equally many");
                return Err(CallError::Mismatch { what });
            }
            let (own, options) = (Arc::clone(backend), net.clone());
            let wire = Modelled { nodes, backend: own, options, carrier };
            let (backend, options) =
                (Arc::clone(backend), GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() });
            Group::joined(backend, options, Some(Box::new(wire)))
        }
    }

    impl Wire for Modelled {
        fn nodes(&self) -> usize {
            self.nodes
        }

        fn carrier(&self) -> Transport {
            self.carrier.clone()
        }

        fn gather(&self, _: &str, value: u64) -> Result<Vec<u64>, CallError> {
            Ok(vec![value])
        }

        fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError> {
            let (network, parts) =
                ModelNetwork::of_plans(&self.backend, plans, &self.options, &self.carrier)?;
            let view =
                |part: &NetPart| group.local().map(|rank| network.part(rank, *part)).collect();
            let views = parts.iter().map(view).collect::<Result<Vec<_>, NetError>>()?;
            let failure = network.watched();
            group.watch(&failure);
            Ok(Net { views, _ends: Mutex::new(Box::new((network, failure))) })
        }
    }
}

//! Groups whose nodes a network connects. Each node is a process, or each rank is one, or all nodes are in
//! one emulator.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::proxy::Shared;
use super::{
    CardNetwork, CardOptions, Carrier, NetOptions, NetPart, Network, ResidentNetwork, SharedCards,
};
use crate::backend::{Backend, BackendError};
use crate::error::CallError;
use crate::group::{CardTraffic, Group, GroupOptions, Net, Wire};
use crate::join::{Member, Store, UniqueId};
use crate::memory::DeviceMemory;
use crate::net_error::NetError;

/// Processes, of which each has ranks of one node.
struct Processes {
    nodes: usize,
    over: Carrier,
    /// Of each local rank.
    stores: Vec<Arc<Store>>,
    /// Its cards, if they are kernels.
    cards: Option<SharedCards>,
    /// The ends of networks over libfabric, each with its rank.
    ends: Mutex<Vec<(usize, Weak<Shared>)>>,
}

impl Group {
    /// The group of this node, whose ranks `backend` has. Other nodes are other processes, which join with
    /// the same `id`, and libfabric carries rows between them. Waits up to the deadline for all processes,
    /// here and at each later step that they take together. Kernels determine how many bytes and counters
    /// they need of a network.
    pub fn over_network(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        net: &NetOptions,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        Group::over_processes(backend, options, id, net.clone().into(), deadline)
    }

    /// As [`Group::over_network`], over network cards with mlx5 work queues that kernels write to
    /// themselves: for GPUs. Every channel of such kernels to other machines must list `ibgda`. **This has
    /// not run on hardware yet.**
    pub fn over_ibgda(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        cards: &CardOptions,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        Group::over_processes(backend, options, id, Carrier::Ibgda(cards.clone()), deadline)
    }

    /// The group of a process with one rank, as launchers start one process for each GPU of several nodes.
    /// `store` has the processes of all nodes. `backend` drives the member's rank and shares windows with
    /// the ranks of the same node, as [`GpuBackend::join_node`](crate::gpu::GpuBackend::join_node) does:
    ///
    /// ```text
    /// let store = Arc::new(Store::join(&id, Member { rank, ranks }, deadline)?);
    /// let backend = Arc::new(GpuBackend::join_node(device, &store, nodes, compile)?);
    /// let group = Group::over_store(backend, options, &store, &Carrier::from_environment()?)?;
    /// ```
    ///
    /// Ranks are numbered node by node, with equally many on each. Rows to other nodes go over libfabric, through an
    /// endpoint and a thread of each process, or over network cards, one for each process. [`Carrier::Card`] needs a
    /// backend that keeps SMs for it ([`Carrier::beside`]) and all processes on one machine. All calls are those of [`Group::over_network`]. All processes must name one network,
    /// or all fail. In a group of one node, the ranks use no network.
    pub fn over_store(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        store: &Arc<Store>,
        over: &Carrier,
    ) -> Result<Group, CallError> {
        let (nodes, member) = (nodes_of(backend.as_ref())?, store.member());
        let (own, local) = (member.rank..member.rank + 1, backend.local());
        if (own.clone(), member.ranks) != (local.clone(), backend.ranks()) {
            let (ranks, all) = (backend.ranks(), member.ranks);
            let what = format!(
                "a store of ranks {own:?} of {all} does not join a backend of ranks {local:?} of {ranks}"
            );
            return Err(CallError::Mismatch { what });
        }
        if nodes == 1 {
            return Group::new(backend, options);
        }
        // Another number of nodes or another network is another step, which the store names.
        store.meet(&format!("join {nodes} nodes over {over}")).map_err(BackendError::from)?;
        if let Some(other) = store.elsewhere().filter(|_| over.takes_sms()) {
            let what = format!(
                "`{over}` connects processes of one machine, and ranks 0 and {other} are on different machines or in \
                different network namespaces"
            );
            return Err(CallError::Mismatch { what });
        }
        let wire = Processes::new(nodes, over.clone(), vec![store.clone()]);
        Group::joined(backend, options, Some(Box::new(wire)))
    }

    fn over_processes(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        id: &UniqueId,
        over: Carrier,
        deadline: Duration,
    ) -> Result<Group, CallError> {
        let (nodes, ranks) = (nodes_of(backend.as_ref())?, backend.ranks());
        let join = |rank: usize| Store::join(id, Member { rank, ranks }, deadline).map(Arc::new);
        let stores = at_once(backend.local(), join).map_err(BackendError::from)?;
        let wire = Processes::new(nodes, over, stores);
        Group::joined(backend, options, Some(Box::new(wire)))
    }
}

impl Processes {
    fn new(nodes: usize, over: Carrier, stores: Vec<Arc<Store>>) -> Processes {
        let cards = match &over {
            Carrier::Card(options) => Some(SharedCards::new(options.clone())),
            _ => None,
        };
        Processes { nodes, over, stores, cards, ends: Mutex::default() }
    }

    fn ends(&self) -> MutexGuard<'_, Vec<(usize, Weak<Shared>)>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the endpoints of the local ranks have sent.
    fn sent(&self, ranks: usize) -> Vec<CardTraffic> {
        let mut all = vec![CardTraffic::default(); ranks];
        for (rank, end) in
            self.ends().iter().filter_map(|(rank, end)| Some((*rank, end.upgrade()?)))
        {
            all[rank] += CardTraffic { bytes: end.counts.read().bytes, ..CardTraffic::default() };
        }
        all
    }
}

/// How many nodes there are, each of as many ranks as that of a backend.
fn nodes_of(backend: &dyn Backend) -> Result<usize, CallError> {
    let (ranks, node) = (backend.ranks(), backend.node());
    let each = node.len().max(1);
    if !ranks.is_multiple_of(each) || !node.start.is_multiple_of(each) {
        let what = format!(
            "ranks {node:?} of {ranks} are not a node: all nodes have the same number of ranks"
        );
        return Err(CallError::Mismatch { what });
    }
    Ok(ranks / each)
}

impl Wire for Processes {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn carrier(&self) -> Transport {
        self.over.transport()
    }

    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, CallError> {
        let one = |store: &Arc<Store>| store.gather(label, &value.to_le_bytes());
        let brought = at_once(&self.stores, one).map_err(BackendError::from)?;
        let number = |bytes: &Vec<u8>| bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        Ok(brought.first().into_iter().flatten().map(number).collect())
    }

    fn pending(&self) -> Vec<String> {
        self.cards.as_ref().map(SharedCards::pending).unwrap_or_default()
    }

    fn cards(&self) -> Option<&dyn Any> {
        self.cards.as_ref().map(|cards| cards as &dyn Any)
    }

    fn traffic(&self, ranks: usize) -> Option<Result<Vec<CardTraffic>, NetError>> {
        match &self.over {
            Carrier::Libfabric(_) => Some(Ok(self.sent(ranks))),
            Carrier::Ibgda(_) | Carrier::Card(_) => self.cards.as_ref().map(|it| it.traffic(ranks)),
        }
    }

    fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError> {
        let plans = plans.iter().copied();
        let (parts, data_bytes, counters) = NetPart::place(plans, &self.carrier())?;
        let ranks = || group.local().zip(self.stores.iter().map(Arc::as_ref));
        match &self.over {
            Carrier::Libfabric(options) => {
                let options = NetOptions { data_bytes, counters, ..options.clone() };
                let join = |(rank, store)| Network::join(group, rank, store, &options);
                let networks = at_once(ranks(), join)?;
                let ends = networks.iter().map(|network| (network.rank(), network.shared()));
                let mut known = self.ends();
                known.retain(|(_, end)| end.strong_count() > 0);
                known.extend(ends);
                opened(networks, &parts, Network::part)
            }
            Carrier::Ibgda(options) => {
                let data_bytes = data_bytes.max(1);
                let options = CardOptions { data_bytes, counters, ..options.clone() };
                let join = |(rank, store)| CardNetwork::join(group, rank, store, &options);
                opened(at_once(ranks(), join)?, &parts, CardNetwork::part)
            }
            Carrier::Card(_) => ResidentNetwork::open(group, &parts, (data_bytes.max(1), counters)),
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
    use crate::net::card::Models;
    use crate::net::model::{ModelNetwork, ModelOptions};

    /// Nodes in one emulator.
    struct Modelled {
        nodes: usize,
        backend: Arc<HostBackend>,
        options: ModelOptions,
        carrier: Transport,
        /// Those of the networks that have been opened.
        models: Models,
    }

    impl Group {
        /// All ranks of an emulator, divided into this number of nodes, with a model of a network between
        /// them.
        pub fn over_model(
            backend: &Arc<HostBackend>,
            nodes: usize,
            net: &ModelOptions,
        ) -> Result<Group, CallError> {
            Group::modelled(backend, nodes, net, Transport::Rdma)
        }

        /// As [`Group::over_model`], with kernels that write to a network card of their rank, and models of
        /// the cards. Every channel of such kernels to other machines must list `ibgda`.
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
                let what = format!(
                    "ranks {local:?} of {ranks} do not form {nodes} nodes with the same number \
                    of ranks"
                );
                return Err(CallError::Mismatch { what });
            }
            let (own, options) = (Arc::clone(backend), net.clone());
            let models = Models::default();
            let wire = Modelled { nodes, backend: own, options, carrier, models };
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
            self.carrier
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
            self.models.add(network.shared());
            Ok(Net { views, _ends: Mutex::new(Box::new((network, failure))) })
        }

        fn traffic(&self, ranks: usize) -> Option<Result<Vec<CardTraffic>, NetError>> {
            (self.carrier == Transport::Ibgda).then(|| Ok(self.models.traffic(ranks)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBackend;
    use crate::memory::Window;
    use crate::net::Provider;
    use crate::pipelines::{LowLatencyDispatch, low_latency_dispatch};

    /// What each process of four says, which are as many nodes as it thinks.
    fn joined<T: Send>(
        nodes: usize,
        body: impl Fn(Arc<FakeBackend>, Arc<Store>) -> T + Sync,
    ) -> Vec<T> {
        let id = UniqueId::local().unwrap();
        let one = |rank: usize| {
            let member = Member { rank, ranks: 4 };
            let store = Store::join(&id, member, Duration::from_secs(60)).unwrap();
            let store = Arc::new(store);
            body(FakeBackend::of_node(&store, nodes), store)
        };
        at_once(0..4, |rank| Ok::<T, ()>(one(rank))).unwrap()
    }

    fn over(provider: Provider) -> Carrier {
        NetOptions::of_group(provider).into()
    }

    #[test]
    fn a_process_of_one_rank_is_on_a_node_of_several() {
        let seen = joined(2, |backend, store| {
            let options = GroupOptions::default();
            let group = Group::over_store(backend, options, &store, &over(Provider::Tcp)).unwrap();
            let rank = store.member().rank;
            let window = Window::new(group.backend(), 64).unwrap();
            let near = window.bases(rank).unwrap().iter().map(|base| *base != 0);
            let near: Vec<bool> = near.collect();
            let brought = group.gather("numbers", 10 + rank as u64).unwrap();
            (group.nodes(), group.ranks(), group.local(), group.carrier(), near, brought)
        });
        for (rank, it) in seen.into_iter().enumerate() {
            let near = (0..4).map(|other| other / 2 == rank / 2).collect();
            let numbers = vec![10, 11, 12, 13];
            assert_eq!(it, (2, 4, rank..rank + 1, Some(Transport::Rdma), near, numbers));
        }
    }

    #[test]
    fn one_node_takes_no_network() {
        let seen = joined(1, |backend, store| {
            let options = GroupOptions { leaves_out_absent: true, ..GroupOptions::default() };
            let group = Group::over_store(backend, options, &store, &over(Provider::Efa)).unwrap();
            (group.nodes(), group.carrier(), group.gather("all", 7).unwrap())
        });
        assert_eq!(seen, vec![(1, None, vec![7; 4]); 4]);
    }

    #[test]
    fn processes_that_differ_are_named_on_all() {
        let said = joined(2, |backend, store| {
            let odd = store.member().rank == 3;
            let net = over(if odd { Provider::Shm } else { Provider::Tcp });
            let group = Group::over_store(backend, GroupOptions::default(), &store, &net);
            group.err().unwrap().to_string()
        });
        let text =
            "rank 3 is at `join 2 nodes over shm` while rank 0 is at `join 2 nodes over tcp`";
        assert_eq!(said, vec![text; 4]);
    }

    #[test]
    fn what_has_no_network_between_its_nodes_is_refused() {
        let said = joined(2, |backend, store| {
            let wider = FakeBackend::new(4);
            let options = GroupOptions::default();
            let other = Group::over_store(wider, options, &store, &over(Provider::Tcp)).err();
            let group = Group::new(backend, options).unwrap();
            let shape = low_latency_dispatch::Shape {
                nodes: 1,
                hidden: 128,
                topk: 2,
                experts: 8,
                tokens: 8,
                max_tokens: 8,
            };
            let prepared = LowLatencyDispatch::prepare(&group, shape, Default::default()).err();
            [other, prepared].map(|error| error.unwrap().to_string())
        });
        for (rank, said) in said.into_iter().enumerate() {
            let (after, first) = (rank + 1, rank / 2 * 2);
            let stores = format!(
                "a store of ranks {rank}..{after} of 4 does not join a backend of ranks 0..4 of 4"
            );
            let alone = format!(
                "LowLatencyDispatch would reach only ranks {first}..{} of 4: no network connects the \
                nodes of the group",
                first + 2
            );
            assert_eq!(said, [stores, alone]);
        }
    }
}

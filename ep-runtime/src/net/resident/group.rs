//! Groups over cards that are kernels: what each kernel gets of their networks, and what is asked of all cards.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

#[cfg(feature = "host")]
use super::super::card::Models;
use super::super::view::NetPart;
use super::{CardTraffic, Player, ResidentNetwork, ResidentOptions};
use crate::backend::Backend;
use crate::error::CallError;
use crate::group::{Group, GroupOptions, Net, Wire};
use crate::net_error::NetError;

/// Nodes in one process, each with ranks on GPUs.
struct Cards {
    nodes: usize,
    shared: SharedCards,
}

/// The cards of a group that are kernels, one on each GPU for all networks of the group.
pub(crate) struct SharedCards {
    pub(super) options: ResidentOptions,
    /// The kernels live as long as one of the networks.
    players: Mutex<Weak<Vec<Player>>>,
    /// The cards in the emulator.
    #[cfg(feature = "host")]
    pub(super) models: Models,
}

impl SharedCards {
    pub(in super::super) fn new(options: ResidentOptions) -> SharedCards {
        SharedCards {
            options,
            players: Mutex::default(),
            #[cfg(feature = "host")]
            models: Models::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Weak<Vec<Player>>> {
        self.players.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels, which run beside all others.
    pub(super) fn players(&self, group: &Group) -> Result<Arc<Vec<Player>>, NetError> {
        let mut known = self.known();
        if let Some(players) = known.upgrade() {
            return Ok(players);
        }
        let patience = 2 * group.timeout();
        let mut players = Player::of_gpus(group.backend(), &self.options, patience)?;
        players.iter_mut().try_for_each(Player::accompany)?;
        let players = Arc::new(players);
        *known = Arc::downgrade(&players);
        Ok(players)
    }

    /// The queue pairs with entries that their card has not ended, between two calls.
    pub(in super::super) fn pending(&self) -> Vec<String> {
        let players = self.known().upgrade();
        let each = players.iter().flat_map(|players| players.iter());
        let all = each.map(Player::pending).collect::<Result<Vec<_>, _>>();
        all.map_or_else(|error| vec![error.to_string()], |all| all.concat())
    }

    /// What the card of each of `ranks` ranks has carried, between two calls.
    pub(crate) fn traffic(&self, ranks: usize) -> Result<Vec<CardTraffic>, NetError> {
        #[cfg(feature = "host")]
        let mut all = self.models.traffic(ranks);
        #[cfg(not(feature = "host"))]
        let mut all = vec![CardTraffic::default(); ranks];
        let players = self.known().upgrade();
        let mut each = players.iter().flat_map(|players| players.iter());
        each.try_for_each(|player| player.count(&mut all))?;
        Ok(all)
    }
}

impl ResidentNetwork {
    /// Opens the network of some kernels, each with its part.
    pub(in super::super) fn open(
        group: &Group,
        parts: &[NetPart],
        size: (u64, usize),
    ) -> Result<Net, CallError> {
        let network = ResidentNetwork::new(group, size)?;
        let view = |part: &NetPart| group.local().map(|rank| network.part(rank, *part)).collect();
        let views = parts.iter().map(view).collect::<Result<Vec<_>, NetError>>()?;
        Ok(Net { views, _ends: Mutex::new(Box::new(network)) })
    }
}

impl Group {
    /// All ranks of a backend on GPUs of this process, divided into this number of nodes, with cards between them that are
    /// kernels. Every channel of their kernels to other machines must list `ibgda`.
    pub fn over_resident_cards(
        backend: Arc<dyn Backend>,
        nodes: usize,
        options: GroupOptions,
        cards: &ResidentOptions,
    ) -> Result<Group, CallError> {
        let (ranks, local) = (backend.ranks(), backend.local());
        if local.len() != ranks || nodes == 0 || !ranks.is_multiple_of(nodes) {
            let what = format!(
                "ranks {local:?} of {ranks} do not form {nodes} nodes with the same \
            number of ranks"
            );
            return Err(CallError::Mismatch { what });
        }
        let wire = Cards { nodes, shared: SharedCards::new(cards.clone()) };
        Group::joined(backend, options, Some(Box::new(wire)))
    }
}

impl Wire for Cards {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn carrier(&self) -> Transport {
        Transport::Ibgda
    }

    fn gather(&self, _: &str, value: u64) -> Result<Vec<u64>, CallError> {
        Ok(vec![value])
    }

    fn pending(&self) -> Vec<String> {
        self.shared.pending()
    }

    fn cards(&self) -> Option<&dyn Any> {
        Some(&self.shared)
    }

    fn traffic(&self, ranks: usize) -> Option<Result<Vec<CardTraffic>, NetError>> {
        Some(self.shared.traffic(ranks))
    }

    fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError> {
        let (parts, bytes, counters) =
            NetPart::place(plans.iter().copied(), &Transport::Ibgda).map_err(CallError::Network)?;
        ResidentNetwork::open(group, &parts, (bytes.max(1), counters))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions, StandardPipeline};
    use crate::fake::FakeBackend;

    fn group_of(backend: &Arc<FakeBackend>, nodes: usize) -> Group {
        let timeout = Duration::from_millis(1);
        let (options, cards) =
            (GroupOptions { timeout, ..GroupOptions::default() }, ResidentOptions::default());
        Group::over_resident_cards(backend.clone(), nodes, options, &cards).unwrap()
    }

    /// By rank that loads a card kernel, how many queue pairs the kernel plays.
    fn played(backend: &FakeBackend) -> Vec<(usize, u32)> {
        let companions = backend.companions.lock().unwrap();
        let count = |args: &[u8]| u32::from_le_bytes(args[60..64].try_into().unwrap());
        companions.iter().map(|(rank, args)| (*rank, count(args))).collect()
    }

    #[test]
    fn all_networks_of_a_group_share_one_kernel_on_each_gpu() {
        let backend = FakeBackend::new(4);
        backend.has_gpus.store(true, Ordering::Relaxed);
        let group = group_of(&backend, 2);
        let open = |counters| ResidentNetwork::new(&group, (1000, counters)).unwrap();
        // Two ranks of the other node, and two queues for each.
        let each = |pairs: u32| (0..4).map(|rank| (rank, pairs)).collect::<Vec<_>>();
        let first = open(3);
        assert_eq!(played(&backend), each(4));
        let second = open(5);
        assert_eq!(played(&backend), each(8));
        drop(first);
        assert_eq!(played(&backend), each(4));
        drop(second);
        assert_eq!(played(&backend), []);
    }

    #[test]
    fn a_network_waits_for_the_kernels_in_flight() {
        let backend = FakeBackend::new(2);
        let group = group_of(&backend, 2);
        let open = |counters| ResidentNetwork::new(&group, (1000, counters));
        let first = open(3).unwrap();
        let live = backend.live();
        backend.in_flight.store(true, Ordering::Relaxed);
        let text = "kernels of rank 0 have been in flight for 2ms, and the queue pairs of a card that is a kernel \
                    change only while none is";
        assert_eq!(open(5).map(drop).unwrap_err().to_string(), text);
        assert_eq!((backend.live(), played(&backend)), (live, vec![(0, 4)]));
        backend.in_flight.store(false, Ordering::Relaxed);
        let second = open(5).unwrap();
        backend.in_flight.store(true, Ordering::Relaxed);
        backend.asked();
        // Its queue pairs and their memory stay, because the kernel looks at them.
        drop(second);
        assert_eq!(played(&backend), [(0, 8)]);
        assert!(!backend.asked().contains(&"unmap"));
        backend.in_flight.store(false, Ordering::Relaxed);
        drop(first);
        assert_eq!((backend.asked().contains(&"unmap"), played(&backend)), (true, vec![]));
    }

    /// Any more would be refused, or would leave the card without SMs.
    #[test]
    fn a_call_takes_no_more_sms_than_are_left() {
        let backend = FakeBackend::new(2);
        backend.sms.store(15, Ordering::Relaxed);
        let buffer = Buffer::new(&group_of(&backend, 2), BufferOptions::new(8, 64, 2, 4), &BuiltIn);
        let buffer = buffer.unwrap();
        for call in [CallOptions::default(), CallOptions::sms(15)] {
            assert_eq!(buffer.sms(StandardPipeline::NodeCombine, &call), 14);
        }
    }

    #[test]
    fn a_kernel_plays_no_more_queue_pairs_than_its_warps_serve() {
        let backend = FakeBackend::new(16);
        let group = group_of(&backend, 16);
        let first = ResidentNetwork::new(&group, (1000, 3)).unwrap();
        let error = ResidentNetwork::new(&group, (1000, 3)).map(drop).unwrap_err();
        let text = "ranks [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] of one GPU have 960 queue pairs to \
                    other nodes in all networks of their group, and the kernel that is their card plays at most 512";
        assert_eq!((error.to_string(), played(&backend)), (text.to_string(), vec![(0, 480)]));
        drop(first);
    }
}

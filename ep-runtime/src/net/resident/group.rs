//! Groups over cards that are kernels: what each kernel gets of their networks, and what is asked of all cards.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::super::view::NetPart;
use super::{CardTraffic, Player, ResidentNetwork, ResidentOptions, pending, traffic};
use crate::backend::Backend;
use crate::error::CallError;
use crate::group::{Group, GroupOptions, Net, Wire};
use crate::net_error::NetError;

/// Nodes in one process, each with ranks on GPUs.
struct Cards {
    nodes: usize,
    options: ResidentOptions,
    opened: Arc<Opened>,
}

/// The cards of all kernels of a group.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Vec<Weak<Vec<Player>>>>);

impl Opened {
    /// Gives each kernel its part of a network.
    pub(in super::super) fn net(
        &self,
        network: ResidentNetwork,
        group: &Group,
        parts: &[NetPart],
    ) -> Result<Net, CallError> {
        let view = |part: &NetPart| group.local().map(|rank| network.part(rank, *part)).collect();
        let views = parts.iter().map(view).collect::<Result<Vec<_>, NetError>>()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(Arc::downgrade(&network.players));
        drop(known);
        let failure = network.watched();
        group.watch(&failure);
        Ok(Net { views, _ends: Mutex::new(Box::new((network, failure))) })
    }

    /// The queue pairs with entries that their card has not ended, between two calls.
    pub(in super::super) fn pending(&self) -> Vec<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        let all = known.iter().map(|players| pending(players)).collect::<Result<Vec<_>, _>>();
        all.map_or_else(|error| vec![error.to_string()], |all| all.concat())
    }

    /// What the card of each of `ranks` ranks has carried, between two calls.
    pub(crate) fn traffic(&self, ranks: usize) -> Result<Vec<CardTraffic>, NetError> {
        let mut all = vec![CardTraffic::default(); ranks];
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for players in known.iter().filter_map(Weak::upgrade) {
            for (sum, own) in all.iter_mut().zip(traffic(&players, ranks)?) {
                *sum += own;
            }
        }
        Ok(all)
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
        let wire = Cards { nodes, options: cards.clone(), opened: Arc::default() };
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
        self.opened.pending()
    }

    fn traffic(&self, ranks: usize) -> Option<Result<Vec<CardTraffic>, NetError>> {
        Some(self.opened.traffic(ranks))
    }

    fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError> {
        let (parts, bytes, counters) =
            NetPart::place(plans.iter().copied(), &Transport::Ibgda).map_err(CallError::Network)?;
        let size = (bytes.max(1), counters);
        let network = ResidentNetwork::new(group.backend(), self.nodes, size, &self.options)?;
        self.opened.net(network, group, &parts)
    }
}

//! Groups of several nodes: the connection between nodes, and the networks of their kernels.

#[cfg(target_os = "linux")]
use std::any::Any;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex};

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::{Group, positive};
use crate::error::CallError;
use crate::memory::DeviceMemory;
use crate::net_error::NetError;

/// What one rank's network card, or its endpoint of libfabric, has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CardTraffic {
    /// Entries of its queue pairs. Libfabric has none.
    pub entries: u64,
    /// Doorbells that it has heard. Two that ring at once may be heard as one. Libfabric has none.
    pub doorbells: u64,
    /// Bytes to peers.
    pub bytes: u64,
}

impl AddAssign for CardTraffic {
    fn add_assign(&mut self, more: CardTraffic) {
        self.entries += more.entries;
        self.doorbells += more.doorbells;
        self.bytes += more.bytes;
    }
}

/// What joins the nodes of a group.
pub(crate) trait Wire: Send + Sync {
    /// How many nodes there are, of equally many ranks.
    fn nodes(&self) -> usize;

    /// What carries rows from one to another.
    fn carrier(&self) -> Transport;

    /// Waits until every process of the group has come to the step `label`, and gives what each rank
    /// brought; just `value` when all ranks are in this process.
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, CallError>;

    /// Opens a network for kernels that share a window; all processes do it together.
    fn open(&self, group: &Group, plans: &[&Plan]) -> Result<Net, CallError>;

    /// Its cards that are kernels, a `SharedCards`, if there are any.
    #[cfg(target_os = "linux")]
    fn cards(&self) -> Option<&dyn Any> {
        None
    }

    /// Reads the traffic of each rank, between two calls. `None` if nobody counts it.
    fn traffic(&self, _ranks: usize) -> Option<Result<Vec<CardTraffic>, NetError>> {
        None
    }

    /// What its networks have been asked for and not carried out, in words, while no kernel runs.
    fn pending(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The network of some kernels.
pub struct Net {
    /// For each kernel, `ep::Net` of each local rank.
    pub(crate) views: Vec<Vec<DeviceMemory>>,
    /// Its ends, which close when this is dropped.
    pub(crate) _ends: Mutex<Box<dyn Send>>,
}

impl Net {
    /// Where a kernel finds the network of a local rank, by the rank's position among these: the address of `ep::Net`.
    pub fn address(&self, kernel: usize, local: usize) -> u64 {
        self.views[kernel][local].address()
    }
}

impl Group {
    /// Number of nodes of the group, each with the same number of ranks. Ranks of one node access each
    /// other's memory, and reach all others over a network.
    pub fn nodes(&self) -> usize {
        self.shared.wire.as_ref().map_or(1, |wire| wire.nodes())
    }

    /// Reads the traffic of each rank, between two calls. A process knows the traffic of its own ranks only. `None` over
    /// network cards and over models of libfabric, which count nothing.
    pub fn card_traffic(&self) -> Result<Option<Vec<CardTraffic>>, CallError> {
        let traffic = self.shared.wire.as_ref().and_then(|wire| wire.traffic(self.ranks()));
        traffic.transpose().map_err(CallError::Network)
    }

    /// The cards of its ranks that are kernels, a `SharedCards`, if there are any.
    #[cfg(target_os = "linux")]
    pub(crate) fn cards(&self) -> Option<&dyn Any> {
        self.shared.wire.as_ref().and_then(|wire| wire.cards())
    }

    /// Whether the kernels of its ranks write to network cards themselves, to reach ranks of other nodes.
    pub fn writes_to_cards(&self) -> bool {
        self.carrier() == Some(Transport::Ibgda)
    }

    /// What carries rows between nodes; none: there is one node.
    pub(crate) fn carrier(&self) -> Option<Transport> {
        self.shared.wire.as_ref().map(|wire| wire.carrier())
    }

    /// Waits until every process of the group has reached the step `label`, and returns for each rank the value of its
    /// process; just `value` when all ranks are in this process.
    pub fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, CallError> {
        match &self.shared.wire {
            Some(wire) => wire.gather(label, value),
            None => Ok(self.backend().gather(label, value)?),
        }
    }

    /// As [`Group::gather`], but with one value for each process instead of one for each rank. All processes have equally many
    /// ranks.
    pub fn gather_once(&self, label: &str, value: u64) -> Result<Vec<u64>, CallError> {
        let all = self.gather(label, value)?;
        Ok(all.into_iter().step_by(self.local().len().max(1)).collect())
    }

    /// The network that kernels take which share a window, if they take any. All processes of the group open it together.
    pub fn open_network(&self, plans: &[&Plan]) -> Result<Option<Arc<Net>>, CallError> {
        let takes_any = plans.iter().any(|plan| plan.network_counters > 0);
        match &self.shared.wire {
            Some(wire) if takes_any => Ok(Some(Arc::new(wire.open(self, plans)?))),
            _ => Ok(None),
        }
    }

    /// Fails for kernels whose ranks would look for others where they are not.
    pub(crate) fn check_nodes(&self, plans: &[&Plan]) -> Result<(), CallError> {
        plans.iter().try_for_each(|plan| self.check_plan(plan))
    }

    fn check_plan(&self, plan: &Plan) -> Result<(), CallError> {
        let number = |name: &str| plan.numbers.get(name).map(|number| positive(*number));
        let has_channels = !plan.messages.is_empty();
        let (nodes, node) = (number("nodes").unwrap_or(1), self.backend().node());
        if has_channels && self.shared.wire.is_none() && node.len() < self.ranks() {
            let (name, ranks) = (&plan.pipeline, self.ranks());
            let what = format!(
                "{name} would reach only ranks {node:?} of {ranks}: no network connects the nodes of the group"
            );
            return Err(CallError::Mismatch { what });
        }
        let ranks = number("ranks").unwrap_or(self.ranks() as u64);
        for (what, own, of_group) in
            [("ranks", ranks, self.ranks()), ("nodes", nodes, self.nodes())]
        {
            if has_channels && own != of_group as u64 {
                let name = &plan.pipeline;
                let what =
                    format!("{name} was made for {own} {what}, and the group has {of_group}");
                return Err(CallError::Mismatch { what });
            }
        }
        Ok(())
    }
}

//! What all ranks hold, and what stands for what: peers, nodes, extents.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::channels::{Channels, Lane};
use super::data::Tensor;
use super::memory::Memory;
use super::value::{Parts, form};
use super::wrong::{Fault, Found};
use super::{Behind, Moved, Problem, Rank, Word};
use crate::ir::slots::{shared_axis, shared_sources};
use crate::ir::{Action, Channel, ElemType, Expr, PeerSet, Pipeline, Role, Share, WellKnown, walk};
use crate::plan::{eval, parts};

/// All ranks in the middle of a call.
pub(super) struct World<'p> {
    pub(super) problem: &'p Problem<'p>,
    pub(super) ir: &'p Pipeline,
    /// Tensors of each rank.
    pub(super) ranks: Vec<BTreeMap<&'p str, Memory>>,
    /// Sizes of each rank.
    pub(super) sizes: Vec<BTreeMap<&'p str, i64>>,
    pub(super) channels: Channels,
    /// Channels whose messages are in no fixed order.
    pub(super) open: BTreeSet<usize>,
    /// Instances that may still fill a channel: by channel, rank and stripe.
    pub(super) filling: BTreeMap<(usize, usize, Option<i64>), usize>,
    /// Instances that close a channel, by channel and rank.
    pub(super) closers: BTreeMap<(usize, usize), usize>,
    /// Instances, by rank, role and stripe.
    pub(super) instances: BTreeMap<(usize, usize, Option<i64>), usize>,
    /// What each rank has read behind words, by tensor.
    behind: RefCell<Vec<BTreeMap<String, Vec<Behind>>>>,
    /// How many messages have moved, by channel, sender and receiver.
    moved: BTreeMap<(usize, usize, usize), u64>,
}

impl<'p> World<'p> {
    pub(super) fn new(problem: &'p Problem<'p>, open: &BTreeSet<usize>) -> World<'p> {
        World {
            problem,
            ir: problem.ir,
            ranks: Vec::new(),
            sizes: Vec::new(),
            channels: Channels::default(),
            open: open.clone(),
            filling: BTreeMap::new(),
            closers: BTreeMap::new(),
            instances: BTreeMap::new(),
            behind: RefCell::new(vec![BTreeMap::new(); problem.ranks.len()]),
            moved: BTreeMap::new(),
        }
    }

    /// Counts a message of a channel.
    pub(super) fn count_moved(&mut self, channel: usize, from: usize, to: usize) {
        *self.moved.entry((channel, from, to)).or_insert(0) += 1;
    }

    /// All messages that were counted.
    pub(super) fn moved(&self) -> Vec<Moved> {
        let all = self.moved.iter().map(|((channel, from, to), messages)| Moved {
            channel: self.ir.channels[*channel].name.clone(),
            from: *from,
            to: *to,
            messages: *messages,
        });
        all.collect()
    }

    /// Notes that a rank has read elements of a tensor once it had waited for words.
    pub(super) fn note_behind(
        &self,
        rank: usize,
        name: &str,
        elements: Range<usize>,
        words: Vec<Word>,
    ) {
        let read = Behind { elements, words };
        self.behind.borrow_mut()[rank].entry(name.to_string()).or_default().push(read);
    }

    /// All that was noted so.
    pub(super) fn behind(&self) -> Vec<BTreeMap<String, Vec<Behind>>> {
        self.behind.take()
    }

    pub(super) fn rank(&self, rank: usize) -> Option<&'p Rank> {
        self.problem.ranks.get(rank)
    }

    pub(super) fn alive(&self, rank: usize) -> bool {
        self.rank(rank).is_some_and(|rank| rank.alive)
    }

    /// A number of the shape or a tune.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.problem.numbers.get(name).copied()
    }

    pub(super) fn count(&self) -> i64 {
        self.problem.ranks.len() as i64
    }

    /// Ranks of a node; all of them where there is no other node.
    pub(super) fn local_ranks(&self) -> i64 {
        self.number(WellKnown::LocalRanks.name()).unwrap_or(self.count()).max(1)
    }

    fn nodes(&self) -> i64 {
        self.number(WellKnown::Nodes.name()).unwrap_or(self.count() / self.local_ranks())
    }

    /// The value of an expression over the shape and the tunes.
    pub(super) fn shape(&self, expr: &Expr) -> Found<i64> {
        eval(expr, self.problem.numbers).ok_or_else(|| form(super::value::Written(expr)))
    }

    /// The index of every member of a peer set, as `me` sees it.
    pub(super) fn members(&self, set: &PeerSet, me: usize) -> Vec<i64> {
        match set {
            PeerSet::All => (0..self.count()).collect(),
            PeerSet::Others => (0..self.count()).filter(|rank| *rank != me as i64).collect(),
            PeerSet::Local => (0..self.local_ranks()).collect(),
            PeerSet::Rail => (0..self.nodes()).collect(),
        }
    }

    /// The rank that `index` of a channel is to `me`.
    pub(super) fn peer(&self, channel: &Channel, me: usize, index: i64) -> Found<usize> {
        let is_member = self.members(&channel.per, me).contains(&index);
        let each = self.local_ranks();
        let rank = match channel.per {
            PeerSet::All | PeerSet::Others => index,
            PeerSet::Local => me as i64 / each * each + index,
            PeerSet::Rail => index * each + me as i64 % each,
        };
        let rank = usize::try_from(rank).ok().filter(|_| is_member);
        rank.ok_or_else(|| Fault::Peer { channel: channel.name.clone(), index }.into())
    }

    /// The ranks that a channel joins to `me`, those that take part.
    pub(super) fn peers(&self, channel: &Channel, me: usize) -> Vec<usize> {
        let members = self.members(&channel.per, me);
        let ranks = members.into_iter().filter_map(|index| self.peer(channel, me, index).ok());
        ranks.filter(|rank| self.alive(*rank)).collect()
    }

    /// What a receiver calls the rank that a message comes from.
    pub(super) fn source(&self, channel: &Channel, from: usize) -> i64 {
        match channel.per {
            PeerSet::All | PeerSet::Others => from as i64,
            PeerSet::Local => from as i64 % self.local_ranks(),
            PeerSet::Rail => from as i64 / self.local_ranks(),
        }
    }

    pub(super) fn channel(&self, name: &str) -> Found<(usize, &'p Channel)> {
        let at = self.ir.channels.iter().position(|channel| channel.name == name);
        at.map(|at| (at, &self.ir.channels[at])).ok_or_else(|| form(name))
    }

    /// The parts of an element type.
    pub(super) fn parts(&self, elem: &ElemType) -> Parts {
        if let ElemType::Bits { .. } = elem {
            return vec![(None, 1)];
        }
        let parts = parts(self.ir, elem).into_iter();
        parts.map(|(_, elem, block)| (Some(elem), usize::try_from(block).unwrap_or(1))).collect()
    }

    /// The values of an index that the warps of a role share: of a slot, or of a number in the plural.
    pub(super) fn shared(&self, role: &Role, name: &str, me: usize) -> Found<Vec<i64>> {
        if name == "source" {
            let per = shared_sources(self.ir, role).map_or(&PeerSet::All, |channel| &channel.per);
            return Ok(self.members(per, me));
        }
        if let Some((channel, at)) = shared_axis(self.ir, role, name) {
            return Ok((0..self.shape(&channel.slot[at])?).collect());
        }
        match self.number(&format!("{name}s")) {
            Some(count) => Ok((0..count).collect()),
            None => Err(form(name)),
        }
    }

    /// Rows that the stripes share: those that the caller gives, else those of the device.
    pub(super) fn striped(&self, rank: usize) -> Option<i64> {
        let given = self.ir.sizes.iter().find(|size| size.value.is_none());
        let size = given.or(self.ir.sizes.first())?;
        self.sizes.get(rank)?.get(size.name.as_str()).copied()
    }

    /// Whether an instance on `rank` may still fill a channel for this stripe.
    pub(super) fn is_filling(&self, at: usize, rank: usize, stripe: Option<i64>) -> bool {
        self.filling.iter().any(|((channel, of, part), left)| {
            *left > 0
                && *channel == at
                && *of == rank
                && (stripe.is_none() || part.is_none() || *part == stripe)
        })
    }

    /// Whether every instance on `rank` that closes a channel has done so.
    pub(super) fn is_closed(&self, at: usize, rank: usize) -> bool {
        let closed = self.channels.closed.get(&(at, rank)).copied().unwrap_or(0);
        closed >= self.closers.get(&(at, rank)).copied().unwrap_or(1)
    }

    /// How many instances read a queue: one, if what they share says which queue is theirs.
    pub(super) fn readers(&self, lane: &Lane) -> usize {
        let channel = &self.ir.channels[lane.channel];
        let Some(at) = self.ir.roles.iter().position(|role| role.name == channel.to) else {
            return 1;
        };
        if reads_own(&self.ir.roles[at], &channel.name) {
            return 1;
        }
        let of_stripe = |stripe| self.instances.get(&(lane.to, at, stripe)).copied().unwrap_or(0);
        (of_stripe(None) + of_stripe(Some(lane.stripe))).max(1)
    }

    /// A tensor with this name on a rank.
    pub(super) fn memory(&self, rank: usize, name: &str) -> Found<&Memory> {
        let memory = self.ranks.get(rank).and_then(|tensors| tensors.get(name));
        memory.ok_or(super::wrong::Stop::Absent)
    }

    /// The table of where experts live.
    pub(super) fn expert_begin(&self, rank: usize) -> Found<&Tensor> {
        self.memory(rank, WellKnown::ExpertBegin.name())?
            .copies
            .first()
            .ok_or(super::wrong::Stop::Absent)
    }
}

/// The names that a role's warps share, but for stripes.
pub(super) fn shared_names(share: &Share) -> Vec<&str> {
    match share {
        Share::Peer { binder, .. } => vec![binder],
        Share::SourceStripe => vec!["source"],
        Share::Indices { names } => {
            names.iter().map(String::as_str).filter(|name| *name != "stripe").collect()
        }
        Share::Stripe | Share::Token | Share::BlockPerToken | Share::Team => Vec::new(),
    }
}

/// Whether each instance of a role has queues of its own: what it shares stands in their index.
fn reads_own(role: &Role, channel: &str) -> bool {
    let mut own = true;
    walk::stmts(&role.body, &mut |stmt| {
        let peer = match &stmt.action {
            Action::Receive { channel: name, peer, .. }
            | Action::Gather { channel: name, peer, .. }
                if name == channel =>
            {
                peer
            }
            _ => return,
        };
        let mut named = BTreeSet::new();
        if let Some(peer) = peer {
            walk::expr(peer, &mut |part| {
                if let Expr::Name { name, .. } = part {
                    named.insert(name.as_str());
                }
            });
        }
        own &= shared_names(&role.share).iter().all(|name| named.contains(name));
    });
    own
}

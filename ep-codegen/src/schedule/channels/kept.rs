//! Which of the rings of a stripe a role keeps at an end of a channel: those of its peers, or, where a
//! channel has parts, all parts of one peer or one part of all peers.

use super::End;
use crate::ir::network::{over_network, readers};
use crate::ir::slots::places;
use crate::ir::{Action, BinaryOp, Channel, Elem, Expr, NameKind, PeerSet, Share, Stmt, walk};
use crate::schedule::declaration::is_other;
use crate::schedule::library::ep;
use crate::schedule::limit::Limit;
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

/// What the lanes of an end stand for.
pub(in crate::schedule) enum Kept {
    /// The peers of the channel.
    Peers,
    /// All parts of one peer.
    PartsOfPeer(Expr),
    /// One part of all peers.
    PeersOfPart(Expr),
}

impl RoleLowering<'_> {
    /// What the lanes stand for at an end of a channel.
    pub(in crate::schedule) fn kept(&self, channel: &Channel, end: End) -> Lowered<Kept> {
        if channel.parts_per.is_none() {
            return Ok(Kept::Peers);
        }
        let indices = indices_of(&self.role.body, &channel.name, end);
        let all_same = |axis: usize| {
            let first = indices.first()?.get(axis)?;
            indices.iter().all(|index| index.get(axis) == Some(first)).then_some(first)
        };
        if let (Share::Peer { binder, .. }, Some(peer)) = (&self.role.share, all_same(0))
            && matches!(peer, Expr::Name { name, .. } if name == binder)
        {
            return Ok(Kept::PartsOfPeer(peer.clone()));
        }
        if let (Share::Indices { names }, Some(part)) = (&self.role.share, all_same(1))
            && is_of_unit(part, names)
        {
            return Ok(Kept::PeersOfPart(part.clone()));
        }
        Err(Limit::PartsNotKept.of(&[&channel.name]))
    }

    /// How many rings of a stripe a role keeps at an end of a channel; `None`: one.
    pub(in crate::schedule) fn kept_number(
        &self,
        channel: &Channel,
        end: End,
    ) -> Lowered<Option<Constant>> {
        if self.only_ring(channel, end).is_some() {
            return Ok(None);
        }
        let name = match (self.kept(channel, end)?, &channel.parts_per) {
            (Kept::PartsOfPeer(_), Some(parts)) => parts.as_str(),
            _ => {
                self.known(channel.per.number())?;
                channel.per.number().name()
            }
        };
        Ok(Some(Constant::number(name)))
    }

    /// The rings that the role serves at an end of a channel, and of which peer or part they are.
    pub(in crate::schedule) fn peers_at(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        end: End,
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Term>> {
        let all = |count| Term::call(ep::all_peers, vec![count], Elem::I32);
        let count = Term::constant(Constant::of_channel(channel).at("kPeers"));
        match (self.kept(channel, end)?, &channel.parts_per) {
            (Kept::PartsOfPeer(peer), Some(parts)) => {
                Ok(vec![all(self.number(parts)), self.scalar(scope, &peer, out)?])
            }
            (Kept::PeersOfPart(part), _) => {
                let peers = match channel.per {
                    PeerSet::Others => {
                        Term::call(ep::other_peers, vec![count, self.me()], Elem::I32)
                    }
                    _ => all(count),
                };
                Ok(vec![peers, self.scalar(scope, &part, out)?])
            }
            _ => Ok(vec![self.peers_without_parts(scope, channel, end, count, out)?]),
        }
    }

    fn peers_without_parts(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        end: End,
        count: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let indices = self.peers_named(channel, end);
        let (many, reads_all, whole) = self.serves(channel, end);
        let fits = |index: &Expr| self.is_own_peer(index) && !is_me(index);
        if many && !reads_all && !indices.iter().all(fits) {
            return Err(Limit::ComputedPeers.of(&[&channel.name]));
        }
        if let Some(only) = self.only_ring(channel, end) {
            let peer = self.scalar(scope, &only, out)?;
            return Ok(Term::call(ep::one_peer, vec![peer], Elem::I32));
        }
        let others =
            !whole && !indices.is_empty() && indices.iter().all(|index| is_other(self.role, index));
        Ok(match others || channel.per == PeerSet::Others {
            true => Term::call(ep::other_peers, vec![count, self.me()], Elem::I32),
            false => Term::call(ep::all_peers, vec![count], Elem::I32),
        })
    }

    /// The peers by which a role indexes a channel.
    fn peers_named(&self, channel: &Channel, end: End) -> Vec<Expr> {
        let indices = indices_of(self.role.body.as_slice(), &channel.name, end);
        indices.into_iter().filter_map(|index| index.into_iter().next()).collect()
    }

    /// Whether an index is another peer for each unit of the role, or this rank.
    fn is_own_peer(&self, index: &Expr) -> bool {
        match (&self.role.share, index) {
            (_, Expr::Name { kind: NameKind::Me, .. }) => true,
            (Share::Peer { binder, .. }, Expr::Name { name, .. }) => name == binder,
            (Share::SourceStripe, Expr::Name { name, .. }) => name == "source",
            (Share::Indices { names }, index) => is_of_unit(index, names),
            _ => false,
        }
    }

    /// Whether several units share the rings of a stripe, whether each of them may read all messages, and whether a unit
    /// serves all peers.
    fn serves(&self, channel: &Channel, end: End) -> (bool, bool, bool) {
        let one_warp =
            matches!(self.role.share, Share::Stripe | Share::Token | Share::BlockPerToken);
        let many = !one_warp && !self.single && !self.cut;
        // Over a network each of them may read all messages: the sender is told when the last one has.
        let reads_all =
            end == End::In && over_network(channel) && readers(self.ir, channel).is_some();
        // A sender waits for the end of every ring that it fills, one without messages too.
        let whole = match end {
            End::In => !many || reads_all,
            // Nobody else closes the ends towards peers that get nothing.
            End::Out => !many && self.closes_alone(channel),
        };
        (many, reads_all, whole)
    }

    /// The only peer whose ring a unit serves, if all of its statements name the same.
    pub(in crate::schedule) fn only_ring(&self, channel: &Channel, end: End) -> Option<Expr> {
        if channel.parts_per.is_some() || self.serves(channel, end).2 {
            return None;
        }
        let mut indices = self.peers_named(channel, end).into_iter();
        let first = indices.next()?;
        (self.is_own_peer(&first) && indices.all(|index| index == first)).then_some(first)
    }

    /// Whether no other role closes ends of a channel whose receivers wait for that.
    fn closes_alone(&self, channel: &Channel) -> bool {
        let senders = self.ir.roles.iter().filter(|role| channel.from.contains(&role.name));
        channel.kind.traits().ends_when_closed && senders.count() == 1
    }
}

/// Whether an index is one of the numbers that name a unit of work, or `(i + j) % is`, which begins elsewhere for each
/// `j`: it is another one for each unit.
fn is_of_unit(index: &Expr, names: &[String]) -> bool {
    let name_of = |expr: &Expr| match expr {
        Expr::Name { name, .. } => Some(name.clone()),
        _ => None,
    };
    let of_unit = |expr: &Expr| name_of(expr).filter(|name| names.contains(name));
    let Expr::Binary { op: BinaryOp::Rem, left, right } = index else {
        return of_unit(index).is_some();
    };
    let Expr::Binary { op: BinaryOp::Add, left: turned, right: by } = &**left else {
        return false;
    };
    match (of_unit(turned), of_unit(by), name_of(right)) {
        (Some(turned), Some(by), Some(count)) => turned != by && count == format!("{turned}s"),
        _ => false,
    }
}

fn is_me(index: &Expr) -> bool {
    matches!(index, Expr::Name { kind: NameKind::Me, .. })
}

/// The peers, and the parts behind them, by which a role indexes a channel at one of its ends.
fn indices_of(body: &[Stmt], channel: &str, end: End) -> Vec<Vec<Expr>> {
    let mut found: Vec<Vec<Expr>> = Vec::new();
    // Without a peer a loop takes from all.
    let any = || Expr::Int { value: -1 };
    walk::stmts(body, &mut |stmt| {
        let own = |name: &String| name == channel;
        match (&stmt.action, end) {
            (Action::Push { channel, peer: Some(peer), .. }, End::Out) if own(channel) => {
                found.push(places(Some(peer)).to_vec());
            }
            (Action::Announce { channel, peer, .. }, End::Out) if own(channel) => {
                found.push(places(Some(peer)).to_vec());
            }
            (Action::Receive { channel, peer, .. }, End::In) if own(channel) => {
                let index = places(peer.as_ref()).to_vec();
                found.push(if index.is_empty() { vec![any()] } else { index });
            }
            (Action::Gather { channel, peer, .. }, End::In) if own(channel) => {
                let part = places(peer.as_ref()).get(1).cloned();
                found.push(std::iter::once(any()).chain(part).collect());
            }
            _ => {}
        }
        if end == End::In {
            walk::exprs(stmt, &mut |part| {
                if let Expr::OfChannel { channel, index, field, .. } = part
                    && own(channel)
                    && field != "position"
                {
                    found.push(index.clone());
                }
            });
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_a_unit_is_another_one_for_each() {
        let name = |name: &str, kind| Expr::Name { name: name.to_string(), kind };
        let [node, stripe] = ["node", "stripe"].map(|it| name(it, NameKind::Binder));
        let [nodes, stripes] = ["nodes", "stripes"].map(|it| name(it, NameKind::Dim));
        let of = |op, left: &Expr, right: &Expr| Expr::Binary {
            op,
            left: Box::new(left.clone()),
            right: Box::new(right.clone()),
        };
        let turned =
            |by: &Expr, count: &Expr| of(BinaryOp::Rem, &of(BinaryOp::Add, &node, by), count);
        let names = ["node".to_string(), "stripe".to_string()];
        let is_taken = |index: &Expr| is_of_unit(index, &names);
        assert!(is_taken(&node) && is_taken(&turned(&stripe, &nodes)));
        // Twice a number, and a number of other indices, are the same for several units.
        assert!(!is_taken(&turned(&node, &nodes)) && !is_taken(&turned(&stripe, &stripes)));
        assert!(!is_taken(&nodes) && !is_taken(&of(BinaryOp::Rem, &node, &nodes)));
    }
}

//! A part of the rule `staged`: a row that goes to several peers is loaded once, and each lane stores it for a peer of its
//! own.
//!
//! The gain: a row is read from memory once, not once for each peer, and a warp reserves, fills and counts the messages of
//! a token together.

use super::flags::peers_of;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Loop, Step};
use crate::schedule::symbol::{Root, Symbol};
use crate::schedule::term::{Node, Term, counting};

/// The steps with all peers of a token served at once.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(role, std::mem::take(inner));
        }
        if let Step::Loop(tokens) = &mut step
            && let Some(peers) = peers_of(&mut tokens.body)
            && let Some(by_lanes) = served(role, peers)
        {
            *peers = by_lanes;
        }
        out.push(step);
    }
    out
}

/// A loop over peers as one over groups of lanes, each with a peer.
fn served(role: &mut RoleLowering<'_>, peers: &Loop) -> Option<Loop> {
    let group = role.names.fresh("group");
    let lane = Term::name("team.lane", Elem::I32);
    let number =
        Term::index(&group).times(Term::library(ep::kLanes)).plus(lane).converted(&Elem::I32);
    let last = counting(BinaryOp::Sub, peers.to.clone(), Term::int(1));
    let [own, is_one] = ["number", "is_peer"].map(|name| role.names.fresh(name));
    let (value, number) = (number, Term::index(&own));
    let mut fan = Fan {
        of_peer: vec![peers.binder.clone()],
        is_guarded: false,
        sends: Term::name(&is_one, Elem::Bool),
        body: vec![
            Step::Let { name: own, value },
            Step::Let { name: is_one, value: number.clone().test(BinaryOp::Lt, peers.to.clone()) },
            Step::Let {
                name: peers.binder.clone(),
                value: Term::call(ep::lesser, vec![number, last], Elem::I32),
            },
        ],
        moves: false,
    };
    for step in &peers.body {
        fan.step(role, step)?;
    }
    let groups = Term::call(ep::ceil, vec![peers.to.clone(), Term::library(ep::kLanes)], Elem::I32);
    let all = Loop { binder: group, to: groups, body: fan.body, ..peers.clone() };
    fan.moves.then_some(all)
}

/// The steps for all peers of a group of lanes.
struct Fan {
    /// The name of the peer, and the names that depend on it: each lane has a value of its own.
    of_peer: Vec<String>,
    /// Whether a condition has left peers out.
    is_guarded: bool,
    /// Whether the lane's peer is served by the next steps.
    sends: Term,
    body: Vec<Step>,
    /// Whether a row is moved.
    moves: bool,
}

impl Fan {
    /// Adds what all lanes do for one step of a peer; `None`: that is not known.
    fn step(&mut self, role: &mut RoleLowering<'_>, step: &Step) -> Option<()> {
        match step {
            Step::Says(_) | Step::Remark(_) => self.body.push(step.clone()),
            Step::Let { name, value } => {
                self.computes(value).then_some(())?;
                if self.of_peer.iter().any(|own| value.mentions(own)) {
                    self.of_peer.push(name.clone());
                }
                self.body.push(step.clone());
            }
            Step::SkipUnless(condition) => {
                self.computes(condition).then_some(())?;
                self.is_guarded = true;
                let name = role.names.fresh("sends");
                // All lanes ask, and then each keeps to its own.
                let value = condition.clone().test(BinaryOp::And, self.sends.clone());
                self.body.push(Step::Let { name: name.clone(), value });
                self.sends = Term::name(name, Elem::Bool);
            }
            Step::Leader(own) => {
                let condition = self.sends.clone();
                self.written(condition, own)?;
            }
            Step::If { condition, body } if condition.is_method("reserve") => {
                self.message(condition, body)?;
            }
            Step::If { condition, body } => {
                self.computes(condition).then_some(())?;
                self.is_guarded = true;
                let condition = self.sends.clone().test(BinaryOp::And, condition.clone());
                for step in body {
                    match step {
                        Step::Leader(own) => self.written(condition.clone(), own)?,
                        Step::Let { .. } | Step::Says(_) | Step::Remark(_) => {
                            self.step(role, step)?
                        }
                        _ => return None,
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Has the lane of each peer write what the first lane wrote for one peer.
    fn written(&mut self, condition: Term, own: &[Step]) -> Option<()> {
        let is_plain = |step: &Step| match step {
            Step::Set { place, value } => {
                matches!(place.node, Node::Index(..))
                    && self.is_of_lane(place)
                    && self.is_of_lane(value)
            }
            Step::Says(_) | Step::Remark(_) => true,
            _ => false,
        };
        own.iter().all(is_plain).then_some(())?;
        self.body.push(Step::If { condition, body: own.to_vec() });
        Some(())
    }

    /// Sends the message of a token to all its peers. `None`: something in it depends on the peer.
    fn message(&mut self, reserve: &Term, body: &[Step]) -> Option<()> {
        let Node::Call(Symbol { root: Root::Method(object, _), .. }, args) = &reserve.node else {
            return None;
        };
        let [Term { node: Node::Name(peer), .. }, _] = args.as_slice() else { return None };
        (self.of_peer.first() == Some(peer)).then_some(())?;
        let mut places = self.of_peer.clone();
        let mut steps = Vec::new();
        for step in body {
            let is_free = |term: &Term| !places.iter().any(|name| term.mentions(name));
            match step {
                Step::Says(_) | Step::Remark(_) => steps.push(step.clone()),
                Step::Pointer { name, value, .. } => {
                    if !is_free(value) {
                        places.push(name.clone());
                    }
                    steps.push(step.clone());
                }
                Step::Made { value, .. } => {
                    is_free(value).then(|| steps.push(step.clone()))?;
                }
                Step::Do(call) => steps.push(Step::Do(self.call(object, call, &is_free)?)),
                _ => return None,
            }
        }
        let all: Vec<Term> =
            std::iter::once(self.sends.clone()).chain(args.iter().cloned()).collect();
        let condition = Term::method(object, "reserve_each", all, Elem::Bool);
        self.body.push(Step::If { condition, body: steps });
        Some(())
    }

    /// The call for the messages of all peers that stands for a call for the message of one.
    fn call(&mut self, object: &str, call: &Term, is_free: &dyn Fn(&Term) -> bool) -> Option<Term> {
        let Node::Call(function, args) = &call.node else { return None };
        let each = |to: &Term| match &to.node {
            Node::Call(at, args) if at.is(ep::at_lane_of) => {
                let place = args.get(1)?.clone();
                Some(Term::call(ep::at_each, vec![self.sends.clone(), place], Elem::U8))
            }
            _ => None,
        };
        let all = match (&function.root, args.as_slice()) {
            (Root::Method(_, "put"), _) if is_free(call) => return Some(call.clone()),
            (Root::Method(_, "row"), [to, from]) if is_free(from) => vec![each(to)?, from.clone()],
            (Root::Method(_, "send_meta"), [to]) => vec![each(to)?],
            (Root::Method(own, "stored"), [peer]) if own == object => {
                let args = vec![self.sends.clone(), peer.clone()];
                return Some(Term::method(object, "stored_each", args, Elem::I32));
            }
            _ => return None,
        };
        self.moves |= function.is_method("row");
        Some(Term { node: Node::Call(function.clone(), all), ..call.clone() })
    }

    /// Whether all lanes may compute a term together, also those whose peer a condition has left out.
    fn computes(&self, term: &Term) -> bool {
        self.is_of_lane(term) && (!self.is_guarded || is_total(term))
    }

    /// Whether all lanes may compute a term together, each for a peer of its own.
    fn is_of_lane(&self, term: &Term) -> bool {
        let here = match &term.node {
            Node::Call(function, _) => match &function.root {
                Root::Method(_, method) => ["at", "next"].contains(method),
                Root::Library(entity) => [ep::recorded, ep::lesser, ep::greater].contains(entity),
                Root::Text(_) => false,
            },
            _ => true,
        };
        here && term.inner().into_iter().all(|inner| self.is_of_lane(inner))
    }
}

/// Whether a term has a value whatever its names stand for: it reads no memory, and divides by constants only.
fn is_total(term: &Term) -> bool {
    let here = match &term.node {
        Node::Index(..) => false,
        Node::Binary(BinaryOp::Div | BinaryOp::Rem, _, by) => {
            matches!(by.node, Node::Int(_) | Node::Constant(_))
        }
        _ => true,
    };
    here && term.inner().into_iter().all(is_total)
}

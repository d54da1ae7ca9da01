//! A part of the rule `copies`: a row that a loop pushes to several peers is loaded once, and cast once, for all of their slots.
//!
//! The gain: a token that goes to eight ranks is read and cast once instead of eight times. The warp waits for all eight
//! peers at once. One lane per peer reserves and publishes the slot.

use super::apart::only_sends;
use super::flags::rename;
use super::sums::only_looks;
use crate::ir::Elem;
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Copy, Loop, Step, Takers};
use crate::schedule::symbol::{Root, Symbol};
use crate::schedule::term::{Node, Term};
use crate::schedule::uniform::is_of_any_lane;

/// The steps in which all peers of a loop get a row together.
pub(in crate::schedule) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut known = Known::default();
    known.look(&steps);
    match known.ends.is_empty() {
        true => steps,
        false => together(role, &known, steps),
    }
}

/// Objects that the role makes.
#[derive(Default)]
struct Known {
    /// Ends of slots that are filled.
    ends: Vec<String>,
    /// Sets of ranks, of which each lane may ask for itself.
    ranks: Vec<String>,
}

impl Known {
    fn look(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Object { class, name, .. } if class.is(ep::SlotRowsOut) => {
                    self.ends.push(name.clone());
                }
                Step::Made { name, value: Term { node: Node::Call(function, _), .. } }
                    if function.is(ep::ranks_of) =>
                {
                    self.ranks.push(name.clone());
                }
                _ => self.look(step.inner()),
            }
        }
    }

    /// Whether a step in front of a push only decides whether the peer gets a message.
    fn asks(&self, step: &Step, own: &mut Vec<String>) -> bool {
        match step {
            Step::SkipUnless(condition) => self.is_of_any_lane(condition),
            step => only_looks(std::slice::from_ref(step), own),
        }
    }

    fn is_of_any_lane(&self, term: &Term) -> bool {
        match &term.node {
            Node::Call(Symbol { root: Root::Method(object, "has"), .. }, args) => {
                self.ranks.contains(object) && args.iter().all(is_of_any_lane)
            }
            Node::Not(_) | Node::Binary(..) => {
                term.inner().into_iter().all(|inner| self.is_of_any_lane(inner))
            }
            _ => is_of_any_lane(term),
        }
    }
}

fn together(role: &mut RoleLowering<'_>, known: &Known, steps: Vec<Step>) -> Vec<Step> {
    let one = |mut step: Step| {
        if let Step::Loop(repeat) = &step
            && let Some(pushes) = Pushes::of(repeat, known)
        {
            return pushes.together(role, repeat);
        }
        if let Some(inner) = step.inner_mut() {
            *inner = together(role, known, std::mem::take(inner));
        }
        vec![step]
    };
    steps.into_iter().flat_map(one).collect()
}

/// The parts of a loop over peers that does nothing but push a message to each.
struct Pushes<'s> {
    /// The steps that decide whether a peer gets a message.
    asks: &'s [Step],
    /// Names that have one value for all peers.
    names: &'s [Step],
    /// The sending end of the channel, and the key of the slots, with the number of the message if it has one.
    end: &'s str,
    key: &'s [Term],
    /// The slot of a peer, the steps that write the same bytes for all peers, and those that depend on the peer.
    slot: &'s Step,
    alike: Vec<&'s Step>,
    own: Vec<&'s Step>,
}

impl<'s> Pushes<'s> {
    fn of(repeat: &'s Loop, known: &Known) -> Option<Pushes<'s>> {
        let (Step::If { condition, body }, before) = repeat.body.split_last()? else { return None };
        let Node::Call(Symbol { root: Root::Method(end, "reserve"), .. }, args) = &condition.node
        else {
            return None;
        };
        let (publish, filled) = body.split_last()?;
        let filled = match filled {
            [Step::If { condition, body }] if condition.is_method("fills") => body,
            filled => filled,
        };
        let ([to, key @ ..], [slot @ Step::Pointer { name, .. }, message @ ..]) =
            (args.as_slice(), filled)
        else {
            return None;
        };
        let peer = repeat.binder.as_str();
        let asked = before.iter().rposition(|step| matches!(step, Step::SkipUnless(_)));
        let (asks, names) = before.split_at(asked.map_or(0, |last| last + 1));
        let found: Vec<&str> = asks.iter().filter_map(Step::declared).collect();
        let depends = |step: &Step| found.iter().any(|own| step.mentions(own));
        let is_name = |step: &Step| match step {
            Step::Says(_) | Step::Remark(_) => true,
            Step::Let { value, .. } => is_of_any_lane(value) && !step.mentions(peer),
            _ => false,
        };
        let mut own = Vec::new();
        let fits = repeat.turns == Takers::Serial
            && repeat.elem == Elem::I32
            && repeat.from.is(0)
            && known.ends.contains(end)
            && is_named(to, peer)
            && !key
                .iter()
                .any(|key| key.mentions(peer) || found.iter().any(|own| key.mentions(own)))
            && matches!(publish, Step::Do(call) if call.is_method("publish"))
            && asks.iter().all(|step| known.asks(step, &mut own))
            && names.iter().all(|step| is_name(step) && !depends(step))
            && only_sends(body, &mut Vec::new())
            && !message.iter().any(depends);
        let of_message: Vec<&str> = message.iter().filter_map(Step::declared).collect();
        let is_alike = |step: &&Step| {
            let is_free = |own: &&str| !step.mentions(own);
            places_in(step, name).is_some() && is_free(&peer) && of_message.iter().all(is_free)
        };
        let (alike, own): (Vec<&Step>, Vec<&Step>) = message.iter().partition(is_alike);
        let has_row = alike.iter().any(|step| {
            places_in(step, name).is_some_and(|places| places.iter().any(|to| is_named(to, name)))
        });
        (fits && has_row).then_some(Pushes { asks, names, end, key, slot, alike, own })
    }

    /// The loop in which each lane asks for peers of its own, and those that send to all that get a message.
    fn together(&self, role: &mut RoleLowering<'_>, repeat: &Loop) -> Vec<Step> {
        let peer = &repeat.binder;
        let call = |method, args| Term::method(self.end, method, args, Elem::I32);
        let asker = role.names.fresh("wanted");
        let mut asks: Vec<Step> = self.asks.to_vec();
        asks.iter_mut().for_each(|step| renamed(step, peer, &asker));
        asks.push(Step::Do(call("want", vec![Term::index(&asker)])));
        let asks =
            Step::Loop(Loop { binder: asker, turns: Takers::Lanes, body: asks, ..repeat.clone() });
        let slots = role.names.fresh("slots");
        let mut body =
            vec![Step::Made { name: slots.clone(), value: call("each_slot", Vec::new()) }];
        for step in &self.alike {
            let mut step = (*step).clone();
            self.slot.declared().into_iter().for_each(|slot| renamed(&mut step, slot, &slots));
            body.push(step);
        }
        if !self.own.is_empty() {
            let mut slot = self.slot.clone();
            if let Step::Pointer { value, .. } = &mut slot {
                *value = call("slot_of_next", Vec::new());
            }
            let own = [&slot].into_iter().chain(self.own.iter().copied()).cloned().collect();
            let next = call("next", Vec::new());
            body.push(Step::Take { name: peer.clone(), next, body: own });
        }
        body.push(Step::Do(call("publish_each", Vec::new())));
        let condition = call("reserve_wanted", self.key.to_vec());
        let sends = Step::While { condition, body };
        [asks].into_iter().chain(self.names.iter().cloned()).chain([sends]).collect()
    }
}

/// The places in a slot where a step copies or casts a row to; `None`: the step does something else.
fn places_in<'s>(step: &'s Step, slot: &str) -> Option<Vec<&'s Term>> {
    let (to, from) = match step {
        Step::Copy(Copy { to, from, count, .. }) => (vec![to], vec![from, count]),
        Step::Do(Term { node: Node::Call(cast, args), .. }) if cast.is(ep::cast_row) => {
            let [team, to, scales, from @ ..] = args.as_slice() else { return None };
            (vec![to, scales], from.iter().chain([team]).collect())
        }
        _ => return None,
    };
    let is_there = |place: &&Term| place.root() == Some(slot);
    (to.iter().all(is_there) && !from.iter().any(|term| term.mentions(slot))).then_some(to)
}

fn is_named(term: &Term, name: &str) -> bool {
    matches!(&term.node, Node::Name(own) if own == name)
}

/// Puts another name in the place of one, in a step and those inside of it.
fn renamed(step: &mut Step, name: &str, by: &str) {
    step.terms_mut().into_iter().for_each(|term| rename(term, name, by));
    step.inner_mut().into_iter().flatten().for_each(|inner| renamed(inner, name, by));
}

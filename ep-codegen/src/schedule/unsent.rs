//! Messages leave a ring over a network in runs. A warp that waits for something else sends those that it holds first:
//! a peer may need them to bring what the warp waits for.

use std::collections::BTreeMap;

use super::RoleLowering;
use super::channels::{End, EndCall, call_of_end};
use super::library::{Entity, ep};
use super::step::Step;
use super::symbol::{Of, Root, Symbol};
use super::term::{Node, Term};
use crate::ir::network::over_network;
use crate::ir::{ChannelKind, Elem};

/// Classes whose objects bring messages from peers, or rows to them, besides rings.
const OTHER_ENDS: [Entity; 9] = [
    ep::DirectIn,
    ep::DirectOut,
    ep::NetSlotsIn,
    ep::NetSlotsOut,
    ep::PullConsumer,
    ep::SlotChannel,
    ep::SlotParts,
    ep::SlotRowsIn,
    ep::SlotRowsOut,
];

/// Methods of these that wait for nobody.
const FREE: [&str; 14] = [
    "begin",
    "each_slot",
    "first",
    "from",
    "meta",
    "next",
    "position",
    "publish",
    "publish_each",
    "row",
    "slot",
    "slot_of_next",
    "to",
    "want",
];

/// When a warp has to wait.
enum Wait {
    Maybe,
    Unless(Term),
}

/// The steps of a role, with what it has published sent before each wait.
pub(super) fn sent_before_waits(role: &RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let channel_of = |name: &str| role.ir.channels.iter().find(|channel| channel.name == name);
    let (mut rings, mut kinds) = (Vec::new(), BTreeMap::new());
    for object in &role.objects {
        let Some(channel) = channel_of(&object.channel) else { continue };
        let in_order = channel.kind.traits().in_order;
        if object.end == End::Out && in_order && over_network(channel) {
            rings.push(object.name.clone());
        }
        kinds.insert(object.name.clone(), channel.kind);
    }
    if rings.is_empty() {
        return steps;
    }
    Sending { rings, kinds, classes: BTreeMap::new() }.steps(steps)
}

struct Sending {
    /// The objects that hold messages back.
    rings: Vec<String>,
    /// The kind of channel at whose end an object is.
    kinds: BTreeMap<String, ChannelKind>,
    /// The class of each object.
    classes: BTreeMap<String, Symbol>,
}

impl Sending {
    fn steps(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut out = Vec::new();
        for mut step in steps {
            if let Step::Object { class, name, .. } = &step {
                self.classes.insert(name.clone(), class.clone());
            }
            let mut sends = Vec::new();
            step.terms().into_iter().for_each(|term| self.term(term, &mut sends));
            if let Some(inner) = step.inner_mut() {
                *inner = self.steps(std::mem::take(inner));
            }
            // The condition of a loop waits before each turn.
            if let Step::Take { body, .. } | Step::While { body, .. } = &mut step {
                body.extend(sends.iter().cloned());
            }
            out.extend(sends);
            out.push(step);
        }
        out
    }

    /// Adds the steps that must precede the computation of a term.
    fn term(&self, term: &Term, out: &mut Vec<Step>) {
        term.inner().into_iter().for_each(|inner| self.term(inner, out));
        let Node::Call(function, args) = &term.node else { return };
        let Some(wait) = self.wait(function, args) else { return };
        // A ring sends its own messages before it waits.
        let others = self
            .rings
            .iter()
            .filter(|ring| !matches!(&function.root, Root::Method(object, _) if object == *ring));
        let send = |ring: &String| Step::Do(Term::method(ring, "send", Vec::new(), Elem::I32));
        let body: Vec<Step> = others.map(send).collect();
        match wait {
            _ if body.is_empty() => {}
            Wait::Maybe => out.extend(body),
            Wait::Unless(ready) => out.push(Step::If { condition: ready.negated(), body }),
        }
    }

    fn wait(&self, function: &Symbol, args: &[Term]) -> Option<Wait> {
        let (object, method) = match &function.root {
            Root::Library(
                ep::meet | ep::await_word | ep::direct_ready | ep::pull_wait_released,
            ) => {
                return Some(Wait::Maybe);
            }
            Root::Method(object, method) => (object, *method),
            _ => return None,
        };
        let class = self.classes.get(object)?;
        let unless =
            |ready, args| Some(Wait::Unless(Term::method(object, ready, args, Elem::Bool)));
        if class.is(ep::RingsIn) || class.is(ep::RingsOut) {
            return match self.kinds.get(object).and_then(|kind| call_of_end(*kind, method)) {
                Some(EndCall::Waits { unless: ready }) => unless(ready, args.to_vec()),
                Some(EndCall::Settles) if method != "close" => Some(Wait::Maybe),
                _ if method == "next" => Some(Wait::Maybe),
                _ => None,
            };
        }
        if class.is(ep::Parts) {
            let of_ring = matches!(class.of.first(), Some(Of::Class(of)) if of.is(ep::RingsIn));
            return match method {
                "open" if of_ring => unless("is_here", Vec::new()),
                "open" => Some(Wait::Maybe),
                _ => None,
            };
        }
        let is_end = OTHER_ENDS.iter().any(|end| class.is(*end));
        (is_end && !FREE.contains(&method)).then_some(Wait::Maybe)
    }
}

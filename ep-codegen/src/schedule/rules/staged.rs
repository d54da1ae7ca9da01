//! Rule `staged`: rows that pass between memory and channels go through shared memory by bulk copies,
//! several pieces of them on their way at once, and peers are told when they have arrived.
//!
//! What it gains: a warp no longer waits for a row to be loaded, nor for the one before to be stored. Without
//! it a message costs a warp both ways over the wire, and one more for the release behind it. In small batches
//! that is nothing: docs/compiler.md has what each rule gains, measured.

mod moved;

use std::collections::BTreeMap;

use super::copies::pointers;
use crate::ir::naming::function_of;
use crate::ir::network::over_network;
use crate::ir::parts::row_field;
use crate::ir::{Action, Channel, ChannelKind, Elem, Message, Pipeline, walk};
use crate::schedule::RoleLowering;
use crate::schedule::channels::{End, EndCall, bytes_behind, call_of_end};
use crate::schedule::library::{Entity, ep};
use crate::schedule::scope::Scope;
use crate::schedule::step::{Copy, Step};
use crate::schedule::symbol::{Constant, Root, Symbol};
use crate::schedule::term::{Node, Term};

/// What the mover of a role carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The rows.
    pub carries: Carried,
    /// Whether the other fields of a message go with them.
    pub with_meta: bool,
}

/// The rows that a mover carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    /// Those of a message.
    Message(String),
    /// So many elements of a type.
    Rows {
        /// The type.
        elem: Elem,
        /// The number of the shape that says how many.
        count: Constant,
    },
}

/// An end of a channel, as the text knows it.
struct Object {
    name: String,
    cfg: Constant,
    kind: ChannelKind,
    end: End,
    message: String,
}

/// A role whose rows are staged.
struct Staging<'a> {
    ir: &'a Pipeline,
    ends: Vec<Object>,
    /// The objects of slots whose messages are words: none of them is staged.
    words: Vec<String>,
    /// Every pointer, and what it points to.
    pointers: BTreeMap<String, Term>,
    message: String,
    elem: Elem,
    count: Term,
    with_meta: bool,
    mover: String,
    /// Names for the records that the mover carries.
    records: Vec<String>,
    /// Whether peers may not know of some message yet at this point.
    pending: bool,
    /// Whether the last call was one after which peers are told.
    tells: bool,
}

/// The steps of a role with its rows staged; `None`: it moves none, or none in a way that can be.
pub(in crate::schedule) fn rewrite(
    role: &mut RoleLowering<'_>,
    steps: &[Step],
) -> Option<(Vec<Step>, Staged, Vec<String>)> {
    let mut staging = Staging::of(role, steps)?;
    let mut moved = Vec::new();
    staging.moved(steps, &mut moved);
    if moved.is_empty() {
        return None;
    }
    let out = staging.ends.iter().filter(|end| end.end == End::Out);
    let sent: Vec<&str> = out.map(|end| end.message.as_str()).collect();
    staging.with_meta = !sent.is_empty() && sent.iter().all(|of| *of == staging.message);
    staging.mover = role.names.fresh("mover");
    let pushes = moved.iter().filter(|copy| staging.sends(copy).is_some()).count();
    staging.records = (0..pushes).map(|_| role.names.fresh("record")).rev().collect();
    let records = staging.records.clone();
    let mut rewritten = staging.steps(steps.to_vec(), false);
    // Nothing closes slots that do not count.
    if staging.ends.iter().any(|end| end.kind.traits().is_indexed) {
        staging.settle_once(&mut rewritten);
    }
    let of = |name: &str| Term::name(name, Elem::I32);
    let own = of(&format!("smem.{}[team.warp]", function_of(&role.role.name)));
    let mover = Step::Object {
        class: ep::Mover.of(Constant::of_role(role.role)),
        name: staging.mover.clone(),
        args: vec![own, of("team")],
    };
    let first = rewritten.iter().position(|step| matches!(step, Step::Object { .. }));
    rewritten.insert(first.unwrap_or(0), mover);
    rewritten.push(staging.call("finish"));
    let carries = Carried::Message(staging.message.clone());
    let staged = Staged { carries, with_meta: staging.with_meta };
    Some((rewritten, staged, records))
}

impl<'a> Staging<'a> {
    /// The first channel of a role that carries rows, if none of its ends stands in the way.
    fn of(role: &mut RoleLowering<'a>, steps: &[Step]) -> Option<Staging<'a>> {
        // A word is raised behind what its warp has stored, and the mover stores later.
        let stays = walk::any_stmt(&role.role.body, &mut |stmt| {
            matches!(stmt.action, Action::Gather { .. } | Action::Raise { .. })
        });
        let passes = |(channel, end): &(&Channel, End)| {
            let kind = channel.kind.traits();
            kind.is_staged || (kind.is_indexed && *end == End::Out) || role.in_words(channel)
        };
        if stays || !role.ends().iter().all(passes) {
            return None;
        }
        // What goes over a network is told of by the warp that put it there.
        if role.ends().iter().any(|(channel, _)| over_network(channel)) {
            return None;
        }
        let (mut ends, mut words) = (Vec::new(), Vec::new());
        for (channel, end) in role.ends() {
            if role.in_words(channel) {
                words.push(role.object_of(&channel.name, end));
                continue;
            }
            let name = role.object_of(&channel.name, end);
            let (kind, message) = (channel.kind, channel.message.clone());
            let cfg = Constant::of_channel(channel);
            ends.push(Object { name, cfg, kind, end, message });
        }
        let carried = |name: &String| role.ir.messages.iter().find(|it| it.name == *name);
        let with_row = |message: &&'a Message| message.fields.iter().any(|field| field.row);
        let message = ends.iter().filter_map(|end| carried(&end.message)).find(with_row)?;
        let (field, elem) = row_field(role.ir, message)?;
        let mut count = Term::int(1);
        for dim in &field.dims {
            count = count.times(role.scalar(&Scope::default(), dim, &mut Vec::new()).ok()?);
        }
        let mut known = BTreeMap::new();
        point(steps, &mut known);
        let staging = Staging {
            ir: role.ir,
            ends,
            words,
            pointers: known,
            message: message.name.clone(),
            elem,
            count,
            with_meta: false,
            mover: String::new(),
            records: Vec::new(),
            pending: false,
            tells: false,
        };
        field.optional_with.is_none().then_some(staging)
    }

    fn steps(&mut self, steps: Vec<Step>, arrived: bool) -> Vec<Step> {
        let mut out = Vec::new();
        for step in steps {
            self.step(step, arrived, &mut out);
        }
        out
    }

    /// One step; `arrived`: for a message that has, and whose slot is given back.
    fn step(&mut self, mut step: Step, arrived: bool, out: &mut Vec<Step>) {
        if let Some(copy) = self.staged(&step) {
            out.extend(self.row(&copy));
            self.pending = true;
            return;
        }
        if let Step::Do(call) = &step {
            let opens = self.opens_direct(call);
            let call = self.instead(call, arrived, out);
            out.push(match opens {
                true => Step::If { condition: call, body: vec![self.call("fence_global")] },
                false => Step::Do(call),
            });
            if self.tells {
                out.push(self.of_ends(ep::tell));
            }
            self.tells = false;
            return;
        }
        let words = step.terms().into_iter().find_map(have_come);
        if let Some(come) = words.filter(|_| self.pending) {
            out.push(Step::If { condition: come.negated(), body: vec![self.settle()] });
        }
        if let Step::Take { next, body, .. } = &mut step
            && self.moves(body)
        {
            self.settles_before(next);
        }
        let inside = match &step {
            Step::If { condition, .. } => self.waits(condition, out),
            Step::Let { value, .. } => self.waits(value, out),
            _ => None,
        };
        let is_take = matches!(step, Step::Take { .. });
        let is_loop = is_take || matches!(step, Step::Loop(_));
        let Some(inner) = step.inner_mut() else {
            out.push(step);
            return;
        };
        let mut body = std::mem::take(inner);
        if inside == Some(End::Out) {
            body = self.together(body);
        }
        // What one turn leaves open, the next one finds so.
        self.pending |= is_loop && self.leaves_open(&body, false);
        let before = self.pending;
        body = self.steps(body, arrived || inside == Some(End::In));
        // It may not be done at all.
        self.pending |= before;
        *inner = body;
        out.push(step);
    }

    /// Has the call that takes the next message complete all rows before it waits for any peer.
    fn settles_before(&self, next: &mut Term) {
        let Node::Call(function, args) = &mut next.node else { return };
        if self.method(function).is_some() {
            args.extend(self.movers().map(|name| Term::name(name, Elem::I32)));
        }
    }

    /// The mover, and the ends whose peers are told of its rows.
    fn movers(&self) -> impl Iterator<Item = &String> {
        let tells = |end: &&Object| end.kind.traits().is_bounded || end.kind.traits().is_indexed;
        std::iter::once(&self.mover).chain(self.ends.iter().filter(tells).map(|end| &end.name))
    }

    /// Whether a message may be pending behind steps, or where steps skip the rest of a turn, if one is `before`.
    fn leaves_open(&self, steps: &[Step], before: bool) -> bool {
        let (mut pending, mut skipped) = (before, false);
        for step in steps {
            skipped |= pending && matches!(step, Step::SkipUnless(_));
            pending = match step.terms().into_iter().find_map(|call| self.end_call(call)) {
                Some(EndCall::Tells { .. }) => true,
                Some(EndCall::Settles | EndCall::Ends { .. }) => false,
                _ => pending || self.staged(step).is_some(),
            };
            pending |= self.leaves_open(step.inner(), pending);
        }
        pending || skipped
    }

    /// How a call of an end treats rows that are still in flight.
    fn end_call(&self, call: &Term) -> Option<EndCall> {
        let Node::Call(function, _) = &call.node else { return None };
        let (object, method) = self.method(function)?;
        call_of_end(object.kind, method)
    }

    /// Whether steps tell peers of anything, or store rows for them.
    fn moves(&self, steps: &[Step]) -> bool {
        steps.iter().any(|step| match step {
            Step::Do(Term { node: Node::Call(function, _), .. }) => {
                matches!(self.method(function), Some((_, "publish" | "release" | "stored")))
            }
            _ => self.moves(step.inner()),
        })
    }

    /// The end that a call waits at. Before it waits, peers are told of all that they may wait for.
    fn waits(&mut self, call: &Term, out: &mut Vec<Step>) -> Option<End> {
        let Node::Call(function, args) = &call.node else { return None };
        let (object, method) = self.method(function)?;
        let end = object.end;
        let ready = match call_of_end(object.kind, method)? {
            EndCall::Waits { unless } => unless,
            EndCall::Settles => {
                self.settle_once(out);
                return Some(end);
            }
            EndCall::Free => return Some(end),
            EndCall::Tells { .. } | EndCall::Ends { .. } => return None,
        };
        if self.pending {
            let ready = Term::method(&object.name, ready, args.clone(), Elem::Bool);
            out.push(Step::If { condition: ready.negated(), body: vec![self.settle()] });
        }
        Some(end)
    }

    /// Completes all rows, if any may be open.
    fn settle_once(&mut self, out: &mut Vec<Step>) {
        if self.pending {
            out.push(self.settle());
        }
        self.pending = false;
    }

    fn method(&self, function: &Symbol) -> Option<(&Object, &'static str)> {
        let Root::Method(name, method) = &function.root else { return None };
        self.ends.iter().find(|end| end.name == *name).map(|object| (object, *method))
    }

    /// The call, or what is done in its place where rows are still on their way.
    fn instead(&mut self, call: &Term, arrived: bool, out: &mut Vec<Step>) -> Term {
        let Node::Call(function, args) = &call.node else { return call.clone() };
        if function.is_method("await")
            && matches!(&function.root, Root::Method(name, _) if self.words.contains(name))
        {
            self.settle_once(out);
            return call.clone();
        }
        let Some((object, method)) = self.method(function) else { return call.clone() };
        let what = match call_of_end(object.kind, method) {
            Some(EndCall::Tells { later }) => later,
            Some(EndCall::Ends { behind }) => {
                let mover = Term::name(&self.mover, Elem::I32);
                return Term::method(&object.name, behind, vec![mover], Elem::I32);
            }
            Some(EndCall::Settles) => {
                self.settle_once(out);
                return call.clone();
            }
            _ => return call.clone(),
        };
        // A forwarder tells the next peer when it gives the arrived slot back. An end of slots holds only a few messages,
        // so it tells its peer at once.
        let (object, is_indexed) = (object.name.clone(), object.kind.traits().is_indexed);
        self.tells = !arrived || is_indexed || what == "release_after";
        self.pending = true;
        let begun = Term::method(&self.mover, "rows_begun", Vec::new(), Elem::I32);
        let args = args.first().cloned().into_iter().chain([begun]).collect();
        Term::method(&object, what, args, Elem::I32)
    }

    /// Puts the row of a message before its other fields, and has these go with it.
    fn together(&mut self, body: Vec<Step>) -> Vec<Step> {
        let Some(copy) = body.iter().find_map(|step| self.staged(step)) else { return body };
        let Some((object, peer)) = self.sends(&copy) else { return body };
        if !self.with_meta {
            return body;
        }
        let peer = peer.cloned();
        let meta = self.meta_of(object, &copy, &body);
        let Some(record) = self.records.pop() else { return body };
        let by = Term::name(&record, Elem::U8);
        let (mut before, mut fields, mut behind) = (Vec::new(), Vec::new(), Vec::new());
        let mut row = Vec::new();
        for mut step in body {
            let is_pointer = matches!(step, Step::Pointer { .. });
            if self.staged(&step).is_some() {
                row.push(step);
            } else if !is_pointer && step.replace(&meta, &by) {
                fields.push(step);
            } else if matches!(step, Step::Do(_)) {
                behind.push(step);
            } else {
                before.push(step);
            }
        }
        if !fields.is_empty() {
            let value = Term::method(&self.mover, "meta", Vec::new(), Elem::U8);
            row.push(Step::Pointer { name: record, to: None, read_only: false, value });
            let to = at_sender(peer.as_ref(), meta);
            fields.push(Step::Do(Term::method(&self.mover, "send_meta", vec![to], Elem::I32)));
        }
        [before, row, fields, behind].concat()
    }

    /// Where the other fields of a message go.
    fn meta_of(&self, object: &Object, copy: &Copy, body: &[Step]) -> Term {
        if !object.kind.traits().lands {
            let meta = object.cfg.clone().at("kMeta");
            return bytes_behind(copy.to.clone(), Term::constant(meta));
        }
        let place = Symbol::method(&object.name, "meta");
        let name = pointers(body).into_iter().find(|name| {
            let value = self.pointers.get(name);
            value.is_some_and(|it| matches!(&it.node, Node::Call(call, _) if *call == place))
        });
        Term::name(name.unwrap_or_default(), Elem::U8)
    }

    /// A row on its way. What a message brought has been acquired since the last row; an input, and where the rows of a
    /// direct channel go, were when the channel was opened.
    fn row(&self, copy: &Copy) -> Vec<Step> {
        let sent = self.sends(copy);
        let is_known = sent.is_some_and(|(object, _)| object.kind.traits().lands)
            && self.tensor(&copy.from).is_some();
        let fence = (!is_known).then(|| self.call("fence_global"));
        let row =
            vec![at_sender(sent.and_then(|(_, peer)| peer), copy.to.clone()), copy.from.clone()];
        let row = Term::method(&self.mover, "row", row, Elem::I32);
        fence.into_iter().chain([Step::Do(row)]).collect()
    }

    /// Whether a call waits until peers take rows of a direct channel.
    fn opens_direct(&self, call: &Term) -> bool {
        let Node::Call(function, _) = &call.node else { return false };
        self.method(function).is_some_and(|(object, method)| {
            object.kind.traits().lands && object.end == End::Out && method.starts_with("open")
        })
    }

    fn call(&self, method: &'static str) -> Step {
        Step::Do(Term::method(&self.mover, method, Vec::new(), Elem::I32))
    }

    /// Completes all rows, and tells peers of them.
    fn settle(&self) -> Step {
        self.of_ends(ep::settle)
    }

    fn of_ends(&self, function: Entity) -> Step {
        let args = self.movers().map(|name| Term::name(name, Elem::I32)).collect();
        Step::Do(Term::call(function, args, Elem::I32))
    }
}

/// A destination in the lane that stores to it: that of a peer, which then tells the peer, or the first one.
fn at_sender(peer: Option<&Term>, to: Term) -> Term {
    match peer {
        Some(peer) => Term::call(ep::at_lane_of, vec![peer.clone(), to], Elem::U8),
        None => Term::call(ep::at_leader, vec![to], Elem::U8),
    }
}

/// Whether nothing has to be waited for until words have come so far, if the value of a term waits for any.
fn have_come(term: &Term) -> Option<Term> {
    if let Node::Call(function, args) = &term.node
        && function.is(ep::await_word)
        && let [_, word, least, _] = args.as_slice()
    {
        return Some(Term::call(ep::has_come, vec![word.clone(), least.clone()], Elem::Bool));
    }
    let (wait, have) =
        term.inner().into_iter().find_map(|inner| Some((inner, have_come(inner)?)))?;
    let mut term = term.clone();
    term.replace(&wait.clone(), &have);
    Some(term)
}

/// Every pointer of some steps, and what it points to.
fn point(steps: &[Step], found: &mut BTreeMap<String, Term>) {
    for step in steps {
        if let Step::Pointer { name, value, .. } = step {
            found.insert(name.clone(), value.clone());
        }
        point(step.inner(), found);
    }
}

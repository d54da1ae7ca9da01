//! Rule `slices`: the row of a slot goes in slices, each with a flag of its own, and the warps of a role share the slices of
//! all rows. Lanes load and store a slice themselves.
//!
//! The gain: a few rows keep many warps busy, and no row takes the detour through shared memory. Slots hold few rows, because
//! each row has its own place in memory, so the throughput of a mover for many rows is not needed.

use super::asked::{asked, name_of};
use super::copies::{copy_of, pointers};
use crate::ir::network::over_network;
use crate::ir::parts::elem_bytes;
use crate::ir::slots::{Arrival, arrival, comes_in_words};
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::channels::{End, bytes_behind};
use crate::schedule::library::ep;
use crate::schedule::step::{Copy, Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Root, Symbol};
use crate::schedule::term::{Node, Term, arithmetic, counting};

/// Slices of the row of a slot that is copied, and of one that is computed: that takes more time.
pub(super) const COPIED_SLICES: i64 = 4;
pub(super) const COMPUTED_SLICES: i64 = 8;

/// The steps of a role that copies rows to slots, a slice at a time; `None`: it does not.
pub(super) fn copies(role: &mut RoleLowering<'_>, steps: &[Step]) -> Option<Vec<Step>> {
    rewrite(role, steps, |step, slot, pointers| {
        let Step::Loop(repeat) = step else { return None };
        let copy = copy_of(repeat, pointers)?;
        matches!(&copy.to.node, Node::Name(name) if name == slot).then_some(WholeRow::Copied(copy))
    })
}

/// The steps of a role that computes the rows of slots, a slice at a time; `None`: it does not.
pub(super) fn sums(role: &mut RoleLowering<'_>, steps: &[Step]) -> Option<Vec<Step>> {
    rewrite(role, steps, |step, slot, _| {
        let Step::Loop(row) = step else { return None };
        let is_row = row.turns == Takers::Wide && row.from.is(0) && step.mentions(slot);
        is_row.then(|| WholeRow::Computed(row.clone()))
    })
}

/// A step that writes the whole row of a slot.
enum WholeRow {
    Copied(Copy),
    Computed(Loop),
}

/// Finds such a step: the name of the slot, and those of all pointers.
type Find = fn(&Step, &str, &[String]) -> Option<WholeRow>;

impl WholeRow {
    /// How many values the row has.
    fn width(&self) -> &Term {
        match self {
            WholeRow::Copied(copy) => &copy.count,
            WholeRow::Computed(row) => &row.to,
        }
    }

    /// The object `name` that loads the values from `begin` up to `end` ahead, if the row is copied, and the step that writes
    /// them.
    fn cut(self, name: String, begin: Term, end: Term) -> Option<(Option<Step>, Step)> {
        let copy = match self {
            WholeRow::Copied(copy) => copy,
            WholeRow::Computed(row) => {
                return Some((None, Step::Loop(Loop { from: begin, to: end, ..row })));
            }
        };
        let Node::Address(row) = copy.from.node else { return None };
        let Node::Index(rows, at) = row.node else { return None };
        let bytes = counting(BinaryOp::Mul, begin.clone(), Term::int(elem_bytes(&copy.elem)));
        let from = rows.at(at.plus(begin.clone()), row.elem).address();
        let args = vec![from, counting(BinaryOp::Sub, end, begin)];
        let put = vec![Term::name("team", Elem::I32), bytes_behind(copy.to, bytes)];
        let written = Step::Do(Term::method(&name, "put", put, Elem::I32));
        Some((Some(Step::Object { class: ep::AskedSlice.of(&copy.elem), name, args }), written))
    }
}

/// The steps of a role whose units are shares of rows, each of which goes to a slot.
fn rewrite(role: &mut RoleLowering<'_>, steps: &[Step], find: Find) -> Option<Vec<Step>> {
    let ends = role.ends();
    let [(channel, End::Out)] = ends.as_slice() else { return None };
    let is_told = arrival(role.ir, channel) == Arrival::Flags && !over_network(channel);
    if !channel.kind.traits().is_indexed || !is_told {
        return None;
    }
    let object = role.object_of(&channel.name, End::Out);
    let mut steps = steps.to_vec();
    let mut units = steps.iter_mut().filter(|step| matches!(step, Step::Loop(_)));
    let (Some(Step::Loop(units)), None) = (units.next(), units.next()) else { return None };
    let [.., Step::Object { class, args: span, name: turns }, Step::Loop(rows)] =
        units.body.as_mut_slice()
    else {
        return None;
    };
    let [Term { node: Node::Call(of_share, args), .. }] = span.as_slice() else { return None };
    let first = Term::index(format!("{turns}.begin"));
    let Node::Binary(BinaryOp::Add, base, own) = &rows.from.node else { return None };
    if !of_share.is(ep::stripe_span) || **own != first || rows.turns != Takers::Serial {
        return None;
    }
    let row = Term::name(&rows.binder, rows.elem.clone());
    let row = arithmetic(BinaryOp::Sub, row, (**base).clone());
    let each = Constant::of_channel(channel).at("kSlices");
    let in_words = comes_in_words(role.ir, channel).then(|| Term::index(format!("{turns}.rows")));
    let slices = message(role, &object, rows, (find, &each, in_words))?;
    rows.body.insert(
        0,
        Step::Object {
            class: Symbol::from(ep::Span).fixed(),
            name: slices,
            args: vec![Term::method(turns, "of", vec![row], Elem::I32)],
        },
    );
    let args = args.clone();
    *class = ep::SlicedSpan.of(each);
    *span = args;
    steps.push(Step::Do(Term::method(&object, "tell_slices", Vec::new(), Elem::I32)));
    Some(steps)
}

/// The steps that fill the slots of a row: those of its turn, or of the innermost loop in it if it goes to several slots.
fn of_slots(steps: &mut Vec<Step>) -> Option<&mut Vec<Step>> {
    let is_name = |step: &Step| {
        matches!(step, Step::Says(_) | Step::Remark(_) | Step::Let { .. } | Step::SkipUnless(_))
    };
    let (last, before) = steps.split_last()?;
    if !before.iter().all(is_name) {
        return None;
    }
    if matches!(last, Step::Loop(Loop { turns: Takers::Serial, .. })) {
        let Some(Step::Loop(inner)) = steps.last_mut() else { return None };
        return of_slots(&mut inner.body);
    }
    Some(steps)
}

/// Has the steps that fill a slot put the message where it goes: to the slot, or as words.
fn as_words(object: &str, (reserve, body): (&mut Term, &mut [Step]), (slot, rows): (&str, Term)) {
    if let Node::Call(function, args) = &mut reserve.node {
        function.root = Root::Method(object.to_string(), "reserve_few");
        args.push(rows);
    }
    if let Some(made) = body.first_mut() {
        let value = Term::method(object, "place", Vec::new(), Elem::U8);
        *made = Step::Made { name: slot.to_string(), value };
    }
}

/// Has the step that fills a slot, the last one of a turn, fill slices of it. Gives their name. `in_words`: how many rows the
/// peer gets, if messages may go as words.
fn message(
    role: &mut RoleLowering<'_>,
    object: &str,
    rows: &mut Loop,
    (find, each, in_words): (Find, &Constant, Option<Term>),
) -> Option<String> {
    let pointers = pointers(&rows.body);
    let of_slots = of_slots(&mut rows.body)?;
    let Step::If { condition, body } = of_slots.last_mut()? else { return None };
    let [made @ Step::Pointer { name: slot, .. }, fields @ .., Step::Do(publish)] = body.as_slice()
    else {
        return None;
    };
    let slot = slot.clone();
    let calls = |call: &Term, what| match &call.node {
        Node::Call(function, _) => function.root == Root::Method(object.to_string(), what),
        _ => false,
    };
    if !calls(condition, "reserve") || !calls(publish, "publish") {
        return None;
    }
    let at = fields.iter().position(|step| find(step, &slot, &pointers).is_some())?;
    let row = find(&fields[at], &slot, &pointers)?;
    let mut others = [&fields[..at], &fields[at + 1..]].concat();
    let slices = role.names.fresh("slices");
    let (mut ahead, mut filled) = (Vec::new(), vec![made.clone()]);
    // All loads of a message are under way before anyone waits for room.
    for step in &mut others {
        let Step::Loop(repeat) = &*step else { continue };
        let Some((value, to)) = asked(repeat, &slot) else { continue };
        let name = role.names.fresh(&name_of(&repeat.to));
        *step = Step::Do(Term::method(&name, "put", vec![to], Elem::I32));
        ahead.push(Step::Made { name, value });
    }
    let [begin, end] = ["begin", "end"].map(|which| {
        let number = Term::index(format!("{slices}.{which}"));
        let args = vec![number, Term::constant(each.clone()), row.width().clone()];
        let name = role.names.fresh(which);
        ahead.push(Step::Let {
            name: name.clone(),
            value: Term::call(ep::slice_begin, args, Elem::I32),
        });
        Term::index(name)
    });
    let (asked, written) = row.cut(role.names.fresh("asked"), begin, end)?;
    ahead.extend(asked);
    filled.push(written);
    if !others.is_empty() {
        let condition = Term::index(format!("{slices}.begin")).test(BinaryOp::Eq, Term::int(0));
        filled.push(Step::If { condition, body: others });
    }
    let told = vec![Term::name(&slices, Elem::I32)];
    filled.push(Step::Do(Term::method(object, "publish_slices", told, Elem::I32)));
    *body = filled;
    if let Some(rows) = in_words {
        as_words(object, (condition, body), (&slot, rows));
    }
    let last = of_slots.len() - 1;
    of_slots.splice(last..last, ahead);
    Some(slices)
}

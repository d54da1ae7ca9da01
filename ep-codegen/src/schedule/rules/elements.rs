//! Rule `wide`, of small rows: where each lane would move a row of its own, or the warp one row after the other, all lanes
//! move all rows, element by element or by units of 16 bytes, with several loads under way at once.
//!
//! The gain: with one row per lane, every load and store touches one cache line per row. With neighboring elements in
//! neighboring lanes, each line is touched once, and all lanes have work even for a few rows. All kinds of small rows move
//! together, so that a warp waits once for the loads of several rows.

use super::loops_as;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::library::ep;
use crate::schedule::step::{Copy, Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Of;
use crate::schedule::term::{Node, Term};

/// Kinds of small rows that move together: the elements of more would not stay in registers.
const KINDS_AT_ONCE: usize = 4;

/// The name of an element that has been computed.
const VALUE: &str = "element";

/// The steps with such rows moved by all lanes; where that cannot be, one lane moves several elements at once. A loop that
/// one warp runs in order stays as it is if it writes one of `inouts`, because several turns may write one element of those.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>, inouts: &[String]) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Step::Loop(repeat) = &step
            && repeat.turns == Takers::Serial
            && let Some(moved) = shared(repeat, inouts)
        {
            out.extend(moved);
            continue;
        }
        if let Step::Loop(repeat) = &step
            && repeat.turns == Takers::Lanes
        {
            let body = loops_as(repeat.body.clone(), &|inner| elements(inner).map(Row::of_a_lane));
            let by_lanes = || vec![Step::Loop(Loop { body, ..repeat.clone() })];
            out.extend(shared(repeat, &[]).unwrap_or_else(by_lanes));
            continue;
        }
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(std::mem::take(inner), inouts);
        }
        out.push(step);
    }
    out
}

/// A row of which each element is set by itself.
struct Row {
    index: String,
    count: Term,
    place: Term,
    value: Term,
}

/// A loop that does nothing but set an element in each turn, which one lane takes or all lanes share.
fn elements(repeat: &Loop) -> Option<Row> {
    let [Step::Set { place, value }] = repeat.body.as_slice() else { return None };
    let is_plain = matches!(repeat.turns, Takers::Alone | Takers::Lanes)
        && repeat.from.is(0)
        && repeat.elem == Elem::I32;
    if !is_plain || !matches!(place.node, Node::Index(..)) || repeat.body[0].mentions(VALUE) {
        return None;
    }
    let (index, count) = (repeat.binder.clone(), repeat.to.clone());
    Some(Row { index, count, place: place.clone(), value: value.clone() })
}

impl Row {
    fn of_a_lane(self) -> Step {
        let [makes, sets] = self.functions(Vec::new(), &[]);
        Step::Do(Term::call(
            ep::for_elements.of(&self.value.elem),
            vec![self.count, makes, sets],
            Elem::I32,
        ))
    }

    /// Two functions of the numbers in `before` and the index: one computes an element, the other one stores it. Both may use
    /// `names`.
    fn functions(&self, before: Vec<Param>, names: &[Step]) -> [Term; 2] {
        let index = Param { kind: ParamType::Index, name: self.index.clone() };
        let own: Vec<Param> = before.into_iter().chain([index]).collect();
        let elem = self.value.elem.clone();
        let value = Param { kind: ParamType::Value(elem.clone()), name: VALUE.to_string() };
        let with_value = own.iter().cloned().chain([value]).collect();
        let set = Step::Set { place: self.place.clone(), value: Term::name(VALUE, elem) };
        let function =
            |params, body, gives| Term::lambda(Lambda { says: Vec::new(), params, body, gives });
        let made = needed(names, |name| self.value.mentions(name));
        let mut sets = needed(names, |name| self.place.mentions(name));
        sets.push(set);
        [function(own, made, Some(self.value.clone())), function(with_value, sets, None)]
    }
}

/// The steps that declare used names, in order, and the names that these steps use.
fn needed(names: &[Step], is_used: impl Fn(&str) -> bool) -> Vec<Step> {
    let mut found: Vec<Step> = Vec::new();
    for step in names.iter().rev() {
        let uses = |name| is_used(name) || found.iter().any(|later| later.mentions(name));
        if step.declared().is_some_and(uses) {
            found.insert(0, step.clone());
        }
    }
    found
}

/// A loop over rows whose statements are apart from each other and write none of `inouts`, with small rows moved by all lanes,
/// several kinds of them at once.
fn shared(repeat: &Loop, inouts: &[String]) -> Option<Vec<Step>> {
    let is_name = |step: &Step| matches!(step, Step::Let { .. } | Step::Pointer { .. });
    let heads = repeat.body.iter().take_while(|step| is_name(step)).count();
    let (names, statements) = repeat.body.split_at(heads);
    let apart = are_apart(&repeat.body, inouts);
    if repeat.elem != Elem::I32 || statements.iter().any(is_name) || !apart {
        return None;
    }
    let (mut kept, mut kinds) = (Vec::new(), Vec::new());
    for statement in statements.chunk_by(|step, _| says(step)) {
        match Kind::of(repeat, names, statement) {
            Some(kind) => kinds.push(kind),
            None => kept.extend(statement.iter().cloned()),
        }
    }
    if kinds.iter().all(|kind| kind.count.is(1)) {
        return None;
    }
    if !kept.iter().all(says) {
        let used = needed(names, |name| kept.iter().any(|step| step.mentions(name)));
        let body = [used, kept].concat();
        kept = vec![Step::Loop(Loop { body, ..repeat.clone() })];
    }
    let mut moves = Vec::new();
    for together in kinds.chunks(KINDS_AT_ONCE) {
        let ends = [repeat.from.clone(), repeat.to.clone()].into_iter();
        let all = together.iter().map(|kind| Term::name(&kind.name, Elem::I32));
        moves.extend(together.iter().flat_map(|kind| kind.made(&repeat.binder, names)));
        let args = ends.chain(all).collect();
        moves.push(Step::Do(Term::call(ep::for_row_elements, args, Elem::I32)));
    }
    kept.push(Step::Scope(moves));
    Some(kept)
}

/// A statement that moves a small row, or one number, of each row.
struct Kind {
    /// The comments above it in the text.
    says: Vec<Step>,
    /// The name of the object that has its functions.
    name: String,
    there: Term,
    /// How many elements a row has.
    count: Term,
    moved: Moved,
}

/// How a small row moves.
enum Moved {
    /// Element by element.
    Elements(Row),
    /// By units of 16 bytes.
    Units(Copy),
}

impl Kind {
    fn of(repeat: &Loop, names: &[Step], statement: &[Step]) -> Option<Kind> {
        let (last, before) = statement.split_last()?;
        let own: Vec<&str> =
            names.iter().filter_map(Step::declared).chain([&*repeat.binder]).collect();
        let is_of_turn = |term: &Term| own.iter().any(|name| term.mentions(name));
        let (there, inner) = match last {
            Step::If { condition, body } => (condition.clone(), body.as_slice()),
            step => (Term::bool(true), std::slice::from_ref(step)),
        };
        let moved = match inner {
            [Step::Loop(inner)] => Moved::Elements(elements(inner)?),
            [Step::Leader(once)] => Moved::Elements(number(once)?),
            [Step::Copy(copy)] => Moved::Units(copy.clone()),
            once => Moved::Elements(number(once)?),
        };
        let (count, place) = match &moved {
            Moved::Elements(row) => (row.count.clone(), &row.place),
            Moved::Units(copy) => (copy.count.clone(), &copy.to),
        };
        // Such a row is cut into units when the kernel is compiled.
        if matches!(moved, Moved::Units(_)) && !is_fixed(&count) {
            return None;
        }
        let name = format!("{}_elements", place.root()?.strip_prefix("args.")?);
        let is_known = !is_of_turn(&count) && !is_of_turn(&there) && before.iter().all(says);
        let is_free = !repeat.body.iter().any(|step| step.mentions(&name));
        let says = before.to_vec();
        (is_known && is_free).then_some(Kind { says, name, there, count, moved })
    }

    /// The object that has its functions.
    fn made(&self, binder: &str, names: &[Step]) -> Vec<Step> {
        let index = Param { kind: ParamType::Index, name: binder.to_string() };
        let (class, functions) = match &self.moved {
            Moved::Elements(row) => {
                (ep::row_elements.of(&row.value.elem), row.functions(vec![index], names))
            }
            Moved::Units(Copy { elem, from, to, .. }) => {
                let end = |end: &Term| {
                    let body = needed(names, |name| end.mentions(name));
                    let (params, gives) = (vec![index.clone()], Some(end.clone()));
                    Term::lambda(Lambda { says: Vec::new(), params, body, gives })
                };
                (ep::row_units.of(elem).of(Of::Number(self.count.clone())), [end(from), end(to)])
            }
        };
        let count = matches!(self.moved, Moved::Elements(_)).then(|| self.count.clone());
        let args = [self.there.clone()].into_iter().chain(count).chain(functions).collect();
        let value = Term::call(class, args, Elem::I32);
        let made = Step::Made { name: self.name.clone(), value };
        self.says.iter().cloned().chain([made]).collect()
    }
}

/// Whether a number is known when the kernel is compiled.
fn is_fixed(count: &Term) -> bool {
    matches!(count.node, Node::Constant(_) | Node::Int(_))
}

/// One number of each row.
fn number(once: &[Step]) -> Option<Row> {
    let [Step::Set { place, value }] = once else { return None };
    if !matches!(place.node, Node::Index(..)) || once[0].mentions(VALUE) {
        return None;
    }
    let (place, value) = (place.clone(), value.clone());
    Some(Row { index: String::new(), count: Term::int(1), place, value })
}

fn says(step: &Step) -> bool {
    matches!(step, Step::Says(_) | Step::Remark(_))
}

/// Whether no step of a loop reads or writes what another one writes, or writes one of `inouts`.
fn are_apart(body: &[Step], inouts: &[String]) -> bool {
    let mut written = Vec::new();
    let known = body.iter().all(|step| places(step, &mut written));
    let are_different =
        written.iter().enumerate().all(|(at, place)| !written[..at].contains(place));
    let is_left = |place: &&str| !body.iter().any(|step| step_reads(step, place));
    let is_own = |place: &&str| !inouts.iter().any(|tensor| tensor == place);
    known && are_different && written.iter().all(is_left) && written.iter().all(is_own)
}

/// Finds the tensors that a step writes; false: it may write something else.
fn places<'s>(step: &'s Step, found: &mut Vec<&'s str>) -> bool {
    let here = match step {
        Step::Set { place, .. } => tensor_at(place).map(|(tensor, _)| found.push(tensor)).is_some(),
        Step::Copy(copy) => tensor_at(&copy.to).map(|(tensor, _)| found.push(tensor)).is_some(),
        Step::Loop(repeat) => matches!(repeat.turns, Takers::Alone | Takers::Lanes),
        Step::Let { .. } | Step::Pointer { .. } | Step::If { .. } | Step::Leader(_) => true,
        step => says(step),
    };
    here && step.inner().iter().all(|inner| places(inner, found))
}

/// The tensor that a place or an address belongs to, and the index of the element.
fn tensor_at(place: &Term) -> Option<(&str, &Term)> {
    match &place.node {
        Node::Address(place) => tensor_at(place),
        Node::Index(base, at) => match &base.node {
            Node::Name(tensor) if tensor.starts_with("args.") => Some((tensor, at)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a step reads elements of a tensor, or passes the tensor on.
fn step_reads(step: &Step, tensor: &str) -> bool {
    let (written, read) = match step {
        Step::Set { place, value } => (Some(place), vec![value]),
        Step::Copy(Copy { to, from, count, .. }) => (Some(to), vec![from, count]),
        step => (None, step.terms()),
    };
    let at = written.and_then(tensor_at).map(|(_, at)| at);
    let own = at.into_iter().chain(read).any(|term| term_reads(term, tensor));
    own || step.inner().iter().any(|inner| step_reads(inner, tensor))
}

fn term_reads(term: &Term, tensor: &str) -> bool {
    match &term.node {
        Node::Name(name) => name == tensor,
        // Whether the tensor is there.
        Node::Binary(BinaryOp::Eq | BinaryOp::Ne, left, _) if left.root() == Some(tensor) => false,
        _ => term.inner().into_iter().any(|inner| term_reads(inner, tensor)),
    }
}

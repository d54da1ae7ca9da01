//! Rule `wide`: rows that lanes compute element by element they compute by eight neighbours each.
//!
//! What it gains: loads and stores of 16 bytes, and an eighth of all that is done once for a turn, such as
//! asking where the parts of a gather are. docs/compiler.md has what each rule gains, measured.

use crate::ir::{BinaryOp, Elem};
use crate::schedule::library::ep;
use crate::schedule::rules::copies::{first_of, pointed, pointers};
use crate::schedule::rules::loops_as;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Root;
use crate::schedule::term::{Node, Term};

/// The steps with every such loop by eight. `apart` are pointers to shared memory.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>, apart: &[String]) -> Vec<Step> {
    let mut pointers = pointers(&steps);
    pointers.retain(|name| !apart.contains(name));
    loops_as(steps, &|repeat| by_eight(repeat, &pointers).map(Step::Loop))
}

/// The loop with eight elements a turn of a lane, if it computes nothing but floats of its own.
fn by_eight(repeat: &Loop, pointers: &[String]) -> Option<Loop> {
    if !repeat.from.is(0) || repeat.elem != Elem::I32 || repeat.to.elem != Elem::I32 {
        return None;
    }
    let (i, body, turns) = match (repeat.turns, repeat.body.as_slice()) {
        (Takers::Lanes, body) => (&repeat.binder, body.to_vec(), Takers::Wide),
        // All lanes take part, those past the end with the last element.
        (Takers::Chunks, [Step::Let { name, .. }, body @ .., Step::If { body: last, .. }]) => {
            (name, [body, last].concat(), Takers::WideChunks)
        }
        _ => return None,
    };
    let count = repeat.to.clone();
    let mut eight =
        Eight { i, count, pointers, names: Vec::new(), shared: Vec::new(), stores: false };
    let mut steps = Vec::new();
    if turns == Takers::WideChunks {
        let lane = Term::small("team.lane", 0, 31);
        let own = lane.times(Term { range: Some((8, 8)), ..Term::library(ep::kWide) });
        let value = Term::small(&repeat.binder, 0, i64::from(i32::MAX) - 256).plus(own);
        steps.push(Step::Let { name: i.clone(), value });
    }
    steps.extend(eight.steps(body)?);
    eight.stores.then(|| Loop { turns, body: steps, ..repeat.clone() })
}

/// A loop whose steps are for eight elements each.
struct Eight<'a> {
    /// The first one.
    i: &'a str,
    /// How many the row has.
    count: Term,
    pointers: &'a [String],
    /// The names that stand for eight values.
    names: Vec<String>,
    /// Variables of which all elements have the same value.
    shared: Vec<String>,
    /// Whether any are stored.
    stores: bool,
}

impl Eight<'_> {
    fn steps(&mut self, steps: Vec<Step>) -> Option<Vec<Step>> {
        let mut out = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            if let Step::Variable { name, value, .. } = step
                && !self.is_own(value)
                && self.is_shared(name, &steps[at + 1..])
            {
                self.shared.push(name.clone());
            }
            out.push(self.step(step.clone())?);
        }
        Some(out)
    }

    /// Whether a variable has the same value for all elements, given the steps that change it.
    fn is_shared(&self, name: &str, steps: &[Step]) -> bool {
        let mut later = Vec::new();
        names_of(steps, &mut later);
        changes(steps, name)
            .into_iter()
            .all(|value| !self.is_own(value) && !later.iter().any(|name| value.mentions(name)))
    }

    fn step(&mut self, step: Step) -> Option<Step> {
        Some(match step {
            Step::Let { name, value } if self.is_own(&value) => {
                let class = ep::Wide.of(&value.elem).fixed();
                let value = self.value(&value)?;
                self.names.push(name.clone());
                Step::Object { class, name, args: vec![value] }
            }
            Step::Variable { ref name, .. }
            | Step::Increase { place: Term { node: Node::Name(ref name), .. }, .. }
            | Step::Set { place: Term { node: Node::Name(ref name), .. }, .. }
                if self.shared.contains(name) =>
            {
                step
            }
            Step::Variable { name, elem: Elem::F32, value } => {
                let value = self.value(&value)?;
                self.names.push(name.clone());
                Step::Object { class: ep::Wide.of(&Elem::F32), name, args: vec![value] }
            }
            Step::Increase { place, value } if self.is_name(&place) => {
                Step::Increase { place, value: self.value(&value)? }
            }
            Step::Set { place, value } if self.is_name(&place) => {
                Step::Set { place, value: self.value(&value)? }
            }
            Step::Set { place, value } => {
                let to = first_of(&place, self.i)?;
                self.store(to, &value)?
            }
            Step::Do(Term { node: Node::Call(set, args), elem, .. })
                if set == ep::set.of(&elem) =>
            {
                let [to, at, value] = args.as_slice() else { return None };
                self.store(pointed(to, at, self.i, self.pointers)?, value)?
            }
            Step::If { condition, body } if !self.is_own(&condition) => {
                Step::If { condition, body: self.steps(body)? }
            }
            Step::Loop(inner) if matches!(inner.turns, Takers::Alone | Takers::Serial) => {
                if self.is_own(&inner.from) || self.is_own(&inner.to) {
                    return None;
                }
                if let Some(rows) = self.parts(&inner).or_else(|| self.rows(&inner)) {
                    return Some(rows);
                }
                Step::Loop(Loop { body: self.steps(inner.body)?, ..inner })
            }
            Step::Let { .. } | Step::Says(_) | Step::Remark(_) => step,
            Step::Pointer { ref value, .. } if !self.is_own(value) => step,
            Step::SkipUnless(ref condition) if !self.is_own(condition) => step,
            _ => return None,
        })
    }

    /// A loop over the parts of a token that takes one row of each, for all parts at once.
    fn parts(&mut self, inner: &Loop) -> Option<Step> {
        let [Step::Pointer { name, to: None, value, .. }, Step::If { condition, body }] =
            inner.body.as_slice()
        else {
            return None;
        };
        let object = part_of(value, "row", &inner.binder)?;
        if part_of(condition, "has", &inner.binder)? != object
            || !matches!(inner.turns, Takers::Alone | Takers::Serial)
            || !inner.from.is(0)
        {
            return None;
        }
        let Node::Constant(count) = &inner.to.node else { return None };
        let mut body = self.steps(body.clone())?;
        let row = Term::name(name, Elem::U8);
        // No name, until it is clear that nothing else is read of the row.
        let own = |elem: &Elem| Term::name("", elem.clone());
        let elem = [Elem::Bf16, Elem::E4m3, Elem::F32].into_iter().find(|elem| {
            let args = vec![row.clone(), self.first(), self.count.clone()];
            let loaded = Term::call(ep::get_wide.of(elem), args, elem.clone());
            let replaced = body.iter_mut().map(|step| step.replace(&loaded, &own(elem)));
            replaced.filter(|was_there| *was_there).count() > 0
        })?;
        if body.iter().any(|step| step.mentions(name) || step.mentions(&object)) {
            return None;
        }
        // The row's eight values take its name.
        let values = Term::name(name, elem.clone());
        for step in &mut body {
            step.replace(&own(&elem), &values);
        }
        let params = vec![
            Param { kind: ParamType::Index, name: inner.binder.clone() },
            Param { kind: ParamType::Wide(elem.clone()), name: name.clone() },
        ];
        let each = Lambda { says: Vec::new(), params, body, gives: None };
        let parts = Term::name(object, Elem::I32);
        let args = vec![parts, self.first(), self.count.clone(), Term::lambda(each)];
        let function = ep::for_parts.of(&elem).of(count.clone());
        Some(Step::Do(Term::call(function, args, Elem::I32)))
    }

    /// A loop that adds one row in each turn, or none, for all rows at once.
    fn rows(&mut self, inner: &Loop) -> Option<Step> {
        let Node::Constant(count) = &inner.to.node else { return None };
        let (add @ Step::Increase { place, .. }, before) = inner.body.split_last()? else {
            return None;
        };
        let (names, is_there) = match before.split_last() {
            Some((Step::SkipUnless(condition), names)) => (names, condition.clone()),
            _ => (before, Term { node: Node::Bool(true), ..Term::name("", Elem::Bool) }),
        };
        let only_names = names.iter().all(|step| matches!(step, Step::Let { .. }));
        let name = format!("{}_row", inner.binder);
        let is_free = !inner.body.iter().any(|step| step.mentions(&name));
        if !only_names || !is_free || !self.is_name(place) || !inner.from.is(0) {
            return None;
        }
        let mut add = self.step(add.clone())?;
        let (elem, row) = add.terms().into_iter().find_map(loaded)?;
        let values = Term::name(&name, elem.clone());
        let load = Term::call(
            ep::get_wide.of(&elem),
            vec![row.clone(), self.first(), self.count.clone()],
            elem.clone(),
        );
        add.replace(&load, &values);
        if add.terms().into_iter().any(|term| loaded(term).is_some()) {
            return None;
        }
        let index = || Param { kind: ParamType::Index, name: inner.binder.clone() };
        let wide = Param { kind: ParamType::Wide(elem.clone()), name };
        let of = |params, body: Vec<Step>, gives| {
            Term::lambda(Lambda { says: Vec::new(), params, body, gives })
        };
        let row = Term::call(ep::row_if, vec![is_there, row], elem.clone());
        let each = [names, &[add]].concat();
        let args = vec![
            of(vec![index()], names.to_vec(), Some(row)),
            self.first(),
            self.count.clone(),
            of(vec![index(), wide], each, None),
        ];
        let function = ep::for_some_rows.of(&elem).of(count.clone());
        Some(Step::Do(Term::call(function, args, Elem::I32)))
    }

    fn store(&mut self, to: Term, value: &Term) -> Option<Step> {
        self.stores = true;
        let set = ep::set_wide.of(&value.elem);
        let args = vec![to, self.first(), self.count.clone(), self.value(value)?];
        is_float(&value.elem).then(|| Step::Do(Term::call(set, args, value.elem.clone())))
    }

    /// A value for eight elements, or the one that all of them have.
    fn value(&self, term: &Term) -> Option<Term> {
        if !self.is_own(term) || self.is_name(term) {
            return Some(term.clone());
        }
        let same = |node: Node| Some(Term { node, ..term.clone() });
        let load = |from: Term| {
            let get = ep::get_wide.of(&term.elem);
            let args = vec![from, self.first(), self.count.clone()];
            is_float(&term.elem).then(|| Term::call(get, args, term.elem.clone()))
        };
        match &term.node {
            Node::Index(..) => load(first_of(term, self.i)?),
            Node::Call(function, args) => match args.as_slice() {
                [from, at] if *function == ep::get.of(&term.elem) => {
                    load(pointed(from, at, self.i, self.pointers)?)
                }
                [one]
                    if [ep::to_float, ep::to_bf16, ep::to_e4m3]
                        .iter()
                        .any(|it| function.is(*it)) =>
                {
                    same(Node::Call(function.clone(), vec![self.value(one)?]))
                }
                [left, right]
                    if [ep::product, ep::greater, ep::lesser].iter().any(|it| function.is(*it)) =>
                {
                    same(Node::Call(function.clone(), vec![self.value(left)?, self.value(right)?]))
                }
                _ => None,
            },
            Node::Binary(op, left, right) if is_float(&term.elem) && is_sum_or_quotient(op) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                same(Node::Binary(*op, Box::new(left), Box::new(right)))
            }
            _ => None,
        }
    }

    /// Whether each element has its own.
    fn is_own(&self, term: &Term) -> bool {
        term.mentions(self.i) || self.names.iter().any(|name| term.mentions(name))
    }

    fn is_name(&self, term: &Term) -> bool {
        matches!(&term.node, Node::Name(name) if self.names.contains(name))
    }

    fn first(&self) -> Term {
        Term::index(self.i)
    }
}

/// The values that steps assign to a variable or add to it.
fn changes<'s>(steps: &'s [Step], name: &str) -> Vec<&'s Term> {
    let own = |step: &'s Step| match step {
        Step::Set { place, value } | Step::Increase { place, value } => {
            matches!(&place.node, Node::Name(place) if place == name).then_some(value)
        }
        _ => None,
    };
    steps.iter().flat_map(|step| own(step).into_iter().chain(changes(step.inner(), name))).collect()
}

/// The names that steps declare, except those of loops, with nested steps.
fn names_of(steps: &[Step], found: &mut Vec<String>) {
    for step in steps {
        if !matches!(step, Step::Loop(_)) {
            found.extend(step.declared().map(str::to_string));
        }
        names_of(step.inner(), found);
    }
}

/// The row of which a term loads eight neighbours, and what it is made of.
pub(super) fn loaded(term: &Term) -> Option<(Elem, Term)> {
    if let Node::Call(function, args) = &term.node
        && function.is(ep::get_wide)
    {
        return args.first().map(|row| (term.elem.clone(), row.clone()));
    }
    term.inner().into_iter().find_map(loaded)
}

/// The object of which a term asks this for a part.
fn part_of(term: &Term, asked: &str, part: &str) -> Option<String> {
    let Node::Call(function, args) = &term.node else { return None };
    let ([number], Root::Method(object, method)) = (args.as_slice(), &function.root) else {
        return None;
    };
    let is_part = matches!(&number.node, Node::Name(name) if name == part);
    (is_part && *method == asked).then(|| object.clone())
}

fn is_float(elem: &Elem) -> bool {
    matches!(elem, Elem::F32 | Elem::Bf16 | Elem::E4m3)
}

fn is_sum_or_quotient(op: &BinaryOp) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Div)
}

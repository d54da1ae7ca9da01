//! Rule `sums`, of counters: where the lanes of a warp count their turns in one place, the warp adds the number of turns
//! once.
//!
//! The gain: adds to one place come one after the other, and each takes a round trip. The lanes go through whole rounds of
//! turns, so that all of them take part. A lane past the last turn looks at the last turn, and is not `present`.

use super::sums::only_looks;
use super::{declares, is_of_warp};
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
#[cfg(any(test, feature = "sabotage"))]
use crate::schedule::sabotage::{self, Bug};
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Root;
use crate::schedule::term::{Node, Term, counting};
use crate::schedule::uniform::is_of_lane_by;

/// The steps with such counters added to by the warp.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    // A lane without a turn reads memory too, so no other lane may write there.
    if !role.reread.is_empty() {
        return steps;
    }
    let one = |mut step: Step| {
        if let Step::Loop(turns) = &step
            && let Some(rounds) = in_rounds(role, turns)
        {
            return rounds;
        }
        if is_of_warp(&step)
            && let Some(inner) = step.inner_mut()
        {
            *inner = rewrite(role, std::mem::take(inner));
        }
        step
    };
    steps.into_iter().map(one).collect()
}

/// A loop of which each lane takes turns as one of whole rounds, if something is counted for all lanes there.
fn in_rounds(role: &mut RoleLowering<'_>, turns: &Loop) -> Option<Step> {
    if turns.turns != Takers::Lanes || turns.elem != Elem::I32 || turns.to.elem != Elem::I32 {
        return None;
    }
    turns.body.iter().find_map(|step| Hits::in_step(step, turns))?;
    let wanted = ["first", "turn", "present", "hits"];
    let [first, turn, present, hits] = wanted.map(|wanted| role.names.fresh(wanted));
    let of_lane = counting(BinaryOp::Add, Term::index(&first), Term::name("team.lane", Elem::I32));
    let is_present = Term::name(&present, Elem::Bool);
    let last = counting(BinaryOp::Sub, turns.to.clone(), Term::int(1));
    let number = Term::index(&turn);
    let is_turn = number.clone().test(BinaryOp::Lt, turns.to.clone());
    let own = is_present.clone().choose(number, last);
    let steps = vec![
        Step::Let { name: turn, value: of_lane },
        Step::Let { name: present, value: is_turn },
        Step::Let { name: turns.binder.clone(), value: own },
    ];
    let (says, own, names) = (Vec::new(), Vec::new(), Vec::new());
    let mut round = Round { steps, present: is_present, skips: false, says, own, names };
    for step in &turns.body {
        round.add(role, turns, step, &hits)?;
    }
    round.close();
    let body = round.steps;
    Some(Step::Loop(Loop { binder: first, turns: Takers::Chunks, body, ..turns.clone() }))
}

/// The steps of a round of turns, a lane each.
struct Round {
    steps: Vec<Step>,
    /// Whether a lane has a turn.
    present: Term,
    /// Whether turns have been left out.
    skips: bool,
    /// Comments that go above the next step.
    says: Vec<Step>,
    /// Steps for lanes that have a turn.
    own: Vec<Step>,
    /// Names that all lanes declare.
    names: Vec<String>,
}

impl Round {
    /// One more step of a turn; `None`: it cannot be taken in rounds.
    fn add(
        &mut self,
        role: &mut RoleLowering<'_>,
        turns: &Loop,
        step: &Step,
        hits: &str,
    ) -> Option<()> {
        let shared = match step {
            Step::Says(_) | Step::Remark(_) => {
                self.says.push(step.clone());
                return Some(());
            }
            Step::SkipUnless(condition) => {
                let is_known = is_of_lane_by(condition, &|object| is_made(turns, object));
                let name = is_known.then(|| role.names.fresh("present"))?;
                let goes = Term::name(&name, Elem::Bool);
                let value = std::mem::replace(&mut self.present, goes).and(condition.clone());
                self.skips = true;
                Step::Let { name, value }
            }
            // Without a turn, a lane may find out what it would in the turn; where turns are left out, only its row is there.
            step if self.looks(step) => step.clone(),
            step => match Hits::in_step(step, turns) {
                Some(counted) => counted.by_warp(&self.present, hits),
                None if step.declared().is_some() && !matches!(step, Step::Loop(_)) => return None,
                None => {
                    self.own.append(&mut self.says);
                    self.own.push(step.clone());
                    return Some(());
                }
            },
        };
        self.close();
        self.steps.append(&mut self.says);
        self.steps.push(shared);
        Some(())
    }

    /// Whether a lane without a turn may run a step.
    fn looks(&mut self, step: &Step) -> bool {
        let is_row = |step: &Step| {
            matches!(step, Step::Made { value: Term { node: Node::Call(function, _), .. }, .. }
                if [ep::row_of, ep::ranks_of, ep::ids_of].iter().any(|it| function.is(*it)))
        };
        (!self.skips || is_row(step)) && only_looks(std::slice::from_ref(step), &mut self.names)
    }

    /// Ends what lanes do by themselves.
    fn close(&mut self) {
        if !self.own.is_empty() {
            let (condition, body) = (self.present.clone(), std::mem::take(&mut self.own));
            self.steps.push(Step::If { condition, body });
        }
    }
}

/// Whether a lane makes an object in its turn, which holds values of its own.
fn is_made(turns: &Loop, object: &str) -> bool {
    turns.body.iter().any(|it| matches!(it, Step::Made { name, .. } if name == object))
}

/// A loop of one lane that does nothing but count, in places that are the same for all lanes.
struct Hits<'s> {
    numbers: &'s Loop,
    /// Steps that compute the conditions.
    looks: &'s [Step],
    /// Conditions under which the lane counts.
    conditions: Vec<&'s Term>,
    /// Steps that count.
    counts: &'s [Step],
}

impl<'s> Hits<'s> {
    /// A step of the turns of a loop.
    fn in_step(step: &'s Step, turns: &'s Loop) -> Option<Hits<'s>> {
        match step {
            Step::Loop(numbers) => Hits::of(numbers, turns),
            _ => None,
        }
    }

    /// A loop in the turns of another one.
    fn of(numbers: &'s Loop, turns: &'s Loop) -> Option<Hits<'s>> {
        let is_lanes_own = |term: &Term| {
            let is_own = |name: &str| name != numbers.binder && term.mentions(name);
            is_own(&turns.binder) || declares(&turns.body, &is_own)
        };
        let is_skip = |step: &Step| matches!(step, Step::SkipUnless(_));
        let is_note = |step: &Step| matches!(step, Step::Says(_) | Step::Remark(_));
        let (looks, rest) = numbers.body.split_at(numbers.body.iter().position(is_skip)?);
        let (skips, counts) = rest.split_at(rest.iter().position(|step| !is_skip(step))?);
        let conditions = skips.iter().flat_map(Step::terms).collect::<Vec<_>>();
        let fits = numbers.turns == Takers::Alone
            && numbers.from.is(0)
            && numbers.elem == Elem::I32
            && !is_lanes_own(&numbers.to)
            && only_looks(looks, &mut Vec::new())
            && conditions.iter().all(|term| is_of_lane_by(term, &|object| is_made(turns, object)))
            && !counts.iter().all(is_note)
            && counts.iter().all(|step| is_note(step) || counts_in(step, &is_lanes_own));
        fits.then_some(Hits { numbers, looks, conditions, counts })
    }

    /// The turns of all lanes counted by the warp.
    fn by_warp(&self, present: &Term, hits: &str) -> Step {
        let number = Param { kind: ParamType::Index, name: self.numbers.binder.clone() };
        let found = Param { kind: ParamType::Value(Elem::I32), name: hits.to_string() };
        let all = std::iter::once(present).chain(self.conditions.iter().copied()).cloned();
        #[cfg(any(test, feature = "sabotage"))]
        let all = all.skip(usize::from(sabotage::is(Bug::AbsentCounted)));
        let function =
            |params, body, gives| Term::lambda(Lambda { says: Vec::new(), params, body, gives });
        let holds = function(vec![number.clone()], self.looks.to_vec(), all.reduce(Term::and));
        let mut counts = self.counts.to_vec();
        counts.iter_mut().for_each(|step| count_all(step, &Term::name(hits, Elem::I32)));
        let counted = function(vec![number, found], counts, None);
        let args = vec![self.numbers.to.clone(), holds, counted];
        Step::Do(Term::call(ep::for_hits, args, Elem::I32))
    }
}

/// The counter and the number that a step adds to it, if the step does nothing else.
fn added(step: &Step) -> Option<[&Term; 2]> {
    let Step::Do(Term { node: Node::Call(function, args), .. }) = step else { return None };
    let [counter, more] = args.as_slice() else { return None };
    let adds = match &function.root {
        Root::Library(item) => *item == ep::add_count,
        Root::Method(object, method) => object == "counters" && *method == "add",
        Root::Text(_) => false,
    };
    adds.then_some([counter, more])
}

/// Whether a step counts in a place that is not a lane's own.
fn counts_in(step: &Step, is_lanes_own: &dyn Fn(&Term) -> bool) -> bool {
    match step {
        Step::If { condition, body } => {
            !is_lanes_own(condition) && body.iter().all(|inner| counts_in(inner, is_lanes_own))
        }
        step => added(step).is_some_and(|[counter, one]| one.is(1) && !is_lanes_own(counter)),
    }
}

/// Has a step that counts add so many.
fn count_all(step: &mut Step, hits: &Term) {
    if let Step::Do(Term { node: Node::Call(_, args), .. }) = step
        && let Some(one) = args.last_mut()
    {
        *one = hits.clone();
    }
    step.inner_mut().into_iter().flatten().for_each(|inner| count_all(inner, hits));
}

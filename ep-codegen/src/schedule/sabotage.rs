//! Bugs to plant in the schedule, one at a time: what is wrong when a rule or the lowering is. Runs of
//! random declarations must find each of them; no program carries any.

use std::cell::Cell;

use super::library::{Entity, ep};
use super::step::{Loop, Step, Takers};
use super::symbol::Symbol;
use super::term::{Node, Term, arithmetic};
use crate::ir::{BinaryOp, Elem};

/// A bug in the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A message is told without waiting for its row to be stored.
    TokenNotWaited,
    /// A slot is given back before its row has been read.
    StageFreedEarly,
    /// A warp waits for a peer while its messages for others are pending.
    DebtKept,
    /// Bulk copies do not see what was written before.
    FenceLeftOut,
    /// Every lane takes its own address for that of all.
    AddressOfEach,
    /// The lanes do not meet between what one writes and another reads.
    MeetLeftOut,
    /// All lanes do what the first one does for the warp.
    LeaderOfAll,
    /// All lanes take the turns that each has its own of.
    TurnsOfAll,
    /// Lanes take turns that read what other turns write.
    TurnsThatDepend,
    /// Fields of a message are read before it has come.
    ReadAhead,
    /// A message is written before there is room for it.
    RoomNotAwaited,
    /// The end of what was sent is not told.
    EndNotTold,
    /// Every warp takes all units of which each is one warp's.
    UnitsOfAll,
    /// Two loops claim their units from one word.
    ClaimsShared,
    /// Units are claimed that count what the block they are dealt to has zeroed.
    CountersClaimed,
    /// A loop runs as far as the one around it.
    ExtentOfAnother,
    /// A condition of a loop is not looked at.
    ConditionLeftOut,
    /// Each turn of a loop is a unit of its own, though it does more than to send.
    MoreThanSent,
    /// The last element of a copied row is left out.
    CopyCutShort,
    /// Lanes past the end of a row store, too.
    PastTheEnd,
    /// Lanes that compute eight neighbours load the first eight of the row.
    NeighboursOfAnother,
    /// Products are computed in 32 bits.
    ProductsCut,
    /// The end of a channel serves its first peer alone.
    PeersForgotten,
    /// All words of a header go to the first place.
    HeadersInOnePlace,
    /// All parts of a stripe begin where the stripe does.
    PartsInOnePlace,
    /// Lanes without a turn are counted, too.
    AbsentCounted,
    /// All slices of a stripe begin where the first stripe does.
    SlicesInOnePlace,
    /// Prefix sums of a warp have 32 bits.
    SumsCut,
    /// Each lane keeps the first row of numbers.
    RowsInOnePlace,
    /// Conditions that read what turns write are looked at ahead of them.
    AskedTooEarly,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Bug; 30] = [
        Bug::TokenNotWaited,
        Bug::StageFreedEarly,
        Bug::DebtKept,
        Bug::FenceLeftOut,
        Bug::AddressOfEach,
        Bug::MeetLeftOut,
        Bug::LeaderOfAll,
        Bug::TurnsOfAll,
        Bug::TurnsThatDepend,
        Bug::ReadAhead,
        Bug::RoomNotAwaited,
        Bug::EndNotTold,
        Bug::UnitsOfAll,
        Bug::ClaimsShared,
        Bug::CountersClaimed,
        Bug::ExtentOfAnother,
        Bug::ConditionLeftOut,
        Bug::MoreThanSent,
        Bug::CopyCutShort,
        Bug::PastTheEnd,
        Bug::NeighboursOfAnother,
        Bug::ProductsCut,
        Bug::PeersForgotten,
        Bug::HeadersInOnePlace,
        Bug::PartsInOnePlace,
        Bug::AbsentCounted,
        Bug::SlicesInOnePlace,
        Bug::SumsCut,
        Bug::RowsInOnePlace,
        Bug::AskedTooEarly,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Does `work` with a bug in every schedule that this thread makes meanwhile.
pub fn with<T>(bug: Bug, work: impl FnOnce() -> T) -> T {
    /// Takes the bug out again, after a panic too.
    struct Planted;
    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
    PLANTED.set(Some(bug));
    let _planted = Planted;
    work()
}

/// Whether a bug is planted.
pub(super) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// The steps of a role with the planted bug, if one is.
pub(super) fn spoiled(steps: Vec<Step>) -> Vec<Step> {
    let Some(bug) = PLANTED.get() else { return steps };
    match bug {
        Bug::ExtentOfAnother => steps.into_iter().map(|step| as_far_as(step, None)).collect(),
        Bug::UnitsOfAll => each(steps.clone(), &|step| vec![units_of_all(step, &steps)]),
        _ => each(steps, &|step| one(bug, step)),
    }
}

/// The steps with others in place of each, from the inside out.
pub(super) fn each(steps: Vec<Step>, instead: &dyn Fn(Step) -> Vec<Step>) -> Vec<Step> {
    let one = |mut step: Step| {
        if let Some(inner) = step.inner_mut() {
            *inner = each(std::mem::take(inner), instead);
        }
        instead(step)
    };
    steps.into_iter().flat_map(one).collect()
}

/// What a bug makes of one step.
fn one(bug: Bug, mut step: Step) -> Vec<Step> {
    match (bug, &mut step) {
        (Bug::DebtKept, step) if is_call(step, ep::settle) => return Vec::new(),
        (Bug::FenceLeftOut, step) if calls(step, "fence_global") => return Vec::new(),
        (Bug::EndNotTold, step) if calls(step, "close") => return Vec::new(),
        (Bug::PartsInOnePlace, step) if calls(step, "behind") => return Vec::new(),
        (Bug::MeetLeftOut, Step::Meet) | (Bug::ConditionLeftOut, Step::SkipUnless(_)) => {
            return Vec::new();
        }
        (Bug::LeaderOfAll, Step::Leader(body)) => return vec![Step::Scope(std::mem::take(body))],
        (Bug::TurnsOfAll, Step::Loop(repeat)) if repeat.turns == Takers::Lanes => {
            repeat.turns = Takers::Serial;
        }
        (Bug::ReadAhead, Step::If { condition, body }) if condition.is_method("arrived") => {
            let last = body.len().saturating_sub(1);
            let gives_back = |step: &Step| calls(step, "release") || calls(step, "release_after");
            if body.last().is_some_and(gives_back) {
                let ahead: Vec<Step> = body.drain(..last).collect();
                return vec![Step::Scope([ahead, vec![step]].concat())];
            }
        }
        (Bug::RoomNotAwaited, Step::If { condition, body }) if condition.is_method("reserve") => {
            return vec![Step::Scope(std::mem::take(body))];
        }
        (Bug::ClaimsShared, Step::Object { class, .. }) if class.is(ep::Units) => {
            class.of.pop();
            *class = class.clone().of(Term::int(0));
        }
        (Bug::CopyCutShort, Step::Copy(copy)) => {
            copy.count = arithmetic(BinaryOp::Sub, copy.count.clone(), Term::int(1));
        }
        (Bug::PastTheEnd, Step::Loop(repeat)) if repeat.turns == Takers::Chunks => {
            if let Some(Step::If { body, .. }) = repeat.body.pop() {
                repeat.body.extend(body);
            }
        }
        _ => step.terms_mut().into_iter().for_each(|term| spoil(bug, term)),
    }
    vec![step]
}

/// What a bug makes of a term.
fn spoil(bug: Bug, term: &mut Term) {
    term.inner_mut().into_iter().for_each(|inner| spoil(bug, inner));
    let elem = term.elem.clone();
    match (bug, &mut term.node) {
        (Bug::TokenNotWaited, Node::Call(function, args))
            if function.is_method("publish_after") && args.len() > 1 =>
        {
            args[1] = Term::int(0);
        }
        (Bug::StageFreedEarly, Node::Call(function, args))
            if function.is_method("release_after") && args.len() > 1 =>
        {
            args[1] = Term::int(0);
        }
        (Bug::AddressOfEach, Node::Call(function, args)) if function.is(ep::at_lane_of) => {
            *term = args[1].clone();
        }
        (Bug::NeighboursOfAnother, Node::Call(function, args)) if function.is(ep::get_wide) => {
            args[1] = Term::int(0);
        }
        (Bug::PeersForgotten, Node::Call(function, args)) if function.is(ep::all_peers) => {
            (*function, args[0]) = (ep::one_peer.into(), Term::int(0));
        }
        (Bug::SlicesInOnePlace, Node::Call(function, args)) if function.is_method("span") => {
            args[0] = Term::int(0);
        }
        (Bug::RowsInOnePlace, Node::Call(function, args)) if function.is(ep::row_of) => {
            if let Node::Address(row) = &mut args[0].node
                && let Node::Index(_, at) = &mut row.node
            {
                **at = Term::int(0);
            }
        }
        (Bug::HeadersInOnePlace, Node::Call(function, args)) if function.is_method("announce") => {
            args[1] = Term::int(0);
        }
        (Bug::ProductsCut, Node::Binary(BinaryOp::Mul, ..)) if elem == Elem::I64 => {
            let cut = Node::Cast(Box::new(term.clone()));
            *term = Term { node: cut, elem: Elem::I32, range: None }.wide();
        }
        _ => {}
    }
}

/// The step with every loop inside of another one running as far as that one.
fn as_far_as(mut step: Step, around: Option<&Loop>) -> Step {
    if let (Step::Loop(own), Some(around)) = (&mut step, around)
        && own.elem == around.elem
    {
        own.to = around.to.clone();
    }
    let own = match &step {
        Step::Loop(own) => Some(own.clone()),
        _ => around.cloned(),
    };
    if let Some(inner) = step.inner_mut() {
        let steps = std::mem::take(inner).into_iter();
        *inner = steps.map(|step| as_far_as(step, own.as_ref())).collect();
    }
    step
}

/// A loop over claimed units as one that every warp goes through.
fn units_of_all(step: Step, all: &[Step]) -> Step {
    let Step::Take { name, next, body } = &step else { return step };
    let Node::Call(function, _) = &next.node else { return step };
    let units = all.iter().find_map(|step| match step {
        Step::Object { class, name, args }
            if class.is(ep::Units) && *function == Symbol::method(name, "take") =>
        {
            args.last()
        }
        _ => None,
    });
    let Some(to) = units.cloned() else { return step };
    Step::Loop(Loop {
        binder: name.clone(),
        elem: Elem::I32,
        from: Term::int(0),
        to,
        turns: Takers::Serial,
        body: body.clone(),
    })
}

/// Whether a step does nothing but call this method,
fn calls(step: &Step, method: &str) -> bool {
    matches!(step, Step::Do(term) if term.is_method(method))
}

/// or this function of the library.
fn is_call(step: &Step, item: Entity) -> bool {
    matches!(step, Step::Do(Term { node: Node::Call(function, _), .. }) if function.is(item))
}

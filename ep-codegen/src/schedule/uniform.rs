//! Among whom every value of a role is the same, and whether those who take it agree: the last look at its steps, whoever
//! made or rewrote them, and at the functions that the library calls.
//!
//! What a warp carries out as a whole takes values that all its lanes have alike, where all of them come by;
//! what is stored is stored by one lane, or by each in a place of its own; and those who share the turns of a
//! loop agree on where it ends.

use std::collections::BTreeMap;

use super::library::{Entity, ep};
use super::step::{Copy, Lambda, Loop, Step, Takers};
use super::symbol::{Root, Symbol};
use super::term::{Node, Term};

/// Among whom a value differs, or who comes by at a place without the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Apart {
    blocks: bool,
    warps: bool,
    lanes: bool,
}

const BLOCKS: Apart = Apart { blocks: true, warps: false, lanes: false };
const WARPS: Apart = Apart { blocks: false, warps: true, lanes: false };
const LANES: Apart = Apart { blocks: false, warps: false, lanes: true };

impl Apart {
    fn and(self, other: Apart) -> Apart {
        Apart {
            blocks: self.blocks || other.blocks,
            warps: self.warps || other.warps,
            lanes: self.lanes || other.lanes,
        }
    }

    /// Whether both tell the same apart.
    fn meets(self, other: Apart) -> bool {
        (self.blocks && other.blocks) || (self.warps && other.warps) || (self.lanes && other.lanes)
    }
}

impl Takers {
    /// Those who share the turns of a loop.
    fn sharing(self) -> Apart {
        match self {
            Takers::Serial | Takers::Alone | Takers::Unrolled => Apart::default(),
            // All lanes take these as one, a number of neighbours at a time.
            Takers::Chunks | Takers::WideChunks => Apart::default(),
            Takers::Lanes | Takers::Wide => LANES,
            Takers::Blocks => BLOCKS,
            Takers::Parts | Takers::WarpsOfBlock => WARPS,
            Takers::Warps | Takers::Spread => BLOCKS.and(WARPS),
            Takers::Threads => BLOCKS.and(WARPS).and(LANES),
        }
    }

    /// Whether the warp takes part in it as a whole.
    fn is_of_warp(self) -> bool {
        use Takers::{Alone, Lanes, Threads, Unrolled, Wide};
        !matches!(self, Alone | Unrolled | Lanes | Wide | Threads)
    }
}

/// Who carries out a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Whoever comes by: it computes, or looks.
    Any,
    /// One lane, since it stores.
    Lane,
    /// The warp as a whole, with values that its lanes have alike.
    Warp,
    /// The warp, with what each lane has of a value; all of them get the whole.
    WarpOfLanes,
    /// The warp, with an address that one lane has and the others have not.
    WarpForLane,
    /// The warp, with a function by which each lane says whether it counts, and one that counts for all of them.
    WarpOfHits,
}

/// The caller of a function that the role passes to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The warp as a whole, with values that its lanes have alike.
    Warp,
    /// Each lane by itself.
    Lane,
    /// The warp, of which each lane has its own values in these parameters.
    WarpOfLanes(usize, usize),
}

/// The first step that does not fit who takes it; none: all do.
pub(super) fn misfit(steps: &[Step]) -> Option<String> {
    let mut look = Look::default();
    loop {
        let known = look.names.clone();
        look.found = None;
        look.steps(steps, Apart::default());
        // What a turn of a loop leaves, the next one begins with.
        if known == look.names {
            return look.found;
        }
    }
}

#[derive(Default)]
struct Look {
    /// Among whom names differ; not at all, if they are unknown.
    names: BTreeMap<String, Apart>,
    /// The classes of objects.
    classes: BTreeMap<String, Entity>,
    found: Option<String>,
}

impl Look {
    /// Steps in order; `path`: who comes by without the others.
    fn steps(&mut self, steps: &[Step], mut path: Apart) {
        for step in steps {
            if let Step::SkipUnless(condition) = step {
                path = path.and(self.value(condition, path));
            } else {
                self.step(step, path);
            }
        }
    }

    fn step(&mut self, step: &Step, path: Apart) {
        let mut own = Apart::default();
        for term in step.terms() {
            own = own.and(self.value(term, path));
        }
        match step {
            Step::Says(_) | Step::Remark(_) | Step::Do(_) | Step::SkipUnless(_) => {}
            Step::Object { class, name, .. } => {
                if let Root::Library(entity) = class.root {
                    self.classes.insert(name.clone(), entity);
                }
                self.name(name, own);
            }
            Step::Let { name, .. } | Step::Made { name, .. } | Step::Pointer { name, .. } => {
                self.name(name, own);
            }
            Step::Variable { name, .. } => self.name(name, own),
            Step::Set { place, .. } | Step::Increase { place, .. } => match &place.node {
                Node::Name(name) => self.name(name, own.and(path)),
                _ => {
                    let place = self.value(place, path);
                    self.wants_lane(path, place, "a store");
                }
            },
            Step::If { body, .. } | Step::While { body, .. } => self.steps(body, path.and(own)),
            Step::Take { name, body, .. } => {
                self.wants_warp(path, own, "taking a unit");
                let taken = own.and(BLOCKS).and(WARPS);
                self.name(name, taken);
                self.steps(body, path.and(taken));
            }
            Step::Loop(repeat) => self.repeat(repeat, path, own),
            Step::Copy(Copy { .. }) => self.wants_warp(path, own, "copying a row"),
            Step::Leader(body) => {
                self.wants_warp(path, own, "the part of the first lane");
                self.steps(body, path.and(LANES));
            }
            Step::Meet => self.wants_warp(path, own, "a meeting of the lanes"),
            Step::Scope(body) => self.steps(body, path),
        }
    }

    fn repeat(&mut self, repeat: &Loop, path: Apart, bounds: Apart) {
        let sharing = repeat.turns.sharing();
        let what = format!("the loop over `{}`", repeat.binder);
        if sharing.meets(path) {
            self.wrong(format!("{what} shares its turns among lanes that do not all reach it"));
        }
        if sharing.meets(bounds) {
            self.wrong(format!("{what} does not end at the same turn for all lanes that share it"));
        }
        if repeat.turns.is_of_warp() {
            self.wants_warp(path, bounds, &what);
        }
        let own = bounds.and(sharing);
        self.name(&repeat.binder, own);
        self.steps(&repeat.body, path.and(own));
    }

    fn name(&mut self, name: &str, apart: Apart) {
        let known = self.names.entry(name.to_string()).or_default();
        *known = known.and(apart);
    }

    /// Among whom a value differs.
    fn value(&mut self, term: &Term, path: Apart) -> Apart {
        let mut inner = Apart::default();
        for part in term.inner() {
            inner = inner.and(self.value(part, path));
        }
        match &term.node {
            Node::Name(name) => self.named(name),
            Node::Call(function, args) => self.call(function, (args, inner), path),
            _ => inner,
        }
    }

    /// Among whom a name, or the member of an object, differs.
    fn named(&self, name: &str) -> Apart {
        match name {
            "team.lane" => LANES,
            _ => match name.split(['.', '[']).next().unwrap_or(name) {
                // Its members are one for each warp.
                "smem" => WARPS,
                root => self.names.get(root).copied().unwrap_or_default(),
            },
        }
    }

    /// Among whom what a call gives differs.
    fn call(&mut self, function: &Symbol, (args, given): (&[Term], Apart), path: Apart) -> Apart {
        let (by, name) = match &function.root {
            Root::Library(entity) => (of_library(*entity), entity.name.to_string()),
            Root::Method(object, method) => {
                let root = object.split(['.', '[']).next().unwrap_or(object);
                (of_object(self.classes.get(root), root, method), format!("{object}.{method}"))
            }
            Root::Text(name) => (By::Any, name.clone()),
        };
        for (arg, caller) in args.iter().zip(callers(function)) {
            if let Node::Lambda(function) = &arg.node {
                self.function(function, *caller, path);
            }
        }
        match by {
            By::Any => {}
            By::Lane => self.wants_lane(path, given, &name),
            By::Warp => self.wants_warp(path, given, &name),
            By::WarpOfHits => {
                self.wants_warp(path, given, &name);
                self.counted_together(args, path);
            }
            By::WarpOfLanes => self.wants_warp(path, Apart::default(), &name),
            By::WarpForLane => {
                self.wants_warp(path, Apart::default(), &name);
                let to = args.first().map(|to| self.value(to, path)).unwrap_or_default();
                if !to.lanes {
                    self.wrong(format!("`{name}` takes the same address from all lanes"));
                }
            }
        }
        match &function.root {
            Root::Library(entity)
                if [ep::at_lane_of, ep::at_leader, ep::rows_with_each].contains(entity) =>
            {
                given.and(LANES)
            }
            _ if by == By::WarpOfLanes => Apart { lanes: false, ..given },
            Root::Method(object, method) if object == "team" => match *method {
                "index" => BLOCKS.and(WARPS),
                _ => Apart::default(),
            },
            // All warps read the same messages from slots.
            Root::Method(object, "from")
                if matches!(
                    self.classes.get(object).copied(),
                    Some(ep::SlotChannel | ep::RouteCounts)
                ) =>
            {
                given
            }
            // They have counted the same rows.
            Root::Method(object, "total")
                if matches!(self.classes.get(object).copied(), Some(ep::OnceIn | ep::PackedIn)) =>
            {
                given
            }
            // Every warp has objects of its own.
            Root::Method(..) => given.and(BLOCKS).and(WARPS),
            _ => given,
        }
    }

    /// The steps of a function that the library calls. Its names are its own.
    fn function(&mut self, function: &Lambda, caller: Caller, path: Apart) {
        let outer = self.names.clone();
        let (path, own) = match caller {
            Caller::Warp => (path, 0..0),
            Caller::Lane => (path.and(LANES), 0..function.params.len()),
            Caller::WarpOfLanes(first, end) => (path, first..end),
        };
        for (at, param) in function.params.iter().enumerate() {
            let apart = if own.contains(&at) { LANES } else { Apart::default() };
            self.names.insert(param.name.clone(), apart);
        }
        loop {
            let (known, found) = (self.names.clone(), self.found.clone());
            self.steps(&function.body, path);
            if known == self.names {
                break;
            }
            self.found = found;
        }
        if let Some(gives) = &function.gives {
            self.value(gives, path);
        }
        self.names = outer;
    }

    /// Checks that the lanes that count together add to the same counter.
    fn counted_together(&mut self, args: &[Term], path: Apart) {
        let Some(Term { node: Node::Lambda(counts), .. }) = args.last() else { return };
        for term in counts.body.iter().flat_map(all_terms) {
            if self.value(term, path.and(LANES)).lanes {
                self.wrong("lanes count together what each has of its own".to_string());
            }
        }
    }

    /// What a warp carries out as a whole.
    fn wants_warp(&mut self, path: Apart, given: Apart, what: &str) {
        if path.lanes {
            self.wrong(format!("{what} needs a whole warp, and some lanes do not reach it"));
        } else if given.lanes {
            self.wrong(format!("{what} needs a whole warp, and its lanes have different values"));
        }
    }

    /// What one lane does, or each for itself.
    fn wants_lane(&mut self, path: Apart, given: Apart, what: &str) {
        if !path.lanes && !given.lanes {
            self.wrong(format!("{what} is the work of one lane, and all lanes do it"));
        }
    }

    fn wrong(&mut self, why: String) {
        self.found.get_or_insert(why);
    }
}

/// The terms of a step and of those inside of it.
fn all_terms(step: &Step) -> Vec<&Term> {
    let inner = step.inner().iter().flat_map(all_terms);
    step.terms().into_iter().chain(inner).collect()
}

/// Whether a lane may compute a term for itself, whatever the others do.
pub(super) fn is_of_any_lane(term: &Term) -> bool {
    is_of_lane_by(term, &|_| false)
}

/// Whether a lane may compute a term for itself, given which objects hold nothing but values of one lane.
pub(super) fn is_of_lane_by(term: &Term, is_value: &dyn Fn(&str) -> bool) -> bool {
    let is_own = match &term.node {
        Node::Call(function, _) => match &function.root {
            Root::Library(entity) => of_library(*entity) == By::Any,
            Root::Method(object, _) => is_value(object),
            Root::Text(_) => true,
        },
        _ => true,
    };
    is_own && term.inner().into_iter().all(|inner| is_of_lane_by(inner, is_value))
}

/// Who carries out a function of the library.
fn of_library(function: Entity) -> By {
    let of_warp = [
        ep::cast_row,
        ep::cast_slice,
        ep::direct_ready,
        ep::fill,
        ep::meet,
        ep::meet_block,
        ep::prefix_sum,
        ep::prefix_sum_and_total,
        ep::pull_offer,
        ep::pull_wait_released,
        ep::put,
        ep::require_room,
        ep::rows_ahead,
        ep::rows_with,
        ep::settle,
        ep::tell,
        ep::raise_word,
        ep::await_word,
    ];
    match function {
        _ if of_warp.contains(&function) => By::Warp,
        ep::copy_field
        | ep::listed_before
        | ep::block_least
        | ep::block_peak
        | ep::block_scale
        | ep::for_parts
        | ep::rows_with_each
        | ep::sum_of_lanes => By::WarpOfLanes,
        ep::for_hits => By::WarpOfHits,
        ep::add_count | ep::set | ep::set_wide | ep::store_host => By::Lane,
        _ => By::Any,
    }
}

/// Who calls the functions that a call takes, in the order of its arguments, as far as they are checked.
fn callers(function: &Symbol) -> &'static [Caller] {
    use Caller::{Lane, Warp, WarpOfLanes};
    match &function.root {
        Root::Library(entity) if *entity == ep::count_routes => &[Warp, Warp, Warp, Lane],
        Root::Library(entity) if *entity == ep::values_of => &[Warp, Lane],
        Root::Library(entity) if *entity == ep::listed_before => &[Warp, Warp, Lane],
        Root::Library(entity) if *entity == ep::ranks_where => &[Lane],
        Root::Method(_, "ask" | "for_messages") => &[Warp],
        Root::Method(_, "for_tokens") => &[Lane, Warp, Warp, Lane],
        // A lane has a choice of the message, and what it knows of it.
        Root::Method(_, "for_places") => &[Warp, Lane, Lane, WarpOfLanes(3, 6)],
        _ => &[],
    }
}

/// Who carries out a method, of an object of this class if it is one that the role has made.
fn of_object(class: Option<&Entity>, object: &str, method: &str) -> By {
    match (class.copied(), method) {
        (None, _) if object == "counters" => By::Lane,
        (None, _) => By::Any,
        (Some(ep::Parts), "expect")
        | (Some(ep::PlaceCounters | ep::DirectOut), "begin")
        | (Some(ep::SlotRowsOut), "want") => By::Lane,
        (Some(ep::SlotChannel | ep::RouteCounts), "to" | "from") => By::Any,
        (Some(ep::OnceIn | ep::PackedIn), "total") => By::Any,
        (Some(ep::PackedIn), "copy") => By::WarpOfLanes,
        (Some(ep::SlotRowsIn | ep::NetSlotsIn), "slot") => By::Any,
        (Some(ep::DirectIn), "meta" | "first" | "rows") => By::Any,
        (Some(ep::DirectOut), "behind" | "and_behind" | "next" | "row" | "meta") => By::Any,
        (Some(ep::DirectOut), "reserve_each" | "stored_each") => By::WarpOfLanes,
        (Some(ep::StripeSlices | ep::SlicedSpan), _)
        | (Some(ep::Flags), "at")
        | (Some(ep::RingsOut), "expect") => By::Any,
        (Some(ep::Mover), "row" | "send_meta") => By::WarpForLane,
        (Some(_), _) => By::Warp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{BinaryOp, Elem};
    use crate::meaning::Invented;
    use crate::schedule::sabotage::{self, Bug};
    use crate::schedule::step::{Param, ParamType};
    use crate::schedule::{RoleRule, RuleSet, draft};
    use crate::{lower, syntax};

    const REWRITTEN: RuleSet = RuleSet::Without(RoleRule::OneLaunch);

    /// The steps of all roles of some random declarations.
    fn drafts(seeds: std::ops::Range<u64>) -> Vec<Vec<Step>> {
        let mut all = Vec::new();
        for seed in seeds {
            let source = Invented::new(seed).source();
            let (file, errors) = syntax::parse(source.parse().expect("its brackets are balanced"));
            assert!(errors.is_empty(), "{}", errors.to_text(&source));
            for pipeline in &file.pipelines {
                let whole = lower::lower(&file, pipeline);
                for choice in whole.choices() {
                    let ir = whole.select(&choice);
                    let steps = |rules| ir.roles.iter().map(move |role| (role, rules));
                    let roles = steps(RuleSet::None).chain(steps(REWRITTEN));
                    all.extend(roles.map(|(role, rules)| draft(&ir, role, rules).0.steps));
                }
            }
        }
        all
    }

    /// What is said to the steps that a lie changes.
    fn said(steps: &[Vec<Step>], lie: &dyn Fn(Step) -> Vec<Step>) -> Vec<String> {
        let told = steps.iter().map(|own| sabotage::each(own.clone(), lie));
        let mut all: Vec<String> = told.filter_map(|own| misfit(&own)).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn a_planted_bug_that_takes_lanes_for_a_warp_is_refused() {
        assert_eq!(drafts(0..12).iter().find_map(|steps| misfit(steps)), None);
        for bug in [Bug::LeaderOfAll, Bug::TurnsOfAll, Bug::AddressOfEach] {
            let spoiled = sabotage::with(bug, || drafts(0..12));
            assert!(spoiled.iter().any(|steps| misfit(steps).is_some()), "{bug:?}");
        }
    }

    #[test]
    fn a_lie_about_a_value_is_refused() {
        let lane = || Term::name("team.lane", Elem::I32);
        let is_push = |step: &Step| matches!(step, Step::If { condition, .. } if condition.is_method("reserve"));
        let steps = drafts(0..12);
        // A message whose peer each lane has of its own.
        let peers = said(&steps, &|mut step| {
            if let (true, Step::If { condition, .. }) = (is_push(&step), &mut step)
                && let Node::Call(_, args) = &mut condition.node
            {
                args[0] = args[0].clone().plus(lane());
            }
            vec![step]
        });
        assert!(
            peers.iter().all(|it| it.ends_with("its lanes have different values")),
            "{peers:?}"
        );
        // A message that is sent where some lanes do not come by.
        let sends = said(&steps, &|step| match is_push(&step) {
            true => {
                let condition = lane().test(BinaryOp::Lt, Term::int(7));
                vec![Step::If { condition, body: vec![step] }]
            }
            false => vec![step],
        });
        assert!(sends.iter().all(|it| it.ends_with("some lanes do not reach it")), "{sends:?}");
        // The turns of the lanes, each as far as it likes, and those of a block by the warps of all.
        let ends = said(&steps, &|mut step| {
            if let Step::Loop(Loop { turns: Takers::Lanes, to, .. }) = &mut step {
                *to = to.clone().plus(lane());
            }
            vec![step]
        });
        assert!(ends.iter().all(|it| it.ends_with("for all lanes that share it")), "{ends:?}");
        let turns = said(&steps, &|mut step| {
            if let Step::Loop(Loop { turns: turns @ Takers::Serial, .. }) = &mut step {
                *turns = Takers::Warps;
            }
            vec![step]
        });
        assert!(turns.iter().any(|it| it.ends_with("lanes that do not all reach it")), "{turns:?}");
        // Turns that the lanes count together, in places of their own.
        let counts = said(&drafts(27..28), &|mut step| {
            if let Step::Do(Term { node: Node::Call(function, args), .. }) = &mut step
                && function.is(ep::for_hits)
                && let Some(Term { node: Node::Lambda(counts), .. }) = args.last_mut()
                && let Some(Step::Do(Term { node: Node::Call(_, args), .. })) =
                    counts.body.last_mut()
            {
                args[0] = args[0].clone().plus(lane());
            }
            vec![step]
        });
        assert!(counts.iter().all(|it| it.ends_with("what each has of its own")), "{counts:?}");
        for found in [peers, sends, ends, counts] {
            assert!(!found.is_empty());
        }
    }

    /// What the library calls for each message or peer is looked at like the steps of a role.
    #[test]
    fn a_function_that_wants_a_warp_of_a_lane_is_refused() {
        let call = |method, at: usize, body: Vec<Step>| {
            let of = |body| Lambda {
                says: Vec::new(),
                params: vec![Param { kind: ParamType::Index, name: "turn".to_string() }],
                body,
                gives: None,
            };
            let mut args: Vec<Term> = (0..4).map(|_| Term::lambda(of(Vec::new()))).collect();
            args[at] = Term::lambda(of(body));
            let class = ep::OnceOut.into();
            let object = Step::Object { class, name: "rows".to_string(), args: Vec::new() };
            misfit(&[object, Step::Do(Term::method("rows", method, args, Elem::I32))])
        };
        let by_turn = || {
            let condition = Term::index("turn").test(BinaryOp::Lt, Term::int(7));
            vec![Step::If { condition, body: vec![Step::Meet] }]
        };
        assert_eq!(call("for_messages", 0, by_turn()), None);
        assert_eq!(call("for_tokens", 2, by_turn()), None);
        let said = call("for_tokens", 3, by_turn()).expect("each lane has a peer of its own");
        assert!(said.ends_with("some lanes do not reach it"), "{said}");
        let lane = Term::name("team.lane", Elem::I32).test(BinaryOp::Lt, Term::int(7));
        let some = Step::If { condition: lane, body: vec![Step::Meet] };
        assert!(call("for_messages", 0, vec![some]).is_some());
    }
}

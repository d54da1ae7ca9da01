//! Waiting circles: what a role waits for can still happen.
//!
//! A *unit* is a statement at the top of a role's body with all that it holds: its steps take
//! turns. A unit waits for
//!
//! - the unit that fills a channel it empties, or announces a header it reads (data),
//! - the unit that empties a ring it fills (credit: a ring has a depth, everything else has room),
//! - the units above it in its role, the phases before its own, and on the last block all roles on
//!   others (order).
//!
//! The two ends of one ring wait for each other by design. A circle through an order is one that
//! nobody can leave, and so is a circle in which everyone waits for data.

use super::channels::{consumes, produces};
use super::graph::circle;
use super::model::View;
use super::walk::{self, Site};
use crate::ast::{Channel, Expr, ExprKind, Ident, StmtKind};
use crate::diagnostics::Diagnostics;
use crate::diagnostics::deadlock::{self as errors, Link, Waits};

/// A unit of a role.
struct Unit<'a> {
    role: usize,
    phase: usize,
    /// Whether it runs on the last block, when all others are done.
    is_last: bool,
    steps: Vec<Step<'a>>,
}

/// What a unit does to a channel, and the word that says so.
#[derive(Clone, Copy)]
struct Step<'a> {
    does: Does,
    channel: &'a Channel,
    word: &'a Ident,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// `push`
    Fills,
    /// A loop, a gather or an `await`.
    Empties,
    /// `announce`
    Announces,
    /// A read of an announced number.
    Hears,
}

/// Why one unit waits for another; the index is that of the waiting step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Data(usize),
    Credit(usize),
    Order,
}

/// Reports the first circle of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    let units = units(view);
    let waits: Vec<Vec<(usize, Wait)>> =
        (0..units.len()).map(|from| waits_of(&units, from)).collect();
    let of_data = |from: usize| -> Vec<usize> {
        let data = waits[from].iter().filter(|(_, wait)| matches!(wait, Wait::Data(_)));
        data.map(|(to, _)| *to).collect()
    };
    for start in 0..units.len() {
        if let Some(found) = circle(start, units.len(), &of_data) {
            return report(view, &units, &waits, &found, true, out);
        }
    }
    let of_any = |from: usize| -> Vec<usize> { waits[from].iter().map(|(to, _)| *to).collect() };
    for start in 0..units.len() {
        for (next, _) in waits[start].iter().filter(|(_, wait)| *wait == Wait::Order) {
            // The circle begins with this order, so `start` may go nowhere else.
            let forced = |from: usize| if from == start { vec![*next] } else { of_any(from) };
            if let Some(found) = circle(start, units.len(), &forced) {
                return report(view, &units, &waits, &found, false, out);
            }
        }
    }
}

/// The units of all roles, in order.
fn units<'a>(view: &View<'a>) -> Vec<Unit<'a>> {
    let mut units: Vec<Unit<'a>> = Vec::new();
    let mut phases: Vec<String> = Vec::new();
    for site in &view.sites {
        if site.loops.is_empty() || units.is_empty() {
            let name = view.roles[site.role].phase.map(|phase| phase.name.to_string());
            let name = name.unwrap_or_default();
            if !phases.contains(&name) {
                phases.push(name.clone());
            }
            let phase = phases.iter().position(|other| *other == name).unwrap_or(0);
            let is_last = view.roles[site.role].is_last();
            units.push(Unit { role: site.role, phase, is_last, steps: Vec::new() });
        }
        if let Some(unit) = units.last_mut() {
            steps(view, site, &mut unit.steps);
        }
    }
    units
}

fn steps<'a>(view: &View<'a>, site: &Site<'a>, out: &mut Vec<Step<'a>>) {
    walk::exprs(site.stmt, &mut |expr| heard(view, expr, out));
    let does = match &site.stmt.kind {
        StmtKind::Push { .. } => Some(Does::Fills),
        StmtKind::Announce { .. } => Some(Does::Announces),
        // What a `close` closes was pushed before it.
        _ => None,
    };
    if let (Some(does), Some((channel, word))) = (does, produces(view, site)) {
        out.push(Step { does, channel, word });
    }
    if let Some((channel, word)) = consumes(view, site) {
        out.push(Step { does: Does::Empties, channel, word });
    }
}

/// The headers that an expression reads.
fn heard<'a>(view: &View<'a>, expr: &'a Expr, out: &mut Vec<Step<'a>>) {
    match &expr.kind {
        ExprKind::Field { base, field } => {
            if let Some(word) = walk::root(base)
                && let Some(channel) = view.channel(word)
                && super::messages::header(channel).is_some_and(|header| header.contains(field))
            {
                out.push(Step { does: Does::Hears, channel, word });
            }
        }
        ExprKind::Binary { left, right, .. } => {
            heard(view, left, out);
            heard(view, right, out);
        }
        ExprKind::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| heard(view, part, out));
        }
        ExprKind::Call { args, .. } => args.iter().for_each(|arg| heard(view, arg, out)),
        ExprKind::Index { indices, .. } => indices.iter().for_each(|arg| heard(view, arg, out)),
        ExprKind::Cast { value, .. }
        | ExprKind::Neg { value }
        | ExprKind::Not { value }
        | ExprKind::Fold { body: value, .. } => heard(view, value, out),
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) | ExprKind::Name(_) => {}
    }
}

/// The units that `from` waits for.
fn waits_of(units: &[Unit<'_>], from: usize) -> Vec<(usize, Wait)> {
    let mut found = Vec::new();
    let unit = &units[from];
    for (to, other) in units.iter().enumerate() {
        for (index, step) in unit.steps.iter().enumerate() {
            // The first unit of a role that does something ends the wait for it.
            let does = |unit: &Unit<'_>, does: Does| {
                let same = |other: &Step<'_>| std::ptr::eq(other.channel, step.channel);
                unit.steps.iter().any(|other| other.does == does && same(other))
            };
            let answers = |what: Does| {
                let earlier = || units[..to].iter().filter(|unit| unit.role == other.role);
                does(other, what) && !earlier().any(|unit| does(unit, what))
            };
            let is_bounded = step.channel.kind.value.traits().is_bounded;
            match step.does {
                Does::Empties if answers(Does::Fills) => found.push((to, Wait::Data(index))),
                Does::Hears if answers(Does::Announces) => found.push((to, Wait::Data(index))),
                Does::Fills if is_bounded && answers(Does::Empties) => {
                    found.push((to, Wait::Credit(index)));
                }
                _ => {}
            }
        }
        let is_behind = other.phase == unit.phase && unit.is_last && !other.is_last;
        if other.phase < unit.phase || is_behind || (other.role == unit.role && to < from) {
            found.push((to, Wait::Order));
        }
    }
    found
}

/// The ring through which a role waits for itself on other ranks, and whether it passes on what it takes there.
fn own_ring<'a>(units: &[Unit<'a>], found: &[usize]) -> Option<(&'a Ident, bool)> {
    let role = units[*found.first()?].role;
    let mut steps = found.iter().flat_map(|unit| &units[*unit].steps);
    let ring = steps.find(|step| step.channel.kind.value.traits().is_bounded)?.channel;
    let both_ends = ring.from.contains(&ring.to);
    if !both_ends || found.iter().any(|unit| units[*unit].role != role) {
        return None;
    }
    let passes_on = units.iter().any(|unit| {
        let does = |does: Does| {
            unit.steps.iter().any(|step| step.does == does && std::ptr::eq(step.channel, ring))
        };
        does(Does::Fills) && does(Does::Empties)
    });
    Some((&ring.name, passes_on))
}

/// Says who waits for what; `data_only`: the circle has waits for data only, and otherwise begins
/// with an order.
fn report(
    view: &View<'_>,
    units: &[Unit<'_>],
    waits: &[Vec<(usize, Wait)>],
    found: &[usize],
    data_only: bool,
    out: &mut Diagnostics,
) {
    let mut links = Vec::new();
    for (index, from) in found.iter().enumerate() {
        let to = found[(index + 1) % found.len()];
        let (unit, role) = (&units[*from], &view.roles[units[*from].role].decl.name);
        let fits = |wait: &Wait| match wait {
            Wait::Data(_) => index > 0 || data_only,
            Wait::Credit(_) => index > 0 && !data_only,
            Wait::Order => !data_only,
        };
        let wait = waits[*from].iter().find(|(target, wait)| *target == to && fits(wait));
        let step = match wait {
            Some((_, Wait::Data(step) | Wait::Credit(step))) => unit.steps.get(*step),
            // A loop stands for itself before the header that it hears.
            _ => unit.steps.iter().find(|step| step.does != Does::Hears).or(unit.steps.first()),
        };
        let Some(step) = step else { continue };
        let channel = &step.channel.name;
        let what = match wait {
            Some((_, Wait::Data(_))) if step.does == Does::Hears => {
                Waits::For(format!("the header of `{channel}`"))
            }
            Some((_, Wait::Data(_))) => Waits::For(format!("messages of `{channel}`")),
            Some((_, Wait::Credit(_))) => Waits::For(format!("room in `{channel}`")),
            _ if units[to].phase < unit.phase => Waits::Phase,
            _ if unit.is_last && !units[to].is_last => Waits::Others,
            _ => Waits::Turn,
        };
        links.push(Link { word: step.word, role, what });
    }
    out.push(errors::circle(&links, own_ring(units, found)));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{announce, ring, with_roles};

    /// Rows from `A` through `B` to `C`.
    fn chain(b: &str) -> Vec<String> {
        let (one, two) = (ring("one", "A", "B"), ring("two", "B", "C"));
        with_roles(&format!(
            "{one} {two}
             output y: bf16[rows, hidden];
             role A[peer] on block 0 {{
                 {}
                 for token in stripe {{ push one[peer] {{ x: x[token] }}; }}
             }}
             role B[peer] on block 1 {{ {b} }}
             role C[peer] on other blocks {{
                 for message in two[peer] at two[peer].first {{ store y[message.row] = message.x; }}
             }}",
            announce("one")
        ))
    }

    #[test]
    fn a_forwarder_is_no_circle() {
        let b = format!(
            "{} for message in one[peer] {{ push two[peer] {{ ..message }}; }}",
            announce("two")
        );
        assert_eq!(chain(&b), [""; 0]);
    }

    #[test]
    fn a_forwarder_may_announce_what_it_heard() {
        let b = "announce two[peer] { first: one[peer].first, count: one[peer].count };
                 for message in one[peer] { push two[peer] { ..message }; }";
        assert_eq!(chain(b), [""; 0]);
    }

    #[test]
    fn two_rings_in_the_same_order_are_no_circle() {
        let both = |first: &str, second: &str| {
            let (one, two) = (ring("one", "A", "B"), ring("two", "A", "B"));
            let take = |name| {
                format!(
                    "for message in {name}[peer] at {name}[peer].first {{
                             store {name}_rows[message.row] = message.x;
                         }}"
                )
            };
            with_roles(&format!(
                "{one} {two}
                 output one_rows: bf16[rows, hidden], two_rows: bf16[rows, hidden];
                 role A[peer] on even blocks {{
                     {} {}
                     for token in stripe {{ push one[peer] {{ x: x[token] }}; }}
                     for token in stripe {{ push two[peer] {{ x: x[token] }}; }}
                 }}
                 role B[peer] on odd blocks {{ {} {} }}",
                announce("one"),
                announce("two"),
                take(first),
                take(second)
            ))
        };
        assert_eq!(both("one", "two"), [""; 0]);
        assert_eq!(
            both("two", "one"),
            ["`A` waits forever for room in `one`, and `B` for messages of `two`"]
        );
    }

    #[test]
    fn two_rings_filled_in_turns_must_be_emptied_in_turns() {
        let (one, two) = (ring("one", "A", "B"), ring("two", "A", "B"));
        let said = with_roles(&format!(
            "{one} {two}
             output one_rows: bf16[rows, hidden], two_rows: bf16[rows, hidden];
             role A[peer] on even blocks {{
                 {} {}
                 for token in stripe {{
                     push one[peer] {{ x: x[token] }};
                     push two[peer] {{ x: x[token] }};
                 }}
             }}
             role B[peer] on odd blocks {{
                 for message in one[peer] at one[peer].first {{
                     store one_rows[message.row] = message.x;
                 }}
                 for message in two[peer] at two[peer].first {{
                     store two_rows[message.row] = message.x;
                 }}
             }}",
            announce("one"),
            announce("two")
        ));
        assert_eq!(said, ["`B` waits forever for messages of `one`, and `A` for room in `two`"]);
    }

    #[test]
    fn the_last_block_waits_only_for_its_own_phase() {
        let said = with_roles(
            "table hits: i32[ranks]; output all: i32[1];
             phase one {
                 role A on all blocks { for peer in ranks { count hits[peer]; } }
                 role B on last block { store all[0] = sum(peer in ranks: hits[peer]); }
             }
             phase two { role C on all blocks { for peer in ranks { record to[peer] = hits[peer]; } } }
             table to: i32[ranks];",
        );
        assert_eq!(said, [""; 0]);
    }

    #[test]
    fn nobody_waits_for_what_comes_last() {
        let said = with_roles(
            "output got: i32[1], hits: i32[ranks];
             message Word { value: i32[1] }
             input own: i32[1];
             channel words: slots<Word> over nvlink from B to A per all { slot: [source] };
             role A on all blocks {
                 await words;
                 store got[0] = sum(source in ranks: words[source].value[0]);
                 for peer in ranks { count hits[peer]; }
             }
             role B on last block { for peer in ranks { push words[peer] { value: own }; } }",
        );
        assert_eq!(said, ["`A` waits forever for messages of `words`"]);
    }
}

//! Rule `apart`, of roles at no channel: what a warp does for a row one after the other, several warps do, each one turn
//! of the loop inside, or a slice of the row.
//!
//! What it gains: few rows keep many warps busy.

use super::apart::{MOST_SLICES, most_slices, slice_end, sliced_row, taken_apart};
use crate::ir::Elem;
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Root};
use crate::schedule::term::{Node, Term};

/// What is done for a row, in parts.
struct Parts {
    /// The name that the number of a part gets.
    part: String,
    /// How many there are.
    count: Term,
    body: Vec<Step>,
    /// Whether they are slices of the row.
    are_slices: bool,
    /// How many rows there are, and what finds out that and how many parts they have, where a call decides.
    rows: Option<(Term, [Step; 2])>,
}

/// The steps in which a turn of a loop over rows is one of their parts; whether there are slices.
pub(in crate::schedule) fn rewrite(
    role: &mut RoleLowering<'_>,
    steps: Vec<Step>,
) -> (Vec<Step>, bool) {
    // What a turn reads, no other one writes.
    if !role.ends().is_empty() || !role.reread.is_empty() {
        return (steps, false);
    }
    let mut slices = false;
    let one = |step: Step| {
        let Step::Loop(rows) = &step else { return vec![step] };
        let is_dealt = matches!(rows.turns, Takers::Warps | Takers::Spread) && rows.from.is(0);
        let parts = is_dealt.then(|| Parts::of(role, rows)).flatten();
        let Some(mut parts) = parts else { return vec![step] };
        slices |= parts.are_slices;
        let (count, ahead) = parts.rows.take().unzip();
        let dealt = Step::Loop(parts.dealt(role, rows, count.unwrap_or(rows.to.clone())));
        ahead.into_iter().flatten().chain([dealt]).collect()
    };
    let steps = steps.into_iter().flat_map(one).collect();
    (steps, slices)
}

impl Parts {
    fn of(role: &mut RoleLowering<'_>, rows: &Loop) -> Option<Parts> {
        let body = rows.body.as_slice();
        let is_name =
            |step: &Step| matches!(step, Step::Says(_) | Step::Remark(_) | Step::Let { .. });
        let first = body.iter().position(|step| !is_name(step))?;
        let (names, rest) = body.split_at(first);
        let mut parts = match rest {
            [Step::Loop(inner)] if is_of_turns(inner) => Parts {
                part: inner.binder.clone(),
                count: inner.to.clone(),
                body: inner.body.clone(),
                are_slices: false,
                rows: None,
            },
            _ => Parts::slices(role, (&rows.to, rest))?,
        };
        parts.body = [names, &parts.body].concat();
        Some(parts)
    }

    /// Slices of rows that lanes compute by eight neighbours each.
    fn slices(role: &mut RoleLowering<'_>, (rows, rest): (&Term, &[Step])) -> Option<Parts> {
        let is_row = |step: &Step| match step {
            Step::Says(_) => true,
            Step::Loop(row) => {
                row.turns == Takers::Wide && row.from.is(0) && only_stores(&row.body)
            }
            Step::Do(cast) => is_cast(cast),
            _ => false,
        };
        if !rest.iter().all(is_row) {
            return None;
        }
        // A cast has several loads under way in a slice, and needs no more of them than there are warps.
        let casts = |step: &Step| matches!(step, Step::Says(_) | Step::Do(_));
        let (slices, rows) = match rest.iter().all(casts) {
            true => slices_of(role, rows),
            false => (most_slices(role), None),
        };
        let part = role.names.fresh("slice");
        let cut = |step: &Step| match step {
            Step::Loop(row) => Step::Loop(sliced_row(row, &part, &slices)),
            Step::Do(cast) if is_cast(cast) => Step::Do(sliced_cast(cast, &part, &slices)),
            step => step.clone(),
        };
        let body = rest.iter().map(cut).collect();
        Some(Parts { part, count: slices, body, are_slices: true, rows })
    }

    /// A loop over all parts of all rows.
    fn dealt(self, role: &mut RoleLowering<'_>, rows: &Loop, count: Term) -> Loop {
        let unit = role.names.fresh("unit");
        let own = Term::name(&unit, Elem::I64);
        let names = taken_apart(&own, &self.count, [&rows.binder, &self.part], &rows.elem);
        Loop {
            elem: Elem::I64,
            to: count.wide().times(self.count.clone()),
            body: names.into_iter().chain(self.body).collect(),
            binder: unit,
            // Few of them are on as many blocks as there are.
            turns: Takers::Spread,
            ..rows.clone()
        }
    }
}

/// How many slices each of so many rows is cut into, as many as there are warps for; and the rows under a name, with
/// the steps that find out both.
pub(super) fn slices_of(
    role: &mut RoleLowering<'_>,
    rows: &Term,
) -> (Term, Option<(Term, [Step; 2])>) {
    let name = role.names.fresh("rows");
    let count = Term { range: rows.range, ..Term::name(&name, rows.elem.clone()) };
    let all = Step::Let { name, value: rows.clone() };
    let most = Constant::of_role(role.role).at("kSlices");
    let args = vec![Term::name("team", Elem::I32), count.clone()];
    let value = Term::call(ep::slices_of.of(most), args, Elem::I32);
    let name = role.names.fresh("slices");
    let slices = Term::small(&name, 1, MOST_SLICES);
    (slices, Some((count, [all, Step::Let { name, value }])))
}

/// Whether each turn of a loop stores what no other one does.
fn is_of_turns(inner: &Loop) -> bool {
    inner.turns == Takers::Serial
        && inner.from.is(0)
        && inner.elem == Elem::I32
        && matches!(inner.to.node, Node::Constant(_))
        && only_stores(&inner.body)
}

/// Whether steps do nothing but compute and store.
fn only_stores(steps: &[Step]) -> bool {
    steps.iter().all(|step| {
        let here = match step {
            Step::Do(Term { node: Node::Call(function, _), .. }) => match &function.root {
                Root::Library(entity) => {
                    let stores = [ep::set, ep::set_wide, ep::copy_row, ep::cast_row];
                    // Here it adds to a sum of its own.
                    stores.contains(entity) || *entity == ep::for_some_rows
                }
                _ => false,
            },
            Step::Object { class, .. } => matches!(class.root, Root::Library(ep::Wide)),
            Step::Do(_) | Step::Take { .. } | Step::While { .. } | Step::Made { .. } => false,
            _ => true,
        };
        here && only_stores(step.inner())
    })
}

/// Whether a step casts a row.
fn is_cast(term: &Term) -> bool {
    matches!(&term.node, Node::Call(function, args) if function.is(ep::cast_row))
}

/// The cast of one of the row's slices.
fn sliced_cast(cast: &Term, slice: &str, slices: &Term) -> Term {
    let mut sliced = cast.clone();
    if let Node::Call(function, args) = &mut sliced.node
        && let Some(width) = args.pop()
    {
        function.root = Root::Library(ep::cast_slice);
        args.extend([0, 1].map(|behind| slice_end(slice, slices, behind, &width)));
    }
    sliced
}

//! Rule `claims`: units of some size are taken by the warps as they come free, not dealt out beforehand.
//!
//! What it gains: peers and links are not equally fast. With fixed shares the last warp of a dispatch was
//! done a third later than the first. docs/compiler.md has what each rule gains, measured.

use crate::ir::counting::{Counting, counted};
use crate::ir::{Elem, walk};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::one_warp::is_one_block;
#[cfg(any(test, feature = "sabotage"))]
use crate::schedule::sabotage::{self, Bug};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Node, Term};

/// The steps with the loops over units claimed, and how many these are.
pub(in crate::schedule) fn rewrite(
    role: &mut RoleLowering<'_>,
    steps: Vec<Step>,
) -> (Vec<Step>, usize) {
    let dealt = steps.iter().filter(|step| matches!(step, Step::Loop(it) if is_dealt(it))).count();
    // What a loop leaves for the next one, it leaves for the same warp.
    if dealt > 1 && !role.reread.is_empty() && !role.cut {
        return (steps, 0);
    }
    if role.of_block || counts_by_stripe(role) {
        return (steps, 0);
    }
    let mut claimed = 0;
    let mut out = Vec::new();
    for step in steps {
        let Step::Loop(repeat) = step else {
            out.push(step);
            continue;
        };
        if !is_dealt(&repeat) || !is_large(&repeat) || is_short(role, &repeat) {
            out.push(Step::Loop(repeat));
            continue;
        }
        let name = role.names.fresh("units");
        let team = Term::name("team", Elem::I32);
        out.push(Step::Object {
            class: ep::Units
                .of(Constant::of_role(role.role))
                .of(Term::int((role.meets + claimed) as i64)),
            name: name.clone(),
            args: vec![team, repeat.to],
        });
        let next = Term::method(&name, "take", Vec::new(), Elem::I32);
        out.push(Step::Take { name: repeat.binder, next, body: repeat.body });
        claimed += 1;
    }
    (out, claimed)
}

/// Whether the role counts what the block to which a stripe is dealt has zeroed.
fn counts_by_stripe(role: &RoleLowering<'_>) -> bool {
    #[cfg(any(test, feature = "sabotage"))]
    if sabotage::is(Bug::CountersClaimed) {
        return false;
    }
    counted(role.ir).into_iter().any(|(tensor, kind)| {
        kind == Counting::ByStripe && walk::writes(&role.role.body, &tensor.name)
    })
}

/// Whether the warps of the role take turns of a loop that begins at 0.
fn is_dealt(repeat: &Loop) -> bool {
    matches!(repeat.turns, Takers::Warps | Takers::Spread)
        && repeat.from.is(0)
        && repeat.elem == Elem::I32
}

/// Whether the warps of one block take the turns, and the shape says how many these are: the warps are equally fast, and the
/// turns few.
fn is_short(role: &RoleLowering<'_>, repeat: &Loop) -> bool {
    is_one_block(&role.role.blocks) && repeat.to.as_constant().is_some()
}

/// Whether a turn is worth a claim: it is more than a few numbers.
fn is_large(repeat: &Loop) -> bool {
    fn loops(steps: &[Step]) -> bool {
        steps.iter().any(|step| {
            let loops_inside = |it: &Symbol| it.is(ep::cast_row) || it.is(ep::put);
            matches!(step, Step::Loop(_) | Step::Take { .. } | Step::Copy(_))
                || matches!(step, Step::Do(Term { node: Node::Call(it, _), .. }) if loops_inside(it))
                || loops(step.inner())
        })
    }
    loops(&repeat.body)
}

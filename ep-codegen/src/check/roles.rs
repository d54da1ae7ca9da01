//! Roles: every block has work, every warp has one role, and what a role shares exists.

use super::model::{Role, View};
use super::names::is_number;
use super::numbers::visit_names;
use super::ranges::{Range, range};
use super::typing::Typing;
use super::walk;
use crate::ast::{Blocks, Expr, ExprKind, Ident, OptionValue, ShapeEntry, Share};
use crate::diagnostics::{Diagnostics, limits, roles as errors};
use crate::ir::WellKnown;
use crate::syntax::reprint::expr as text;

/// Warps a block can have.
const WARPS_MAX: i128 = 32;

/// Checks the roles of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    if view.roles.is_empty() {
        let when = super::coverage::choice_words(&view.choice);
        out.push(errors::no_roles(&view.model.pipeline.name, &when));
    }
    for (index, role) in view.roles.iter().enumerate() {
        numbers(view, role, out);
        shares(view, role, out);
        stripe_uses(view, index, out);
    }
    for phase in phases(view) {
        let roles: Vec<&Role<'_>> =
            view.roles.iter().filter(|role| phase_of(role) == phase).collect();
        warps(view, &roles, out);
        coverage(view, &roles, out);
    }
}

fn phase_of(role: &Role<'_>) -> Option<String> {
    role.phase.map(|phase| phase.name.to_string())
}

fn phases(view: &View<'_>) -> Vec<Option<String>> {
    let mut phases: Vec<Option<String>> = Vec::new();
    for role in &view.roles {
        let phase = phase_of(role);
        if !phases.contains(&phase) {
            phases.push(phase);
        }
    }
    phases
}

/// Blocks and warps of a role are numbers that make sense.
fn numbers<'a>(view: &View<'a>, role: &Role<'a>, out: &mut Diagnostics) {
    let scope = &mut walk::Scope::new();
    let mut typing = Typing { view, out };
    match &role.decl.blocks {
        Blocks::One(block) => typing.whole(scope, block, "a block"),
        Blocks::Range { low, high } => {
            typing.whole(scope, low, "a block");
            typing.whole(scope, high, "a block");
            if let (Some(lows), Some(highs)) = (range(view, low), range(view, high))
                && highs.high <= lows.low
            {
                out.push(errors::empty_blocks(high.at, &text(low), &text(high)));
            }
        }
        Blocks::All | Blocks::Even | Blocks::Odd | Blocks::Other | Blocks::Last => {}
    }
    let Some(warps) = &role.decl.warps else { return };
    Typing { view, out }.whole(scope, warps, "a number of warps");
    match range(view, warps) {
        Some(count) if count.high <= 0 => out.push(errors::no_warps(warps.at, &role.decl.name)),
        Some(count) if count.low > WARPS_MAX => {
            out.push(limits::too_many_warps(warps.at, count.low));
        }
        _ => {}
    }
}

/// What the warps share has an extent; stripes need a number of stripes.
fn shares(view: &View<'_>, role: &Role<'_>, out: &mut Diagnostics) {
    if let (Some(binder), Some(at)) = (&role.decl.binder, role.decl.share_at) {
        out.push(errors::binder_and_share(at, binder, &role.decl.name));
    }
    let Some(Share::Warps(names)) = &role.decl.share else { return };
    for (index, name) in names.iter().enumerate() {
        if let Some(first) = names[..index].iter().find(|first| *first == name) {
            out.push(crate::diagnostics::names::duplicate(name, "index", first));
        } else if name == "stripe" || name == "token" {
            if names.len() > 1 && name == "token" {
                out.push(errors::token_with_others(name));
            }
        } else if !has_extent(view, name) {
            out.push(crate::diagnostics::names::unknown(name, "index", shareable(view)));
        }
    }
}

/// Whether something says how many values `name` has: a slot's index, or a number in the plural.
fn has_extent(view: &View<'_>, name: &Ident) -> bool {
    shareable(view).iter().any(|known| name == known)
}

/// What warps can share.
fn shareable(view: &View<'_>) -> Vec<String> {
    let mut known = vec!["stripe".to_string(), "token".to_string()];
    if is_number(view, WellKnown::Ranks.name()) {
        known.push("source".to_string());
    }
    for option in view.channels.iter().flat_map(|channel| &channel.options) {
        if let OptionValue::Slot(axes) = &option.value {
            known.extend(axes.iter().map(|axis| axis.name.to_string()));
        }
    }
    for entry in &view.shape {
        if let ShapeEntry::Given { name, .. } | ShapeEntry::Derived { name, .. } = entry
            && let Some(singular) = name.to_string().strip_suffix('s')
        {
            known.push(singular.to_string());
        }
    }
    let tunes = view.tunes.iter().map(|tune| tune.name.to_string());
    known.extend(tunes.filter_map(|name| name.strip_suffix('s').map(str::to_string)));
    known.sort();
    known.dedup();
    known
}

/// `stripe` means something only in a role that is dealt out by stripes.
fn stripe_uses(view: &View<'_>, index: usize, out: &mut Diagnostics) {
    let role = &view.roles[index];
    let mut uses: Vec<&Ident> = Vec::new();
    for site in view.sites.iter().filter(|site| site.role == index) {
        walk::exprs(site.stmt, &mut |expr| {
            visit_names(expr, &mut |name| {
                if name == "stripe" && !site.scope.iter().any(|binder| binder.name == name) {
                    uses.push(name);
                }
            });
        });
    }
    let dealt = match (&role.decl.binder, &role.decl.share) {
        (Some(_), _) => true,
        (None, Some(Share::Warps(_))) => true,
        (None, Some(Share::BlockPerToken) | None) => false,
    };
    let shared = match &role.decl.share {
        Some(Share::Warps(names)) => names.iter().find(|name| *name == "stripe"),
        _ => None,
    };
    if let Some(first) = uses.first().filter(|_| !dealt) {
        return out.push(errors::no_stripe(first, &role.decl.name));
    }
    if let Some(first) = uses.first().copied().or(shared)
        && !is_number(view, WellKnown::Stripes.name())
    {
        out.push(errors::no_stripes(first));
    }
}

/// Roles that may meet in a block run side by side, so each says how many warps are its own. All that do
/// not are told at once.
fn warps(view: &View<'_>, roles: &[&Role<'_>], out: &mut Diagnostics) {
    let is_open = |role: &Role<'_>| role.decl.warps.is_none();
    for (index, role) in roles.iter().enumerate() {
        // Two roles of one name are an error of their own.
        let mut others = roles.iter().filter(|other| other.decl.name != role.decl.name);
        if is_open(role)
            && let Some(other) = others.find(|other| meet(view, other, role))
        {
            out.push(errors::same_warps(role.decl, other.decl));
        }
        let before: Vec<&&Role<'_>> =
            roles[..index].iter().filter(|other| meet(view, other, role)).collect();
        if is_open(role) || before.iter().any(|other| is_open(other)) {
            continue;
        }
        // As many of those before as also meet each other fill one block together.
        let mut together: Vec<&Role<'_>> = vec![*role];
        for other in before {
            if together.iter().all(|member| meet(view, other, member)) {
                together.push(*other);
            }
        }
        let least = |role: &&Role<'_>| {
            let warps = role.decl.warps.as_ref().and_then(|warps| range(view, warps));
            warps.map_or(1, |warps| warps.low.max(1))
        };
        let total: i128 = together.iter().map(least).sum();
        let each_fits = together.iter().all(|role| least(role) <= WARPS_MAX);
        let too_many = each_fits && total > WARPS_MAX;
        if let (Some(warps), true) = (&role.decl.warps, too_many) {
            let others: Vec<&Ident> = together[1..].iter().map(|other| &other.decl.name).collect();
            out.push(limits::no_room_for_warps(warps.at, &role.decl.name, &others, total));
        }
    }
}

/// Whether two roles may run in one block.
fn meet(view: &View<'_>, a: &Role<'_>, b: &Role<'_>) -> bool {
    match (&a.decl.blocks, &b.decl.blocks) {
        (Blocks::Last, other) | (other, Blocks::Last) => matches!(other, Blocks::Last),
        (Blocks::Even, Blocks::Odd) | (Blocks::Odd, Blocks::Even) => false,
        (Blocks::Other, Blocks::One(_) | Blocks::Range { .. })
        | (Blocks::One(_) | Blocks::Range { .. }, Blocks::Other) => false,
        (Blocks::One(Expr { kind: ExprKind::Int(block), .. }), Blocks::Even | Blocks::Odd) => {
            (block % 2 == 0) == matches!(b.decl.blocks, Blocks::Even)
        }
        (Blocks::Even | Blocks::Odd, Blocks::One(_)) => meet(view, b, a),
        (left, right) => match (span(view, left), span(view, right)) {
            (Some(left), Some(right)) => {
                !(ends_before(&left, &right) || ends_before(&right, &left))
            }
            _ => true,
        },
    }
}

/// First block and the one past the last, as intervals and as text.
struct Span {
    low: (Option<Range>, String),
    high: (Option<Range>, String),
}

fn span(view: &View<'_>, blocks: &Blocks) -> Option<Span> {
    let end = |expr: &Expr| (range(view, expr), text(expr));
    match blocks {
        Blocks::One(block) => {
            let (value, written) = end(block);
            let next = value.map(|v| Range { low: v.low + 1, high: v.high + 1 });
            let text = match &block.kind {
                ExprKind::Int(number) => number.saturating_add(1).to_string(),
                _ => format!("{written} + 1"),
            };
            Some(Span { low: (value, written), high: (next, text) })
        }
        Blocks::Range { low, high } => Some(Span { low: end(low), high: end(high) }),
        _ => None,
    }
}

/// Whether `a` ends where `b` begins, or before.
fn ends_before(a: &Span, b: &Span) -> bool {
    let known = matches!((a.high.0, b.low.0), (Some(end), Some(begin)) if end.high <= begin.low);
    known || a.high.1 == b.low.1
}

/// Every block of the grid has a role.
fn coverage(view: &View<'_>, roles: &[&Role<'_>], out: &mut Diagnostics) {
    let has = |wanted: fn(&Blocks) -> bool| roles.iter().find(|role| wanted(&role.decl.blocks));
    let ranges: Vec<(&Role<'_>, Span)> =
        roles.iter().filter_map(|role| Some((*role, span(view, &role.decl.blocks)?))).collect();
    if let Some(other) = has(|blocks| matches!(blocks, Blocks::Other))
        && ranges.is_empty()
    {
        out.push(errors::other_than_nothing(other.decl.blocks_at, &other.decl.name));
    }
    if has(|blocks| matches!(blocks, Blocks::All | Blocks::Other)).is_some() {
        return;
    }
    let even = has(|blocks| matches!(blocks, Blocks::Even));
    let odd = has(|blocks| matches!(blocks, Blocks::Odd));
    match (even, odd) {
        (Some(_), Some(_)) => return,
        (Some(role), None) => {
            return out.push(errors::blocks_not_covered(role.decl.blocks_at, "odd blocks"));
        }
        (None, Some(role)) => {
            return out.push(errors::blocks_not_covered(role.decl.blocks_at, "even blocks"));
        }
        (None, None) => {}
    }
    if let (Some(last), true) = (has(|blocks| matches!(blocks, Blocks::Last)), ranges.is_empty()) {
        return out.push(errors::blocks_not_covered(last.decl.blocks_at, "the blocks before"));
    }
    // Ranges end to end from block 0 are the whole grid.
    let begins = |span: &Span| matches!(span.low.0, Some(Range { low: 0, high: 0 }));
    if let Some((role, span)) = ranges.first()
        && !ranges.iter().any(|(_, span)| begins(span))
    {
        let missing = format!("blocks 0..{}", span.low.1);
        return out.push(errors::blocks_not_covered(role.decl.blocks_at, &missing));
    }
    for (role, span) in &ranges {
        let follows = |other: &Span| {
            let known = match (other.low.0, other.high.0, span.low.0) {
                (Some(first), Some(end), Some(begin)) => {
                    first.high < begin.low && end.low >= begin.high
                }
                _ => false,
            };
            known || other.high.1 == span.low.1
        };
        let next_to = ranges.iter().any(|(other, at)| !std::ptr::eq(*other, *role) && follows(at));
        if !begins(span) && !next_to {
            let missing = format!("the blocks before `{}`", span.low.1);
            out.push(errors::blocks_not_covered(role.decl.blocks_at, &missing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;

    fn roles(heads: &[&str]) -> Vec<String> {
        let roles: Vec<String> = heads
            .iter()
            .enumerate()
            .map(|(index, head)| format!("role R{index} on {head} {{ count seen[{index}]; }}"))
            .collect();
        said_to(&format!(
            "shape {{ ranks: 1..=8 }} arg {{ some: i32 = 4 in 1..=8 }} output seen: i32[ranks]; {}",
            roles.join(" ")
        ))
    }

    #[test]
    fn blocks_end_to_end_are_the_whole_grid() {
        assert_eq!(roles(&["block 0", "blocks 1..some", "other blocks"]), [""; 0]);
        assert_eq!(roles(&["blocks 0..some", "blocks some..16"]), [""; 0]);
        assert_eq!(roles(&["even blocks", "odd blocks"]), [""; 0]);
        assert_eq!(roles(&["block 0"]), [""; 0]);
        assert_eq!(roles(&["blocks 2..4"]), ["no role runs on blocks 0..2"]);
        assert_eq!(roles(&["odd blocks"]), ["no role runs on even blocks"]);
        assert_eq!(roles(&["all blocks", "last block", "last block, 4 warps"]).len(), 1);
        assert_eq!(roles(&["all blocks", "last block"]), [""; 0]);
        assert_eq!(roles(&["last block"]), ["no role runs on the blocks before"]);
    }

    #[test]
    fn roles_in_one_block_say_their_warps() {
        assert_eq!(roles(&["all blocks, 16 warps", "block 0, 16 warps"]), [""; 0]);
        assert_eq!(roles(&["even blocks, 8 warps", "odd blocks", "block 2, 8 warps"]), [""; 0]);
        assert_eq!(
            roles(&["all blocks", "odd blocks, 4 warps"]),
            ["`R0` and `R1` run on the same warps: `R0` does not say how many warps it has"]
        );
        let three = roles(&["all blocks", "odd blocks", "all blocks"]);
        let open = three.iter().map(|said| said.split("warps: ").last().unwrap_or_default());
        let says = ["`R0` does", "`R1` does", "`R2` does"]
            .map(|role| format!("{role} not say how many warps it has"));
        assert_eq!(open.collect::<Vec<_>>(), says, "all of them are told at once");
        assert_eq!(
            roles(&["all blocks, 16 warps", "odd blocks, 12 warps", "block 1, 8 warps"]),
            ["`R2`, `R0` and `R1` need 36 warps in one block, which has 32"]
        );
    }
}

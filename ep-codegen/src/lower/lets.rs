//! Names of positions: a `let` that only positions of pushes use stands there as its value, so that a role
//! with the name and one without it are the same.

use crate::ir::put::{hides, is_made_of, put};
use crate::ir::{Action, Expr, Stmt, change, walk};

/// Longest position that a name is put into, in parts: names of names could double at each step.
const PARTS_MAX: usize = 256;

/// Puts the values of such names in their place, in the whole body of a role.
pub(super) fn settle(body: &mut Vec<Stmt>) {
    let mut names: Vec<String> = Vec::new();
    walk::stmts(body, &mut |stmt| names.extend(let_of(stmt).map(|(name, _)| name.clone())));
    // The last one first: it may be made of those before it.
    while let Some(name) = names.pop() {
        // Arms may each have a name like this one.
        if !names.contains(&name) {
            settle_one(body, &name);
        }
        names.retain(|other| *other != name);
    }
}

fn let_of(stmt: &Stmt) -> Option<(&String, &Expr)> {
    match &stmt.action {
        Action::Let { name, value } => Some((name, value)),
        _ => None,
    }
}

/// Puts the value of the only `let` of this name into the positions that use it, if nothing else does.
fn settle_one(body: &mut Vec<Stmt>, name: &str) {
    let mut value = None;
    let (mut positions, mut others) = (0, 0);
    walk::stmts(body, &mut |stmt| {
        value = value.or(let_of(stmt).filter(|(own, _)| *own == name).map(|(_, value)| value));
        let mut all = 0;
        walk::exprs(stmt, &mut |part| all += usize::from(is_made_of(part, name)));
        let mut here = 0;
        if let Action::Push { position: Some(position), .. } = &stmt.action {
            walk::expr(position, &mut |part| here += usize::from(is_name(part, name)));
            others += usize::from(here > 0 && !can_hold(position, name, value));
        }
        positions += here;
        others += all - here;
    });
    let Some(value) = value.cloned().filter(|_| positions > 0 && others == 0) else { return };
    replace(body, name, &value);
}

fn is_name(part: &Expr, name: &str) -> bool {
    matches!(part, Expr::Name { name: own, .. } if own == name)
}

/// Whether a position may hold the value in place of the name: it does not grow too long, and no fold in
/// it gives one of the value's own names another meaning.
fn can_hold(position: &Expr, name: &str, value: Option<&Expr>) -> bool {
    let Some(value) = value else { return false };
    let parts = |whole: &Expr| {
        let mut parts = 0;
        walk::expr(whole, &mut |_| parts += 1);
        parts
    };
    let mut uses = 0;
    walk::expr(position, &mut |part| uses += usize::from(is_name(part, name)));
    !hides(position, value) && parts(position) + uses * parts(value) <= PARTS_MAX
}

fn replace(body: &mut Vec<Stmt>, name: &str, value: &Expr) {
    body.retain(|stmt| let_of(stmt).is_none_or(|(own, _)| own != name));
    for stmt in body {
        if let Action::Push { position: Some(position), .. } = &mut stmt.action {
            put(position, name, value);
        }
        if let Some(body) = change::nested(stmt) {
            replace(body, name, value);
        }
    }
}

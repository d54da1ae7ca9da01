//! The loop that sends, in a role that takes the rows itself: statements for a token that have nothing to do with the rows get
//! a loop of their own behind it, so that they belong to everything else that the role computes.

use super::{Action, Channel, Domain, Expr, NameKind, Pipeline, Stmt, walk};

/// Splits the loops of such roles of a selected pipeline.
pub(super) fn split(ir: &mut Pipeline) {
    for role in &mut ir.roles {
        let own = |it: &&Channel| it.kind.traits().lands && it.is_held_by(role);
        let Some(rows) = ir.channels.iter().find(own) else { continue };
        for mut stmt in std::mem::take(&mut role.body) {
            let rest = if walk::pushes_to(&stmt, rows) { split_off(&mut stmt) } else { None };
            role.body.push(stmt);
            role.body.extend(rest);
        }
    }
}

/// Takes what writes for a token out of a loop over tokens, as far as it touches nothing of the rest. Returns the loop that
/// does it.
fn split_off(stmt: &mut Stmt) -> Option<Stmt> {
    let Action::For { binder, domain: Domain::Tokens, position: None, filter, body } =
        &mut stmt.action
    else {
        return None;
    };
    let (mut kept, mut moved) = (body.clone(), Vec::new());
    let mut at = 0;
    while at < kept.len() {
        let one = kept.remove(at);
        if is_apart(&one, binder, filter.as_ref(), &kept) {
            moved.push(one);
        } else {
            kept.insert(at, one);
            at += 1;
        }
    }
    if moved.is_empty() {
        return None;
    }
    *body = kept;
    let mut rest = stmt.clone();
    if let Action::For { body, .. } = &mut rest.action {
        *body = moved;
    }
    Some(rest)
}

/// Whether a statement writes one element of a tensor that the rest of the loop does not touch, and needs nothing of the rest
/// but the number of the token.
fn is_apart(one: &Stmt, token: &str, filter: Option<&Expr>, rest: &[Stmt]) -> bool {
    let (Action::Record { target, .. } | Action::Store { target, .. }) = &one.action else {
        return false;
    };
    let own = &target.tensor;
    let mut fits = !walk::writes(rest, own);
    walk::stmts(rest, &mut |stmt| {
        let mut see = |part: &Expr| {
            fits &= !matches!(part, Expr::Element { tensor, .. } if tensor == own);
        };
        walk::exprs(stmt, &mut see);
    });
    let changes = |part: &Expr| matches!(part, Expr::Element { tensor, .. } if tensor == own || walk::writes(rest, tensor));
    // The condition of the loop is tested again behind it.
    filter.into_iter().for_each(|it| walk::expr(it, &mut |part| fits &= !changes(part)));
    let mut folds = vec![token.to_string()];
    walk::exprs(one, &mut |part| {
        if let Expr::Fold { binder, .. } = part {
            folds.push(binder.clone());
        }
    });
    walk::exprs(one, &mut |part| {
        fits &= match part {
            Expr::Element { .. } => !changes(part),
            Expr::Name { name, kind: NameKind::Binder } => folds.contains(name),
            Expr::OfChannel { .. } | Expr::Field { .. } => false,
            _ => true,
        };
    });
    fits
}

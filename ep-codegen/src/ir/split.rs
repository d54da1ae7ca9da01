//! The loop that sends, in a role that takes the rows itself: statements for a token that have nothing to do with the rows get
//! a loop of their own behind it, so that they belong to everything else that the role computes.

use super::{Action, Channel, Domain, Expr, NameKind, Pipeline, Role, Stmt, walk};

/// Splits the loops of such roles of a selected pipeline.
pub(super) fn split(ir: &mut Pipeline) {
    let mut roles = std::mem::take(&mut ir.roles);
    for role in &mut roles {
        let own = |channel: &&Channel| {
            channel.kind.traits().lands
                && channel.to == role.name
                && channel.from.as_slice() == std::slice::from_ref(&role.name)
        };
        let Some(rows) = ir.channels.iter().find(own) else { continue };
        split_role(role, &rows.name);
    }
    ir.roles = roles;
}

/// Splits the loops of a role that push to `rows`.
fn split_role(role: &mut Role, rows: &str) {
    let mut body = Vec::with_capacity(role.body.len());
    for mut stmt in std::mem::take(&mut role.body) {
        let rest = match pushes(&stmt, rows) {
            true => split_off(&mut stmt),
            false => None,
        };
        body.push(stmt);
        body.extend(rest);
    }
    role.body = body;
}

/// Whether a statement, or one in it, pushes to a channel.
fn pushes(stmt: &Stmt, rows: &str) -> bool {
    let mut found = false;
    walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
        found |= matches!(&inner.action, Action::Push { channel, .. } if channel == rows);
    });
    found
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
    let (mut asked, mut touched, mut written) = (Vec::new(), Vec::new(), Vec::new());
    let tensor_of = |part: &Expr| match part {
        Expr::Element { tensor, .. } => Some(tensor.clone()),
        _ => None,
    };
    let filter = filter.into_iter();
    filter.for_each(|filter| walk::expr(filter, &mut |part| asked.extend(tensor_of(part))));
    walk::stmts(rest, &mut |stmt| {
        walk::exprs(stmt, &mut |part| touched.extend(tensor_of(part)));
        written.extend(walk::target(stmt).map(|place| place.tensor.clone()));
    });
    // The condition of the loop is tested again behind it.
    let is_changed = |tensor: &String| written.contains(tensor) || *tensor == target.tensor;
    let mut fits = !asked.iter().any(is_changed);
    let mut folds = vec![token.to_string()];
    walk::exprs(one, &mut |part| {
        if let Expr::Fold { binder, .. } = part {
            folds.push(binder.clone());
        }
    });
    fits &= !touched.contains(&target.tensor) && !written.contains(&target.tensor);
    walk::exprs(one, &mut |part| {
        fits &= match part {
            Expr::Element { tensor, .. } => *tensor != target.tensor && !written.contains(tensor),
            Expr::Name { name, kind: NameKind::Binder } => folds.contains(name),
            Expr::OfChannel { .. } | Expr::Field { .. } => false,
            _ => true,
        };
    });
    fits
}

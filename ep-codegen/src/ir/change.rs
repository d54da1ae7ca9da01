//! Changing the statements and expressions of a pipeline, inner ones first.

use super::{Action, Domain, Expr, FieldValue, Place, Stmt};

/// Shows every statement of `body` and of the blocks in it.
pub fn stmts(body: &mut [Stmt], see: &mut dyn FnMut(&mut Stmt)) {
    for stmt in body {
        if let Some(inner) = nested(stmt) {
            stmts(inner, see);
        }
        see(stmt);
    }
}

/// The block of a statement, if it has one.
pub fn nested(stmt: &mut Stmt) -> Option<&mut Vec<Stmt>> {
    match &mut stmt.action {
        Action::For { body, .. } | Action::Receive { body, .. } | Action::Gather { body, .. } => {
            Some(body)
        }
        _ => None,
    }
}

/// Shows the expressions of `stmt`, but no parts of them and none of its block. `see(expr, is_number)`: whether it can only
/// be a whole number, such as an index or the end of a range.
pub fn roots(stmt: &mut Stmt, see: &mut dyn FnMut(&mut Expr, bool)) {
    match &mut stmt.action {
        Action::For { domain, position, filter, .. } => {
            in_domain(domain, see);
            numbers(position, see);
            values(filter, see);
        }
        Action::Receive { peer, position, filter, .. } => {
            numbers(peer.iter_mut().chain(position), see);
            values(filter, see);
        }
        Action::Gather { domain, peer, position, over, .. } => {
            in_domain(domain, see);
            numbers(peer.iter_mut().chain([position]), see);
            in_domain(over, see);
        }
        Action::Announce { peer, values, .. } => {
            numbers([peer], see);
            of_fields(values, see);
        }
        Action::Push { peer, position, values, .. } => {
            numbers(peer.iter_mut().chain(position), see);
            of_fields(values, see);
        }
        Action::Store { target, value }
        | Action::Record { target, value }
        | Action::Add { target, value } => {
            in_place(target, see);
            values([value], see);
        }
        Action::Count { target } | Action::Raise { target } => in_place(target, see),
        Action::AwaitWord { word, least } => {
            in_place(word, see);
            numbers([least], see);
        }
        Action::Let { value, .. } => values([value], see),
        Action::Await { .. } | Action::Close { .. } => {}
    }
}

/// Shows every part of `whole`, and `whole` itself last. `see(part, is_number)` as for [`roots`].
pub fn expr(whole: &mut Expr, is_number: bool, see: &mut dyn FnMut(&mut Expr, bool)) {
    {
        let mut inner = |part: &mut Expr, is_number: bool| expr(part, is_number, see);
        match whole {
            Expr::Element { indices, .. } | Expr::Field { indices, .. } => {
                numbers(indices, &mut inner);
            }
            Expr::OfChannel { index, indices, .. } => {
                numbers(index.iter_mut().chain(indices), &mut inner);
            }
            Expr::Call { args, .. } => values(args, &mut inner),
            Expr::Fold { domain, body, .. } => {
                in_domain(domain, &mut inner);
                inner(body, is_number);
            }
            Expr::Cast { value, .. } | Expr::Not { value } => inner(value, false),
            Expr::If { condition, yes, no } => {
                inner(condition, false);
                inner(yes, is_number);
                inner(no, is_number);
            }
            Expr::Binary { left, right, .. } => {
                inner(left, is_number);
                inner(right, is_number);
            }
            Expr::Int { .. } | Expr::Real { .. } | Expr::Bool { .. } | Expr::Name { .. } => {}
        }
    }
    see(whole, is_number);
}

fn numbers<'e>(list: impl IntoIterator<Item = &'e mut Expr>, see: &mut dyn FnMut(&mut Expr, bool)) {
    list.into_iter().for_each(|part| see(part, true));
}

fn values<'e>(list: impl IntoIterator<Item = &'e mut Expr>, see: &mut dyn FnMut(&mut Expr, bool)) {
    list.into_iter().for_each(|part| see(part, false));
}

fn of_fields(list: &mut [FieldValue], see: &mut dyn FnMut(&mut Expr, bool)) {
    values(list.iter_mut().map(|field| &mut field.value), see);
}

fn in_place(place: &mut Place, see: &mut dyn FnMut(&mut Expr, bool)) {
    numbers(&mut place.indices, see);
}

fn in_domain(domain: &mut Domain, see: &mut dyn FnMut(&mut Expr, bool)) {
    match domain {
        // The row is not an element of a tensor.
        Domain::Row { row } => see(row, false),
        Domain::ReceivedFrom { peer } => see(peer, true),
        Domain::Range { low, high } => numbers([low, high], see),
        Domain::Tokens
        | Domain::Stripe
        | Domain::Dim { .. }
        | Domain::Peers { .. }
        | Domain::Once => {}
    }
}

//! Which roles take the rows of a call stripe by stripe.

use super::{Action, Domain, Expr, NameKind, Pipeline, Role, Share, walk};

/// Whether the body of a role is run once for each stripe: its warps share stripes by name, or it speaks of
/// one, or holds an end of a channel that is opened for each.
pub fn is_by_stripe(ir: &Pipeline, role: &Role) -> bool {
    match &role.share {
        Share::SourceStripe => true,
        Share::Indices { names } if names.iter().any(|name| name == "stripe") => true,
        // Where warps share something else, a sender needs stripes of its own to be one of several.
        Share::Indices { .. } | Share::Team => takes_stripes(ir, role) || names_stripes(role),
        Share::Stripe | Share::Token | Share::BlockPerToken | Share::Peer { .. } => {
            takes_stripes(ir, role) || sends_stripes(ir, role) || names_stripes(role)
        }
    }
}

/// Whether a role holds an end of a channel that keeps the messages of each stripe apart at both ends.
fn takes_stripes(ir: &Pipeline, role: &Role) -> bool {
    ir.channels.iter().any(|channel| {
        channel.kind.traits().opens_in
            && (channel.to == role.name || channel.from.contains(&role.name))
    })
}

/// Whether a role sends rows that are told of by stripe.
fn sends_stripes(ir: &Pipeline, role: &Role) -> bool {
    let sends = |channel: &&super::Channel| channel.from.contains(&role.name);
    ir.channels.iter().filter(sends).any(|channel| channel.kind.traits().opens_out)
}

fn names_stripes(role: &Role) -> bool {
    let mut found = false;
    walk::stmts(&role.body, &mut |stmt| {
        found |= matches!(
            &stmt.action,
            Action::For { domain: Domain::Stripe, .. }
                | Action::Gather { domain: Domain::Stripe, .. }
        );
        walk::exprs(stmt, &mut |part| {
            found |= matches!(part, Expr::Name { kind: NameKind::Stripe, .. })
                || matches!(part, Expr::Fold { domain, .. } if **domain == Domain::Stripe);
        });
    });
    found
}

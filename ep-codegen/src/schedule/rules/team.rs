//! Roles that work as one team: their loops are spread over warps and lanes.

use super::values::{is_name, mentions_name};
use super::width::is_narrow;
use super::{Checked, Forms};
use crate::ir::{Action, Domain, Expr, Fold, NameKind, PeerSet, Place, Stmt, walk};
use crate::schedule::extents::{is_extent, is_one_more, writes_long_row};
use crate::schedule::typed::elem_of;

impl Forms<'_> {
    pub(super) fn check_team(&self, stmt: &Stmt) -> Checked {
        let mut stripes = false;
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            walk::exprs(inner, &mut |part| {
                stripes |= matches!(part, Expr::Name { kind: NameKind::Stripe, .. });
            });
        });
        if stripes {
            return self.refuse(&stmt.at, "`stripe` has a value only in a loop over a stripe");
        }
        let mut rows = Ok(());
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if writes_long_row(self.ir, inner) {
                rows = self.refuse(&inner.at, "one warp has to write a row of many values");
            }
            walk::exprs(inner, &mut |part| {
                if rows.is_ok() {
                    rows = self.refuse_rows(inner, part);
                }
            });
        });
        rows?;
        self.check_team_stmt(stmt, &[])?;
        self.check_turns(stmt)
    }

    /// A turn of a loop has a warp if some statement right in it needs one, else a lane; deeper down
    /// there are only lanes.
    fn check_turns(&self, stmt: &Stmt) -> Checked {
        let Action::For { filter, body, .. } = &stmt.action else {
            return match stmt.action {
                Action::Await { .. } | Action::Store { .. } | Action::Record { .. } => Ok(()),
                _ => Err(self.no_form(stmt)),
            };
        };
        if filter.is_some() || !takes_warps(body) {
            return body.iter().try_for_each(|inner| self.check_turn_of_lane(inner));
        }
        body.iter().try_for_each(|inner| match &inner.action {
            Action::Push { .. } | Action::Store { .. } | Action::Record { .. } => Ok(()),
            Action::For { filter: None, body, .. } if !takes_warps(body) => {
                body.iter().try_for_each(|leaf| self.check_turn_of_lane(leaf))
            }
            _ => Err(self.no_form(inner)),
        })
    }

    fn check_turn_of_lane(&self, stmt: &Stmt) -> Checked {
        let mut found = Ok(());
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if needs_warp(inner) && found.is_ok() {
                found = Err(self.no_form(inner));
            }
        });
        found
    }

    fn check_team_stmt(&self, stmt: &Stmt, loops: &[(&str, &Domain, bool)]) -> Checked {
        match &stmt.action {
            Action::For { binder, domain, position: None, filter, body } => {
                self.check_counted(stmt, domain)?;
                if let Some(condition) = filter {
                    self.refuse_optional(stmt, condition)?;
                    self.check_expr(stmt, condition)?;
                }
                let mut inside = loops.to_vec();
                inside.push((binder.as_str(), domain, filter.is_some()));
                body.iter().try_for_each(|inner| self.check_team_stmt(inner, &inside))
            }
            Action::Push { channel, peer, values, .. }
                if self.is_kind(channel, |kind| kind.is_indexed) =>
            {
                let all = |domain: &Domain| match domain {
                    Domain::Peers { set } => *set == PeerSet::All,
                    Domain::Dim { name } => name == "ranks",
                    _ => false,
                };
                let every = matches!((loops, peer), ([(binder, domain, false)],
                    Some(Expr::Name { name, .. })) if all(domain) && name == binder);
                if !every {
                    let why = "every rank waits for a record from each peer: push in a loop over \
                    `ranks` to its binder";
                    return self.refuse(&stmt.at, why);
                }
                self.check_single_push(stmt, channel)?;
                values.iter().try_for_each(|value| {
                    self.check_field(stmt, channel, &value.name, &value.value)
                })
            }
            Action::Store { target, value } | Action::Record { target, value }
                if matches!(value, Expr::Fold { fold: Fold::PrefixSum, .. }) =>
            {
                if loops.iter().any(|(.., filtered)| *filtered) {
                    return self
                        .refuse(&stmt.at, "a prefix sum has to be in a loop without `where`");
                }
                self.check_prefix(stmt, target, value)
            }
            Action::Announce { .. } | Action::Receive { .. } | Action::Gather { .. } => {
                Err(self.no_form(stmt))
            }
            _ => self.check_write(stmt, loops.first().map(|(binder, ..)| *binder)),
        }
    }

    /// One record a call for each source: a second one would take the place of the first.
    fn check_single_push(&self, stmt: &Stmt, channel: &str) -> Checked {
        let mut pushes = 0;
        for role in &self.ir.roles {
            walk::stmts(&role.body, &mut |inner| {
                pushes += usize::from(
                    matches!(&inner.action, Action::Push { channel: to, .. } if to == channel),
                );
            });
        }
        if pushes == 1 {
            return Ok(());
        }
        self.refuse(&stmt.at, "a call can fill each slot only once")
    }

    /// A loop that counts from a number to another one.
    pub(super) fn check_counted(&self, stmt: &Stmt, domain: &Domain) -> Checked {
        match domain {
            Domain::Tokens | Domain::Dim { .. } => Ok(()),
            Domain::Peers { set: PeerSet::All | PeerSet::Others } => Ok(()),
            Domain::Range { low, high } => {
                for end in [low, high] {
                    self.refuse_optional(stmt, end)?;
                    self.check_expr(stmt, end)?;
                }
                Ok(())
            }
            _ => self.refuse(&stmt.at, "no class has a loop over this domain"),
        }
    }

    /// `place = prefix_sum(binder in domain: value)`: in 32 bits, each sum at its binder.
    fn check_prefix(&self, stmt: &Stmt, target: &Place, value: &Expr) -> Checked {
        let Expr::Fold { binder, domain, body, .. } = value else { return Ok(()) };
        self.check_expr(stmt, body)?;
        self.check_target(stmt, target)?;
        self.refuse_optional(stmt, body)?;
        if self.tensor(&target.tensor)?.optional {
            return self.refuse(&stmt.at, "a prefix sum needs a target that is not optional");
        }
        if !is_narrow(&elem_of(self.ir, body)) {
            return self.refuse(&stmt.at, "a prefix sum can add only 32-bit numbers");
        }
        let Domain::Dim { name: count } = &**domain else {
            return self.refuse(&stmt.at, "a prefix sum has to run over a number of the shape");
        };
        let tensor = self.tensor(&target.tensor)?;
        let at: Vec<usize> = (0..target.indices.len())
            .filter(|axis| mentions_name(&target.indices[*axis], binder))
            .collect();
        let place = match at.as_slice() {
            [axis] if is_name(&target.indices[*axis], binder) => tensor.dims.get(*axis),
            _ => None,
        };
        match place {
            Some(extent) if self.sum_fits(extent, count) => Ok(()),
            _ => {
                let why = format!(
                    "its binder has to be one index of the target, with the extent `{count}` or `{count} + 1`"
                );
                self.refuse(&stmt.at, &why)
            }
        }
    }

    fn sum_fits(&self, extent: &Expr, count: &str) -> bool {
        is_extent(self.ir, extent, count) || is_one_more(self.ir, extent, count)
    }
}

/// Whether a statement is a whole warp's work.
fn needs_warp(stmt: &Stmt) -> bool {
    match &stmt.action {
        Action::Push { .. } | Action::Await { .. } => true,
        Action::Store { value, .. } | Action::Record { value, .. } => is_prefix(value),
        _ => false,
    }
}

/// Whether each turn of a loop with this body takes a warp.
pub(crate) fn takes_warps(body: &[Stmt]) -> bool {
    let is_range =
        |stmt: &Stmt| matches!(stmt.action, Action::For { domain: Domain::Range { .. }, .. });
    body.iter().any(|stmt| needs_warp(stmt) || is_range(stmt))
}

pub(crate) fn is_prefix(value: &Expr) -> bool {
    matches!(value, Expr::Fold { fold: Fold::PrefixSum, .. })
}

//! Checks that a role which a class of the library carries has the inputs and numbers that its helpers read implicitly.

use super::{Checked, Forms};
use crate::ir::{Action, DimKind, Domain, Elem, ElemType, Expr, Role, Stmt, WellKnown, walk};
use crate::schedule::extents::range_of;

/// Helpers that look up where experts live.
const OF_EXPERTS: [&str; 4] = ["local", "owned", "owner", "routed"];

/// Ranks of which a class with channels can hold a set: a bit for each in one word on the device.
pub(super) const RANKS_MAX: i64 = 64;

impl Forms<'_> {
    /// What the helpers and domains of a role know without being told.
    pub(super) fn check_known(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let of_peers = |domain: &Domain| matches!(domain, Domain::Peers { .. });
            let mut needs_ranks =
                matches!(&stmt.action, Action::For { domain, .. } if of_peers(domain));
            let mut placed = None;
            walk::exprs(stmt, &mut |part| match part {
                Expr::Fold { domain, .. } => needs_ranks |= of_peers(domain),
                Expr::Call { helper, .. } if OF_EXPERTS.contains(&helper.as_str()) => {
                    placed = Some(helper);
                    needs_ranks = true;
                }
                _ => {}
            });
            if found.is_err() {
            } else if let Some(helper) = placed.filter(|_| !self.has_expert_begin()) {
                let why = format!("`{helper}` needs the input `expert_begin: i32[ranks + 1]`");
                found = self.refuse(&stmt.at, &why);
            } else if needs_ranks && !self.ir.has_number(WellKnown::Ranks) {
                found = self.refuse(&stmt.at, "this needs the number `ranks` in the shape");
            } else if placed.is_some_and(|helper| helper == "routed")
                && !self.ir.channels.is_empty()
                && self.ranks_max() > RANKS_MAX
            {
                let why = format!(
                    "`routed` supports at most {RANKS_MAX} ranks beside channels, and the shape allows more"
                );
                found = self.refuse(&stmt.at, &why);
            }
        });
        found
    }

    fn has_expert_begin(&self) -> bool {
        self.tensor(WellKnown::ExpertBegin.name()).is_ok_and(|tensor| {
            tensor.is_given()
                && tensor.elem == ElemType::Scalar { elem: Elem::I32 }
                && tensor.dims.len() == 1
                && !tensor.optional
        })
    }

    pub(super) fn ranks_max(&self) -> i64 {
        let ranks = self.ir.dims.iter().find(|dim| WellKnown::Ranks.is(&dim.name));
        match ranks.map(|dim| &dim.kind) {
            Some(DimKind::Given { .. }) => {
                range_of(self.ir, WellKnown::Ranks.name()).map_or(0, |(_, high)| high)
            }
            _ => 0,
        }
    }

    /// Nothing that may be absent is read where nothing is skipped.
    pub(super) fn refuse_optional(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut optional = false;
        walk::expr(whole, &mut |part| {
            optional |= matches!(part, Expr::Element { tensor, .. }
                if self.tensor(tensor).is_ok_and(|tensor| tensor.optional));
        });
        if optional {
            return self.refuse(
                &stmt.at,
                "an optional tensor can be used only in a statement that can be skipped",
            );
        }
        Ok(())
    }
}

pub(super) fn is_name(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::Name { name: own, .. } if own == name)
}

pub(super) fn mentions_name(whole: &Expr, name: &str) -> bool {
    let mut found = false;
    walk::expr(whole, &mut |part| found |= is_name(part, name));
    found
}

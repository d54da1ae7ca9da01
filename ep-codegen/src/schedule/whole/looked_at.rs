//! The rows of numbers that a loop looks at: each is loaded once, and what it says is kept.

use super::{Whole, call, name};
use crate::ir::{Action, Domain, Expr, Stmt, walk};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::scope::{LookedAt, Scope};
use crate::schedule::step::Step;
use crate::schedule::symbol::RANKS;
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// The rows that `body` looks at, the ranks that they say for `routed`, and the ids for `listed`. Where
    /// `present` does not hold there is no row; without it there always is.
    pub(super) fn look_at(
        &mut self,
        scope: &Scope,
        body: &[Stmt],
        present: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let mut rows: Vec<&Expr> = Vec::new();
        let mut calls: Vec<(&str, &Expr)> = Vec::new();
        walk::stmts(body, &mut |stmt| {
            if let Action::For { domain: Domain::Row { row }, .. } = &stmt.action {
                rows.push(row);
            }
            walk::exprs(stmt, &mut |expr| {
                if let Expr::Call { helper, args } = expr
                    && (helper == "routed" || helper == "listed")
                    && let Some(row) = args.first()
                    && !calls.contains(&(helper.as_str(), row))
                {
                    rows.push(row);
                    calls.push((helper, row));
                }
            });
        });
        let mut scope = scope.clone();
        for row in rows {
            let Expr::Element { tensor, .. } = row else { continue };
            if scope.looked_at("", row).is_none() {
                let value = self.role.row_of(&scope, row, present, out)?;
                let object = self.role.names.fresh(&format!("{tensor}_row"));
                out.push(Step::Made { name: object.clone(), value });
                scope.looks.push(LookedAt { helper: String::new(), row: row.clone(), object });
            }
        }
        for (helper, row) in calls {
            let Expr::Element { tensor, .. } = row else { continue };
            let loaded = name(scope.looked_at("", row).unwrap_or_default());
            let (suffix, value) = match helper {
                "routed" => {
                    let args = vec![loaded, name("args.expert_begin")];
                    ("ranks", call(ep::ranks_of.of(RANKS), args))
                }
                _ => ("ids", call(ep::ids_of, vec![loaded])),
            };
            let object = self.role.names.fresh(&format!("{tensor}_{suffix}"));
            out.push(Step::Made { name: object.clone(), value });
            scope.looks.push(LookedAt { helper: helper.to_string(), row: row.clone(), object });
        }
        Ok(scope)
    }
}

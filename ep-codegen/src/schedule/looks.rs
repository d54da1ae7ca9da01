//! Rows of numbers that a loop asks about in every turn: each is loaded once, ahead of the loop.

use super::extents::range_of;
use super::library::ep;
use super::limit::broken;
use super::scope::{LookedAt, Scope};
use super::step::Step;
use super::symbol::RANKS;
use super::term::{Node, Term};
use super::{Lowered, RoleLowering, RoleRule};
use crate::ir::{Elem, ElemType, Expr, NameKind, Stmt, Tensor, walk};

/// Ranks that one word has bits for.
const MOST_RANKS: i64 = 64;

impl RoleLowering<'_> {
    /// Whether what is the same in every turn is found out ahead of a loop.
    pub(super) fn looks(&self) -> bool {
        self.rules.has(RoleRule::Looks)
    }

    /// What names mean in a loop over `binder` whose condition asks where the entries of a row lead: the ranks are
    /// found out once, ahead of it.
    pub(super) fn with_looks(
        &mut self,
        scope: &Scope,
        binder: &str,
        filter: Option<&Expr>,
        body: &[Stmt],
        out: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let mut scope = scope.clone();
        let few = range_of(self.ir, "ranks").is_some_and(|(_, most)| most <= MOST_RANKS);
        if scope.by_lane || !few || !self.looks() {
            return Ok(scope);
        }
        let mut rows: Vec<Expr> = Vec::new();
        let mut see = |part: &Expr| {
            if let Expr::Call { helper, args } = part
                && helper == "routed"
                && let [row @ Expr::Element { .. }, Expr::Name { name, .. }] = args.as_slice()
                && name == binder
                && !rows.contains(row)
            {
                rows.push(row.clone());
            }
        };
        filter.into_iter().for_each(|filter| walk::expr(filter, &mut see));
        for row in rows {
            if scope.looked_at("routed", &row).is_none() && self.is_fixed(&row, binder, body) {
                let object = self.ranks_of_row(&scope, &row, out)?;
                scope.looks.push(LookedAt { helper: "routed".to_string(), row, object });
            }
        }
        Ok(scope)
    }

    /// Whether a row is the same in every turn.
    fn is_fixed(&self, row: &Expr, binder: &str, body: &[Stmt]) -> bool {
        let Expr::Element { tensor, indices } = row else { return false };
        let written = self.reread.contains(tensor) || walk::writes(body, tensor);
        let is_simple = |index: &Expr| match index {
            Expr::Name { name, kind } => name != binder && *kind != NameKind::Size,
            Expr::Int { .. } => true,
            Expr::Binary { left, right, .. } => {
                let parts = [left, right];
                parts.into_iter().all(|part| match &**part {
                    Expr::Name { name, .. } => name != binder,
                    Expr::Int { .. } => true,
                    _ => false,
                })
            }
            _ => false,
        };
        let is_ids = |it: &Tensor| {
            it.name == *tensor
                && it.elem == ElemType::Scalar { elem: Elem::I64 }
                && it.dims.len() == indices.len() + 1
                && !it.optional
        };
        !written && self.ir.tensors.iter().any(is_ids) && indices.iter().all(is_simple)
    }

    /// An object that knows the ranks to which the entries of a row lead.
    fn ranks_of_row(&mut self, scope: &Scope, row: &Expr, out: &mut Vec<Step>) -> Lowered<String> {
        let Expr::Element { tensor, .. } = row else { return Ok(String::new()) };
        let loaded = self.row_of(scope, row, None, out)?;
        let args = vec![loaded, self.expert_begin()?];
        let value = Term::call(ep::ranks_of.of(RANKS), args, Elem::I32);
        let object = self.names.fresh(&format!("{tensor}_ranks"));
        out.push(Step::Made { name: object.clone(), value });
        Ok(object)
    }

    /// Loads a row of numbers; none where `present` does not hold.
    pub(super) fn row_of(
        &mut self,
        scope: &Scope,
        row: &Expr,
        present: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let Expr::Element { tensor, indices } = row else {
            return Err(broken("a row of numbers is one of a tensor"));
        };
        let declared = self.tensor(tensor)?;
        let last = declared.dims.last().ok_or(broken("a tensor without extents"))?;
        let width = self.scalar(&Scope::default(), last, out)?.converted(&Elem::I32);
        let width = match &width.node {
            Node::Name(_) | Node::Constant(_) => width,
            _ => self.named("width", width, out),
        };
        let at = self.indices(scope, indices, out)?;
        let first = self.place(declared, 0, None, at, Some(Term::int(0)))?.address();
        let args = std::iter::once(first).chain(present.cloned()).collect();
        Ok(Term::call(ep::row_of.of(width), args, Elem::I32))
    }
}

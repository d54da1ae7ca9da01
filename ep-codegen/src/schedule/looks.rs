//! Rows of numbers that a loop asks about in every turn: each is loaded once, ahead of the loop. A lane that takes a turn
//! by itself keeps the row of the turn in registers for all loops in it.

use super::extents::range_of;
use super::library::ep;
use super::limit::broken;
use super::scope::{LookedAt, Scope};
use super::step::Step;
use super::symbol::RANKS;
use super::term::{Node, Term};
use super::{Lowered, RoleLowering, RoleRule};
use crate::ir::{Action, Domain, Elem, ElemType, Expr, NameKind, Stmt, Tensor, WellKnown, walk};

/// Ranks that one word has bits for.
const MOST_RANKS: i64 = 64;

/// Numbers of a row that a lane keeps in registers.
const MOST_NUMBERS: i64 = 32;

/// Helpers that ask about a row of numbers.
const ASKING: [&str; 4] = ["listed", "routed", "routed_bits", "routed_node"];

impl RoleLowering<'_> {
    /// Whether what is the same in every turn is found out ahead of a loop.
    pub(super) fn looks(&self) -> bool {
        self.rules.has(RoleRule::Looks)
    }

    /// Before a loop over `binder`, loads the row of numbers that its condition tests, once for all turns: the row's own
    /// numbers, or the ranks that own them. Returns the scope of the loop.
    pub(super) fn with_looks(
        &mut self,
        scope: &Scope,
        binder: &str,
        filter: Option<&Expr>,
        body: &[Stmt],
        out: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let mut scope = scope.clone();
        let few =
            range_of(self.ir, WellKnown::Ranks.name()).is_some_and(|(_, most)| most <= MOST_RANKS);
        if scope.by_lane || !self.looks() {
            return Ok(scope);
        }
        let mut asked: Vec<(String, Expr)> = Vec::new();
        let mut see = |part: &Expr| {
            if let Expr::Call { helper, args } = part
                && ((helper == "routed" && few) || helper == "listed")
                && let [row @ Expr::Element { .. }, Expr::Name { name, .. }] = args.as_slice()
                && name == binder
                && !asked.iter().any(|(known, of)| known == helper && of == row)
            {
                asked.push((helper.clone(), row.clone()));
            }
        };
        filter.into_iter().for_each(|filter| walk::expr(filter, &mut see));
        for (helper, row) in &asked {
            if scope.looked_at(helper, row).is_some() || !self.is_fixed(row, binder, body) {
                continue;
            }
            if helper == "routed" {
                let loaded = self.row_of(&scope, row, None, out)?;
                self.look_at_ranks(&mut scope, row, loaded, out)?;
            } else if self.is_short(row) {
                let loaded = self.row_of(&scope, row, None, out)?;
                let ids = Term::call(ep::ids_of, vec![loaded], Elem::I32);
                self.look(&mut scope, (row, helper, "ids"), ids, out);
            }
        }
        Ok(scope)
    }

    /// Whether a lane may keep the numbers of a row in registers.
    fn is_short(&self, row: &Expr) -> bool {
        let Expr::Element { tensor, .. } = row else { return false };
        let own = self.ir.tensors.iter().find(|it| it.name == *tensor);
        own.and_then(|it| it.dims.last()).is_some_and(|width| match width {
            Expr::Int { value } => *value <= MOST_NUMBERS,
            Expr::Name { name, kind: NameKind::Dim | NameKind::Tune } => {
                range_of(self.ir, name).is_some_and(|(_, most)| most <= MOST_NUMBERS)
            }
            _ => false,
        })
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
        let is_ids = |it: &Tensor| is_ids(it) && it.dims.len() == indices.len() + 1;
        let mut tensors = self.ir.tensors.iter().filter(|it| it.name == *tensor);
        !written && tensors.any(is_ids) && indices.iter().all(is_simple)
    }

    /// Gives the scope of a turn that one lane takes. If loops in the turn ask about its row of numbers, the lane loads the
    /// row once and keeps the answers.
    pub(super) fn with_own_row(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<Scope> {
        let mut scope = scope.clone();
        let Action::For { binder, domain, body, .. } = &stmt.action else { return Ok(scope) };
        if !scope.by_lane || !self.looks() {
            return Ok(scope);
        }
        for (row, helpers) in asked(body) {
            if !self.is_own_row(&row, binder, domain) || scope.looked_at("", &row).is_some() {
                continue;
            }
            let value = self.row_of(&scope, &row, None, out)?;
            let loaded = self.look(&mut scope, (&row, "", "row"), value, out);
            if helpers.iter().any(|helper| *helper != "listed") {
                self.look_at_ranks(&mut scope, &row, loaded.clone(), out)?;
            }
            if helpers.contains(&"listed") {
                let value = Term::call(ep::ids_of, vec![loaded], Elem::I32);
                self.look(&mut scope, (&row, "listed", "ids"), value, out);
            }
        }
        Ok(scope)
    }

    /// Keeps what `helper` asks of a row under a name of its own.
    fn look(
        &mut self,
        scope: &mut Scope,
        (row, helper, suffix): (&Expr, &str, &str),
        value: Term,
        out: &mut Vec<Step>,
    ) -> Term {
        let tensor = if let Expr::Element { tensor, .. } = row { tensor } else { "" };
        let object = self.names.fresh(&format!("{tensor}_{suffix}"));
        out.push(Step::Made { name: object.clone(), value });
        let (helper, row) = (helper.to_string(), row.clone());
        scope.looks.push(LookedAt { helper, row, object: object.clone() });
        Term::name(object, Elem::I32)
    }

    /// Whether a row is that of the turn of a loop, and is there in each turn.
    fn is_own_row(&self, row: &Expr, binder: &str, domain: &Domain) -> bool {
        let Expr::Element { tensor, indices } = row else { return false };
        let own = matches!(indices.as_slice(), [Expr::Name { name, .. }] if name == binder);
        let rows = match domain {
            Domain::Dim { name } => Some(name.as_str()),
            Domain::Tokens => Some(WellKnown::Tokens.name()),
            Domain::Stripe => self.striped_size().map(|size| size.name.as_str()),
            _ => None,
        };
        let Some(tensor) = self.ir.tensors.iter().find(|it| it.name == *tensor) else {
            return false;
        };
        let [first, _] = tensor.dims.as_slice() else { return false };
        let is_there = matches!(first, Expr::Name { name, .. } if Some(name.as_str()) == rows);
        own && is_there
            && self.is_short(row)
            && is_ids(tensor)
            && !self.reread.contains(&tensor.name)
    }

    /// Keeps the ranks to which the entries of a loaded row lead.
    fn look_at_ranks(
        &mut self,
        scope: &mut Scope,
        row: &Expr,
        loaded: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        self.known(WellKnown::Ranks)?;
        let args = vec![loaded, self.expert_begin()?];
        let value = Term::call(ep::ranks_of.of(RANKS), args, Elem::I32);
        self.look(scope, (row, "routed", WellKnown::Ranks.name()), value, out);
        Ok(())
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

/// Whether the rows of a tensor are numbers that are always there.
fn is_ids(tensor: &Tensor) -> bool {
    tensor.elem == ElemType::Scalar { elem: Elem::I64 } && tensor.copies == 1 && !tensor.optional
}

/// The rows that loops right inside of a body ask about, each with the helpers that ask.
fn asked(body: &[Stmt]) -> Vec<(Expr, Vec<&'static str>)> {
    let mut found: Vec<(Expr, Vec<&str>)> = Vec::new();
    let mut ask = |row: &Expr, helper: Option<&'static str>| {
        let at = found.iter().position(|(known, _)| known == row).unwrap_or(found.len());
        if at == found.len() {
            found.push((row.clone(), Vec::new()));
        }
        found[at].1.extend(helper);
    };
    let loops = body.iter().filter(|stmt| match &stmt.action {
        Action::For { domain, .. } => *domain != Domain::Once,
        _ => false,
    });
    for stmt in loops {
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if let Action::For { domain: Domain::Row { row }, .. } = &inner.action {
                ask(row, None);
            }
            walk::exprs(inner, &mut |part| {
                if let Expr::Call { helper, args } = part
                    && let Some(helper) = ASKING.into_iter().find(|known| known == helper)
                    && let Some(row @ Expr::Element { .. }) = args.first()
                {
                    ask(row, Some(helper));
                }
            });
        });
    }
    found
}

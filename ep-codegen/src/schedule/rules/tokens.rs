//! Loops over the tokens of a stripe with a lane for each, and what one statement leaves for a later one.

use super::values::is_name;
use super::{Checked, Forms};
use crate::ir::{Action, Domain, Elem, Expr, NameKind, Place, Role, Stmt, walk};
use crate::schedule::typed::{elem_of, rank_of};

impl Forms<'_> {
    /// `for token in stripe { .. }` with a lane for each token.
    pub(super) fn check_counts(&self, stmt: &Stmt) -> Checked {
        let Action::For { binder: token, filter, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        if let Some(condition) = filter {
            self.check_here(stmt, condition)?;
        }
        self.check_rows(stmt, Some(token))?;
        for inner in body {
            let Action::For { binder, domain, position: None, filter, body } = &inner.action else {
                self.check_write(inner, Some(token))?;
                continue;
            };
            if let Some(condition) = filter {
                self.check_expr(inner, condition)?;
            }
            match domain {
                Domain::Row { .. } => self.check_entries(inner, binder, body)?,
                _ => self.check_counted(inner, domain)?,
            }
            for leaf in body {
                if !walk::nested(leaf).is_empty() {
                    return Err(self.no_form(leaf));
                }
                self.check_write(leaf, Some(token))?;
            }
        }
        Ok(())
    }

    /// The rows that a loop looks at: each is loaded once, before anything else. `token` is the only
    /// binder that may say which; `None`: any may.
    pub(super) fn check_rows(&self, stmt: &Stmt, token: Option<&str>) -> Checked {
        let mut rows: Vec<(&Stmt, &Expr)> = Vec::new();
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if let Action::For { domain: Domain::Row { row }, .. } = &inner.action {
                rows.push((inner, row));
            }
            walk::exprs(inner, &mut |part| {
                if let Some(row) = looked_at(part) {
                    rows.push((inner, row));
                }
            });
        });
        for (at, row) in &rows {
            let Expr::Element { tensor: name, indices } = row else {
                return Err(self.no_form(at));
            };
            let tensor = self.tensor(name)?;
            let numbers =
                matches!(elem_of(self.ir, row), Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64);
            let mut sized = false;
            if let Some(dim) = tensor.dims.last() {
                walk::expr(dim, &mut |part| {
                    sized |= matches!(part, Expr::Name { kind: NameKind::Size, .. });
                });
            }
            if rank_of(self.ir, row) != 1 || !numbers || sized || tensor.copies > 1 {
                return self.refuse(
                    &at.at,
                    "the extent of a row of numbers has to be a number of the shape",
                );
            }
            if tensor.optional {
                return self.refuse(&at.at, "no class supports an optional row of numbers");
            }
            let mut foreign = false;
            for index in indices {
                walk::expr(index, &mut |part| {
                    foreign |= matches!((part, token),
                        (Expr::Name { name, kind: NameKind::Binder }, Some(token)) if name != token);
                });
            }
            if foreign {
                return self
                    .refuse(&at.at, "the index of a row of numbers has to be the token alone");
            }
            let other = rows.iter().any(|(_, other)| {
                matches!(other, Expr::Element { tensor, indices: others }
                    if tensor == name && others != indices)
            });
            if other {
                let why = format!("a loop can examine only one row of `{name}`");
                return self.refuse(&at.at, &why);
            }
        }
        Ok(())
    }

    /// No row of numbers is loaded here.
    pub(super) fn refuse_rows(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = None;
        walk::expr(whole, &mut |part| {
            if let (Expr::Call { helper, .. }, Some(_)) = (part, looked_at(part)) {
                found = Some(helper);
            }
        });
        match found {
            Some(helper) => self.refuse(
                &stmt.at,
                &format!(
                    "`{helper}` has to be recorded in a loop over a stripe, and this statement has \
                to read that table"
                ),
            ),
            None => Ok(()),
        }
    }

    /// `for value in row`: values beyond the places that they index are skipped.
    fn check_entries(&self, stmt: &Stmt, binder: &str, body: &[Stmt]) -> Checked {
        let mut bounds: Vec<&Expr> = Vec::new();
        for place in body.iter().filter_map(walk::target) {
            let tensor = self.tensor(&place.tensor)?;
            let indexed = place.indices.iter().zip(&tensor.dims);
            bounds.extend(indexed.filter(|(index, _)| is_name(index, binder)).map(|(_, dim)| dim));
        }
        if bounds.windows(2).any(|pair| pair[0] != pair[1]) {
            let why = format!("`{binder}` has to index places of one extent in each loop");
            return self.refuse(&stmt.at, &why);
        }
        Ok(())
    }

    /// Lanes and warps do not wait for one another inside a role: what one writes is read by the
    /// same lane only, in the same turn of a loop over tokens.
    pub(super) fn check_order(&self, role: &Role) -> Checked {
        let mut written: Vec<(usize, &Stmt, &Place)> = Vec::new();
        for (number, stmt) in role.body.iter().enumerate() {
            walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
                written.extend(walk::target(inner).map(|place| (number, inner, place)));
            });
        }
        for (number, stmt) in role.body.iter().enumerate() {
            let same = |from: usize, place: &Place, indices: &[Expr]| {
                self.same_lane(role, from, number)
                    && own_place(&role.body[from], &place.indices)
                    && own_place(stmt, indices)
            };
            let mut found = Ok(());
            walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
                walk::exprs(inner, &mut |part| {
                    let Expr::Element { tensor, indices } = part else { return };
                    let mut writes = written.iter().filter(|(.., place)| place.tensor == *tensor);
                    // Counters are added up at the end of the kernel.
                    let apart = writes.any(|(from, by, place)| {
                        matches!(by.action, Action::Count { .. }) || !same(*from, place, indices)
                    });
                    if apart && found.is_ok() {
                        let why = format!(
                            "another thread writes `{tensor}` in this role, and nothing orders the two"
                        );
                        found = self.refuse(&inner.at, &why);
                    }
                });
            });
            found?;
        }
        Ok(())
    }

    /// Whether turns of the two statements with one number are turns of one lane.
    fn same_lane(&self, role: &Role, a: usize, b: usize) -> bool {
        let over_stripe =
            |stmt: &Stmt| matches!(&stmt.action, Action::For { domain: Domain::Stripe, .. });
        a == b || (over_stripe(&role.body[a]) && over_stripe(&role.body[b]))
    }
}

/// Whether a place is found by the binder of the loop that is around it all.
fn own_place(stmt: &Stmt, indices: &[Expr]) -> bool {
    match &stmt.action {
        Action::For { binder, .. } => indices.iter().any(|index| is_name(index, binder)),
        _ => false,
    }
}

/// The row of numbers that a helper looks at.
fn looked_at(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Call { helper, args } if helper == "routed" || helper == "listed" => args.first(),
        _ => None,
    }
}

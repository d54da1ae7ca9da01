//! Loops over tokens that count and keep flags, and what one lane writes.

use super::expr::elem_type;
use super::{RenderError, Rendered, Renderer, param};
use crate::ir::{Action, Domain, Elem, ElemType, Expr, Memory, NameKind, PeerSet, Place, Stmt};
use crate::schedule::typed::first_part;

impl Renderer<'_> {
    /// `for token in stripe { .. }` with a lane for each token: counters and flags.
    pub(super) fn count_tokens(&self, stmt: &Stmt) -> Rendered {
        let Action::For { binder, filter, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let mut lines = Vec::new();
        for inner in body {
            lines.push(self.per_token(inner)?);
        }
        let body_text = lines.join("\n");
        // A token that is filtered out counts as one that is not there, before its rows are loaded.
        let mut sets = self.sets(body, "present")?;
        if let Some(filter) = filter {
            sets = format!("present = present && ({});\n{sets}", self.text(filter));
        }
        self.step(
            "count_tokens",
            &[
                ("comment", &self.comment(stmt)),
                ("striped", &self.scope().striped()),
                ("stripe", &param("int", "stripe", &body_text)),
                ("token", binder),
                ("sets", &sets),
                ("body", &body_text),
            ],
        )
    }

    /// The rows of numbers that `body` reads, each loaded once, and what they say: the ranks for
    /// `routed`, the ids for `listed`. Where `present` does not hold there is no row; empty: there
    /// always is.
    pub(super) fn sets(&self, body: &[Stmt], present: &str) -> Rendered {
        let mut rows: Vec<&Expr> = Vec::new();
        let mut calls: Vec<(&str, &Expr)> = Vec::new();
        crate::ir::walk::stmts(body, &mut |stmt| {
            if let Action::For { domain: Domain::Row { row }, .. } = &stmt.action {
                rows.push(row);
            }
            crate::ir::walk::exprs(stmt, &mut |expr| {
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
        let mut lines: Vec<String> = Vec::new();
        for row in rows {
            let line = self.loaded_row(row, present)?;
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        for (helper, row) in calls {
            let Expr::Element { tensor: name, .. } = row else { continue };
            lines.push(match helper {
                "routed" => format!(
                    "const ep::RankSet {name}_ranks = \
                     ep::ranks_of<Cfg::kRanks>({name}_row, args.expert_begin);"
                ),
                _ => format!("const auto {name}_ids = ep::ids_of({name}_row);"),
            });
        }
        Ok(lines.join("\n"))
    }

    fn loaded_row(&self, row: &Expr, present: &str) -> Rendered {
        let Expr::Element { tensor: name, indices } = row else {
            return Err(self.defect("a row of numbers is a row of a tensor"));
        };
        let tensor = self.tensor(name)?;
        let address = self.scope().row_address(tensor, 0, indices);
        let present = if present.is_empty() { String::new() } else { format!(", {present}") };
        let count = tensor.dims.last().map(|dim| self.text(dim)).unwrap_or_default();
        Ok(format!("const auto {name}_row = ep::row_of<{count}>(\n{address}{present});"))
    }

    /// One statement of the body of a loop over tokens.
    fn per_token(&self, stmt: &Stmt) -> Rendered {
        let Action::For { binder, domain, position: None, filter, body } = &stmt.action else {
            return self.present(stmt);
        };
        if let Domain::Row { row: Expr::Element { tensor, .. } } = domain {
            return self.per_entry(stmt, binder, tensor, filter.as_ref(), body);
        }
        if let Some(flags) = self.flags(binder, domain, filter.as_ref(), body)? {
            return Ok(format!("{}\n{}\n{flags}", self.comment(stmt), self.comment(&body[0])));
        }
        // What does not depend on the token is counted for all lanes at once.
        let from_zero = self.scope().domain_begin(domain) == "0";
        let (by_warp, by_lane): (Vec<&Stmt>, Vec<&Stmt>) =
            body.iter().partition(|inner| from_zero && is_shared_count(inner, binder));
        let count = self.scope().domain_count(domain);
        let filter = self.turn(binder, domain, filter.as_ref(), &|filter| self.text(filter));
        let mut texts = vec![self.comment(stmt)];
        if !by_warp.is_empty() {
            let found = filter.as_ref().map(|filter| format!(" && {filter}")).unwrap_or_default();
            let matches = format!("present{found}");
            texts.push(format!(
                "ep::for_hits(\n{count},\n[&]({}) {{ return {matches}; }},\n\
                 [&](int {binder}, ep::i32 hits) {{\n{}\n}});",
                param("int", binder, &matches),
                self.each(&by_warp, "hits")?
            ));
        }
        if !by_lane.is_empty() {
            let skip = filter.map(|filter| format!("if (!({filter})) continue;\n"));
            texts.push(format!(
                "for (int {binder} = {}; {binder} < {count} && present; ++{binder}) {{\n{}{}\n}}",
                self.scope().domain_begin(domain),
                skip.unwrap_or_default(),
                self.each(&by_lane, "1")?
            ));
        }
        Ok(texts.join("\n"))
    }

    /// `for peer in ranks { record table[token, peer] = routed(row, peer); }`: the flags of a token
    /// stand side by side.
    fn flags(
        &self,
        binder: &str,
        domain: &Domain,
        filter: Option<&Expr>,
        body: &[Stmt],
    ) -> Result<Option<String>, RenderError> {
        let is_binder = |expr: &Expr| matches!(expr, Expr::Name { name, .. } if name == binder);
        let ranks = |dim: &Expr| matches!(dim, Expr::Name { name, .. } if name == "ranks");
        let (
            None,
            Domain::Dim { name },
            [
                Stmt {
                    action: Action::Record { target, value: Expr::Call { helper, args } }, ..
                },
            ],
        ) = (filter, domain, body)
        else {
            return Ok(None);
        };
        let ([Expr::Element { tensor: row, .. }, rank], [token, peer]) =
            (args.as_slice(), target.indices.as_slice())
        else {
            return Ok(None);
        };
        let tensor = self.tensor(&target.tensor)?;
        let flags = tensor.elem == ElemType::Scalar { elem: Elem::Bool }
            && tensor.memory == Memory::Device
            && tensor.dims.last().is_some_and(ranks);
        if name != "ranks" || helper != "routed" || !flags || !is_binder(rank) || !is_binder(peer) {
            return Ok(None);
        }
        let flags = self.scope().row_address(tensor, 0, std::slice::from_ref(token));
        Ok(Some(format!(
            "if (present) {{\nep::store_flags<Cfg::kRanks>({flags}, {row}_ranks);\n}}"
        )))
    }

    /// A statement on its own in a loop over tokens, for the lanes that have one.
    fn present(&self, stmt: &Stmt) -> Rendered {
        let text = self.one(stmt, "1")?;
        Ok(match &stmt.action {
            Action::Let { .. } => text,
            _ => format!("if (present) {{\n{text}\n}}"),
        })
    }

    fn each(&self, stmts: &[&Stmt], hits: &str) -> Rendered {
        let texts = stmts.iter().map(|stmt| self.one(stmt, hits));
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
    }

    /// `for value in row`: absent and unknown entries are skipped.
    fn per_entry(
        &self,
        stmt: &Stmt,
        binder: &str,
        tensor: &str,
        filter: Option<&Expr>,
        body: &[Stmt],
    ) -> Rendered {
        let kind = elem_type(&first_part(self.ir, &self.tensor(tensor)?.elem));
        let bound = self.extent_indexed_by(body, binder);
        let bound = bound.map(|bound| format!(" || {binder} >= {bound}")).unwrap_or_default();
        Ok(format!(
            "{}\n{tensor}_row.for_each([&]({kind} {binder}) {{\n\
             if ({binder} < 0{bound}) return;\n{}{}\n}});",
            self.comment(stmt),
            filter
                .map(|filter| format!("if (!({})) return;\n", self.text(filter)))
                .unwrap_or_default(),
            self.each(&body.iter().collect::<Vec<_>>(), "1")?
        ))
    }

    /// The condition of a turn: `where ..`, and that it is not this rank's among the others.
    pub(super) fn turn(
        &self,
        binder: &str,
        domain: &Domain,
        filter: Option<&Expr>,
        text: &dyn Fn(&Expr) -> String,
    ) -> Option<String> {
        let other = matches!(domain, Domain::Peers { set: PeerSet::Others });
        match (other.then(|| format!("{binder} != me")), filter.map(text)) {
            (Some(other), Some(filter)) => Some(format!("{other} && ({filter})")),
            (other, filter) => other.or(filter),
        }
    }

    /// Extent of the axis that `binder` indexes in the first place that is written.
    fn extent_indexed_by(&self, body: &[Stmt], binder: &str) -> Option<String> {
        body.iter().find_map(|stmt| {
            let (Action::Count { target }
            | Action::Store { target, .. }
            | Action::Record { target, .. }
            | Action::Add { target, .. }) = &stmt.action
            else {
                return None;
            };
            let axis = target
                .indices
                .iter()
                .position(|index| matches!(index, Expr::Name { name, .. } if name == binder))?;
            Some(self.text(self.tensor(&target.tensor).ok()?.dims.get(axis)?))
        })
    }

    /// One action of one lane, which counts `hits` at once.
    pub(super) fn one(&self, stmt: &Stmt, hits: &str) -> Rendered {
        let text = match &stmt.action {
            Action::Count { target } => self.count(target, hits)?,
            Action::Store { target, value } | Action::Record { target, value } => {
                self.assign_all(target, value)?
            }
            Action::Add { target, value } => {
                format!("{} += {};", self.place(target)?, self.text(value))
            }
            Action::Let { name, value } => format!("const auto {name} = {};", self.text(value)),
            _ => return Err(self.no_form(stmt)),
        };
        Ok(format!("{}\n{}", self.comment(stmt), self.where_there(stmt, text)))
    }

    /// A write that is skipped where an optional tensor that it needs is absent.
    pub(super) fn where_there(&self, stmt: &Stmt, text: String) -> String {
        let Some(place) = crate::ir::walk::target(stmt) else { return text };
        let mut names = vec![place.tensor.as_str()];
        crate::ir::walk::exprs(stmt, &mut |part| {
            if let Expr::Element { tensor, .. } = part {
                names.push(tensor);
            }
        });
        names.sort_unstable();
        names.dedup();
        names.retain(|name| self.tensor(name).is_ok_and(|tensor| tensor.optional));
        let there: Vec<String> =
            names.iter().map(|name| format!("args.{name} != nullptr")).collect();
        match there.is_empty() {
            true => text,
            false => format!("if ({}) {{\n{text}\n}}", there.join(" && ")),
        }
    }

    /// Writes an element; words in host memory carry their own validity.
    pub(super) fn assign(&self, target: &Place, value: &str) -> Rendered {
        let place = self.place(target)?;
        Ok(match self.tensor(&target.tensor)?.memory {
            Memory::Host => format!("ep::store_host(&{place}, {value});"),
            _ => format!("{place} = {value};"),
        })
    }
}

/// Whether a statement counts in a place that is the same for all tokens: only `binder`, numbers of
/// the call and the stripe say which.
fn is_shared_count(stmt: &Stmt, binder: &str) -> bool {
    let Action::Count { target } = &stmt.action else { return false };
    let mut shared = true;
    for index in &target.indices {
        crate::ir::walk::expr(index, &mut |part| {
            shared &= match part {
                Expr::Name { name, kind: NameKind::Binder } => name == binder,
                Expr::Element { .. } | Expr::Field { .. } | Expr::OfChannel { .. } => false,
                _ => true,
            };
        });
    }
    shared
}

//! Rows in order of an index: each value of it deals out places, and one loaded row goes to all of its
//! own.

use super::expr::{Scope, part_name};
use super::{RenderError, Rendered, Renderer, param};
use crate::ir::{Action, Expr, NameKind, Place, Stmt, walk};
use crate::plan::{ParamKind, moved_row, params, parts};

impl Renderer<'_> {
    /// `for row in stripe { for expert in .. at .. where .. { store out[expert.position] = x[row]; .. } }`,
    /// a lane for each value of the inner index.
    pub(super) fn place_rows(&self, stmt: &Stmt) -> Rendered {
        let Action::For { binder: row, filter: None, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let [inner] = body.as_slice() else { return Err(self.no_form(stmt)) };
        let Action::For { binder: index, domain, position: Some(first), filter, body } =
            &inner.action
        else {
            return Err(self.no_form(inner));
        };
        let first = self.text(first);
        let sets = self.sets(std::slice::from_ref(inner), "")?;
        let filter = filter.as_ref().map_or("true".to_string(), |filter| self.text(filter));
        let filter = format!("{sets}\nreturn {filter};");
        let (moves, each) = self.placed(row, index, body)?;
        let rooms = self.rooms(body)?;
        let flush = if moves.is_empty() { "" } else { "mover.flush();" };
        self.step(
            "placed",
            &[
                ("rooms", &rooms),
                ("comment", &self.comment(stmt)),
                ("striped", &self.scope().striped()),
                ("count", &self.scope().domain_count(domain)),
                ("inner_comment", &self.comment(inner)),
                ("first", &first),
                ("first_index", &param("int", index, &first)),
                ("filter", &filter),
                ("filter_row", &param("int", row, &filter)),
                ("filter_index", &param("int", index, &filter)),
                ("moves", &moves),
                ("moves_row", &param("int", row, &moves)),
                ("moves_position", &param("int", "position", &moves)),
                ("flush", flush),
                ("each", &each),
                ("each_row", &param("int", row, &each)),
                ("each_index", &param("int", index, &each)),
                ("each_match", &param("bool", "match", &each)),
                ("each_position", &param("int", "position", &each)),
            ],
        )
    }

    /// What a whole warp does with each row, and what the lane of each value does.
    fn placed(
        &self,
        row: &str,
        index: &str,
        body: &[Stmt],
    ) -> Result<(String, String), RenderError> {
        let (mut moves, mut each) = (Vec::new(), Vec::new());
        for stmt in body {
            match &stmt.action {
                Action::Store { target, value } if moved_row(self.ir, stmt).is_some() => {
                    // The mover of a role cuts rows of one size.
                    if !moves.is_empty() {
                        return Err(self.no_form(stmt));
                    }
                    moves.push(self.comment(stmt));
                    moves.extend(self.move_row(row, target, value)?);
                }
                Action::Store { target, value } | Action::Record { target, value } => {
                    each.push(self.comment(stmt));
                    each.push(format!("if (match) {};", self.written(index, target, value)?));
                }
                _ => return Err(self.no_form(stmt)),
            }
        }
        Ok((moves.join("\n"), each.join("\n")))
    }

    /// `out[.., index.position, ..] = value`.
    fn written(&self, index: &str, target: &Place, value: &Expr) -> Rendered {
        let read = |of: &str, field: &str| match (of == index, field) {
            (true, "position") => "position".to_string(),
            _ => format!("{of}.{field}"),
        };
        let scope = Scope { field: &read, ..self.scope() };
        let tensor = self.tensor(&target.tensor)?;
        let indices = target.indices.iter().map(|index| scope.text(index)).collect::<Vec<_>>();
        Ok(format!("{} = {}", scope.part_element(tensor, 0, &indices), scope.text(value)))
    }

    /// Moves a row to the place of each lane, and what goes with it, such as its scales.
    fn move_row(
        &self,
        row: &str,
        target: &Place,
        value: &Expr,
    ) -> Result<Vec<String>, RenderError> {
        let Expr::Element { tensor: from, indices } = value else {
            return Err(self.defect(&format!("`{row}` is in no tensor")));
        };
        let (out, from) = (self.tensor(&target.tensor)?, self.tensor(from)?);
        let scope = self.scope();
        let mut lines = Vec::new();
        for (part, (.., block)) in parts(self.ir, &out.elem).into_iter().enumerate() {
            let (to, stride) = (part_name(self.ir, out, part), scope.row_stride(out, part));
            let address = scope.row_address(from, part, indices);
            if part == 0 {
                lines.push(format!(
                    "mover.row(ep::row_at(args.{to}, position, {stride}),\n{address});"
                ));
                continue;
            }
            let elements = out.dims.last().map(|dim| self.text(dim)).unwrap_or_default();
            lines.push(format!(
                "ep::copy_beside(args.{to}, {stride}, args.{to}_block_stride, position,\n\
                 {address}, args.{}_block_stride, ep::ceil({elements}, {block}));",
                part_name(self.ir, from, part)
            ));
        }
        Ok(lines)
    }

    /// Stops the role where the caller's outputs hold fewer rows than `body` writes in all: how many
    /// these are, only the device knows.
    pub(super) fn rooms(&self, body: &[Stmt]) -> Rendered {
        let params = params(self.ir).0;
        let mut lines: Vec<String> = Vec::new();
        let mut tensors = Vec::new();
        walk::stmts(body, &mut |stmt| {
            tensors.extend(walk::target(stmt).map(|place| &place.tensor))
        });
        for tensor in tensors {
            let Some(rows @ Expr::Name { name, kind: NameKind::Size }) =
                self.tensor(tensor)?.dims.first()
            else {
                continue;
            };
            let kind = ParamKind::Capacity { size: name.clone() };
            let Some(capacity) = params.iter().find(|param| param.kind == kind) else { continue };
            let line =
                format!("ep::require_room(team, {}, args.{});\n", self.text(rows), capacity.name);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        Ok(lines.concat())
    }
}

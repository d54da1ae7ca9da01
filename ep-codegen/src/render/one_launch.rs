//! A dispatch in one launch: the function of its role, what every block counts, and what the last one
//! records.

use super::direct::merge;
use super::expr::elem_type;
use super::names::{channel_cfg, role_cfg, role_fn};
use super::{Rendered, Renderer, mentions, param};
use crate::ir::{Action, Expr, FieldValue, Stmt};
use crate::plan::constant;
use crate::schedule::rules::{Counted, OneLaunch, counted_field};
use crate::schedule::typed::first_part;

impl Renderer<'_> {
    /// The parts of a role that does a whole dispatch, if the rule for it is on.
    pub(super) fn one_launch(&self) -> Option<OneLaunch<'_>> {
        let found = OneLaunch::of(self.ir)?;
        (!self.ways.is_composed(&found.role.name)).then_some(found)
    }

    /// The functions of such a role.
    pub(super) fn one_launch_role(&self, one: &OneLaunch<'_>) -> Rendered {
        let role = one.role;
        let (fanout, rows) = (self.fanout(one.send)?, one.rows);
        let steps = self.fanout_steps(&fanout)?;
        let count = format!(
            "({}.from(source) + Cfg::{}::{}).words",
            one.slots.name,
            one.slots.message,
            constant(one.rows_to)
        );
        let inner = fanout.inner.map(|inner| self.comment(inner)).unwrap_or_default();
        let (asks, stores) = self.one_launch_takes(one)?;
        let body = self.step(
            "one_launch",
            &[
                ("slots", &one.slots.name),
                ("slots_cfg", &channel_cfg(one.slots)),
                ("channel", &rows.name),
                ("channel_cfg", &channel_cfg(rows)),
                ("role", &role_fn(role)),
                ("role_cfg", &role_cfg(role)),
                ("tells", &self.tells(one)?),
                ("token", fanout.token),
                ("from", &self.row_from(&fanout)?),
                ("awaits", &self.comment(one.awaits)),
                ("count", &count),
                ("sends", &format!("{}\n{inner}", self.comment(one.send))),
                ("push_comment", &self.comment(fanout.push)),
                ("row", &self.packed_row(&fanout)?),
                ("each", &steps.each),
                ("each_token", &param("int", fanout.token, &steps.each)),
                ("each_peer", &param("int", fanout.peer, &steps.each)),
                ("each_match", &param("bool", "match", &steps.each)),
                ("each_position", &param("int", "position", &steps.each)),
                ("ending", &self.ending(fanout.push)),
                ("fills", &self.fills_behind(one)?),
                ("takes", &self.comment(one.take)),
                ("binder", self.binder_of(one.take)),
                ("asks", &asks),
                ("stores", &stores),
            ],
        )?;
        let mut opening = vec!["const int me = args.group.rank;".to_string()];
        if mentions(&body, "mine") {
            opening.push("const ep::Experts mine = ep::experts_of(args.expert_begin, me);".into());
        }
        let tokens = self.scope().striped();
        opening.push(format!("const int tokens = {tokens};"));
        let function = self.step(
            "role",
            &[
                ("source", &role.at.text),
                ("name", &role_fn(role)),
                ("params", "const Args& args, Smem& smem, ep::Team& team"),
                ("opening", &opening.join("\n")),
                ("body", &body),
                ("closing", "mover.finish();"),
            ],
        )?;
        Ok(format!("{}\n{function}", self.one_launch_tables(one)?))
    }

    /// The fills of what lies behind the rows that arrive.
    fn fills_behind(&self, one: &OneLaunch<'_>) -> Rendered {
        let fills = one.fills.iter().map(|fill| {
            let tensor = self.tensor(fill.tensor)?;
            Ok(format!(
                "{}\n{}\nep::fill(team, args.{}, {}, {}_in.total(), {},\n{});",
                self.comment(fill.stmt),
                self.comment(fill.store),
                fill.tensor,
                self.width(tensor),
                one.rows.name,
                self.text(fill.end),
                self.filled(tensor, fill.value)?,
            ))
        });
        Ok(fills.collect::<Result<Vec<_>, super::RenderError>>()?.join("\n"))
    }

    /// What every block counts as it enters.
    pub(super) fn counts_routes(&self, one: &OneLaunch<'_>) -> Rendered {
        let comments = one
            .counts
            .iter()
            .map(|count| format!("{}\n{}", self.comment(count.stmt), self.comment(count.record)));
        let tensor = self.tensor(one.routes)?;
        let token = Expr::Name { name: "token".into(), kind: crate::ir::NameKind::Binder };
        let address = self.scope().row_address(tensor, 0, &[token]);
        let width = tensor.dims.last().map(|dim| self.text(dim)).unwrap_or_default();
        let tokens = self.scope().striped();
        Ok(format!(
            "const int tokens = {tokens};\nep::once_offer<{}>(args.group, {}, tokens);\n{}\n\
             ep::count_routes(\nargs.group, smem.routes, tokens, args.expert_begin,\n\
             [&](int token, bool present) {{\nreturn ep::row_of<{width}>({address}, present);\n}});",
            channel_cfg(one.rows),
            self.offered(one)?,
            comments.collect::<Vec<_>>().join("\n"),
        ))
    }

    /// Where the rows of the channel go.
    fn offered(&self, one: &OneLaunch<'_>) -> Rendered {
        let (_, tensor) = crate::plan::row_in_place(self.ir, one.rows)
            .ok_or_else(|| self.defect("the rows of a direct channel have no place"))?;
        Ok(format!("args.{}_at", tensor.name))
    }

    /// The row that the loop over tokens pushes.
    fn row_from(&self, fanout: &crate::schedule::rules::Fanout<'_>) -> Rendered {
        let Action::Push { channel, values, .. } = &fanout.push.action else {
            return Err(self.no_form(fanout.push));
        };
        let message = self.message(self.channel(channel)?)?;
        let row = message.fields.iter().find(|field| field.row);
        let value = row.and_then(|row| values.iter().find(|value| value.name == row.name));
        match value.map(|value| &value.value) {
            Some(Expr::Element { tensor, indices }) => {
                Ok(self.scope().row_address(self.tensor(tensor)?, 0, indices))
            }
            _ => Err(self.no_form(fanout.push)),
        }
    }

    /// The small fields of a message, asked for at once and written to its record, and its row.
    fn packed_row(&self, fanout: &crate::schedule::rules::Fanout<'_>) -> Rendered {
        let Action::Push { channel, values, .. } = &fanout.push.action else {
            return Err(self.no_form(fanout.push));
        };
        let (asks, puts) = self.asked_fields(self.channel(channel)?, values, "record")?;
        Ok(format!("{asks}\n{puts}\nreturn {};", self.row_from(fanout)?))
    }

    /// The counts that a rank tells every other one: each field by a block that has counted it.
    fn tells(&self, one: &OneLaunch<'_>) -> Rendered {
        let (Action::Push { values, .. }, Action::For { binder: peer, .. }) =
            (&one.told.action, &one.tell.action)
        else {
            return Err(self.no_form(one.told));
        };
        let mut texts = vec![self.comment(one.tell), self.comment(one.told)];
        for of in [Counted::Ranks, Counted::Experts] {
            let own = |value: &&FieldValue| counted_field(value, &one.counts, peer) == Some(of);
            let own: Vec<&FieldValue> = values.iter().filter(own).collect();
            if own.is_empty() {
                continue;
            }
            let (block, opening, value) = match of {
                Counted::Ranks => ("0", "", "smem.routes.tokens_to(i, tokens)"),
                Counted::Experts => (
                    "team.blocks - 1",
                    "const ep::Experts theirs = ep::experts_of(args.expert_begin, {peer});\n",
                    "i < theirs.count ? smem.routes.chosen[theirs.first + i] : 0",
                ),
            };
            let opening = opening.replace("{peer}", peer);
            let (slots, cfg) = (&one.slots.name, &one.slots.message);
            let message = self.message(one.slots)?;
            let puts = own.iter().map(|value| {
                let field = message.fields.iter().find(|field| field.name == value.name);
                let elem = field.map(|field| first_part(self.ir, &field.elem));
                (constant(&value.name), elem.map_or("ep::i32", |elem| elem_type(&elem)))
            });
            let puts: Vec<String> = puts
                .map(|(name, kind)| {
                    format!(
                        "ep::put<{kind}>({slots}.to({peer}) + Cfg::{cfg}::{name}, \
                         Cfg::{cfg}::{name}Count,\n[&](int i) {{ return {value}; }});"
                    )
                })
                .collect();
            texts.push(format!(
                "if (team.block == {block}) {{\n\
                 for (int {peer} = team.warp; {peer} < Cfg::kRanks && !team.stopped; \
                 {peer} += team.warps) {{\n{opening}{}\n}}\n}}",
                puts.join("\n")
            ));
        }
        Ok(texts.join("\n"))
    }

    /// What is asked for of each message, and stored.
    fn one_launch_takes(
        &self,
        one: &OneLaunch<'_>,
    ) -> Result<(String, String), super::RenderError> {
        let Action::Receive { binder, body, .. } = &one.take.action else {
            return Err(self.no_form(one.take));
        };
        let (mut asks, mut lines) = (Vec::new(), Vec::new());
        for inner in body {
            lines.push(self.comment(inner));
            let unpacked = self.unpack(one.rows, binder, inner)?;
            if unpacked.stores.is_empty() {
                lines.push("// The sender has stored it in place.".to_string());
            }
            merge(&mut asks, unpacked.asks);
            lines.extend(unpacked.stores);
        }
        Ok((asks.join("\n"), lines.join("\n")))
    }

    fn binder_of<'s>(&self, stmt: &'s Stmt) -> &'s str {
        match &stmt.action {
            Action::Receive { binder, .. } => binder,
            _ => "message",
        }
    }

    /// The function of the last block, which has counted everything.
    fn one_launch_tables(&self, one: &OneLaunch<'_>) -> Rendered {
        let mut lines = Vec::new();
        for count in &one.counts {
            let (extent, value) = match count.of {
                Counted::Ranks => ("Cfg::kRanks", "smem.routes.tokens_to(i, tokens)"),
                Counted::Experts => ("Cfg::kExperts", "smem.routes.chosen[i]"),
            };
            lines.push(format!(
                "{}\n{}\nep::for_each(team, {extent}, [&](int i) {{ args.{}[i] = {value}; }});",
                self.comment(count.stmt),
                self.comment(count.record),
                count.table,
            ));
        }
        lines.push(format!("{}\n{}.await();", self.comment(one.awaits), one.slots.name));
        for stmt in &one.tables {
            lines.push(self.compute(stmt)?);
        }
        let body = lines.join("\n");
        let mut opening = Vec::new();
        if mentions(&body, "me") {
            opening.push("const int me = args.group.rank;".to_string());
        }
        if mentions(&body, "tokens") {
            opening.push(format!("const int tokens = {};", self.scope().striped()));
        }
        opening.push(format!(
            "ep::SlotChannel<{}> {}(team);",
            channel_cfg(one.slots),
            one.slots.name
        ));
        let name = format!("{}_tables", role_fn(one.role));
        self.step(
            "role",
            &[
                ("source", &format!("What the last block of {} records", one.role.name)),
                ("name", &name),
                ("params", "const Args& args, const Smem& smem, ep::Team& team"),
                ("opening", &opening.join("\n")),
                ("body", &body),
                ("closing", ""),
            ],
        )
    }
}

//! Rows back to their tokens through slots: the functions of both roles.

use super::names::{channel_cfg, role_fn};
use super::{Rendered, Renderer, mentions, param};
use crate::ir::{Action, Expr, Role};
use crate::plan::constant;
use crate::schedule::rules::WayBack;

impl Renderer<'_> {
    /// The parts of such roles, if the rule for them is on.
    pub(super) fn way_back(&self) -> Option<WayBack<'_>> {
        let found = WayBack::of(self.ir)?;
        (!self.ways.is_composed(&found.sums.name)).then_some(found)
    }

    /// The function of one of them.
    pub(super) fn way_back_role(&self, back: &WayBack<'_>, role: &Role) -> Rendered {
        let body = match role.name == back.sums.name {
            true => self.added_up(back)?,
            false => self.sent_back(back)?,
        };
        let opening = if mentions(&body, "me") { "const int me = args.group.rank;" } else { "" };
        self.step(
            "role",
            &[
                ("source", &role.at.text),
                ("name", &role_fn(role)),
                ("params", "const Args& args, ep::Team& team"),
                ("opening", opening),
                ("body", &body),
                ("closing", ""),
            ],
        )
    }

    fn sent_back(&self, back: &WayBack<'_>) -> Rendered {
        let (name, cfg) = (&back.channel.name, channel_cfg(back.channel));
        let row = |text: &str| param("int", back.row, text);
        let (first, end) = (self.text(back.first), self.text(back.end));
        let token = self.text(back.token);
        let sent = self.row_at(back.sent)?;
        let (floats, numbers) = match back.numbers {
            Some((field, value)) => {
                let count = format!("Cfg::{}::{}Count", back.channel.message, constant(field));
                (count, self.row_at(value)?)
            }
            None => ("0".to_string(), "nullptr".to_string()),
        };
        Ok(format!(
            "ep::BackOut<{cfg}> {name}(team);\n{}\n{}\n\
             {name}.run<{floats}>(\n\
             [&](int source) {{ return ep::Span{{{first}, {end}}}; }},\n\
             [&]({}) {{ return {token}; }},\n\
             [&]({}) {{ return {sent}; }},\n\
             [&]({}) -> const float* {{ return {numbers}; }});",
            self.comment(back.rows),
            self.comment(back.push),
            row(&token),
            row(&sent),
            row(&numbers),
        ))
    }

    fn added_up(&self, back: &WayBack<'_>) -> Rendered {
        let Action::Gather { binder, part, position, across, body, .. } = &back.gather.action
        else {
            return Err(self.no_form(back.gather));
        };
        let (mut rows, mut fields) = (Vec::new(), Vec::new());
        for inner in body {
            let (row, text) = self.gathered(back.channel, part, inner)?;
            if row { &mut rows } else { &mut fields }.push(text);
        }
        rows.append(&mut fields);
        let (stores, at) = (rows.join("\n"), self.text(position));
        Ok(format!(
            "ep::BackIn<{}> {part}(team);\n{}\n\
             {part}.run({}, [&]({}, {}) {{ return {at}; }}, [&]({}) {{\n{stores}\n}});\n\
             {part}.release();",
            channel_cfg(back.channel),
            self.comment(back.gather),
            self.scope().striped(),
            param("int", binder, &at),
            param("int", across, &at),
            param("int", binder, &stores),
        ))
    }

    /// The address of a row that is sent.
    fn row_at(&self, value: &Expr) -> Rendered {
        match value {
            Expr::Element { tensor, indices } => {
                Ok(self.scope().row_address(self.tensor(tensor)?, 0, indices))
            }
            _ => Err(self.defect("what goes back is no row of a tensor")),
        }
    }
}

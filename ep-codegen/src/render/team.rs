//! Roles that work as one team: small tables that are folded and exchanged.

use super::expr::{Scope, elem_type};
use super::names::channel_cfg;
use super::{RenderError, Rendered, Renderer, param};
use crate::ir::slots::travels_in_words;
use crate::ir::{
    Action, Blocks, Channel, ChannelKind, Domain, Expr, FieldValue, Place, Role, Stmt,
};
use crate::plan::{constant, meta_sources};
use crate::schedule::extents::is_one_more;
use crate::schedule::rules::{is_prefix, takes_warps};
use crate::schedule::typed::first_part;

impl Renderer<'_> {
    /// A statement of a role whose warps work as one team.
    pub(super) fn compute(&self, stmt: &Stmt) -> Rendered {
        match &stmt.action {
            Action::For { binder, domain, filter: None, body, .. } if takes_warps(body) => {
                let count = self.scope().domain_count(domain);
                let begin = match self.scope().domain_begin(domain).as_str() {
                    "0" => String::new(),
                    begin => format!("{begin} + "),
                };
                let mut lines = Vec::new();
                if let Some(turn) = self.turn(binder, domain, None, &|_| String::new()) {
                    lines.push(format!("if (!({turn})) continue;"));
                }
                for inner in body {
                    lines.push(self.of_warp(inner)?);
                }
                Ok(format!(
                    "{}{}\nfor (int {binder} = {begin}team.index(); {binder} < {count} && \
                     !team.stopped; {binder} += team.count()) {{\n{}\n}}",
                    self.rooms(body)?,
                    self.comment(stmt),
                    lines.join("\n")
                ))
            }
            Action::For { binder, domain, filter, body, .. } => {
                let mut lines = Vec::new();
                let turn =
                    self.turn(binder, domain, filter.as_ref(), &|filter| self.lane_text(filter));
                if let Some(turn) = turn {
                    lines.push(format!("if (!({turn})) return;"));
                }
                for inner in body {
                    lines.push(self.of_lane(inner)?);
                }
                let body = lines.join("\n");
                Ok(format!(
                    "{}\nep::for_each(team, {}{}, [&](int {binder}) {{\n{body}\n}});",
                    self.comment(stmt),
                    match self.scope().domain_begin(domain).as_str() {
                        "0" => String::new(),
                        begin => format!("{begin}, "),
                    },
                    self.scope().domain_count(domain)
                ))
            }
            Action::Await { channel } => Ok(format!("{}\n{channel}.await();", self.comment(stmt))),
            Action::Store { value, .. } | Action::Record { value, .. } if is_prefix(value) => {
                Ok(format!("if (team.index() == 0) {{\n{}\n}}", self.of_warp(stmt)?))
            }
            Action::Store { .. } | Action::Record { .. } => {
                Ok(format!("ep::in_last_warp(team, [&] {{\n{}\n}});", self.of_lane(stmt)?))
            }
            _ => Err(self.no_form(stmt)),
        }
    }

    fn of_lane(&self, stmt: &Stmt) -> Rendered {
        let text = match &stmt.action {
            Action::Store { target, value } | Action::Record { target, value } => {
                self.assign_all(target, value)?
            }
            Action::Let { name, value } => {
                format!("const auto {name} = {};", self.lane_text(value))
            }
            Action::For { binder, domain, filter, body, .. } => {
                let mut lines = Vec::new();
                let turn =
                    self.turn(binder, domain, filter.as_ref(), &|filter| self.lane_text(filter));
                if let Some(turn) = turn {
                    lines.push(format!("if (!({turn})) continue;"));
                }
                for inner in body {
                    lines.push(self.of_lane(inner)?);
                }
                let (begin, count) =
                    (self.scope().domain_begin(domain), self.scope().domain_count(domain));
                let body = lines.join("\n");
                format!(
                    "for (int {binder} = {begin}; {binder} < {count}; ++{binder}) {{\n{body}\n}}"
                )
            }
            _ => return self.one(stmt, "1"),
        };
        Ok(format!("{}\n{}", self.comment(stmt), self.where_there(stmt, text)))
    }

    /// Writes an element, or every element of a row whose last index is missing.
    pub(super) fn assign_all(&self, target: &Place, value: &Expr) -> Rendered {
        let text = self.assign(target, &self.lane_text(value))?;
        let dims = &self.tensor(&target.tensor)?.dims;
        Ok(match dims.last() {
            Some(last) if target.indices.len() + 1 == dims.len() => {
                let i = self.element;
                format!("for (int {i} = 0; {i} < {}; ++{i}) {{\n{text}\n}}", self.text(last))
            }
            _ => text,
        })
    }

    /// An expression that may read what sources wrote into slots.
    fn lane_text(&self, expr: &Expr) -> String {
        Scope { field: &|channel, field| self.slot_read(channel, field), ..self.scope() }.text(expr)
    }

    /// How `channel[index].field[inner]` reads.
    fn slot_read(&self, channel: &str, field: &str) -> String {
        let found = self.ir.channels.iter().find(|c| c.name == channel);
        let message = found.and_then(|channel| self.message(channel).ok());
        let sources = message.map(|message| meta_sources(self.ir, message)).unwrap_or_default();
        let kind_of = sources.iter().find(|source| source.name == field);
        let kind = kind_of.map(|source| elem_type(&source.elem)).unwrap_or("ep::i32");
        let cfg = message.map(|message| format!("Cfg::{}", message.name)).unwrap_or_default();
        let name = constant(field);
        // A field without extents is one element, whatever row it is stored to.
        let single = kind_of.is_some_and(|source| source.field.dims.is_empty());
        let inner = if single { "0" } else { "{inner}" };
        format!("ep::get<{kind}>({channel}.from({{index}}) + {cfg}::{name}, {inner})")
    }

    fn of_warp(&self, stmt: &Stmt) -> Rendered {
        match &stmt.action {
            Action::Push { channel, peer: Some(peer), values, .. } => {
                let channel = self.channel(channel)?;
                self.slots_push(channel, stmt, &self.text(peer), values)
            }
            Action::Store { target, value } | Action::Record { target, value }
                if is_prefix(value) =>
            {
                self.prefix_sum(stmt, target, value)
            }
            Action::Store { .. } | Action::Record { .. } => {
                Ok(format!("if (team.leader()) {{\n{}\n}}", self.of_lane(stmt)?))
            }
            Action::For { binder, domain, filter: None, body, .. } if !takes_warps(body) => {
                let mut lines = Vec::new();
                if let Some(turn) = self.turn(binder, domain, None, &|_| String::new()) {
                    lines.push(format!("if (!({turn})) return;"));
                }
                for inner in body {
                    lines.push(self.of_lane(inner)?);
                }
                let (low, high) =
                    (self.scope().domain_begin(domain), self.scope().domain_count(domain));
                Ok(format!(
                    "{}\nep::for_lanes(\n{low}, {high},\n[&](int {binder}) {{\n{}\n}});",
                    self.comment(stmt),
                    lines.join("\n")
                ))
            }
            _ => Err(self.no_form(stmt)),
        }
    }

    fn slots_push(
        &self,
        channel: &Channel,
        stmt: &Stmt,
        peer: &str,
        values: &[FieldValue],
    ) -> Rendered {
        self.step(
            "slots_push",
            &[
                ("channel", &channel.name),
                ("peer", peer),
                ("comment", &self.comment(stmt)),
                ("puts", &self.slot_puts(channel, peer, values)?),
            ],
        )
    }

    /// Fields of a slot: whole tensors, or the entries of the receiver's experts.
    fn slot_puts(&self, channel: &Channel, peer: &str, values: &[FieldValue]) -> Rendered {
        let mut lines = Vec::new();
        let mut whole = Vec::new();
        for value in values {
            match &value.value {
                Expr::Call { helper, args } if helper == "owned" => {
                    let Some(Expr::Element { tensor, .. }) = args.first() else {
                        return Err(self.defect("`owned` takes a tensor"));
                    };
                    let (name, cfg) = (constant(&value.name), format!("Cfg::{}", channel.message));
                    let kind = elem_type(&first_part(self.ir, &self.tensor(tensor)?.elem));
                    let i = self.element;
                    lines.push(format!(
                        "ep::put<{kind}>(meta + {cfg}::{name}, {cfg}::{name}Count, [&](int {i}) {{\n\
                         return {i} < theirs.count ? args.{tensor}[theirs.first + {i}] : 0;\n}});"
                    ));
                }
                _ => whole.push(value.clone()),
            }
        }
        let theirs =
            format!("const ep::Experts theirs = ep::experts_of(args.expert_begin, {peer});");
        let opening = (!lines.is_empty()).then_some(theirs);
        lines.insert(0, self.puts(channel, &whole)?);
        Ok(opening.into_iter().chain(lines).collect::<Vec<_>>().join("\n"))
    }

    /// `place = prefix_sum(binder in domain: value)`, a warp's work.
    fn prefix_sum(&self, stmt: &Stmt, target: &Place, value: &Expr) -> Rendered {
        let Expr::Fold { prefix: true, binder, domain, body } = value else {
            return Err(self.no_form(stmt));
        };
        let tensor = self.tensor(&target.tensor)?;
        let axis = target
            .indices
            .iter()
            .position(|index| matches!(index, Expr::Name { name, .. } if name == binder));
        let extent = axis.and_then(|axis| tensor.dims.get(axis));
        // A table with one more entry than the domain takes the total there.
        let total = match &**domain {
            Domain::Dim { name } => extent.is_some_and(|extent| is_one_more(self.ir, extent, name)),
            _ => false,
        };
        let function = if total { "prefix_sum_and_total" } else { "prefix_sum" };
        let value = self.lane_text(body);
        Ok(format!(
            "{}\nep::{function}(\n{},\n[&]({}) {{ return {value}; }},\n\
             [&](int {binder}, ep::i32 sum) {{ {} }});",
            self.comment(stmt),
            self.scope().domain_count(domain),
            param("int", binder, &value),
            self.assign(target, "sum")?,
        ))
    }

    /// The slots channels at whose ends a role is.
    pub(super) fn slots_of(&self, role: &Role) -> Vec<&Channel> {
        let here = |channel: &&Channel| {
            channel.kind == ChannelKind::Slots
                && (channel.to == role.name || channel.from.contains(&role.name))
        };
        self.ir.channels.iter().filter(here).collect()
    }

    /// The slots channels of a role, as objects of its function.
    pub(super) fn slot_channels(&self, role: &Role) -> Result<Vec<String>, RenderError> {
        let slots = self.slots_of(role);
        let mut lines = Vec::new();
        for channel in slots {
            if !is_one_block(&role.blocks) {
                return Err(self.defect(&format!(
                    "the slots of role `{}` are read by one block, so it stands `on block 0`",
                    role.name
                )));
            }
            if !travels_in_words(self.ir, channel) || channel.slot_names != ["source"] {
                let defect = self.defect(&format!(
                    "the slots of channel `{}` hold rows or more than one record for each source, \
                     which has no text",
                    channel.name
                ));
                return Err(RenderError { statement: Some(channel.at.clone()), ..defect });
            }
            lines.push(format!(
                "ep::SlotChannel<{}> {}(team);",
                channel_cfg(channel),
                channel.name
            ));
        }
        Ok(lines)
    }
}

fn is_one_block(blocks: &Blocks) -> bool {
    match blocks {
        Blocks::Last => true,
        Blocks::Range { low: Expr::Int { value: low }, high: Expr::Int { value: high } } => {
            high - low == 1
        }
        _ => false,
    }
}

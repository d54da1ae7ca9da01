//! Ring channels: roles whose warps are divided over the peers, a stripe after the other.

use super::direct::merge;
use super::expr::Scope;
use super::names::{channel_cfg, role_cfg};
use super::{Rendered, Renderer, param};
use crate::ir::{Action, Channel, ChannelKind, Domain, Expr, Role, Share, Stmt};

impl<'a> Renderer<'a> {
    /// The loops of a role `Name[peer]`, around its statements.
    pub(super) fn ring_role(&self, role: &Role) -> Rendered {
        let Share::Peer { binder, .. } = &role.share else {
            return Err(self.defect(&format!("role `{}` has no peer", role.name)));
        };
        let channel = self.ring_of(role)?;
        let end = if channel.to == role.name { "RingConsumer" } else { "RingProducer" };
        let mut lines = Vec::new();
        let mut once = Vec::new();
        for stmt in &role.body {
            if let Action::Record { target, value } | Action::Store { target, value } = &stmt.action
            {
                once.push(self.comment(stmt));
                once.push(format!("{} = {};", self.place(target)?, self.ring_text(channel, value)));
                continue;
            }
            flush_once(&mut lines, &mut once);
            lines.push(self.ring_step(channel, stmt)?);
        }
        flush_once(&mut lines, &mut once);
        // Producers finish where they know how much they have sent.
        let (rooms, finish) = match end {
            "RingConsumer" => {
                let received =
                    role.body.iter().find(|it| matches!(it.action, Action::Receive { .. }));
                let ending = received.map(|stmt| self.ending(stmt)).unwrap_or_default();
                (self.rooms(&role.body)?, format!("{ending}\n{}.finish();", channel.name))
            }
            _ => Default::default(),
        };
        self.step(
            "ring_role",
            &[
                ("rooms", &rooms),
                ("peer", binder),
                ("end", end),
                ("channel", &channel.name),
                ("channel_cfg", &channel_cfg(channel)),
                ("role_cfg", &role_cfg(role)),
                ("steps", &lines.join("\n")),
                ("finish", &finish),
            ],
        )
    }

    /// The one ring that a role with a peer fills or empties.
    pub(super) fn ring_of(&self, role: &Role) -> Result<&'a Channel, super::RenderError> {
        let mut rings = self.ir.channels.iter().filter(|channel| {
            channel.kind == ChannelKind::Ring
                && (channel.to == role.name || channel.from.contains(&role.name))
        });
        match (rings.next(), rings.next()) {
            (Some(ring), None) => Ok(ring),
            _ => Err(self.defect(&format!(
                "role `{}` joins more than one ring, or both ends of one",
                role.name
            ))),
        }
    }

    /// An expression that may read a ring's header and position.
    fn ring_text(&self, channel: &Channel, expr: &Expr) -> String {
        let read = |of: &str, field: &str| match (of == channel.name, field) {
            (true, "position") => "position".to_string(),
            _ => format!("{of}.{field}()"),
        };
        Scope { field: &read, ..self.scope() }.text(expr)
    }

    fn ring_step(&self, channel: &Channel, stmt: &Stmt) -> Rendered {
        match &stmt.action {
            Action::Announce { values, .. } => {
                // The numbers of a header stand in one order, whatever that of the declaration.
                let named = |name: &str| values.iter().find(|value| value.name == name);
                let texts = ["first", "count"].into_iter().filter_map(named);
                let texts = texts.map(|value| self.text(&value.value)).collect::<Vec<_>>();
                Ok(format!(
                    "{}\n{}.announce({});",
                    self.comment(stmt),
                    channel.name,
                    texts.join(",\n")
                ))
            }
            Action::For { domain: Domain::Stripe, .. } => self.ring_send(channel, stmt),
            Action::For { domain: Domain::Range { .. }, .. } => self.ring_send_range(channel, stmt),
            Action::Receive { .. } => self.ring_receive(channel, stmt),
            _ => Err(self.no_form(stmt)),
        }
    }

    /// `for token in stripe where .. { push ring[peer] ..; record ..; }`.
    fn ring_send(&self, channel: &Channel, stmt: &Stmt) -> Rendered {
        let Action::For { binder, filter, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let push = body.iter().find(|inner| matches!(inner.action, Action::Push { .. }));
        let push = push.ok_or_else(|| self.no_form(stmt))?;
        let records = body.iter().filter(|inner| matches!(inner.action, Action::Record { .. }));
        let each = self.records(channel, &records.collect::<Vec<_>>())?;
        let filter = filter.as_ref().map_or("true".to_string(), |filter| self.text(filter));
        self.step(
            "ring_send",
            &[
                ("striped", &self.scope().striped()),
                ("channel", &channel.name),
                ("comment", &self.comment(stmt)),
                ("filter", &filter),
                ("filter_token", &param("int", binder, &filter)),
                ("push_comment", &self.comment(push)),
                ("ending", &self.ending(push)),
                ("token", binder),
                ("row", &self.pushed_row(channel, push)?),
                ("each", &each),
                ("each_token", &param("int", binder, &each)),
                ("each_match", &param("bool", "match", &each)),
                ("each_position", &param("int", "position", &each)),
            ],
        )
    }

    /// `for row in a..b { push ring[peer] ..; }`.
    fn ring_send_range(&self, channel: &Channel, stmt: &Stmt) -> Rendered {
        let Action::For { binder, domain: Domain::Range { low, high }, body, .. } = &stmt.action
        else {
            return Err(self.no_form(stmt));
        };
        let [push] = body.as_slice() else { return Err(self.no_form(stmt)) };
        self.step(
            "ring_send_range",
            &[
                ("channel", &channel.name),
                ("comment", &self.comment(stmt)),
                ("begin", &self.text(low)),
                ("end", &self.text(high)),
                ("push_comment", &self.comment(push)),
                ("ending", &self.ending(push)),
                ("row_binder", binder),
                ("row", &self.pushed_row(channel, push)?),
            ],
        )
    }

    fn pushed_row(&self, channel: &Channel, push: &Stmt) -> Rendered {
        let Action::Push { values, .. } = &push.action else { return Err(self.no_form(push)) };
        self.push_row(channel, values)
    }

    /// `for message in ring[peer] at .. { store ..; }`.
    fn ring_receive(&self, channel: &Channel, stmt: &Stmt) -> Rendered {
        let Action::Receive { binder, position, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let first = position.as_ref().map(|position| self.ring_text(channel, position));
        let message = self.message(channel)?;
        let row_field = message.fields.iter().find(|field| field.row);
        let (mut rows, mut asks, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        for inner in body {
            let unpacked = self.unpack(channel, binder, inner)?;
            if let Action::Store { target, value: Expr::Field { field, .. } } = &inner.action
                && row_field.is_some_and(|row| row.name == *field)
            {
                let tensor = self.tensor(&target.tensor)?;
                let stride = self.scope().row_stride(tensor, 0);
                rows.push(self.comment(inner));
                rows.push(format!(
                    "mover.row(ep::at_leader(args.{} + row * {stride}), {}.row(position));",
                    tensor.name, channel.name
                ));
            } else {
                fields.push(self.comment(inner));
            }
            merge(&mut asks, unpacked.asks);
            fields.extend(unpacked.stores);
        }
        self.step(
            "ring_receive",
            &[
                ("comment", &self.comment(stmt)),
                ("first", first.as_deref().unwrap_or("0")),
                ("channel", &channel.name),
                ("binder", binder),
                ("rows", &rows.join("\n")),
                ("asks", &asks.join("\n")),
                ("fields", &fields.join("\n")),
            ],
        )
    }
}

/// Records that stand at the level of a stripe are written by one lane of those that share it.
fn flush_once(lines: &mut Vec<String>, once: &mut Vec<String>) {
    if !once.is_empty() {
        lines.push(format!("ep::once(team, [&] {{\n{}\n}});", once.join("\n")));
        once.clear();
    }
}

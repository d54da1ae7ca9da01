//! Direct channels: a lane per peer stores rows in the receivers' outputs.

use super::expr::{Scope, elem_type};
use super::names::{channel_cfg, role_cfg};
use super::{RenderError, Rendered, Renderer, param};
use crate::ir::{Action, Channel, Elem, Expr, FieldValue, NameKind, Place, Role, Stmt, Tensor};
use crate::plan::{MetaSource, constant, meta_sources, parts, row_in_place};
use crate::schedule::rules::{Fanout, Reached, is_position};
use crate::schedule::typed::is_plain;

/// The steps of a fan-out as text.
pub(super) struct FanoutSteps<'a> {
    pub(super) channel: &'a Channel,
    pub(super) first: String,
    pub(super) filter: String,
    pub(super) row: String,
    pub(super) each: String,
}

/// A field besides the row, and what is pushed there.
struct SmallField {
    name: String,
    /// Its place in the record; with `Count` behind it, how many elements it has.
    place: String,
    elem: &'static str,
    /// The parameter of the function that gives an element.
    param: String,
    value: String,
}

impl<'a> Renderer<'a> {
    /// `for token in stripe { for peer in .. where .. { push ..; record ..; } }`, and `twin` that does
    /// the same for this rank alone.
    pub(super) fn direct_send(&self, role: &Role, stmt: &Stmt, twin: Option<&Role>) -> Rendered {
        let fanout = self.fanout(stmt)?;
        let steps = self.fanout_steps(&fanout)?;
        let total = self.received_by(steps.channel, fanout.peer)?;
        let other = twin.and_then(|twin| twin.body.first());
        let push = other.map(|other| self.fanout(other)).transpose()?.map(|other| other.push);
        let both = |own: &Stmt, other: Option<&Stmt>, line: fn(&Self, &Stmt) -> String| {
            let other = other.map(|other| format!("\n{}", line(self, other)));
            format!("{}{}", line(self, own), other.unwrap_or_default())
        };
        let peers = format!("const ep::Peers peers = {};", peers_of(fanout.reached));
        self.step(
            "direct_send",
            &[
                ("peers", if twin.is_some() { "" } else { &peers }),
                ("channel_cfg", &channel_cfg(steps.channel)),
                ("role_cfg", &role_cfg(role)),
                ("channel", &steps.channel.name),
                ("total", &total),
                ("total_peer", &param("int", fanout.peer, &total)),
                ("first", &steps.first),
                ("first_peer", &param("int", fanout.peer, &steps.first)),
                ("striped", &self.scope().striped()),
                ("loop_comment", &both(stmt, other, Self::comment)),
                (
                    "filter_comment",
                    &fanout.inner.map(|inner| self.comment(inner)).unwrap_or_default(),
                ),
                ("filter", &steps.filter),
                ("token", fanout.token),
                ("filter_token", &param("int", fanout.token, &steps.filter)),
                ("filter_peer", &param("int", fanout.peer, &steps.filter)),
                ("push_comment", &both(fanout.push, push, Self::comment)),
                ("ending", &both(fanout.push, push, Self::ending)),
                ("row", &steps.row),
                ("each", &steps.each),
                ("each_token", &param("int", fanout.token, &steps.each)),
                ("each_peer", &param("int", fanout.peer, &steps.each)),
                ("each_match", &param("bool", "match", &steps.each)),
                ("each_position", &param("int", "position", &steps.each)),
            ],
        )
    }

    /// What a fan-out does at each place of its loop.
    pub(super) fn fanout_steps(&self, fanout: &Fanout<'_>) -> Result<FanoutSteps<'a>, RenderError> {
        let Action::Push { channel, position, values, .. } = &fanout.push.action else {
            return Err(self.no_form(fanout.push));
        };
        let channel = self.channel(channel)?;
        Ok(FanoutSteps {
            channel,
            first: position.as_ref().map(|position| self.text(position)).unwrap_or_default(),
            filter: self.all_of(&fanout.filters),
            row: self.push_row(channel, values)?,
            each: self.records(channel, &fanout.records)?,
        })
    }

    /// A condition that holds where all of these do.
    fn all_of(&self, filters: &[&Expr]) -> String {
        let texts = filters.iter().map(|filter| match filters.len() {
            1 => self.text(filter),
            _ => format!("({})", self.text(filter)),
        });
        let text = texts.collect::<Vec<_>>().join(" && ");
        if text.is_empty() { "true".to_string() } else { text }
    }

    /// The parts of a fan-out.
    pub(super) fn fanout<'s>(&self, stmt: &'s Stmt) -> Result<Fanout<'s>, RenderError> {
        Fanout::of(stmt).ok_or_else(|| self.no_form(stmt))
    }

    /// How many rows arrive at `peer`: the size of the outputs that the channel stores into.
    fn received_by(&self, channel: &Channel, peer: &str) -> Rendered {
        let size =
            row_in_place(self.ir, channel).and_then(|(_, tensor)| match tensor.dims.first() {
                Some(Expr::Name { name, kind: NameKind::Size }) => {
                    self.ir.sizes.iter().find(|size| size.name == *name)?.value.as_ref()
                }
                _ => None,
            });
        let size = size.ok_or_else(|| {
            self.defect(&format!("no output of a known size for channel `{}`", channel.name))
        })?;
        Ok(Scope { me: peer, ..self.scope() }.text(size))
    }

    /// Moves the row, fills and sends the meta record.
    pub(super) fn push_row(&self, channel: &Channel, values: &[FieldValue]) -> Rendered {
        let message = self.message(channel)?;
        let row = message.fields.iter().find(|field| field.row);
        let source = row.and_then(|row| values.iter().find(|value| value.name == row.name));
        let Some(FieldValue { value: Expr::Element { tensor, indices }, .. }) = source else {
            return Err(self.defect(&format!("the row of `{}` is no tensor row", message.name)));
        };
        let from = self.scope().row_address(self.tensor(tensor)?, 0, indices);
        let (asks, puts) = self.asked_fields(channel, values, "meta")?;
        self.step(
            "push",
            &[("channel", &channel.name), ("from", &from), ("asks", &asks), ("puts", &puts)],
        )
    }

    /// The small fields of a message: how they are asked for, and put into the record at `to`.
    pub(super) fn asked_fields(
        &self,
        channel: &Channel,
        values: &[FieldValue],
        to: &str,
    ) -> Result<(String, String), RenderError> {
        let (mut asks, mut puts) = (Vec::new(), Vec::new());
        for SmallField { name, place, elem, param, value } in self.small_fields(channel, values)? {
            asks.push(format!(
                "const auto {name}_field = ep::ask<{elem}, {place}Count>([&]({param}) {{\n\
                 return {value};\n}});"
            ));
            puts.push(format!("{name}_field.put({to} + {place});"));
        }
        Ok((asks.join("\n"), puts.join("\n")))
    }

    /// One `put` for each small field, into words.
    pub(super) fn puts(&self, channel: &Channel, values: &[FieldValue]) -> Rendered {
        let fields = self.small_fields(channel, values)?.into_iter();
        let puts = fields.map(|SmallField { place, elem, param, value, .. }| {
            format!(
                "ep::put<{elem}>(meta + {place}, {place}Count, [&]({param}) {{\nreturn {value};\n}});"
            )
        });
        Ok(puts.collect::<Vec<_>>().join("\n"))
    }

    /// The fields of a message besides its row, with what is pushed.
    fn small_fields(
        &self,
        channel: &Channel,
        values: &[FieldValue],
    ) -> Result<Vec<SmallField>, RenderError> {
        let message = self.message(channel)?;
        let mut fields = Vec::new();
        for source in meta_sources(self.ir, message) {
            let value = values.iter().find(|value| value.name == source.field.name);
            let Some(value) = value else { continue };
            let value = self.meta_value(&source, &value.value)?;
            fields.push(SmallField {
                place: format!("Cfg::{}::{}", message.name, constant(&source.name)),
                elem: elem_type(&source.elem),
                param: param("int", self.element, &value),
                name: source.name,
                value,
            });
        }
        Ok(fields)
    }

    /// Element `i` of a small field: of a part of a composite row, or of the value itself.
    fn meta_value(&self, source: &MetaSource<'_>, value: &Expr) -> Rendered {
        if let Expr::Element { tensor, indices } = value
            && source.field.row
        {
            let tensor = self.tensor(tensor)?;
            let part = parts(self.ir, &tensor.elem)
                .iter()
                .position(|(suffix, ..)| source.name == format!("{}{suffix}", source.field.name));
            let indices = indices.iter().map(|index| self.text(index)).collect::<Vec<_>>();
            return Ok(self.scope().part_element(tensor, part.unwrap_or(0), &indices));
        }
        Ok(self.text(value))
    }

    /// Statements that record a position for every token and peer, matching or not, and any other
    /// value for those that match.
    pub(super) fn records(&self, channel: &Channel, stmts: &[&Stmt]) -> Rendered {
        let mut lines = Vec::new();
        for stmt in stmts {
            let Action::Record { target, value: whole } = &stmt.action else { continue };
            let read = |of: &str, field: &str| match (of == channel.name, field) {
                (true, "position") => "position".to_string(),
                _ => format!("{of}.{field}()"),
            };
            let value = Scope { field: &read, ..self.scope() }.text(whole);
            lines.push(self.comment(stmt));
            let place = self.place(target)?;
            lines.push(match is_position(whole, channel) {
                true => format!("{place} = ep::recorded(match, {value});"),
                false => format!("if (match) {place} = {value};"),
            });
        }
        Ok(lines.join("\n"))
    }

    /// An element that is written.
    pub(super) fn place(&self, place: &Place) -> Rendered {
        let tensor = self.tensor(&place.tensor)?;
        let indices = place.indices.iter().map(|index| self.text(index)).collect::<Vec<_>>();
        Ok(self.scope().part_element(tensor, 0, &indices))
    }

    /// Offers the output to all senders.
    pub(super) fn direct_ready(&self, channel: &Channel, role: &Role) -> Rendered {
        let (_, tensor) = row_in_place(self.ir, channel).ok_or_else(|| {
            self.defect(&format!(
                "role `{}` stores no row of `{}` in the window",
                role.name, channel.name
            ))
        })?;
        let Some(Expr::Name { name: size, .. }) = tensor.dims.first() else {
            return Err(self.defect(&format!("`{}` has no run-time rows", tensor.name)));
        };
        Ok(format!(
            "ep::direct_ready<{}>(team, args.{}_at, args.{}_meta_at, args.{size}_capacity);",
            channel_cfg(channel),
            tensor.name,
            channel.name,
        ))
    }

    /// `fill value beyond size` for the outputs that the role stores.
    pub(super) fn fills(&self, role: &Role) -> Result<Vec<String>, RenderError> {
        let mut lines = Vec::new();
        let mut stored: Vec<&str> = Vec::new();
        crate::ir::walk::stmts(&role.body, &mut |stmt| {
            if let Action::Store { target, .. } = &stmt.action {
                stored.push(&target.tensor);
            }
        });
        for tensor in self.ir.tensors.iter().filter(|tensor| stored.contains(&tensor.name.as_str()))
        {
            let (Some(value), Some(Expr::Name { name, .. })) = (tensor.fill, tensor.dims.first())
            else {
                continue;
            };
            let size = self.ir.sizes.iter().find(|size| size.name == *name);
            let Some(end) = size.and_then(|size| size.value.as_ref()) else { continue };
            lines.push(format!("// {}: fill {value} beyond {name}", tensor.name));
            lines.push(format!(
                "ep::fill(team, args.{}, {}, {}, args.{name}_capacity,\n{});",
                tensor.name,
                self.width(tensor),
                self.text(end),
                self.filled(tensor, value)?,
            ));
        }
        Ok(lines)
    }

    /// The number that fills a tensor, as one of its elements.
    pub(super) fn filled(&self, tensor: &Tensor, value: i64) -> Rendered {
        match parts(self.ir, &tensor.elem).as_slice() {
            [(_, Elem::Bool, _)] => Ok((value != 0).to_string()),
            [(_, Elem::Bf16, _)] => Ok(format!("ep::to_bf16({value})")),
            [(_, elem, _)] if is_plain(elem) => Ok(format!("{}{{{value}}}", elem_type(elem))),
            _ => Err(self.defect(&format!(
                "`{}` is filled with scaled numbers, which has no CUDA form",
                tensor.name
            ))),
        }
    }

    /// Elements per row that a caller brings room for: none when an optional tensor is absent.
    pub(super) fn width(&self, tensor: &Tensor) -> String {
        let width = self.scope().row_stride(tensor, 0);
        if tensor.optional {
            format!("args.{} == nullptr ? 0 : {width}", tensor.name)
        } else {
            width
        }
    }

    /// `for message in channel[source] { store ..; }`: rows are in place, the rest is unpacked.
    pub(super) fn direct_receive(&self, stmt: &Stmt) -> Rendered {
        let Action::Receive { binder, channel, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        let (mut asks, mut lines) = (Vec::new(), Vec::new());
        for inner in body {
            lines.push(self.comment(inner));
            let unpacked = self.unpack(channel, binder, inner)?;
            if unpacked.stores.is_empty() {
                lines.push("// The sender has stored it in place.".to_string());
            }
            merge(&mut asks, unpacked.asks);
            lines.extend(unpacked.stores);
        }
        self.step(
            "direct_receive",
            &[
                ("comment", &self.comment(stmt)),
                ("channel_cfg", &channel_cfg(channel)),
                ("channel", &channel.name),
                ("binder", binder),
                ("asks", &asks.join("\n")),
                ("stores", &lines.join("\n")),
            ],
        )
    }

    /// The small fields that `stmt` takes from each message.
    pub(super) fn unpack(
        &self,
        channel: &Channel,
        binder: &str,
        stmt: &Stmt,
    ) -> Result<Unpacked, RenderError> {
        let (Action::Store { target, value } | Action::Record { target, value }) = &stmt.action
        else {
            return Err(self.no_form(stmt));
        };
        let tensor = self.tensor(&target.tensor)?;
        let field = field_of(value, binder).ok_or_else(|| self.no_form(stmt))?;
        let sources = meta_sources(self.ir, self.message(channel)?);
        let mut unpacked = Unpacked::default();
        for source in sources.iter().filter(|source| source.field.name == field) {
            let (kind, place) = (elem_type(&source.elem), constant(&source.name));
            let (name, message) = (&source.name, &channel.message);
            unpacked.asks.push(format!(
                "const auto {name}_field = {binder}.ask<{kind}, Cfg::{message}::{place}Count>(\n\
                 Cfg::{message}::{place});"
            ));
            unpacked.stores.push(self.unpack_field(tensor, source, value)?);
        }
        Ok(unpacked)
    }

    fn unpack_field(&self, tensor: &Tensor, source: &MetaSource<'_>, value: &Expr) -> Rendered {
        let field = source.field.name.as_str();
        let suffix = source.name.strip_prefix(field).unwrap_or_default();
        let part = parts(self.ir, &tensor.elem).iter().position(|(name, ..)| name == suffix);
        let part = part.unwrap_or(0);
        let text = match source.field.row {
            true => field.to_string(),
            false => Scope { field: &|_, _| field.to_string(), ..self.scope() }.text(value),
        };
        let stride = match part {
            0 => "1".to_string(),
            _ => format!("args.{}_block_stride", self.part_name(&tensor.name, part)?),
        };
        Ok(format!(
            "{}_field.store(args.{}, {}, {stride},\n[&]({} {field}) {{ return {text}; }});",
            source.name,
            self.part_name(&tensor.name, part)?,
            self.scope().row_stride(tensor, part),
            elem_type(&source.elem),
        ))
    }
}

/// Small fields of a received message as text: how they are asked for, and stored.
#[derive(Default)]
pub(super) struct Unpacked {
    pub(super) asks: Vec<String>,
    pub(super) stores: Vec<String>,
}

/// Asks once for a field that is stored twice.
pub(super) fn merge(asks: &mut Vec<String>, more: Vec<String>) {
    for ask in more {
        if !asks.contains(&ask) {
            asks.push(ask);
        }
    }
}

/// The peers of a fan-out as the library names them.
pub(super) fn peers_of(reached: Reached) -> &'static str {
    match reached {
        Reached::All => "ep::all_peers(Cfg::kRanks)",
        Reached::Others => "ep::other_peers(Cfg::kRanks, me)",
        Reached::Own => "ep::one_peer(me)",
    }
}

/// The one field of `binder` that `value` reads.
fn field_of<'e>(value: &'e Expr, binder: &str) -> Option<&'e str> {
    match value {
        Expr::Field { of, field, .. } if of == binder => Some(field),
        Expr::Call { args, .. } => args.iter().find_map(|arg| field_of(arg, binder)),
        Expr::Cast { value, .. } | Expr::Not { value } => field_of(value, binder),
        Expr::Binary { left, right, .. } => {
            field_of(left, binder).or_else(|| field_of(right, binder))
        }
        _ => None,
    }
}

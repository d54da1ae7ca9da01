//! Rows of one token from all its peers, added up.

use super::names::{channel_cfg, role_cfg, role_fn};
use super::{RenderError, Rendered, Renderer, param};
use crate::ir::{Action, Channel, ChannelKind, Domain, Expr, Place, Role, Stmt};
use crate::plan::constant;
use crate::schedule::rules::sum_and_bias;

/// What differs from gather to gather.
struct Steps {
    opening: String,
    /// The loop around the rest, if there is one.
    each_stripe: String,
    /// What says which tokens a warp takes.
    turns: String,
    closing: String,
}

fn pull_opening(channel: &Channel) -> String {
    let name = &channel.name;
    format!("ep::PullConsumer<{}> {name}(team);", channel_cfg(channel))
}

impl Renderer<'_> {
    /// `for token in .. gather part from channel[peer] at .. across peer in .. { store ..; }`.
    pub(super) fn gather(&self, role: &Role, stmt: &Stmt) -> Rendered {
        let Action::Gather { binder, domain, part, channel, position, across, body, .. } =
            &stmt.action
        else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        // The sum of the row takes the parts; those of the other fields come with it.
        let (mut stores, mut of_fields) = (Vec::new(), Vec::new());
        for inner in body {
            let (row, text) = self.gathered(channel, part, inner)?;
            if row { &mut stores } else { &mut of_fields }.push(text);
        }
        stores.append(&mut of_fields);
        let at = self.text(position);
        let steps = match (&channel.kind, domain) {
            (ChannelKind::Ring, Domain::Stripe) => self.gather_ring(role, channel, stmt),
            (ChannelKind::Pull, Domain::Stripe) => self.gather_pull_stripes(channel, stmt),
            (ChannelKind::Pull, domain) => self.gather_pull(channel, stmt, domain),
            _ => return Err(self.no_form(stmt)),
        };
        let stores = stores.join("\n");
        self.step(
            "gather",
            &[
                ("opening", &steps.opening),
                ("each_stripe", &steps.each_stripe),
                ("turns", steps.turns.as_str()),
                ("closing", &steps.closing),
                ("role_cfg", &role_cfg(role)),
                ("role", &role_fn(role)),
                ("channel", &channel.name),
                ("at", &at),
                ("at_token", &param("int", binder, &at)),
                ("at_peer", &param("int", across, &at)),
                ("token", &param("int", binder, &stores)),
                ("part", part),
                ("stores", &stores),
            ],
        )
    }

    /// Rows of rings come and go by stripes.
    fn gather_ring(&self, role: &Role, channel: &Channel, stmt: &Stmt) -> Steps {
        let (name, role_cfg) = (&channel.name, role_cfg(role));
        let of_stripes = self.stripes(&format!("{name}.open(stripe);\n"), stmt);
        Steps {
            opening: format!(
                "ep::RingGather<{}, {role_cfg}> {name}(\n\
                 team, smem.sequences + {role_cfg}::kFirstSequence);",
                channel_cfg(channel)
            ),
            closing: format!("{}\n{name}.finish(tokens, position);\n}}", self.ending(stmt)),
            ..of_stripes
        }
    }

    fn gather_pull(&self, channel: &Channel, stmt: &Stmt, domain: &Domain) -> Steps {
        let opening = format!("{}\n{}", pull_opening(channel), self.comment(stmt));
        Steps {
            opening,
            each_stripe: String::new(),
            turns: format!(
                "ep::ClaimedTurns<{}> turns(team, {});",
                channel_cfg(channel),
                self.scope().domain_count(domain)
            ),
            closing: format!("{}.release();", channel.name),
        }
    }

    fn gather_pull_stripes(&self, channel: &Channel, stmt: &Stmt) -> Steps {
        Steps {
            opening: pull_opening(channel),
            closing: format!("}}\n{}.release();", channel.name),
            ..self.stripes("", stmt)
        }
    }

    /// The loop over the stripes of a block, whose warps take tokens in turn.
    fn stripes(&self, open: &str, stmt: &Stmt) -> Steps {
        Steps {
            opening: String::new(),
            each_stripe: format!(
                "for (int stripe = team.block; stripe < Cfg::kStripes; stripe += team.blocks) {{\n\
                 {open}{}\n\
                 const ep::Span tokens = ep::stripe_span({}, Cfg::kStripes, stripe);\n",
                self.comment(stmt),
                self.scope().striped()
            ),
            turns: "const ep::Turns turns{tokens.begin + team.warp, tokens.end, team.warps};"
                .to_string(),
            closing: String::new(),
        }
    }

    /// `store out[token] = sum(part.x) + bias[token]`, or of a small field; whether it is the row.
    pub(super) fn gathered(
        &self,
        channel: &Channel,
        part: &str,
        stmt: &Stmt,
    ) -> Result<(bool, String), RenderError> {
        let Action::Store { target, value } = &stmt.action else { return Err(self.no_form(stmt)) };
        let (field, bias) = sum_and_bias(value, part).ok_or_else(|| self.no_form(stmt))?;
        let message = self.message(channel)?;
        let is_row =
            message.fields.iter().any(|candidate| candidate.row && candidate.name == field);
        let out = self.row_of(target)?;
        let text = if is_row {
            self.store_row(part, &out, bias)?
        } else if bias.is_none() {
            let (name, cfg) = (constant(field), format!("Cfg::{}", message.name));
            format!("{part}.store_sum({out}, {cfg}::{name}, {cfg}::{name}Count);")
        } else {
            return Err(self.no_form(stmt));
        };
        Ok((is_row, format!("{}\n{text}", self.comment(stmt))))
    }

    fn store_row(&self, part: &str, out: &str, bias: Option<&Expr>) -> Rendered {
        let Some(Expr::Element { tensor: bias, indices }) = bias else {
            return Ok(format!("{part}.store_row({out});"));
        };
        let tensor = self.tensor(bias)?;
        let row = |base: &str| match indices.first() {
            None => base.to_string(),
            Some(row) => {
                format!("{base} + {} * {}", self.factor(row), self.scope().row_stride(tensor, 0))
            }
        };
        let copy = self.element;
        let (count, lambda) = if tensor.copies > 1 {
            (
                format!("args.{bias}_count"),
                format!("[&](int {copy}) {{ return {}; }}", row(&format!("args.{bias}[{copy}]"))),
            )
        } else {
            // An optional tensor that is absent adds nothing.
            let count =
                if tensor.optional { format!("args.{bias} != nullptr") } else { "1".to_string() };
            (count, format!("[&](int) {{ return {}; }}", row(&format!("args.{bias}"))))
        };
        Ok(format!("{part}.store_row<{}>(\n{out}, {count},\n{lambda});", tensor.copies))
    }

    /// Address of the row that is written.
    fn row_of(&self, place: &Place) -> Rendered {
        let tensor = self.tensor(&place.tensor)?;
        Ok(self.scope().row_address(tensor, 0, &place.indices))
    }
}

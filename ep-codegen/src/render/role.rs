//! One function per role.

use super::names::{role_cfg, role_fn};
use super::{Rendered, Renderer, mentions};
use crate::ir::{Action, ChannelKind, Domain, Role, Share, Stmt, walk};
use crate::plan::{role_use, sums};

impl Renderer<'_> {
    /// The function of `role`.
    pub(super) fn role(&self, role: &Role) -> Rendered {
        if self.leader_of(role)?.is_some() {
            return Ok(String::new());
        }
        if self.ways.is_composed(&role.name) {
            return self.composed(role);
        }
        if let Some(one) = self.one_launch() {
            return self.one_launch_role(&one);
        }
        if let Some(back) = self.way_back() {
            return self.way_back_role(&back, role);
        }
        let twin = self.twin_of(role)?;
        let used = role_use(self.ir, &self.ways, role);
        let body = match role.share {
            Share::Peer { .. } => self.ring_role(role)?,
            _ => self.flows(role)?,
        };
        let smem = if self.uses_smem(role) { "Smem& smem, " } else { "" };
        let params = match twin {
            Some(_) => self.twin_params(role),
            None => format!("const Args& args, {smem}ep::Team& team"),
        };
        let mut opening = Vec::new();
        let acquired = self.channel_opening(role)?;
        if mentions(&body, "me") || mentions(&acquired, "me") {
            opening.push("const int me = args.group.rank;".to_string());
        }
        if mentions(&body, "mine") {
            opening.push("const ep::Experts mine = ep::experts_of(args.expert_begin, me);".into());
            if !opening[0].starts_with("const int me") {
                opening.insert(0, "const int me = args.group.rank;".to_string());
            }
        }
        if used.mover {
            let (cfg, name) = (role_cfg(role), role_fn(role));
            let own = if twin.is_some() { "own".into() } else { format!("smem.{name}[team.warp]") };
            opening.push(format!("ep::Mover<{cfg}> mover({own}, team);"));
        }
        if sums(self.ir, role) {
            opening.push("ep::Counters<Cfg::Counted> counters(args.group, smem.counters);".into());
        }
        opening.push(acquired);
        opening.extend(self.slot_channels(role)?);
        let mut source = role.at.text.clone();
        if let Some(twin) = twin {
            source += &format!("\n/// {}: the same for this rank", twin.at.text);
        }
        self.step(
            "role",
            &[
                ("source", &source),
                ("name", &role_fn(role)),
                ("params", &params),
                ("opening", &opening.join("\n")),
                ("body", &body),
                ("closing", self.closing(role)),
            ],
        )
    }

    /// What a consuming role does before anything else: offers its output, fills what stays empty.
    fn channel_opening(&self, role: &Role) -> Rendered {
        let mut lines = Vec::new();
        for channel in self.ir.channels.iter().filter(|channel| channel.to == role.name) {
            if channel.kind == ChannelKind::Direct {
                lines.push(self.direct_ready(channel, role)?);
            }
        }
        lines.extend(self.fills(role)?);
        Ok(lines.join("\n"))
    }

    /// What a role owes when it is done: open copies.
    fn closing(&self, role: &Role) -> &'static str {
        if role_use(self.ir, &self.ways, role).mover { "mover.finish();" } else { "" }
    }

    /// The flows of a role in order.
    fn flows(&self, role: &Role) -> Rendered {
        let several = role.body.iter().filter(|stmt| self.moves(stmt)).count() > 1;
        let mut texts = Vec::new();
        for stmt in &role.body {
            let text = self.flow(role, stmt)?;
            // Each has variables of its own.
            texts.push(if several && self.moves(stmt) { format!("{{\n{text}\n}}") } else { text });
        }
        Ok(texts.join("\n"))
    }

    fn flow(&self, role: &Role, stmt: &Stmt) -> Rendered {
        match &stmt.action {
            Action::For { domain: Domain::Stripe, .. } if self.pushes_direct(stmt) => {
                self.direct_send(role, stmt, self.twin_of(role)?)
            }
            Action::For { domain: Domain::Stripe, body, .. } => match body.as_slice() {
                [Stmt { action: Action::For { position: Some(_), .. }, .. }] => {
                    self.place_rows(stmt)
                }
                _ => self.count_tokens(stmt),
            },
            Action::Receive { channel, .. } if self.has_kind(channel, ChannelKind::Direct) => {
                self.direct_receive(stmt)
            }
            Action::Gather { .. } => self.gather(role, stmt),
            _ => self.compute(stmt),
        }
    }

    /// Whether a flow moves messages or rows, and not only numbers.
    fn moves(&self, stmt: &Stmt) -> bool {
        matches!(stmt.action, Action::Receive { .. })
            || walk::nested(stmt)
                .iter()
                .any(|inner| matches!(inner.action, Action::For { position: Some(_), .. }))
            || self.pushes_direct(stmt)
    }

    pub(super) fn pushes_direct(&self, stmt: &Stmt) -> bool {
        let mut found = false;
        crate::ir::walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if let Action::Push { channel, .. } = &inner.action {
                found |= self.has_kind(channel, ChannelKind::Direct);
            }
        });
        found
    }

    /// A statement that is right, and that the generator has no form for.
    pub(super) fn no_form(&self, stmt: &Stmt) -> super::RenderError {
        let defect = self.defect("this statement has no CUDA form here");
        super::RenderError { statement: Some(stmt.at.clone()), ..defect }
    }
}

//! Roles that are composed statement by statement.

use super::names::role_fn;
use super::{RenderError, Rendered, Renderer};
use crate::ir::Role;
use crate::{print, schedule};

impl Renderer<'_> {
    /// The function of a role that no rule makes faster.
    pub(super) fn composed(&self, role: &Role) -> Rendered {
        let lowered = schedule::role(self.ir, role, self.ways.rules).map_err(|refusals| {
            let first = refusals.into_iter().next();
            let message = first.as_ref().map(|it| it.why.clone()).unwrap_or_default();
            let at = first.map(|it| it.at);
            RenderError { statement: at, ..self.defect(&message) }
        })?;
        let body = print::steps(&lowered.steps, &|at| self.comment_of(at));
        let mut opening = Vec::new();
        if lowered.uses_me {
            opening.push("const int me = args.group.rank;");
        }
        let counts = crate::plan::sums(self.ir, role);
        if counts {
            opening.push("ep::Counters<Cfg::Counted> counters(args.group, smem.counters);");
        }
        let smem = if self.uses_smem(role) { "Smem& smem, " } else { "" };
        self.step(
            "role",
            &[
                ("source", &role.at.text),
                ("name", &role_fn(role)),
                ("params", &format!("const Args& args, {smem}ep::Team& team")),
                ("opening", &opening.join("\n")),
                ("body", &body),
                ("closing", ""),
            ],
        )
    }
}

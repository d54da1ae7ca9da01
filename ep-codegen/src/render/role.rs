//! One function per role.

use super::{RenderError, Rendered, Renderer};
use crate::ir::Role;
use crate::ir::naming::function_of;
use crate::plan::{self, sums};
use crate::schedule::library::ep;
use crate::schedule::{self, AtOnce, COUNTED, Constant, OwnSteps, RoleSteps};

impl Renderer<'_> {
    /// The functions of `role`.
    pub(super) fn role(&self, role: &Role) -> Rendered {
        let steps = self.steps(role)?;
        let smem = if self.uses_smem(role) { "Smem& smem, " } else { "" };
        let team = self.library(ep::Team);
        let params = format!("const Args& args, {smem}{team}& team");
        let own = OwnSteps { steps: steps.steps, uses_me: steps.uses_me };
        let function = self.function((&role.at.text, &role_fn(role)), &params, role, &own)?;
        let Some(AtOnce { tables, .. }) = steps.at_once else { return Ok(function) };
        let source = format!("What the last block of {} records", role.name);
        let name = format!("{}_tables", role_fn(role));
        let tables = self.function((&source, &name), &params, role, &tables)?;
        Ok(format!("{tables}\n{function}"))
    }

    /// What a role does, in the way that rules have chosen.
    pub(super) fn steps(&self, role: &Role) -> Result<RoleSteps, RenderError> {
        schedule::role(self.ir, role, self.ways.rules).map_err(|refusals| {
            let first = refusals.into_iter().next();
            let message = first.as_ref().map(|it| it.why.to_string()).unwrap_or_default();
            RenderError { statement: first.map(|it| it.at), ..self.defect(&message) }
        })
    }

    fn function(
        &self,
        (source, name): (&str, &str),
        params: &str,
        role: &Role,
        steps: &OwnSteps,
    ) -> Rendered {
        let mut opening = Vec::new();
        if steps.uses_me {
            opening.push("const int me = args.group.rank;".to_string());
        }
        if sums(self.ir, role) {
            let (counters, cfg) = (self.library(ep::Counters), self.constant(COUNTED));
            opening.push(format!("{counters}<{cfg}> counters(args.group, smem.counters);"));
        }
        self.step(
            "role",
            &[
                ("source", source),
                ("name", name),
                ("params", params),
                ("opening", &opening.join("\n")),
                ("body", &self.steps_text(&steps.steps)),
            ],
        )
    }

    /// The struct of constants of a role.
    pub(super) fn role_cfg(&self, role: &Role) -> String {
        self.constant(Constant::of_role(role))
    }

    /// Whether the role's function takes the shared memory.
    pub(super) fn uses_smem(&self, role: &Role) -> bool {
        plan::role_use(&self.ways, role).has_memory() || sums(self.ir, role)
    }
}

/// The function of a role.
pub(super) fn role_fn(role: &Role) -> String {
    function_of(&role.name)
}

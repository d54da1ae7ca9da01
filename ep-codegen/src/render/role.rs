//! One function per role.

use super::names::{role_cfg, role_fn};
use super::{RenderError, Rendered, Renderer};
use crate::ir::{Blocks, Role};
use crate::plan::sums;
use crate::schedule::{self, MEMORY, PEERS, RoleSteps};
use crate::{plan, print};

impl Renderer<'_> {
    /// The functions of `role`: none where that of another role serves it.
    pub(super) fn role(&self, role: &Role) -> Rendered {
        if self.leader_of(role).is_some() {
            return Ok(String::new());
        }
        let steps = self.steps(role)?;
        let twin = self.twin_of(role);
        let smem = if self.uses_smem(role) { "Smem& smem, " } else { "" };
        let params = match twin {
            Some(_) => self.twin_params(role),
            None => format!("const Args& args, {smem}ep::Team& team"),
        };
        let mut source = role.at.text.clone();
        if let Some(twin) = twin {
            source += &format!("\n/// {}: the same for this rank", twin.at.text);
        }
        let function = self.function((&source, &role_fn(role)), &params, role, &steps)?;
        match self.one_launch().and_then(|_| schedule::tables(self.ir)) {
            Some(tables) => {
                let source = format!("What the last block of {} records", role.name);
                let name = format!("{}_tables", role_fn(role));
                let params = "const Args& args, Smem& smem, ep::Team& team";
                let tables = self.function((&source, &name), params, role, &tables)?;
                Ok(format!("{tables}\n{function}"))
            }
            None => Ok(function),
        }
    }

    /// What a role does, in the way that rules have chosen.
    fn steps(&self, role: &Role) -> Result<RoleSteps, RenderError> {
        if !self.ways.is_composed(&role.name)
            && let Some(steps) = schedule::whole(self.ir, role)
        {
            return Ok(steps);
        }
        schedule::role(self.ir, role, self.ways.rules).map_err(|refusals| {
            let first = refusals.into_iter().next();
            let message = first.as_ref().map(|it| it.why.clone()).unwrap_or_default();
            RenderError { statement: first.map(|it| it.at), ..self.defect(&message) }
        })
    }

    fn function(
        &self,
        (source, name): (&str, &str),
        params: &str,
        role: &Role,
        steps: &RoleSteps,
    ) -> Rendered {
        let mut opening = Vec::new();
        if steps.uses_me {
            opening.push("const int me = args.group.rank;");
        }
        if sums(self.ir, role) {
            opening.push("ep::Counters<Cfg::Counted> counters(args.group, smem.counters);");
        }
        self.step(
            "role",
            &[
                ("source", source),
                ("name", name),
                ("params", params),
                ("opening", &opening.join("\n")),
                ("body", &print::steps(&steps.steps, &|at| self.comment_of(at))),
            ],
        )
    }

    // ---- Roles that share a function ----

    /// The earlier role whose function serves `role` too.
    pub(super) fn leader_of(&self, role: &Role) -> Option<&Role> {
        let whole = |role: &&Role| !self.ways.is_composed(&role.name);
        Some(role).filter(whole).and_then(|role| schedule::leader_of(self.ir, role)).filter(whole)
    }

    /// The role that the function of `role` serves besides.
    pub(super) fn twin_of(&self, role: &Role) -> Option<&Role> {
        let whole = |role: &&Role| !self.ways.is_composed(&role.name);
        Some(role).filter(whole).and_then(|role| schedule::twin_of(self.ir, role)).filter(whole)
    }

    /// The call of a function that serves two roles, each with its own test, team, memory and peers. When
    /// the blocks of the first one are all there are, it serves the peer of the second as well.
    pub(super) fn twin_call(&self, role: &Role, twin: &Role) -> String {
        let peers = |role: &Role| schedule::peers_of(self.ir, role).map(|it| print::term(&it));
        let (name, other) = (role_fn(role), role_fn(twin));
        let ((test, team), (other_test, other_team)) = (self.team(role), self.team(twin));
        let mut own = peers(role).unwrap_or_default();
        let others = peers(twin).unwrap_or_default();
        if let (Blocks::Range { high, .. }, Blocks::Other) = (&role.blocks, &twin.blocks) {
            own = format!("{} < blocks ? {own} : ep::all_peers(Cfg::kRanks)", self.text(high));
        }
        format!(
            "const bool is_{name} = {test};\nconst bool is_{other} = {other_test};\n\
             if (is_{name} || is_{other}) {{\n\
             const int me = args.group.rank;\n\
             ep::Team team(\nis_{name} ? ep::Team({team})\n: ep::Team({other_team}));\n\
             {name}(args, is_{name} ? smem.{name}[team.warp] : smem.{other}[team.warp], team,\n\
             is_{other} ? {others}\n: {own});\n}}"
        )
    }

    /// The parameters of a function that serves two roles.
    fn twin_params(&self, role: &Role) -> String {
        format!(
            "const Args& args, ep::MoverSmem<{}>& {MEMORY}, ep::Team& team, const ep::Peers& {PEERS}",
            role_cfg(role)
        )
    }

    /// Whether the role's function takes the shared memory.
    pub(super) fn uses_smem(&self, role: &Role) -> bool {
        plan::role_use(self.ir, &self.ways, role).has_memory() || sums(self.ir, role)
    }
}

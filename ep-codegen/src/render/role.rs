//! One function per role.

use super::{RenderError, Rendered, Renderer};
use crate::ir::naming::function_of;
use crate::ir::{Blocks, Role};
use crate::plan::{self, sums};
use crate::schedule::library::ep;
use crate::schedule::{self, COUNTED, Constant, MEMORY, PEERS, RANKS, RoleSteps};

impl Renderer<'_> {
    /// The functions of `role`: none where that of another role serves it.
    pub(super) fn role(&self, role: &Role) -> Rendered {
        if self.leader_of(role).is_some() {
            return Ok(String::new());
        }
        let steps = self.steps(role)?;
        let twin = self.twin_of(role);
        let smem = if self.uses_smem(role) { "Smem& smem, " } else { "" };
        let team = self.library(ep::Team);
        let params = match twin {
            Some(_) => self.twin_params(role),
            None => format!("const Args& args, {smem}{team}& team"),
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
                let params = format!("const Args& args, Smem& smem, {team}& team");
                let tables = self.function((&source, &name), &params, role, &tables)?;
                Ok(format!("{tables}\n{function}"))
            }
            None => Ok(function),
        }
    }

    /// What a role does, in the way that rules have chosen.
    fn steps(&self, role: &Role) -> Result<RoleSteps, RenderError> {
        if !self.ways.is_composed(&role.name)
            && let Ok(steps) = schedule::whole(self.ir, role)
        {
            return Ok(steps);
        }
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
        steps: &RoleSteps,
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
        let peers = |role: &Role| schedule::peers_of(self.ir, role).map(|it| self.term(&it));
        let (name, other) = (role_fn(role), role_fn(twin));
        let ((test, team), (other_test, other_team)) = (self.team(role), self.team(twin));
        let mut own = peers(role).unwrap_or_default();
        let others = peers(twin).unwrap_or_default();
        if let (Blocks::Range { high, .. }, Blocks::Other) = (&role.blocks, &twin.blocks) {
            let (all, ranks) = (self.library(ep::all_peers), self.constant(RANKS));
            own = format!("{} < blocks ? {own} : {all}({ranks})", self.text(high));
        }
        let class = self.library(ep::Team);
        format!(
            "const bool is_{name} = {test};\nconst bool is_{other} = {other_test};\n\
             if (is_{name} || is_{other}) {{\n\
             const int me = args.group.rank;\n\
             {class} team(\nis_{name} ? {class}({team})\n: {class}({other_team}));\n\
             {name}(args, is_{name} ? smem.{name}[team.warp] : smem.{other}[team.warp], team,\n\
             is_{other} ? {others}\n: {own});\n}}"
        )
    }

    /// The parameters of a function that serves two roles.
    fn twin_params(&self, role: &Role) -> String {
        format!(
            "const Args& args, {}<{}>& {MEMORY}, {}& team, const {}& {PEERS}",
            self.library(ep::MoverSmem),
            self.role_cfg(role),
            self.library(ep::Team),
            self.library(ep::Peers)
        )
    }

    /// The struct of constants of a role.
    pub(super) fn role_cfg(&self, role: &Role) -> String {
        self.constant(Constant::of_role(role))
    }

    /// Whether the role's function takes the shared memory.
    pub(super) fn uses_smem(&self, role: &Role) -> bool {
        plan::role_use(self.ir, &self.ways, role).has_memory() || sums(self.ir, role)
    }
}

/// The function of a role.
pub(super) fn role_fn(role: &Role) -> String {
    function_of(&role.name)
}

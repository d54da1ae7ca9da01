//! Roles that send to this rank what another role sends to its peers: one function serves both, so
//! that a kernel holds the loop over rows, and the compiler sees it, once.

use super::direct::peers_of;
use super::names::{role_cfg, role_fn};
use super::{RenderError, Rendered, Renderer};
use crate::ir::{Blocks, Domain, Role, Stmt};
use crate::schedule::rules::{Fanout, Reached};

impl Renderer<'_> {
    /// The earlier role whose function serves `role` too.
    pub(super) fn leader_of(&self, role: &Role) -> Result<Option<&Role>, RenderError> {
        let Some((own, text)) = self.sends(role)? else { return Ok(None) };
        if own.reached != Reached::Own {
            return Ok(None);
        }
        for other in self.ir.roles.iter().take_while(|other| other.name != role.name) {
            let Some((_, theirs)) = self.sends(other)? else { continue };
            if theirs == text && self.leader_of(other)?.is_none() {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// The role that the function of `role` serves besides.
    pub(super) fn twin_of(&self, role: &Role) -> Result<Option<&Role>, RenderError> {
        for other in self.ir.roles.iter().skip_while(|other| other.name != role.name).skip(1) {
            if self.leader_of(other)?.is_some_and(|leader| leader.name == role.name) {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// The fan-out of a role that does nothing else, and what it does where the peer is this rank.
    fn sends<'s>(&self, role: &'s Role) -> Result<Option<(Fanout<'s>, String)>, RenderError> {
        if self.ways.is_composed(&role.name) {
            return Ok(None);
        }
        let [stmt] = role.body.as_slice() else { return Ok(None) };
        if !self.pushes_direct(stmt) || !is_over_stripe(stmt) {
            return Ok(None);
        }
        let fanout = self.fanout(stmt)?;
        let steps = self.fanout_steps(&fanout)?;
        let mut lines = vec![fanout.token.to_string(), steps.channel.name.clone()];
        for text in [&steps.first, &steps.filter, &steps.row, &steps.each] {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            lines.extend(code.map(|line| with_word(line, fanout.peer, "me")));
        }
        Ok(Some((fanout, lines.join("\n"))))
    }

    /// The call of a function that serves two roles, each with its own test, team, memory and peers.
    /// When the blocks of the first one are all there are, it serves the peer of the second as well.
    pub(super) fn twin_call(&self, role: &Role, twin: &Role) -> Rendered {
        let one = |role: &Role| -> Result<(String, String, String), RenderError> {
            let (test, team) = self.team(role);
            let peers = self.sends(role)?.map(|(fanout, _)| peers_of(fanout.reached).to_string());
            let peers = peers.unwrap_or_default();
            Ok((test, team, peers))
        };
        let (name, other) = (role_fn(role), role_fn(twin));
        let ((test, team, mut peers), (other_test, other_team, other_peers)) =
            (one(role)?, one(twin)?);
        if let (Blocks::Range { high, .. }, Blocks::Other) = (&role.blocks, &twin.blocks) {
            peers = format!("{} < blocks ? {peers} : ep::all_peers(Cfg::kRanks)", self.text(high));
        }
        Ok(format!(
            "const bool is_{name} = {test};\nconst bool is_{other} = {other_test};\n\
             if (is_{name} || is_{other}) {{\n\
             const int me = args.group.rank;\n\
             ep::Team team(\nis_{name} ? ep::Team({team})\n: ep::Team({other_team}));\n\
             {name}(args, is_{name} ? smem.{name}[team.warp] : smem.{other}[team.warp], team,\n\
             is_{other} ? {other_peers}\n: {peers});\n}}"
        ))
    }

    /// The parameters of a function that serves two roles.
    pub(super) fn twin_params(&self, role: &Role) -> String {
        format!(
            "const Args& args, ep::MoverSmem<{}>& own, ep::Team& team, const ep::Peers& peers",
            role_cfg(role)
        )
    }
}

fn is_over_stripe(stmt: &Stmt) -> bool {
    matches!(stmt.action, crate::ir::Action::For { domain: Domain::Stripe, .. })
}

/// `text` with a word in place of another one.
fn with_word(text: &str, word: &str, by: &str) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        out.push_str(before);
        let whole = !out.ends_with(is_word) && !after.starts_with(is_word);
        out.push_str(if whole { by } else { word });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::with_word;

    #[test]
    fn only_whole_words_are_replaced() {
        assert_eq!(with_word("peer + peers[peer]", "peer", "me"), "me + peers[me]");
    }
}

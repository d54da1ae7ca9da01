//! What one warp does alone although its role has more of them, and the units that roles deal out to warps.

use super::RoleLowering;
use super::cut::{sends_parts, shares_rings, shares_units};
use super::recipe::{Warps, WhyNot};
use crate::ir::slots::{shared_axis, shared_sources};
use crate::ir::stripes::is_by_stripe;
use crate::ir::{
    Action, Blocks, Domain, Expr, NameKind, PeerSet, Role, Share, Stmt, WellKnown, walk,
};

/// Whether a role with these blocks is on one block.
pub(super) fn is_one_block(blocks: &Blocks) -> bool {
    match blocks {
        Blocks::Last => true,
        Blocks::Range { low: Expr::Int { value: low }, high: Expr::Int { value: high } } => {
            high - low == 1
        }
        _ => false,
    }
}

/// Whether a role is declared with one warp on one block.
pub(super) fn has_one_warp(role: &Role) -> bool {
    is_one_block(&role.blocks) && role.warps == Some(Expr::Int { value: 1 })
}

impl RoleLowering<'_> {
    /// Notes why one warp does all of a role that is one team.
    pub(super) fn note_team(&mut self) {
        let (mut sends, mut reads) = (None, None);
        walk::stmts(&self.role.body, &mut |stmt| {
            if sends.is_none()
                && let Some(channel) = channel_of(stmt)
            {
                let reason = format!(
                    "one warp does all of a composed role that is one team with a channel, here `{channel}`"
                );
                sends = Some(WhyNot { at: stmt.at.clone(), reason, channel: Some(channel) });
            }
            walk::exprs(stmt, &mut |part| {
                if let Expr::Element { tensor, .. } = part
                    && reads.is_none()
                    && self.reread.contains(tensor)
                {
                    let reason = format!(
                        "one warp does all of a composed role that is one team and reads what it \
                        writes, here `{tensor}`"
                    );
                    reads = Some(WhyNot { at: stmt.at.clone(), reason, channel: None });
                }
            });
        });
        self.why_not.extend(sends.into_iter().chain(reads));
    }

    /// Notes why one warp sends all of a stripe.
    pub(super) fn note_stripes(&mut self) {
        if let Some(Err((at, why))) = sends_parts(self.ir, self.role, self.rules) {
            let reason = format!("one warp sends each stripe: {why}");
            self.why_not.push(WhyNot { at, reason, channel: None });
        }
        if let Some(Err((at, why))) = shares_rings(self.ir, self.role, self.rules) {
            let reason = format!("one warp moves the messages of each stripe: {why}");
            self.why_not.push(WhyNot { at, reason, channel: None });
        }
    }

    /// Notes a loop whose turns one warp takes.
    pub(super) fn note_loop(&mut self, stmt: &Stmt) {
        let reason = match &stmt.action {
            Action::For { position: Some(_), .. } => "one warp assigns places in order",
            Action::For { domain: Domain::Row { .. }, .. } => {
                "one warp examines the values of a row"
            }
            Action::For { .. } => {
                "several turns may add to one element, so one warp runs them in order"
            }
            Action::Receive { .. } => "one warp takes the messages in order",
            _ => return,
        };
        self.note_alone(stmt, reason);
    }

    /// Notes a statement that one warp does, unless that is a few numbers.
    pub(super) fn note_alone(&mut self, stmt: &Stmt, reason: &str) {
        let is_loop = !walk::nested(stmt).is_empty() || matches!(stmt.action, Action::Push { .. });
        if has_one_warp(self.role) || !is_loop {
            return;
        }
        let mut channel = None;
        walk::stmts(std::slice::from_ref(stmt), &mut |stmt| {
            channel = channel.take().or_else(|| channel_of(stmt));
        });
        self.why_not.push(WhyNot { at: stmt.at.clone(), reason: reason.to_string(), channel });
    }

    /// The warps that the steps of the role deal its work to.
    pub(super) fn warps(&self) -> Warps {
        if self.single && !has_one_warp(self.role) {
            return Warps::One;
        }
        if self.sends_parts() || self.by_slices() {
            return Warps::All;
        }
        if self.shares_rings() {
            let (name, kind) = (WellKnown::Stripes.name().to_string(), NameKind::Dim);
            return Warps::Blocks(Expr::Name { name, kind });
        }
        let of_units = match &self.role.share {
            Share::SourceStripe => true,
            Share::Indices { .. } => !is_by_stripe(self.ir, self.role),
            _ => false,
        };
        if of_units && shares_units(self.ir, self.role, self.rules) {
            return Warps::All;
        }
        let number = |name: &str| Expr::Name { name: name.to_string(), kind: NameKind::Dim };
        let peers = |set: &PeerSet| number(set.number().name());
        let sources = || shared_sources(self.ir, self.role).map_or(&PeerSet::All, |it| &it.per);
        let by_stripe = is_by_stripe(self.ir, self.role);
        let mut units = match &self.role.share {
            Share::Peer { set, .. } => vec![peers(set)],
            Share::SourceStripe => vec![peers(sources())],
            Share::Indices { names } => {
                let extent = |name: &String| match shared_axis(self.ir, self.role, name) {
                    _ if name == "source" => peers(sources()),
                    Some((channel, axis)) => channel.slot[axis].clone(),
                    None => number(&format!("{name}s")),
                };
                names.iter().filter(|name| *name != "stripe").map(extent).collect()
            }
            Share::Stripe | Share::Token | Share::BlockPerToken if by_stripe => Vec::new(),
            _ => return Warps::All,
        };
        units.extend(by_stripe.then(|| number(WellKnown::Stripes.name())));
        Warps::Each(units)
    }
}

/// The channel that a statement sends to, takes from, awaits or reads.
fn channel_of(stmt: &Stmt) -> Option<String> {
    match &stmt.action {
        Action::Push { channel, .. }
        | Action::Announce { channel, .. }
        | Action::Receive { channel, .. }
        | Action::Gather { channel, .. }
        | Action::Await { channel }
        | Action::Close { channel } => return Some(channel.clone()),
        _ => {}
    }
    let mut found = None;
    walk::exprs(stmt, &mut |part| {
        if let Expr::OfChannel { channel, .. } = part {
            found.get_or_insert_with(|| channel.clone());
        }
    });
    found
}

//! Which roles, and channels at their ends, a class of the library carries as a whole: every other one is
//! composed. docs/compiler.md has what that gains, measured.

use super::{Checked, Forms};
use crate::ir::parts::parts;
use crate::ir::rows::moved_row;
use crate::ir::slots::travels_in_words;
use crate::ir::{
    Action, Blocks, Channel, DimKind, Domain, Elem, ElemType, Expr, PeerSet, Role, Share, Stmt,
    TensorKind, Transport, walk,
};
use crate::schedule::one_warp::is_one_block;

/// Helpers that look up where experts live.
const OF_EXPERTS: [&str; 4] = ["local", "owned", "owner", "routed"];

/// Ranks of which a class with channels can hold a set: a bit for each in one word on the device.
const RANKS_MAX: i64 = 64;

impl Forms<'_> {
    pub(super) fn check_channel(&self, channel: &Channel) -> Checked {
        if channel.over != [Transport::Nvlink] || channel.parts_per.is_some() {
            return self
                .refuse(&channel.at, "channels have to be only over `nvlink`, without parts");
        }
        if channel.per != PeerSet::All {
            return self.refuse(&channel.at, "channels have to be `per all`");
        }
        let kind = channel.kind.traits();
        if kind.in_order || kind.lands || kind.offers {
            return self.refuse(
                &channel.at,
                "no class has both ends of a ring, a direct channel or a pull channel",
            );
        }
        let is_record = travels_in_words(self.ir, channel) && channel.slot_names == ["source"];
        match kind.is_indexed && !is_record {
            true => {
                self.refuse(&channel.at, "its slots hold more than a small record of each source")
            }
            false => Ok(()),
        }
    }

    /// What the helpers and domains of a role know without being told.
    pub(super) fn check_known(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let of_peers = |domain: &Domain| matches!(domain, Domain::Peers { .. });
            let mut needs_ranks =
                matches!(&stmt.action, Action::For { domain, .. } if of_peers(domain));
            let mut placed = None;
            walk::exprs(stmt, &mut |part| match part {
                Expr::Fold { domain, .. } => needs_ranks |= of_peers(domain),
                Expr::Call { helper, .. } if OF_EXPERTS.contains(&helper.as_str()) => {
                    placed = Some(helper);
                    needs_ranks = true;
                }
                _ => {}
            });
            if found.is_err() {
            } else if let Some(helper) = placed.filter(|_| !self.has_expert_begin()) {
                let why = format!("`{helper}` needs the input `expert_begin: i32[ranks + 1]`");
                found = self.refuse(&stmt.at, &why);
            } else if needs_ranks && !self.ir.dims.iter().any(|dim| dim.name == "ranks") {
                found = self.refuse(&stmt.at, "this needs the number `ranks` in the shape");
            } else if placed.is_some_and(|helper| helper == "routed")
                && !self.ir.channels.is_empty()
                && self.ranks_max() > RANKS_MAX
            {
                let why = format!(
                    "`routed` supports at most {RANKS_MAX} ranks beside channels, and the shape allows more"
                );
                found = self.refuse(&stmt.at, &why);
            }
        });
        found
    }

    fn has_expert_begin(&self) -> bool {
        self.tensor("expert_begin").is_ok_and(|tensor| {
            let read_only = tensor.kind == TensorKind::Input || tensor.from_handle.is_some();
            read_only
                && tensor.elem == ElemType::Scalar { elem: Elem::I32 }
                && tensor.dims.len() == 1
                && !tensor.optional
        })
    }

    fn ranks_max(&self) -> i64 {
        let ranks = self.ir.dims.iter().find(|dim| dim.name == "ranks");
        match ranks.map(|dim| &dim.kind) {
            Some(DimKind::Given { high, .. }) => *high,
            _ => 0,
        }
    }

    pub(super) fn check_role(&self, role: &Role) -> Checked {
        self.check_known(role)?;
        self.check_slot_blocks(role)?;
        self.check_fills(role)?;
        self.check_last_block(role)?;
        self.check_stripes(role)?;
        self.check_order(role)?;
        self.check_moved(role)?;
        self.check_widths(role)?;
        match &role.share {
            Share::Peer { .. } | Share::Indices { .. } | Share::SourceStripe => {
                self.refuse(&role.at, "no class shares these indices among warps")
            }
            _ => role.body.iter().try_for_each(|stmt| self.check_flow(stmt)),
        }
    }

    /// Stripes are slices of something, and a role that takes them reads no slots.
    fn check_stripes(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let striped = matches!(&stmt.action, Action::For { domain: Domain::Stripe, .. });
            let mut slots = false;
            walk::exprs(stmt, &mut |part| {
                slots |= matches!(part, Expr::OfChannel { channel, .. }
                    if self.is_kind(channel, |kind| kind.is_indexed));
            });
            if found.is_err() {
            } else if striped && self.ir.sizes.is_empty() {
                found = self.refuse(&stmt.at, "the pipeline has no size that the stripes divide");
            } else if slots && role.share != Share::Team {
                found =
                    self.refuse(&stmt.at, "only a role whose warps share nothing can read slots");
            }
        });
        found
    }

    /// The warps that share the reading of slots stand on one block.
    fn check_slot_blocks(&self, role: &Role) -> Checked {
        let slots = self.ir.channels.iter().any(|channel| {
            channel.kind.traits().is_indexed
                && (channel.to == role.name || channel.from.contains(&role.name))
        });
        match slots && !is_one_block(&role.blocks) {
            true => self.refuse(&role.at, "only one block can read the slots of a role"),
            false => Ok(()),
        }
    }

    /// What fills a tensor is a number.
    fn check_fills(&self, role: &Role) -> Checked {
        let mut wrong = false;
        walk::stmts(&role.body, &mut |stmt| {
            let tensor = walk::target(stmt).and_then(|place| self.tensor(&place.tensor).ok());
            wrong |= tensor.is_some_and(|tensor| {
                tensor.fill.is_some() && parts(self.ir, &tensor.elem).len() > 1
            });
        });
        match wrong {
            true => self.refuse(&role.at, "`fill` does not work on rows with scales"),
            false => Ok(()),
        }
    }

    /// A role has one mover, whose pieces fit rows of one type and width.
    fn check_moved(&self, role: &Role) -> Checked {
        let mut moved = Vec::new();
        walk::stmts(&role.body, &mut |stmt| {
            let from = moved_row(self.ir, stmt);
            moved.extend(from.map(|from| (stmt, (&from.elem, from.dims.last()))));
        });
        match moved.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            Some(pair) => self.refuse(&pair[1].0.at, "a role can move rows of only one kind"),
            None => Ok(()),
        }
    }

    /// What is done when all else is follows counters, whose last step finds the last block.
    fn check_last_block(&self, role: &Role) -> Checked {
        if role.blocks != Blocks::Last {
            return Ok(());
        }
        if role.share != Share::Team {
            return self.refuse(&role.at, "a role on the last block has to be one team");
        }
        Ok(())
    }

    fn check_flow(&self, stmt: &Stmt) -> Checked {
        match &stmt.action {
            Action::For { domain: Domain::Stripe, body, .. } => match body.as_slice() {
                [inner @ Stmt { action: Action::For { position: Some(_), .. }, .. }] => {
                    self.check_placed(stmt, inner)
                }
                _ => self.check_counts(stmt),
            },
            _ => self.check_team(stmt),
        }
    }
}

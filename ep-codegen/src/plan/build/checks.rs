//! What a shape must meet: the protocol's own limits, whole units of a bulk copy, places for what comes.

use super::Planner;
use crate::ir::parts::{align, elem_bytes, row_field};
use crate::ir::{Action, Expr, Stmt, walk};
use crate::plan::RoleWarps;
use crate::plan::error::PlanError;
use crate::plan::numbers::eval;
use crate::plan::window::{SlotExtent, option};

/// What a bulk copy moves is a multiple of this.
const BULK_BYTES: i64 = 16;

impl Planner<'_> {
    /// The protocol's own limits on the numbers of a channel.
    pub(super) fn check_channels(&self) -> Result<(), PlanError> {
        for channel in self.ir.channels.iter().filter(|it| it.kind.traits().is_bounded) {
            let (Some(depth), Some(chunk)) =
                (option(channel, "depth", self.numbers), option(channel, "chunk", self.numbers))
            else {
                continue;
            };
            // The counters of a ring wrap at 2^32, and the slot has to follow.
            if !u64::try_from(depth).is_ok_and(u64::is_power_of_two) {
                let need = u64::try_from(depth).unwrap_or(1).next_power_of_two();
                let need = i64::try_from(need).unwrap_or(i64::MAX);
                let help = "make `depth` a power of two: positions wrap at 2^32";
                return Err(PlanError::Uneven(Box::new(self.limit(
                    &channel.at,
                    "slots",
                    need,
                    depth,
                    help,
                ))));
            }
            if depth < 2 * chunk {
                let help = "raise `depth` or lower `chunk`: credit returns one chunk at a time";
                return Err(self.limit(&channel.at, "slots", 2 * chunk, depth, help));
            }
        }
        Ok(())
    }

    /// Warps that all read one ring do so at the same time: none may wait for another to be done.
    pub(super) fn check_readers(&self, warps: &[RoleWarps]) -> Result<(), PlanError> {
        for channel in &self.ir.channels {
            let readers = self.net_extent(channel).map_or(1, |net| net.readers);
            let role = self.ir.roles.iter().find(|role| role.name == channel.to);
            let own = warps.iter().find(|own| own.name == channel.to).map_or(1, |own| own.count);
            if let Some(role) = role.filter(|_| own < readers) {
                let help =
                    "give the role a warp for each peer: all of its warps read every message";
                return Err(self.limit(&role.at, "warps a block", readers, own, help));
            }
        }
        Ok(())
    }

    /// Slots are numbered in 32 bits.
    pub(super) fn check_slots(&self) -> Result<(), PlanError> {
        for channel in &self.ir.channels {
            let peers = self.peers(channel);
            let Some(slots) = SlotExtent::of(self.ir, channel, peers, self.numbers) else {
                continue;
            };
            let count =
                slots.keys.saturating_mul(slots.arrivals).max(peers.saturating_mul(slots.shared));
            let most = i64::from(i32::MAX);
            if count > most {
                let help = "use fewer slots: slot numbers have 32 bits";
                return Err(self.limit(&channel.at, "slots", count, most, help));
            }
        }
        Ok(())
    }

    /// Rows that are sent consist of whole units of a bulk copy.
    pub(super) fn check_rows(&self) -> Result<(), PlanError> {
        let mut wrong = None;
        for role in &self.ir.roles {
            walk::stmts(&role.body, &mut |stmt| {
                let bytes = self.whole_bytes(stmt);
                if bytes % BULK_BYTES != 0 && wrong.is_none() {
                    let help = "use rows of whole 16-byte units";
                    let need = align(bytes, BULK_BYTES);
                    wrong = Some(PlanError::Uneven(Box::new(self.limit(
                        &stmt.at,
                        "bytes a row",
                        need,
                        bytes,
                        help,
                    ))));
                }
            });
        }
        wrong.map_or(Ok(()), Err)
    }

    /// A field that messages bring has a place to go.
    pub(super) fn check_taken(&self) -> Result<(), PlanError> {
        let absent = |name: &String| self.config.copies.get(name) == Some(&0);
        let mut wrong = None;
        // Only a dispatch in one launch stores fields that have no place; all other roles leave them out.
        for role in self.ir.roles.iter().filter(|_| self.ways.routes().is_some()) {
            walk::stmts(&role.body, &mut |outer| {
                let Action::Receive { channel, .. } = &outer.action else { return };
                for stmt in walk::nested(outer) {
                    let gone = walk::target(stmt).filter(|place| absent(&place.tensor));
                    let with = self.comes_with(channel, stmt);
                    // A value of which one field is absent is not stored.
                    if let (Some(place), [.., last]) = (gone, with.as_slice())
                        && !with.iter().any(|name| absent(name))
                    {
                        let what = format!("tensor `{}`", place.tensor);
                        let help = format!("pass this tensor, or leave out `{last}` too");
                        wrong.get_or_insert(self.limit(&stmt.at, &what, 1, 0, &help));
                    }
                }
            });
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The optional tensors with which the fields come that `stmt` takes from a message.
    fn comes_with(&self, channel: &str, stmt: &Stmt) -> Vec<&String> {
        let mut with = Vec::new();
        let Some((_, message)) = self.ir.carried(channel) else { return with };
        walk::exprs(stmt, &mut |part| {
            if let Expr::Field { field: name, .. } = part {
                let field = message.fields.iter().find(|field| field.name == *name);
                with.extend(field.and_then(|field| field.optional_with.as_ref()));
            }
        });
        with
    }

    /// Bytes of the row that `stmt` sends; 0 when it sends none.
    fn whole_bytes(&self, stmt: &Stmt) -> i64 {
        let Action::Push { channel, .. } = &stmt.action else { return 0 };
        let carried = self.ir.carried(channel);
        let row = carried.and_then(|(_, message)| row_field(self.ir, message));
        row.map_or(0, |(field, elem)| {
            let elements: i64 =
                field.dims.iter().map(|dim| eval(dim, self.numbers).unwrap_or(0)).product();
            elements * elem_bytes(&elem)
        })
    }
}

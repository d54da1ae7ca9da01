//! What a dispatch in one launch needs besides its rows: where all tokens go, and words for each row.

use super::Planner;
use crate::ir::once::tokens_end;
use crate::ir::parts::align;
use crate::ir::rows::row_in_place;
use crate::ir::{Channel, Role};
use crate::plan::error::PlanError;
use crate::plan::eval;
use crate::plan::roles::role_use;

impl Planner<'_> {
    /// What ranks send in one launch has room wherever it goes.
    pub(super) fn check_routes(&self) -> Result<(), PlanError> {
        let (tokens, ranks) = (self.route_tokens(), self.ranks());
        for channel in self.ir.channels.iter().filter(|_| tokens > 0) {
            let Some((_, tensor)) = row_in_place(self.ir, channel) else { continue };
            let rows = self.rows_of(channel);
            if rows < ranks * tokens {
                let help = format!("give `{}` room for the tokens of all ranks", tensor.name);
                return Err(self.limit(&tensor.at, "rows", ranks * tokens, rows, &help));
            }
        }
        Ok(())
    }

    /// How many rows the output of a channel has, where its shape says so.
    pub(super) fn rows_of(&self, channel: &Channel) -> i64 {
        let rows = row_in_place(self.ir, channel).and_then(|(_, tensor)| tensor.dims.first());
        rows.and_then(|rows| eval(rows, self.numbers)).unwrap_or(0)
    }

    /// The most tokens whose routes every block knows; 0 where none does.
    pub(super) fn route_tokens(&self) -> i64 {
        let routes = |role: &Role| role_use(&self.ways, role).routes;
        if !self.ir.roles.iter().any(routes) {
            return 0;
        }
        // The end of a range is behind its last number.
        let end = tokens_end(self.ir).and_then(|end| eval(end, self.numbers));
        end.map_or(0, |end| (end - 1).max(1))
    }

    /// Words of a bit for each of these tokens.
    pub(super) fn token_words(&self) -> i64 {
        (self.route_tokens() + 31) / 32
    }

    /// Values that are counted.
    pub(super) fn route_values(&self) -> i64 {
        let count = self.ways.routes().and_then(|routes| routes.values.as_deref());
        count.and_then(|count| self.number(count)).unwrap_or(1)
    }

    /// The pieces of a row that are told of one by one, where the receiver packs rows as they come.
    pub(super) fn pieces_told(&self) -> i64 {
        let packs = self.ways.routes().is_some_and(|routes| routes.packs);
        let role = self.ir.roles.first().filter(|_| packs && self.route_tokens() > 0);
        role.map_or(0, |role| {
            let cut = self.cut(role);
            (cut.row_bytes + cut.piece_bytes - 1) / cut.piece_bytes
        })
    }

    /// Words of the slot in which a rank tells what it has counted.
    pub(super) fn count_words(&self) -> i64 {
        let slots = self.ways.routes().and_then(|routes| self.ir.carried(&routes.slots));
        let layout = slots.and_then(|(slots, _)| self.layout(slots));
        layout.map_or(0, |layout| layout.meta_bytes / 8)
    }

    /// `sizeof(ep::RouteSmem<Role>)`.
    pub(super) fn route_bytes(&self) -> i64 {
        match self.token_words() {
            0 => 0,
            words => {
                let a_rank = words + self.count_words();
                let counters = 4 * (self.ranks() * a_rank + self.route_values() + 1);
                align(8 * self.ranks() + counters, 8)
            }
        }
    }
}

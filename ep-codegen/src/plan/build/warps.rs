//! The warps of every role, and the shared memory that they take.

use super::Planner;
use crate::ir::parts::{LINE_BYTES, align, elem_bytes, row_field};
use crate::ir::slots::{comes_in_words, travels_in_words};
use crate::ir::{Action, Channel, Role, Share, WellKnown, walk};
use crate::plan::RoleWarps;
use crate::plan::counted::Counters;
use crate::plan::error::PlanError;
use crate::plan::numbers::eval;
use crate::plan::roles::{RoleUse, block_groups, first_warps, may_follow, role_use};
use crate::plan::shared::{Cut, SEQUENCE_BYTES};
use crate::schedule::rules::Rings;
use crate::schedule::{Carried, Constant, Staged};

/// Warps of a block, by the hardware.
const WARPS_MAX: i64 = 32;
/// Warps tried in turn for a role whose declaration gives none.
const WARPS_TRIED: [i64; 6] = [16, 12, 8, 4, 2, 1];
/// Warps of a role that moves nothing.
const WARPS_COMPUTE: i64 = 8;
/// A warp that reads rows of parts takes pieces of one of these sizes, each a multiple of what its lanes read at once. All
/// of its stages together take at most `PART_BYTES`.
const PART_PIECES: [i64; 2] = [2048, 1024];
const PART_BYTES: i64 = 16384;
const PART_STAGES_MIN: i64 = 2;
/// Pieces and stages of a mover, where the declaration tunes no others.
const MOVER_PIECE: i64 = 3584;
const MOVER_STAGES: i64 = 3;
/// What a warp makes of a row at once: a word of scales, and no less, goes with it.
const TURN_BYTES: i64 = 512;
/// Those that are tried in turn for composed roles: the fewer warps there are, the more is each to have on
/// its way; and so many warps that none of them fits take the least.
const STAGED_PIECES: [i64; 4] = [MOVER_PIECE, 2048, 1024, 512];
const STAGED_STAGES: [i64; 4] = [8, 6, 4, 3];
const STAGED_LEAST: (i64, i64) = (2, 256);

impl Planner<'_> {
    /// The warps of every role, as many as shared memory allows where the declaration leaves it open.
    pub(super) fn warps(&self) -> Result<Vec<RoleWarps>, PlanError> {
        let roles = &self.ir.roles;
        let mut counts: Vec<i64> = roles.iter().map(|role| self.own_warps(role)).collect();
        for group in block_groups(self.ir, &self.ways) {
            for (done, index) in group.iter().enumerate() {
                let is_open = !self.shares_bytes(&roles[*index]);
                if is_open && roles[*index].warps.is_none() {
                    counts[*index] = self.warps_for(&roles[*index], &group[..done], &counts)?;
                }
            }
            self.check_bytes(&group, &counts)?;
        }
        let firsts = first_warps(roles, &counts);
        for ((role, first), count) in roles.iter().zip(&firsts).zip(&counts) {
            if first + count > WARPS_MAX {
                let help = "give the roles of these blocks fewer warps, or separate blocks";
                return Err(self.limit(&role.at, "warps a block", first + count, WARPS_MAX, help));
            }
        }
        let named = roles.iter().zip(firsts).zip(counts);
        Ok(named
            .map(|((role, first), count)| RoleWarps { name: role.name.clone(), first, count })
            .collect())
    }

    fn check_bytes(&self, group: &[usize], counts: &[i64]) -> Result<(), PlanError> {
        let last = &self.ir.roles[*group.last().unwrap_or(&0)];
        let bytes = self.group_bytes(group, counts) + self.front_bytes();
        let have = self.config.arch.shared_bytes_max();
        if bytes > have {
            let help = "use fewer warps, fewer stages or smaller pieces";
            return Err(self.limit(&last.at, "bytes of shared memory", bytes, have, help));
        }
        Ok(())
    }

    /// As many warps as fit beside the roles `before` of its blocks.
    fn warps_for(&self, role: &Role, before: &[usize], counts: &[i64]) -> Result<i64, PlanError> {
        let taken = self.group_bytes(before, counts) + self.front_bytes();
        let have = self.config.arch.shared_bytes_max();
        let each = self.role_bytes(role, 1);
        let peers = self.ranks();
        let fit = WARPS_TRIED.iter().map(|warps| match role.share {
            Share::Peer { .. } if *warps >= peers => warps / peers * peers,
            _ => *warps,
        });
        let found = fit.into_iter().find(|warps| taken + warps * each <= have);
        found.ok_or_else(|| {
            let help = "use fewer stages or smaller pieces";
            self.limit(&role.at, "bytes of shared memory", taken + each, have, help)
        })
    }

    /// Bytes of `warps` warps of a role.
    fn role_bytes(&self, role: &Role, warps: i64) -> i64 {
        let cut = self.cut(role);
        match role_use(&self.ways, role) {
            RoleUse { mover: true, .. } => warps * cut.mover().0,
            RoleUse { parts: true, .. } => warps * cut.parts().0,
            _ => 0,
        }
    }

    fn group_bytes(&self, group: &[usize], counts: &[i64]) -> i64 {
        group.iter().map(|index| self.role_bytes(&self.ir.roles[*index], counts[*index])).sum()
    }

    /// Bytes of the sequences and counters in front of everything else.
    fn front_bytes(&self) -> i64 {
        let sequences = self.sequences() * SEQUENCE_BYTES;
        let counters = self.counters.as_ref().map_or(0, Counters::shared_bytes);
        let uses = self.ir.roles.iter().map(|role| (role_use(&self.ways, role), self.cut(role)));
        let rows = uses.filter(|(used, _)| used.has_stages());
        let rows = rows.map(|(_, cut)| if cut.tma { 128 } else { 16 }).max();
        let words = if sequences > 0 { 8 } else { 4 };
        align(sequences + counters + self.route_bytes(), rows.unwrap_or(words))
    }

    pub(super) fn shared_bytes(&self, warps: &[RoleWarps]) -> i64 {
        let counts: Vec<i64> = warps.iter().map(|warps| warps.count).collect();
        let groups = block_groups(self.ir, &self.ways);
        let most = groups.iter().map(|group| self.group_bytes(group, &counts)).max().unwrap_or(0);
        most + self.front_bytes()
    }

    /// Sequences of a block: one per peer for each ring end.
    pub(super) fn sequences(&self) -> i64 {
        let last =
            self.ir.roles.iter().map(|role| self.first_sequence(role) + self.own_sequences(role));
        last.max().unwrap_or(0)
    }

    /// Sequences of the warps of a composed role that share a unit: one for the turns of its loops, and one for each ring.
    pub(super) fn sequences_of_unit(&self, rings: &Rings) -> i64 {
        let kept = rings.kept.iter().map(|count| count.as_ref().map_or(1, |it| self.number_of(it)));
        1 + kept.sum::<i64>()
    }

    /// The number of the shape that a constant stands for.
    fn number_of(&self, constant: &Constant) -> i64 {
        let number = self.numbers.iter().find(|(name, _)| Constant::number(name) == *constant);
        number.map_or(1, |(_, number)| *number)
    }

    pub(super) fn own_sequences(&self, role: &Role) -> i64 {
        let Some(rings) = self.ways.rings(&role.name) else { return 0 };
        let given = role.warps.as_ref().and_then(|warps| eval(warps, self.numbers));
        let warps = given.unwrap_or(WARPS_TRIED[0]);
        let units = rings.units.as_ref();
        let units = units.map(|all| all.iter().map(|it| self.number_of(it)).product());
        warps.min(units.unwrap_or(warps)) * self.sequences_of_unit(rings)
    }

    /// Sequences of the roles declared before `role` that may share a block with it.
    pub(super) fn first_sequence(&self, role: &Role) -> i64 {
        let groups = block_groups(self.ir, &self.ways);
        let group =
            groups.iter().find(|group| group.iter().any(|i| self.ir.roles[*i].name == role.name));
        let before = group.into_iter().flatten().map(|index| &self.ir.roles[*index]);
        before
            .take_while(|other| other.name != role.name)
            .map(|other| self.own_sequences(other))
            .sum()
    }

    /// How the rows of a role are cut.
    pub(super) fn cut(&self, role: &Role) -> Cut {
        let used = role_use(&self.ways, role);
        if let Some(staged) = self.ways.staged(&role.name) {
            return self.staged_cut(role, staged);
        }
        if let Some(parts) = self.ways.parts(&role.name) {
            return self.part_cut(role, parts);
        }
        let (row_bytes, meta_bytes) = self.carried(role);
        let tuned = |name, default| self.number(name).unwrap_or(default);
        Cut {
            tma: self.config.arch.has_tma(),
            stages: if used.packs { 1 } else { tuned(WellKnown::Stages.name(), MOVER_STAGES) },
            piece_bytes: self.piece_bytes(role, used.packs),
            row_bytes,
            // A receiving role reads meta records where they lie.
            meta_bytes: if pushes(role) { meta_bytes } else { 0 },
        }
    }

    /// Bytes of a piece: as many as `piece` says, or, where warps share what is made of a row, so many values, in whole
    /// turns of a warp.
    fn piece_bytes(&self, role: &Role, packs: bool) -> i64 {
        let piece = self.number(WellKnown::Piece.name()).unwrap_or(MOVER_PIECE);
        let packed = self.ways.recipe.role(&role.name).and_then(|it| it.routes.as_ref());
        let row = packed.filter(|_| packs).and_then(|routes| self.ir.carried(&routes.rows));
        let elem = row.and_then(|(_, message)| row_field(self.ir, message)).map(|(_, elem)| elem);
        elem.map_or(piece, |elem| align(piece * elem_bytes(&elem), TURN_BYTES))
    }

    /// A composed role takes the pieces and stages that the declaration tunes, or else the largest pieces and most stages,
    /// as far as they fit for all warps of its blocks: with the rule it has to take every shape that it takes without. Numbers
    /// that a user has set are never replaced.
    fn staged_cut(&self, role: &Role, staged: &Staged) -> Cut {
        let cut = self.least_cut(staged);
        if self.set_by_user().is_some() {
            return cut;
        }
        let have = self.bytes_a_staged_warp(role);
        let tried = STAGED_PIECES
            .into_iter()
            .flat_map(|piece_bytes| STAGED_STAGES.map(|stages| (stages, piece_bytes)));
        let of = |(stages, piece_bytes): (i64, i64)| Cut { stages, piece_bytes, ..cut };
        let mut cuts = self.tuned().into_iter().chain(tried).map(of);
        cuts.find(|cut| cut.mover().0 <= have).unwrap_or(cut)
    }

    /// The stages and the bytes of a piece, if the declaration tunes both.
    fn tuned(&self) -> Option<(i64, i64)> {
        self.number(WellKnown::Stages.name()).zip(self.number(WellKnown::Piece.name()))
    }

    /// Both of them, if a user has set one.
    fn set_by_user(&self) -> Option<(i64, i64)> {
        let tunes = [WellKnown::Stages.name(), WellKnown::Piece.name()];
        let is_set = tunes.iter().any(|tune| self.config.tunes.contains_key(*tune));
        self.tuned().filter(|_| is_set)
    }

    /// The least that a warp takes whose rows pass through shared memory: what a user has set, or else the smallest pieces.
    fn least_cut(&self, staged: &Staged) -> Cut {
        let (row_bytes, meta_bytes) = match &staged.carries {
            Carried::Message(name) => {
                let layout = self.layouts.iter().find(|layout| layout.name == *name);
                layout.map_or((0, 0), |it| (it.row_bytes, it.meta_bytes))
            }
            Carried::Rows { elem, count } => (self.number_of(count) * elem_bytes(elem), 0),
        };
        let (stages, piece_bytes) = self.set_by_user().unwrap_or(STAGED_LEAST);
        Cut {
            tma: self.config.arch.has_tma(),
            stages,
            piece_bytes,
            row_bytes,
            meta_bytes: if staged.with_meta { meta_bytes } else { 0 },
        }
    }

    /// Warps of a role before other roles of its blocks are known: as declared, or else eight, or fewer if shared memory has
    /// no room for the least that eight of them stage.
    fn own_warps(&self, role: &Role) -> i64 {
        if let Some(warps) = &role.warps {
            return eval(warps, self.numbers).unwrap_or(1);
        }
        let least = self.ways.staged(&role.name).map_or(0, |it| self.least_cut(it).mover().0);
        let have = self.config.arch.shared_bytes_max() - self.front_of_stages();
        (1..=WARPS_COMPUTE).rev().find(|warps| warps * least <= have).unwrap_or(1)
    }

    /// Bytes of the sequences and counters in front of stages.
    fn front_of_stages(&self) -> i64 {
        let counters = self.counters.as_ref().map_or(0, Counters::shared_bytes);
        align(self.sequences() * SEQUENCE_BYTES + counters, LINE_BYTES)
    }

    /// A composed role that reads rows of parts takes as many stages as fit: of large pieces, if a piece of every part
    /// can come while another one is read. If rows may arrive as words, lanes load all other rows straight from memory, because
    /// a role with both stages and words runs out of registers.
    fn part_cut(&self, role: &Role, parts: &Constant) -> Cut {
        let parts = self.number_of(parts);
        let of_words =
            |channel: &Channel| channel.to == role.name && comes_in_words(self.ir, channel);
        let tma = self.config.arch.has_tma() && !self.ir.channels.iter().any(of_words);
        let have = self.bytes_a_staged_warp(role).min(PART_BYTES + PART_BYTES / 8);
        let cut = |piece_bytes: i64| {
            let of = |stages: i64| Cut { tma, stages, piece_bytes, row_bytes: 0, meta_bytes: 0 };
            let mut tried = (PART_STAGES_MIN..=PART_BYTES / piece_bytes).rev().map(of);
            tried.find(|cut| cut.parts().0 <= have).unwrap_or(of(PART_STAGES_MIN))
        };
        let [large, small] = PART_PIECES.map(cut);
        if large.stages >= 2 * parts { large } else { small }
    }

    /// Whether the warps of a role take what others leave of shared memory.
    fn shares_bytes(&self, role: &Role) -> bool {
        self.ways.staged(&role.name).is_some() || self.ways.parts(&role.name).is_some()
    }

    /// The rest of shared memory, for each warp of the composed roles beside `role` through whose stages rows pass.
    fn bytes_a_staged_warp(&self, role: &Role) -> i64 {
        let groups = block_groups(self.ir, &self.ways);
        let is_own = |index: &usize| self.ir.roles[*index].name == role.name;
        let group = groups.iter().find(|group| group.iter().any(is_own));
        let (mut have, mut warps) =
            (self.config.arch.shared_bytes_max() - self.front_of_stages(), 0);
        for other in group.into_iter().flatten().map(|index| &self.ir.roles[*index]) {
            let given = other.warps.as_ref().and_then(|warps| eval(warps, self.numbers));
            match self.shares_bytes(other) {
                true => warps += self.own_warps(other),
                false => have -= self.role_bytes(other, given.unwrap_or(1)),
            }
        }
        // Roles that may run one after the other on a block keep the same in a warp.
        for other in self.ir.roles.iter().filter(|other| may_follow(role, other)) {
            warps = warps.max(self.own_warps(other));
        }
        have / warps.max(1)
    }

    /// Row and meta bytes of the largest message that a role moves.
    fn carried(&self, role: &Role) -> (i64, i64) {
        // A team writes its slots word by word.
        let here = |channel: &&Channel| {
            (channel.to == role.name || channel.from.contains(&role.name))
                && !travels_in_words(self.ir, channel)
        };
        let carried =
            self.ir.channels.iter().filter(here).filter_map(|channel| self.layout(channel));
        carried.fold((0, 0), |(row, meta), layout| {
            (row.max(layout.row_bytes), meta.max(layout.meta_bytes))
        })
    }
}

/// Whether the role fills messages.
fn pushes(role: &Role) -> bool {
    walk::any_stmt(&role.body, &mut |stmt| matches!(stmt.action, Action::Push { .. }))
}

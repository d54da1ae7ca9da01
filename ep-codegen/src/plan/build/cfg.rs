//! The constants of `Cfg`.

use super::Planner;
use crate::ir::naming::{
    camel, constant, counted_constant, field_constant, number_constant, struct_of,
};
use crate::ir::network::{carriers, readers, uses_network};
use crate::ir::once::message_index;
use crate::ir::slots::{comes_in_words, is_read_on_entry};
use crate::ir::text::transport;
use crate::ir::{Blocks, Channel, Role, Tensor, Transport, WellKnown, walk};
use crate::plan::config::NETWORK;
use crate::plan::error::PlanError;
use crate::plan::message::MessageLayout;
use crate::plan::network::{NetExtent, NetworkLayout};
use crate::plan::numbers::eval;
use crate::plan::roles::role_use;
use crate::plan::window::{Extent, SlotExtent, Window, option};
use crate::plan::{CfgGroup, CfgKind, CfgMember, RoleWarps, channels, flag, int};
use crate::schedule::cut::{RUNS, loops_in_runs};
use crate::schedule::extents::written_row;

/// Warps that share the row of a token where rules let several of them.
const SLICES: i64 = 32;

/// Values that a warp computes at a time.
const TURN: i64 = 256;

/// Values that the lanes of a warp read at once: more are read by several warps.
const TURN_VALUES: i64 = 256;

impl Planner<'_> {
    pub(super) fn top(&self, threads: i64, shared_bytes: i64) -> CfgGroup {
        let mut members: Vec<CfgMember> = Vec::new();
        let dims = self.ir.dims.iter().map(|dim| &dim.name);
        for name in dims.chain(self.ir.tunes.iter().map(|tune| &tune.name)) {
            members.push(int(&number_constant(name), self.number(name).unwrap_or(0)));
        }
        members.push(int("kThreads", threads));
        members.push(int("kSequences", self.sequences()));
        members.push(int("kSharedBytes", shared_bytes));
        CfgGroup { name: String::new(), members }
    }

    pub(super) fn messages(&self) -> Vec<CfgGroup> {
        let group = |layout: &MessageLayout| {
            let mut members = Vec::new();
            if layout.row_bytes > 0 {
                members.push(int("kRowBytes", layout.row_bytes));
            }
            members.push(int("kMetaBytes", layout.meta_bytes));
            for field in &layout.meta {
                let name = field_constant(&field.name);
                members.push(int(&name, field.offset));
                members.push(int(&format!("{name}Count"), field.count));
            }
            CfgGroup { name: struct_of(&layout.name), members }
        };
        self.layouts.iter().map(group).collect()
    }

    pub(super) fn channels(
        &self,
        window: &mut Window,
        network: &mut NetworkLayout,
    ) -> Vec<CfgGroup> {
        let mut groups = Vec::new();
        for (index, channel) in self.ir.channels.iter().enumerate() {
            let Some(message) = self.layout(channel) else { continue };
            let runs = self.runs(channel);
            let stripes =
                if runs > 0 { runs } else { self.number(WellKnown::Stripes.name()).unwrap_or(1) };
            let peers = self.peers(channel);
            let slots = SlotExtent::of(self.ir, channel, peers, self.numbers);
            let (senders, rows) = (self.route_tokens(), self.rows_of(channel));
            let slices = self.slot_slices(channel).max(1);
            let parts = channel.parts_per.as_ref().and_then(|parts| self.number(parts));
            let (parts, net) = (parts.unwrap_or(1), self.net_extent(channel));
            let slots = slots.map(|slots| self.filled_once(channel, slots, (net, message)));
            let skips_absent = self.leaves_out_absent();
            let read_on_entry = is_read_on_entry(self.ir, channel);
            let extent = Extent {
                peers,
                stripes,
                senders,
                pieces: self.pieces_told(),
                slices,
                rows,
                few: self.few(channel, slots, message),
                message,
                slots,
                skips_absent,
                read_on_entry,
                parts,
                net,
            };
            let mut members = vec![int("kChannel", index as i64), int("kPeers", extent.peers)];
            members.extend(channels::numbers(channel, &extent, self.numbers));
            members.extend(window.add(channel, &extent, self.numbers));
            members.extend(network.add(channel, &extent, self.numbers));
            groups.push(CfgGroup { name: struct_of(&camel(&channel.name)), members });
        }
        groups
    }

    /// Runs of turns in which rows of a channel are pushed.
    fn runs(&self, channel: &Channel) -> i64 {
        let loops = match self.ways.routes() {
            Some(_) => 0,
            None => loops_in_runs(self.ir, channel, self.ways.rules),
        };
        loops as i64 * RUNS
    }

    /// The slots of a channel, with messages filled once for all far peers where that is better.
    fn filled_once(
        &self,
        channel: &Channel,
        slots: SlotExtent,
        (net, message): (Option<NetExtent>, &MessageLayout),
    ) -> SlotExtent {
        let index = message_index(self.ir, channel);
        let messages = index.and_then(|index| eval(&index.count, self.numbers));
        let (Some(messages), Some(net)) = (messages, net) else { return slots };
        let peers = self.peers(channel);
        let are = option(channel, "once", self.numbers).is_some_and(|once| once > 0);
        slots.filled_once((are, messages), (peers - net.near, peers), message.slot_bytes)
    }

    /// With how many tokens of a rank rows travel as words: those of a dispatch in one launch, and those in slots.
    fn few(&self, channel: &Channel, slots: Option<SlotExtent>, message: &MessageLayout) -> i64 {
        let most = match slots {
            None => self.route_tokens(),
            Some(slots)
                if comes_in_words(self.ir, channel)
                    && self.slot_slices(channel) > 0
                    && self.ways.all_staged(&channel.to)
                    && message.record_words() <= TURN_VALUES
                    && !self.leaves_out_absent() =>
            {
                slots.source_stride
            }
            Some(_) => 0,
        };
        option(channel, "few", self.numbers).unwrap_or(0).clamp(0, most)
    }

    /// Slices of the row of a slot of a channel, which several warps share; 0: none do.
    fn slot_slices(&self, channel: &Channel) -> i64 {
        let senders = channel.from.iter().filter_map(|role| self.ways.recipe.role(role));
        senders.map(|role| role.uses.slot_slices).max().unwrap_or(0)
    }

    /// Where the sums of counters are, and which counter is whose.
    pub(super) fn counted(&self, window: &mut Window) -> Option<CfgGroup> {
        let counters = self.counters.as_ref()?;
        let in_shared = i64::from(counters.in_shared());
        let mut members = vec![
            int("kCount", counters.count()),
            CfgMember { name: "kInShared".into(), value: in_shared, kind: CfgKind::Bool },
            window.sums(counters),
        ];
        let first = |(name, first, _): &(String, i64, i64)| int(&counted_constant(name), *first);
        members.extend(counters.tensors.iter().map(first));
        Some(CfgGroup { name: "Counted".to_string(), members })
    }

    /// Which tensor of words is whose in the records of waits.
    pub(super) fn words(&self) -> Option<CfgGroup> {
        let words = walk::awaited_words(self.ir);
        let number =
            |(index, tensor): (usize, &&Tensor)| int(&constant(&tensor.name), index as i64);
        let members: Vec<CfgMember> = words.iter().enumerate().map(number).collect();
        (!members.is_empty()).then(|| CfgGroup { name: "Words".to_string(), members })
    }

    /// What carries rows to other machines, if any may go there.
    pub(super) fn carrier(&self) -> Result<Option<Transport>, PlanError> {
        let Some(carriers) = carriers(self.ir) else { return Ok(None) };
        let chosen = match &self.config.carrier {
            Some(wish) => carriers.iter().find(|carrier| *carrier == wish),
            None => carriers.first(),
        };
        let wish = || self.config.carrier.as_ref().map_or("open", transport);
        let listed = || match carriers.is_empty() {
            true => "nothing".to_string(),
            false => carriers.iter().map(transport).collect::<Vec<_>>().join(", "),
        };
        chosen.cloned().map(Some).ok_or_else(|| PlanError::OutOfRange {
            pipeline: self.ir.name.clone(),
            name: NETWORK.to_string(),
            value: wish().to_string(),
            allowed: format!("what every channel to other machines lists: {}", listed()),
        })
    }

    /// Who of a channel's peers is reached over a network, if someone is.
    pub(super) fn net_extent(&self, channel: &Channel) -> Option<NetExtent> {
        if !uses_network(self.ir, channel) {
            return None;
        }
        let readers = readers(self.ir, channel).map_or(1, |set| self.peers_of(set));
        let node_ranks = self.number(WellKnown::LocalRanks.name()).unwrap_or(1);
        let ibgda = self.carrier().is_ok_and(|carrier| carrier == Some(Transport::Ibgda));
        Some(NetExtent::of(channel, node_ranks, readers, ibgda))
    }

    pub(super) fn roles(&self, warps: &[RoleWarps], window: &mut Window) -> Vec<CfgGroup> {
        let roles = self.ir.roles.iter().zip(warps).enumerate();
        let group = |(index, (role, warps)): (usize, (&Role, &RoleWarps))| {
            let mut group = self.role(index, role, warps);
            if self.ways.slices(&role.name) {
                group.members.push(int("kSlices", self.slices(role)));
            }
            let loops = self.ways.words(&role.name);
            if loops > 0 {
                group.members.push(int("kLoops", loops as i64));
                group.members.push(window.claims(&role.name, loops));
            }
            group
        };
        roles.map(group).collect()
    }

    /// Slices of the rows that a role writes: none has less than a turn of a warp.
    fn slices(&self, role: &Role) -> i64 {
        // One warp decides for a whole row what of it has come, where some may not come.
        if self.leaves_out_absent() {
            return 1;
        }
        let mut widest = 1;
        walk::stmts(&role.body, &mut |stmt| {
            let extents = written_row(self.ir, stmt).iter();
            let width = extents.map(|extent| eval(extent, self.numbers));
            let width: i64 = width.map(|extent| extent.unwrap_or(1)).product();
            widest = widest.max(width);
        });
        (widest / TURN).max(1).unsigned_abs().next_power_of_two().min(SLICES.unsigned_abs()) as i64
    }

    fn role(&self, index: usize, role: &Role, warps: &RoleWarps) -> CfgGroup {
        let mut members = vec![
            int("kRole", index as i64),
            int("kFirstWarp", warps.first),
            int("kWarps", warps.count),
        ];
        let used = role_use(&self.ways, role);
        if let Some(rings) = self.ways.rings(&role.name) {
            members.push(int("kFirstSequence", self.first_sequence(role)));
            members.push(int("kSequences", self.sequences_of_unit(rings)));
        }
        if used.routes {
            members.push(int("kRanks", self.ranks()));
            members.push(int("kTokenWords", self.token_words()));
            members.push(int("kValues", self.route_values()));
            members.push(int("kCountWords", self.count_words()));
            let rows = self.ways.routes().and_then(|routes| self.ir.carried(&routes.rows));
            let early = rows.and_then(|(rows, _)| option(rows, "early", self.numbers));
            members.push(flag("kEarly", early.is_some_and(|early| early > 0)));
        }
        if used.has_stages() {
            let cut = self.cut(role);
            let tma = i64::from(cut.tma);
            members.push(CfgMember { name: "kTma".into(), value: tma, kind: CfgKind::Bool });
            members.push(int("kStages", cut.stages));
            members.push(int("kPieceBytes", cut.piece_bytes));
            if !used.parts {
                members.push(int("kRowBytes", cut.row_bytes));
                members.push(int("kMetaBytes", cut.meta_bytes));
            }
        }
        CfgGroup { name: struct_of(&role.name), members }
    }

    /// Fewest blocks with which each role has one.
    pub(super) fn blocks_min(&self) -> i64 {
        let arg = |name: &str| {
            let arg = self.ir.args.iter().find(|arg| arg.name == name);
            self.config.args.get(name).copied().or(arg.map(|arg| arg.default))?.whole()
        };
        let mut numbers = self.numbers.clone();
        for arg_name in self.ir.args.iter().map(|arg| arg.name.clone()) {
            if let Some(value) = arg(&arg_name) {
                numbers.insert(arg_name, value);
            }
        }
        let end = |role: &Role| match &role.blocks {
            Blocks::Range { high, .. } => eval(high, &numbers).unwrap_or(1),
            Blocks::Odd => 2,
            _ => 1,
        };
        let named = self.ir.roles.iter().map(end).max().unwrap_or(1);
        let others = self.ir.roles.iter().any(|role| role.blocks == Blocks::Other);
        named.saturating_add(i64::from(others))
    }
}

/// A channel named like its message shares its struct.
pub(super) fn merge(groups: &mut Vec<CfgGroup>, more: Vec<CfgGroup>) {
    for group in more {
        match groups.iter_mut().find(|known| known.name == group.name) {
            Some(known) => {
                let known_names: Vec<String> =
                    known.members.iter().map(|m| m.name.clone()).collect();
                let new =
                    group.members.into_iter().filter(|member| !known_names.contains(&member.name));
                known.members.extend(new);
            }
            None => groups.push(group),
        }
    }
}

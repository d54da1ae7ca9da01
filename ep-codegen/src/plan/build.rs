//! Making a plan: warps, messages, window, shared memory and the constants of `Cfg`.

use super::config::Config;
use super::counted::Counters;
use super::error::PlanError;
use super::extent::extents;
use super::message::{self, MessageLayout};
use super::numbers::{self, Numbers, eval};
use super::roles::{RoleUse, block_groups, first_warps, role_use};
use super::shared::{Cut, SEQUENCE_BYTES};
use super::window::{Extent, Window, option, slot_epochs};
use super::{CfgGroup, CfgKind, CfgMember, Plan, RoleWarps};
use crate::ir::counting::{Counting, counted};
use crate::ir::facts::{facts, travels_in_words};
use crate::ir::naming::{camel, constant, snake};
use crate::ir::params::params;
use crate::ir::parts::{LINE_BYTES, align, elem_bytes, parts, row_field};
use crate::ir::rows::{moved_row, row_in_place};
use crate::ir::{
    Action, Blocks, Channel, ChannelKind, Expr, Message, PeerSet, Pipeline, Role, Share, Source,
    Stmt, Waiver, walk,
};
use crate::schedule::Ways;

/// Warps of a block, by the hardware.
const WARPS_MAX: i64 = 32;
/// Warps tried in turn for a role whose declaration gives none.
const WARPS_TRIED: [i64; 6] = [16, 12, 8, 4, 2, 1];
/// Warps of a role that moves nothing.
const WARPS_COMPUTE: i64 = 8;
/// Bytes of a gather's pieces, and the most stages that a warp gets for them, where the declaration
/// tunes no others: each piece of each peer takes one.
const GATHER_PIECE: i64 = 1024;
const GATHER_STAGES: i64 = 8;
/// The fewest stages of a gather: one is added while another one comes.
const GATHER_STAGES_MIN: i64 = 2;
/// Pieces and stages of a mover, where the declaration tunes no others.
const MOVER_PIECE: i64 = 3584;
const MOVER_STAGES: i64 = 3;
/// KiB of rows that a warp takes at a time to send them, and the most that make a difference.
const DIRECT_UNIT: i64 = 112;
const UNIT_MAX: i64 = 64 * 1024;
/// What a bulk copy moves is a multiple of this.
const BULK_BYTES: i64 = 16;

/// Specialises `ir` for `config`.
pub fn plan(ir: &Pipeline, config: &Config) -> Result<Plan, PlanError> {
    let ir = ir.select(&config.choice);
    let numbers = numbers::resolve(&ir, config)?;
    let planner = Planner {
        ir: &ir,
        config,
        numbers: &numbers,
        layouts: layouts(&ir, config, &numbers),
        counters: Counters::of(&ir, &numbers),
        ways: Ways::of(&ir, config.rules),
    };
    planner.check_channels()?;
    planner.check_rows()?;
    planner.check_taken()?;
    let warps = planner.warps()?;
    let mut window = Window::default();
    let channels = planner.channels(&mut window);
    let counted = planner.counted(&mut window);
    let shared_bytes = planner.shared_bytes(&warps);
    let threads = warps.iter().map(|w| w.first + w.count).max().unwrap_or(1) * 32;
    let mut cfg = vec![planner.top(threads, shared_bytes)];
    cfg.extend(planner.messages());
    merge(&mut cfg, channels);
    cfg.extend(counted);
    cfg.extend(planner.roles(&warps));
    let (params, args_bytes) = params(&ir);
    Ok(Plan {
        pipeline: ir.name.clone(),
        entry: snake(&ir.name),
        arch: config.arch,
        arms: ir.axes.iter().map(|axis| (axis.name.clone(), axis.arms[0].name.clone())).collect(),
        numbers: numbers.clone(),
        cfg,
        params,
        args_bytes,
        extents: extents(&ir, &numbers),
        strides: planner.strides(),
        window: window.regions,
        window_bytes: window.bytes,
        threads,
        shared_bytes,
        roles: warps,
        blocks_min: planner.blocks_min(),
        waits: waits(&ir),
        messages: planner.layouts,
        pairs: facts(&ir).pairs,
        waivers: waivers(&ir),
    })
}

fn waivers(ir: &Pipeline) -> Vec<(String, Waiver)> {
    let of = |channel: &Channel| Some((channel.name.clone(), channel.waiver.clone()?));
    ir.channels.iter().filter_map(of).collect()
}

/// Layout of every message, as its channel carries it.
fn layouts(ir: &Pipeline, config: &Config, numbers: &Numbers) -> Vec<MessageLayout> {
    let absent: Vec<String> = config
        .copies
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(name, _)| name.clone())
        .collect();
    let channel =
        |message: &Message| ir.channels.iter().find(|channel| channel.message == message.name);
    let layout = |message| message::layout(ir, message, channel(message), numbers, &absent);
    ir.messages.iter().map(layout).collect()
}

struct Planner<'a> {
    ir: &'a Pipeline,
    config: &'a Config,
    numbers: &'a Numbers,
    layouts: Vec<MessageLayout>,
    counters: Option<Counters>,
    ways: Ways,
}

impl Planner<'_> {
    fn number(&self, name: &str) -> Option<i64> {
        self.numbers.get(name).copied()
    }

    fn ranks(&self) -> i64 {
        self.number("ranks").unwrap_or(1)
    }

    /// How many peers a channel joins.
    fn peers(&self, channel: &Channel) -> i64 {
        let name = match channel.per {
            PeerSet::All | PeerSet::Others => "ranks",
            PeerSet::Local => "local_ranks",
            PeerSet::Rail => "nodes",
        };
        self.number(name).unwrap_or(1)
    }

    fn layout(&self, channel: &Channel) -> Option<&MessageLayout> {
        self.layouts.iter().find(|layout| layout.name == channel.message)
    }

    fn limit(&self, at: &Source, what: &str, need: i64, have: i64, help: &str) -> PlanError {
        PlanError::Limit {
            pipeline: self.ir.name.clone(),
            at: at.clone(),
            what: what.to_string(),
            need,
            have,
            help: help.to_string(),
        }
    }

    /// The protocol's own limits on the numbers of a channel.
    fn check_channels(&self) -> Result<(), PlanError> {
        for channel in self.ir.channels.iter().filter(|channel| channel.kind == ChannelKind::Ring) {
            let (Some(depth), Some(chunk)) =
                (option(channel, "depth", self.numbers), option(channel, "chunk", self.numbers))
            else {
                continue;
            };
            // The counters of a ring wrap at 2^32, and the slot has to follow.
            if !u64::try_from(depth).is_ok_and(u64::is_power_of_two) {
                let need = u64::try_from(depth).unwrap_or(1).next_power_of_two();
                let need = i64::try_from(need).unwrap_or(i64::MAX);
                let help = "make `depth` a power of two: positions count on through 2^32";
                return Err(PlanError::Uneven(Box::new(self.limit(
                    &channel.at,
                    "slots",
                    need,
                    depth,
                    help,
                ))));
            }
            if depth < 2 * chunk {
                let help = "raise `depth` or lower `chunk`: credit returns a chunk at a time";
                return Err(self.limit(&channel.at, "slots", 2 * chunk, depth, help));
            }
        }
        Ok(())
    }

    /// Rows that are moved as they are consist of whole units of a bulk copy.
    fn check_rows(&self) -> Result<(), PlanError> {
        let mut wrong = None;
        for role in &self.ir.roles {
            walk::stmts(&role.body, &mut |stmt| {
                let bytes = self.whole_bytes(stmt);
                if bytes % BULK_BYTES != 0 && wrong.is_none() {
                    let help = "take rows of whole 16-byte units";
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
    fn check_taken(&self) -> Result<(), PlanError> {
        let absent = |name: &String| self.config.copies.get(name) == Some(&0);
        let mut wrong = None;
        // A role that is composed leaves out what has no place.
        for role in self.ir.roles.iter().filter(|role| !self.ways.is_composed(&role.name)) {
            walk::stmts(&role.body, &mut |outer| {
                let (Action::Receive { channel, .. } | Action::Gather { channel, .. }) =
                    &outer.action
                else {
                    return;
                };
                for stmt in walk::nested(outer) {
                    let gone = walk::target(stmt).filter(|place| absent(&place.tensor));
                    let Some((place, with)) = gone.zip(self.comes_with(channel, stmt)) else {
                        continue;
                    };
                    if !absent(with) {
                        let what = format!("tensor `{}`", place.tensor);
                        let help = format!("bring it, or leave `{with}` away too");
                        wrong.get_or_insert(self.limit(&stmt.at, &what, 1, 0, &help));
                    }
                }
            });
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The optional tensor with which the field comes that `stmt` takes from a message.
    fn comes_with(&self, channel: &str, stmt: &Stmt) -> Option<&String> {
        let (_, message) = self.ir.carried(channel)?;
        let mut taken = None;
        walk::exprs(stmt, &mut |part| {
            if let Expr::Field { field: name, .. } = part
                && let Some(field) = message.fields.iter().find(|field| field.name == *name)
            {
                taken = field.optional_with.as_ref().or(taken);
            }
        });
        taken
    }

    /// Bytes of the row that `stmt` moves, as it is or as a message; 0 when it moves none.
    fn whole_bytes(&self, stmt: &Stmt) -> i64 {
        let Action::Push { channel, .. } = &stmt.action else { return self.moved_bytes(stmt) };
        let carried = self.ir.carried(channel);
        let row = carried.and_then(|(_, message)| row_field(self.ir, message));
        row.map_or(0, |(field, elem)| {
            let elements: i64 =
                field.dims.iter().map(|dim| eval(dim, self.numbers).unwrap_or(0)).product();
            elements * elem_bytes(&elem)
        })
    }

    /// Bytes of the row that `stmt` moves as it is; 0 when it moves none.
    fn moved_bytes(&self, stmt: &Stmt) -> i64 {
        let Some(from) = moved_row(self.ir, stmt) else { return 0 };
        let elements = from.dims.last().and_then(|dim| eval(dim, self.numbers)).unwrap_or(0);
        parts(self.ir, &from.elem).first().map_or(0, |(_, elem, _)| elements * elem_bytes(elem))
    }

    /// The warps of every role, as many as shared memory allows where the declaration leaves it open.
    fn warps(&self) -> Result<Vec<RoleWarps>, PlanError> {
        let roles = &self.ir.roles;
        let given =
            |role: &Role| role.warps.as_ref().map(|warps| eval(warps, self.numbers).unwrap_or(1));
        let mut counts: Vec<i64> =
            roles.iter().map(|role| given(role).unwrap_or(WARPS_COMPUTE)).collect();
        for group in block_groups(self.ir, &self.ways) {
            for (done, index) in group.iter().enumerate() {
                if roles[*index].warps.is_none() {
                    counts[*index] = self.warps_for(&roles[*index], &group[..done], &counts)?;
                }
            }
            self.check_bytes(&group, &counts)?;
        }
        let firsts = first_warps(roles, &counts);
        for ((role, first), count) in roles.iter().zip(&firsts).zip(&counts) {
            if first + count > WARPS_MAX {
                let help = "give the roles of these blocks fewer warps, or blocks of their own";
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
            let help = "take fewer warps, stages or smaller pieces";
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
            let help = "take fewer stages or smaller pieces";
            self.limit(&role.at, "bytes of shared memory", taken + each, have, help)
        })
    }

    /// Bytes of `warps` warps of a role.
    fn role_bytes(&self, role: &Role, warps: i64) -> i64 {
        let cut = self.cut(role);
        match role_use(self.ir, &self.ways, role) {
            RoleUse { mover: true, .. } => warps * cut.mover().0,
            RoleUse { gather: true, .. } => warps * cut.gather().0,
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
        let uses =
            self.ir.roles.iter().map(|role| (role_use(self.ir, &self.ways, role), self.cut(role)));
        let rows = uses.filter(|(used, _)| used.mover || used.gather);
        let rows = rows.map(|(_, cut)| if cut.tma { 128 } else { 16 }).max();
        let words = if sequences > 0 { 8 } else { 4 };
        align(sequences + counters, rows.unwrap_or(words))
    }

    fn shared_bytes(&self, warps: &[RoleWarps]) -> i64 {
        let counts: Vec<i64> = warps.iter().map(|warps| warps.count).collect();
        let groups = block_groups(self.ir, &self.ways);
        let most = groups.iter().map(|group| self.group_bytes(group, &counts)).max().unwrap_or(0);
        most + self.front_bytes()
    }

    /// Sequences of a block: one per peer for each ring end.
    fn sequences(&self) -> i64 {
        let last =
            self.ir.roles.iter().map(|role| self.first_sequence(role) + self.own_sequences(role));
        last.max().unwrap_or(0)
    }

    fn own_sequences(&self, role: &Role) -> i64 {
        if role_use(self.ir, &self.ways, role).sequence { self.ranks() } else { 0 }
    }

    /// Sequences of the roles declared before `role` that may share a block with it.
    fn first_sequence(&self, role: &Role) -> i64 {
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
    fn cut(&self, role: &Role) -> Cut {
        let used = role_use(self.ir, &self.ways, role);
        let (row_bytes, meta_bytes) = self.carried(role);
        let tuned = |name, default| self.number(name).unwrap_or(default);
        let cut = Cut {
            tma: self.config.arch.has_tma(),
            stages: tuned("stages", MOVER_STAGES),
            piece_bytes: tuned("piece", MOVER_PIECE),
            row_bytes,
            // A receiving role reads meta records where they lie.
            meta_bytes: if used.gather || pushes(role) { meta_bytes } else { 0 },
            sources: self.ranks(),
        };
        if used.gather { self.gather_cut(role, cut) } else { cut }
    }

    /// A gather takes as many stages as fit, up to what is tuned.
    fn gather_cut(&self, role: &Role, cut: Cut) -> Cut {
        let warps = role.warps.as_ref().and_then(|warps| eval(warps, self.numbers));
        let warps = warps.unwrap_or(WARPS_TRIED[0]);
        let have = self.config.arch.shared_bytes_max() - SEQUENCE_BYTES * self.ranks();
        let piece_bytes = self.number("gather_piece").unwrap_or(GATHER_PIECE);
        let most = self.number("gather_stages").unwrap_or(GATHER_STAGES);
        let staged = |stages: i64| Cut { stages, piece_bytes, ..cut };
        let mut tried = (GATHER_STAGES_MIN..=most).rev().map(staged);
        let fitting = tried.find(|cut| warps * cut.gather().0 <= have);
        fitting.unwrap_or(staged(GATHER_STAGES_MIN))
    }

    /// Row and meta bytes of the largest message or row that a role moves.
    fn carried(&self, role: &Role) -> (i64, i64) {
        let mut moved = 0;
        walk::stmts(&role.body, &mut |stmt| moved = moved.max(self.moved_bytes(stmt)));
        let here =
            |channel: &&Channel| channel.to == role.name || channel.from.contains(&role.name);
        let carried =
            self.ir.channels.iter().filter(here).filter_map(|channel| self.layout(channel));
        carried.fold((moved, 0), |(row, meta), layout| {
            (row.max(layout.row_bytes), meta.max(layout.meta_bytes))
        })
    }

    /// The tensors behind the rows of direct and pull channels, and how far apart these are.
    fn strides(&self) -> Vec<(String, i64)> {
        let strides = self.ir.channels.iter().filter_map(|channel| {
            let (_, tensor) = row_in_place(self.ir, channel)?;
            let apart = align(self.layout(channel)?.row_bytes, LINE_BYTES);
            Some((tensor.name.clone(), apart))
        });
        strides.collect()
    }

    fn top(&self, threads: i64, shared_bytes: i64) -> CfgGroup {
        let mut members: Vec<CfgMember> = Vec::new();
        let dims = self.ir.dims.iter().map(|dim| &dim.name);
        for name in dims.chain(self.ir.tunes.iter().map(|tune| &tune.name)) {
            members.push(int(&constant(name), self.number(name).unwrap_or(0)));
        }
        members.push(int("kThreads", threads));
        members.push(int("kSequences", self.sequences()));
        members.push(int("kSharedBytes", shared_bytes));
        CfgGroup { name: String::new(), members }
    }

    fn messages(&self) -> Vec<CfgGroup> {
        let group = |layout: &MessageLayout| {
            let mut members = Vec::new();
            if layout.row_bytes > 0 {
                members.push(int("kRowBytes", layout.row_bytes));
            }
            members.push(int("kMetaBytes", layout.meta_bytes));
            for field in &layout.meta {
                let name = constant(&field.name);
                members.push(int(&name, field.offset));
                members.push(int(&format!("{name}Count"), field.count));
            }
            CfgGroup { name: layout.name.clone(), members }
        };
        self.layouts.iter().map(group).collect()
    }

    fn channels(&self, window: &mut Window) -> Vec<CfgGroup> {
        let mut groups = Vec::new();
        for (index, channel) in self.ir.channels.iter().enumerate() {
            let Some(message) = self.layout(channel) else { continue };
            let stripes = self.number("stripes").unwrap_or(1);
            let in_words = travels_in_words(self.ir, channel);
            let roles = self.ir.roles.len() as i64;
            let peers = self.peers(channel);
            let extent = Extent { peers, stripes, roles, message, in_words };
            let mut members = vec![int("kChannel", index as i64), int("kPeers", extent.peers)];
            members.extend(self.channel_numbers(channel, &extent));
            members.extend(window.add(channel, &extent, self.numbers));
            groups.push(CfgGroup { name: camel(&channel.name), members });
        }
        groups
    }

    /// Where the sums of counters are, and which counter is whose.
    fn counted(&self, window: &mut Window) -> Option<CfgGroup> {
        let counters = self.counters.as_ref()?;
        let in_shared = i64::from(counters.in_shared());
        let mut members = vec![
            int("kCount", counters.count()),
            CfgMember { name: "kInShared".into(), value: in_shared, kind: CfgKind::Bool },
            window.sums(counters),
        ];
        let first = |(name, first, _): &(String, i64, i64)| int(&constant(name), *first);
        members.extend(counters.tensors.iter().map(first));
        Some(CfgGroup { name: "Counted".to_string(), members })
    }

    fn channel_numbers(&self, channel: &Channel, extent: &Extent<'_>) -> Vec<CfgMember> {
        let option = |name, default| option(channel, name, self.numbers).unwrap_or(default);
        let layout = extent.message;
        match channel.kind {
            ChannelKind::Ring => vec![
                int("kStripes", extent.stripes),
                int("kDepth", option("depth", 2)),
                int("kChunk", option("chunk", 1)),
                int("kSlotBytes", layout.slot_bytes),
                int("kMeta", layout.row_bytes),
                int("kHeaderWords", channel.header.len() as i64),
            ],
            ChannelKind::Direct => vec![
                int("kStripes", extent.stripes),
                int("kRoles", extent.roles),
                int("kUnitBytes", option("unit", DIRECT_UNIT).clamp(1, UNIT_MAX) * 1024),
                int("kRowStride", align(layout.row_bytes, LINE_BYTES)),
                int("kMetaBytes", layout.meta_bytes),
            ],
            ChannelKind::Slots => vec![
                int("kEpochs", slot_epochs(channel, self.numbers)),
                int("kWords", layout.meta_bytes / 8),
                flag("kSkipsOwn", channel.per == PeerSet::Others),
                int("kSlotBytes", layout.slot_bytes),
            ],
            ChannelKind::Pull => vec![
                int("kRowStride", align(layout.row_bytes, LINE_BYTES)),
                int("kMetaStride", align(meta_row_bytes(layout), LINE_BYTES)),
            ],
        }
    }

    fn roles(&self, warps: &[RoleWarps]) -> Vec<CfgGroup> {
        let roles = self.ir.roles.iter().zip(warps).enumerate();
        roles.map(|(index, (role, warps))| self.role(index, role, warps)).collect()
    }

    fn role(&self, index: usize, role: &Role, warps: &RoleWarps) -> CfgGroup {
        let mut members = vec![
            int("kRole", index as i64),
            int("kFirstWarp", warps.first),
            int("kWarps", warps.count),
        ];
        let used = role_use(self.ir, &self.ways, role);
        if self.own_sequences(role) > 0 {
            members.push(int("kFirstSequence", self.first_sequence(role)));
        }
        if used.mover || used.gather {
            let cut = self.cut(role);
            let tma = i64::from(cut.tma);
            members.push(CfgMember { name: "kTma".into(), value: tma, kind: CfgKind::Bool });
            members.push(int("kStages", cut.stages));
            members.push(int("kPieceBytes", cut.piece_bytes));
            members.push(int("kRowBytes", cut.row_bytes));
            members.push(int("kMetaBytes", cut.meta_bytes));
            if used.gather {
                members.push(int("kSources", cut.sources));
            }
        }
        CfgGroup { name: role.name.clone(), members }
    }

    /// Fewest blocks with which each role has one.
    fn blocks_min(&self) -> i64 {
        let arg = |name: &str| {
            let arg = self.ir.args.iter().find(|arg| arg.name == name);
            self.config.args.get(name).copied().or(arg.map(|arg| arg.default))
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
        named + i64::from(others)
    }
}

/// Whether blocks wait for one another, or several of them for other ranks. A single block that waits
/// is always begun: block 0 is the first one, the last block has all others behind it.
fn waits(ir: &Pipeline) -> bool {
    let meet = counted(ir).iter().any(|(_, counting)| *counting == Counting::Cleared);
    let is_first = |blocks: &Blocks| {
        matches!(
            blocks,
            Blocks::Last
                | Blocks::Range { low: Expr::Int { value: 0 }, high: Expr::Int { value: 1 } }
        )
    };
    let is_end = |role: &Role| {
        ir.channels.iter().any(|it| it.to == role.name || it.from.contains(&role.name))
    };
    meet || ir.roles.iter().any(|role| is_end(role) && !is_first(&role.blocks))
}

/// Whether the role fills messages.
fn pushes(role: &Role) -> bool {
    let mut found = false;
    walk::stmts(&role.body, &mut |stmt| found |= matches!(stmt.action, Action::Push { .. }));
    found
}

/// Bytes of one row of the tensor behind the meta fields of a pull channel.
fn meta_row_bytes(layout: &MessageLayout) -> i64 {
    layout.meta.iter().map(|field| field.count * elem_bytes(&field.elem)).sum()
}

fn int(name: &str, value: i64) -> CfgMember {
    CfgMember { name: name.to_string(), value, kind: CfgKind::Int }
}

fn flag(name: &str, value: bool) -> CfgMember {
    CfgMember { name: name.to_string(), value: i64::from(value), kind: CfgKind::Bool }
}

/// A channel named like its message shares its struct.
fn merge(groups: &mut Vec<CfgGroup>, more: Vec<CfgGroup>) {
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

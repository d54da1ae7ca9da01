//! Making a plan: warps, messages, window, shared memory and the constants of `Cfg`.

mod cfg;
mod checks;
mod routes;
mod warps;

use cfg::merge;

use super::Plan;
use super::config::Config;
use super::counted::Counters;
use super::error::PlanError;
use super::extent::extents;
use super::joined::joined;
use super::message::{self, MessageLayout};
use super::network::NetworkLayout;
use super::numbers::{self, Numbers};
use super::taken::{lists, taken};
use super::window::Window;
use crate::ir::counting::{Counting, counted};
use crate::ir::facts::facts;
use crate::ir::naming::{kernel_of, snake};
use crate::ir::params::params;
use crate::ir::parts::{LINE_BYTES, align};
use crate::ir::rows::row_in_place;
use crate::ir::slots::{Arrival, arrival};
use crate::ir::{
    Blocks, Channel, Expr, Message, PeerSet, Pipeline, Role, Source, Waiver, WellKnown,
};
use crate::schedule::Ways;

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
    planner.check_slots()?;
    planner.check_rows()?;
    planner.check_taken()?;
    planner.check_routes()?;
    let warps = planner.warps()?;
    planner.check_readers(&warps)?;
    let mut window = Window::default();
    let mut network = NetworkLayout::default();
    let channels = planner.channels(&mut window, &mut network);
    let counted = planner.counted(&mut window);
    let shared_bytes = planner.shared_bytes(&warps);
    let threads = warps.iter().map(|w| w.first + w.count).max().unwrap_or(1) * 32;
    let mut cfg = vec![planner.top(threads, shared_bytes)];
    cfg.extend(planner.messages());
    merge(&mut cfg, channels);
    cfg.extend(counted);
    cfg.extend(planner.words());
    cfg.extend(planner.roles(&warps, &mut window));
    let (params, args_bytes) = params(&ir);
    Ok(Plan {
        pipeline: ir.name.clone(),
        entry: snake(&ir.name),
        kernels: ir.phases().into_iter().map(|phase| kernel_of(&ir, phase)).collect(),
        joined: joined(&ir, &planner.ways),
        arch: config.arch,
        arms: ir.axes.iter().map(|axis| (axis.name.clone(), axis.arms[0].name.clone())).collect(),
        numbers: numbers.clone(),
        cfg,
        params,
        args_bytes,
        taken: taken(&ir, &numbers),
        extents: extents(&ir, &numbers),
        strides: planner.strides(),
        lists: lists(&ir, &numbers),
        window: window.regions,
        window_bytes: window.bytes,
        network: network.regions,
        network_bytes: network.bytes,
        network_counters: network.counters,
        carrier: planner.carrier()?,
        threads,
        shared_bytes,
        roles: warps,
        recipe: planner.ways.recipe.clone(),
        blocks_min: planner.blocks_min(),
        waits: waits(&ir) || planner.ways.meet(),
        enters: true,
        skips_ranks: planner.skips_ranks(),
        leaves_out_absent: planner.leaves_out_absent(),
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
        self.number(WellKnown::Ranks.name()).unwrap_or(1)
    }

    /// How many peers a channel joins.
    fn peers(&self, channel: &Channel) -> i64 {
        self.peers_of(&channel.per)
    }

    fn peers_of(&self, set: &PeerSet) -> i64 {
        self.number(set.number().name()).unwrap_or(1)
    }

    /// Whether slots may come from some ranks only.
    fn skips_ranks(&self) -> bool {
        self.ir.channels.iter().all(|channel| {
            let arrival = arrival(self.ir, channel);
            channel.kind.traits().is_indexed && matches!(arrival, Arrival::Flags | Arrival::Counts)
        })
    }

    /// Whether waits for ranks that do not answer end: every wait for slots has to know its source.
    fn leaves_out_absent(&self) -> bool {
        let (wish, channels) = (self.config.leaves_out_absent, &self.ir.channels);
        let knows = |channel: &Channel| channel.slot_names.iter().any(|name| name == "source");
        wish && self.skips_ranks() && !channels.is_empty() && channels.iter().all(knows)
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

    /// The tensors behind the rows of direct and pull channels, and how far apart these are.
    fn strides(&self) -> Vec<(String, i64)> {
        let strides = self.ir.channels.iter().filter_map(|channel| {
            let (_, tensor) = row_in_place(self.ir, channel)?;
            let apart = align(self.layout(channel)?.row_bytes, LINE_BYTES);
            Some((tensor.name.clone(), apart))
        });
        strides.collect()
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

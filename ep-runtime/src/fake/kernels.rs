//! What the standard pipelines do, one plain function each, on the memory of all ranks.

use std::collections::BTreeMap;

use ep_codegen::plan::{ParamKind, Plan};

use super::World;
use super::streams::Work;
use crate::oracle::{bf16_from_f32, bf16_to_f32};

/// The arguments of one rank's launch by name.
struct Args {
    values: BTreeMap<String, u64>,
    windows: u64,
    rank: usize,
}

impl Args {
    fn read(plan: &Plan, bytes: &[u8]) -> Args {
        assert_eq!(bytes.len() as i64, plan.args_bytes);
        let number = |at: usize, width: usize| {
            let mut value = [0; 8];
            value[..width].copy_from_slice(&bytes[at..at + width]);
            u64::from_le_bytes(value)
        };
        let mut values = BTreeMap::new();
        for param in &plan.params {
            let width = match &param.kind {
                ParamKind::Group => continue,
                ParamKind::Size
                | ParamKind::Capacity { .. }
                | ParamKind::Copies { .. }
                | ParamKind::Arg { .. } => 4,
                _ => 8,
            };
            values.insert(param.name.clone(), number(param.offset as usize, width));
        }
        Args { values, windows: number(0, 8), rank: number(56, 4) as usize }
    }

    fn get(&self, name: &str) -> u64 {
        *self.values.get(name).unwrap_or_else(|| panic!("no member `{name}`: {:?}", self.values))
    }

    fn maybe(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// A stride in elements, or the dense one where the plan passes none.
    fn stride(&self, name: &str, dense: u64) -> u64 {
        self.values.get(name).copied().unwrap_or(dense)
    }
}

/// The numbers of a shape that every kernel needs.
struct Shape {
    ranks: u64,
    topk: u64,
    hidden: u64,
    stripes: u64,
}

impl Shape {
    fn of(plan: &Plan, stripes: u64) -> Shape {
        let number = |name: &str| plan.numbers.get(name).map_or(0, |value| *value as u64);
        let planned = number("stripes");
        Shape {
            ranks: number("ranks"),
            topk: number("topk"),
            hidden: number("hidden"),
            stripes: if planned == 0 { stripes } else { planned },
        }
    }
}

impl World {
    fn i32(&mut self, table: u64, index: u64) -> i64 {
        i64::from(i32::from_le_bytes(self.at(table + 4 * index, 4).try_into().unwrap()))
    }

    fn set_i32(&mut self, table: u64, index: u64, value: i64) {
        let bytes = (value as i32).to_le_bytes();
        self.at(table + 4 * index, 4).copy_from_slice(&bytes);
    }

    fn i64(&mut self, table: u64, index: u64) -> i64 {
        i64::from_le_bytes(self.at(table + 8 * index, 8).try_into().unwrap())
    }

    fn copy(&mut self, to: u64, from: u64, bytes: u64) {
        let data = self.at(from, bytes).to_vec();
        self.at(to, bytes).copy_from_slice(&data);
    }

    /// What `args.windows[peer]` holds.
    fn window(&mut self, args: &Args, peer: u64) -> u64 {
        u64::from_le_bytes(self.at(args.windows + 8 * peer, 8).try_into().unwrap())
    }

    fn routed(&mut self, args: &Args, shape: &Shape, token: u64, peer: u64) -> bool {
        let stride = args.stride("topk_idx_stride", shape.topk);
        let begin = args.get("expert_begin");
        let (low, high) = (self.i32(begin, peer), self.i32(begin, peer + 1));
        (0..shape.topk).any(|k| {
            let expert = self.i64(args.get("topk_idx"), token * stride + k);
            (low..high).contains(&expert)
        })
    }
}

/// Runs one kernel for all ranks.
pub(super) fn run(world: &mut World, text: &str, works: &[Work]) {
    let Some(plan) = world.plans.get(text).cloned() else {
        // Written by hand: what it does here is to bring the ranks together.
        world.met += 1;
        return;
    };
    let mut all = Vec::new();
    for work in works {
        let Work::Kernel { blocks, args, .. } = work else { panic!("not a kernel") };
        assert!(i64::from(*blocks) >= plan.blocks_min);
        let paired = text.contains("\"ring\"");
        assert!(!paired || blocks % 2 == 0, "blocks come in pairs");
        let mut args = Args::read(&plan, args);
        if args.maybe("tokens_from") != 0 {
            let tokens = world.i32(args.get("tokens_from"), 0).clamp(0, args.get("tokens") as i64);
            args.values.insert("tokens".to_string(), tokens as u64);
        }
        all.push(args);
    }
    for (rank, args) in all.iter().enumerate() {
        assert_eq!(args.rank, rank);
    }
    match plan.pipeline.as_str() {
        "Layout" => {
            all.iter().for_each(|args| count(world, &plan, args));
            exchange(world, &plan, &all);
        }
        "NvlDispatch" => dispatch(world, &plan, &all, text.contains("\"fresh\"")),
        "NvlCombine" => combine(world, &plan, &all),
        other => panic!("no fake kernel for {other}"),
    }
}

/// First token of a stripe.
fn stripe_begin(tokens: u64, stripes: u64, stripe: u64) -> u64 {
    stripe * (tokens / stripes) + stripe.min(tokens % stripes)
}

fn count(world: &mut World, plan: &Plan, args: &Args) {
    let shape = Shape::of(plan, 0);
    let experts = plan.numbers["experts"] as u64;
    let tokens = args.get("tokens");
    for (name, count) in [
        ("tokens_per_rank", shape.ranks),
        ("tokens_per_expert", experts),
        ("stripe_tokens", shape.ranks * shape.stripes),
    ] {
        (0..count).for_each(|index| world.set_i32(args.get(name), index, 0));
    }
    let add = |world: &mut World, table: &str, index: u64| {
        let value = world.i32(args.get(table), index);
        world.set_i32(args.get(table), index, value + 1);
    };
    for stripe in 0..shape.stripes {
        let begin = stripe_begin(tokens, shape.stripes, stripe);
        for token in begin..stripe_begin(tokens, shape.stripes, stripe + 1) {
            for k in 0..shape.topk {
                let expert = world.i64(args.get("topk_idx"), token * shape.topk + k);
                if expert >= 0 {
                    add(world, "tokens_per_expert", expert as u64);
                }
            }
            for peer in 0..shape.ranks {
                let hit = world.routed(args, &shape, token, peer);
                world.at(args.get("in_rank") + token * shape.ranks + peer, 1)[0] = u8::from(hit);
                if hit {
                    add(world, "tokens_per_rank", peer);
                    add(world, "stripe_tokens", stripe * shape.ranks + peer);
                }
            }
        }
    }
}

fn exchange(world: &mut World, plan: &Plan, all: &[Args]) {
    let shape = Shape::of(plan, 0);
    let (ranks, local_experts) = (shape.ranks, plan.numbers["local_experts"] as u64);
    for args in all {
        let prefix = args.get("rank_prefix");
        for dest in 0..ranks {
            let mut sum = 0;
            for source in 0..=ranks {
                world.set_i32(prefix, source * ranks + dest, sum);
                if let Some(source) = all.get(source as usize) {
                    sum += world.i32(source.get("tokens_per_rank"), dest);
                }
            }
            let mut sum = 0;
            for stripe in 0..shape.stripes {
                world.set_i32(args.get("stripe_prefix"), dest * shape.stripes + stripe, sum);
                sum += world.i32(args.get("stripe_tokens"), stripe * ranks + dest);
            }
        }
        let me = args.rank as u64;
        let total = world.i32(prefix, ranks * ranks + me);
        world.set_i32(args.get("received"), 0, total);
        let first = world.i32(args.get("expert_begin"), me);
        let end = world.i32(args.get("expert_begin"), me + 1);
        let alignment = args.get("alignment") as i64;
        for expert in 0..local_experts {
            let global = first + expert as i64;
            let counts = all.iter().map(|source| {
                if global < end {
                    world.i32(source.get("tokens_per_expert"), global as u64)
                } else {
                    0
                }
            });
            let sum: i64 = counts.sum();
            let aligned = (sum + alignment - 1) / alignment * alignment;
            world.set_i32(args.get("received_per_expert"), expert, aligned);
        }
    }
}

/// Bytes of a row and of its scales, from the element types of the plan.
fn row_bytes(plan: &Plan, hidden: u64) -> (u64, u64, u64) {
    use ep_codegen::ir::Elem;
    let mut bytes = (2, 0, 0);
    for param in &plan.params {
        let ParamKind::Pointer { tensor, part, elem, .. } = &param.kind else { continue };
        if tensor != "x" {
            continue;
        }
        let blocks = hidden.div_ceil(128);
        match (part, elem) {
            (0, Elem::E4m3) => bytes.0 = 1,
            (1, Elem::F32) => (bytes.1, bytes.2) = (4, blocks),
            (1, _) => (bytes.1, bytes.2) = (1, blocks),
            _ => {}
        }
    }
    bytes
}

fn dispatch(world: &mut World, plan: &Plan, all: &[Args], fresh: bool) {
    let shape = Shape::of(plan, 0);
    let ranks = shape.ranks;
    let (value, scale, scales) = row_bytes(plan, shape.hidden);
    for args in all {
        let me = args.rank as u64;
        for peer in 0..ranks {
            let stride = all[peer as usize].get("recv_x_stride") * value;
            let dest = &all[peer as usize];
            let rows = world.window(args, peer) + dest.get("recv_x_at");
            assert_eq!(rows, dest.get("recv_x"), "the window offset is the output's address");
            let mut row = world.i32(args.get("rank_prefix"), me * ranks + peer) as u64;
            for token in 0..args.get("tokens") {
                let hit = world.at(args.get("in_rank") + token * ranks + peer, 1)[0] != 0;
                if fresh && args.values.contains_key("send_row") {
                    let recorded = if hit { row as i64 } else { -1 - row as i64 };
                    world.set_i32(args.get("send_row"), token * ranks + peer, recorded);
                }
                if !hit {
                    continue;
                }
                assert!(row < dest.get("received_capacity"));
                let x = args.get("x") + token * args.stride("x_stride", shape.hidden) * value;
                world.copy(rows + row * stride, x, shape.hidden * value);
                for block in 0..scales {
                    let from = token * args.get("x_scale_stride")
                        + block * args.get("x_scale_block_stride");
                    let to = row * dest.get("recv_x_scale_stride")
                        + block * dest.get("recv_x_scale_block_stride");
                    let (from, to) = (from * scale, to * scale);
                    world.copy(dest.get("recv_x_scale") + to, args.get("x_scale") + from, scale);
                }
                unpack(world, &shape, args, dest, token, row);
                row += 1;
            }
            if fresh && args.values.contains_key("send_head") {
                record_ring(world, &shape, args, dest);
            }
        }
        if args.maybe("topk_idx") != 0 {
            let received = world.i32(args.get("rank_prefix"), ranks * ranks + me) as u64;
            let rest = args.get("received_capacity") - received;
            let at = args.get("recv_topk_idx") + 8 * received * shape.topk;
            world.at(at, 8 * rest * shape.topk).fill(0xff);
        }
    }
}

/// What a dispatch through rings records for one pair of ranks.
fn record_ring(world: &mut World, shape: &Shape, args: &Args, dest: &Args) {
    let (me, peer) = (args.rank as u64, dest.rank as u64);
    let base = world.i32(args.get("rank_prefix"), me * shape.ranks + peer);
    let mut sent = 0;
    for stripe in 0..shape.stripes {
        let (tokens, first) = (args.get("tokens"), sent);
        let begin = stripe_begin(tokens, shape.stripes, stripe);
        for token in begin..stripe_begin(tokens, shape.stripes, stripe + 1) {
            let entry = token * shape.ranks + peer;
            let hit = world.at(args.get("in_rank") + entry, 1)[0] != 0;
            let position = sent - first;
            let recorded = if hit { position } else { -1 - position };
            world.set_i32(args.get("send_head"), entry, recorded);
            sent += i64::from(hit);
        }
        world.set_i32(dest.get("recv_first"), me * shape.stripes + stripe, base + first);
        world.set_i32(dest.get("recv_count"), me * shape.stripes + stripe, sent - first);
    }
}

/// The row at `source` that holds what became of a token, if it went there.
fn returned_row(
    world: &mut World,
    shape: &Shape,
    args: &Args,
    source: &Args,
    token: u64,
) -> Option<u64> {
    let entry = token * shape.ranks + source.rank as u64;
    if args.values.contains_key("send_row") {
        return u64::try_from(world.i32(args.get("send_row"), entry)).ok();
    }
    let head = u64::try_from(world.i32(args.get("send_head"), entry)).ok()?;
    let tokens = args.get("tokens");
    let after = |stripe: &u64| token < stripe_begin(tokens, shape.stripes, stripe + 1);
    let stripe = (0..shape.stripes).find(after)?;
    let pair = args.rank as u64 * shape.stripes + stripe;
    assert!((head as i64) < world.i32(source.get("recv_count"), pair));
    Some(world.i32(source.get("recv_first"), pair) as u64 + head)
}

/// The small fields of one row, as the receiver stores them.
fn unpack(world: &mut World, shape: &Shape, args: &Args, dest: &Args, token: u64, row: u64) {
    world.set_i32(dest.get("recv_src"), row, token as i64);
    let begin = dest.get("expert_begin");
    let me = dest.rank as u64;
    let (low, high) = (world.i32(begin, me), world.i32(begin, me + 1));
    for k in 0..shape.topk {
        if args.maybe("topk_idx") != 0 {
            let expert = world.i64(args.get("topk_idx"), token * shape.topk + k);
            let local = if (low..high).contains(&expert) { expert - low } else { -1 };
            let to = dest.get("recv_topk_idx") + 8 * (row * shape.topk + k);
            world.at(to, 8).copy_from_slice(&local.to_le_bytes());
        }
        if args.maybe("topk_weights") != 0 {
            let from = args.get("topk_weights") + 4 * (token * shape.topk + k);
            world.copy(dest.get("recv_topk_weights") + 4 * (row * shape.topk + k), from, 4);
        }
    }
}

fn combine(world: &mut World, plan: &Plan, all: &[Args]) {
    let shape = Shape::of(plan, 0);
    let bias = ["bias[0]", "bias[1]"];
    for args in all {
        for token in 0..args.get("tokens") {
            let mut sums = vec![0f32; shape.hidden as usize];
            let mut weights = vec![0f32; shape.topk as usize];
            for peer in 0..shape.ranks {
                let source = &all[peer as usize];
                let Some(row) = returned_row(world, &shape, args, source, token) else { continue };
                let base = world.window(args, peer);
                let rows = base + source.get("x_at");
                assert_eq!(rows, source.get("x"), "the window offset is the input's address");
                let at = rows + row * source.stride("x_stride", shape.hidden) * 2;
                add_bf16(world, &mut sums, at);
                if source.get("weights") != 0 {
                    let stride = source.stride("weights_stride", shape.topk);
                    let at = base + source.get("weights_at") + 4 * row * stride;
                    for (k, weight) in weights.iter_mut().enumerate() {
                        let bytes = world.at(at + 4 * k as u64, 4).try_into().unwrap();
                        *weight += f32::from_le_bytes(bytes);
                    }
                }
            }
            for name in &bias[..args.get("bias_count") as usize] {
                let stride = args.stride("bias_stride", shape.hidden);
                add_bf16(world, &mut sums, args.get(name) + token * stride * 2);
            }
            let out = sums.iter().flat_map(|sum| bf16_from_f32(*sum).to_le_bytes());
            let out: Vec<u8> = out.collect();
            let to = args.get("combined") + token * shape.hidden * 2;
            world.at(to, out.len() as u64).copy_from_slice(&out);
            if args.maybe("combined_weights") != 0 {
                let out: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
                let to = args.get("combined_weights") + token * shape.topk * 4;
                world.at(to, out.len() as u64).copy_from_slice(&out);
            }
        }
    }
}

fn add_bf16(world: &mut World, sums: &mut [f32], at: u64) {
    let bytes = world.at(at, 2 * sums.len() as u64);
    for (sum, pair) in sums.iter_mut().zip(bytes.chunks(2)) {
        *sum += bf16_to_f32(u16::from_le_bytes([pair[0], pair[1]]));
    }
}

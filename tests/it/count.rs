//! Counters of every kind on the host: how they start, who adds to them, and what remains for the next
//! call.

use std::sync::Arc;

use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::group::{Group, GroupKernel, place_control};
use ep_runtime::host::{Build, HostBackend, HostOptions};
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, pipeline};

pipeline! {
    /// Counts by everything that a counter may be found by.
    pub pipeline Tallies {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=20000, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_expert: i64[experts], per_token: i32[tokens], ranks_of_token: i32[tokens];
        inout seen: i32[experts];
        table to_rank: i32[ranks], from_stripe: i32[stripes, ranks], stripe_experts: i32[stripes, experts];

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    count per_expert[expert];
                    count per_token[token];
                    count seen[expert];
                    count stripe_experts[stripe, expert];
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count to_rank[peer];
                    count from_stripe[stripe, peer];
                    count ranks_of_token[token];
                }
            }
        }
    }
}

const RANKS: usize = 3;
const TOPK: usize = 3;
const STRIPES: usize = 5;

/// What a caller has in `seen` before the first call.
const SEEN: i32 = 7;

/// What one call must give, one number after the other, by name.
struct Wanted {
    per_expert: Vec<i64>,
    per_token: Vec<i64>,
    ranks_of_token: Vec<i64>,
    to_rank: Vec<i64>,
    from_stripe: Vec<i64>,
    stripe_experts: Vec<i64>,
}

/// Ids of all kinds: owned, absent, far out of range, twice in a row.
fn ids(tokens: usize, experts: usize) -> Vec<i64> {
    let odd = [-1, experts as i64, i64::MIN, 1 << 40, i64::MAX];
    let id = |i: usize| match i % 7 {
        3 => odd[i / 7 % odd.len()],
        5 => 0,
        _ => (i * i % experts) as i64,
    };
    let mut ids: Vec<i64> = (0..tokens * TOPK).map(id).collect();
    ids.chunks_mut(TOPK).step_by(4).for_each(|row| row[1] = row[0]);
    ids
}

/// Ranks of uneven size: the second one has no expert.
fn begins(experts: usize) -> [i32; RANKS + 1] {
    let first = (experts as i32 + 1) / 2;
    [0, first, first, experts as i32]
}

/// The first token of each stripe, and the end: the first ones have one more.
fn stripe_of(token: usize, tokens: usize) -> usize {
    let (each, longer) = (tokens / STRIPES, tokens % STRIPES);
    match token < longer * (each + 1) {
        true => token / (each + 1),
        false => longer + (token - longer * (each + 1)) / each,
    }
}

fn wanted(ids: &[i64], experts: usize) -> Wanted {
    let tokens = ids.len() / TOPK;
    let mut all = Wanted {
        per_expert: vec![0; experts],
        per_token: vec![0; tokens],
        ranks_of_token: vec![0; tokens],
        to_rank: vec![0; RANKS],
        from_stripe: vec![0; STRIPES * RANKS],
        stripe_experts: vec![0; STRIPES * experts],
    };
    let begins = begins(experts);
    for (token, row) in ids.chunks(TOPK).enumerate() {
        let stripe = stripe_of(token, tokens);
        let known = |id: &&i64| (0..experts as i64).contains(*id);
        for id in row.iter().filter(known) {
            all.per_expert[*id as usize] += 1;
            all.per_token[token] += 1;
            all.stripe_experts[stripe * experts + *id as usize] += 1;
        }
        for rank in 0..RANKS {
            let own = i64::from(begins[rank])..i64::from(begins[rank + 1]);
            if row.iter().any(|id| own.contains(id)) {
                all.to_rank[rank] += 1;
                all.from_stripe[stripe * RANKS + rank] += 1;
                all.ranks_of_token[token] += 1;
            }
        }
    }
    all
}

/// Memory of one rank, and how the kernel finds it.
struct Memory {
    backend: Arc<dyn Backend>,
    rank: usize,
    bindings: Bindings,
    blocks: Vec<(String, DeviceMemory)>,
}

impl Memory {
    fn bind(&mut self, name: &str, bytes: &[u8], row_stride: usize) {
        let bytes = if bytes.is_empty() { &[0; 8] } else { bytes };
        let memory = DeviceMemory::new(&self.backend, self.rank, bytes.len() as u64);
        let memory = memory.expect("there is room");
        memory.write(0, bytes).expect("it fits");
        self.bindings.tensor(name, Rows::new(memory.address(), row_stride as i64));
        self.blocks.push((name.to_owned(), memory));
    }

    fn check(&self, name: &str, wanted: &[i64], width: usize, what: &str) {
        let (_, memory) = self.blocks.iter().find(|(own, _)| own == name).expect("it is bound");
        let mut bytes = vec![0; wanted.len() * width];
        memory.read(0, &mut bytes).expect("it can be read");
        let number = |bytes: &[u8]| match bytes.len() {
            8 => i64::from_le_bytes(bytes.try_into().expect("8 bytes")),
            _ => i64::from(i32::from_le_bytes(bytes.try_into().expect("4 bytes"))),
        };
        let found: Vec<i64> = bytes.chunks(width).map(number).collect();
        assert_eq!(found, wanted, "{what}: {name}");
    }
}

/// A group with its kernel, and what each rank brings.
struct Prepared {
    group: Group,
    kernel: GroupKernel,
    ranks: Vec<Memory>,
    wanted: Wanted,
}

/// `missing`: bytes that `per_token` of rank 1 lacks. None where there is no compiler.
fn prepare(tokens: usize, experts: usize, build: Build, missing: usize) -> Option<Prepared> {
    let programs = crate::host::programs()?;
    let entry = AnyPipeline::of::<Tallies>();
    let ir = entry.ir();
    let mut config = Config::new(&ir, Arch::Sm90a);
    let shape = [("ranks", RANKS), ("topk", TOPK), ("experts", experts), ("stripes", STRIPES)];
    for (name, value) in shape {
        config.set(&ir, name, &value.to_string()).expect("the shape is legal");
    }
    let emitted = entry.emit(&config).expect("it is emitted");
    let options = HostOptions { build, ..HostOptions::new(RANKS) };
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let group = backend.group().expect("there is a group");
    let (_, bytes) = place_control([&emitted.plan]);
    let window = Arc::new(Window::new(group.backend(), bytes).expect("there is room"));
    let kernel = GroupKernel::prepare(&group, &window, 0, &emitted).expect("it compiles");

    let ids = ids(tokens, experts);
    let wanted = wanted(&ids, experts);
    let dirty = |count: usize, width: usize| vec![0xa5; count * width];
    let rank = |rank| {
        let backend = Arc::clone(group.backend());
        let mut memory = Memory { backend, rank, bindings: Bindings::new(), blocks: Vec::new() };
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        memory.bind("topk_idx", &bytes, TOPK);
        let bytes: Vec<u8> = begins(experts).iter().flat_map(|at| at.to_le_bytes()).collect();
        memory.bind("expert_begin", &bytes, 1);
        memory.bind("seen", &SEEN.to_le_bytes().repeat(experts), 1);
        memory.bind("per_expert", &dirty(experts, 8), 1);
        let missing = if rank == 1 { missing } else { 0 };
        memory.bind("per_token", &dirty(tokens, 4)[missing..], 1);
        memory.bind("ranks_of_token", &dirty(tokens, 4), 1);
        memory.bind("to_rank", &dirty(RANKS, 4), 1);
        memory.bind("from_stripe", &dirty(STRIPES * RANKS, 4), 1);
        memory.bind("stripe_experts", &dirty(STRIPES * experts, 4), 1);
        memory.bindings.number("tokens", tokens as i64);
        memory
    };
    let ranks = (0..RANKS).map(rank).collect();
    Some(Prepared { group, kernel, ranks, wanted })
}

/// Two calls of every rank, one after the other.
fn check(tokens: usize, experts: usize, blocks: u32, build: Build) {
    let Some(prepared) = prepare(tokens, experts, build, 0) else { return };
    let Prepared { group, kernel, ranks, wanted } = prepared;
    let what = format!("{tokens} tokens, {experts} experts, {blocks} blocks");
    for call in 1..=2 {
        for (rank, memory) in ranks.iter().enumerate() {
            kernel.launch(rank, Stream::OWN, blocks, &memory.bindings).expect("it starts");
        }
        for (rank, memory) in ranks.iter().enumerate() {
            group.sync(rank).unwrap_or_else(|error| panic!("{what}: {error}"));
            let what = format!("{what}, call {call}, rank {rank}");
            let seen = wanted.per_expert.iter().map(|count| i64::from(SEEN) + call * count);
            memory.check("seen", &seen.collect::<Vec<_>>(), 4, &what);
            memory.check("per_expert", &wanted.per_expert, 8, &what);
            memory.check("per_token", &wanted.per_token, 4, &what);
            memory.check("ranks_of_token", &wanted.ranks_of_token, 4, &what);
            memory.check("to_rank", &wanted.to_rank, 4, &what);
            memory.check("from_stripe", &wanted.from_stripe, 4, &what);
            memory.check("stripe_experts", &wanted.stripe_experts, 4, &what);
        }
    }
}

/// Nothing but its own check sees that: the rows that are there are right.
#[test]
fn an_output_that_is_too_short_is_told_by_its_name() {
    for build in [Build::Plain, Build::Checked] {
        let Some(prepared) = prepare(333, 12, build, 40) else { return };
        for (rank, memory) in prepared.ranks.iter().enumerate() {
            let started = prepared.kernel.launch(rank, Stream::OWN, 3, &memory.bindings);
            started.expect("it starts");
        }
        let error = prepared.group.sync(1).expect_err("ten tokens have no place").to_string();
        assert!(error.contains("out of bounds"), "{error}");
        assert!(error.contains("per_token of rank 1, row 3"), "{error}");
        assert!(error.contains(" of 323"), "{error}");
    }
}

#[test]
fn counters_of_every_kind_are_right_call_after_call() {
    for (tokens, blocks) in [(0, 2), (1, 1), (100, 1), (333, 3), (40, 7)] {
        check(tokens, 12, blocks, Build::Checked);
    }
}

/// More counters than a block has shared memory for.
#[test]
fn many_counters_are_added_to_the_sums_at_once() {
    check(100, 9001, 2, Build::Checked);
}

//! The expanded layout on the host: every row of every expert against the oracle.

use std::sync::Arc;

use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::buffer::Placement;
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::pipelines::Expand;
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, Emitted};
use ep_verify::oracle::{Expanded, Oracle, Random, RoutingOptions, random_bytes};

use crate::usual;

/// What kernels are compiled for.
#[derive(Clone, Copy)]
struct Shape {
    ranks: usize,
    experts: usize,
    topk: usize,
    hidden: usize,
    stripes: usize,
    payload: &'static str,
    arch: Arch,
}

impl Shape {
    fn local_experts(&self) -> usize {
        self.experts.div_ceil(self.ranks)
    }

    /// Bytes of a row, and of one scale; a block has 128 elements.
    fn bytes(&self) -> (usize, usize) {
        match self.payload {
            "bf16" => (2 * self.hidden, 0),
            "fp8" => (self.hidden, 4),
            _ => (self.hidden, 1),
        }
    }

    fn emitted(&self) -> Emitted {
        let entry = AnyPipeline::of::<Expand>();
        let ir = entry.ir();
        let mut config = Config::new(&ir, self.arch);
        let numbers = [
            ("ranks", self.ranks),
            ("experts", self.experts),
            ("topk", self.topk),
            ("hidden", self.hidden),
            ("stripes", self.stripes),
        ];
        for (name, value) in numbers {
            config.set(&ir, name, &value.to_string()).expect("the shape is legal");
        }
        config.set(&ir, "payload", self.payload).expect("the arm exists");
        entry.emit(&config).expect("the shape fits")
    }
}

/// The problem of a seed.
struct Case {
    oracle: Oracle,
    alignment: usize,
    blocks: u32,
    /// Whether scales lie by column in the input, and by row in the output, or the other way round.
    columns: bool,
    random: Random,
}

impl Case {
    fn new(shape: &Shape, seed: u64) -> Case {
        let mut random = Random::new(seed << 8);
        let share = |random: &mut Random| if random.chance(0.5) { 0.4 } else { 0.0 };
        let options = RoutingOptions {
            skew: 5.0 * share(&mut random),
            absent: share(&mut random),
            repeated: share(&mut random),
            ..RoutingOptions::even(shape.topk, shape.experts)
        };
        let quiet = random.chance(0.1);
        let routings = (0..shape.ranks).map(|_| {
            let tokens = if quiet { 0 } else { random.below(60) };
            options.routing(tokens, &mut random)
        });
        let routings = routings.collect();
        let placement = Placement::even(shape.experts, shape.ranks);
        Case {
            oracle: Oracle::new(shape.experts, placement, routings),
            alignment: if seed.is_multiple_of(2) { 1 } else { 16 },
            blocks: 1 + random.below(4) as u32,
            columns: random.chance(0.5),
            random,
        }
    }
}

/// Bytes that no kernel writes.
const UNTOUCHED: u8 = 0xcd;

/// One rank's memory for the pipeline.
struct Rank {
    blocks: Vec<DeviceMemory>,
    bindings: Bindings,
    /// Rows as the rank has received them, and their scales by row.
    x: Vec<u8>,
    scales: Vec<u8>,
    wanted: Expanded,
    expert_first: usize,
    expanded_src: usize,
    expanded_x: usize,
    expanded_scale: usize,
}

impl Rank {
    fn new(
        backend: &Arc<dyn Backend>,
        rank: usize,
        shape: &Shape,
        case: &mut Case,
        lack: usize,
    ) -> Rank {
        let (row_bytes, scale_bytes) = shape.bytes();
        let (rows, local) = (case.oracle.arrivals(rank).len(), shape.local_experts());
        let blocks_of = shape.hidden.div_ceil(128);
        let wanted = case.oracle.expanded(rank, local, case.alignment);
        let mut new = Rank {
            blocks: Vec::new(),
            bindings: Bindings::new(),
            x: random_bytes(rows * row_bytes, &mut case.random),
            scales: random_bytes(rows * blocks_of * scale_bytes, &mut case.random),
            wanted,
            expert_first: 0,
            expanded_src: 0,
            expanded_x: 0,
            expanded_scale: 0,
        };
        let ids = case.oracle.arrivals(rank).iter();
        let ids = ids.flat_map(|row| case.oracle.local_experts_of(rank, *row));
        let ids: Vec<u8> = ids.flat_map(i64::to_le_bytes).collect();
        let prefix: Vec<u8> =
            case.oracle.rank_prefix().iter().flat_map(|n| n.to_le_bytes()).collect();
        new.given(backend, rank, "rank_prefix", 0, prefix, (0, 1));
        new.given(backend, rank, "expert_idx", 0, ids, (shape.topk, 1));
        // Rows of the input are padded.
        let elem_bytes = row_bytes / shape.hidden;
        let padded = row_bytes + 128;
        let mut x = vec![0; rows * padded];
        for (to, from) in x.chunks_mut(padded).zip(new.x.chunks(row_bytes)) {
            to[..row_bytes].copy_from_slice(from);
        }
        new.given(backend, rank, "x", 0, x, (padded / elem_bytes, 1));
        let total = new.wanted.source.len();
        new.expert_first = new.taken(backend, rank, "expert_first", 0, 4 * (local + 1), (0, 1));
        new.taken(backend, rank, "rows_per_expert", 0, 4 * local, (0, 1));
        new.taken(backend, rank, "stripe_rows", 0, 4 * shape.stripes * local, (0, 1));
        new.taken(backend, rank, "stripe_first", 0, 4 * shape.stripes * local, (0, 1));
        new.expanded_src = new.taken(backend, rank, "expanded_src", 0, 4 * total, (0, 1));
        new.expanded_x =
            new.taken(backend, rank, "expanded_x", 0, total * row_bytes, (shape.hidden, 1));
        if scale_bytes > 0 {
            let given = by_columns(&new.scales, rows, blocks_of, scale_bytes);
            let given = if case.columns { given } else { new.scales.clone() };
            new.given(backend, rank, "x", 1, given, strides(case.columns, rows, blocks_of));
            let bytes = total * blocks_of * scale_bytes;
            let strides = strides(!case.columns, total, blocks_of);
            new.expanded_scale = new.taken(backend, rank, "expanded_x", 1, bytes, strides);
        }
        new.bindings.number("alignment", case.alignment as i64);
        new.bindings.number("expanded_capacity", total.saturating_sub(lack) as i64);
        new
    }

    fn bind(
        &mut self,
        name: &str,
        part: usize,
        memory: DeviceMemory,
        strides: (usize, usize),
    ) -> usize {
        let rows = Rows {
            address: memory.address(),
            row_stride: strides.0 as i64,
            column_stride: strides.1 as i64,
        };
        self.bindings.part(name, part, rows);
        self.blocks.push(memory);
        self.blocks.len() - 1
    }

    /// A tensor that the caller brings.
    fn given(
        &mut self,
        backend: &Arc<dyn Backend>,
        rank: usize,
        name: &str,
        part: usize,
        bytes: Vec<u8>,
        strides: (usize, usize),
    ) {
        let memory = DeviceMemory::new(backend, rank, bytes.len() as u64).expect("there is room");
        memory.write(0, &bytes).expect("it fits");
        self.bind(name, part, memory, strides);
    }

    /// A tensor that the kernels write.
    fn taken(
        &mut self,
        backend: &Arc<dyn Backend>,
        rank: usize,
        name: &str,
        part: usize,
        bytes: usize,
        strides: (usize, usize),
    ) -> usize {
        let memory = DeviceMemory::new(backend, rank, bytes as u64).expect("there is room");
        memory.fill(Stream::OWN, UNTOUCHED).expect("it can be filled");
        self.bind(name, part, memory, strides)
    }

    fn read(&self, block: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.blocks[block].read(0, &mut read).expect("it can be read");
        read
    }

    fn numbers(&self, block: usize, count: usize) -> Vec<i32> {
        let bytes = self.read(block, 4 * count);
        bytes
            .chunks(4)
            .map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect()
    }

    /// Compares everything with what is wanted.
    fn check(&self, shape: &Shape, case: &Case, what: &str) {
        let first = self.numbers(self.expert_first, shape.local_experts() + 1);
        assert_eq!(first, self.wanted.first, "{what}: expert_first");
        let total = self.wanted.source.len();
        let source = self.numbers(self.expanded_src, total);
        assert_eq!(source, self.wanted.source, "{what}: expanded_src");
        let (row_bytes, scale_bytes) = shape.bytes();
        let expanded = self.read(self.expanded_x, total * row_bytes);
        check_rows(&expanded, &self.x, &source, row_bytes, &format!("{what}: expanded_x"));
        if scale_bytes > 0 {
            let blocks = shape.hidden.div_ceil(128);
            let mut scales = self.read(self.expanded_scale, total * blocks * scale_bytes);
            if !case.columns {
                scales = by_columns(&scales, blocks, total, scale_bytes);
            }
            let what = format!("{what}: scales");
            check_rows(&scales, &self.scales, &source, blocks * scale_bytes, &what);
        }
    }
}

/// Each row is its source's, and what has none is as it was.
fn check_rows(rows: &[u8], from: &[u8], source: &[i32], bytes: usize, what: &str) {
    for (place, (row, source)) in rows.chunks(bytes).zip(source).enumerate() {
        match usize::try_from(*source) {
            Ok(source) => assert!(row == &from[source * bytes..][..bytes], "{what} at {place}"),
            Err(_) => assert!(row.iter().all(|byte| *byte == UNTOUCHED), "{what} at {place}"),
        }
    }
}

/// Elements from one row and one column to the next.
fn strides(columns: bool, rows: usize, blocks: usize) -> (usize, usize) {
    if columns { (1, rows) } else { (blocks, 1) }
}

/// A matrix of `rows` by `columns` elements, the other way round.
fn by_columns(from: &[u8], rows: usize, columns: usize, bytes: usize) -> Vec<u8> {
    let element = |at: usize| &from[at * bytes..][..bytes];
    let order = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    order.flat_map(element).copied().collect()
}

/// Prepares the pipeline and launches its phases on all ranks.
fn launch(
    group: &Group,
    shape: &Shape,
    case: &Case,
    ranks: &[Rank],
) -> Result<GroupKernel, CallError> {
    let emitted = shape.emitted();
    let window = Arc::new(Window::new(group.backend(), control_bytes(&emitted.plan))?);
    let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
    for (rank, own) in ranks.iter().enumerate() {
        let bindings = own.bindings.taken_by(kernel.plan());
        kernel.launch(rank, Stream::OWN, case.blocks, &bindings)?;
    }
    Ok(kernel)
}

fn backend(programs: &Arc<Programs>, shape: &Shape, build: Build, seed: u64) -> Arc<HostBackend> {
    let mut options = HostOptions { build, arch: shape.arch, ..HostOptions::new(shape.ranks) };
    options.spec.seed = seed;
    HostBackend::new(programs, options).unwrap_or_else(|error| panic!("{error}"))
}

fn check(shape: &Shape, build: Build, seeds: std::ops::Range<u64>) {
    let Some(programs) = crate::host::programs() else { return };
    for seed in usual::some(seeds, 3) {
        let mut case = Case::new(shape, seed);
        let group = backend(programs, shape, build, seed).group().expect("there is a group");
        let memory = |rank| Rank::new(group.backend(), rank, shape, &mut case, 0);
        let ranks: Vec<Rank> = (0..shape.ranks).map(memory).collect();
        let run = || {
            let kernel = launch(&group, shape, &case, &ranks)?;
            (0..shape.ranks).try_for_each(|rank| group.sync(rank))?;
            drop(kernel);
            Ok::<(), CallError>(())
        };
        run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for (rank, own) in ranks.iter().enumerate() {
            own.check(shape, &case, &format!("seed {seed}, rank {rank}"));
        }
    }
}

const FEW: Shape = Shape {
    ranks: 3,
    experts: 13,
    topk: 4,
    hidden: 2880,
    stripes: 8,
    payload: "bf16",
    arch: Arch::Sm90a,
};

#[test]
fn rows_of_an_expert_follow_one_another() {
    check(&FEW, Build::Plain, 0..12);
}

#[test]
fn scales_go_with_their_rows() {
    check(&Shape { payload: "fp8", hidden: 720, ..FEW }, Build::Plain, 0..8);
    check(
        &Shape { payload: "fp8-packed", hidden: 256, arch: Arch::Sm80, ..FEW },
        Build::Plain,
        0..4,
    );
}

/// More experts than a warp has lanes, more choices than most, and one expert alone.
#[test]
fn any_number_of_experts_is_expanded() {
    let many = Shape { ranks: 2, experts: 128, topk: 12, hidden: 64, stripes: 5, ..FEW };
    check(&many, Build::Plain, 0..8);
    check(
        &Shape { ranks: 2, experts: 2, topk: 2, hidden: 64, stripes: 3, ..FEW },
        Build::Plain,
        0..4,
    );
}

/// No two accesses of the launches meet without an order.
#[test]
fn the_order_of_all_accesses_is_given() {
    check(&Shape { hidden: 64, payload: "fp8", ..FEW }, Build::Checked, 0..3);
}

#[test]
fn an_output_that_is_too_small_stays_as_it_is() {
    let Some(programs) = crate::host::programs() else { return };
    let mut case = Case::new(&FEW, 3);
    let group = backend(programs, &FEW, Build::Plain, 3).group().expect("there is a group");
    let memory = |rank| Rank::new(group.backend(), rank, &FEW, &mut case, 1);
    let ranks: Vec<Rank> = (0..FEW.ranks).map(memory).collect();
    let kernel = launch(&group, &FEW, &case, &ranks).expect("it is launched");
    let error = group.sync(0).expect_err("a row has no room");
    let total = ranks[0].wanted.source.len() as u64;
    assert_eq!(error, CallError::OutputTooSmall { rank: 0, need: total, have: total - 1 });
    drop(kernel);
    let rows = ranks[0].read(ranks[0].expanded_x, ranks[0].wanted.source.len() * FEW.bytes().0);
    assert!(rows.iter().all(|byte| *byte == UNTOUCHED), "a row was moved");
}

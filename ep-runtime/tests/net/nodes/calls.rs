//! Compares the calls of a buffer between nodes with those of a buffer whose ranks are all on one node: a
//! caller sees no difference. All values are small whole numbers, so that sums are exact in any order.

use ep_runtime::args::Rows;
use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, Counts,
    DispatchInput, ExpandOptions, ExpandedOutput, Expander, Handle, Payload, Received,
};
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::memory::DeviceMemory;
use ep_runtime::net::ModelOptions;

const TOKENS: usize = 8;
const HIDDEN: usize = 144;
const TOPK: usize = 3;
/// Room for the rows of all experts of a rank.
const EXPANDED: usize = 6 * TOKENS * TOPK;
/// Ranks have two or three of them.
const EXPERTS: usize = 11;

/// What a rank's calls leave.
#[derive(Debug, Clone, PartialEq)]
struct Left {
    counts: Counts,
    rows: Vec<Vec<u8>>,
    scales: Vec<Vec<u8>>,
    experts: Vec<Vec<u8>>,
    weights: Vec<Vec<u8>>,
    rows_again: Vec<Vec<u8>>,
    /// Rows by expert, and which received row each one is.
    expanded: [Vec<Vec<u8>>; 2],
    sums: Vec<Vec<u8>>,
    sums_of_weights: Vec<Vec<u8>>,
}

/// Numbers that look random, the same for each rank everywhere.
fn drawn(rank: usize, what: usize) -> impl Iterator<Item = usize> {
    let mut state = (rank * 31 + what) as u64 + 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as usize
    })
}

fn bf16(value: usize) -> [u8; 2] {
    let bits = (value as f32).to_bits().to_le_bytes();
    [bits[2], bits[3]]
}

/// Memory of a rank that holds bytes.
fn with(group: &Group, rank: usize, bytes: Vec<u8>) -> DeviceMemory {
    let memory = DeviceMemory::zeroed(group.backend(), rank, bytes.len().max(1) as u64).unwrap();
    memory.write(0, &bytes).unwrap();
    memory
}

/// So many rows of so many bytes.
fn read(
    group: &Group,
    rank: usize,
    of: Rows,
    rows: usize,
    values: usize,
    bytes: usize,
) -> Vec<Vec<u8>> {
    let row = |row: usize| {
        let mut read = vec![0; values * bytes];
        let at = of.address + (row as i64 * of.row_stride) as u64 * bytes as u64;
        group.backend().read(rank, at, &mut read).unwrap();
        read
    };
    if of.address == 0 { Vec::new() } else { (0..rows).map(row).collect() }
}

/// One rank: what it brings, and its memory.
struct Caller<'a> {
    group: &'a Group,
    options: &'a BufferOptions,
    rank: usize,
    tokens: usize,
    experts: DeviceMemory,
    weights: DeviceMemory,
    bias: DeviceMemory,
    sums: DeviceMemory,
    sums_of_weights: DeviceMemory,
}

impl<'a> Caller<'a> {
    fn new(group: &'a Group, options: &'a BufferOptions, rank: usize) -> Caller<'a> {
        // One of them has none.
        let tokens = [7, 0, 5, 8][rank % 4];
        let expert = |value: usize| (value % (EXPERTS + 1)) as i64 - 1;
        let experts = drawn(rank, 1).take(tokens * TOPK).flat_map(|it| expert(it).to_le_bytes());
        let weights = drawn(rank, 2).take(tokens * TOPK);
        let weights = weights.flat_map(|it| ((it % 9) as f32).to_le_bytes());
        let bias = drawn(rank, 3).take(tokens * HIDDEN).flat_map(|it| bf16(it % 5));
        Caller {
            group,
            options,
            rank,
            tokens,
            experts: with(group, rank, experts.collect()),
            weights: with(group, rank, weights.collect()),
            bias: with(group, rank, bias.collect()),
            sums: with(group, rank, vec![0xa5; tokens * HIDDEN * 2]),
            sums_of_weights: with(group, rank, vec![0xa5; tokens * TOPK * 4]),
        }
    }

    /// What it sends in a call, and the memory of that.
    fn input(&self, call: usize) -> (DispatchInput, [DeviceMemory; 2]) {
        let (values, scales) = (self.tokens * HIDDEN, self.options.payload.scales(HIDDEN));
        let x: Vec<u8> = match self.options.payload {
            Payload::Bf16 => {
                drawn(self.rank, 4 + call).take(values).flat_map(|it| bf16(it % 7)).collect()
            }
            _ => drawn(self.rank, 4 + call).take(values).map(|it| (it % 120) as u8).collect(),
        };
        let scale_bytes = self.options.payload.scale_bytes() as usize;
        let scale = drawn(self.rank, 6 + call).take(self.tokens * scales * scale_bytes);
        let scale: Vec<u8> = scale.map(|it| (it % 64) as u8).collect();
        let kept = [with(self.group, self.rank, x), with(self.group, self.rank, scale)];
        let input = DispatchInput {
            tokens: self.tokens,
            tokens_from: 0,
            x: Rows::new(kept[0].address(), HIDDEN as i64),
            scale: Rows::new(kept[1].address(), scales as i64),
            topk_idx: self.experts.address(),
            topk_weights: self.weights.address(),
        };
        (input, kept)
    }

    fn rows_of(&self, received: &Received, count: usize) -> [Vec<Vec<u8>>; 2] {
        let (values, scales) =
            (self.options.payload.value_bytes(), self.options.payload.scale_bytes());
        let read = |of: Rows, each: usize, bytes: u64| {
            read(self.group, self.rank, of, count, each, bytes as usize)
        };
        let of_row = self.options.payload.scales(HIDDEN);
        [
            read(received.x().unwrap(), HIDDEN, values),
            read(received.scale().unwrap(), of_row, scales),
        ]
    }

    /// Copies the rows of each expert, where they have no scales.
    fn expand(&self, expander: &Expander, handle: &Handle, rows: &Received) -> [DeviceMemory; 2] {
        let memory =
            [2 * HIDDEN, 4].map(|each| with(self.group, self.rank, vec![0xa5; EXPANDED * each]));
        let [x, source] = [0, 1].map(|at: usize| memory[at].address());
        let output = ExpandedOutput { x, source, ..ExpandedOutput::default() };
        if self.options.payload == Payload::Bf16 {
            expander.expand(handle, rows, &output, &CallOptions::sms(12)).unwrap();
        }
        memory
    }

    /// Adds up rows that follow from their places, and the biases.
    fn combine(&self, buffer: &Buffer, handle: &Handle, call: &CallOptions) {
        let count = handle.counts().unwrap().received;
        let made = buffer.offer(self.rank).unwrap();
        let write = |to: Rows, row: usize, bytes: Vec<u8>, each: usize| {
            let at = to.address + (row as i64 * to.row_stride) as u64 * each as u64;
            self.group.backend().write(self.rank, at, &bytes).unwrap();
        };
        for row in 0..count {
            let x = (0..HIDDEN).flat_map(|at| bf16((row + at + self.rank) % 6)).collect();
            write(made.x().unwrap(), row, x, 2);
            let weights = (0..TOPK).flat_map(|at| ((row * 3 + at) as f32 % 8.0).to_le_bytes());
            if self.options.weights {
                write(made.weights().unwrap(), row, weights.collect(), 4);
            }
        }
        let output = CombineOutput {
            combined: self.sums.address(),
            combined_weights: self.sums_of_weights.address(),
        };
        let bias = Rows::new(self.bias.address(), HIDDEN as i64);
        let biases = vec![bias; self.options.biases];
        buffer.combine(handle, CombineInput::Offered(&made), &biases, &output, call).unwrap();
    }
}

/// Makes a dispatch, a cached one and a combine, on the local ranks.
fn called(group: &Group, options: &BufferOptions) -> Vec<Left> {
    let buffer = Buffer::new(group, options.clone(), &BuiltIn).unwrap();
    let expander = Expander::new(&buffer, ExpandOptions::new(EXPANDED)).unwrap();
    let call = CallOptions::sms(12);
    let callers: Vec<Caller> =
        group.local().map(|rank| Caller::new(group, options, rank)).collect();
    let first: Vec<_> = callers.iter().map(|own| own.input(0)).collect();
    let second: Vec<_> = callers.iter().map(|own| own.input(1)).collect();
    let handles: Vec<Handle> = callers
        .iter()
        .zip(&first)
        .map(|(own, (input, _))| buffer.exchange_counts(own.rank, input, &call).unwrap())
        .collect();
    let rows: Vec<Received> = handles
        .iter()
        .zip(&first)
        .map(|(handle, (input, _))| buffer.dispatch_counted(handle, input, &call).unwrap())
        .collect();
    let again: Vec<Received> = handles
        .iter()
        .zip(&second)
        .map(|(handle, (input, _))| buffer.cached_dispatch(handle, input, &call).unwrap())
        .collect();
    let expand =
        |(index, own): (usize, &Caller)| own.expand(&expander, &handles[index], &rows[index]);
    let expanded: Vec<_> = callers.iter().enumerate().map(expand).collect();
    callers.iter().zip(&handles).for_each(|(own, handle)| own.combine(&buffer, handle, &call));
    let left = |index: usize| {
        let (own, counts) = (&callers[index], handles[index].counts().unwrap());
        group.sync(own.rank).unwrap();
        let dense = |at: u64, each: usize| Rows::new(at, each as i64);
        let words = |at: u64, bytes: usize| {
            read(group, own.rank, dense(at, TOPK), counts.received, TOPK, bytes)
        };
        let [came, scales] = own.rows_of(&rows[index], counts.received);
        let [rows_again, _] = own.rows_of(&again[index], counts.received);
        let sums = dense(own.sums.address(), HIDDEN);
        let sums_of_weights = dense(own.sums_of_weights.address(), TOPK);
        Left {
            rows: came,
            scales,
            experts: words(rows[index].topk_idx().unwrap(), 8),
            weights: words(rows[index].topk_weights().unwrap(), 4),
            rows_again,
            expanded: [(0, HIDDEN, 2), (1, 1, 4)].map(|(part, values, bytes)| {
                let at = dense(expanded[index][part].address(), values);
                read(group, own.rank, at, EXPANDED, values, bytes)
            }),
            sums: read(group, own.rank, sums, own.tokens, HIDDEN, 2),
            sums_of_weights: read(group, own.rank, sums_of_weights, own.tokens, TOPK, 4),
            counts,
        }
    };
    (0..callers.len()).map(left).collect()
}

/// What a buffer is made for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    /// bf16 with weights and a bias.
    Plain,
    /// e4m3 with scales, weights and two biases, and counts that are rounded up.
    Scaled,
    /// Scales of a byte and nothing else, into outputs that do not hold the worst case.
    Packed,
}

impl Case {
    fn options(self) -> BufferOptions {
        let (payload, weights, biases, alignment, capacity) = match self {
            Case::Plain => (Payload::Bf16, true, 1, 1, None),
            Case::Scaled => (Payload::Fp8, true, 2, 4, None),
            Case::Packed => (Payload::Fp8Packed, false, 0, 1, Some(20)),
        };
        BufferOptions {
            payload,
            weights,
            biases,
            alignment,
            capacity,
            live: 2,
            ..BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS)
        }
    }
}

/// Makes the calls of a buffer on a group between nodes, and on ranks of one node.
pub(super) fn agree_with_one_node(group: &Group, case: Case) {
    let programs = Programs::find().expect("a compiler");
    let backend = HostBackend::new(&programs, HostOptions::new(group.ranks())).unwrap();
    let (one_node, options) = (backend.group().unwrap(), case.options());
    let (far, near) = (called(group, &options), called(&one_node, &options));
    assert!(near.iter().any(|left| left.counts.received > 3), "rows move");
    for (rank, far) in group.local().zip(far) {
        assert_eq!(far, near[rank], "rank {rank}, {case:?}");
    }
}

#[test]
fn a_buffer_between_nodes_gives_what_one_within_a_node_gives() {
    between_nodes(&[
        (2, 4, Build::Checked, Case::Plain, false),
        (3, 6, Build::Plain, Case::Scaled, true),
    ]);
}

#[test]
fn a_buffer_between_nodes_of_one_rank_gives_the_same_at_length() {
    between_nodes(&[(4, 4, Build::Plain, Case::Packed, false)]);
}

/// Compares buffers over so many nodes and ranks, some of them over emulated cards, with those of one node.
fn between_nodes(groups: &[(usize, usize, Build, Case, bool)]) {
    let programs = Programs::find().expect("a C++ compiler");
    for (nodes, ranks, build, case, has_cards) in groups.iter().copied() {
        let host = HostOptions { build, ..HostOptions::new(ranks) };
        let backend = HostBackend::new(&programs, host).unwrap();
        let over = if has_cards { Group::over_cards } else { Group::over_model };
        let group = over(&backend, nodes, &ModelOptions::default()).unwrap();
        agree_with_one_node(&group, case);
    }
}

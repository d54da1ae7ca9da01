//! Small programs that each lean on one way in which the device library orders accesses, and its
//! conversions bit for bit: the same text on the host and on a GPU.

use std::sync::Arc;

use crate::findings::Findings;
use crate::oracle::Differences;
use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::bf16::bf16_from_f32;
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::memory::{DeviceMemory, Window};

/// Every kind but bulk copies.
pub(crate) const ORDERS_TEXT: &str = include_str!("litmus/orders.cu");

/// Bulk copies.
pub(crate) const BULK_TEXT: &str = include_str!("litmus/bulk.cu");

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Litmus {
    /// Lanes of a warp through shared memory.
    Lanes,
    /// Warps of a block: release and acquire at block scope.
    Warps,
    /// Blocks of a device: release and acquire at device scope.
    Blocks,
    /// Ranks: a flag with a release at system scope behind the data.
    Flags,
    /// Ranks: a counter that several warps add to with a release.
    Counters,
    /// Ranks: words that carry the number of their message.
    WholeWords,
    /// Warps that complete positions in any order.
    Sequence,
    /// Conversions of numbers.
    Numbers,
    /// Ranks: bulk copies, and the fences between them and plain accesses.
    BulkCopies,
}

impl Litmus {
    /// Every kind; the position of one that `orders.cu` runs is its number there.
    pub const ALL: [Litmus; 9] = [
        Litmus::Lanes,
        Litmus::Warps,
        Litmus::Blocks,
        Litmus::Flags,
        Litmus::Counters,
        Litmus::WholeWords,
        Litmus::Sequence,
        Litmus::Numbers,
        Litmus::BulkCopies,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Litmus::Lanes => "lanes",
            Litmus::Warps => "warps",
            Litmus::Blocks => "blocks",
            Litmus::Flags => "flags",
            Litmus::Counters => "counters",
            Litmus::WholeWords => "whole words",
            Litmus::Sequence => "sequence",
            Litmus::Numbers => "numbers",
            Litmus::BulkCopies => "bulk copies",
        }
    }

    /// Words that one message of this kind brings each rank to compare.
    fn words_per_round(self) -> u64 {
        match self {
            Litmus::Lanes => u64::from(BLOCKS) * WARPS * WORDS,
            // From shared and from global memory, in each block.
            Litmus::Warps => u64::from(BLOCKS) * 2 * WORDS,
            Litmus::BulkCopies => 256,
            _ => WORDS,
        }
    }
}

const BLOCKS: u32 = 2;

/// Warps of a block, and words of a message, in `orders.cu`.
const WARPS: u64 = 4;
const WORDS: u64 = 96;

/// Numbers that one given float is converted to.
const CONVERSIONS: usize = 6;

/// Sends `rounds` messages of a kind, or converts as many floats, on all ranks of the group, and
/// compares all of them. Bulk copies find nothing on a device that has none.
pub fn litmus(group: &Group, kind: Litmus, rounds: usize) -> Result<Findings, CallError> {
    if kind == Litmus::BulkCopies && !group.backend().arch().has_tma() {
        return Ok(Findings::default());
    }
    let trial = Trial::new(group, kind, rounds)?;
    trial.run()?;
    let mut findings = Findings::default();
    for (index, rank) in group.local().enumerate() {
        let found = match kind {
            Litmus::Numbers => trial.compare_numbers(index)?,
            _ => trial.compare_tally(index)?,
        };
        findings.add(format!("{} rank {rank}", kind.name()), found);
    }
    Ok(findings)
}

/// One kind on all local ranks.
struct Trial {
    group: Group,
    kind: Litmus,
    rounds: usize,
    kernel: GroupKernel,
    ranks: Vec<RankTrial>,
}

struct RankTrial {
    tally: DeviceMemory,
    words: DeviceMemory,
    flags: DeviceMemory,
    given: DeviceMemory,
    converted: DeviceMemory,
}

impl Trial {
    fn new(group: &Group, kind: Litmus, rounds: usize) -> Result<Trial, CallError> {
        let backend = group.backend();
        let (made, cuda) = match kind {
            Litmus::BulkCopies => (bulk(), BULK_TEXT),
            _ => (plain(), ORDERS_TEXT),
        };
        let plan = made.plan(backend.arch());
        let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
        let emitted = Emitted { cuda: cuda.to_string(), plan };
        let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
        let ranks = group.local().map(|rank| {
            let zeroed = |words: usize| DeviceMemory::zeroed(backend, rank, 4 * words as u64);
            let floats: Vec<u8> = floats(rounds).flat_map(u32::to_le_bytes).collect();
            let given = DeviceMemory::new(backend, rank, floats.len() as u64)?;
            given.write(0, &floats)?;
            Ok::<RankTrial, CallError>(RankTrial {
                tally: zeroed(2)?,
                words: zeroed(rounds.max(BLOCKS as usize) * WORDS as usize)?,
                flags: zeroed(8)?,
                given,
                converted: zeroed(rounds * CONVERSIONS)?,
            })
        });
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        Ok(Trial { group: group.clone(), kind, rounds, kernel, ranks })
    }

    fn run(&self) -> Result<(), CallError> {
        let number = Litmus::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        for (rank, own) in self.group.local().zip(&self.ranks) {
            let mut bindings = Bindings::new();
            bindings
                .number("ranks", self.group.ranks() as i64)
                .number("kind", number as i64)
                .number("rounds", self.rounds as i64);
            let memory = [
                ("tally", &own.tally),
                ("words", &own.words),
                ("flags", &own.flags),
                ("given", &own.given),
                ("converted", &own.converted),
            ];
            for (name, memory) in memory {
                bindings.tensor(name, Rows::new(memory.address(), 1));
            }
            // The kernel of bulk copies takes fewer.
            let bindings = bindings.taken_by(self.kernel.plan());
            self.kernel.launch(rank, Stream::OWN, BLOCKS, &bindings)?;
        }
        self.group.local().try_for_each(|rank| self.group.sync(rank))
    }

    /// What the kernel itself has compared.
    fn compare_tally(&self, index: usize) -> Result<Differences, CallError> {
        let mut bytes = [0; 8];
        self.ranks[index].tally.read(0, &mut bytes)?;
        let [wrong, compared] = [&bytes[..4], &bytes[4..]]
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let mut found = Differences::default();
        found.note(wrong == 0, || format!("{wrong} of {compared} words are wrong"));
        let want = self.rounds as u64 * self.kind.words_per_round();
        found.note(u64::from(compared) == want, || format!("{compared} words arrived, not {want}"));
        Ok(found)
    }

    fn compare_numbers(&self, index: usize) -> Result<Differences, CallError> {
        let mut bytes = vec![0; self.rounds * CONVERSIONS * 4];
        self.ranks[index].converted.read(0, &mut bytes)?;
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]))
            .collect();
        let mut found = Differences::default();
        for (bits, got) in floats(self.rounds).zip(words.chunks_exact(CONVERSIONS)) {
            for (what, (got, want)) in NAMES.iter().zip(got.iter().zip(numbers::converted(bits))) {
                let got = numbers::folded(what, *got);
                found.note(got == want, || {
                    format!("{what} of {bits:#010x} is {got:#010x}, not {want:#010x}")
                });
            }
        }
        Ok(found)
    }
}

/// The conversions, in the order of `convert` in `orders.cu`.
const NAMES: [&str; CONVERSIONS] =
    ["bf16 below", "bf16 above", "e4m3", "float of e4m3", "float of bf16", "ue8m0"];

/// Bits of so many floats: every exponent and sign, around every rounding, zeros, infinities, NaN.
fn floats(count: usize) -> impl Iterator<Item = u32> {
    const LOW: [u32; 7] = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0xaaaa];
    // An odd step goes through all upper halves, in an order that soon has all exponents.
    (0..count as u32).map(|index| {
        let high = (index / 7).wrapping_mul(40503) & 0xffff;
        high << 16 | LOW[(index % 7) as usize]
    })
}

fn plain() -> HandwrittenKernel {
    HandwrittenKernel {
        name: "Litmus",
        entry: "litmus_run",
        numbers: &["ranks", "kind", "rounds"],
        pointers: &["tally", "words", "flags", "given", "converted"],
        wide_numbers: &[],
        threads: 32 * WARPS as i64,
        shared_bytes: 40 + 8 + 4 * (WARPS * WORDS) as i64,
        window_bytes: 12 * WORDS as i64 + 24,
        blocks_min: i64::from(BLOCKS),
        waits: true,
        enters: true,
    }
}

fn bulk() -> HandwrittenKernel {
    HandwrittenKernel {
        name: "LitmusBulk",
        entry: "litmus_bulk",
        numbers: &["ranks", "rounds"],
        pointers: &["tally"],
        wide_numbers: &[],
        threads: 64,
        shared_bytes: 2 * 1024 + 128,
        window_bytes: 1024 + 128,
        blocks_min: 1,
        waits: true,
        enters: true,
    }
}

/// What the conversions have to give, by other means than the library's.
mod numbers {
    use super::bf16_from_f32;

    /// The six words for a float.
    pub(super) fn converted(bits: u32) -> [u32; 6] {
        let value = f32::from_bits(bits);
        let bf16 = if value.is_nan() { NAN_BF16 } else { u32::from(bf16_from_f32(value)) };
        let float_of_e4m3 = e4m3_value(bits as u8);
        let float = if float_of_e4m3.is_nan() { NAN } else { float_of_e4m3.to_bits() };
        let of_bf16 = f32::from_bits(bits << 16);
        let power = f64::from(value.abs());
        // Every subnormal counts as the least normal number.
        let power = if value.is_subnormal() { f64::from(f32::MIN_POSITIVE) } else { power };
        let least = (0..=254u32).find(|code| 2f64.powi(*code as i32 - 127) >= power);
        let ue8m0 = 2f64.powi((bits & 0xff) as i32 - 127);
        let ue8m0 = if bits & 0xff == 0xff { f32::INFINITY } else { ue8m0 as f32 };
        [
            bf16 | ONE_BF16 << 16,
            bf16 << 16 | ONE_BF16,
            e4m3(value),
            float,
            if of_bf16.is_nan() { NAN } else { of_bf16.to_bits() },
            least.unwrap_or(254) << 24 | ue8m0.to_bits() >> 8,
        ]
    }

    const ONE_BF16: u32 = 0x3f80;
    const NAN_BF16: u32 = 0x7fff;
    const NAN: u32 = 0x7fc0_0000;
    const NAN_E4M3: u32 = 0x7f;

    /// A result with every NaN as one: which one it is depends on the architecture, below sm_89 an
    /// e4m3 even keeps the sign.
    pub(super) fn folded(what: &str, got: u32) -> u32 {
        let is_nan_bf16 = |half: u32| half & 0x7f80 == 0x7f80 && half & 0x7f != 0;
        match what {
            "bf16 below" if is_nan_bf16(got & 0xffff) => got & 0xffff_0000 | NAN_BF16,
            "bf16 above" if is_nan_bf16(got >> 16) => got & 0xffff | NAN_BF16 << 16,
            "e4m3" if got & 0x7f == NAN_E4M3 => NAN_E4M3,
            "float of e4m3" | "float of bf16" if f32::from_bits(got).is_nan() => NAN,
            _ => got,
        }
    }

    /// The value of a code.
    fn e4m3_value(code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match (exponent, code & 0x7f) {
            (_, 0x7f) => f32::NAN,
            (0, _) => mantissa * 2f32.powi(-9),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest code of all, the even one of two as near; whatever is too large is the largest.
    fn e4m3(value: f32) -> u32 {
        if value.is_nan() {
            return NAN_E4M3;
        }
        let magnitude = f64::from(value.abs().min(448.0));
        let far = |code: &u8| (f64::from(e4m3_value(*code)) - magnitude).abs();
        let closer = |a: &u8, b: &u8| far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1)));
        let code = (0..=0x7e_u8).min_by(closer).unwrap_or(0);
        u32::from(code) | (value.to_bits() >> 24 & 0x80)
    }

    #[cfg(test)]
    #[test]
    fn known_codes_are_given() {
        assert_eq!(e4m3(1.0), 0x38);
        assert_eq!(e4m3(-448.0), 0xfe);
        assert_eq!(e4m3(1e9), 0x7e);
        assert_eq!(e4m3(2f32.powi(-10)), 0, "half of the least code, to even");
        assert_eq!(e4m3(3.0 * 2f32.powi(-10)), 2);
        assert_eq!(e4m3_value(0x7e), 448.0);
        let [below, above, _, _, _, ue8m0] = converted(3.0f32.to_bits());
        assert_eq!((below, above), (0x3f80_4040, 0x4040_3f80));
        assert_eq!(ue8m0 >> 24, 129, "4 is the least power of two that is not below 3");
    }
}

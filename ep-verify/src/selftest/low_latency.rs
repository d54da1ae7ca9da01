//! Many low-latency calls in a row, of all sizes, in one launch or by phases, with ranks that are late and, where rows
//! travel once for each expert, ranks that make no calls for a while.
//!
//! What a rank sends follows from the number of the call, so that the device draws it and judges what comes: the
//! host looks now and then whether anything was wrong.

mod per_expert;
mod per_rank;
mod timed;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use per_rank::OfRank;

use super::settle;
use crate::findings::Findings;
use crate::oracle::Differences;
use ep_runtime::backend::{Backend, Block, Code, KernelLaunch, Stream};
use ep_runtime::buffer::{CallOptions, Placement};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::DeviceMemory;
use ep_runtime::per_rank::PerRank;
use ep_runtime::pipelines::low_latency_dispatch::{Inputs, Outputs, Payload, PayloadTensor};
use ep_runtime::tensor::{Bf16, DeviceTensor};

/// The kernels that draw and judge.
pub(crate) const TEXT: &str = include_str!("low_latency.cu");

/// Calls between two looks at what was found.
const BETWEEN_LOOKS: u32 = 200;

/// How late a rank is that is late.
const LATE: Duration = Duration::from_millis(50);

/// One call of so many has a rank that is late, and one of so many a rank that begins to miss some.
const RARELY_LATE: u32 = 2000;
const RARELY_MISSING: u32 = 5000;

/// Bytes of `drawn::Smem` and of `drawn::Found`.
const BLOCK: Block = Block { threads: 256, shared_bytes: 8 + 2 * 4 * 32 };
const FOUND_BYTES: u64 = 4 * 15;

/// What a judge looks at, in the order of `drawn::Kind`.
const KINDS: [&str; 3] = ["counts and tokens", "rows", "sums"];

/// How rows travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Once for each of their experts, by `low-latency-dispatch` and `low-latency-combine`.
    PerExpert,
    /// Once for each rank, by [`ep_runtime::per_rank`], with the weights in the dispatch.
    PerRank,
    /// Once for each rank, with the weights in the combine.
    PerRankLate,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 3] = [Way::PerExpert, Way::PerRank, Way::PerRankLate];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Way::PerExpert => "per-expert",
            Way::PerRank => "per-rank",
            Way::PerRankLate => "per-rank-late",
        }
    }
}

/// Calls of one shape.
#[derive(Debug, Clone)]
pub struct LowLatencyCase {
    /// The most tokens of a rank in a call.
    pub tokens: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Experts of a token, at most 32.
    pub topk: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// The element type of the rows of a dispatch.
    pub payload: Payload,
    /// How rows travel.
    pub way: Way,
    /// How calls run.
    pub call: CallOptions,
    /// How many dispatches there are, each with its combine.
    pub pairs: u32,
}

impl LowLatencyCase {
    /// Experts of a rank, and rows that each of them may get.
    fn packed(&self, ranks: usize) -> (usize, usize) {
        (self.experts.div_ceil(ranks), ranks * self.tokens)
    }
}

/// What the ranks of a group have for such calls.
pub struct LowLatency {
    group: Group,
    case: LowLatencyCase,
    ranks: Vec<OneRank>,
}

struct OneRank {
    rank: usize,
    given: Given,
    calls: Box<dyn Calls>,
    found: DeviceMemory,
    judges: Judges,
}

/// What all ranks call.
enum Kernels {
    PerExpert(Arc<per_expert::Kernels>),
    PerRank(Arc<PerRank>),
}

/// What the caller gives on a rank.
#[derive(Clone)]
struct Given {
    x: DeviceTensor<Bf16, 2>,
    topk_idx: DeviceTensor<i64, 2>,
    topk_weights: DeviceTensor<f32, 2>,
    expert_begin: DeviceTensor<i32, 1>,
}

/// The calls of a rank, with the first `tokens` of what it is given.
trait Calls: Send + Sync {
    /// A dispatch, in one launch or, where it has phases, in two.
    fn send_rows(&self, call: &CallOptions, tokens: usize, apart: bool) -> Result<(), CallError>;

    /// Its combine.
    fn send_back(&self, call: &CallOptions, tokens: usize, apart: bool) -> Result<(), CallError>;

    /// Where they leave what is judged.
    fn left(&self) -> Left;

    /// Clears what experts have made.
    #[cfg(test)]
    fn spoil_made(&self);
}

/// Addresses, in the order of `drawn::Args`.
struct Left {
    packed: u64,
    scale: u64,
    packed_count: u64,
    src_info: u64,
    range_first: u64,
    range_count: u64,
    made: u64,
    combined: u64,
}

impl Left {
    /// Where a dispatch leaves rows and tables, and its combine reads what experts `made` and leaves sums.
    fn of(
        came: &Outputs,
        tables: [&DeviceTensor<i32, 2>; 3],
        made: &DeviceTensor<Bf16, 3>,
        combined: &DeviceTensor<Bf16, 2>,
    ) -> Left {
        let (packed, scale) = match &came.packed_x {
            PayloadTensor::Bf16 { x } => (x.address(), 0),
            PayloadTensor::Fp8 { x, scale } => (x.address(), scale.address()),
            PayloadTensor::Fp8Packed { x, scale } => (x.address(), scale.address()),
        };
        let [src_info, range_first, range_count] = tables.map(DeviceTensor::address);
        Left {
            packed,
            scale,
            packed_count: came.packed_count.address(),
            src_info,
            range_first,
            range_count,
            made: made.address(),
            combined: combined.address(),
        }
    }
}

/// What is drawn for a call.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    /// The number that all draws follow from.
    call: u32,
    /// A rank that makes no call.
    missing: Option<usize>,
    /// Whether every rank has as many tokens as it may, each with all of its experts.
    full: bool,
}

impl Drawn {
    fn call(call: u32) -> Drawn {
        Drawn { call, missing: None, full: false }
    }

    /// Whether a phase of calls is launched on its own: a bit of the number says so.
    fn is_apart(self, bit: usize) -> bool {
        mixed(self.call).rotate_right(bit as u32) & 1 != 0
    }
}

/// The kernels around calls, on one rank.
struct Judges {
    backend: Arc<dyn Backend>,
    rank: usize,
    inputs: Code,
    rows: Code,
    sums: Code,
}

impl LowLatency {
    /// Prepares the kernels of a case. Where ranks go on without one that does not answer, ranks miss calls
    /// without a word to the others.
    pub fn new(group: &Group, case: LowLatencyCase) -> Result<LowLatency, CallError> {
        let kernels = match case.way {
            Way::PerExpert => Kernels::PerExpert(per_expert::Kernels::prepare(group, &case)?),
            Way::PerRank | Way::PerRankLate => Kernels::PerRank(per_rank::prepare(group, &case)?),
        };
        let ranks = group.local().map(|rank| {
            let given = Given::new(group, &case, rank)?;
            Ok(OneRank {
                rank,
                calls: match &kernels {
                    Kernels::PerExpert(kernels) => kernels.of_rank(group, &case, rank, &given)?,
                    Kernels::PerRank(kernels) => {
                        Box::new(OfRank::new(kernels, group, &case, rank, &given)?)
                    }
                },
                given,
                found: DeviceMemory::zeroed(group.backend(), rank, FOUND_BYTES)?,
                judges: Judges::new(group, rank)?,
            })
        });
        let ranks = ranks.collect::<Result<Vec<_>, CallError>>()?;
        Ok(LowLatency { group: group.clone(), case, ranks })
    }

    /// Makes all calls, and tells what was wrong.
    pub fn check(&self) -> Result<Findings, CallError> {
        let mut call = 0;
        while call < self.case.pairs {
            let ranks = self.group.ranks();
            let number = mixed(call);
            // Over a network, kernels have to be prepared anew when a rank has missed calls.
            let is_one_node = self.group.nodes() == 1;
            let may_miss = ranks > 1 && is_one_node && self.case.way == Way::PerExpert;
            if may_miss && (number % RARELY_MISSING == 1 || call == 1) {
                let missing = (number >> 16) as usize % ranks;
                let end = (call + 2 + number % 5).min(self.case.pairs);
                self.go_on_without(missing, call..end)?;
                call = end;
                continue;
            }
            let late = (number % RARELY_LATE == 2).then_some((number >> 16) as usize % ranks);
            self.pair(Drawn::call(call), true, late)?;
            call += 1;
            if call % BETWEEN_LOOKS == 0 && !self.look(call)?.is_good() {
                break;
            }
        }
        self.look(call)
    }

    /// Some calls of which one rank makes none. Where nobody is told, the first of them ends with part of what that
    /// rank sent, or nothing of it, and is not judged.
    fn go_on_without(&self, missing: usize, calls: Range<u32>) -> Result<(), CallError> {
        self.settle()?;
        let group = &self.group;
        let is_told = !group.leaves_out_absent();
        if is_told {
            group.leave_out(missing, true)?;
        }
        for call in calls.clone() {
            let drawn = Drawn { missing: Some(missing), ..Drawn::call(call) };
            self.pair(drawn, is_told || call > calls.start, None)?;
            self.settle()?;
        }
        for rank in group.local().filter(|rank| *rank != missing && !is_told) {
            let absent = group.absent(rank)?;
            if absent != [missing] {
                let what = format!(
                    "rank {rank} has missed the ranks {absent:?} from call {} on, and only {missing} made none",
                    calls.start
                );
                return Err(CallError::Mismatch { what });
            }
        }
        group.leave_out(missing, false)
    }

    /// A dispatch and its combine on all local ranks but one.
    fn pair(&self, drawn: Drawn, is_judged: bool, late: Option<usize>) -> Result<(), CallError> {
        for own in self.ranks.iter().filter(|own| Some(own.rank) != drawn.missing) {
            if late == Some(own.rank) && self.group.backend().runs_alone() {
                std::thread::sleep(LATE);
            }
            let args = self.judge_args(own, drawn);
            own.judges.launch(own.judges.inputs, &args)?;
            let (call, tokens) = (&self.case.call, self.tokens(drawn, own.rank));
            own.calls.send_rows(call, tokens, drawn.is_apart(own.rank))?;
            if is_judged {
                own.judges.launch(own.judges.rows, &args)?;
            }
            own.calls.send_back(call, tokens, drawn.is_apart(own.rank + 8))?;
            if is_judged {
                own.judges.launch(own.judges.sums, &args)?;
            }
        }
        Ok(())
    }

    /// Tokens of a rank in a call, as `drawn::token_count` says.
    fn tokens(&self, drawn: Drawn, rank: usize) -> usize {
        let number = mixed(mixed(drawn.call).wrapping_add((rank * 2048 * 8192) as u32));
        match number % 8 {
            _ if drawn.full => self.case.tokens,
            0 => 0,
            1 => self.case.tokens,
            _ => (number >> 8) as usize % (self.case.tokens + 1),
        }
    }

    /// `drawn::Args`.
    fn judge_args(&self, own: &OneRank, drawn: Drawn) -> Vec<u8> {
        let (case, given, left) = (&self.case, &own.given, own.calls.left());
        let words = [
            given.x.address(),
            given.topk_idx.address(),
            given.topk_weights.address(),
            left.packed,
            left.scale,
            left.packed_count,
            left.src_info,
            left.range_first,
            left.range_count,
            left.made,
            left.combined,
            own.found.address(),
            drawn.missing.map_or(0, |rank| 1 << rank),
        ];
        let payload = match case.payload {
            Payload::Bf16 => 0,
            Payload::Fp8 => 1,
            Payload::Fp8Packed => 2,
        };
        let numbers =
            [own.rank, self.group.ranks(), case.tokens, case.hidden, case.topk, case.experts];
        let numbers = [payload, drawn.call].into_iter().chain(numbers.map(|number| number as u32));
        // The struct ends where a word of 64 bits may begin.
        let numbers = numbers.chain([u32::from(drawn.full), 0]);
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(numbers.flat_map(u32::to_le_bytes)).collect()
    }

    fn settle(&self) -> Result<(), CallError> {
        settle(&self.group)
    }

    /// What was wrong in all calls so far.
    fn look(&self, calls: u32) -> Result<Findings, CallError> {
        self.settle()?;
        let mut findings = Findings::default();
        for own in &self.ranks {
            let mut bytes = [0; FOUND_BYTES as usize];
            own.found.read(0, &mut bytes)?;
            let word = |at: usize| {
                let word = &bytes[4 * at..][..4];
                i32::from_le_bytes([word[0], word[1], word[2], word[3]])
            };
            for (kind, name) in KINDS.into_iter().enumerate() {
                let (wrong, first) = (word(kind) as u32, |at| word(KINDS.len() + 4 * kind + at));
                let compared = u64::from(calls.max(wrong));
                let mut found = Differences { compared, wrong: wrong.into(), first: Vec::new() };
                if wrong > 0 {
                    let [call, a, b, c] = [first(0), first(1), first(2), first(3)];
                    found.first.push(match kind {
                        2 => format!("call {call}, token {a}, column {b}"),
                        _ => format!("call {call}, expert {a}, source {b}, {c}"),
                    });
                }
                findings.add(format!("{name}, rank {}", own.rank), found);
            }
        }
        Ok(findings)
    }
}

/// As `drawn::mixed`.
fn mixed(value: u32) -> u32 {
    let value = (value ^ value >> 16).wrapping_mul(0x7feb_352d);
    let value = (value ^ value >> 15).wrapping_mul(0x846c_a68b);
    value ^ value >> 16
}

impl Given {
    fn new(group: &Group, case: &LowLatencyCase, rank: usize) -> Result<Given, CallError> {
        let begin = Placement::even(case.experts, group.ranks());
        let begin = begin.begin();
        Ok(Given {
            x: DeviceTensor::zeros(group, rank, [case.tokens, case.hidden])?,
            topk_idx: DeviceTensor::zeros(group, rank, [case.tokens, case.topk])?,
            topk_weights: DeviceTensor::zeros(group, rank, [case.tokens, case.topk])?,
            expert_begin: DeviceTensor::from_slice(group, rank, [begin.len()], begin)?,
        })
    }

    /// What a dispatch of so many tokens reads.
    fn inputs(&self, tokens: usize) -> Inputs {
        Inputs {
            x: self.x.first(tokens),
            topk_idx: self.topk_idx.first(tokens),
            expert_begin: self.expert_begin.clone(),
        }
    }
}

impl Judges {
    fn new(group: &Group, rank: usize) -> Result<Judges, CallError> {
        let backend = Arc::clone(group.backend());
        let image = backend.compile("drawn_inputs", TEXT)?;
        let load = |entry| backend.load(rank, &image, entry, BLOCK);
        let (inputs, rows, sums) =
            (load("drawn_inputs")?, load("drawn_rows")?, load("drawn_sums")?);
        Ok(Judges { backend, rank, inputs, rows, sums })
    }

    fn launch(&self, code: Code, args: &[u8]) -> Result<(), CallError> {
        let blocks = self.backend.sms(self.rank);
        let launch = KernelLaunch { code, blocks, waits: false, enters: false, phases: 1, args };
        Ok(self.backend.launch(self.rank, Stream::OWN, &launch)?)
    }
}

impl Drop for Judges {
    fn drop(&mut self) {
        // What is in flight uses the code; a failure means that the device is lost.
        let _ = self.backend.sync(self.rank, Stream::OWN);
        for code in [self.inputs, self.rows, self.sums] {
            let _ = self.backend.unload(self.rank, code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::Operation;
    use crate::unordered::programs;
    use ep_runtime::host::{Build, HostBackend, HostOptions};
    use ep_runtime::net::ModelOptions;

    /// A call of which somebody spoils what one kind of judgement looks at; the kinds that were found wrong.
    fn found(way: Way, spoiled: Option<usize>) -> Option<Vec<usize>> {
        let options = HostOptions { build: Build::Plain, ..HostOptions::new(2) };
        let group = HostBackend::new(programs()?, options).unwrap().group().unwrap();
        let (payload, call) = (Payload::Bf16, CallOptions::sms(2));
        let (tokens, hidden, topk, experts, pairs) = (5, 128, 2, 4, 1);
        let case = LowLatencyCase { tokens, hidden, topk, experts, payload, way, call, pairs };
        let calls = LowLatency::new(&group, case).unwrap();
        // One of which all ranks have tokens.
        let number =
            (0..).find(|call| (0..2).all(|rank| calls.tokens(Drawn::call(*call), rank) > 0));
        let drawn = Drawn::call(number.unwrap());
        for own in &calls.ranks {
            let (judges, args) = (&own.judges, calls.judge_args(own, drawn));
            let spoil = |kind| spoiled == Some(kind);
            judges.launch(judges.inputs, &args).unwrap();
            if spoil(0) {
                own.given.topk_idx.fill(0xff).unwrap();
            } else if spoil(1) {
                own.given.x.fill(0).unwrap();
            }
            let (call, tokens) = (&calls.case.call, calls.tokens(drawn, own.rank));
            own.calls.send_rows(call, tokens, true).unwrap();
            judges.launch(judges.rows, &args).unwrap();
            if spoil(2) {
                own.calls.spoil_made();
            }
            own.calls.send_back(call, tokens, true).unwrap();
            judges.launch(judges.sums, &args).unwrap();
        }
        let checks = calls.look(1).unwrap().checks;
        let is_wrong = |kind: &usize| {
            checks.iter().any(|(name, it)| name.starts_with(KINDS[*kind]) && !it.is_empty())
        };
        Some((0..KINDS.len()).filter(is_wrong).collect())
    }

    /// Calls of at most so many tokens, of 4 experts each, between two nodes.
    fn between_nodes(way: Way, cards: bool, ranks: usize, tokens: usize) -> Option<LowLatency> {
        let options = HostOptions { build: Build::Plain, ..HostOptions::new(ranks) };
        let backend = HostBackend::new(programs()?, options).unwrap();
        let net = ModelOptions::default();
        let group = match cards {
            true => Group::over_cards(&backend, 2, &net),
            false => Group::over_model(&backend, 2, &net),
        };
        let (hidden, topk, experts, pairs) = (128, 4, 8, 3);
        let (payload, call) = (Payload::Fp8, CallOptions::sms(2));
        let case = LowLatencyCase { tokens, hidden, topk, experts, payload, way, call, pairs };
        Some(LowLatency::new(&group.unwrap(), case).unwrap())
    }

    /// Kernels over a network cannot go on when a rank that has missed calls comes back: no rank misses any.
    #[test]
    fn calls_between_nodes() {
        for (way, cards, ranks) in [
            (Way::PerExpert, true, 2),
            (Way::PerRank, true, 4),
            (Way::PerRank, false, 4),
            (Way::PerRankLate, true, 4),
        ] {
            let Some(calls) = between_nodes(way, cards, ranks, 11) else { return };
            let found = calls.check().unwrap();
            assert!(found.is_good(), "{way:?} over cards {cards}, {ranks} ranks: {found}");
        }
    }

    /// Neighboring slots leave in one entry of the card's queue. With an entry for each row, none of these calls would
    /// have less than one for each.
    #[test]
    fn rows_share_the_entries_of_a_card() {
        for (way, operation) in [
            (Way::PerExpert, Operation::Dispatch),
            (Way::PerRank, Operation::Dispatch),
            (Way::PerRank, Operation::Combine),
        ] {
            let Some(calls) = between_nodes(way, true, 2, 32) else { return };
            let mut entries = Vec::new();
            let rows = calls.once(operation, &mut || {
                let traffic = calls.group.card_traffic()?.unwrap_or_default();
                entries.push(traffic.iter().map(|card| card.entries).sum::<u64>());
                Ok(())
            });
            let (rows, taken) = (rows.unwrap().all as u64, entries[1] - entries[0]);
            assert!(taken > 0 && 3 * taken <= rows, "{way:?}: {taken} entries for {rows} rows");
        }
    }

    #[test]
    fn what_a_call_gets_wrong_is_found() {
        for way in Way::ALL {
            let Some(untouched) = found(way, None) else { return };
            assert_eq!(untouched, []);
            // What has no expert is not added up either.
            assert_eq!(found(way, Some(0)), Some(vec![0, 2]));
            assert_eq!(found(way, Some(1)), Some(vec![1]));
            assert_eq!(found(way, Some(2)), Some(vec![2]));
        }
    }
}

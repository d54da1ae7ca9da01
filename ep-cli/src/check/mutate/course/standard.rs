//! Courses of the standard dispatch and combine, which are compared with the oracle.

use std::cell::RefCell;

use ep_runtime::Emitted;
use ep_runtime::buffer::{BufferOptions, Emit, MemoryUsage, Payload, StandardPipeline, Via};
use ep_runtime::error::CallError;
use ep_runtime::jit::Arch;
use ep_runtime::plan::Config;
use ep_verify::Findings;
use ep_verify::options::{ring_tunes, set_piece, unit_tunes};
use ep_verify::oracle::RoutingOptions;
use ep_verify::selftest::{Case, Selftest};

use crate::kernels::Kernels;

/// A buffer, and what is done with it.
#[derive(Debug, Clone)]
pub(super) struct Standard {
    pub(super) ranks: usize,
    pub(super) arch: Arch,
    kernels: Kernels,
    options: BufferOptions,
    calls: Calls,
    sms: u32,
    /// Whether the last rank has no tokens, to which rows come all the same.
    idle: bool,
}

/// Values of the shortest row.
const TIGHT: usize = 16;

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// A chain of calls that uses its buffers again at once, then calls that are waited for.
    Chain,
    /// Each call, waited for.
    Once,
    /// Rows for each expert apart.
    Expanded,
    /// Captured calls that take their numbers of tokens from memory.
    Replayed,
}

/// Calls of a test, and what they leave.
type Call = fn(&mut Selftest) -> Result<Findings, CallError>;

/// All of them, by name.
pub(super) fn all() -> Vec<(&'static str, Standard)> {
    let chain = |via, hidden: usize, tokens: usize| {
        let options = BufferOptions::new(tokens, hidden, 3, 7);
        let options = BufferOptions {
            via,
            live: 5,
            biases: 1,
            one_launch: Some(false),
            push_combine: Some(false),
            ..options
        };
        let (arch, kernels, calls) = (Arch::Sm90a, Kernels::Chosen, Calls::Chain);
        Standard { ranks: 3, arch, kernels, options, calls, sms: 4, idle: false }
    };
    let paid = |it: Standard, payload| {
        let options = BufferOptions { payload, ..it.options };
        Standard { options, ..it }
    };
    let plain = |it: Standard| Standard { kernels: Kernels::Plain, ..it };
    let vector = |it: Standard| Standard { arch: Arch::Sm80, ..it };
    let (direct, ring) = (Via::Direct, Via::Ring);
    let crowd = |via| {
        let mut it = chain(via, 128, 2);
        (it.ranks, it.options.experts) = (33, 41);
        Standard { calls: Calls::Once, sms: 2, ..it }
    };
    let whole = |it: Standard| {
        let options = BufferOptions { one_launch: Some(true), ..it.options };
        Standard { options, ..it }
    };
    let with = |calls, it: Standard| Standard { calls, ..it };
    let once = |via, hidden| with(Calls::Once, chain(via, hidden, 40));
    let mut all = vec![
        ("direct", once(direct, 128)),
        ("ring", once(ring, 128)),
        ("plain direct", plain(paid(once(direct, 272), Payload::Fp8))),
        ("plain short rows", plain(once(direct, TIGHT))),
        ("short rows", once(direct, TIGHT)),
        ("a rank without tokens", Standard { idle: true, ..once(direct, TIGHT) }),
        ("plain ring", plain(paid(once(ring, 272), Payload::Fp8))),
        ("vector direct", vector(paid(once(direct, 1040), Payload::Fp8Packed))),
        ("vector ring", vector(paid(once(ring, 1040), Payload::Fp8))),
        ("expanded", with(Calls::Expanded, paid(chain(direct, 256, 40), Payload::Fp8))),
        ("replayed direct", with(Calls::Replayed, chain(direct, 128, 40))),
        ("replayed ring", with(Calls::Replayed, chain(ring, 128, 40))),
        ("tight ring", with(Calls::Once, chain(ring, TIGHT, 160)).tight()),
        ("long rows", once(direct, 1040).few(12)),
        ("one launch at a time", paid(whole(once(direct, 1040)), Payload::Fp8).few(12)),
        ("short rows in turn", chain(direct, TIGHT, 12).tight()),
        ("one launch in turn", whole(chain(direct, TIGHT, 6)).tight()),
        ("tight rings in turn", chain(ring, TIGHT, 30).tight()),
        ("chained direct", chain(direct, 1040, 160)),
        ("one launch", paid(whole(chain(direct, 1040, 70)), Payload::Fp8)),
        ("few tokens", whole(chain(direct, 128, 5))),
        ("chained ring", chain(ring, 1040, 160)),
        ("many ranks direct", crowd(direct)),
        ("many ranks ring", crowd(ring)),
    ];
    for (_, it) in &mut all {
        it.options.tunes = match it.options.via {
            Via::Ring => ring_tunes(&it.options, 4, 16, 4),
            Via::Direct => unit_tunes(&it.options, 4, 1),
        };
        set_piece(&mut it.options, 1024);
    }
    all
}

impl Standard {
    /// Of so many tokens at most.
    fn few(mut self, tokens: usize) -> Standard {
        self.options.tokens = tokens;
        self
    }

    /// Between two ranks, to both of which most tokens go: more than a ring holds.
    fn tight(mut self) -> Standard {
        (self.ranks, self.options.topk, self.options.experts) = (2, 2, 4);
        self
    }

    pub(super) fn source(&self) -> &'static dyn Emit {
        self.kernels.source()
    }

    /// The texts of its buffer, by the names of their kernels.
    pub(super) fn texts(&self) -> Result<Vec<(String, String)>, CallError> {
        let noted = Noted { source: self.source(), texts: RefCell::default() };
        MemoryUsage::of(&self.options, self.ranks, self.arch, &noted)?;
        Ok(noted.texts.into_inner())
    }

    pub(super) fn case(&self, seed: u64) -> Case {
        let (topk, experts) = (self.options.topk, self.options.experts);
        let routing = RoutingOptions { absent: 0.2, ..RoutingOptions::even(topk, experts) };
        let mut case =
            Case { routing, seed, ..Case::even(self.options.clone(), self.ranks, self.sms) };
        if let Some(last) = case.tokens.last_mut().filter(|_| self.idle) {
            *last = 0;
        }
        case
    }

    /// Whether its calls take as long as several others: those of rows of a few bytes do not.
    pub(super) fn is_chained(&self) -> bool {
        self.calls == Calls::Chain && self.options.hidden > TIGHT
    }

    /// What is called, in turn.
    pub(super) fn calls(&self) -> &'static [Call] {
        match self.calls {
            Calls::Chain => &[|test| test.check_back_to_back(), |test| test.check()],
            Calls::Once => &[|test| test.check()],
            Calls::Expanded => &[|test| test.check_expanded(16, 0)],
            Calls::Replayed => &[|test| test.check_replayed(3)],
        }
    }
}

/// Emits as `source` does, and keeps the texts.
struct Noted {
    source: &'static dyn Emit,
    texts: RefCell<Vec<(String, String)>>,
}

impl Emit for Noted {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        let emitted = self.source.emit(pipeline, config)?;
        self.texts.borrow_mut().push((emitted.plan.entry.clone(), emitted.cuda.clone()));
        Ok(emitted)
    }
}

//! What a buffer is made for, and the settings of each standard pipeline that follow from it.

use ep_codegen::plan::{Arch, Config, LINE_BYTES};
use ep_codegen::schedule::RuleSet;

use super::placement::Placement;
use crate::emit::Emitted;
use crate::error::CallError;
use crate::pipeline::AnyPipeline;
use crate::pipelines;
use crate::tune::{Rates, Traffic, is_faster_in_one_launch, is_faster_pushed_back};

/// What a token row consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// bf16 values.
    Bf16,
    /// e4m3 values and an f32 scale per block of 128.
    Fp8,
    /// e4m3 values and a power-of-two scale byte per block of 128.
    Fp8Packed,
}

impl Payload {
    /// Every payload.
    pub const ALL: [Payload; 3] = [Payload::Bf16, Payload::Fp8, Payload::Fp8Packed];

    /// The name that `--set payload=` takes.
    pub fn name(self) -> &'static str {
        match self {
            Payload::Bf16 => "bf16",
            Payload::Fp8 => "fp8",
            Payload::Fp8Packed => "fp8-packed",
        }
    }

    /// The payload called `name`.
    pub fn from_name(name: &str) -> Option<Payload> {
        Payload::ALL.into_iter().find(|payload| payload.name() == name)
    }

    /// Bytes of one value of the row.
    pub fn value_bytes(self) -> u64 {
        match self {
            Payload::Bf16 => 2,
            Payload::Fp8 | Payload::Fp8Packed => 1,
        }
    }

    /// Bytes of one scale; 0: there are none.
    pub fn scale_bytes(self) -> u64 {
        match self {
            Payload::Bf16 => 0,
            Payload::Fp8 => 4,
            Payload::Fp8Packed => 1,
        }
    }

    /// Scales of a row; the last block may be short.
    pub fn scales(self, hidden: usize) -> usize {
        match self {
            Payload::Bf16 => 0,
            Payload::Fp8 | Payload::Fp8Packed => hidden.div_ceil(128),
        }
    }
}

/// How rows reach their receiver, and how they come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The sender stores rows in the receiver's output; combine reads them from there.
    Direct,
    /// Rows pass through rings, there and back.
    Ring,
}

impl Via {
    /// Every way.
    pub const ALL: [Via; 2] = [Via::Direct, Via::Ring];

    /// The name that `--set via=` takes for a dispatch.
    pub fn name(self) -> &'static str {
        match self {
            Via::Direct => "direct",
            Via::Ring => "ring",
        }
    }

    /// The way called `name`.
    pub fn from_name(name: &str) -> Option<Via> {
        Via::ALL.into_iter().find(|via| via.name() == name)
    }

    /// The arm of the combine that reads what such a dispatch leaves.
    fn combine_name(self) -> &'static str {
        match self {
            Via::Direct => "pull",
            Via::Ring => "ring",
        }
    }
}

/// A setting of one pipeline that differs from its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Pipeline, such as `nvl-dispatch`.
    pub pipeline: String,
    /// Name, as `--set` takes it.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Most handles, outputs and combine inputs, each: sizes of memory stay far below 64 bits.
const MOST_LIVE: usize = 4096;

/// Most tokens of a dispatch in one launch: `decode-dispatch` takes no more.
const ONE_LAUNCH_TOKENS: usize = 1024;

/// What a buffer is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferOptions {
    /// Values of a row.
    pub hidden: usize,
    /// Experts per token.
    pub topk: usize,
    /// Experts of the group.
    pub experts: usize,
    /// Most tokens of any rank in a call.
    pub tokens: usize,
    /// What a row consists of.
    pub payload: Payload,
    /// How rows travel.
    pub via: Via,
    /// Rows that an output holds; `None`: the worst case, all tokens of all ranks.
    pub capacity: Option<usize>,
    /// Outputs and combine inputs that may be in use at once, each.
    pub live: usize,
    /// Handles that may be in use at once, which are small: a layer that goes back through its rows
    /// later keeps one. `None`: as many as `live`.
    pub handles: Option<usize>,
    /// Whether dispatch moves top-k weights, and combine adds them up.
    pub weights: bool,
    /// Biases that combine adds.
    pub biases: usize,
    /// Whether cached dispatches are prepared.
    pub cached: bool,
    /// Whether one kernel counts and sends, which few tokens want. `None`: if it is faster at the rates of
    /// the machine.
    pub one_launch: Option<bool>,
    /// Whether a combine stores rows where their tokens are, in place of fetching them, which few tokens
    /// want. Slots for the tokens of all ranks, in two sets, take memory. `None`: if it is faster at the
    /// rates of the machine.
    pub push_combine: Option<bool>,
    /// Counts per expert are rounded up to this.
    pub alignment: i32,
    /// Where experts live; `None`: as even as possible.
    pub placement: Option<Placement>,
    /// Tunes that differ from their default.
    pub settings: Vec<Setting>,
    /// What a direct dispatch splits its SMs by, unless a call says how.
    pub rates: Rates,
}

impl BufferOptions {
    /// A BF16 buffer of worst-case capacity for one call at a time.
    pub fn new(tokens: usize, hidden: usize, topk: usize, experts: usize) -> BufferOptions {
        BufferOptions {
            hidden,
            topk,
            experts,
            tokens,
            payload: Payload::Bf16,
            via: Via::Direct,
            capacity: None,
            live: 1,
            handles: None,
            weights: true,
            biases: 0,
            cached: true,
            one_launch: None,
            push_combine: None,
            alignment: 1,
            placement: None,
            settings: Vec::new(),
            rates: Rates::H200,
        }
    }

    /// Rows that an output holds.
    pub fn capacity(&self, ranks: usize) -> usize {
        let worst = self.tokens.saturating_mul(ranks);
        self.capacity.map_or(worst, |capacity| capacity.min(worst))
    }

    /// Whether dispatches of such a buffer count and send in one launch.
    pub fn uses_one_launch(&self, ranks: usize) -> bool {
        let fits = self.one_launch_fits(ranks).is_ok();
        let is_faster =
            || is_faster_in_one_launch(&self.rates, &self.traffic(ranks), self.tokens as u64);
        fits && self.one_launch.unwrap_or_else(is_faster)
    }

    /// Why no dispatch of such a buffer can count and send in one launch.
    fn one_launch_fits(&self, ranks: usize) -> Result<(), String> {
        let tokens = self.tokens;
        if self.via != Via::Direct {
            return Err(
                "a dispatch in one launch stores rows where they stay: it goes `via` direct, \
                        not ring"
                    .to_string(),
            );
        }
        if !(1..=ONE_LAUNCH_TOKENS).contains(&tokens) {
            return Err(format!(
                "a dispatch in one launch is for 1 to {ONE_LAUNCH_TOKENS} tokens, not {tokens}"
            ));
        }
        let (have, worst) = (self.capacity(ranks), tokens.saturating_mul(ranks));
        if have < worst {
            return Err(format!(
                "a dispatch in one launch needs outputs of {worst} rows, {tokens} tokens of each of \
                 {ranks} ranks, and these have {have}"
            ));
        }
        Ok(())
    }

    /// Whether combines of such a buffer store rows where their tokens are.
    pub fn pushes_back(&self, ranks: usize) -> bool {
        let row = (self.hidden as u64).saturating_mul(Payload::Bf16.value_bytes());
        let is_faster = || is_faster_pushed_back(&self.rates, &self.traffic_of(ranks, row));
        self.push_fits().is_ok() && self.push_combine.unwrap_or_else(is_faster)
    }

    /// The pipeline of its combines.
    pub fn combine_pipeline(&self, ranks: usize) -> StandardPipeline {
        match self.pushes_back(ranks) {
            true => StandardPipeline::DecodeCombine,
            false => StandardPipeline::NvlCombine,
        }
    }

    /// Handles that may be in use at once.
    pub fn handles(&self) -> usize {
        self.handles.unwrap_or(self.live)
    }

    /// Values from one row of an output to the next: whole lines of 128 bytes.
    pub fn row_stride(&self) -> u64 {
        let value_bytes = self.payload.value_bytes();
        line_aligned((self.hidden as u64).saturating_mul(value_bytes)) / value_bytes
    }

    /// Bytes of the rows of one output.
    pub(super) fn rows_bytes(&self, ranks: usize) -> u64 {
        self.capacity(ranks) as u64 * self.row_stride() * self.payload.value_bytes()
    }

    /// bf16 values from one row of a combine input to the next.
    pub fn combine_stride(&self) -> u64 {
        line_aligned((self.hidden as u64).saturating_mul(2)) / 2
    }

    /// f32 values from one row of a combine input's weights to the next.
    pub fn weights_stride(&self) -> u64 {
        line_aligned((self.topk as u64).saturating_mul(4)) / 4
    }

    /// Most experts of any rank, which is what counts per expert are laid out for.
    pub fn local_experts(&self, ranks: usize) -> usize {
        self.experts.div_ceil(ranks.max(1))
    }

    /// What a rank moves in a dispatch of as many tokens as the buffer takes, routed evenly.
    pub fn traffic(&self, ranks: usize) -> Traffic {
        let row = (self.hidden as u64).saturating_mul(self.payload.value_bytes());
        let scales = self.payload.scales(self.hidden) as u64 * self.payload.scale_bytes();
        self.traffic_of(ranks, row.saturating_add(scales))
    }

    /// The traffic of rows of so many bytes.
    fn traffic_of(&self, ranks: usize, row: u64) -> Traffic {
        // No pipeline takes more choices than experts, nor more than 4096 of them.
        let topk = self.topk.min(4096);
        let [ranks, experts, topk, tokens, row] =
            [ranks as i64, self.experts as i64, topk as i64, self.tokens as i64, row as i64];
        Traffic::even(ranks, experts, topk, tokens, row)
    }

    /// The settings of a standard pipeline for this buffer. `stripes` is what the dispatch was
    /// planned with, once that is known.
    pub fn settings_of(
        &self,
        pipeline: StandardPipeline,
        ranks: usize,
        stripes: Option<i64>,
    ) -> Vec<(String, String)> {
        use StandardPipeline as Standard;
        let mut all: Vec<(&str, String)> = vec![("ranks", ranks.to_string())];
        let flag = |on: bool| u8::from(on).to_string();
        if pipeline != Standard::DecodeStripes {
            all.push(("topk", self.topk.to_string()));
        }
        let combines = [Standard::NvlCombine, Standard::DecodeCombine].contains(&pipeline);
        if !combines && pipeline != Standard::DecodeStripes {
            all.push(("experts", self.experts.to_string()));
        }
        let striped = [Standard::Layout, Standard::DecodeStripes].contains(&pipeline)
            || self.via == Via::Ring;
        let planned = stripes.filter(|_| striped);
        all.extend(planned.map(|stripes| ("stripes", stripes.to_string())));
        match pipeline {
            Standard::Layout | Standard::DecodeStripes => {}
            Standard::DecodeDispatch => {
                all.push(("hidden", self.hidden.to_string()));
                all.push(("max_tokens", self.tokens.to_string()));
                all.push(("payload", self.payload.name().to_string()));
                for name in ["received", "received_per_expert"] {
                    all.push((name, flag(true)));
                }
                for name in ["topk_weights", "recv_topk_weights"] {
                    all.push((name, flag(self.weights)));
                }
            }
            Standard::NvlDispatch | Standard::NvlDispatchCached => {
                let fresh = pipeline == Standard::NvlDispatch;
                if self.via == Via::Direct {
                    // Every call says how many, and one is the least: a kernel runs on two blocks.
                    all.push(("remote_blocks", "1".to_string()));
                }
                all.push(("hidden", self.hidden.to_string()));
                all.push(("payload", self.payload.name().to_string()));
                all.push(("via", self.via.name().to_string()));
                all.push(("mode", if fresh { "fresh" } else { "cached" }.to_string()));
                for name in ["topk_idx", "recv_topk_idx"] {
                    all.push((name, flag(fresh)));
                }
                for name in ["topk_weights", "recv_topk_weights"] {
                    all.push((name, flag(fresh && self.weights)));
                }
            }
            Standard::NvlCombine | Standard::DecodeCombine => {
                all.push(("hidden", self.hidden.to_string()));
                match pipeline {
                    Standard::NvlCombine => {
                        all.push(("via", self.via.combine_name().to_string()));
                    }
                    _ => all.push(("max_tokens", self.tokens.to_string())),
                }
                all.push(("weights", flag(self.weights)));
                all.push(("combined_weights", flag(self.weights)));
                all.push(("bias", self.biases.to_string()));
            }
        }
        let own = self.settings.iter().filter(|setting| setting.pipeline == pipeline.name());
        let own = own.map(|setting| (setting.name.clone(), setting.value.clone()));
        all.into_iter().map(|(name, value)| (name.to_string(), value)).chain(own).collect()
    }

    /// Numbers that no pipeline checks.
    pub(super) fn check(&self, ranks: usize) -> Result<(), CallError> {
        let wrong = |what: String| Err(CallError::Mismatch { what });
        if self.live == 0 {
            return wrong("a buffer with 0 live outputs can make no call".to_string());
        }
        if self.live > MOST_LIVE {
            let live = self.live;
            return wrong(format!(
                "{live} live outputs are too many: a buffer has {MOST_LIVE} at most"
            ));
        }
        let handles = self.handles();
        if handles == 0 || handles > MOST_LIVE {
            return wrong(format!("a buffer has 1 to {MOST_LIVE} handles, not {handles}"));
        }
        let (tokens, most) = (self.tokens, i32::MAX);
        if tokens.checked_mul(ranks).is_none_or(|rows| rows > most as usize) {
            return wrong(format!(
                "{tokens} tokens on each of {ranks} ranks are too many: together they are {most} at \
                 most"
            ));
        }
        if self.alignment < 1 {
            return wrong(format!("counts cannot be aligned to {}", self.alignment));
        }
        let entries = (tokens * ranks).saturating_mul(self.topk);
        if self.alignment > 1 && entries.saturating_add(self.alignment as usize) > most as usize {
            let alignment = self.alignment;
            return wrong(format!(
                "counts of up to {entries} entries cannot be aligned to {alignment}: they are {most} \
                 at most"
            ));
        }
        let names = StandardPipeline::ALL.map(StandardPipeline::name);
        if let Some(lost) = self.settings.iter().find(|it| !names.contains(&it.pipeline.as_str())) {
            let Setting { pipeline, name, .. } = lost;
            return wrong(format!(
                "`{name}` is set for `{pipeline}`, which no buffer launches; it launches layout, \
                 nvl-dispatch, nvl-combine, decode-dispatch, decode-stripes and decode-combine"
            ));
        }
        self.check_few(ranks).or_else(wrong)?;
        let Some(placement) = &self.placement else { return Ok(()) };
        let begin = placement.begin();
        let ascending = begin.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = (begin.first(), begin.last());
        if begin.len() != ranks + 1
            || !ascending
            || ends != (Some(&0), Some(&(self.experts as i32)))
        {
            return wrong(format!(
                "a placement of {} experts on {ranks} ranks has {} ascending numbers from 0 to {}",
                self.experts,
                ranks + 1,
                self.experts
            ));
        }
        let most = self.local_experts(ranks) as i32;
        match begin.windows(2).map(|pair| pair[1] - pair[0]).max() {
            Some(local) if local > most => Err(CallError::TooLarge {
                what: "experts on one rank",
                need: local as u64,
                have: most as u64,
            }),
            _ => Ok(()),
        }
    }

    /// What is for few tokens alone.
    fn check_few(&self, ranks: usize) -> Result<(), String> {
        if self.push_combine == Some(true) {
            self.push_fits()?;
        }
        if self.one_launch == Some(true) { self.one_launch_fits(ranks) } else { Ok(()) }
    }

    /// Why no combine of such a buffer can store rows where their tokens are.
    fn push_fits(&self) -> Result<(), String> {
        let (tokens, via) = (self.tokens, self.via.name());
        if (1..=ONE_LAUNCH_TOKENS).contains(&tokens) && self.via == Via::Direct {
            return Ok(());
        }
        Err(format!(
            "a combine that stores rows where their tokens are is for 1 to {ONE_LAUNCH_TOKENS} tokens \
             and `via` direct, not for {tokens} and {via}"
        ))
    }

    /// Where experts live.
    pub fn placement(&self, ranks: usize) -> Placement {
        self.placement.clone().unwrap_or_else(|| Placement::even(self.experts, ranks))
    }
}

fn line_aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LINE_BYTES as u64).unwrap_or(u64::MAX)
}

/// The pipelines that a buffer launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandardPipeline {
    /// Counts where tokens go, and exchanges the counts.
    Layout,
    /// Moves rows and leaves the tables that combine and cached dispatches read.
    NvlDispatch,
    /// Moves rows by tables that an earlier dispatch left.
    NvlDispatchCached,
    /// Brings rows back and adds them up.
    NvlCombine,
    /// Counts and moves rows in one launch, and leaves the tables that combine reads.
    DecodeDispatch,
    /// Makes the tables that cached dispatches read of those.
    DecodeStripes,
    /// Stores rows where their tokens are, and adds them up there.
    DecodeCombine,
}

impl StandardPipeline {
    /// Every one.
    pub const ALL: [StandardPipeline; 7] = [
        StandardPipeline::Layout,
        StandardPipeline::NvlDispatch,
        StandardPipeline::NvlDispatchCached,
        StandardPipeline::NvlCombine,
        StandardPipeline::DecodeDispatch,
        StandardPipeline::DecodeStripes,
        StandardPipeline::DecodeCombine,
    ];

    /// The pipeline's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StandardPipeline::Layout => "layout",
            StandardPipeline::NvlDispatch | StandardPipeline::NvlDispatchCached => "nvl-dispatch",
            StandardPipeline::NvlCombine => "nvl-combine",
            StandardPipeline::DecodeDispatch => "decode-dispatch",
            StandardPipeline::DecodeStripes => "decode-stripes",
            StandardPipeline::DecodeCombine => "decode-combine",
        }
    }
}

/// Where a buffer gets its kernels from: the compiled-in declarations, or files made by `emit`.
pub trait Emit {
    /// The plan and text of `pipeline` with `settings` (names and values as `--set` takes them).
    fn emit(
        &self,
        pipeline: StandardPipeline,
        arch: Arch,
        settings: &[(String, String)],
    ) -> Result<Emitted, CallError>;
}

/// The standard pipelines as this crate declares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuiltIn;

impl BuiltIn {
    /// The declaration behind a standard pipeline.
    pub fn entry(pipeline: StandardPipeline) -> AnyPipeline {
        match pipeline {
            StandardPipeline::Layout => AnyPipeline::of::<pipelines::Layout>(),
            StandardPipeline::NvlDispatch | StandardPipeline::NvlDispatchCached => {
                AnyPipeline::of::<pipelines::NvlDispatch>()
            }
            StandardPipeline::NvlCombine => AnyPipeline::of::<pipelines::NvlCombine>(),
            StandardPipeline::DecodeDispatch => AnyPipeline::of::<pipelines::DecodeDispatch>(),
            StandardPipeline::DecodeStripes => AnyPipeline::of::<pipelines::DecodeStripes>(),
            StandardPipeline::DecodeCombine => AnyPipeline::of::<pipelines::DecodeCombine>(),
        }
    }
}

/// The same with every role composed statement by statement: slower, and a second text to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuiltInPlain;

impl Emit for BuiltInPlain {
    fn emit(
        &self,
        pipeline: StandardPipeline,
        arch: Arch,
        settings: &[(String, String)],
    ) -> Result<Emitted, CallError> {
        emit(pipeline, arch, settings, RuleSet::None)
    }
}

impl Emit for BuiltIn {
    fn emit(
        &self,
        pipeline: StandardPipeline,
        arch: Arch,
        settings: &[(String, String)],
    ) -> Result<Emitted, CallError> {
        emit(pipeline, arch, settings, RuleSet::All)
    }
}

fn emit(
    pipeline: StandardPipeline,
    arch: Arch,
    settings: &[(String, String)],
    rules: RuleSet,
) -> Result<Emitted, CallError> {
    let entry = BuiltIn::entry(pipeline);
    let ir = (entry.ir)();
    let mut config = Config { rules, ..Config::new(&ir, arch) };
    for (name, value) in settings {
        config.set(&ir, name, value)?;
    }
    Ok(entry.emit(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `check` says to the options that `change` makes of good ones, on two ranks.
    fn said(change: impl FnOnce(&mut BufferOptions)) -> String {
        let mut options = BufferOptions::new(16, 64, 2, 8);
        change(&mut options);
        options.check(2).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn numbers_without_a_sense_are_refused() {
        assert_eq!(said(|_| ()), "");
        assert_eq!(said(|it| it.live = 0), "a buffer with 0 live outputs can make no call");
        let text = "4097 live outputs are too many: a buffer has 4096 at most";
        assert_eq!(said(|it| it.live = 4097), text);
        let text = "a buffer has 1 to 4096 handles, not 0";
        assert_eq!(said(|it| it.handles = Some(0)), text);
        assert!(said(|it| it.handles = Some(4097)).ends_with("not 4097"));
        assert_eq!(said(|it| it.alignment = 0), "counts cannot be aligned to 0");
        let far = said(|it| it.alignment = i32::MAX);
        assert!(far.ends_with("be aligned to 2147483647: they are 2147483647 at most"), "{far}");
        let most = "are too many: together they are 2147483647 at most";
        assert_eq!(
            said(|it| it.tokens = 1 << 30),
            format!("1073741824 tokens on each of 2 ranks {most}")
        );
        assert!(said(|it| it.tokens = usize::MAX).contains(most));
        assert_eq!(said(|it| it.tokens = (1 << 30) - 1), "");
    }

    /// Asked for, it has to fit; left to the rates, it is used where it does.
    #[test]
    fn one_launch_is_for_few_tokens_of_worst_case_outputs() {
        let asked = |change: &dyn Fn(&mut BufferOptions)| {
            said(|it| {
                it.one_launch = Some(true);
                change(it);
            })
        };
        assert_eq!(asked(&|_| ()), "");
        let text = "a dispatch in one launch needs outputs of 32 rows, 16 tokens of each of 2 ranks, \
                    and these have 31";
        assert_eq!(asked(&|it| it.capacity = Some(31)), text);
        let range = "a dispatch in one launch is for 1 to 1024 tokens, not";
        assert_eq!(asked(&|it| it.tokens = 1025), format!("{range} 1025"));
        assert_eq!(asked(&|it| it.tokens = 0), format!("{range} 0"));
        assert!(asked(&|it| it.via = Via::Ring).ends_with("it goes `via` direct, not ring"));
        let used = |tokens: usize, change: &dyn Fn(&mut BufferOptions)| {
            let mut options = BufferOptions::new(tokens, 7168, 8, 288);
            change(&mut options);
            options.uses_one_launch(2)
        };
        assert!(used(1, &|_| ()) && used(512, &|_| ()));
        assert!(!used(1024, &|_| ()) && !used(4096, &|_| ()), "counting is the smaller part");
        assert!(used(1024, &|it| it.one_launch = Some(true)));
        assert!(!used(8, &|it| it.one_launch = Some(false)));
        assert!(!used(8, &|it| it.via = Via::Ring));
        assert!(!used(8, &|it| it.capacity = Some(15)));
        assert!(!used(0, &|_| ()));
    }

    #[test]
    fn a_combine_by_stores_is_for_few_tokens() {
        let asked = |tokens: usize, via: Via| {
            said(|it| (it.push_combine, it.tokens, it.via) = (Some(true), tokens, via))
        };
        assert_eq!(asked(1024, Via::Direct), "");
        let text = "a combine that stores rows where their tokens are is for 1 to 1024 tokens and \
                    `via` direct, not for 1025 and direct";
        assert_eq!(asked(1025, Via::Direct), text);
        assert!(asked(0, Via::Direct).ends_with("not for 0 and direct"));
        assert!(asked(8, Via::Ring).ends_with("not for 8 and ring"));
    }

    #[test]
    fn few_rows_go_back_by_stores() {
        let pushes = |tokens: usize, change: &dyn Fn(&mut BufferOptions)| {
            let mut options = BufferOptions::new(tokens, 7168, 8, 288);
            change(&mut options);
            options.pushes_back(2)
        };
        assert!(pushes(1, &|_| ()) && pushes(128, &|_| ()));
        assert!(!pushes(512, &|_| ()) && !pushes(4096, &|_| ()), "they fill the link");
        assert!(pushes(512, &|it| it.push_combine = Some(true)));
        assert!(!pushes(8, &|it| it.push_combine = Some(false)));
        assert!(!pushes(8, &|it| it.via = Via::Ring) && !pushes(0, &|_| ()));
    }

    /// Before anything checks them.
    #[test]
    fn strides_of_absurd_shapes_are_numbers() {
        let options = BufferOptions::new(usize::MAX, usize::MAX, usize::MAX, usize::MAX);
        for payload in Payload::ALL {
            let options = BufferOptions { payload, ..options.clone() };
            assert!(options.row_stride() >= 1 << 60 && options.combine_stride() >= 1 << 60);
            assert!(options.weights_stride() >= 1 << 60);
            options.traffic(usize::MAX);
            assert_eq!(options.capacity(usize::MAX), usize::MAX);
        }
    }

    #[test]
    fn a_setting_of_no_pipeline_is_refused() {
        let set = |pipeline: &str| {
            let (name, value) = ("stages".to_string(), "3".to_string());
            let setting = Setting { pipeline: pipeline.to_string(), name, value };
            said(|it| it.settings.push(setting))
        };
        assert_eq!(set("nvl-dispatch"), "");
        let text = "`stages` is set for `nvl_dispatch`, which no buffer launches; it launches layout, \
                    nvl-dispatch, nvl-combine, decode-dispatch, decode-stripes and decode-combine";
        assert_eq!(set("nvl_dispatch"), text);
    }
}

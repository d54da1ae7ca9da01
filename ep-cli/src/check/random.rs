//! `epforge check --random N`: declarations that nobody wrote, each from a seed. What their kernels leave,
//! with rules and without, is what they mean; one that fails is told as small as it can be made.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_codegen::{expansion, lower, render, syntax};
use ep_runtime::Emitted;
use ep_runtime::device::HEADERS;
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions, Programs};
use ep_runtime::ir::Pipeline;
use ep_runtime::jit::{Arch, Cache, CudaSource, Jit, Nvrtc};
use ep_runtime::meaning::{Drawing, Drawn, Function, Invented};
use ep_runtime::plan::{Body, Config, plan};
use ep_verify::declared::Declared;

use super::pool::on_all_cores;
use super::trial::LIMIT;
use crate::declared::{ROUNDS, SPARE};
use crate::failure::Failure;
use crate::json::Object;
use crate::machine::warn;
use crate::problem::no_machine;
use crate::progress::Progress;

/// Ranks of a declaration: one more with each seed, up to this.
const RANKS: u64 = 5;

/// Each declaration is emitted without rules, with those over steps, and with all.
const RULES: [RuleSet; 3] = [RuleSet::None, RuleSet::Without(RoleRule::OneLaunch), RuleSet::All];

/// Of so many declarations, one goes through NVRTC as well, which takes longer than all the rest.
const TRANSLATED: u64 = 4;

/// How long a declaration that fails is made smaller. Each try compiles three texts.
const SHRINKING: Duration = Duration::from_secs(60);

/// What became of a declaration.
enum Verdict {
    /// It leaves what it means; what NVRTC says of a text that is right and slow.
    Good { slow: Option<String> },
    /// The documented list says that it is not emitted; the sentence.
    Refused(String),
    /// What differs, and the smallest declaration that does so.
    Wrong { words: String, source: String },
}

/// Looks at `count` declarations from `first` on.
pub(super) fn run(
    count: u64,
    first: u64,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    if first.checked_add(count - 1).is_none() {
        let what = format!(
            "{count} declarations from seed {first} would exceed the last seed, {}",
            u64::MAX
        );
        return Err(Failure::WrongUse(what));
    }
    let programs = Programs::find().map_err(no_machine)?;
    warn(&programs, err);
    let started = Instant::now();
    let progress = Progress::new(count);
    let (mut refused, mut wrong) = (BTreeMap::<String, u64>::new(), 0_u64);
    let mut slow = Vec::new();
    let mut told = Ok(());
    let total = usize::try_from(count).unwrap_or(usize::MAX);
    let work = |number: usize| look(first + number as u64, &programs);
    on_all_cores(total, work, |number, verdict| {
        progress.step("declarations");
        match verdict {
            Verdict::Good { slow: words } => {
                slow.extend(words.map(|words| (first + number as u64, words)));
            }
            Verdict::Refused(words) => *refused.entry(words).or_default() += 1,
            Verdict::Wrong { words, source } => {
                wrong += 1;
                let seed = first + number as u64;
                let now = progress.aside(|| tell(seed, &words, &source, json, out));
                told = now.and(std::mem::replace(&mut told, Ok(())));
            }
        }
    });
    drop(progress);
    told?;
    let seconds = started.elapsed().as_secs_f64();
    let refusals: u64 = refused.values().sum();
    if json {
        let object = Object::new().with("declarations", count).with("seed", first);
        let object = object.with("wrong", wrong).with("refused", refusals);
        writeln!(out, "{}", object.with("slow", slow.len() as u64))?;
    } else {
        for (words, times) in &refused {
            writeln!(out, "  refused {times:6} times: {words}")?;
        }
        for (seed, words) in &slow {
            writeln!(out, "  slow, seed {seed}: {words}")?;
        }
        writeln!(
            out,
            "{count} declarations from seed {first} on, {wrong} wrong, {refusals} refused, {} slow, \
            {seconds:.1} s",
            slow.len()
        )?;
    }
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{wrong} of {count} declarations gave wrong results"))),
    }
}

fn tell(
    seed: u64,
    words: &str,
    source: &str,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if json {
        let object = Object::new().with("seed", seed).with("report", words);
        writeln!(out, "{}", object.with("declaration", source))?;
        return Ok(());
    }
    writeln!(out, "  FAILED  with seed {seed}")?;
    for line in words.lines().chain(source.lines()) {
        writeln!(out, "    {line}")?;
    }
    writeln!(out, "    replay: epforge check --random 1 --seed {seed}")?;
    Ok(())
}

fn look(seed: u64, programs: &Arc<Programs>) -> Verdict {
    // Thousands of libraries neither stay open nor fill the cache.
    let programs = &programs.passing();
    let invented = Invented::new(seed);
    let how = How { build: Build::Checked, isolation: Some(LIMIT), translates: true };
    let words = match judged(&invented, seed, how, programs) {
        Ok(verdict) => return verdict,
        Err(words) => words,
    };
    let until = Instant::now() + SHRINKING;
    let fails =
        &mut |less: &Invented| Instant::now() < until && judged(less, seed, how, programs).is_err();
    let small = invented.shrunk(fails);
    let words = judged(&small, seed, how, programs).err().unwrap_or(words);
    Verdict::Wrong { words, source: small.source() }
}

/// Runs a declaration in this process, so that its programs note what they come to.
pub(super) fn come_to(seed: u64, programs: &Arc<Programs>) -> Result<(), String> {
    let how = How { build: Build::Plain, isolation: None, translates: false };
    let judged = judged(&Invented::new(seed), seed, how, programs);
    judged.map(drop).map_err(|words| format!("the declaration of seed {seed}: {words}"))
}

/// How a declaration is run.
#[derive(Clone, Copy)]
struct How {
    build: Build,
    /// In a process of its own, which may take so long.
    isolation: Option<Duration>,
    /// Whether NVRTC gets some of them.
    translates: bool,
}

/// What is wrong with a declaration, or what became of it.
fn judged(
    invented: &Invented,
    seed: u64,
    how: How,
    programs: &Arc<Programs>,
) -> Result<Verdict, String> {
    let source = format!("ep_runtime::pipeline! {{ {} }}", invented.source());
    let blocks = syntax::blocks(&source).map_err(|error| error.to_string())?;
    let no_files = |path: &str| Err(format!("{path} is not here"));
    let mut all = Vec::new();
    for block in blocks {
        let (file, errors) = expansion::front_end(block, &no_files);
        if !errors.is_empty() {
            let words = errors.to_text(&source);
            let refusal = words.lines().next().unwrap_or_default().to_owned();
            // Everything else is legal, and emitted.
            let is_listed = words.contains("no CUDA text yet");
            return if is_listed { Ok(Verdict::Refused(refusal)) } else { Err(words) };
        }
        all.extend(file.pipelines.iter().map(|pipeline| lower::lower(&file, pipeline)));
    }
    let known: Vec<&Pipeline> = all.iter().collect();
    let functions = programs.functions(&known).map_err(|error| error.to_string())?;
    let functions = functions.list();
    let mut slow = None;
    for pipeline in &all {
        let ranks = 1 + (seed % RANKS) as i64;
        let drawing = Drawing::new(seed, &known, &functions).spare(SPARE).number("ranks", ranks);
        let trial = Trial { pipeline, seed, how, programs, functions: &functions };
        slow = slow.or(trial.compare(drawing)?);
    }
    Ok(Verdict::Good { slow })
}

/// One pipeline of a declaration.
struct Trial<'a> {
    pipeline: &'a Pipeline,
    seed: u64,
    how: How,
    programs: &'a Arc<Programs>,
    functions: &'a BTreeMap<String, &'a Function>,
}

impl Trial<'_> {
    /// Two calls of other sizes, with every rule and with none. What NVRTC says of a text that is slow.
    fn compare(&self, mut drawing: Drawing<'_>) -> Result<Option<String>, String> {
        let first = drawing.draw(self.pipeline).map_err(|error| error.to_string())?;
        drawing.another(self.seed ^ 1 << 63);
        let choice = &first.config.choice;
        let second =
            drawing.draw_choice(self.pipeline, choice).map_err(|error| error.to_string())?;
        let (config, calls) = (first.config.clone(), [first, second]);
        let (mut seen, mut slow) = (Vec::<String>::new(), None);
        for rules in RULES {
            let config = Config { rules, ..config.clone() };
            let plan = match plan(self.pipeline, &config) {
                Ok(plan) => plan,
                // A rule may ask for room for what every message brings; without rules nothing does.
                Err(_) if rules != RuleSet::None => continue,
                Err(error) => return Err(error.to_string()),
            };
            let body = render::body_with(&self.pipeline.select(&config.choice), rules);
            let body = body.map_err(|error| format!("{error:?}"))?;
            let emitted = Emitted { cuda: plan.cuda(&body), plan };
            if !seen.contains(&emitted.cuda) {
                seen.push(emitted.cuda.clone());
                let done = self.run(&emitted, &calls);
                let done = done.and_then(|()| self.translate(&config, &body));
                let words = done.map_err(|words| format!("{rules:?}: {words}"))?;
                slow = slow.or(words.map(|words| format!("{rules:?}: {words}")));
            }
        }
        Ok(slow)
    }

    /// NVRTC takes the text, where there is one. A kernel of so many roles may well spill registers: that
    /// makes it slow, not wrong.
    fn translate(&self, config: &Config, body: &Body) -> Result<Option<String>, String> {
        let Ok(nvrtc) = Nvrtc::find() else { return Ok(None) };
        if !self.how.translates || !self.seed.is_multiple_of(TRANSLATED) {
            return Ok(None);
        }
        let arch =
            if (self.seed / TRANSLATED).is_multiple_of(2) { Arch::Sm80 } else { Arch::Sm90a };
        let plan = plan(self.pipeline, &Config { arch, ..config.clone() });
        let plan = plan.map_err(|error| error.to_string())?;
        let cuda = plan.cuda(body);
        let text = CudaSource { name: "random.cu", text: &cuda, headers: HEADERS };
        // What is compiled once is kept nowhere.
        let compiled = Jit::new(nvrtc, Cache::memory_only()).compile(&text, arch, &[]);
        let compiled = compiled.map_err(|error| error.to_string())?;
        let told = |words: String| format!("{}: {words}", arch.name());
        match compiled.undefined().next() {
            Some(words) => Err(told(words)),
            None => Ok(compiled.slowdowns().next().map(told)),
        }
    }

    fn run(&self, emitted: &Emitted, calls: &[Drawn]) -> Result<(), String> {
        let declared = Declared::new(emitted, calls, ROUNDS, self.functions);
        let declared = declared.map_err(|wrong| wrong.to_string())?;
        let ranks = calls.first().map_or(1, |call| call.ranks.len());
        let mut host = HostOptions { build: self.how.build, ..HostOptions::new(ranks) };
        host.arch = Arch::Sm90a;
        host.isolation = self.how.isolation;
        host.spec.seed = self.seed;
        host.spec.max_ahead = (ROUNDS * calls.len()) as u64;
        if ranks > 1 {
            let slow = (self.seed / RANKS) as u32 % ranks as u32;
            host.spec.faults = Faults { slow_ranks: vec![slow], ..Faults::default() };
        }
        let backend = HostBackend::new(self.programs, host).map_err(|error| error.to_string())?;
        let group = backend.group().map_err(|error| error.to_string())?;
        let blocks = u32::try_from(emitted.plan.blocks_min).unwrap_or(1).max(1);
        let blocks = blocks + (self.seed % 3) as u32;
        match declared.check(&group, blocks) {
            Ok(findings) if findings.is_good() => Ok(()),
            Ok(findings) => Err(findings.to_string()),
            Err(error) => {
                let seen = backend.report().map(|report| format!("\n{report}"));
                Err(format!("{error}{}", seen.unwrap_or_default()))
            }
        }
    }
}

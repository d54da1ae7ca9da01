//! Prints what each rule of the compiler gains. The text of a pipeline is made with all rules, without one of
//! them and without any. The calls of each text are compared with what its declaration means, then timed in
//! turn. Runs on as many GPUs as there are: `cargo run --release -p ep-benches --bin rules [TOKENS]`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use ep_codegen::plan::{Config, plan};
use ep_codegen::render;
use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::group::Group;
use ep_runtime::ir::Pipeline;
use ep_runtime::meaning::{Drawing, Drawn};
use ep_runtime::pipelines::{Layout, NvlCombine, NvlDispatch};
use ep_runtime::{AnyPipeline, Emitted, gpu, pipeline};
use ep_verify::declared::Declared;

/// Tokens of each rank where no number is given.
const TOKENS: i64 = 512;

const BLOCKS: u32 = 24;

/// Calls in a row, and how often each text has its turn; the median counts.
const CALLS: u32 = 100;
const TURNS: usize = 5;

pipeline! {
    /// Sends each token to a rank, and back from there.
    pub pipeline ThereAndBack {
        shape { ranks: 1..=8, hidden: 16..=8192 step 16 }
        size tokens;
        input x: bf16[tokens, hidden], w: f32[tokens, 256], to: i32[tokens] in 0..ranks;
        output y: bf16[tokens, hidden], v: f32[tokens, 256];
        tune { stripes: 16 in [16], depth: 64 in [64], chunk: 8 in [8] }
        message Row { row x: bf16[hidden], w: f32[256], src: i32 }
        channel there: ring<Row> over nvlink from Send to Pass per all {
            depth: depth, chunk: chunk, header: [count],
        };
        channel back: ring<Row> over nvlink from Pass to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on all blocks, 4 warps {
            announce there[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
            for token in stripe where to[token] == peer {
                push there[peer] { x: x[token], w: w[token], src: token };
            }
        }
        role Pass[peer] on all blocks, 4 warps {
            announce back[peer] { count: there[peer].count };
            for message in there[peer] {
                push back[peer] { ..message };
            }
        }
        role Take[peer] on all blocks, 4 warps {
            for message in back[peer] {
                store y[message.src] = message.x;
                store v[message.src] = message.w;
            }
        }
    }
}

pipeline! {
    /// Adds up rows of all ranks, each times a weight.
    pub pipeline Weigh {
        shape { ranks: 1..=8, hidden: 16..=8192 step 16 }
        size tokens;
        size rows in 1..=512;
        input
            x: bf16[rows, hidden] in window, row_of: i32[tokens, ranks] in -1..rows, scale: f32[tokens, ranks];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;

        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store combined[token] = sum(part.x * scale[token, peer]) as bf16;
            }
        }
    }
}

/// A pipeline, what is set, and the rules that may make a difference.
struct Case {
    known: Vec<Pipeline>,
    set: &'static [(&'static str, &'static str)],
    rules: Vec<RuleSet>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let tokens = std::env::args().nth(1).map_or(Ok(TOKENS), |said| said.parse())?;
    let group = Group::on_gpus(gpu::devices()?.len())?;
    let without = |rule| RuleSet::Without(rule);
    let steps = [RuleSet::All]
        .into_iter()
        .chain(RoleRule::ALL.map(without))
        .chain([RuleSet::None])
        .filter(|rules| *rules != without(RoleRule::OneLaunch));
    let whole = [RuleSet::All, without(RoleRule::OneLaunch), RuleSet::None];
    let ir = |entry: AnyPipeline| entry.ir();
    let own = |entry| Case { known: vec![ir(entry)], set: &[], rules: steps.clone().collect() };
    let standard = |known, set| Case { known, set, rules: whole.to_vec() };
    let layout = || ir(AnyPipeline::of::<Layout>());
    let dispatch = || ir(AnyPipeline::of::<NvlDispatch>());
    let cases = [
        own(AnyPipeline::of::<ThereAndBack>()),
        own(AnyPipeline::of::<Weigh>()),
        standard(
            vec![layout(), dispatch()],
            &[("payload", "bf16"), ("via", "direct"), ("mode", "fresh")],
        ),
        standard(
            vec![layout(), dispatch()],
            &[("payload", "bf16"), ("via", "ring"), ("mode", "fresh")],
        ),
        standard(
            vec![layout(), dispatch(), ir(AnyPipeline::of::<NvlCombine>())],
            &[("via", "pull"), ("biases", "0")],
        ),
    ];
    let mut out = io::stdout().lock();
    for case in cases {
        let (pipeline, arms) = (case.name(), case.set);
        for (rules, time) in case.times(&group, tokens)? {
            let micros = time.as_secs_f64() * 1e6;
            writeln!(out, "{pipeline:<12} {arms:?} {rules:?}: {micros:.1} us")?;
        }
    }
    Ok(())
}

impl Case {
    fn name(&self) -> &str {
        self.known.last().map_or("", |pipeline| &pipeline.name)
    }

    /// A call of the last pipeline with so many tokens on each rank.
    fn call(&self, ranks: usize, tokens: i64) -> Result<Drawn, Box<dyn Error>> {
        let known = Vec::from_iter(&self.known);
        let functions = BTreeMap::new();
        let mut drawing =
            Drawing::new(1, &known, &functions).rows(tokens).number("ranks", ranks as i64);
        let shape = [("hidden", "7168"), ("experts", "288"), ("topk", "8"), ("stripes", "16")];
        let there = ["topk_weights", "recv_topk_weights", "weights", "combined_weights"];
        let shape: Vec<_> = shape.into_iter().chain(there.map(|name| (name, "1"))).collect();
        for pipeline in &known {
            for (name, value) in shape.iter().chain(self.set) {
                // Each takes what it has.
                let _ = drawing.set(pipeline, name, value);
            }
        }
        drawing.size("tokens", vec![tokens; ranks]);
        drawing.size("rows", vec![tokens; ranks]);
        let own = known.last().ok_or("there is a pipeline")?;
        Ok(drawing.draw(own)?)
    }

    /// The median time of a call with each of the rules.
    fn times(
        &self,
        group: &Group,
        tokens: i64,
    ) -> Result<Vec<(RuleSet, Duration)>, Box<dyn Error>> {
        let calls = [self.call(group.ranks(), tokens)?];
        let own = self.known.last().ok_or("there is a pipeline")?;
        let mut texts = Vec::new();
        for rules in &self.rules {
            let config =
                Config { rules: *rules, arch: group.backend().arch(), ..calls[0].config.clone() };
            let plan = plan(own, &config)?;
            let body = render::body_with(&own.select(&config.choice), *rules);
            let body = body.map_err(|error| format!("{error:?}"))?;
            texts.push((*rules, Emitted { cuda: plan.cuda(&body), plan }));
        }
        let functions = BTreeMap::new();
        let mut ready = Vec::new();
        for (rules, emitted) in &texts {
            let declared = Declared::new(emitted, &calls, 1, &functions)?;
            let findings = declared.check(group, BLOCKS)?;
            if !findings.is_good() {
                return Err(format!("{} {rules:?}: {findings}", self.name()).into());
            }
            ready.push((*rules, declared, Vec::new()));
        }
        for _ in 0..TURNS {
            for (_, declared, times) in &mut ready {
                times.push(declared.time(group, BLOCKS, CALLS)?);
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[TURNS / 2]
        };
        Ok(ready.into_iter().map(|(rules, _, times)| (rules, median(times))).collect())
    }
}

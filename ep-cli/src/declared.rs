//! Compares any pipeline, a user's too, with its declaration. Calls are drawn from the declaration and
//! interpreted, and the kernel has to leave the same results.

use std::collections::BTreeMap;
use std::iter;

use ep_runtime::buffer::{BufferOptions, BuiltIn, StandardPipeline};
use ep_runtime::group::Group;
use ep_runtime::host::{Functions, Programs};
use ep_runtime::ir::network::over_network;
use ep_runtime::ir::{DimKind, Pipeline};
use ep_runtime::jit::Arch;
use ep_runtime::meaning::round::f32_to_bf16;
use ep_runtime::meaning::{Data, Drawing, Drawn, Function, Undrawn};
use ep_runtime::plan::{Config, PlanError};
use ep_runtime::{AnyPipeline, EmitError, Emitted};
use ep_verify::Findings;
use ep_verify::declared::Declared;
use ep_verify::oracle::Random;

use crate::failure::Failure;
use crate::problem::{MAX_TOKENS, Problem, Reach, emit, failed, no_machine};
use crate::selection::{reference, refused, twice};

/// How many configurations are drawn before one of them has a plan.
const DRAWS: u64 = 64;

/// Most rows of a size that are interpreted.
const MOST_ROWS: usize = 1 << 16;

/// Most tokens of a second opinion on the standard pipelines.
const INTERPRETED: usize = 16;

/// Calls of a kernel that are drawn: of other sizes, in turn. With two, what one takes from the one before the last would
/// be its own.
pub(crate) const CALLS: u64 = 3;

/// The most rows that an output holds beyond those of a call.
pub(crate) const SPARE: i64 = 2;

/// How often each of them is made.
pub(crate) const ROUNDS: usize = 2;

/// Ranks that can be left out are among the first ones.
const MOST_OUT: usize = 64;

/// A pipeline, those whose handles it reads, and its functions.
pub(crate) struct Subject {
    entry: AnyPipeline,
    ir: Pipeline,
    known: Vec<Pipeline>,
    functions: Functions,
}

/// Calls of one kernel.
pub(crate) struct Calls {
    pub(crate) emitted: Emitted,
    pub(crate) drawn: Vec<Drawn>,
}

impl Calls {
    /// The fewest blocks that run every role.
    pub(crate) fn blocks_min(&self) -> u32 {
        u32::try_from(self.emitted.plan.blocks_min).unwrap_or(1).max(1)
    }

    /// The most rows that a size of the caller has. None if callers give no size.
    pub(crate) fn rows(&self) -> Option<i64> {
        let ranks = self.drawn.iter().flat_map(|call| &call.ranks);
        ranks.flat_map(|rank| rank.sizes.values().copied()).max()
    }

    /// Lets one of the ranks take no part, if the pipeline can go without it. Whether it can.
    pub(crate) fn leave_out(&mut self, rank: usize) -> bool {
        let can = self.emitted.plan.skips_ranks;
        for ranks in self.drawn.iter_mut().map(|call| &mut call.ranks).filter(|_| can) {
            let out = rank % ranks.len().min(MOST_OUT);
            ranks[out].alive = ranks.len() == 1;
        }
        can
    }

    /// Makes most floats so large that small ones get lost beside them until they cancel: sums in another order are other
    /// sums.
    pub(crate) fn spread_floats(&mut self) {
        const LARGE: f32 = (1 << 24) as f32;
        let mut random = Random::new(1);
        let mut far = || [Some(LARGE), Some(-LARGE), None][random.below(3)];
        let ranks = self.drawn.iter_mut().flat_map(|call| &mut call.ranks);
        let tensors = ranks.flat_map(|rank| rank.tensors.values_mut()).flatten();
        for part in tensors.flat_map(|tensor| &mut tensor.parts) {
            match &mut part.data {
                Data::F32(list) => list.iter_mut().for_each(|it| *it = far().unwrap_or(*it)),
                Data::Bf16(list) => list.iter_mut().for_each(|it| {
                    *it = far().map_or(*it, f32_to_bf16);
                }),
                _ => {}
            }
        }
    }

    /// `Direct, hidden 64, topk 3`: arms and numbers.
    pub(crate) fn shape(&self) -> String {
        let plan = &self.emitted.plan;
        let arms = plan.arms.iter().map(|(_, arm)| arm.clone());
        let numbers = plan.numbers.iter().map(|(name, value)| format!("{name} {value}"));
        arms.chain(numbers).collect::<Vec<_>>().join(", ")
    }
}

impl Subject {
    /// `entry`; the compiler makes its `cuda fn`s.
    pub(crate) fn new(entry: &AnyPipeline, programs: &Programs) -> Result<Subject, Failure> {
        let mut subject = Subject::with(entry)?;
        subject.compile(programs)?;
        Ok(subject)
    }

    /// Compiles its `cuda fn`s.
    pub(crate) fn compile(&mut self, programs: &Programs) -> Result<(), Failure> {
        let known: Vec<&Pipeline> = self.known.iter().collect();
        self.functions = programs.functions(&known).map_err(no_machine)?;
        Ok(())
    }

    /// Whether it has `cuda fn`s, which a C++ compiler makes for the interpreter.
    pub(crate) fn has_functions(&self) -> bool {
        self.known.iter().any(|ir| !ir.cuda_fns.is_empty())
    }

    /// A standard one: it has no `cuda fn`.
    fn standard(pipeline: StandardPipeline) -> Result<Subject, Failure> {
        Subject::with(&BuiltIn::entry(pipeline))
    }

    /// A subject whose `cuda fn`s are not compiled.
    pub(crate) fn with(entry: &AnyPipeline) -> Result<Subject, Failure> {
        let mut known: Vec<AnyPipeline> = Vec::new();
        with_handles(entry, &mut known)?;
        let known = known.iter().map(|known| known.ir()).collect();
        Ok(Subject { entry: *entry, ir: entry.ir(), known, functions: Functions::default() })
    }

    /// Its functions, for the interpreter.
    pub(crate) fn functions(&self) -> BTreeMap<String, &Function> {
        self.functions.list()
    }

    /// All that a configuration says, and the tunes that it leaves at their default. The number of ranks
    /// is set apart.
    fn settled(&self, config: &Config) -> Vec<(String, String)> {
        let arms = self.ir.axes.iter().map(|axis| axis.name.clone());
        let mut set: BTreeMap<String, String> =
            arms.zip(config.choice.arms.iter().cloned()).collect();
        let numbers = [&config.dims, &config.tunes, &config.copies].into_iter().flatten();
        set.extend(numbers.map(|(name, value)| (name.clone(), value.to_string())));
        set.extend(config.args.iter().map(|(name, value)| (name.clone(), value.to_string())));
        for tune in self.ir.select(&config.choice).tunes {
            set.entry(tune.name).or_insert_with(|| tune.default.to_string());
        }
        set.remove("ranks");
        set.into_iter().collect()
    }

    /// Whether a name can be set.
    pub(crate) fn knows(&self, name: &str) -> bool {
        can_set(self.owner(name), name)
    }

    /// The pipeline that a name is set of: itself, or one whose handle it reads.
    fn owner(&self, name: &str) -> &Pipeline {
        let mut all = iter::once(&self.ir).chain(&self.known);
        all.find(|ir| can_set(ir, name)).unwrap_or(&self.ir)
    }

    /// Resolves the options of the command line for this pipeline, and refuses options without effect.
    pub(crate) fn asked(&self, problem: &Problem) -> Result<Problem, Failure> {
        let mut asked = problem.settled()?;
        if !self.has("nodes") {
            asked.without_nodes(self.entry.name)?;
        }
        if !self.has("ranks") && asked.ranks.is_some() {
            let what = format!("{} runs on one rank: `--ranks` has no effect", self.entry.name);
            return Err(Failure::WrongUse(what));
        }
        let range = self.known.iter().find_map(|ir| given(ir, MAX_TOKENS));
        let set = asked.set.iter().find(|(name, _)| name == MAX_TOKENS);
        match (range, set, asked.tokens) {
            (Some(_), Some(_), Some(_)) => return Err(twice(MAX_TOKENS, Some("tokens"))),
            (Some(_), Some((_, value)), None) => asked.tokens = value.parse().ok(),
            (Some((fewest, _)), None, Some(tokens)) => {
                let most = i64::try_from(tokens).unwrap_or(i64::MAX).max(fewest);
                asked.set.push((MAX_TOKENS.to_owned(), most.to_string()));
            }
            _ => {}
        }
        Ok(asked)
    }

    /// How many ranks the problem has.
    pub(crate) fn ranks(&self, problem: &Problem) -> Result<usize, Failure> {
        if let Some((nodes, local_ranks)) = self.nodes(problem)? {
            return Ok((nodes * local_ranks) as usize);
        }
        Ok(if self.has("ranks") { problem.ranks() as usize } else { 1 })
    }

    /// How many nodes of how many ranks each the problem has, if the pipeline knows of nodes.
    fn nodes(&self, problem: &Problem) -> Result<Option<(u32, u32)>, Failure> {
        let (Some(_), Some(local)) = (self.dim("nodes"), self.dim("local_ranks")) else {
            return Ok(None);
        };
        if !matches!(local, DimKind::Given { .. }) && problem.sets("local_ranks") {
            let what = "`local_ranks` follows from `--ranks` and `--nodes`: give those".to_owned();
            return Err(Failure::WrongUse(what));
        }
        let fewest = given(&self.ir, "nodes").map_or(1, |(fewest, _)| fewest.max(1));
        problem.shared(u32::try_from(fewest).unwrap_or(u32::MAX)).map(Some)
    }

    /// The number of nodes and of ranks per node, if the problem uses a network.
    pub(crate) fn between_nodes(&self, problem: &Problem) -> Result<Option<(u32, u32)>, Failure> {
        let has_network = self.ir.channels.iter().any(over_network);
        Ok(self.nodes(problem)?.filter(|(nodes, _)| has_network && *nodes > 1))
    }

    /// Whether the shape has a number of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.dim(name).is_some()
    }

    /// How the shape defines a number.
    fn dim(&self, name: &str) -> Option<&DimKind> {
        self.ir.dims.iter().find(|dim| dim.name == name).map(|dim| &dim.kind)
    }

    /// Calls in a configuration that `shape` decides where the problem leaves it open, with values from
    /// `seed`.
    pub(crate) fn calls(
        &self,
        problem: &Problem,
        arch: Arch,
        shape: u64,
        seed: u64,
    ) -> Result<Calls, Failure> {
        self.some_calls(CALLS, problem, arch, (shape, seed))
    }

    /// So many of them.
    pub(crate) fn some_calls(
        &self,
        count: u64,
        problem: &Problem,
        arch: Arch,
        (shape, seed): (u64, u64),
    ) -> Result<Calls, Failure> {
        let mut refusal = None;
        for draw in 0..DRAWS {
            let shape = shape.wrapping_add(draw << 32);
            match self.drawn(count, problem, arch, (shape, seed))? {
                Ok(calls) => return Ok(calls),
                // Not every shape that can be drawn has a plan.
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.map_or_else(|| Failure::Failed("nothing was drawn".to_owned()), refused))
    }

    /// A call as it is timed: every size has the most rows, and what the problem leaves open is as `explain` assumes it.
    pub(crate) fn full_call(
        &self,
        problem: &Problem,
        arch: Arch,
        seed: u64,
    ) -> Result<Calls, Failure> {
        let known: Vec<&Pipeline> = self.known.iter().collect();
        let functions = self.functions();
        let mut drawing = self.drawing(problem, seed, &known, &functions)?.spare(0).full();
        for ir in self.known.iter().rev() {
            drawing.settle(ir, &|dim| match dim.kind {
                DimKind::Given { low, high, step } => reference(ir, &dim.name, (low, high, step)),
                _ => 0,
            });
        }
        let drawn = drawing.draw(&self.ir).map_err(undrawn)?;
        let rules = problem.kernels.rules();
        let emitted = self.entry.emit(&Config { rules, arch, ..drawn.config.clone() })?;
        Ok(Calls { emitted, drawn: vec![drawn] })
    }

    fn drawn(
        &self,
        count: u64,
        problem: &Problem,
        arch: Arch,
        (shape, seed): (u64, u64),
    ) -> Result<Result<Calls, PlanError>, Failure> {
        let known: Vec<&Pipeline> = self.known.iter().collect();
        let functions = self.functions();
        let mut drawing = self.drawing(problem, shape, &known, &functions)?;
        let first = drawing.draw(&self.ir).map_err(undrawn)?;
        let rules = problem.kernels.rules();
        let config = Config { rules, arch, ..first.config };
        let emitted = match self.entry.emit(&config) {
            Ok(emitted) => emitted,
            Err(EmitError::Plan(error)) if !error.is_wrong_use() => return Ok(Err(error)),
            Err(error) => return Err(error.into()),
        };
        let calls = (0..count).map(|call| {
            drawing.another(seed.wrapping_mul(count).wrapping_add(call));
            drawing.draw_choice(&self.ir, &config.choice).map_err(undrawn)
        });
        let drawn = calls.collect::<Result<_, _>>()?;
        Ok(Ok(Calls { emitted, drawn }))
    }

    fn drawing<'a>(
        &self,
        problem: &Problem,
        shape: u64,
        known: &'a [&'a Pipeline],
        functions: &'a BTreeMap<String, &'a Function>,
    ) -> Result<Drawing<'a>, Failure> {
        let mut drawing = Drawing::new(shape, known, functions).spare(SPARE);
        if let Some(rows) = problem.tokens {
            if rows > MOST_ROWS {
                let what = format!(
                    "{rows} tokens are too many: the interpreter takes at most {MOST_ROWS}"
                );
                return Err(Failure::WrongUse(what));
            }
            drawing = drawing.rows(rows as i64);
        }
        let (mut ranks, mut nodes, mut each) = (Some(problem.ranks()), problem.nodes, None);
        if let Some((count, local)) = self.nodes(problem)? {
            (ranks, nodes, each) = (Some(count * local), Some(count), Some(local));
        }
        for (name, value) in [("ranks", ranks), ("nodes", nodes), ("local_ranks", each)] {
            let value = value.filter(|_| given(&self.ir, name).is_some() && !problem.sets(name));
            if let Some(value) = value {
                drawing.set(&self.ir, name, &value.to_string()).map_err(refused)?;
            }
        }
        for (index, (name, value)) in problem.set.iter().enumerate() {
            if problem.set[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(twice(name, None));
            }
            drawing.set(self.owner(name), name, value).map_err(refused)?;
        }
        Ok(drawing)
    }
}

/// The standard pipelines of a problem, as their declarations have them, beside the oracle that is
/// written by hand.
pub(crate) fn second_opinion(
    group: &Group,
    (problem, options): (&Problem, &BufferOptions),
    reach: Reach,
    seed: u64,
) -> Result<Findings, Failure> {
    let (arch, ranks) = (group.backend().arch(), group.ranks());
    let dispatch = emit(&BuiltIn, options, &[StandardPipeline::NvlDispatch], ranks, arch)?;
    let stripes = dispatch.first().and_then(|it| it.plan.numbers.get("stripes")).copied();
    let mut findings = Findings::default();
    for pipeline in reach.pipelines() {
        let subject = Subject::standard(*pipeline)?;
        let config = options.config_of(*pipeline, ranks, arch, stripes).map_err(failed)?;
        let set = subject.settled(&config);
        let tokens = Some(options.tokens.min(INTERPRETED));
        let kernels = problem.kernels;
        let own = Problem { ranks: Some(ranks as u32), nodes: None, tokens, set, kernels };
        let calls = subject.calls(&own, arch, seed, seed)?;
        let functions = subject.functions();
        let wrong = |wrong| Failure::Failed(format!("{}: {wrong}", pipeline.name()));
        let declared =
            Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &functions).map_err(wrong)?;
        findings.merge(declared.check(group, calls.blocks_min()).map_err(failed)?);
    }
    Ok(findings)
}

/// Whether a name of a pipeline can be set.
pub(crate) fn knows(entry: &AnyPipeline, name: &str) -> bool {
    can_set(&entry.ir(), name)
}

/// The declared range of a shape number that the user gives.
fn given(ir: &Pipeline, name: &str) -> Option<(i64, i64)> {
    ir.dims.iter().find_map(|dim| match dim.kind {
        DimKind::Given { low, high, .. } if dim.name == name => Some((low, high)),
        _ => None,
    })
}

fn can_set(ir: &Pipeline, name: &str) -> bool {
    let set = Config::new(ir, Arch::Sm90a).set(ir, name, "");
    !matches!(set, Err(PlanError::UnknownName { .. }))
}

/// `entry`, and before it those whose handles it needs.
fn with_handles(entry: &AnyPipeline, known: &mut Vec<AnyPipeline>) -> Result<(), Failure> {
    if let Some(same) = known.iter().find(|other| other.name == entry.name) {
        return match same.digest == entry.digest {
            true => Ok(()),
            false => Err(Failure::Failed(format!(
                "this pipeline reads handles of two pipelines that are both called `{}`: rename one of them",
                entry.name
            ))),
        };
    }
    for handle in entry.handles() {
        with_handles(&handle, known)?;
    }
    known.push(*entry);
    Ok(())
}

/// A declaration that means nothing, with the exit code of its kind.
fn undrawn(error: Undrawn) -> Failure {
    match error {
        Undrawn::Shape(error) => refused(*error),
        other => Failure::Failed(other.to_string()),
    }
}

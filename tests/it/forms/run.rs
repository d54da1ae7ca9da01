//! From the text of a declaration to what its kernel leaves in memory: on the host, under seeded
//! schedules, and through NVRTC.

mod places;
mod settings;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ep_codegen::meaning::Drawn;
use ep_codegen::render;
use ep_codegen::schedule::{RoleRule, RuleSet, Ways};
use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::host::mutant::Mutant;
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions};
use ep_runtime::ir::{self, Elem};
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::net::{ModelNetwork, ModelOptions};
use ep_runtime::plan::{Config, ParamKind, Plan, plan};

pub(super) use super::meaning::accepted;
use crate::{nvrtc, usual};
use places::Places;
use values::encode;
pub(super) use values::rows;

/// Calls of every rank, one behind the other: what one leaves must not disturb the next.
const CALLS: usize = 2;
/// Bytes of the words at the end of a plan's control memory, of which the first counts calls.
const STATE_BYTES: u64 = 256;
/// Longest run of a kernel with a bug.
const LIMIT: Duration = Duration::from_secs(120);
/// Schedules of each text.
const SEEDS: Range<u64> = 1..3;
/// Every role as the library does it, every role statement by statement, and that as rules rewrite it.
pub(super) const RULES: [RuleSet; 3] =
    [RuleSet::All, RuleSet::None, RuleSet::Without(RoleRule::OneLaunch)];

/// A form in one shape and choice of arms.
pub(super) struct Form {
    ir: ir::Pipeline,
    config: Config,
    ranks: usize,
    blocks: u32,
    /// Ranks that take no part.
    out: Vec<usize>,
    /// A bug in the device library.
    bug: Option<Mutant>,
    /// Whether all ranks launch one phase before the next one.
    apart: bool,
    /// Calls before the first one: there may have been as many as a word counts.
    before: u32,
    /// Calls of every rank.
    calls: usize,
    /// How the network behaves, where there is one.
    wire: ModelOptions,
    /// The texts that are looked at.
    rules: Vec<RuleSet>,
    /// Whether runs are processes of their own.
    guarded: bool,
    /// Which of the cases of its test it is.
    turn: Option<usize>,
    /// How many schedules a drawn call is run under.
    pub(super) schedules: u64,
}

impl Form {
    pub(super) fn new(source: &str, sets: &[(&str, i64)]) -> Form {
        let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
        let mut config = Config::new(&ir, Arch::Sm90a);
        for (name, value) in sets {
            config.set(&ir, name, &value.to_string()).expect("the shape is legal");
        }
        let ranks = sets.iter().find(|(name, _)| *name == "ranks").map_or(1, |(_, ranks)| *ranks);
        Form::of(ir, config, ranks as usize)
    }

    /// A call as it was drawn, on a number of blocks that depends on the seed.
    pub(super) fn drawn(ir: &ir::Pipeline, drawn: &Drawn, seed: u64) -> Form {
        let (ir, config) = (ir.clone(), drawn.config.clone());
        let least = plan(&ir, &config).map_or(1, |plan| plan.blocks_min);
        let blocks = u32::try_from(least).unwrap_or(1) + (seed % 3) as u32;
        let alive = drawn.ranks.iter().enumerate().filter(|(_, rank)| !rank.alive);
        let out = alive.map(|(rank, _)| rank).collect();
        let apart = seed % 2 == 1;
        Form { blocks, out, apart, ..Form::of(ir, config, drawn.ranks.len()) }
    }

    /// Calls of so many ranks, of which nothing else has been said.
    fn of(ir: ir::Pipeline, config: Config, ranks: usize) -> Form {
        Form {
            ir,
            config,
            ranks,
            blocks: 2,
            out: Vec::new(),
            bug: None,
            apart: false,
            before: 0,
            calls: CALLS,
            wire: ModelOptions::default(),
            rules: RULES.to_vec(),
            guarded: false,
            turn: None,
            schedules: 1,
        }
    }

    /// What the plan says to the shape, empty when it takes it.
    pub(super) fn refusal(&self) -> String {
        plan(&self.ir, &self.config).err().map(|error| error.to_string()).unwrap_or_default()
    }

    /// Whether the plan refuses the shape.
    pub(super) fn is_refused(&self) -> bool {
        plan(&self.ir, &self.config).is_err()
    }

    /// Whether no rule is for any role, so that there is one text.
    pub(super) fn is_plain(&self) -> bool {
        let ir = self.ir.select(&self.config.choice);
        Ways::of(&ir, RuleSet::All).routes().is_none()
    }

    /// Whether all blocks have to be resident at once.
    pub(super) fn waits(&self) -> bool {
        plan(&self.ir, &self.config).unwrap_or_else(|error| panic!("{error}")).waits
    }

    /// The kernel that runs all phases, if there is one.
    pub(super) fn joined(&self) -> Option<String> {
        plan(&self.ir, &self.config).unwrap_or_else(|error| panic!("{error}")).joined
    }

    /// Bytes of shared memory that a block takes.
    pub(super) fn shared_bytes(&self) -> i64 {
        plan(&self.ir, &self.config).unwrap_or_else(|error| panic!("{error}")).shared_bytes
    }

    /// Bytes between the rows that peers reach where they lie, by tensor.
    pub(super) fn strides(&self) -> Vec<(String, i64)> {
        plan(&self.ir, &self.config).unwrap_or_else(|error| panic!("{error}")).strides
    }

    fn emitted(&self, arch: Arch, rules: RuleSet) -> Emitted {
        let config = Config { arch, rules, ..self.config.clone() };
        let plan = plan(&self.ir, &config).unwrap_or_else(|error| panic!("{error}"));
        let body = render::body_with(&self.ir.select(&config.choice), rules);
        let body = body.unwrap_or_else(|error| panic!("{error:?}"));
        Emitted { cuda: plan.cuda(&body), plan }
    }

    /// The text, for devices with TMA.
    pub(super) fn text(&self, rules: RuleSet) -> String {
        self.emitted(Arch::Sm90a, rules).cuda
    }

    /// The rule sets that leave a text of their own. A usual run takes one: the first, or that of a form's
    /// [turn](Form::turn). Drawn declarations compare texts without rules in every run.
    fn texts(&self) -> Vec<RuleSet> {
        let mut seen = BTreeSet::new();
        let mut apart = Vec::from(RULES);
        apart.retain(|rules| seen.insert(self.text(*rules)));
        let of = apart.len();
        let is_taken = |number: usize| match self.turn {
            Some(turn) => usual::takes(turn, number, of),
            None => number == 0 || usual::is_full(),
        };
        (0..of).filter(|number| is_taken(*number)).map(|number| apart[number]).collect()
    }

    /// NVRTC accepts the texts for an architecture without TMA and for one with TMA. A usual run takes one of the two,
    /// with all rules.
    pub(super) fn compile(&self) {
        let taken = if usual::is_full() { &RULES[..] } else { &RULES[..1] };
        let form = self.turn.unwrap_or(self.ir.name.len());
        for rules in taken {
            for (variant, arch) in [Arch::Sm80, Arch::Sm90a].into_iter().enumerate() {
                if usual::takes(form, variant, 2) {
                    nvrtc::accept(&self.emitted(arch, *rules));
                }
            }
        }
    }

    /// Every rank makes the call that `call` describes, and leaves what that says.
    pub(super) fn check(&self, call: &dyn Fn(usize) -> Call) {
        self.compile();
        for rules in self.texts() {
            for seed in usual::some(SEEDS, 2) {
                self.run((Arch::Sm90a, rules), seed, call);
            }
        }
    }

    /// As [`Form::check`], without TMA. Of forms with a [turn](Form::turn), a usual run takes every third.
    pub(super) fn check_vector(&self, call: &dyn Fn(usize) -> Call) {
        if !self.turn.is_none_or(|turn| usual::takes(turn, 0, 3)) {
            return;
        }
        for rules in usual::some([RuleSet::All, RuleSet::Without(RoleRule::OneLaunch)], 2) {
            self.run((Arch::Sm80, rules), 1, call);
        }
    }

    /// One call of these ranks.
    fn launch(&self, kernel: &GroupKernel, bound: &[Bound], ranks: &[usize]) {
        let phases = kernel.plan().kernels.len();
        let turns: Vec<Option<usize>> = match self.apart {
            true => (0..phases).map(Some).collect(),
            false => vec![None],
        };
        for turn in turns {
            for rank in ranks {
                let bindings = &bound[*rank].bindings;
                let launched = match turn {
                    None => kernel.launch(*rank, Stream::OWN, self.blocks, bindings),
                    Some(phase) => {
                        kernel.launch_phase(*rank, Stream::OWN, phase, self.blocks, bindings)
                    }
                };
                launched.expect("it starts");
            }
        }
    }

    /// What all calls leave, by rank and name.
    pub(super) fn run(
        &self,
        (arch, rules): (Arch, RuleSet),
        seed: u64,
        call: &dyn Fn(usize) -> Call,
    ) -> Vec<BTreeMap<String, Vec<u8>>> {
        let Some(programs) = crate::host::programs() else { return Vec::new() };
        let emitted = self.emitted(arch, rules);
        // Most of the time of a form is its compile, and to check every access costs little more.
        let build = Build::Checked;
        let mut options = HostOptions { build, arch, ..HostOptions::new(self.ranks) };
        options.spec.seed = seed;
        options.isolation = self.guarded.then_some(LIMIT);
        options.spec.faults = Faults { slow_ranks: vec![0], ..Faults::default() };
        options.spec.max_ahead = self.calls as u64;
        let programs = match &self.bug {
            Some(bug) => programs.planted(bug),
            None => Arc::clone(programs),
        };
        let backend = HostBackend::new(&programs, options).expect("there is a host");
        let group = backend.group().expect("there is a group");
        let calls: Vec<Call> = (0..self.ranks).map(call).collect();
        let places = Places::new(&self.ir, &emitted.plan, &calls);
        let window = Window::new(group.backend(), places.end).expect("there is room");
        let window = Arc::new(window);
        let kernel = GroupKernel::prepare(&group, &window, 0, &emitted);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}\n{}", emitted.cuda));
        let network = ModelNetwork::of_plan(&backend, &emitted.plan, &self.wire);
        let network = network.expect("the layout is legal");
        let bound = calls.iter().enumerate().map(|(rank, call)| {
            let mut ends =
                Bound { bindings: Bindings::new(), held: Vec::new(), outputs: Vec::new() };
            if let Some(network) = &network {
                ends.bindings.network(network.address(rank));
            }
            let own = window.own(rank).expect("it is local");
            ends.bind(&emitted.plan, &group, rank, call, own, &places);
            ends
        });
        let bound: Vec<Bound> = bound.collect();
        let state = control_bytes(&emitted.plan) - STATE_BYTES;
        for rank in 0..self.ranks {
            let at = window.own(rank).expect("it is local") + state;
            group.backend().write(rank, at, &self.before.to_le_bytes()).expect("it fits");
        }
        for rank in &self.out {
            group.leave_out(*rank, true).expect("there is such a rank");
        }
        let there = |rank: &usize| !self.out.contains(rank);
        for _ in 0..self.calls {
            self.launch(&kernel, &bound, &(0..self.ranks).filter(there).collect::<Vec<_>>());
        }
        let mut left = Vec::new();
        for (rank, ends) in bound.iter().enumerate() {
            if !there(&rank) {
                left.push(BTreeMap::new());
                continue;
            }
            let what = format!("{} {rules:?} seed {seed}, rank {rank}", arch.name());
            group.sync(rank).unwrap_or_else(|error| panic!("{what}: {error}\n{}", emitted.cuda));
            let compared = ends.outputs.iter().map(|(output, address)| {
                let bytes = output.compare(&emitted.plan, &group, rank, *address, &what);
                (output.name.clone(), bytes)
            });
            left.push(compared.collect());
        }
        left
    }
}

/// One tensor of a call. A name is that of the tensor, `x.1` of its first scale, `bias#1` of the
/// second copy.
#[derive(Clone)]
struct Given {
    name: String,
    width: usize,
    /// What is there before the calls; `NAN`: bytes of no meaning.
    start: Vec<f64>,
    wanted: Option<Vec<f64>>,
}

/// The arguments of one rank, and what the call must leave.
#[derive(Default)]
pub(super) struct Call {
    pub(super) numbers: Vec<(String, f64)>,
    tensors: Vec<Given>,
}

impl Call {
    pub(super) fn new() -> Call {
        Call::default()
    }

    pub(super) fn number(mut self, name: &str, value: usize) -> Call {
        self.numbers.push((name.to_string(), value as f64));
        self
    }

    /// An input with rows of `width` elements.
    pub(super) fn give(self, name: &str, width: usize, values: Vec<f64>) -> Call {
        self.tensor(name, width, values, None)
    }

    /// An output or table: what it must hold behind the calls; `NAN`: anything.
    pub(super) fn want(self, name: &str, width: usize, values: Vec<f64>) -> Call {
        self.tensor(name, width, vec![f64::NAN; values.len()], Some(values))
    }

    /// An inout: what it holds before and behind the calls.
    pub(super) fn change(self, name: &str, width: usize, from: Vec<f64>, to: Vec<f64>) -> Call {
        self.tensor(name, width, from, Some(to))
    }

    fn tensor(
        mut self,
        name: &str,
        width: usize,
        start: Vec<f64>,
        wanted: Option<Vec<f64>>,
    ) -> Call {
        assert!(start.len().is_multiple_of(width), "{name}: whole rows");
        self.tensors.push(Given { name: name.to_string(), width, start, wanted });
        self
    }
}

impl Given {
    fn tensor(&self) -> (&str, usize, i64) {
        if let Some((name, part)) = self.name.split_once('.') {
            return (name, part.parse().expect("a number"), 0);
        }
        match self.name.split_once('#') {
            Some((name, copy)) => (name, 0, copy.parse().expect("a number")),
            None => (&self.name, 0, 0),
        }
    }

    fn elem(&self, plan: &Plan) -> Elem {
        let (name, part, copy) = self.tensor();
        let found = plan.params.iter().find_map(|param| match &param.kind {
            ParamKind::Pointer { tensor, part: p, copy: c, elem, .. }
                if tensor == name && *p == part && *c == copy =>
            {
                Some(elem.clone())
            }
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no tensor {}", self.name))
    }

    fn is_in_window(&self, plan: &Plan) -> bool {
        let (name, part, _) = self.tensor();
        let is_here =
            |kind: &ParamKind| matches!(kind, ParamKind::WindowOffset { tensor } if tensor == name);
        part == 0 && plan.params.iter().any(|param| is_here(&param.kind))
    }

    /// Elements from row to row: whole lines in the window, and a gap where there may be one, which is not in lists.
    fn stride(&self, plan: &Plan) -> usize {
        let (name, own, _) = self.tensor();
        let line = 128 / encode(&self.elem(plan), 0.0).len();
        if plan.lists.iter().any(|lists| (lists.tensor.as_str(), lists.part) == (name, own)) {
            return self.width;
        }
        let padded = plan.params.iter().any(|param| {
            matches!(&param.kind, ParamKind::RowStride { tensor, part } if tensor == name && *part == own)
        });
        match padded || self.is_in_window(plan) && self.width > 1 {
            true => self.width.next_multiple_of(line),
            false => self.width,
        }
    }

    fn bytes(&self, plan: &Plan) -> Vec<u8> {
        let (elem, stride) = (self.elem(plan), self.stride(plan));
        let mut bytes = Vec::new();
        let dirty = vec![0xa5; encode(&elem, 0.0).len()];
        for row in self.start.chunks(self.width) {
            let gap = std::iter::repeat_n(&f64::NAN, stride - self.width);
            for value in row.iter().chain(gap) {
                bytes.extend(if is_any(*value) { dirty.clone() } else { encode(&elem, *value) });
            }
        }
        bytes
    }

    /// What is there, row by row.
    fn compare(
        &self,
        plan: &Plan,
        group: &Group,
        rank: usize,
        address: u64,
        what: &str,
    ) -> Vec<u8> {
        let (elem, stride) = (self.elem(plan), self.stride(plan));
        let size = encode(&elem, 0.0).len();
        let values = self.wanted.iter().flatten();
        let mut bytes = vec![0; self.start.len() / self.width * stride * size];
        group.backend().read(rank, address, &mut bytes).expect("it can be read");
        for (at, value) in values.enumerate().filter(|(_, value)| !is_any(**value)) {
            let (row, column) = (at / self.width, at % self.width);
            let start = (row * stride + column) * size;
            let (found, wanted) = (&bytes[start..start + size], encode(&elem, *value));
            assert!(
                found == wanted,
                "{what}: {}[{row}, {column}] is {found:?}, wanted {value}",
                self.name
            );
        }
        let row = |row: &[u8]| row[..self.width * size].to_vec();
        bytes.chunks(stride * size).flat_map(row).collect()
    }
}

/// Whether a number stands for any; another NaN stands for itself.
fn is_any(value: f64) -> bool {
    value.to_bits() == f64::NAN.to_bits()
}

/// What one rank binds.
struct Bound {
    bindings: Bindings,
    held: Vec<DeviceMemory>,
    outputs: Vec<(Given, u64)>,
}

impl Bound {
    fn bind(
        &mut self,
        plan: &Plan,
        group: &Group,
        rank: usize,
        call: &Call,
        window: u64,
        places: &Places,
    ) {
        for (name, start) in &places.starts {
            self.bindings.region(name, *start);
        }
        for param in &plan.params {
            let number = call.numbers.iter().find(|(name, _)| *name == param.name);
            match (&param.kind, number) {
                (ParamKind::Arg { elem: Elem::F32 }, Some((name, value))) => {
                    self.bindings.real(name, *value as f32);
                }
                (_, Some((name, value))) => drop(self.bindings.number(name, *value as i64)),
                _ => {}
            }
        }
        for given in &call.tensors {
            let bytes = given.bytes(plan);
            let address = match places.starts.iter().find(|(name, _)| *name == given.name) {
                Some((_, start)) if given.is_in_window(plan) => window + start,
                _ => {
                    let memory =
                        DeviceMemory::new(group.backend(), rank, (bytes.len() as u64).max(8));
                    self.held.push(memory.expect("there is room"));
                    self.held.last().map_or(0, DeviceMemory::address)
                }
            };
            group.backend().write(rank, address, &bytes).expect("it fits");
            let rows = Rows::new(address, given.stride(plan) as i64);
            match given.tensor() {
                (name, 0, copy) => drop(self.bindings.copy(name, copy, rows)),
                (name, part, _) => drop(self.bindings.part(name, part, rows)),
            }
            if given.wanted.is_some() {
                self.outputs.push((given.clone(), address));
            }
        }
    }
}

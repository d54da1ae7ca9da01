//! Examples that were worked out by hand, and calls that are drawn: what the interpreter says is what the
//! example says, and what the kernel leaves is what the interpreter says.

use std::sync::Arc;
use std::time::Duration;

use ep_codegen::schedule::RuleSet;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_runtime::meaning::{Data, Drawing, Drawn, Left, Outcome, Scalar, Tensor};
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, Pipeline, ir};
use ep_verify::declared::Declared;

use crate::usual;

/// Each call is made twice.
const ROUNDS: usize = 2;

/// Rows of drawn calls.
const ROWS: i64 = 12;

/// Longest run of a kernel; one that crashes is an error too.
const LIMIT: Duration = Duration::from_secs(120);

/// A call of a pipeline, and what it must leave.
pub(super) struct ByHand {
    entry: AnyPipeline,
    /// The shape of the example.
    set: Vec<(String, String)>,
    /// Numbers of all calls.
    fixed: Vec<(String, i64)>,
    ranks: Vec<OneRank>,
}

/// What one rank brings, and what it must find. Where a list is shorter than its tensor, each value stands
/// for as many elements in a row.
#[derive(Default)]
pub(super) struct OneRank {
    sizes: Vec<(&'static str, i64)>,
    given: Vec<(&'static str, Vec<usize>, Vec<f64>)>,
    wanted: Vec<(&'static str, Vec<Option<f64>>)>,
    placed: Vec<(&'static str, usize, f64)>,
}

/// Numbers of an example.
pub(super) trait Number: Copy {
    fn number(self) -> f64;
}

impl Number for f64 {
    fn number(self) -> f64 {
        self
    }
}

impl Number for i32 {
    fn number(self) -> f64 {
        self.into()
    }
}

impl OneRank {
    pub(super) fn size(mut self, name: &'static str, rows: i64) -> OneRank {
        self.sizes.push((name, rows));
        self
    }

    pub(super) fn give<T: Number, const N: usize, const D: usize>(
        mut self,
        name: &'static str,
        extents: [usize; D],
        values: [T; N],
    ) -> OneRank {
        self.given.push((name, extents.to_vec(), values.map(Number::number).to_vec()));
        self
    }

    pub(super) fn want<T: Number, const N: usize>(
        self,
        name: &'static str,
        values: [T; N],
    ) -> OneRank {
        self.want_where_written(name, values.map(Some))
    }

    /// None stands where the call writes nothing, or a negative position.
    pub(super) fn want_where_written<T: Number, const N: usize>(
        mut self,
        name: &'static str,
        values: [Option<T>; N],
    ) -> OneRank {
        let values = values.map(|value| value.map(Number::number));
        self.wanted.push((name, values.to_vec()));
        self
    }

    /// Some elements, by their place in the whole tensor; the call writes no others.
    pub(super) fn want_first<const N: usize>(
        mut self,
        name: &'static str,
        places: [(usize, i32); N],
    ) -> OneRank {
        self.placed.extend(places.map(|(at, value)| (name, at, value.into())));
        self
    }
}

impl ByHand {
    pub(super) fn of<P: Pipeline>(shape: &[(&str, i64)]) -> ByHand {
        let set = shape.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        ByHand { entry: AnyPipeline::of::<P>(), set, fixed: Vec::new(), ranks: Vec::new() }
    }

    pub(super) fn set(mut self, name: &str, value: impl ToString) -> ByHand {
        self.set.push((name.to_string(), value.to_string()));
        self
    }

    /// A number of drawn calls.
    pub(super) fn fix(mut self, name: &str, value: i64) -> ByHand {
        self.fixed.push((name.to_string(), value));
        self
    }

    pub(super) fn rank(mut self, fill: impl FnOnce(OneRank) -> OneRank) -> ByHand {
        self.ranks.push(fill(OneRank::default()));
        self
    }

    /// The example, then drawn calls on 3 ranks and on 5.
    pub(super) fn check(&self) {
        let Some(programs) = crate::host::programs() else { return };
        let example = self.example(programs);
        self.compile(&example[0].config);
        let drawn = [self.drawn(programs, 3, ROWS, 1), self.drawn(programs, 5, ROWS, 2)];
        let all = std::iter::once(example).chain(drawn).zip(1..);
        let all = all.flat_map(|it| [RuleSet::All, RuleSet::None].map(|rules| (it.clone(), rules)));
        for ((calls, seed), rules) in usual::some(all, 4) {
            let wrong = self.leaves(programs, rules, &calls, seed).err();
            let (name, ranks) = (self.entry.name, calls[0].ranks.len());
            assert_eq!(wrong, None, "{name} {rules:?}, {ranks} ranks");
        }
    }

    /// Drawn calls on GPUs, on 2 ranks and on 4, which share them where there are fewer.
    pub(super) fn check_on_gpus(&self) {
        let Some(programs) = crate::host::programs() else { return };
        for ranks in [2, 4] {
            let calls = self.drawn(programs, ranks, ROWS, 3);
            for rules in [RuleSet::All, RuleSet::None] {
                let group = Group::on_gpus(ranks as usize).map_err(|error| error.to_string());
                let wrong = group.and_then(|group| self.left(&group, programs, rules, &calls, 1));
                assert_eq!(wrong.err(), None, "{} {rules:?}, {ranks} ranks", self.entry.name);
            }
        }
    }

    /// The call that was worked out, which means what that says.
    fn example(&self, programs: &Programs) -> Vec<Drawn> {
        let known = known(&self.entry);
        let known: Vec<&ir::Pipeline> = known.iter().collect();
        let functions = programs.functions(&known).expect("every `cuda fn` is C++");
        let functions = functions.list();
        let mut drawing = Drawing::new(1, &known, &functions);
        for (name, value) in &self.set {
            let all = known.iter().map(|known| drawing.set(known, name, value));
            assert!(Vec::from_iter(all).iter().any(Result::is_ok), "{name} is set nowhere");
        }
        self.give(&mut drawing, &known);
        let drawn = drawing.draw(&self.entry.ir()).expect("the example is a legal call");
        self.compare(&drawn.run(&functions).expect("the example means something"));
        vec![drawn]
    }

    /// Two calls of other sizes, with the numbers that are fixed beside the shape of the example.
    pub(super) fn drawn(
        &self,
        programs: &Programs,
        ranks: i64,
        rows: i64,
        seed: u64,
    ) -> Vec<Drawn> {
        let known = known(&self.entry);
        let known: Vec<&ir::Pipeline> = known.iter().collect();
        let functions = programs.functions(&known).expect("every `cuda fn` is C++");
        let functions = functions.list();
        let own = self.entry.ir();
        let mut drawing = Drawing::new(seed, &known, &functions).rows(rows);
        for name in ["ranks", "local_ranks"] {
            drawing = drawing.number(name, ranks);
        }
        for (name, value) in &self.fixed {
            drawing.set(&own, name, &value.to_string()).expect("it can be set");
        }
        let first = drawing.draw(&own).expect("a call can be drawn");
        drawing.another(seed + 100);
        let second = drawing.draw_choice(&own, &first.config.choice).expect("and another one");
        vec![first, second]
    }

    /// Sizes and tensors of the example.
    fn give(&self, drawing: &mut Drawing<'_>, known: &[&ir::Pipeline]) {
        let Some(first) = self.ranks.first() else { return };
        for at in 0..first.sizes.len() {
            let rows = self.ranks.iter().map(|rank| rank.sizes[at].1);
            drawing.size(first.sizes[at].0, rows.collect());
        }
        for at in 0..first.given.len() {
            let name = first.given[at].0;
            let declares = |known: &&&ir::Pipeline| {
                known.tensors.iter().any(|it| it.name == name && it.from_handle.is_none())
            };
            for maker in known.iter().filter(declares) {
                let tensor = maker.tensors.iter().find(|it| it.name == name).expect("as above");
                let ir::ElemType::Scalar { elem } = &tensor.elem else {
                    panic!("{name} has parts")
                };
                let own = |rank: &OneRank| {
                    let (name, extents, values) = &rank.given[at];
                    filled(name, elem, extents, values)
                };
                drawing.give(maker, name, self.ranks.iter().map(own).collect());
            }
        }
    }

    /// What the interpreter says is what was worked out.
    fn compare(&self, outcome: &Outcome) {
        for (rank, (own, left)) in self.ranks.iter().zip(&outcome.ranks).enumerate() {
            for (name, wanted) in &own.wanted {
                let left = &left[*name];
                let each = left.tensor.count() / wanted.len().max(1);
                assert_eq!(each * wanted.len(), left.tensor.count(), "rank {rank}: {name}");
                for at in 0..left.tensor.count() {
                    let found = number(left, at);
                    assert_eq!(found, wanted[at / each], "rank {rank}: {name}, element {at}");
                }
            }
            for name in own.placed.iter().map(|(name, ..)| *name) {
                for at in 0..left[name].tensor.count() {
                    let wanted = own.placed.iter().find(|it| (it.0, it.1) == (name, at));
                    let wanted = wanted.map(|it| it.2);
                    assert_eq!(number(&left[name], at), wanted, "rank {rank}: {name}[{at}]");
                }
            }
        }
    }

    /// Whether a kernel leaves what the interpreter says on the host, and what is wrong if not.
    pub(super) fn leaves(
        &self,
        programs: &Arc<Programs>,
        rules: RuleSet,
        calls: &[Drawn],
        seed: u64,
    ) -> Result<(), String> {
        let mut host =
            HostOptions { build: Build::Checked, ..HostOptions::new(calls[0].ranks.len()) };
        (host.spec.seed, host.isolation) = (seed, Some(LIMIT));
        let group = HostBackend::new(programs, host).map_err(|error| error.to_string())?.group();
        self.left(&group.map_err(|error| error.to_string())?, programs, rules, calls, seed)
    }

    fn left(
        &self,
        group: &Group,
        programs: &Programs,
        rules: RuleSet,
        calls: &[Drawn],
        seed: u64,
    ) -> Result<(), String> {
        let known = known(&self.entry);
        let functions = programs.functions(&Vec::from_iter(&known)).map_err(|it| it.to_string())?;
        let config = Config { rules, arch: group.backend().arch(), ..calls[0].config.clone() };
        let emitted = self.entry.emit(&config).map_err(|error| error.to_string())?;
        let declared = Declared::new(&emitted, calls, ROUNDS, &functions.list());
        let declared = declared.map_err(|wrong| wrong.to_string())?;
        let blocks = emitted.plan.blocks_min as u32 + (seed % 3) as u32;
        let findings = declared.check(group, blocks).map_err(|error| error.to_string())?;
        if findings.is_good() { Ok(()) } else { Err(findings.to_string()) }
    }

    /// NVRTC takes the texts, for an architecture without and one with TMA; in a usual run those with all rules.
    fn compile(&self, config: &Config) {
        let all = [RuleSet::All, RuleSet::None];
        let taken = if usual::is_full() { &all[..] } else { &all[..1] };
        for (arch, rules) in taken.iter().flat_map(|it| [(Arch::Sm80, *it), (Arch::Sm90a, *it)]) {
            let config = Config { arch, rules, ..config.clone() };
            crate::nvrtc::accept(&self.entry.emit(&config).expect("it is emitted"));
        }
    }
}

/// The pipelines whose handles `entry` needs, and itself.
fn known(entry: &AnyPipeline) -> Vec<ir::Pipeline> {
    let mut all: Vec<ir::Pipeline> = Vec::new();
    for handle in entry.handles() {
        for pipeline in known(&handle) {
            if !all.iter().any(|known| known.name == pipeline.name) {
                all.push(pipeline);
            }
        }
    }
    all.push(entry.ir());
    all
}

fn filled(name: &str, elem: &ir::Elem, extents: &[usize], values: &[f64]) -> Tensor {
    let count: usize = extents.iter().product();
    let each = count / values.len().max(1);
    assert_eq!(each * values.len(), count, "{name}: {} values of {count}", values.len());
    let mut data = Data::zeros(elem, count);
    for at in 0..count {
        let value = values[at / each];
        let value = match elem {
            ir::Elem::Bool => Scalar::Bool(value != 0.0),
            ir::Elem::F32 | ir::Elem::Bf16 => Scalar::Real(value as f32),
            _ => Scalar::Int(value as i64),
        };
        assert!(data.put(at, value), "{name}: {value:?} is no {elem:?}");
    }
    Tensor::new(extents, data)
}

/// An element that a call has written; none for the negative position of what is absent.
fn number(left: &Left, at: usize) -> Option<f64> {
    let value = match left.tensor.get(at)? {
        Scalar::Bool(value) => f64::from(u8::from(value)),
        Scalar::Int(value) => value as f64,
        Scalar::Real(value) => value.into(),
        Scalar::Code(code) => code.into(),
        Scalar::Bits(bits) => bits as f64,
    };
    let is_absent = left.tensor.first().is_some_and(|data| data.elem() == "i32") && value < 0.0;
    (left.written[at] && !is_absent).then_some(value)
}

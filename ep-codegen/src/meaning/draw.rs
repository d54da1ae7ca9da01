//! Inputs drawn from a declaration: legal calls of a pipeline, from a seed.
//!
//! A handle is made by the pipeline that leaves it: that one is drawn and interpreted first, in the
//! choice of arms that records the tables. In such a chain a name is one thing: numbers, arms, sizes
//! and inputs of the same name, element type and extents are the same in every call, and an input that
//! an earlier call leaves as an output is that output.
//!
//! Values are those of the declared range; without one, small numbers of the element type.
//! `expert_begin`, which says where experts live, is the same on every rank.

mod drawn;
mod shape;
mod undrawn;
mod unranged;
mod values;

use std::collections::BTreeMap;

pub use drawn::Drawn;
pub use undrawn::Undrawn;

use super::data::{Scalar, Tensor};
use super::dice::Dice;
use super::world::World;
use super::{Function, Outcome, Rank};
use crate::ir::{
    Action, Arg, Choice, Number, Pipeline, Tensor as Declared, TensorKind, Transport, Values,
    WellKnown, text, walk,
};
use crate::plan::{Arch, Config, Numbers, PlanError};

/// Draws calls of pipelines that go together.
pub struct Drawing<'a> {
    /// The pipelines whose handles may be read, by name.
    known: &'a [&'a Pipeline],
    functions: &'a BTreeMap<String, &'a Function>,
    random: Dice,
    /// The most rows that a size without a range may have.
    rows: i64,
    /// Whether every size has the most rows that it may have.
    is_full: bool,
    /// The most rows that outputs hold beyond a size that the device reads.
    spare: i64,
    /// Numbers and arms so far.
    numbers: Numbers,
    arms: BTreeMap<String, String>,
    args: BTreeMap<String, Number>,
    sizes: BTreeMap<String, Vec<i64>>,
    copies: BTreeMap<String, i64>,
    carrier: Option<Transport>,
    /// Tensors by name, element type and extents: copies of each rank.
    tensors: BTreeMap<String, Vec<Vec<Tensor>>>,
    left: BTreeMap<String, Outcome>,
}

impl<'a> Drawing<'a> {
    /// Draws from a seed; `known` are the pipelines whose handles may be needed.
    pub fn new(
        seed: u64,
        known: &'a [&'a Pipeline],
        functions: &'a BTreeMap<String, &'a Function>,
    ) -> Drawing<'a> {
        Drawing {
            known,
            functions,
            random: Dice::new(seed),
            rows: 12,
            is_full: false,
            spare: 0,
            numbers: Numbers::new(),
            arms: BTreeMap::new(),
            args: BTreeMap::new(),
            sizes: BTreeMap::new(),
            copies: BTreeMap::new(),
            carrier: None,
            tensors: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// Fixes a number of the shape, or a tune.
    pub fn number(mut self, name: &str, value: i64) -> Drawing<'a> {
        self.numbers.insert(name.to_string(), value);
        self
    }

    /// Fixes an arm.
    pub fn arm(mut self, axis: &str, arm: &str) -> Drawing<'a> {
        self.arms.insert(axis.to_string(), arm.to_string());
        self
    }

    /// Fixes an input of `pipeline`, by rank.
    pub fn give(&mut self, pipeline: &Pipeline, name: &str, tensors: Vec<Tensor>) {
        if let Some(tensor) = pipeline.tensors.iter().find(|tensor| tensor.name == name) {
            let copies = tensors.into_iter().map(|tensor| vec![tensor]);
            self.tensors.insert(key(tensor), copies.collect());
        }
    }

    /// Fixes whatever [`Config::set`] takes.
    pub fn set(&mut self, pipeline: &Pipeline, name: &str, value: &str) -> Result<(), PlanError> {
        let mut config = Config::new(pipeline, Arch::Sm90a);
        config.set(pipeline, name, value)?;
        if let Some(arm) = config.arm(pipeline, name) {
            self.arms.insert(name.to_string(), arm.to_string());
        }
        self.numbers.extend(config.dims.into_iter().chain(config.tunes));
        self.args.extend(config.args);
        self.copies.extend(config.copies);
        self.carrier = config.carrier.or(self.carrier.take());
        Ok(())
    }

    /// Forgets sizes, tensors and handles: what is drawn next is another call in the same configuration,
    /// from a seed of its own.
    pub fn another(&mut self, seed: u64) {
        self.random = Dice::new(seed);
        self.sizes.clear();
        self.tensors.clear();
        self.left.clear();
    }

    /// The most rows that a size may have.
    pub fn rows(mut self, most: i64) -> Drawing<'a> {
        self.rows = most;
        self
    }

    /// Gives every size the most rows that it may have.
    pub fn full(mut self) -> Drawing<'a> {
        self.is_full = true;
        self
    }

    /// The most rows that outputs hold beyond a size that the device reads.
    pub fn spare(mut self, most: i64) -> Drawing<'a> {
        self.spare = most;
        self
    }

    /// Fixes a size, by rank.
    pub fn size(&mut self, name: &str, rows: Vec<i64>) {
        self.sizes.insert(name.to_string(), rows);
    }

    /// A legal call of `pipeline`.
    pub fn draw(&mut self, pipeline: &Pipeline) -> Result<Drawn, Undrawn> {
        let arms: Vec<String> = pipeline
            .axes
            .iter()
            .map(|axis| {
                let fixed = self.arms.get(&axis.name);
                let arms: Vec<&String> = axis.arms.iter().map(|arm| &arm.name).collect();
                match fixed.filter(|fixed| arms.contains(fixed)) {
                    Some(fixed) => fixed.clone(),
                    None => self.random.one_of(&arms).map_or(String::new(), |arm| (*arm).clone()),
                }
            })
            .collect();
        self.draw_choice(pipeline, &Choice { arms })
    }

    /// A legal call of `pipeline` with these arms.
    pub fn draw_choice(&mut self, pipeline: &Pipeline, choice: &Choice) -> Result<Drawn, Undrawn> {
        for (axis, arm) in pipeline.axes.iter().zip(&choice.arms) {
            self.arms.insert(axis.name.clone(), arm.clone());
        }
        let ir = pipeline.select_as_declared(choice);
        let mut config = Config::new(pipeline, Arch::Sm90a);
        config.choice = choice.clone();
        config.carrier = self.carrier;
        let numbers = self.shape(&ir, &mut config)?;
        for handle in &ir.uses {
            self.make_handle(&ir, handle)?;
        }
        let args = self.draw_args(&ir, &mut config);
        let count = usize::try_from(numbers.get(WellKnown::Ranks.name()).copied().unwrap_or(1))
            .unwrap_or(1);
        let mut drawn = Drawn { ir, config, numbers, args, ranks: vec![Rank::default(); count] };
        self.bring(&mut drawn)?;
        Ok(drawn)
    }

    /// Draws and interprets the pipeline that leaves a handle, once.
    fn make_handle(&mut self, ir: &Pipeline, handle: &str) -> Result<(), Undrawn> {
        let tables: Vec<&str> = ir
            .tensors
            .iter()
            .filter(|tensor| tensor.from_handle.as_deref() == Some(handle))
            .map(|tensor| tensor.name.as_str())
            .collect();
        let has_all = |rank: &BTreeMap<String, super::Left>| {
            tables.iter().all(|table| rank.contains_key(*table))
        };
        // Other arms than those that were drawn for an earlier reader may leave them.
        let is_made = |made: &Outcome| made.ranks.iter().all(has_all);
        if tables.is_empty() || self.left.get(handle).is_some_and(is_made) {
            return Ok(());
        }
        let missing = || Undrawn::Handle { pipeline: ir.name.clone(), handle: handle.to_string() };
        let maker = self.known.iter().find(|known| known.name == handle).ok_or_else(missing)?;
        let wanted = |choice: &Choice| {
            let arms = maker.axes.iter().zip(&choice.arms);
            arms.filter(|(axis, arm)| self.arms.get(&axis.name).is_some_and(|it| it != *arm))
                .count()
        };
        let mut fitting = maker.choices();
        fitting.retain(|choice| leaves(maker, choice, &tables));
        fitting.sort_by_key(wanted);
        let choice = fitting.first().cloned().ok_or_else(missing)?;
        // What the maker's arms are called is its own matter.
        let arms = self.arms.clone();
        // Tables of a handle have as many rows as their size says.
        let spare = std::mem::take(&mut self.spare);
        let drawn = self.draw_choice(maker, &choice)?;
        (self.arms, self.spare) = (arms, spare);
        let outcome = drawn.run(self.functions).map_err(|wrong| {
            let pipeline = handle.to_string();
            Undrawn::Wrong { pipeline, wrong }
        })?;
        for tensor in drawn.ir.tensors.iter().filter(|it| it.kind == TensorKind::Output) {
            let of = |left: &BTreeMap<String, super::Left>| {
                left.get(&tensor.name).map(|left| vec![left.tensor.clone()]).unwrap_or_default()
            };
            self.tensors.insert(key(tensor), outcome.ranks.iter().map(of).collect());
        }
        self.left.insert(handle.to_string(), outcome);
        Ok(())
    }

    fn draw_args(&mut self, ir: &Pipeline, config: &mut Config) -> BTreeMap<String, Scalar> {
        let mut args = BTreeMap::new();
        for arg in &ir.args {
            let drawn = self.draw_arg(arg);
            let value = *self.args.entry(arg.name.clone()).or_insert(drawn);
            config.args.insert(arg.name.clone(), value);
            let scalar = Scalar::of(value.of(&arg.elem));
            args.insert(arg.name.clone(), scalar);
        }
        args
    }

    /// One of the least values of an arg, or a greater one; those of an `f32` are sixteenths of their range.
    fn draw_arg(&mut self, arg: &Arg) -> Number {
        let (Some(low), Some(high)) = (arg.low.whole(), arg.high.whole()) else {
            let (low, high) = (arg.low.value(), arg.high.value());
            let step = (high - low).min(8.0) / 16.0;
            return Number::real((low + step * self.random.within(0, 17) as f64) as f32);
        };
        let few = low.saturating_add(8);
        let value = match self.random.within(low, high.min(few).saturating_add(1)) {
            // One of them stands for more than a warp has lanes.
            drawn if drawn == few => high.min(few.saturating_add(64)),
            drawn => drawn,
        };
        Number::Whole { value }
    }

    /// Sizes and tensors of every rank.
    fn bring(&mut self, drawn: &mut Drawn) -> Result<(), Undrawn> {
        for size in drawn.ir.sizes.clone() {
            if size.value.is_some() {
                continue;
            }
            let sizes = self.sizes_of(drawn, &size.name, &size.values)?;
            for (rank, rows) in drawn.ranks.iter_mut().zip(sizes) {
                rank.sizes.insert(size.name.clone(), rows);
            }
        }
        // Handles come first: sizes may be read from their tables.
        for tensor in &drawn.ir.tensors {
            let Some(outcome) = tensor.from_handle.as_ref().and_then(|it| self.left.get(it)) else {
                continue;
            };
            for (rank, left) in drawn.ranks.iter_mut().zip(&outcome.ranks) {
                if let Some(left) = left.get(&tensor.name) {
                    rank.tensors.insert(tensor.name.clone(), vec![left.tensor.clone()]);
                }
            }
        }
        for tensor in drawn.ir.tensors.clone() {
            match tensor.kind {
                TensorKind::Input | TensorKind::Inout => self.give_tensor(drawn, &tensor)?,
                TensorKind::Output if tensor.optional && self.copies_of(&tensor) == 0 => {
                    drawn.config.copies.insert(tensor.name.clone(), 0);
                    for rank in &mut drawn.ranks {
                        rank.without.insert(tensor.name.clone());
                    }
                }
                _ => {}
            }
        }
        self.draw_capacities(drawn);
        Ok(())
    }

    /// Outputs with a size that the device reads may hold more rows than that.
    fn draw_capacities(&mut self, drawn: &mut Drawn) {
        let problem = drawn.problem(self.functions);
        let world = World::sized(&problem);
        let mut capacities = Vec::new();
        for sizes in &world.sizes {
            let counted = drawn.ir.sizes.iter().filter(|size| size.value.is_some());
            let rows =
                counted.filter_map(|size| Some((&size.name, sizes.get(size.name.as_str())?)));
            capacities.push(Vec::from_iter(rows.map(|(name, rows)| (name.clone(), *rows))));
        }
        for (rank, capacities) in drawn.ranks.iter_mut().zip(capacities) {
            let more = |(name, rows)| (name, rows + self.random.within(0, self.spare + 1));
            rank.capacity.extend(capacities.into_iter().map(more));
        }
    }

    fn sizes_of(
        &mut self,
        drawn: &Drawn,
        name: &str,
        values: &Option<Values>,
    ) -> Result<Vec<i64>, Undrawn> {
        if let Some(sizes) = self.sizes.get(name) {
            return Ok(sizes.clone());
        }
        let (mut low, mut high) = (0, self.rows + 1);
        if let Some(values) = values {
            let range = drawn
                .range(self.functions, values)
                .map_err(|wrong| Undrawn::Wrong { pipeline: drawn.ir.name.clone(), wrong })?;
            (low, high) = (range.0, range.1.min(range.0.saturating_add(self.rows + 1)));
            if high <= low {
                let wanted = text::values_of(values);
                return Err(Undrawn::Values { name: name.to_string(), wanted });
            }
        }
        let mut rows = || if self.is_full { high - 1 } else { self.random.within(low, high) };
        let sizes: Vec<i64> = drawn.ranks.iter().map(|_| rows()).collect();
        self.sizes.insert(name.to_string(), sizes.clone());
        Ok(sizes)
    }

    /// How many copies of a tensor come.
    fn copies_of(&mut self, tensor: &Declared) -> i64 {
        let drawn = match (tensor.optional, tensor.copies) {
            (true, _) => self.random.within(0, 2),
            (_, 1) => return 1,
            (_, most) => self.random.within(0, most + 1),
        };
        *self.copies.entry(tensor.name.clone()).or_insert(drawn)
    }

    fn give_tensor(&mut self, drawn: &mut Drawn, tensor: &Declared) -> Result<(), Undrawn> {
        let copies = self.copies_of(tensor);
        if tensor.optional || tensor.copies > 1 {
            drawn.config.copies.insert(tensor.name.clone(), copies);
        }
        if copies == 0 {
            return Ok(());
        }
        let key = key(tensor);
        if !self.tensors.contains_key(&key) {
            let wrong = |wrong| Undrawn::Wrong { pipeline: drawn.ir.name.clone(), wrong };
            let rooms = drawn.rooms(self.functions, tensor).map_err(wrong)?;
            let range = tensor.values.as_ref().map(|it| drawn.range(self.functions, it));
            let range = range.transpose().map_err(wrong)?;
            let mut all = Vec::new();
            for room in rooms {
                let own: Result<Vec<Tensor>, Undrawn> =
                    (0..copies).map(|_| self.values(room.clone(), tensor, range)).collect();
                all.push(own?);
            }
            if let Some(word) = given_word(&drawn.ir, tensor) {
                all.iter_mut().flatten().for_each(|copy| all_words(copy, word));
            }
            if WellKnown::ExpertBegin.is(&tensor.name)
                && let Some(first) = all.first().cloned()
            {
                all.iter_mut().for_each(|own| own.clone_from(&first));
            }
            self.tensors.insert(key.clone(), all);
        }
        let all = self.tensors.get(&key).cloned().unwrap_or_default();
        for (rank, own) in drawn.ranks.iter_mut().zip(all) {
            rank.tensors.insert(tensor.name.clone(), own);
        }
        Ok(())
    }
}

/// What stands in the words of a tensor that a call waits for: all that has to come, or nothing yet where the
/// call raises them itself.
fn given_word(ir: &Pipeline, tensor: &Declared) -> Option<i64> {
    let is_awaited = walk::awaited_words(ir).iter().any(|word| word.name == tensor.name);
    let mut is_raised = false;
    for role in &ir.roles {
        walk::stmts(&role.body, &mut |stmt| {
            is_raised |= matches!(&stmt.action, Action::Raise { target }
                if target.tensor == tensor.name);
        });
    }
    is_awaited.then_some(if is_raised { 0 } else { i64::from(i32::MAX) })
}

fn all_words(words: &mut Tensor, value: i64) {
    let count = words.count();
    for part in &mut words.parts {
        for at in 0..count {
            part.data.put(at, Scalar::Int(value));
        }
    }
}

/// What makes two inputs of a chain the same one.
fn key(tensor: &Declared) -> String {
    let dims: Vec<String> = tensor.dims.iter().map(text::expr).collect();
    format!("{} {:?} {}", tensor.name, tensor.elem, dims.join(", "))
}

/// Whether a choice of arms declares and records all of these tables.
fn leaves(maker: &Pipeline, choice: &Choice, tables: &[&str]) -> bool {
    let ir = maker.select(choice);
    // Arms that read the tables of other arms do not leave any for those.
    let is_from = |it: &Declared| it.from_handle.as_deref() == Some(&maker.name);
    !ir.tensors.iter().any(is_from)
        && tables.iter().all(|table| {
            ir.roles.iter().any(|role| walk::writes(&role.body, table))
                && ir.tensors.iter().any(|it| it.name == *table && it.from_handle.is_none())
        })
}

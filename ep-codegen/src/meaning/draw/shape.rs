//! Numbers of drawn calls.

use super::{Drawing, Undrawn};
use crate::ir::{Dim, DimKind, Pipeline, WellKnown};
use crate::plan::{Arch, Config, Numbers, PlanError, resolve};

impl Drawing<'_> {
    /// Fixes what is still open in a pipeline: its first arms, tunes and args at their default, numbers of the shape
    /// by `number`, and all of its optional tensors.
    pub fn settle(&mut self, pipeline: &Pipeline, number: &dyn Fn(&Dim) -> i64) {
        let mut choice = Config::new(pipeline, Arch::Sm90a).choice;
        for (axis, arm) in pipeline.axes.iter().zip(&mut choice.arms) {
            let fixed = self.arms.entry(axis.name.clone()).or_insert_with(|| arm.clone());
            if axis.arms.iter().any(|own| own.name == *fixed) {
                arm.clone_from(fixed);
            }
        }
        for dim in &pipeline.dims {
            if matches!(dim.kind, DimKind::Given { .. }) {
                self.numbers.entry(dim.name.clone()).or_insert_with(|| number(dim));
            }
        }
        let Pipeline { tunes, args, tensors, .. } = pipeline.select(&choice);
        for tune in tunes {
            self.numbers.entry(tune.name).or_insert(tune.default);
        }
        for arg in args {
            self.args.entry(arg.name).or_insert(arg.default);
        }
        for tensor in tensors {
            self.copies.entry(tensor.name).or_insert(tensor.copies);
        }
    }

    /// Numbers of a legal shape: those that are fixed, others small.
    pub(super) fn shape(&mut self, ir: &Pipeline, config: &mut Config) -> Result<Numbers, Undrawn> {
        const TRIES: usize = 50;
        let mut last = None;
        for _ in 0..TRIES {
            for dim in &ir.dims {
                if let DimKind::Given { low, high, step } = dim.kind {
                    let value = self.dim(&dim.name, low, high, step);
                    config.dims.insert(dim.name.clone(), value);
                }
            }
            for tune in &ir.tunes {
                let fixed = self.numbers.get(&tune.name).copied();
                let common = self.common_choices(&tune.name).unwrap_or(tune.choices.clone());
                let drawn = self.random.one_of(&common).copied();
                config.tunes.insert(tune.name.clone(), fixed.or(drawn).unwrap_or(tune.default));
            }
            match resolve(ir, config) {
                Ok(numbers) => {
                    let all = numbers.iter().map(|(name, value)| (name.clone(), *value));
                    self.numbers.extend(all);
                    return Ok(numbers);
                }
                Err(error) => last = Some(error),
            }
        }
        let missing = PlanError::Missing { pipeline: ir.name.clone(), name: "shape".to_string() };
        Err(Undrawn::Shape(Box::new(last.unwrap_or(missing))))
    }

    /// What every tune of this name in the chain may be: a number of one pipeline is a tune of another.
    fn common_choices(&self, name: &str) -> Option<Vec<i64>> {
        let tunes = self.known.iter().flat_map(|known| &known.tunes);
        let lists = tunes.filter(|tune| tune.name == name).map(|tune| &tune.choices);
        let common = lists.cloned().reduce(|common, list| {
            common.into_iter().filter(|value| list.contains(value)).collect()
        });
        common.filter(|common| !common.is_empty())
    }

    fn dim(&mut self, name: &str, low: i64, high: i64, step: i64) -> i64 {
        if let Some(fixed) = self.numbers.get(name) {
            return *fixed;
        }
        let legal = |value: &i64| (low..=high).contains(value) && (value - low) % step.max(1) == 0;
        let common = self.common_choices(name).map(|list| list.into_iter().filter(legal));
        if let Some(tuned) =
            common.and_then(|list| self.random.one_of(&Vec::from_iter(list)).copied())
        {
            return tuned;
        }
        let is_of_nodes = WellKnown::Nodes.is(name) || WellKnown::LocalRanks.is(name);
        let most = match WellKnown::Experts.is(name) {
            true => 12,
            false if is_of_nodes => 2,
            false => 4,
        };
        let steps = ((high - low) / step.max(1)).min(most.max(1));
        low + step.max(1) * self.random.within(0, steps + 1)
    }
}

//! Small declarations, and what they mean.

mod channels;
mod drawn;
mod errors;
mod invented;
mod local;
mod networks;

use std::collections::BTreeMap;

use super::{Data, Function, Outcome, Problem, Rank, Scalar, Tensor, Wrong, run};
use crate::ir::Pipeline;
use crate::plan::{Arch, Config, Numbers, resolve};
use crate::{check, lower, syntax};

/// A declaration in one shape and choice of arms.
struct Case {
    ir: Pipeline,
    numbers: Numbers,
    ranks: Vec<Rank>,
    args: BTreeMap<String, Scalar>,
    functions: BTreeMap<String, Box<Function>>,
}

/// The pipeline that `items` declare; what the checker says is an error if `checked`.
fn declared(items: &str, checked: bool) -> Pipeline {
    let source = format!("pipeline P {{ {items} }}");
    let (file, mut errors) = syntax::parse(source.parse().expect("its brackets are balanced"));
    if checked {
        errors.extend(check::check(&file));
    }
    assert!(errors.is_empty(), "{}", errors.to_text(&source));
    lower::lower(&file, &file.pipelines[0])
}

impl Case {
    fn new(items: &str, sets: &[(&str, &str)], ranks: usize) -> Case {
        Case::of(declared(items, true), sets, ranks)
    }

    fn of(whole: Pipeline, sets: &[(&str, &str)], ranks: usize) -> Case {
        let mut config = Config::new(&whole, Arch::Sm90a);
        for (name, value) in sets {
            config.set(&whole, name, value).unwrap_or_else(|error| panic!("{error}"));
        }
        let ir = whole.select(&config.choice);
        let numbers = resolve(&ir, &config).unwrap_or_else(|error| panic!("{error}"));
        let ranks = vec![Rank::default(); ranks];
        Case { ir, numbers, ranks, args: BTreeMap::new(), functions: BTreeMap::new() }
    }

    fn size(mut self, name: &str, rows: &dyn Fn(usize) -> i64) -> Case {
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            rank.sizes.insert(name.to_string(), rows(at));
        }
        self
    }

    fn give(mut self, name: &str, tensor: &dyn Fn(usize) -> Tensor) -> Case {
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            rank.tensors.entry(name.to_string()).or_default().push(tensor(at));
        }
        self
    }

    fn run(&self) -> Result<Outcome, Wrong> {
        let functions =
            self.functions.iter().map(|(name, function)| (name.clone(), &**function)).collect();
        run(&Problem {
            ir: &self.ir,
            numbers: &self.numbers,
            args: &self.args,
            ranks: &self.ranks,
            functions: &functions,
        })
    }

    fn outcome(&self) -> Outcome {
        self.run().unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// What is said to it, without where.
    fn wrong(&self) -> String {
        match self.run() {
            Ok(_) => String::new(),
            Err(wrong) => wrong.fault.to_string(),
        }
    }
}

fn i32s(extents: &[usize], list: &[i32]) -> Tensor {
    Tensor::new(extents, Data::I32(list.to_vec()))
}

fn i64s(extents: &[usize], list: &[i64]) -> Tensor {
    Tensor::new(extents, Data::I64(list.to_vec()))
}

fn f32s(extents: &[usize], list: &[f32]) -> Tensor {
    Tensor::new(extents, Data::F32(list.to_vec()))
}

fn bools(extents: &[usize], list: &[bool]) -> Tensor {
    Tensor::new(extents, Data::Bool(list.to_vec()))
}

fn bf16s(extents: &[usize], list: &[f32]) -> Tensor {
    let bits = list.iter().map(|value| super::round::f32_to_bf16(*value)).collect();
    Tensor::new(extents, Data::Bf16(bits))
}

/// Whole numbers that a rank's tensor holds; those not written are `i64::MIN`.
fn ints(outcome: &Outcome, rank: usize, name: &str) -> Vec<i64> {
    let left = &outcome.ranks[rank][name];
    (0..left.tensor.count())
        .map(|at| match left.tensor.get(at) {
            _ if !left.written[at] => i64::MIN,
            Some(Scalar::Int(value)) => value,
            Some(Scalar::Bool(value)) => value.into(),
            other => panic!("{other:?} is no whole number"),
        })
        .collect()
}

/// Floats that a rank's tensor holds.
fn reals(outcome: &Outcome, rank: usize, name: &str) -> Vec<f32> {
    let left = &outcome.ranks[rank][name];
    let value = |at| match left.tensor.get(at) {
        Some(Scalar::Real(value)) => value,
        other => panic!("{other:?} is no float"),
    };
    (0..left.tensor.count()).map(value).collect()
}

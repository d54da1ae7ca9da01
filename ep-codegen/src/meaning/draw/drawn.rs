//! A drawn call, and what the interpreter does with it.

use std::collections::BTreeMap;

use super::super::data::{Scalar, Tensor};
use super::super::world::World;
use super::super::wrong::Found;
use super::super::{Function, Outcome, Problem, Rank, Wrong, run};
use super::unranged;
use crate::ir::{Pipeline, Tensor as Declared, Values};
use crate::plan::{Config, Numbers};

/// A legal call of a pipeline.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// The selected pipeline.
    pub ir: Pipeline,
    /// Arms, numbers, args and copies, as a plan takes them.
    pub config: Config,
    /// Numbers of the shape, derived ones included.
    pub numbers: Numbers,
    /// Args that were drawn.
    pub args: BTreeMap<String, Scalar>,
    /// The tensors and sizes of each rank.
    pub ranks: Vec<Rank>,
}

impl Drawn {
    /// The call in the form that the interpreter takes.
    pub fn problem<'a>(&'a self, functions: &'a BTreeMap<String, &'a Function>) -> Problem<'a> {
        Problem {
            ir: &self.ir,
            numbers: &self.numbers,
            args: &self.args,
            ranks: &self.ranks,
            functions,
        }
    }

    /// Interprets the call. Returns the outputs and tables of all ranks.
    pub fn run(&self, functions: &BTreeMap<String, &Function>) -> Result<Outcome, Wrong> {
        run(&self.problem(functions)).map_err(|mut wrong| {
            wrong.help = unranged::proposal(&self.ir, &wrong);
            wrong
        })
    }

    /// The most rows that a size may have, if its declaration says so.
    pub fn most_rows(
        &self,
        functions: &BTreeMap<String, &Function>,
        size: &str,
    ) -> Result<Option<i64>, Wrong> {
        let size = self.ir.sizes.iter().find(|it| it.name == size);
        let values = size.and_then(|size| size.values.as_ref());
        let range = values.map(|values| self.range(functions, values)).transpose()?;
        Ok(range.map(|(_, end, _)| end - 1))
    }

    /// The ends of a range, and the greatest step.
    pub(super) fn range(
        &self,
        functions: &BTreeMap<String, &Function>,
        values: &Values,
    ) -> Result<(i64, i64, i64), Wrong> {
        let problem = self.problem(functions);
        let range = World::sized(&problem).range(values);
        range.map_err(Wrong::of_call)
    }

    /// Room for a tensor on every rank.
    pub(super) fn rooms(
        &self,
        functions: &BTreeMap<String, &Function>,
        tensor: &Declared,
    ) -> Result<Vec<Tensor>, Wrong> {
        let problem = self.problem(functions);
        let world = World::sized(&problem);
        let room = |rank| {
            let extents = world.extents(rank, tensor)?;
            Ok(Tensor::zeros(&extents, &world.parts(&tensor.elem)))
        };
        let rooms: Found<Vec<Tensor>> = (0..self.ranks.len()).map(room).collect();
        rooms.map_err(Wrong::of_call)
    }
}

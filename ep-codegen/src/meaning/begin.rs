//! The beginning of a call: what was given is what was declared, and there is room for the rest.

use std::collections::BTreeSet;

use super::Problem;
use super::data::Tensor;
use super::eval::{Actor, Eval};
use super::memory::Memory;
use super::open::{OpenElement, Touched};
use super::value::Parts;
use super::world::World;
use super::wrong::{Fault, Found, Stop};
use crate::ir::{
    Action, Expr, NameKind, Number, Tensor as Declared, TensorKind, Values, text, walk,
};

impl<'p> World<'p> {
    /// Lays out the tensors of every rank.
    pub(super) fn begin(&mut self) -> Found<()> {
        self.args()?;
        for rank in 0..self.problem.ranks.len() {
            self.ranks.push(Default::default());
            self.sizes.push(Default::default());
            if self.alive(rank) {
                self.take(rank)?;
                self.given_rows(rank)?;
                self.begin_phase(&Actor::of_begin(rank))?;
                self.check(rank)?;
            }
        }
        self.check_ranges()
    }

    /// Computes the sizes that are known from the actor's phase on, and makes room for what has these sizes.
    pub(super) fn begin_phase(&mut self, actor: &Actor) -> Found<()> {
        for size in &self.ir.sizes {
            let is_known = self.sizes[actor.rank].contains_key(size.name.as_str());
            let waits = self.ir.known_from(size) > actor.hand.phase();
            if let Some(value) = size.value.as_ref().filter(|_| !is_known && !waits) {
                let rows = self.whole(actor, value)?;
                self.sizes[actor.rank].insert(&size.name, rows);
            }
        }
        self.make(actor.rank)
    }

    /// What is known of a call that is still being made: the tensors and sizes that are there.
    pub(super) fn sized(problem: &'p Problem<'p>) -> World<'p> {
        let mut world = World::new(problem, &BTreeSet::new());
        for rank in problem.ranks {
            let given = world.ir.tensors.iter().filter_map(|tensor| {
                let copies = rank.tensors.get(&tensor.name)?;
                Some((tensor.name.as_str(), Memory::given(tensor.kind, copies.clone())))
            });
            let given = given.collect();
            world.ranks.push(given);
            let sizes = world.ir.sizes.iter();
            let sizes =
                sizes.filter_map(|size| Some((size.name.as_str(), *rank.sizes.get(&size.name)?)));
            let sizes = sizes.collect();
            world.sizes.push(sizes);
        }
        for rank in 0..problem.ranks.len() {
            for size in &problem.ir.sizes {
                if let Some(Ok(rows)) = size.value.as_ref().map(|value| world.at_rank(rank, value))
                {
                    world.sizes[rank].insert(&size.name, rows);
                }
            }
        }
        world
    }

    fn args(&self) -> Found<()> {
        for arg in &self.ir.args {
            let value = match self.problem.args.get(&arg.name) {
                None => continue,
                Some(super::Scalar::Int(value)) => Number::Whole { value: *value }.of(&arg.elem),
                Some(super::Scalar::Real(value)) => Number::real(*value),
                Some(_) => Number::real(f32::NAN),
            };
            if !value.is_within(arg.low, arg.high) {
                let (name, wanted) = (arg.name.clone(), format!("{}..={}", arg.low, arg.high));
                return Err(Fault::Arg { name, value: value.to_string(), wanted }.into());
            }
        }
        Ok(())
    }

    /// Outputs and tables that are counted in: they start at zero.
    fn zeroed(&self) -> Vec<&'p str> {
        let mut names = Vec::new();
        for role in &self.ir.roles {
            walk::stmts(&role.body, &mut |stmt| {
                if let Action::Count { target } | Action::Add { target, .. } = &stmt.action {
                    names.push(target.tensor.as_str());
                }
            });
        }
        names
    }

    /// Takes the tensors that the caller brings.
    fn take(&mut self, rank: usize) -> Found<()> {
        for tensor in self.ir.tensors.iter().filter(|tensor| is_given(tensor)) {
            let given = self.problem.ranks[rank].tensors.get(&tensor.name);
            let copies = given.cloned().unwrap_or_default();
            if copies.is_empty() && tensor.copies == 1 {
                if tensor.optional {
                    continue;
                }
                let name = tensor.name.clone();
                return Err(Fault::Missing { what: "tensor", name }.into());
            }
            let memory = Memory::given(tensor.kind, copies);
            self.ranks[rank].insert(&tensor.name, memory);
        }
        Ok(())
    }

    /// The sizes that the caller of a rank gives.
    fn given_rows(&mut self, rank: usize) -> Found<()> {
        for size in self.ir.sizes.iter().filter(|size| size.value.is_none()) {
            let missing = || Fault::Missing { what: "size", name: size.name.clone() };
            let given = self.problem.ranks[rank].sizes.get(&size.name).copied();
            let rows = given.ok_or_else(missing)?;
            self.sizes[rank].insert(&size.name, rows);
            if rows < 0 {
                let (name, wanted) = (size.name.clone(), "0 or more".to_string());
                return Err(Fault::Arg { name, value: rows.to_string(), wanted }.into());
            }
        }
        Ok(())
    }

    /// A whole number over the shape, sizes and given tensors of a rank.
    pub(super) fn at_rank(&self, rank: usize, expr: &'p Expr) -> Found<i64> {
        self.whole(&Actor::of_begin(rank), expr)
    }

    fn whole(&self, actor: &Actor, expr: &'p Expr) -> Found<i64> {
        let touched = Default::default();
        Eval { world: self, actor, binds: &mut Vec::new(), touched }.whole(expr)
    }

    /// The extents of a tensor on a rank.
    pub(super) fn extents(&self, rank: usize, tensor: &'p Declared) -> Found<Vec<usize>> {
        tensor
            .dims
            .iter()
            .map(|dim| {
                let extent = self.at_rank(rank, dim)?;
                usize::try_from(extent).map_err(|_| {
                    Fault::Number { text: text::expr(dim), left: extent, right: 0 }.into()
                })
            })
            .collect()
    }

    /// Compares what was given with its declaration.
    fn check(&self, rank: usize) -> Found<()> {
        for tensor in self.ir.tensors.iter().filter(|tensor| is_given(tensor)) {
            let Some(memory) = self.ranks[rank].get(tensor.name.as_str()) else { continue };
            let extents = self.extents(rank, tensor)?;
            let parts = self.parts(&tensor.elem);
            let model = Tensor::zeros(&extents, &parts);
            for copy in &memory.copies {
                if words(copy) != words(&model) || !copy.is_whole() {
                    let (wanted, found) = (words(&model), words(copy));
                    return Err(Fault::Given { tensor: tensor.name.clone(), wanted, found }.into());
                }
            }
            if memory.copies.len() as i64 > tensor.copies {
                let wanted = format!("up to {}", tensor.copies);
                let found = format!("{} copies", memory.copies.len());
                return Err(Fault::Given { tensor: tensor.name.clone(), wanted, found }.into());
            }
        }
        Ok(())
    }

    /// The range of a tensor's values: the ends, and the greatest step of an ascending row. A size in
    /// it is the least of all ranks, so that a value is one on every rank.
    pub(super) fn range(&self, values: &'p Values) -> Found<(i64, i64, i64)> {
        let there = (0..self.problem.ranks.len()).filter(|rank| self.alive(*rank));
        let (mut low, mut high, mut step) = (i64::MIN, i64::MAX, i64::MAX);
        for rank in there {
            low = low.max(self.at_rank(rank, &values.low)?);
            high = high.min(self.at_rank(rank, &values.high)?);
            if let Some(most) = &values.step {
                step = step.min(self.at_rank(rank, most)?);
            }
        }
        Ok((low, high, step))
    }

    /// Looks at every value of an input with a range.
    fn check_ranges(&self) -> Found<()> {
        for size in &self.ir.sizes {
            let Some(values) = &size.values else { continue };
            let (low, high, _) = self.range(values)?;
            let given = self.sizes.iter().filter_map(|sizes| sizes.get(size.name.as_str()));
            if let Some(rows) = given.copied().find(|rows| !(low..high).contains(rows)) {
                let (name, wanted) = (size.name.clone(), format!("{low}..{high}"));
                return Err(Fault::Arg { name, value: rows.to_string(), wanted }.into());
            }
        }
        for tensor in &self.ir.tensors {
            let Some(values) = &tensor.values else { continue };
            let range = self.range(values)?;
            for tensors in &self.ranks {
                let Some(memory) = tensors.get(tensor.name.as_str()) else { continue };
                for copy in &memory.copies {
                    if let Some(at) = unfit(copy, values, range) {
                        return Err(Fault::Range {
                            tensor: tensor.name.clone(),
                            index: super::open::unflat(&copy.extents, at),
                            value: whole(copy, at),
                            wanted: text::values_of(values).trim_start().to_string(),
                        }
                        .into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes room for what the call writes, where all sizes are known and there is none yet.
    fn make(&mut self, rank: usize) -> Found<()> {
        let zeroed = self.zeroed();
        for tensor in self.ir.tensors.iter().filter(|tensor| !is_given(tensor)) {
            let mut is_left_out = self.ranks[rank].contains_key(tensor.name.as_str())
                || (tensor.optional && self.problem.ranks[rank].without.contains(&tensor.name));
            tensor.dims.iter().for_each(|dim| {
                walk::expr(dim, &mut |part| {
                    is_left_out |= matches!(part, Expr::Name { name, kind: NameKind::Size }
                        if !self.sizes[rank].contains_key(name.as_str()));
                });
            });
            if is_left_out {
                continue;
            }
            let extents = self.extents(rank, tensor)?;
            let parts: Parts = self.parts(&tensor.elem);
            let zero = zeroed.contains(&tensor.name.as_str());
            let memory = Memory::made(tensor.kind, &extents, &parts, zero);
            self.ranks[rank].insert(&tensor.name, memory);
        }
        Ok(())
    }

    /// What a rank's call leaves in a tensor.
    pub(super) fn left(&mut self, rank: usize, tensor: &'p Declared) -> Option<super::Left> {
        let memory = self.ranks.get_mut(rank)?.remove(tensor.name.as_str())?;
        let capacity = match tensor.dims.first() {
            Some(Expr::Name { name, .. }) => self.problem.ranks.get(rank)?.capacity.get(name),
            _ => None,
        };
        let capacity = capacity.and_then(|rows| usize::try_from(*rows).ok());
        let mut left = memory.left(capacity, tensor.fill)?;
        if self.ir.is_of_waits(&tensor.name) {
            // How long a call waits is no matter of what it means.
            let any = OpenElement { place: Touched::Nothing, value: Touched::Many };
            left.open = (0..left.written.len()).map(|at| (at, any)).collect();
            left.written.fill(false);
        }
        Some(left)
    }
}

/// Whether the caller brings a tensor.
fn is_given(tensor: &Declared) -> bool {
    tensor.from_handle.is_some() || matches!(tensor.kind, TensorKind::Input | TensorKind::Inout)
}

/// Element `at` of a tensor of whole numbers.
fn whole(tensor: &Tensor, at: usize) -> i64 {
    match tensor.get(at) {
        Some(super::Scalar::Int(value)) => value,
        _ => 0,
    }
}

/// The first element that a declared range does not allow.
fn unfit(tensor: &Tensor, values: &Values, (low, high, step): (i64, i64, i64)) -> Option<usize> {
    let width = tensor.extents.last().copied().unwrap_or(1).max(1);
    (0..tensor.count()).find(|at| {
        let (value, place) = (whole(tensor, *at), at % width);
        let rises = |before: i64| (before..=before.saturating_add(step)).contains(&value);
        let ascends = match place {
            0 => value == low,
            _ => rises(whole(tensor, at - 1)),
        };
        let ends = place + 1 < width || value + 1 == high;
        let row = at - place..*at;
        let is_new = value == -1 || row.into_iter().all(|other| whole(tensor, other) != value);
        !(low..high).contains(&value)
            || (values.ascending && !(ascends && ends))
            || (values.distinct && !is_new)
    })
}

/// Element types and extents in words.
fn words(tensor: &Tensor) -> String {
    let parts: Vec<String> = tensor
        .parts
        .iter()
        .map(|part| match part.block {
            0 | 1 => part.data.elem().to_string(),
            block => format!("{} block {block}", part.data.elem()),
        })
        .collect();
    format!("{}{:?}", parts.join(" and "), tensor.extents)
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Fault {
        match stop {
            Stop::Wrong(fault) => fault,
            Stop::Wait(wait) => Fault::NeverSent { wait },
            Stop::Absent => Fault::Missing { what: "tensor", name: "an optional one".to_string() },
            Stop::Open(_) => Fault::Form { text: "an order".to_string() },
        }
    }
}

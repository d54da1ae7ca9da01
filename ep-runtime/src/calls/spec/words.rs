//! What a call brings, checked and written to the list of its numbers.

use std::sync::Arc;

use ep_codegen::ir;
use ep_codegen::plan::PlanError;

use super::super::fit::{Dim, Kind, TensorSpec};
use super::super::held::{Held, PlaceSet};
use super::{CallSpec, Sizes, WORDS};
use crate::error::{CallError, TensorFault};
use crate::tensor::{Given, TensorMemory};

/// The address of tensors without elements that have none: the first line that is not at 0.
const NOWHERE: u64 = 128;

impl CallSpec {
    /// Checks what a call gives, and writes it to the list of its numbers, with what it holds. Gives its
    /// sizes, and whether it brings no place for some table. `window`: the address and the bytes of the
    /// kernel's window.
    pub(in crate::calls) fn bind(
        &self,
        held: &[&Held],
        given: &[Option<Given<'_>>],
        numbers: &[u64],
        window: (u64, u64),
        values: &mut [u64],
    ) -> Result<(Sizes, bool), CallError> {
        let (args, said) = numbers.split_at(self.args.len().min(numbers.len()));
        let sizes = self.bind_sizes(held, given, said, values)?;
        let mut covered = PlaceSet::default();
        for held in held {
            covered.add(&held.covered);
            held.words.iter().for_each(|(at, word)| values[*at] = *word);
        }
        self.left_out.iter().for_each(|place| values[WORDS * place] = 0);
        let mut wrong = None;
        for (place, given) in given.iter().enumerate() {
            let Some(given) = given else { continue };
            covered.insert(place);
            match self.words(place, given, &sizes, window) {
                Ok(Some(words)) => values[WORDS * place..][..WORDS].copy_from_slice(&words),
                Ok(None) => {}
                Err(fault) => wrong = wrong.or(Some((place, fault))),
            }
        }
        // What is absent may be what would have told how many rows the others have: it is said first.
        let absent = self.required.beyond(&covered).map(|place| (place, TensorFault::Absent));
        if let Some((place, fault)) = absent.or(wrong) {
            return Err(self.refused(place, fault));
        }
        self.bind_copies(given, values)?;
        self.bind_args(args, values)?;
        Ok((sizes, self.own_tables.beyond(&covered).is_some()))
    }

    /// Checks what many calls will bring.
    pub(in crate::calls) fn hold(
        &self,
        given: &[Option<Given<'_>>],
        window: (u64, u64),
    ) -> Result<Held, CallError> {
        let mut held = Held::default();
        let given = || given.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?)));
        for (place, given) in given() {
            if self.varies(place) {
                let (pipeline, name) = (&self.pipeline, self.names[place].name);
                let what = format!("{pipeline}: `{name}` is a different tensor in each call");
                return Err(CallError::Mismatch { what });
            }
            held.covered.insert(place);
            let words = self.words(place, given, &self.most, window);
            let Some(words) = words.map_err(|fault| self.refused(place, fault))? else { continue };
            let words = (WORDS * place..).zip(words);
            held.words.extend(words.filter(|(at, _)| self.is_read[*at]));
        }
        for (rows, size) in held.rows.iter_mut().zip(&self.sizes) {
            let holders = given().filter(|(place, _)| size.holders.contains(place));
            *rows = holders.filter_map(|(_, it)| it.extents.first().copied()).fold(*rows, u64::min);
        }
        Ok(held)
    }

    /// Whether a tensor is part of what tells calls apart: how many there are of it or of what it says, or
    /// how its elements lie.
    fn varies(&self, place: usize) -> bool {
        let is_copy =
            |(_, first, count): &(_, usize, usize)| (*first..first + count).contains(&place);
        let lies = |spec: &TensorSpec| {
            spec.dims.iter().skip(1).any(|dim| matches!(dim, Dim::Said(_) | Dim::Found(_)))
        };
        self.copies.iter().any(is_copy)
            || self.sizes.iter().any(|size| size.told_by.contains(&place))
            || self.tensors[place].as_ref().is_some_and(lies)
    }

    /// The words of a tensor in the list of numbers, or why no call takes it; none for a table of a handle
    /// that the chosen arms do not read.
    fn words(
        &self,
        place: usize,
        given: &Given<'_>,
        sizes: &Sizes,
        (at, bytes): (u64, u64),
    ) -> Result<Option<[u64; WORDS]>, TensorFault> {
        let Some(spec) = self.tensors.get(place).and_then(Option::as_ref) else {
            let is_ignored = self.of_handles.get(place).is_some_and(|is_table| *is_table);
            return if is_ignored { Ok(None) } else { Err(TensorFault::NotTaken) };
        };
        spec.check(given, sizes)?;
        // To a kernel 0 is a tensor that is absent on all ranks, while this one is there and has no elements.
        let address = if given.address == 0 { NOWHERE } else { given.address };
        let ([row, column], mut offset) = (spec.apart(given), 0);
        if spec.kind == Kind::Window && !given.extents.contains(&0) {
            let inside = address.checked_sub(at).filter(|offset| *offset < bytes);
            offset = inside.ok_or(TensorFault::OutsideWindow { address })?;
        }
        Ok(Some([address, row, column, offset]))
    }

    #[cold]
    fn refused(&self, place: usize, fault: TensorFault) -> CallError {
        let tensor = match self.tensors.get(place) {
            Some(Some(spec)) => spec.name.clone(),
            _ => self.names.get(place).map_or("a tensor", |name| name.name).to_string(),
        };
        CallError::Tensor { pipeline: self.pipeline.clone(), tensor, fault }
    }

    /// How many copies of its tensors a call brings. Kernels know one row stride for all of them.
    fn bind_copies(
        &self,
        given: &[Option<Given<'_>>],
        values: &mut [u64],
    ) -> Result<(), CallError> {
        for (index, (name, first, count)) in self.copies.iter().enumerate() {
            let copies = || given[*first..first + count].iter().flatten();
            let row = |copy: &Given<'_>| copy.strides.first().copied();
            if copies().any(|copy| Some(row(copy)) != copies().next().map(row)) {
                let what =
                    format!("{}: all tensors of `{name}` need the same row stride", self.pipeline);
                return Err(CallError::Mismatch { what });
            }
            values[self.copies_at() + index] = copies().count() as u64;
        }
        Ok(())
    }

    /// The sizes of a call: what its inputs have, or what it says, and how many rows its outputs hold.
    fn bind_sizes(
        &self,
        held: &[&Held],
        given: &[Option<Given<'_>>],
        said: &[u64],
        values: &mut [u64],
    ) -> Result<Sizes, CallError> {
        let mut sizes = self.most;
        let mut said = said.chunks(2);
        for (index, size) in self.sizes.iter().enumerate() {
            let rows = |place: &usize| {
                given
                    .get(*place)
                    .and_then(Option::as_ref)
                    .and_then(|it| it.extents.first().copied())
            };
            let [from, own] = match size.is_said.then(|| said.next()).flatten() {
                Some([from, own]) => [*from, *own],
                _ => [0, size.most],
            };
            let need = match size.is_said {
                true => size.told_by.iter().find_map(rows).unwrap_or(own),
                false => {
                    let held = held.iter().map(|held| held.rows[index]);
                    held.chain(size.holders.iter().filter_map(rows)).fold(size.most, u64::min)
                }
            };
            if need > size.most {
                return Err(CallError::TooLarge { what: size.name, need, have: size.most });
            }
            sizes[index] = need;
            values[self.size_at(index)] = need;
            values[self.size_at(index) + 1] = from;
        }
        Ok(sizes)
    }

    fn bind_args(&self, args: &[u64], values: &mut [u64]) -> Result<(), CallError> {
        let at = self.args_at();
        for (index, ((is_taken, arg), value)) in self.args.iter().zip(args).enumerate() {
            let given = match arg.elem {
                ir::Elem::F32 => ir::Number::Real { bits: *value as u32 },
                _ => ir::Number::Whole { value: *value as i64 },
            };
            if *is_taken && !given.is_within(arg.low, arg.high) {
                return Err(CallError::Plan(PlanError::OutOfRange {
                    pipeline: self.pipeline.clone(),
                    name: arg.name.clone(),
                    value: given.to_string(),
                    allowed: format!("{}..={}", arg.low, arg.high),
                }));
            }
            values[at + index] = *value;
        }
        Ok(())
    }

    /// Writes where the tables lie in `place`.
    pub(in crate::calls) fn bind_tables(&self, place: &Arc<TensorMemory>, values: &mut [u64]) {
        let TensorMemory::Device(memory) = place.as_ref() else { return };
        for (place, spec) in self.tensors.iter().enumerate() {
            if let Some(spec) = spec.as_ref().filter(|spec| spec.kind == Kind::Table) {
                values[WORDS * place] = memory.address() + spec.at;
            }
        }
    }
}

//! The tensors of one rank: what was given, what has been written, and by whom.

use std::collections::BTreeMap;

use super::data::{Part, Scalar, Tensor};
use super::open::{Left, OpenElement, Touched, unflat};
use super::value::{Parts, Value, shown};
use super::wrong::{Fault, Found};
use crate::ir::TensorKind;

/// Who is at work: one turn of what a role's warps share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hand {
    /// Number of the instance.
    pub(super) id: u32,
    /// What runs later has a greater one: phases, and the last block behind all others.
    pub(super) wave: u32,
}

impl Hand {
    /// Index of the phase.
    pub(super) fn phase(self) -> usize {
        self.wave as usize / 2
    }
}

/// Who has written an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Nobody,
    /// The caller, or a counter's zero.
    Caller,
    Once(Hand),
    /// Several hands, of this wave at the latest.
    Many(u32),
}

/// A tensor that a rank holds.
#[derive(Debug)]
pub(super) struct Memory {
    /// What it is to the pipeline; a handle's table is an input.
    kind: TensorKind,
    /// Copies of an `up to n` input; one of all others.
    pub(super) copies: Vec<Tensor>,
    /// Of the first part.
    marks: Vec<Mark>,
    /// Adds of `f32` to an element in this call, and the sum of their magnitudes.
    adds: BTreeMap<usize, (u32, f32)>,
    open: BTreeMap<usize, OpenElement>,
}

impl Memory {
    /// What the caller gives: an input, a handle's table, an inout.
    pub(super) fn given(kind: TensorKind, copies: Vec<Tensor>) -> Memory {
        let count = copies.first().map_or(0, Tensor::count);
        Memory::new(kind, copies, vec![Mark::Caller; count])
    }

    /// What the call makes; a tensor that is counted in starts at zero.
    pub(super) fn made(kind: TensorKind, extents: &[usize], parts: &Parts, zero: bool) -> Memory {
        let tensor = Tensor::zeros(extents, parts);
        let mark = if zero { Mark::Caller } else { Mark::Nobody };
        let marks = vec![mark; tensor.count()];
        Memory::new(kind, vec![tensor], marks)
    }

    fn new(kind: TensorKind, copies: Vec<Tensor>, marks: Vec<Mark>) -> Memory {
        Memory { kind, copies, marks, adds: BTreeMap::new(), open: BTreeMap::new() }
    }

    /// The first element under `indices`, and how many there are.
    pub(super) fn span(&self, name: &str, indices: &[i64]) -> Found<(usize, usize)> {
        let extents = self.copies.first().map(|copy| copy.extents.as_slice()).unwrap_or_default();
        let mut start = 0;
        for (axis, index) in indices.iter().enumerate() {
            let extent = extents.get(axis).copied().unwrap_or(0);
            let place = usize::try_from(*index).ok().filter(|index| *index < extent);
            let Some(place) = place else {
                let (of, extent) = (name.to_string(), extent as i64);
                return Err(Fault::Index { of, axis, index: *index, extent }.into());
            };
            start = start * extent + place;
        }
        let inner: usize = extents.get(indices.len()..).unwrap_or_default().iter().product();
        Ok((start * inner, inner))
    }

    /// The element or row at `indices` of a copy.
    pub(super) fn read(
        &self,
        name: &str,
        copy: usize,
        indices: &[i64],
        hand: Hand,
    ) -> Found<(Value, Touched)> {
        let (start, count) = self.span(name, indices)?;
        let Some(tensor) = self.copies.get(copy) else { return Err(super::wrong::Stop::Absent) };
        for at in start..start + count {
            let index = || (name.to_string(), unflat(&tensor.extents, at));
            let (tensor, index) = match self.marks.get(at) {
                Some(Mark::Caller) | None => continue,
                Some(Mark::Once(other)) if other.id == hand.id || other.wave < hand.wave => {
                    continue;
                }
                Some(Mark::Many(wave)) if *wave < hand.wave => continue,
                Some(Mark::Nobody) => {
                    let (tensor, index) = index();
                    return Err(Fault::NeverWritten { tensor, index }.into());
                }
                Some(_) => index(),
            };
            return Err(Fault::ReadAcross { tensor, index }.into());
        }
        let touched =
            self.open.range(start..start + count).fold(Touched::Nothing, |all, (_, one)| match one
                .place
            {
                Touched::Nothing => all.and(one.value),
                _ => Touched::Many,
            });
        // A sum in no fixed order has no fixed last bits.
        let is_loose = |at| self.adds.get(&at).is_some_and(|(adds, _)| *adds > 1);
        let touched = if (start..start + count).any(is_loose) { Touched::Many } else { touched };
        if count == 1 && indices.len() == tensor.extents.len() && tensor.parts.len() == 1 {
            return Ok((tensor.get(start).map_or(Value::int(0), Value::One), touched));
        }
        Ok((Value::of(tensor.under(indices.len(), start)), touched))
    }

    /// An element that others raise meanwhile, and which one it is.
    pub(super) fn word(&self, name: &str, indices: &[i64]) -> Found<(Value, usize)> {
        let (start, _) = self.span(name, indices)?;
        let found = self.copies.first().and_then(|copy| copy.get(start));
        found.map(|value| (Value::One(value), start)).ok_or(super::wrong::Stop::Absent)
    }

    /// The extents under `depth` indices.
    pub(super) fn extents(&self, depth: usize) -> &[usize] {
        let extents = self.copies.first().map(|copy| copy.extents.as_slice()).unwrap_or_default();
        extents.get(depth..).unwrap_or_default()
    }

    /// `store` and `record`.
    pub(super) fn write(
        &mut self,
        name: &str,
        indices: &[i64],
        value: &Tensor,
        hand: Hand,
        touched: OpenElement,
    ) -> Found<()> {
        let (start, count) = self.span(name, indices)?;
        let Some(tensor) = self.copies.first_mut() else { return Ok(()) };
        for at in 0..count {
            let (old, new) = (tensor.get(start + at), value.get(at));
            let is_same = tensor.first().and_then(|data| data.bits(start + at))
                == value.first().and_then(|data| data.bits(at));
            let fine = match self.marks[start + at] {
                Mark::Nobody | Mark::Caller => true,
                Mark::Once(other) => {
                    other.wave < hand.wave
                        || (other.id == hand.id && (is_same || self.kind == TensorKind::Inout))
                }
                Mark::Many(wave) => wave < hand.wave,
            };
            if !fine {
                let words = |value: Option<Scalar>| value.map_or(String::new(), shown);
                let (tensor, index) = (name.to_string(), unflat(&tensor.extents, start + at));
                let (first, second) = (words(old), words(new));
                return Err(Fault::WrittenTwice { tensor, index, first, second }.into());
            }
            self.marks[start + at] = Mark::Once(hand);
            self.open.remove(&(start + at));
            if touched != OpenElement::default() {
                self.open.insert(start + at, touched);
            }
        }
        put(tensor, indices.len(), start, value);
        Ok(())
    }

    /// Where a message in no fixed order would have been written, had a condition not left it out: in a
    /// call, another one may be there.
    pub(super) fn leave_out(&mut self, name: &str, indices: &[i64], place: Touched) -> Found<()> {
        let (start, count) = self.span(name, indices)?;
        for at in start..start + count {
            let open = OpenElement { place, value: Touched::Nothing };
            self.open.entry(at).or_insert(open);
        }
        Ok(())
    }

    /// `add` and `count`: `value` goes on top of what is there.
    pub(super) fn add(
        &mut self,
        name: &str,
        indices: &[i64],
        value: &Tensor,
        hand: Hand,
        touched: OpenElement,
    ) -> Found<()> {
        let (start, count) = self.span(name, indices)?;
        let Some(tensor) = self.copies.first_mut() else { return Ok(()) };
        for at in 0..count {
            let (Some(old), Some(more)) = (tensor.get(start + at), value.get(at)) else { continue };
            let sum = super::value::binary(&crate::ir::BinaryOp::Add, old, more, name)?;
            let Some(part) = tensor.parts.first_mut() else { continue };
            if part.data.set(start + at, sum).is_err() {
                let (of, elem) = (name.to_string(), part.data.elem());
                let index = unflat(&tensor.extents, start + at);
                return Err(Fault::Fit { of, index, value: shown(sum), elem }.into());
            }
            if let (Scalar::Real(old), Scalar::Real(more)) = (old, more) {
                let adds = self.adds.entry(start + at).or_insert((0, old.abs()));
                *adds = (adds.0 + 1, adds.1 + more.abs());
            }
            self.marks[start + at] = match self.marks[start + at] {
                Mark::Nobody | Mark::Caller => Mark::Once(hand),
                Mark::Once(other) if other.id == hand.id => Mark::Once(hand),
                Mark::Once(other) => Mark::Many(other.wave.max(hand.wave)),
                Mark::Many(wave) => Mark::Many(wave.max(hand.wave)),
            };
            if touched != OpenElement::default() {
                let known = self.open.entry(start + at).or_insert(touched);
                // Several messages have added to it.
                if *known != touched {
                    known.place = Touched::Many;
                }
            }
        }
        Ok(())
    }

    /// What the call leaves; with `capacity` rows, those beyond the size hold `fill`.
    pub(super) fn left(mut self, capacity: Option<usize>, fill: Option<i64>) -> Option<Left> {
        let mut tensor = std::mem::take(&mut self.copies).into_iter().next()?;
        let made: Vec<bool> = self.marks.iter().map(|mark| *mark != Mark::Nobody).collect();
        let mut left =
            Left { tensor: tensor.clone(), written: made, open: self.open, loose: BTreeMap::new() };
        left.loose = self.adds.into_iter().filter(|(_, (count, _))| *count > 1).collect();
        if let Some(rows) = capacity.filter(|rows| Some(rows) > tensor.extents.first()) {
            let start = tensor.count();
            tensor.grow(rows);
            left.written.resize(tensor.count(), fill.is_some());
            if let (Some(fill), Some(part)) = (fill, tensor.parts.first_mut()) {
                for at in start..part.data.len() {
                    // The checker has seen that it fits; a code or a bit is filled with its bits.
                    let _ = part.data.set(at, Scalar::Int(fill));
                }
            }
            left.tensor = tensor;
        }
        Some(left)
    }
}

impl Default for OpenElement {
    fn default() -> OpenElement {
        OpenElement { place: Touched::Nothing, value: Touched::Nothing }
    }
}

/// Copies `value` over what is under `depth` indices, from element `start` of the first part on.
fn put(tensor: &mut Tensor, depth: usize, start: usize, value: &Tensor) {
    let starts: Vec<usize> = tensor
        .parts
        .iter()
        .map(|part| match tensor.extents.len() == depth {
            true => start / part.block.max(1),
            false => tensor.place_in(part.block, start),
        })
        .collect();
    for ((to, from), start) in tensor.parts.iter_mut().zip(&value.parts).zip(starts) {
        copy(to, start, from);
    }
}

fn copy(to: &mut Part, start: usize, from: &Part) {
    if to.data.overwrite(start, &from.data) {
        return;
    }
    for at in 0..from.data.len() {
        if let Some(value) = from.data.get(at) {
            let _ = to.data.set(start + at, value);
        }
    }
}

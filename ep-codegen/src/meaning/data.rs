//! Plain data: tensors of every element type, and single elements.

use super::round::{bf16_to_f32, f32_to_bf16};
use crate::ir::{Elem, Number};

/// The elements of one part of a tensor, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// `bool`
    Bool(Vec<bool>),
    /// `u8`
    U8(Vec<u8>),
    /// `i8`
    I8(Vec<i8>),
    /// `i32`
    I32(Vec<i32>),
    /// `i64`
    I64(Vec<i64>),
    /// `f32`
    F32(Vec<f32>),
    /// `bf16`, as its bits.
    Bf16(Vec<u16>),
    /// `e4m3`, as its code.
    E4m3(Vec<u8>),
    /// `ue8m0`, as its code.
    Ue8m0(Vec<u8>),
    /// `bits[n]`
    Bits(Vec<u64>),
}

/// One element: whole numbers are of 64 bits, `f32` and `bf16` are reals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// `bool`
    Bool(bool),
    /// Any whole number.
    Int(i64),
    /// `f32`, or the value of a `bf16`.
    Real(f32),
    /// The code of an `e4m3` or `ue8m0`.
    Code(u8),
    /// `bits[n]`
    Bits(u64),
}

impl Scalar {
    /// The value of a number.
    pub fn of(number: Number) -> Scalar {
        match number {
            Number::Whole { value } => Scalar::Int(value),
            Number::Real { bits } => Scalar::Real(f32::from_bits(bits)),
        }
    }
}

/// Why an element cannot hold a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is no value of the element type's range.
    Range,
    /// It is of another kind.
    Kind,
}

macro_rules! each {
    ($data:expr, $list:ident => $body:expr) => {
        match $data {
            Data::Bool($list) => $body,
            Data::U8($list) => $body,
            Data::I8($list) => $body,
            Data::I32($list) => $body,
            Data::I64($list) => $body,
            Data::F32($list) => $body,
            Data::Bf16($list) => $body,
            Data::E4m3($list) => $body,
            Data::Ue8m0($list) => $body,
            Data::Bits($list) => $body,
        }
    };
}

impl Data {
    /// `count` zeros of an element type.
    pub fn zeros(elem: &Elem, count: usize) -> Data {
        match elem {
            Elem::Bool => Data::Bool(vec![false; count]),
            Elem::U8 => Data::U8(vec![0; count]),
            Elem::I8 => Data::I8(vec![0; count]),
            Elem::I32 => Data::I32(vec![0; count]),
            Elem::I64 => Data::I64(vec![0; count]),
            Elem::F32 => Data::F32(vec![0.0; count]),
            Elem::Bf16 => Data::Bf16(vec![0; count]),
            Elem::E4m3 => Data::E4m3(vec![0; count]),
            Elem::Ue8m0 => Data::Ue8m0(vec![0; count]),
        }
    }

    /// How the element type is written.
    pub fn elem(&self) -> &'static str {
        match self {
            Data::Bool(_) => "bool",
            Data::U8(_) => "u8",
            Data::I8(_) => "i8",
            Data::I32(_) => "i32",
            Data::I64(_) => "i64",
            Data::F32(_) => "f32",
            Data::Bf16(_) => "bf16",
            Data::E4m3(_) => "e4m3",
            Data::Ue8m0(_) => "ue8m0",
            Data::Bits(_) => "bits",
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, list => list.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<Scalar> {
        Some(match self {
            Data::Bool(list) => Scalar::Bool(*list.get(index)?),
            Data::U8(list) => Scalar::Int((*list.get(index)?).into()),
            Data::I8(list) => Scalar::Int((*list.get(index)?).into()),
            Data::I32(list) => Scalar::Int((*list.get(index)?).into()),
            Data::I64(list) => Scalar::Int(*list.get(index)?),
            Data::F32(list) => Scalar::Real(*list.get(index)?),
            Data::Bf16(list) => Scalar::Real(bf16_to_f32(*list.get(index)?)),
            Data::E4m3(list) | Data::Ue8m0(list) => Scalar::Code(*list.get(index)?),
            Data::Bits(list) => Scalar::Bits(*list.get(index)?),
        })
    }

    /// Writes an element, rounded to the type if that is a float.
    pub(super) fn set(&mut self, index: usize, value: Scalar) -> Result<(), Unfit> {
        fn whole<T: TryFrom<i64>>(place: &mut T, value: Scalar) -> Result<(), Unfit> {
            let Scalar::Int(value) = value else { return Err(Unfit::Kind) };
            *place = T::try_from(value).map_err(|_| Unfit::Range)?;
            Ok(())
        }
        fn put<T>(place: Option<&mut T>, value: Option<T>) -> Result<(), Unfit> {
            *place.ok_or(Unfit::Range)? = value.ok_or(Unfit::Kind)?;
            Ok(())
        }
        let real = match value {
            Scalar::Real(value) => Some(value),
            Scalar::Int(value) => Some(value as f32),
            _ => None,
        };
        let code = if let Scalar::Code(code) = value { Some(code) } else { None };
        match self {
            Data::Bool(list) => {
                put(list.get_mut(index), if let Scalar::Bool(b) = value { Some(b) } else { None })
            }
            Data::U8(list) => whole(list.get_mut(index).ok_or(Unfit::Range)?, value),
            Data::I8(list) => whole(list.get_mut(index).ok_or(Unfit::Range)?, value),
            Data::I32(list) => whole(list.get_mut(index).ok_or(Unfit::Range)?, value),
            Data::I64(list) => whole(list.get_mut(index).ok_or(Unfit::Range)?, value),
            Data::F32(list) => put(list.get_mut(index), real),
            Data::Bf16(list) => put(list.get_mut(index), real.map(f32_to_bf16)),
            Data::E4m3(list) | Data::Ue8m0(list) => put(list.get_mut(index), code),
            Data::Bits(list) => {
                put(list.get_mut(index), if let Scalar::Bits(b) = value { Some(b) } else { None })
            }
        }
    }

    /// `count` elements from `start` on; fewer where there are fewer.
    pub fn slice(&self, start: usize, count: usize) -> Data {
        macro_rules! cut {
            ($($kind:ident),*) => {
                match self {
                    $(Data::$kind(list) => {
                        let end = start.saturating_add(count).min(list.len());
                        Data::$kind(list.get(start..end).unwrap_or_default().to_vec())
                    })*
                }
            };
        }
        cut!(Bool, U8, I8, I32, I64, F32, Bf16, E4m3, Ue8m0, Bits)
    }

    /// Copies elements of the same type over those from `start` on, bit for bit; false: they are of another.
    pub(super) fn overwrite(&mut self, start: usize, from: &Data) -> bool {
        macro_rules! copied {
            ($($kind:ident),*) => {
                match (self, from) {
                    $((Data::$kind(to), Data::$kind(from)) => {
                        let to = to.get_mut(start..start + from.len());
                        to.is_some_and(|to| {
                            to.copy_from_slice(from);
                            true
                        })
                    })*
                    _ => false,
                }
            };
        }
        copied!(Bool, U8, I32, I64, F32, Bf16, E4m3, Ue8m0, Bits)
    }

    /// Grows or shrinks to `count` elements; new ones are zero.
    pub(super) fn resize(&mut self, count: usize) {
        each!(self, list => list.resize(count, Default::default()));
    }

    /// Writes an element, rounded to the type if that is a float; whether it fits.
    pub fn put(&mut self, index: usize, value: Scalar) -> bool {
        self.set(index, value).is_ok()
    }

    /// Bytes of an element in memory.
    pub fn elem_bytes(&self) -> usize {
        match self {
            Data::Bool(_) | Data::U8(_) | Data::I8(_) | Data::E4m3(_) | Data::Ue8m0(_) => 1,
            Data::Bf16(_) => 2,
            Data::I32(_) | Data::F32(_) => 4,
            Data::I64(_) | Data::Bits(_) => 8,
        }
    }

    /// Writes an element to `out` as memory holds it; one that is not there writes nothing.
    pub fn write(&self, index: usize, out: &mut [u8]) {
        let bits = match self {
            // A NaN keeps its bits.
            Data::F32(list) => list.get(index).map(|value| value.to_bits().into()),
            Data::Bf16(list) => list.get(index).map(|value| (*value).into()),
            _ => self.bits(index),
        };
        for (byte, bits) in out.iter_mut().zip(bits.unwrap_or(0).to_le_bytes()) {
            *byte = bits;
        }
    }

    /// Reads an element as memory holds it. A `bool` is any byte but 0.
    pub fn read(&mut self, index: usize, bytes: &[u8]) {
        let mut wide = [0; 8];
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let bits = u64::from_le_bytes(wide);
        fn put<T>(list: &mut [T], index: usize, value: T) {
            if let Some(place) = list.get_mut(index) {
                *place = value;
            }
        }
        match self {
            Data::Bool(list) => put(list, index, bits != 0),
            Data::U8(list) | Data::E4m3(list) | Data::Ue8m0(list) => put(list, index, bits as u8),
            Data::I8(list) => put(list, index, bits as i8),
            Data::Bf16(list) => put(list, index, bits as u16),
            Data::I32(list) => put(list, index, bits as i32),
            Data::I64(list) => put(list, index, bits as i64),
            Data::F32(list) => put(list, index, f32::from_bits(bits as u32)),
            Data::Bits(list) => put(list, index, bits),
        }
    }

    /// An element as bits, so that equal ones are equal as memory holds them; all NaNs are one.
    pub(super) fn bits(&self, index: usize) -> Option<u64> {
        Some(match self {
            Data::Bool(list) => (*list.get(index)?).into(),
            Data::U8(list) | Data::E4m3(list) | Data::Ue8m0(list) => (*list.get(index)?).into(),
            Data::I8(list) => i64::from(*list.get(index)?) as u64,
            Data::I32(list) => i64::from(*list.get(index)?) as u64,
            Data::I64(list) => *list.get(index)? as u64,
            Data::F32(list) => {
                let value = *list.get(index)?;
                if value.is_nan() { f32::NAN } else { value }.to_bits().into()
            }
            Data::Bf16(list) => {
                let value = *list.get(index)?;
                if bf16_to_f32(value).is_nan() { 0x7fc0 } else { value }.into()
            }
            Data::Bits(list) => *list.get(index)?,
        })
    }
}

/// A component of a tensor: the row itself, or one value for every `block` elements of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Elements.
    pub data: Data,
    /// Elements of the row that share one value; 1 for the row itself.
    pub block: usize,
}

/// A tensor, a row of one, or a field of a message. All element types but an axis of several parts
/// have one part.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Extents, outermost first; of the first part.
    pub extents: Vec<usize>,
    /// Parts as the chosen arm declares them.
    pub parts: Vec<Part>,
}

impl Tensor {
    /// A tensor of one part.
    pub fn new(extents: &[usize], data: Data) -> Tensor {
        Tensor { extents: extents.to_vec(), parts: vec![Part { data, block: 1 }] }
    }

    /// A tensor of zeros with these parts: element type (`None`: bits) and block of each.
    pub fn zeros(extents: &[usize], parts: &[(Option<Elem>, usize)]) -> Tensor {
        let mut tensor = Tensor { extents: extents.to_vec(), parts: Vec::new() };
        for (elem, block) in parts {
            let block = (*block).max(1);
            let count = tensor.count_of(block);
            let data = match elem {
                Some(elem) => Data::zeros(elem, count),
                None => Data::Bits(vec![0; count]),
            };
            tensor.parts.push(Part { data, block });
        }
        tensor
    }

    /// Elements of the last extent; 1 of a number.
    fn width(&self) -> usize {
        self.extents.last().copied().unwrap_or(1)
    }

    /// Elements of a part with this block.
    fn count_of(&self, block: usize) -> usize {
        let rows: usize = self.extents.iter().rev().skip(1).product();
        rows * self.width().div_ceil(block)
    }

    /// Elements of the first part.
    pub fn count(&self) -> usize {
        self.extents.iter().product()
    }

    /// Whether every part has as many elements as the extents ask for.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.data.len() == self.count_of(part.block.max(1)))
    }

    /// Data of the first part.
    pub fn first(&self) -> Option<&Data> {
        self.parts.first().map(|part| &part.data)
    }

    /// Element `index` of the first part.
    pub fn get(&self, index: usize) -> Option<Scalar> {
        self.first()?.get(index)
    }

    /// What is left under the first `indices.len()` extents, from element `start` of the first part.
    pub(super) fn under(&self, depth: usize, start: usize) -> Tensor {
        let extents = self.extents.get(depth..).unwrap_or_default().to_vec();
        let mut out = Tensor { extents, parts: Vec::new() };
        for part in &self.parts {
            let block = part.block.max(1);
            let (start, count) = match out.extents.is_empty() {
                true => (start / block, 1),
                false => (self.place_in(block, start), out.count_of(block)),
            };
            out.parts.push(Part { data: part.data.slice(start, count), block });
        }
        out
    }

    /// Where the row that begins at element `start` of the first part begins in a part.
    pub(super) fn place_in(&self, block: usize, start: usize) -> usize {
        let width = self.width().max(1);
        start / width * width.div_ceil(block.max(1)) + start % width / block.max(1)
    }

    /// The element of the first part that decides whether element `index` of `part` was written.
    pub fn owner_of(&self, part: usize, index: usize) -> usize {
        let block = self.parts.get(part).map_or(1, |part| part.block.max(1));
        let width = self.width().max(1);
        let each = width.div_ceil(block).max(1);
        index / each * width + index % each * block
    }

    /// Grows the first extent to `rows`; new elements are zero.
    pub(super) fn grow(&mut self, rows: usize) {
        if let Some(first) = self.extents.first_mut() {
            *first = rows;
        }
        for at in 0..self.parts.len() {
            let count = self.count_of(self.parts[at].block.max(1));
            self.parts[at].data.resize(count);
        }
    }
}

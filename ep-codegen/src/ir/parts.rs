//! What element types and messages are made of, before anything has a size.

use super::{Elem, ElemType, Field, Message, Pipeline};

/// Rows start at multiples of this: whole 128-byte lines are worth 29 % of the wire.
pub const LINE_BYTES: i64 = 128;

/// Bytes that a lane moves at once.
pub const UNIT_BYTES: i64 = 16;

/// A small field before it has a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaSource<'a> {
    /// Name, as in [`MetaField::name`].
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Elements that share one value along the last extent.
    pub block: i64,
    /// The declared field.
    pub field: &'a Field,
}

/// Bytes of one element.
pub fn elem_bytes(elem: &Elem) -> i64 {
    match elem {
        Elem::Bool | Elem::U8 | Elem::I8 | Elem::E4m3 | Elem::Ue8m0 => 1,
        Elem::Bf16 => 2,
        Elem::I32 | Elem::F32 => 4,
        Elem::I64 => 8,
    }
}

/// The parts of an element type: (suffix, element, block); the suffix of the first is empty.
pub fn parts(ir: &Pipeline, elem: &ElemType) -> Vec<(String, Elem, i64)> {
    match elem {
        ElemType::Scalar { elem } => vec![(String::new(), elem.clone(), 1)],
        ElemType::Bits { .. } => vec![(String::new(), Elem::I64, 1)],
        ElemType::OfAxis { axis } => {
            let arm = ir.axes.iter().find(|a| a.name == *axis).and_then(|a| a.arms.first());
            let parts = arm.map(|arm| arm.parts.as_slice()).unwrap_or_default();
            let suffix =
                |index, name: &str| if index == 0 { String::new() } else { format!("_{name}") };
            parts
                .iter()
                .enumerate()
                .map(|(index, part)| (suffix(index, &part.name), part.elem.clone(), part.block))
                .collect()
        }
    }
}

/// How a row of several parts stands for floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// `e4m3`, and a scale for each block.
    E4m3,
    /// A sign and nine bits of the logarithm: eight bits of the ten in a `u8`, the upper two of four codes
    /// in another, and for each block the `f32` at which its logarithms begin and their step.
    Logfmt10,
}

impl Code {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Code::E4m3 => "e4m3",
            Code::Logfmt10 => "logfmt10",
        }
    }

    /// What parts of these types and blocks are a code of, if they are.
    pub fn of(parts: &[(Elem, i64)]) -> Option<Code> {
        match parts {
            [(Elem::E4m3, _), (Elem::F32 | Elem::Ue8m0, _)] => Some(Code::E4m3),
            [(Elem::U8, _), (Elem::U8, 4), (Elem::F32, low), (Elem::F32, step)]
                if low == step && low % 4 == 0 =>
            {
                Some(Code::Logfmt10)
            }
            _ => None,
        }
    }

    /// What rows of this element type are a code of, if they are.
    pub fn of_elem(ir: &Pipeline, elem: &ElemType) -> Option<Code> {
        let all = parts(ir, elem).into_iter().map(|(_, elem, block)| (elem, block));
        Code::of(&all.collect::<Vec<_>>())
    }
}

/// The small fields of `message` in order: all but the first part of its row field.
pub fn meta_sources<'a>(ir: &Pipeline, message: &'a Message) -> Vec<MetaSource<'a>> {
    let mut sources = Vec::new();
    for field in &message.fields {
        for (index, (suffix, elem, block)) in parts(ir, &field.elem).into_iter().enumerate() {
            if !(field.row && index == 0) {
                let name = format!("{}{suffix}", field.name);
                sources.push(MetaSource { name, elem, block, field });
            }
        }
    }
    sources
}

/// The row field of a message, with its element type.
pub fn row_field<'a>(ir: &Pipeline, message: &'a Message) -> Option<(&'a Field, Elem)> {
    let field = message.fields.iter().find(|field| field.row)?;
    let (_, elem, _) = parts(ir, &field.elem).into_iter().next()?;
    Some((field, elem))
}

/// Rounds `value` up to a multiple of `step`.
pub fn align(value: i64, step: i64) -> i64 {
    value.div_euclid(step) * step + if value % step == 0 { 0 } else { step }
}

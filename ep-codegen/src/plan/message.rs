//! The bytes of a message: one bulk row and one small meta record.

use super::numbers::{Numbers, eval};
use crate::ir::facts::travels_in_words;
use crate::ir::{Channel, ChannelKind, Elem, ElemType, Expr, Field, Message, Pipeline};

/// Rows start at multiples of this: whole 128-byte lines are worth 29 % of the wire.
pub const LINE_BYTES: i64 = 128;

/// The layout of one message for one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageLayout {
    /// Message name.
    pub name: String,
    /// Bytes of the bulk row, a multiple of 16.
    pub row_bytes: i64,
    /// Small fields in order.
    pub meta: Vec<MetaField>,
    /// Bytes of the meta record.
    pub meta_bytes: i64,
    /// Bytes from one slot to the next.
    pub slot_bytes: i64,
}

/// One small field inside the meta record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaField {
    /// Name of the field, with its part for a composite one (`x_scale`).
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Offset inside the meta record.
    pub offset: i64,
    /// Number of elements; 0 when the tensor it travels with is absent.
    pub count: i64,
}

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
        Elem::Bool | Elem::U8 | Elem::E4m3 | Elem::Ue8m0 => 1,
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

/// Bytes of an element in a meta record. In a message that travels in words, every 32 bits of it
/// are a word of 8 bytes.
fn carried_bytes(elem: &Elem, in_words: bool) -> i64 {
    if in_words { 8 * align(elem_bytes(elem), 4) / 4 } else { elem_bytes(elem) }
}

/// The layout of `message` as its channel carries it.
pub(super) fn layout(
    ir: &Pipeline,
    message: &Message,
    channel: Option<&Channel>,
    numbers: &Numbers,
    absent: &[String],
) -> MessageLayout {
    let in_words = channel.is_some_and(|channel| travels_in_words(ir, channel));
    let row = row_field(ir, message);
    let row_bytes =
        row.map_or(0, |(field, elem)| align(extent(&field.dims, numbers) * elem_bytes(&elem), 16));
    let mut meta = Vec::new();
    let mut offset = 0;
    for source in meta_sources(ir, message) {
        let size = carried_bytes(&source.elem, in_words);
        let gone = source.field.optional_with.as_ref().is_some_and(|name| absent.contains(name));
        let count =
            if gone { 0 } else { blocks(extent(&source.field.dims, numbers), source.block) };
        // Words lie without gaps: each one is waited for.
        offset = if in_words { offset } else { align(offset, size) };
        meta.push(MetaField { name: source.name, elem: source.elem, offset, count });
        offset += size * count;
    }
    // A direct channel stores each meta record at its own address, so it keeps whole lines.
    let direct = channel.is_some_and(|channel| channel.kind == ChannelKind::Direct);
    let unit = if direct { LINE_BYTES } else { 16 };
    let unit = if in_words { 8 } else { unit };
    let meta_bytes = align(offset, unit);
    let slot_bytes = align(row_bytes + meta_bytes, LINE_BYTES);
    MessageLayout { name: message.name.clone(), row_bytes, meta, meta_bytes, slot_bytes }
}

/// Number of scale blocks; the last may be short.
fn blocks(elements: i64, block: i64) -> i64 {
    let block = block.max(1);
    elements / block + i64::from(elements % block != 0)
}

fn extent(dims: &[Expr], numbers: &Numbers) -> i64 {
    dims.iter().map(|dim| eval(dim, numbers).unwrap_or(0)).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_scale_block_may_be_short() {
        assert_eq!(blocks(2880, 128), 23);
        assert_eq!(blocks(7168, 128), 56);
        assert_eq!(blocks(0, 128), 0);
    }

    #[test]
    fn align_keeps_multiples() {
        assert_eq!((align(0, 16), align(16, 16), align(17, 16)), (0, 16, 32));
    }
}

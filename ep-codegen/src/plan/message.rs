//! The bytes of a message: one bulk row and one small meta record.

use super::numbers::{Numbers, eval};
use crate::ir::parts::{LINE_BYTES, UNIT_BYTES, align, elem_bytes, meta_sources, row_field};
use crate::ir::slots::travels_in_words;
use crate::ir::{Channel, Elem, Expr, Message, Pipeline};

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

/// Bytes of the words of a unit of 16 bytes for each lane of a warp.
const WORD_PART_BYTES: i64 = 2 * 32 * 16;

impl MessageLayout {
    /// Bytes that the row and its small fields take where every 32 bits are a word of 8 bytes.
    pub(super) fn words_bytes(&self) -> i64 {
        let row = align(2 * self.row_bytes, WORD_PART_BYTES);
        align(row + 8 * self.record_words(), LINE_BYTES)
    }

    /// Words of 32 bits that the small fields take, without what pads them.
    pub(super) fn record_words(&self) -> i64 {
        let end = |field: &MetaField| field.offset + field.count * elem_bytes(&field.elem);
        self.meta.iter().map(end).max().map_or(0, |end| align(end, 4) / 4)
    }
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

/// Bytes of an element in a meta record. In a message that travels in words, every 32 bits of it
/// are a word of 8 bytes.
fn carried_bytes(elem: &Elem, in_words: bool) -> i64 {
    if in_words { 8 * align(elem_bytes(elem), 4) / 4 } else { elem_bytes(elem) }
}

/// A field of at least this many bytes begins at a whole unit, so that lanes can move it by units.
const LONG_BYTES: i64 = 128;

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
        // Words lie without gaps: each one is waited for. Lanes move long fields by 16 bytes.
        let is_long = size * count >= LONG_BYTES && size * count % UNIT_BYTES == 0;
        offset = match (in_words, is_long) {
            (true, _) => offset,
            (false, true) => align(offset, UNIT_BYTES),
            (false, false) => align(offset, size),
        };
        meta.push(MetaField { name: source.name, elem: source.elem, offset, count });
        offset += size * count;
    }
    // A direct channel stores each meta record at its own address, so it keeps whole lines.
    let direct = channel.is_some_and(|channel| channel.kind.traits().lands);
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

//! How the elements of a part of a tensor lie in memory.

use ep_runtime::args::Rows;
use ep_runtime::meaning::{Behind, Data, Tensor, Word};
use ep_runtime::plan::{LINE_BYTES, ParamKind, Plan};

use super::DIRTY;
use super::awaited::Memory;

/// A part of a tensor in memory.
pub(super) struct Place {
    /// Whether peers reach it.
    pub(super) in_window: bool,
    elem_bytes: usize,
    count: usize,
    /// Elements of a row, and rows of a list.
    width: usize,
    rows: usize,
    row_stride: usize,
    column_stride: usize,
}

impl Place {
    /// Rows that may be padded are, and scales may lie column by column; none if the kernel does not
    /// take the tensor.
    pub(super) fn new(
        plan: &Plan,
        name: &str,
        part: usize,
        by_column: bool,
        tensor: &Tensor,
    ) -> Option<Place> {
        let is_taken = |kind: &ParamKind| matches!(kind, ParamKind::Pointer { tensor, part: own, .. } if tensor == name && *own == part);
        let is_padded = |kind: &ParamKind| matches!(kind, ParamKind::RowStride { tensor, part: own } if tensor == name && *own == part);
        let has_columns = |kind: &ParamKind| matches!(kind, ParamKind::ColumnStride { tensor, part: own } if tensor == name && *own == part);
        let is_reached =
            |kind: &ParamKind| matches!(kind, ParamKind::WindowOffset { tensor } if tensor == name);
        let any = |is: &dyn Fn(&ParamKind) -> bool| plan.params.iter().any(|param| is(&param.kind));
        if !any(&is_taken) {
            return None;
        }
        let data = &tensor.parts.get(part)?;
        let width = match tensor.extents.as_slice() {
            [] | [_] => 1,
            [.., last] => last.div_ceil(data.block.max(1)).max(1),
        };
        let (elem_bytes, count) = (data.data.elem_bytes(), data.data.len());
        let in_window = part == 0 && any(&is_reached);
        let line = LINE_BYTES as usize / elem_bytes;
        let (is_list, rows) = match tensor.extents.as_slice() {
            [_, .., rows, _] => (true, *rows),
            _ => (false, count / width),
        };
        let rows = rows.max(1);
        let place = Place {
            in_window,
            elem_bytes,
            count,
            width,
            rows,
            row_stride: width,
            column_stride: 1,
        };
        Some(match any(&is_padded) || in_window && width > 1 {
            true if by_column && any(&has_columns) => {
                // Lists lie one behind another, without a gap.
                let column_stride = if is_list { rows } else { rows + 1 };
                Place { row_stride: 1, column_stride, ..place }
            }
            true if is_list => place,
            true => Place { row_stride: width.next_multiple_of(line), ..place },
            false => place,
        })
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        self.count.checked_sub(1).map_or(0, |last| self.at(last).end)
    }

    fn at(&self, index: usize) -> std::ops::Range<usize> {
        let (row, column) = (index / self.width, index % self.width);
        let (list, row) = (row / self.rows, row % self.rows);
        let start =
            list * self.rows * self.width + row * self.row_stride + column * self.column_stride;
        start * self.elem_bytes..(start + 1) * self.elem_bytes
    }

    /// The words of a tensor in memory that begins at `address`, each with where it is.
    pub(super) fn words(&self, name: &str, address: u64) -> impl Iterator<Item = (Word, u64)> {
        (0..self.count)
            .map(move |index| ((name.to_owned(), index), address + self.at(index).start as u64))
    }

    /// The elements of a part in memory that begins at `address`, each with the words behind which it is read.
    pub(super) fn elements<'a>(
        &self,
        tensor: &Tensor,
        part: usize,
        address: u64,
        reads: &'a [Behind],
    ) -> impl Iterator<Item = Memory<'a>> {
        (0..self.count).map(move |index| {
            let owner = tensor.owner_of(part, index);
            let of_it = reads.iter().filter(|read| read.elements.contains(&owner));
            let reads = of_it.map(|read| read.words.as_slice()).collect();
            let at = self.at(index);
            Memory { at: address + at.start as u64, bytes: at.len() as u64, reads }
        })
    }

    /// Memory that holds `data`, or nothing of meaning.
    pub(super) fn written(&self, data: Option<&Data>) -> Vec<u8> {
        let mut bytes = vec![DIRTY; self.bytes()];
        if let Some(data) = data {
            (0..self.count).for_each(|index| data.write(index, &mut bytes[self.at(index)]));
        }
        bytes
    }

    /// Copies the elements that `is_taken` says from `bytes`.
    pub(super) fn take(&self, to: &mut [u8], bytes: &[u8], is_taken: &dyn Fn(usize) -> bool) {
        for index in (0..self.count).filter(|index| is_taken(*index)) {
            to[self.at(index)].copy_from_slice(&bytes[self.at(index)]);
        }
    }

    /// What a byte belongs to.
    pub(super) fn name(&self, byte: usize) -> String {
        let element = (0..self.count).find(|index| self.at(*index).contains(&byte));
        match element {
            Some(index) => format!("element {} of row {}", index % self.width, index / self.width),
            None => format!("byte {byte}, between rows"),
        }
    }

    /// The elements that memory holds.
    pub(super) fn read(&self, bytes: &[u8], data: &mut Data) {
        (0..self.count).for_each(|index| data.read(index, &bytes[self.at(index)]));
    }

    /// As a kernel finds it.
    pub(super) fn rows(&self, address: u64) -> Rows {
        let (row_stride, column_stride) = (self.row_stride as i64, self.column_stride as i64);
        Rows { address, row_stride, column_stride }
    }
}

//! Copies an output's rows into plain memory of the caller, for rows that have to be outside the window.

use super::handles::Received;
use super::{CallOptions, Shared};
use crate::args::Rows;
use crate::backend::RowCopy;
use crate::error::CallError;

/// The caller's memory for the rows of an output. Parts without an address are not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlainOutput {
    /// Rows of the payload's values.
    pub x: Rows,
    /// Scales of the rows, by row.
    pub scale: Rows,
    /// Device address of `i64[rows, topk]`.
    pub topk_idx: u64,
    /// Device address of `f32[rows, topk]`.
    pub topk_weights: u64,
}

/// One tensor of an output, here and there.
struct Part {
    name: &'static str,
    from: Rows,
    to: Rows,
    /// Values of a row, and bytes of a value.
    values: u64,
    value_bytes: u64,
}

impl Part {
    /// Fails where the caller's rows have no room for a row, or their values lie apart.
    fn check(&self) -> Result<(), CallError> {
        let Part { name, to, values, .. } = self;
        if u64::try_from(to.row_stride).is_ok_and(|stride| stride >= *values)
            && to.column_stride == 1
        {
            return Ok(());
        }
        let (row, column) = (to.row_stride, to.column_stride);
        let what = format!(
            "`{name}` can be copied only to dense rows of {values} values, and these rows have a stride \
            of {row} values and a column stride of {column}"
        );
        Err(CallError::Mismatch { what })
    }

    fn copy(&self, rows: usize) -> RowCopy {
        let stride = |rows: &Rows| rows.row_stride as u64 * self.value_bytes;
        RowCopy {
            to: self.to.address,
            to_stride: stride(&self.to),
            from: self.from.address,
            from_stride: stride(&self.from),
            row_bytes: self.values * self.value_bytes,
            rows: rows as u64,
        }
    }
}

impl Received {
    /// Copies the first `rows` rows with their scales, indices and weights into the caller's memory. The
    /// output may then be dropped. [`super::Handle::counts`] says how many rows have arrived; a graph
    /// copies the largest possible number.
    pub fn copy_to(
        &self,
        rows: usize,
        to: &PlainOutput,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let (shared, rank) = (&self.lease().shared, self.rank());
        let capacity = shared.options.capacity(shared.group.ranks());
        if rows > capacity {
            let (need, have) = (rows as u64, capacity as u64);
            return Err(CallError::TooLarge { what: "rows of an output", need, have });
        }
        let parts = self.parts(shared, to)?;
        let wanted = || parts.iter().filter(|part| part.to.address != 0 && part.values != 0);
        wanted().try_for_each(Part::check)?;
        shared.group.check(rank)?;
        let turn = shared.group.begin(rank, call, || self.lease().kept())?;
        for part in wanted() {
            let copy = part.copy(rows);
            shared.group.backend().copy_rows(rank, turn.stream(), &copy)?;
        }
        shared.group.end(turn, call)
    }

    fn parts(&self, shared: &Shared, to: &PlainOutput) -> Result<[Part; 4], CallError> {
        let options = &shared.options;
        let scales = options.payload.scales(options.hidden) as u64;
        let topk = options.topk as u64;
        let dense = |address: u64| Rows::new(address, topk as i64);
        let part =
            |name, from, to, values, value_bytes| Part { name, from, to, values, value_bytes };
        let (hidden, value_bytes) = (options.hidden as u64, options.payload.value_bytes());
        let idx = if to.topk_idx == 0 { 0 } else { self.topk_idx()? };
        let weights = if to.topk_weights == 0 { 0 } else { self.topk_weights()? };
        Ok([
            part("x", self.x()?, to.x, hidden, value_bytes),
            part("scale", self.scale()?, to.scale, scales, options.payload.scale_bytes()),
            part("topk_idx", dense(idx), dense(to.topk_idx), topk, 8),
            part("topk_weights", dense(weights), dense(to.topk_weights), topk, 4),
        ])
    }
}

//! What Python passes by position: rows, and how a call runs.

use std::time::Duration;

use ep_runtime::args::Rows;
use ep_runtime::backend::Signal;
use ep_runtime::calls::CallOptions;

use crate::errors::Failure;
use crate::group::raw_stream;

/// Address, elements from row to row, elements from column to column.
pub(crate) type RowsTuple = (u64, i64, i64);
/// Stream, SMs or 0, timeout in seconds, event before, event behind; handles of the driver or 0.
pub(crate) type CallTuple = (u64, u32, Option<f64>, u64, u64);

/// What is called `name`, or a sentence with all names.
pub(crate) fn named<T>(
    what: &str,
    name: &str,
    found: Option<T>,
    all: &[&'static str],
) -> Result<T, Failure> {
    let unknown = || Failure::mismatch(format!("{what} `{name}` is none of {}", all.join(", ")));
    found.ok_or_else(unknown)
}

pub(crate) fn rows((address, row_stride, column_stride): RowsTuple) -> Rows {
    Rows { address, row_stride, column_stride }
}

pub(crate) fn call((stream, sms, timeout, after, done): CallTuple) -> Result<CallOptions, Failure> {
    let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|error| Failure::mismatch(format!("the timeout: {error}")))?;
    let signal = |handle: u64| {
        // SAFETY: the package passes handles of events that the caller's library owns.
        (handle != 0).then(|| unsafe { Signal::from_raw(handle) })
    };
    let (after, done) = (signal(after), signal(done));
    let stream = raw_stream(stream);
    let sms = (sms != 0).then_some(sms);
    Ok(CallOptions { stream, sms, timeout, after, done })
}

//! Outputs that are copied into plain memory.

use super::{POISON, Selftest};
use crate::findings::Findings;
use crate::oracle::{RowReader, compare_bytes};
use ep_runtime::args::Rows;
use ep_runtime::backend::Stream;
use ep_runtime::buffer::{Handle, PlainOutput, Received};
use ep_runtime::error::CallError;
use ep_runtime::memory::DeviceMemory;

/// Values between the rows of the caller.
const GAP: usize = 16;

/// Plain memory of one rank.
struct Plain {
    x: DeviceMemory,
    scale: DeviceMemory,
    topk_idx: DeviceMemory,
}

impl Selftest {
    /// A dispatch whose rows are copied into plain memory before its output is dropped and used again
    /// by a cached dispatch; what was copied is compared with the oracle.
    ///
    /// The buffer has cached dispatches, and one live output is enough.
    pub fn check_copied(&self) -> Result<Findings, CallError> {
        self.poison()?;
        let dispatched = self.dispatch()?;
        let mut copied = Vec::new();
        for own in dispatched {
            let plain = self.copy(&own.handle, &own.received)?;
            copied.push((own.handle, plain));
        }
        // The output is another call's from here on.
        let again = self.for_each_rank(&|rank| {
            let (handle, _) = &copied[self.group.local_index(rank)?];
            self.buffer.cached_dispatch(handle, &self.input(rank)?, &self.case.dispatch)
        })?;
        self.settle()?;
        drop(again);
        self.poison()?;
        let mut findings = Findings::default();
        for (handle, plain) in &copied {
            findings.merge(self.verify_copy(handle.rank(), plain)?);
        }
        Ok(findings)
    }

    fn copy(&self, handle: &Handle, received: &Received) -> Result<Plain, CallError> {
        let (options, rank) = (&self.case.options, handle.rank());
        let rows = handle.counts()?.received;
        let scales = options.payload.scales(options.hidden);
        let memory = |bytes: usize| {
            let memory = DeviceMemory::new(self.group.backend(), rank, (rows * bytes) as u64)?;
            memory.fill(Stream::OWN, POISON)?;
            Ok::<DeviceMemory, CallError>(memory)
        };
        let plain = Plain {
            x: memory((options.hidden + GAP) * options.payload.value_bytes() as usize)?,
            scale: memory((scales + GAP) * options.payload.scale_bytes() as usize)?,
            topk_idx: memory(8 * options.topk)?,
        };
        self.group.sync(rank)?;
        let apart = |memory: &DeviceMemory, values: usize| {
            Rows::new(memory.address(), (values + GAP) as i64)
        };
        let to = PlainOutput {
            x: apart(&plain.x, options.hidden),
            scale: if scales > 0 { apart(&plain.scale, scales) } else { Rows::default() },
            topk_idx: plain.topk_idx.address(),
            topk_weights: 0,
        };
        received.copy_to(rows, &to, &self.case.dispatch)?;
        Ok(plain)
    }

    fn verify_copy(&self, rank: usize, plain: &Plain) -> Result<Findings, CallError> {
        let (options, arrivals) = (&self.case.options, self.oracle.arrivals(rank));
        let payload = options.payload;
        let scales = payload.scales(options.hidden);
        let local = arrivals.iter().flat_map(|row| self.oracle.local_experts_of(rank, *row));
        let local: Vec<u8> = local.flat_map(i64::to_le_bytes).collect();
        let mut findings = Findings::default();
        let mut compare = |name: &str,
                           memory: &DeviceMemory,
                           width: usize,
                           gap: usize,
                           want: &dyn Fn(usize) -> Vec<u8>| {
            let mut got = vec![0; arrivals.len() * (width + gap)];
            memory.read(0, &mut got)?;
            let want: Vec<Vec<u8>> = (0..arrivals.len()).map(want).collect();
            let rows = RowReader { bytes: &got, stride: width + gap, width };
            let mut found =
                compare_bytes(name, rows, arrivals.len(), |row| (&want[row], format!("row {row}")));
            let mut gaps = got.chunks(width + gap).flat_map(|row| &row[width..]);
            found.note(gaps.all(|byte| *byte == POISON), || "a gap was written".to_string());
            findings.add(format!("copied rank {rank} {name}"), found);
            Ok::<(), CallError>(())
        };
        let sent = |sources: &[Vec<u8>], row: usize, width: usize| {
            let arrival = &arrivals[row];
            sources[arrival.source][arrival.token * width..(arrival.token + 1) * width].to_vec()
        };
        let (bytes, scale_bytes) = (payload.value_bytes() as usize, payload.scale_bytes() as usize);
        let width = options.hidden * bytes;
        compare("x", &plain.x, width, GAP * bytes, &|row| sent(&self.host.x, row, width))?;
        let width = scales * scale_bytes;
        if width > 0 {
            let from = |row: usize| sent(&self.host.scale, row, width);
            compare("scale", &plain.scale, width, GAP * scale_bytes, &from)?;
        }
        let width = 8 * options.topk;
        let want = |row: usize| local[row * width..(row + 1) * width].to_vec();
        compare("topk_idx", &plain.topk_idx, width, 0, &want)?;
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Case;
    use super::*;
    use crate::unordered::UnorderedBackend;
    use ep_runtime::buffer::{BufferOptions, BuiltIn, Payload, Via};
    use ep_runtime::group::{Group, GroupOptions};
    use std::sync::Arc;

    fn test(options: BufferOptions, tokens: &[usize]) -> Option<(Arc<UnorderedBackend>, Selftest)> {
        let backend = UnorderedBackend::new(tokens.len())?;
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let case = Case { tokens: tokens.to_vec(), ..Case::even(options, tokens.len(), 4) };
        let test = Selftest::new(&group, &BuiltIn, case).unwrap();
        Some((backend, test))
    }

    #[test]
    fn copied_rows_outlive_their_output() {
        for (payload, via) in [(Payload::Bf16, Via::Direct), (Payload::Fp8, Via::Ring)] {
            let options = BufferOptions { payload, via, ..BufferOptions::new(9, 144, 2, 5) };
            let Some((_, test)) = test(options, &[9, 0, 4]) else { return };
            let findings = test.check_copied().unwrap();
            assert!(findings.is_good(), "{payload:?} {via:?}: {findings}");
        }
    }

    #[test]
    fn a_copy_that_does_not_fit_is_refused() {
        let Some((_, test)) = test(BufferOptions::new(8, 64, 2, 4), &[8]) else { return };
        let call = &test.case.dispatch;
        let (_handle, received) = test.buffer.dispatch(0, &test.input(0).unwrap(), call).unwrap();
        let text = |rows: usize, x: Rows| {
            let to = PlainOutput { x, ..PlainOutput::default() };
            received.copy_to(rows, &to, call).unwrap_err().to_string()
        };
        let rows = text(9, Rows::default());
        assert_eq!(rows, "9 rows of an output, and the maximum is 8");
        let narrow = "`x` can be copied only to dense rows of 64 values, and these rows have a stride of 63 \
                values and a column stride of 1";
        assert_eq!(text(8, Rows::new(256, 63)), narrow);
    }

    /// Everything of a buffer may be dropped in any order, also while its calls are queued: the window
    /// is unmapped when they have run, and not before the last of it is dropped.
    #[test]
    fn the_window_outlives_whatever_is_left_of_a_buffer() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let options = BufferOptions { live: 2, ..BufferOptions::new(8, 64, 2, 4) };
            let Some((backend, test)) = test(options, &[8]) else { return };
            let call = test.case.dispatch;
            let input = test.input(0).unwrap();
            let options = test.case.options.clone();
            let buffer = ep_runtime::buffer::Buffer::new(&test.group, options, &BuiltIn).unwrap();
            let (handle, received) = buffer.dispatch(0, &input, &call).unwrap();
            let again = buffer.cached_dispatch(&handle, &input, &call).unwrap();
            let rows = received.x().unwrap().address;
            let (mut handle, mut buffer) = (Some(handle), Some(buffer));
            let (mut received, mut again) = (Some(received), Some(again));
            for (dropped, which) in order.into_iter().enumerate() {
                assert!(backend.maps(rows), "{order:?} after {dropped}");
                match which {
                    0 => drop(buffer.take()),
                    1 => drop(handle.take()),
                    2 => drop(received.take()),
                    _ => drop(again.take()),
                }
            }
            assert!(!backend.maps(rows), "{order:?}");
        }
    }
}

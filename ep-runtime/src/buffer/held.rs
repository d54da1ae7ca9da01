//! What a buffer brings to the calls of its pipelines, checked when it is made: a call copies the numbers
//! of its tables and of its output, and checks the tensors of its caller alone.

use super::kernels::{Combine, Kernels, NearKernels};
use super::places::Tables;
use crate::calls::Held;
use crate::error::CallError;
use crate::pipelines::{decode_combine, decode_dispatch, layout, nvl_combine, nvl_dispatch};
use crate::tensor::{Bf16, DeviceTensor};

/// A block of counts of a handle, for the pipelines that count.
#[derive(Default)]
pub(super) struct HeldCounts {
    pub(super) counts: Held,
    pub(super) one_launch: Held,
}

impl HeldCounts {
    pub(super) fn new(
        rank: usize,
        kernels: &Kernels,
        counts: &layout::Outputs,
    ) -> Result<HeldCounts, CallError> {
        let near = match kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => {
                let counts = far.hold_counts(rank, counts)?;
                return Ok(HeldCounts { counts, ..HeldCounts::default() });
            }
        };
        let layout::Outputs { received, received_per_expert } = counts;
        let mut given = layout::Kernel::NO_TENSORS;
        layout::places::received.put(received, &mut given);
        layout::places::received_per_expert.put(received_per_expert, &mut given);
        let counts = near.layout.core.hold(rank, &given)?;
        let Some(kernel) = &near.one_launch else {
            return Ok(HeldCounts { counts, ..HeldCounts::default() });
        };
        let mut given = decode_dispatch::Kernel::NO_TENSORS;
        decode_dispatch::places::received.put(received, &mut given);
        decode_dispatch::places::received_per_expert.put(received_per_expert, &mut given);
        Ok(HeldCounts { counts, one_launch: kernel.core.hold(rank, &given)? })
    }
}

/// The tables of a handle, for each pipeline that reads or writes them; nothing for those that the buffer
/// does not have.
#[derive(Default)]
pub(super) struct HeldTables {
    pub(super) layout: Held,
    pub(super) dispatch: Held,
    pub(super) cached: Held,
    pub(super) one_launch: Held,
    pub(super) combine: Held,
}

impl HeldTables {
    /// Also has where the experts of the rank are.
    pub(super) fn new(
        rank: usize,
        kernels: &Kernels,
        tables: &Tables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<HeldTables, CallError> {
        match (kernels, &tables.far) {
            (Kernels::Near(near), _) => HeldTables::near(rank, near, tables, expert_begin),
            (Kernels::Far(far), Some(tables)) => far.hold_tables(rank, tables, expert_begin),
            (Kernels::Far(_), None) => Ok(HeldTables::default()),
        }
    }

    fn near(
        rank: usize,
        kernels: &NearKernels,
        tables: &Tables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<HeldTables, CallError> {
        let mut held = HeldTables {
            layout: layout_tables(rank, &kernels.layout, tables, expert_begin)?,
            dispatch: dispatch_tables(rank, &kernels.dispatch, tables, expert_begin)?,
            combine: match &kernels.combine {
                Combine::Fetched(kernel) => fetched_tables(rank, kernel, tables)?,
                Combine::Stored(kernel) => stored_tables(rank, kernel, tables)?,
            },
            ..HeldTables::default()
        };
        if let Some(kernel) = &kernels.cached {
            held.cached = dispatch_tables(rank, kernel, tables, expert_begin)?;
        }
        if let Some(kernel) = &kernels.one_launch {
            held.one_launch = one_launch_tables(rank, kernel, tables, expert_begin)?;
        }
        Ok(held)
    }
}

fn layout_tables(
    rank: usize,
    kernel: &layout::Kernel,
    tables: &Tables,
    expert_begin: &DeviceTensor<i32, 1>,
) -> Result<Held, CallError> {
    use layout::places as at;
    let (mut given, into) = (layout::Kernel::NO_TENSORS, &tables.layout);
    at::expert_begin.put(expert_begin, &mut given);
    at::tokens_per_rank.put(&into.tokens_per_rank, &mut given);
    at::tokens_per_expert.put(&into.tokens_per_expert, &mut given);
    at::in_rank.put(&into.in_rank, &mut given);
    at::stripe_tokens.put(&into.stripe_tokens, &mut given);
    at::rank_prefix.put(&into.rank_prefix, &mut given);
    at::stripe_prefix.put(&into.stripe_prefix, &mut given);
    kernel.core.hold(rank, &given)
}

fn dispatch_tables(
    rank: usize,
    kernel: &nvl_dispatch::Kernel,
    tables: &Tables,
    expert_begin: &DeviceTensor<i32, 1>,
) -> Result<Held, CallError> {
    use nvl_dispatch::places as at;
    let (mut given, from, into) =
        (nvl_dispatch::Kernel::NO_TENSORS, &tables.layout, &tables.dispatch);
    at::expert_begin.put(expert_begin, &mut given);
    at::in_rank.put(&from.in_rank, &mut given);
    at::stripe_tokens.put(&from.stripe_tokens, &mut given);
    at::rank_prefix.put(&from.rank_prefix, &mut given);
    at::stripe_prefix.put(&from.stripe_prefix, &mut given);
    at::recv_src.put(&into.recv_src, &mut given);
    at::send_head.put(&into.send_head, &mut given);
    at::recv_first.put(&into.recv_first, &mut given);
    at::recv_count.put(&into.recv_count, &mut given);
    at::send_row.put(&into.send_row, &mut given);
    kernel.core.hold(rank, &given)
}

fn one_launch_tables(
    rank: usize,
    kernel: &decode_dispatch::Kernel,
    tables: &Tables,
    expert_begin: &DeviceTensor<i32, 1>,
) -> Result<Held, CallError> {
    use decode_dispatch::places as at;
    let (mut given, into) = (decode_dispatch::Kernel::NO_TENSORS, &tables.one_launch);
    at::expert_begin.put(expert_begin, &mut given);
    at::recv_per_expert.put(&into.recv_per_expert, &mut given);
    at::tokens_per_rank.put(&into.tokens_per_rank, &mut given);
    at::tokens_per_expert.put(&into.tokens_per_expert, &mut given);
    at::rank_prefix.put(&into.rank_prefix, &mut given);
    at::recv_src.put(&into.recv_src, &mut given);
    at::send_row.put(&into.send_row, &mut given);
    kernel.core.hold(rank, &given)
}

fn fetched_tables(
    rank: usize,
    kernel: &nvl_combine::Kernel,
    tables: &Tables,
) -> Result<Held, CallError> {
    use nvl_combine::places as at;
    let (mut given, sent) = (nvl_combine::Kernel::NO_TENSORS, &tables.dispatch);
    at::rank_prefix.put(&tables.layout.rank_prefix, &mut given);
    at::send_head.put(&sent.send_head, &mut given);
    at::recv_first.put(&sent.recv_first, &mut given);
    at::recv_count.put(&sent.recv_count, &mut given);
    at::send_row.put(&sent.send_row, &mut given);
    kernel.core.hold(rank, &given)
}

fn stored_tables(
    rank: usize,
    kernel: &decode_combine::Kernel,
    tables: &Tables,
) -> Result<Held, CallError> {
    use decode_combine::places as at;
    let (mut given, of) = (decode_combine::Kernel::NO_TENSORS, &tables.one_launch);
    at::rank_prefix.put(&of.rank_prefix, &mut given);
    at::recv_src.put(&of.recv_src, &mut given);
    at::send_row.put(&of.send_row, &mut given);
    kernel.core.hold(rank, &given)
}

/// An output, for each pipeline that writes or reads it.
#[derive(Default)]
pub(super) struct HeldOutput {
    pub(super) dispatch: Held,
    /// A cached dispatch leaves rows and scales alone.
    pub(super) cached: Held,
    pub(super) one_launch: Held,
    /// Its rows, where a combine in place can read them.
    pub(super) combine: Option<Held>,
}

impl HeldOutput {
    pub(super) fn new(
        rank: usize,
        kernels: &Kernels,
        outputs: &nvl_dispatch::Outputs,
    ) -> Result<HeldOutput, CallError> {
        let kernels = match kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => return far.hold_output(rank, outputs),
        };
        let dispatch = hold_outputs(rank, &kernels.dispatch, outputs)?;
        let combine = match &outputs.recv_x {
            nvl_dispatch::PayloadTensor::Bf16 { x } => {
                Some(combined_rows(rank, &kernels.combine, x)?)
            }
            _ => None,
        };
        let mut held = HeldOutput { dispatch, combine, ..HeldOutput::default() };
        if let Some(kernel) = &kernels.cached {
            let (recv_x, rows_records) = (outputs.recv_x.clone(), outputs.rows_records.clone());
            let (recv_topk_idx, recv_topk_weights) = (None, None);
            let rows =
                nvl_dispatch::Outputs { recv_x, rows_records, recv_topk_idx, recv_topk_weights };
            held.cached = hold_outputs(rank, kernel, &rows)?;
        }
        if let Some(kernel) = &kernels.one_launch {
            use decode_dispatch::places as at;
            let x = decode_dispatch::PayloadTensor::from(&outputs.recv_x);
            let mut given = decode_dispatch::Kernel::NO_TENSORS;
            at::recv_x.put(&x, &mut given);
            at::recv_topk_idx.put(outputs.recv_topk_idx.as_ref(), &mut given);
            at::recv_topk_weights.put(outputs.recv_topk_weights.as_ref(), &mut given);
            at::rows_records.put(outputs.rows_records.as_ref(), &mut given);
            held.one_launch = kernel.core.hold(rank, &given)?;
        }
        Ok(held)
    }
}

fn hold_outputs(
    rank: usize,
    kernel: &nvl_dispatch::Kernel,
    outputs: &nvl_dispatch::Outputs,
) -> Result<Held, CallError> {
    use nvl_dispatch::places as at;
    let mut given = nvl_dispatch::Kernel::NO_TENSORS;
    at::recv_x.put(&outputs.recv_x, &mut given);
    at::recv_topk_idx.put(outputs.recv_topk_idx.as_ref(), &mut given);
    at::recv_topk_weights.put(outputs.recv_topk_weights.as_ref(), &mut given);
    at::rows_records.put(outputs.rows_records.as_ref(), &mut given);
    kernel.core.hold(rank, &given)
}

/// Rows that a combine reads.
fn combined_rows(
    rank: usize,
    combine: &Combine,
    x: &DeviceTensor<Bf16, 2>,
) -> Result<Held, CallError> {
    match combine {
        Combine::Fetched(kernel) => {
            let mut given = nvl_combine::Kernel::NO_TENSORS;
            nvl_combine::places::x.put(x, &mut given);
            kernel.core.hold(rank, &given)
        }
        Combine::Stored(kernel) => {
            let mut given = decode_combine::Kernel::NO_TENSORS;
            decode_combine::places::x.put(x, &mut given);
            kernel.core.hold(rank, &given)
        }
    }
}

/// A combine input: a combine in place takes its weights alone.
pub(super) struct HeldOffer {
    pub(super) x: Held,
    pub(super) weights: Held,
}

impl HeldOffer {
    pub(super) fn new(
        rank: usize,
        kernels: &Kernels,
        x: &DeviceTensor<Bf16, 2>,
        weights: Option<&DeviceTensor<f32, 2>>,
    ) -> Result<HeldOffer, CallError> {
        let kernels = match kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => return far.hold_offer(rank, x, weights),
        };
        let x = combined_rows(rank, &kernels.combine, x)?;
        let weights = match &kernels.combine {
            Combine::Fetched(kernel) => {
                let mut given = nvl_combine::Kernel::NO_TENSORS;
                nvl_combine::places::weights.put(weights, &mut given);
                kernel.core.hold(rank, &given)?
            }
            Combine::Stored(kernel) => {
                let mut given = decode_combine::Kernel::NO_TENSORS;
                decode_combine::places::weights.put(weights, &mut given);
                kernel.core.hold(rank, &given)?
            }
        };
        Ok(HeldOffer { x, weights })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, DispatchInput,
        Payload, Via,
    };
    use crate::args::Rows;
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};
    use crate::memory::DeviceMemory;

    /// Whatever a buffer is made for, its own memory fits all of its kernels: a call brings what they lack.
    #[test]
    fn what_a_buffer_owns_fits_its_kernels() {
        let group = Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap();
        let memory = DeviceMemory::zeroed(group.backend(), 0, 1 << 16).unwrap();
        let at = memory.address();
        for payload in Payload::ALL {
            for (via, few) in [(Via::Direct, true), (Via::Direct, false), (Via::Ring, false)] {
                for (weights, most, capacity) in
                    [(true, 8, None), (false, 8, Some(5)), (true, 0, None)]
                {
                    let one_launch = Some(few && most > 0 && capacity.is_none());
                    let push_combine = Some(few && most > 0);
                    let options = BufferOptions {
                        payload,
                        via,
                        weights,
                        capacity,
                        one_launch,
                        push_combine,
                        live: 2,
                        ..BufferOptions::new(most, 272, 3, 5)
                    };
                    let said = format!("{options:?}");
                    let buffer = Buffer::new(&group, options, &BuiltIn).expect(&said);
                    let (x, scale) = (Rows::new(at, 272), Rows::new(at, 3));
                    let topk_weights = if weights { at } else { 0 };
                    let tokens = most / 2;
                    let input = DispatchInput {
                        tokens,
                        x,
                        scale,
                        topk_idx: at,
                        topk_weights,
                        tokens_from: 0,
                    };
                    let call = CallOptions::sms(12);
                    let handle = buffer.exchange_counts(0, &input, &call).expect(&said);
                    let early = buffer.cached_dispatch(&handle, &input, &call).err().expect(&said);
                    assert!(early.to_string().starts_with("the handle has only counts"), "{early}");
                    if capacity.is_some() {
                        continue; // It would wait for counts, and nothing runs here.
                    }
                    let received = buffer.dispatch_counted(&handle, &input, &call).expect(&said);
                    let again = buffer.cached_dispatch(&handle, &input, &call).expect(&said);
                    let output = CombineOutput { combined: at, combined_weights: topk_weights };
                    let made = buffer.offer(0).unwrap();
                    let rows =
                        [CombineInput::Offered(&made), CombineInput::InPlace(&again, Some(&made))];
                    let rows = &rows[..if payload == Payload::Bf16 { 2 } else { 1 }];
                    for rows in rows {
                        buffer.combine(&handle, *rows, &[], &output, &call).expect(&said);
                    }
                    drop((received, again));
                    let whole = buffer.dispatch(0, &input, &call);
                    drop((handle, whole.expect(&said)));
                    group.sync(0).unwrap();
                }
            }
        }
    }
}

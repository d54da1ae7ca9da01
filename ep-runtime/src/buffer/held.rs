//! What a buffer brings to the calls of its pipelines, checked when it is made: a call copies the numbers
//! of its tables and of its output, and checks the tensors of its caller alone.

use super::kernels::{Combine, Kernels, NearKernels};
use super::places::Tables;
use crate::calls::Held;
use crate::error::CallError;
use crate::pipelines::{decode_combine, decode_dispatch, layout, nvl_combine, nvl_dispatch};
use crate::tensor::{Bf16, DeviceTensor};

/// Checks tensors that a kernel of `$pipeline` has in every call: single ones, and those of a handle or of outputs
/// under the names that they have there.
macro_rules! hold {
    ($pipeline:ident, $rank:expr, $kernel:expr, [$($name:ident: $tensor:expr),*]
        $(, $from:expr => [$($of:ident),*])*) => {{
        use $pipeline::places as at;
        let mut given = $pipeline::Kernel::NO_TENSORS;
        $(at::$name.put($tensor, &mut given);)*
        $($(at::$of.put(&$from.$of, &mut given);)*)*
        $kernel.core.hold($rank, &given)
    }};
}
pub(super) use hold;

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
        let mut held = HeldCounts {
            counts: hold!(layout, rank, near.layout, [], counts => [received, received_per_expert])?,
            ..HeldCounts::default()
        };
        if let Some(kernel) = &near.one_launch {
            held.one_launch = hold!(decode_dispatch, rank, kernel, [], counts => [received, received_per_expert])?;
        }
        Ok(held)
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
        Tables { layout, dispatch, one_launch, .. }: &Tables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<HeldTables, CallError> {
        let dispatch_tables = |kernel: &nvl_dispatch::Kernel| {
            hold!(nvl_dispatch, rank, kernel, [expert_begin: expert_begin],
                layout => [in_rank, stripe_tokens, rank_prefix, stripe_prefix],
                dispatch => [recv_src, send_head, recv_first, recv_count, send_row])
        };
        let mut held = HeldTables {
            layout: hold!(layout, rank, kernels.layout, [expert_begin: expert_begin],
                layout => [tokens_per_rank, tokens_per_expert, in_rank, stripe_tokens, rank_prefix, stripe_prefix])?,
            dispatch: dispatch_tables(&kernels.dispatch)?,
            combine: match &kernels.combine {
                Combine::Fetched(kernel) => hold!(nvl_combine, rank, kernel, [],
                    layout => [rank_prefix], dispatch => [send_head, recv_first, recv_count, send_row])?,
                Combine::Stored(kernel) => hold!(decode_combine, rank, kernel, [],
                    one_launch => [rank_prefix, recv_src, send_row])?,
            },
            ..HeldTables::default()
        };
        if let Some(kernel) = &kernels.cached {
            held.cached = dispatch_tables(kernel)?;
        }
        if let Some(kernel) = &kernels.one_launch {
            held.one_launch = hold!(decode_dispatch, rank, kernel, [expert_begin: expert_begin],
                one_launch => [recv_per_expert, tokens_per_rank, tokens_per_expert, rank_prefix, recv_src, send_row])?;
        }
        Ok(held)
    }
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
        let nvl_dispatch::Outputs { recv_x, recv_topk_idx, recv_topk_weights, rows_records } =
            outputs;
        let (idx, weights) = (recv_topk_idx.as_ref(), recv_topk_weights.as_ref());
        let (records, kernel) = (rows_records.as_ref(), &kernels.dispatch);
        let mut held = HeldOutput {
            dispatch: hold!(nvl_dispatch, rank, kernel, [recv_x: recv_x, recv_topk_idx: idx,
                recv_topk_weights: weights, rows_records: records])?,
            ..HeldOutput::default()
        };
        if let nvl_dispatch::PayloadTensor::Bf16 { x } = recv_x {
            held.combine = Some(combined_rows(rank, &kernels.combine, x)?);
        }
        if let Some(kernel) = &kernels.cached {
            held.cached =
                hold!(nvl_dispatch, rank, kernel, [recv_x: recv_x, rows_records: records])?;
        }
        if let Some(kernel) = &kernels.one_launch {
            let x = decode_dispatch::PayloadTensor::from(recv_x);
            held.one_launch = hold!(decode_dispatch, rank, kernel, [recv_x: &x, recv_topk_idx: idx,
                recv_topk_weights: weights, rows_records: records])?;
        }
        Ok(held)
    }
}

/// Rows that a combine reads.
fn combined_rows(
    rank: usize,
    combine: &Combine,
    x: &DeviceTensor<Bf16, 2>,
) -> Result<Held, CallError> {
    match combine {
        Combine::Fetched(kernel) => hold!(nvl_combine, rank, kernel, [x: x]),
        Combine::Stored(kernel) => hold!(decode_combine, rank, kernel, [x: x]),
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
            Combine::Fetched(kernel) => hold!(nvl_combine, rank, kernel, [weights: weights]),
            Combine::Stored(kernel) => hold!(decode_combine, rank, kernel, [weights: weights]),
        };
        Ok(HeldOffer { x, weights: weights? })
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

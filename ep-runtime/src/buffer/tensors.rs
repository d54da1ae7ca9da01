//! Tensors of a buffer's calls: tensors of a caller, compared with the buffer's shape, and views of
//! results, which keep their slot of the buffer.

use std::sync::Arc;

use super::handles::{Offered, Received};
use super::lease::Lease;
use super::options::Payload;
use super::{Buffer, CombineOutput, DispatchInput};
use crate::args::Rows;
use crate::error::{CallError, TensorFault};
use crate::tensor::{Bf16, DeviceTensor, Element, TensorMemory};

impl Buffer {
    /// Input of a dispatch: BF16 rows and their experts. The number of tokens is the number of rows.
    pub fn input(
        &self,
        x: &DeviceTensor<Bf16, 2>,
        topk_idx: &DeviceTensor<i64, 2>,
        topk_weights: Option<&DeviceTensor<f32, 2>>,
    ) -> Result<DispatchInput, CallError> {
        let options = self.options();
        if options.payload != Payload::Bf16 {
            let (have, want) = ("bf16", "e4m3");
            return Err(fault("x", TensorFault::Element { have, want }));
        }
        let [tokens, _] = x.extents();
        let topk = options.topk as u64;
        fits("x", x, [tokens, options.hidden as u64], true)?;
        fits("topk_idx", topk_idx, [tokens, topk], false)?;
        if let Some(weights) = topk_weights {
            fits("topk_weights", weights, [tokens, topk], false)?;
        }
        Ok(DispatchInput {
            tokens: tokens as usize,
            x: x.as_rows(),
            topk_idx: topk_idx.address(),
            topk_weights: topk_weights.map_or(0, DeviceTensor::address),
            ..DispatchInput::default()
        })
    }

    /// Output of a combine for the sums of `tokens` tokens.
    pub fn output(
        &self,
        tokens: usize,
        combined: &DeviceTensor<Bf16, 2>,
        combined_weights: Option<&DeviceTensor<f32, 2>>,
    ) -> Result<CombineOutput, CallError> {
        let (tokens, options) = (tokens as u64, self.options());
        fits("combined", combined, [tokens, options.hidden as u64], false)?;
        if let Some(weights) = combined_weights {
            fits("combined_weights", weights, [tokens, options.topk as u64], false)?;
        }
        let combined_weights = combined_weights.map_or(0, DeviceTensor::address);
        Ok(CombineOutput { combined: combined.address(), combined_weights })
    }
}

fn fault(tensor: &str, fault: TensorFault) -> CallError {
    CallError::Tensor { pipeline: "Buffer".to_string(), tensor: tensor.to_string(), fault }
}

/// Fails unless a tensor has these extents, and its rows lie side by side, or `apart` from one another.
fn fits<E: Element>(
    name: &str,
    tensor: &DeviceTensor<E, 2>,
    want: [u64; 2],
    apart: bool,
) -> Result<(), CallError> {
    let (have, [row, column]) = (tensor.extents(), tensor.strides());
    if have != want {
        let want = want.map(Some).to_vec();
        return Err(fault(name, TensorFault::Extents { have: have.to_vec(), want }));
    }
    let least = want[1] as i64;
    let is_row = if apart { row >= least } else { row == least };
    if want.contains(&0) || is_row && column == 1 {
        return Ok(());
    }
    let have = tensor.strides().to_vec();
    Err(fault(name, TensorFault::Strides { have, row: least, or_more: apart }))
}

impl Received {
    /// The rows: `Bf16`, or `E4m3` for the other payloads. [`Handle::counts`](super::Handle::counts) says
    /// how many have arrived.
    pub fn rows<E: Element>(&self) -> Result<DeviceTensor<E, 2>, CallError> {
        let options = &self.lease().shared.options;
        let is_bf16 = options.payload == Payload::Bf16;
        let want = if is_bf16 { Bf16::ELEM } else { crate::tensor::E4m3::ELEM };
        if E::ELEM != want {
            let name = ep_codegen::ir::text::elem;
            let (have, want) = (name(want), name(E::ELEM));
            return Err(fault("rows", TensorFault::Element { have, want }));
        }
        Ok(view(self.lease(), self.x()?, options.hidden))
    }

    /// The experts of each row as local numbers, -1 for experts of other ranks.
    pub fn experts(&self) -> Result<DeviceTensor<i64, 2>, CallError> {
        let topk = self.lease().shared.options.topk;
        Ok(view(self.lease(), Rows::new(self.topk_idx()?, topk as i64), topk))
    }

    /// The weights of all experts of each row.
    pub fn weights(&self) -> Result<DeviceTensor<f32, 2>, CallError> {
        let topk = self.lease().shared.options.topk;
        Ok(view(self.lease(), Rows::new(self.topk_weights()?, topk as i64), topk))
    }
}

impl Offered {
    /// The rows, in the order in which the dispatch received its rows.
    pub fn rows(&self) -> Result<DeviceTensor<Bf16, 2>, CallError> {
        Ok(view(self.lease(), self.x()?, self.lease().shared.options.hidden))
    }

    /// The weights of the rows, for a buffer that moves weights.
    pub fn row_weights(&self) -> Result<DeviceTensor<f32, 2>, CallError> {
        Ok(view(self.lease(), self.weights()?, self.lease().shared.options.topk))
    }
}

/// As many rows as the buffer holds, which stay as long as the tensor.
fn view<E: Element>(lease: &Lease, rows: Rows, width: usize) -> DeviceTensor<E, 2> {
    if rows.address == 0 {
        return DeviceTensor::default();
    }
    let capacity = lease.shared.options.capacity(lease.shared.group.ranks()) as u64;
    let strides = [rows.row_stride, 1];
    DeviceTensor::within(&kept(lease), rows.address, [capacity, width as u64], strides)
}

/// Memory of a buffer that stays as long as its place is leased.
pub(super) fn kept(lease: &Lease) -> Arc<TensorMemory> {
    let (backend, rank) = (Arc::clone(lease.shared.group.backend()), lease.rank);
    Arc::new(TensorMemory::Kept { backend, rank, kept: Box::new(lease.clone()) })
}

#[cfg(test)]
mod tests {
    use super::super::{BufferOptions, BuiltIn, CallOptions};
    use super::*;
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};

    #[test]
    fn tensors_are_compared_with_the_buffer_and_views_keep_their_place() {
        let group = Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap();
        let buffer = Buffer::new(&group, BufferOptions::new(8, 64, 2, 4), &BuiltIn).unwrap();
        let zeros = |extents| DeviceTensor::<Bf16, 2>::zeros(&group, 0, extents).unwrap();
        let idx = DeviceTensor::<i64, 2>::zeros(&group, 0, [5, 2]).unwrap();
        let weights = DeviceTensor::<f32, 2>::zeros(&group, 0, [5, 2]).unwrap();
        let said = |x: [usize; 2], idx: &DeviceTensor<i64, 2>| {
            let made = buffer.input(&zeros(x), idx, Some(&weights));
            made.map_or_else(|error| error.to_string(), |input| input.tokens.to_string())
        };
        assert_eq!(said([5, 64], &idx), "5");
        assert_eq!(said([5, 48], &idx), "Buffer: `x` has extents [5, 48], not [5, 64]");
        let few = "Buffer: `topk_idx` has extents [4, 2], not [5, 2]";
        assert_eq!(said([5, 64], &idx.first(4)), few);
        let x = zeros([5, 64]);
        let input = buffer.input(&x, &idx, Some(&weights)).unwrap();
        let call = CallOptions::default();
        let (handle, received) = buffer.dispatch(0, &input, &call).unwrap();
        let rows = received.rows::<Bf16>().unwrap();
        assert_eq!((rows.extents(), rows.strides()), ([8, 64], [64, 1]));
        assert_eq!(rows.first(2).read().unwrap().len(), 128);
        let wrong = received.rows::<u8>().unwrap_err().to_string();
        assert_eq!(wrong, "Buffer: `rows` holds bf16, not u8");
        drop(received);
        let again = |buffer: &Buffer| buffer.cached_dispatch(&handle, &input, &call).map(drop);
        assert!(again(&buffer).is_err(), "the tensor keeps the output");
        drop(rows);
        again(&buffer).unwrap();
        let sums = buffer.output(5, &zeros([5, 64]), Some(&weights)).unwrap();
        assert!(sums.combined != 0 && sums.combined_weights == weights.address());
    }

    /// A pipeline of the user reads them as the tables of the pipelines that left them.
    #[test]
    fn tables_of_a_handle_are_typed_and_keep_its_place() {
        let group = Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap();
        for one_launch in [false, true] {
            let options = BufferOptions::new(8, 64, 2, 4);
            let options = BufferOptions { one_launch: Some(one_launch), ..options };
            let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
            let idx = DeviceTensor::<i64, 2>::zeros(&group, 0, [5, 2]).unwrap();
            let x = DeviceTensor::<Bf16, 2>::zeros(&group, 0, [5, 64]).unwrap();
            let weights = DeviceTensor::<f32, 2>::zeros(&group, 0, [5, 2]).unwrap();
            let input = buffer.input(&x, &idx, Some(&weights)).unwrap();
            let call = CallOptions::default();
            let dispatch = || buffer.dispatch(0, &input, &call);
            let (handle, received) = dispatch().unwrap();
            let (counted, sent) = (handle.layout().unwrap(), handle.dispatch().unwrap());
            assert_eq!(counted.rank_prefix.extents(), [2, 1]);
            assert_eq!(sent.send_row.extents(), [5, 1], "as many as the call has tokens");
            assert_eq!(sent.send_head.address(), 0, "it belongs to rings");
            let flags = if one_launch { [0, 0] } else { [5, 1] };
            assert_eq!(counted.in_rank.extents(), flags, "one launch has no stripes");
            drop(received);
            drop((handle, counted));
            let error = dispatch().err().expect("a table keeps the handle").to_string();
            assert_eq!(error, "rank 0: all 1 handles are in use; drop one, or make more");
            drop(sent);
            dispatch().map(drop).unwrap();
            group.sync(0).unwrap();
        }
    }
}

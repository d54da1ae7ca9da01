//! The caller's inputs of a call, as the tensors of the pipelines that it launches.

use super::BufferOptions;
use super::payload::PayloadRows;
use crate::args::Rows;
use crate::error::CallError;
use crate::tensor::DeviceTensor;

/// Input of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchInput {
    /// Tokens of this rank.
    pub tokens: usize,
    /// Device address of an `i32` with the number of tokens, if the host does not know it, as when a graph
    /// replays the call. `tokens` is then the upper limit. The word must not change until all calls of the
    /// handle have run. 0: the number is `tokens`.
    pub tokens_from: u64,
    /// Token rows.
    pub x: Rows,
    /// Scales of the rows; absent for BF16.
    pub scale: Rows,
    /// Device address of `i64[tokens, topk]`; a cached dispatch needs none.
    pub topk_idx: u64,
    /// Device address of `f32[tokens, topk]`, for a buffer that moves weights.
    pub topk_weights: u64,
}

/// Where a combine writes its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CombineOutput {
    /// Device address of `bf16[tokens, hidden]`.
    pub combined: u64,
    /// Device address of `f32[tokens, topk]`, for a buffer that moves weights.
    pub combined_weights: u64,
}

impl DispatchInput {
    /// Fails without what the buffer was made to move, and for a number of tokens that no kernel could
    /// read.
    pub(super) fn check(&self, options: &BufferOptions) -> Result<(), CallError> {
        if !self.tokens_from.is_multiple_of(4) {
            let at = self.tokens_from;
            let what = format!("`tokens_from` begins at {at:#x}, which is not a multiple of 4");
            return Err(CallError::Mismatch { what });
        }
        check_weights("topk_weights", options.weights && self.tokens > 0, self.topk_weights)
    }

    /// Where its tokens go.
    pub(super) fn topk_idx(&self, options: &BufferOptions) -> DeviceTensor<i64, 2> {
        DeviceTensor::borrowed(self.topk_idx, [self.tokens as u64, options.topk as u64])
    }

    /// The weights of that, if the buffer moves any.
    pub(super) fn topk_weights(&self, options: &BufferOptions) -> Option<DeviceTensor<f32, 2>> {
        let extents = [self.tokens as u64, options.topk as u64];
        options.weights.then(|| DeviceTensor::borrowed(self.topk_weights, extents))
    }

    /// Its rows.
    pub(super) fn rows(&self, options: &BufferOptions) -> PayloadRows {
        PayloadRows::of(options, self.tokens as u64, self.x, self.scale)
    }
}

impl CombineOutput {
    /// Fails without a place for the weights of `tokens` tokens that the buffer adds up.
    pub(super) fn check(&self, options: &BufferOptions, tokens: usize) -> Result<(), CallError> {
        let needed = options.weights && tokens > 0;
        check_weights("combined_weights", needed, self.combined_weights)
    }
}

fn check_weights(name: &str, needed: bool, address: u64) -> Result<(), CallError> {
    if !needed || address != 0 {
        return Ok(());
    }
    let what = format!("`{name}` has no address, but the buffer was made with `weights`");
    Err(CallError::Mismatch { what })
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, BuiltIn, CallOptions, CombineInput, Payload};
    use super::*;
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};
    use crate::memory::DeviceMemory;

    const TOKENS: usize = 8;

    /// A buffer of one rank, and memory that is large enough for any tensor of it.
    fn buffer(options: BufferOptions) -> (Group, Buffer, DeviceMemory) {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend, GroupOptions::default()).unwrap();
        let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
        let memory = DeviceMemory::zeroed(group.backend(), 0, 1 << 16).unwrap();
        (group, buffer, memory)
    }

    fn input(memory: &DeviceMemory) -> DispatchInput {
        let at = memory.address();
        DispatchInput {
            tokens: TOKENS,
            x: Rows::new(at, 64),
            topk_idx: at,
            topk_weights: at,
            ..DispatchInput::default()
        }
    }

    /// Nothing is launched: if one rank gets an error, no other may be left waiting for it.
    #[test]
    fn a_dispatch_without_a_tensor_is_refused() {
        let (group, buffer, memory) = buffer(BufferOptions::new(TOKENS, 64, 2, 4));
        let (whole, call) = (input(&memory), CallOptions::sms(12));
        let refused = |input: DispatchInput| {
            let error = buffer.dispatch(0, &input, &call).err().expect("it is refused");
            error.to_string()
        };
        let absent = |name: &str| format!("DecodeDispatch: `{name}` is absent");
        let x = Rows::new(0, 64);
        assert_eq!(refused(DispatchInput { x, ..whole }), absent("x"));
        assert_eq!(refused(DispatchInput { topk_idx: 0, ..whole }), absent("topk_idx"));
        let weights = "`topk_weights` has no address, but the buffer was made with `weights`";
        assert_eq!(refused(DispatchInput { topk_weights: 0, ..whole }), weights);
        let x = Rows::new(whole.x.address + 2, 64);
        let odd = refused(DispatchInput { x, ..whole });
        assert!(odd.ends_with("128 bytes apart: both have to be multiples of 16"), "{odd}");
        let narrow = refused(DispatchInput { x: Rows::new(whole.x.address, 65), ..whole });
        assert!(narrow.contains("130 bytes apart"), "{narrow}");
        let odd = refused(DispatchInput { topk_idx: whole.topk_idx + 4, ..whole });
        assert!(odd.ends_with("which is not a multiple of 8"), "{odd}");
        let odd = refused(DispatchInput { tokens_from: whole.topk_idx + 2, ..whole });
        assert!(odd.starts_with("`tokens_from` begins at"), "{odd}");
        // A rank without tokens needs none of them.
        buffer.dispatch(0, &DispatchInput::default(), &call).map(drop).unwrap();
        group.sync(0).unwrap();
    }

    /// What fails on one rank alone fails before the counts are on their way.
    #[test]
    fn a_dispatch_that_cannot_send_rows_counts_none() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let options = BufferOptions { handles: Some(2), ..BufferOptions::new(TOKENS, 64, 2, 4) };
        let buffer = Buffer::new(&group, options, &BuiltIn).unwrap();
        let memory = DeviceMemory::zeroed(group.backend(), 0, 1 << 16).unwrap();
        let launches = || backend.launches.load(std::sync::atomic::Ordering::Relaxed);
        let refused = |sms: u32| {
            let error = buffer.dispatch(0, &input(&memory), &CallOptions::sms(sms)).err();
            error.expect("it is refused").to_string()
        };
        assert!(refused(200).starts_with("200 blocks of 32 threads"), "{}", refused(200));
        assert_eq!(launches(), 0);
        let kept = buffer.dispatch(0, &input(&memory), &CallOptions::sms(12)).unwrap();
        let before = launches();
        assert!(before > 0);
        assert!(refused(12).starts_with("rank 0: all 1 outputs are in use"), "{}", refused(12));
        assert_eq!(launches(), before);
        drop(kept);
        group.sync(0).unwrap();
    }

    #[test]
    fn scales_belong_to_a_payload_that_has_them() {
        let options = BufferOptions { weights: false, ..BufferOptions::new(TOKENS, 64, 2, 4) };
        let (group, buffer, memory) = buffer(BufferOptions { payload: Payload::Fp8, ..options });
        let scale = Rows::new(0, 1);
        let without = DispatchInput { topk_weights: 0, scale, ..input(&memory) };
        let call = CallOptions::sms(12);
        let error = buffer.dispatch(0, &without, &call).err().unwrap();
        assert_eq!(error.to_string(), "DecodeDispatch: `x_scale` is absent");
        let with = DispatchInput { scale: Rows::new(memory.address(), 1), ..without };
        buffer.dispatch(0, &with, &call).map(drop).unwrap();
        group.sync(0).unwrap();
    }

    #[test]
    fn a_combine_without_rows_or_a_place_for_its_sums_is_refused() {
        let options = BufferOptions { biases: 1, ..BufferOptions::new(TOKENS, 64, 2, 4) };
        let (group, buffer, memory) = buffer(options);
        let (at, call) = (memory.address(), CallOptions::sms(12));
        let handle = buffer.exchange_counts(0, &input(&memory), &call).unwrap();
        let made = buffer.offer(0).unwrap();
        let combine = |combined: u64, combined_weights: u64, bias: Rows| {
            let output = CombineOutput { combined, combined_weights };
            buffer.combine(&handle, CombineInput::Offered(&made), &[bias], &output, &call)
        };
        let refused = |result: Result<(), CallError>| result.unwrap_err().to_string();
        let bias = Rows::new(at, 64);
        let way = "the handle has only counts: make its `dispatch_counted` first";
        assert_eq!(refused(combine(at, at, bias)), way);
        let _received = buffer.dispatch_counted(&handle, &input(&memory), &call).unwrap();
        assert_eq!(refused(combine(0, at, bias)), "DecodeCombine: `combined` is absent");
        assert!(refused(combine(at + 8, at, bias)).contains("`combined` begins at"));
        assert!(
            refused(combine(at, 0, bias)).starts_with("`combined_weights` has no address, but")
        );
        assert_eq!(refused(combine(at, at, Rows::new(0, 64))), "DecodeCombine: `bias` is absent");
        combine(at, at, bias).unwrap();
        group.sync(0).unwrap();
    }
}

//! Rows of a payload, as each pipeline takes them.

use super::options::{BufferOptions, Payload};
use crate::args::Rows;
use crate::pipelines::{
    decode_dispatch, expand, low_latency_dispatch, node_dispatch, nvl_dispatch, packed_dispatch,
};
use crate::tensor::DeviceTensor;

/// Rows and their scales, in memory that somebody else keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct PayloadRows {
    payload: Payload,
    /// How many, and values of each.
    rows: u64,
    hidden: usize,
    x: Rows,
    /// Absent for BF16.
    scale: Rows,
}

impl PayloadRows {
    pub(super) fn of(options: &BufferOptions, rows: u64, x: Rows, scale: Rows) -> PayloadRows {
        let BufferOptions { payload, hidden, .. } = *options;
        PayloadRows { payload, rows, hidden, x, scale }
    }

    fn values<E>(&self) -> DeviceTensor<E, 2> {
        DeviceTensor::borrowed_rows(&self.x, [self.rows, self.hidden as u64])
    }

    fn scales<E>(&self) -> DeviceTensor<E, 2> {
        let extents = [self.rows, self.payload.scales(self.hidden) as u64];
        DeviceTensor::borrowed_rows(&self.scale, extents)
    }
}

macro_rules! payloads {
    ($($module:ident,)*) => {$(
        impl From<Payload> for $module::Payload {
            fn from(payload: Payload) -> $module::Payload {
                match payload {
                    Payload::Bf16 => $module::Payload::Bf16,
                    Payload::Fp8 => $module::Payload::Fp8,
                    Payload::Fp8Packed => $module::Payload::Fp8Packed,
                }
            }
        }

        impl From<PayloadRows> for $module::PayloadTensor<2> {
            fn from(rows: PayloadRows) -> $module::PayloadTensor<2> {
                match rows.payload {
                    Payload::Bf16 => Self::Bf16 { x: rows.values() },
                    Payload::Fp8 => Self::Fp8 { x: rows.values(), scale: rows.scales() },
                    Payload::Fp8Packed => {
                        Self::Fp8Packed { x: rows.values(), scale: rows.scales() }
                    }
                }
            }
        }
    )*};
}
payloads! {
    nvl_dispatch,
    decode_dispatch,
    expand,
    node_dispatch,
}

/// Rows of one pipeline as another one takes them.
macro_rules! same_rows {
    ($($from:ident as $to:ident,)*) => {$(
        impl<const RANK: usize> From<&$from::PayloadTensor<RANK>> for $to::PayloadTensor<RANK> {
            fn from(rows: &$from::PayloadTensor<RANK>) -> Self {
                match rows.clone() {
                    $from::PayloadTensor::Bf16 { x } => Self::Bf16 { x },
                    $from::PayloadTensor::Fp8 { x, scale } => Self::Fp8 { x, scale },
                    $from::PayloadTensor::Fp8Packed { x, scale } => Self::Fp8Packed { x, scale },
                }
            }
        }
    )*};
}
same_rows! {
    nvl_dispatch as decode_dispatch,
    nvl_dispatch as node_dispatch,
    node_dispatch as nvl_dispatch,
    low_latency_dispatch as packed_dispatch,
    packed_dispatch as low_latency_dispatch,
}

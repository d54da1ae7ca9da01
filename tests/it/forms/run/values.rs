//! Numbers as memory holds them.

use ep_runtime::ir::Elem;

/// Numbers of a function of row and column, row by row.
pub(in crate::forms) fn rows(
    rows: usize,
    width: usize,
    value: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    (0..rows * width).map(|at| value(at / width, at % width)).collect()
}

/// An element as memory holds it; `bf16` takes numbers that it can hold, `e4m3` and `ue8m0` codes.
pub(super) fn encode(elem: &Elem, value: f64) -> Vec<u8> {
    match elem {
        Elem::Bool | Elem::U8 | Elem::E4m3 | Elem::Ue8m0 => vec![value as u8],
        Elem::I8 => vec![value as i8 as u8],
        Elem::I32 => (value as i32).to_le_bytes().to_vec(),
        Elem::I64 => (value as i64).to_le_bytes().to_vec(),
        Elem::F32 => (value as f32).to_le_bytes().to_vec(),
        Elem::Bf16 => ((value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
    }
}

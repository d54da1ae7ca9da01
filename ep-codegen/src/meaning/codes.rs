//! Rows in fewer bits: what a cast makes of a row, and what that stands for.

use super::data::{Data, Scalar, Tensor};
use super::logfmt::Range;
use super::round::{e4m3_scale, e4m3_to_f32, f32_to_e4m3, f32_to_ue8m0, ue8m0_to_f32};
use crate::ir::parts::Code;

/// Codes of logfmt10 whose upper bits share a byte.
const FOUR: usize = 4;

/// Writes a row of floats to parts, block by block of its last extent. `None`: they are no such code.
pub(super) fn encode(out: &mut Tensor, row: &Tensor, (code, block): (Code, usize)) -> Option<()> {
    if code == Code::Logfmt10 && out.parts.get(2)?.block != block {
        return None;
    }
    let width = row.extents.last().copied().unwrap_or(1).max(1);
    let Some(Scalar::Real(_)) = row.get(0) else { return row.get(0).is_none().then_some(()) };
    let value = |at: usize| match row.get(at) {
        Some(Scalar::Real(value)) => value,
        _ => 0.0,
    };
    let mut number = 0;
    for start in (0..row.count()).step_by(width) {
        for begin in (start..start + width).step_by(block.max(1)) {
            let end = (begin + block.max(1)).min(start + width);
            let values: Vec<f32> = (begin..end).map(value).collect();
            match code {
                Code::E4m3 => scaled(out, &values, (begin, number))?,
                Code::Logfmt10 => logarithms(out, &values, (begin, number))?,
            }
            number += 1;
        }
    }
    Some(())
}

/// A block in e4m3, with its scale.
fn scaled(out: &mut Tensor, values: &[f32], (begin, number): (usize, usize)) -> Option<()> {
    let [codes, scales] = out.parts.as_mut_slice() else { return None };
    let peak = values.iter().map(|value| value.abs()).fold(0.0_f32, f32::max);
    let exact = e4m3_scale(peak);
    let (scale, stored) = match scales.data {
        Data::Ue8m0(_) => {
            let power = f32_to_ue8m0(exact);
            (ue8m0_to_f32(power), Scalar::Code(power))
        }
        _ => (exact, Scalar::Real(exact)),
    };
    scales.data.set(number, stored).ok()?;
    for (at, value) in values.iter().enumerate() {
        codes.data.set(begin + at, Scalar::Code(f32_to_e4m3(value / scale))).ok()?;
    }
    Some(())
}

/// A block in logfmt10, with the range of its logarithms.
fn logarithms(out: &mut Tensor, values: &[f32], (begin, number): (usize, usize)) -> Option<()> {
    let range = Range::of(values);
    let first = out.place_in(FOUR, begin);
    let [lower, upper, low, step] = out.parts.as_mut_slice() else { return None };
    low.data.set(number, Scalar::Real(range.low)).ok()?;
    step.data.set(number, Scalar::Real(range.step)).ok()?;
    for (group, four) in values.chunks(FOUR).enumerate() {
        let mut bits = 0;
        for (at, value) in four.iter().enumerate() {
            let code = i64::from(range.encode(*value));
            lower.data.set(begin + group * FOUR + at, Scalar::Int(code & 0xff)).ok()?;
            bits |= (code >> 8) << (2 * at);
        }
        upper.data.set(first + group, Scalar::Int(bits)).ok()?;
    }
    Some(())
}

/// The floats that a row of several parts stands for, if its parts are a code.
pub(super) fn decode(row: &Tensor) -> Option<Tensor> {
    let real = |part: usize, at: usize| match row.parts[part].data.get(at) {
        Some(Scalar::Real(value)) => value,
        Some(Scalar::Code(code)) => ue8m0_to_f32(code),
        _ => 0.0,
    };
    let floats: Vec<f32> = match row.parts.iter().map(|it| &it.data).collect::<Vec<_>>()[..] {
        [Data::E4m3(codes), Data::F32(_) | Data::Ue8m0(_)] => {
            let scale = |at| real(1, row.place_in(row.parts[1].block, at));
            codes.iter().enumerate().map(|(at, code)| e4m3_to_f32(*code) * scale(at)).collect()
        }
        [Data::U8(lower), Data::U8(upper), Data::F32(_), Data::F32(_)] => {
            let width = row.extents.last().copied().unwrap_or(1).max(1);
            let value = |(at, code): (usize, &u8)| {
                let bits = upper.get(row.place_in(FOUR, at)).copied().unwrap_or(0);
                let more = u32::from(bits) >> (2 * (at % width % FOUR)) & 3;
                let block = row.place_in(row.parts[2].block, at);
                let range = Range { low: real(2, block), step: real(3, block) };
                range.decode(u32::from(*code) | more << 8)
            };
            lower.iter().enumerate().map(value).collect()
        }
        _ => return None,
    };
    Some(Tensor::new(&row.extents, Data::F32(floats)))
}

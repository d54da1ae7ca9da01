//! Values of drawn tensors.

use super::super::data::{Data, Part, Scalar, Tensor};
use super::super::dice::Dice;
use super::super::round::f32_to_bf16;
use super::{Drawing, Undrawn};
use crate::ir::{Tensor as Declared, text};

impl Drawing<'_> {
    /// One tensor of a rank.
    pub(super) fn values(
        &mut self,
        mut out: Tensor,
        tensor: &Declared,
        range: Option<(i64, i64, i64)>,
    ) -> Result<Tensor, Undrawn> {
        let (Some(values), Some(range)) = (&tensor.values, range) else {
            out.parts.iter_mut().for_each(|part| self.small(part));
            return Ok(out);
        };
        let width = out.extents.last().copied().unwrap_or(1).max(1);
        let few = || {
            let (range, (low, high, _)) = (text::values_of(values), range);
            let wanted =
                format!("{range}: a row needs {width} values, and the range is {low}..{high}");
            Undrawn::Values { name: tensor.name.clone(), wanted }
        };
        let mut list = Vec::new();
        for _ in 0..out.count() / width {
            let row = match values.ascending {
                true => self.ascending(width, range),
                false => self.row(width, range, values.distinct),
            };
            list.extend(row.ok_or_else(few)?);
        }
        if let Some(part) = out.parts.first_mut() {
            for (at, value) in list.into_iter().enumerate() {
                part.data.set(at, Scalar::Int(value)).map_err(|_| few())?;
            }
        }
        Ok(out)
    }

    /// A row that goes up from the first value of the range to the last.
    fn ascending(&mut self, width: usize, (low, high, step): (i64, i64, i64)) -> Option<Vec<i64>> {
        let climb = high.checked_sub(1)?.checked_sub(low)?;
        let mut steps = vec![0_i64; width.checked_sub(1)?];
        if climb < 0 || i128::from(climb) > i128::from(step) * steps.len() as i128 {
            return None;
        }
        for _ in 0..climb {
            let open: Vec<usize> = (0..steps.len()).filter(|at| steps[*at] < step).collect();
            steps[*self.random.one_of(&open)?] += 1;
        }
        let mut row = vec![low];
        for step in steps {
            row.push(row.last()? + step);
        }
        Some(row)
    }

    /// A row of values, -1 among them now and then.
    fn row(
        &mut self,
        width: usize,
        (low, high, _): (i64, i64, i64),
        distinct: bool,
    ) -> Option<Vec<i64>> {
        if high <= low {
            return (width == 0).then(Vec::new);
        }
        let has_none = (low..high).contains(&-1);
        // Some rows keep to a few values, so that they meet.
        let few = low.saturating_add(3).max(if distinct { low + width as i64 } else { low });
        let high = if self.random.once_in(4) { high.min(few) } else { high };
        let mut row = Vec::new();
        for _ in 0..width {
            let mut value = self.random.within(low, high);
            if distinct && row.contains(&value) {
                let open: Vec<i64> = (low..high).filter(|it| !row.contains(it)).collect();
                value = match self.random.one_of(&open) {
                    Some(value) => *value,
                    None if has_none => -1,
                    None => return None,
                };
            }
            row.push(value);
        }
        Some(row)
    }

    /// Small numbers of any kind; no zeros among floats, so that a row that never came shows.
    fn small(&mut self, part: &mut Part) {
        let random = &mut self.random;
        match &mut part.data {
            Data::Bool(list) => list.iter_mut().for_each(|it| *it = random.once_in(2)),
            Data::U8(list) => list.iter_mut().for_each(|it| *it = random.below(16) as u8),
            Data::I8(list) => list.iter_mut().for_each(|it| *it = random.within(-8, 32) as i8),
            Data::I32(list) => list.iter_mut().for_each(|it| *it = random.within(-8, 32) as i32),
            Data::I64(list) => list.iter_mut().for_each(|it| *it = random.within(-8, 32)),
            Data::F32(list) => list.iter_mut().for_each(|it| *it = real(random)),
            Data::Bf16(list) => {
                list.iter_mut().for_each(|it| *it = f32_to_bf16(real(random)));
            }
            // All codes but those of no number.
            Data::E4m3(list) => list.iter_mut().for_each(|it| *it = random.below(0x7f) as u8),
            Data::Ue8m0(list) => list.iter_mut().for_each(|it| *it = random.below(0xff) as u8),
            Data::Bits(list) => list.iter_mut().for_each(|it| *it = random.below(4) as u64),
        }
    }
}

/// A float between 1/8 and 2, of either sign.
fn real(random: &mut Dice) -> f32 {
    let magnitude = 0.125 + random.below(1 << 12) as f32 / 2184.5;
    if random.once_in(2) { magnitude } else { -magnitude }
}

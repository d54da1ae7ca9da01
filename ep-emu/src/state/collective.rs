//! A meeting of lanes in a warp function, and what it computes.

use crate::abi::Pc;

/// One meeting of lanes.
#[derive(Clone, Debug)]
pub(crate) struct Collective {
    pub(crate) mask: u32,
    pub(crate) arrived: u32,
    pub(crate) op: u32,
    pub(crate) width: i32,
    pub(crate) pc: Pc,
    pub(crate) values: [u64; 32],
    pub(crate) arguments: [i32; 32],
}

pub(crate) const SYNC: u32 = 0;
pub(crate) const SHFL: u32 = 1;
const SHFL_UP: u32 = 2;
const SHFL_DOWN: u32 = 3;
pub(crate) const SHFL_XOR: u32 = 4;
const NAMES: [&str; 17] = [
    "__syncwarp",
    "__shfl_sync",
    "__shfl_up_sync",
    "__shfl_down_sync",
    "__shfl_xor_sync",
    "__ballot_sync",
    "__any_sync",
    "__all_sync",
    "__reduce_add_sync",
    "__reduce_max_sync",
    "__reduce_min_sync",
    "__reduce_max_sync",
    "__reduce_min_sync",
    "__reduce_or_sync",
    "__reduce_and_sync",
    "__reduce_xor_sync",
    "__match_any_sync",
];

pub(crate) fn name(op: u32) -> &'static str {
    NAMES.get(op as usize).copied().unwrap_or("a warp function")
}

pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 != 0)
}

impl Collective {
    fn reduce(&self, first: u32, op: impl Fn(u32, u32) -> u32) -> u64 {
        let values = lanes_of(self.mask).map(|lane| self.values[lane] as u32);
        u64::from(values.fold(first, op))
    }

    /// The result of operations that give every lane the same.
    pub(crate) fn common(&self) -> u64 {
        let votes = lanes_of(self.mask).filter(|lane| self.values[*lane] != 0);
        let ballot = votes.fold(0u32, |bits, lane| bits | 1 << lane);
        match self.op {
            5 => u64::from(ballot),
            6 => u64::from(ballot != 0),
            7 => u64::from(ballot == self.mask),
            8 => self.reduce(0, u32::wrapping_add),
            9 => self.reduce(i32::MIN as u32, |a, b| (a as i32).max(b as i32) as u32),
            10 => self.reduce(i32::MAX as u32, |a, b| (a as i32).min(b as i32) as u32),
            11 => self.reduce(0, u32::max),
            12 => self.reduce(u32::MAX, u32::min),
            13 => self.reduce(0, |a, b| a | b),
            14 => self.reduce(u32::MAX, |a, b| a & b),
            15 => self.reduce(0, |a, b| a ^ b),
            _ => 0,
        }
    }

    /// The lane that a shuffle reads for `lane`; `Err`: a lane that does not take part.
    pub(crate) fn source(&self, lane: usize) -> Result<usize, usize> {
        let width = self.width.clamp(1, 32) as usize;
        let base = lane & !(width - 1);
        let argument = self.arguments[lane];
        let source = match self.op {
            SHFL => Some(base + (argument as usize & (width - 1))),
            SHFL_UP => lane.checked_sub(argument as usize).filter(|source| *source >= base),
            SHFL_DOWN => Some(lane + argument as usize).filter(|source| *source < base + width),
            _ => Some(lane ^ argument as usize).filter(|source| *source < base + width),
        };
        let source = source.unwrap_or(lane);
        if source < 32 && self.mask >> source & 1 != 0 { Ok(source) } else { Err(source) }
    }

    pub(crate) fn matching(&self, lane: usize) -> u64 {
        let same = lanes_of(self.mask).filter(|other| self.values[*other] == self.values[lane]);
        same.fold(0, |bits, lane| bits | 1 << lane)
    }
}

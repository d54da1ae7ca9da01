//! The bytes of `struct Args`, the one parameter of a kernel.
//!
//! Names are resolved once, when a kernel is prepared: an [`ArgsMap`] says for every member which value of
//! a call it takes and what is added to it. Values that no call changes are stored in the [`ArgsBlock`] of
//! each rank at that time. A call only adds and stores the values that differ.

mod bindings;

use ep_codegen::plan::{Param, ParamKind, Plan, elem_bytes};

pub use bindings::Bindings;

use crate::error::CallError;

/// Size of `ep::Group`.
pub const GROUP_BYTES: usize = 72;
/// Where it holds the address of the rank's own window.
#[cfg(any(feature = "host", test))]
pub(crate) const WINDOW_AT: usize = 8;
/// Where it holds the address of its stop word.
#[cfg(any(feature = "host", test))]
pub(crate) const STOP_AT: usize = 24;
/// Where it holds the longest wait, and who takes part: both may differ from call to call.
const TIMEOUT_AT: usize = 40;
const ALIVE_AT: usize = 48;
/// Where it holds the number of its pipeline.
#[cfg(any(feature = "host", test))]
pub(crate) const PIPELINE_AT: usize = 60;

/// The members of `ep::Group` (`templates/device/ep/sync.cuh`) in order, with their offsets. A test
/// holds this list against the header's text.
#[cfg(test)]
const GROUP_MEMBERS: [(&str, usize); 10] = [
    ("char* const* windows", 0),
    ("char* window", WINDOW_AT),
    ("State* state", 16),
    ("u32* stop", STOP_AT),
    ("Record* records", 32),
    ("u64 timeout_ns", TIMEOUT_AT),
    ("u64 alive", ALIVE_AT),
    ("u32 record_capacity", 56),
    ("u32 pipeline", PIPELINE_AT),
    ("i32 rank", 64),
];

/// The group's numbers and addresses for a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupArgs {
    /// Device array of all ranks' control memory as this rank sees it.
    pub windows: u64,
    /// This rank's control memory.
    pub window: u64,
    /// The plan's words in local device memory.
    pub state: u64,
    /// The group's stop word in local device memory.
    pub stop: u64,
    /// Timeout records in host memory.
    pub records: u64,
    /// Longest wait, in nanoseconds.
    pub timeout_ns: u64,
    /// A bit for each of the first 64 ranks: whether it takes part in calls.
    pub alive: u64,
    /// Number of records.
    pub record_capacity: u32,
    /// The pipeline's number in records.
    pub pipeline: u32,
    /// This rank.
    pub rank: u32,
}

impl GroupArgs {
    /// The struct in the kernel's layout.
    pub fn bytes(&self) -> [u8; GROUP_BYTES] {
        let wide = [
            self.windows,
            self.window,
            self.state,
            self.stop,
            self.records,
            self.timeout_ns,
            self.alive,
        ];
        let narrow = [self.record_capacity, self.pipeline, self.rank];
        let wide = wide.into_iter().flat_map(u64::to_le_bytes);
        let mut bytes = [0; GROUP_BYTES];
        for (byte, value) in
            bytes.iter_mut().zip(wide.chain(narrow.into_iter().flat_map(u32::to_le_bytes)))
        {
            *byte = value;
        }
        bytes
    }
}

/// The source of a member of `struct Args`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A number that is the same in every call.
    Fixed(u64),
    /// A number of the call, plus a constant (wrapping).
    PerCall(usize, u64),
}

/// One member: `bytes[offset..offset + width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    offset: usize,
    width: usize,
}

impl Word {
    fn store(self, value: u64, out: &mut [u8]) {
        out[self.offset..self.offset + self.width]
            .copy_from_slice(&value.to_le_bytes()[..self.width]);
    }
}

/// Maps the numbers of a call to the bytes of `struct Args`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgsMap {
    bytes: usize,
    group_at: usize,
    fixed: Vec<(Word, u64)>,
    /// Members of 8 bytes, which most are: these are stored by one instruction.
    wide: Vec<PerCall>,
    narrow: Vec<PerCall>,
}

/// A member that each call has another number for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PerCall {
    word: Word,
    /// The position of the number, and what is added to it.
    number: usize,
    plus: u64,
}

impl PerCall {
    fn value(&self, values: &[u64]) -> u64 {
        values.get(self.number).map_or(self.plus, |value| value.wrapping_add(self.plus))
    }
}

/// `struct Args` of one rank, kept from call to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgsBlock {
    bytes: Vec<u8>,
    group_at: usize,
}

impl ArgsMap {
    /// Asks `operand` about every member except the group. A member without an operand is an error.
    pub fn new(
        plan: &Plan,
        mut operand: impl FnMut(&Param) -> Option<Operand>,
    ) -> Result<ArgsMap, CallError> {
        let unbound = |name: &str| CallError::Unbound {
            pipeline: plan.pipeline.clone(),
            name: name.to_string(),
        };
        let bytes = usize::try_from(plan.args_bytes).unwrap_or(0);
        let (wide, narrow) = (Vec::new(), Vec::new());
        let mut map = ArgsMap { bytes, group_at: 0, fixed: Vec::new(), wide, narrow };
        for param in &plan.params {
            let offset = usize::try_from(param.offset).unwrap_or(usize::MAX);
            let width = width(&param.kind);
            if offset.checked_add(width).is_none_or(|end| end > bytes) {
                return Err(unbound(&param.name));
            }
            if param.kind == ParamKind::Group {
                map.group_at = offset;
                continue;
            }
            // Ranks that all reach each other have no network.
            let is_idle = param.kind == ParamKind::Net && plan.network_counters == 0;
            let operand = if is_idle { Some(Operand::Fixed(0)) } else { operand(param) };
            let word = Word { offset, width };
            match operand.ok_or_else(|| unbound(&param.name))? {
                Operand::Fixed(value) => map.fixed.push((word, value)),
                Operand::PerCall(number, plus) => {
                    let members = if width == 8 { &mut map.wide } else { &mut map.narrow };
                    members.push(PerCall { word, number, plus });
                }
            }
        }
        Ok(map)
    }

    /// The struct of one rank, with everything that no call changes.
    pub fn block(&self, group: &GroupArgs) -> ArgsBlock {
        let mut bytes = vec![0; self.bytes];
        let end = (self.group_at + GROUP_BYTES).min(self.bytes);
        bytes[self.group_at..end].copy_from_slice(&group.bytes()[..end - self.group_at]);
        self.fixed.iter().for_each(|(word, value)| word.store(*value, &mut bytes));
        ArgsBlock { bytes, group_at: self.group_at }
    }

    /// Stores the numbers of a call into a block of this map. Numbers beyond `values` are 0.
    pub fn fill(&self, values: &[u64], block: &mut ArgsBlock) {
        for member in &self.wide {
            let to = block.bytes.get_mut(member.word.offset..);
            if let Some(to) = to.and_then(|to| to.first_chunk_mut()) {
                *to = member.value(values).to_le_bytes();
            }
        }
        for member in &self.narrow {
            member.word.store(member.value(values), &mut block.bytes);
        }
    }
}

impl ArgsBlock {
    /// Stores the longest wait of a call, and who takes part in it.
    pub(crate) fn set_call(&mut self, timeout_ns: u64, alive: u64) {
        for (at, value) in [(TIMEOUT_AT, timeout_ns), (ALIVE_AT, alive)] {
            Word { offset: self.group_at + at, width: 8 }.store(value, &mut self.bytes);
        }
    }

    /// The bytes that a kernel is launched with.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn width(kind: &ParamKind) -> usize {
    match kind {
        ParamKind::Group => GROUP_BYTES,
        ParamKind::Size | ParamKind::Capacity { .. } | ParamKind::Copies { .. } => 4,
        ParamKind::Arg { elem } => elem_bytes(elem) as usize,
        ParamKind::SizeFrom { .. }
        | ParamKind::Pointer { .. }
        | ParamKind::RowStride { .. }
        | ParamKind::ColumnStride { .. }
        | ParamKind::WindowOffset { .. }
        | ParamKind::MetaOffset { .. }
        | ParamKind::Net => 8,
    }
}

/// Rows in device memory, or one value per element of such rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rows {
    /// Device address of the first element; 0: the tensor is absent.
    pub address: u64,
    /// Elements from one row to the next; ignored for a dense tensor.
    pub row_stride: i64,
    /// Elements from one column to the next; always 1, except for scales.
    pub column_stride: i64,
}

impl Rows {
    /// Rows `row_stride` elements apart.
    pub fn new(address: u64, row_stride: i64) -> Rows {
        Rows { address, row_stride, column_stride: 1 }
    }
}

/// Whether the rows and columns of a list, so far apart, take no more memory than its elements do: row by row or column
/// by column.
pub(crate) fn fill_a_list([rows, columns]: [i64; 2], apart: [i64; 2]) -> bool {
    let are = |wanted: [i64; 2]| {
        (apart[0] == wanted[0] || rows <= 1) && (apart[1] == wanted[1] || columns <= 1)
    };
    are([columns, 1]) || are([1, rows])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::members;
    use crate::fake::{plan_of, pointer};

    #[test]
    fn group_bytes_keep_the_offsets() {
        let group = GroupArgs {
            windows: 1,
            window: 2,
            state: 3,
            stop: 4,
            records: 5,
            timeout_ns: 6,
            alive: 7,
            record_capacity: 8,
            pipeline: 9,
            rank: 10,
        };
        let bytes = group.bytes();
        for (value, (name, offset)) in (1..).zip(GROUP_MEMBERS) {
            assert_eq!(bytes[offset], value, "{name}");
        }
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), GROUP_MEMBERS.len());
    }

    #[test]
    fn values_and_fixed_numbers_land_at_their_offsets() {
        let plan = plan_of(
            "Scale",
            vec![("tokens", ParamKind::Size), ("x", pointer("x")), ("y", pointer("y"))],
        );
        let map = ArgsMap::new(&plan, |param| match param.name.as_str() {
            "tokens" => Some(Operand::PerCall(0, 0)),
            "x" => Some(Operand::PerCall(1, 16)),
            _ => Some(Operand::Fixed(9)),
        })
        .unwrap();
        let mut block = map.block(&GroupArgs { timeout_ns: 3, alive: 4, ..GroupArgs::default() });
        let word = |block: &ArgsBlock, at: usize| {
            u64::from_le_bytes(block.bytes()[at..at + 8].try_into().unwrap())
        };
        map.fill(&[6, 200], &mut block);
        map.fill(&[5, 100], &mut block);
        assert_eq!(block.bytes()[64..68], [5, 0, 0, 0]);
        assert_eq!([72, 80].map(|at| word(&block, at)), [116, 9]);
        assert_eq!([TIMEOUT_AT, ALIVE_AT].map(|at| word(&block, at)), [3, 4]);
        block.set_call(7, 8);
        assert_eq!([TIMEOUT_AT, ALIVE_AT].map(|at| word(&block, at)), [7, 8]);
        map.fill(&[], &mut block);
        assert_eq!(word(&block, 72), 16, "a number that the call lacks is 0");
    }

    #[test]
    fn a_member_without_a_value_is_named() {
        let plan = plan_of("Scale", vec![("tokens", ParamKind::Size)]);
        let error = ArgsMap::new(&plan, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "Scale: `tokens` has no value in this call");
    }

    #[test]
    fn the_group_is_what_the_header_says() {
        let declared = members("struct Group {");
        let ours: Vec<String> = GROUP_MEMBERS.iter().map(|(text, _)| text.to_string()).collect();
        assert_eq!(declared, ours);
        let mut offset = 0;
        for (text, at) in GROUP_MEMBERS {
            let wide = text.contains('*') || text.starts_with("u64");
            let bytes: usize = if wide { 8 } else { 4 };
            offset = usize::next_multiple_of(offset, bytes);
            assert_eq!(offset, at, "{text}");
            offset += bytes;
        }
        assert_eq!(offset.next_multiple_of(8), GROUP_BYTES);
    }
}

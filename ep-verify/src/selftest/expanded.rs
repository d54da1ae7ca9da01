//! The expanded layout through its typed call.

use super::{Dispatched, POISON, Selftest};
use crate::findings::Findings;
use crate::oracle::{Differences, RowReader, compare_bytes};
use ep_runtime::args::Rows;
use ep_runtime::backend::Stream;
use ep_runtime::buffer::{ExpandOptions, ExpandedOutput, Expander};
use ep_runtime::error::CallError;
use ep_runtime::memory::DeviceMemory;

/// Memory of one rank for its expanded rows.
struct Room {
    x: DeviceMemory,
    scale: DeviceMemory,
    source: DeviceMemory,
    output: ExpandedOutput,
}

impl Selftest {
    /// A dispatch whose rows are expanded, with the rows of each expert from a multiple of `alignment`
    /// on; compared with the oracle. `lack`: by how many rows the room is too small.
    pub fn check_expanded(&self, alignment: usize, lack: usize) -> Result<Findings, CallError> {
        let local = self.case.options.local_experts(self.group.ranks());
        let total = |rank: usize| self.oracle.expanded(rank, local, alignment).source.len();
        let most = (0..self.group.ranks()).map(total).max().unwrap_or(0);
        let options = ExpandOptions {
            alignment: i32::try_from(alignment).unwrap_or(i32::MAX),
            ..ExpandOptions::new(most.saturating_sub(lack))
        };
        let expander = Expander::new(&self.buffer, options)?;
        self.poison()?;
        // Before the calls: whoever waits for memory to be filled would end their kernels without asking what
        // these have recorded.
        let rooms = self.group.local().map(|rank| self.room(rank, most));
        let rooms = rooms.collect::<Result<Vec<_>, _>>()?;
        let dispatched = self.dispatch()?;
        for (Dispatched { handle, received }, room) in dispatched.iter().zip(&rooms) {
            expander.expand(handle, received, &room.output, &self.case.dispatch)?;
        }
        self.settle()?;
        let mut findings = Findings::default();
        for (own, room) in dispatched.iter().zip(&rooms) {
            let rank = own.handle.rank();
            let first = expander.expert_first(rank)?;
            findings.merge(self.verify_expanded(rank, room, first, alignment)?);
        }
        Ok(findings)
    }

    fn room(&self, rank: usize, rows: usize) -> Result<Room, CallError> {
        let options = &self.case.options;
        let payload = options.payload;
        let memory = |bytes: usize| {
            let memory = DeviceMemory::new(self.group.backend(), rank, (rows * bytes) as u64)?;
            memory.fill(Stream::OWN, POISON)?;
            Ok::<DeviceMemory, CallError>(memory)
        };
        let scales = payload.scales(options.hidden);
        let x = memory(options.hidden * payload.value_bytes() as usize)?;
        let scale = memory(scales * payload.scale_bytes() as usize)?;
        let source = memory(4)?;
        self.group.backend().sync(rank, Stream::OWN)?;
        // Scales by columns, as a grouped product may want them.
        let (address, row_stride, column_stride) = (scale.address(), 1, rows as i64);
        let by_columns = Rows { address, row_stride, column_stride };
        let output = ExpandedOutput {
            x: x.address(),
            scale: if scales > 0 { by_columns } else { Rows::default() },
            source: source.address(),
        };
        Ok(Room { x, scale, source, output })
    }

    fn verify_expanded(
        &self,
        rank: usize,
        room: &Room,
        expert_first: u64,
        alignment: usize,
    ) -> Result<Findings, CallError> {
        let (options, arrivals) = (&self.case.options, self.oracle.arrivals(rank));
        let local = options.local_experts(self.group.ranks());
        let wanted = self.oracle.expanded(rank, local, alignment);
        let words =
            |values: &[i32]| values.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let mut findings = Findings::default();
        let mut compare = |name: &str, got: &[u8], width: usize, want: &[Vec<u8>]| {
            let rows = RowReader::dense(got, width);
            let found = compare_bytes(name, rows, want.len(), |row| {
                (want[row].as_slice(), format!("place {row}"))
            });
            findings.add(format!("expanded rank {rank} {name}"), found);
        };
        let mut first = vec![0; 4 * wanted.first.len()];
        self.group.backend().read(rank, expert_first, &mut first)?;
        compare("expert_first", &first, first.len(), &[words(&wanted.first)]);
        let mut source = vec![0; 4 * wanted.source.len()];
        room.source.read(0, &mut source)?;
        let each: Vec<Vec<u8>> = wanted.source.iter().map(|row| words(&[*row])).collect();
        compare("source", &source, 4, &each);
        let sent = |sources: &[Vec<u8>], width: usize| -> Vec<Vec<u8>> {
            let row = |row: &i32| match usize::try_from(*row).ok().and_then(|row| arrivals.get(row))
            {
                Some(from) => sources[from.source][from.token * width..][..width].to_vec(),
                None => vec![POISON; width],
            };
            wanted.source.iter().map(row).collect()
        };
        let width = options.hidden * options.payload.value_bytes() as usize;
        let mut x = vec![0; wanted.source.len() * width];
        room.x.read(0, &mut x)?;
        compare("x", &x, width, &sent(&self.host.x, width));
        let bytes = options.payload.scale_bytes() as usize;
        let scales = options.payload.scales(options.hidden);
        if scales > 0 {
            let found =
                self.verify_columns(room, bytes, &sent(&self.host.scale, scales * bytes))?;
            findings.add(format!("expanded rank {rank} scale"), found);
        }
        Ok(findings)
    }

    /// Scales that lie by columns.
    fn verify_columns(
        &self,
        room: &Room,
        bytes: usize,
        want: &[Vec<u8>],
    ) -> Result<Differences, CallError> {
        let rows = room.output.scale.column_stride as usize;
        let mut found = Differences::default();
        for (place, row) in want.iter().enumerate() {
            for (column, scale) in row.chunks(bytes).enumerate() {
                let mut got = vec![0; bytes];
                room.scale.read(((column * rows + place) * bytes) as u64, &mut got)?;
                found.note(got == scale, || format!("scale {column} of place {place}"));
            }
        }
        Ok(found)
    }
}

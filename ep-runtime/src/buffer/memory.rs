//! How much memory a buffer takes, computed before anything is allocated.

use std::fmt;

use super::counts::CountMemory;
use super::options::BufferOptions;
use super::places::has_all_sources;
use super::programs::Programs;
use crate::calls::control_bytes;

/// Memory that a buffer takes on each rank, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Rings, flags and counters.
    pub control: u64,
    /// Outputs of dispatches.
    pub outputs: u64,
    /// Inputs of combines, unless they are where the outputs are.
    pub combine_inputs: u64,
    /// Tables of handles.
    pub tables: u64,
    /// Host memory for counts, and for rows that pass through a network.
    pub host: u64,
}

/// In MiB, rounded up.
impl fmt::Display for MemoryUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryUsage { control, outputs, combine_inputs, tables, host } = self;
        let mib = |bytes: &u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "control {} MiB, outputs {} MiB, combine inputs {} MiB, tables {} MiB, on the host {} MiB",
            mib(control),
            mib(outputs),
            mib(combine_inputs),
            mib(tables),
            mib(host)
        )
    }
}

impl MemoryUsage {
    /// What these programs take with the memory of their calls.
    pub(super) fn of_programs(
        options: &BufferOptions,
        ranks: usize,
        programs: &Programs,
    ) -> MemoryUsage {
        let (live, handles) = (options.live as u64, options.handles() as u64);
        // What peers do not fetch lies outside of the window, in lines all the same.
        let weights = if options.weights { 4 * options.weights_stride() } else { 0 };
        let offered = match options.shares_rows(ranks) {
            true => 0,
            false => options.capacity(ranks) as u64 * (2 * options.combine_stride() + weights),
        };
        let local_experts = options.local_experts(ranks);
        let per_expert = programs.one_launch.as_ref().map_or(0, |_| 4 * local_experts as u64);
        let sources = match has_all_sources(options, ranks, options.pushes_back(ranks)) {
            true => 4 * (options.tokens * ranks) as u64,
            false => 0,
        };
        let tables = programs.layout.table_bytes() + programs.dispatch.table_bytes();
        MemoryUsage {
            control: control_bytes(&programs.all()),
            outputs: live * programs.dispatch.tensor_bytes(),
            combine_inputs: live * offered,
            tables: handles * (tables + per_expert + sources),
            host: handles * CountMemory::bytes(local_experts) + programs.network_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ep_codegen::plan::Arch;

    use super::*;
    use crate::buffer::BuiltIn;

    #[test]
    fn memory_is_known_before_it_is_allocated() {
        let options = BufferOptions { live: 2, ..BufferOptions::new(4096, 7168, 8, 256) };
        let usage = MemoryUsage::of(&options, 4, Arch::Sm90a, &BuiltIn).unwrap();
        // Two outputs of 16384 rows of 14336 bytes, and what comes with them.
        let rows = 2 * 16384 * 14336;
        assert!(usage.outputs > rows && usage.outputs < rows + rows / 20, "{usage}");
        assert!(usage.control < 8 << 20, "{usage}");
        let text = usage.to_string();
        assert!(text.starts_with("control ") && text.contains(", outputs 4"), "{text}");
    }

    #[test]
    fn the_largest_buffer_has_a_size_and_a_larger_one_an_error() {
        let most = BufferOptions { live: 4096, ..BufferOptions::new(1 << 24, 32768, 32, 4096) };
        let usage = |options| MemoryUsage::of(&options, 64, Arch::Sm90a, &BuiltIn);
        assert!(usage(most.clone()).is_ok());
        let larger = BufferOptions { tokens: usize::MAX, ..most };
        assert!(usage(larger).unwrap_err().to_string().contains("tokens on each of 64 ranks"));
    }
}

//! Kernels that are written by hand, for a look at the machine: no pipeline declares them.

use ep_codegen::ir::Elem;
use ep_codegen::plan::{Arch, Numbers, Param, ParamKind, Plan};

use crate::args::GROUP_BYTES;

/// A kernel written by hand.
pub struct HandwrittenKernel {
    /// Name in reports.
    pub name: &'static str,
    /// Symbol.
    pub entry: &'static str,
    /// Members of `struct Args` behind the group: first `i32` numbers,
    pub numbers: &'static [&'static str],
    /// then pointers,
    pub pointers: &'static [&'static str],
    /// then `i64` numbers.
    pub wide_numbers: &'static [&'static str],
    /// Threads of a block.
    pub threads: i64,
    /// Dynamic shared memory of a block.
    pub shared_bytes: i64,
    /// Bytes of the window beside the control memory.
    pub window_bytes: i64,
    /// The fewest blocks that it runs on.
    pub blocks_min: i64,
    /// Whether blocks wait for one another or for other ranks.
    pub waits: bool,
    /// Whether the first thing it does is `ep::enter`.
    pub enters: bool,
}

impl HandwrittenKernel {
    /// The plan that a compiler would have made.
    pub fn plan(&self, arch: Arch) -> Plan {
        let arg = |elem: Elem| ParamKind::Arg { elem };
        let pointer = |tensor: &str| ParamKind::Pointer {
            tensor: tensor.to_string(),
            part: 0,
            copy: 0,
            elem: Elem::I32,
            read_only: false,
        };
        let numbers = self.numbers.iter().map(|name| (*name, arg(Elem::I32), 4));
        let pointers = self.pointers.iter().map(|name| (*name, pointer(name), 8));
        let wide = self.wide_numbers.iter().map(|name| (*name, arg(Elem::I64), 8));
        let group = ("group", ParamKind::Group, GROUP_BYTES as i64);
        let mut offset = 0i64;
        let mut params = Vec::new();
        for (name, kind, bytes) in [group].into_iter().chain(numbers).chain(pointers).chain(wide) {
            if bytes == 8 {
                offset = (offset + 7) / 8 * 8;
            }
            params.push(Param { name: name.to_string(), kind, offset });
            offset += bytes;
        }
        Plan {
            pipeline: self.name.to_string(),
            entry: self.entry.to_string(),
            kernels: vec![self.entry.to_string()],
            joined: None,
            arch,
            arms: Vec::new(),
            numbers: Numbers::new(),
            cfg: Vec::new(),
            params,
            args_bytes: (offset + 7) / 8 * 8,
            window: Vec::new(),
            window_bytes: self.window_bytes,
            network: Vec::new(),
            network_bytes: 0,
            network_counters: 0,
            carrier: None,
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            roles: Vec::new(),
            blocks_min: self.blocks_min,
            waits: self.waits,
            enters: self.enters,
            skips_ranks: false,
            leaves_out_absent: false,
            messages: Vec::new(),
            pairs: Vec::new(),
            waivers: Vec::new(),
            taken: Vec::new(),
            extents: Vec::new(),
            strides: Vec::new(),
            lists: Vec::new(),
        }
    }
}

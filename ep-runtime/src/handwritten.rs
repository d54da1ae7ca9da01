//! Hand-written kernels that measure the machine. No pipeline declares them.

use ep_codegen::ir::Elem;
use ep_codegen::plan::{Arch, Numbers, Param, ParamKind, Plan};
use ep_codegen::schedule::Recipe;

use crate::args::GROUP_BYTES;

/// A hand-written kernel.
pub struct HandwrittenKernel {
    /// The name in reports.
    pub name: &'static str,
    /// The symbol of the kernel.
    pub entry: &'static str,
    /// Members of `struct Args` after the group: first these `i32` numbers.
    pub numbers: &'static [&'static str],
    /// Then these pointers.
    pub pointers: &'static [&'static str],
    /// Then these `i64` numbers.
    pub wide_numbers: &'static [&'static str],
    /// Threads of a block.
    pub threads: i64,
    /// Dynamic shared memory of a block.
    pub shared_bytes: i64,
    /// Bytes of the window in addition to the control memory.
    pub window_bytes: i64,
    /// The minimum number of blocks.
    pub blocks_min: i64,
    /// Whether blocks wait for one another or for other ranks.
    pub waits: bool,
    /// Whether the kernel begins with `ep::enter`.
    pub enters: bool,
}

impl HandwrittenKernel {
    /// The plan of the kernel, as the compiler would make it for a declared pipeline.
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
            recipe: Recipe::default(),
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

//! Kernels that are disturbed: delays, drawn from a seed, stand at everything that orders memory, so that a
//! race that needs one warp to be late has a chance on a GPU.

use crate::gpu::Compile;

/// What stands in front of a disturbed text: the functions that linger, and how long.
const DELAYS: &str = include_str!("../templates/device/perturb.cuh");

/// `cuda` behind what disturbs it; each of its lines is as it was, and has the number that it had.
pub fn perturbed(name: &str, cuda: &str, seed: u64) -> String {
    let disturbed = DELAYS.lines().filter_map(|line| {
        let (_, name) = line.strip_prefix("EP_DISTURBED")?.split_once('(')?;
        name.strip_suffix(')')
    });
    let calls: String =
        disturbed.map(|name| format!("#define {name} disturbed_{name}\n")).collect();
    format!(
        "#define EP_PERTURB {seed}ull\n#line 1 \"perturb.cuh\"\n{DELAYS}\n{calls}#line 1 \"{name}.cu\"\n{cuda}"
    )
}

/// As `compile`, with every text disturbed.
pub fn perturbing(compile: Compile, seed: u64) -> Compile {
    Box::new(move |name, cuda, arch| compile(name, &perturbed(name, cuda, seed), arch))
}

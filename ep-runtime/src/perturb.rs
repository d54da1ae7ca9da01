//! Perturbed kernels: delays, drawn from a seed, at every operation that orders memory, so that a race
//! which needs one late warp can occur on a GPU.

use crate::gpu::Compile;

/// What stands in front of a disturbed text: the functions that linger, and how long.
const DELAYS: &str = include_str!("../templates/device/perturb.cuh");

/// `cuda` with the perturbing text in front. Each line of `cuda` is unchanged and keeps its number.
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

/// As `compile`, with every text perturbed.
pub fn perturbing(compile: Compile, seed: u64) -> Compile {
    Box::new(move |name, cuda, arch| compile(name, &perturbed(name, cuda, seed), arch))
}

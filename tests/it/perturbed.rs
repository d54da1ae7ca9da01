//! Texts that are disturbed (`--perturb`): the same text, called another way, with the same results.

use std::collections::BTreeSet;

use ep_runtime::device;
use ep_runtime::perturb::perturbed;

/// Functions of `ptx.cuh` that order nothing, or that tell the time.
const UNDISTURBED: [&str; 14] = [
    "bits_of",
    "clock_ns",
    "float_of",
    "fused",
    "lane_index",
    "load_quad",
    "note_met",
    "note_wait",
    "pack_bf16",
    "pack_e4m3",
    "product",
    "round_e4m3",
    "store_quad",
    "store_units",
];

fn disturbed_names(text: &str) -> BTreeSet<&str> {
    let defines = text.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    defines.filter(|(name, to)| *to == format!("disturbed_{name}")).map(|(name, _)| name).collect()
}

#[test]
fn a_text_is_disturbed_by_what_stands_in_front_of_it() {
    let plain = "#include <ep/sync.cuh>\n__global__ void k() {}\n";
    let [one, two] = [7, 8].map(|seed| perturbed("k", plain, seed));
    assert!(one.ends_with(&format!("\n#line 1 \"k.cu\"\n{plain}")), "{one}");
    let other: Vec<_> = one.lines().zip(two.lines()).filter(|(one, two)| one != two).collect();
    assert_eq!(other, [("#define EP_PERTURB 7ull", "#define EP_PERTURB 8ull")]);
}

/// Whoever adds a function to the lowest layer decides whether it is disturbed.
#[test]
fn all_that_orders_memory_is_disturbed() {
    let ptx = device::HEADERS.iter().find(|(name, _)| *name == "ep/ptx.cuh");
    let (_, ptx) = ptx.expect("the library has its lowest layer");
    let heads = ptx.split("__device__ __forceinline__ ").skip(1);
    let name = |head: &'static str| head.split('(').next()?.rsplit(' ').next();
    let functions: BTreeSet<&str> = heads.filter_map(name).collect();
    let text = perturbed("k", "", 0);
    let disturbed = disturbed_names(&text);
    let undisturbed = BTreeSet::from(UNDISTURBED);
    let decided: BTreeSet<&str> = disturbed.union(&undisturbed).copied().collect();
    let barriers = ["__syncthreads", "__syncwarp"];
    let all: BTreeSet<&str> = functions.into_iter().chain(barriers).collect();
    assert_eq!(decided, all);
    assert!(disturbed.is_disjoint(&undisturbed));
}

mod host {
    use ep_runtime::Emitted;
    use ep_runtime::buffer::{BuiltIn, Emit, StandardPipeline, Via};
    use ep_runtime::error::CallError;
    use ep_runtime::host::{Build, HostOptions};
    use ep_runtime::plan::Config;

    use super::perturbed;
    use crate::host::{Shape, good, on_host_with};

    /// The standard pipelines, disturbed by a seed.
    struct Disturbed(u64);

    impl Emit for Disturbed {
        fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
            let plain = BuiltIn.emit(pipeline, config)?;
            let cuda = perturbed(&plain.plan.entry, &plain.cuda, self.0);
            Ok(Emitted { cuda, ..plain })
        }
    }

    #[test]
    fn a_disturbed_text_gives_what_the_plain_one_gives_at_length() {
        let ways = [Via::Direct, Via::Ring].map(|via| Shape::new(2, via, 128, 2, 5));
        let [direct, ring] = ways;
        let mut small = direct.clone();
        (small.options.one_launch, small.options.push_combine) = (Some(true), Some(true));
        for (shape, build) in [
            (&direct, Build::Checked),
            (&ring, Build::Plain),
            (&ring.clone().vector(), Build::Plain),
            (&small, Build::Plain),
        ] {
            let options = HostOptions { build, ..HostOptions::new(2) };
            on_host_with(&Disturbed(3), shape, shape.case(1), options, |test, _| {
                good(1, test.check());
            });
        }
    }
}

mod nvrtc {
    use ep_runtime::device::HEADERS;
    use ep_runtime::jit::{Arch, CudaSource, Request};

    use super::perturbed;
    use crate::emitted::shaped;
    use crate::nvrtc::{Kernel, choices, jit, kernel};
    use crate::usual;

    #[test]
    fn every_disturbed_kernel_compiles() {
        let Some(jit) = jit() else { return };
        let mut kernels = Vec::new();
        for (variant, arch) in [Arch::Sm80, Arch::Sm90a].into_iter().enumerate() {
            for (text, (entry, config)) in choices(arch).into_iter().enumerate() {
                if usual::takes(text, variant, 48) {
                    let config = shaped(&entry, config, &[]);
                    kernels.push(kernel(&entry, &config, "reference").expect("the shape fits"));
                }
            }
        }
        let disturbed = |kernel: &Kernel| perturbed("kernel", &kernel.emitted.cuda, 11);
        let texts: Vec<String> = kernels.iter().map(disturbed).collect();
        let requests = kernels.iter().zip(&texts).map(|(kernel, text)| {
            let source = CudaSource { name: "kernel.cu", text, headers: HEADERS };
            Request { source, arch: kernel.emitted.plan.arch, options: &[] }
        });
        let requests: Vec<Request<'_>> = requests.collect();
        for (Kernel { name, emitted }, compiled) in kernels.iter().zip(jit.compile_all(&requests)) {
            let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
            let undefined: Vec<String> = compiled.undefined().collect();
            assert!(undefined.is_empty(), "{name}: {undefined:?}");
            let plan = &emitted.plan;
            let launched = plan.kernels.len() + usize::from(plan.joined.is_some());
            assert_eq!(compiled.resources.kernels.len(), launched, "{name}");
            for made in &compiled.resources.kernels {
                let registers = i64::from(made.registers) * plan.threads;
                assert!(registers <= 65536, "{name}: a block needs {registers} registers");
            }
        }
    }

    /// Threads of the disturbed text linger, and not by sleeping (see `perturb.cuh`); the plain one knows no
    /// word of it.
    #[test]
    fn only_a_disturbed_text_lingers() {
        let Some(jit) = jit() else { return };
        let (entry, config) = choices(Arch::Sm90a).swap_remove(0);
        let config = shaped(&entry, config, &[]);
        let kernel = kernel(&entry, &config, "reference").expect("the shape fits");
        let ptx = |text: &str| {
            let source = CudaSource { name: "kernel.cu", text, headers: HEADERS };
            let options = ["--gpu-architecture=compute_90a", "--std=c++17"].map(str::to_owned);
            jit.nvrtc().ptx(&source, Arch::Sm90a, &options).expect("it compiles")
        };
        let plain = ptx(&kernel.emitted.cuda);
        let disturbed = ptx(&perturbed("kernel", &kernel.emitted.cuda, 11));
        for word in ["ep_perturbed_turns", "ep_perturbed_rank"] {
            assert!(disturbed.contains(word) && !plain.contains(word), "{word}");
        }
        assert!(!disturbed.contains("nanosleep"));
    }
}

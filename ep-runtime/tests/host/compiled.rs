//! The pipelines of the examples on the way to a GPU: NVRTC takes their texts, with the functions of the user.

use std::io::Write;

use ep_runtime::jit::{Arch, Cache, CudaSource, Jit, Nvrtc};
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, device};

use crate::all_gather_sum::AllGatherSum;
use crate::nvfp4::Nvfp4Dispatch;
use crate::top1_router::Top1Dispatch;
use crate::two_payloads::AdapterDispatch;

#[test]
fn the_pipelines_of_the_examples_compile() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            let required = std::env::var_os("EPFORGE_REQUIRE_NVRTC").is_some_and(|it| it == "1");
            assert!(!required, "{error} (EPFORGE_REQUIRE_NVRTC=1 is set)");
            // Past the capture of the harness, which hides what passing tests print.
            let _ = writeln!(std::io::stderr(), "skipped: no NVRTC, run cargo xtask setup");
            return;
        }
    };
    let jit = Jit::new(nvrtc, Cache::memory_only());
    let examples: [(AnyPipeline, &[(&str, &str)]); 4] = [
        (AnyPipeline::of::<AllGatherSum>(), &[("hidden", "7168"), ("rows", "64")]),
        (AnyPipeline::of::<Nvfp4Dispatch>(), &[("hidden", "7168"), ("max_tokens", "128")]),
        (
            AnyPipeline::of::<Top1Dispatch>(),
            &[("hidden", "2880"), ("experts", "100"), ("max_tokens", "128"), ("capacity", "8")],
        ),
        (
            AnyPipeline::of::<AdapterDispatch>(),
            &[("hidden", "7168"), ("adapters", "4"), ("stripes", "64")],
        ),
    ];
    for arch in [Arch::Sm80, Arch::Sm90a] {
        for (entry, settings) in &examples {
            let ir = entry.ir();
            let mut config = Config::new(&ir, arch);
            config.set(&ir, "ranks", "8").unwrap();
            settings.iter().for_each(|(name, value)| config.set(&ir, name, value).unwrap());
            let emitted = entry.emit(&config).unwrap();
            let (text, headers) = (emitted.cuda.as_str(), device::HEADERS);
            let compiled = jit.compile(&CudaSource { name: "kernel.cu", text, headers }, arch, &[]);
            let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", entry.name));
            assert_eq!(compiled.defects(), Vec::<String>::new(), "{}", entry.name);
        }
    }
}

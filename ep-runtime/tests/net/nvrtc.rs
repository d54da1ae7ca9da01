//! Compiles `exchange.cu`, for queues and for network cards, for every GPU architecture.

use std::io::Write;

use ep_runtime::device::HEADERS;
use ep_runtime::jit::{Arch, Cache, CudaSource, Jit, Nvrtc};

use crate::exchange::{TEXT, for_cards};

#[test]
fn the_kernel_compiles_for_every_architecture() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            let required = std::env::var_os("EPFORGE_REQUIRE_NVRTC").is_some_and(|it| it == "1");
            assert!(!required, "{error} (EPFORGE_REQUIRE_NVRTC=1 is set)");
            let _ = writeln!(std::io::stderr(), "skipped: no NVRTC, run cargo xtask setup");
            return;
        }
    };
    let jit = Jit::new(nvrtc, Cache::memory_only());
    let both = [TEXT.to_string(), for_cards(TEXT)];
    for (arch, text) in Arch::ALL.into_iter().flat_map(|arch| both.iter().map(move |it| (arch, it)))
    {
        let source = CudaSource { name: "exchange.cu", text, headers: HEADERS };
        let compiled = jit.compile(&source, arch, &[]);
        let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", arch.name()));
        assert!(compiled.resources.undefined.is_empty(), "{}", arch.name());
        let defects = compiled.defects();
        assert!(defects.is_empty(), "{}: {defects:?}", arch.name());
    }
}

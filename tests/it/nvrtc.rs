//! Every emitted text is accepted by NVRTC, for every architecture, with nothing spilled, nothing
//! undefined and no performance lost.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use ep_cli::{CONFIGURATIONS, Configuration};
use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::ir::Transport;
use ep_runtime::ir::network::carriers;
use ep_runtime::ir::slots::travels_in_words;
use ep_runtime::jit::{Arch, Cache, Compiled, CudaSource, Jit, Nvrtc, Request};
use ep_runtime::plan::{Config, PlanError, role_use};
use ep_runtime::{AnyPipeline, EmitError, Emitted, device};

use crate::emitted::{SHAPES, shaped};
use crate::usual;

/// A kernel to compile.
pub(crate) struct Kernel {
    /// Pipeline, arms and shape, for messages.
    pub(crate) name: String,
    pub(crate) emitted: Emitted,
}

/// The compiler; none without NVRTC, which `xtask test` makes a failure.
pub(crate) fn jit() -> Option<&'static Jit> {
    static JIT: LazyLock<Option<Jit>> = LazyLock::new(|| match Nvrtc::find() {
        Ok(nvrtc) => Some(Jit::new(nvrtc, Cache::memory_only())),
        Err(error) => {
            let required = std::env::var_os("EPFORGE_REQUIRE_NVRTC").is_some_and(|it| it == "1");
            assert!(!required, "{error} (EPFORGE_REQUIRE_NVRTC=1 is set)");
            // Past the capture of the harness, which hides what passing tests print.
            let _ = writeln!(std::io::stderr(), "skipped: no NVRTC, run cargo xtask setup");
            None
        }
    });
    JIT.as_ref()
}

fn source(kernel: &Kernel) -> CudaSource<'_> {
    CudaSource { name: "kernel.cu", text: &kernel.emitted.cuda, headers: device::HEADERS }
}

/// NVRTC takes a text. A usual run asks its front end alone, in a seventh of the time; a full run compiles the text
/// and finds no defect.
pub(crate) fn accept(emitted: &Emitted) {
    let Some(jit) = jit() else { return };
    let arch = emitted.plan.arch;
    let source = CudaSource { name: "kernel.cu", text: &emitted.cuda, headers: device::HEADERS };
    let outcome = match usual::is_full() {
        true => jit.compile(&source, arch, &[]).map(|compiled| compiled.defects()),
        false => {
            let target = format!("--gpu-architecture={}", arch.name());
            let options = [target.as_str(), "--std=c++17", "--fdevice-syntax-only"];
            let options = options.map(str::to_owned);
            jit.nvrtc().ptx(&source, arch, &options).map(|_| Vec::new())
        }
    };
    match outcome {
        Ok(defects) => assert!(defects.is_empty(), "{}: {defects:?}", arch.name()),
        Err(error) => panic!("{}: {error}\n{}", arch.name(), emitted.cuda),
    }
}

/// Compiles all kernels and asserts that each is as it should be.
fn compile(jit: &Jit, kernels: &[Kernel]) -> Vec<std::sync::Arc<Compiled>> {
    let request = |kernel| {
        let source = source(kernel);
        Request { source, arch: kernel.emitted.plan.arch, options: &[] }
    };
    let requests: Vec<Request<'_>> = kernels.iter().map(request).collect();
    let mut wrong = Vec::new();
    let mut good = Vec::new();
    for (kernel, outcome) in kernels.iter().zip(jit.compile_all(&requests)) {
        match outcome {
            Ok(compiled) => {
                let found = findings(&kernel.emitted, &compiled);
                wrong.extend(found.iter().map(|finding| format!("{}: {finding}", kernel.name)));
                good.push(compiled);
            }
            Err(error) => wrong.push(format!("{}: {error}", kernel.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), kernels.len(), wrong.join("\n"));
    good
}

/// What is wrong with a compiled kernel; empty for a good one.
fn findings(emitted: &Emitted, compiled: &Compiled) -> Vec<String> {
    let plan = &emitted.plan;
    let mut found = compiled.defects();
    let names: BTreeSet<&str> =
        compiled.resources.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    let launched: BTreeSet<&str> =
        plan.kernels.iter().chain(&plan.joined).map(String::as_str).collect();
    if names != launched {
        found.push(format!("the kernels are {names:?}, the plan launches {launched:?}"));
    }
    for kernel in &compiled.resources.kernels {
        let threads = kernel.max_threads.map(i64::from);
        if threads != Some(plan.threads) {
            found.push(format!("it is bound to {threads:?} threads, planned {}", plan.threads));
        }
        let registers = i64::from(kernel.registers) * plan.threads;
        if registers > 65536 {
            found.push(format!("a block needs {registers} registers of 65536"));
        }
        // A network's queues are reached through what the wait for them keeps there; no row is.
        let stack = if plan.network_counters > 0 { 16 } else { 0 };
        if kernel.stack > stack {
            found.push(format!("it keeps {} bytes on the stack", kernel.stack));
        }
        let shared = plan.shared_bytes + i64::from(kernel.static_shared);
        if shared > plan.arch.shared_bytes_max() {
            found.push(format!("{shared} bytes of shared memory are too many"));
        }
    }
    found
}

pub(crate) fn kernel(
    entry: &AnyPipeline,
    config: &Config,
    shape: &str,
) -> Result<Kernel, PlanError> {
    let arms = config.choice.arms.join(" ");
    let name = format!("{} {arms} {shape} {}", entry.name, config.arch.name());
    match entry.emit(config) {
        Ok(emitted) => Ok(Kernel { name, emitted }),
        Err(EmitError::Plan(error)) => Err(error),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Every emitted pipeline in every choice of arms.
pub(crate) fn choices(arch: Arch) -> Vec<(AnyPipeline, Config)> {
    let mut all = Vec::new();
    for entry in ep_runtime::pipelines::ALL {
        let ir = entry.ir();
        for choice in ir.choices() {
            let config = Config { choice, ..Config::new(&ir, arch) };
            let carriers = carriers(&ir.select(&config.choice)).unwrap_or_default();
            let carrier = carriers.into_iter().find(|carrier| *carrier == Transport::Ibgda);
            let through_cards = carrier.map(|it| Config { carrier: Some(it), ..config.clone() });
            all.extend([Some(config), through_cards].into_iter().flatten().map(|it| (entry, it)));
        }
    }
    all
}

/// Those that a usual run compiles: a 24th of them where rows move in bulk, fewer for the other architectures.
fn drawn(arch: Arch) -> Vec<(AnyPipeline, Config)> {
    let variant = Arch::ALL.iter().position(|it| *it == arch).unwrap_or_default();
    let of = if arch == Arch::Sm90a { 24 } else { 12 * Arch::ALL.len() };
    let all = choices(arch).into_iter().enumerate();
    all.filter(|(text, _)| usual::takes(*text, variant, of)).map(|(_, it)| it).collect()
}

#[test]
fn every_choice_of_arms_compiles_for_every_architecture() {
    let Some(jit) = jit() else { return };
    let mut kernels = Vec::new();
    for (entry, config) in Arch::ALL.into_iter().flat_map(drawn) {
        let config = shaped(&entry, config, &[]);
        kernels.push(kernel(&entry, &config, "reference").expect("the reference shape fits"));
    }
    assert!(kernels.len() >= choices(Arch::Sm90a).len() / 24, "{} kernels", kernels.len());
    compile(jit, &kernels);
}

#[test]
fn every_shape_compiles() {
    let Some(jit) = jit() else { return };
    let mut kernels = Vec::new();
    for (variant, shape) in SHAPES.into_iter().enumerate() {
        for (text, (entry, config)) in choices(Arch::Sm90a).into_iter().enumerate() {
            if !usual::takes(text, variant, 16 * SHAPES.len()) {
                continue;
            }
            let config = shaped(&entry, config, shape);
            let text = format!("{shape:?}");
            kernels.push(kernel(&entry, &config, &text).expect("the shape fits"));
        }
    }
    compile(jit, &kernels);
}

/// The text of `generated/` that a row of the table makes.
fn kept(row: &Configuration) -> Kernel {
    let entry = ep_runtime::pipelines::ALL.into_iter().find(|entry| entry.name == row.pipeline);
    let entry = entry.expect("the table names pipelines");
    let ir = entry.ir();
    let mut config = shaped(&entry, Config::new(&ir, row.arch), &[("max_tokens", 128)]);
    for (name, value) in row.set {
        config.set(&ir, name, value).expect("the row is legal");
    }
    let kernel = kernel(&entry, &config, row.name).expect("the shape fits");
    let name = format!("../generated/{}.{}.cu", row.pipeline, row.name);
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&name));
    assert!(text.is_ok_and(|text| text == kernel.emitted.cuda), "{name} is another text");
    kernel
}

/// What people run, in the shapes in which they run it: registers suffice where there are the most peers.
#[test]
fn kept_texts_compile() {
    let Some(jit) = jit() else { return };
    let kernels = Vec::from_iter(usual::some(CONFIGURATIONS, 12).map(kept));
    compile(jit, &kernels);
}

/// No optional tensor; all tunes at their first value, and all at their last, where the plan takes
/// that.
#[test]
fn optional_tensors_and_tunes_compile() {
    let Some(jit) = jit() else { return };
    let mut kernels = Vec::new();
    let (mut accepted, mut refused) = (0, 0);
    for (text, (entry, config)) in choices(Arch::Sm90a).into_iter().enumerate() {
        let ir = entry.ir();
        let config = shaped(&entry, config, &[]);
        let mut bare = config.clone();
        for tensor in ir.tensors.iter().filter(|it| it.optional || it.copies > 1) {
            bare.copies.insert(tensor.name.clone(), 0);
        }
        let bare = kernel(&entry, &bare, "bare").expect("fewer tensors need no more room");
        kernels.extend(usual::takes(text, 0, 36).then_some(bare));
        let tunes = ir.select(&config.choice).tunes;
        for (variant, last) in [(1, false), (2, true)] {
            let mut tuned = config.clone();
            for tune in &tunes {
                let value = if last { tune.choices.last() } else { tune.choices.first() };
                tuned.tunes.extend(value.map(|value| (tune.name.clone(), *value)));
            }
            match kernel(&entry, &tuned, &format!("{:?}", tuned.tunes)) {
                Ok(kernel) => {
                    accepted += 1;
                    kernels.extend(usual::takes(text, variant * 12, 36).then_some(kernel));
                }
                // Shared memory and rings have their limits; the plan names them.
                Err(PlanError::Limit { .. } | PlanError::Uneven(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused < accepted, "{refused} refused, {accepted} accepted");
    compile(jit, &kernels);
}

/// Every header compiles alone, so that a text may include just what it uses.
#[test]
fn every_header_compiles_alone() {
    let Some(jit) = jit() else { return };
    for (variant, arch) in Arch::ALL.into_iter().enumerate() {
        let taken = |(text, _): &(usize, _)| usual::takes(*text, variant, Arch::ALL.len());
        for (_, (name, _)) in device::HEADERS.iter().enumerate().filter(taken) {
            let text = format!("#include <{name}>\nextern \"C\" __global__ void alone() {{}}\n");
            let source = CudaSource { name: "alone.cu", text: &text, headers: device::HEADERS };
            if let Err(error) = jit.compile(&source, arch, &[]) {
                panic!("{name} for {}: {error}", arch.name());
            }
        }
    }
}

/// The kernels that are written by hand, for looks at a machine: all but those that are timed may be slow.
#[test]
fn every_kernel_of_the_self_test_compiles() {
    let Some(jit) = jit() else { return };
    for (variant, arch) in Arch::ALL.into_iter().enumerate() {
        for (item, (name, text, needs_bulk)) in ep_verify::HANDWRITTEN.into_iter().enumerate() {
            if needs_bulk && !arch.has_tma() || !usual::takes(item, variant, 4) {
                continue;
            }
            let source = CudaSource { name: "kernel.cu", text, headers: device::HEADERS };
            match jit.compile(&source, arch, &[]) {
                Ok(compiled) => {
                    assert!(compiled.resources.undefined.is_empty(), "{name}");
                    let is_timed = ["floor", "pushes"].contains(&name);
                    let defects = compiled.defects();
                    assert!(!is_timed || defects.is_empty(), "{name}: {defects:?}");
                }
                Err(error) => panic!("{name} for {}: {error}", arch.name()),
            }
        }
    }
}

/// Rows move by bulk copies where there are any, and memory that a launch writes is never read
/// through the read-only path.
#[test]
fn the_ptx_moves_rows_as_the_architecture_can() {
    let Some(jit) = jit() else { return };
    for arch in [Arch::Sm80, Arch::Sm90a] {
        for (entry, config) in drawn(arch) {
            let config = shaped(&entry, config, &[]);
            let kernel = kernel(&entry, &config, "reference").expect("the reference shape fits");
            // No machine code, which would be compiled for nothing.
            let target = arch.name().replace("sm_", "compute_");
            let options = [format!("--gpu-architecture={target}"), "--std=c++17".to_owned()];
            let ptx = jit.nvrtc().ptx(&source(&kernel), arch, &options).expect("it compiles");
            let name = &kernel.name;
            let instructions: BTreeSet<&str> =
                ptx.lines().filter_map(|line| line.split_whitespace().next()).collect();
            let has = |part: &str| instructions.iter().any(|it| it.contains(part));
            assert!(!has("ld.global.nc"), "{name} reads through the read-only path");
            for text in ptx.split(".entry").skip(1) {
                waits_before_all_else(text, arch).unwrap_or_else(|why| panic!("{name} {why}"));
            }
            let ir = entry.ir().select(&config.choice);
            let ways = Ways::of(&ir, RuleSet::All);
            let mut uses = ir.roles.iter().map(|role| role_use(&ways, role));
            let moves = uses.any(|used| used.has_stages());
            assert_eq!(has("cp.async.bulk"), moves && arch.has_tma(), "{name}: bulk copies");
            // Words that carry their epoch are published and taken without an order.
            if ir.channels.iter().any(|channel| !travels_in_words(&ir, channel)) {
                assert!(has(".release.sys"), "{name} publishes nothing to its peers");
                assert!(
                    has("ld.acquire.sys") || has("fence.acq_rel.sys"),
                    "{name} acquires nothing"
                );
            }
        }
    }
}

/// A kernel that may be on the SMs before the one before it is over touches no memory until then.
fn waits_before_all_else(kernel: &str, arch: Arch) -> Result<(), String> {
    let first = |names: &[&str]| {
        let is_one = |line: &str| names.iter().any(|name| line.contains(name));
        kernel.lines().position(is_one)
    };
    let waits = first(&["griddepcontrol.wait"]);
    if !arch.has_early_launch() {
        return if waits.is_none() { Ok(()) } else { Err("waits for the kernel before".into()) };
    }
    let Some(waits) = waits else { return Err("does not wait for the kernel before".into()) };
    let touches = ["ld.global", "ld.relaxed", "ld.acquire", "st.", "atom.", "red.", "cp.async"];
    if first(&touches).is_some_and(|touches| touches < waits) {
        return Err("touches memory before it waits for the kernel before".into());
    }
    match first(&["griddepcontrol.launch_dependents"]) {
        Some(_) => Ok(()),
        None => Err("holds the next kernel up until it is over".into()),
    }
}

/// nvdisasm: named in `EPFORGE_NVDISASM`, brought by `xtask setup --nvdisasm`, or on the path.
fn disassembler() -> Option<PathBuf> {
    let named = std::env::var_os("EPFORGE_NVDISASM").map(PathBuf::from);
    let brought = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.cuda/nvdisasm-13.5/nvidia/cu13/bin/nvdisasm");
    named.into_iter().chain([brought, PathBuf::from("nvdisasm")]).find(|program| {
        let status = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    })
}

/// The machine code says the same: no read-only loads, nothing called, nothing on the stack.
#[test]
fn the_machine_code_has_no_read_only_loads() {
    let Some(jit) = jit() else { return };
    let Some(disassembler) = disassembler() else {
        let required = std::env::var_os("EPFORGE_REQUIRE_NVRTC").is_some_and(|it| it == "1");
        assert!(!required, "no nvdisasm, run cargo xtask setup --nvdisasm");
        let _ =
            writeln!(std::io::stderr(), "skipped: no nvdisasm, run cargo xtask setup --nvdisasm");
        return;
    };
    let mut kernels = Vec::new();
    for (entry, config) in drawn(Arch::Sm90a) {
        let config = shaped(&entry, config, &[]);
        kernels.push(kernel(&entry, &config, "reference").expect("the reference shape fits"));
    }
    for (kernel, compiled) in kernels.iter().zip(compile(jit, &kernels)) {
        let file = std::env::temp_dir().join(format!("ep-sass-{}.cubin", std::process::id()));
        std::fs::write(&file, &compiled.cubin).expect("the folder can be written");
        let output = Command::new(&disassembler).arg("-c").arg(&file).output();
        std::fs::remove_file(&file).expect("the file is there");
        let output = output.expect("it ran before");
        let sass = String::from_utf8_lossy(&output.stdout);
        let name = &kernel.name;
        assert!(output.status.success() && sass.contains("EXIT"), "{name} is not disassembled");
        // As in `findings`: those over a network keep a few words there.
        let is_over_network = kernel.emitted.plan.network_counters > 0;
        let stack = ["STL", "LDL"].into_iter().filter(|_| !is_over_network);
        for part in [".CONSTANT", "CALL.ABS"].into_iter().chain(stack) {
            let line = sass.lines().find(|line| line.contains(part));
            assert!(line.is_none(), "{name}: {}", line.unwrap_or_default());
        }
        let has = |name: &str| kernel.emitted.cuda.contains(name);
        if has("ep::PartsAhead") {
            assert!(sass.contains("ATOMG.E.INC."), "{name} waits for each token that it claims");
        }
        if sass.contains("UBLKCP") {
            assert!(sass.contains(".STRONG.SYS"), "{name} moves rows and publishes none");
        }
    }
}

/// Kernels that go on without ranks which do not answer, each on one of the architectures.
#[test]
fn kernels_that_go_on_without_a_rank_compile() {
    let Some(jit) = jit() else { return };
    let able =
        choices(Arch::Sm90a).into_iter().enumerate().filter_map(|(number, (entry, config))| {
            let arch = Arch::ALL[number % Arch::ALL.len()];
            let config = shaped(&entry, Config { arch, leaves_out_absent: true, ..config }, &[]);
            let kernel = kernel(&entry, &config, "reference").expect("the reference shape fits");
            Some(kernel).filter(|it| it.emitted.plan.leaves_out_absent && config.carrier.is_none())
        });
    let able = Vec::from_iter(able);
    assert_eq!(
        able.len(),
        9,
        "each choice of arms of the low-latency pair, and all of `decode-combine` and `merge-combine`"
    );
    compile(jit, &able);
}

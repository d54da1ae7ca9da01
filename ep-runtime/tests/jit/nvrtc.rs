//! Compiles with every NVRTC of this machine, each version in a process of its own, since the
//! NVRTC of a process is fixed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use ep_runtime::jit::{
    Arch, Cache, CacheWarning, Candidate, CudaSource, Jit, JitError, NVRTC_VARIABLE, Nvrtc,
    OLDEST_NVRTC, Request, Search,
};
use ep_runtime::{device, gpu};

use crate::support::{self, Folder};

const KERNELS: &str = r#"
#include <ep/helper.cuh>
extern "C" __global__ void first(float* p, int n) {
    __shared__ float staged[100];
    staged[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[0] = helper(staged[n], n);
}
extern "C" __global__ void __launch_bounds__(256) second(float* p) {
    asm volatile("bar.sync 5, 64;");
    p[1] = 1.0f;
}
"#;

const HEADER: &str = "#pragma once
#include <ep/factor.cuh>
// Indexed by a run-time value, so that it lives on the stack.
__device__ __noinline__ float helper(float x, int n) {
    float local[64];
    for (int i = 0; i < n; i++) local[i % 64] = kFactor * x * i;
    return local[n / 2];
}
";

const HEADERS: [(&str, &str); 2] = [
    ("ep/helper.cuh", HEADER),
    ("ep/factor.cuh", "#pragma once\nconstexpr float kFactor = 2.0f;\n"),
];

/// The libraries to test: one of each version.
fn libraries() -> Vec<Candidate> {
    let usable = |found: &Candidate| found.version.is_some_and(|it| it >= OLDEST_NVRTC);
    let mut found: Vec<_> = Search::from_environment().candidates().filter(usable).collect();
    found.sort_by_key(|candidate| candidate.version);
    found.dedup_by_key(|candidate| candidate.version);
    if found.is_empty() {
        let required = std::env::var_os("EPFORGE_REQUIRE_NVRTC").is_some_and(|it| it == "1");
        assert!(!required, "no NVRTC, run cargo xtask setup (EPFORGE_REQUIRE_NVRTC=1 is set)");
        support::announce("skipped: no NVRTC, run cargo xtask setup");
    }
    found
}

/// Runs `task` in a process for each NVRTC.
fn with_each_nvrtc(task: &str) {
    for candidate in libraries() {
        let worker = support::start("nvrtc::worker", task, &[(NVRTC_VARIABLE, &candidate.library)]);
        support::finish(worker);
    }
}

/// Is run by the workers; as a test of its own it has nothing to do.
#[test]
fn worker() {
    let Some(task) = support::task() else { return };
    let (task, argument) = task.split_once(' ').unwrap_or((&task, ""));
    match task {
        "resources" => resources(),
        "defects" => defects(),
        "errors" => errors(),
        "results" => results(),
        "cache" => cache(),
        "files" => files(),
        "headers" => headers(),
        "share" => share(Path::new(argument)),
        other => panic!("no task {other}"),
    }
}

fn jit() -> Jit {
    Jit::new(Nvrtc::find().unwrap(), Cache::memory_only())
}

fn source(text: &str) -> CudaSource<'_> {
    CudaSource { name: "kernel.cu", text, headers: &HEADERS }
}

#[test]
fn every_arch_compiles_and_tells_what_it_needs() {
    with_each_nvrtc("resources");
}

fn resources() {
    let jit = jit();
    let requests = Arch::ALL.map(|arch| Request { source: source(KERNELS), arch, options: &[] });
    let numbers = [80, 90, 100, 120];
    for (compiled, number) in jit.compile_all(&requests).into_iter().zip(numbers) {
        let compiled = compiled.unwrap();
        let resources = &compiled.resources;
        let [first, second] = &resources.kernels[..] else { panic!("{resources:?}") };
        assert_eq!((&*first.name, &*second.name), ("first", "second"));
        assert_eq!(resources.arch, number);
        assert_eq!((first.static_shared, second.static_shared), (400, 0));
        assert_eq!((first.stack, second.stack), (256, 0));
        assert_eq!((first.barriers, second.barriers), (Some(1), Some(6)));
        assert_eq!((first.max_threads, second.max_threads), (None, Some(256)));
        assert!(first.code > second.code && second.code > 0);
        for kernel in &resources.kernels {
            let logged = format!("Used {} registers, used", kernel.registers);
            assert!(compiled.log.contains(&logged), "{kernel} in\n{}", compiled.log);
        }
        assert_eq!(compiled.defects(), [""; 0]);
        assert_eq!((compiled.cached, compiled.warnings.len()), (false, 0));
    }
}

#[test]
fn spills_calls_and_lost_performance_are_defects() {
    with_each_nvrtc("defects");
}

fn defects() {
    let jit = jit();
    let defect = |text: &str, part: &str| {
        let compiled = jit.compile(&source(text), Arch::Sm90a, &[]).unwrap();
        let defects = compiled.defects();
        assert!(defects.iter().any(|defect| defect.contains(part)), "{defects:?}");
    };
    defect(
        "extern \"C\" int printf(const char*, ...);
         extern \"C\" __global__ void talk() { printf(\"x\"); }",
        "`vprintf` is called and not defined",
    );
    defect(
        "extern \"C\" __global__ void __launch_bounds__(1024, 2) wide(float* p) {
             float v[80];
             for (int i = 0; i < 80; i++) v[i] = p[i * 1024 + threadIdx.x];
             __syncthreads();
             for (int i = 0; i < 80; i++) p[i * 1024 + threadIdx.x] = v[(i * 7) % 80] + v[i];
         }",
        "`wide` spills registers",
    );
    defect(
        "extern \"C\" __global__ void set(float* p) {
             asm volatile(\"setmaxnreg.inc.sync.aligned.u32 40;\");
             p[0] = 1.0f;
         }",
        "Potential Performance Loss",
    );
}

#[test]
fn errors_name_the_line_and_show_it() {
    with_each_nvrtc("errors");
}

fn errors() {
    let jit = jit();
    let compile = |text: &str, options: &[&str]| {
        jit.compile(&source(text), Arch::Sm90a, options).unwrap_err()
    };
    let JitError::Compile(failure) = compile("\n\n__device__ int a = missing;\n", &[]) else {
        panic!("a compile error")
    };
    assert_eq!(failure.at, Some(("kernel.cu".to_owned(), 3)));
    assert_eq!(failure.message, "identifier \"missing\" is undefined");
    assert!(failure.excerpt.contains(">     3 | __device__ int a = missing;"), "{failure}");
    assert!(failure.log.contains("1 error detected"));
    let sentence = failure.to_string();
    let version = jit.nvrtc().version();
    let start = format!("NVRTC {version} refused `kernel.cu` for sm_90a: identifier");
    assert!(sentence.starts_with(&start), "{sentence}");

    let bad = [("ep/bad.cuh", "// first\nthis is no C++;\n")];
    let text = "#include <ep/bad.cuh>\n";
    let in_header = CudaSource { name: "kernel.cu", text, headers: &bad };
    let error = jit.compile(&in_header, Arch::Sm80, &[]).unwrap_err().to_string();
    assert!(error.contains("(ep/bad.cuh, line 2)"), "{error}");
    assert!(error.contains(">     2 | this is no C++;"), "{error}");

    let assembler =
        compile("extern \"C\" __global__ void k() { asm volatile(\"nonsense.op;\"); }", &[]);
    assert!(assembler.to_string().contains("nonsense"), "{assembler}");
    let options = compile(KERNELS, &["--no-such-option"]);
    assert!(matches!(&options, JitError::Options { log, .. } if log.contains("no-such-option")));
    assert!(matches!(compile("int a;\0", &[]), JitError::ZeroByte { .. }));
    assert!(matches!(compile(KERNELS, &["\0"]), JitError::ZeroByte { .. }));
}

#[test]
fn the_same_text_gives_the_same_code() {
    with_each_nvrtc("results");
}

fn results() {
    let (one, other) = (jit(), jit());
    let compile = |jit: &Jit| jit.compile(&source(KERNELS), Arch::Sm90a, &[]).unwrap();
    assert_eq!(compile(&one).cubin, compile(&other).cubin);
    assert!(std::sync::Arc::ptr_eq(&compile(&one), &compile(&one)), "compiled once a process");

    let nvrtc = one.nvrtc();
    let ptx = nvrtc.ptx(&source(KERNELS), Arch::Sm90a, &["-arch=sm_90a".to_owned()]).unwrap();
    assert!(ptx.contains(".target sm_90a") && ptx.contains("bar.sync"), "{ptx}");
    assert!(nvrtc.archs().contains(&120));

    let again = Search::from_environment().candidates().next().unwrap();
    assert_eq!(again.version, Some(nvrtc.version()), "the file names told the version");
    assert!(std::ptr::eq(Nvrtc::load(&again).unwrap(), nvrtc));
    let other = Candidate { library: std::env::current_exe().unwrap(), ..again };
    assert!(matches!(Nvrtc::load(&other), Err(JitError::NvrtcFixed { .. })));
}

#[test]
fn the_cache_knows_every_difference() {
    with_each_nvrtc("cache");
}

fn cache() {
    let folder = Folder::new("jit-cache");
    let new = || Jit::new(Nvrtc::find().unwrap(), Cache::open(folder.path()).unwrap());
    let first = new().compile(&source(KERNELS), Arch::Sm90a, &[]).unwrap();
    let second = new().compile(&source(KERNELS), Arch::Sm90a, &[]).unwrap();
    assert_eq!((first.cached, second.cached), (false, true));
    assert_eq!((&first.cubin, &first.log), (&second.cubin, &second.log));
    assert_eq!((&first.resources, first.key), (&second.resources, second.key));

    // Who counts kernels hears of each one once.
    let (tell, told) = mpsc::channel();
    let compile = gpu::compile_noting(Arc::new(jit()), move |cached| tell.send(cached).unwrap());
    let empty = "extern \"C\" __global__ void empty() {}";
    for _ in 0..3 {
        compile("empty", empty, Arch::Sm90a).unwrap();
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [false]);

    let headers = [HEADERS[0], ("ep/factor.cuh", "constexpr float kFactor = 3.0f;\n")];
    let spaced = format!("{KERNELS}\n");
    let same = source(KERNELS);
    let different = [
        (CudaSource { headers: &headers, ..same }, Arch::Sm90a, None),
        (CudaSource { text: &spaced, ..same }, Arch::Sm90a, None),
        (CudaSource { name: "other.cu", ..same }, Arch::Sm90a, None),
        (same, Arch::Sm80, None),
        (same, Arch::Sm90a, Some("-lineinfo")),
    ];
    for (source, arch, option) in different {
        let options: Vec<&str> = option.into_iter().collect();
        let compiled = new().compile(&source, arch, &options).unwrap();
        assert!(!compiled.cached, "{} {arch:?} {option:?}", source.name);
    }
    assert_eq!(new().cache().list().unwrap().len(), 6);
}

#[test]
fn compiles_that_read_files_are_not_cached() {
    with_each_nvrtc("files");
}

fn files() {
    let folder = Folder::new("files");
    let header = folder.join("outside.cuh");
    fs::write(&header, "constexpr float kOutside = 1.0f;\n").unwrap();
    let body = "extern \"C\" __global__ void k(float* p) { p[0] = kOutside; }\n";
    let absolute = format!("  #  include \"{}\"\n{body}", header.display());
    let named = format!("#include <outside.cuh>\n{body}");
    let option = format!("-I{}", folder.path().display());
    let cases: [(&str, &[&str]); 2] = [(&absolute, &[]), (&named, &[&option])];
    for (text, options) in cases {
        let cache = Cache::open(&folder.join("cache")).unwrap();
        let jit = Jit::new(Nvrtc::find().unwrap(), cache);
        let compiled = jit.compile(&source(text), Arch::Sm90a, options).unwrap();
        assert!(matches!(&*compiled.warnings, [CacheWarning::ReadsFiles { .. }]));
        assert_eq!(jit.cache().list().unwrap().len(), 0);
    }
    // A file of the current directory is no header: the key would not know its contents.
    fs::write(folder.join("near.cuh"), "").unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    let error = jit().compile(&source("#include \"near.cuh\"\n"), Arch::Sm90a, &[]).unwrap_err();
    assert!(error.to_string().contains("near.cuh"), "{error}");
}

#[test]
fn processes_that_start_together_compile_once() {
    const WORKERS: usize = 4;
    for candidate in libraries() {
        let folder = Folder::new("share");
        let task = format!("share {}", folder.path().display());
        let variables: [(&str, &Path); 1] = [(NVRTC_VARIABLE, &candidate.library)];
        let workers: Vec<_> =
            (0..WORKERS).map(|_| support::start("nvrtc::worker", &task, &variables)).collect();
        let texts: Vec<String> = workers.into_iter().map(support::finish).collect();
        let count = |word: &str| texts.iter().filter(|text| text.contains(word)).count();
        assert_eq!((count("here: compiled"), count("here: read")), (1, WORKERS - 1));
    }
}

fn share(folder: &Path) {
    let jit = Jit::new(Nvrtc::find().unwrap(), Cache::open(folder).unwrap());
    let compiled = jit.compile(&source(KERNELS), Arch::Sm90a, &[]).unwrap();
    support::announce(if compiled.cached { "here: read" } else { "here: compiled" });
}

#[test]
fn what_is_no_nvrtc_is_refused() {
    let folder = Folder::new("no-nvrtc");
    let library = folder.join("libnvrtc.so.13");
    fs::write(&library, "not a library").unwrap();
    let named = |path: &Path| Search { variable: Some(path.to_owned()), ..Search::default() };
    let error = Nvrtc::search(&named(&library)).unwrap_err();
    assert!(matches!(error, JitError::NvrtcNotLoaded { .. }), "{error}");
    fs::rename(&library, folder.join("libnvrtc.so.12.2")).unwrap();
    let error = Nvrtc::search(&named(folder.path())).unwrap_err();
    assert!(matches!(error, JitError::NvrtcTooOld { .. }), "{error}");
    assert!(error.to_string().contains("is version 12.2, and EPForge needs 12.8"), "{error}");
    let nowhere: PathBuf = folder.join("nowhere");
    let error = Nvrtc::search(&named(&nowhere)).unwrap_err();
    assert!(error.to_string().starts_with("EPFORGE_NVRTC names"), "{error}");
    let error = Nvrtc::search(&Search::default()).unwrap_err();
    assert!(error.to_string().contains("cargo xtask setup"), "{error}");
}

#[test]
fn each_header_of_the_device_library_compiles_alone() {
    with_each_nvrtc("headers");
}

fn headers() {
    let jit = jit();
    let texts: Vec<String> =
        device::HEADERS.iter().map(|(name, _)| format!("#include <{name}>\n")).collect();
    let requests: Vec<Request<'_>> = texts
        .iter()
        .flat_map(|text| {
            let source = CudaSource { name: "alone.cu", text, headers: device::HEADERS };
            Arch::ALL.map(|arch| Request { source, arch, options: &[] })
        })
        .collect();
    for (request, result) in requests.iter().zip(jit.compile_all(&requests)) {
        let failed = |error: JitError| panic!("{}: {error}", request.source.text.trim());
        let compiled = result.unwrap_or_else(failed);
        assert_eq!(compiled.resources.kernels.len(), 0);
    }
}

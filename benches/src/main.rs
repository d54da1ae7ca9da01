//! Prints the ratios that "fast to compile" means, each within one run, since machines are noisy:
//! NVRTC on an emitted kernel against an empty one, a cache hit against a compile, and what the
//! macro adds to a build. `cargo run --release -p ep-benches [-- --json]`.

use std::error::Error;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ep_codegen::{expansion, syntax};
use ep_runtime::ir::DimKind;
use ep_runtime::jit::{Arch, Cache, CudaSource, Jit, Nvrtc, Scratch};
use ep_runtime::pipelines;
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, device};

/// Runs of each measurement; the median counts.
const RUNS: usize = 7;

/// The most that a compile of an emitted kernel may take, in compiles of an empty one.
const COMPILE_LIMIT: f64 = 7.0;

/// The most that a cache hit may take, in compiles of the same kernel.
const HIT_LIMIT: f64 = 1.0 / 30.0;

const EMPTY: &str = "extern \"C\" __global__ void empty() {}\n";

/// One line of the output.
struct Row {
    what: String,
    time: Duration,
    against: &'static str,
    ratio: f64,
    limit: Option<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let json = std::env::args().any(|argument| argument == "--json");
    let nvrtc = Nvrtc::find()?;
    let mut rows = Vec::new();
    compiles(nvrtc, &mut rows)?;
    expansions(&mut rows)?;
    let mut out = io::stdout().lock();
    if !json {
        writeln!(out, "NVRTC {}, {}, median of {RUNS}", nvrtc.version(), Arch::Sm90a.name())?;
    }
    for row in &rows {
        show(row, json, &mut out)?;
    }
    Ok(())
}

fn show(row: &Row, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let Row { what, time, against, ratio, limit } = row;
    let milliseconds = time.as_secs_f64() * 1e3;
    if json {
        let limit = limit.map_or("null".to_owned(), |limit| format!("{limit:.4}"));
        return writeln!(
            out,
            "{{\"what\":\"{what}\",\"ms\":{milliseconds:.3},\"against\":\"{against}\",\
             \"ratio\":{ratio:.4},\"limit\":{limit}}}"
        );
    }
    let verdict = match limit {
        Some(limit) if ratio > limit => format!(", over the limit of {limit:.3}"),
        Some(limit) => format!(", limit {limit:.3}"),
        None => String::new(),
    };
    writeln!(out, "{what:<46} {milliseconds:>9.2} ms  {ratio:>8.4} x {against}{verdict}")
}

/// Compiles of the emitted kernels, and hits of the disk cache for them.
fn compiles(nvrtc: &'static Nvrtc, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let empty = CudaSource { name: "empty.cu", text: EMPTY, headers: &[] };
    // The first compile of a process pays for loading the library.
    compile_time(nvrtc, &empty)?;
    let base = compile_time(nvrtc, &empty)?;
    rows.push(Row {
        what: "empty kernel".to_owned(),
        time: base,
        against: "empty kernel",
        ratio: 1.0,
        limit: None,
    });
    let fresh = Scratch::below(&std::env::temp_dir())?;
    let folder = fresh.path().join("cache");
    for (name, cuda) in emitted()? {
        let source = CudaSource { name: "kernel.cu", text: &cuda, headers: device::HEADERS };
        let time = compile_time(nvrtc, &source)?;
        rows.push(Row {
            what: name.clone(),
            time,
            against: "empty kernel",
            ratio: ratio(time, base),
            limit: Some(COMPILE_LIMIT),
        });
        let hit = hit_time(nvrtc, &source, &folder)?;
        rows.push(Row {
            what: format!("{name}, cache hit"),
            time: hit,
            against: "its compile",
            ratio: ratio(hit, time),
            limit: Some(HIT_LIMIT),
        });
    }
    Ok(())
}

/// Every choice of arms of every pipeline, at the low end of its optional numbers and the shape that published
/// figures use.
fn emitted() -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut texts = Vec::new();
    for entry in &pipelines::ALL {
        let ir = entry.ir();
        for choice in ir.choices() {
            let config = Config { choice, ..reference(entry) };
            let name = format!("{} {}", entry.name, config.choice.arms.join(" "));
            texts.push((name.trim_end().to_owned(), entry.emit(&config)?.cuda));
        }
    }
    Ok(texts)
}

fn reference(entry: &AnyPipeline) -> Config {
    const SHAPE: [(&str, i64); 5] =
        [("ranks", 8), ("hidden", 7168), ("topk", 8), ("experts", 256), ("stripes", 64)];
    let ir = entry.ir();
    let mut config = Config::new(&ir, Arch::Sm90a);
    for dim in ir.dims {
        if let DimKind::Given { low, .. } = dim.kind {
            let known = SHAPE.iter().find(|(name, _)| *name == dim.name);
            config.dims.insert(dim.name, known.map_or(low, |(_, value)| *value));
        }
    }
    config
}

/// NVRTC keeps what it compiled last, so that each run gets one more empty kernel, of a new name.
fn compile_time(nvrtc: &Nvrtc, source: &CudaSource<'_>) -> Result<Duration, Box<dyn Error>> {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let options = ["--gpu-architecture=sm_90a".to_owned(), "--std=c++17".to_owned()];
    median(|| {
        let run = RUN.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}\nextern \"C\" __global__ void run_{run}() {{}}\n", source.text);
        nvrtc.compile(&CudaSource { text: &text, ..*source }, Arch::Sm90a, &options)?;
        Ok(())
    })
}

/// A hit as another process sees it: nothing in memory, the entry on disk.
fn hit_time(
    nvrtc: &'static Nvrtc,
    source: &CudaSource<'_>,
    folder: &std::path::Path,
) -> Result<Duration, Box<dyn Error>> {
    Jit::new(nvrtc, Cache::open(folder)?).compile(source, Arch::Sm90a, &[])?;
    median(|| {
        let compiled = Jit::new(nvrtc, Cache::open(folder)?).compile(source, Arch::Sm90a, &[])?;
        if compiled.cached { Ok(()) } else { Err("the cache did not hit".into()) }
    })
}

/// What the macro does in a build of the standard pipelines.
fn expansions(rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    const TEXTS: [(&str, &str); 3] = [
        ("layout", include_str!("../../ep-runtime/src/pipelines/layout.rs")),
        ("nvl-dispatch", include_str!("../../ep-runtime/src/pipelines/nvl_dispatch.rs")),
        ("nvl-combine", include_str!("../../ep-runtime/src/pipelines/nvl_combine.rs")),
    ];
    let mut first = None;
    for (name, text) in TEXTS {
        let time = median(|| {
            for block in syntax::blocks(text).map_err(|error| error.to_string())? {
                let expansion = expansion::expand(block, &|_| Err("no files here".to_owned()));
                assert!(!expansion.is_empty(), "a pipeline always expands to items");
            }
            Ok(())
        })?;
        let base = *first.get_or_insert(time);
        rows.push(Row {
            what: format!("{name}, macro expansion"),
            time,
            against: "layout",
            ratio: ratio(time, base),
            limit: None,
        });
    }
    Ok(())
}

fn ratio(time: Duration, base: Duration) -> f64 {
    time.as_secs_f64() / base.as_secs_f64()
}

fn median(mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        run()?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[RUNS / 2])
}

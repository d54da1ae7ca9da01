//! From CUDA text to machine code at run time: NVRTC, a disk cache, and the resources that a CUBIN needs.
//!
//! ```no_run
//! use ep_runtime::jit::{Arch, Cache, Jit, Nvrtc, CudaSource};
//!
//! let jit = Jit::new(Nvrtc::find()?, Cache::at(None)?);
//! let source = CudaSource {
//!     name: "scale.cu",
//!     text: "extern \"C\" __global__ void scale(float* x) { x[threadIdx.x] *= 2.0f; }",
//!     headers: &[],
//! };
//! let compiled = jit.compile(&source, Arch::Sm90a, &[])?;
//! assert_eq!(compiled.resources.kernels[0].name, "scale");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod cubin;
mod error;
mod find;
mod log;
mod nvrtc;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use cache::{
    Cache, CacheError, CacheWarning, Cleared, Entry, Fetched, Key, Listed, Scratch, Summary,
    VARIABLE as CACHE_VARIABLE,
};
pub use cubin::{CubinKernel, Resources};
pub use ep_codegen::plan::Arch;
pub use error::{CompileFailure, JitError};
pub use find::{
    Candidate, OLDEST as OLDEST_NVRTC, Origin, PROJECT_FOLDER, Search, VARIABLE as NVRTC_VARIABLE,
    Version,
};
pub use log::{Remarks, Spill};
pub use nvrtc::{Nvrtc, Output};

use crate::parallel;

/// A text to compile. NVRTC sees only these texts: relative includes find no file.
#[derive(Clone, Copy, Debug)]
pub struct CudaSource<'a> {
    /// The name in error messages, such as `nvl-dispatch.cu`.
    pub name: &'a str,
    /// The CUDA source.
    pub text: &'a str,
    /// The headers that the text may include, as `(name, text)`; the name is the one in `#include <...>`.
    pub headers: &'a [(&'a str, &'a str)],
}

/// One compile of a list.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The source to compile.
    pub source: CudaSource<'a>,
    /// The target architecture.
    pub arch: Arch,
    /// Options in addition to those of every compile.
    pub options: &'a [&'a str],
}

/// A kernel ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The machine code.
    pub cubin: Vec<u8>,
    /// The whole log of NVRTC and its assembler.
    pub log: String,
    /// The resources that the kernels need.
    pub resources: Resources,
    /// The remarks of the log.
    pub remarks: Remarks,
    /// Whether this process read the kernel from the disk cache; false if it compiled the kernel.
    pub cached: bool,
    /// The key in the cache.
    pub key: Key,
    /// Failures of the cache.
    pub warnings: Vec<CacheWarning>,
}

impl Compiled {
    /// Defects that no emitted kernel may have: spills, undefined symbols, lost performance. One sentence
    /// each; empty for a good kernel.
    pub fn defects(&self) -> Vec<String> {
        self.undefined().chain(self.slowdowns()).collect()
    }

    /// The defects that keep a kernel from running.
    pub fn undefined(&self) -> impl Iterator<Item = String> {
        let symbols = self.resources.undefined.iter();
        symbols.map(|symbol| format!("`{symbol}` is called and not defined"))
    }

    /// The defects that make a kernel slow but not wrong.
    pub fn slowdowns(&self) -> impl Iterator<Item = String> {
        let spills = self.remarks.spills.iter().map(Spill::to_string);
        spills.chain(self.remarks.performance_losses.iter().cloned())
    }
}

/// Options of every compile: the language of the device library, the log of the assembler, no file of
/// the current directory in the place of a header, and none of what the library does without (textures,
/// functions of the run time on the device), which costs milliseconds of each compile.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    // A function with parameters of any type has no annotation of its own.
    "--device-as-default-execution-space",
    "-Xptxas=-v",
    "--no-source-include",
    "--minimal",
];

/// A result, or the right of one thread to make it.
type Slot = Arc<Mutex<Option<Arc<Compiled>>>>;

/// Compiles texts, each of them once per process and, with a disk cache, once per machine.
#[derive(Debug)]
pub struct Jit {
    nvrtc: &'static Nvrtc,
    cache: Cache,
    slots: Mutex<HashMap<Key, Slot>>,
}

impl Jit {
    /// A compiler with its cache.
    pub fn new(nvrtc: &'static Nvrtc, cache: Cache) -> Jit {
        Jit { nvrtc, cache, slots: Mutex::default() }
    }

    /// The NVRTC in use.
    pub fn nvrtc(&self) -> &'static Nvrtc {
        self.nvrtc
    }

    /// The cache in use.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Compiles `source` for `arch`, or returns the result of an earlier compile of the same texts.
    pub fn compile(
        &self,
        source: &CudaSource<'_>,
        arch: Arch,
        options: &[&str],
    ) -> Result<Arc<Compiled>, JitError> {
        let options = all_options(arch, options);
        let key = self.key(source, &options);
        let slot = lock(&self.slots).entry(key).or_default().clone();
        let mut slot = lock(&slot);
        if let Some(compiled) = &*slot {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(self.fetch(key, source, arch, &options)?);
        *slot = Some(compiled.clone());
        Ok(compiled)
    }

    /// Compiles a list on all cores and returns the results in the order of the requests.
    pub fn compile_all(&self, requests: &[Request<'_>]) -> Vec<Result<Arc<Compiled>, JitError>> {
        parallel::map(requests, |Request { source, arch, options }| {
            self.compile(source, *arch, options)
        })
    }

    fn fetch(
        &self,
        key: Key,
        source: &CudaSource<'_>,
        arch: Arch,
        options: &[String],
    ) -> Result<Compiled, JitError> {
        let make = || {
            let Output { cubin, log } = self.nvrtc.compile(source, arch, options)?;
            let tool = format!("NVRTC {}", self.nvrtc.version());
            let (name, target) = (source.name.to_owned(), arch.name().to_owned());
            Ok::<Entry, JitError>(Entry { name, target, tool, log, binary: cubin })
        };
        let fetched = match files_read(source, options) {
            None => self.cache.fetch(&key, make)?,
            Some(because) => {
                let warnings = vec![CacheWarning::ReadsFiles { because }];
                Fetched { entry: make()?, cached: false, warnings }
            }
        };
        let Fetched { entry, cached, warnings } = fetched;
        let remarks = Remarks::read(&entry.log);
        let name = || source.name.to_owned();
        let mut resources = Resources::read(&entry.binary)
            .map_err(|reason| JitError::Cubin { name: name(), reason })?;
        for kernel in &mut resources.kernels {
            let logged = remarks.barriers.iter().find(|(name, _)| *name == kernel.name);
            kernel.barriers = kernel.barriers.or(logged.map(|(_, count)| *count));
        }
        let Entry { log, binary: cubin, .. } = entry;
        Ok(Compiled { cubin, log, resources, remarks, cached, key, warnings })
    }

    fn key(&self, source: &CudaSource<'_>, options: &[String]) -> Key {
        let identity = self.nvrtc.identity();
        // The counts keep a header from passing for an option.
        let counts = format!("{} {}", options.len(), source.headers.len());
        let parts = [&*identity, &counts, source.name, source.text];
        let options = options.iter().map(String::as_str);
        let headers = source.headers.iter().flat_map(|(name, text)| [*name, *text]);
        Key::of(parts.into_iter().chain(options).chain(headers))
    }
}

/// The options of one compile. The architecture is one of them, and so part of the key.
fn all_options(arch: Arch, options: &[&str]) -> Vec<String> {
    let fixed = OPTIONS.iter().chain(options).map(|option| (*option).to_owned());
    [format!("--gpu-architecture={}", arch.name())].into_iter().chain(fixed).collect()
}

/// What makes a compile read files, whose contents no key can stand for; none for emitted texts.
fn files_read(source: &CudaSource<'_>, options: &[String]) -> Option<String> {
    const READING: [&str; 7] = [
        "-I",
        "--include-path",
        "-include",
        "--pre-include",
        "--use-pch",
        "--pch",
        "--use-bundled",
    ];
    let option = options.iter().find(|option| READING.iter().any(|it| option.starts_with(it)));
    let texts = source.headers.iter().map(|(_, text)| *text).chain([source.text]);
    let absolute = |line: &&str| {
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        directive.and_then(|rest| rest.strip_prefix("include")).is_some_and(|rest| {
            let name = rest.trim_start();
            name.starts_with("\"/") || name.starts_with("</")
        })
    };
    option
        .cloned()
        .or_else(|| texts.flat_map(str::lines).find(absolute).map(|line| line.trim().to_owned()))
}

/// Locks, even after a thread has panicked: every value behind these locks is replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

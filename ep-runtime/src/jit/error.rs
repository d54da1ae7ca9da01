//! Errors on the way from CUDA text to a CUBIN.

use std::fmt;
use std::path::PathBuf;

use super::Arch;
use super::cache::CacheError;
use super::find::{OLDEST, Version};

/// Why there is no CUBIN.
#[derive(Debug)]
#[non_exhaustive]
pub enum JitError {
    /// None of the known places has an NVRTC.
    NvrtcMissing {
        /// The value of `EPFORGE_NVRTC` when it names a place that holds none.
        variable: Option<PathBuf>,
        /// What lies in a `.cuda` folder and cannot be trusted, a sentence each.
        distrusted: Vec<String>,
    },
    /// The library exists and cannot be loaded.
    NvrtcNotLoaded {
        /// The library.
        path: PathBuf,
        /// What the dynamic loader says.
        reason: String,
    },
    /// The library is too old for the text that EPForge emits.
    NvrtcTooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
    /// This process has already loaded another NVRTC, and it can load only one.
    NvrtcFixed {
        /// The library in use.
        loaded: PathBuf,
        /// The library that was asked for.
        wanted: PathBuf,
    },
    /// This NVRTC does not know the architecture.
    ArchUnsupported {
        /// The architecture that was asked for.
        arch: Arch,
        /// The version of NVRTC.
        nvrtc: Version,
        /// The numbers of those it knows, such as 90.
        supported: Vec<u32>,
    },
    /// A name, a text or an option contains a zero byte, where C would cut it off.
    ZeroByte {
        /// Which text it is.
        what: String,
    },
    /// NVRTC does not accept an option.
    Options {
        /// All options of this compile.
        options: Vec<String>,
        /// What NVRTC says.
        log: String,
    },
    /// NVRTC or its assembler rejected the text.
    Compile(Box<CompileFailure>),
    /// A call of NVRTC failed for another reason than the text, such as memory.
    NvrtcCall {
        /// The function that failed.
        function: &'static str,
        /// Its result code.
        code: i32,
        /// What the library calls that code.
        meaning: String,
    },
    /// NVRTC returned a CUBIN that this crate cannot read.
    Cubin {
        /// The source that was compiled.
        name: String,
        /// What is wrong with them.
        reason: String,
    },
    /// The cache folder is not trusted.
    Cache(CacheError),
}

/// A text that did not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileFailure {
    /// The name of the source.
    pub name: String,
    /// The architecture it was compiled for.
    pub arch: Arch,
    /// The version of NVRTC.
    pub nvrtc: Version,
    /// The first error, as NVRTC reports it.
    pub message: String,
    /// The file and line (from 1) of the first error, if it has one.
    pub at: Option<(String, usize)>,
    /// The numbered lines around the first error. If the error has no source line, this is the assembler's
    /// errors after it.
    pub excerpt: String,
    /// The whole log of NVRTC.
    pub log: String,
}

impl fmt::Display for CompileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompileFailure { name, arch, nvrtc, message, .. } = self;
        write!(f, "NVRTC {nvrtc} refused `{name}` for {}: {message}", arch.name())?;
        if let Some((file, line)) = &self.at {
            write!(f, " ({file}, line {line})")?;
        }
        if !self.excerpt.is_empty() {
            write!(f, "\n{}", self.excerpt.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for JitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JitError::NvrtcMissing { variable: Some(path), .. } => {
                write!(f, "EPFORGE_NVRTC names {}, where there is no NVRTC", path.display())
            }
            JitError::NvrtcMissing { variable: None, distrusted } => {
                write!(
                    f,
                    "there is no NVRTC {OLDEST} or newer in a .cuda folder, beside torch or in the \
                     system: run `cargo xtask setup`, install the Python package \
                     nvidia-cuda-nvrtc, or name the library in EPFORGE_NVRTC"
                )?;
                distrusted.iter().try_for_each(|sentence| write!(f, "; {sentence}"))
            }
            JitError::NvrtcNotLoaded { path, reason } => {
                write!(f, "NVRTC at {} cannot be loaded: {reason}", path.display())
            }
            JitError::NvrtcTooOld { path, version } => write!(
                f,
                "NVRTC at {} is version {version}, and EPForge needs {OLDEST} or newer",
                path.display()
            ),
            JitError::NvrtcFixed { loaded, wanted } => write!(
                f,
                "this process has loaded NVRTC from {} and cannot change to {}",
                loaded.display(),
                wanted.display()
            ),
            JitError::ArchUnsupported { arch, nvrtc, supported } => {
                let known: Vec<String> = supported.iter().map(|sm| format!("sm_{sm}")).collect();
                write!(
                    f,
                    "NVRTC {nvrtc} cannot compile for {}; it knows {}",
                    arch.name(),
                    known.join(", ")
                )
            }
            JitError::ZeroByte { what } => {
                write!(f, "{what} holds a zero byte, which CUDA source cannot contain")
            }
            JitError::Options { options, log } => {
                write!(f, "NVRTC refused the options `{}`: {}", options.join(" "), log.trim())
            }
            JitError::Compile(failure) => failure.fmt(f),
            JitError::NvrtcCall { function, code, meaning } => {
                write!(f, "{function} failed with code {code} ({meaning})")
            }
            JitError::Cubin { name, reason } => {
                write!(f, "the CUBIN of `{name}` cannot be read: {reason}")
            }
            JitError::Cache(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for JitError {}

impl From<CacheError> for JitError {
    fn from(error: CacheError) -> JitError {
        JitError::Cache(error)
    }
}

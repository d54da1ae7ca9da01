//! NVRTC as a safe Rust interface: text and headers in, CUBIN and log out.
//!
//! The types are those of `cudarc::nvrtc::sys`, but its functions are not called, for three reasons. They
//! return `nvrtcResult` as a Rust enum, so a result code that only a newer library knows would be undefined
//! behavior. They panic when the library is missing. They load the library by its plain name, so the
//! loader's search path would override the library that was found. Each symbol is therefore resolved
//! through the handle of exactly that library, with result codes as integers.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;

use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use libloading::Library;

use super::error::{CompileFailure, JitError};
use super::find::{Candidate, OLDEST, Search, Version};
use super::{Arch, CudaSource, log};

/// The result code of NVRTC; newer libraries have codes that no enum of ours can name.
type Code = c_int;

/// The functions of NVRTC that EPForge calls, as the header of NVRTC declares them.
struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code,
    arch_count: unsafe extern "C" fn(*mut c_int) -> Code,
    archs: unsafe extern "C" fn(*mut c_int) -> Code,
    create: CreateProgram,
    destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> Code,
    compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> Code,
    cubin: Getter,
    ptx: Getter,
    log: Getter,
    meaning: unsafe extern "C" fn(Code) -> *const c_char,
}

type CreateProgram = unsafe extern "C" fn(
    *mut nvrtcProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;

/// NVRTC gives every result in the same two steps: its size, then its bytes.
#[derive(Clone, Copy)]
struct Getter {
    name: &'static str,
    size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> Code,
    bytes: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> Code,
}

/// A loaded NVRTC. A process loads at most one and keeps it until it ends.
pub struct Nvrtc {
    path: PathBuf,
    version: Version,
    length: u64,
    archs: Vec<u32>,
    api: Api,
}

/// A CUBIN and NVRTC's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The machine code, an ELF file.
    pub cubin: Vec<u8>,
    /// The log, which may have text even after a success.
    pub log: String,
}

/// The NVRTC of this process.
static LOADED: Mutex<Option<&'static Nvrtc>> = Mutex::new(None);

impl Nvrtc {
    /// The NVRTC of this process: the loaded one, or the best one on this machine.
    pub fn find() -> Result<&'static Nvrtc, JitError> {
        let in_use = *super::lock(&LOADED);
        match in_use {
            Some(nvrtc) => Ok(nvrtc),
            None => Nvrtc::search(&Search::from_environment()),
        }
    }

    /// Loads the first usable library of `search`.
    ///
    /// A library that is too old or broken is skipped, unless the user named it.
    pub fn search(search: &Search) -> Result<&'static Nvrtc, JitError> {
        let mut refused = None;
        for candidate in search.candidates() {
            match Nvrtc::load(&candidate) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(error @ JitError::NvrtcFixed { .. }) => return Err(error),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| JitError::NvrtcMissing {
            variable: search.variable.clone(),
            distrusted: search.distrusted(),
        }))
    }

    /// Loads one library, or returns it if it is already loaded.
    pub fn load(candidate: &Candidate) -> Result<&'static Nvrtc, JitError> {
        let path = fs::canonicalize(&candidate.library).map_err(|error| {
            JitError::NvrtcNotLoaded { path: candidate.library.clone(), reason: error.to_string() }
        })?;
        let mut loaded = super::lock(&LOADED);
        if let Some(nvrtc) = *loaded {
            if nvrtc.path == path {
                return Ok(nvrtc);
            }
            return Err(JitError::NvrtcFixed { loaded: nvrtc.path.clone(), wanted: path });
        }
        if let Some(version) = candidate.version.filter(|version| *version < OLDEST) {
            return Err(JitError::NvrtcTooOld { path, version });
        }
        let nvrtc = open(path, candidate.builtins.as_deref())?;
        let nvrtc: &'static Nvrtc = Box::leak(Box::new(nvrtc));
        *loaded = Some(nvrtc);
        Ok(nvrtc)
    }

    /// The library file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the library.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Distinguishes this library from every other in the key of the cache.
    ///
    /// NVRTC reports no patch number, and two patches may compile differently. The length of the file
    /// stands for the patch, because not every release carries a build id.
    pub fn identity(&self) -> String {
        format!("{} of {} bytes", self.version, self.length)
    }

    /// The numbers of the architectures that the library supports, such as 90.
    pub fn archs(&self) -> &[u32] {
        &self.archs
    }

    /// Compiles `source` to machine code with exactly these options.
    pub fn compile(
        &self,
        source: &CudaSource<'_>,
        arch: Arch,
        options: &[String],
    ) -> Result<Output, JitError> {
        let (cubin, log) = self.translate(source, arch, options, self.api.cubin)?;
        Ok(Output { cubin, log })
    }

    /// Compiles `source` to PTX with exactly these options, for people to read.
    pub fn ptx(
        &self,
        source: &CudaSource<'_>,
        arch: Arch,
        options: &[String],
    ) -> Result<String, JitError> {
        let (ptx, _) = self.translate(source, arch, options, self.api.ptx)?;
        Ok(text(&ptx))
    }

    fn translate(
        &self,
        source: &CudaSource<'_>,
        arch: Arch,
        options: &[String],
        result: Getter,
    ) -> Result<(Vec<u8>, String), JitError> {
        if !number(arch).is_some_and(|number| self.archs.contains(&number)) {
            let (nvrtc, supported) = (self.version, self.archs.clone());
            return Err(JitError::ArchUnsupported { arch, nvrtc, supported });
        }
        let program = Program::new(&self.api, source)?;
        let code = program.compile(options)?;
        let log = text(&program.get(self.api.log)?);
        if code == nvrtcResult::NVRTC_SUCCESS as Code {
            return Ok((program.get(result)?, log));
        }
        if code == nvrtcResult::NVRTC_ERROR_INVALID_OPTION as Code {
            return Err(JitError::Options { options: options.to_vec(), log });
        }
        if code == nvrtcResult::NVRTC_ERROR_COMPILATION as Code {
            return Err(failure(source, arch, self.version, log));
        }
        Err(self.api.failed("nvrtcCompileProgram", code))
    }
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {} at {}", self.version, self.path.display())
    }
}

fn open(path: PathBuf, builtins: Option<&Path>) -> Result<Nvrtc, JitError> {
    let refused = |reason: String| JitError::NvrtcNotLoaded { path: path.clone(), reason };
    if let Some(builtins) = builtins {
        // 13.0 has no run path: it finds its builtins only because they are in the process already.
        // SAFETY: the file lies beside an NVRTC and has its builtins' name; it runs no code of ours
        // and is never unloaded, so nothing that it set up can dangle.
        let library = unsafe { Library::new(builtins) };
        std::mem::forget(library.map_err(|error| refused(error.to_string()))?);
    }
    // SAFETY: as above; the user or the system put this library here as NVRTC.
    let library = unsafe { Library::new(&path) }.map_err(|error| refused(error.to_string()))?;
    let api = Api::resolve(&library).map_err(|error| refused(error.to_string()))?;
    // The function pointers of `api` are good only while the library stays.
    std::mem::forget(library);
    let version = api.version()?;
    if version < OLDEST {
        return Err(JitError::NvrtcTooOld { path, version });
    }
    let archs = api.archs()?;
    let length = fs::metadata(&path).map_err(|error| refused(error.to_string()))?.len();
    Ok(Nvrtc { path, version, length, archs, api })
}

impl Api {
    fn resolve(library: &Library) -> Result<Api, libloading::Error> {
        // SAFETY: every field has the type that nvrtc.h declares for the symbol of that name,
        // unchanged since CUDA 12.0, but for the result, whose enum is an int in C.
        unsafe {
            Ok(Api {
                version: *library.get(b"nvrtcVersion\0")?,
                arch_count: *library.get(b"nvrtcGetNumSupportedArchs\0")?,
                archs: *library.get(b"nvrtcGetSupportedArchs\0")?,
                create: *library.get(b"nvrtcCreateProgram\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                cubin: Getter {
                    name: "nvrtcGetCUBIN",
                    size: *library.get(b"nvrtcGetCUBINSize\0")?,
                    bytes: *library.get(b"nvrtcGetCUBIN\0")?,
                },
                ptx: Getter {
                    name: "nvrtcGetPTX",
                    size: *library.get(b"nvrtcGetPTXSize\0")?,
                    bytes: *library.get(b"nvrtcGetPTX\0")?,
                },
                log: Getter {
                    name: "nvrtcGetProgramLog",
                    size: *library.get(b"nvrtcGetProgramLogSize\0")?,
                    bytes: *library.get(b"nvrtcGetProgramLog\0")?,
                },
                meaning: *library.get(b"nvrtcGetErrorString\0")?,
            })
        }
    }

    fn version(&self) -> Result<Version, JitError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both places are ints that live through the call.
        let code = unsafe { (self.version)(&mut major, &mut minor) };
        self.check("nvrtcVersion", code)?;
        Ok(Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() })
    }

    fn archs(&self) -> Result<Vec<u32>, JitError> {
        let mut count = 0;
        // SAFETY: the place is an int that lives through the call.
        let code = unsafe { (self.arch_count)(&mut count) };
        self.check("nvrtcGetNumSupportedArchs", code)?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has room for as many ints as the library has just said it writes.
        let code = unsafe { (self.archs)(archs.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", code)?;
        Ok(archs.into_iter().map(c_int::unsigned_abs).collect())
    }

    fn check(&self, function: &'static str, code: Code) -> Result<(), JitError> {
        if code == nvrtcResult::NVRTC_SUCCESS as Code {
            return Ok(());
        }
        Err(self.failed(function, code))
    }

    fn failed(&self, function: &'static str, code: Code) -> JitError {
        // SAFETY: the function takes any int and returns a constant text, or null in theory.
        let meaning = unsafe {
            let meaning = (self.meaning)(code);
            if meaning.is_null() { c"unknown" } else { CStr::from_ptr(meaning) }
        };
        JitError::NvrtcCall { function, code, meaning: meaning.to_string_lossy().into_owned() }
    }
}

/// One program of NVRTC, destroyed with this value.
struct Program<'a> {
    api: &'a Api,
    handle: nvrtcProgram,
}

impl<'a> Program<'a> {
    fn new(api: &'a Api, source: &CudaSource<'_>) -> Result<Program<'a>, JitError> {
        let name = c_text(source.name, || "the name of the source".to_owned())?;
        let body = c_text(source.text, || format!("`{}`", source.name))?;
        let mut names = Vec::new();
        let mut texts = Vec::new();
        for (header, contents) in source.headers {
            names.push(c_text(header, || "the name of a header".to_owned())?);
            texts.push(c_text(contents, || format!("the header `{header}`"))?);
        }
        let name_pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let text_pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let mut handle = ptr::null_mut();
        // SAFETY: all texts end with a zero byte and outlive the call, which copies them; both
        // arrays have as many entries as the count says.
        let code = unsafe {
            (api.create)(
                &mut handle,
                body.as_ptr(),
                name.as_ptr(),
                count(names.len()),
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        api.check("nvrtcCreateProgram", code)?;
        Ok(Program { api, handle })
    }

    /// Gives the result code: the caller wants the log of a failed compile too.
    fn compile(&self, options: &[String]) -> Result<Code, JitError> {
        let options: Vec<CString> = options
            .iter()
            .map(|option| c_text(option, || format!("the option `{option}`")))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the options end with a zero byte and outlive the call.
        Ok(unsafe { (self.api.compile)(self.handle, count(pointers.len()), pointers.as_ptr()) })
    }

    fn get(&self, getter: Getter) -> Result<Vec<u8>, JitError> {
        let mut size = 0;
        // SAFETY: the program is alive and the place is a size_t that lives through the call.
        let code = unsafe { (getter.size)(self.handle, &mut size) };
        self.api.check(getter.name, code)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that the library has just said it writes.
        let code = unsafe { (getter.bytes)(self.handle, bytes.as_mut_ptr().cast()) };
        self.api.check(getter.name, code)?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` made the handle and nothing else destroys it. A failure changes nothing
        // for the caller, whose results have been copied out.
        unsafe { (self.api.destroy)(&mut self.handle) };
    }
}

/// The number by which NVRTC lists an architecture: 90 for `sm_90a`.
fn number(arch: Arch) -> Option<u32> {
    let digits = arch.name().strip_prefix("sm_")?;
    digits.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()
}

/// Counts of headers and options come from the caller's slices; NVRTC counts in ints.
fn count(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

fn c_text(text: &str, what: impl FnOnce() -> String) -> Result<CString, JitError> {
    CString::new(text).map_err(|_| JitError::ZeroByte { what: what() })
}

/// A text of NVRTC without the zero byte that ends it.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn failure(source: &CudaSource<'_>, arch: Arch, nvrtc: Version, text: String) -> JitError {
    let first = log::first_error(&text);
    let excerpt = match &first.at {
        Some((file, line)) => {
            let own = [(source.name, source.text)];
            let mut texts = source.headers.iter().chain(&own);
            let shown = texts.find(|(name, _)| name == file);
            shown.map_or_else(String::new, |(_, contents)| log::excerpt(contents, *line))
        }
        None => log::assembler_errors(&text),
    };
    JitError::Compile(Box::new(CompileFailure {
        name: source.name.to_owned(),
        arch,
        nvrtc,
        message: first.message,
        at: first.at,
        excerpt,
        log: text,
    }))
}

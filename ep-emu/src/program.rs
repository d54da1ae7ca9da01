//! Loaded libraries of kernels.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use libloading::Library;

use crate::abi::{Base, Bind, Poison, Run, Table};
use crate::os;

/// Most mutations of a program; `shim.cpp` has a byte for each.
pub(crate) const MOST_MUTATIONS: usize = 1 << 16;

/// The environment variable that names the compiler.
pub(crate) const VARIABLE: &str = "CXX";

/// The file of a library.
pub(crate) const LIBRARY: &str = "kernel.so";

/// A kernel text with the headers it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Name of the text in reports (`nvl_dispatch.cu`).
    pub name: String,
    /// The emitted text, the very bytes that NVRTC gets.
    pub text: String,
    /// Headers by include name (`ep/rings.cuh`); `ep/ptx.cuh` is replaced by the host's.
    pub headers: Vec<(String, String)>,
    /// The `__global__` functions to export.
    pub kernels: Vec<String>,
}

impl Source {
    /// Whether the text is, or includes, the file of this name.
    pub fn includes(&self, file: &str) -> bool {
        self.name == file || self.included().any(|(name, _)| name == file)
    }

    /// The headers that the text includes, or another one of them does.
    pub(crate) fn included(&self) -> impl Iterator<Item = &(String, String)> {
        let mut found: Vec<&(String, String)> = Vec::new();
        let mut next = 0;
        let mut text = Some(self.text.as_str());
        while let Some(including) = text {
            let named = |name: &str| {
                let quoted = [format!("#include <{name}>"), format!("#include \"{name}\"")];
                quoted.iter().any(|line| including.contains(line))
            };
            for header in &self.headers {
                if named(&header.0) && !found.iter().any(|(known, _)| *known == header.0) {
                    found.push(header);
                }
            }
            text = found.get(next).map(|(_, text)| text.as_str());
            next += 1;
        }
        found.into_iter()
    }
}

/// How a text is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// With nothing reported.
    Plain,
    /// With nothing reported, and optimized: for so many schedules that they take longer than the compile.
    Fast,
    /// With every plain access reported to the happens-before checker.
    Checked,
    /// With the address and undefined-behaviour sanitizers.
    Sanitized,
}

/// Why a text did not become a program.
#[derive(Debug)]
pub enum CompileError {
    /// No compiler was found.
    NoCompiler,
    /// `$CXX` names one that does not run.
    Unusable {
        /// What it says.
        command: String,
        /// Why it does not run.
        reason: String,
    },
    /// The compiler refused the text; its log.
    Refused(String),
    /// A file or a process could not be handled.
    Io(String, io::Error),
    /// The library could not be loaded.
    Load(String),
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCompiler => write!(
                out,
                "no C++ compiler: looked for $CXX, c++, g++, clang++; Debian: apt install g++"
            ),
            Self::Unusable { command, reason } => {
                write!(out, "{VARIABLE} names `{command}`, which does not run: {reason}")
            }
            Self::Refused(log) => write!(out, "the C++ compiler refused the text:\n{log}"),
            Self::Io(what, error) => write!(out, "{what}: {error}"),
            Self::Load(error) => write!(out, "the compiled kernel could not be loaded: {error}"),
        }
    }
}

impl std::error::Error for CompileError {}

/// A loaded library of kernels.
pub struct Program {
    library: Library,
    /// Its file, which has no name any more.
    file: File,
    source: Source,
    build: Build,
    base: usize,
}

impl fmt::Debug for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Program").field("name", &self.source.name).finish_non_exhaustive()
    }
}

impl Program {
    /// Loads the bytes of a library by way of a file in `folder`, which is nobody else's and may go
    /// afterwards. Its path is new, so that the loader does not take it for another library.
    pub(crate) fn load(
        source: &Source,
        build: Build,
        bytes: &[u8],
        folder: &Path,
        table: &'static Table,
    ) -> Result<Arc<Self>, CompileError> {
        let path = folder.join(LIBRARY);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(bytes).map(|()| file));
        let file = written.map_err(|error| CompileError::Io(path.display().to_string(), error))?;
        // SAFETY: the library was compiled from `source` and `shim.cpp`, as the shelf promises;
        // neither has code that runs when it is loaded.
        let library = unsafe { Library::new(&path) }
            .map_err(|error| CompileError::Load(error.to_string()))?;
        // SAFETY: `shim.cpp` gives the name this type.
        let base = unsafe { library.get::<Base>("emu_base").map(|base| base()) }
            .map_err(|error| CompileError::Load(error.to_string()))?;
        if build == Build::Sanitized {
            // The sanitizer's library keeps calling the first library that was loaded with it, so
            // that one must know the table and never be unloaded.
            // SAFETY: `shim.cpp` gives the name this type; the second handle is never closed.
            unsafe {
                if let Ok(bind) = library.get::<Bind>("emu_bind") {
                    bind(table, 0, 0);
                }
                std::mem::forget(Library::new(&path));
            }
        }
        Ok(Arc::new(Self { library, file, source: source.clone(), build, base }))
    }

    /// The kernel of this name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, CompileError> {
        let missing = |error: libloading::Error| CompileError::Load(error.to_string());
        // SAFETY: `EMU_KERNEL` gives the two names these types.
        let (run, args_bytes) = unsafe {
            let run = *self.library.get::<Run>(format!("emu_run_{name}")).map_err(missing)?;
            let bytes =
                *self.library.get::<*const usize>(format!("emu_bytes_{name}")).map_err(missing)?;
            (run, *bytes)
        };
        Ok(Kernel { program: Arc::clone(self), name: name.to_owned(), run, args_bytes })
    }

    /// How the text was compiled.
    pub fn build(&self) -> Build {
        self.build
    }

    /// Where other programs find the library, as long as this one lives.
    pub(crate) fn path(&self) -> PathBuf {
        os::path_of(&self.file)
    }

    /// Name and text of the kernel source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Where the library lies in memory.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The function that marks memory for the address sanitizer, in a sanitized build.
    pub(crate) fn poison(&self) -> Option<Poison> {
        // SAFETY: `shim.cpp` gives the name this type.
        unsafe { self.library.get::<Poison>("emu_poison") }.ok().map(|poison| *poison)
    }

    /// Lets a mutation hold from now on; 0: none.
    pub(crate) fn mutate(&self, number: u32) {
        // SAFETY: `shim.cpp` gives the name this type, and no kernel runs while it is set.
        unsafe {
            if let Ok(mutation) = self.library.get::<*mut u32>("emu_mutation") {
                mutation.write(number);
            }
        }
    }

    /// The numbers of the mutations or marks that kernels of this process have come to.
    pub fn reached(&self) -> Vec<u32> {
        // SAFETY: `shim.cpp` gives the name this type and so many bytes, and no kernel runs.
        let bytes = unsafe {
            let bytes = self.library.get::<*const [u8; MOST_MUTATIONS]>("emu_reached");
            bytes.map_or(&[][..], |bytes| (**bytes).as_ref())
        };
        let numbers = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        numbers.map(|(number, _)| number as u32).collect()
    }

    /// The function that binds the runtime's table.
    pub(crate) fn bind(&self) -> Result<Bind, CompileError> {
        // SAFETY: `shim.cpp` gives the name this type.
        let bind = unsafe { self.library.get::<Bind>("emu_bind") };
        bind.map(|bind| *bind).map_err(|error| CompileError::Load(error.to_string()))
    }
}

/// One `__global__` function of a [`Program`].
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) program: Arc<Program>,
    pub(crate) name: String,
    pub(crate) run: Run,
    pub(crate) args_bytes: usize,
}

impl Kernel {
    /// Bytes of its parameters, laid out as CUDA does.
    pub fn args_bytes(&self) -> usize {
        self.args_bytes
    }

    /// Runs it here and now, as a plain function: for one that looks at its parameters alone, and at no
    /// thread, block or rank. `args` holds [`Kernel::args_bytes`] bytes; with fewer it does not run.
    pub fn call(&self, args: &[u8]) {
        if args.len() >= self.args_bytes {
            // SAFETY: the program is loaded as long as this lives, and reads so many bytes; what its
            // text does with them is as safe as any launch of it.
            unsafe { (self.run)(args.as_ptr()) }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_includes_what_its_headers_include() {
        let header = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let source = Source {
            name: "k.cu".to_owned(),
            text: "#include <ep/a.cuh>\n".to_owned(),
            headers: vec![
                header("ep/b.cuh", ""),
                header("ep/a.cuh", "#include <ep/b.cuh>\n#include <ep/a.cuh>\n"),
                header("ep/c.cuh", "#include <ep/a.cuh>\n"),
            ],
            kernels: Vec::new(),
        };
        assert!(source.includes("ep/b.cuh") && source.includes("k.cu"));
        assert!(!source.includes("ep/c.cuh"));
        let names: Vec<&str> = source.included().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ep/a.cuh", "ep/b.cuh"]);
    }
}

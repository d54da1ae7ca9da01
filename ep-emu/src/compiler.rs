//! From an emitted text to callable kernels: the system's C++ compiler and a cache by content.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use crate::calls::TABLE;
use crate::program::{Build, CompileError, Program, Source};

/// The headers that stand in for the lowest layer, by include name; `shim.cpp` is compiled apart.
const HOST_FILES: [(&str, &str); 4] = [
    ("ep/emu.h", include_str!("../templates/host/ep/emu.h")),
    ("ep/builtins.h", include_str!("../templates/host/ep/builtins.h")),
    ("ep/ptx.cuh", include_str!("../templates/host/ep/ptx.cuh")),
    ("ep/shim.cpp", include_str!("../templates/host/ep/shim.cpp")),
];

/// What the shim is made of.
const SHIM_FILES: [&str; 2] = ["ep/emu.h", "ep/shim.cpp"];

/// Flags of every compilation. DWARF 4: the tools that read lines back disagree about the file
/// numbers of DWARF 5.
const COMMON: [&str; 5] = ["-std=c++17", "-gdwarf-4", "-fPIC", "-fvisibility=hidden", "-w"];

/// Tells the scratch folders of one process apart.
static NEXT_SCRATCH: AtomicU32 = AtomicU32::new(0);

impl Build {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Fast => &[],
            Self::Checked => &["-fsanitize=thread"],
            // Undefined behaviour becomes an illegal instruction, which the worker reports.
            Self::Sanitized => &[
                "-fsanitize=address,undefined",
                "-fsanitize-undefined-trap-on-error",
                "-fno-omit-frame-pointer",
            ],
        }
    }
}

/// A C++ compiler of this machine and the folder where its products are kept.
#[derive(Clone, Debug)]
pub struct Compiler {
    command: OsString,
    version: String,
    cache: PathBuf,
}

impl Compiler {
    /// The first of `$CXX`, c++, g++, clang++ that answers; products go to `cache`.
    pub fn find(cache: &Path) -> Result<Self, CompileError> {
        let named = env::var_os("CXX").into_iter();
        let usual = ["c++", "g++", "clang++"].into_iter().map(OsString::from);
        for command in named.chain(usual) {
            let Ok(answer) = Command::new(&command).arg("--version").output() else { continue };
            if answer.status.success() {
                let version = String::from_utf8_lossy(&answer.stdout).into_owned();
                return Ok(Self { command, version, cache: cache.to_owned() });
            }
        }
        Err(CompileError::NoCompiler)
    }

    /// The default folder of products: the user's cache folder, else the temporary one.
    pub fn default_cache() -> PathBuf {
        let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
        base.unwrap_or_else(env::temp_dir).join("epforge").join("host")
    }

    /// Compiles `source`, or takes the product of an earlier compilation of the same bytes.
    pub fn compile(&self, source: &Source, build: Build) -> Result<Arc<Program>, CompileError> {
        let files = files_of(source);
        let folder = self.cache.join(self.digest(&format!("{build:?} {}", source.name), &files));
        if !folder.join("kernel.so").exists() {
            let shim = self.shim(build == Build::Sanitized)?;
            self.produce(&folder, "kernel.so", &files, |scratch| {
                self.compile_in(scratch, build, &shim)
            })?;
        }
        Program::load(source, build, &folder, &TABLE)
    }

    /// The object that every library is linked with; it depends on no kernel.
    fn shim(&self, sanitized: bool) -> Result<PathBuf, CompileError> {
        let named = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        let files: Vec<_> =
            HOST_FILES.iter().filter(|(name, _)| SHIM_FILES.contains(name)).map(named).collect();
        let define: &[&str] = if sanitized { &["-DEMU_ADDRESS_SANITIZER"] } else { &[] };
        let folder = self.cache.join(self.digest(&format!("shim {define:?}"), &files));
        if !folder.join("shim.o").exists() {
            self.produce(&folder, "shim.o", &files, |scratch| {
                let mut shim = Command::new(&self.command);
                shim.args(COMMON).args(define).args(["-O2", "-c", "ep/shim.cpp", "-o", "shim.o"]);
                self.run(&mut shim, scratch)
            })?;
        }
        Ok(folder.join("shim.o"))
    }

    fn digest(&self, what: &str, files: &[(String, String)]) -> String {
        let mut hash = Fnv::new();
        hash.add(&self.version);
        hash.add(&self.command.to_string_lossy());
        hash.add(what);
        for (name, text) in files {
            hash.add(name);
            hash.add(text);
        }
        format!("{:032x}", hash.0)
    }

    /// Fills `folder` by way of a folder of its own, which is then renamed: two builders of one
    /// text do not collide, and a folder under its final name is always complete.
    fn produce(
        &self,
        folder: &Path,
        product: &str,
        files: &[(String, String)],
        make: impl FnOnce(&Path) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let unique = NEXT_SCRATCH.fetch_add(1, Ordering::Relaxed);
        let scratch = folder.with_extension(format!("{}-{unique}", std::process::id()));
        let write = |(name, text): &(String, String)| {
            let path = scratch.join(name);
            let parent = path.parent().unwrap_or(folder);
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, text))
                .map_err(|error| CompileError::Io(show(&path), error))
        };
        let result =
            files.iter().try_for_each(write).and_then(|()| make(&scratch)).and_then(|()| {
                match fs::rename(&scratch, folder) {
                    Err(_) if folder.join(product).exists() => Ok(()),
                    other => other.map_err(|error| CompileError::Io(show(folder), error)),
                }
            });
        // A leftover scratch folder is only waste; what matters is `result`.
        let _ = fs::remove_dir_all(&scratch);
        result
    }

    fn compile_in(&self, folder: &Path, build: Build, shim: &Path) -> Result<(), CompileError> {
        // Contraction would round differently from the device's explicit fused operations.
        let numbers = ["-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-stack-protector"];
        let mut kernel = Command::new(&self.command);
        kernel.args(COMMON).args(numbers).args(build.flags());
        self.run(kernel.args(["-I.", "-c", "unit.cpp", "-o", "unit.o"]), folder)?;
        let mut link = Command::new(&self.command);
        link.args(["-shared", "unit.o"]).arg(shim).args(["-o", "kernel.so", "-lm"]);
        if build == Build::Sanitized {
            link.args(build.flags());
            if self.version.contains("clang") {
                link.arg("-shared-libasan");
            }
        }
        self.run(&mut link, folder)
    }

    fn run(&self, command: &mut Command, folder: &Path) -> Result<(), CompileError> {
        let output = command
            .current_dir(folder)
            .output()
            .map_err(|error| CompileError::Io(self.command.to_string_lossy().into(), error))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(CompileError::Refused(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

/// Everything the compiler reads, in a fixed order.
fn files_of(source: &Source) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> =
        HOST_FILES.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    for (name, text) in &source.headers {
        if !HOST_FILES.iter().any(|(known, _)| known == name) {
            files.push((name.clone(), text.clone()));
        }
    }
    files.push((source.name.clone(), source.text.clone()));
    let export = |kernel: &String| {
        let path: Vec<String> = namespaces_of(&source.text, kernel);
        format!("EMU_KERNEL({}{kernel}, {kernel})\n", path.concat())
    };
    let exports: String = source.kernels.iter().map(export).collect();
    let unit = format!("#include \"ep/builtins.h\"\n#include \"{}\"\n{exports}", source.name);
    files.push(("unit.cpp".to_owned(), unit));
    files
}

/// The namespaces around the definition of `kernel`, each followed by `::`. A file that defines no
/// such function is left to the compiler's message.
fn namespaces_of(text: &str, kernel: &str) -> Vec<String> {
    let mut open: Vec<Option<String>> = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or(line);
        for token in tokens(code) {
            match token {
                "{" => {
                    let named = words.len() >= 2 && words[words.len() - 2] == "namespace";
                    open.push(named.then(|| format!("{}::", words[words.len() - 1])));
                }
                "}" => {
                    open.pop();
                }
                "(" if words.last() == Some(&kernel) && open.iter().all(Option::is_some) => {
                    return open.into_iter().flatten().collect();
                }
                _ => words.push(token),
            }
            if words.len() > 8 {
                words.drain(..4);
            }
        }
    }
    Vec::new()
}

/// Words and single punctuation of a line.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut rest = code;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let end = if is_word(first) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, left) = rest.split_at(end);
        rest = left;
        Some(token)
    })
}

/// FNV-1a with 128 bits over length-prefixed texts.
struct Fnv(u128);

impl Fnv {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, text: &str) {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let length = (text.len() as u64).to_le_bytes();
        for byte in length.iter().chain(text.as_bytes()) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::namespaces_of;

    #[test]
    fn a_kernel_is_found_in_its_namespace() {
        let text = "namespace a {\nstruct C { int x; };\nvoid other() { k(); }\n\
                    extern \"C\" __global__ void\n    k(const Args args) {\n}\n}\n";
        assert_eq!(namespaces_of(text, "k"), ["a::"]);
        assert_eq!(namespaces_of(text, "other"), ["a::"]);
        assert!(namespaces_of("__global__ void k() {}", "k").is_empty());
        assert!(namespaces_of("// k(\n", "k").is_empty());
    }
}

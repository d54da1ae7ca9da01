//! From an emitted text to callable kernels: the system's C++ compiler, and a shelf that keeps what
//! it makes.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fmt, fs, io};

use crate::calls::TABLE;
use crate::mutation;
use crate::program::{Build, CompileError, LIBRARY, Program, Source, VARIABLE};

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
/// numbers of DWARF 5. Functions and lines are all that is read.
const COMMON: [&str; 6] = ["-std=c++17", "-gdwarf-4", "-g1", "-fPIC", "-fvisibility=hidden", "-w"];

/// Flags of kernels: contraction would round differently from the device's explicit fused operations, and
/// nothing is thrown.
const NUMBERS: [&str; 4] =
    ["-ffp-contract=off", "-fno-strict-aliasing", "-fno-stack-protector", "-fno-exceptions"];

/// Local variables without a value hold a pattern and not what stood there, which may pass for a value. Some compilers
/// do not know this: g++ before 12.
const PATTERN: &str = "-ftrivial-auto-var-init=pattern";

/// What a compiler says when the machine is at its end, and the text has nothing to do with it.
const MACHINE_LACKS: [&str; 3] =
    ["No space left on device", "Cannot allocate memory", "out of memory allocating"];

impl Build {
    /// Whether every plain access is reported to the happens-before checker.
    pub(crate) fn is_checked(self) -> bool {
        self == Self::Checked
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            // Twice the time to compile, and 20 % less to run.
            Self::Fast => &["-O1"],
            Self::Plain => &["-O0"],
            Self::Checked => &["-O0", "-fsanitize=thread"],
            // Undefined behaviour becomes an illegal instruction, which the worker reports.
            Self::Sanitized => &[
                "-O0",
                "-fsanitize=address,undefined",
                "-fsanitize-undefined-trap-on-error",
                "-fno-omit-frame-pointer",
            ],
        }
    }
}

/// Keeps what a compiler makes, so that it is made once, and gives it back only as it was made.
pub trait Shelf: fmt::Debug + Send + Sync {
    /// The product that `parts` decide over: kept, or made now.
    fn fetch(
        &self,
        about: &Product<'_>,
        parts: &[&str],
        make: &mut dyn FnMut() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError>;

    /// An empty folder that nobody else can write, for as long as the value lives.
    fn folder(&self) -> io::Result<Box<dyn AsRef<Path>>>;
}

/// What a product is, for those who list them.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The source.
    pub name: &'a str,
    /// How it is compiled.
    pub build: Build,
    /// What the compiler calls itself.
    pub compiler: &'a str,
    /// Whether it is a part of every program.
    pub is_shared: bool,
}

/// A C++ compiler of this machine and the shelf for its products.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The program and the arguments that it always gets.
    command: Vec<String>,
    version: String,
    /// Flags of kernels that not every compiler knows.
    known: Vec<&'static str>,
    shelf: Arc<dyn Shelf>,
}

impl Compiler {
    /// The compiler in `$CXX`, with arguments if it has any; else the first of c++, g++, clang++ that
    /// answers.
    pub fn find(shelf: Arc<dyn Shelf>) -> Result<Self, CompileError> {
        let named = env::var(VARIABLE).unwrap_or_default();
        Compiler::named(&named, shelf)
    }

    /// As [`Compiler::find`], with the value of `$CXX`; none if it is empty.
    pub fn named(named: &str, shelf: Arc<dyn Shelf>) -> Result<Self, CompileError> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let command = words(named);
        if !command.is_empty() {
            return match answer(&command) {
                Ok(version) => Ok(Self::new(command, version, shelf)),
                Err(reason) => Err(CompileError::Unusable { command: named.to_owned(), reason }),
            };
        }
        let usual = ["c++", "g++", "clang++"].map(words);
        let found = usual.into_iter().find_map(|command| Some((answer(&command).ok()?, command)));
        let (version, command) = found.ok_or(CompileError::NoCompiler)?;
        Ok(Self::new(command, version, shelf))
    }

    fn new(command: Vec<String>, version: String, shelf: Arc<dyn Shelf>) -> Self {
        let known = if knows(&command, PATTERN) { vec![PATTERN] } else { Vec::new() };
        Self { command, version, known, shelf }
    }

    /// This compiler with another shelf.
    pub fn with_shelf(&self, shelf: Arc<dyn Shelf>) -> Self {
        Self { shelf, ..self.clone() }
    }

    /// Compiles `source`, or takes the product of an earlier compilation of the same bytes.
    pub fn compile(&self, source: &Source, build: Build) -> Result<Arc<Program>, CompileError> {
        let files = files_of(source);
        let about = Product { name: &source.name, build, compiler: self.name(), is_shared: false };
        let library =
            self.product(&about, &[&NUMBERS, &self.known, build.flags()], &files, &mut |folder| {
                self.compile_in(folder, build)
            })?;
        Program::load(source, build, &library, self.folder()?.as_ref().as_ref(), &TABLE)
    }

    /// The object that every library is linked with; it depends on no kernel.
    fn shim(&self, build: Build) -> Result<Vec<u8>, CompileError> {
        let named = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        let files: Vec<_> =
            HOST_FILES.iter().filter(|(name, _)| SHIM_FILES.contains(name)).map(named).collect();
        let sanitized = build == Build::Sanitized;
        let build = if sanitized { Build::Sanitized } else { Build::Plain };
        let define: &[&str] = if sanitized { &["-DEMU_ADDRESS_SANITIZER"] } else { &[] };
        let about = Product { name: "ep/shim.cpp", build, compiler: self.name(), is_shared: true };
        self.product(&about, &[define], &files, &mut |folder| {
            let mut shim = self.call();
            shim.args(COMMON).args(define).args(["-O2", "-c", "ep/shim.cpp", "-o", "shim.o"]);
            self.run(&mut shim, folder)?;
            read(&folder.join("shim.o"))
        })
    }

    /// What `make` makes of `files` in a folder that holds them.
    fn product(
        &self,
        about: &Product<'_>,
        flags: &[&[&str]],
        files: &[(String, String)],
        make: &mut dyn FnMut(&Path) -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let (command, flags) = (self.command.join(" "), flags.concat().join(" "));
        let texts = files.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]);
        let identity = [about.name, &self.version, &command, &flags];
        let parts: Vec<&str> = identity.into_iter().chain(texts).collect();
        self.shelf.fetch(about, &parts, &mut || {
            let folder = self.folder()?;
            let folder: &Path = folder.as_ref().as_ref();
            for (name, text) in files {
                let path = folder.join(name);
                let parent = path.parent().unwrap_or(folder);
                let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, text));
                written.map_err(|error| CompileError::Io(show(&path), error))?;
            }
            make(folder)
        })
    }

    fn folder(&self) -> Result<Box<dyn AsRef<Path>>, CompileError> {
        let failed = |error| CompileError::Io("no folder to compile in".to_owned(), error);
        self.shelf.folder().map_err(failed)
    }

    fn name(&self) -> &str {
        self.version.lines().next().unwrap_or_default().trim()
    }

    fn compile_in(&self, folder: &Path, build: Build) -> Result<Vec<u8>, CompileError> {
        let shim = folder.join("shim.o");
        let written = fs::write(&shim, self.shim(build)?);
        written.map_err(|error| CompileError::Io(show(&shim), error))?;
        let mut kernel = self.call();
        kernel.args(COMMON).args(NUMBERS).args(&self.known).args(build.flags());
        self.run(kernel.args(["-I.", "-c", "unit.cpp", "-o", "unit.o"]), folder)?;
        let mut link = self.call();
        link.args(["-shared", "unit.o", "shim.o", "-o", LIBRARY, "-lm"]);
        if build == Build::Sanitized {
            link.args(build.flags());
            if self.version.contains("clang") {
                link.arg("-shared-libasan");
            }
        } else {
            // Kernels use nothing of the C++ library, and to look through it takes longer than the rest. The
            // compiler's own functions are those of its library.
            link.args(["-nodefaultlibs", "-lgcc", "-lc"]);
        }
        self.run(&mut link, folder)?;
        read(&folder.join(LIBRARY))
    }

    fn call(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    fn run(&self, command: &mut Command, folder: &Path) -> Result<(), CompileError> {
        // The compiler also writes its temporary files here, where no other user can replace them.
        let output = command
            .current_dir(folder)
            .env("TMPDIR", folder)
            .output()
            .map_err(|error| CompileError::Io(self.command.join(" "), error))?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let lacks = |line: &&str| MACHINE_LACKS.iter().any(|what| line.contains(what));
        match log.lines().find(lacks) {
            Some(line) => {
                let error = io::Error::other(line.trim().to_owned());
                Err(CompileError::Io(self.command.join(" "), error))
            }
            None => Err(CompileError::Refused(log)),
        }
    }
}

/// Whether a compiler takes a flag.
fn knows(command: &[String], flag: &str) -> bool {
    let mut call = Command::new(&command[0]);
    call.args(&command[1..]).args([flag, "-x", "c++", "-E", "/dev/null"]);
    call.output().is_ok_and(|output| output.status.success())
}

/// What a compiler says about itself; the error says why it says nothing.
fn answer(command: &[String]) -> Result<String, String> {
    let mut words = command.iter();
    let program = words.next().ok_or("it is empty")?;
    let answer = Command::new(program).args(words).arg("--version").output();
    let answer = answer.map_err(|error| error.to_string())?;
    match answer.status.success() {
        true => Ok(String::from_utf8_lossy(&answer.stdout).into_owned()),
        false => Err(format!("`--version` ends with {}", answer.status)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CompileError> {
    fs::read(path).map_err(|error| CompileError::Io(show(path), error))
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

/// Everything the compiler reads, in a fixed order.
fn files_of(source: &Source) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> =
        HOST_FILES.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    for (name, text) in source.included() {
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
    // Inlined everywhere, mutations multiply: minutes for what takes seconds.
    let is_woven = source.headers.iter().any(|(name, _)| name == mutation::HEADER.0);
    let apart = if is_woven { "#define EMU_APART 1\n" } else { "" };
    let name = &source.name;
    let unit = format!("{apart}#include \"ep/builtins.h\"\n#include \"{name}\"\n{exports}");
    files.push(("unit.cpp".to_owned(), unit));
    files
}

/// The `__global__` functions that a text defines, in its order.
pub fn kernels_of(text: &str) -> Vec<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    let mut words = code.flat_map(tokens);
    let mut kernels = Vec::new();
    while words.any(|word| word == "__global__") {
        let mut last = "";
        // The bounds of a launch stand before the name, in parentheses of their own.
        while let Some(word) = words.next() {
            match word {
                "(" if last == "__launch_bounds__" => drop(words.find(|word| *word == ")")),
                "(" => {
                    kernels.push(last.to_owned());
                    break;
                }
                _ => last = word,
            }
        }
    }
    kernels
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

#[cfg(test)]
mod tests {
    use super::{Source, files_of, kernels_of, namespaces_of};
    use crate::mutation;

    #[test]
    fn functions_stay_apart_where_mutations_would_multiply() {
        let unit = |source: &Source| files_of(source).pop().map(|(_, text)| text.contains("APART"));
        let mut source = Source { name: "k.cu".to_owned(), ..Source::default() };
        assert_eq!(unit(&source), Some(false));
        let (name, text) = mutation::HEADER;
        source.headers.push((name.to_owned(), text.to_owned()));
        assert_eq!(unit(&source), Some(true));
    }

    #[test]
    fn every_kernel_of_a_text_is_found() {
        let text = "void other() {}\nextern \"C\" __global__ void first(int x) { other(); }\n\
                    // __global__ void none()\nnamespace a {\nextern \"C\" __global__ void\n\
                    __launch_bounds__(Cfg::kThreads, 1)\n    second(const Args args) {\n}\n}\n";
        assert_eq!(kernels_of(text), ["first", "second"]);
        assert!(kernels_of("__device__ void f() {}\n__global__ void").is_empty());
    }

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

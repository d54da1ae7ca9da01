//! Emitted texts as programs of this machine. Each is compiled once, no matter how many groups run it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use ep_emu::mutant::Mutant;
use ep_emu::mutation::{Coverage, Weaver};
use ep_emu::{Build, CompileError, Compiler, Product, Program, Shelf, Source, kernels_of};

use crate::backend::BackendError;
use crate::device::HEADERS;
use crate::jit::{Cache, CacheError, CacheWarning, Entry, Fetched, Key};

/// A C++ compiler, and the programs that it has compiled so far.
pub struct Programs {
    compiler: Compiler,
    kept: Arc<Kept>,
    /// What is done to every text.
    change: Change,
    /// Whether a text has had the bug planted in it.
    has_planted: AtomicBool,
    made: Mutex<BTreeMap<(Key, u8), Arc<Program>>>,
}

/// What is done to texts before they are compiled.
#[derive(Clone)]
enum Change {
    None,
    /// A bug in those that it is about.
    Mutant(Mutant),
    /// All mutations.
    Woven(Arc<Weaver>),
    /// Marks.
    Marked(Arc<Coverage>),
}

/// The shelf of the compiler: a library is kept among the kernels for GPUs, and verified as they are
/// before it is loaded.
#[derive(Debug)]
struct Kept {
    cache: Cache,
    warnings: Mutex<Vec<CacheWarning>>,
}

impl Kept {
    fn warnings(&self) -> MutexGuard<'_, Vec<CacheWarning>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf for Kept {
    fn fetch(
        &self,
        about: &Product<'_>,
        parts: &[&str],
        make: &mut dyn FnMut() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let key = Key::of(["a library for the host"].iter().chain(parts).copied());
        let make = || {
            let (name, tool) = (about.name.to_string(), about.compiler.to_string());
            let target = format!("host {:?}", about.build).to_lowercase();
            Ok(Entry { name, target, tool, log: String::new(), binary: make()? })
        };
        let Fetched { entry, warnings, .. } = self.cache.fetch(&key, make)?;
        self.warnings().extend(warnings);
        Ok(entry.binary)
    }

    fn folder(&self) -> io::Result<Box<dyn AsRef<Path>>> {
        Ok(Box::new(self.cache.scratch()?))
    }
}

/// A shelf that keeps what all programs are linked with, and nothing else.
#[derive(Debug)]
struct Passing(Arc<Kept>);

impl Shelf for Passing {
    fn fetch(
        &self,
        about: &Product<'_>,
        parts: &[&str],
        make: &mut dyn FnMut() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        if about.is_shared { self.0.fetch(about, parts, make) } else { make() }
    }

    fn folder(&self) -> io::Result<Box<dyn AsRef<Path>>> {
        self.0.folder()
    }
}

impl Programs {
    /// Finds the compiler of this machine. Compiled programs are cached next to compiled GPU kernels.
    pub fn find() -> Result<Arc<Programs>, BackendError> {
        Programs::keeping(Cache::at(None))
    }

    /// As [`Programs::find`], with the cache in `folder`.
    pub fn find_with(folder: &Path) -> Result<Arc<Programs>, BackendError> {
        Programs::keeping(Cache::at(Some(folder)))
    }

    fn keeping(cache: Result<Cache, CacheError>) -> Result<Arc<Programs>, BackendError> {
        let cache = cache.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        let warnings = Mutex::new(cache.warning().cloned().into_iter().collect());
        let kept = Arc::new(Kept { cache, warnings });
        let found = Compiler::find(Arc::clone(&kept) as Arc<dyn Shelf>);
        let compiler = found.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        let (change, has_planted) = (Change::None, AtomicBool::new(false));
        Ok(Arc::new(Programs { compiler, kept, change, has_planted, made: Mutex::default() }))
    }

    /// Failures of the cache since the last call of this function. The programs themselves are good.
    pub fn warnings(&self) -> Vec<CacheWarning> {
        std::mem::take(&mut self.kept.warnings())
    }

    /// This compiler with a bug planted in every program whose text the bug applies to.
    pub fn planted(&self, mutant: &Mutant) -> Arc<Programs> {
        self.with(Change::Mutant(mutant.clone()))
    }

    /// Whether a program has been read whose text the planted bug applies to.
    pub fn has_planted(&self) -> bool {
        self.has_planted.load(Ordering::Relaxed)
    }

    /// This compiler with mutations in every program.
    pub fn woven(&self, weaver: &Arc<Weaver>) -> Arc<Programs> {
        self.with(Change::Woven(Arc::clone(weaver)))
    }

    /// This compiler with coverage marks in every program.
    pub fn marked(&self, coverage: &Arc<Coverage>) -> Arc<Programs> {
        self.with(Change::Marked(Arc::clone(coverage)))
    }

    /// This compiler for texts that are compiled only once: its programs are deleted with the last holder of
    /// the returned value.
    pub fn passing(&self) -> Arc<Programs> {
        let shelf = Arc::new(Passing(Arc::clone(&self.kept)));
        self.made_by(self.compiler.with_shelf(shelf), self.change.clone())
    }

    fn with(&self, change: Change) -> Arc<Programs> {
        self.made_by(self.compiler.clone(), change)
    }

    fn made_by(&self, compiler: Compiler, change: Change) -> Arc<Programs> {
        let kept = Arc::clone(&self.kept);
        let has_planted = AtomicBool::new(false);
        Arc::new(Programs { compiler, kept, change, has_planted, made: Mutex::default() })
    }

    /// Reads an emitted text as it would be compiled, and returns whether it has mutations.
    pub fn read(&self, entry: &str, cuda: &str) -> Result<bool, BackendError> {
        let woven = self.source(entry, cuda)?;
        Ok(woven.headers.len() > HEADERS.len())
    }

    /// The numbers of the mutations or marks that kernels of this process have reached.
    pub fn reached(&self) -> BTreeSet<u32> {
        self.made().values().flat_map(|program| program.reached()).collect()
    }

    /// The program of the kernel `entry` in an emitted text.
    pub(super) fn program(
        &self,
        entry: &str,
        cuda: &str,
        build: Build,
    ) -> Result<Arc<Program>, BackendError> {
        // The kernels of a text are one program: most of the time goes into what they share.
        let key = (Key::of([name_of(entry, cuda), cuda]), build as u8);
        if let Some(made) = self.made().get(&key) {
            return Ok(Arc::clone(made));
        }
        // Not under the lock: two threads may compile two texts at a time.
        let program = loop {
            let source = self.source(entry, cuda)?;
            match self.compiler.compile(&source, build) {
                Ok(program) => break program,
                Err(CompileError::Refused(log)) if self.refuses(&log) => {}
                Err(CompileError::Refused(log)) => {
                    return Err(BackendError::Compile { name: entry.to_string(), log });
                }
                Err(other) => return Err(BackendError::Missing { what: other.to_string() }),
            }
        };
        Ok(Arc::clone(self.made().entry(key).or_insert(program)))
    }

    /// Whether it was mutations that the compiler has refused; they are out from now on.
    fn refuses(&self, log: &str) -> bool {
        matches!(&self.change, Change::Woven(weaver) if weaver.refuse(log))
    }

    fn source(&self, entry: &str, cuda: &str) -> Result<Source, BackendError> {
        let text = |(name, text): &(&str, &str)| ((*name).to_string(), (*text).to_string());
        let mut kernels = kernels_of(cuda);
        if !kernels.iter().any(|kernel| kernel == entry) {
            // The compiler says that there is none.
            kernels.push(entry.to_string());
        }
        let source = Source {
            name: format!("{}.cu", name_of(entry, cuda)),
            text: cuda.to_string(),
            headers: HEADERS.iter().map(text).collect(),
            kernels,
        };
        let wrong = |error: &dyn fmt::Display| BackendError::Wrong { what: error.to_string() };
        match &self.change {
            Change::Mutant(mutant) if source.includes(&mutant.file) => {
                self.has_planted.store(true, Ordering::Relaxed);
                mutant.plant(&source).map_err(|error| wrong(&error))
            }
            Change::Woven(weaver) => weaver.weave(&source).map_err(|error| wrong(&error)),
            Change::Marked(coverage) => Ok(coverage.weave(&source)),
            _ => Ok(source),
        }
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<(Key, u8), Arc<Program>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a text is called in reports, and by mutations and planted bugs: the namespace of its kernels, so
/// that it has one name whichever of them it is compiled for.
fn name_of<'a>(entry: &'a str, cuda: &'a str) -> &'a str {
    let mut namespaces =
        cuda.lines().filter_map(|line| line.strip_prefix("namespace ")?.strip_suffix(" {"));
    let holds = |name: &&str| {
        entry.strip_prefix(name).is_some_and(|phase| phase.is_empty() || phase.starts_with('_'))
    };
    namespaces.find(holds).unwrap_or(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_name_for_all_its_kernels() {
        let text = "namespace ep {\n}\nnamespace low_latency {\n}\n";
        for entry in ["low_latency_send", "low_latency_recv", "low_latency"] {
            assert_eq!(name_of(entry, text), "low_latency");
        }
        assert_eq!(name_of("low_latencyx", text), "low_latencyx");
        assert_eq!(name_of("bare", "__global__ void bare() {}"), "bare");
    }
}

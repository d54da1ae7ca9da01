//! Emitted texts as programs of this machine: each is compiled once, however many groups run it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ep_emu::mutant::{Mutant, MutantError};
use ep_emu::{Build, CompileError, Compiler, Product, Program, Shelf, Source};

use crate::backend::BackendError;
use crate::device::HEADERS;
use crate::jit::{Cache, CacheError, CacheWarning, Entry, Fetched, Key};

/// A C++ compiler, and what it has made so far.
pub struct Programs {
    compiler: Compiler,
    kept: Arc<Kept>,
    /// A bug in every text that it is about.
    mutant: Option<Mutant>,
    made: Mutex<BTreeMap<(Key, u8), Arc<Program>>>,
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

impl Programs {
    /// With the compiler of this machine; what it makes is kept beside the compiled GPU kernels.
    pub fn find() -> Result<Arc<Programs>, BackendError> {
        Programs::keeping(Cache::at(None))
    }

    /// As [`Programs::find`]; what the compiler makes is kept in `folder`.
    pub fn find_with(folder: &Path) -> Result<Arc<Programs>, BackendError> {
        Programs::keeping(Cache::at(Some(folder)))
    }

    fn keeping(cache: Result<Cache, CacheError>) -> Result<Arc<Programs>, BackendError> {
        let cache = cache.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        let warnings = Mutex::new(cache.warning().cloned().into_iter().collect());
        let kept = Arc::new(Kept { cache, warnings });
        let found = Compiler::find(Arc::clone(&kept) as Arc<dyn Shelf>);
        let compiler = found.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        Ok(Arc::new(Programs { compiler, kept, mutant: None, made: Mutex::default() }))
    }

    /// What the cache could not do since it was last asked for it; every program is good all the same.
    pub fn warnings(&self) -> Vec<CacheWarning> {
        std::mem::take(&mut self.kept.warnings())
    }

    /// The same compiler, and a bug in every program whose text it is about.
    pub fn planted(&self, mutant: &Mutant) -> Arc<Programs> {
        let (compiler, kept) = (self.compiler.clone(), Arc::clone(&self.kept));
        Arc::new(Programs { compiler, kept, mutant: Some(mutant.clone()), made: Mutex::default() })
    }

    /// The program of the kernel `entry` in an emitted text.
    pub(super) fn program(
        &self,
        entry: &str,
        cuda: &str,
        build: Build,
    ) -> Result<Arc<Program>, BackendError> {
        let key = (Key::of([entry, cuda]), build as u8);
        if let Some(made) = self.made().get(&key) {
            return Ok(Arc::clone(made));
        }
        // Not under the lock: two threads may compile two texts at a time.
        let source = self.source(entry, cuda)?;
        let program = self.compiler.compile(&source, build).map_err(|error| match error {
            CompileError::Refused(log) => BackendError::Compile { name: entry.to_string(), log },
            other => BackendError::Missing { what: other.to_string() },
        })?;
        Ok(Arc::clone(self.made().entry(key).or_insert(program)))
    }

    fn source(&self, entry: &str, cuda: &str) -> Result<Source, BackendError> {
        let text = |(name, text): &(&str, &str)| ((*name).to_string(), (*text).to_string());
        let source = Source {
            name: format!("{entry}.cu"),
            text: cuda.to_string(),
            headers: HEADERS.iter().map(text).collect(),
            kernels: vec![entry.to_string()],
        };
        let about = |mutant: &&Mutant| is_about(mutant, &source);
        match self.mutant.as_ref().filter(about) {
            None => Ok(source),
            Some(mutant) => {
                let wrong = |error: MutantError| BackendError::Wrong { what: error.to_string() };
                mutant.plant(&source).map_err(wrong)
            }
        }
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<(Key, u8), Arc<Program>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the source is, or includes, the file that the bug is in.
fn is_about(mutant: &Mutant, source: &Source) -> bool {
    let mut texts = vec![(source.name.as_str(), source.text.as_str())];
    let mut next = 0;
    while let Some((name, text)) = texts.get(next).copied() {
        if name == mutant.file {
            return true;
        }
        let included = |name: &str| text.contains(&format!("#include <{name}>"));
        for (name, text) in &source.headers {
            if included(name) && !texts.iter().any(|(known, _)| known == name) {
                texts.push((name, text));
            }
        }
        next += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_about_what_includes_its_file() {
        let header = |name: &str, text: &str| (name.to_string(), text.to_string());
        let source = Source {
            name: "k.cu".to_string(),
            text: "#include <ep/a.cuh>\n".to_string(),
            headers: vec![
                header("ep/b.cuh", ""),
                header("ep/a.cuh", "#include <ep/b.cuh>\n#include <ep/a.cuh>\n"),
                header("ep/c.cuh", "#include <ep/a.cuh>\n"),
            ],
            kernels: Vec::new(),
        };
        let about = |file: &str| {
            let mutants = Mutant::parse(&format!("== one\nin {file}\n- x\n")).unwrap();
            is_about(&mutants[0], &source)
        };
        assert!(about("ep/b.cuh") && about("k.cu"));
        assert!(!about("ep/c.cuh"));
    }
}

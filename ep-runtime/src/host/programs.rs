//! Emitted texts as programs of this machine: each is compiled once, however many groups run it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ep_emu::mutant::{Mutant, MutantError};
use ep_emu::{Build, CompileError, Compiler, Program, Source};

use crate::backend::BackendError;
use crate::device::HEADERS;
use crate::jit::{Cache, Key};

/// A C++ compiler, and what it has made so far.
pub struct Programs {
    compiler: Compiler,
    /// A bug in every text that it is about.
    mutant: Option<Mutant>,
    made: Mutex<BTreeMap<(Key, u8), Arc<Program>>>,
}

impl Programs {
    /// With the compiler of this machine; what it makes is kept beside the compiled GPU kernels.
    pub fn find() -> Result<Arc<Programs>, BackendError> {
        let kernels = Cache::at(None).ok();
        let folder = kernels.as_ref().and_then(Cache::folder).map(|folder| folder.join("host"));
        Programs::find_with(&folder.unwrap_or_else(Compiler::default_cache))
    }

    /// As [`Programs::find`]; what the compiler makes is kept in `folder`.
    pub fn find_with(folder: &Path) -> Result<Arc<Programs>, BackendError> {
        let found = Compiler::find(folder);
        let compiler = found.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        Ok(Arc::new(Programs { compiler, mutant: None, made: Mutex::default() }))
    }

    /// The same compiler, and a bug in every program whose text it is about.
    pub fn planted(&self, mutant: &Mutant) -> Arc<Programs> {
        let (compiler, mutant) = (self.compiler.clone(), Some(mutant.clone()));
        Arc::new(Programs { compiler, mutant, made: Mutex::default() })
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

    fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<(Key, u8), Arc<Program>>> {
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

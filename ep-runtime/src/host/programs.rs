//! Emitted texts as programs of this machine: each is compiled once, however many groups run it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ep_emu::{Build, CompileError, Compiler, Program, Source};

use crate::backend::BackendError;
use crate::device::HEADERS;
use crate::jit::Key;

/// A C++ compiler, and what it has made so far.
pub struct Programs {
    compiler: Compiler,
    made: Mutex<BTreeMap<(Key, u8), Arc<Program>>>,
}

impl Programs {
    /// With the compiler of this machine; what it makes is kept in the user's cache folder.
    pub fn find() -> Result<Arc<Programs>, BackendError> {
        Programs::find_with(&Compiler::default_cache())
    }

    /// As [`Programs::find`]; what the compiler makes is kept in `folder`.
    pub fn find_with(folder: &Path) -> Result<Arc<Programs>, BackendError> {
        let found = Compiler::find(folder);
        let compiler = found.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        Ok(Arc::new(Programs { compiler, made: Mutex::default() }))
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
        let source = Source {
            name: format!("{entry}.cu"),
            text: cuda.to_string(),
            headers: HEADERS.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect(),
            kernels: vec![entry.to_string()],
        };
        let program = self.compiler.compile(&source, build).map_err(|error| match error {
            CompileError::Refused(log) => BackendError::Compile { name: entry.to_string(), log },
            other => BackendError::Missing { what: other.to_string() },
        })?;
        Ok(Arc::clone(self.made().entry(key).or_insert(program)))
    }

    fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<(Key, u8), Arc<Program>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

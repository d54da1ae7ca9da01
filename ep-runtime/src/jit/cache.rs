//! The disk cache: the whole node compiles a text only once.
//!
//! An entry is one file named by its [`Key`], the digest of everything that determines the result. A
//! finished file is renamed into place, so no reader ever sees a partial one. Processes that want the same
//! key at the same time take turns with a file lock: the first one compiles, and the others read its entry.
//! The operating system releases the lock of a process that dies, and waiting for a hung process has a time
//! limit, so nothing waits forever.
//!
//! Entries are loaded into the GPU, or into this process, with the rights of the user. The folder therefore
//! belongs to the user alone, and every read verifies the digest of an entry.

mod entry;
mod folder;
mod scratch;

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

pub use entry::Entry;
use folder::{Folder, Lock, Read};
pub use scratch::Scratch;

/// The environment variable that names the cache folder.
pub const VARIABLE: &str = "EPFORGE_CACHE";

/// The digest of everything that determines a compiled result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a list of texts. `["ab", "c"]` and `["a", "bc"]` have different keys.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Key {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Key(hash.finalize().into())
    }

    /// Reads the 64 digits that [`Display`](fmt::Display) writes.
    fn parse(text: &str) -> Option<Key> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Key(bytes))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a cache folder is not used at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheError {
    /// Other users can put files into the folder.
    Writable {
        /// The folder.
        folder: PathBuf,
        /// Its permissions, as `chmod` takes them.
        mode: u32,
    },
    /// The folder belongs to another user.
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The number of the user that owns it.
        owner: u32,
        /// The number of the user that runs this process.
        user: u32,
    },
    /// Other users can replace the folder.
    Exposed {
        /// The folder.
        folder: PathBuf,
        /// Which folder above it allows that, and why, as a clause.
        flaw: String,
    },
    /// The path names something that is not a folder.
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder cannot be listed or cleared.
    Access {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheError::Writable { folder, mode } => write!(
                f,
                "the cache folder {} can be written by other users (mode {mode:04o}): run \
                 `chmod 700` on it, or name another folder in {VARIABLE}",
                folder.display()
            ),
            CacheError::Foreign { folder, owner, user } => write!(
                f,
                "the cache folder {} belongs to user {owner} and not to user {user}, who runs \
                 this: name another folder in {VARIABLE}",
                folder.display()
            ),
            CacheError::Exposed { folder, flaw } => write!(
                f,
                "other users can replace the cache folder {}, since {flaw}: name another folder in \
                 {VARIABLE}",
                folder.display()
            ),
            CacheError::NoFolder { path } => {
                write!(f, "the cache {} is no folder", path.display())
            }
            CacheError::Access { path, reason } => {
                write!(f, "the cache cannot use {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for CacheError {}

/// Why the cache did less than it should. The result itself is good.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheWarning {
    /// There is no folder, and results are lost when the process ends.
    MemoryOnly {
        /// Why there is none.
        reason: String,
    },
    /// The result could not be stored.
    CannotWrite {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A stored entry was damaged, and was compiled again.
    Damaged {
        /// The entry.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process held the lock of this entry for too long, so this one did not wait for it.
    LockHeld {
        /// The lock.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// The file system has no locks, so several processes may have done the same work.
    NoLocks {
        /// The lock.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The compile reads files that the key does not cover, so its result is not stored.
    ReadsFiles {
        /// The option or line that makes it do so.
        because: String,
    },
}

impl fmt::Display for CacheWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheWarning::MemoryOnly { reason } => {
                write!(f, "compiled kernels are not kept on disk: {reason}")
            }
            CacheWarning::CannotWrite { path, reason } => {
                write!(f, "the cache cannot write {}: {reason}", path.display())
            }
            CacheWarning::Damaged { path, reason } => write!(
                f,
                "the cache entry {} was damaged and has been rebuilt: {reason}",
                path.display()
            ),
            CacheWarning::LockHeld { path, waited } => write!(
                f,
                "another process has held {} for {} s, so this one compiled too",
                path.display(),
                waited.as_secs_f32()
            ),
            CacheWarning::NoLocks { path, reason } => {
                write!(f, "the cache cannot lock {}: {reason}", path.display())
            }
            CacheWarning::ReadsFiles { because } => {
                write!(f, "the result is not cached, since `{because}` reads files that can change")
            }
        }
    }
}

/// A result and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The result.
    pub entry: Entry,
    /// Whether the result was read from the cache.
    pub cached: bool,
    /// Failures of the cache.
    pub warnings: Vec<CacheWarning>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key, which is also the name of the file.
    pub key: Key,
    /// The bytes of the file.
    pub bytes: u64,
    /// The contents of the entry; the error says what is wrong with a damaged one.
    pub entry: Result<Summary, String>,
}

/// An entry's own description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The source that was compiled.
    pub name: String,
    /// The target, such as `sm_90a`.
    pub target: String,
    /// The compiler, such as `NVRTC 13.5`.
    pub tool: String,
}

/// What clearing the cache removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Number of entries.
    pub entries: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// A cache of compiled results, shared by all processes of one user on this machine.
#[derive(Debug)]
pub struct Cache {
    folder: Option<Folder>,
    warning: Option<CacheWarning>,
    patience: Duration,
}

impl Cache {
    /// How long a process waits for another one that is compiling the same text.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// The cache in the folder `argument`. Without it, the environment names the folder: `EPFORGE_CACHE`,
    /// `$XDG_CACHE_HOME/epforge`, `~/.cache/epforge`. If none of them is set, results stay in memory. A
    /// folder that was named and cannot be created is an error.
    pub fn at(argument: Option<&Path>) -> Result<Cache, CacheError> {
        let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // The XDG specification says to ignore a relative path.
        let xdg = || named("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let home = || named("HOME").filter(|path| path.is_absolute());
        if let Some(folder) = argument.map(Path::to_owned).or_else(|| named(VARIABLE)) {
            return match Folder::open(&folder)? {
                Ok(folder) => Ok(Cache::in_folder(folder)),
                Err(error) => Err(CacheError::Access { path: folder, reason: error.to_string() }),
            };
        }
        let folder = xdg()
            .map(|cache| cache.join("epforge"))
            .or_else(|| home().map(|home| home.join(".cache").join("epforge")));
        match folder {
            Some(folder) => Cache::open(&folder),
            None => {
                let reason = format!("there is no home folder, and {VARIABLE} is not set");
                Ok(Cache::without_folder(Some(CacheWarning::MemoryOnly { reason })))
            }
        }
    }

    /// The cache in `folder`, which is created if it is missing.
    ///
    /// A folder that others can write, or that belongs to another user, is an error. A folder that cannot
    /// be created is a warning, and the program runs without a cache.
    pub fn open(folder: &Path) -> Result<Cache, CacheError> {
        match Folder::open(folder)? {
            Ok(folder) => Ok(Cache::in_folder(folder)),
            Err(error) => {
                let reason = format!("{} cannot be made ({error})", folder.display());
                Ok(Cache::without_folder(Some(CacheWarning::MemoryOnly { reason })))
            }
        }
    }

    fn in_folder(folder: Folder) -> Cache {
        Cache { folder: Some(folder), warning: None, patience: Cache::PATIENCE }
    }

    /// A cache without a folder: results are lost when the process ends.
    pub fn memory_only() -> Cache {
        Cache::without_folder(None)
    }

    fn without_folder(warning: Option<CacheWarning>) -> Cache {
        Cache { folder: None, warning, patience: Cache::PATIENCE }
    }

    /// Changes how long this process waits for another one.
    pub fn with_patience(mut self, patience: Duration) -> Cache {
        self.patience = patience;
        self
    }

    /// The folder; `None` if results stay in memory.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }

    /// Why there is no folder, if the caller did not ask for that.
    pub fn warning(&self) -> Option<&CacheWarning> {
        self.warning.as_ref()
    }

    /// Returns the entry of `key`, and creates it if no process has done so yet.
    pub fn fetch<E>(
        &self,
        key: &Key,
        make: impl FnOnce() -> Result<Entry, E>,
    ) -> Result<Fetched, E> {
        let Some(folder) = &self.folder else {
            return Ok(Fetched { entry: make()?, cached: false, warnings: Vec::new() });
        };
        let mut warnings = Vec::new();
        if let Read::Entry(entry) = folder.read(key) {
            return Ok(Fetched { entry, cached: true, warnings });
        }
        // Held until the entry is published: a process that waits for the lock finds the entry.
        let lock = folder.lock(key, self.patience);
        let mut can_write = true;
        if let Lock::Without(warning) = &lock {
            can_write = !matches!(warning, CacheWarning::CannotWrite { .. });
            warnings.push(warning.clone());
        }
        match folder.read(key) {
            Read::Entry(entry) => return Ok(Fetched { entry, cached: true, warnings }),
            Read::Damaged(reason) => {
                warnings.push(CacheWarning::Damaged { path: folder.entry(key), reason });
            }
            Read::Missing => {}
        }
        let entry = make()?;
        if can_write && let Err((path, error)) = folder.publish(key, &entry) {
            warnings.push(CacheWarning::CannotWrite { path, reason: error.to_string() });
        }
        Ok(Fetched { entry, cached: false, warnings })
    }

    /// A fresh folder for this process only: next to the entries, or among the temporary files. Folders
    /// that killed processes left behind are removed.
    pub fn scratch(&self) -> io::Result<Scratch> {
        if let Some(folder) = self.folder() {
            scratch::sweep(folder);
            if let Ok(scratch) = Scratch::below(folder) {
                return Ok(scratch);
            }
        }
        Scratch::below(&env::temp_dir())
    }

    /// Every entry, in the order of the keys. The digest of each is verified.
    pub fn list(&self) -> Result<Vec<Listed>, CacheError> {
        self.folder.as_ref().map_or_else(|| Ok(Vec::new()), Folder::list)
    }

    /// The bytes of all files of the cache.
    pub fn size(&self) -> Result<u64, CacheError> {
        self.folder.as_ref().map_or(Ok(0), Folder::size)
    }

    /// Removes all entries, and whatever killed processes left behind. Files that are not the cache's stay.
    pub fn clear(&self) -> Result<Cleared, CacheError> {
        self.folder.as_ref().map_or_else(|| Ok(Cleared::default()), Folder::clear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_every_part_and_every_boundary() {
        let keys = [
            Key::of(["ab", "c"]),
            Key::of(["a", "bc"]),
            Key::of(["abc"]),
            Key::of(["abc", ""]),
            Key::of([]),
        ];
        let distinct: std::collections::BTreeSet<Key> = keys.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(Key::of(["ab", "c"]), keys[0]);
    }

    #[test]
    fn keys_are_read_back() {
        let key = Key::of(["x"]);
        assert_eq!(Key::parse(&key.to_string()), Some(key));
        for bad in ["", "zz", &"g".repeat(64), &"é".repeat(32), &"a".repeat(65)] {
            assert_eq!(Key::parse(bad), None, "{bad}");
        }
    }
}

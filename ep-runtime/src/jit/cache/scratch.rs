//! Fresh folders for temporary files of one process.
//!
//! Each folder has a file next to it that its process keeps locked, from before the folder exists until it
//! is gone. The system releases the lock of a process that dies, so the next process knows which folders
//! are no longer in use.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::super::find::trust;
use super::folder::private;

/// What the names of these folders begin with.
const PREFIX: &str = "epforge-scratch-";

/// What the names of their locks end with.
const LOCK: &str = ".lock";

/// A folder that no other user can write. Dropping this value removes the folder with its contents.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Its path, and what gives the lock back when it is closed.
    lock: (PathBuf, File),
}

impl Scratch {
    /// Makes a new folder below `folder`. Fails if other users could replace it.
    pub fn below(folder: &Path) -> io::Result<Scratch> {
        if let Some(flaw) = trust::exposed(folder) {
            let what =
                format!("other users can replace what is in {}, since {flaw}", folder.display());
            return Err(io::Error::other(what));
        }
        loop {
            // Nobody can take all names away, as it could take those that count up.
            let path = folder.join(format!("{PREFIX}{:016x}", RandomState::new().hash_one(0)));
            let lock = lock_of(&path);
            let file = match private::create(&lock, true) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Without locks there are none to respect.
            let is_ours = private::try_lock(&file).unwrap_or(true);
            // Another process may have swept it away before it was locked, and then it is gone.
            if is_ours && lock.exists() {
                if let Err(error) = private::make_folder(&path) {
                    // Without a folder it is swept away, if not now.
                    let _ = fs::remove_file(&lock);
                    return Err(error);
                }
                return Ok(Scratch { path, lock: (lock, file) });
            }
        }
    }

    /// Keeps the folder for others who need its contents.
    pub fn keep(self) -> PathBuf {
        let path = self.path.clone();
        // Only what has a lock is ever swept away; if it stays, so does this process's hold of it.
        let _ = fs::remove_file(&self.lock.0);
        std::mem::forget(self);
        path
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by whoever sweeps next.
        if fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
            let _ = fs::remove_file(&self.lock.0);
        }
    }
}

/// The file that is locked for a folder.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(LOCK);
    PathBuf::from(name)
}

/// Removes the folders below `folder` whose processes are gone; gives the bytes that were in them.
/// Without locks they cannot be told from those in use, and all stay.
pub(super) fn sweep(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut bytes = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(LOCK).filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        let (path, lock) = (folder.join(name), entry.path());
        let Ok(file) = private::open(&lock) else { continue };
        if matches!(private::try_lock(&file), Ok(true)) {
            bytes += bytes_below(&path);
            // The lock goes last: as long as it is there the folder is found again.
            if fs::remove_dir_all(&path).is_ok() || !path.exists() {
                let _ = fs::remove_file(&lock);
            }
        }
    }
    bytes
}

/// The bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Whoever sweeps while others make folders takes none that its maker believes to have.
    #[test]
    fn a_folder_that_was_given_stays() {
        let all = Scratch::below(&std::env::temp_dir()).unwrap();
        std::thread::scope(|scope| {
            let making = [0; 4].map(|_| {
                scope.spawn(|| {
                    for _ in 0..150 {
                        let one = Scratch::below(all.path()).unwrap();
                        fs::write(one.path().join("file"), "text").unwrap();
                        assert!(one.path().join("file").exists());
                    }
                })
            });
            while making.iter().any(|thread| !thread.is_finished()) {
                sweep(all.path());
            }
        });
    }
}

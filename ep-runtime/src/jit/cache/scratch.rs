//! Fresh folders of one process alone, for what it makes on the way to something else.
//!
//! Each holds a file that its process keeps locked. The system drops the lock of a process that
//! dies, so that the next one knows which folders nobody uses any more.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::BuildHasher as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::folder::private;

/// What the names of these folders begin with.
const PREFIX: &str = "epforge-scratch-";

/// The file that is locked.
const LOCK: &str = "lock";

/// A folder that nobody else can write, removed with all that is in it when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Gives the lock back when it is closed.
    _lock: File,
}

impl Scratch {
    /// A new folder below `folder`.
    pub fn below(folder: &Path) -> io::Result<Scratch> {
        loop {
            // Nobody can take all names away, as it could take those that count up.
            let path = folder.join(format!("{PREFIX}{:016x}", RandomState::new().hash_one(0)));
            match private::make_folder(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            match hold(&path) {
                Ok(Some(_lock)) => return Ok(Scratch { path, _lock }),
                // Another process swept it away before it was locked.
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    // Nothing is in it; whoever sweeps next may have to try again.
                    let _ = fs::remove_dir_all(&path);
                    return Err(error);
                }
            }
        }
    }

    /// Leaves the folder to whoever wants what is in it.
    pub fn keep(self) -> PathBuf {
        let path = self.path.clone();
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
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The lock of a folder; none if another process has it. Without locks there are none to respect.
fn hold(path: &Path) -> io::Result<Option<File>> {
    let file = private::create(&path.join(LOCK), false)?;
    match private::try_lock(&file) {
        Ok(true) | Err(_) => Ok(Some(file)),
        Ok(false) => Ok(None),
    }
}

/// Removes the folders below `folder` whose processes are gone; gives the bytes that were in them.
/// Where there are no locks nothing tells them from those in use, and all stay.
pub(super) fn sweep(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let is_ours = |name: &OsStr| name.to_string_lossy().starts_with(PREFIX);
    let mut bytes = 0;
    for entry in entries.flatten().filter(|entry| is_ours(&entry.file_name())) {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let lock = || private::create(&path.join(LOCK), false).ok();
        if is_folder && lock().is_some_and(|lock| matches!(private::try_lock(&lock), Ok(true))) {
            let found = bytes_below(&path);
            bytes += if fs::remove_dir_all(&path).is_ok() { found } else { 0 };
        }
    }
    bytes
}

/// The bytes of all files below a folder.
pub(super) fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

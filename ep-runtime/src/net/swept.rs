//! Removes shared memory that killed processes leave behind over the provider `shm`.
//!
//! The provider makes a named file for each endpoint, and the file outlives a process that is killed. A process
//! therefore locks the file of its endpoint. The system drops the lock when the process dies, and the next endpoint
//! of the same user removes all files that nobody locks.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::join::NAME_PREFIX;

/// The folder in which the provider makes its files.
const FOLDER: &str = "/dev/shm";

/// Younger files stay: their endpoint may not have locked them yet.
const YOUNGEST: Duration = Duration::from_secs(60);

/// Holds the lock on the file of an endpoint.
#[derive(Debug, Default)]
pub(super) struct HeldFile {
    _files: Vec<File>,
}

impl HeldFile {
    /// Locks the file that the provider made for the endpoint called `own`.
    pub(super) fn of(own: &str) -> HeldFile {
        let files = named(Path::new(FOLDER), own).into_iter().filter_map(|path| open(&path).ok());
        // On a file system without locks, `sweep` removes nothing.
        HeldFile { _files: files.filter(try_lock).collect() }
    }
}

/// Removes the files of this user's dead processes.
pub(super) fn sweep() {
    sweep_below(Path::new(FOLDER));
}

fn sweep_below(folder: &Path) {
    // SAFETY: the call takes nothing, touches no memory and cannot fail.
    let user = unsafe { libc::geteuid() };
    for path in named(folder, NAME_PREFIX) {
        let Ok(file) = open(&path) else { continue };
        let Ok(about) = file.metadata() else { continue };
        let age = about.modified().ok().and_then(|made| made.elapsed().ok());
        let is_left =
            about.is_file() && about.uid() == user && age.is_some_and(|age| age >= YOUNGEST);
        if is_left && try_lock(&file) {
            // Another process may have removed the file first.
            let _ = fs::remove_file(&path);
        }
    }
}

/// The files of a folder whose names begin with `prefix`.
fn named(folder: &Path, prefix: &str) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    entries.flatten().filter(is_named).map(|entry| entry.path()).collect()
}

fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Takes the lock of a file unless another process has it.
fn try_lock(file: &File) -> bool {
    // SAFETY: the descriptor is open as long as `file` lives, and the call touches no memory.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::jit::Scratch;

    #[test]
    fn only_old_files_that_nobody_holds_are_swept() {
        let folder = Scratch::below(&std::env::temp_dir()).unwrap();
        let old = SystemTime::now() - 2 * YOUNGEST;
        let made = |name: &str, time: SystemTime| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(time).unwrap();
            file
        };
        let (left, held) = (format!("{NAME_PREFIX}1:0:0"), format!("{NAME_PREFIX}2:0:0"));
        let (young, others) = (format!("{NAME_PREFIX}3:0:0"), "fi_shm:4".to_owned());
        made(&left, old);
        made(&others, old);
        made(&young, SystemTime::now());
        let lock = made(&held, old);
        assert!(try_lock(&lock));
        sweep_below(folder.path());
        let there = [&left, &held, &young, &others].map(|name| folder.path().join(name).exists());
        assert_eq!(there, [false, true, true, true]);
    }
}

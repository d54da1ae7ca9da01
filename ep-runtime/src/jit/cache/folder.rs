//! The folder of the cache: its permissions, how entries are stored in it, and their locks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::find::trust;
use super::{CacheError, CacheWarning, Cleared, Entry, Key, Listed, scratch};

const ENTRY: &str = "entry";
const LOCK: &str = "lock";
const TEMPORARY: &str = "tmp";

/// No CUBIN comes near this; a larger file is not one of ours.
const LARGEST_ENTRY: u64 = 1 << 30;

/// A folder that belongs to this user alone.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

/// What reading an entry gives.
pub(super) enum Read {
    Entry(Entry),
    Missing,
    Damaged(String),
}

/// The right to make one entry.
pub(super) enum Lock {
    /// Ours until the file is closed.
    Held(#[expect(dead_code, reason = "kept open, because closing it gives the lock back")] File),
    /// There is no lock to be had, and the work is done without one.
    Without(CacheWarning),
}

impl Folder {
    /// Opens or makes the folder. The outer error is a folder that must not be used, the inner one
    /// a folder that cannot be made.
    pub(super) fn open(path: &Path) -> Result<io::Result<Folder>, CacheError> {
        let made = std::path::absolute(path).and_then(|path| {
            make_private(&path)?;
            fs::canonicalize(path)
        });
        let path = match made {
            Ok(path) => path,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(CacheError::NoFolder { path: path.to_owned() });
            }
            Err(error) => return Ok(Err(error)),
        };
        private::check_folder(&path)?;
        if let Some(flaw) = path.parent().and_then(trust::exposed) {
            return Err(CacheError::Exposed { folder: path, flaw });
        }
        Ok(Ok(Folder { path }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the entry `key`.
    pub(super) fn entry(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{key}.{ENTRY}"))
    }

    pub(super) fn read(&self, key: &Key) -> Read {
        let bytes = match private::read(&self.entry(key)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Read::Missing,
            Err(error) => return Read::Damaged(error.to_string()),
        };
        match Entry::from_bytes(key, &bytes) {
            Ok(entry) => Read::Entry(entry),
            Err(reason) => Read::Damaged(reason),
        }
    }

    /// Waits for the lock of `key`, and for no longer than `patience`.
    pub(super) fn lock(&self, key: &Key, patience: Duration) -> Lock {
        let path = self.path.join(format!("{key}.{LOCK}"));
        let file = match private::create(&path, false) {
            Ok(file) => file,
            Err(error) => {
                let reason = error.to_string();
                return Lock::Without(CacheWarning::CannotWrite { path, reason });
            }
        };
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match private::try_lock(&file) {
                Ok(true) => return Lock::Held(file),
                Ok(false) if start.elapsed() < patience => {}
                Ok(false) => {
                    let waited = start.elapsed();
                    return Lock::Without(CacheWarning::LockHeld { path, waited });
                }
                Err(error) => {
                    let reason = error.to_string();
                    return Lock::Without(CacheWarning::NoLocks { path, reason });
                }
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(16));
        }
    }

    /// Writes the entry beside its place and renames it. The error names the path that failed.
    pub(super) fn publish(&self, key: &Key, entry: &Entry) -> Result<(), (PathBuf, io::Error)> {
        let temporary = self.temporary(key).map_err(|error| (self.path.clone(), error))?;
        let (path, mut file) = temporary;
        let published = file
            .write_all(&entry.to_bytes(key))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&path, self.entry(key)));
        if let Err(error) = published {
            // If it cannot be removed either, `clear` will do so later.
            let _ = fs::remove_file(&path);
            return Err((path, error));
        }
        // The entry is there for every process now; only its life after a power cut depends on
        // this, and a file system that cannot do it for folders is none the worse.
        if let Ok(folder) = File::open(&self.path) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// A new file that no other process writes: on a shared file system even two with the same
    /// process number.
    fn temporary(&self, key: &Key) -> io::Result<(PathBuf, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let process = std::process::id();
            let path = self.path.join(format!("{key}.{process}-{number}.{TEMPORARY}"));
            match private::create(&path, true) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn list(&self) -> Result<Vec<Listed>, CacheError> {
        let mut listed = Vec::new();
        for (path, key, kind) in self.files()? {
            let Ok(about) = fs::symlink_metadata(&path) else { continue };
            if kind != ENTRY {
                continue;
            }
            let entry = match self.read(&key) {
                Read::Entry(entry) => Ok(entry.summary()),
                Read::Damaged(reason) => Err(reason),
                // Cleared by another process since the folder was read.
                Read::Missing => continue,
            };
            listed.push(Listed { key, bytes: about.len(), entry });
        }
        listed.sort_by_key(|one| one.key);
        Ok(listed)
    }

    pub(super) fn size(&self) -> Result<u64, CacheError> {
        let files = self.files()?;
        let sizes = files.iter().filter_map(|(path, ..)| fs::symlink_metadata(path).ok());
        Ok(sizes.map(|about| about.len()).sum())
    }

    pub(super) fn clear(&self) -> Result<Cleared, CacheError> {
        let mut cleared = Cleared { entries: 0, bytes: scratch::sweep(&self.path) };
        for (path, _, kind) in self.files()? {
            let bytes = fs::symlink_metadata(&path).map_or(0, |about| about.len());
            match fs::remove_file(&path) {
                Ok(()) => {
                    cleared.bytes += bytes;
                    cleared.entries += usize::from(kind == ENTRY);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(CacheError::Access { path, reason: error.to_string() });
                }
            }
        }
        Ok(cleared)
    }

    /// The files of the cache with their key and kind. Others' files are none of its business.
    fn files(&self) -> Result<Vec<(PathBuf, Key, String)>, CacheError> {
        let refused = |error: io::Error| CacheError::Access {
            path: self.path.clone(),
            reason: error.to_string(),
        };
        let mut files = Vec::new();
        for item in fs::read_dir(&self.path).map_err(refused)? {
            let item = item.map_err(refused)?;
            if item.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = item.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some((key, rest)) = name.split_once('.') else { continue };
            let kind = rest.rsplit('.').next().unwrap_or_default();
            if let Some(key) = Key::parse(key)
                && [ENTRY, LOCK, TEMPORARY].contains(&kind)
            {
                files.push((path, key, kind.to_owned()));
            }
        }
        Ok(files)
    }
}

/// Makes the folder for this user alone; those above it get the usual permissions.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    match private::make_folder(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Files and folders that no other user can write, and locks that die with their process.
#[cfg(unix)]
pub(super) mod private {
    use std::fs::{DirBuilder, Metadata};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

    use super::*;

    /// Write permission of the group and of everybody.
    const OTHERS_WRITE: u32 = 0o022;

    fn user() -> u32 {
        // SAFETY: the call takes nothing, touches no memory and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn is_private(about: &Metadata) -> bool {
        about.uid() == user() && about.mode() & OTHERS_WRITE == 0
    }

    pub(in crate::jit) fn make_folder(path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    pub(super) fn check_folder(path: &Path) -> Result<(), CacheError> {
        let about = fs::metadata(path).map_err(|error| CacheError::Access {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let folder = path.to_owned();
        if about.uid() != user() {
            return Err(CacheError::Foreign { folder, owner: about.uid(), user: user() });
        }
        if about.mode() & OTHERS_WRITE != 0 {
            return Err(CacheError::Writable { folder, mode: about.mode() & 0o7777 });
        }
        Ok(())
    }

    /// Reads a regular file of this user. It follows no link and waits for no pipe, whatever
    /// another user managed to put there.
    pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() || !is_private(&about) {
            return Err(io::Error::other("it is not a file that only this user can write"));
        }
        if about.len() > LARGEST_ENTRY {
            return Err(io::Error::other(format!("it has {} bytes", about.len())));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Opens a file that is there, and follows no link.
    pub(in crate::jit) fn open(path: &Path) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().write(true).custom_flags(flags).open(path)
    }

    pub(in crate::jit) fn create(path: &Path, new: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).create_new(new).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
    }

    /// Whether the lock is ours now; an error if the file system has no locks.
    pub(in crate::jit) fn try_lock(file: &File) -> io::Result<bool> {
        loop {
            // SAFETY: the descriptor is open as long as `file` lives, and the call touches no
            // memory.
            let code = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
            if code == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                ErrorKind::WouldBlock => return Ok(false),
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }
}

/// Elsewhere the system keeps the user's folders private, and two processes may do the same work.
#[cfg(not(unix))]
pub(super) mod private {
    use super::*;

    pub(in crate::jit) fn make_folder(path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    pub(super) fn check_folder(_: &Path) -> Result<(), CacheError> {
        Ok(())
    }

    pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST_ENTRY).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(in crate::jit) fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).open(path)
    }

    pub(in crate::jit) fn create(path: &Path, new: bool) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).create_new(new).truncate(false).open(path)
    }

    pub(in crate::jit) fn try_lock(_: &File) -> io::Result<bool> {
        Ok(true)
    }
}

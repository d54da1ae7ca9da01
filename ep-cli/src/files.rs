//! Files that a command leaves: each takes the place of what has its name. A link that somebody put
//! there is replaced and not followed, and nobody reads half a file.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes the file at `path`.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (beside, mut file) = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_file_name(format!(".{name}.{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => break (beside, file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    };
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The error that matters is the first one.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Makes the folder at `path`, in a folder that is there, unless it is one already. A link to one is
/// none.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            match fs::symlink_metadata(path)?.is_dir() {
                true => Ok(()),
                false => Err(io::Error::new(ErrorKind::NotADirectory, "it is no folder")),
            }
        }
        other => other,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use ep_runtime::jit::Scratch;

    use super::*;

    #[test]
    fn a_planted_link_is_replaced() {
        let folder = Scratch::below(&std::env::temp_dir()).unwrap();
        let [own, path] = ["own", "report"].map(|name| folder.path().join(name));
        fs::write(&own, "mine").unwrap();
        symlink(&own, &path).unwrap();
        write(&path, "text").unwrap();
        assert_eq!([&own, &path].map(|it| fs::read_to_string(it).unwrap()), ["mine", "text"]);
        write(&path, "again").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "again");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "nothing but both files");
    }

    #[test]
    fn a_link_is_no_folder() {
        let folder = Scratch::below(&std::env::temp_dir()).unwrap();
        let [own, path] = ["own", "below"].map(|name| folder.path().join(name));
        make_folder(&own).unwrap();
        make_folder(&own).unwrap();
        symlink(&own, &path).unwrap();
        assert_eq!(make_folder(&path).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert!(write(&folder.path().join("no/such"), "").is_err());
    }
}

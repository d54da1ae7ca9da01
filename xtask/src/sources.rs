//! The files of the repository that people write.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold nothing that people write.
const SKIPPED: [&str; 4] = [".git", ".cuda", ".device", "target"];

/// Every file below `folder` with one of the extensions, in order of path. Links are not followed:
/// what they lead to is listed where it stands.
pub(crate) fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, extensions, &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name();
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, extensions, found);
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        if kind.is_file() && extension.is_some_and(|extension| extensions.contains(&extension)) {
            found.push(path);
        }
    }
}

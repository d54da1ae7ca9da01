//! `cargo xtask tidy`: the rules of docs/style.md that a program can check.

mod circles;
mod comments;
mod device;
mod kinds;
mod layers;
mod literals;
mod names;
mod rust;

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Failure, Outcome, root, say, sources};

/// A file and its text.
struct File {
    /// Relative to the repository's root, with `/` between folders.
    path: String,
    text: String,
}

/// Everything that is looked at, and what was found wrong.
struct Tree {
    files: Vec<File>,
    findings: Vec<String>,
}

/// Extensions of the files that people write.
const EXTENSIONS: [&str; 12] =
    ["rs", "md", "toml", "cuh", "h", "cpp", "cu", "tera", "snap", "stderr", "txt", "yml"];

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(option) = options.first() {
        return Err(Failure::Usage(format!("tidy has no option `{option}`")));
    }
    let mut tree = Tree::read(&root()).map_err(|error| Failure::Task(error.to_string()))?;
    tree.places();
    rust::check(&mut tree);
    device::check(&mut tree);
    names::check(&mut tree);
    circles::check(&mut tree);
    comments::check(&mut tree);
    kinds::check(&mut tree);
    literals::check(&mut tree);
    layers::check(&mut tree)?;
    tree.findings.sort();
    for finding in &tree.findings {
        say(finding);
    }
    match tree.findings.len() {
        0 => Ok(()),
        1 => Err(Failure::Task("tidy: 1 finding".to_owned())),
        count => Err(Failure::Task(format!("tidy: {count} findings"))),
    }
}

impl Tree {
    fn read(root: &Path) -> io::Result<Tree> {
        let mut files = Vec::new();
        for path in sources::files(root, &EXTENSIONS) {
            let text = fs::read_to_string(&path)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            files.push(File { path: relative(&path, root), text });
        }
        Ok(Tree { files, findings: Vec::new() })
    }

    /// The file of this path.
    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Files below a folder with an extension.
    fn below<'a>(&'a self, folder: &'a str, extension: &'a str) -> impl Iterator<Item = &'a File> {
        let of = move |file: &&File| {
            file.path.starts_with(folder) && file.path.rsplit('.').next() == Some(extension)
        };
        self.files.iter().filter(of)
    }

    fn find(&mut self, findings: Vec<String>) {
        self.findings.extend(findings);
    }

    /// Nothing names a folder of the machine that it was written on.
    fn places(&mut self) {
        // Put together here, so that this file does not name them.
        let banned = ["work", "root", "Users"].map(|folder| format!("/{folder}/"));
        let mut findings = Vec::new();
        for file in &self.files {
            for (index, line) in file.text.lines().enumerate() {
                if let Some(place) = banned.iter().find(|place| starts_a_path(line, place)) {
                    let at = at(file, index);
                    findings.push(format!("{at}: `{place}` is a place on somebody's machine"));
                }
            }
        }
        self.find(findings);
    }
}

/// Whether `place` stands in `line` as the beginning of a path, not inside of one.
fn starts_a_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(index, _)| {
        let before = line[..index].chars().next_back();
        before.is_none_or(|before| !(before.is_alphanumeric() || "._-/*}".contains(before)))
    })
}

/// `path:line`, counted from 1.
fn at(file: &File, index: usize) -> String {
    format!("{}:{}", file.path, index + 1)
}

fn relative(path: &Path, root: &Path) -> String {
    let path: PathBuf = path.strip_prefix(root).unwrap_or(path).to_path_buf();
    path.to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_beginning_of_a_path() {
        let place = "/place/";
        assert!(starts_a_path("see /place/x", place));
        assert!(starts_a_path("\"/place/x\"", place));
        assert!(!starts_a_path("target/place/x", place));
        assert!(!starts_a_path("../place/x", place));
    }
}

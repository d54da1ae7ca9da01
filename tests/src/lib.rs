//! Shared support of the whole-pipeline tests.

use std::fs;
use std::path::{Path, PathBuf};

use ep_codegen::diagnostics::Diagnostics;
use ep_codegen::{expansion, ir, lower, syntax};

/// The IR of every pipeline in the text of a Rust file.
///
/// # Panics
///
/// When the text is no correct declaration; the message is what rustc would say.
pub fn lowered(source: &str) -> Vec<ir::Pipeline> {
    let blocks = syntax::blocks(source).expect("the file is made of Rust tokens");
    let mut out = Vec::new();
    for block in blocks {
        let (file, errors) = expansion::front_end(block, &|_| Err("no files here".to_string()));
        assert!(errors.is_empty(), "{}", errors.to_text(source));
        out.extend(file.pipelines.iter().map(|pipeline| lower::lower(&file, pipeline)));
    }
    out
}

/// Every mistake in the text of a Rust file, as rustc would show it.
pub fn mistakes(source: &str) -> String {
    let Ok(blocks) = syntax::blocks(source) else { return "not Rust tokens".to_string() };
    let mut errors = Diagnostics::new();
    for block in blocks {
        errors.extend(expansion::front_end(block, &|_| Err("no files here".to_string())).1);
    }
    errors.to_text(source)
}

/// The Rust files of a folder, in order of their names.
///
/// # Panics
///
/// If the folder cannot be read.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut files = Vec::from_iter(entries.flatten().map(|entry| entry.path()));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// The cases of a file of them: each begins with a line `//- name` and ends before the next one.
pub fn cases(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("//- ") {
            found.push((name.to_string(), String::new()));
        } else if let Some((_, case)) = found.last_mut() {
            case.push_str(line);
            case.push('\n');
        }
    }
    for (_, case) in &mut found {
        case.truncate(case.trim_end().len() + 1);
    }
    found
}

/// The examples of the language reference, compiled as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/dsl.md")]
pub struct LanguageReference;

//! Rules of the Rust files.

use super::{File, Tree, at};

/// The longest function.
const LONGEST: usize = 70;

/// File names that say nothing and attract everything.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "misc", "helper"];

/// Marks of unfinished work; put together here, so that this file has none.
fn unfinished() -> [String; 3] {
    [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat())
}

pub(super) fn check(tree: &mut Tree) {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        // What users declare is input of the tests, right or wrong.
        let is_input = ["tests/inputs/", "tests/errors/", "tests/ui/", "tests/device/"]
            .iter()
            .any(|folder| file.path.contains(folder));
        if is_input {
            continue;
        }
        findings.extend(head(file));
        findings.extend(long_functions(file));
        findings.extend(habits(file));
    }
    tree.find(findings);
}

/// A file opens with a line that says why it exists, and its name says something.
fn head(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        findings.push(format!("{}: it does not open with `//!` and why it exists", file.path));
    }
    let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    if EMPTY_NAMES.contains(&stem) {
        findings.push(format!("{}: `{stem}` says nothing about what is in it", file.path));
    }
    findings
}

/// rustfmt puts the closing brace of a function under its first letter.
fn long_functions(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some(name) = function(code) else { continue };
        let is_end = |line: &&&str| {
            line.len() > indent
                && line.as_bytes()[indent] == b'}'
                && line[..indent].trim().is_empty()
        };
        let declared_only = lines[start..].iter().take_while(|line| !line.contains('{'));
        if declared_only.clone().any(|line| line.trim_end().ends_with(';')) || line.contains('}') {
            continue;
        }
        let length = lines[start..].iter().take_while(|line| !is_end(line)).count() + 1;
        if length > LONGEST {
            let at = at(file, start);
            findings.push(format!("{at}: `{name}` has {length} lines, more than {LONGEST}"));
        }
    }
    findings
}

/// The name of the function that a line begins.
fn function(code: &str) -> Option<&str> {
    if code.starts_with("//") {
        return None;
    }
    let (before, after) = code.split_once("fn ")?;
    let is_head = before.split_whitespace().all(|word| {
        ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
            || word.starts_with("pub")
            || word == "in"
            || word.ends_with(')')
    });
    let name = after.split(['(', '<']).next().unwrap_or_default();
    let is_name = !name.is_empty() && name.chars().all(|it| it.is_alphanumeric() || it == '_');
    (is_head && is_name).then_some(name)
}

fn habits(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    let unfinished = unfinished();
    for (index, line) in file.text.lines().enumerate() {
        let code = line.trim_start();
        if let Some(mark) = unfinished.iter().find(|mark| line.contains(mark.as_str())) {
            findings.push(format!("{}: `{mark}` marks unfinished work", at(file, index)));
        }
        if code.starts_with("#[ignore") {
            findings.push(format!("{}: an ignored test is no test", at(file, index)));
        }
        let allows = ["#[allow(", "#![allow("].iter().any(|allow| code.starts_with(allow));
        if allows && !line.contains("reason") && code.ends_with(")]") {
            let at = at(file, index);
            findings.push(format!("{at}: `expect` with a reason instead of a bare `allow`"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { path: "x/src/y.rs".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn functions_are_measured_to_their_brace() {
        let body = |lines: usize| {
            format!("    pub(crate) fn f(\n    ) {{\n{}    }}\n", "        g();\n".repeat(lines))
        };
        assert!(long_functions(&file(&body(67))).is_empty());
        assert_eq!(long_functions(&file(&body(68))).len(), 1);
        assert!(long_functions(&file("    fn f();\n")).is_empty());
        assert!(long_functions(&file("fn f() {}\n")).is_empty());
    }

    #[test]
    fn heads_of_functions_are_known() {
        assert_eq!(function("pub(super) const fn a<T>(x: T) {"), Some("a"));
        assert_eq!(function("unsafe extern \"C\" fn b() {"), Some("b"));
        assert_eq!(function("// a fn c() {"), None);
        assert_eq!(function("let x: fn (u8) = y;"), None);
    }

    #[test]
    fn every_file_says_why_it_exists() {
        assert_eq!(head(&file("fn f() {}\n")).len(), 1);
        assert!(head(&file("//! Why.\n")).is_empty());
    }
}

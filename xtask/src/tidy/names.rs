//! A public type's name is used once in the workspace, so that whoever reads it needs no path.

use std::collections::BTreeMap;

use super::{File, Tree, at};

/// The syntax tree and the IR name the same things, before and after they are lowered: code reads
/// them with `ast::` or `ir::` in front.
const NAMED_BY_PATH: [&str; 3] =
    ["ep-codegen/src/ast.rs", "ep-codegen/src/ast/", "ep-codegen/src/ir/"];

pub(super) fn check(tree: &mut Tree) {
    let findings = used_twice(&tree.files);
    tree.find(findings);
}

fn used_twice(files: &[File]) -> Vec<String> {
    let mut first = BTreeMap::new();
    let mut findings = Vec::new();
    let is_read = |file: &&File| {
        let is_code = file.path.ends_with(".rs") && file.path.contains("/src/");
        is_code && !NAMED_BY_PATH.iter().any(|path| file.path.starts_with(path))
    };
    for file in files.iter().filter(is_read) {
        for (index, line) in file.text.lines().enumerate() {
            let Some(name) = public_type(line) else { continue };
            let here = at(file, index);
            if let Some(there) = first.get(name) {
                findings.push(format!("{here}: `{name}` is also the name of a type at {there}"));
            } else {
                first.insert(name, here);
            }
        }
    }
    findings
}

/// The name of the public type that a line declares; rustfmt puts those of a module at its margin.
fn public_type(line: &str) -> Option<&str> {
    let words = line.strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union ", "unsafe trait "];
    let name = kinds.iter().find_map(|kind| words.strip_prefix(kind))?;
    name.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_planted_second_type_is_found() {
        let own = file("a/src/own.rs", "//! Why.\n\npub struct Kept<T>(T);\n");
        let other = file("b/src/deep/other.rs", "//! Why.\npub enum Kept { One }\n");
        assert!(used_twice(std::slice::from_ref(&own)).is_empty());
        let found = used_twice(&[own, other]);
        let text = "b/src/deep/other.rs:2: `Kept` is also the name of a type at a/src/own.rs:3";
        assert_eq!(found, [text]);
    }

    #[test]
    fn only_public_types_of_a_program_count() {
        let own = file("a/src/own.rs", "pub trait Kept: Send {\n");
        let others = [
            file("a/src/private.rs", "struct Kept;\npub(crate) struct Kept;\n"),
            file("a/src/generated.rs", "    pub struct Kept {\n"),
            file("a/tests/own.rs", "pub struct Kept;\n"),
            file("ep-codegen/src/ast/body.rs", "pub struct Kept;\n"),
            file("a/src/values.rs", "pub fn kept() -> Kept {\npub use own::Kept;\n"),
        ];
        let files: Vec<File> = std::iter::once(own).chain(others).collect();
        assert_eq!(used_twice(&files), [""; 0]);
    }
}

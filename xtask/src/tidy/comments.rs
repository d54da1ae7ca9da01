//! A rule of doc comments: each one stands by itself.

use super::{File, Tree, at};

/// How a comment begins that needs the one before it.
const LEANING: [&str; 3] = ["The same ", "and ", "And "];

pub(super) fn check(tree: &mut Tree) {
    let is_source = |file: &&File| {
        [".rs", ".cuh", ".cu"].iter().any(|extension| file.path.ends_with(extension))
            && !file.path.starts_with("generated/")
    };
    let findings: Vec<String> = tree.files.iter().filter(is_source).flat_map(leaning).collect();
    tree.find(findings);
}

fn leaning(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    let mut is_inside = false;
    for (index, line) in file.text.lines().enumerate() {
        let code = line.trim_start();
        let text = code.strip_prefix("/// ").or_else(|| code.strip_prefix("//! "));
        let begin = text.filter(|_| !is_inside);
        if let Some(words) =
            LEANING.iter().find(|words| begin.is_some_and(|it| it.starts_with(**words)))
        {
            let (at, words) = (at(file, index), words.trim());
            findings
                .push(format!("{at}: a doc comment that begins with `{words}` needs another one"));
        }
        is_inside = code.starts_with("///") || code.starts_with("//!");
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_that_need_another_one_are_found() {
        let found = |text: &str| {
            leaning(&File { path: "x/src/y.rs".to_owned(), text: text.to_owned() }).len()
        };
        assert_eq!(found("/// The same for all.\nfn f() {}\n    /// and whether.\n"), 2);
        assert_eq!(found("/// Warps\n/// and lanes. The same again.\n// The same.\n"), 0);
    }
}

//! The documents: what they say about files, words and refused declarations is so.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ep_codegen::ir::helpers;
use ep_codegen::syntax::keywords;

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/dsl.md",
    "docs/measuring.md",
    "docs/style.md",
    "benches/results/README.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every relative link of a document leads to a file.
#[test]
fn links_lead_somewhere() {
    for name in DOCUMENTS {
        let path = root().join(name);
        let folder = path.parent().expect("a file has a folder");
        let text = read(name);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let is_local = !target.is_empty() && !link.contains("://");
            assert!(!is_local || folder.join(target).exists(), "{name}: {link}");
        }
    }
}

/// The words of a document, code and prose alike.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).collect()
}

#[test]
fn the_reference_has_every_word_of_the_language() {
    let text = read("docs/dsl.md");
    let found = words(&text);
    let tables = [
        keywords::ITEMS.to_vec(),
        keywords::STATEMENTS.to_vec(),
        keywords::ELEMS.to_vec(),
        keywords::TENSORS.iter().map(|(word, _)| *word).collect(),
        keywords::CHANNEL_KINDS.iter().map(|(word, _)| *word).collect(),
        keywords::TRANSPORTS.iter().map(|(word, _)| *word).collect(),
        keywords::PEER_SETS.iter().map(|(word, _)| *word).collect(),
    ];
    for word in tables.concat() {
        assert!(found.contains(word), "docs/dsl.md does not know `{word}`");
    }
}

#[test]
fn the_reference_has_every_helper() {
    let text = read("docs/dsl.md");
    for helper in helpers::all() {
        let row = format!("| `{}(", helper.name);
        let line = text.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("docs/dsl.md has no row for `{}`", helper.name));
        assert!(line.contains(helper.doc), "{line}\nis not: {}", helper.doc);
    }
}

/// Every fixture that the reference shows gives the message that stands below its link.
#[test]
fn refused_examples_are_refused_with_these_words() {
    let text = read("docs/dsl.md");
    let mut shown = 0;
    for part in text.split("](../tests/errors/").skip(1) {
        let Some((file, after)) = part.split_once(".rs)") else { continue };
        let file = format!("tests/errors/{file}.rs");
        let block = after.split_once("```text\n").and_then(|(_, rest)| rest.split_once("\n```"));
        let (block, _) = block.unwrap_or_else(|| panic!("no message below {file}"));
        assert_eq!(block, ep_tests::mistakes(&read(&file)).trim_end(), "{file}");
        shown += 1;
    }
    assert!(shown >= 5, "{shown} refused examples");
}

/// The README's commands are tasks of xtask and commands of the program.
#[test]
fn the_readme_fits_one_screen() {
    let text = read("README.md");
    assert!(text.lines().count() <= 60, "{} lines", text.lines().count());
    assert!(text.contains("cargo xtask demo") && text.contains("cargo xtask test"));
}

/// Every example of the reference is emitted in every choice of its arms, not only accepted.
#[test]
fn the_examples_are_emitted() {
    let text = read("docs/dsl.md");
    let blocks: Vec<&str> =
        text.split("```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert!(blocks.len() >= 4, "{} examples", blocks.len());
    for ir in blocks.into_iter().flat_map(ep_tests::lowered) {
        for choice in ir.choices() {
            let body = ep_codegen::render::body(&ir.select(&choice));
            assert!(body.is_ok(), "{} {:?}: {:?}", ir.name, choice.arms, body.err());
        }
    }
}

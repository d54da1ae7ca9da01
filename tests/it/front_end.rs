//! What the macro does with correct and with damaged declarations.

use ep_codegen::ir::walk;
use ep_codegen::{expansion, syntax};

use crate::usual;

pub(crate) const SOURCES: [&str; 7] = [
    include_str!("../../ep-runtime/src/pipelines/layout.rs"),
    include_str!("../../ep-runtime/src/pipelines/nvl_dispatch.rs"),
    include_str!("../../ep-runtime/src/pipelines/nvl_combine.rs"),
    include_str!("../../ep-runtime/src/pipelines/node_dispatch.rs"),
    include_str!("../../ep-runtime/src/pipelines/node_combine.rs"),
    include_str!("../../ep-runtime/src/pipelines/low_latency_dispatch.rs"),
    include_str!("../../ep-runtime/src/pipelines/low_latency_combine.rs"),
];

fn expanded(source: &str) -> String {
    let blocks = syntax::blocks(source).expect("the text is made of Rust tokens");
    let load = |path: &str| Err(format!("{path} is not here"));
    blocks.into_iter().map(|block| expansion::expand(block, &load).to_string()).collect()
}

/// The places between the words and signs of a text, comments left out.
fn cuts(source: &str) -> Vec<(usize, usize)> {
    let mut cuts = Vec::new();
    let mut start = 0;
    for line in source.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or("");
        let mut at = 0;
        while let Some(first) = code[at..].chars().next() {
            let word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let length = if word(first) {
                code[at..].find(|letter: char| !word(letter)).unwrap_or(code.len() - at)
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() && !"{}[]()\"".contains(first) {
                cuts.push((start + at, start + at + length));
            }
            at += length;
        }
        start += line.len();
    }
    cuts
}

/// A declaration with one word or sign missing, doubled or replaced is refused or accepted, but
/// the macro never panics and always gives the items.
#[test]
fn damaged_declarations_never_panic() {
    for source in SOURCES {
        // Every fifth place is enough to reach each rule of the grammar several times.
        let places = cuts(source).into_iter().step_by(5).enumerate();
        for (index, (from, to)) in usual::some(places, 3) {
            let (before, word, after) = (&source[..from], &source[from..to], &source[to..]);
            let damaged = match index % 4 {
                0 => format!("{before} {after}"),
                1 => format!("{before}{word} {word}{after}"),
                2 => format!("{before}mistake{after}"),
                _ => format!("{before}0{after}"),
            };
            if syntax::blocks(&damaged).is_ok_and(|blocks| !blocks.is_empty()) {
                expanded(&damaged);
            }
        }
    }
}

#[test]
fn items_are_there_in_spite_of_a_mistake() {
    let text = expanded("pipeline! { pub pipeline Mine { table kept: i32[ranks]; chanel x; } }");
    for part in ["compile_error", "pub struct Mine", "pub mod mine", "pub kept", "for Mine"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

/// A change of the file of fragments must expand the macro again.
#[test]
fn an_expansion_includes_the_files_of_fragments() {
    let block = "pipeline! { fragments from \"src/own.pipe\"; pipeline Mine { use own; } }";
    let block = syntax::blocks(block).expect("the text is made of Rust tokens").remove(0);
    let load = |_: &str| Ok("items own { table kept: i32[8]; }".to_string());
    let text = expansion::expand(block, &load).to_string();
    let file = text.split("include_str !").nth(1).expect("it includes a file");
    assert!(file.contains("\"src/own.pipe\"") && text.contains("pub kept"), "{text}");
}

#[test]
fn an_expansion_names_one_crate_only() {
    for source in SOURCES {
        let text = expanded(source);
        assert!(!text.contains("compile_error"), "{text}");
        for path in text.split(":: ").skip(1).filter(|path| path.starts_with("ep_")) {
            assert!(path.starts_with("ep_runtime "), "{path}");
        }
    }
}

/// The text of a statement is made of its tokens alone: read again, it is the same text.
#[test]
fn the_text_of_a_statement_is_stable() {
    for ir in SOURCES.into_iter().flat_map(ep_tests::lowered) {
        let mut texts: Vec<&str> = ir.roles.iter().map(|role| role.at.text.as_str()).collect();
        for role in &ir.roles {
            walk::stmts(&role.body, &mut |stmt| texts.push(&stmt.at.text));
        }
        for text in texts {
            assert_eq!(syntax::print::text(text).expect("the text is made of Rust tokens"), text);
        }
    }
}

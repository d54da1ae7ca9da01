//! What docs/dsl.md says is not emitted is refused, in the words of an error.

use std::path::Path;

use ep_codegen::schedule::{Limit, Why, refusals};
use ep_codegen::{check, lower, syntax};

/// A declaration that is refused, the row of the list that says so, and the words of the refusal.
struct Entry<'a> {
    row: &'a str,
    says: &'a str,
    source: &'a str,
}

/// The entries of a text, each of which is the row behind `== `, the words, and the declaration.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let parts = text.split("\n== ").skip(1);
    let entry = |part| {
        let (row, rest) = str::split_once(part, '\n').expect("a row");
        let (says, source) = rest.split_once('\n').expect("words");
        Entry { row, says, source }
    };
    parts.map(entry).collect()
}

/// What is said to a declaration, and the limits that it meets.
fn said(source: &str) -> (String, Vec<Limit>) {
    let whole = format!("ep_runtime::pipeline! {{ pub pipeline Form {{ {source} }} }}");
    let block = syntax::blocks(&whole).expect("the text is made of Rust tokens").remove(0);
    let (file, mut errors) = syntax::parse(block);
    errors.extend(check::check(&file));
    if !errors.is_empty() {
        return (errors.to_text(&whole), Vec::new());
    }
    let ir = lower::lower(&file, &file.pipelines[0]);
    let found = ir.choices().into_iter().flat_map(|choice| refusals(&ir.select(&choice)));
    let found: Vec<Why> = found.map(|refusal| refusal.why).collect();
    let words = found.iter().map(|why| format!("{why}\n")).collect();
    (words, found.iter().filter_map(|why| why.limit).collect())
}

#[test]
fn what_the_list_names_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is there");
    let manual = read("../docs/dsl.md");
    let inputs = ["inputs/refused/channels.txt", "inputs/refused/values.txt"].map(read);
    let (_, list) = manual.split_once("| what | why |\n|---|---|\n").expect("the list");
    let rows: Vec<&str> = list.lines().take_while(|line| line.starts_with("| ")).collect();
    let is_in_list = |row: &str| rows.iter().any(|line| line.starts_with(&format!("| {row}")));
    let entries: Vec<Entry<'_>> = inputs.iter().flat_map(|text| entries(text)).collect();
    let mut wrong = Vec::new();
    for row in &rows {
        let own = entries.iter().filter(|entry| row.starts_with(&format!("| {}", entry.row)));
        if own.count() == 0 {
            wrong.push(format!("nothing is refused as this says: {row}"));
        }
    }
    let mut met = Vec::new();
    for entry in &entries {
        if !is_in_list(entry.row) {
            wrong.push(format!("the list has no row `{}`", entry.row));
        }
        let (said, limits) = said(entry.source);
        if !said.contains(entry.says) {
            wrong.push(format!("`{}` says\n{said}, not `{}`", entry.row, entry.says));
        }
        met.extend(limits.into_iter().filter(|limit| entry.row.starts_with(limit.row())));
    }
    for limit in Limit::ALL {
        if !is_in_list(limit.row()) {
            wrong.push(format!("the list has no row `{}` for {limit:?}", limit.row()));
        }
        if !met.contains(limit) {
            wrong.push(format!("no declaration below `{}` meets {limit:?}", limit.row()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

//! What docs/dsl.md says is not emitted is refused, in the words of an error.

use std::path::Path;

use ep_codegen::schedule::refusals;

use super::run::accepted;

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

/// Everything that is said to a declaration.
fn said(source: &str) -> String {
    let ir = match accepted(source) {
        Ok(ir) => ir,
        Err(errors) => return errors,
    };
    // Over a network a pipeline may be declared only, and says what it lacks when it is emitted.
    let found = ir.choices().into_iter().flat_map(|choice| refusals(&ir.select(&choice)));
    found.map(|refusal| refusal.why + "\n").collect()
}

#[test]
fn what_the_list_names_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is there");
    let (manual, inputs) = (read("../docs/dsl.md"), read("inputs/refused.txt"));
    let (_, list) = manual.split_once("| what | why |\n|---|---|\n").expect("the list");
    let rows: Vec<&str> = list.lines().take_while(|line| line.starts_with("| ")).collect();
    let entries = entries(&inputs);
    let mut wrong = Vec::new();
    for row in &rows {
        let own = entries.iter().filter(|entry| row.starts_with(&format!("| {}", entry.row)));
        if own.count() == 0 {
            wrong.push(format!("nothing is refused as this says: {row}"));
        }
    }
    for entry in &entries {
        if !rows.iter().any(|row| row.starts_with(&format!("| {}", entry.row))) {
            wrong.push(format!("the list has no row `{}`", entry.row));
        }
        let said = said(entry.source);
        if !said.contains(entry.says) {
            wrong.push(format!("`{}` says\n{said}, not `{}`", entry.row, entry.says));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

//! The compiler compares no name of a declaration with a literal, but those that the language gives a meaning.

use super::{File, Tree, at};

/// The file that lists the names with a meaning.
const KNOWN: &str = "ep-codegen/src/ir/known.rs";

/// Files of the compiler whose literals are texts: what helpers and messages say, and declarations that are invented.
const TEXTS: [&str; 4] = [
    "ep-codegen/src/ir/helpers.rs",
    "ep-codegen/src/diagnostics",
    "ep-codegen/src/meaning/invent",
    "ep-codegen/src/calls/",
];

/// Folders that decide how a role is carried out. What stands before them reads the words of the language.
const DECIDES: [&str; 4] = ["schedule", "plan", "render", "ir"];

/// Names that are always defined, and what a channel announces: no declaration gives them a meaning.
const DEFINED: [&str; 4] = ["me", "source", "stripe", "count"];

/// Code in front of a literal that compares a declared name with it.
const COMPARED: [&str; 5] = ["name == ", "name != ", ".tensor(", ".number(", ".size("];

/// Code in front of a literal that is allowed: it compares the name of an option, which is a keyword, or it names a variable
/// of the emitted text.
const OTHERS: [&str; 2] = ["option.name == ", "fresh("];

pub(super) fn check(tree: &mut Tree) {
    let known = tree.file(KNOWN).map(|file| names_in(&file.text)).unwrap_or_default();
    let findings = compared(&tree.files, &known);
    tree.find(findings);
}

/// The names of the list, the only literals in it.
fn names_in(text: &str) -> Vec<String> {
    text.lines().flat_map(literals).map(|(_, name)| name.to_owned()).collect()
}

fn compared(files: &[File], known: &[String]) -> Vec<String> {
    let is_read = |file: &&File| {
        let is_text = TEXTS.iter().any(|path| file.path.starts_with(path));
        let is_code = file.path.starts_with("ep-codegen/src/") && file.path.ends_with(".rs");
        is_code && !is_text && !file.path.contains("/tests") && file.path != KNOWN
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(is_read) {
        let folder = file.path.split('/').nth(2).unwrap_or_default();
        let decides = DECIDES.contains(&folder.trim_end_matches(".rs"));
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        for (index, line) in code.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            let here = at(file, index);
            for (before, literal) in literals(line) {
                if OTHERS.iter().any(|what| before.ends_with(what)) {
                } else if known.iter().any(|name| name == literal) {
                    findings.push(format!("{here}: `{literal}` has a name in `WellKnown`"));
                } else if decides
                    && COMPARED.iter().any(|what| before.ends_with(what))
                    && !DEFINED.contains(&literal)
                {
                    findings.push(format!(
                        "{here}: a name of a declaration is compared with `{literal}`"
                    ));
                }
            }
        }
    }
    findings
}

/// The literals of a line, each with what stands before it.
fn literals(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut quotes = line.match_indices('"').map(|(at, _)| at);
    std::iter::from_fn(move || {
        let (begin, end) = (quotes.next()?, quotes.next()?);
        Some((&line[..begin], &line[begin + 1..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_names_are_found() {
        let text = "if tensor.name == \"send_row\" {\nlet all = self.number(\"ranks\");\n\
            if name == \"stripe\" || field == \"position\" {}\n// name == \"x\"\n\
            #[cfg(test)]\nassert!(name == \"x\");\n";
        let file = |path: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = ["schedule/own.rs", "diagnostics/own.rs", "ir/known.rs", "plan/tests.rs"]
            .map(|path| file(&format!("ep-codegen/src/{path}")));
        let known = names_in("            WellKnown::Ranks => \"ranks\",\n");
        let wanted = [
            "ep-codegen/src/schedule/own.rs:1: a name of a declaration is compared with `send_row`",
            "ep-codegen/src/schedule/own.rs:2: `ranks` has a name in `WellKnown`",
        ];
        assert_eq!(compared(&files, &known), wanted);
    }
}

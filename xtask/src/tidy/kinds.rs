//! A kind of channel is described in one place: elsewhere, code asks for a fact about it.

use super::{File, Tree, at};

/// What describes the kinds, and the files that say what each one emits and takes of the window.
const NAME_KINDS: [&str; 3] = [
    "ep-codegen/src/ir/kind.rs",
    "ep-codegen/src/schedule/channels.rs",
    "ep-codegen/src/plan/channels.rs",
];

/// The words of all kinds, which the parser takes from there.
const WORDS: &str = "WORDS";

pub(super) fn check(tree: &mut Tree) {
    let findings = named(&tree.files);
    tree.find(findings);
}

fn named(files: &[File]) -> Vec<String> {
    let is_other = |file: &&File| {
        let is_code = file.path.ends_with(".rs") && file.path.contains("/src/");
        is_code && !file.path.starts_with("xtask/") && !NAME_KINDS.contains(&file.path.as_str())
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(is_other) {
        for (index, line) in file.text.lines().enumerate() {
            let mut behind = line.split("ChannelKind::").skip(1);
            if behind.any(|rest| !rest.starts_with(WORDS)) {
                let here = at(file, index);
                findings.push(format!(
                    "{here}: a kind of channel by name: ask its `traits()` for a fact"
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_kind_by_name_is_found() {
        let text =
            "use crate::ir::ChannelKind;\nif kind == ChannelKind::Ring {\nuse ChannelKind::*;\n";
        let all = "const KINDS: &[(&str, ChannelKind)] = ChannelKind::WORDS;\n";
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("ep-codegen/src/check/own.rs", text),
            file("ep-codegen/src/keywords.rs", all),
            file("ep-codegen/src/plan/channels.rs", text),
        ];
        let what = "a kind of channel by name: ask its `traits()` for a fact";
        let wanted = [2, 3].map(|line| format!("ep-codegen/src/check/own.rs:{line}: {what}"));
        assert_eq!(named(&files), wanted);
    }
}

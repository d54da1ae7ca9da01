//! The modules of a crate import one another in one direction.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Tree};

const CRATES: [&str; 5] = ["ep-codegen", "ep-emu", "ep-runtime", "ep-verify", "ep-cli"];

/// For each module of a crate, those that it names.
type Imports = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(tree: &mut Tree) {
    let mut findings = Vec::new();
    for name in CRATES {
        let source = format!("{name}/src/");
        let imports = imports(tree.below(&source, "rs"), &source);
        findings.extend(circle(&imports).map(|circle| {
            format!("{name}: modules import one another in a circle: {}", circle.join(" -> "))
        }));
    }
    tree.find(findings);
}

fn imports<'a>(files: impl Iterator<Item = &'a File>, source: &str) -> Imports {
    let mut imports = Imports::new();
    for file in files {
        let path = file.path.strip_prefix(source).unwrap_or(&file.path);
        let (module, is_top) = match path.split_once('/') {
            Some((folder, _)) => (folder, false),
            None => (path.trim_end_matches(".rs"), true),
        };
        if ["lib", "main", "bin"].contains(&module) {
            continue;
        }
        // What a test imports, nothing else builds on.
        let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code: String =
            code.lines().flat_map(|line| [line.split("//").next().unwrap_or(""), "\n"]).collect();
        let named = imports.entry(module.to_owned()).or_default();
        named.extend(named_behind(&code, "crate::"));
        if is_top {
            named.extend(named_behind(&code, "super::"));
        }
        named.remove(module);
    }
    imports
}

/// The first words behind a prefix, also of each part of a list in braces.
fn named_behind(code: &str, prefix: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect()
    };
    let mut found = Vec::new();
    for (index, _) in code.match_indices(prefix) {
        let rest = &code[index + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let mut depth = 1;
        let mut starts = vec![0];
        for (index, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => starts.push(index + 1),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        found.extend(starts.into_iter().map(|start| word(&list[start..])));
    }
    found
}

/// A circle of imports, the first module again at its end; none if there is no circle.
fn circle(imports: &Imports) -> Option<Vec<&str>> {
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| walk(imports, module, &mut Vec::new(), &mut done))
}

fn walk<'a>(
    imports: &'a Imports,
    module: &'a str,
    path: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(start) = path.iter().position(|known| *known == module) {
        return Some(path[start..].iter().copied().chain([module]).collect());
    }
    // Other words than those of modules lead nowhere.
    let named = imports.get(module).filter(|_| !done.contains(module))?;
    path.push(module);
    let found = named.iter().find_map(|next| walk(imports, next, path, done));
    path.pop();
    done.insert(module);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Option<Vec<String>> {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File { path: format!("a/src/{path}"), text: (*text).to_owned() })
            .collect();
        let imports = imports(files.iter(), "a/src/");
        circle(&imports).map(|circle| circle.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn a_planted_circle_is_found() {
        let one = ("one/deep.rs", "use crate::two::Thing;\n");
        let two = ("two.rs", "use super::three;\n");
        let three = ("three.rs", "use crate::{error::Error, one::{A, B}};\n");
        assert_eq!(found(&[one, two]), None);
        let names = ["one", "two", "three", "one"].map(str::to_owned);
        assert_eq!(found(&[one, two, three]), Some(names.to_vec()));
    }

    #[test]
    fn tests_and_comments_import_nothing() {
        let one = ("one.rs", "use crate::two;\n");
        let two = ("two.rs", "// crate::one\n#[cfg(test)]\nmod tests {\n    use crate::one;\n}\n");
        assert_eq!(found(&[one, two, ("lib.rs", "use crate::one;\n")]), None);
        assert_eq!(found(&[one, ("two/deep.rs", "use super::one;\n")]), None);
    }
}

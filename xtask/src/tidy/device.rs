//! Rules of the CUDA texts: asm in one file, a host twin for each of its functions, short functions.

use std::collections::BTreeSet;

use super::{File, Tree, at};

/// The one file with asm, and what the host backend has in its place.
const PTX: &str = "templates/device/ep/ptx.cuh";
const TWIN: &str = "templates/host/ep/ptx.cuh";

/// The longest function.
const LONGEST: usize = 70;

pub(super) fn check(tree: &mut Tree) {
    let mut findings = Vec::new();
    findings.extend(asm(tree));
    findings.extend(twins(tree));
    findings.extend(listed(tree, "templates/device/ep/", "cuh", "ep-runtime/src/device.rs"));
    findings.extend(listed(
        tree,
        "templates/kernels/",
        "tera",
        "ep-codegen/src/render/templates.rs",
    ));
    for file in tree.below("templates/", "cuh") {
        findings.extend(long_functions(file));
    }
    tree.find(findings);
}

fn asm(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    let texts = tree.below("templates/", "cuh").chain(tree.below("templates/", "tera"));
    for file in texts.filter(|file| file.path != PTX) {
        for (index, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if words(code).any(|word| word == "asm") {
                findings.push(format!("{}: asm stands in {PTX} alone", at(file, index)));
            }
        }
    }
    findings
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
}

/// Both files have the same functions, so that a text that compiles for one compiles for the other.
fn twins(tree: &Tree) -> Vec<String> {
    let (Some(device), Some(host)) = (tree.file(PTX), tree.file(TWIN)) else {
        return vec![format!("{PTX} or {TWIN} is missing")];
    };
    let (device, host) = (functions(device), functions(host));
    let only = |these: &BTreeSet<String>, those: &BTreeSet<String>, place: &str| {
        let names = these.difference(those).map(|name| format!("{place}: `{name}` has no twin"));
        names.collect::<Vec<_>>()
    };
    [only(&device, &host, PTX), only(&host, &device, TWIN)].concat()
}

/// Names of the device functions that a file defines.
fn functions(file: &File) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (start, _) in file.text.match_indices("__device__") {
        let after = file.text[start..].split('(').next().unwrap_or_default();
        // `__align__(16)` and the like belong to variables.
        if let Some(name) = words(after).filter(|word| !word.is_empty()).last()
            && !name.starts_with("__")
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Every file of a folder stands in the list that embeds it.
fn listed(tree: &Tree, folder: &str, extension: &str, list: &str) -> Vec<String> {
    let Some(text) = tree.file(list).map(|file| file.text.as_str()) else {
        return vec![format!("{list} is missing")];
    };
    let mut findings = Vec::new();
    for file in tree.below(folder, extension) {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let stem = name.trim_end_matches(extension).trim_end_matches('.');
        if !text.contains(&format!("\"{stem}\"")) {
            findings.push(format!("{}: {list} does not embed it", file.path));
        }
    }
    findings
}

/// A function of a header begins at its `__device__` and ends with a brace below its first letter.
fn long_functions(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        if !line.contains("__device__") || line.contains('}') {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let is_end =
            |line: &&&str| line.starts_with(&" ".repeat(indent)) && line[indent..].starts_with('}');
        let length = lines[start..].iter().take_while(|line| !is_end(line)).count() + 1;
        if length > LONGEST {
            findings.push(format!("{}: a function has {length} lines", at(file, start)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_functions_are_found() {
        let text = "template <class T>\n__device__ __forceinline__ T get(const char* p) {\n}\n\
                    __device__ __forceinline__ void\nlong_name(int a) {\n}\n";
        let file = File { path: PTX.to_owned(), text: text.to_owned() };
        let names: Vec<String> = functions(&file).into_iter().collect();
        assert_eq!(names, ["get", "long_name"]);
    }
}

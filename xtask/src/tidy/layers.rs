//! Layers: what each must not name, and what the run time must not depend on.

use super::{Tree, at};
use crate::Failure;
use crate::cargo::cargo;

/// A folder, and words that none of its files may hold.
struct Layer {
    folder: &'static str,
    banned: &'static [&'static str],
    reason: &'static str,
}

const LAYERS: [Layer; 6] = [
    Layer {
        folder: "ep-codegen/src/",
        banned: &[
            "std::fs",
            "std::env::",
            "std::time",
            "std::net",
            "HashMap",
            "HashSet",
            "println!",
        ],
        reason: "the compiler is pure",
    },
    Layer {
        folder: "ep-codegen/src/ir/",
        banned: &["crate::plan", "crate::render", "crate::syntax", "crate::lower", "__device__"],
        reason: "the IR knows neither tokens nor sizes nor CUDA",
    },
    Layer {
        folder: "ep-codegen/src/plan/",
        banned: &["crate::render", "crate::syntax", "crate::lower", "proc_macro2", "tera::"],
        reason: "a plan is made at run time, from the IR alone",
    },
    Layer {
        folder: "ep-codegen/src/render/",
        banned: &["crate::plan::plan", "crate::syntax", "crate::lower"],
        reason: "a text holds no number of a shape",
    },
    Layer {
        folder: "ep-emu/src/",
        banned: &["ep_codegen", "ep_runtime"],
        reason: "the emulator runs a text and knows no pipeline",
    },
    Layer {
        folder: "ep-runtime/src/",
        banned: &["ep_cli", "ep_verify", "ep_tests"],
        reason: "dependencies point one way",
    },
];

/// Which of our crates a crate may name in its manifest, dev-dependencies included.
const BELOW: [(&str, &[&str]); 8] = [
    ("xtask", &[]),
    ("tests/fuzz", &[]),
    ("ep-codegen", &[]),
    ("ep-emu", &[]),
    ("ep-dsl", &["ep-codegen"]),
    ("ep-runtime", &["ep-codegen", "ep-dsl", "ep-emu", "ep-fuzz"]),
    ("ep-verify", &["ep-runtime"]),
    ("ep-cli", &["ep-codegen", "ep-runtime", "ep-verify"]),
];

/// What the macro needs and a program must not carry.
const BUILD_ONLY: [&str; 4] = ["syn", "quote", "proc-macro2", "tera"];

pub(super) fn check(tree: &mut Tree) -> Result<(), Failure> {
    let mut findings = Vec::new();
    for layer in &LAYERS {
        findings.extend(names(tree, layer));
    }
    findings.extend(manifests(tree));
    findings.extend(reasons(tree));
    findings.extend(run_time_tree()?);
    tree.find(findings);
    Ok(())
}

fn names(tree: &Tree, layer: &Layer) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.below(layer.folder, "rs") {
        for (index, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(word) = layer.banned.iter().find(|word| code.contains(**word)) {
                let at = at(file, index);
                findings.push(format!("{at}: `{word}` does not belong here: {}", layer.reason));
            }
        }
    }
    findings
}

fn manifests(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, below) in BELOW {
        let path = format!("{name}/Cargo.toml");
        let Some(file) = tree.file(&path) else {
            findings.push(format!("{path} is missing"));
            continue;
        };
        for (index, line) in file.text.lines().enumerate() {
            let dependency = line.split(['.', '=', ' ']).next().unwrap_or_default();
            let ours = dependency.starts_with("ep-") || dependency == "xtask";
            if ours && !below.contains(&dependency) {
                let at = at(file, index);
                findings.push(format!("{at}: {name} may not depend on {dependency}"));
            }
        }
    }
    findings
}

/// ARCHITECTURE.md has a line for each dependency that we share.
fn reasons(tree: &Tree) -> Vec<String> {
    let manifest = tree.file("Cargo.toml").map_or("", |file| file.text.as_str());
    let reasons = tree.file("ARCHITECTURE.md").map_or("", |file| file.text.as_str());
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    names
        .filter(|name| !name.starts_with("ep-") && !reasons.contains(&format!("| `{name}` |")))
        .map(|name| format!("ARCHITECTURE.md has no reason for the dependency `{name}`"))
        .collect()
}

/// The tree of what a program with our run time links.
fn run_time_tree() -> Result<Vec<String>, Failure> {
    let failed = |reason: String| Failure::Task(format!("cargo tree: {reason}"));
    let output = cargo(&["tree", "--package", "ep-runtime", "--edges", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--format", "{lib}", "--quiet"])
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let carried = |name: &&&str| text.lines().any(|line| line.trim() == name.replace('-', "_"));
    let found = BUILD_ONLY.iter().filter(carried);
    Ok(found.map(|name| format!("ep-runtime carries {name} into every program")).collect())
}

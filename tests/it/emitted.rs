//! The emitted texts: what holds for each of them without compiling it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use ep_codegen::plan::Body;
use ep_codegen::render;
use ep_codegen::schedule::RuleSet;
use ep_runtime::ir::DimKind;
use ep_runtime::jit::Arch;
use ep_runtime::pipelines;
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, device};

/// Values of the shape by name.
pub(crate) type Shape = [(&'static str, i64)];

/// What a shape leaves open, and the shape that is used where nothing is said.
const REFERENCE: &Shape =
    &[("ranks", 8), ("hidden", 7168), ("topk", 8), ("experts", 256), ("stripes", 64)];

/// Shapes at the edges: ranks that are no power of two, on several nodes and on one, experts that the
/// ranks do not divide, rows whose last scale block is short, one rank, the most choices, the fewest.
pub(crate) const SHAPES: [&Shape; 5] = [
    &[
        ("ranks", 6),
        ("nodes", 3),
        ("local_ranks", 2),
        ("hidden", 2880),
        ("topk", 5),
        ("experts", 100),
    ],
    &[("ranks", 5), ("hidden", 2880), ("topk", 5), ("experts", 100)],
    &[("ranks", 3), ("hidden", 128), ("topk", 1), ("experts", 3)],
    &[("ranks", 8), ("hidden", 8192), ("topk", 32), ("experts", 512)],
    &[("ranks", 1), ("hidden", 7168), ("topk", 8), ("experts", 256)],
];

/// The bodies of all choices of arms with their pipeline's name, with all rules and with none.
fn bodies() -> &'static [(&'static str, Body)] {
    static BODIES: LazyLock<Vec<(&str, Body)>> = LazyLock::new(|| {
        let mut all = Vec::new();
        for entry in pipelines::ALL {
            let ir = entry.ir();
            // The macro has rendered those with all rules.
            all.extend(entry.texts().iter().map(|text| (entry.name, text.body.clone())));
            for choice in ir.choices() {
                let body = render::body_with(&ir.select(&choice), RuleSet::None);
                all.push((entry.name, body.expect("it is emitted")));
            }
        }
        all
    });
    &BODIES
}

/// `config` with the numbers of `shape`, and the reference for the rest.
pub(crate) fn shaped(entry: &AnyPipeline, mut config: Config, shape: &Shape) -> Config {
    for dim in entry.ir().dims {
        if let DimKind::Given { low, .. } = dim.kind {
            let value = shape.iter().chain(REFERENCE).find(|(name, _)| *name == dim.name);
            config.dims.insert(dim.name, value.map_or(low, |(_, value)| *value));
        }
    }
    config
}

fn default_config(entry: &AnyPipeline) -> Config {
    shaped(entry, Config::new(&entry.ir(), Arch::Sm90a), &[])
}

/// The texts that the macro embedded belong to the IR that the program rebuilds.
#[test]
fn the_embedded_digest_is_that_of_the_rebuilt_ir() {
    for entry in pipelines::ALL {
        assert_eq!(entry.digest, entry.ir().digest(), "{}", entry.name);
    }
}

/// One text per choice of arms, no choice twice, and none missing.
#[test]
fn every_choice_of_arms_has_one_text() {
    for entry in pipelines::ALL {
        let choices: Vec<Vec<String>> =
            entry.ir().choices().into_iter().map(|choice| choice.arms).collect();
        let texts: Vec<Vec<String>> = entry
            .texts()
            .iter()
            .map(|text| text.arms.iter().map(|arm| (*arm).to_owned()).collect())
            .collect();
        assert_eq!(texts, choices, "{}", entry.name);
        assert!(texts.len() <= 16, "{} has {} texts", entry.name, texts.len());
    }
}

/// One configuration always gives the same bytes. The text names no place or time.
#[test]
fn emission_is_deterministic() {
    for entry in pipelines::ALL {
        let config = default_config(&entry);
        let first = entry.emit(&config).expect("the reference shape fits");
        let second = entry.emit(&config).expect("the reference shape fits");
        assert_eq!(first, second, "{}", entry.name);
        for part in [env!("CARGO_MANIFEST_DIR"), env!("CARGO_PKG_VERSION")] {
            assert!(!first.cuda.contains(part), "{} names {part}", entry.name);
        }
    }
}

/// `struct Cfg` holds what the text and the library use, and nothing else.
#[test]
fn every_cfg_name_is_used_and_every_used_one_is_listed() {
    let library: String = device::HEADERS.iter().map(|(_, text)| *text).collect();
    let library = constants(&library);
    for entry in pipelines::ALL {
        for text in entry.texts() {
            let mut config = default_config(&entry);
            config.choice.arms = text.arms.iter().map(|arm| (*arm).to_owned()).collect();
            let cuda = entry.emit(&config).expect("the reference shape fits").cuda;
            let prologue = cuda.strip_suffix(&*text.body.text).expect("the body ends the text");
            let listed = constants(prologue);
            let used = constants(&text.body.text);
            let name = format!("{} {:?}", entry.name, text.arms);
            for constant in &listed {
                let known = used.contains(constant) || library.contains(constant);
                assert!(known, "{name}: {constant} is listed and not used");
            }
            for constant in text.body.text.split("Cfg::").skip(1).filter_map(last_of_path) {
                assert!(listed.contains(constant), "{name}: {constant} is used and not listed");
            }
        }
    }
}

/// A text includes the headers that declare what it names.
#[test]
fn every_name_of_the_library_is_declared_by_an_included_header() {
    for (pipeline, body) in bodies() {
        let mut included = String::new();
        let mut seen: Vec<&str> = Vec::new();
        body.headers.iter().for_each(|header| include(header, &mut seen, &mut included));
        let known = words(&included);
        let code: String = body.text.lines().filter_map(|line| line.split("//").next()).collect();
        for rest in code.split("ep::").skip(1) {
            let name = rest.split(|letter: char| !is_of_word(letter)).next().unwrap_or(rest);
            assert!(known.contains(name), "{pipeline}: ep::{name} is in no header");
        }
    }
}

/// The text of a header and of those that it includes.
fn include<'h>(header: &'h str, seen: &mut Vec<&'h str>, out: &mut String) {
    if seen.contains(&header) {
        return;
    }
    seen.push(header);
    let name = format!("ep/{header}.cuh");
    let found = device::HEADERS.iter().find(|(known, _)| **known == name);
    let (_, text) = found.unwrap_or_else(|| panic!("no header {name}"));
    out.push_str(text);
    for line in text.lines() {
        let path = line.strip_prefix("#include <ep/").and_then(|line| line.strip_suffix(".cuh>"));
        path.into_iter().for_each(|inner| include(inner, seen, out));
    }
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !is_of_word(letter)).collect()
}

/// What the text takes is what its steps name: words of the user are none of it.
#[test]
fn words_of_the_user_take_nothing() {
    let declared = |words: &str, table: &str| {
        let source = format!(
            "pipeline! {{ pipeline Halves {{
                shape {{ ranks: 1..=8, hidden: 8..=64 step 8, stripes: 1..=8 }}
                size tokens;
                uses handle {words} {{ {table}: i32[tokens] }};
                input x: f32[tokens, hidden];
                output y: f32[tokens, hidden];
                cuda fn half(v: f32) -> f32 =
                    r\"__device__ inline float half(float v) {{ return v / 2; /* {words} */ }}\";
                role Halve on all blocks, warps shared by stripe {{
                    for token in stripe where {table}[token] > 0 {{
                        store y[token] = half(x[token]);
                    }}
                }}
            }} }}"
        );
        let irs = ep_tests::lowered(&source);
        let body = ep_codegen::render::body(&irs[0]).expect("it is emitted");
        (body.headers.to_vec(), body.constants.to_vec())
    };
    let plain = declared("ep_runtime::pipelines::Layout", "table");
    for words in ["ep::Mover", "ep::DirectOut", "Cfg::kStages", "Cfg::Counted"] {
        for table in ["k_stages", "mover", "direct_out", "counted"] {
            assert_eq!(declared(words, table), plain, "{words} {table}");
        }
    }
}

/// No function gives what it takes: what is stored as it is needs none.
#[test]
fn no_function_gives_what_it_takes() {
    for (pipeline, body) in bodies() {
        for function in body.text.split("[&](").skip(1) {
            let Some((params, gives)) = function.split_once(") { return ") else { continue };
            let name = params.split(' ').next_back().unwrap_or_default();
            let same = gives.starts_with(&format!("{name}; }}"));
            assert!(!same, "{pipeline}: [&]({params}) {{ return {name}; }}");
        }
    }
}

/// Words of the form `kName`.
fn constants(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .filter(|word| is_constant(word))
        .collect()
}

fn is_constant(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next() == Some('k') && letters.next().is_some_and(char::is_uppercase)
}

/// `kStages` of `Send::kStages + 1`; nothing of `Send> mover`.
fn last_of_path(rest: &str) -> Option<&str> {
    let path = rest
        .split(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'))
        .next()?;
    path.rsplit("::").next().filter(|word| is_constant(word))
}

/// What people read has the statement above its step, and each wait and release names its pair.
#[test]
fn the_text_shows_the_declaration() {
    for entry in pipelines::ALL {
        for text in entry.texts() {
            let mut config = default_config(&entry);
            config.choice.arms = text.arms.iter().map(|arm| (*arm).to_owned()).collect();
            let ir = entry.ir().select(&config.choice);
            for role in &ir.roles {
                let words = format!("role {}", role.name);
                assert!(text.body.text.contains(&words), "{} {:?}: {words}", entry.name, text.arms);
            }
            for pair in ep_runtime::ir::facts::facts(&ir).pairs {
                let mark = format!("W{}", pair.number);
                let count = text
                    .body
                    .text
                    .split(|letter: char| !letter.is_alphanumeric())
                    .filter(|word| *word == mark)
                    .count();
                assert!(count >= 2, "{} {:?}: {mark} stands {count} times", entry.name, text.arms);
            }
        }
    }
}

/// Large tensors have more elements than 32 bits count.
#[test]
fn rows_are_found_with_64_bits() {
    let mut constant = 0;
    for entry in pipelines::ALL {
        let sizes = entry.ir().sizes;
        let is_bounded = |name: &str| sizes.iter().any(|it| it.name == name && it.values.is_some());
        for text in entry.texts() {
            // No bound is known for how many rows there are, and of tokens where the declaration says none.
            let tokens = (!is_bounded("tokens")).then_some("token");
            for index in tokens.into_iter().chain(["row"]) {
                // One that has 64 bits by itself makes any product wide.
                if text.body.text.contains(&format!("ep::i64 {index} ")) {
                    continue;
                }
                let narrow = format!("[{index} * Cfg::");
                assert!(!text.body.text.contains(&narrow), "{}: `{narrow}`", entry.name);
                constant += text.body.text.matches(&format!("[ep::i64{{{index}}} * Cfg::")).count();
            }
        }
    }
    assert!(constant > 0, "rows of a constant stride are found");
}

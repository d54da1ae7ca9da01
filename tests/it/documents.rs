//! The documents: what they say about files, words and refused declarations is so.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ep_codegen::ast::FragmentBody;
use ep_codegen::ir::helpers;
use ep_codegen::{keywords, syntax};
use ep_tests::cases;

const DOCUMENTS: [&str; 12] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/calls.md",
    "docs/ci.md",
    "docs/dsl.md",
    "docs/host.md",
    "docs/known-bugs.md",
    "docs/measuring.md",
    "docs/python.md",
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

/// The Rust of a document, block by block.
fn rust(text: &str) -> Vec<&str> {
    text.split("```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The lines of a text without their indentation, each with its end.
fn unindented(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

/// What the guide shows is a part of an example, which other tests compile and run.
#[test]
fn the_guide_shows_parts_of_its_example() {
    let examples = ["first.rs", "layer.rs", "own_pipeline/src/run.rs"];
    let example = examples.map(|name| read(&format!("ep-runtime/examples/{name}"))).concat();
    let guide = read("docs/calls.md");
    let (blocks, example) = (rust(&guide), format!("\n{}", unindented(&example)));
    assert!(blocks.len() >= 8, "{} blocks", blocks.len());
    for block in blocks {
        assert!(example.contains(&format!("\n{}", unindented(block))), "in no example:\n{block}");
    }
}

/// The rows of the guide's tables, by what stands between backticks in their first column.
fn first_column(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_guide_has_every_error_and_every_option_once() {
    let guide = read("docs/calls.md");
    let listed = first_column(&guide);
    for (file, begin) in [
        ("ep-runtime/src/error.rs", "pub enum CallError {"),
        ("ep-runtime/src/backend.rs", "pub enum BackendError {"),
        ("ep-runtime/src/buffer/options.rs", "pub struct BufferOptions {"),
    ] {
        let source = read(file);
        let (_, body) = source.split_once(begin).unwrap_or_else(|| panic!("{file}: no {begin}"));
        let (body, _) = body.split_once("\n}").unwrap_or_else(|| panic!("{file}: {begin}"));
        let members = body.lines().filter_map(|line| line.strip_prefix("    "));
        let members = members.map(|line| line.trim_start_matches("pub "));
        let names = members.filter_map(|line| line.split(['(', ' ', ':', ',']).next());
        for name in names.filter(|name| name.starts_with(|letter: char| letter.is_alphabetic())) {
            // The shape is in the sentence above the table.
            let is_shape = ["hidden", "topk", "experts"].contains(&name);
            let count = listed.iter().filter(|it| **it == name).count();
            assert_eq!(count, usize::from(!is_shape), "{begin} {name}");
        }
    }
}

/// Variables of our own that the run time and the program read.
#[test]
fn the_guide_has_every_variable_once() {
    let guide = read("docs/calls.md");
    let listed = first_column(&guide);
    let mut found = BTreeSet::new();
    let mut folders =
        ["ep-runtime/src", "ep-cli/src", "ep-emu/src"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                let names = text
                    .split('"')
                    .filter(|it| it.starts_with("EPFORGE_") || it.starts_with("EP_"));
                // Processes of tests hand on variables of their own; kernels have macros.
                let names = names.filter(|it| !it.starts_with("EPFORGE_TEST_"));
                let names = names.filter(|it| !["EP_DISTURBED", "EP_SHARED"].contains(it));
                let is_name = |it: &&str| it.chars().all(|it| it.is_ascii_uppercase() || it == '_');
                found.extend(names.filter(is_name).map(str::to_owned));
            }
        }
    }
    assert!(found.len() >= 7, "{found:?}");
    for name in found {
        assert_eq!(listed.iter().filter(|it| **it == name).count(), 1, "{name}");
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
        keywords::BLOCK.to_vec(),
        keywords::ITEMS.to_vec(),
        keywords::STATEMENTS.to_vec(),
        keywords::ELEMS.to_vec(),
        keywords::TENSORS.iter().map(|(word, _)| *word).collect(),
        keywords::CHANNEL_KINDS.iter().map(|(word, _)| *word).collect(),
        keywords::TRANSPORTS.iter().map(|(word, _)| *word).collect(),
        keywords::PEER_SETS.iter().map(|(word, _)| *word).collect(),
        keywords::PARAM_KINDS.iter().map(|(word, _)| *word).collect(),
    ];
    for word in tables.concat() {
        assert!(found.contains(word), "docs/dsl.md does not know `{word}`");
    }
}

#[test]
fn the_reference_has_every_standard_fragment() {
    let text = read("docs/dsl.md");
    for file in ["payload", "dispatch"] {
        let standard = read(&format!("ep-codegen/prelude/{file}.pipe"));
        let (file, _) = syntax::parse(standard.parse().expect("it is made of tokens"));
        assert!(!file.fragments.is_empty());
        for fragment in file.fragments {
            let name = &fragment.name;
            let row = match fragment.body {
                FragmentBody::Items(_) => format!("| `use {name};` |"),
                FragmentBody::Statements { params, .. } => {
                    let params: Vec<String> = params.iter().map(|it| it.name.to_string()).collect();
                    format!("| `{name}({});` |", params.join(", "))
                }
            };
            assert!(text.contains(&row), "docs/dsl.md has no row {row}");
        }
    }
}

#[test]
fn the_reference_has_every_helper() {
    let text = read("docs/dsl.md");
    for helper in helpers::all() {
        let row = format!("| `{}(", helper.name);
        let args = |line: &&str| line.split('`').nth(1).unwrap_or_default().split(',').count();
        let of_helper = |line: &&str| line.starts_with(&row) && args(line) == helper.params.len();
        let line = text.lines().find(of_helper);
        let line = line.unwrap_or_else(|| panic!("docs/dsl.md has no row for `{}`", helper.name));
        assert!(line.contains(helper.doc), "{line}\nis not: {}", helper.doc);
    }
}

/// Every case that the reference shows gives the message that stands below its link.
#[test]
fn refused_examples_are_refused_with_these_words() {
    let text = read("docs/dsl.md");
    let mut shown = 0;
    for (before, after) in
        text.match_indices("`](../tests/errors/").map(|(at, _)| text.split_at(at))
    {
        let name = before.rsplit("[`").next().expect("a link has a text");
        let link = after.trim_start_matches("`](../").split(')').next().expect("a link ends");
        let found = cases(&read(link)).into_iter().find(|(case, _)| case == name);
        let (_, case) = found.unwrap_or_else(|| panic!("{link} has no case {name}"));
        let block = after.split_once("```text\n").and_then(|(_, rest)| rest.split_once("\n```"));
        let (block, _) = block.unwrap_or_else(|| panic!("no message below {name}"));
        assert_eq!(block, ep_tests::mistakes(&case).trim_end(), "{name}");
        shown += 1;
    }
    assert!(shown >= 5, "{shown} refused examples");
}

/// The blocks of a document in one language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let blocks = text.match_indices(&begin).map(|(at, _)| &text[at + begin.len()..]);
    blocks.filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect()
}

/// A text in which every number is the same: lines and addresses change with the device library.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter.is_ascii_digit() {
            true if out.ends_with('0') => {}
            true => out.push('0'),
            false => out.push(letter),
        }
    }
    out
}

/// Whether a line has these parts in order; a document writes `..` for what it leaves out.
fn has_parts(line: &str, shown: &str) -> bool {
    let mut rest = Some(line);
    for part in shown.split("..").map(str::trim) {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
    }
    rest.is_some()
}

/// Every bug of the page is the one in its file, and its command prints what the page shows.
#[test]
fn known_bugs_are_found_with_these_words() {
    if crate::host::programs().is_none() {
        return;
    }
    let page = read("docs/known-bugs.md");
    let (diffs, commands) = (blocks(&page, "diff"), blocks(&page, "sh"));
    let reports = blocks(&page, "text");
    assert_eq!((diffs.len(), commands.len(), reports.len()), (5, 5, 5));
    let check = |line: &str| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let line = line.replace("ep-runtime/", &root().join("ep-runtime/").display().to_string());
        let words = line.split_whitespace();
        let code = ep_cli::run(words, &ep_runtime::pipelines::ALL, &mut out, &mut err);
        (code, [out, err].map(|text| String::from_utf8(text).expect("the output is text")))
    };
    for ((diff, command), report) in diffs.into_iter().zip(commands).zip(reports) {
        let (_, file) = command.split_once("--plant ").expect("the command plants a bug");
        let is_edit = |line: &&str| line.starts_with(['-', '+']) || *line == "and";
        let edits: Vec<&str> = diff.lines().collect();
        assert_eq!(read(file).lines().filter(is_edit).collect::<Vec<_>>(), edits, "{file}");
        let (code, [out, err]) = check(command);
        assert_eq!(code, 1, "{command}\n{out}{err}");
        let out = without_numbers(&out);
        let mut lines = out.lines();
        for shown in report.lines().map(without_numbers) {
            assert!(lines.any(|line| has_parts(line, &shown)), "{shown}\nis not in\n{out}");
        }
    }
    let elsewhere = "epforge check expand --schedules 1 --plant ep-runtime/examples/known_bugs/";
    let (code, [_, err]) = check(&format!("{elsewhere}wrong_routing.txt"));
    assert!(
        code == 2 && err.contains("nvl_combine.cu, which no kernel of `expand` includes"),
        "{err}"
    );
}

/// The README's commands are tasks of xtask and commands of the program. Its length leaves room for the
/// table of a reader who comes from DeepEP, and for no second guide.
#[test]
fn the_readme_stays_short() {
    let text = read("README.md");
    assert!(text.lines().count() <= 90, "{} lines", text.lines().count());
    assert!(text.contains("cargo xtask demo") && text.contains("cargo xtask test"));
}

/// Examples of the reference that run by themselves: the others read the handle of a pipeline or positions that a
/// random call does not have.
const ALONE: [&str; 6] = ["Histogram", "Follow", "Exchange", "PullSum", "CountAbove", "SumAbove"];

/// Every example of the reference is emitted in every choice of its arms, and leaves what it means.
#[test]
fn the_examples_are_emitted_and_right() {
    let text = read("docs/dsl.md");
    let mut alone = Vec::new();
    for ir in rust(&text).into_iter().flat_map(ep_tests::lowered) {
        for choice in ir.choices() {
            let body = ep_codegen::render::body(&ir.select(&choice));
            assert!(body.is_ok(), "{} {:?}: {:?}", ir.name, choice.arms, body.err());
        }
        if ALONE.contains(&ir.name.as_str()) {
            let numbers = [("ranks", 2), ("hidden", 32)];
            let held = crate::forms::held(std::slice::from_ref(&ir), &numbers, 1);
            held.unwrap_or_else(|words| panic!("{}: {words}", ir.name));
            alone.push(ir.name);
        }
    }
    assert_eq!(alone, ALONE);
}

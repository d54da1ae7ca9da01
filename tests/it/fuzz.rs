//! Declarations and settings that nobody thought of: the macro and the command line say what is wrong
//! with them, and never panic.

use ep_cli::run;
use ep_codegen::ir::{DimKind, Pipeline};
use ep_codegen::{expansion, syntax};
use ep_fuzz::Target;
use ep_runtime::pipelines;

use crate::errors::fixtures;
use crate::front_end::SOURCES;

/// Words of the language, as its own sources and mistakes use them.
fn words(sources: &[String]) -> Vec<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let split = sources.iter().flat_map(|text| text.split(|letter: char| !is_word(letter)));
    let mut words: Vec<String> = split.filter(|word| word.len() > 1).map(str::to_owned).collect();
    words.sort();
    words.dedup();
    words
}

/// What a sentence says without the names and numbers of an input: few different ones.
fn kind(sentence: &str) -> String {
    let plain = sentence.split('`').step_by(2).collect::<String>();
    plain.chars().filter(|letter| letter.is_ascii_alphabetic()).take(40).collect()
}

#[test]
fn declarations_that_nobody_wrote() {
    let mut sources: Vec<String> = SOURCES.iter().map(|text| (*text).to_owned()).collect();
    sources.extend(fixtures().into_iter().map(|(_, text)| text));
    let words = words(&sources);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seeds = sources.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "declarations", seeds, words: &words }.run(|input| {
        let text = String::from_utf8_lossy(input);
        let Ok(blocks) = syntax::blocks(&text) else { return "no tokens".to_owned() };
        let mut said = String::new();
        for block in blocks {
            let (_, errors) = expansion::front_end(block.clone(), &|_| Err("no files".to_owned()));
            said.extend(errors.sorted().iter().take(2).map(|error| kind(error.message())));
            // The macro gives something for every block, right or wrong.
            expansion::expand(block, &|_| Err("no files".to_owned()));
        }
        // What was parsed is kept for its spans, of which there are 2^32 in a process.
        proc_macro2::extra::invalidate_current_thread_spans();
        said
    });
}

/// Every name that a pipeline takes.
fn names(ir: &Pipeline) -> Vec<String> {
    let given = ir.dims.iter().filter(|dim| matches!(dim.kind, DimKind::Given { .. }));
    let dims = given.map(|dim| dim.name.clone());
    let tunes = ir.tunes.iter().map(|tune| tune.name.clone());
    let variants = ir.axes.iter().map(|axis| axis.name.clone());
    dims.chain(tunes).chain(variants).collect()
}

/// `--set` of every command that takes it: the first byte chooses pipeline and command, the words are
/// the settings. It is a plan, or one sentence and an exit code that fits.
#[test]
fn settings_that_nobody_gives() {
    let mut words: Vec<String> =
        pipelines::ALL.iter().flat_map(|entry| names(&entry.ir())).collect();
    words.extend(
        ["payload=fp8", "via=ring", "mode=cached", "topk_idx=0", "arch", "="].map(str::to_owned),
    );
    words.sort();
    words.dedup();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seeds = [
        "0ranks=8 hidden=7168 topk=8 experts=256",
        "1hidden=2880 topk=5 experts=100 ranks=6 via=ring depth=32 chunk=8",
        "2payload=fp8-packed stages=4 piece=1024 bias=2",
        "3nvl-dispatch.stages=4 weights=0 alignment=128",
    ];
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    Target { name: "settings", seeds, words: &words }.run(|input| {
        let Some((first, rest)) = input.split_first() else { return String::new() };
        let entry = pipelines::ALL[usize::from(*first) % pipelines::ALL.len()].name;
        let command = if first & 64 == 0 { "explain" } else { "emit" };
        let text = String::from_utf8_lossy(rest);
        let settings = text.split_whitespace().flat_map(|setting| ["--set", setting]);
        let line: Vec<&str> = ["epforge", command, entry].into_iter().chain(settings).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(line, &pipelines::ALL, &mut out, &mut err);
        let said = String::from_utf8_lossy(&err);
        assert!(code <= 2 && (code == 0 || !said.is_empty()), "{code}: {said}");
        format!("{code} {}", if code == 0 { String::new() } else { kind(&said) })
    });
}

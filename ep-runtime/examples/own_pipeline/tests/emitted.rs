//! The CUDA of the pipeline as a snapshot, and what its 16 bytes change.

use std::collections::BTreeMap;
use std::process::Command;

use ep_runtime::AnyPipeline;
use ep_runtime::pipelines::NvlDispatch;
use own_pipeline::TaggedDispatch;

const OWN: AnyPipeline = AnyPipeline::of::<TaggedDispatch>();

/// What the command prints for a command line.
fn said(entry: AnyPipeline, line: &str) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = ["own-pipeline"].into_iter().chain(line.split_whitespace());
    let code = ep_cli::run(arguments, &[entry], &mut out, &mut err);
    assert_eq!(code, 0, "`{line}`: {}", String::from_utf8_lossy(&err));
    String::from_utf8(out).expect("the output is text")
}

#[test]
fn emitted() {
    insta::assert_snapshot!(said(OWN, "emit tagged-dispatch --ranks 4"));
}

#[test]
fn explained() {
    insta::assert_snapshot!(said(OWN, "explain tagged-dispatch --ranks 4"));
}

/// `bench` says which roles leave blocks without work.
#[test]
fn blocks_without_a_stripe_are_said() {
    let line = "bench tagged-dispatch --backend host --ranks 1 --iterations 0 --tokens 4 --set hidden=16 --sms";
    let text = said(OWN, &format!("{line} 8"));
    assert!(!text.contains("without work"), "{text}");
    let text = said(OWN, &format!("{line} 8 --set stripes=4"));
    assert!(!text.contains("without work"), "{text}");
    let text = said(OWN, &format!("{line} 12 --set stripes=4"));
    for role in ["Send", "Recv"] {
        let idle = format!("{role}: stripes = 4 leave 2 of 6 blocks without work");
        assert!(text.contains(&idle), "{text}");
    }
}

/// Compares `TaggedDispatch` with `NvlDispatch` via a ring, which lacks one field. The snapshot has the lines that
/// differ apart from the name.
#[test]
fn one_field_changes_what_it_must() {
    let own = said(OWN, "emit tagged-dispatch --ranks 4");
    let standard =
        said(AnyPipeline::of::<NvlDispatch>(), "emit nvl-dispatch --ranks 4 --set via=ring");
    let standard = standard.replace("nvl_dispatch", "tagged_dispatch");
    let standard = standard.replace("nvl-dispatch", "tagged-dispatch");
    let more = without(&own, &standard);
    let less = without(&standard, &own);
    let lines = |sign: &str, lines: &[&str]| -> String {
        lines.iter().map(|line| format!("{sign} {}\n", line.trim())).collect()
    };
    insta::assert_snapshot!(format!("{}{}", lines("-", &less), lines("+", &more)));
}

/// The lines of `text` that `other` does not have, as often as it has fewer of them.
fn without<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in other.lines() {
        *counts.entry(line.trim()).or_default() += 1;
    }
    let is_new = |line: &&str| match counts.get_mut(line.trim()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    text.lines().filter(is_new).collect()
}

/// The binary of this crate has the commands for this crate's pipeline.
#[test]
fn the_command_knows_the_pipeline() {
    let output = Command::new(env!("CARGO_BIN_EXE_own-pipeline")).arg("list").output();
    let output = output.expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(text.starts_with("tagged-dispatch") && text.lines().count() == 1, "{text}");
}

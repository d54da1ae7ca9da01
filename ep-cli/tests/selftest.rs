//! `selftest` as scripts see it: the whole list on the host, and what a machine without GPUs says.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs a command line with a cache of these tests, on a machine that shows no GPU.
fn epforge(line: &str, required: Option<&str>) -> Output {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    command.args(line.split_whitespace()).env("EPFORGE_CACHE", cache);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("EP_REQUIRE_GPUS");
    command.envs(required.map(|count| ("EP_REQUIRE_GPUS", count)));
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn objects(out: &[u8]) -> Vec<Value> {
    text(out).lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

/// The names of all cases.
fn cases() -> Vec<String> {
    let listed = objects(&epforge("selftest --list --json", None).stdout);
    listed.iter().filter_map(|case| case["case"].as_str().map(str::to_owned)).collect()
}

#[test]
fn every_case_that_the_host_can_run_passes_there() {
    let done = epforge("selftest --backend host --ranks 2 --json", None);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if err.contains("no C++ compiler") {
        eprintln!("skipped: {err}");
        return;
    }
    assert!(done.status.success(), "{out}{err}");
    let results = objects(&done.stdout);
    let (summary, results) = results.split_last().expect("a summary");
    let mut cases = cases();
    for result in results {
        let name = result["case"].as_str().unwrap_or_default();
        cases.retain(|case| case != name);
        let apart = ["peer access", "same bytes", "compile once", "lost rank"].contains(&name);
        assert_eq!(result["outcome"], if apart { "skipped" } else { "ok" }, "{result}");
    }
    assert!(cases.is_empty(), "not run: {cases:?}");
    assert_eq!((&summary["passed"], &summary["skipped"]), (&13.into(), &4.into()), "{summary}");
}

#[test]
fn a_missing_gpu_is_a_skip_unless_it_is_required() {
    let done = epforge("selftest", None);
    let out = text(&done.stdout);
    assert!(done.status.success(), "{out}{}", text(&done.stderr));
    let last = out.lines().last().unwrap_or_default();
    assert!(last.starts_with("0 passed, ") && last.ends_with(" skipped, 0 failed"), "{out}");
    // What needs more GPUs than were promised is still a skip.
    let done = epforge("selftest --ranks 4 --json", Some("2"));
    assert_eq!(done.status.code(), Some(1));
    for result in objects(&done.stdout).iter().filter(|it| it["case"].is_string()) {
        let apart = ["peer access", "same bytes", "compile once", "lost rank"];
        let needs_more = apart.contains(&result["case"].as_str().unwrap_or_default());
        assert_eq!(result["outcome"], if needs_more { "skipped" } else { "failed" }, "{result}");
    }
    let done = epforge("selftest --case nothing", None);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
}

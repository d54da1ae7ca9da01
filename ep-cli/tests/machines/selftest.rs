//! `selftest`: the whole list on the host, and what a machine without GPUs says.

use crate::{epforge, good, objects, text};

/// The names of all cases.
fn cases() -> Vec<String> {
    let listed = objects(&text(&epforge("selftest --list --json", None).stdout));
    listed.iter().filter_map(|case| case["case"].as_str().map(str::to_owned)).collect()
}

#[test]
fn every_case_that_the_host_can_run_passes_there_at_length() {
    let Some(out) = good("selftest --backend host --ranks 2 --json") else { return };
    let results = objects(&out);
    let (summary, results) = results.split_last().expect("a summary");
    let mut cases = cases();
    for result in results {
        let name = result["case"].as_str().unwrap_or_default();
        cases.retain(|case| case != name);
        let apart = [
            "peer access",
            "same bytes",
            "exchanges",
            "compile once",
            "lost rank",
            "lost far rank",
            "nodes",
        ];
        let apart = apart.contains(&name);
        assert_eq!(result["outcome"], if apart { "skipped" } else { "ok" }, "{result}");
    }
    assert!(cases.is_empty(), "not run: {cases:?}");
    assert_eq!((&summary["passed"], &summary["skipped"]), (&16.into(), &7.into()), "{summary}");
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
    for result in objects(&text(&done.stdout)).iter().filter(|it| it["case"].is_string()) {
        let needs_more =
            ["streams", "peer access"].contains(&result["case"].as_str().unwrap_or(""));
        assert_eq!(result["outcome"], if needs_more { "skipped" } else { "failed" }, "{result}");
    }
    let done = epforge("selftest --case nothing", None);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
}

//! `run`, `check` and `demo` on the host.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ep_runtime::jit::Scratch;
use ep_runtime::join::{ID_VARIABLE, UniqueId};

use serde_json::Value;

use crate::{epforge, good, objects, text};

#[test]
fn run_tells_what_each_role_moved() {
    let line =
        "run dispatch+combine --ranks 2 --tokens 9 --set hidden=128 --set topk=2 --set experts=5";
    let Some(out) = good(line) else { return };
    for part in ["nvl-dispatch  Send", "nvl-combine   Reduce", "rank 1", "\nok in "] {
        assert!(out.contains(part), "no `{part}` in\n{out}");
    }
    let out = good(&format!("{line} --json")).expect("there is a compiler");
    let last = out.lines().last().unwrap_or_default();
    let last: serde_json::Value = serde_json::from_str(last).expect("it is JSON");
    assert_eq!(last["wrong"], 0);
    let all: i64 = out
        .lines()
        .filter(|line| line.contains("\"Unpack\""))
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .flat_map(|role| role["by_rank"].as_array().cloned().unwrap_or_default())
        .filter_map(|count| count.as_i64())
        .sum();
    assert!((1..=36).contains(&all), "{all} rows for 18 tokens of 2 experts");
}

#[test]
fn check_runs_every_variant_and_its_faults() {
    let Some(out) = good("check nvl-dispatch --schedules 1 --ranks 2 --json") else { return };
    let variants: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!(variants.len(), 6);
    assert!(variants.iter().all(|it| it["failed"] == false && it["schedules"] == 1), "{out}");
    let line = "check layout --schedules 3 --ranks 2 --fault dead-rank --set via=direct";
    let out = good(line).expect("there is a compiler");
    assert!(out.contains("3 schedules (fast), 0 of 1 variants failed"), "{out}");
}

#[test]
fn check_tells_what_its_schedules_come_to() {
    let line = "check layout --schedules 1 --ranks 2 --set via=direct --coverage --json";
    let Some(out) = good(line) else { return };
    let all: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let share = |file: &str| {
        let sum = all.iter().find(|it| it["file"] == file && it["lines"].is_u64());
        let sum = sum.unwrap_or_else(|| panic!("no {file} in\n{out}"));
        (sum["lines_reached"].as_u64(), sum["lines"].as_u64())
    };
    let (reached, lines) = share("ep/slots.cuh");
    assert!(reached > Some(20) && reached <= lines, "{reached:?} of {lines:?}");
    // Nothing of a layout goes through rings.
    let (reached, lines) = share("ep/rings.cuh");
    assert!(reached == Some(0) && lines > Some(100), "{reached:?} of {lines:?}");
    let is_told =
        |it: &&serde_json::Value| it["file"] == "ep/rings.cuh" && it["finding"] == "not run";
    assert_eq!(all.iter().filter(is_told).count() as u64, lines.unwrap_or(0));
}

/// Kernels that speak to the network card themselves, over a wire of which they know nothing.
#[test]
fn two_hops_go_through_cards() {
    let line = "check node-dispatch --ranks 4 --nodes 2 --schedules 1 --mode hb --tokens 6 \
                --set network=ibgda --set payload=bf16 --net model:latency=9us,bytes-per-us=100 --json";
    let Some(out) = good(line) else { return };
    let variants: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert!(!variants.is_empty());
    assert!(variants.iter().all(|it| it["failed"] == false && it["schedules"] == 1), "{out}");
}

#[test]
fn a_soak_ends_with_what_it_did() {
    let Some(out) = good("soak --hours 0.00001 --ranks 2 --seed 2") else { return };
    let last = out.lines().last().unwrap_or_default();
    assert!(last.starts_with("end: ") && last.ends_with(" 0 failed"), "{out}");
    assert!(last.contains(" 1 with faults,"), "{out}");
    assert_eq!(epforge("soak --hours 0", None).status.code(), Some(2));
    assert_eq!(epforge("soak", None).status.code(), Some(2));
}

#[test]
fn wrong_use_is_told_apart() {
    for (line, part) in [
        ("run nothing", "there is no pipeline `nothing`"),
        ("run node-dispatch --nodes 3", "4 ranks cannot be divided evenly into 3 nodes"),
        ("run node-dispatch --net model:late=2us", "`late=2us` is no setting of a network"),
        ("run node-dispatch --set network=tcp", "`network` is tcp, it takes rdma, ibgda"),
        ("run expand --set network=ibgda", "has no `network`"),
        ("check node-dispatch --net libfabric:tcp", "use `model` for ranks of one process"),
        ("run node-dispatch --net libfabric:tcp", "give their number, such as `--nodes 2`"),
        (
            "run node-dispatch --nodes 3 --net libfabric:tcp",
            "4 ranks cannot be divided evenly into 3 nodes",
        ),
        ("run node-dispatch --nodes 2 --net libfabric:tcp --set a=1", "knows of no `a`"),
        ("run expand --set hiden=16", "did you mean `hidden`?"),
        ("check expand --fault one-target", "a fault of the standard pipelines"),
        ("run layout --set depht=3", "`depht` does not exist"),
        ("run layout --ranks 1025", "--ranks"),
        ("check nvl-dispatch --set hidden=100", "takes 16..=32768 step 16"),
        ("check nvl-dispatch --mode fastest", "fastest"),
        ("run nvl-dispatch --set hidden=100", "takes 16..=32768 step 16"),
    ] {
        is_wrong_use(line, part);
    }
}

fn is_wrong_use(line: &str, part: &str) {
    let done = epforge(line, None);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    let is_told = err.contains("no C++ compiler") || format!("{out}{err}").contains(part);
    assert!(is_told, "{line}: {out}{err}");
    assert!(done.status.code() == Some(2) || err.contains("no C++ compiler"), "{line}: {out}{err}");
}

#[test]
fn options_that_contradict_or_do_nothing_are_refused() {
    for (line, part) in [
        ("run expand --nodes 2", "expand has no nodes: `--nodes` has no effect"),
        ("run expand --set nodes=2", "expand has no nodes: `--nodes` has no effect"),
        ("check expand --set nodes=2", "expand has no nodes: `--nodes` has no effect"),
        ("run dispatch+combine --nodes 2", "dispatch+combine has no nodes"),
        ("check dispatch+combine --nodes 2", "dispatch+combine has no nodes"),
        ("run expand --ranks 5 --set ranks=4", "given twice: `--set ranks=` is `--ranks`"),
        ("run layout --ranks 5 --set ranks=5", "given twice: `--set ranks=` is `--ranks`"),
        ("check expand --ranks 5 --set ranks=4", "given twice: `--set ranks=` is `--ranks`"),
        ("emit expand --ranks 5 --set ranks=4", "given twice: `--set ranks=` is `--ranks`"),
        ("explain expand --ranks 5 --set ranks=4", "given twice: `--set ranks=` is `--ranks`"),
        (
            "bench --backend host --ranks 2 --set ranks=2",
            "given twice: `--set ranks=` is `--ranks`",
        ),
        ("run expand --set ranks=1025", "`ranks` is 1025, it takes 1..=1024"),
        ("bench --backend host --set ranks=1025", "`ranks` is 1025, it takes 1..=1024"),
        (
            "run low-latency-dispatch --set nodes=4 --nodes 2",
            "given twice: `--set nodes=` is `--nodes`",
        ),
        (
            "run decode-dispatch --set max_tokens=4 --tokens 8",
            "given twice: `--set max_tokens=` is `--tokens`",
        ),
        ("run decode-dispatch --tokens 2000", "`max_tokens` is 2000, it takes 1..=1024"),
        (
            "run node-layout --ranks 6 --set nodes=2 --set local_ranks=2",
            "6 ranks are not 2 nodes of 2 ranks",
        ),
        (
            "run node-layout --set local_ranks=2147483647",
            "`local_ranks` is 2147483647, it takes 1..=1024",
        ),
        ("run node-layout --nodes 200 --set local_ranks=8", "are 1600 ranks"),
        ("run node-layout --set local_ranks=9", "`local_ranks` is 9, it takes 1..=8"),
        (
            "run low-latency-dispatch --set local_ranks=2",
            "`local_ranks` follows from `--ranks` and `--nodes`",
        ),
        ("run layout --net model", "sends nothing between nodes here: `--net` has no effect"),
        ("run low-latency-dispatch --net model:ordered", "`--net` has no effect"),
        ("check all --net model:dead=0-99", "rank 99 does not exist: there are 4"),
        ("run node-dispatch --net model:dead=0-99", "rank 99 does not exist: there are 4"),
        ("run node-dispatch --net model:dead=2-3", "ranks 2 and 3 are on one node"),
        ("run node-dispatch --net model:bytes-per-us=0", "`bytes-per-us=0` is no setting"),
        ("run node-dispatch --nodes 2 --calls 3", "`--calls` has no effect without processes"),
        (
            "run node-dispatch --nodes 2 --net ibgda --backend gpu --silence 3",
            "`--silence` has no effect over `ibgda`",
        ),
    ] {
        is_wrong_use(line, part);
    }
}

/// `--set NAME=N` and the option `--NAME N` mean the same.
#[test]
fn set_and_the_option_of_its_name_are_the_same() {
    let kernel = "--set hidden=64 --set topk=2 --set experts=5 --seed 3 --json";
    for (pipeline, option, set) in [
        ("run layout", "--ranks 3 --tokens 4", "--set ranks=3 --tokens 4"),
        ("run decode-dispatch", "--ranks 2 --tokens 5", "--set ranks=2 --set max_tokens=5"),
        ("check decode-dispatch --schedules 1", "--ranks 2", "--set ranks=2"),
        ("run node-dispatch", "--nodes 2 --ranks 2", "--set local_ranks=1"),
    ] {
        let [by_option, by_set] =
            [option, set].map(|words| good(&format!("{pipeline} {words} {kernel}")));
        let told = |out: Option<String>| {
            let mut all = objects(&out?);
            for object in all.iter_mut().filter_map(Value::as_object_mut) {
                object.remove("seconds");
            }
            Some(all)
        };
        assert_eq!(told(by_option), told(by_set), "{pipeline}: {option}, {set}");
    }
    let Some(out) = good("run decode-dispatch --set ranks=2 --tokens 5") else { return };
    assert!(out.contains("max_tokens 5") && out.contains("ranks 2"), "{out}");
}

/// A process for each of two nodes, and libfabric between them.
#[test]
fn nodes_are_joined() {
    joined("demo --nodes 2", 12);
    let line = "run node-layout+low-latency-dispatch --nodes 2 --ranks 2 --net libfabric:shm";
    joined(&format!("{line} --tokens 4 --calls 3"), 4);
}

/// The compiler writes its temporary files into the cache, and not into TMPDIR.
#[cfg(unix)]
#[test]
fn the_compiler_keeps_its_files_in_the_cache() {
    use std::os::unix::fs::PermissionsExt;
    let cache = Scratch::below(&std::env::temp_dir()).expect("a new folder can be made");
    let script = cache.path().join("c++");
    let log = cache.path().join("log");
    let words = format!("#!/bin/sh\necho \"$TMPDIR $*\" >> {}\nexec c++ \"$@\"\n", log.display());
    std::fs::write(&script, words).expect("it can be written");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700)).expect("it is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    command.args("run layout --ranks 1 --tokens 1 --set hidden=128".split(' '));
    command.env("EPFORGE_CACHE", cache.path()).env("CXX", &script).env("TMPDIR", "/tmp");
    let done = command.output().expect("the program runs");
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    if !done.status.success() && !calls.contains(" -o ") {
        return eprintln!("skipped: {}", text(&done.stderr));
    }
    let own = cache.path().display().to_string();
    let apart = calls.lines().filter(|line| line.contains(" -o ") && !line.starts_with(&own));
    assert_eq!(apart.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// A process whose peer never joins waits no longer than `--deadline`.
#[test]
fn a_process_alone_gives_up_at_its_deadline() {
    let id = UniqueId::local().expect("there is a loopback interface");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    let words = "run node-layout --nodes 2 --ranks 2 --net libfabric:tcp --processes --rank 0";
    command.args(words.split(' ')).args(["--deadline", "1"]);
    id.hand_to(&mut command, ID_VARIABLE);
    let begun = Instant::now();
    let done = command.output().expect("the program runs");
    let err = text(&done.stderr);
    let is_told = err.contains("no C++ compiler") || err.contains("rank 1 did not join within 1s");
    assert!(is_told && done.status.code() == Some(1), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(60), "not the 120 s of others");
}

/// Processes of one rank each, two on a node, which share windows and have models of network cards.
#[test]
fn processes_of_one_rank_reach_each_other_over_cards() {
    let line = "run low-latency-dispatch --ranks 4 --nodes 2 --processes --net card:50GB/s,1us --calls 1 --tokens 3 \
                --set hidden=128 --set topk=2 --set experts=4";
    let done = epforge(line, None);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if err.contains("no C++ compiler") {
        return eprintln!("skipped: {err}");
    }
    assert!(done.status.success(), "{out}{err}");
    assert_eq!(out.matches(" values equal").count(), 4, "{out}");
    assert_eq!(out.matches(" carried 0 bytes").count(), 0, "{out}");
    assert!(out.contains("run ok: 2 nodes of 2 ranks"), "{out}");
}

/// Both nodes have done all of it.
fn joined(line: &str, equal: usize) {
    let done = epforge(line, None);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if err.contains("no libfabric") || err.contains("no C++ compiler") {
        let required = std::env::var_os("EPFORGE_REQUIRE_LIBFABRIC").is_some_and(|it| it == "1");
        assert!(!required, "{err} (EPFORGE_REQUIRE_LIBFABRIC=1 is set)");
        eprintln!("skipped: {err}");
        return;
    }
    assert!(done.status.success(), "{out}{err}");
    assert_eq!(out.matches(" values equal").count(), equal, "{out}");
    assert!(out.contains(" ok: 2 nodes of "), "{out}");
}

#[test]
fn demo_ends_with_one_line_for_all_of_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
    let Some(out) = good(&format!("demo --host --out {}", folder.display())) else { return };
    let last = out.lines().last().unwrap_or_default();
    assert!(last.starts_with("demo ok: 4 ranks, 747 rows, 0 wrong, hb clean, cuda at "), "{last}");
    for file in ["layout.cu", "nvl_dispatch.cu", "nvl_combine.cu", "ep/rings.cuh"] {
        assert!(folder.join(file).exists(), "{file} was not written");
    }
}

#[test]
fn a_machine_without_a_compiler_is_told_what_it_lacks() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-compiler");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    command.args(["demo", "--host", "--out"]).arg(&folder);
    let done = command.env_remove("CXX").env("PATH", &folder).output().expect("the program runs");
    assert_eq!(done.status.code(), Some(1));
    let wanted = "no C++ compiler: looked for $CXX, c++, g++, clang++; Debian: apt install g++";
    assert!(text(&done.stderr).contains(wanted), "{}", text(&done.stderr));
}

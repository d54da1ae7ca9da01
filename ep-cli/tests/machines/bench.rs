//! `bench`: all of it but the times, which need a GPU.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{epforge, good, objects, text};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every operation runs in every way, its last call is compared, and nothing claims to be a time.
#[test]
fn the_whole_path_runs_on_the_host() {
    let shape = "--ranks 2 --tokens 9/4 --set hidden=144 --set topk=2 --set experts=5";
    let what = "--set one_launch=0 --routing even+absent:0.2 --payload bf16";
    let on = |sms: &str| {
        format!("bench --backend host {shape} {what} --sms {sms} --random 1 --outputs --json")
    };
    let line = on("4");
    let Some(out) = good(&line) else { return };
    let objects = objects(&out);
    let results: Vec<&Value> = objects.iter().filter(|it| it["op"].is_string()).collect();
    // Six operations, two modes.
    assert_eq!(results.len(), 6 * 2, "{out}");
    for result in &results {
        assert!(result["us"].is_null() && result["wire_us"].is_null(), "{result}");
        assert!(result["bytes"].as_i64() > Some(0) || result["op"] == "counts", "{result}");
        assert_eq!(result["cached"], result["op"] == "cached-dispatch", "{result}");
        assert_eq!(result["cuda_digest"].as_str().map(str::len), Some(64), "{result}");
    }
    assert_eq!(objects[0]["command"], format!("epforge {line}"));
    let tuned = objects.iter().find(|it| it["tuning"] == "bf16").expect("the choice is told");
    assert_eq!(tuned["sms"], 17, "{tuned}");
    let one = format!("{} --op dispatch --mode loop", on("8,24"));
    let again = crate::objects(&good(&one).expect("there is a compiler"));
    let sms = again.iter().filter(|it| it["op"].is_string()).map(|it| it["sms"].as_i64());
    assert_eq!(Vec::from_iter(sms), [Some(8), Some(24)]);
    let digests = objects.iter().find(|it| it["outputs"] == "bf16").expect("a digest");
    assert!(again.contains(digests), "other outputs the second time: {again:?}");
    // Results name the text that ran.
    let plain = format!("{} --kernels plain --op dispatch --mode loop", on("8"));
    let plain = crate::objects(&good(&plain).expect("there is a compiler"));
    let digest = |all: &[Value]| {
        let of_call = |it: &Value| it["cuda_digest"].as_str().map(str::to_owned);
        all.iter().find_map(of_call).expect("a digest")
    };
    assert_ne!(digest(&plain), digest(&again));
}

/// A sweep over tokens and routings, in graphs: every replay is compared, and so is the floor.
#[test]
fn a_sweep_of_graphs_runs_on_the_host_at_length() {
    let shape = "--ranks 2 --set hidden=144 --set topk=2 --set experts=5 --payload fp8 --sms 4";
    let sweep = "--tokens 1,9/4 --routing even,hot:0.9+repeated:0.2 --graph 2 --op dispatch,both";
    let Some(out) = good(&format!("bench --backend host {shape} {sweep} --json")) else { return };
    let objects = objects(&out);
    let results: Vec<&Value> = objects.iter().filter(|it| it["op"].is_string()).collect();
    let seen: Vec<String> = results
        .iter()
        .map(|it| {
            let word = |name: &str| it[name].as_str().unwrap_or_default().to_owned();
            format!("{} {} {} {}", it["tokens"], word("routing"), word("op"), word("mode"))
        })
        .collect();
    let mut want = Vec::new();
    for tokens in [1, 9] {
        for routing in ["even", "hot:0.9+repeated:0.2"] {
            for op in ["dispatch", "both"] {
                want.extend(["loop", "iso"].map(|mode| format!("{tokens} {routing} {op} {mode}")));
            }
        }
    }
    assert_eq!(seen, want);
    for result in &results {
        assert_eq!(result["graph"], 2, "{result}");
        for time in ["us", "p95_us", "p99_us", "wire_us", "floor_us", "best_floor_us"] {
            assert!(result.get(time).is_some_and(Value::is_null), "{time}: {result}");
        }
    }
    let bytes =
        |op: &str| results.iter().find(|it| it["op"] == op).and_then(|it| it["bytes"].as_i64());
    assert!(bytes("both") > bytes("dispatch"), "rows of both ways: {out}");
}

#[test]
fn low_latency_calls_are_compared_in_graphs_at_length() {
    let shape = "--ranks 2 --tokens 1,5 --set hidden=144 --set experts=6 --set topk=2 --sms 2";
    let rest = "--graph 2 --mode loop --iterations 1 --warmup 0 --probe no";
    let Some(out) = good(&format!("bench --backend host --low-latency {shape} {rest} --json"))
    else {
        return;
    };
    let all = objects(&out);
    let word = |it: &Value, name: &str| it[name].as_str().unwrap_or_default().to_owned();
    let line = |it: &Value| {
        let [payload, op] = ["payload", "op"].map(|name| word(it, name));
        format!("{} {payload} {op} {}", it["tokens"], it["us"].is_null())
    };
    let seen: Vec<String> = all.iter().filter(|it| it["op"].is_string()).map(line).collect();
    let of_payload = |tokens| {
        let kinds = ["bf16 dispatch", "bf16 combine", "bf16 both", "fp8 dispatch", "fp8 both"];
        kinds.map(|kind| format!("{tokens} {kind} true"))
    };
    assert_eq!(seen, [of_payload(1), of_payload(5)].concat());
}

/// Calls between nodes, over models of cards: all of it but the times.
#[test]
fn calls_between_nodes_are_compared() {
    let shape =
        "--nodes 2 --ranks 2 --tokens 3 --set hidden=128 --set experts=4 --set topk=2 --sms 4";
    let rest = "--payload bf16 --mode loop --iterations 1 --warmup 0 --json";
    for (way, want) in [
        ("--op cached-dispatch", &["cached-dispatch"][..]),
        ("--low-latency per-rank --graph 1", &["dispatch", "combine"]),
        ("--low-latency per-rank-late --graph 1 --op combine", &["combine"]),
    ] {
        let Some(out) = good(&format!("bench --backend host {shape} {way} {rest}")) else { return };
        let all = objects(&out);
        let timed: Vec<&str> = all.iter().filter_map(|it| it["op"].as_str()).collect();
        assert_eq!(timed, want, "{out}");
        assert!(all.iter().all(|it| it["nodes"] == 2), "{out}");
        let entries = all.iter().filter(|it| it["entries_per_row"].as_f64() > Some(0.0));
        assert_eq!(entries.count(), want.len(), "{out}");
    }
}

/// Calls between nodes that are processes, and between ranks that are: all of it but the times.
#[test]
fn calls_between_processes_are_compared_over_each_network() {
    let shape = "--nodes 2 --tokens 3 --set hidden=128 --set experts=4 --set topk=2 --sms 4";
    let rest = "--payload bf16 --mode loop --iterations 1 --warmup 0 --json";
    for (way, network, ops) in [
        ("--ranks 4 --net shm", "shm", &["dispatch", "cached-dispatch", "combine"][..]),
        ("--ranks 2 --net tcp --low-latency per-rank --graph 1", "tcp", &["dispatch", "combine"]),
        ("--ranks 4 --processes --op combine", "card:50GB/s,3000ns", &["combine"]),
    ] {
        let line = format!("bench --backend host {shape} {way} {rest}");
        let done = epforge(&line, None);
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        if err.contains("no C++ compiler") || err.contains("no libfabric") {
            eprintln!("skipped: {err}");
            continue;
        }
        assert!(done.status.success(), "{line}: {out}{err}");
        let all = objects(&out);
        let results: Vec<&Value> = all.iter().filter(|it| it["op"].is_string()).collect();
        let told: Vec<&str> = results.iter().filter_map(|it| it["op"].as_str()).collect();
        assert_eq!(told, ops, "one process of several tells: {out}");
        for result in results {
            assert_eq!(result["network"], network, "{result}");
            assert!(result["link_bytes"].as_u64() > Some(0), "{result}");
            assert!(result["rows"].as_u64() > Some(0) && result["us"].is_null(), "{result}");
            let has_entries = result["entries_per_row"].as_f64() > Some(0.0);
            assert_eq!(has_entries, network.starts_with("card"), "{result}");
        }
    }
    let line = "bench --backend host --nodes 2 --net ibgda";
    let done = epforge(line, None);
    assert_eq!(done.status.code(), Some(2));
    let why = "between nodes, `bench` times calls over card, tcp, shm, verbs or efa, not `ibgda`";
    assert!(text(&done.stderr).contains(why), "{}", text(&done.stderr));
}

/// Rank 0 waits for rank 1, which waits for the killed one on the other node.
#[test]
fn every_rank_names_one_that_is_killed_between_nodes_at_length() {
    let shape =
        "--nodes 2 --ranks 4 --tokens 100 --set hidden=128 --set experts=4 --set topk=2 --sms 4";
    let line = format!("bench --backend host {shape} --payload bf16 --processes --kill 3");
    let Some(out) = good(&line) else { return };
    for rank in 0..3 {
        let begin = format!("rank {rank} after ");
        let told = out.lines().find(|line| line.starts_with(&begin)).unwrap_or_default();
        let is_named = told.contains(" the process of rank 3 has ended");
        assert!(is_named && told.contains(": the group is stopped: "), "rank {rank}: {out}");
    }
}

/// What is timed for the published shape is what people can read.
#[test]
fn the_texts_of_the_published_shape_are_in_generated_at_length() {
    for group in ["--ranks 4", "--ranks 2", "--ranks 4 --set via=ring"] {
        let few = "--tokens 1 --set one_launch=0 --set push_combine=0";
        let rest = "--op counts,dispatch,cached-dispatch,combine --mode loop --iterations 1 --warmup 0 \
                    --probe no --sms 4 --json";
        let Some(out) = good(&format!("bench --backend host {group} {few} {rest}")) else {
            return;
        };
        let all = objects(&out);
        let results: Vec<&Value> = all.iter().filter(|it| it["op"].is_string()).collect();
        assert_eq!(results.len(), 4 + 3, "{group}");
        for result in results {
            let file = result["cuda_file"].as_str();
            let file = file.unwrap_or_else(|| panic!("{group}: no file: {result}"));
            let kept = fs::read(repository().join("generated").join(file)).expect("it is there");
            let digest: String =
                Sha256::digest(&kept).iter().map(|it| format!("{it:02x}")).collect();
            assert_eq!(result["cuda_digest"].as_str(), Some(digest.as_str()), "{file}");
        }
    }
}

#[test]
fn without_a_gpu_it_says_so_and_fails_only_if_one_is_required() {
    let done = epforge("bench --json", None);
    assert!(done.status.success());
    assert!(text(&done.stderr).starts_with("skipped: "), "{}", text(&done.stderr));
    assert!(done.stdout.is_empty());
    let done = epforge("bench --json", Some("2"));
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    let done = epforge("bench", Some("two"));
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("is a number of GPUs, not `two`"));
}

/// The kept charts are those of the kept results.
#[test]
fn the_charts_of_the_kept_results_are_kept() {
    let results = repository().join("benches").join("results");
    for name in [
        "h200-x4",
        "h200-x4-decode",
        "h200-x4-low-latency",
        "h200-x2-decode",
        "h200-x2-low-latency",
        "h100-x2-low-latency",
    ] {
        let chart = format!("{name}.svg");
        let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&chart);
        let kept = results.join(format!("{name}.jsonl"));
        good(&format!("bench --draw {} --chart {}", kept.display(), drawn.display()))
            .expect("no compiler is needed");
        let [drawn, kept] = [drawn, results.join(&chart)].map(|it| fs::read(it).unwrap());
        assert!(drawn == kept, "{chart}: run the command of benches/results/README.md");
    }
}

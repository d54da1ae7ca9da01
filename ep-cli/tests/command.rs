//! The `epforge` command as scripts see it: output, exit codes, JSON, closed pipes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ep_runtime::pipelines;

/// The names that scripts rely on.
const PIPELINES: [&str; 11] = [
    "layout",
    "nvl-dispatch",
    "nvl-combine",
    "decode-dispatch",
    "decode-combine",
    "expand",
    "low-latency-dispatch",
    "low-latency-combine",
    "node-layout",
    "node-dispatch",
    "node-combine",
];

/// What a command line did.
struct Done {
    code: u8,
    out: String,
    err: String,
}

/// Runs a command line inside of this process.
fn run(line: &str) -> Done {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = ["epforge"].into_iter().chain(line.split_whitespace());
    let code = ep_cli::run(arguments, &pipelines::ALL, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    Done { code, out: text(out), err: text(err) }
}

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("epforge-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a new folder can be made");
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system cleans up what a failed test leaves.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn list_has_the_names_that_scripts_rely_on() {
    let done = run("list");
    for name in PIPELINES {
        let line = done.out.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{}", done.out));
        let way = line.split_whitespace().nth(1);
        assert!(way == Some("all-warps"), "{line}");
        assert!(line.ends_with('.') && !line.contains(". "), "one whole sentence: {line}");
    }
    assert_eq!(done.code, 0, "{}", done.err);
}

#[test]
fn explain_works_on_every_pipeline_and_choice_of_the_default() {
    for name in PIPELINES {
        let done = run(&format!("explain {name}"));
        assert_eq!(done.code, 0, "{name}: {}", done.err);
        for part in ["roles:", "reference shape:", "derived:"] {
            assert!(done.out.contains(part), "{name}: no `{part}` in\n{}", done.out);
        }
    }
}

#[test]
fn explain_tells_the_bytes_on_the_wire() {
    let done = run("explain nvl-dispatch --ranks 4");
    assert!(done.out.contains("tuning: 12 SMs reach the wire: "), "{}", done.out);
    let ring = run("explain nvl-dispatch --ranks 4 --set via=ring");
    assert!(!ring.out.contains("tuning:"), "the closed form is not about rings: {}", ring.out);
    // 14336 bytes of row and a line of meta, for 2.71 of 3 other ranks.
    assert!(done.out.contains("39207 bytes a token on average"), "{}", done.out);
    let done = run("explain packed-dispatch --set via=slots --ranks 4 --set nodes=2");
    assert!(
        done.out.contains("2.71 messages of 14480 bytes, one for each other rank"),
        "{}",
        done.out
    );
    let folder = Folder::new("local");
    let file = folder.path().join("local.rs");
    let local = "pipeline! { /// Copies.\npub pipeline Local { shape { rows: 1..=64 } input x: i32[rows]; \
                 output y: i32[rows]; role All on all blocks { for row in rows { store y[row] = x[row]; } } } }";
    fs::write(&file, local).expect("the file is written");
    let done = run(&format!("explain local --set rows=8 --declarations {}", file.display()));
    assert!(done.out.contains("buffer: nothing in the window"), "{}{}", done.out, done.err);
    let done = run("explain layout");
    assert!(done.out.contains("(256 tokens_per_expert + 8 tokens_per_rank) x 4"), "{}", done.out);
}

#[test]
fn explain_tells_what_few_tokens_were_measured_to_take() {
    for name in ["decode-dispatch", "decode-dispatch --set payload=fp8", "decode-combine"] {
        let done = run(&format!("explain {name}"));
        assert!(done.out.contains("\nmeasured in CUDA graphs, us a call: 2 ranks"), "{}", done.out);
        assert!(done.out.contains("on 2 x NVIDIA H200  floor there"), "{}", done.out);
        let done = run(&format!("explain {name} --json"));
        let object: serde_json::Value = serde_json::from_str(&done.out).expect(&done.err);
        let measured = object["measured"].as_array().expect(name);
        assert!(measured.iter().all(|call| call["us"].as_f64() > Some(0.0)), "{measured:?}");
    }
    for name in ["layout", "decode-dispatch --set payload=fp8-packed"] {
        let done = run(&format!("explain {name}"));
        assert!(done.code == 0 && !done.out.contains("measured"), "{}", done.out);
    }
}

#[test]
fn explain_draws_what_it_says() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring.svg");
    let done = run(&format!("explain nvl-dispatch --set via=ring --svg {}", file.display()));
    assert_eq!(done.code, 0, "{}", done.err);
    let drawn = fs::read_to_string(&file).expect("the picture is written");
    for words in
        ["role Send[peer in all]", "on odd blocks", "64 slots in chunks of 8", "W3 credit: Recv"]
    {
        assert!(drawn.contains(words), "{words} is missing");
    }
    let done = run("explain layout --svg no-such-folder/layout.svg");
    assert_eq!(done.code, 1);
    assert!(done.err.contains("no-such-folder/layout.svg cannot be written"), "{}", done.err);
}

#[test]
fn explain_tells_what_a_buffer_takes() {
    let done = run("explain nvl-dispatch --ranks 4 --tokens 4096 --live 2 --set mode=cached");
    let line = done.out.lines().find(|line| line.starts_with("memory of a buffer"));
    // Two outputs of 16384 rows: 14336 bytes, 128 of meta data and 96 for top-k of each.
    let memory = "memory of a buffer for 4096 tokens a rank, 2 live: control 1 MiB, outputs 455 MiB, \
                  combine inputs 452 MiB, tables 1 MiB, on the host 1 MiB";
    assert_eq!(line, Some(memory), "{}", done.err);
    let outputs = |options: &str| {
        let done = run(&format!("explain nvl-dispatch --json --ranks 4 {options}"));
        let value: serde_json::Value = serde_json::from_str(&done.out).expect(&done.err);
        value["memory"]["outputs"].as_u64()
    };
    assert_eq!(outputs(""), None);
    // 1000 rows of 128 values in e4m3, 128 bytes of meta data, one scale and top-k of two.
    let small = "--tokens 4096 --capacity 1000 --set hidden=128 --set topk=2 --set payload=fp8";
    let rounded = |bytes: u64| bytes.next_multiple_of(256);
    let rows = 2 * rounded(128 * 1000) + rounded(4 * 1000);
    assert_eq!(outputs(small), Some(rows + rounded(16 * 1000) + rounded(8 * 1000)));
    let done = run("explain layout --tokens 5");
    assert_eq!(done.code, 2);
    assert_eq!(done.err, "error: Layout has no buffer; `--tokens` belongs to nvl-dispatch\n");
    assert_eq!(run("explain nvl-dispatch --live 2").code, 2);
    let by_option = run("explain decode-dispatch --tokens 64");
    assert!(by_option.out.contains("max_tokens=64"), "{}{}", by_option.out, by_option.err);
    assert_eq!(by_option.out, run("explain decode-dispatch --set max_tokens=64").out);
    let both = run("explain decode-dispatch --tokens 64 --set max_tokens=64").err;
    let said = "error: `max_tokens` is given twice: `--set max_tokens=` is `--tokens`\n";
    assert_eq!(both, said);
}

#[test]
fn the_shapes_that_must_work_are_emitted() {
    for shape in [
        "--set ranks=6 --set hidden=2880 --set topk=5 --set experts=100",
        "--ranks 3 --set hidden=128 --set topk=1 --set experts=3",
        "--set ranks=8 --set hidden=8192 --set topk=32 --set experts=512",
        "--ranks=1 --set hidden=7168 --set topk=8 --set experts=256",
    ] {
        for payload in ["bf16", "fp8", "fp8-packed"] {
            for via in ["direct", "ring"] {
                let set = format!("--set payload={payload} --set via={via}");
                let done = run(&format!("emit nvl-dispatch {shape} {set}"));
                assert_eq!(done.code, 0, "{shape} {set}: {}", done.err);
                assert!(done.out.contains("__global__"), "{shape} {set}");
                assert_eq!(done.err, "", "all of the shape is given");
            }
        }
    }
}

#[test]
fn what_is_assumed_is_said_and_is_no_part_of_the_text() {
    let short = run("emit nvl-dispatch --ranks 8");
    let long = run("emit nvl-dispatch --ranks 8 --set hidden=7168 --set topk=8 --set experts=256");
    assert_eq!(short.err, "reference shape: hidden 7168, topk 8, experts 256\n");
    assert_eq!((long.err.as_str(), &long.out), ("", &short.out));
}

#[test]
fn exit_codes_tell_wrong_use_from_failure() {
    for wrong in [
        "",
        "no-such-command",
        "emit",
        "emit no-such-pipeline",
        "explain no-such-pipeline",
        "emit layout --set no_such_name=1",
        "emit layout --set ranks",
        "emit layout --ranks 0",
        "emit layout --ranks 1025",
        "emit layout --ranks many",
        "emit layout --ranks 8 --set ranks=8",
        "emit layout --set topk=4 --set topk=4",
        "emit layout --arch sm_75",
        "emit nvl-dispatch --set payload=fp16",
        "emit nvl-dispatch --set stages=5",
        "emit nvl-dispatch --set hidden=2881",
        "emit --all",
        "emit layout --all --out x",
        "emit --all --out x --kernels plain",
        "emit layout --out x",
        "emit layout --check",
        "cache no-such-action",
    ] {
        let done = run(wrong);
        assert_eq!(done.code, 2, "`{wrong}`: {}{}", done.out, done.err);
        assert!(!done.err.is_empty() && done.out.is_empty(), "`{wrong}`");
    }
    let failed = "emit nvl-dispatch --set via=ring --set depth=16 --set chunk=16";
    let done = run(failed);
    assert_eq!(done.code, 1, "`{failed}`: {}{}", done.out, done.err);
    assert!(done.err.starts_with("error: "), "`{failed}`: {}", done.err);
    for good in ["--help", "--version", "help", "emit --help", "explain --help"] {
        let done = run(good);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "`{good}`");
        assert!(!done.out.is_empty());
    }
}

/// Numbers that nothing is made for, and settings without effect, are wrong use before anything runs.
#[test]
fn numbers_out_of_range_are_wrong_use() {
    for wrong in [
        "run layout --tokens 18446744073709551615",
        "run layout --tokens 18446744073709551616",
        "run layout --tokens 1000000000",
        "run layout --sms 4294967295",
        "run layout --sms 0",
        "run layout --set alignment=0",
        "run layout --set alignment=2147483647",
        "run layout --set weights=7",
        "run layout --set topk=1 --set topk=2",
        "run layout --set hidden=18446744073709551615",
        "check layout --schedules 0",
        "check layout --schedules 18446744073709551615",
        "check layout --seed 18446744073709551615 --schedules 2",
        "check layout --set alignment=4",
        "check layout --fuzz-shapes --tokens 5",
        "check layout --fuzz-shapes --set hidden=128",
        "check layout --tokens 999999999",
        "check --random 2 --seed 18446744073709551615",
        "check --mutants --seed 3",
        "check --mutants --tokens 3",
        "check --random 3 --nodes 2",
        "check --courses 3 --net model:ordered",
        "bench --backend host --processes",
        "bench --backend host --cooperative true",
        "bench --backend host --devices 0,0",
        "bench --backend host --iterations 18446744073709551615",
        "bench --backend host --tokens 1000000000 --ranks 4",
        "bench --backend host --live 0",
        "bench --backend host --absent NaN",
        "bench --backend host --timeout-ms 0",
        "bench --backend host --perturb 7",
        "bench --backend host --net card",
        "bench --backend host --nodes 2 --net card",
        "bench --backend host --nodes 2 --ranks 3",
        "bench --backend host --nodes 2 --op both",
        "run node-dispatch --nodes 2 --net card",
        "run node-dispatch --backend gpu --net card",
        "run layout --perturb 7",
        "selftest --backend host --perturb 7",
        "selftest --perturb 18446744073709551616",
        "selftest --backend host --ranks 0",
        "selftest --backend host --pairs 18446744073709551615",
        "explain nvl-dispatch --tokens 999999999",
        "explain nvl-dispatch --tokens 8 --live 18446744073709551615",
    ] {
        let done = run(wrong);
        assert_eq!(done.code, 2, "`{wrong}`: {}{}", done.out, done.err);
        assert!(!done.err.is_empty() && done.out.is_empty(), "`{wrong}`");
    }
}

/// What is refused says what it takes, and what has no effect says so.
#[test]
fn refusals_say_what_is_taken() {
    for (line, said) in [
        ("run layout --set weights=7", "`weights` is 0 or 1, not `7`"),
        ("run layout --set alignment=0", "`alignment` is a number from 1 to 2147483647, not `0`"),
        ("run layout --set topk=1 --set topk=2", "`topk` is given twice"),
        (
            "check layout --set alignment=4",
            "`alignment` has no effect here: each schedule draws its own value",
        ),
        (
            "check layout --fuzz-shapes --tokens 5",
            "`--tokens` has no effect with `--fuzz-shapes`: each schedule draws its own shape",
        ),
        (
            "check layout --seed 18446744073709551615 --schedules 2",
            "2 schedules from seed 18446744073709551615 would exceed the last seed, 18446744073709551615",
        ),
        (
            "run layout --perturb 7",
            "`--perturb` is for `--backend gpu`: on the host, `check` draws schedules that delay every thread",
        ),
        (
            "run layout --tokens 999999999",
            "999999999 tokens on each of 4 ranks are too many: all ranks together can have at most 2147483647",
        ),
    ] {
        let done = run(line);
        assert_eq!((done.code, done.err.as_str()), (2, &*format!("error: {said}\n")), "`{line}`");
    }
    // What one machine lacks is no wrong use.
    for command in ["run", "check"] {
        let done = run(&format!("{command} layout --tokens 500000000 --set hidden=7168"));
        assert_eq!(done.code, 1, "{}", done.err);
        assert!(done.err.starts_with("error: the rows of 4 ranks take 80"), "{}", done.err);
        assert!(!done.err.contains("seed"), "{}", done.err);
    }
}

#[test]
fn a_slip_of_a_name_is_told() {
    for (line, near) in [
        ("run layuot", "layout"),
        ("explain nvl-dispach", "nvl-dispatch"),
        ("run layout --set hiden=128", "hidden"),
        ("run layout --set stages.nvl-dispatch=4 --set depht=4", ""),
        ("run layout --set depht=4", "depth"),
        ("run layout --set payload=fp9", "fp8"),
        ("run layout --set via=rnig", "ring"),
        ("emit nvl-dispatch --set hiden=128", "hidden"),
        ("emit nvl-dispatch --set payload=bf61", "bf16"),
        ("emit layout --arch sm_90", "sm_90a"),
        ("bench --payload bf61", "bf16"),
        ("bench --op dispach", "dispatch"),
    ] {
        let done = run(line);
        let hint = format!("did you mean `{near}`?");
        let said = done.err.contains(&hint);
        assert!(done.code == 2 && said != near.is_empty(), "`{line}`: {}", done.err);
    }
}

#[test]
fn options_of_mutations_go_with_mutations_alone() {
    for (line, said) in [
        ("check layout --sample 3", "--mutants[=<TEXT>]|--mutate <FILE>"),
        ("check --mutants --from 3", "cannot be used with"),
        ("check --mutate pull.cuh --budget 0", "'0'"),
        ("check --mutate pull.cuh --known no/such/list", "`no/such/list`: No such file"),
        ("check layout --plant no/such/bug", "`no/such/bug`: No such file"),
        ("check layout --plant ../ep-emu/mutants.txt", " bugs, and `--plant` takes one"),
        ("check layout --mutants --plant bug", "cannot be used with"),
        ("check layout --known list", "--mutants[=<TEXT>]|--mutate <FILE>"),
        ("check layout --outputs", "--mutants[=<TEXT>]|--mutate <FILE>"),
        ("check layout --budget 3", "--mutants[=<TEXT>]|--mutate <FILE>"),
    ] {
        let done = run(line);
        assert!(done.code == 2 && done.err.contains(said), "`{line}`: {}", done.err);
    }
}

/// A cache or compiler that is named and cannot be used is said, and nothing takes its place.
#[cfg(unix)]
#[test]
fn a_named_cache_or_compiler_that_cannot_be_used_is_said() {
    let line = ["run", "layout", "--tokens", "4", "--set", "hidden=128"];
    for (variable, value, said) in [
        ("EPFORGE_CACHE", "/dev/null/cache", "error: the cache /dev/null/cache is no folder"),
        ("EPFORGE_CACHE", "/proc/no/cache", "error: the cache cannot use /proc/no/cache: "),
        ("EPFORGE_CACHE", "/tmp", "error: the cache folder /tmp "),
        ("CXX", "no-such-compiler", "error: CXX names `no-such-compiler`, which does not run: "),
    ] {
        let Output { status, stderr, .. } =
            binary(&line).env(variable, value).output().expect("it starts");
        let err = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(1), "{variable}={value}: {err}");
        assert!(err.starts_with(said), "{variable}={value}: {err}");
    }
}

#[test]
fn the_help_says_what_is_assumed_and_how_it_exits() {
    assert!(run("emit --help").out.contains("ranks 8, hidden 7168, topk 8"));
    assert!(run("explain --help").out.contains("ranks 8, hidden 7168, topk 8"));
    assert!(run("--help").out.contains("Exit codes:"));
}

#[test]
fn json_is_one_object_per_line() {
    let folder = Folder::new("json");
    let place = folder.path().display();
    for line in [
        "list --json".to_owned(),
        "--json explain nvl-dispatch".to_owned(),
        "explain low-latency-dispatch --json".to_owned(),
        "emit nvl-combine --json --set via=ring".to_owned(),
        format!("emit --all --json --out {place}/generated"),
        format!("doctor --json --cache {place}"),
        format!("cache path --json --folder {place}"),
        format!("cache list --json --folder {place}"),
        format!("cache clear --json --folder {place}"),
    ] {
        let done = run(&line);
        assert_eq!(done.code, 0, "`{line}`: {}", done.err);
        for text in done.out.lines() {
            let value: serde_json::Value = serde_json::from_str(text).expect(text);
            assert!(value.is_object(), "`{line}`: {text}");
        }
    }
    let lines = run("list --json").out;
    let names: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect(line)["pipeline"].clone()
        })
        .collect();
    assert!(PIPELINES.iter().all(|name| names.iter().any(|found| found == name)), "{names:?}");
    let emitted = run("emit layout --json").out;
    let value: serde_json::Value = serde_json::from_str(&emitted).expect("it is JSON");
    assert_eq!(value["cuda"], run("emit layout").out);
}

#[test]
fn kept_files_are_written_and_compared() {
    let folder = Folder::new("kept");
    let all = format!("emit --all --out {}", folder.path().display());
    let check = format!("{all} --check");
    assert_eq!(run(&check).code, 1, "the files are missing");
    assert_eq!(run(&all).code, 0);
    let done = run(&check);
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (0, "", ""), "it is silent");
    assert_eq!(run(&all).out, "", "nothing is written twice");

    let texts: Vec<PathBuf> = fs::read_dir(folder.path())
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|it| it == "cu"))
        .collect();
    assert!(texts.len() >= 8, "{} configurations", texts.len());
    fs::write(&texts[0], "// changed\n").expect("it can be written");
    fs::write(folder.path().join("layout.old.cu"), "").expect("it can be written");
    fs::write(folder.path().join("mine.cu"), "").expect("it can be written");
    let done = run(&check);
    assert_eq!(done.code, 1);
    assert!(done.out.contains("line 1: it has `// changed`"), "{}", done.out);
    assert!(done.out.contains("layout.old.cu: no configuration has this name"), "{}", done.out);
    assert!(done.err.contains("2 files differ") && done.err.contains(&all), "{}", done.err);
    assert_eq!(run(&all).code, 0);
    assert!(folder.path().join("mine.cu").exists(), "other files are left alone");
    assert_eq!(run(&check).code, 0);
}

#[test]
fn the_names_of_configurations_are_unique() {
    let rows = ep_cli::CONFIGURATIONS.iter();
    let names: std::collections::BTreeSet<String> =
        rows.map(|row| format!("{}.{}", row.pipeline, row.name)).collect();
    assert_eq!(names.len(), ep_cli::CONFIGURATIONS.len());
    let pipelines: std::collections::BTreeSet<&str> =
        ep_cli::CONFIGURATIONS.iter().map(|row| row.pipeline).collect();
    assert!(PIPELINES.iter().all(|name| pipelines.contains(name)), "each has one at least");
}

fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_binary_exits_with_the_same_codes() {
    let code = |arguments: &[&str]| {
        let Output { status, .. } = binary(arguments).output().expect("it starts");
        status.code()
    };
    assert_eq!(code(&["list"]), Some(0));
    let unfit =
        ["emit", "nvl-dispatch", "--set", "via=ring", "--set", "depth=16", "--set", "chunk=16"];
    assert_eq!(code(&unfit), Some(1));
    assert_eq!(code(&["emit", "no-such-pipeline"]), Some(2));
}

/// `epforge emit .. | head` ends without a word.
#[test]
fn a_closed_pipe_is_no_failure() {
    for arguments in [["list", "--json"], ["explain", "nvl-dispatch"], ["list", "--help"]] {
        let mut child = binary(&arguments).spawn().expect("it starts");
        drop(child.stdout.take());
        let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!((status.code(), &*said), (Some(0), ""), "{arguments:?}");
    }
}

/// A writer that takes a few bytes and then fails.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        match taken {
            0 => Err(std::io::Error::other("the disk is full")),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let mut err = Vec::new();
    let code = ep_cli::run(["epforge", "list"], &pipelines::ALL, &mut Full(10), &mut err);
    let said = String::from_utf8_lossy(&err);
    assert_eq!(code, 1);
    assert_eq!(said, "error: the output cannot be written: the disk is full\n");
}

//! `run` and `check` of pipelines that have no oracle but their declaration.

use std::fs;
use std::path::{Path, PathBuf};

use ep_runtime::AnyPipeline;
use ep_runtime::pipelines;

mod own {
    use ep_runtime::pipeline;

    pipeline! {
        /// Called like a standard pipeline, and another.
        pub pipeline Layout {
            shape { ranks: 1..=8, parts: 1..=4, stripes: 1..=4 }
            size tokens;
            input kinds: i32[tokens] in 0..parts;
            output of_kind: i32[parts], twice: i64[tokens];
            table in_rank: bool[tokens, ranks];
            cuda fn doubled(n: i32) -> i64 = r"__device__ ep::i64 doubled(ep::i32 n) { return 2 * ep::i64(n); }";
            role Count on all blocks, 2 warps, warps shared by stripe {
                for t in stripe {
                    count of_kind[kinds[t]];
                    store twice[t] = doubled(kinds[t] + me);
                    for peer in ranks { record in_rank[t, peer] = kinds[t] % ranks == peer; }
                }
            }
        }

        /// Reads its handle.
        pub pipeline Told {
            shape { ranks: 1..=8, stripes: 1..=4 }
            size tokens;
            uses handle Layout { in_rank: bool[tokens, ranks] };
            output here: i32[tokens];
            role Tell on all blocks, 2 warps, warps shared by stripe {
                for t in stripe { store here[t] = in_rank[t, me] as i32; }
            }
        }

        /// Sends each row to the rank that it names, halved.
        pub pipeline Halved {
            shape { ranks: 1..=64, width: 16..=4096 step 16, most: 1..=512, slots: 2..=9 }
            size tokens in 0..=most;
            input x: bf16[tokens, width], to: i32[tokens] in 0..ranks, seen: i32[slots];
            output y: bf16[ranks, most, width], first: i32[1];
            tune { stripes: 2 in [1, 2, 4] }
            cuda fn half(v: f32) -> f32 = r"__device__ inline float half(float v) { return 0.5f * v; }";
            message Row { row x: bf16[width], token: i32 }
            channel ring: ring<Row> over nvlink from Send to Take per all {
                depth: 16, chunk: 1, header: [count],
            };

            role Send[peer] on even blocks, 4 warps {
                announce ring[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
                for token in stripe where to[token] == peer {
                    push ring[peer] { x: half(x[token] as f32) as bf16, token: token };
                }
            }
            role Take[peer] on odd blocks, 4 warps {
                for message in ring[peer] { store y[peer, message.token] = message.x; }
            }
            role First on last block, 1 warps { store first[0] = seen[0]; }
        }
    }
}

const LAYOUT: AnyPipeline = AnyPipeline::of::<own::Layout>();
const TOLD: AnyPipeline = AnyPipeline::of::<own::Told>();

/// Exit code and all that is said; none without a compiler.
fn said(entries: &[AnyPipeline], line: &str) -> Option<(u8, String)> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words = ["epforge"].into_iter().chain(line.split(' '));
    let code = ep_cli::run(words, entries, &mut out, &mut err);
    let text = [out, err].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (!text.contains("no C++ compiler")).then_some((code, text))
}

#[test]
fn any_pipeline_is_compared_with_its_declaration() {
    let line = "run layout --ranks 3 --tokens 9 --set parts=2 --seed 4";
    let Some((code, text)) = said(&[LAYOUT], line) else { return };
    assert!(code == 0 && text.starts_with("layout on the host: parts 2, ranks 3"), "{text}");
    // Its handle is the one that the declaration names, whatever else goes by that name.
    for line in ["run told --seed 2", "check told --mode hb --schedules 3 --fuzz-shapes"] {
        let (code, text) = said(&[TOLD], line).expect("there is a compiler");
        assert_eq!(code, 0, "{text}");
    }
    let (code, text) = said(&[LAYOUT, TOLD], "check all --schedules 2").expect("as before");
    assert!(code == 0 && text.contains("0 of 2 variants failed"), "{text}");
    let all = [pipelines::ALL[0], TOLD];
    let (code, text) = said(&all, "run layout --tokens 4 --set hidden=128").expect("as before");
    assert!(code == 0 && text.contains("tokens counted"), "the standard one: {text}");
    let (code, text) = said(&[LAYOUT], "check all --set hidden=16").expect("as before");
    assert!(code == 2 && text.contains("no pipeline of this command has `hidden`"), "{text}");
    let (code, text) = said(&[TOLD], "run layout").expect("as before");
    assert!(code == 2 && text.contains("there is no pipeline `layout`"), "{text}");
}

/// `bench` compares a pipeline with its declaration and then measures it, with what crosses between ranks.
#[test]
fn any_pipeline_is_measured_once_it_is_right() {
    let all = [LAYOUT, TOLD, AnyPipeline::of::<own::Halved>()];
    let shape = "--ranks 2 --tokens 5 --set width=32 --set most=5";
    let line = format!("bench halved --backend host {shape} --sms 4 --probe no --json");
    let Some((code, text)) = said(&all, &line) else { return };
    assert_eq!(code, 0, "{text}");
    let objects: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let results = Vec::from_iter(objects.iter().filter(|it| it["pipeline"].is_string()));
    let modes = results.iter().map(|it| (it["mode"].as_str(), it["graph"].as_i64()));
    assert_eq!(Vec::from_iter(modes), [(Some("loop"), None), (Some("graph"), Some(2))]);
    for result in results {
        let number = |name: &str| result[name].as_u64().expect(name);
        let rows = number("row_bytes") / 64;
        // The busiest of two ranks sends at least as many rows as would go to one at random, and at most all.
        assert!((1..=5).contains(&rows) && number("row_bytes") == rows * 64, "{result}");
        assert_eq!(number("field_bytes"), rows * 16, "{result}");
        assert_eq!(number("bytes"), rows * 80, "{result}");
        // Each rank leaves 2 x 5 rows of 32 values and a number, before and after.
        assert_eq!(number("compared"), 2 * 2 * (2 * 5 * 32 + 1), "{result}");
        assert_eq!((number("tokens"), number("sms"), number("ranks")), (5, 4, 2), "{result}");
        for time in ["us", "wire_us", "floor_us", "best_floor_us", "ratio", "gb_per_s"] {
            assert!(result.get(time).is_some_and(serde_json::Value::is_null), "{time}: {result}");
        }
    }
    // One with a handle and without messages, as a table.
    let line = "bench told --backend host --ranks 2 --tokens 1,6 --set stripes=2 --graph 3";
    let (code, text) = said(&all, line).expect("there is a compiler");
    assert_eq!(code, 0, "{text}");
    for tokens in [1, 6] {
        // Both ranks leave a number for each token, before and after.
        let equal = format!("told: 2 checks, {} values equal", 4 * tokens);
        assert_eq!(text.matches(&equal).count(), 1, "{text}");
        for mode in ["loop", "graph"] {
            let rows = text.lines().map(|line| Vec::from_iter(line.split_whitespace()));
            let row = format!("{mode} {tokens} 1 - - - - - - 0 -");
            assert_eq!(rows.filter(|words| words.join(" ") == row).count(), 1, "{row}: {text}");
        }
    }
    let (code, text) = said(&[wrong()], "bench layout --backend host --json").expect("as before");
    assert!(code == 1 && text.contains("Layout, call 1, before timing"), "{text}");
    assert!(!text.contains("\"mode\""), "what is wrong is measured: {text}");
    for (line, part) in [
        ("bench halfed", "there is no pipeline `halfed`"),
        ("bench halved --payload fp8", "cannot be used with"),
        ("bench halved --backend host --tokens 3/4", "the same number of tokens on every rank"),
        ("bench halved --backend host --set height=2", "Halved has no `height`"),
    ] {
        let (code, text) = said(&all, line).expect("no compiler is needed");
        assert!(code == 2 && text.contains(part), "{line}: {text}");
    }
}

/// `explain` picks realistic values for a user's shape numbers, and names rows that move slowly.
#[test]
fn explain_takes_a_shape_of_use_and_names_slow_rows() {
    let halved = AnyPipeline::of::<own::Halved>();
    let (code, text) = said(&[halved], "explain halved").expect("no compiler is needed");
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("reference shape: ranks 8, width 4096, most 512, slots 2\n"), "{text}");
    let slow =
        "Send +15: `half` computes the row `x`, so lanes load and store it element by element";
    assert_eq!(text.matches("  slow: ").count(), 1, "{text}");
    assert!(text.contains(slow), "{text}");
    let (_, text) = said(&pipelines::ALL, "explain nvl-dispatch").expect("as before");
    assert!(!text.contains("slow: "), "{text}");
}

/// `explain` shows measured times only for the text that was measured.
#[test]
fn times_belong_to_the_text_that_was_measured() {
    let standard = AnyPipeline::of::<pipelines::DecodeCombine>();
    let mut copy = standard;
    copy.digest ^= 1;
    for (entry, options, is_measured) in [
        (standard, "", true),
        (copy, "", false),
        (standard, " --kernels plain", false),
        (standard, " --set sum_warps=8", false),
    ] {
        let line = format!("explain decode-combine{options}");
        let (code, text) = said(&[entry], &line).expect("no compiler is needed");
        assert!(code == 0 && text.contains("measured in CUDA graphs") == is_measured, "{text}");
    }
}

/// A text that does not say what its declaration does.
fn wrong() -> AnyPipeline {
    let wrong = |text: &ep_runtime::Text| {
        let mut wrong = text.clone();
        wrong.body.text = text.body.text.replace("2 * ep::i64(n)", "3 * ep::i64(n)").into();
        wrong
    };
    // The functions that the interpreter calls are those of the declaration.
    let texts = LAYOUT.texts().iter().map(wrong).collect();
    AnyPipeline::compiled(LAYOUT.ir(), texts, LAYOUT.handles())
}

#[test]
fn a_text_that_is_wrong_is_found() {
    let Some((code, text)) = said(&[wrong()], "run layout --seed 3") else { return };
    assert!(code == 1 && text.contains("twice[0] part 0 is"), "{text}");
    let (code, text) = said(&[wrong()], "check layout --schedules 2").expect("as before");
    assert!(code == 1 && text.contains("replay: epforge check layout --ranks 4"), "{text}");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of this test, in a folder of its own.
fn file(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("declarations");
    fs::create_dir_all(&folder).expect("a folder for files");
    let path = folder.join(name);
    fs::write(&path, text).expect("the file can be written");
    path
}

/// What the macro and a file make of one declaration is the same, with the handles that it reads.
#[test]
fn a_file_declares_what_the_macro_does() {
    let file = repository().join("ep-runtime/src/pipelines/nvl_combine.rs").display().to_string();
    let emitted = |options: &str| said(&pipelines::ALL, &format!("emit nvl-combine{options}"));
    let (_, macros) = emitted("").expect("no compiler is needed");
    let (code, files) = emitted(&format!(" --declarations {file}")).expect("as before");
    assert!(code == 0 && files == macros, "{files}");
}

/// Pipelines of files run, are measured and checked, with handles of one another and of standard ones.
#[test]
fn pipelines_of_files_run() {
    // A `Layout` of this file, whose handle `Told` reads, and one that reads that of the standard `Layout`.
    let own = repository().join("ep-cli/tests/machines/declared.rs").display().to_string();
    let tagged = repository().join("ep-runtime/examples/own_pipeline/src/lib.rs");
    let file = format!("--declarations {own} --declarations {}", tagged.display());
    let on = |line: &str| said(&pipelines::ALL, &format!("{line} {file}"));
    let Some((code, text)) = on("run told --seed 2") else { return };
    assert!(code == 0 && text.contains("told on the host: "), "{text}");
    let (code, text) = on("check layout --schedules 2 --set parts=2").expect("as before");
    assert!(code == 0 && text.contains("0 of 1 variants failed"), "{text}");
    let few = "--ranks 3 --tokens 7 --set hidden=32 --set topk=3 --set experts=5 --json";
    let bench = format!("bench tagged-dispatch --backend host {few} --probe no");
    let (code, text) = on(&bench).expect("as before");
    assert!(code == 0 && text.matches("\"field_bytes\":").count() == 2, "{text}");
    let (code, text) = on("explain halved --ranks 2").expect("as before");
    assert!(code == 0 && text.contains("Sends each row to the rank that it names"), "{text}");
    let (code, text) = on("doctor").expect("as before");
    assert!(code == 2 && text.contains("takes no pipelines"), "{text}");
}

/// The file of a `cuda fn` lies beside the declaration. Warnings and errors name the line and the column.
#[test]
fn errors_in_files_have_line_and_column() {
    file("half.cuh", "__device__ inline float half(float v) { return 0.5f * v; }");
    let declaration = |function: &str, body: &str| {
        format!(
            "use ep_runtime::pipeline;\n\npipeline! {{
    pub pipeline Own {{
        shape {{ ranks: 1..=8, width: 16..=64 step 16 }}
        input x: f32[width];
        output y: f32[ranks, width];
        {function}
        message Row {{ row x: f32[width] }}
        channel there: slots<Row> over nvlink from Talk to Talk per all {{ slot: [source, number: 2] }};
        role Talk on all blocks {{
            {body}
        }}
    }}
}}
fn other() {{}}
"
        )
    };
    let half = "cuda fn half(v: f32) -> f32 from \"half.cuh\";";
    let body = "for peer in ranks { push there[peer] { x: half(x) }; }
            close there;
            for message in there { store y[message.source] = message.x; }";
    let path = file("own.rs", &declaration(half, body)).display().to_string();
    let (code, text) = said(&[], &format!("list --declarations {path}")).expect("no compiler");
    assert!(code == 0 && text.contains("own  one-warp"), "{text}");
    assert!(text.contains("warning: ") && text.contains(&format!("--> {path}:1")), "{text}");
    let warnings = text.matches("warning: ").count();
    let (code, text) = said(&[], &format!("emit own --declarations {path}")).expect("as before");
    assert!(code == 0 && text.matches("warning: ").count() == warnings, "{text}");
    if let Some((code, text)) = said(&[], &format!("run own --declarations {path} --ranks 2")) {
        assert!(code == 0 && text.contains("own on the host: ranks 2"), "{text}");
    }
    let beyond = "pipeline! { pub pipeline Beyond { shape { ranks: 1..=8 } output y: i32[ranks];
        role All on block 0 { for r in ranks { store y[r + 1] = r; } } } }";
    let path = file("beyond.rs", beyond).display().to_string();
    let line = format!("check beyond --declarations {path} --ranks 2 --schedules 1");
    if let Some((code, text)) = said(&[], &line) {
        let replay = format!("replay: epforge check --declarations {path} beyond --ranks 2");
        assert!(code == 1 && text.contains(&replay), "{text}");
    }
    for (function, body, place, part) in [
        (half, "store y[0] = z;", "12:26", "`z`"),
        (&*half.replace("half.cuh", "no.cuh"), body, "8:42", "`no.cuh`"),
        (half, "store y[0] = (x;", "", "this is not Rust"),
    ] {
        let path = file("wrong.rs", &declaration(function, body)).display().to_string();
        let line = format!("list --declarations {path}");
        let (code, text) = said(&pipelines::ALL, &line).expect("no compiler is needed");
        let at = format!("{path}:{place}");
        assert!(code == 1 && text.contains(&at) && text.contains(part), "{at}: {text}");
    }
    let nowhere = format!("uses handle crate::Nowhere {{ row: i32[width] }}; {half}");
    let path = file("wrong.rs", &declaration(&nowhere, body)).display().to_string();
    let (code, text) = said(&[], &format!("list --declarations {path}")).expect("as before");
    assert!(code == 1 && text.contains("`Own` reads the handle of `crate::Nowhere`"), "{text}");
    let path = file("empty.rs", "fn main() {}").display().to_string();
    let (code, text) = said(&[], &format!("list --declarations {path}")).expect("as before");
    assert!(code == 2 && text.contains("has no `pipeline!` block"), "{text}");
}

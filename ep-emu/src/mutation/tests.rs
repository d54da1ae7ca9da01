//! What is made of small texts, and that every text of ours is understood.

use super::*;

const TEXT: &str = "namespace ep {\ntemplate <class T>\nstruct A {\n    int x = 0;\n    void go(u32* at) {\n\
                    \x20       if (x < 3 && at != nullptr) store_release_sys(at, 1u);\n\
                    \x20       __syncwarp();\n    }\n};\n}\n";

fn source(text: &str) -> Source {
    let headers = vec![("ep/a.cuh".to_owned(), text.to_owned())];
    Source {
        name: "k.cu".to_owned(),
        text: "#include <ep/a.cuh>\n".to_owned(),
        headers,
        ..Source::default()
    }
}

fn made(text: &str) -> Vec<String> {
    let weaver = Weaver::new(["ep/a.cuh".to_owned()]);
    weaver.weave(&source(text)).expect("it is understood");
    weaver.mutations().iter().map(ToString::to_string).collect()
}

/// What is made of one statement.
fn of(statement: &str) -> Vec<String> {
    let all = made(&format!("void f() {{ {statement} }}\n"));
    all.iter().map(|text| text.replacen("ep/a.cuh:1 ", "", 1)).collect()
}

#[test]
fn each_operator_has_its_text() {
    assert_eq!(
        of("x = load_acquire_gpu(p);"),
        [
            "skip: without `x = load_acquire_gpu(p);`",
            "order: `load_acquire_gpu(p)` becomes `ep::mutated_load<EMU_RELAXED | EMU_GPU << 4>(p)`",
            "scope: `load_acquire_gpu(p)` becomes `ep::mutated_load<EMU_ACQUIRE | EMU_CTA << 4>(p)`",
        ]
    );
    assert_eq!(
        of("tma_wait_stored<2>();"),
        [
            "skip: without `tma_wait_stored<2>();`",
            "read: `tma_wait_stored<2>()` becomes `tma_wait_read<2>()`",
            "open: `tma_wait_stored<2>()` becomes `tma_wait_stored<1 + 2>()`",
        ]
    );
    assert_eq!(
        of("if (a >= b) return;"),
        [
            "negated: `a >= b` becomes `!(a >= b)`",
            "compare: `a >= b` becomes `a > b`",
            "bound: `a >= b` becomes `a >= (b) + 1`",
            "never: `a >= b` becomes `false`",
            "always: `a >= b` becomes `true`",
        ]
    );
    assert_eq!(
        of("at = p + static_cast<i64>(row) * kBytes;"),
        [
            "skip: without `at = p + static_cast<i64>(row) * kBytes;`",
            "operand: `p + static_cast<i64>(row) * kBytes` becomes `p`",
            "operand: `p + static_cast<i64>(row) * kBytes` becomes `static_cast<i64>(row) * kBytes`",
            "operand: `static_cast<i64>(row) * kBytes` becomes `static_cast<i64>(row)`",
            "operand: `static_cast<i64>(row) * kBytes` becomes `kBytes`",
            "narrow: `static_cast<i64>(row) * kBytes` becomes \
             `static_cast<ep::i64>(static_cast<ep::i32>(static_cast<i64>(row) * kBytes))`",
        ]
    );
    assert_eq!(
        of("a[i] = 0u; fence();"),
        [
            "skip: without `a[i] = 0u;`",
            "number: `0u` becomes `1u`",
            "skip: without `fence();`",
            "swap: `a[i] = 0u; fence();` becomes `fence(); a[i] = 0u;`",
        ]
    );
    assert_eq!(
        of("const bool done = wait(team, site, [&](u32& seen) { return team.epoch == seen; });")
            [..3],
        [
            "unwaited: `wait(team, site, [&](u32& seen) { return team.epoch == seen; })` becomes `true`",
            "compare: `team.epoch == seen` becomes `team.epoch != seen`",
            "call: `team.epoch` becomes `team.epoch + 1`",
        ]
    );
}

#[test]
fn what_a_constant_leaves_as_it_is_stays() {
    let of = |statement: &str| -> Vec<String> {
        let text = format!(
            "struct Cfg {{\n    static constexpr int kOne = 1;\n    struct Row {{\n        \
             static constexpr ep::u64 kX = 0x0;\n        static constexpr int kSrc = 16;\n    }};\n}};\n\
             void f() {{ {statement} }}\n"
        );
        let all = made(&text).into_iter().filter(|text| text.contains(" operand: "));
        all.map(|text| text.split(" becomes ").last().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(of("at = slot + Cfg::Row::kSrc;"), ["`slot`", "`Cfg::Row::kSrc`"]);
    assert_eq!(of("at = slot + Cfg::Row::kX;"), ["`Cfg::Row::kX`"]);
    assert_eq!(of("at = warp - Cfg::Row::kX;"), [""; 0]);
    assert_eq!(of("at = Cfg::kOne * row;"), ["`Cfg::kOne`"]);
    assert_eq!(of("at = Cfg::kOne + row;").len(), 2);
    // Another struct's.
    assert_eq!(of("at = slot + kX;").len(), 2);
}

#[test]
fn packs_are_understood() {
    assert_eq!(of("(ends.tell(mover), ...);"), ["skip: without `(ends.tell(mover), ...);`"]);
    assert_eq!(of("all(ends...);"), ["skip: without `all(ends...);`"]);
}

#[test]
fn what_has_an_address_or_a_name_keeps_it() {
    assert_eq!(of("look(&state->epoch);"), ["skip: without `look(&state->epoch);`"]);
    assert_eq!(of("look(&a[epoch.of + 1]);").len(), 4, "the index is no place");
    assert!(of("EP_SHARED(Smem, smem);").is_empty());
}

#[test]
fn constants_and_templates_are_left_alone() {
    assert!(
        made("constexpr int kLanes = 32;\nstruct B { static constexpr int kA = 1 + 2; };\n")
            .is_empty()
    );
    // What the compiler computes does not know which mutation holds.
    assert!(made("__device__ constexpr int below(int n) { return n - 1; }\n").is_empty());
    assert!(
        of("constexpr int kAhead = 8; T ahead[kAhead + 1]; if constexpr (k > 0) {}").is_empty()
    );
    assert!(of("static_assert(a < 3, \"\"); return get<1 + 2>;").is_empty());
}

#[test]
fn a_woven_text_keeps_its_lines() {
    let weaver = Weaver::new(["ep/a.cuh".to_owned()]);
    let woven = weaver.weave(&source(TEXT)).expect("it is understood");
    let text = &woven.headers[0].1;
    // Each token of the text is behind a line that says where it was.
    let (mut line, mut file) = (0, String::new());
    for code in text.lines() {
        if let Some(rest) = code.strip_prefix("#line ") {
            let (number, name) = rest.split_once(' ').expect("a file");
            (line, file) = (number.parse().expect("a number"), name.replace('"', ""));
            continue;
        }
        if file == "ep/a.cuh" && code.contains("__syncwarp") {
            assert_eq!(line, 7, "{text}");
        }
        line += 1;
    }
    assert!(woven.headers.iter().any(|(name, _)| name == "ep/mutation.h"));
    assert!(text.contains("EMU_MUTATION(1) ? (1) :"), "{text}");
    let same = weaver.weave(&source(TEXT)).expect("it is understood");
    assert_eq!(same, woven, "a text keeps its numbers");
    weaver.keep(BTreeSet::from([2]));
    let one = weaver.weave(&source(TEXT)).expect("it is understood");
    assert_eq!(one.headers[0].1.matches("EMU_MUTATION(").count(), 1);
    weaver.keep(BTreeSet::new());
    assert_eq!(weaver.weave(&source(TEXT)).expect("it is understood"), source(TEXT));
}

#[test]
fn what_does_not_compile_is_left_out() {
    let weaver = Weaver::new(["ep/a.cuh".to_owned()]);
    weaver.weave(&source(TEXT)).expect("it is understood");
    let before = weaver.mutations().len();
    assert!(
        weaver.refuse("In file\nmutation:2:7: error: no such thing\nmutation:2:9: error: again\n")
    );
    assert_eq!(weaver.mutations().len(), before - 1);
    assert!(!weaver.refuse("mutation:3:1: warning: odd\nep/a.cuh:3:1: error: missing\n"));
}

#[test]
fn a_text_that_is_not_understood_says_where() {
    let weaver = Weaver::new(["ep/a.cuh".to_owned()]);
    let error = weaver.weave(&source("void f() {\n    a = ;\n}\n")).expect_err("it is wrong");
    assert_eq!(error.to_string(), "ep/a.cuh:2 is not understood: an expression is missing");
}

#[test]
fn every_header_is_understood() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/device/ep");
    let mut all = 0;
    for entry in std::fs::read_dir(folder).expect("the device library") {
        let path = entry.expect("a header").path();
        if path.ends_with("ptx.cuh") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a text");
        let weaver = Weaver::new(["ep/a.cuh".to_owned()]);
        let woven = weaver.weave(&source(&text));
        woven.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let made = weaver.mutations().len();
        assert!(made > 0, "{}", path.display());
        all += made;
    }
    assert!(all > 1000, "{all}");
}

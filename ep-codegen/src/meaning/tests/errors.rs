//! Wrong declarations and wrong calls, each told with names and numbers.

use super::*;

fn local(statements: &str) -> String {
    let items = format!(
        "shape {{ n: 1..=8 }}
         size rows;
         input a: i32[rows], far: i64[rows];
         output out: i32[rows], small: u8[rows];
         table t: i32[rows];
         inout kept: i32[rows];
         role R on all blocks {{
             for i in rows {{
                 store small[i] = 1;
                 {statements}
             }}
         }}"
    );
    Case::new(&items, &[("n", "1")], 1)
        .size("rows", &|_| 2)
        .give("a", &|_| i32s(&[2], &[1, 0]))
        .give("far", &|_| i64s(&[2], &[i64::MAX, 300]))
        .give("kept", &|_| i32s(&[2], &[i32::MAX, 0]))
        .wrong()
}

#[test]
fn elements_and_numbers() {
    for (statements, words) in [
        ("store out[i] = far[i];", "9223372036854775807 does not fit out[0], which is `i32`"),
        ("store out[i] = far[i] * 2;", "`far[i] * 2` has no value with 9223372036854775807 and 2"),
        ("store out[i] = 7 / (a[i] - a[i]);", "`7 / (a[i] - a[i])` has no value with 7 and 0"),
        (
            "store out[i] = far[i] as u8;",
            "9223372036854775807 does not fit far[i] as u8[], which is `u8`",
        ),
        ("store out[a[i] * 5] = 1;", "index 0 of `out` is 5, and its extent is 2"),
        ("store out[i] = a[i + 1];", "index 0 of `a` is 2, and its extent is 2"),
        ("count kept[i];", "2147483648 does not fit kept[0], which is `i32`"),
        ("record t[i] = i; store out[i] = t[1 - i];", "t[1] is read, and nothing has written it"),
        ("store out[i / 2] = i;", "out[0] is written twice: 0, then 1"),
    ] {
        let out = if statements.contains("out[") { "" } else { "store out[i] = 1;" };
        let t = if statements.contains("record t") { "" } else { "record t[i] = 1;" };
        let kept = if statements.contains("kept") { "" } else { "add kept[1 - a[i]] = 0;" };
        let said = local(&format!("{t} {kept} {out} {statements}"));
        assert_eq!(said, words, "{statements}");
    }
}

#[test]
fn what_other_warps_write_is_not_read() {
    let case = Case::new(
        "shape { stripes: 1..=4 }
         size tokens;
         output out: i32[tokens];
         table t: i32[stripes];
         role R on all blocks, warps shared by stripe {
             record t[stripe] = 5;
             for i in stripe { store out[i] = t[0]; }
         }",
        &[("stripes", "2")],
        1,
    );
    let said = case.size("tokens", &|_| 4).wrong();
    assert_eq!(said, "t[0] is read while other warps may write it");
}

/// Even the same value, since nothing orders the two.
#[test]
fn no_two_turns_write_one_element() {
    let items = "shape { stripes: 1..=4 }
         size tokens;
         input slot: i32[tokens];
         output out: i32[tokens];
         role R on all blocks, warps shared by stripe {
             for i in stripe { store out[slot[i]] = 7; }
         }";
    let said = |slots: &[i32]| {
        let case = Case::new(items, &[("stripes", "2")], 1);
        case.size("tokens", &|_| 4).give("slot", &|_| i32s(&[4], slots)).wrong()
    };
    assert_eq!(said(&[0, 0, 1, 1]), "");
    assert_eq!(said(&[0, 1, 1, 2]), "out[1] is written twice: 7, then 7");
}

#[test]
fn what_is_given_is_what_is_declared() {
    let case = || {
        Case::new(
            "shape { n: 1..=8 } arg { k: i32 = 1 in 1..=4 } size rows;
             input a: i32[rows, n], f: bf16[n]; output out: i32[1];
             cuda fn twice(n: i32) -> i32 = r\"__device__ ep::i32 twice(ep::i32 n) { return 2 * n; }\";
             role R on block 0 { store out[0] = twice(a[0, 0]); }",
            &[("n", "2")],
            1,
        )
    };
    assert_eq!(case().wrong(), "the tensor `a` was not given");
    let a = || case().give("a", &|_| i32s(&[1, 2], &[3, 4]));
    assert_eq!(a().wrong(), "the tensor `f` was not given");
    let f = || a().give("f", &|_| bf16s(&[2], &[0.0; 2]));
    assert_eq!(f().wrong(), "the size `rows` was not given");
    let twice = || f().size("rows", &|_| 1);
    assert_eq!(twice().wrong(), "the function `twice` was not given");
    assert_eq!(f().size("rows", &|_| 2).wrong(), "`a` is i32[1, 2], declared as i32[2, 2]");
    let mut arg = twice();
    arg.args.insert("k".into(), Scalar::Int(5));
    assert_eq!(arg.wrong(), "`k` is 5, not 1..=4");
    let other = a().give("f", &|_| f32s(&[2], &[0.0; 2])).size("rows", &|_| 1);
    assert_eq!(other.wrong(), "`f` is f32[2], declared as bf16[2]");
    let two = twice().give("a", &|_| i32s(&[1, 2], &[3, 4]));
    assert_eq!(two.wrong(), "`a` is 2 copies, declared as up to 1");
}

/// Rank 0 announces and pushes to the others.
fn ring(announce: &str, pushes: &str, receive: &str) -> String {
    let items = format!(
        "shape {{ ranks: 1..=4, stripes: 1..=1 }}
         input n: i32[4], at: i32[4, ranks];
         output got: i32[4];
         message Word {{ value: i32 }}
         channel ring: ring<Word> over nvlink from Send to Recv per all {{
             depth: 2, chunk: 1, header: [first, count],
         }};
         role Send[peer] on even blocks {{
             {announce}
             {pushes}
         }}
         role Recv[peer] on odd blocks {{
             {receive}
         }}"
    );
    Case::new(&items, &[("ranks", "1"), ("stripes", "1")], 1)
        .give("n", &|_| i32s(&[4], &[5, 6, 7, 8]))
        .give("at", &|_| i32s(&[4, 1], &[1, 0, 2, 3]))
        .wrong()
}

#[test]
fn headers_hold_what_they_say() {
    let announce = "announce ring[peer] { first: 0, count: 2 };";
    let receive = "for m in ring[peer] { store got[m.row] = m.value; }";
    let pushes =
        |count: u32| format!("for i in 0..{count} {{ push ring[peer] {{ value: n[i] }}; }}");
    assert_eq!(ring(announce, &pushes(2), receive), "");
    assert_eq!(
        ring(announce, &pushes(3), receive),
        "rank 0 announced 2 messages of `ring` to rank 0 for stripe 0, and pushed 3"
    );
    assert_eq!(
        ring(announce, &pushes(1), receive),
        "no rank will send what this role waits for: a message of `ring`, rank [0]"
    );
    assert_eq!(
        ring(&format!("{announce} {announce}"), &pushes(2), receive),
        "`ring` is announced twice to rank 0 for stripe 0"
    );
}

#[test]
fn roles_that_wait_for_one_another_are_a_circle() {
    let items = "shape { ranks: 1..=4, stripes: 1..=1 }
         input n: i32[4];
         output got: i32[4], more: i32[4];
         message Word { value: i32 }
         channel a: ring<Word> over nvlink from Send to Recv per all { depth: 2, chunk: 1, header: [count] };
         channel b: ring<Word> over nvlink from Send to Recv per all { depth: 2, chunk: 1, header: [count] };
         role Send[peer] on even blocks {
             announce a[peer] { count: 4 };
             announce b[peer] { count: 4 };
             for i in 0..4 { push a[peer] { value: n[i] }; push b[peer] { value: n[i] }; }
         }
         role Recv[peer] on odd blocks {
             for m in a[peer] { store got[m.row] = m.value; }
             for m in b[peer] { store more[m.row] = m.value; }
         }";
    let case = Case::of(declared(items, false), &[("ranks", "1"), ("stripes", "1")], 1);
    let said = case.give("n", &|_| i32s(&[4], &[1, 2, 3, 4])).wrong();
    assert!(said.starts_with("roles wait for one another"), "{said}");
    assert!(said.contains("Send, stripe 0") && said.contains("room of `b`, rank [0]"), "{said}");
    assert!(said.contains("Recv, stripe 0") && said.contains("a message of `a`"), "{said}");
}

fn slots(slot: &str, pushes: &str, rest: &str) -> String {
    let items = format!(
        "shape {{ ranks: 1..=4, most: 1..=4 }}
         output got: i32[4];
         message Word {{ value: i32 }}
         channel c: slots<Word> over nvlink from Talk to Hear per all {{ slot: {slot}, epochs: 2 }};
         role Talk on block 0, 1 warps {{ {pushes} }}
         role Hear on block 0, 1 warps {{ {rest} }}"
    );
    Case::new(&items, &[("ranks", "1"), ("most", "2")], 1).wrong()
}

#[test]
fn slots_are_filled_once_and_all() {
    let index = "[k: most, source]";
    let hear = "await c; store got[0] = c[1, 0].value;";
    assert_eq!(slots(index, "for k in most { push c[0] at k { value: k }; }", hear), "");
    assert_eq!(
        slots(index, "for k in most { push c[0] at k / 2 { value: k }; }", hear),
        "the slot c[0, 0] gets two messages"
    );
    assert_eq!(
        slots(index, "for k in most { push c[0] at k + 1 { value: k }; }", hear),
        "index 0 of `c` is 2, and its extent is 2"
    );
    assert_eq!(
        slots(index, "for k in 0..1 { push c[0] at k { value: k }; }", hear),
        "no rank will send what this role waits for: the slot [1, 0] of `c`, rank [0]"
    );
    assert_eq!(
        slots(index, "for k in 0..1 { push c[1] at k { value: k }; }", hear),
        "1 is no peer of `c`"
    );
    let counted = "[source, k: most]";
    let hear = "for m in c[0] { store got[m.row] = m.value; } ";
    let pushes = |n: u32| format!("for k in 0..{n} {{ push c[0] {{ value: k }}; }} close c;");
    assert_eq!(slots(counted, &pushes(2), hear), "");
    assert_eq!(slots(counted, &pushes(3), hear), "c[0] has 2 slots and receives more messages");
    assert_eq!(
        slots(counted, "close c; for k in most { push c[0] { value: k }; }", hear),
        "`c` is closed already"
    );
}

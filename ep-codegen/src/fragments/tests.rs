//! What uses of fragments become, and what is said about wrong files.

use super::expand;
use super::known::{Known, STANDARD};
use crate::ast::{File, Item, Stmt, StmtKind};
use crate::check::check;
use crate::diagnostics::Diagnostics;
use crate::syntax::{parse, reprint};

fn expanded(source: &str, files: &[(&str, &str)]) -> (File, Diagnostics) {
    let (mut file, mut errors) = parse(source.parse().expect("the test's brackets are balanced"));
    assert!(errors.is_empty(), "{}", errors.to_text(source));
    let load = |path: &str| match files.iter().find(|(name, _)| *name == path) {
        Some((_, text)) => Ok(text.to_string()),
        None => Err("no such file".to_string()),
    };
    expand(&mut file, &load, &mut errors);
    (file, errors)
}

/// The statements of the first role, each with those of its block in braces.
fn statements(source: &str) -> String {
    fn all(body: &[Stmt]) -> String {
        let text = |stmt: &Stmt| match &stmt.kind {
            StmtKind::For(inner) => format!("{} {{ {} }}", stmt.source.text, all(&inner.body)),
            StmtKind::When(when) => format!("{} {{ {} }}", stmt.source.text, all(&when.body)),
            _ => stmt.source.text.clone(),
        };
        body.iter().map(text).collect::<Vec<_>>().join(" ")
    }
    let (file, errors) = expanded(source, &[]);
    assert!(errors.is_empty(), "{}", errors.to_text(source));
    let role = file.pipelines[0].items.iter().find_map(|item| match item {
        Item::Role(role) => Some(role),
        _ => None,
    });
    all(&role.expect("the pipeline has a role").body)
}

/// A pipeline whose one role has these statements, beside fragments.
fn with(fragments: &str, body: &str) -> String {
    statements(&format!(
        "{fragments} pipeline P {{
            input a: i32[8, 8]; output y: i32[8, 8], z: i32[8]; channel c: slots<M> over nvlink from R to R per all;
            role R on block 0 {{ {body} }}
        }}"
    ))
}

fn errors(source: &str, files: &[(&str, &str)]) -> Vec<String> {
    let (_, errors) = expanded(source, files);
    errors.sorted().iter().map(|error| error.message().to_string()).collect()
}

#[test]
fn standard_fragments_are_right() {
    for text in STANDARD {
        let (file, mut errors) = parse(text.parse().expect("its brackets are balanced"));
        assert!(!file.fragments.is_empty() && file.pipelines.is_empty());
        let known = Known::new(&File::default(), &|_| Err(String::new()), &mut errors);
        file.fragments.iter().for_each(|fragment| known.check(fragment, &mut errors));
        assert!(errors.is_empty(), "{}", errors.to_text(text));
    }
}

#[test]
fn arguments_stand_for_parameters() {
    let fragments = "fragment put(to: tensor, at: value, from: message, c: channel) {
        for i in ranks { store to[i, at * 2] = from.to + at; }
        push c[me] { ..from, at: -at };
    }";
    assert_eq!(
        with(fragments, "for m in c { put(y, 1 + z[0], m, c); }"),
        "for m in c { for i in ranks { store y[i, (1 + z[0]) * 2] = m.to + (1 + z[0]); } \
         push c[me] { ..m, at: -(1 + z[0]) }; }"
    );
}

#[test]
fn a_block_stands_where_the_fragment_names_it_and_keeps_its_names() {
    let fragments = "fragment each(turn: name, body: block) { for i in ranks { for turn in ranks { body(); } } }
        fragment twice(body: block) { each(j, body); body(); }";
    assert_eq!(
        with(fragments, "for i in ranks { each(j, { store y[i, j] = 1; }); }"),
        "for i in ranks { for i_2 in ranks { for j in ranks { store y[i, j] = 1; } } }"
    );
    // A block that uses the fragment it is given to is no recursion.
    assert_eq!(
        with(fragments, "twice({ each(k, { count z[k]; }); });"),
        "for i_2 in ranks { for j in ranks { for i in ranks { for k in ranks { count z[k]; } } } } \
         for i in ranks (2) { for k in ranks (2) { count z[k] (2); } }"
    );
}

#[test]
fn names_of_a_fragment_are_its_own() {
    let fragments = "fragment one(to: tensor, by: value) {
        let first = sum(i in ranks: i * by);
        store to[first] = first;
    }
    fragment two(to: tensor) { one(to, 1); let i = 2; one(to, i); }";
    // Nothing around has these names.
    let alone = "let first = sum(i in ranks: i * 1); store z[first] = first;";
    assert_eq!(with(fragments, "one(z, 1);"), alone);
    // An argument has, a loop around has, a declaration has.
    let apart = "let first = sum(i_2 in ranks: i_2 * i); store z[first] = first;";
    assert_eq!(
        with(fragments, "for i in ranks { one(z, i); }"),
        format!("for i in ranks {{ {apart} }}")
    );
    assert_eq!(
        with("fragment f(to: tensor) { for a in ranks { count to[a]; } }", "f(z);"),
        "for a_2 in ranks { count z[a_2]; }"
    );
    // What comes later in the block sees no `let` of the fragment.
    assert_eq!(
        with(fragments, "one(z, 1); let first = 3; count z[first];"),
        "let first_2 = sum(i in ranks: i * 1); store z[first_2] = first_2; let first = 3; count z[first];"
    );
    assert_eq!(
        with(fragments, "two(z);"),
        "let first = sum(i in ranks: i * 1); store z[first] = first; let i = 2; \
         let first_2 = sum(i_2 in ranks: i_2 * i); store z[first_2] = first_2;"
    );
}

#[test]
fn parts_of_an_if_read_as_in_the_fragment() {
    let fragments =
        "fragment pick(n: value, to: tensor) { if n > 1 { count to[0]; } else { count to[1]; } }";
    assert_eq!(
        with(fragments, "pick(z[0], z);"),
        "if z[0] > 1 if z[0] > 1 { count z[0]; } else { count z[1]; }"
    );
}

/// Later stages know a statement by its line and text.
#[test]
fn equal_statements_of_one_line_are_told_apart() {
    let fragments = "fragment f(to: tensor) { count to[0]; count to[0]; }";
    assert_eq!(
        with(fragments, "f(z);\n f(z);"),
        "count z[0]; count z[0] (2); count z[0]; count z[0] (2);"
    );
}

#[test]
fn declarations_of_a_fragment_stand_in_the_pipeline() {
    let source = "items sizes { size rows; use shapes; } items shapes { shape { ranks: 1..=8 } }
        pipeline P { variant v { A, B } when v is A { use sizes; } }";
    let (file, errors) = expanded(source, &[]);
    assert!(errors.is_empty(), "{}", errors.to_text(source));
    let Item::When(when) = &file.pipelines[0].items[1] else { panic!("not a `when`") };
    assert!(matches!(when.body.as_slice(), [Item::Size(_), Item::Shape(_)]), "{:?}", when.body);
}

#[test]
fn fragments_of_files_are_used_like_those_of_the_block() {
    let source = "fragments from \"src/some.pipe\"; pipeline P { use some; output z: i32[8]; role R on block 0 { f(z); } }";
    let text = "// Not a doc comment.\n/// Some.\nitems some { size n; } fragment f(to: tensor) { count to[0]; }";
    assert_eq!(errors(source, &[("src/some.pipe", text)]), [""; 0]);
    assert_eq!(errors(source, &[])[0], "cannot read `src/some.pipe`: no such file");
    for (text, wanted) in [
        (
            "items some { size n; } fragment f(to: tensor) { stor to[0] = 1; }",
            "`src/some.pipe`: unknown statement `stor`",
        ),
        ("items some { size n } pipeline Q { }", "`src/some.pipe`: missing `;`"),
        (
            "fragment f(to: value) { count to[0]; }",
            "`src/some.pipe`: `to` is a value, and this place needs a tensor",
        ),
        ("items payload { }", "`src/some.pipe`: `payload` is already a standard fragment"),
        (
            "items some { } pipeline Q { }",
            "`src/some.pipe`: unknown declaration of a file of fragments `pipeline`",
        ),
        ("fragment f(", "cannot read `src/some.pipe`: cannot parse string into token stream"),
    ] {
        assert!(
            errors(source, &[("src/some.pipe", text)]).contains(&wanted.to_string()),
            "{wanted}: {:?}",
            errors(source, &[("src/some.pipe", text)])
        );
    }
}

#[test]
fn an_error_leads_from_the_use_to_the_statement() {
    let source = "pipeline P { role R on block 0 { g(); } }
fragments from \"f.pipe\";
fragment g() {
    for turn in ranks { f(turn); }
}";
    let files = [("f.pipe", "fragment f(n: value) { h(n); }")];
    let (file, mut errors) = expanded(source, &files);
    errors.trace(&file.origins);
    let said = errors.to_text(source);
    let wanted = "error: unknown fragment `h`
  |
1 | pipeline P { role R on block 0 { g(); } }
  |                                  ^

error: `f(turn);` stands in the fragment `g`
  |
4 |     for turn in ranks { f(turn); }
  |                         ^^^^^^^^

error: `h(n);` stands in the fragment `f` of `f.pipe`
  |
1 | pipeline P { role R on block 0 { g(); } }
  |                                  ^

";
    assert_eq!(said, wanted);
}

#[test]
fn arguments_of_arguments_do_not_grow_without_end() {
    let mut source = String::from("fragment f0(n: value, to: tensor) { count to[n]; }");
    for level in 1..8 {
        let below = level - 1;
        let sum = vec!["n"; 60].join(" + ");
        source += &format!("fragment f{level}(n: value, to: tensor) {{ f{below}({sum}, to); }}");
    }
    source += "pipeline P { output z: i32[8]; role R on block 0 { f7(1, z); } }";
    assert_eq!(errors(&source, &[]), ["the expansion of `f5` is too large"]);
}

/// Statements as tokens print them and as the tree does.
#[test]
fn a_statement_reads_the_same_from_its_tree() {
    for text in [
        "for token in stripe at first[me] where in_rank[token, peer] && !(a || b) { }",
        "for token in tokens gather part from ring[peer, 1] at [token, -1] across peer in ranks { }",
        "for row in first[peer]..first[peer] + count[peer] { }",
        "for message in rows[source] { }",
        "announce ring[peer] { first: -1 - n, count: 0 };",
        "push local[peer] at a * (b + c) { ..message, experts: local(message.experts, peer) };",
        "push parts {};",
        "store x[i] = sum(part.x) + if i >= 0 { t[i] } else if b { 0.5 } else { -2 } * 3;",
        "record y = prefix_sum(s in 0..source: counts[s].per_rank[dest]) as i32;",
        "add z[0] = (a - (b - c)) as f32 / (x as f32) % 2;",
        "count n[a < b || c == d && e];",
        "raise words[row / 64];",
        "await words[0] >= n + 1;",
        "await counts;",
        "close rows;",
        "let a = -(x + 1) as i32;",
        "unpack(message, a + 1, x);",
        "if a && b { }",
        "when via is Ring | Pull { }",
    ] {
        let source = format!("pipeline P {{ role R on block 0 {{ {text} }} }}");
        let (file, errors) = parse(source.parse().expect("the test's brackets are balanced"));
        assert!(errors.is_empty(), "{}", errors.to_text(&source));
        let Item::Role(role) = &file.pipelines[0].items[0] else { panic!("not a role") };
        let again = reprint::statement(&role.body[0], &mut String::new());
        // Brackets that say nothing are not kept.
        let wanted = role.body[0].source.text.replace("(x as f32)", "x as f32");
        assert_eq!(again, wanted);
    }
}

#[test]
fn arms_of_a_variant_are_those_of_the_place_of_use() {
    let fragments =
        "fragment inner(axis: variant, to: tensor) { when axis is A | B { count to[0]; } }
        fragment outer(axis: variant, to: tensor) { inner(axis, to); }
        items axes { variant via { A, B, C } }";
    let source = format!(
        "{fragments} pipeline P {{ use axes; output z: i32[8]; role R on block 0 {{ outer(via, z); }} }}"
    );
    assert_eq!(statements(&source), "when via is A | B { count z[0]; }");
}

#[test]
fn fragments_have_two_sorts() {
    let source = "fragment f() { } items g { } pipeline P { use f; role R on block 0 { g(); } }";
    assert_eq!(
        errors(source, &[]),
        ["`f` is a fragment of statements", "`g` is a fragment of declarations"]
    );
}

/// One `if` may write what its own `else` writes, not what the `else` of another one does.
#[test]
fn conditions_of_a_fragment_are_told_apart() {
    let said = |other: &str, last: &str| {
        let source = format!(
            "fragment both(a: value, b: value, to: tensor) {{
                if a {{ store to[0] = 1; }} else {{ store to[{other}] = 2; }}
                if b {{ store to[1] = 3; }} else {{ store to[{last}] = 4; }}
            }}
            pipeline P {{
                shape {{ ranks: 1..=8 }} input x: i32[8]; output y: i32[8];
                role R on block 0, 1 warps {{ both(x[0] > 0, x[1] > 0, y); }}
            }}"
        );
        let (file, _) = expanded(&source, &[]);
        let errors = check(&file);
        errors.sorted().iter().map(|error| error.message().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(said("0", "1"), [""; 0]);
    assert_eq!(said("2", "0"), ["`y` is stored twice"]);
}

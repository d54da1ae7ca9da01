//! Whole declarations through the parser: what it reads, where, and what it says.

use super::parse;
use crate::ast::{ExprKind, Item, Stmt, StmtKind};

fn errors(text: &str) -> String {
    let (_, errors) = parse(text.parse().expect("the test's brackets are balanced"));
    errors.to_text(text)
}

/// Every mistake as `line: message (help)`.
fn listed(text: &str) -> Vec<String> {
    let (_, errors) = parse(text.parse().expect("the test's brackets are balanced"));
    let sorted = errors.sorted().into_iter();
    sorted
        .map(|error| {
            let line = error.labels[0].at.first.start().line;
            let help = error.help.as_deref().unwrap_or("no help");
            format!("{line}: {} ({help})", error.message())
        })
        .collect()
}

/// The parse of `size n = <text>;`, every operation in brackets.
fn expr(text: &str) -> String {
    let text = format!("pipeline P {{ size n = {text}; }}");
    let (file, errors) = parse(text.parse().expect("the test's brackets are balanced"));
    assert!(errors.is_empty(), "{}", errors.to_text(&text));
    match &file.pipelines[0].items[0] {
        Item::Size(size) => show(size.value.as_ref().expect("the size has a value")),
        other => panic!("not a size: {other:?}"),
    }
}

fn show(expr: &crate::ast::Expr) -> String {
    let all = |list: &[crate::ast::Expr]| list.iter().map(show).collect::<Vec<_>>().join(", ");
    match &expr.kind {
        ExprKind::Real(value) => format!("{value:?}"),
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Name(name) => name.to_string(),
        ExprKind::Index { base, indices } => format!("{}[{}]", show(base), all(indices)),
        ExprKind::Field { base, field } => format!("{}.{field}", show(base)),
        ExprKind::Call { helper, args } => format!("{helper}({})", all(args)),
        ExprKind::Fold { helper, binder, body, .. } => {
            format!("{helper}({binder}: {})", show(body))
        }
        ExprKind::Cast { value, elem } => format!("({} as {elem})", show(value)),
        ExprKind::Not { value } => format!("(!{})", show(value)),
        ExprKind::Neg { value } => format!("(-{})", show(value)),
        ExprKind::If { condition, yes, no } => {
            format!("(if {} then {} else {})", show(condition), show(yes), show(no))
        }
        ExprKind::Binary { op, left, right, .. } => {
            format!("({} {op:?} {})", show(left), show(right))
        }
    }
}

#[test]
fn operators_bind_as_in_rust() {
    assert_eq!(expr("a + b * c"), "(a Add (b Mul c))");
    assert_eq!(
        expr("2 * if a < b { c } else if d { e } else { f + 1 } + g"),
        "((2 Mul (if (a Lt b) then c else (if d then e else (f Add 1)))) Add g)"
    );
    assert_eq!(expr("a - b - c"), "((a Sub b) Sub c)");
    assert_eq!(expr("(a + b) * c"), "((a Add b) Mul c)");
    assert_eq!(expr("a < b && c >= d || e == f"), "(((a Lt b) And (c Ge d)) Or (e Eq f))");
    assert_eq!(expr("a * b as f32 + c"), "((a Mul (b as f32)) Add c)");
    assert_eq!(expr("!a && -b < -1"), "((!a) And ((-b) Lt -1))");
    assert_eq!(expr("t[i, j + 1].f[k]"), "t[i, (j Add 1)].f[k]");
    assert_eq!(expr("align(sum(s in ranks: c[s].n), 4)"), "align(sum(s: c[s].n), 4)");
}

#[test]
fn every_word_of_the_language_may_be_a_name() {
    let text = "pipeline P { shape { shape: 1..=2, ring: 1..=2 } input table: i32[ring], at: i32[shape]; \
        role Role on all blocks { for message in ring { store table[message] = at[0]; } } }";
    assert_eq!(errors(text), "");
}

#[test]
fn statements_know_their_line_and_text() {
    let text = "/// Doc.\npub pipeline P {\n role R on block 0 {\n  for t in tokens\n   where ok[t] {\n\n   \
        count   n[t ];\n  }\n }\n}";
    let (file, errors) = parse(text.parse().expect("the test's brackets are balanced"));
    assert!(errors.is_empty());
    let pipeline = &file.pipelines[0];
    assert_eq!(pipeline.doc, ["Doc."]);
    let Item::Role(role) = &pipeline.items[0] else { panic!("not a role") };
    assert_eq!(role.source.text, "role R on block 0");
    let line = |stmt: &Stmt| stmt.source.tokens.first.start().line - pipeline.keyword.start().line;
    let outer = &role.body[0];
    assert_eq!((line(outer), outer.source.text.as_str()), (2, "for t in tokens where ok[t]"));
    let StmtKind::For(head) = &outer.kind else { panic!("not a loop") };
    let inner = &head.body[0];
    assert_eq!((line(inner), inner.source.text.as_str()), (5, "count n[t];"));
}

#[test]
fn mistakes_of_several_items_are_all_reported() {
    let text = "pipeline P {
    shpe { ranks: 1..=8 }
    size tokens
    input x: bf16[tokens hidden];
    channel ring: rng<Token> over nvlink from Send to Recv per all;
    role Send on evn blocks { }
    role Recv on odd blocks {
        for token in stripe { stor x[token] = 1; count y[token] count z[token]; }
        push ring { x: 1 } extra;
    }
}";
    let expected = [
        "2: unknown declaration `shpe` (did you mean `shape`?)",
        "3: missing `;` (size tokens;)",
        "4: expected `,`, found `hidden` (write `,` before `hidden`)",
        "5: unknown channel kind `rng` (did you mean `ring`?)",
        "6: unknown blocks `evn` (did you mean `even`?)",
        "8: unknown statement `stor` (did you mean `store`?)",
        "8: missing `;` (count y[token];)",
        "9: unexpected `extra` (push ring { x: 1 };)",
    ];
    assert_eq!(listed(text), expected);
}

#[test]
fn a_stray_token_between_pipelines_costs_only_itself() {
    let text = "pipeline A { } ; pipelin B { } pub pipeline C { ; }";
    let (file, _) = parse(text.parse().expect("the test's brackets are balanced"));
    let names: Vec<String> = file.pipelines.iter().map(|p| p.name.to_string()).collect();
    assert_eq!(names, ["A", "B", "C"]);
    let expected = [
        "1: expected `pipeline`, found `;` (write `pipeline`)",
        "1: expected `pipeline`, found `pipelin` (did you mean `pipeline`?)",
        "1: unexpected `;` (remove it)",
    ];
    assert_eq!(listed(text), expected);
}

#[test]
fn mistakes_of_fragments_are_all_reported() {
    let text = "fragmnt f() { }
item g { }
fragment h(n: valu) { count n[0] }
fragments form \"h.pipe\";
items i { tabel t: i32[8]; use j }
pipeline P { role R on block 0 { h(1 2); g({ stor x[0] = 1; }); } }";
    let expected = [
        "1: unknown declaration `fragmnt` (did you mean `fragment`?)",
        "2: unknown declaration `item` (did you mean `items`?)",
        "3: unknown kind of parameter `valu` (did you mean `value`?)",
        "4: expected `from`, found `form` (did you mean `from`?)",
        "5: unknown declaration `tabel` (did you mean `table`?)",
        "5: missing `;` (use j;)",
        "6: expected `,`, found `2` (no help)",
        "6: unknown statement `stor` (did you mean `store`?)",
    ];
    assert_eq!(listed(text), expected);
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = format!("pipeline P {{ size n = {}1{}; }}", "(".repeat(200), ")".repeat(200));
    assert!(errors(&deep).contains("nested too deeply"));
    let minus = format!("pipeline P {{ size n = {}1; }}", "!".repeat(200));
    assert!(errors(&minus).contains("nested too deeply"));
    let blocks = "for a in tokens { ".repeat(40) + &"}".repeat(40);
    assert!(
        errors(&format!("pipeline P {{ role R on block 0 {{ {blocks} }} }}")).contains("nested")
    );
}

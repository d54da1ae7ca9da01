//! What the tests of the rules share: small pipelines, and what `check` says to them.

use super::check;
use crate::syntax::parse;

/// The sentences about a `pipeline!` block, in order.
pub(super) fn said(block: &str) -> Vec<String> {
    let (file, form) = parse(block.parse().expect("the test's brackets are balanced"));
    assert!(form.is_empty(), "{}", form.to_text(block));
    check(&file).sorted().iter().map(|error| error.message().to_string()).collect()
}

/// The sentences about a pipeline with these declarations.
pub(super) fn said_to(items: &str) -> Vec<String> {
    said(&format!("pipeline P {{ {items} }}"))
}

/// A pipeline with numbers, an output and these roles; `store out[row] = 0;` fills the output.
pub(super) fn with_roles(roles: &str) -> Vec<String> {
    said_to(&format!(
        "shape {{ ranks: 1..=8, stripes: 1..=8, hidden: 16..=64 step 16 }}
         size tokens; size rows;
         input x: bf16[tokens, hidden], first: i32[ranks, stripes], num: i32[ranks, stripes];
         message Row {{ row x: bf16[hidden] }}
         {roles}"
    ))
}

/// A ring of [`with_roles`] between two roles.
pub(super) fn ring(name: &str, from: &str, to: &str) -> String {
    format!(
        "channel {name}: ring<Row> over nvlink from {from} to {to} per all {{
            depth: 64, chunk: 8, header: [first, count]
         }};"
    )
}

/// The `announce` of a ring.
pub(super) fn announce(name: &str) -> String {
    format!("announce {name}[peer] {{ first: first[peer, stripe], count: num[peer, stripe] }};")
}

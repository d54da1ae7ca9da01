//! Declarations that do not have the form of one: what the parser says.

use super::{Diagnostic, listed};
use crate::ast::{Ident, TokenRange};
use crate::spelling::nearest;

/// A value that is missing where a condition does not hold.
pub(crate) fn if_without_else(at: TokenRange) -> Diagnostic {
    Diagnostic::new(at, "an `if` that gives a value needs an `else`").help("else { 0 }")
}

/// What to write instead of `found`: the near miss, or all there is.
fn suggestion(found: &str, words: &[&str]) -> String {
    match nearest(found, words.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write {}", alternatives(words)),
    }
}

fn alternatives(words: &[&str]) -> String {
    listed(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>(), "or")
}

/// Something else than what must stand here; `found` brings its own quotes.
pub(crate) fn expected(at: impl Into<TokenRange>, what: &str, found: &str) -> Diagnostic {
    Diagnostic::new(at, format!("expected {what}, found {found}"))
}

/// Something else than one word.
pub(crate) fn expected_word(at: impl Into<TokenRange>, word: &str, found: &str) -> Diagnostic {
    let bare = found.trim_matches('`');
    Diagnostic::new(at, format!("expected `{word}`, found {found}")).help(suggestion(bare, &[word]))
}

/// Something else than one of a few words.
pub(crate) fn expected_one_of(
    at: impl Into<TokenRange>,
    what: &str,
    found: &str,
    words: &[&str],
) -> Diagnostic {
    Diagnostic::new(at, format!("expected {what}, found {found}"))
        .help(format!("write {}", alternatives(words)))
}

/// A word that is none of a closed list.
pub(crate) fn unknown_word(
    at: impl Into<TokenRange>,
    what: &str,
    found: &str,
    words: &[&str],
) -> Diagnostic {
    Diagnostic::new(at, format!("unknown {what} `{found}`")).help(suggestion(found, words))
}

/// A sign or word too many.
pub(crate) fn unexpected(at: impl Into<TokenRange>, found: &str) -> Diagnostic {
    Diagnostic::new(at, format!("unexpected {found}")).help("remove it")
}

/// A sign or word too many, before the `;` of `text`.
pub(crate) fn unexpected_before_end(
    at: impl Into<TokenRange>,
    found: &str,
    text: &str,
) -> Diagnostic {
    Diagnostic::new(at, format!("unexpected {found}")).help(format!("{text};"))
}

/// No `;` behind `text`.
pub(crate) fn missing_semicolon(at: impl Into<TokenRange>, text: &str) -> Diagnostic {
    Diagnostic::new(at, "missing `;`").help(format!("{text};"))
}

/// A statement where declarations stand.
pub(crate) fn statement_outside_role(at: impl Into<TokenRange>, word: &str) -> Diagnostic {
    Diagnostic::new(at, format!("`{word}` is a statement, and statements belong in a role"))
        .help(format!("role Work on all blocks {{ {word} .. }}"))
}

/// A declaration where statements stand.
pub(crate) fn declaration_in_role(at: impl Into<TokenRange>, word: &str) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{word}` is a declaration, and declarations do not belong in a role"),
    )
    .help("move it out of the role")
}

/// A name that starts with `r#`.
pub(crate) fn raw_name(name: &Ident, bare: &str) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is no name in CUDA"))
        .help(format!("choose another name, for example `{bare}_`"))
}

/// A keyword of Rust as a name.
pub(crate) fn rust_keyword(at: impl Into<TokenRange>, what: &str, word: &str) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("expected {what}, found `{word}`, which is a reserved word of Rust"),
    )
    .help(format!("choose another name, for example `{word}_`"))
}

/// A number such as `8u32`.
pub(crate) fn number_with_suffix(
    at: impl Into<TokenRange>,
    literal: &str,
    digits: &str,
) -> Diagnostic {
    Diagnostic::new(at, format!("the number `{literal}` has a type suffix")).help(digits)
}

/// A number beyond `i64`.
pub(crate) fn number_too_large(at: impl Into<TokenRange>, literal: &str) -> Diagnostic {
    Diagnostic::new(at, format!("the number `{literal}` needs more than 64 bits"))
        .help(i64::MAX.to_string())
}

/// A decimal number that an `f32` cannot hold.
pub(crate) fn decimal_too_large(at: impl Into<TokenRange>, number: &str) -> Diagnostic {
    Diagnostic::new(at, format!("`{number}` is greater than the greatest `f32`"))
        .help(format!("{:e}", f32::MAX))
}

/// Brackets with nothing between them.
pub(crate) fn empty_brackets(at: impl Into<TokenRange>, what: &str, example: &str) -> Diagnostic {
    Diagnostic::new(at, format!("expected {what} between the brackets")).help(example)
}

/// `bits[]` or `bits[a, b]`.
pub(crate) fn one_bit_count(at: impl Into<TokenRange>) -> Diagnostic {
    Diagnostic::new(at, "`bits` takes one number").help("bits[local_ranks]")
}

/// A clause of a role that is there already.
pub(crate) fn clause_twice(at: TokenRange, what: &str) -> Diagnostic {
    Diagnostic::new(at, format!("the role repeats {what}")).help("keep one of the two")
}

/// A second range of values.
pub(crate) fn values_twice(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` has two ranges of values")).help("keep one of the two")
}

/// `..message` in an `announce`.
pub(crate) fn rest_in_announce(rest: &Ident) -> Diagnostic {
    Diagnostic::new(rest, "an `announce` names each number of the header")
        .help("first: .., count: ..")
}

/// `..message` a second time.
pub(crate) fn rest_twice(rest: &Ident) -> Diagnostic {
    Diagnostic::new(rest, "only one message can be copied with `..`").help("keep one of the two")
}

/// `1..64` as a range of legal values.
pub(crate) fn range_without_end(at: impl Into<TokenRange>) -> Diagnostic {
    Diagnostic::new(at, "a range of legal values includes its end").help("write `..=`")
}

/// `0..=8` as what a loop runs over.
pub(crate) fn range_with_end(at: impl Into<TokenRange>) -> Diagnostic {
    Diagnostic::new(at, "a range of a loop ends before its last number")
        .help("write `..` and one more")
}

/// An expression too deep to be read, by the compiler or anyone.
pub(crate) fn nested_too_deeply(at: impl Into<TokenRange>) -> Diagnostic {
    Diagnostic::new(at, "the expression is nested too deeply")
        .help("give a part of it a name with `let`")
}

/// `a < b < c`.
pub(crate) fn comparisons_chained(at: impl Into<TokenRange>) -> Diagnostic {
    Diagnostic::new(at, "comparisons cannot be chained").help("combine two comparisons with `&&`")
}

/// A binder in the brackets of a helper that does not fold.
pub(crate) fn not_a_fold(helper: &Ident) -> Diagnostic {
    Diagnostic::new(helper, format!("`{helper}` does not fold over a binder"))
        .help("write `sum(..)`, `max(..)`, `min(..)` or `prefix_sum(..)`")
}

/// Blocks inside blocks inside blocks.
pub(crate) fn blocks_too_deep(at: impl Into<TokenRange>, max: u32) -> Diagnostic {
    Diagnostic::new(at, format!("blocks are nested more than {max} deep"))
        .help("combine the conditions, or move the inner blocks into another role")
}

/// A right statement that the generator cannot write as CUDA.
pub(crate) fn no_cuda_form(at: TokenRange, name: &Ident, why: &str) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` cannot be emitted: {why}"))
        .help("docs/dsl.md lists, under `what comes out`, what is not emitted and why")
}

/// A pipeline that the generator cannot write as CUDA.
pub(crate) fn no_cuda(name: &Ident, why: &str) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` cannot be emitted: {why}"))
}

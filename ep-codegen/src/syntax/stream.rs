//! Reading single tokens and lists from a syn stream, and going on after a mistake.

use proc_macro2::extra::DelimSpan;
use proc_macro2::{TokenStream, TokenTree};
use syn::buffer::Cursor;
use syn::ext::IdentExt;
use syn::parse::{ParseBuffer, ParseStream};
use syn::{LitFloat, LitInt, LitStr, Token};

use super::print;
use crate::ast::{Excerpt, Ident, Int, Number, Span, TokenRange, Word};
use crate::diagnostics::{Diagnostic, Diagnostics, form};
use crate::ir;

/// What a parsing function gives: its node, or the mistake that ended it.
pub(super) type Result<T> = std::result::Result<T, Diagnostic>;

impl From<syn::Error> for Diagnostic {
    fn from(error: syn::Error) -> Diagnostic {
        Diagnostic::new(error.span(), error.to_string())
    }
}

/// The next token for a message: `` `;` `` or `the end of the block`.
pub(super) fn found(input: ParseStream) -> String {
    match input.cursor().token_tree() {
        None => "the end of the block".to_string(),
        Some((TokenTree::Group(group), _)) => {
            let text = group.to_string();
            format!("`{}`", text.chars().next().unwrap_or('{'))
        }
        Some((TokenTree::Punct(_), _)) if input.peek(Token![..]) => "`..`".to_string(),
        Some((tree, _)) => format!("`{tree}`"),
    }
}

/// "expected X, found Y" at the next token.
pub(super) fn expected(input: ParseStream, what: &str) -> Diagnostic {
    form::expected(input.span(), what, &found(input))
}

/// The next token as a word, Rust's keywords included, without taking it.
pub(super) fn peek_word(input: ParseStream) -> Option<String> {
    input.cursor().ident().map(|(ident, _)| ident.to_string())
}

/// Whether the next token is `word`.
pub(super) fn at_word(input: ParseStream, word: &str) -> bool {
    peek_word(input).as_deref() == Some(word)
}

/// Takes any word, Rust's keywords included.
pub(super) fn any_word(input: ParseStream, what: &str) -> Result<Ident> {
    input.call(syn::Ident::parse_any).map(Ident::from).map_err(|_| expected(input, what))
}

/// Takes a name that the author chose.
pub(super) fn name(input: ParseStream, what: &str) -> Result<Ident> {
    if let Ok(ident) = input.parse::<syn::Ident>() {
        let ident = Ident::from(ident);
        return match ident.to_string().strip_prefix("r#") {
            None => Ok(ident),
            Some(bare) => Err(form::raw_name(&ident, bare)),
        };
    }
    match peek_word(input) {
        Some(word) if word != "_" => Err(form::rust_keyword(input.span(), what, &word)),
        _ => Err(expected(input, what)),
    }
}

/// Takes `word` if it comes next.
pub(super) fn take_word(input: ParseStream, word: &str) -> Option<Span> {
    if !at_word(input, word) {
        return None;
    }
    input.call(syn::Ident::parse_any).ok().map(|ident| ident.span().into())
}

/// Takes `word`, which must come next.
pub(super) fn word(input: ParseStream, word: &str) -> Result<Span> {
    if let Some(span) = take_word(input, word) {
        return Ok(span);
    }
    Err(form::expected_word(input.span(), word, &found(input)))
}

/// Takes a word of a closed list.
pub(super) fn one_of<T: Copy>(
    input: ParseStream,
    what: &str,
    list: &[(&str, T)],
) -> Result<Word<T>> {
    let words: Vec<&str> = list.iter().map(|(word, _)| *word).collect();
    if let Some(found) = peek_word(input) {
        if let Some((_, value)) = list.iter().find(|(word, _)| *word == found) {
            return Ok(Word { value: *value, span: any_word(input, what)?.span() });
        }
        return Err(form::unknown_word(input.span(), what, &found, &words));
    }
    Err(form::expected_one_of(input.span(), &format!("a {what}"), &found(input), &words))
}

/// Takes a sign such as `Token![:]`.
pub(super) fn sign<T: syn::parse::Parse>(input: ParseStream, text: &str) -> Result<T> {
    input.parse::<T>().map_err(|_| expected(input, &format!("`{text}`")))
}

/// Takes an integer, a minus sign allowed.
pub(super) fn int(input: ParseStream) -> Result<Int> {
    let minus = input.parse::<Token![-]>().ok();
    if input.peek(LitFloat) {
        return Err(expected(input, "a whole number"));
    }
    let literal: LitInt = input.parse().map_err(|_| expected(input, "a whole number"))?;
    if !literal.suffix().is_empty() {
        let digits = literal.base10_digits();
        return Err(form::number_with_suffix(literal.span(), &literal.to_string(), digits));
    }
    let sign = if minus.is_some() { "-" } else { "" };
    let value = format!("{sign}{}", literal.base10_digits())
        .parse::<i64>()
        .map_err(|_| form::number_too_large(literal.span(), &literal.to_string()))?;
    Ok(Int { value, span: literal.span().into() })
}

/// Takes a whole or decimal number, a minus sign allowed.
pub(super) fn number(input: ParseStream) -> Result<Number> {
    let is_decimal = input.peek(LitFloat) || input.peek(Token![-]) && input.peek2(LitFloat);
    if !is_decimal {
        let Int { value, span } = int(input)?;
        return Ok(Number { value: ir::Number::Whole { value }, span });
    }
    let minus = input.parse::<Token![-]>().is_ok();
    let (value, span) = decimal(input)?;
    Ok(Number { value: ir::Number::real(if minus { -value } else { value }), span })
}

/// Takes a decimal number: the nearest `f32`.
pub(super) fn decimal(input: ParseStream) -> Result<(f32, Span)> {
    let literal: LitFloat = input.parse().map_err(|_| expected(input, "a number"))?;
    if !literal.suffix().is_empty() {
        let digits = literal.base10_digits();
        return Err(form::number_with_suffix(literal.span(), &literal.to_string(), digits));
    }
    let value = literal.base10_digits().parse().ok().filter(|value: &f32| value.is_finite());
    let value =
        value.ok_or_else(|| form::decimal_too_large(literal.span(), &literal.to_string()))?;
    Ok((value, literal.span().into()))
}

/// Takes a string literal.
pub(super) fn string(input: ParseStream, what: &str) -> Result<(String, Span)> {
    let literal: LitStr = input.parse().map_err(|_| expected(input, what))?;
    Ok((literal.value(), literal.span().into()))
}

/// Opens `{ .. }`.
pub(super) fn braces<'a>(
    input: ParseStream<'a>,
    what: &str,
) -> Result<(ParseBuffer<'a>, DelimSpan)> {
    fn open<'a>(input: ParseStream<'a>) -> syn::Result<(ParseBuffer<'a>, DelimSpan)> {
        let content;
        let braces = syn::braced!(content in input);
        Ok((content, braces.span))
    }
    open(input).map_err(|_| expected(input, &format!("`{{` and {what}")))
}

/// Opens `[ .. ]`.
pub(super) fn brackets<'a>(
    input: ParseStream<'a>,
    what: &str,
) -> Result<(ParseBuffer<'a>, DelimSpan)> {
    fn open<'a>(input: ParseStream<'a>) -> syn::Result<(ParseBuffer<'a>, DelimSpan)> {
        let content;
        let brackets = syn::bracketed!(content in input);
        Ok((content, brackets.span))
    }
    open(input).map_err(|_| expected(input, &format!("`[` and {what}")))
}

/// Opens `( .. )`.
pub(super) fn parens<'a>(
    input: ParseStream<'a>,
    what: &str,
) -> Result<(ParseBuffer<'a>, DelimSpan)> {
    fn open<'a>(input: ParseStream<'a>) -> syn::Result<(ParseBuffer<'a>, DelimSpan)> {
        let content;
        let parens = syn::parenthesized!(content in input);
        Ok((content, parens.span))
    }
    open(input).map_err(|_| expected(input, &format!("`(` and {what}")))
}

/// Takes `entry, entry, ..` up to the end of a bracketed list; the first mistake ends it.
pub(super) fn list<T>(
    content: &ParseBuffer,
    entry: impl Fn(ParseStream) -> Result<T>,
) -> Result<Vec<T>> {
    let mut out = Vec::new();
    while !content.is_empty() {
        let parsed = entry(content).and_then(|parsed| {
            out.push(parsed);
            comma(content)
        });
        if let Err(error) = parsed {
            drain(content);
            return Err(error);
        }
    }
    Ok(out)
}

/// Takes `entry, entry, ..` up to the end of a block; a mistake costs one entry only.
pub(super) fn entries<T>(
    content: &ParseBuffer,
    errors: &mut Diagnostics,
    entry: impl Fn(ParseStream, &mut Diagnostics) -> Result<T>,
) -> Vec<T> {
    let mut out = Vec::new();
    while !content.is_empty() {
        skip_docs(content);
        if content.is_empty() {
            break;
        }
        let parsed = entry(content, errors).and_then(|parsed| {
            out.push(parsed);
            comma(content)
        });
        if let Err(error) = parsed {
            errors.push(error);
            while !content.is_empty() && !content.peek(Token![,]) {
                skip_tree(content);
            }
            skip_tree(content);
        }
    }
    out
}

/// A comma, unless the list ends here.
fn comma(content: ParseStream) -> Result<()> {
    if content.is_empty() {
        return Ok(());
    }
    let help = format!("write `,` before {}", found(content));
    sign::<Token![,]>(content, ",").map(|_| ()).map_err(|error| error.help(help))
}

/// Takes the rest, so that syn does not report it a second time.
pub(super) fn drain(content: ParseStream) {
    while !content.is_empty() {
        skip_tree(content);
    }
}

/// Takes one token or one bracketed group, if there is any.
pub(super) fn skip_tree(input: ParseStream) {
    let taken: syn::Result<TokenTree> = input.parse();
    drop(taken);
}

/// Takes doc comments: they are welcome everywhere and mean nothing to the compiler.
pub(super) fn skip_docs(input: ParseStream) -> Vec<String> {
    let mut lines = Vec::new();
    while input.peek(Token![#]) {
        skip_tree(input);
        let Ok((content, _)) = brackets(input, "an attribute") else { break };
        let line = doc_lines(&content);
        drain(&content);
        lines.extend(line.unwrap_or_default());
    }
    lines
}

fn doc_lines(content: ParseStream) -> Option<Vec<String>> {
    take_word(content, "doc")?;
    content.parse::<Token![=]>().ok()?;
    let text = content.parse::<LitStr>().ok()?.value();
    let line = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_string();
    Some(text.lines().map(line).collect())
}

/// Skips to where the next item or statement of a list can begin: after a `;` or a block, or
/// before one of `keywords`. Always takes at least one token of a non-empty stream.
pub(super) fn recover(input: ParseStream, keywords: &[&str], taken: bool) {
    let mut taken = taken;
    while !input.is_empty() {
        if taken && peek_word(input).is_some_and(|word| keywords.contains(&word.as_str())) {
            return;
        }
        let stop = input.peek(Token![;]) || input.peek(syn::token::Brace);
        skip_tree(input);
        taken = true;
        if stop {
            // `{ .. };` is one end, not two.
            if input.peek(Token![;]) {
                skip_tree(input);
            }
            return;
        }
    }
}

/// Takes the `;` that ends what began at `start`.
pub(super) fn semicolon(input: ParseStream, start: Cursor, keywords: &[&str]) -> Result<()> {
    if input.parse::<Token![;]>().is_ok() {
        return Ok(());
    }
    let source = source(start, input);
    let next_line = input.span().start().line > source.tokens.last.end().line;
    let begins_next = peek_word(input).is_some_and(|word| keywords.contains(&word.as_str()));
    if input.is_empty() || next_line || begins_next {
        return Err(form::missing_semicolon(source.tokens.last, &source.text));
    }
    Err(form::unexpected_before_end(input.span(), &found(input), &source.text))
}

/// The tokens between `start` and where `input` stands now.
pub(super) fn source(start: Cursor, input: ParseStream) -> Excerpt {
    let trees = between(start, input.cursor());
    let first = trees.first().map_or_else(|| input.span(), first_span);
    let last = trees.last().map_or_else(|| input.span(), last_span);
    Excerpt { tokens: TokenRange::from(first).to(last), text: print::tokens(trees) }
}

fn between(start: Cursor, end: Cursor) -> Vec<TokenTree> {
    let mut trees = Vec::new();
    let mut cursor = start;
    while cursor != end {
        let Some((tree, next)) = cursor.token_tree() else { break };
        trees.push(tree);
        cursor = next;
    }
    trees
}

fn first_span(tree: &TokenTree) -> proc_macro2::Span {
    match tree {
        TokenTree::Group(group) => group.span_open(),
        other => other.span(),
    }
}

fn last_span(tree: &TokenTree) -> proc_macro2::Span {
    match tree {
        TokenTree::Group(group) => group.span_close(),
        other => other.span(),
    }
}

/// Takes tokens while `keep` holds.
pub(super) fn take_while(input: ParseStream, keep: impl Fn(ParseStream) -> bool) -> TokenStream {
    let mut out = TokenStream::new();
    while !input.is_empty() && keep(input) {
        if let Ok(tree) = input.parse::<TokenTree>() {
            out.extend([tree]);
        }
    }
    out
}

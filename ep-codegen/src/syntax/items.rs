//! The declarations that are not tensors, messages, channels or roles.

use syn::Token;
use syn::parse::ParseStream;

use super::expr::expr;
use super::stream::{
    Result, any_word, at_word, braces, brackets, entries, expected, int, list, name, number,
    parens, semicolon, sign, source, string, take_word, word,
};
use super::tensor::{elem, tensor};
use crate::ast::{
    Arg, Arm, CudaBody, CudaFn, CudaParam, Ident, Part, Shape, ShapeEntry, Size, Span, Tune, Uses,
    Variant,
};
use crate::diagnostics::{Diagnostics, form};
use crate::keywords::ITEMS;

pub(super) fn shape(input: ParseStream, errors: &mut Diagnostics) -> Result<Shape> {
    let keyword = word(input, "shape")?;
    let (content, _) = braces(input, "the numbers of the shape")?;
    Ok(Shape { keyword, entries: entries(&content, errors, |input, _| shape_entry(input)) })
}

fn shape_entry(input: ParseStream) -> Result<ShapeEntry> {
    let start = input.cursor();
    if input.peek(Token![let]) {
        input.parse::<Token![let]>()?;
        let name = name(input, "a name")?;
        sign::<Token![=]>(input, "=")?;
        let value = expr(input)?;
        return Ok(ShapeEntry::Derived { name, value, source: source(start, input) });
    }
    if at_word(input, "require") && !input.peek2(Token![:]) {
        word(input, "require")?;
        let condition = expr(input)?;
        return Ok(ShapeEntry::Require { condition, source: source(start, input) });
    }
    let name = name(input, "a name, `let` or `require`")?;
    sign::<Token![:]>(input, ":")?;
    let low = int(input)?;
    inclusive(input)?;
    let high = int(input)?;
    let step = match take_word(input, "step") {
        Some(_) => Some(int(input)?),
        None => None,
    };
    Ok(ShapeEntry::Given { name, low, high, step, source: source(start, input) })
}

/// `..=` between two numbers.
fn inclusive(input: ParseStream) -> Result<()> {
    if input.peek(Token![..]) && !input.peek(Token![..=]) {
        return Err(form::range_without_end(input.span()));
    }
    sign::<Token![..=]>(input, "..=").map(|_| ())
}

pub(super) fn variant(input: ParseStream, errors: &mut Diagnostics) -> Result<Variant> {
    let start = input.cursor();
    word(input, "variant")?;
    let name = name(input, "the name of the variant")?;
    let source = source(start, input);
    let (content, _) = braces(input, "the arms of the variant")?;
    let arms = entries(&content, errors, arm);
    Ok(Variant { name, arms, source })
}

fn arm(input: ParseStream, errors: &mut Diagnostics) -> Result<Arm> {
    let name = name(input, "the name of an arm")?;
    if !input.peek(syn::token::Brace) {
        return Ok(Arm { name, parts: Vec::new() });
    }
    let (content, _) = braces(input, "the parts of the arm")?;
    Ok(Arm { name, parts: entries(&content, errors, |input, _| part(input)) })
}

fn part(input: ParseStream) -> Result<Part> {
    let name = name(input, "the name of a part")?;
    sign::<Token![:]>(input, ":")?;
    let elem = elem(input)?;
    let block = match take_word(input, "block") {
        Some(_) => Some(int(input)?),
        None => None,
    };
    Ok(Part { name, elem, block })
}

pub(super) fn tune(input: ParseStream, errors: &mut Diagnostics) -> Result<Vec<Tune>> {
    word(input, "tune")?;
    let (content, _) = braces(input, "numbers with their legal values")?;
    Ok(entries(&content, errors, |input, _| {
        let start = input.cursor();
        let name = name(input, "a name")?;
        sign::<Token![:]>(input, ":")?;
        let default = int(input)?;
        sign::<Token![in]>(input, "in")?;
        let (choices, _) = brackets(input, "the legal values")?;
        let choices = list(&choices, int)?;
        Ok(Tune { name, default, choices, source: source(start, input) })
    }))
}

pub(super) fn arg(input: ParseStream, errors: &mut Diagnostics) -> Result<Vec<Arg>> {
    word(input, "arg")?;
    let (content, _) = braces(input, "run-time numbers")?;
    Ok(entries(&content, errors, |input, _| {
        let start = input.cursor();
        let name = name(input, "a name")?;
        sign::<Token![:]>(input, ":")?;
        let elem = elem(input)?;
        sign::<Token![=]>(input, "=")?;
        let default = number(input)?;
        sign::<Token![in]>(input, "in")?;
        let low = number(input)?;
        inclusive(input)?;
        let high = number(input)?;
        Ok(Arg { name, elem, default, low, high, source: source(start, input) })
    }))
}

pub(super) fn size(input: ParseStream) -> Result<Size> {
    let start = input.cursor();
    word(input, "size")?;
    let name = name(input, "the name of the size")?;
    let (mut value, mut values) = (None, None);
    let clause = input.cursor();
    if input.parse::<Token![=]>().is_ok() {
        value = Some(expr(input)?);
    } else if input.parse::<Token![in]>().is_ok() {
        values = Some(super::tensor::range(input, clause)?);
    }
    let source = source(start, input);
    semicolon(input, start, ITEMS)?;
    Ok(Size { name, value, values, source })
}

pub(super) fn uses(input: ParseStream) -> Result<Uses> {
    let start = input.cursor();
    word(input, "uses")?;
    word(input, "handle")?;
    let (path, name) = path(input)?;
    let source = source(start, input);
    let tables = if input.peek(syn::token::Brace) {
        let (content, _) = braces(input, "the tables that are read")?;
        Some(list(&content, tensor)?)
    } else {
        None
    };
    semicolon(input, start, ITEMS)?;
    Ok(Uses { path, name, tables, source })
}

/// `super::layout::Layout`: all segments, and the last one.
fn path(input: ParseStream) -> Result<(Vec<Ident>, Ident)> {
    let mut segments = Vec::new();
    loop {
        let segment = any_word(input, "the name of a pipeline")?;
        segments.push(segment.clone());
        if input.parse::<Token![::]>().is_err() {
            return Ok((segments, segment));
        }
    }
}

pub(super) fn cuda_fn(input: ParseStream) -> Result<CudaFn> {
    let start = input.cursor();
    word(input, "cuda")?;
    sign::<Token![fn]>(input, "fn")?;
    let name = name(input, "the name of the function")?;
    let (content, _) = parens(input, "parameters")?;
    let params = list(&content, |input| {
        let name = super::stream::name(input, "the name of a parameter")?;
        sign::<Token![:]>(input, ":")?;
        Ok(CudaParam { name, elem: elem(input)? })
    })?;
    sign::<Token![->]>(input, "->")?;
    let returns = elem(input)?;
    let source = source(start, input);
    let body = if input.parse::<Token![=]>().is_ok() {
        let (text, span): (String, Span) = string(input, "the C++ text, as r\"..\"")?;
        CudaBody::Text { text, span }
    } else if take_word(input, "from").is_some() {
        let (path, span) = string(input, "the name of a file, as \"..\"")?;
        CudaBody::File { path, text: String::new(), span }
    } else {
        return Err(expected(input, "`= r\"..\"` or `from \"file.cuh\"`"));
    };
    semicolon(input, start, ITEMS)?;
    Ok(CudaFn { name, params, returns, body, source })
}

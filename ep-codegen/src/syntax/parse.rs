//! A `pipeline!` block: its pipelines, and which declaration comes next.

use proc_macro2::TokenStream;
use syn::Token;
use syn::parse::{ParseBuffer, ParseStream, Parser};

use super::stream::{
    Result, any_word, braces, drain, expected, found, name, peek_word, recover, skip_docs,
    take_while, word,
};
use super::{fragment, items, role, tensor};
use crate::ast::{File, Item, Phase, Pipeline, TensorKind, When};
use crate::diagnostics::{Diagnostic, Diagnostics, form};
use crate::keywords;
use crate::spelling::nearest;

/// `when` and `phase` blocks may nest this deep.
pub(super) const NESTING_MAX: u32 = 16;

/// The pipelines of a block and every mistake of its form. What could be read is there even when
/// there are mistakes.
pub fn parse(tokens: TokenStream) -> (File, Diagnostics) {
    let mut file = File::default();
    let mut errors = Diagnostics::new();
    let parsed = (|input: ParseStream| {
        while !input.is_empty() {
            let doc = skip_docs(input);
            if let Err(error) = entry(input, doc, &mut errors, &mut file) {
                errors.push(error);
                recover(input, keywords::BLOCK, false);
            }
        }
        Ok(())
    })
    .parse2(tokens);
    if let (Err(error), true) = (parsed, errors.is_empty()) {
        errors.push(error.into());
    }
    (file, errors)
}

/// A pipeline, a fragment, or a file of fragments.
fn entry(
    input: ParseStream,
    doc: Vec<String>,
    errors: &mut Diagnostics,
    file: &mut File,
) -> Result<()> {
    match peek_word(input).as_deref() {
        Some("fragment") => file.fragments.push(fragment::statements(input, errors)?),
        Some("items") => {
            file.fragments.push(fragment::items(input, |content| items_of(content, errors, 0))?);
        }
        Some("fragments") => file.files.push(fragment::file(input)?),
        Some(word) if nearest(word, ["fragment", "items", "fragments"]).is_some() => {
            return Err(form::unknown_word(input.span(), "declaration", word, keywords::BLOCK));
        }
        _ => pipeline(input, doc, errors, file)?,
    }
    Ok(())
}

fn pipeline(
    input: ParseStream,
    doc: Vec<String>,
    errors: &mut Diagnostics,
    file: &mut File,
) -> Result<()> {
    let vis = visibility(input);
    let keyword = match word(input, "pipeline") {
        Ok(keyword) => keyword,
        // A misspelt word in front of a declaration: its items are worth keeping.
        Err(error) if peek_word(input).is_some() && input.peek2(syn::Ident) => {
            errors.push(error);
            any_word(input, "`pipeline`")?.span()
        }
        Err(error) => return Err(error),
    };
    let name = name(input, "the name of the pipeline")?;
    let mut pipeline = Pipeline { doc, vis, keyword, name, items: Vec::new() };
    let body = braces(input, "the declarations of the pipeline");
    if let Ok((content, _)) = &body {
        pipeline.items = items_of(content, errors, 0);
    }
    file.pipelines.push(pipeline);
    body.map(|_| ())
}

/// `pub`, `pub(crate)` and the like, as they stand: rustc judges them.
fn visibility(input: ParseStream) -> TokenStream {
    take_while(input, |input| input.peek(Token![pub]) || input.peek(syn::token::Paren))
}

/// The declarations of a pipeline, phase or `when` block.
fn items_of(content: &ParseBuffer, errors: &mut Diagnostics, depth: u32) -> Vec<Item> {
    let mut out = Vec::new();
    while !content.is_empty() {
        skip_docs(content);
        if content.is_empty() {
            break;
        }
        let start = content.cursor();
        match item(content, errors, depth) {
            Ok(item) => out.push(item),
            Err(error) => {
                errors.push(error);
                recover(content, keywords::ITEMS, content.cursor() != start);
            }
        }
    }
    out
}

fn item(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Item> {
    let Some(keyword) = peek_word(input) else {
        return Err(match found(input) {
            stray if stray == "`;`" => form::unexpected(input.span(), &stray),
            _ => expected(input, "a declaration"),
        });
    };
    if let Some((_, kind)) = keywords::TENSORS.iter().find(|(word, _)| *word == keyword) {
        return tensors(input, *kind);
    }
    Ok(match keyword.as_str() {
        "shape" => Item::Shape(items::shape(input, errors)?),
        "variant" => Item::Variant(items::variant(input, errors)?),
        "tune" => Item::Tune(items::tune(input, errors)?),
        "arg" => Item::Arg(items::arg(input, errors)?),
        "size" => Item::Size(items::size(input)?),
        "message" => Item::Message(tensor::message(input, errors)?),
        "channel" => Item::Channel(Box::new(role::channel(input, errors)?)),
        "role" => Item::Role(role::role(input, errors)?),
        "phase" => Item::Phase(phase(input, errors, depth)?),
        "when" => Item::When(when(input, |content| items_of_nested(content, errors, depth))?),
        "uses" => Item::Uses(items::uses(input)?),
        "use" => Item::Use(fragment::use_(input)?),
        "cuda" => Item::CudaFn(items::cuda_fn(input)?),
        word if keywords::STATEMENTS.contains(&word) => {
            return Err(form::statement_outside_role(input.span(), word));
        }
        word => return Err(form::unknown_word(input.span(), "declaration", word, keywords::ITEMS)),
    })
}

fn tensors(input: ParseStream, kind: TensorKind) -> Result<Item> {
    Ok(Item::Tensors(tensor::tensors(input, kind)?))
}

fn items_of_nested(content: &ParseBuffer, errors: &mut Diagnostics, depth: u32) -> Vec<Item> {
    if depth >= NESTING_MAX {
        errors.push(too_deep(content));
        drain(content);
        return Vec::new();
    }
    items_of(content, errors, depth + 1)
}

/// The error of a block inside too many others.
pub(super) fn too_deep(content: ParseStream) -> Diagnostic {
    form::blocks_too_deep(content.span(), NESTING_MAX)
}

fn phase(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Phase> {
    let keyword = word(input, "phase")?;
    let name = name(input, "the name of the phase")?;
    let (content, _) = braces(input, "the roles of the phase")?;
    let items = items_of_nested(&content, errors, depth);
    Ok(Phase { keyword, name, items })
}

/// `when axis is Arm | Arm { body }`
pub(super) fn when<T>(
    input: ParseStream,
    body: impl FnOnce(&ParseBuffer) -> Vec<T>,
) -> Result<When<T>> {
    let keyword = word(input, "when")?;
    let axis = name(input, "the name of a variant")?;
    word(input, "is")?;
    let mut arms = vec![name(input, "an arm of the variant")?];
    while input.parse::<Token![|]>().is_ok() {
        arms.push(name(input, "an arm of the variant")?);
    }
    let (content, _) = braces(input, "what the arm adds")?;
    Ok(When { keyword, axis, arms, body: body(&content) })
}

//! Fragments: their declarations, and the places that use them.

use syn::Token;
use syn::parse::{ParseBuffer, ParseStream};

use super::expr::expr;
use super::stmt::body;
use super::stream::{
    Result, braces, drain, expected, list, name, one_of, parens, semicolon, sign, string, word,
};
use crate::ast::{
    Argument, Call, Fragment, FragmentBody, FragmentFile, Item, ItemsUse, Param, TokenRange,
};
use crate::diagnostics::Diagnostics;
use crate::keywords::{BLOCK, ITEMS, PARAM_KINDS};

/// `fragment name(param: kind, ..) { .. }`
pub(super) fn statements(input: ParseStream, errors: &mut Diagnostics) -> Result<Fragment> {
    word(input, "fragment")?;
    let name = name(input, "the name of the fragment")?;
    let (content, _) = parens(input, "parameters")?;
    let params = list(&content, |input| {
        let name = super::stream::name(input, "the name of a parameter")?;
        sign::<Token![:]>(input, ":")?;
        Ok(Param { name, kind: one_of(input, "kind of parameter", PARAM_KINDS)? })
    })?;
    let (content, _) = braces(input, "the statements of the fragment")?;
    let body = body(&content, errors);
    Ok(Fragment { name, body: FragmentBody::Statements { params, body } })
}

/// `items name { .. }`
pub(super) fn items(
    input: ParseStream,
    items: impl FnOnce(&ParseBuffer) -> Vec<Item>,
) -> Result<Fragment> {
    word(input, "items")?;
    let name = name(input, "the name of the fragment")?;
    let (content, _) = braces(input, "the declarations of the fragment")?;
    Ok(Fragment { name, body: FragmentBody::Items(items(&content)) })
}

/// `fragments from "file";`
pub(super) fn file(input: ParseStream) -> Result<FragmentFile> {
    let start = input.cursor();
    word(input, "fragments")?;
    word(input, "from")?;
    let (path, span) = string(input, "the name of a file, as \"..\"")?;
    semicolon(input, start, BLOCK)?;
    Ok(FragmentFile { path, span })
}

/// `use name;`
pub(super) fn use_(input: ParseStream) -> Result<ItemsUse> {
    let start = input.cursor();
    word(input, "use")?;
    let name = name(input, "the name of a fragment")?;
    semicolon(input, start, ITEMS)?;
    Ok(ItemsUse { name })
}

/// `name(argument, ..)`; blocks among the arguments stand `depth` deep.
pub(super) fn call(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Call> {
    let name = name(input, "the name of a fragment")?;
    let (content, span) = parens(input, "arguments")?;
    let mut args = Vec::new();
    while !content.is_empty() {
        let parsed = argument(&content, errors, depth).and_then(|arg| {
            args.push(arg);
            match content.is_empty() || content.parse::<Token![,]>().is_ok() {
                true => Ok(()),
                false => Err(expected(&content, "`,`")),
            }
        });
        if let Err(error) = parsed {
            drain(&content);
            return Err(error);
        }
    }
    let at = TokenRange::from(&name).to(span.close());
    Ok(Call { name, args, at })
}

fn argument(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Argument> {
    if !input.peek(syn::token::Brace) {
        return Ok(Argument::Value(expr(input)?));
    }
    let (content, span) = braces(input, "statements")?;
    let body = super::stmt::stmts(&content, errors, depth + 1);
    Ok(Argument::Block { body, at: TokenRange::from(span.open()).to(span.close()) })
}

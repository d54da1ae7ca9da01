//! Statements.

use syn::Token;
use syn::ext::IdentExt;
use syn::parse::{ParseBuffer, ParseStream};

use super::expr::{domain, expr};
use super::fragment::call;
use super::parse::{NESTING_MAX, too_deep, when};
use super::stream::{
    Result, at_word, braces, brackets, drain, expected, found, list, name, peek_word, recover,
    semicolon, sign, skip_docs, source, take_word, word,
};
use crate::ast::{
    ChannelRef, Domain, Excerpt, Expr, ExprKind, FieldValue, For, Gather, Ident, Place, Span, Stmt,
    StmtKind, UNNAMED,
};
use crate::diagnostics::{Diagnostics, form};
use crate::ir::CONDITION;
use crate::keywords::{ITEMS, STATEMENTS};

/// The statements of a role.
pub(super) fn body(content: &ParseBuffer, errors: &mut Diagnostics) -> Vec<Stmt> {
    stmts(content, errors, 0)
}

pub(super) fn stmts(content: &ParseBuffer, errors: &mut Diagnostics, depth: u32) -> Vec<Stmt> {
    let mut out = Vec::new();
    if depth > NESTING_MAX {
        errors.push(too_deep(content));
        drain(content);
    }
    while !content.is_empty() {
        skip_docs(content);
        if content.is_empty() {
            break;
        }
        let start = content.cursor();
        let parsed = if content.peek(Token![if]) {
            choice(content, errors, depth).map(|both| out.extend(both))
        } else {
            stmt(content, errors, depth).map(|one| out.push(one))
        };
        match parsed {
            Ok(()) => {}
            Err(error) => {
                errors.push(error);
                recover(content, STATEMENTS, content.cursor() != start);
            }
        }
    }
    out
}

fn stmt(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Stmt> {
    let start = input.cursor();
    let keyword = Span::from(input.span());
    let Some(first) = peek_word(input) else {
        return Err(match found(input) {
            stray if stray == "`;`" => form::unexpected(keyword, &stray),
            _ => expected(input, "a statement"),
        });
    };
    if first == "for" {
        let head = head_of_for(input)?;
        let source = source(start, input);
        let (content, _) = braces(input, "the statements of the loop")?;
        let body = stmts(&content, errors, depth + 1);
        return Ok(Stmt { kind: StmtKind::For(For { body, ..head }), keyword, source });
    }
    if first == "when" {
        let inner = when(input, |content| stmts(content, errors, depth + 1))?;
        let source = Excerpt { tokens: keyword.into(), text: super::reprint::when(&inner) };
        return Ok(Stmt { kind: StmtKind::When(inner), keyword, source });
    }
    let is_call = !STATEMENTS.contains(&first.as_str()) && input.peek2(syn::token::Paren);
    let kind = match is_call {
        true => StmtKind::Call(call(input, errors, depth)?),
        false => action(input, &first)?,
    };
    semicolon(input, start, STATEMENTS)?;
    Ok(Stmt { kind, keyword, source: source(start, input) })
}

/// `if condition { .. }` is a loop with one turn or none. With an `else` the condition is found out first, under a name
/// that no author can write: what stands in one block may not decide about the other one.
fn choice(input: ParseStream, errors: &mut Diagnostics, depth: u32) -> Result<Vec<Stmt>> {
    if depth > NESTING_MAX {
        return Err(too_deep(input));
    }
    let start = input.cursor();
    let keyword = Span::from(sign::<Token![if]>(input, "if")?.span);
    let condition = expr(input)?;
    let head = source(start, input);
    let (content, _) = braces(input, "the statements of the `if`")?;
    let body = stmts(&content, errors, depth + 1);
    if !input.peek(Token![else]) {
        return Ok(vec![once(keyword, head, condition, body)]);
    }
    let start = input.cursor();
    let otherwise = Span::from(sign::<Token![else]>(input, "else")?.span);
    let behind = source(start, input);
    let rest = if input.peek(Token![if]) {
        choice(input, errors, depth + 1)?
    } else {
        let (content, _) = braces(input, "the statements of the `else`")?;
        stmts(&content, errors, depth + 1)
    };
    let at = condition.at;
    let name = Ident::new(CONDITION, keyword);
    let holds = Expr { kind: ExprKind::Name(name.clone()), at };
    let fails = Expr { kind: ExprKind::Not { value: Box::new(holds.clone()) }, at };
    let kind = StmtKind::Let { name, value: condition };
    Ok(vec![
        Stmt { kind, keyword, source: head.clone() },
        once(keyword, head, holds, body),
        once(otherwise, behind, fails, rest),
    ])
}

/// A block where `condition` holds.
fn once(keyword: Span, source: Excerpt, condition: Expr, body: Vec<Stmt>) -> Stmt {
    let kind = StmtKind::For(For {
        binder: Ident::new(UNNAMED, keyword),
        domain: Domain::Once { keyword },
        position: None,
        filter: Some(condition),
        gather: None,
        body,
    });
    Stmt { kind, keyword, source }
}

/// A statement without a block, up to its `;`.
fn action(input: ParseStream, first: &str) -> Result<StmtKind> {
    if !STATEMENTS.contains(&first) {
        let bare = input.peek2(syn::token::Bracket) || input.peek2(Token![=]);
        let at = input.span();
        return Err(match first {
            _ if bare => {
                form::expected_one_of(at, "a statement", &format!("`{first}`"), STATEMENTS)
            }
            _ if ITEMS.contains(&first) => form::declaration_in_role(at, first),
            _ => form::unknown_word(at, "statement", first, STATEMENTS),
        });
    }
    input.call(syn::Ident::parse_any)?;
    Ok(match first {
        "announce" => {
            let channel = channel_ref(input)?;
            let (values, rest) = values(input)?;
            if let Some(rest) = rest {
                return Err(form::rest_in_announce(&rest));
            }
            StmtKind::Announce { channel, values }
        }
        "push" => {
            let channel = channel_ref(input)?;
            let position = position(input)?;
            let (values, rest) = values(input)?;
            StmtKind::Push { channel, position, values, rest }
        }
        "store" => assigned(input, |place, value| StmtKind::Store { place, value })?,
        "record" => assigned(input, |place, value| StmtKind::Record { place, value })?,
        "add" => assigned(input, |place, value| StmtKind::Add { place, value })?,
        "count" => StmtKind::Count { place: place(input)? },
        "let" => {
            let name = name(input, "a name")?;
            sign::<Token![=]>(input, "=")?;
            StmtKind::Let { name, value: expr(input)? }
        }
        "raise" => StmtKind::Raise { place: place(input)? },
        "await" => awaited(input)?,
        _ => StmtKind::Close { channel: name(input, "the name of a channel")? },
    })
}

/// `channel`, or `place >= least`
fn awaited(input: ParseStream) -> Result<StmtKind> {
    let awaited = name(input, "the name of a channel or tensor")?;
    let is_channel = !input.peek(syn::token::Bracket) && !input.peek(Token![>=]);
    if is_channel {
        return Ok(StmtKind::Await { channel: awaited });
    }
    let place = Place { tensor: awaited, indices: indices(input)? };
    sign::<Token![>=]>(input, ">=")?;
    Ok(StmtKind::AwaitWord { place, least: expr(input)? })
}

/// `place = value`
fn assigned(input: ParseStream, make: impl Fn(Place, Expr) -> StmtKind) -> Result<StmtKind> {
    let place = place(input)?;
    sign::<Token![=]>(input, "=")?;
    Ok(make(place, expr(input)?))
}

fn place(input: ParseStream) -> Result<Place> {
    let tensor = name(input, "the name of a tensor")?;
    Ok(Place { tensor, indices: indices(input)? })
}

fn channel_ref(input: ParseStream) -> Result<ChannelRef> {
    let name = name(input, "the name of a channel")?;
    Ok(ChannelRef { name, indices: indices(input)? })
}

/// `[i, j]`, or nothing.
fn indices(input: ParseStream) -> Result<Vec<Expr>> {
    if !input.peek(syn::token::Bracket) {
        return Ok(Vec::new());
    }
    let (content, span) = brackets(input, "an index")?;
    let indices = list(&content, expr)?;
    if indices.is_empty() {
        return Err(form::empty_brackets(span.close(), "an index", "[peer]"));
    }
    Ok(indices)
}

/// `at position`, `at [i, j]`, or nothing.
fn position(input: ParseStream) -> Result<Vec<Expr>> {
    if take_word(input, "at").is_none() {
        return Ok(Vec::new());
    }
    if input.peek(syn::token::Bracket) { indices(input) } else { Ok(vec![expr(input)?]) }
}

/// `{ field: value, .., ..message }`
fn values(input: ParseStream) -> Result<(Vec<FieldValue>, Option<Ident>)> {
    let (content, _) = braces(input, "the fields")?;
    let mut values = Vec::new();
    let mut rest = None;
    while !content.is_empty() {
        let parsed = (|| {
            if content.peek(Token![..]) {
                sign::<Token![..]>(&content, "..")?;
                let message = name(&content, "the message whose fields are copied")?;
                if rest.is_some() {
                    return Err(form::rest_twice(&message));
                }
                rest = Some(message);
            } else {
                let name = name(&content, "the name of a field")?;
                sign::<Token![:]>(&content, ":")?;
                values.push(FieldValue { name, value: expr(&content)? });
            }
            if content.is_empty() { Ok(()) } else { sign::<Token![,]>(&content, ",").map(|_| ()) }
        })();
        if let Err(error) = parsed {
            drain(&content);
            return Err(error);
        }
    }
    Ok((values, rest))
}

/// A loop up to its block.
fn head_of_for(input: ParseStream) -> Result<For> {
    sign::<Token![for]>(input, "for")?;
    let binder = name(input, "a binder")?;
    sign::<Token![in]>(input, "in")?;
    let domain = domain(input)?;
    let position = match take_word(input, "at") {
        Some(_) => Some(expr(input)?),
        None => None,
    };
    let filter = match input.parse::<Token![where]>() {
        Ok(_) => Some(expr(input)?),
        Err(_) => None,
    };
    let gather = if at_word(input, "gather") { Some(gather(input)?) } else { None };
    Ok(For { binder, domain, position, filter, gather, body: Vec::new() })
}

/// `gather part from channel[peer] at position across peer in domain`
fn gather(input: ParseStream) -> Result<Gather> {
    let keyword = word(input, "gather")?;
    let part = name(input, "a binder for the part")?;
    word(input, "from")?;
    let channel = channel_ref(input)?;
    if !at_word(input, "at") {
        return Err(expected(input, "`at` and the position of the part"));
    }
    let position = position(input)?;
    word(input, "across")?;
    let across = name(input, "a binder for the axis")?;
    sign::<Token![in]>(input, "in")?;
    let over = domain(input)?;
    Ok(Gather { keyword, part, channel, position, across, over })
}

//! Expressions: a closed form that looks like Rust, by precedence climbing.

use syn::parse::ParseStream;
use syn::{LitBool, LitFloat, LitInt, Token};

use super::stream::{
    Result, at_word, braces, brackets, decimal, drain, expected, found, int, list, name, parens,
    sign,
};
use crate::ast::{BinaryOp, Domain, Expr, ExprKind, Ident, Span, TokenRange};
use crate::diagnostics::form;
use crate::ir::Fold;

/// Brackets and operators may nest this deep; more is a mistake, and would end the compiler's
/// stack before it ends the author's patience.
const DEPTH_MAX: u32 = 64;
/// A chain of operators, indices or fields may have this many links.
const LINKS_MAX: u32 = 128;

/// An expression.
pub(super) fn expr(input: ParseStream) -> Result<Expr> {
    binary(input, 0, 0)
}

/// `low..high`, or what a loop can run over.
pub(super) fn domain(input: ParseStream) -> Result<Domain> {
    domain_at(input, 0)
}

fn domain_at(input: ParseStream, depth: u32) -> Result<Domain> {
    let low = binary(input, 0, depth)?;
    if input.peek(Token![..=]) {
        return Err(form::range_with_end(input.span()));
    }
    if input.parse::<Token![..]>().is_err() {
        return Ok(Domain::Expr(low));
    }
    let high = binary(input, 0, depth)?;
    Ok(Domain::Range { low, high })
}

/// A chain of operators that bind at least as tightly as `least`.
fn binary(input: ParseStream, least: u8, depth: u32) -> Result<Expr> {
    if depth > DEPTH_MAX {
        return Err(form::nested_too_deeply(input.span()));
    }
    let mut left = unary(input, depth + 1)?;
    let mut compared = false;
    let mut links = depth;
    loop {
        // Each operator of a chain makes the tree one deeper, as brackets would.
        links += 1;
        if links > LINKS_MAX {
            return Err(form::nested_too_deeply(input.span()));
        }
        if at_word(input, "as") {
            input.parse::<Token![as]>()?;
            let elem = name(input, "an element type")?;
            let at = left.at.to(&elem);
            left = Expr { kind: ExprKind::Cast { value: Box::new(left), elem }, at };
            continue;
        }
        let Some((op, power)) = peek_operator(input) else { return Ok(left) };
        if power < least {
            return Ok(left);
        }
        if power == COMPARISON && compared {
            return Err(form::comparisons_chained(input.span()));
        }
        compared = power == COMPARISON;
        let op_span = input.span().into();
        take_operator(input, op)?;
        let right = binary(input, power + 1, depth + 1)?;
        let at = left.at.to(&right);
        let (left_side, right) = (Box::new(left), Box::new(right));
        left = Expr { kind: ExprKind::Binary { op, op_span, left: left_side, right }, at };
    }
}

const COMPARISON: u8 = 3;

/// The operator that comes next and how tightly it binds.
fn peek_operator(input: ParseStream) -> Option<(BinaryOp, u8)> {
    use BinaryOp::*;
    // The longer signs first: `<` is also the beginning of `<=`.
    Some(if input.peek(Token![||]) {
        (Or, 1)
    } else if input.peek(Token![&&]) {
        (And, 2)
    } else if input.peek(Token![==]) {
        (Eq, COMPARISON)
    } else if input.peek(Token![!=]) {
        (Ne, COMPARISON)
    } else if input.peek(Token![<=]) {
        (Le, COMPARISON)
    } else if input.peek(Token![>=]) {
        (Ge, COMPARISON)
    } else if input.peek(Token![<]) {
        (Lt, COMPARISON)
    } else if input.peek(Token![>]) {
        (Gt, COMPARISON)
    } else if input.peek(Token![+]) {
        (Add, 4)
    } else if input.peek(Token![-]) {
        (Sub, 4)
    } else if input.peek(Token![*]) {
        (Mul, 5)
    } else if input.peek(Token![/]) {
        (Div, 5)
    } else if input.peek(Token![%]) {
        (Rem, 5)
    } else {
        return None;
    })
}

fn take_operator(input: ParseStream, op: BinaryOp) -> Result<()> {
    match op {
        BinaryOp::Or => drop(sign::<Token![||]>(input, "||")?),
        BinaryOp::And => drop(sign::<Token![&&]>(input, "&&")?),
        BinaryOp::Eq => drop(sign::<Token![==]>(input, "==")?),
        BinaryOp::Ne => drop(sign::<Token![!=]>(input, "!=")?),
        BinaryOp::Le => drop(sign::<Token![<=]>(input, "<=")?),
        BinaryOp::Ge => drop(sign::<Token![>=]>(input, ">=")?),
        BinaryOp::Lt => drop(sign::<Token![<]>(input, "<")?),
        BinaryOp::Gt => drop(sign::<Token![>]>(input, ">")?),
        BinaryOp::Add => drop(sign::<Token![+]>(input, "+")?),
        BinaryOp::Sub => drop(sign::<Token![-]>(input, "-")?),
        BinaryOp::Mul => drop(sign::<Token![*]>(input, "*")?),
        BinaryOp::Div => drop(sign::<Token![/]>(input, "/")?),
        BinaryOp::Rem => drop(sign::<Token![%]>(input, "%")?),
    }
    Ok(())
}

/// `!value`, `-value`, or a value with its indices and fields.
fn unary(input: ParseStream, depth: u32) -> Result<Expr> {
    if depth > DEPTH_MAX {
        return Err(form::nested_too_deeply(input.span()));
    }
    let first = input.span();
    if input.peek(Token![!]) {
        input.parse::<Token![!]>()?;
        let value = Box::new(unary(input, depth + 1)?);
        let at = TokenRange::from(first).to(&*value);
        return Ok(Expr { kind: ExprKind::Not { value }, at });
    }
    if input.peek(Token![-]) {
        input.parse::<Token![-]>()?;
        let value = unary(input, depth + 1)?;
        let at = TokenRange::from(first).to(&value);
        // A negative literal is one number, not an operation on one.
        let kind = match value.kind {
            ExprKind::Int(number) => ExprKind::Int(-number),
            ExprKind::Real(number) => ExprKind::Real(-number),
            _ => ExprKind::Neg { value: Box::new(value) },
        };
        return Ok(Expr { kind, at });
    }
    postfix(input, depth)
}

/// A value followed by any number of `[i, j]` and `.field`.
fn postfix(input: ParseStream, depth: u32) -> Result<Expr> {
    let mut base = atom(input, depth)?;
    for _ in 0..LINKS_MAX {
        if input.peek(syn::token::Bracket) {
            let (content, span) = brackets(input, "an index")?;
            let indices = list(&content, |input| binary(input, 0, depth + 1))?;
            if indices.is_empty() {
                return Err(form::empty_brackets(span.close(), "an index", "[peer]"));
            }
            let at = base.at.to(span.close());
            base = Expr { kind: ExprKind::Index { base: Box::new(base), indices }, at };
        } else if input.peek(Token![.]) && !input.peek(Token![..]) {
            input.parse::<Token![.]>()?;
            let field = name(input, "the name of a field")?;
            let at = base.at.to(&field);
            base = Expr { kind: ExprKind::Field { base: Box::new(base), field }, at };
        } else {
            return Ok(base);
        }
    }
    Err(form::nested_too_deeply(input.span()))
}

fn atom(input: ParseStream, depth: u32) -> Result<Expr> {
    if input.peek(LitInt) {
        let int = int(input)?;
        return Ok(Expr { kind: ExprKind::Int(int.value), at: (&int).into() });
    }
    if input.peek(LitFloat) {
        let (value, span) = decimal(input)?;
        return Ok(Expr { kind: ExprKind::Real(value), at: span.into() });
    }
    if input.peek(LitBool) {
        let literal: LitBool = input.parse()?;
        return Ok(Expr { kind: ExprKind::Bool(literal.value), at: literal.span.into() });
    }
    if input.peek(syn::token::Paren) {
        let (content, span) = parens(input, "an expression")?;
        let inner = binary(&content, 0, depth + 1);
        let inner = ended(&content, inner)?;
        return Ok(Expr { kind: inner.kind, at: TokenRange::from(span.open()).to(span.close()) });
    }
    if input.peek(Token![if]) {
        return choice(input, depth);
    }
    if !input.peek(syn::Ident) {
        return Err(expected(input, "an expression"));
    }
    let head = name(input, "an expression")?;
    if !input.peek(syn::token::Paren) {
        let at = (&head).into();
        return Ok(Expr { kind: ExprKind::Name(head), at });
    }
    let (content, span) = parens(input, "arguments")?;
    let at = TokenRange::from(&head).to(span.close());
    if content.peek(syn::Ident) && content.peek2(Token![in]) {
        return Ok(Expr { kind: fold(head, &content, depth)?, at });
    }
    let args = list(&content, |input| binary(input, 0, depth + 1))?;
    Ok(Expr { kind: ExprKind::Call { helper: head, args }, at })
}

/// `if condition { yes } else { no }`
fn choice(input: ParseStream, depth: u32) -> Result<Expr> {
    if depth > DEPTH_MAX {
        return Err(form::nested_too_deeply(input.span()));
    }
    let first = Span::from(sign::<Token![if]>(input, "if")?.span);
    let condition = Box::new(binary(input, 0, depth + 1)?);
    let (yes, close) = chosen(input, "the value where the condition holds", depth)?;
    if !input.peek(Token![else]) {
        return Err(form::if_without_else(TokenRange { first, last: close }));
    }
    sign::<Token![else]>(input, "else")?;
    let (no, last) = match input.peek(Token![if]) {
        true => {
            let no = choice(input, depth + 1)?;
            let last = no.at.last;
            (Box::new(no), last)
        }
        false => chosen(input, "the value where the condition does not hold", depth)?,
    };
    Ok(Expr { kind: ExprKind::If { condition, yes, no }, at: TokenRange { first, last } })
}

/// `{ value }` of an `if`, and where it ends.
fn chosen(input: ParseStream, what: &str, depth: u32) -> Result<(Box<Expr>, Span)> {
    let (content, span) = braces(input, what)?;
    let value = binary(&content, 0, depth + 1);
    Ok((Box::new(ended(&content, value)?), span.close().into()))
}

/// `binder in domain: body` of a fold named `helper`.
fn fold(helper: Ident, content: ParseStream, depth: u32) -> Result<ExprKind> {
    let parsed = (|| {
        if Fold::of_word(&helper.to_string()).is_none() {
            return Err(form::not_a_fold(&helper));
        }
        let binder = name(content, "a binder")?;
        sign::<Token![in]>(content, "in")?;
        let domain = Box::new(domain_at(content, depth + 1)?);
        sign::<Token![:]>(content, ":")?;
        let body = Box::new(binary(content, 0, depth + 1)?);
        Ok(ExprKind::Fold { helper, binder, domain, body })
    })();
    ended(content, parsed)
}

/// Nothing may follow in the brackets.
fn ended<T>(content: ParseStream, parsed: Result<T>) -> Result<T> {
    let parsed = parsed.and_then(|parsed| {
        if content.is_empty() {
            return Ok(parsed);
        }
        Err(form::unexpected(content.span(), &found(content)))
    });
    drain(content);
    parsed
}

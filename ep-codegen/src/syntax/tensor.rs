//! Tensors and messages.

use syn::Token;
use syn::buffer::Cursor;
use syn::parse::ParseStream;

use super::expr::expr;
use super::stream::{
    Result, any_word, at_word, braces, brackets, entries, expected, int, list, name, semicolon,
    sign, source, take_word, word,
};
use crate::ast::{Elem, Expr, Field, Fill, Message, Tensor, TensorKind, Tensors, Values};
use crate::diagnostics::{Diagnostics, form};
use crate::keywords::ITEMS;

/// `input a: .., b: ..;`
pub(super) fn tensors(input: ParseStream, kind: TensorKind) -> Result<Tensors> {
    let start = input.cursor();
    let keyword = any_word(input, "a declaration")?.span();
    let mut tensors = vec![tensor(input)?];
    while input.parse::<Token![,]>().is_ok() {
        if input.peek(Token![;]) {
            break;
        }
        tensors.push(tensor(input)?);
    }
    semicolon(input, start, ITEMS)?;
    Ok(Tensors { kind, keyword, list: tensors })
}

/// `name: optional elem[dims] in window fill n beyond size in low..high`
pub(super) fn tensor(input: ParseStream) -> Result<Tensor> {
    let start = input.cursor();
    let name = name(input, "the name of a tensor")?;
    sign::<Token![:]>(input, ":")?;
    let optional = take_word(input, "optional");
    let mut up_to = None;
    if take_word(input, "up").is_some() {
        word(input, "to")?;
        up_to = Some(int(input)?);
    }
    let elem = elem(input)?;
    let dims = dims(input, "the extents of the tensor")?;
    let (mut window, mut host, mut fill, mut values) = (None, None, None, None);
    loop {
        let clause = input.cursor();
        if input.parse::<Token![in]>().is_ok() {
            // A number may be called `window` too.
            if at_word(input, "window") && !input.peek2(Token![..]) {
                window = Some(word(input, "window")?);
                continue;
            }
            let found = self::values(input, clause)?;
            if values.is_some() {
                return Err(form::values_twice(found.at, &name));
            }
            values = Some(found);
        } else if take_word(input, "to").is_some() {
            host = Some(word(input, "host")?);
        } else if take_word(input, "fill").is_some() {
            let value = int(input)?;
            word(input, "beyond")?;
            fill = Some(Fill { value, beyond: super::stream::name(input, "the name of a size")? });
        } else {
            break;
        }
    }
    let source = source(start, input);
    Ok(Tensor { name, optional, up_to, elem, dims, window, host, fill, values, source })
}

/// `low..high`, behind the `in` at `start`.
pub(super) fn range(input: ParseStream, start: Cursor) -> Result<Values> {
    let low = expr(input)?;
    let inclusive = input.peek(Token![..=]);
    if inclusive {
        sign::<Token![..=]>(input, "..=")?;
    } else {
        sign::<Token![..]>(input, "..")?;
    }
    let high = expr(input)?;
    let at = source(start, input).tokens;
    Ok(Values { low, high, inclusive, ascending: None, step: None, distinct: None, at })
}

/// `low..high ascending by at most step distinct`, behind the `in` at `start`.
fn values(input: ParseStream, start: Cursor) -> Result<Values> {
    let range = range(input, start)?;
    let (mut ascending, mut step, mut distinct) = (None, None, None);
    loop {
        if let Some(span) = take_word(input, "ascending") {
            ascending = Some(span);
            if take_word(input, "by").is_some() {
                word(input, "at")?;
                word(input, "most")?;
                step = Some(expr(input)?);
            }
        } else if let Some(span) = take_word(input, "distinct") {
            distinct = Some(span);
        } else {
            break;
        }
    }
    let at = source(start, input).tokens;
    Ok(Values { ascending, step, distinct, at, ..range })
}

/// `bf16`, `payload` or `bits[n]`
pub(super) fn elem(input: ParseStream) -> Result<Elem> {
    let name = name(input, "an element type")?;
    if name == "bits" && input.peek(syn::token::Bracket) {
        let (content, span) = brackets(input, "the number of bits")?;
        let mut counts = list(&content, expr)?;
        return match (counts.pop(), counts.is_empty()) {
            (Some(count), true) => Ok(Elem::Bits { keyword: name.span(), count: Box::new(count) }),
            _ => Err(form::one_bit_count(span.close())),
        };
    }
    Ok(Elem::Name(name))
}

fn dims(input: ParseStream, what: &str) -> Result<Vec<Expr>> {
    let (content, span) = brackets(input, what)?;
    let dims = list(&content, expr)?;
    if dims.is_empty() {
        return Err(form::empty_brackets(span.close(), what, "[1]"));
    }
    Ok(dims)
}

/// `message Name { row x: payload[hidden], src: i32 }`
pub(super) fn message(input: ParseStream, errors: &mut Diagnostics) -> Result<Message> {
    let start = input.cursor();
    word(input, "message")?;
    let name = name(input, "the name of the message")?;
    let source = source(start, input);
    let (content, _) = braces(input, "the fields of the message")?;
    Ok(Message { name, fields: entries(&content, errors, |input, _| field(input)), source })
}

fn field(input: ParseStream) -> Result<Field> {
    let is_row = at_word(input, "row") && !input.peek2(Token![:]);
    let row = if is_row { take_word(input, "row") } else { None };
    let name = name(input, "the name of a field")?;
    sign::<Token![:]>(input, ":")?;
    let elem = elem(input)?;
    let dims = if input.peek(syn::token::Bracket) {
        dims(input, "the extents of the field")?
    } else {
        Vec::new()
    };
    let with = match take_word(input, "with") {
        Some(_) => Some(super::stream::name(input, "the name of an optional tensor")?),
        None => None,
    };
    if !input.is_empty() && !input.peek(Token![,]) {
        return Err(expected(input, "`,`"));
    }
    Ok(Field { row, name, elem, dims, with })
}

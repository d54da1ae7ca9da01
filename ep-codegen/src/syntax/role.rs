//! Channels and roles.

use syn::Token;
use syn::parse::ParseStream;

use super::expr::expr;
use super::stmt::body;
use super::stream::{
    Result, at_word, braces, brackets, entries, expected, list, name, one_of, parens, peek_word,
    semicolon, sign, source, string, take_word, word,
};
use crate::ast::{Blocks, Channel, ChannelOption, OptionValue, Role, Share, SlotAxis, TokenRange};
use crate::diagnostics::{Diagnostics, form};
use crate::keywords::{CHANNEL_KINDS, ITEMS, PEER_SETS, TRANSPORTS};

/// `channel name: kind<Message> over .. from .. to .. per .. { .. };`
pub(super) fn channel(input: ParseStream, errors: &mut Diagnostics) -> Result<Channel> {
    let start = input.cursor();
    word(input, "channel")?;
    let name = name(input, "the name of the channel")?;
    sign::<Token![:]>(input, ":")?;
    let kind = one_of(input, "channel kind", CHANNEL_KINDS)?;
    sign::<Token![<]>(input, "<")?;
    let message = super::stream::name(input, "the name of a message")?;
    sign::<Token![>]>(input, ">")?;
    word(input, "over")?;
    let mut over = vec![one_of(input, "transport", TRANSPORTS)?];
    while input.parse::<Token![|]>().is_ok() {
        over.push(one_of(input, "transport", TRANSPORTS)?);
    }
    word(input, "from")?;
    let mut from = vec![super::stream::name(input, "the name of a role")?];
    while input.parse::<Token![,]>().is_ok() {
        from.push(super::stream::name(input, "the name of a role")?);
    }
    word(input, "to")?;
    let to = super::stream::name(input, "the name of a role")?;
    word(input, "per")?;
    let per = one_of(input, "peer set", PEER_SETS)?;
    let mut parts_per = None;
    if input.parse::<Token![,]>().is_ok() {
        for part in ["one", "part", "per"] {
            word(input, part)?;
        }
        parts_per = Some(super::stream::name(input, "what the parts are counted by")?);
    }
    let source = source(start, input);
    let options = if input.peek(syn::token::Brace) {
        let (content, _) = braces(input, "options")?;
        entries(&content, errors, |input, _| option(input))
    } else {
        Vec::new()
    };
    semicolon(input, start, ITEMS)?;
    Ok(Channel { name, kind, message, over, from, to, per, parts_per, options, source })
}

fn option(input: ParseStream) -> Result<ChannelOption> {
    let name = name(input, "the name of an option")?;
    sign::<Token![:]>(input, ":")?;
    let value = match name.to_string().as_str() {
        "header" => {
            let (content, _) = brackets(input, "the numbers that are announced")?;
            OptionValue::Header(list(&content, |input| {
                super::stream::name(input, "the name of a number")
            })?)
        }
        "slot" => {
            let (content, _) = brackets(input, "the indices of a slot")?;
            OptionValue::Slot(list(&content, slot_axis)?)
        }
        "waive" => {
            let policy = super::stream::name(input, "the policy that is waived")?;
            let (reason, span) = string(input, "the reason, as \"..\"")?;
            OptionValue::Waive { policy, reason, span }
        }
        "waited" => OptionValue::Waited(super::stream::name(input, "the name of a tensor")?),
        _ => OptionValue::Number(expr(input)?),
    };
    Ok(ChannelOption { name, value })
}

fn slot_axis(input: ParseStream) -> Result<SlotAxis> {
    let name = name(input, "the name of an index")?;
    let extent = match input.parse::<Token![:]>() {
        Ok(_) => Some(expr(input)?),
        Err(_) => None,
    };
    Ok(SlotAxis { name, extent })
}

/// `role Name[peer in set] on blocks, n warps, share { .. }`
pub(super) fn role(input: ParseStream, errors: &mut Diagnostics) -> Result<Role> {
    let start = input.cursor();
    word(input, "role")?;
    let name = name(input, "the name of the role")?;
    let (mut binder, mut binder_set) = (None, None);
    if input.peek(syn::token::Bracket) {
        let (content, _) = brackets(input, "a binder")?;
        binder = Some(super::stream::name(&content, "a binder")?);
        if content.parse::<Token![in]>().is_ok() {
            binder_set = Some(one_of(&content, "peer set", PEER_SETS)?);
        }
        if !content.is_empty() {
            let error = expected(&content, "`]`");
            super::stream::drain(&content);
            return Err(error);
        }
    }
    word(input, "on")?;
    let blocks_start = input.cursor();
    let blocks = blocks(input)?;
    let blocks_at = source(blocks_start, input).tokens;
    let (mut warps, mut share, mut share_at) = (None, None, None);
    while input.parse::<Token![,]>().is_ok() {
        let clause = input.cursor();
        if at_word(input, "warps") || at_word(input, "one") {
            let again: Option<TokenRange> = share_at;
            share = Some(self::share(input)?);
            share_at = Some(source(clause, input).tokens);
            once(again, source(clause, input).tokens, "how its warps share the work")?;
        } else {
            let count = expr(input)?;
            word(input, "warps")?;
            let again = warps.as_ref().map(TokenRange::from);
            once(again, source(clause, input).tokens, "how many warps it has")?;
            warps = Some(count);
        }
    }
    let source = source(start, input);
    let (content, _) = braces(input, "the statements of the role")?;
    let body = body(&content, errors);
    Ok(Role { name, binder, binder_set, blocks, blocks_at, warps, share, share_at, body, source })
}

/// A clause of a role may be said once.
fn once(before: Option<TokenRange>, now: TokenRange, what: &str) -> Result<()> {
    match before {
        None => Ok(()),
        Some(_) => Err(form::clause_twice(now, what)),
    }
}

fn blocks(input: ParseStream) -> Result<Blocks> {
    const WORDS: [&str; 7] = ["all", "even", "odd", "other", "last", "block", "blocks"];
    let Some(first) = peek_word(input) else { return Err(expected(input, "the role's blocks")) };
    let named = match first.as_str() {
        "all" => Blocks::All,
        "even" => Blocks::Even,
        "odd" => Blocks::Odd,
        "other" => Blocks::Other,
        "last" => {
            word(input, "last")?;
            word(input, "block")?;
            return Ok(Blocks::Last);
        }
        "block" => {
            word(input, "block")?;
            return Ok(Blocks::One(expr(input)?));
        }
        "blocks" => {
            word(input, "blocks")?;
            let low = expr(input)?;
            sign::<Token![..]>(input, "..")?;
            return Ok(Blocks::Range { low, high: expr(input)? });
        }
        _ => return Err(form::unknown_word(input.span(), "blocks", &first, &WORDS)),
    };
    take_word(input, &first);
    word(input, "blocks")?;
    Ok(named)
}

/// `warps shared by (source, stripe)` or `one block a token`
fn share(input: ParseStream) -> Result<Share> {
    if take_word(input, "one").is_some() {
        for part in ["block", "a", "token"] {
            word(input, part)?;
        }
        return Ok(Share::BlockPerToken);
    }
    for part in ["warps", "shared", "by"] {
        word(input, part)?;
    }
    let index = |input: ParseStream| name(input, "what the warps share");
    if !input.peek(syn::token::Paren) {
        return Ok(Share::Warps(vec![index(input)?]));
    }
    let (content, span) = parens(input, "indices")?;
    let names = list(&content, index)?;
    if names.is_empty() {
        return Err(form::empty_brackets(span.close(), "an index", "(source, stripe)"));
    }
    Ok(Share::Warps(names))
}

//! The order in which messages are taken, and positions are found.

use super::{Diagnostic, listed};
use crate::ast::{Channel, Ident, Span, TokenRange};
use crate::ir::kind::Traits;

/// A loop over a ring inside another loop.
pub(crate) fn ring_in_loop(ring: &Ident, binder: &Ident) -> Diagnostic {
    Diagnostic::new(
        ring,
        format!("the ring `{ring}` is emptied in the first turn of `for {binder}`"),
    )
    .help(format!("move the loop over `{ring}` out of `for {binder}`"))
    .also(binder, format!("`for {binder}` continues after the ring is empty"))
}

/// A loop over a ring in a block that may not run.
pub(crate) fn ring_below_if(ring: &Ident, keyword: Span) -> Diagnostic {
    Diagnostic::new(
        ring,
        format!(
            "the ring `{ring}` has to be emptied in every call, and this loop is inside an `if`"
        ),
    )
    .help(format!("move the `if` into the loop over `{ring}`"))
    .also(keyword, "this block runs only if the condition is true")
}

/// A loop over a ring that does not know its end.
pub(crate) fn ring_without_count(ring: &Ident, channel: &Channel) -> Diagnostic {
    Diagnostic::new(ring, format!("a loop over `{ring}` does not know when to stop"))
        .help("header: [first, count]")
        .also(&channel.name, format!("`{}` announces no `count`", channel.name))
}

/// A ring that is emptied a second time.
pub(crate) fn ring_emptied_twice(ring: &Ident, first: &Ident) -> Diagnostic {
    Diagnostic::new(ring, format!("the ring `{ring}` is empty here"))
        .help("handle each message in one loop")
        .also(first, format!("`{first}` is emptied by this loop"))
}

/// A gather from a ring in another order than that of its rows.
pub(crate) fn ring_out_of_order(at: TokenRange, domain: &str, channel: &Channel) -> Diagnostic {
    let name = &channel.name;
    Diagnostic::new(
        at,
        format!(
            "the rows of `{name}` arrive in the order of a stripe, and this loop runs over `{domain}`"
        ),
    )
    .help("for token in stripe")
    .also(channel.kind.span, format!("`{name}` is a ring and delivers its rows in order"))
}

/// A gather that takes every part from the same peer.
pub(crate) fn gather_not_across(channel: &Ident, across: &Ident) -> Diagnostic {
    Diagnostic::new(
        channel,
        format!("each part of a gather across `{across}` has to come from a different peer"),
    )
    .help(format!("{channel}[{across}]"))
}

/// A gather at a position that no table holds.
pub(crate) fn position_not_in_table(at: TokenRange, position: &str, channel: &Ident) -> Diagnostic {
    Diagnostic::new(
        at,
        format!(
            "a gather from `{channel}` needs positions from a table, and `{position}` is not in a table"
        ),
    )
    .help("record the position of each push in a table, and gather at its element")
}

/// A position that is the same for all tokens, or for all parts.
pub(crate) fn position_without_binder(
    at: TokenRange,
    position: &str,
    binder: &Ident,
) -> Diagnostic {
    Diagnostic::new(at, format!("the position `{position}` is the same for every `{binder}`"))
        .help(format!("index the table by `{binder}`"))
}

/// A table of something else than positions.
pub(crate) fn position_not_recorded(
    at: TokenRange,
    table: &Ident,
    declared: &Ident,
    wanted: &Traits,
) -> Diagnostic {
    // Rows that lie where a channel has put them may as well lie where the caller says.
    let help = match wanted.lands {
        true => format!(
            "declare `{table}` as an `input`, or record positions of a `{}` channel in it",
            wanted.word
        ),
        false => format!("record {table}[token, peer] = {}[peer].position;", wanted.word),
    };
    Diagnostic::new(at, format!("no statement records positions of a channel in `{table}`"))
        .help(help)
        .also(declared, format!("`{declared}` does not hold positions of a push"))
}

/// Positions of a dispatch that its combine cannot use.
pub(crate) fn positions_of_another_kind(
    at: TokenRange,
    table: &Ident,
    of: ((&str, &str), &str),
    channel: &Channel,
) -> Diagnostic {
    let ((kind, wanted), recorded) = of;
    let name = &channel.name;
    let what = format!(
        "`{table}` holds positions of the {kind} channel `{recorded}`, \
         and `{name}` needs those of a {wanted} channel"
    );
    Diagnostic::new(at, what)
        .help(format!("gather at a table that the dispatch records from a {wanted} channel"))
        .also(channel.kind.span, format!("`{name}` needs a dispatch through a {wanted} channel"))
}

/// A header announced again and again.
pub(crate) fn announce_in_loop(keyword: Span, channel: &Ident, binder: &Ident) -> Diagnostic {
    Diagnostic::new(
        keyword,
        format!(
            "`{channel}` can be announced only once, and this `announce` is inside `for {binder}`"
        ),
    )
    .help(format!("move the `announce` above `for {binder}`"))
    .also(binder, format!("`for {binder}` repeats its block"))
}

/// An announcement in a block that may not run.
pub(crate) fn announce_below_if(keyword: Span, channel: &Ident, word: Span) -> Diagnostic {
    let said = format!(
        "`{channel}` has to be announced in every call, and this `announce` is inside an `if`"
    );
    Diagnostic::new(keyword, said)
        .help("move the `announce` out of the `if`")
        .also(word, "this block runs only if the condition is true")
}

/// A header that nobody announces.
pub(crate) fn header_not_announced(
    option: &Ident,
    channel: &Channel,
    header: &[Ident],
) -> Diagnostic {
    let name = &channel.name;
    let names: Vec<String> = header.iter().map(Ident::to_string).collect();
    let values = names.iter().map(|name| format!("{name}: ..")).collect::<Vec<_>>().join(", ");
    Diagnostic::new(option, format!("no role announces {} of `{name}`", listed(&names, "and")))
        .help(format!("announce {name}[peer] {{ {values} }};"))
}

/// A position before there is one.
pub(crate) fn position_before_push(field: &Ident, channel: &Ident) -> Diagnostic {
    Diagnostic::new(
        field,
        format!("`{channel}` has a position only after a `push` in the same block"),
    )
    .help(format!("move this below the `push` to `{channel}`"))
}

/// Fields of slots before they have arrived.
pub(crate) fn slots_before_await(channel: &Ident) -> Diagnostic {
    Diagnostic::new(channel, format!("the slots of `{channel}` are read before they have arrived"))
        .help(format!("await {channel};"))
}

/// The count of slots each of which signals its own arrival.
pub(crate) fn count_of_named_slots(field: &Ident, channel: &Ident) -> Diagnostic {
    let what = format!(
        "slots of `{channel}` are not counted: every push names all of their indices, so each slot signals \
         its own arrival"
    );
    Diagnostic::new(field, what)
        .help(format!("leave the last index out of the `at` of every push to `{channel}`"))
}

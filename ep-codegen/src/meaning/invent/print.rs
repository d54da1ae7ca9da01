//! A random declaration as text. Names of a piece end in its letter.

use std::fmt::Write;

use super::{Field, Filter, Invented, Lane, Piece, Rows};

/// Rows of inputs and places that every declaration may read.
const SHARED: &str = "shape {
        ranks: 1..=64, hidden: 16..=64 step 16, topk: 1..=4, experts: 1..=16, stripes: 1..=8, most: 1..=16,
        let more = ranks + 1, let local_ranks = ranks,
    }
    size tokens in 0..=most;
    input
        to: bool[tokens, ranks], ids: i64[tokens, topk] in -1..experts, weights: f32[tokens, topk],
        numbers: i32[tokens] in -4..20, small: u8[tokens, 4], maybe: optional f32[tokens, 2], second: bf16[tokens, 8],
        expert_begin: i32[ranks + 1] in 0..=experts ascending,
        by_rank: i32[ranks] in 0..9, by_choice: i64[topk] in -5..6, by_three: i32[3] in 1..4;
";

/// Warps of each role: four pieces of three roles share 32.
pub(super) const WARPS: usize = 2;

impl Invented {
    /// The pipelines, as they stand in a `pipeline!` block. The last one reads the handle of the one
    /// before, if there are two.
    pub fn source(&self) -> String {
        let mut forth = Printer { out: SHARED.to_string(), letter: 'a', invented: self };
        forth.shared();
        for (piece, letter) in self.pieces.iter().zip('a'..='z') {
            forth.letter = letter;
            forth.piece(piece);
        }
        let mut out = format!("pub pipeline Random {{\n    {}}}\n", forth.out);
        if self.pieces.iter().any(|piece| matches!(piece, Piece::RoundTrip { .. })) {
            let mut back = Printer { out: SHARED.to_string(), letter: 'a', invented: self };
            back.back();
            let _ = writeln!(out, "pub pipeline Back {{\n    {}}}", back.out);
        }
        out
    }

    /// Whether rows of tokens are sent or copied.
    fn has_rows(&self) -> bool {
        self.pieces.iter().any(|piece| match piece {
            Piece::Rings { lanes, .. } => lanes.iter().any(|lane| lane.row),
            Piece::Forward { lane, .. } | Piece::Moved { lane, .. } => lane.row,
            Piece::Arrivals { lane } => lane.row,
            Piece::Direct { .. } | Piece::Places { .. } => true,
            Piece::Count { last, .. } => !last,
            _ => false,
        })
    }
}

pub(super) struct Printer<'a> {
    pub(super) out: String,
    pub(super) letter: char,
    pub(super) invented: &'a Invented,
}

/// Appends a line, in which `@` stands for the letter of the piece.
macro_rules! put {
    ($self:expr, $($words:tt)*) => {{
        let letter = format!("{}_", $self.letter);
        // Writing to a string cannot fail.
        let _ = writeln!($self.out, "    {}", format!($($words)*).replace('@', &letter));
    }};
}
pub(super) use put;

impl Printer<'_> {
    fn shared(&mut self) {
        if !self.invented.has_rows() {
            return;
        }
        if self.invented.rows == Rows::OfAxis {
            put!(
                self,
                "variant payload {{ Bf16 {{ x: bf16 }}, Fp8 {{ x: e4m3, scale: f32 block 32 }} }}"
            );
        }
        put!(self, "input x: {}[tokens, hidden];", self.row_type());
    }

    pub(super) fn row_type(&self) -> &'static str {
        match self.invented.rows {
            Rows::Bf16 => "bf16",
            Rows::F32 => "f32",
            Rows::OfAxis => "payload",
        }
    }

    fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Rings { lanes, sender, receiver, set } => {
                self.rings(lanes, *sender, *receiver, *set);
            }
            Piece::Forward { lane, on } => self.forward(lane, *on),
            Piece::RoundTrip { filter, .. } => self.forth(*filter),
            Piece::Direct { lane, sender, set } => self.direct(lane, *sender, *set),
            Piece::Slots { per_index, folds, set } => self.slots(*per_index, folds, *set),
            Piece::Arrivals { lane } => self.arrivals(lane),
            Piece::Keyed { counted } => self.keyed(*counted),
            Piece::Pull { bias, weights, scaled } => self.pull(*bias, *weights, *scaled),
            Piece::Gather(gather) => self.gather(gather),
            Piece::Count { filter, experts, last, flags } => {
                self.count(*filter, *experts, *last, *flags);
            }
            Piece::Places { filter } => self.places(*filter),
            Piece::Compute { depth, value, filter, named, inout } => {
                self.compute(*depth, value, filter.as_ref(), *named, *inout);
            }
            Piece::Prefix { nested, total, value } => self.prefix(*nested, *total, value),
            Piece::Moved { lane, by, through } => self.moved(lane, *by, *through),
            Piece::Reals { value, by_row, bf16 } => self.reals(value, *by_row, *bf16),
            Piece::Tallies { over, value } => self.tallies(*over, value),
            Piece::Again { value, carried } => self.again(value, *carried),
            Piece::Dealt { share, value } => self.dealt(*share, value),
        }
    }

    /// The message of a lane, and outputs with `dims` for its fields.
    pub(super) fn lane(&mut self, name: &str, lane: &Lane, dims: &str, window: bool) {
        let mut fields = Vec::new();
        let mut outputs = Vec::new();
        if lane.row {
            let (row, place) = (self.row_type(), if window { " in window" } else { "" });
            fields.push(format!("row x: {row}[hidden]"));
            outputs.push(format!("{name}_x: {row}[{dims}, hidden]{place}"));
        }
        for field in &lane.fields {
            let (declared, output, width) = types(*field);
            let extents =
                |width: &str| if width.is_empty() { String::new() } else { format!("[{width}]") };
            let with = if *field == Field::Maybe { " with maybe" } else { "" };
            fields.push(format!("{}: {declared}{}{with}", called(*field), extents(width)));
            let inner = if width.is_empty() { String::new() } else { format!(", {width}") };
            let optional = if *field == Field::Maybe { "optional " } else { "" };
            outputs.push(format!("{name}_{}: {optional}{output}[{dims}{inner}]", called(*field)));
        }
        put!(self, "message Of{} {{ {} }}", upper(name), fields.join(", "));
        put!(self, "output {};", outputs.join(", "));
        if lane.recorded {
            put!(self, "table {name}_at: i32[tokens, ranks];");
        }
    }

    /// `announce`, with the number of tokens that go to `peer`.
    pub(super) fn announced(filter: Filter) -> String {
        match filter {
            Filter::All => "sum(t in stripe: 1)".to_string(),
            _ => format!("sum(t in stripe: ({}) as i32)", condition(filter)),
        }
    }
}

/// `a_p` as `AP`.
pub(super) fn upper(name: &str) -> String {
    name.split('_').flat_map(str::chars).map(|letter| letter.to_ascii_uppercase()).collect()
}

/// Which tokens `t` go to `peer`.
pub(super) fn condition(filter: Filter) -> String {
    match filter {
        Filter::All => "true".to_string(),
        Filter::Flag => "to[t, peer]".to_string(),
        Filter::Routed => "routed(ids[t], peer)".to_string(),
        Filter::Modulo(by) => format!("(t + peer) % {by} != 1"),
        Filter::Several(by) => format!("to[t, peer] && numbers[t] > {by} || peer == me"),
    }
}

pub(super) fn clause(filter: Filter) -> String {
    if filter == Filter::All { String::new() } else { format!(" where {}", condition(filter)) }
}

fn called(field: Field) -> &'static str {
    match field {
        Field::Source => "src",
        Field::Ids { .. } => "chosen",
        Field::Weights { .. } => "w",
        Field::Flag => "flag",
        Field::Small => "small_ones",
        Field::Sum => "total",
        Field::Maybe => "perhaps",
        Field::Second => "second",
    }
}

/// Element types of the field and of its output, and how many elements there are.
fn types(field: Field) -> (&'static str, &'static str, &'static str) {
    match field {
        Field::Source => ("i32", "i64", ""),
        Field::Ids { .. } => ("i64", "i64", "topk"),
        Field::Weights { .. } => ("f32", "f32", "topk"),
        Field::Flag => ("bool", "bool", ""),
        Field::Small => ("u8", "i32", "4"),
        Field::Sum => ("i64", "i64", ""),
        Field::Maybe => ("f32", "f32", "2"),
        Field::Second => ("bf16", "bf16", "8"),
    }
}

/// The push of a token to `peer`, and the record of its position.
pub(super) fn sent(name: &str, lane: &Lane, at: &str) -> String {
    let mut values = Vec::new();
    if lane.row {
        values.push("x: x[t]".to_string());
    }
    for field in &lane.fields {
        let value = match field {
            Field::Source => "t",
            Field::Ids { .. } => "ids[t]",
            Field::Weights { twice: true } => "weights[t] * 2",
            Field::Weights { twice: false } => "weights[t]",
            Field::Flag => "numbers[t] > 3",
            Field::Small => "small[t]",
            Field::Sum => "sum(k in topk: ids[t, k]) + numbers[t]",
            Field::Maybe => "maybe[t]",
            Field::Second => "second[t]",
        };
        values.push(format!("{}: {value}", called(*field)));
    }
    let mut out = format!("push {name}[peer]{at} {{ {} }};", values.join(", "));
    if lane.recorded {
        let _ = write!(out, " record {name}_at[t, peer] = {name}[peer].position;");
    }
    out
}

/// What is made of a message `m`.
pub(super) fn taken(name: &str, lane: &Lane, place: &str) -> String {
    let mut out = String::new();
    if lane.row {
        let _ = write!(out, "store {name}_x[{place}] = m.x; ");
    }
    for field in &lane.fields {
        let word = called(*field);
        let value = match field {
            Field::Source => "m.src * 2 - me".to_string(),
            Field::Ids { local: true } => "local(m.chosen, me)".to_string(),
            Field::Flag => "!m.flag".to_string(),
            _ => format!("m.{word}"),
        };
        let _ = write!(out, "store {name}_{word}[{place}] = {value}; ");
    }
    out
}

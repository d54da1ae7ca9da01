//! Random declarations: legal pipelines from a seed, as their authors would write them.
//!
//! A declaration is a list of pieces that stand side by side, each with tensors, messages, channels and
//! roles of its own; what all read are a few inputs. A piece is legal whatever the others are, so that
//! taking pieces, channels, fields and conditions away leaves a legal declaration: that is how one that
//! fails is made small.

mod back;
mod channels;
mod gathers;
mod local;
mod passed;
mod print;
mod reals;
mod simpler;

use super::dice::Dice;
use simpler::simpler;

/// A random declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invented {
    pieces: Vec<Piece>,
    rows: Rows,
}

/// What rows of tokens are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Bf16,
    F32,
    /// Rows are of an axis, with scales in one of its arms.
    OfAxis,
}

/// The peers that a channel joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    All,
    Others,
    Local,
}

impl Set {
    /// Behind `per`.
    fn name(self) -> &'static str {
        match self {
            Set::All => "all",
            Set::Others => "others",
            Set::Local => "local",
        }
    }

    /// As the domain of a loop.
    fn domain(self) -> &'static str {
        if self == Set::All { "ranks" } else { self.name() }
    }
}

/// What stands side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// Messages through rings, perhaps two of them between the same roles.
    Rings { lanes: Vec<Lane>, sender: Sender, receiver: Receiver, set: Set },
    /// Rows through rings, and in a second pipeline the way back, where they are added up.
    RoundTrip { filter: Filter, bias: Bias, weights: bool, by_row: bool, wide: bool },
    /// Messages that a role passes on through another ring.
    Forward { lane: Lane, on: On },
    /// Rows that land in an output.
    Direct { lane: Lane, sender: Sender, set: Set },
    /// One record for each source, or for each source and index.
    Slots { per_index: bool, folds: Vec<Fold>, set: Set },
    /// Records in slots that count what arrives.
    Arrivals { lane: Lane },
    /// Rows of peers, added up.
    Pull { bias: Bias, weights: bool, scaled: bool },
    /// Parts of several peers, and what is made of them.
    Gather(Gather),
    /// Counters and flags of tokens, and what the last block makes of them.
    Count { filter: Filter, experts: Filter, last: bool, flags: bool },
    /// Rows copied to a place for each expert.
    Places { filter: Filter },
    /// Nested loops over numbers.
    Compute { depth: usize, value: Value, filter: Option<Value>, named: bool, inout: bool },
    /// Sums of those before.
    Prefix { nested: bool, total: bool, value: Value },
    /// Messages to peers that are computed.
    Moved { lane: Lane, by: i64, through: Through },
    /// Floats of each token, as rows or one by one.
    Reals { value: Real, by_row: bool, bf16: bool },
    /// Rows of a size of their own: values that are counted, named, and used again.
    Tallies { over: i64, value: Value },
}

/// Parts that are brought together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gather {
    /// They lie in slots, not where a peer offers them.
    slots: bool,
    over: Over,
    /// Positions are computed, not those of a table.
    computed: bool,
    value: Added,
    /// Rows and sums are `f32`.
    wide: bool,
    turns: Turns,
}

/// The peers of a gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Set(Set),
    /// All but the first one.
    Range,
}

/// What is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    Plain,
    /// Times a factor of token and peer.
    Scaled,
    /// Times a field of the part.
    Weighed,
    /// Times a number of the peer, rounded on the way.
    Rounded,
    /// By a function of the user.
    Called,
}

/// What a gather has a turn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    Tokens,
    Choices,
    Own,
}

/// Where a role passes messages on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// Back to where they come from.
    Same,
    /// All of them to this rank.
    Own,
    /// To the rank behind the one that they come from.
    Next,
}

/// The kind of channel to peers that are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    Ring,
    Direct,
    Slots,
}

/// A channel between two roles.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lane {
    filter: Filter,
    fields: Vec<Field>,
    row: bool,
    /// Positions are recorded.
    recorded: bool,
}

/// How the warps of a sender share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Peer,
    Token,
}

/// How the warps of a receiver share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Peer,
    /// Takes from all peers in turn.
    Stripe,
}

/// Which tokens go to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    All,
    Flag,
    Routed,
    Modulo(i64),
    Several(i64),
}

/// A small field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Source,
    Ids {
        local: bool,
    },
    Weights {
        twice: bool,
    },
    Flag,
    Small,
    Sum,
    Maybe,
    /// A second payload.
    Second,
}

/// What is made of the records of all sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Sum,
    Prefix,
    Copy,
}

/// What is added to a sum of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bias {
    None,
    Row,
    Several,
    Maybe,
}

/// A whole number of indices and inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(i64),
    /// The index of a loop, the outermost first; the rank where there are fewer loops.
    Index(usize),
    Me,
    /// An input at the index of a loop.
    Input(usize),
    /// A sum over an input.
    Fold(usize),
    Pair(Op, Box<Value>, Box<Value>),
}

/// A float of a token: an element, or a row of them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Real {
    /// Weights, f32.
    Weight,
    /// Values, bf16.
    Gate,
    /// A whole number of the token.
    Number,
    /// A `u8` that is cast.
    Small,
    /// A function of the user.
    Called(Box<Real>),
    /// Rounded to bf16 on the way.
    Rounded(Box<Real>),
    Pair(RealOp, Box<Real>, Box<Real>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RealOp {
    Add,
    Sub,
    Mul,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Sub,
    Mul,
    /// By a number above 0.
    Div,
    Rem,
    Max,
    Min,
    Align,
}

const FILTERS: [Filter; 5] =
    [Filter::All, Filter::Flag, Filter::Routed, Filter::Modulo(3), Filter::Several(4)];
const FIELDS: [Field; 10] = [
    Field::Source,
    Field::Ids { local: false },
    Field::Ids { local: true },
    Field::Weights { twice: false },
    Field::Weights { twice: true },
    Field::Flag,
    Field::Small,
    Field::Sum,
    Field::Maybe,
    Field::Second,
];
const OPS: [Op; 8] = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Rem, Op::Max, Op::Min, Op::Align];
const BIASES: [Bias; 4] = [Bias::None, Bias::Row, Bias::Several, Bias::Maybe];
const SETS: [Set; 4] = [Set::All, Set::All, Set::Others, Set::Local];
const ADDED: [Added; 5] =
    [Added::Plain, Added::Scaled, Added::Weighed, Added::Rounded, Added::Called];
const FOLDS: [Fold; 3] = [Fold::Sum, Fold::Prefix, Fold::Copy];

/// The most pieces of a declaration: their roles share the 32 warps of a block.
const PIECES_MAX: usize = 4;

impl Invented {
    /// The declaration of a seed.
    pub fn new(seed: u64) -> Invented {
        let mut random = Dice::new(seed);
        let count = 1 + random.below(PIECES_MAX);
        let pieces = (0..count).map(|_| piece(&mut random)).collect();
        let rows = one(&mut random, &[Rows::Bf16, Rows::F32, Rows::OfAxis], Rows::Bf16);
        Invented { pieces, rows }
    }

    /// Declarations that are a little smaller, the smallest first.
    pub fn smaller(&self) -> Vec<Invented> {
        let mut all = Vec::new();
        if self.pieces.len() > 1 {
            for at in 0..self.pieces.len() {
                let mut less = self.clone();
                less.pieces.remove(at);
                all.push(less);
            }
        }
        if self.rows != Rows::Bf16 {
            all.push(Invented { rows: Rows::Bf16, ..self.clone() });
        }
        for (at, piece) in self.pieces.iter().enumerate() {
            for simpler in simpler(piece) {
                let mut less = self.clone();
                less.pieces[at] = simpler;
                all.push(less);
            }
        }
        all
    }

    /// The smallest declaration on the way down from this one for which `fails` holds.
    pub fn shrunk(self, fails: &mut dyn FnMut(&Invented) -> bool) -> Invented {
        let mut now = self;
        while let Some(less) = now.smaller().into_iter().find(|less| fails(less)) {
            now = less;
        }
        now
    }
}

fn one<T: Copy>(random: &mut Dice, list: &[T], or: T) -> T {
    random.one_of(list).copied().unwrap_or(or)
}

fn piece(random: &mut Dice) -> Piece {
    let filter = |random: &mut Dice| one(random, &FILTERS, Filter::All);
    let set = |random: &mut Dice| one(random, &SETS, Set::All);
    match random.below(17) {
        0 | 1 => {
            let lanes = 1 + usize::from(random.once_in(3));
            let lanes = (0..lanes).map(|_| lane(random)).collect();
            let sender = one(random, &[Sender::Peer, Sender::Token], Sender::Peer);
            let receiver = one(random, &[Receiver::Peer, Receiver::Stripe], Receiver::Peer);
            Piece::Rings { lanes, sender, receiver, set: set(random) }
        }
        2 => {
            let on = one(random, &[On::Same, On::Own, On::Next], On::Same);
            Piece::Forward { lane: lane(random), on }
        }
        3 => {
            let sender = one(random, &[Sender::Peer, Sender::Token], Sender::Token);
            let lane = Lane { row: true, ..lane(random) };
            Piece::Direct { lane, sender, set: set(random) }
        }
        4 => {
            let folds = (0..1 + random.below(3)).map(|_| one(random, &FOLDS, Fold::Sum)).collect();
            Piece::Slots { per_index: random.once_in(2), folds, set: set(random) }
        }
        5 => Piece::Arrivals { lane: lane(random) },
        6 => {
            let bias = one(random, &BIASES, Bias::None);
            Piece::Pull { bias, weights: random.once_in(2), scaled: random.once_in(3) }
        }
        7 | 8 => Piece::Gather(gather(random)),
        9 => Piece::RoundTrip {
            filter: filter(random),
            bias: one(random, &BIASES, Bias::None),
            weights: random.once_in(2),
            by_row: random.once_in(2),
            wide: random.once_in(3),
        },
        10 => {
            let lane = Lane { recorded: false, ..lane(random) };
            let through = [Through::Ring, Through::Direct, Through::Slots];
            let through = one(random, &through, Through::Ring);
            let lane = Lane { row: lane.row || through == Through::Direct, ..lane };
            Piece::Moved { lane, by: random.within(0, 4), through }
        }
        _ => own_piece(random),
    }
}

/// A piece that sends nothing.
fn own_piece(random: &mut Dice) -> Piece {
    let filter = |random: &mut Dice| one(random, &FILTERS, Filter::All);
    match random.below(6) {
        0 => Piece::Count {
            filter: filter(random),
            experts: filter(random),
            last: random.once_in(2),
            flags: random.once_in(2),
        },
        1 => Piece::Places { filter: filter(random) },
        2 => Piece::Compute {
            depth: 1 + random.below(3),
            value: value(random, 3),
            filter: random.once_in(2).then(|| value(random, 1)),
            named: random.once_in(2),
            inout: random.once_in(3),
        },
        3 => Piece::Prefix {
            nested: random.once_in(2),
            total: random.once_in(2),
            value: value(random, 2),
        },
        4 => Piece::Reals {
            value: real(random, 3),
            by_row: random.once_in(2),
            bf16: random.once_in(2),
        },
        _ => Piece::Tallies { over: random.within(-3, 20), value: value(random, 2) },
    }
}

fn gather(random: &mut Dice) -> Gather {
    let over = match random.once_in(4) {
        true => Over::Range,
        false => Over::Set(one(random, &SETS, Set::All)),
    };
    Gather {
        slots: random.once_in(2),
        over,
        computed: random.once_in(2),
        value: one(random, &ADDED, Added::Plain),
        wide: random.once_in(2),
        turns: one(random, &[Turns::Tokens, Turns::Choices, Turns::Own], Turns::Tokens),
    }
}

/// A float of at most so many operations in a row.
fn real(random: &mut Dice, depth: usize) -> Real {
    const OPS: [RealOp; 3] = [RealOp::Add, RealOp::Sub, RealOp::Mul];
    if depth == 0 || random.once_in(4) {
        return match random.below(4) {
            0 => Real::Weight,
            1 => Real::Gate,
            2 => Real::Number,
            _ => Real::Small,
        };
    }
    match random.below(5) {
        0 => Real::Called(Box::new(real(random, depth - 1))),
        1 => Real::Rounded(Box::new(real(random, depth - 1))),
        _ => {
            let op = one(random, &OPS, RealOp::Add);
            Real::Pair(op, Box::new(real(random, depth - 1)), Box::new(real(random, depth - 1)))
        }
    }
}

fn lane(random: &mut Dice) -> Lane {
    let mut fields = Vec::new();
    for _ in 0..1 + random.below(4) {
        let field = one(random, &FIELDS, Field::Source);
        let same = |it: &Field| std::mem::discriminant(it) == std::mem::discriminant(&field);
        if !fields.iter().any(same) {
            fields.push(field);
        }
    }
    let filter = one(random, &FILTERS, Filter::All);
    Lane { filter, fields, row: random.once_in(2), recorded: random.once_in(2) }
}

/// A value of at most so many operations in a row.
fn value(random: &mut Dice, depth: usize) -> Value {
    if depth == 0 || random.once_in(4) {
        return match random.below(5) {
            0 => Value::Number(random.within(0, 9)),
            1 => Value::Me,
            2 => Value::Input(random.below(3)),
            3 => Value::Fold(random.below(3)),
            _ => Value::Index(random.below(3)),
        };
    }
    let op = one(random, &OPS, Op::Add);
    let left = value(random, depth - 1);
    let right = match op {
        Op::Div | Op::Rem | Op::Align => Value::Number(random.within(1, 8)),
        _ => value(random, depth - 1),
    };
    Value::Pair(op, Box::new(left), Box::new(right))
}

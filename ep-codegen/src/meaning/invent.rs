//! Random declarations: legal pipelines from a seed, as their authors would write them.
//!
//! A declaration is a list of pieces that stand side by side, each with tensors, messages, channels and
//! roles of its own; what all read are a few inputs. A piece is legal whatever the others are, so that
//! taking pieces, channels, fields and conditions away leaves a legal declaration: that is how one that
//! fails is made small.

mod back;
mod channels;
mod choices;
mod gathers;
mod local;
mod passed;
mod print;
mod reals;
mod simpler;

use super::dice::Dice;
use choices::{dealt, newer, one, piece};
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
    /// Records in slots of several keys: one of each, or as many as come.
    Keyed { counted: bool },
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
    /// What a role has written it reads again, element by element and one from the other.
    Again { value: Value, carried: bool },
    /// Numbers that are stored and added up once each, however the warps share the work.
    Dealt { share: Dealt, value: Value },
}

/// How the warps share what has nothing to do with stripes or tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dealt {
    Stripe,
    Token,
    Block,
    Peer,
    Rank,
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
    /// What is made of the values: their sum, or one of them.
    fold: Made,
    /// Rows and folds are `f32`.
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

/// What is made of the values of a gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Sum,
    Max,
    Min,
}

/// What is folded.
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
    /// Stores rows at the places that their senders announce.
    Place,
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
    Greatest,
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

/// The most pieces of a declaration: their roles share the 32 warps of a block.
const PIECES_MAX: usize = 4;

/// Seeds before this one keep the declarations by which tests know them.
const NEWER: u64 = 64;

impl Invented {
    /// The declaration of a seed.
    pub fn new(seed: u64) -> Invented {
        let mut random = Dice::new(seed);
        let count = 1 + random.below(PIECES_MAX);
        let mut pieces: Vec<Piece> = (0..count).map(|_| piece(&mut random)).collect();
        let rows = one(&mut random, &[Rows::Bf16, Rows::F32, Rows::OfAxis], Rows::Bf16);
        if count < PIECES_MAX && random.once_in(3) {
            pieces.push(dealt(&mut random));
        }
        if pieces.len() < PIECES_MAX && random.once_in(3) {
            pieces.push(Piece::Keyed { counted: random.once_in(2) });
        }
        if seed >= NEWER {
            pieces.iter_mut().for_each(|piece| newer(piece, &mut random));
        }
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

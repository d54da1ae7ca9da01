//! Random declarations: legal pipelines from a seed, as their authors would write them.
//!
//! A declaration is a list of pieces that stand side by side, each with tensors, messages, channels and
//! roles of its own; what all read are a few inputs. A piece is legal whatever the others are, so that
//! taking pieces, channels, fields and conditions away leaves a legal declaration: that is how one that
//! fails is made small.

mod back;
mod channels;
mod local;
mod print;

use super::dice::Dice;

/// A random declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invented {
    pieces: Vec<Piece>,
    /// Rows are of an axis, with scales in one of its arms.
    composite: bool,
}

/// What stands side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// Messages through rings, perhaps two of them between the same roles.
    Rings { lanes: Vec<Lane>, sender: Sender, receiver: Receiver, others: bool },
    /// Rows through rings, and in a second pipeline the way back, where they are added up.
    RoundTrip { filter: Filter, bias: Bias, weights: bool, by_row: bool },
    /// Messages that a role passes on through another ring.
    Forward { lane: Lane, from_all: bool },
    /// Rows that land in an output.
    Direct { lane: Lane, sender: Sender },
    /// One record for each source, or for each source and index.
    Slots { per_index: bool, folds: Vec<Fold> },
    /// Records in slots that count what arrives.
    Arrivals { lane: Lane },
    /// Rows of peers, added up.
    Pull { bias: Bias, weights: bool, scaled: bool },
    /// Counters and flags of tokens, and what the last block makes of them.
    Count { filter: Filter, experts: Filter, last: bool, flags: bool },
    /// Rows copied to a place for each expert.
    Places { filter: Filter },
    /// Nested loops over numbers.
    Compute { depth: usize, value: Value, filter: Option<Value>, named: bool, inout: bool },
    /// Sums of those before.
    Prefix { nested: bool, total: bool, value: Value },
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
    Ids { local: bool },
    Weights { twice: bool },
    Flag,
    Small,
    Sum,
    Maybe,
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
const FIELDS: [Field; 9] = [
    Field::Source,
    Field::Ids { local: false },
    Field::Ids { local: true },
    Field::Weights { twice: false },
    Field::Weights { twice: true },
    Field::Flag,
    Field::Small,
    Field::Sum,
    Field::Maybe,
];
const OPS: [Op; 8] = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Rem, Op::Max, Op::Min, Op::Align];
const BIASES: [Bias; 4] = [Bias::None, Bias::Row, Bias::Several, Bias::Maybe];
const FOLDS: [Fold; 3] = [Fold::Sum, Fold::Prefix, Fold::Copy];

/// The most pieces of a declaration: their roles share the 32 warps of a block.
const PIECES_MAX: usize = 4;

impl Invented {
    /// The declaration of a seed.
    pub fn new(seed: u64) -> Invented {
        let mut random = Dice::new(seed);
        let count = 1 + random.below(PIECES_MAX);
        let pieces = (0..count).map(|_| piece(&mut random)).collect();
        Invented { pieces, composite: random.once_in(3) }
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
        if self.composite {
            all.push(Invented { composite: false, ..self.clone() });
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
    match random.below(12) {
        0 | 1 => {
            let lanes = 1 + usize::from(random.once_in(3));
            let lanes = (0..lanes).map(|_| lane(random)).collect();
            let sender = one(random, &[Sender::Peer, Sender::Token], Sender::Peer);
            let receiver = one(random, &[Receiver::Peer, Receiver::Stripe], Receiver::Peer);
            let others = sender == Sender::Peer && random.once_in(3);
            Piece::Rings { lanes, sender, receiver, others }
        }
        2 => Piece::Forward { lane: lane(random), from_all: random.once_in(2) },
        3 => {
            let sender = one(random, &[Sender::Peer, Sender::Token], Sender::Token);
            Piece::Direct { lane: Lane { row: true, ..lane(random) }, sender }
        }
        4 => {
            let folds = (0..1 + random.below(3)).map(|_| one(random, &FOLDS, Fold::Sum)).collect();
            Piece::Slots { per_index: random.once_in(2), folds }
        }
        5 => Piece::Arrivals { lane: lane(random) },
        6 => {
            let bias = one(random, &BIASES, Bias::None);
            Piece::Pull { bias, weights: random.once_in(2), scaled: random.once_in(3) }
        }
        7 => Piece::Count {
            filter: filter(random),
            experts: filter(random),
            last: random.once_in(2),
            flags: random.once_in(2),
        },
        8 => Piece::Places { filter: filter(random) },
        9 => Piece::RoundTrip {
            filter: filter(random),
            bias: one(random, &BIASES, Bias::None),
            weights: random.once_in(2),
            by_row: random.once_in(2),
        },
        10 => Piece::Compute {
            depth: 1 + random.below(3),
            value: value(random, 3),
            filter: random.once_in(2).then(|| value(random, 1)),
            named: random.once_in(2),
            inout: random.once_in(3),
        },
        _ => Piece::Prefix {
            nested: random.once_in(2),
            total: random.once_in(2),
            value: value(random, 2),
        },
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

/// A piece with less of something.
fn simpler(piece: &Piece) -> Vec<Piece> {
    let mut all = Vec::new();
    match piece {
        Piece::Rings { lanes, sender, receiver, others } => {
            let with = |lanes: Vec<Lane>| Piece::Rings {
                lanes,
                sender: *sender,
                receiver: *receiver,
                others: *others,
            };
            if lanes.len() > 1 {
                all.extend(lanes.iter().map(|lane| with(vec![lane.clone()])));
            }
            for at in 0..lanes.len() {
                for lane in simpler_lane(&lanes[at]) {
                    let mut lanes = lanes.clone();
                    lanes[at] = lane;
                    all.push(with(lanes));
                }
            }
            if *others {
                let (lanes, sender, receiver) = (lanes.clone(), *sender, *receiver);
                all.push(Piece::Rings { lanes, sender, receiver, others: false });
            }
            if *receiver == Receiver::Stripe {
                let (lanes, sender, others) = (lanes.clone(), *sender, *others);
                all.push(Piece::Rings { lanes, sender, receiver: Receiver::Peer, others });
            }
        }
        Piece::Forward { lane, from_all } => {
            let less = simpler_lane(lane).into_iter();
            all.extend(less.map(|lane| Piece::Forward { lane, from_all: *from_all }));
            if *from_all {
                all.push(Piece::Forward { lane: lane.clone(), from_all: false });
            }
        }
        Piece::Direct { lane, sender } => {
            let less = simpler_lane(lane).into_iter().filter(|lane| lane.row);
            all.extend(less.map(|lane| Piece::Direct { lane, sender: *sender }));
        }
        Piece::Arrivals { lane } => {
            all.extend(simpler_lane(lane).into_iter().map(|lane| Piece::Arrivals { lane }));
        }
        _ => all.extend(simpler_local(piece)),
    }
    all
}

/// The same for pieces whose messages have no fields to choose.
fn simpler_local(piece: &Piece) -> Vec<Piece> {
    let mut all = Vec::new();
    match piece.clone() {
        Piece::Slots { per_index, folds } => {
            if folds.len() > 1 {
                let one = |fold: &Fold| Piece::Slots { per_index, folds: vec![*fold] };
                all.extend(folds.iter().map(one));
            }
            if per_index {
                all.push(Piece::Slots { per_index: false, folds });
            }
        }
        Piece::Pull { bias, weights, scaled } => {
            if bias != Bias::None {
                all.push(Piece::Pull { bias: Bias::None, weights, scaled });
            }
            if weights {
                all.push(Piece::Pull { bias, weights: false, scaled });
            }
            if scaled {
                all.push(Piece::Pull { bias, weights, scaled: false });
            }
        }
        Piece::RoundTrip { filter, bias, weights, by_row } => {
            if filter != Filter::All {
                all.push(Piece::RoundTrip { filter: Filter::All, bias, weights, by_row });
            }
            if bias != Bias::None {
                all.push(Piece::RoundTrip { filter, bias: Bias::None, weights, by_row });
            }
            if weights || by_row {
                all.push(Piece::RoundTrip { filter, bias, weights: false, by_row: false });
            }
        }
        Piece::Count { filter, experts, last, flags } => {
            if last || flags {
                all.push(Piece::Count { filter, experts, last: false, flags: false });
            }
            if filter != Filter::All {
                all.push(Piece::Count { filter: Filter::All, experts, last, flags });
            }
            if experts != Filter::All {
                all.push(Piece::Count { filter, experts: Filter::All, last, flags });
            }
        }
        Piece::Places { filter } if filter != Filter::All => {
            all.push(Piece::Places { filter: Filter::All });
        }
        _ => all.extend(simpler_number(piece)),
    }
    all
}

/// The same for pieces that compute.
fn simpler_number(piece: &Piece) -> Vec<Piece> {
    let mut all = Vec::new();
    match piece.clone() {
        Piece::Compute { depth, value, filter, named, inout } => {
            let with = |depth, value, filter, named, inout| Piece::Compute {
                depth,
                value,
                filter,
                named,
                inout,
            };
            if depth > 1 {
                all.push(with(depth - 1, value.clone(), filter.clone(), named, inout));
            }
            if filter.is_some() {
                all.push(with(depth, value.clone(), None, named, inout));
            }
            if named || inout {
                all.push(with(depth, value.clone(), filter.clone(), false, false));
            }
            if let Value::Pair(_, left, right) = value {
                for value in [*left, *right] {
                    all.push(with(depth, value, filter.clone(), named, inout));
                }
            }
        }
        Piece::Prefix { nested, total, value } => {
            if nested || total {
                all.push(Piece::Prefix { nested: false, total: false, value: value.clone() });
            }
            if let Value::Pair(_, left, right) = value {
                let with = |value: Box<Value>| Piece::Prefix { nested, total, value: *value };
                all.extend([with(left), with(right)]);
            }
        }
        _ => {}
    }
    all
}

fn simpler_lane(lane: &Lane) -> Vec<Lane> {
    let mut all = Vec::new();
    if lane.filter != Filter::All {
        all.push(Lane { filter: Filter::All, ..lane.clone() });
    }
    if lane.recorded {
        all.push(Lane { recorded: false, ..lane.clone() });
    }
    if lane.row {
        all.push(Lane { row: false, ..lane.clone() });
    }
    if lane.fields.len() > 1 {
        for at in 0..lane.fields.len() {
            let mut less = lane.clone();
            less.fields.remove(at);
            all.push(less);
        }
    }
    all
}

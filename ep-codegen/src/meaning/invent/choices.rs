//! What a seed chooses for a piece.

use super::{
    Added, Bias, Dealt, Field, Filter, Fold, Gather, Lane, Made, On, Op, Over, Piece, Real, RealOp,
    Receiver, Sender, Set, Through, Turns, Value,
};
use crate::meaning::dice::Dice;

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
const RECEIVERS: [Receiver; 3] = [Receiver::Peer, Receiver::Stripe, Receiver::Place];
const OPS: [Op; 8] = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Rem, Op::Max, Op::Min, Op::Align];
const BIASES: [Bias; 4] = [Bias::None, Bias::Row, Bias::Several, Bias::Maybe];
const SETS: [Set; 4] = [Set::All, Set::All, Set::Others, Set::Local];
const ADDED: [Added; 5] =
    [Added::Plain, Added::Scaled, Added::Weighed, Added::Rounded, Added::Called];
const SHARES: [Dealt; 5] = [Dealt::Stripe, Dealt::Token, Dealt::Block, Dealt::Peer, Dealt::Rank];
const FOLDS: [Fold; 3] = [Fold::Sum, Fold::Prefix, Fold::Copy];

pub(super) fn one<T: Copy>(random: &mut Dice, list: &[T], or: T) -> T {
    random.one_of(list).copied().unwrap_or(or)
}

pub(super) fn piece(random: &mut Dice) -> Piece {
    let filter = |random: &mut Dice| one(random, &FILTERS, Filter::All);
    let set = |random: &mut Dice| one(random, &SETS, Set::All);
    match random.below(18) {
        0 | 1 => {
            let lanes = 1 + usize::from(random.once_in(3));
            let lanes = (0..lanes).map(|_| lane(random)).collect();
            let sender = one(random, &[Sender::Peer, Sender::Token], Sender::Peer);
            let receiver = one(random, &RECEIVERS, Receiver::Peer);
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
    match random.below(7) {
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
        5 => Piece::Tallies { over: random.within(-3, 20), value: value(random, 2) },
        _ => Piece::Again { value: value(random, 2), carried: random.once_in(2) },
    }
}

/// Draws what the first seeds do without.
pub(super) fn newer(piece: &mut Piece, random: &mut Dice) {
    match piece {
        Piece::Gather(gather) => {
            gather.fold = one(random, &[Made::Sum, Made::Max, Made::Min], Made::Sum);
        }
        Piece::Slots { folds, .. } if random.once_in(2) => folds.push(Fold::Greatest),
        _ => {}
    }
}

pub(super) fn dealt(random: &mut Dice) -> Piece {
    let share = one(random, &SHARES, Dealt::Stripe);
    Piece::Dealt { share, value: value(random, 2) }
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
        fold: Made::Sum,
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

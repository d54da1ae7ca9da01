//! Declarations with a little less in them, so that one that fails can be made small.

use super::{
    Added, Bias, Filter, Fold, Gather, Lane, Made, On, Over, Piece, Real, Receiver, Set, Through,
    Turns, Value,
};

/// A piece with less of something.
pub(super) fn simpler(piece: &Piece) -> Vec<Piece> {
    let mut all = Vec::new();
    match piece {
        Piece::Rings { lanes, sender, receiver, set } => {
            let with = |lanes: Vec<Lane>| Piece::Rings {
                lanes,
                sender: *sender,
                receiver: *receiver,
                set: *set,
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
            if *set != Set::All {
                let (lanes, sender, receiver) = (lanes.clone(), *sender, *receiver);
                all.push(Piece::Rings { lanes, sender, receiver, set: Set::All });
            }
            if *receiver != Receiver::Peer {
                let (lanes, sender, set) = (lanes.clone(), *sender, *set);
                all.push(Piece::Rings { lanes, sender, receiver: Receiver::Peer, set });
            }
        }
        Piece::Forward { lane, on } => {
            let less = simpler_lane(lane).into_iter();
            all.extend(less.map(|lane| Piece::Forward { lane, on: *on }));
            if *on != On::Same {
                all.push(Piece::Forward { lane: lane.clone(), on: On::Same });
            }
        }
        Piece::Direct { lane, sender, set } => {
            let (sender, set) = (*sender, *set);
            let less = simpler_lane(lane).into_iter().filter(|lane| lane.row);
            all.extend(less.map(|lane| Piece::Direct { lane, sender, set }));
            if set != Set::All {
                all.push(Piece::Direct { lane: lane.clone(), sender, set: Set::All });
            }
        }
        Piece::Arrivals { lane } => {
            all.extend(simpler_lane(lane).into_iter().map(|lane| Piece::Arrivals { lane }));
        }
        Piece::Moved { lane, by, through } => {
            let (by, through) = (*by, *through);
            let less = simpler_lane(lane).into_iter();
            let less = less.filter(|lane| lane.row || through != Through::Direct);
            all.extend(less.map(|lane| Piece::Moved { lane, by, through }));
            if by != 0 {
                all.push(Piece::Moved { lane: lane.clone(), by: 0, through });
            }
        }
        Piece::Gather(gather) => all.extend(simpler_gather(gather).map(Piece::Gather)),
        _ => all.extend(simpler_local(piece)),
    }
    all
}

/// A piece whose messages have no fields to choose, with less of something.
fn simpler_local(piece: &Piece) -> Vec<Piece> {
    let mut all = Vec::new();
    match piece.clone() {
        Piece::Slots { per_index, folds, set } => {
            if folds.len() > 1 {
                let one = |fold: &Fold| Piece::Slots { per_index, folds: vec![*fold], set };
                all.extend(folds.iter().map(one));
            }
            if set != Set::All {
                all.push(Piece::Slots { per_index, folds: folds.clone(), set: Set::All });
            }
            if per_index {
                all.push(Piece::Slots { per_index: false, folds, set });
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
        Piece::RoundTrip { filter, bias, weights, by_row, wide } => {
            let with = |filter, bias, weights, by_row, wide| Piece::RoundTrip {
                filter,
                bias,
                weights,
                by_row,
                wide,
            };
            if filter != Filter::All {
                all.push(with(Filter::All, bias, weights, by_row, wide));
            }
            if bias != Bias::None {
                all.push(with(filter, Bias::None, weights, by_row, wide));
            }
            if weights || by_row || wide {
                all.push(with(filter, bias, false, false, false));
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
        Piece::Keyed { counted: true } => all.push(Piece::Keyed { counted: false }),
        Piece::Places { filter } if filter != Filter::All => {
            all.push(Piece::Places { filter: Filter::All });
        }
        _ => all.extend(simpler_number(piece)),
    }
    all
}

/// A piece that computes, with less of something.
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
        Piece::Reals { value, by_row, bf16 } => {
            if bf16 {
                all.push(Piece::Reals { value: value.clone(), by_row, bf16: false });
            }
            let parts = match value {
                Real::Called(inner) | Real::Rounded(inner) => vec![*inner],
                Real::Pair(_, left, right) => vec![*left, *right],
                _ => Vec::new(),
            };
            all.extend(parts.into_iter().map(|value| Piece::Reals { value, by_row, bf16 }));
        }
        Piece::Again { value, carried } => {
            if carried {
                all.push(Piece::Again { value: value.clone(), carried: false });
            }
            if let Value::Pair(_, left, right) = value {
                let with = |value: Box<Value>| Piece::Again { value: *value, carried };
                all.extend([with(left), with(right)]);
            }
        }
        Piece::Dealt { share, value: Value::Pair(_, left, right) } => {
            let with = |value: Box<Value>| Piece::Dealt { share, value: *value };
            all.extend([with(left), with(right)]);
        }
        Piece::Tallies { over, value: Value::Pair(_, left, right) } => {
            let with = |value: Box<Value>| Piece::Tallies { over, value: *value };
            all.extend([with(left), with(right)]);
        }
        _ => {}
    }
    all
}

fn simpler_gather(gather: &Gather) -> impl Iterator<Item = Gather> {
    let plain = [
        Gather { slots: false, ..gather.clone() },
        Gather { over: Over::Set(Set::All), ..gather.clone() },
        Gather { computed: false, ..gather.clone() },
        Gather { value: Added::Plain, ..gather.clone() },
        Gather { fold: Made::Sum, ..gather.clone() },
        Gather { wide: false, ..gather.clone() },
        Gather { turns: Turns::Tokens, ..gather.clone() },
    ];
    let same = gather.clone();
    plain.into_iter().filter(move |less| *less != same)
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

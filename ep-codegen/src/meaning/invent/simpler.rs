//! Declarations with a little less in them, so that one that fails can be made small.

use super::{Bias, Filter, Fold, Lane, Piece, Real, Receiver, Value};

/// A piece with less of something.
pub(super) fn simpler(piece: &Piece) -> Vec<Piece> {
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
        Piece::Moved { lane, by } => {
            let by = *by;
            all.extend(simpler_lane(lane).into_iter().map(|lane| Piece::Moved { lane, by }));
            if by != 0 {
                all.push(Piece::Moved { lane: lane.clone(), by: 0 });
            }
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
        Piece::Tallies { over, value: Value::Pair(_, left, right) } => {
            let with = |value: Box<Value>| Piece::Tallies { over, value: *value };
            all.extend([with(left), with(right)]);
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

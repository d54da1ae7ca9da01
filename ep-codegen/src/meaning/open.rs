//! What the language leaves open: the order of messages that several senders, or several turns of
//! one sender, put into one place as they come. Such messages form a group; everything whose place
//! or value depends on a message's rank in its group is noted, so that a comparison can be of sets.

use std::collections::BTreeMap;

use super::data::Tensor;

/// The `at`-th message of a group, as the interpreter ordered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordinal {
    /// Group.
    pub group: usize,
    /// Rank in the group.
    pub at: usize,
}

/// What a value depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Touched {
    /// On no open order.
    #[default]
    Nothing,
    /// On one message's rank in its group.
    One(Ordinal),
    /// On several.
    Many,
}

impl Touched {
    /// What depends on both.
    pub(super) fn and(self, other: Touched) -> Touched {
        match (self, other) {
            (Touched::Nothing, other) => other,
            (this, Touched::Nothing) => this,
            (this, other) if this == other => this,
            _ => Touched::Many,
        }
    }
}

/// An element of a tensor that an open order touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenElement {
    /// What its place depends on.
    pub place: Touched,
    /// What its value depends on.
    pub value: Touched,
}

/// A tensor as a call leaves it.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// Values.
    pub tensor: Tensor,
    /// Elements of the first part that the call has given a value; others stay as they were.
    pub written: Vec<bool>,
    /// Elements of the first part that an open order touches: those that the call has given a value,
    /// and those that it would have, had another message been there.
    pub open: BTreeMap<usize, OpenElement>,
    /// Elements to which several `f32` were added in no fixed order: how many, and the sum of their
    /// magnitudes.
    pub loose: BTreeMap<usize, (u32, f32)>,
}

/// An element of a part of a tensor of a rank.
type Where = (usize, String, usize, usize);

/// The members of a group, by rank in it.
#[derive(Default)]
struct Group {
    /// Elements that lie where the member's rank says, and whether the member has one.
    places: BTreeMap<usize, Vec<(Where, bool)>>,
    /// Elements that hold something made of the member's rank.
    values: Vec<(usize, Where)>,
}

impl Group {
    /// What a member leaves, in order of its places; nothing where a condition has left it out.
    fn leaves(&self, member: usize, of: &Find<'_>) -> Vec<Option<u64>> {
        let places = self.places.get(&member).into_iter().flatten();
        places.map(|(place, is_left)| is_left.then(|| bit(place, of)).flatten()).collect()
    }

    /// What lies at the places of a member.
    fn holds(&self, member: usize, of: &Find<'_>) -> Vec<Option<u64>> {
        let places = self.places.get(&member).into_iter().flatten();
        places.map(|(place, _)| bit(place, of)).collect()
    }
}

/// The first differences between what calls must leave and what they left; `got` has a tensor for
/// each name and rank that is to be compared.
pub fn compare(want: &[BTreeMap<String, Left>], got: &[BTreeMap<String, Tensor>]) -> Vec<String> {
    let mut differences = Vec::new();
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for (rank, (want, got)) in want.iter().zip(got).enumerate() {
        for (name, left) in want {
            let Some(found) = got.get(name) else { continue };
            exact(rank, name, left, found, &mut groups, &mut differences);
        }
    }
    for group in groups.values() {
        of_group(group, want, got, &mut differences);
    }
    differences
}

/// Compares the elements that are in order, and notes those that are not.
fn exact(
    rank: usize,
    name: &str,
    left: &Left,
    found: &Tensor,
    groups: &mut BTreeMap<usize, Group>,
    differences: &mut Vec<String>,
) {
    if left.tensor.parts.len() != found.parts.len() {
        differences.push(format!("rank {rank}: {name} has {} parts", found.parts.len()));
        return;
    }
    for (number, part) in left.tensor.parts.iter().enumerate() {
        for at in 0..part.data.len() {
            let owner = left.tensor.owner_of(number, at);
            let is_left = left.written.get(owner).copied().unwrap_or(false);
            if !is_left && !left.open.contains_key(&owner) {
                continue;
            }
            let place = (rank, name.to_string(), number, at);
            match left.open.get(&owner) {
                // What says where it lies itself is as fixed as anything.
                Some(OpenElement { place: Touched::One(a), value: Touched::One(b) })
                    if a == b && is_left => {}
                Some(OpenElement { place: Touched::One(member), value: Touched::Nothing }) => {
                    let group = groups.entry(member.group).or_default();
                    group.places.entry(member.at).or_default().push((place, is_left));
                    continue;
                }
                Some(_) if !is_left => continue,
                Some(OpenElement { place: Touched::Nothing, value: Touched::One(member) }) => {
                    let group = groups.entry(member.group).or_default();
                    group.values.push((member.at, place));
                    continue;
                }
                Some(_) => continue,
                None => {}
            }
            if !same(left, number, at, found) {
                let values = (part.data.get(at), found.parts[number].data.get(at));
                differences.push(format!(
                    "rank {rank}: {name}{:?} part {number} is {}, not {}",
                    unflat(&left.tensor.extents, owner),
                    values.1.map_or("nothing".to_string(), super::value::shown),
                    values.0.map_or("nothing".to_string(), super::value::shown),
                ));
            }
        }
    }
}

fn same(left: &Left, part: usize, at: usize, found: &Tensor) -> bool {
    let (want, got) = (&left.tensor.parts[part].data, &found.parts[part].data);
    if let Some((terms, magnitude)) = left.loose.get(&at).filter(|_| part == 0) {
        use super::data::Scalar::Real;
        let (Some(Real(a)), Some(Real(b))) = (want.get(at), got.get(at)) else { return false };
        let lost = f64::from(*magnitude) * f64::from(*terms) * 2f64.powi(-23);
        return (f64::from(a) - f64::from(b)).abs() <= lost;
    }
    want.elem() == got.elem() && want.bits(at) == got.bits(at)
}

/// The indices of a flat element.
pub(super) fn unflat(extents: &[usize], mut flat: usize) -> Vec<i64> {
    let mut index = vec![0; extents.len()];
    for (place, extent) in index.iter_mut().zip(extents).rev() {
        *place = (flat % (*extent).max(1)) as i64;
        flat /= (*extent).max(1);
    }
    index
}

/// The tensor of a rank.
type Find<'a> = dyn Fn(usize, &str) -> Option<&'a Tensor> + 'a;

/// The bits of an element.
fn bit(place: &Where, of: &Find<'_>) -> Option<u64> {
    let (rank, name, part, at) = place;
    of(*rank, name)?.parts.get(*part)?.data.bits(*at)
}

fn of_group(
    group: &Group,
    want: &[BTreeMap<String, Left>],
    got: &[BTreeMap<String, Tensor>],
    differences: &mut Vec<String>,
) {
    let wanted = |rank: usize, name: &str| Some(&want.get(rank)?.get(name)?.tensor);
    let found = |rank: usize, name: &str| got.get(rank)?.get(name);
    let name = || {
        let places = group.places.values().flatten().map(|(at, _)| at);
        let first = places.chain(group.values.iter().map(|(_, at)| at));
        first.map(|(rank, name, ..)| format!("rank {rank}: {name}")).next().unwrap_or_default()
    };
    // What is recorded of the order says which member is which.
    let mut ranks: BTreeMap<u64, usize> = BTreeMap::new();
    for (member, place) in &group.values {
        if let Some(value) = bit(place, &wanted) {
            ranks.insert(value, *member);
        }
    }
    let mut seen = BTreeMap::new();
    for (member, place) in &group.values {
        let Some(now) = bit(place, &found).and_then(|value| ranks.get(&value)) else {
            differences.push(format!("{} holds a position that no message has", name()));
            return;
        };
        if *seen.entry(*member).or_insert(*now) != *now {
            differences.push(format!("{} holds two positions of one message", name()));
            return;
        }
    }
    if seen.values().collect::<std::collections::BTreeSet<_>>().len() != seen.len() {
        differences.push(format!("{} holds one position for two messages", name()));
        return;
    }
    // The others are compared as a set.
    let taken: std::collections::BTreeSet<usize> = seen.values().copied().collect();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for member in group.places.keys() {
        match seen.get(member) {
            Some(now) => {
                if !fits(&group.leaves(*member, &wanted), &group.holds(*now, &found)) {
                    differences.push(format!("{} differs after its recorded position", name()));
                    return;
                }
            }
            None => left.push(group.leaves(*member, &wanted)),
        }
        if !taken.contains(member) {
            right.push(group.holds(*member, &found));
        }
    }
    if !is_permuted(&left, &right) {
        differences.push(format!("{} differs, in whatever order", name()));
    }
}

/// Whether places hold what a member leaves, whatever is at those where it leaves nothing.
fn fits(left: &[Option<u64>], held: &[Option<u64>]) -> bool {
    left.len() == held.len()
        && left.iter().zip(held).all(|(left, held)| left.is_none() || left == held)
}

/// Whether the places of `held` hold what the members leave, one each in some order.
fn is_permuted(left: &[Vec<Option<u64>>], held: &[Vec<Option<u64>>]) -> bool {
    if left.len() != held.len() {
        return false;
    }
    let mut owners: Vec<Option<usize>> = vec![None; held.len()];
    (0..left.len())
        .all(|member| find_place(member, left, held, &mut vec![false; held.len()], &mut owners))
}

/// Finds a place for a member, by moving others on to other places that suit them.
fn find_place(
    member: usize,
    left: &[Vec<Option<u64>>],
    held: &[Vec<Option<u64>>],
    tried: &mut [bool],
    owners: &mut [Option<usize>],
) -> bool {
    for at in 0..held.len() {
        if tried[at] || !fits(&left[member], &held[at]) {
            continue;
        }
        tried[at] = true;
        let is_free = match owners[at] {
            None => true,
            Some(other) => find_place(other, left, held, tried, owners),
        };
        if is_free {
            owners[at] = Some(member);
            return true;
        }
    }
    false
}

//! Rule `wide`, of rows that are cast: a row that a warp casts to e4m3 block by block it casts by eight
//! neighbours a lane, several blocks at a time.
//!
//! What it gains: loads of 16 bytes, several of them under way at once, where each block waited for its own, two
//! bytes a lane; stores of 8 bytes where each was one.

use super::copies::{pointers, row_of, stored};
use super::loops_as;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::library::ep;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::{Node, Term};

/// How many values may share a scale: those of neighboring lanes, of which each has eight.
const BLOCKS: [i64; 6] = [8, 16, 32, 64, 128, 256];
/// How many share one if a text does not say it.
const USUAL_BLOCK: i64 = 128;

/// The steps with every such loop as one call. `apart` are pointers to shared memory.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>, apart: &[String]) -> Vec<Step> {
    let mut pointers = pointers(&steps);
    pointers.retain(|name| !apart.contains(name));
    loops_as(steps, &|repeat| Cast { pointers: &pointers }.of(repeat).map(Step::Do))
}

/// A function of the library that casts, with the number of values that share a scale.
pub(in crate::schedule) fn in_blocks(cast: Symbol, values: i64) -> Symbol {
    if values == USUAL_BLOCK { cast } else { cast.of(Term::int(values)) }
}

/// What a loop over blocks casts.
struct Cast<'a> {
    pointers: &'a [String],
}

impl Cast<'_> {
    fn of(&self, repeat: &Loop) -> Option<Term> {
        let Node::Call(ceil, args) = &repeat.to.node else { return None };
        let ([width, size], true) = (args.as_slice(), ceil.is(ep::ceil)) else { return None };
        let block = BLOCKS.into_iter().find(|block| size.is(*block))?;
        let [
            Step::Let { name: first, value: begin },
            Step::Let { name: end, .. },
            Step::Variable { name: peak, .. },
            Step::Loop(look),
            Step::Let { name: scale, value: exact },
            Step::Loop(write),
            Step::Leader(last),
        ] = repeat.body.as_slice()
        else {
            return None;
        };
        let of_block = |inner: &Loop| {
            inner.turns == Takers::Lanes && inner.from.mentions(first) && inner.to.mentions(end)
        };
        if repeat.turns != Takers::Alone
            || !repeat.from.is(0)
            || !begin.mentions(&repeat.binder)
            || !of_block(look)
            || !of_block(write)
            || !exact.mentions(peak)
        {
            return None;
        }
        let from = self.looked_at(look, peak)?;
        let (to, read) = self.written(write, scale)?;
        let ([step], true) = (last.as_slice(), read == from) else { return None };
        let (scales, apart, kept) = match stored(step, &repeat.binder, self.pointers) {
            Some((scales, _, kept)) => (scales, Term::int(1), kept),
            None => strided(step, &repeat.binder)?,
        };
        let is_scale = matches!(&kept.node, Node::Name(name) if name == scale);
        let team = Term::name("team", Elem::I32);
        let cast = ep::cast_row.of(&kept.elem);
        let args = vec![team, to, scales, apart, from, width.clone()];
        is_scale.then(|| Term::call(in_blocks(cast, block), args, Elem::E4m3))
    }

    /// The bf16 row whose greatest magnitude a loop looks for.
    fn looked_at(&self, look: &Loop, peak: &str) -> Option<Term> {
        let [Step::Set { place, value }] = look.body.as_slice() else { return None };
        let Node::Call(function, args) = &value.node else { return None };
        let [before, value] = args.as_slice() else { return None };
        let is_peak = |term: &Term| matches!(&term.node, Node::Name(name) if name == peak);
        let known = function.is(ep::greater_magnitude) && is_peak(place) && is_peak(before);
        self.row(value, &look.binder).filter(|_| known)
    }

    /// Where a loop writes the codes of a row, each divided by the scale of its block, and the row.
    fn written(&self, write: &Loop, scale: &str) -> Option<(Term, Term)> {
        let [step] = write.body.as_slice() else { return None };
        let (to, _, value) = stored(step, &write.binder, self.pointers)?;
        let Node::Call(function, args) = &value.node else { return None };
        let ([quotient], true) = (args.as_slice(), function.is(ep::to_e4m3)) else { return None };
        match &quotient.node {
            Node::Binary(BinaryOp::Div, row, by) if by.mentions(scale) => {
                Some((to, self.row(row, &write.binder)?))
            }
            _ => None,
        }
    }

    /// The first element of a bf16 row whose element `i` is a value.
    fn row(&self, value: &Term, i: &str) -> Option<Term> {
        let Node::Call(function, args) = &value.node else { return None };
        let [own] = args.as_slice() else { return None };
        let is_bf16 = function.is(ep::to_float) && own.elem == Elem::Bf16;
        row_of(own, i, self.pointers).filter(|_| is_bf16)
    }
}

/// The first scale of a row of which a step writes the `i`-th, how far apart they are, and what it writes.
fn strided<'s>(step: &'s Step, i: &str) -> Option<(Term, Term, &'s Term)> {
    let Step::Set { place, value } = step else { return None };
    let Node::Index(base, at) = &place.node else { return None };
    let Node::Binary(BinaryOp::Add, row, behind) = &at.node else { return None };
    let Node::Binary(BinaryOp::Mul, number, stride) = &behind.node else { return None };
    let is_number = matches!(&number.node, Node::Name(name) if name == i);
    let is_known = is_number && !row.mentions(i) && !stride.mentions(i);
    let first = (**base).clone().at((**row).clone(), place.elem.clone()).address();
    is_known.then(|| (first, (**stride).clone(), value))
}

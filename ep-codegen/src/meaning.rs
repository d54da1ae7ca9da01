//! What a declaration means, without any kernel: a reference interpreter of the selected IR over all
//! ranks.
//!
//! [`run`] takes a [`Problem`], which is a selected pipeline with the numbers of a shape and what every
//! rank brings to a call, and gives an [`Outcome`], which is what the call leaves in every output,
//! inout and table of every rank; or it says what is [`Wrong`] with the declaration or with what was
//! given. It is sequential and knows no threads, no warps and no schedule.
//!
//! - Whole numbers have 64 bits. One that does not fit the element that it goes to is wrong.
//! - `f32` and `bf16` are computed in `f32`, each operation rounded, sums in order of their axis; they
//!   are rounded once more where they are stored. Casts are those of the device library.
//! - A role's body runs once for each thing that its warps share: a peer, a stripe, an index. Roles
//!   wait for what they need; those that wait for one another are a [`Fault::Circle`].
//! - A ring holds as many messages as its depth. Announced counts are met, slots are filled once, every
//!   message is taken, every element is read after it was written, and written once.
//! - A rank that is not alive runs nothing. What is pushed to it is gone, nothing is awaited from it,
//!   and its slots count no messages.
//! - Where the language leaves the order of messages open, the interpreter takes the order in which it
//!   happens to run, and says so in [`Left::open`]; [`compare`] then compares sets.
//!
//! A network changes nothing here, and neither do blocks, warps, chunks and pieces.

mod begin;
mod channels;
mod codes;
mod data;
mod dice;
mod draw;
mod eval;
mod flow;
mod fold;
mod gather;
mod helpers;
mod invent;
pub mod logfmt;
mod machine;
mod memory;
mod open;
mod push;
pub mod round;
mod stmt;
mod streams;
#[cfg(all(test, feature = "syntax"))]
mod tests;
mod value;
mod world;
mod wrong;

pub use data::{Data, Part, Scalar, Tensor};
pub use dice::Dice;
pub use draw::{Drawing, Drawn, Undrawn};
pub use invent::Invented;
pub use open::{Left, OpenElement, Ordinal, Touched, compare};
pub use wrong::{Awaited, Fault, Whereabouts, Wrong};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::ir::Pipeline;
use crate::plan::Numbers;

/// A function of the user, by elements. A `bf16` comes and goes as its value.
pub type Function = dyn Fn(&[Scalar]) -> Scalar;

/// One call of a pipeline by all ranks.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The pipeline as [`Pipeline::select`] leaves it.
    pub ir: &'a Pipeline,
    /// The numbers of the shape, tunes and derived ones, as a plan has them.
    pub numbers: &'a Numbers,
    /// Args that differ from their default.
    pub args: &'a BTreeMap<String, Scalar>,
    /// What each rank brings.
    pub ranks: &'a [Rank],
    /// The bodies of `cuda fn`s.
    pub functions: &'a BTreeMap<String, &'a Function>,
}

/// What a rank brings to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// Whether it takes part.
    pub alive: bool,
    /// Sizes that the caller gives.
    pub sizes: BTreeMap<String, i64>,
    /// Inputs, inouts and tables of handles: one of each, and any number of an `up to n` input. One
    /// that is optional and absent has no entry or no copy.
    pub tensors: BTreeMap<String, Vec<Tensor>>,
    /// Optional outputs that are not there.
    pub without: BTreeSet<String>,
    /// How many rows the outputs with a size hold, where that is more than the size.
    pub capacity: BTreeMap<String, i64>,
}

impl Default for Rank {
    fn default() -> Rank {
        Rank {
            alive: true,
            sizes: BTreeMap::new(),
            tensors: BTreeMap::new(),
            without: BTreeSet::new(),
            capacity: BTreeMap::new(),
        }
    }
}

/// What a call leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Outputs, inouts and tables of each rank by name; none of a rank that is not alive.
    pub ranks: Vec<BTreeMap<String, Left>>,
    /// Sizes of each rank, those that the device reads included.
    pub sizes: Vec<BTreeMap<String, i64>>,
    /// What each rank has read behind words, by tensor.
    pub behind: Vec<BTreeMap<String, Vec<Behind>>>,
    /// The messages of each channel, by sender and receiver.
    pub moved: Vec<Moved>,
}

/// Messages of a channel from one rank to another or to itself: those that were pushed, or rows that were pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The channel.
    pub channel: String,
    /// The rank whose rows they are.
    pub from: usize,
    /// The rank that they come to.
    pub to: usize,
    /// How many.
    pub messages: u64,
}

/// Elements that were read once words had been waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// The elements of the tensor.
    pub elements: Range<usize>,
    /// The words, in order of the waits.
    pub words: Vec<Word>,
}

/// An element of a tensor of words: the tensor's name, and which one it is.
pub type Word = (String, usize);

/// What the call of `problem` leaves.
pub fn run(problem: &Problem<'_>) -> Result<Outcome, Wrong> {
    let mut open = BTreeSet::new();
    loop {
        let mut machine = machine::Machine::new(problem, &open)?;
        match machine.run()? {
            machine::End::Done => return Ok(machine.outcome()),
            // The order of a channel's messages has turned out to be nobody's: what was made of
            // it before that was seen is made again, and noted.
            machine::End::Open(channel) => drop(open.insert(channel)),
        }
    }
}

/// The ranks before their next call: inout tensors keep what the call of `outcome` left in them.
pub fn again(ranks: &[Rank], outcome: &Outcome, ir: &Pipeline) -> Vec<Rank> {
    let mut next = ranks.to_vec();
    for (rank, left) in next.iter_mut().zip(&outcome.ranks) {
        for tensor in ir.tensors.iter().filter(|it| it.kind == crate::ir::TensorKind::Inout) {
            if let Some(left) = left.get(&tensor.name) {
                rank.tensors.insert(tensor.name.clone(), vec![left.tensor.clone()]);
            }
        }
    }
    next
}

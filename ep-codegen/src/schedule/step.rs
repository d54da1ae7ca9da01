//! The steps of a role: what a warp or a lane does, in order.

use super::library::Entity;
use super::symbol::Symbol;
use super::term::{Term, counting};
use crate::ir::{BinaryOp, Elem, Source};

/// One step of a role.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The statement that the next steps carry out.
    Says(Source),
    /// A line for the reader.
    Remark(String),
    /// An object of the device library: `class name(args);`.
    Object {
        /// Its class.
        class: Symbol,
        /// Its name.
        name: String,
        /// What it is made with.
        args: Vec<Term>,
    },
    /// `const type name = value;`
    Let {
        /// Name.
        name: String,
        /// Value, whose type the name has.
        value: Term,
    },
    /// `const auto name = value;`: the library says what it is.
    Made {
        /// Name.
        name: String,
        /// What makes it.
        value: Term,
    },
    /// `const type* name = value;` or of a place that is written.
    Pointer {
        /// Name.
        name: String,
        /// Type of what it points to; `None`: bytes.
        to: Option<Elem>,
        /// Whether only reads go through it.
        read_only: bool,
        /// The address.
        value: Term,
    },
    /// `type name = value;`, changed by later steps.
    Variable {
        /// Name.
        name: String,
        /// Type.
        elem: Elem,
        /// What it begins with.
        value: Term,
    },
    /// `place = value;`
    Set {
        /// What is written.
        place: Term,
        /// Its new value, of the same type.
        value: Term,
    },
    /// `place += value;`
    Increase {
        /// What is written.
        place: Term,
        /// What is added.
        value: Term,
    },
    /// A call for what it does.
    Do(Term),
    /// `if (condition) { .. }`
    If {
        /// When.
        condition: Term,
        /// What then.
        body: Vec<Step>,
    },
    /// `while (condition) { .. }`
    While {
        /// As long as this holds.
        condition: Term,
        /// What is done.
        body: Vec<Step>,
    },
    /// Goes on with the next turn of the loop around unless the condition holds.
    SkipUnless(Term),
    /// A loop over numbers.
    Loop(Loop),
    /// `while ((name = next) >= 0)`: as long as a call gives a number.
    Take {
        /// Name of the number.
        name: String,
        /// What gives the next one.
        next: Term,
        /// What is done with it.
        body: Vec<Step>,
    },
    /// Neighbouring elements from one place to another, by all lanes.
    Copy(Copy),
    /// Done by the first lane of the warp alone.
    Leader(Vec<Step>),
    /// All lanes of the warp meet, and see what the others have written.
    Meet,
    /// Steps with names of their own.
    Scope(Vec<Step>),
}

impl Step {
    /// The steps inside of this one.
    pub(super) fn inner(&self) -> &[Step] {
        match self {
            Step::If { body, .. }
            | Step::While { body, .. }
            | Step::Take { body, .. }
            | Step::Loop(Loop { body, .. })
            | Step::Leader(body)
            | Step::Scope(body) => body,
            _ => &[],
        }
    }

    /// A mutable reference to the list of steps inside of this one, if it has such a list.
    pub(super) fn inner_mut(&mut self) -> Option<&mut Vec<Step>> {
        match self {
            Step::If { body, .. }
            | Step::While { body, .. }
            | Step::Take { body, .. }
            | Step::Loop(Loop { body, .. })
            | Step::Leader(body)
            | Step::Scope(body) => Some(body),
            _ => None,
        }
    }
}

impl Step {
    /// The name that the step declares.
    pub(super) fn declared(&self) -> Option<&str> {
        match self {
            Step::Object { name, .. }
            | Step::Let { name, .. }
            | Step::Made { name, .. }
            | Step::Pointer { name, .. }
            | Step::Variable { name, .. }
            | Step::Take { name, .. }
            | Step::Loop(Loop { binder: name, .. }) => Some(name),
            _ => None,
        }
    }

    /// The terms of the step itself.
    pub(super) fn terms(&self) -> Vec<&Term> {
        match self {
            Step::Says(_) | Step::Remark(_) | Step::Meet | Step::Leader(_) | Step::Scope(_) => {
                Vec::new()
            }
            Step::Object { args, .. } => args.iter().collect(),
            Step::Let { value: term, .. }
            | Step::Made { value: term, .. }
            | Step::Pointer { value: term, .. }
            | Step::Variable { value: term, .. }
            | Step::Do(term)
            | Step::If { condition: term, .. }
            | Step::While { condition: term, .. }
            | Step::SkipUnless(term)
            | Step::Take { next: term, .. } => vec![term],
            Step::Set { place, value } | Step::Increase { place, value } => vec![place, value],
            Step::Loop(Loop { from, to, .. }) => vec![from, to],
            Step::Copy(Copy { to, from, count, .. }) => vec![to, from, count],
        }
    }

    /// Whether a name stands in this step or those inside of it.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.terms().into_iter().any(|term| term.mentions(name))
            || self.inner().iter().any(|step| step.mentions(name))
    }

    /// Mutable references to the terms of the step itself.
    pub(super) fn terms_mut(&mut self) -> Vec<&mut Term> {
        match self {
            Step::Says(_) | Step::Remark(_) | Step::Meet | Step::Leader(_) | Step::Scope(_) => {
                Vec::new()
            }
            Step::Object { args, .. } => args.iter_mut().collect(),
            Step::Let { value: term, .. }
            | Step::Made { value: term, .. }
            | Step::Pointer { value: term, .. }
            | Step::Variable { value: term, .. }
            | Step::Do(term)
            | Step::If { condition: term, .. }
            | Step::While { condition: term, .. }
            | Step::SkipUnless(term)
            | Step::Take { next: term, .. } => vec![term],
            Step::Set { place, value } | Step::Increase { place, value } => vec![place, value],
            Step::Loop(Loop { from, to, .. }) => vec![from, to],
            Step::Copy(Copy { to, from, count, .. }) => vec![to, from, count],
        }
    }

    /// Puts `by` in place of `term` in this step and those inside of it; whether it was there.
    pub(super) fn replace(&mut self, term: &Term, by: &Term) -> bool {
        let mut found = false;
        for own in self.terms_mut() {
            found |= own.replace(term, by);
        }
        for inner in self.inner_mut().into_iter().flatten() {
            found |= inner.replace(term, by);
        }
        found
    }
}

/// A function that a call takes: `[&](type name, ..) { .. }`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lambda {
    /// The statements that it carries out.
    pub says: Vec<Source>,
    /// Its parameters.
    pub params: Vec<Param>,
    /// The steps of the function.
    pub body: Vec<Step>,
    /// The value that the function returns, if any.
    pub gives: Option<Term>,
}

/// A parameter of a [`Lambda`]; its name is printed where it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Its type.
    pub kind: ParamType,
    /// Its name.
    pub name: String,
}

/// The type of a [`Param`].
#[derive(Debug, Clone, PartialEq)]
pub enum ParamType {
    /// A number that counts or indexes something.
    Index,
    /// Where values of a row are: an index, or those of several stretches.
    Place,
    /// A value.
    Value(Elem),
    /// A value of each of eight neighbours.
    Wide(Elem),
    /// A sum of each of eight neighbours, to be added to.
    WideSum,
    /// An address.
    Bytes,
    /// An object of the device library, to be read.
    Object(Entity),
    /// An object of a class with template arguments, to be read.
    Class(Symbol),
}

impl Lambda {
    /// Whether a name stands in it.
    pub fn mentions(&self, name: &str) -> bool {
        self.body.iter().any(|step| step.mentions(name))
            || self.gives.as_ref().is_some_and(|term| term.mentions(name))
    }
}

/// Elements that move as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// Their type.
    pub elem: Elem,
    /// The address that the first one goes to.
    pub to: Term,
    /// The address that it comes from.
    pub from: Term,
    /// How many they are.
    pub count: Term,
    /// How they travel.
    pub by: CopyBy,
}

/// How a warp copies neighboring elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyBy {
    /// From memory to memory, as many units of 16 bytes at once as the registers of the block allow.
    Many,
    /// From memory to memory, four at once: other warps of the block copy as well, and a role with many ends needs its
    /// registers.
    Four,
}

/// A loop over the numbers from `from` up to `to`.
#[derive(Debug, Clone, PartialEq)]
pub struct Loop {
    /// Name of the number.
    pub binder: String,
    /// Its type.
    pub elem: Elem,
    /// The first number.
    pub from: Term,
    /// The first number behind the last.
    pub to: Term,
    /// Who takes which turns.
    pub turns: Takers,
    /// What is done with each.
    pub body: Vec<Step>,
}

impl Loop {
    /// The first number of who begins `behind` the others.
    pub fn first_of(&self, behind: &str) -> Term {
        let behind = Term::index(behind);
        match self.elem {
            Elem::I32 => counting(BinaryOp::Add, self.from.clone(), behind),
            _ => self.from.clone().plus(behind),
        }
    }
}

/// Who takes which turns of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takers {
    /// All of them, one after the other; a warp looks whether it has been stopped.
    Serial,
    /// All of them, by one lane.
    Alone,
    /// All of them, by one lane, unrolled: the index of each turn is a constant.
    Unrolled,
    /// Every lane of the warp each 32nd.
    Lanes,
    /// The warp as a whole, 32 at a time.
    Chunks,
    /// Every lane of the warp each 32nd group of eight neighbors.
    Wide,
    /// The warp as a whole, eight for each lane at a time.
    WideChunks,
    /// The warps of a block in turn, as they are divided over the peers.
    Parts,
    /// The warps of the role in turn.
    Warps,
    /// The threads of the role in turn.
    Threads,
    /// The blocks of the role in turn.
    Blocks,
    /// The warps of a block in turn.
    WarpsOfBlock,
    /// The warps of the role in turn, neighbours on different blocks: a number is taken by the block
    /// that has it in a loop over [`Takers::Blocks`].
    Spread,
}

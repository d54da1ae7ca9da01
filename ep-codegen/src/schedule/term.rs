//! Values of the emitted text: typed C++ expressions, so that nobody has to read text to know what
//! they are.

use super::library::{Entity, ep};
use super::step::Lambda;
use super::symbol::{Constant, Root, Symbol};
use crate::ir::{BinaryOp, Elem};

/// An expression of the emitted text.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// What it is made of.
    pub node: Node,
    /// The type that C++ gives it.
    pub elem: Elem,
    /// The least and greatest value it can have, where that is known.
    pub range: Option<(i64, i64)>,
}

/// What a [`Term`] is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// A whole number.
    Int(i64),
    /// A decimal number.
    Real(f32),
    /// `true` or `false`.
    Bool(bool),
    /// A variable or a member.
    Name(String),
    /// A member of `Cfg`.
    Constant(Constant),
    /// A constant of the device library.
    Library(Entity),
    /// `function(args)`.
    Call(Symbol, Vec<Term>),
    /// `base[at]`.
    Index(Box<Term>, Box<Term>),
    /// `left op right`.
    Binary(BinaryOp, Box<Term>, Box<Term>),
    /// `!value`.
    Not(Box<Term>),
    /// `static_cast<type>(value)`, of the term's own type.
    Cast(Box<Term>),
    /// `ep::i64{value}`: the same number in 64 bits.
    Wide(Box<Term>),
    /// `condition ? yes : no`.
    Choose(Box<Term>, Box<Term>, Box<Term>),
    /// `&place`.
    Address(Box<Term>),
    /// A function that a call takes.
    Lambda(Box<Lambda>),
}

impl Term {
    fn new(node: Node, elem: Elem) -> Term {
        Term { node, elem, range: None }
    }

    /// A whole number.
    pub fn int(value: i64) -> Term {
        let elem = if i32::try_from(value).is_ok() { Elem::I32 } else { Elem::I64 };
        Term { node: Node::Int(value), elem, range: Some((value, value)) }
    }

    /// A decimal number.
    pub fn real(value: f32) -> Term {
        Term::new(Node::Real(value), Elem::F32)
    }

    /// `true` or `false`.
    pub fn bool(value: bool) -> Term {
        Term::new(Node::Bool(value), Elem::Bool)
    }

    /// A variable or member of this type.
    pub fn name(name: impl Into<String>, elem: Elem) -> Term {
        Term::new(Node::Name(name.into()), elem)
    }

    /// A 32-bit number that lies in `low..=high`.
    pub fn small(name: impl Into<String>, low: i64, high: i64) -> Term {
        Term { range: Some((low, high)), ..Term::name(name, Elem::I32) }
    }

    /// A 32-bit number that counts or indexes something: never negative.
    pub fn index(name: impl Into<String>) -> Term {
        Term::small(name, 0, i64::from(i32::MAX))
    }

    /// A member of `Cfg`.
    pub fn constant(constant: Constant) -> Term {
        Term::new(Node::Constant(constant), Elem::I32)
    }

    /// The constant that the term is, if it is one.
    pub fn as_constant(&self) -> Option<Constant> {
        match &self.node {
            Node::Constant(constant) => Some(constant.clone()),
            _ => None,
        }
    }

    /// A constant of the device library.
    pub fn library(item: Entity) -> Term {
        Term::new(Node::Library(item), Elem::I32)
    }

    /// `function(args)`.
    pub fn call(function: impl Into<Symbol>, args: Vec<Term>, elem: Elem) -> Term {
        Term::new(Node::Call(function.into(), args), elem)
    }

    /// `object.method(args)`.
    pub fn method(object: &str, method: &'static str, args: Vec<Term>, elem: Elem) -> Term {
        Term::call(Symbol::method(object, method), args, elem)
    }

    /// A function that a call takes.
    pub fn lambda(lambda: Lambda) -> Term {
        Term::new(Node::Lambda(Box::new(lambda)), Elem::I32)
    }

    /// `base[at]`.
    pub fn at(self, at: Term, elem: Elem) -> Term {
        Term::new(Node::Index(Box::new(self), Box::new(at)), elem)
    }

    /// `&self`.
    pub fn address(self) -> Term {
        let elem = self.elem.clone();
        Term::new(Node::Address(Box::new(self)), elem)
    }

    /// `!self`.
    pub fn negated(self) -> Term {
        Term::new(Node::Not(Box::new(self)), Elem::Bool)
    }

    /// `self ? yes : no`; both have one type.
    pub fn choose(self, yes: Term, no: Term) -> Term {
        let elem = yes.elem.clone();
        Term::new(Node::Choose(Box::new(self), Box::new(yes), Box::new(no)), elem)
    }

    /// `self op other` for a comparison or a logical operator.
    pub fn test(self, op: BinaryOp, other: Term) -> Term {
        Term::new(Node::Binary(op, Box::new(self), Box::new(other)), Elem::Bool)
    }

    /// `self && other`.
    pub fn and(self, other: Term) -> Term {
        self.test(BinaryOp::And, other)
    }

    /// `self + other` of whole numbers.
    pub fn plus(self, other: Term) -> Term {
        whole(BinaryOp::Add, self, other)
    }

    /// `self * other` of whole numbers.
    pub fn times(self, other: Term) -> Term {
        whole(BinaryOp::Mul, self, other)
    }

    /// This number in 64 bits.
    pub fn wide(self) -> Term {
        match self.elem {
            Elem::I64 => self,
            _ => {
                let range = self.range;
                Term { range, ..Term::new(Node::Wide(Box::new(self)), Elem::I64) }
            }
        }
    }

    /// The term as a value of this type: floats are rounded to nearest even, whole numbers keep their
    /// low bits.
    pub fn converted(self, to: &Elem) -> Term {
        if self.elem == *to {
            return self;
        }
        match to {
            Elem::Bf16 => Term::call(ep::to_bf16, vec![self.converted(&Elem::F32)], Elem::Bf16),
            Elem::E4m3 => Term::call(ep::to_e4m3, vec![self.converted(&Elem::F32)], Elem::E4m3),
            Elem::Ue8m0 => {
                Term::call(ep::ceil_ue8m0, vec![self.converted(&Elem::F32)], Elem::Ue8m0)
            }
            Elem::F32 if is_narrow_float(&self.elem) => {
                Term::call(ep::to_float, vec![self], Elem::F32)
            }
            Elem::I64 if self.is_whole() => self.wide(),
            _ => {
                let value =
                    if is_narrow_float(&self.elem) { self.converted(&Elem::F32) } else { self };
                Term::new(Node::Cast(Box::new(value)), to.clone())
            }
        }
    }

    /// Whether this is a whole number.
    pub fn is_whole(&self) -> bool {
        matches!(self.elem, Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64 | Elem::Bool)
    }

    /// The terms that this one is made of.
    pub(super) fn inner(&self) -> Vec<&Term> {
        match &self.node {
            Node::Int(_)
            | Node::Real(_)
            | Node::Bool(_)
            | Node::Name(_)
            | Node::Constant(_)
            | Node::Library(_)
            | Node::Lambda(_) => Vec::new(),
            Node::Call(_, args) => args.iter().collect(),
            Node::Not(one) | Node::Cast(one) | Node::Wide(one) | Node::Address(one) => vec![one],
            Node::Index(left, right) | Node::Binary(_, left, right) => vec![left, right],
            Node::Choose(condition, yes, no) => vec![condition, yes, no],
        }
    }

    /// Mutable references to the terms that this one is made of.
    pub(super) fn inner_mut(&mut self) -> Vec<&mut Term> {
        match &mut self.node {
            Node::Int(_)
            | Node::Real(_)
            | Node::Bool(_)
            | Node::Name(_)
            | Node::Constant(_)
            | Node::Library(_)
            | Node::Lambda(_) => Vec::new(),
            Node::Call(_, args) => args.iter_mut().collect(),
            Node::Not(one) | Node::Cast(one) | Node::Wide(one) | Node::Address(one) => vec![one],
            Node::Index(left, right) | Node::Binary(_, left, right) => vec![left, right],
            Node::Choose(condition, yes, no) => vec![condition, yes, no],
        }
    }

    /// Whether a name stands in it.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let here = match &self.node {
            Node::Name(own) => own.split(['.', '[']).next() == Some(name),
            Node::Call(Symbol { root: Root::Method(object, _), .. }, _) => {
                object.split('.').next() == Some(name)
            }
            Node::Lambda(function) => function.mentions(name),
            _ => false,
        };
        here || self.inner().into_iter().any(|inner| inner.mentions(name))
    }

    /// Puts `by` in place of `term`; whether it was there.
    pub(super) fn replace(&mut self, term: &Term, by: &Term) -> bool {
        if self == term {
            *self = by.clone();
            return true;
        }
        let mut found = false;
        if let Node::Lambda(function) = &mut self.node {
            for step in &mut function.body {
                found |= step.replace(term, by);
            }
            found |= function.gives.as_mut().is_some_and(|gives| gives.replace(term, by));
        }
        for inner in self.inner_mut() {
            found |= inner.replace(term, by);
        }
        found
    }

    /// Whether this calls a method of this name.
    pub(super) fn is_method(&self, name: &str) -> bool {
        matches!(&self.node, Node::Call(function, _) if function.is_method(name))
    }

    /// The name that an address or a place begins with.
    pub(super) fn root(&self) -> Option<&str> {
        match &self.node {
            Node::Name(name) => Some(name),
            Node::Address(inner) | Node::Index(inner, _) | Node::Binary(_, inner, _) => {
                inner.root()
            }
            _ => None,
        }
    }

    /// Whether the value is known to be this number.
    pub fn is(&self, value: i64) -> bool {
        self.node == Node::Int(value)
    }
}

/// Whether the type is a float that C++ does not compute with.
pub(super) fn is_narrow_float(elem: &Elem) -> bool {
    matches!(elem, Elem::Bf16 | Elem::E4m3 | Elem::Ue8m0)
}

/// `left op right` of numbers whose result is known to be a count or an index: 32 bits hold it.
pub(super) fn counting(op: BinaryOp, left: Term, right: Term) -> Term {
    let node = Node::Binary(op, Box::new(left), Box::new(right));
    Term { node, elem: Elem::I32, range: Some((0, i64::from(i32::MAX))) }
}

/// `left op right` as the language means it: whole numbers have 64 bits unless the result is known
/// to need fewer, everything else is computed in `f32`.
pub(super) fn arithmetic(op: BinaryOp, left: Term, right: Term) -> Term {
    if left.is_whole() && right.is_whole() {
        return whole(op, left, right);
    }
    let (left, right) = (left.converted(&Elem::F32), right.converted(&Elem::F32));
    // The compiler would join a product with a sum behind it, and round both at once.
    if op == BinaryOp::Mul {
        return Term::call(ep::product, vec![left, right], Elem::F32);
    }
    Term::new(Node::Binary(op, Box::new(left), Box::new(right)), Elem::F32)
}

fn whole(op: BinaryOp, left: Term, right: Term) -> Term {
    match (&op, &left.node, &right.node) {
        (BinaryOp::Add, Node::Int(0), _) | (BinaryOp::Mul, Node::Int(1), _) => return right,
        (BinaryOp::Add | BinaryOp::Sub, _, Node::Int(0)) | (BinaryOp::Mul, _, Node::Int(1)) => {
            return left;
        }
        (BinaryOp::Mul, Node::Int(0), _) | (BinaryOp::Mul, _, Node::Int(0)) => return Term::int(0),
        _ => {}
    }
    let range = result(&op, left.range, right.range);
    let fits = |(low, high): (i64, i64)| i32::try_from(low).is_ok() && i32::try_from(high).is_ok();
    let is_wide = left.elem == Elem::I64 || right.elem == Elem::I64;
    let elem = if is_wide || !range.is_some_and(fits) { Elem::I64 } else { Elem::I32 };
    // One wide operand makes the operation wide.
    let left = if elem == Elem::I64 && !is_wide { left.wide() } else { left };
    Term { node: Node::Binary(op, Box::new(left), Box::new(right)), elem, range }
}

/// The range of `a op b`.
fn result(op: &BinaryOp, a: Option<(i64, i64)>, b: Option<(i64, i64)>) -> Option<(i64, i64)> {
    let ((a_low, a_high), (b_low, b_high)) = (a?, b?);
    let ends = |combine: fn(i64, i64) -> Option<i64>| {
        let mut all = [
            combine(a_low, b_low)?,
            combine(a_low, b_high)?,
            combine(a_high, b_low)?,
            combine(a_high, b_high)?,
        ];
        all.sort_unstable();
        Some((all[0], all[3]))
    };
    match op {
        BinaryOp::Add => ends(i64::checked_add),
        BinaryOp::Sub => ends(i64::checked_sub),
        BinaryOp::Mul => ends(i64::checked_mul),
        BinaryOp::Div if b_low > 0 => ends(i64::checked_div),
        BinaryOp::Rem if b_low > 0 && a_low >= 0 => Some((0, (b_high - 1).min(a_high))),
        _ => None,
    }
}

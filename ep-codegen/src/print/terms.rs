//! Values as C++.

use crate::ir::{BinaryOp, Elem};
use crate::schedule::{Node, Term, elem_type};

/// Higher binds tighter.
pub(crate) const ATOM: u8 = 20;
pub(crate) const UNARY: u8 = 15;
pub(crate) const PRODUCT: u8 = 13;
pub(crate) const SUM: u8 = 12;
const CHOICE: u8 = 3;

/// `term` as C++.
pub(super) fn text(term: &Term) -> String {
    with_precedence(term).0
}

fn at_least(term: &Term, least: u8) -> String {
    let (text, precedence) = with_precedence(term);
    if precedence < least { format!("({text})") } else { text }
}

fn with_precedence(term: &Term) -> (String, u8) {
    match &term.node {
        Node::Int(value) => (value.to_string(), if *value < 0 { UNARY } else { ATOM }),
        Node::Bool(value) => (value.to_string(), ATOM),
        Node::Name(name) => (name.clone(), ATOM),
        Node::Call(function, args) => {
            let args = args.iter().map(text).collect::<Vec<_>>().join(", ");
            (format!("{function}({args})"), ATOM)
        }
        Node::Index(base, at) => (format!("{}[{}]", at_least(base, ATOM), text(at)), ATOM),
        Node::Binary(op, left, right) => {
            let (sign, precedence) = operator(op);
            let left = at_least(left, precedence);
            let right = at_least(right, precedence + 1);
            (format!("{left} {sign} {right}"), precedence)
        }
        Node::Not(value) => (format!("!{}", at_least(value, UNARY)), UNARY),
        Node::Cast(value) => match (&value.node, &term.elem) {
            (Node::Int(value), Elem::F32) => (format!("{value}.0f"), UNARY),
            _ => (format!("static_cast<{}>({})", elem_type(&term.elem), text(value)), ATOM),
        },
        Node::Wide(value) => match &value.node {
            Node::Int(value) => (format!("{value}LL"), UNARY),
            _ => (format!("ep::i64{{{}}}", text(value)), ATOM),
        },
        Node::Choose(condition, yes, no) => {
            let (condition, yes) = (at_least(condition, CHOICE + 1), at_least(yes, CHOICE + 1));
            (format!("{condition} ? {yes} : {}", at_least(no, CHOICE + 1)), CHOICE)
        }
        Node::Address(place) => (format!("&{}", at_least(place, UNARY)), UNARY),
    }
}

/// The sign of an operator, and how tightly it binds.
pub(crate) fn operator(op: &BinaryOp) -> (&'static str, u8) {
    match op {
        BinaryOp::Mul => ("*", PRODUCT),
        BinaryOp::Div => ("/", PRODUCT),
        BinaryOp::Rem => ("%", PRODUCT),
        BinaryOp::Add => ("+", SUM),
        BinaryOp::Sub => ("-", SUM),
        BinaryOp::Lt => ("<", 10),
        BinaryOp::Le => ("<=", 10),
        BinaryOp::Gt => (">", 10),
        BinaryOp::Ge => (">=", 10),
        BinaryOp::Eq => ("==", 9),
        BinaryOp::Ne => ("!=", 9),
        BinaryOp::And => ("&&", 5),
        BinaryOp::Or => ("||", 4),
    }
}

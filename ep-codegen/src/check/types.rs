//! What an expression can be: a value with an element type and extents, a message, a part of a
//! gather, or a channel.

use std::collections::BTreeMap;
use std::fmt;

use super::model::View;
use crate::ast::{Channel, Elem, Expr, ExprKind, Ident, Part, ShapeEntry};
use crate::ir::parts::Code;
use crate::syntax::reprint::{expr as text, with_names};

/// The type of an expression.
#[derive(Debug, Clone)]
pub(super) enum Type<'a> {
    /// An error has been reported.
    Unknown,
    /// A number, row or tensor.
    Value(Value<'a>),
    /// A message that has arrived.
    Message(&'a Channel),
    /// A part of a gather.
    Part(&'a Channel),
    /// A channel, with or without its indices.
    Channel(&'a Channel),
}

/// A number, row or tensor.
#[derive(Debug, Clone)]
pub(super) struct Value<'a> {
    /// Element type.
    pub(super) scalar: Scalar<'a>,
    /// Extents that are left, outermost first.
    pub(super) extents: Vec<Extent>,
}

/// An element type.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scalar<'a> {
    /// `bool`
    Bool,
    /// A whole number; the word says which, when it was declared.
    Int(&'static str),
    /// `f32`
    F32,
    /// `bf16`
    Bf16,
    /// A result in f32 of bf16 values: may be stored as either.
    Float,
    /// A decimal number of the text, which may be stored as either too.
    Decimal,
    /// `e4m3`
    E4m3,
    /// `ue8m0`
    Ue8m0,
    /// `bits[n]`
    Bits,
    /// The parts of an axis' chosen arm.
    Axis(&'a Ident, &'a [Part]),
    /// What a cast to a code gives, and its block if that is a plain number.
    Scaled(Code, Option<i64>),
}

/// One extent: how it was written, and the same with derived names spelled out; an extent that
/// nobody wrote fits every other.
#[derive(Debug, Clone)]
pub(super) struct Extent(Option<(String, String)>);

impl Extent {
    /// One that nobody wrote.
    pub(super) fn any() -> Extent {
        Extent(None)
    }

    /// A name of the shape.
    pub(super) fn named(name: &str) -> Extent {
        Extent(Some((name.to_string(), name.to_string())))
    }

    /// As written, if it was.
    pub(super) fn written(&self) -> Option<&str> {
        self.0.as_ref().map(|(written, _)| written.as_str())
    }

    /// Whether both were written, and differ.
    pub(super) fn differs(&self, other: &Extent) -> bool {
        match (&self.0, &other.0) {
            (Some((_, a)), Some((_, b))) => a != b,
            _ => false,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("_", |(written, _)| written))
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool => f.write_str("bool"),
            Scalar::Int(name) => f.write_str(name),
            Scalar::F32 | Scalar::Float | Scalar::Decimal => f.write_str("f32"),
            Scalar::Bf16 => f.write_str("bf16"),
            Scalar::E4m3 => f.write_str("e4m3"),
            Scalar::Scaled(code, _) => f.write_str(code.name()),
            Scalar::Ue8m0 => f.write_str("ue8m0"),
            Scalar::Bits => f.write_str("bits"),
            Scalar::Axis(axis, _) => axis.fmt(f),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.extents.iter().map(Extent::to_string).collect();
        self.scalar.fmt(f)?;
        if !extents.is_empty() {
            write!(f, "[{}]", extents.join(", "))?;
        }
        match self.scalar {
            Scalar::Scaled(_, Some(block)) => write!(f, " with a scale per {block}"),
            Scalar::Scaled(_, None) => f.write_str(" with scales"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Unknown => f.write_str("_"),
            Type::Value(Value { scalar: Scalar::Int(NUMBER), extents }) if extents.is_empty() => {
                f.write_str("a whole number")
            }
            Type::Value(value) => write!(f, "`{value}`"),
            Type::Message(channel) => write!(f, "a message of `{}`", channel.name),
            Type::Part(channel) => write!(f, "a part of `{}`", channel.name),
            Type::Channel(channel) => write!(f, "the channel `{}`", channel.name),
        }
    }
}

impl<'a> Scalar<'a> {
    /// Whether sums and products of it make sense.
    pub(super) fn is_numeric(&self) -> bool {
        self.is_float() || matches!(self, Scalar::Int(_))
    }

    /// Whether it is a float, or an axis whose chosen arm is one float.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.plain(), Scalar::F32 | Scalar::Bf16 | Scalar::Float | Scalar::Decimal)
    }

    /// An axis of one part is that part.
    pub(super) fn plain(&self) -> Scalar<'a> {
        match self {
            Scalar::Axis(_, [Part { elem: Elem::Name(name), .. }]) => {
                scalar_named(&name.to_string()).unwrap_or(*self)
            }
            _ => *self,
        }
    }

    /// What its parts are a code of, if they are.
    pub(super) fn code(&self) -> Option<Code> {
        let Scalar::Axis(_, parts) = self else { return None };
        let part = |part: &Part| match &part.elem {
            Elem::Name(name) => {
                let block = part.block.as_ref().map_or(1, |block| block.value);
                Some((crate::lower::scalar(&name.to_string())?, block))
            }
            Elem::Bits { .. } => None,
        };
        Code::of(&parts.iter().map(part).collect::<Option<Vec<_>>>()?)
    }

    /// Whether a value of `from` may be stored without a cast.
    pub(super) fn takes(&self, from: &Scalar<'a>) -> bool {
        match (self, from) {
            (Scalar::Axis(a, _), Scalar::Axis(b, _)) => a == b,
            // An arm without parts, or with a part of no known type, is an error of its own.
            (Scalar::Axis(_, parts), _) | (_, Scalar::Axis(_, parts)) if !known(parts) => true,
            (Scalar::Axis(..), Scalar::Scaled(code, _)) => self.code() == Some(*code),
            _ => matches!(
                (self.plain(), from.plain()),
                (Scalar::Bool, Scalar::Bool)
                    | (Scalar::Int(_), Scalar::Int(_))
                    | (Scalar::F32, Scalar::F32 | Scalar::Float | Scalar::Decimal)
                    | (Scalar::Bf16, Scalar::Bf16 | Scalar::Float | Scalar::Decimal)
                    | (Scalar::Float, Scalar::F32 | Scalar::Bf16 | Scalar::Float | Scalar::Decimal)
                    | (Scalar::E4m3, Scalar::E4m3)
                    | (Scalar::Ue8m0, Scalar::Ue8m0)
                    | (Scalar::Bits, Scalar::Bits)
            ),
        }
    }

    /// What an operation on the two gives.
    pub(super) fn joined(&self, other: &Scalar<'a>) -> Scalar<'a> {
        match (self.plain(), other.plain()) {
            (Scalar::Int(name), Scalar::Int(other)) => {
                Scalar::Int(if name == NUMBER { other } else { name })
            }
            (Scalar::Decimal, Scalar::Decimal) => Scalar::Decimal,
            (Scalar::F32 | Scalar::Decimal, Scalar::F32 | Scalar::Decimal | Scalar::Int(_))
            | (Scalar::Int(_), Scalar::F32 | Scalar::Decimal) => Scalar::F32,
            _ => Scalar::Float,
        }
    }
}

/// What every message has beside its fields: its row, its number, where it came from.
pub(super) const MESSAGE_NUMBERS: &[&str] = &["row", "index", "source", "part"];

/// Where a stripe begins among the rows of this rank, and how many it has.
pub(super) const STRIPE_NUMBERS: &[&str] = &["first", "count"];

/// What a channel of slots counts.
pub(super) const SLOT_NUMBERS: &[&str] = &["count", "base"];

/// How a whole number of no declared type is called.
const NUMBER: &str = "number";

impl<'a> Type<'a> {
    /// One whole number.
    pub(super) fn number() -> Type<'a> {
        Type::scalar(Scalar::Int(NUMBER))
    }

    /// One element.
    pub(super) fn scalar(scalar: Scalar<'a>) -> Type<'a> {
        Type::Value(Value { scalar, extents: Vec::new() })
    }
}

/// The scalar type of this name.
pub(super) fn scalar_named<'a>(name: &str) -> Option<Scalar<'a>> {
    Some(match name {
        "bool" => Scalar::Bool,
        "u8" => Scalar::Int("u8"),
        "i8" => Scalar::Int("i8"),
        "i32" => Scalar::Int("i32"),
        "i64" => Scalar::Int("i64"),
        "f32" => Scalar::F32,
        "bf16" => Scalar::Bf16,
        "e4m3" => Scalar::E4m3,
        "ue8m0" => Scalar::Ue8m0,
        _ => return None,
    })
}

/// The type that `elem` names, if it names one.
pub(super) fn scalar_of<'a>(view: &View<'a>, elem: &'a Elem) -> Option<Scalar<'a>> {
    match elem {
        Elem::Bits { .. } => Some(Scalar::Bits),
        Elem::Name(name) => scalar_named(&name.to_string())
            .or_else(|| view.parts(name).map(|parts| Scalar::Axis(name, parts))),
    }
}

/// The type of something declared as `elem[dims]`.
pub(super) fn declared<'a>(view: &View<'a>, elem: &'a Elem, dims: &[Expr]) -> Type<'a> {
    match scalar_of(view, elem) {
        Some(scalar) => {
            let extents = dims.iter().map(|dim| extent(view, dim)).collect();
            Type::Value(Value { scalar, extents })
        }
        None => Type::Unknown,
    }
}

fn extent(view: &View<'_>, dim: &Expr) -> Extent {
    Extent(Some((text(dim), spelled_out(view, dim))))
}

/// Formulas longer than this stay names, so that a formula of formulas does not grow without end.
const FORMULA_MAX: usize = 200;

/// `dim` with derived names replaced by their formulas.
fn spelled_out(view: &View<'_>, dim: &Expr) -> String {
    let mut formulas: BTreeMap<String, String> = BTreeMap::new();
    for entry in &view.shape {
        if let ShapeEntry::Derived { name, value, .. } = entry {
            let formula = with_formulas(value, &formulas);
            if formula.len() <= FORMULA_MAX {
                formulas.insert(name.to_string(), formula);
            }
        }
    }
    with_formulas(dim, &formulas)
}

fn with_formulas(expr: &Expr, formulas: &BTreeMap<String, String>) -> String {
    if let ExprKind::Name(name) = &expr.kind {
        let name = name.to_string();
        return formulas.get(&name).cloned().unwrap_or(name);
    }
    with_names(expr, &|name| formulas.get(name).map(|formula| format!("({formula})")))
}

/// Whether every part has a type that exists.
fn known(parts: &[Part]) -> bool {
    let scalar = |part: &Part| match &part.elem {
        Elem::Name(name) => scalar_named(&name.to_string()).is_some(),
        Elem::Bits { .. } => false,
    };
    !parts.is_empty() && parts.iter().all(scalar)
}

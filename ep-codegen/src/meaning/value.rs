//! Values of expressions: one element, a row, or a row that is to be quantised where it is stored.

use std::rc::Rc;

use super::codes;
use super::data::{Data, Part, Scalar, Tensor, Unfit};
use super::open::Touched;
use super::wrong::{Fault, Found};
use crate::ir::parts::Code;
use crate::ir::{BinaryOp, Elem, Expr, text};

/// What an error calls something: its words are made only when there is one.
pub(super) trait Words: Copy + std::fmt::Display {}

impl<T: Copy + std::fmt::Display> Words for T {}

/// An expression as it would be declared.
#[derive(Clone, Copy)]
pub(super) struct Written<'a>(pub(super) &'a Expr);

impl std::fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text::expr(self.0))
    }
}

/// What an expression gives.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// One element.
    One(Scalar),
    /// A row, or a whole tensor.
    Row(Rc<Tensor>),
    /// `cast_e4m3(row, block)` and the like: how it is scaled depends on where it goes.
    Scaled(Rc<Tensor>, Code, usize),
    /// `owned(row, rank)`: shorter rows end in zeros where they go.
    Short(Rc<Tensor>),
}

/// The parts of a declared element type: the element (`None`: bits), and its block.
pub(super) type Parts = Vec<(Option<Elem>, usize)>;

impl Value {
    pub(super) fn int(value: i64) -> Value {
        Value::One(Scalar::Int(value))
    }

    pub(super) fn bool(value: bool) -> Value {
        Value::One(Scalar::Bool(value))
    }

    /// A tensor without extents is one element.
    pub(super) fn of(tensor: Tensor) -> Value {
        match (tensor.extents.is_empty(), tensor.get(0)) {
            (true, Some(only)) if tensor.parts.len() == 1 => Value::One(only),
            _ => Value::Row(Rc::new(tensor)),
        }
    }

    /// The whole number, which the checker has promised.
    pub(super) fn whole(&self, what: impl Words) -> Found<i64> {
        match self {
            Value::One(Scalar::Int(value)) => Ok(*value),
            _ => Err(form(what)),
        }
    }

    /// The condition, which the checker has promised.
    pub(super) fn truth(&self, what: impl Words) -> Found<bool> {
        match self {
            Value::One(Scalar::Bool(value)) => Ok(*value),
            _ => Err(form(what)),
        }
    }

    /// The elements of a row of one part.
    pub(super) fn row(&self, what: impl Words) -> Found<&Tensor> {
        match self {
            Value::Row(row) | Value::Short(row) => Ok(row),
            _ => Err(form(what)),
        }
    }

    /// A row that a cast has made as floats; any other value as it is.
    pub(super) fn decoded(self) -> Value {
        match &self {
            Value::Row(row) => codes::decode(row).map_or(self, |it| Value::Row(Rc::new(it))),
            _ => self,
        }
    }

    /// `one` of every element.
    pub(super) fn map(&self, one: &mut dyn FnMut(Scalar) -> Found<Scalar>) -> Found<Value> {
        match self {
            Value::One(only) => Ok(Value::One(one(*only)?)),
            Value::Row(row) | Value::Short(row) => {
                let list: Found<Vec<Scalar>> =
                    (0..row.count()).filter_map(|at| row.get(at)).map(&mut *one).collect();
                collect(&row.extents, list?)
            }
            Value::Scaled(..) => Err(form("arithmetic on scaled rows")),
        }
    }

    /// `one` of every pair of elements; a number goes with every element of a row.
    pub(super) fn zip(
        &self,
        other: &Value,
        text: impl Words,
        one: &mut dyn FnMut(Scalar, Scalar) -> Found<Scalar>,
    ) -> Found<Value> {
        match (self, other) {
            (_, Value::One(right)) => self.map(&mut |left| one(left, *right)),
            (Value::One(left), _) => other.map(&mut |right| one(*left, right)),
            _ => {
                let (left, right) = (self.row(text)?, other.row(text)?);
                if left.extents != right.extents {
                    let (wanted, found) = (left.extents.clone(), right.extents.clone());
                    return Err(Fault::Extents { of: text.to_string(), wanted, found }.into());
                }
                let pairs =
                    (0..left.count()).filter_map(|at| Some((left.get(at)?, right.get(at)?)));
                let list: Found<Vec<Scalar>> = pairs.map(|(l, r)| one(l, r)).collect();
                collect(&left.extents, list?)
            }
        }
    }

    /// A zero for every element of this value: a float for a float, else a whole number.
    pub(super) fn zeros(&self) -> Found<Value> {
        self.map(&mut |one| {
            Ok(match one {
                Scalar::Real(_) => Scalar::Real(0.0),
                _ => Scalar::Int(0),
            })
        })
    }
}

/// A row of these elements, all of one kind.
fn collect(extents: &[usize], list: Vec<Scalar>) -> Found<Value> {
    let mut data = match list.first() {
        None | Some(Scalar::Int(_)) => Data::zeros(&Elem::I64, list.len()),
        Some(Scalar::Real(_)) => Data::zeros(&Elem::F32, list.len()),
        Some(Scalar::Bool(_)) => Data::zeros(&Elem::Bool, list.len()),
        Some(Scalar::Code(_)) => Data::zeros(&Elem::E4m3, list.len()),
        Some(Scalar::Bits(_)) => Data::Bits(vec![0; list.len()]),
    };
    for (at, value) in list.into_iter().enumerate() {
        data.set(at, value).map_err(|_| form("a row of several kinds"))?;
    }
    Ok(Value::Row(Rc::new(Tensor::new(extents, data))))
}

pub(super) fn form(text: impl Words) -> super::wrong::Stop {
    Fault::Form { text: text.to_string() }.into()
}

/// `left op right` of two elements.
pub(super) fn binary(
    op: &BinaryOp,
    left: Scalar,
    right: Scalar,
    text: impl Words,
) -> Found<Scalar> {
    use Scalar::{Bool, Int, Real};
    match (left, right) {
        (Int(a), Int(b)) => whole(op, a, b, text),
        (Real(a), Real(b)) => real(op, a, b, text),
        (Int(a), Real(b)) => real(op, a as f32, b, text),
        (Real(a), Int(b)) => real(op, a, b as f32, text),
        (Bool(a), Bool(b)) => match op {
            BinaryOp::Eq => Ok(Bool(a == b)),
            BinaryOp::Ne => Ok(Bool(a != b)),
            _ => Err(form(text)),
        },
        _ => Err(form(text)),
    }
}

fn whole(op: &BinaryOp, a: i64, b: i64, text: impl Words) -> Found<Scalar> {
    let value = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => a.checked_div(b),
        BinaryOp::Rem => a.checked_rem(b),
        _ => return compared(op, a.partial_cmp(&b), text),
    };
    let none = || Fault::Number { text: text.to_string(), left: a, right: b };
    Ok(Scalar::Int(value.ok_or_else(none)?))
}

/// Every operation is rounded to f32.
fn real(op: &BinaryOp, a: f32, b: f32, text: impl Words) -> Found<Scalar> {
    Ok(Scalar::Real(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => return Err(form(text)),
        _ => return compared(op, a.partial_cmp(&b), text),
    }))
}

fn compared(op: &BinaryOp, order: Option<std::cmp::Ordering>, text: impl Words) -> Found<Scalar> {
    Ok(Scalar::Bool(match op {
        BinaryOp::Eq => order.is_some_and(|order| order.is_eq()),
        BinaryOp::Ne => !order.is_some_and(|order| order.is_eq()),
        BinaryOp::Lt => order.is_some_and(|order| order.is_lt()),
        BinaryOp::Le => order.is_some_and(|order| order.is_le()),
        BinaryOp::Gt => order.is_some_and(|order| order.is_gt()),
        BinaryOp::Ge => order.is_some_and(|order| order.is_ge()),
        _ => return Err(form(text)),
    }))
}

/// `value as elem` of one element.
pub(super) fn cast(elem: &Elem, value: Scalar, text: impl Words) -> Found<Scalar> {
    let mut place = Data::zeros(elem, 1);
    let value = match (elem, value) {
        (_, Scalar::Bool(value)) => Scalar::Int(value.into()),
        // Toward zero, as C++ does; what is no number of 64 bits fits nowhere.
        (Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64, Scalar::Real(value)) => {
            let whole = f64::from(value).trunc();
            if !(-9.3e18..9.3e18).contains(&whole) || whole as i64 as f64 != whole {
                return Err(unfit(text, &[], Scalar::Real(value), &place));
            }
            Scalar::Int(whole as i64)
        }
        (_, other) => other,
    };
    place.set(0, value).map_err(|_| unfit(text, &[], value, &place))?;
    place.get(0).ok_or_else(|| form(text))
}

fn unfit(of: impl Words, index: &[i64], value: Scalar, data: &Data) -> super::wrong::Stop {
    let (of, index, value) = (of.to_string(), index.to_vec(), shown(value));
    Fault::Fit { of, index, value, elem: data.elem() }.into()
}

/// An element in words.
pub(super) fn shown(value: Scalar) -> String {
    match value {
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Real(value) => value.to_string(),
        Scalar::Code(value) => format!("code {value:#04x}"),
        Scalar::Bits(value) => format!("bits {value:#x}"),
    }
}

/// `value` as it lies in a place of `extents` and `parts`, which `of` and `index` name.
pub(super) fn shaped(
    of: &str,
    index: &[i64],
    extents: &[usize],
    parts: &Parts,
    value: &Value,
) -> Found<Tensor> {
    let mut out = Tensor::zeros(extents, parts);
    let wrong = |found: &[usize]| {
        let (of, wanted) = (of.to_string(), extents.to_vec());
        Fault::Extents { of, wanted, found: found.to_vec() }
    };
    match value {
        Value::One(only) => {
            let first = out.parts.first_mut().ok_or_else(|| form(of))?;
            for at in 0..first.data.len() {
                first.data.set(at, *only).map_err(|_| unfit(of, index, *only, &first.data))?;
            }
        }
        Value::Scaled(row, code, block) => {
            if row.extents != extents {
                return Err(wrong(&row.extents).into());
            }
            codes::encode(&mut out, row, (*code, *block)).ok_or_else(|| form(code.name()))?;
        }
        Value::Row(row) | Value::Short(row) => {
            let short = matches!(value, Value::Short(_)) && row.count() <= out.count();
            if (row.extents != extents && !short) || row.parts.len() != out.parts.len() {
                return Err(wrong(&row.extents).into());
            }
            for (to, from) in out.parts.iter_mut().zip(&row.parts) {
                copy(of, index, to, from)?;
            }
        }
    }
    Ok(out)
}

fn copy(of: &str, index: &[i64], to: &mut Part, from: &Part) -> Found<()> {
    // The same type needs no look at each element.
    if std::mem::discriminant(&to.data) == std::mem::discriminant(&from.data)
        && to.data.len() == from.data.len()
    {
        to.data = from.data.clone();
        return Ok(());
    }
    for at in 0..from.data.len().min(to.data.len()) {
        let Some(value) = from.data.get(at) else { continue };
        let mut place = index.to_vec();
        place.push(at as i64);
        to.data.set(at, value).map_err(|fault| match fault {
            Unfit::Range | Unfit::Kind => unfit(of, &place, value, &to.data),
        })?;
    }
    Ok(())
}

/// A message on its way, or arrived.
#[derive(Debug)]
pub(super) struct Message {
    /// Fields by name; `None`: empty, since its optional tensor is absent.
    pub(super) fields: Vec<(String, Option<Value>, Touched)>,
    /// Where a `direct` message lies, or which slot of its row a message took.
    pub(super) position: i64,
    /// Whether the language leaves its place open.
    pub(super) touched: Touched,
}

//! Types of expressions, and the rules that need nothing else: names exist, indices fit the
//! tensor, operands go together, a value fits the place it is stored to.
//!
//! An error gives [`Type::Unknown`], which fits everywhere, so that one mistake is one error.

use std::fmt;

use proc_macro2::Ident;

use super::model::{Tensor, View};
use super::names::{self, Named};
use super::numbers::mentions;
use super::text::{text, with_names};
use super::walk::{Counted, Meaning, Scope, index_binder};
use crate::diagnostics::{Diagnostics, types as errors};
use crate::ir::helpers::{self, Kind};
use crate::syntax::ast::{
    BinaryOp, Channel, ChannelKind, Domain, Elem, Expr, ExprKind, Extent as At, OptionValue, Part,
    PeerSet,    ShapeEntry,
};

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
    /// `e4m3`
    E4m3,
    /// `ue8m0`
    Ue8m0,
    /// `bits[n]`
    Bits,
    /// The parts of an axis' chosen arm.
    Axis(&'a Ident, &'a [Part]),
    /// What `cast_e4m3` gives, and its block if that is a plain number.
    Scaled(Option<i64>),
}

/// One extent: how it was written, and the same with derived names spelled out; an extent that
/// nobody wrote fits every other.
#[derive(Debug, Clone)]
pub(super) struct Extent(Option<(String, String)>);

impl Extent {
    fn differs(&self, other: &Extent) -> bool {
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
            Scalar::F32 | Scalar::Float => f.write_str("f32"),
            Scalar::Bf16 => f.write_str("bf16"),
            Scalar::E4m3 | Scalar::Scaled(_) => f.write_str("e4m3"),
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
            Scalar::Scaled(Some(block)) => write!(f, " with a scale per {block}"),
            Scalar::Scaled(None) => f.write_str(" with scales"),
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
        matches!(self.plain(), Scalar::F32 | Scalar::Bf16 | Scalar::Float)
    }

    /// An axis of one part is that part.
    fn plain(&self) -> Scalar<'a> {
        match self {
            Scalar::Axis(_, [Part { elem: Elem::Name(name), .. }]) => {
                scalar_named(&name.to_string()).unwrap_or(*self)
            }
            _ => *self,
        }
    }

    /// Whether a value of `from` may be stored without a cast.
    fn takes(&self, from: &Scalar<'a>) -> bool {
        match (self, from) {
            (Scalar::Axis(a, _), Scalar::Axis(b, _)) => a == b,
            (Scalar::Axis(_, [_, _]), Scalar::Scaled(_)) => true,
            // An arm without parts, or with a part of no known type, is an error of its own.
            (Scalar::Axis(_, parts), _) | (_, Scalar::Axis(_, parts)) if !known(parts) => true,
            _ => match (self.plain(), from.plain()) {
                (Scalar::Bool, Scalar::Bool)
                | (Scalar::Int(_), Scalar::Int(_))
                | (Scalar::F32, Scalar::F32 | Scalar::Float)
                | (Scalar::Bf16, Scalar::Bf16 | Scalar::Float)
                | (Scalar::Float, Scalar::F32 | Scalar::Bf16 | Scalar::Float)
                | (Scalar::E4m3, Scalar::E4m3)
                | (Scalar::Ue8m0, Scalar::Ue8m0)
                | (Scalar::Bits, Scalar::Bits) => true,
                (Scalar::Scaled(_), Scalar::Scaled(_)) => true,
                _ => false,
            },
        }
    }

    /// What an operation on the two gives.
    fn joined(&self, other: &Scalar<'a>) -> Scalar<'a> {
        match (self.plain(), other.plain()) {
            (Scalar::Int(name), Scalar::Int(other)) => {
                Scalar::Int(if name == NUMBER { other } else { name })
            }
            (Scalar::F32, Scalar::F32 | Scalar::Int(_)) | (Scalar::Int(_), Scalar::F32) => {
                Scalar::F32
            }
            _ => Scalar::Float,
        }
    }
}

/// What every message has beside its fields: its row, its number, where it came from.
pub(super) const MESSAGE_NUMBERS: &[&str] = &["row", "index", "source", "part"];

/// What a channel of slots counts.
pub(super) const SLOT_NUMBERS: &[&str] = &["count", "base"];

/// How a whole number of no declared type is called.
const NUMBER: &str = "number";

impl<'a> Type<'a> {
    /// One whole number.
    pub(super) fn number() -> Type<'a> {
        Type::scalar(Scalar::Int(NUMBER))
    }

    fn scalar(scalar: Scalar<'a>) -> Type<'a> {
        Type::Value(Value { scalar, extents: Vec::new() })
    }
}

/// The scalar type of this name.
pub(super) fn scalar_named<'a>(name: &str) -> Option<Scalar<'a>> {
    Some(match name {
        "bool" => Scalar::Bool,
        "u8" => Scalar::Int("u8"),
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
    Extent(Some((text(dim), spelled_out(view, dim, 0))))
}

/// `dim` with derived names replaced by their formulas; recursion between them is another rule's
/// error, and ends here by depth.
fn spelled_out(view: &View<'_>, dim: &Expr, depth: usize) -> String {
    with_names(dim, &|wanted| {
        let formula = view.shape.iter().find_map(|entry| match entry {
            ShapeEntry::Derived { name, value, .. } if name == wanted => Some(value),
            _ => None,
        })?;
        (depth < 4).then(|| format!("({})", spelled_out(view, formula, depth + 1)))
    })
}

/// The type of `expr`, without reporting anything.
pub(super) fn silent<'a>(view: &View<'a>, scope: &Scope<'a>, expr: &'a Expr) -> Type<'a> {
    let mut ignored = Diagnostics::new();
    Typing { view, out: &mut ignored }.expr(&mut scope.clone(), expr)
}

/// Infers types and reports what does not fit.
pub(super) struct Typing<'v, 'a> {
    /// Where names come from.
    pub(super) view: &'v View<'a>,
    /// Where errors go.
    pub(super) out: &'v mut Diagnostics,
}

impl<'a> Typing<'_, 'a> {
    /// The type of `expr`.
    pub(super) fn expr(&mut self, scope: &mut Scope<'a>, expr: &'a Expr) -> Type<'a> {
        match &expr.kind {
            ExprKind::Int(_) => Type::number(),
            ExprKind::Bool(_) => Type::scalar(Scalar::Bool),
            ExprKind::Name(name) => self.name(scope, name),
            ExprKind::Index { base, indices } => self.index(scope, base, indices),
            ExprKind::Field { base, field } => self.field(scope, base, field),
            ExprKind::Call { helper, args } => self.call(scope, expr.at, helper, args),
            ExprKind::Fold { helper, binder, domain, body } => {
                self.fold(scope, helper, binder, domain, body)
            }
            ExprKind::Cast { value, elem } => self.cast(scope, value, elem),
            ExprKind::Not { value } => {
                self.condition(scope, value);
                Type::scalar(Scalar::Bool)
            }
            ExprKind::Neg { value } => self.numeric(scope, value, "-"),
            ExprKind::Binary { op, op_span, left, right } => {
                self.binary(scope, *op, (*op_span).into(), left, right)
            }
        }
    }

    /// `expr` must be a `bool`.
    pub(super) fn condition(&mut self, scope: &mut Scope<'a>, expr: &'a Expr) {
        match self.expr(scope, expr) {
            Type::Unknown => {}
            Type::Value(Value { scalar: Scalar::Bool, extents }) if extents.is_empty() => {}
            other => self.out.push(errors::not_a_condition(expr.at, &other, &text(expr))),
        }
    }

    /// `expr` must be one whole number; `what` says what for.
    pub(super) fn whole(&mut self, scope: &mut Scope<'a>, expr: &'a Expr, what: &str) {
        match self.expr(scope, expr) {
            Type::Unknown => {}
            Type::Value(Value { scalar: Scalar::Int(_), extents }) if extents.is_empty() => {}
            other => self.out.push(errors::not_whole(expr.at, what, &other)),
        }
    }

    /// What a loop or fold runs over: messages, a row of numbers, or a range.
    pub(super) fn domain(&mut self, scope: &mut Scope<'a>, domain: &'a Domain) {
        let expr = match domain {
            Domain::Range { low, high } => {
                self.whole(scope, low, "the begin of a range");
                return self.whole(scope, high, "the end of a range");
            }
            Domain::Expr(expr) => expr,
        };
        if let ExprKind::Name(name) = &expr.kind
            && names::DOMAINS.iter().any(|word| name == word)
            && !scope.iter().any(|binder| binder.name == name)
            && names::resolve(self.view, name).is_none()
        {
            return;
        }
        let row_of_numbers = |value: &Value<'a>| {
            matches!((&value.scalar, value.extents.as_slice()), (Scalar::Int(_), [_]))
        };
        match self.expr(scope, expr) {
            Type::Unknown | Type::Channel(_) => {}
            Type::Value(value) if row_of_numbers(&value) || self.counts(scope, expr) => {}
            other => {
                let whole = matches!(
                    &other,
                    Type::Value(Value { scalar: Scalar::Int(_), extents }) if extents.is_empty()
                );
                self.out.push(errors::not_a_domain(expr.at, &text(expr), &other, whole));
            }
        }
    }

    /// Whether `expr` names a number that loops can count to, or a tensor of several copies.
    fn counts(&self, scope: &Scope<'a>, expr: &Expr) -> bool {
        let ExprKind::Name(name) = &expr.kind else { return false };
        if scope.iter().any(|binder| binder.name == name) {
            return false;
        }
        match names::resolve(self.view, name) {
            Some(Named::Number(_)) => true,
            Some(Named::Tensor(tensor)) => tensor.decl.up_to.is_some(),
            _ => false,
        }
    }

    fn name(&mut self, scope: &Scope<'a>, name: &'a Ident) -> Type<'a> {
        if let Some(binder) = scope.iter().rev().find(|binder| binder.name == name) {
            return match &binder.meaning {
                Meaning::Index(_) => Type::number(),
                Meaning::Message(channel) => Type::Message(channel),
                Meaning::Part(channel) => Type::Part(channel),
                Meaning::Value(ty) => ty.clone(),
            };
        }
        if name == "me" || name == "stripe" {
            return Type::number();
        }
        match names::resolve(self.view, name) {
            Some(Named::Number(elem)) => match elem.map(|elem| scalar_of(self.view, elem)) {
                None => Type::number(),
                Some(Some(scalar)) => Type::scalar(scalar),
                Some(None) => Type::Unknown,
            },
            Some(Named::Tensor(tensor)) => {
                declared(self.view, &tensor.decl.elem, &tensor.decl.dims)
            }
            Some(Named::Channel(channel)) => Type::Channel(channel),
            // The tables of an unknown handle may have any name.
            None if self.view.open => Type::Unknown,
            None => {
                self.out.push(names::unknown(self.view, scope, name));
                Type::Unknown
            }
        }
    }

    fn index(&mut self, scope: &mut Scope<'a>, base: &'a Expr, indices: &'a [Expr]) -> Type<'a> {
        let ty = self.expr(scope, base);
        for index in indices {
            self.whole(scope, index, "an index");
        }
        let named = matches!(
            base.kind,
            ExprKind::Name(_) | ExprKind::Field { .. } | ExprKind::Index { .. }
        );
        if !named {
            self.out.push(errors::not_indexed(base.at, &text(base)));
            return Type::Unknown;
        }
        match ty {
            Type::Unknown => Type::Unknown,
            Type::Channel(channel) => Type::Channel(channel),
            Type::Value(value) => {
                let name = text(base);
                self.indexed(scope, &name, value, indices).map_or(Type::Unknown, Type::Value)
            }
            Type::Message(_) | Type::Part(_) => {
                self.out.push(errors::not_indexed(base.at, &text(base)));
                Type::Unknown
            }
        }
    }

    /// What is left of `value` after `indices`; also whether each index counts what its extent is.
    pub(super) fn indexed(
        &mut self,
        scope: &Scope<'a>,
        name: &str,
        value: Value<'a>,
        indices: &'a [Expr],
    ) -> Option<Value<'a>> {
        if let Some(extra) = indices.get(value.extents.len()) {
            self.out.push(errors::too_many_indices(extra.at, name, &value, indices.len()));
            return None;
        }
        for (index, extent) in indices.iter().zip(&value.extents) {
            if let Some(counted) = self.counts_another(scope, index, extent) {
                let error = errors::index_of_another(index.at, &text(index), &counted, name, extent);
                self.out.push(error);
                return None;
            }
        }
        Some(Value { scalar: value.scalar, extents: value.extents[indices.len()..].to_vec() })
    }

    /// What `index` counts, if that and `extent` are two different names of the shape.
    fn counts_another(&self, scope: &Scope<'a>, index: &Expr, extent: &Extent) -> Option<String> {
        let ExprKind::Name(name) = &index.kind else { return None };
        let binder = scope.iter().rev().find(|binder| binder.name == name)?;
        let counted = match &binder.meaning {
            Meaning::Index(Counted::Name(counted)) => counted.to_string(),
            Meaning::Index(Counted::Stripe) => "tokens".to_string(),
            Meaning::Index(Counted::Peers(PeerSet::All | PeerSet::Others)) => "ranks".to_string(),
            _ => return None,
        };
        let (written, _) = extent.0.as_ref()?;
        let plain = |name: &str| names::given(self.view, name);
        (plain(&counted) && plain(written) && counted != *written).then_some(counted)
    }

    fn field(&mut self, scope: &mut Scope<'a>, base: &'a Expr, field: &'a Ident) -> Type<'a> {
        match self.expr(scope, base) {
            Type::Unknown => Type::Unknown,
            Type::Message(channel) => self.field_of(channel, field, MESSAGE_NUMBERS),
            Type::Part(channel) => self.field_of(channel, field, &[]),
            Type::Channel(channel) => {
                let mut numbers = vec!["position".to_string()];
                if channel.kind.value == ChannelKind::Slots {
                    numbers.extend(SLOT_NUMBERS.iter().map(|number| number.to_string()));
                }
                for option in &channel.options {
                    if let OptionValue::Header(names) = &option.value {
                        numbers.extend(names.iter().map(Ident::to_string));
                    }
                }
                let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
                self.field_of(channel, field, &numbers)
            }
            Type::Value(value) => {
                // Only a name can have parts: a row is moved whole.
                let named = matches!(base.kind, ExprKind::Name(_));
                let part = self.part(&value, field).filter(|_| named);
                part.unwrap_or_else(|| {
                    let ty = Type::Value(value);
                    self.out.push(errors::no_fields(field, &text(base), &ty));
                    Type::Unknown
                })
            }
        }
    }

    fn field_of(&mut self, channel: &'a Channel, field: &Ident, numbers: &[&str]) -> Type<'a> {
        if numbers.iter().any(|number| field == number) {
            return Type::number();
        }
        let Some(message) = self.view.message(&channel.message) else { return Type::Unknown };
        match message.fields.iter().find(|candidate| candidate.name == *field) {
            Some(found) => declared(self.view, &found.elem, &found.dims),
            None => {
                let fields = message.fields.iter().map(|field| field.name.to_string());
                let known = numbers.iter().map(|number| number.to_string()).chain(fields).collect();
                self.out.push(errors::unknown_field(field, &message.name, known));
                Type::Unknown
            }
        }
    }

    /// The part of a composite value.
    fn part(&self, value: &Value<'a>, field: &Ident) -> Option<Type<'a>> {
        let Scalar::Axis(_, parts) = value.scalar else { return None };
        let part = parts.iter().find(|part| part.name == *field)?;
        let mut extents = value.extents.clone();
        if let (Some(_), Some(last)) = (&part.block, extents.last_mut()) {
            *last = Extent(None);
        }
        Some(Type::Value(Value { scalar: scalar_of(self.view, &part.elem)?, extents }))
    }

    fn call(
        &mut self,
        scope: &mut Scope<'a>,
        at: At,
        name: &'a Ident,
        args: &'a [Expr],
    ) -> Type<'a> {
        let types: Vec<Type<'a>> = args.iter().map(|arg| self.expr(scope, arg)).collect();
        if let Some(cuda_fn) = self.view.cuda_fns.iter().find(|cuda_fn| cuda_fn.name == *name) {
            return self.call_cuda_fn(at, cuda_fn, args, &types);
        }
        let Some(helper) = helpers::find(&name.to_string()) else {
            self.out.push(names::unknown_helper(self.view, name));
            return Type::Unknown;
        };
        if args.len() != helper.params.len() {
            let params = helper.params.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            self.out.push(errors::wrong_arguments(name, &params, args.len()));
            return Type::Unknown;
        }
        let mut result = Type::Unknown;
        for (index, ((param, kind), ty)) in helper.params.iter().zip(&types).enumerate() {
            if matches!(ty, Type::Unknown) {
                return self.result(helper.result, Type::Unknown, args);
            }
            if !self.fits(scope, *kind, &args[index], ty) {
                let wanted = wanted(*kind);
                let error = errors::wrong_argument(args[index].at, name, param, wanted, ty);
                self.out.push(error);
                return Type::Unknown;
            }
            if index == 0 {
                result = ty.clone();
            }
        }
        if helper.name == "cast_e4m3"
            && let Some(Expr { kind: ExprKind::Int(block), at }) = args.get(1)
            && *block <= 0
        {
            self.out.push(crate::diagnostics::variants::empty_block(*at, *block));
        }
        self.result(helper.result, result, args)
    }

    /// What a helper gives when its first argument is `first`.
    fn result(&self, kind: Kind, first: Type<'a>, args: &[Expr]) -> Type<'a> {
        match (kind, first) {
            (Kind::Number, _) => Type::number(),
            (Kind::Bool, _) => Type::scalar(Scalar::Bool),
            (Kind::Bits, _) => Type::scalar(Scalar::Bits),
            (Kind::RowOverLocalExperts | Kind::RowOverExperts | Kind::ExpertRow, _) => {
                Type::Value(Value { scalar: Scalar::Int("i32"), extents: vec![Extent(None)] })
            }
            (Kind::ScaledRow, Type::Value(row)) => {
                let block = match args.get(1) {
                    Some(Expr { kind: ExprKind::Int(block), .. }) if *block > 0 => Some(*block),
                    _ => None,
                };
                Type::Value(Value { scalar: Scalar::Scaled(block), extents: row.extents })
            }
            (Kind::Parts, Type::Value(value)) => {
                let scalar = value.scalar.joined(&value.scalar);
                Type::Value(Value { scalar, extents: value.extents })
            }
            (_, first) => first,
        }
    }

    /// Whether an argument fits a parameter of `kind`.
    fn fits(&self, scope: &Scope<'a>, kind: Kind, arg: &'a Expr, ty: &Type<'a>) -> bool {
        let Type::Value(value) = ty else { return false };
        let whole = matches!(value.scalar, Scalar::Int(_));
        let rank = value.extents.len();
        match kind {
            Kind::Number => rank == 0 && value.scalar.is_numeric(),
            Kind::Bool => rank == 0 && matches!(value.scalar, Scalar::Bool),
            Kind::Bits => rank == 0 && matches!(value.scalar, Scalar::Bits),
            Kind::Elementwise => rank <= 1 && value.scalar.is_numeric(),
            Kind::ExpertRow | Kind::RowOverLocalExperts => rank == 1 && whole,
            Kind::RowOverExperts => {
                let over = Extent(Some(("experts".into(), "experts".into())));
                rank == 1 && whole && !value.extents[0].differs(&over)
            }
            Kind::FloatRow => rank == 1 && value.scalar.is_float(),
            Kind::ScaledRow => rank == 1 && matches!(value.scalar, Scalar::Scaled(_)),
            // Only what is made from a gathered part has one value per part.
            Kind::Parts => value.scalar.is_numeric() && of_part(scope, arg),
        }
    }

    fn call_cuda_fn(
        &mut self,
        at: At,
        cuda_fn: &'a crate::syntax::ast::CudaFn,
        args: &[Expr],
        types: &[Type<'a>],
    ) -> Type<'a> {
        if args.len() != cuda_fn.params.len() {
            self.out.push(errors::wrong_cuda_arguments(at, cuda_fn, args.len()));
        }
        for ((param, arg), ty) in cuda_fn.params.iter().zip(args).zip(types) {
            let (Some(scalar), Type::Value(value)) = (scalar_of(self.view, &param.elem), ty) else {
                continue;
            };
            if !scalar.takes(&value.scalar) {
                self.out.push(errors::wrong_cuda_argument(arg.at, cuda_fn, param, ty));
            }
        }
        // A function works on single elements; on a row it is applied to each.
        let extents = types.iter().find_map(|ty| match ty {
            Type::Value(value) if !value.extents.is_empty() => Some(value.extents.clone()),
            _ => None,
        });
        match scalar_of(self.view, &cuda_fn.returns) {
            Some(scalar) => Type::Value(Value { scalar, extents: extents.unwrap_or_default() }),
            None => Type::Unknown,
        }
    }

    fn fold(
        &mut self,
        scope: &mut Scope<'a>,
        helper: &'a Ident,
        binder: &'a Ident,
        domain: &'a Domain,
        body: &'a Expr,
    ) -> Type<'a> {
        self.domain(scope, domain);
        scope.push(index_binder(self.view, scope, binder, domain));
        let ty = self.expr(scope, body);
        scope.pop();
        match ty {
            Type::Unknown => Type::Unknown,
            Type::Value(value) if value.scalar.is_numeric() => {
                let scalar = value.scalar.joined(&value.scalar);
                Type::Value(Value { scalar, extents: value.extents })
            }
            other => {
                self.out.push(errors::not_numeric(body.at, &helper.to_string(), &other));
                Type::Unknown
            }
        }
    }

    fn cast(&mut self, scope: &mut Scope<'a>, value: &'a Expr, elem: &'a Ident) -> Type<'a> {
        let ty = self.expr(scope, value);
        let Some(to) = scalar_named(&elem.to_string()) else {
            self.out.push(names::unknown_cast(self.view, elem));
            return Type::Unknown;
        };
        let Type::Value(from) = ty else {
            if !matches!(ty, Type::Unknown) {
                self.out.push(errors::cast_of(elem, &ty));
            }
            return Type::Unknown;
        };
        let readable = from.scalar.is_numeric() || matches!(from.scalar, Scalar::Bool);
        match to {
            Scalar::E4m3 | Scalar::Ue8m0 if readable => {
                self.out.push(errors::cast_without_scale(elem, &text(value)));
                Type::Unknown
            }
            Scalar::Bool if readable => {
                self.out.push(errors::cast_to_bool(elem, &text(value)));
                Type::Unknown
            }
            _ if !readable => {
                self.out.push(errors::cast_of(elem, &Type::Value(from)));
                Type::Unknown
            }
            _ => Type::Value(Value { scalar: to, extents: from.extents }),
        }
    }

    /// `value` must be numeric; `sign` names what needs it.
    fn numeric(&mut self, scope: &mut Scope<'a>, value: &'a Expr, sign: &str) -> Type<'a> {
        match self.expr(scope, value) {
            Type::Unknown => Type::Unknown,
            Type::Value(found) if found.scalar.is_numeric() => Type::Value(found),
            other => {
                self.out.push(errors::not_numeric(value.at, sign, &other));
                Type::Unknown
            }
        }
    }

    fn binary(
        &mut self,
        scope: &mut Scope<'a>,
        op: BinaryOp,
        at: At,
        left: &'a Expr,
        right: &'a Expr,
    ) -> Type<'a> {
        use BinaryOp::{Add, And, Div, Eq, Mul, Ne, Or, Rem, Sub};
        if matches!(op, And | Or) {
            self.condition(scope, left);
            self.condition(scope, right);
            return Type::scalar(Scalar::Bool);
        }
        let sign = super::text::sign(op);
        let flags = matches!(op, Eq | Ne)
            && [left, right].iter().all(|side| {
                let ty = silent(self.view, scope, side);
                matches!(ty, Type::Value(Value { scalar: Scalar::Bool, .. }))
            });
        let (a, b) = if flags {
            (self.expr(scope, left), self.expr(scope, right))
        } else {
            (self.numeric(scope, left, sign), self.numeric(scope, right, sign))
        };
        let arithmetic = matches!(op, Add | Sub | Mul | Div | Rem);
        let (Type::Value(a), Type::Value(b)) = (a, b) else {
            return if arithmetic { Type::Unknown } else { Type::scalar(Scalar::Bool) };
        };
        let rows = !a.extents.is_empty() && !b.extents.is_empty();
        let same = a.extents.len() == b.extents.len()
            && !a.extents.iter().zip(&b.extents).any(|(a, b)| a.differs(b));
        if rows && !same {
            self.out.push(errors::operands_differ(at, sign, &a, &b));
            return Type::Unknown;
        }
        let scalar = if arithmetic { a.scalar.joined(&b.scalar) } else { Scalar::Bool };
        let extents = if a.extents.is_empty() { b.extents } else { a.extents };
        Type::Value(Value { scalar, extents })
    }

    /// A value of type `ty` goes into `target`, which `what` names.
    pub(super) fn assign(&mut self, what: &str, target: &Value<'a>, value: &Expr, ty: &Type<'a>) {
        let found = match ty {
            Type::Unknown => return,
            Type::Value(found) => found,
            other => return self.out.push(errors::not_a_value(value.at, what, target, other)),
        };
        if found.extents.len() != target.extents.len() {
            return self.out.push(errors::wrong_rank(value.at, what, target, found));
        }
        if let (Scalar::Axis(_, [_, scale]), Scalar::Scaled(Some(block))) =
            (&target.scalar, &found.scalar)
            && let Some(declared) = scale.block.as_ref().filter(|block| block.value > 0)
            && declared.value != *block
        {
            let at = match &value.kind {
                ExprKind::Call { args, .. } => args.get(1).map_or(value.at, |block| block.at),
                _ => value.at,
            };
            return self.out.push(errors::block_differs(at, *block, declared, &scale.name));
        }
        if !target.scalar.takes(&found.scalar) {
            let help = conversion(&target.scalar, &found.scalar, value);
            return self.out.push(errors::wrong_type(value.at, what, target, found, help));
        }
        if found.extents.iter().zip(&target.extents).any(|(a, b)| a.differs(b)) {
            self.out.push(errors::wrong_extent(value.at, what, target, found));
        }
    }

    /// The tensor that `name` names as the target of a statement.
    pub(super) fn target(&mut self, scope: &Scope<'a>, name: &Ident) -> Option<Tensor<'a>> {
        if let Some(tensor) = self.view.tensor(name) {
            return Some(*tensor);
        }
        self.out.push(names::unknown_tensor(self.view, scope, name));
        None
    }
}

/// Whether every part has a type that exists.
fn known(parts: &[Part]) -> bool {
    let scalar = |part: &Part| match &part.elem {
        Elem::Name(name) => scalar_named(&name.to_string()).is_some(),
        Elem::Bits { .. } => false,
    };
    !parts.is_empty() && parts.iter().all(scalar)
}

/// Whether `expr` holds a part of the gather around it.
fn of_part(scope: &Scope<'_>, expr: &Expr) -> bool {
    scope.iter().any(|binder| {
        matches!(binder.meaning, Meaning::Part(_)) && mentions(expr, &binder.name.to_string())
    })
}

/// A kind of argument in words.
fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "a number",
        Kind::Bool => "a `bool`",
        Kind::Elementwise => "a number or a row of numbers",
        Kind::ExpertRow => "a row of expert numbers",
        Kind::RowOverExperts => "a row `i32[experts]`",
        Kind::RowOverLocalExperts => "a row `i32[local_experts]`",
        Kind::FloatRow => "a row of `bf16` or `f32`",
        Kind::ScaledRow => "a row with scales",
        Kind::Bits => "`bits`",
        Kind::Parts => "a field of the gathered part",
    }
}

/// How `value` can be made to fit, if a cast does it.
fn conversion(to: &Scalar<'_>, from: &Scalar<'_>, value: &Expr) -> Option<String> {
    let written = match value.kind {
        ExprKind::Binary { .. } | ExprKind::Cast { .. } => format!("({})", text(value)),
        _ => text(value),
    };
    let castable = from.is_numeric() || matches!(from, Scalar::Bool);
    match to.plain() {
        Scalar::Int(_) | Scalar::F32 | Scalar::Bf16 if castable => Some(format!("{written} as {to}")),
        Scalar::Axis(_, [_, scale]) if from.is_float() => {
            let block = scale.block.as_ref().map_or(128, |block| block.value);
            Some(format!("cast_e4m3({written}, {block})"))
        }
        _ => None,
    }
}

//! The types of expressions, and the rules that need nothing else: names exist, indices fit the
//! tensor, operands go together, a value fits the place it is stored to.
//!
//! An error gives [`Type::Unknown`], which fits everywhere, so that one mistake is one error.

use super::conversion::conversion;
use super::model::{Tensor, View};
use super::names::{self, Named};
use super::types::{Extent, Scalar, Type, Value, declared, scalar_named, scalar_of};
use super::walk::{Counted, Meaning, Scope, index_binder};
use crate::ast::{BinaryOp, Domain, Expr, ExprKind, Ident, PeerSet, TokenRange as At};
use crate::diagnostics::{Diagnostics, types as errors};
use crate::ir::WellKnown;
use crate::syntax::reprint::expr as text;

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
            ExprKind::Real(_) => Type::scalar(Scalar::Decimal),
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
            ExprKind::If { condition, yes, no } => {
                self.condition(scope, condition);
                self.choice(scope, yes, no)
            }
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
            Domain::Once { .. } => return,
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
                Meaning::Index(_) | Meaning::Placed(_) => Type::number(),
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
                if let ExprKind::Name(name) = &base.kind
                    && scope.iter().any(|binder| binder.name == name)
                {
                    self.out.push(errors::index_of_let(base.at, &name.to_string()));
                    return Type::Unknown;
                }
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
            let swapped =
                |counted: &String| value.extents.iter().any(|other| other.to_string() == *counted);
            // A number may be known to fit another extent; two that are swapped are a slip.
            if let Some(counted) = self.counts_another(scope, index, extent).filter(swapped) {
                let error =
                    errors::index_of_another(index.at, &text(index), &counted, name, extent);
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
        let counted = match binder.counted()? {
            Counted::Name(counted) => counted.to_string(),
            Counted::Stripe => names::striped(self.view)?.to_string(),
            Counted::Peers(PeerSet::All | PeerSet::Others) => WellKnown::Ranks.name().to_string(),
            _ => return None,
        };
        let written = extent.written()?;
        let plain = |name: &str| names::given(self.view, name);
        (plain(&counted) && plain(written) && counted != written).then_some(counted)
    }

    fn fold(
        &mut self,
        scope: &mut Scope<'a>,
        helper: &'a Ident,
        binder: &'a Ident,
        domain: &'a Domain,
        body: &'a Expr,
    ) -> Type<'a> {
        super::naming::binder(binder, self.out);
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
        let is_decoded = matches!(to, Scalar::F32) && from.extents.len() == 1;
        let readable = from.scalar.is_numeric()
            || matches!(from.scalar, Scalar::Bool)
            || (is_decoded && from.scalar.code().is_some());
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
        let sign = crate::ir::text::operator(&op).0;
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

    /// Two values of which one counts: both are numbers of a kind, or both conditions.
    fn choice(&mut self, scope: &mut Scope<'a>, yes: &'a Expr, no: &'a Expr) -> Type<'a> {
        let (Type::Value(a), Type::Value(b)) = (self.chosen(scope, yes), self.chosen(scope, no))
        else {
            return Type::Unknown;
        };
        let rows = !a.extents.is_empty() && !b.extents.is_empty();
        let same = a.extents.len() == b.extents.len()
            && !a.extents.iter().zip(&b.extents).any(|(a, b)| a.differs(b));
        let scalar = match (a.scalar.plain(), b.scalar.plain()) {
            (Scalar::Bool, Scalar::Bool) => Some(Scalar::Bool),
            (Scalar::Bf16, Scalar::Bf16) => Some(Scalar::Bf16),
            (Scalar::Int(_), Scalar::Int(_)) => Some(a.scalar.joined(&b.scalar)),
            _ if a.scalar.is_float() && b.scalar.is_float() => Some(a.scalar.joined(&b.scalar)),
            _ => None,
        };
        match scalar {
            Some(scalar) if same || !rows => {
                let extents = if a.extents.is_empty() { b.extents } else { a.extents };
                Type::Value(Value { scalar, extents })
            }
            _ => {
                let ((value, from), (other, to)) = match b.scalar.is_float() {
                    true => ((yes, &a), (no, &b)),
                    false => ((no, &b), (yes, &a)),
                };
                let help = conversion(&to.scalar, &from.scalar, value);
                let help = help.filter(|_| same || !rows);
                self.out.push(errors::choices_differ((value.at, from), (other.at, to), help));
                Type::Unknown
            }
        }
    }

    /// A value that an `if` may give.
    fn chosen(&mut self, scope: &mut Scope<'a>, value: &'a Expr) -> Type<'a> {
        match self.expr(scope, value) {
            Type::Value(found)
                if found.scalar.is_numeric() || matches!(found.scalar.plain(), Scalar::Bool) =>
            {
                Type::Value(found)
            }
            Type::Unknown => Type::Unknown,
            other => {
                self.out.push(errors::not_chosen(value.at, &other));
                Type::Unknown
            }
        }
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
        if let (Scalar::Axis(_, [_, .., scale]), Scalar::Scaled(_, Some(block))) =
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

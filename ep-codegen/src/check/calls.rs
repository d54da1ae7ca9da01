//! Calls: of the helpers of the one table, and of the user's own functions.

use super::model::View;
use super::names;
use super::numbers::mentions;
use super::types::{Extent, Scalar, Type, Value, scalar_of};
use super::typing::Typing;
use super::walk::{Meaning, Scope, Site, exprs};
use crate::ast::{CudaFn, Expr, ExprKind, Ident, TokenRange as At};
use crate::diagnostics::{Diagnostics, types as errors, variants};
use crate::ir::helpers::{self, FIRST, Helper, Kind, casts_to};
use crate::ir::{Fold, WellKnown};

/// A part of a gather is one of several, and so is its peer: a fold reads them, or `first` takes one.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    for site in &view.sites {
        exprs(site.stmt, &mut |expr| bare_part(view, site, expr, out));
    }
}

fn bare_part(view: &View<'_>, site: &Site<'_>, expr: &Expr, out: &mut Diagnostics) {
    let mut inside = |list: &[&Expr]| list.iter().for_each(|it| bare_part(view, site, it, out));
    match &expr.kind {
        ExprKind::Call { helper, args } => {
            let word = helper.to_string();
            if args.len() != 1 || (word != FIRST && Fold::of_word(&word).is_none()) {
                inside(&args.iter().collect::<Vec<_>>());
            }
        }
        ExprKind::Field { base, field } => {
            let ExprKind::Name(part) = &base.kind else { return inside(&[base]) };
            let binder = site.scope.iter().rev().find(|binder| binder.name == part);
            if matches!(binder.map(|binder| &binder.meaning), Some(Meaning::Part(_))) {
                out.push(errors::bare_part(expr.at, part, field));
            }
        }
        ExprKind::Name(name) => {
            let loops = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
            let mut gathers = loops.filter_map(|outer| outer.gather.as_ref());
            if let Some(gather) = gathers.find(|gather| gather.across == *name) {
                out.push(errors::bare_peer(name, &gather.part));
            }
        }
        ExprKind::Index { base, indices } => {
            inside(&indices.iter().chain([&**base]).collect::<Vec<_>>());
        }
        ExprKind::Binary { left, right, .. } => inside(&[left, right]),
        ExprKind::If { condition, yes, no } => inside(&[condition, yes, no]),
        ExprKind::Fold { body: value, .. }
        | ExprKind::Cast { value, .. }
        | ExprKind::Not { value }
        | ExprKind::Neg { value } => inside(&[value]),
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) => {}
    }
}

impl<'a> Typing<'_, 'a> {
    pub(super) fn call(
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
        let Some(helper) = helpers::find(&name.to_string(), args.len()) else {
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
                return self.result(helper, Type::Unknown, args);
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
        if casts_to(helper.name).is_some()
            && let Some(Expr { kind: ExprKind::Int(block), at }) = args.get(1)
            && *block <= 0
        {
            self.out.push(variants::empty_block(*at, *block));
        }
        self.result(helper, result, args)
    }

    /// What a helper gives when its first argument is `first`.
    fn result(&self, helper: &Helper, first: Type<'a>, args: &[Expr]) -> Type<'a> {
        match (helper.result, first) {
            (Kind::Number, _) => Type::number(),
            (Kind::Bool, _) => Type::scalar(Scalar::Bool),
            (Kind::Bits, _) => Type::scalar(Scalar::Bits),
            (Kind::RowOverLocalExperts | Kind::RowOverExperts | Kind::ExpertRow, _) => {
                Type::Value(Value { scalar: Scalar::Int("i32"), extents: vec![Extent::any()] })
            }
            (Kind::ScaledRow, Type::Value(row)) => {
                let block = match args.get(1) {
                    Some(Expr { kind: ExprKind::Int(block), .. }) if *block > 0 => Some(*block),
                    _ => None,
                };
                let scalar = casts_to(helper.name).map(|code| Scalar::Scaled(code, block));
                let scalar = scalar.unwrap_or(row.scalar);
                Type::Value(Value { scalar, extents: row.extents })
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
            Kind::Number => rank == 0 && whole,
            Kind::Bool => rank == 0 && matches!(value.scalar, Scalar::Bool),
            Kind::Bits => rank == 0 && matches!(value.scalar, Scalar::Bits),
            Kind::Elementwise => rank <= 1 && value.scalar.is_numeric(),
            Kind::ExpertRow | Kind::RowOverLocalExperts => rank == 1 && whole,
            Kind::RowOverExperts => {
                let over = Extent::named(WellKnown::Experts.name());
                rank == 1 && whole && !value.extents[0].differs(&over)
            }
            Kind::FloatRow => rank == 1 && value.scalar.is_float(),
            Kind::ScaledRow => rank == 1 && matches!(value.scalar, Scalar::Scaled(..)),
            // Only what is made from a gathered part has one value per part.
            Kind::Parts => value.scalar.is_numeric() && of_part(scope, arg),
            Kind::Part => of_part(scope, arg),
        }
    }

    fn call_cuda_fn(
        &mut self,
        at: At,
        cuda_fn: &'a CudaFn,
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
        Kind::Number => "a whole number",
        Kind::Bool => "a `bool`",
        Kind::Elementwise => "a number or a row of numbers",
        Kind::ExpertRow => "a row of expert numbers",
        Kind::RowOverExperts => "a row `i32[experts]`",
        Kind::RowOverLocalExperts => "a row `i32[local_experts]`",
        Kind::FloatRow => "a row of `bf16` or `f32`",
        Kind::ScaledRow => "a row with scales",
        Kind::Bits => "`bits`",
        Kind::Parts | Kind::Part => "a field of the gathered part",
    }
}

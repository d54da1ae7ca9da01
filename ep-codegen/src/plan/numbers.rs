//! Evaluating the numbers of a shape.

use std::collections::BTreeMap;

use super::config::Config;
use super::error::PlanError;
use crate::ir::{BinaryOp, DimKind, Expr, Pipeline};

/// Values of dims and tunes by name.
pub type Numbers = BTreeMap<String, i64>;

/// The value of `expr`, or `None` when a name is unknown or the arithmetic has no result.
pub fn eval(expr: &Expr, numbers: &Numbers) -> Option<i64> {
    Some(match expr {
        Expr::Int { value } => *value,
        Expr::Bool { value } => i64::from(*value),
        Expr::Name { name, .. } => *numbers.get(name)?,
        Expr::Not { value } => i64::from(eval(value, numbers)? == 0),
        Expr::If { condition, yes, no } => match eval(condition, numbers)? {
            0 => eval(no, numbers)?,
            _ => eval(yes, numbers)?,
        },
        Expr::Binary { op, left, right } => {
            binary(op, eval(left, numbers)?, eval(right, numbers)?)?
        }
        Expr::Call { helper, args } => {
            let args = args.iter().map(|arg| eval(arg, numbers)).collect::<Option<Vec<_>>>()?;
            match (helper.as_str(), args.as_slice()) {
                ("ceil", [a, b]) if *b > 0 => a.checked_add(b - 1)? / b,
                ("align", [a, b]) if *b > 0 => (a.checked_add(b - 1)? / b).checked_mul(*b)?,
                ("bit_xor", [a, b]) => a ^ b,
                ("min", [a, b]) => *a.min(b),
                ("max", [a, b]) => *a.max(b),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn binary(op: &BinaryOp, left: i64, right: i64) -> Option<i64> {
    Some(match op {
        BinaryOp::Add => left.checked_add(right)?,
        BinaryOp::Sub => left.checked_sub(right)?,
        BinaryOp::Mul => left.checked_mul(right)?,
        BinaryOp::Div => left.checked_div(right)?,
        BinaryOp::Rem => left.checked_rem(right)?,
        BinaryOp::Eq => i64::from(left == right),
        BinaryOp::Ne => i64::from(left != right),
        BinaryOp::Lt => i64::from(left < right),
        BinaryOp::Le => i64::from(left <= right),
        BinaryOp::Gt => i64::from(left > right),
        BinaryOp::Ge => i64::from(left >= right),
        BinaryOp::And => i64::from(left != 0 && right != 0),
        BinaryOp::Or => i64::from(left != 0 || right != 0),
    })
}

/// Adds the derived dims to `numbers` and checks every `require`.
pub(super) fn derive(ir: &Pipeline, numbers: &mut Numbers) -> Result<(), PlanError> {
    for dim in &ir.dims {
        if let DimKind::Derived { value } = &dim.kind {
            let value = eval(value, numbers).ok_or_else(|| PlanError::NoValue {
                pipeline: ir.name.clone(),
                expr: dim.at.text.clone(),
                numbers: listed(value, numbers),
            })?;
            numbers.insert(dim.name.clone(), value);
        }
    }
    for require in &ir.requires {
        if eval(&require.condition, numbers).unwrap_or(0) == 0 {
            return Err(PlanError::Require {
                pipeline: ir.name.clone(),
                at: require.at.clone(),
                numbers: listed(&require.condition, numbers),
            });
        }
    }
    Ok(())
}

/// `a = 1, b = 2` for the names in `expr`.
fn listed(expr: &Expr, numbers: &Numbers) -> String {
    let mut names = Vec::new();
    collect_names(expr, &mut names);
    let known = names.iter().filter_map(|name| Some(format!("{name} = {}", numbers.get(*name)?)));
    known.collect::<Vec<_>>().join(", ")
}

fn collect_names<'a>(expr: &'a Expr, names: &mut Vec<&'a str>) {
    match expr {
        Expr::Name { name, .. } if !names.contains(&name.as_str()) => names.push(name),
        Expr::Binary { left, right, .. } => {
            collect_names(left, names);
            collect_names(right, names);
        }
        Expr::Call { args, .. } => args.iter().for_each(|arg| collect_names(arg, names)),
        Expr::Not { value } => collect_names(value, names),
        Expr::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| collect_names(part, names));
        }
        _ => {}
    }
}

/// All numbers of a selected pipeline under `config`: given dims, tunes, derived dims.
pub fn resolve(ir: &Pipeline, config: &Config) -> Result<Numbers, PlanError> {
    let mut numbers = Numbers::new();
    for dim in &ir.dims {
        if let DimKind::Given { .. } = dim.kind {
            let value = config.dims.get(&dim.name).ok_or_else(|| PlanError::Missing {
                pipeline: ir.name.clone(),
                name: dim.name.clone(),
            })?;
            numbers.insert(dim.name.clone(), *value);
        }
    }
    for tune in &ir.tunes {
        let value = config.tunes.get(&tune.name).copied().unwrap_or(tune.default);
        if !tune.choices.contains(&value) {
            return Err(PlanError::OutOfRange {
                pipeline: ir.name.clone(),
                name: tune.name.clone(),
                value: value.to_string(),
                allowed: format!("{:?}", tune.choices),
            });
        }
        numbers.insert(tune.name.clone(), value);
    }
    derive(ir, &mut numbers)?;
    Ok(numbers)
}

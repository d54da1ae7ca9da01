//! Expressions as text: for comparing extents, and for help lines that can be pasted.

use crate::ast::{BinaryOp, Domain, Expr, ExprKind};

/// `expr` as its author could have typed it.
pub(super) fn text(expr: &Expr) -> String {
    with_names(expr, &|_| None)
}

/// `expr` with every name for which `replace` gives text replaced by that text.
pub(super) fn with_names(expr: &Expr, replace: &dyn Fn(&str) -> Option<String>) -> String {
    let sub = |expr: &Expr| with_names(expr, replace);
    let list = |exprs: &[Expr]| exprs.iter().map(sub).collect::<Vec<_>>().join(", ");
    match &expr.kind {
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Real(value) => format!("{value:?}"),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Name(name) => replace(&name.to_string()).unwrap_or_else(|| name.to_string()),
        ExprKind::Index { base, indices } => format!("{}[{}]", sub(base), list(indices)),
        ExprKind::Field { base, field } => format!("{}.{field}", sub(base)),
        ExprKind::Call { helper, args } => format!("{helper}({})", list(args)),
        ExprKind::Fold { helper, binder, domain, body } => {
            format!("{helper}({binder} in {}: {})", domain_text(domain), sub(body))
        }
        ExprKind::Cast { value, elem } => format!("{} as {elem}", operand(value, UNARY, replace)),
        ExprKind::Not { value } => format!("!{}", operand(value, UNARY, replace)),
        ExprKind::Neg { value } => format!("-{}", operand(value, UNARY, replace)),
        ExprKind::If { condition, yes, no } => {
            format!("if {} {{ {} }} else {{ {} }}", sub(condition), sub(yes), sub(no))
        }
        ExprKind::Binary { op, left, right, .. } => {
            let power = power(*op);
            let left = operand(left, power, replace);
            format!("{left} {} {}", sign(*op), operand(right, power + 1, replace))
        }
    }
}

/// `domain` as its author could have typed it.
pub(super) fn domain_text(domain: &Domain) -> String {
    match domain {
        Domain::Expr(expr) => text(expr),
        Domain::Range { low, high } => format!("{}..{}", text(low), text(high)),
        Domain::Once { .. } => "0..1".to_string(),
    }
}

/// How tightly the operators in front of and behind one value bind.
const UNARY: u8 = 6;

/// `value` in brackets if an operator beside it that binds with `power` would tear it apart.
fn operand(value: &Expr, power: u8, replace: &dyn Fn(&str) -> Option<String>) -> String {
    let text = with_names(value, replace);
    let own = match &value.kind {
        ExprKind::Binary { op, .. } => self::power(*op),
        ExprKind::Cast { .. } => UNARY,
        _ => return text,
    };
    if own < power { format!("({text})") } else { text }
}

/// How tightly an operator binds.
fn power(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 1,
        BinaryOp::And => 2,
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => {
            3
        }
        BinaryOp::Add | BinaryOp::Sub => 4,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => 5,
    }
}

/// The sign of an operator.
pub(super) fn sign(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::Rem => "%",
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        BinaryOp::Ge => ">=",
        BinaryOp::And => "&&",
        BinaryOp::Or => "||",
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::ast::Item;
    use crate::syntax::parse;

    #[test]
    fn brackets_stand_only_where_they_must() {
        for written in [
            "a + b * c",
            "(a + b) * c",
            "a - (b - c)",
            "!(a && b) || c",
            "-a as i32",
            "x[i, j].f",
            "if a { b } else { c } + 1",
        ] {
            let block = format!("pipeline P {{ size s = {written}; }}");
            let (file, _) = parse(block.parse().expect("the test's brackets are balanced"));
            let Item::Size(size) = &file.pipelines[0].items[0] else { panic!("not a size") };
            assert_eq!(text(size.value.as_ref().expect("the size has a value")), written);
        }
    }
}

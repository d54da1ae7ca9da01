//! Statements as their author would have written them, from the syntax tree: what a statement of a fragment
//! says after its parameters have been replaced.

use crate::ast::{
    Argument, BinaryOp, Call, ChannelRef, Domain, Expr, ExprKind, FieldValue, For, Ident, Place,
    Stmt, StmtKind, When,
};
use crate::ir::CONDITION;

/// A statement without its block. `condition` is that of the `if` whose parts come next, if it has an `else`.
pub fn statement(stmt: &Stmt, condition: &mut String) -> String {
    match &stmt.kind {
        StmtKind::For(inner) => head_of_for(inner, condition),
        StmtKind::Let { name, value } if name == CONDITION => {
            *condition = format!("if {}", expr(value));
            condition.clone()
        }
        StmtKind::When(when) => self::when(when),
        action => format!("{};", self::action(action)),
    }
}

/// `when axis is Arm | Arm`
pub fn when<T>(when: &When<T>) -> String {
    let arms: Vec<String> = when.arms.iter().map(Ident::to_string).collect();
    format!("when {} is {}", when.axis, arms.join(" | "))
}

fn action(action: &StmtKind) -> String {
    match action {
        StmtKind::Announce { channel, values } => {
            format!("announce {} {}", channel_ref(channel), fields(values, None))
        }
        StmtKind::Push { channel, position, values, rest } => {
            let fields = fields(values, rest.as_ref());
            format!("push {}{} {fields}", channel_ref(channel), positions(position))
        }
        StmtKind::Store { place, value } => assigned("store", place, value),
        StmtKind::Record { place, value } => assigned("record", place, value),
        StmtKind::Add { place, value } => assigned("add", place, value),
        StmtKind::Count { place } => format!("count {}", self::place(place)),
        StmtKind::Raise { place } => format!("raise {}", self::place(place)),
        StmtKind::AwaitWord { place, least } => {
            format!("await {} >= {}", self::place(place), expr(least))
        }
        StmtKind::Let { name, value } => format!("let {name} = {}", expr(value)),
        StmtKind::Await { channel } => format!("await {channel}"),
        StmtKind::Close { channel } => format!("close {channel}"),
        StmtKind::Call(inner) => call(inner),
        StmtKind::For(_) | StmtKind::When(_) => String::new(),
    }
}

fn head_of_for(inner: &For, condition: &str) -> String {
    if let Domain::Once { .. } = inner.domain {
        return match inner.filter.as_ref().map(|filter| &filter.kind) {
            Some(ExprKind::Name(name)) if name == CONDITION => condition.to_string(),
            Some(ExprKind::Not { value }) if is_condition(value) => "else".to_string(),
            _ => format!("if{}", clause("", inner.filter.as_ref())),
        };
    }
    let mut out = format!("for {} in {}", inner.binder, domain(&inner.domain));
    out += &clause(" at", inner.position.as_ref());
    out += &clause(" where", inner.filter.as_ref());
    if let Some(gather) = &inner.gather {
        let (from, at) = (channel_ref(&gather.channel), positions(&gather.position));
        let (across, over) = (&gather.across, domain(&gather.over));
        out += &format!(" gather {} from {from}{at} across {across} in {over}", gather.part);
    }
    out
}

fn is_condition(value: &Expr) -> bool {
    matches!(&value.kind, ExprKind::Name(name) if name == CONDITION)
}

fn call(call: &Call) -> String {
    let args = call.args.iter().map(|arg| match arg {
        Argument::Value(value) => expr(value),
        Argument::Block { .. } => "{ .. }".to_string(),
    });
    format!("{}({})", call.name, args.collect::<Vec<_>>().join(", "))
}

fn assigned(word: &str, place: &Place, value: &Expr) -> String {
    format!("{word} {} = {}", self::place(place), expr(value))
}

fn clause(word: &str, value: Option<&Expr>) -> String {
    value.map_or_else(String::new, |value| format!("{word} {}", expr(value)))
}

fn list(values: &[Expr]) -> String {
    values.iter().map(expr).collect::<Vec<_>>().join(", ")
}

fn indices(values: &[Expr]) -> String {
    if values.is_empty() { String::new() } else { format!("[{}]", list(values)) }
}

/// ` at position`; several stand in brackets.
fn positions(values: &[Expr]) -> String {
    match values {
        [] => String::new(),
        [only] => format!(" at {}", expr(only)),
        several => format!(" at [{}]", list(several)),
    }
}

fn channel_ref(channel: &ChannelRef) -> String {
    format!("{}{}", channel.name, indices(&channel.indices))
}

fn place(place: &Place) -> String {
    format!("{}{}", place.tensor, indices(&place.indices))
}

fn fields(values: &[FieldValue], rest: Option<&Ident>) -> String {
    let copied = rest.map(|message| format!("..{message}"));
    let given = values.iter().map(|field| format!("{}: {}", field.name, expr(&field.value)));
    let all: Vec<String> = copied.into_iter().chain(given).collect();
    if all.is_empty() { "{}".to_string() } else { format!("{{ {} }}", all.join(", ")) }
}

fn domain(domain: &Domain) -> String {
    match domain {
        Domain::Expr(value) => expr(value),
        Domain::Range { low, high } => format!("{}..{}", expr(low), expr(high)),
        Domain::Once { .. } => String::new(),
    }
}

/// How tightly the parts of an expression hold together; see `syntax::expr`.
fn power(kind: &ExprKind) -> u8 {
    match kind {
        ExprKind::Binary { op, .. } => sign(*op).1,
        ExprKind::Cast { .. } => 6,
        ExprKind::Not { .. } | ExprKind::Neg { .. } => 7,
        ExprKind::Int(value) if *value < 0 => 7,
        ExprKind::Real(value) if *value < 0.0 => 7,
        _ => 8,
    }
}

fn sign(op: BinaryOp) -> (&'static str, u8) {
    match op {
        BinaryOp::Or => ("||", 1),
        BinaryOp::And => ("&&", 2),
        BinaryOp::Eq => ("==", 3),
        BinaryOp::Ne => ("!=", 3),
        BinaryOp::Lt => ("<", 3),
        BinaryOp::Le => ("<=", 3),
        BinaryOp::Gt => (">", 3),
        BinaryOp::Ge => (">=", 3),
        BinaryOp::Add => ("+", 4),
        BinaryOp::Sub => ("-", 4),
        BinaryOp::Mul => ("*", 5),
        BinaryOp::Div => ("/", 5),
        BinaryOp::Rem => ("%", 5),
    }
}

/// An expression, in brackets if it holds less tightly than `least`.
fn at_least(value: &Expr, least: u8) -> String {
    let text = expr(value);
    if power(&value.kind) < least { format!("({text})") } else { text }
}

/// An expression with the brackets that it needs.
pub fn expr(value: &Expr) -> String {
    match &value.kind {
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Real(value) => format!("{value:?}"),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Name(name) => name.to_string(),
        ExprKind::Index { base, indices } => format!("{}[{}]", at_least(base, 8), list(indices)),
        ExprKind::Field { base, field } => format!("{}.{field}", at_least(base, 8)),
        ExprKind::Call { helper, args } => format!("{helper}({})", list(args)),
        ExprKind::Fold { helper, binder, domain, body } => {
            format!("{helper}({binder} in {}: {})", self::domain(domain), expr(body))
        }
        ExprKind::Cast { value, elem } => format!("{} as {elem}", at_least(value, 6)),
        ExprKind::Not { value } => format!("!{}", at_least(value, 7)),
        ExprKind::Neg { value } => format!("-{}", at_least(value, 7)),
        ExprKind::If { condition, yes, no } => {
            let rest = match no.kind {
                ExprKind::If { .. } => expr(no),
                _ => format!("{{ {} }}", expr(no)),
            };
            format!("if {} {{ {} }} else {rest}", expr(condition), expr(yes))
        }
        ExprKind::Binary { op, left, right, .. } => {
            let (sign, power) = sign(*op);
            // A chain reads from the left; comparisons do not chain.
            let chained = if power == 3 { 4 } else { power };
            format!("{} {sign} {}", at_least(left, chained), at_least(right, power + 1))
        }
    }
}

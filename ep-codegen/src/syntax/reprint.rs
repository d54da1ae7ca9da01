//! Statements as their author would have written them, from the syntax tree: what a statement of a fragment
//! says after its parameters have been replaced.

use crate::ast::{
    Argument, Call, ChannelRef, Domain, Expr, ExprKind, FieldValue, For, Ident, Place, Stmt,
    StmtKind, When,
};
use crate::ir::CONDITION;
use crate::ir::text::operator;

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

/// A domain as its author could have typed it.
pub fn domain(domain: &Domain) -> String {
    domain_with(domain, &as_it_is)
}

fn domain_with(domain: &Domain, replace: Replace<'_>) -> String {
    match domain {
        Domain::Expr(value) => with_names(value, replace),
        Domain::Range { low, high } => {
            format!("{}..{}", with_names(low, replace), with_names(high, replace))
        }
        Domain::Once { .. } => "0..1".to_string(),
    }
}

/// Gives text for the names that are replaced.
type Replace<'a> = &'a dyn Fn(&str) -> Option<String>;

fn as_it_is(_: &str) -> Option<String> {
    None
}

/// How tightly the parts of an expression hold together; see `syntax::expr`.
fn power(kind: &ExprKind) -> u8 {
    match kind {
        ExprKind::Binary { op, .. } => operator(op).1,
        ExprKind::Cast { .. } => 6,
        ExprKind::Not { .. } | ExprKind::Neg { .. } => 7,
        ExprKind::Int(value) if *value < 0 => 7,
        ExprKind::Real(value) if *value < 0.0 => 7,
        _ => 8,
    }
}

/// An expression with the brackets that it needs.
pub fn expr(value: &Expr) -> String {
    with_names(value, &as_it_is)
}

/// An expression with every name for which `replace` gives text replaced by that text.
pub fn with_names(value: &Expr, replace: Replace<'_>) -> String {
    let sub = |value: &Expr| with_names(value, replace);
    let list = |values: &[Expr]| values.iter().map(sub).collect::<Vec<_>>().join(", ");
    // In brackets if it holds less tightly than `least`.
    let at_least = |value: &Expr, least: u8| {
        if power(&value.kind) < least { format!("({})", sub(value)) } else { sub(value) }
    };
    match &value.kind {
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Real(value) => format!("{value:?}"),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Name(name) => replace(&name.to_string()).unwrap_or_else(|| name.to_string()),
        ExprKind::Index { base, indices } => format!("{}[{}]", at_least(base, 8), list(indices)),
        ExprKind::Field { base, field } => format!("{}.{field}", at_least(base, 8)),
        ExprKind::Call { helper, args } => format!("{helper}({})", list(args)),
        ExprKind::Fold { helper, binder, domain, body } => {
            format!("{helper}({binder} in {}: {})", domain_with(domain, replace), sub(body))
        }
        ExprKind::Cast { value, elem } => format!("{} as {elem}", at_least(value, 6)),
        ExprKind::Not { value } => format!("!{}", at_least(value, 7)),
        ExprKind::Neg { value } => format!("-{}", at_least(value, 7)),
        ExprKind::If { condition, yes, no } => {
            let rest = match no.kind {
                ExprKind::If { .. } => sub(no),
                _ => format!("{{ {} }}", sub(no)),
            };
            format!("if {} {{ {} }} else {rest}", sub(condition), sub(yes))
        }
        ExprKind::Binary { op, left, right, .. } => {
            let (sign, power) = operator(op);
            // A chain reads from the left; comparisons do not chain.
            let chained = if power == 3 { 4 } else { power };
            format!("{} {sign} {}", at_least(left, chained), at_least(right, power + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::expr;
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
            assert_eq!(expr(size.value.as_ref().expect("the size has a value")), written);
        }
    }
}

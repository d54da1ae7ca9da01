//! The rules by which mutations are made: what an engineer gets wrong in such a text.

use std::collections::BTreeMap;
use std::fmt;

use super::accesses::{Access, narrower, weaker};
use super::parse::Parsed;
use super::tree::{Act, Form, Node, Statement, Tokens};

/// What a mutation does to the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// A release or an acquire is left out.
    Order,
    /// A scope is one step narrower.
    Scope,
    /// A statement is left out: a fence, a barrier, a clear, a step.
    Skip,
    /// Two statements change places.
    Swap,
    /// A wait is over at once.
    Unwaited,
    /// A wait for bulk stores waits only until they have read their source.
    Read,
    /// A wait for bulk copies leaves one more open.
    Open,
    /// A comparison is one off, or equality the other way round.
    Compare,
    /// A bound is one less.
    Bound,
    /// An operand is left out: an offset, a stride, a parity, half of a condition.
    Operand,
    /// A number is one more.
    Number,
    /// A condition is the other way round.
    Negated,
    /// A condition never holds: a path is not taken.
    Never,
    /// A condition always holds: a path returns early.
    Always,
    /// What belongs to this call belongs to the next one, or to the last.
    Call,
    /// Another lane speaks for the warp.
    Lane,
    /// A product of 64 bits is cut to 32.
    Narrow,
}

impl Operator {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Order,
        Self::Scope,
        Self::Skip,
        Self::Swap,
        Self::Unwaited,
        Self::Read,
        Self::Open,
        Self::Compare,
        Self::Bound,
        Self::Operand,
        Self::Number,
        Self::Negated,
        Self::Never,
        Self::Always,
        Self::Call,
        Self::Lane,
        Self::Narrow,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Scope => "scope",
            Self::Skip => "skip",
            Self::Swap => "swap",
            Self::Unwaited => "unwaited",
            Self::Read => "read",
            Self::Open => "open",
            Self::Compare => "compare",
            Self::Bound => "bound",
            Self::Operand => "operand",
            Self::Number => "number",
            Self::Negated => "negated",
            Self::Never => "never",
            Self::Always => "always",
            Self::Call => "call",
            Self::Lane => "lane",
            Self::Narrow => "narrow",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A change of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) operator: Operator,
    pub(super) edit: Edit,
}

/// Where and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// An expression becomes another one.
    Instead(Tokens, String),
    /// A statement is left out.
    Without(Tokens),
    /// A statement comes before the one that it follows.
    Before { first: Tokens, second: Tokens },
}

impl Edit {
    /// The tokens that it is about.
    pub(super) fn tokens(&self) -> Tokens {
        match self {
            Self::Instead(tokens, _) | Self::Without(tokens) => tokens.clone(),
            Self::Before { first, second } => first.start..second.end,
        }
    }
}

/// What only tells a reader where a kernel waits, and a declaration that reads like a call.
const NOTES: [&str; 3] = ["note_wait", "note_met", "EP_SHARED"];

/// Makes the changes of a text.
pub(super) struct Rules<'a> {
    pub(super) parsed: &'a Parsed<'a>,
    pub(super) accesses: &'a BTreeMap<String, Access>,
    /// Numbers that have names.
    pub(super) constants: &'a BTreeMap<String, u64>,
    pub(super) changes: Vec<Change>,
}

impl Rules<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(statement);
        }
        for pair in statements.windows(2) {
            if pair.iter().all(|statement| self.is_effect(statement)) {
                let (first, second) = (pair[0].tokens.clone(), pair[1].tokens.clone());
                self.add(Operator::Swap, Edit::Before { first, second });
            }
        }
    }

    fn statement(&mut self, statement: &Statement) {
        match &statement.act {
            Act::Expression(node) => {
                if self.is_note(node) {
                    return;
                }
                self.add(Operator::Skip, Edit::Without(statement.tokens.clone()));
                self.expression(node);
            }
            // The compiler needs these values: no switch of the run time can be in them.
            Act::Declaration { fixed: true, .. } | Act::Constant(_) | Act::Other => {}
            Act::Declaration { values, .. } => {
                values.iter().for_each(|value| self.expression(value))
            }
            Act::If { condition, fixed, then, other } => {
                if !fixed {
                    self.condition(condition);
                    self.forced(condition);
                }
                self.statement(then);
                other.iter().for_each(|other| self.statement(other));
            }
            Act::While { condition, body } => {
                self.condition(condition);
                self.statement(body);
            }
            Act::For { first, condition, step, body } => {
                first.iter().for_each(|first| self.statement(first));
                condition.iter().for_each(|condition| self.expression(condition));
                step.iter().for_each(|step| self.expression(step));
                self.statement(body);
            }
            Act::Block(statements) => self.statements(statements),
            Act::Return(value) => value.iter().for_each(|value| self.expression(value)),
        }
    }

    fn condition(&mut self, node: &Node) {
        let negated = format!("!({})", self.text(node));
        self.instead(Operator::Negated, node, negated);
        self.expression(node);
    }

    fn forced(&mut self, node: &Node) {
        self.instead(Operator::Never, node, "false".to_owned());
        self.instead(Operator::Always, node, "true".to_owned());
    }

    fn expression(&mut self, node: &Node) {
        match &node.form {
            Form::Name | Form::Other => {}
            Form::Number => self.number(node),
            Form::Paren(inner) | Form::Postfix(inner) => self.expression(inner),
            // What has an address stays what it is.
            Form::Prefix(sign, inner) if sign == "&" => self.places(inner),
            Form::Prefix(_, inner) => self.expression(inner),
            Form::Member(base) => {
                self.member(node);
                self.expression(base);
            }
            Form::Binary(sign, left, right) => {
                self.binary(node, sign, left, right);
                if is_assignment(sign) {
                    self.places(left)
                } else {
                    self.expression(left)
                }
                self.expression(right);
            }
            Form::Choice(condition, yes, no) => {
                self.forced(condition);
                [condition, yes, no].into_iter().for_each(|part| self.expression(part));
            }
            Form::Call(callee, arguments) => {
                if self.is_note(node) {
                    return;
                }
                self.call(node, callee, arguments);
                self.places(callee);
                arguments.iter().for_each(|argument| self.expression(argument));
            }
            Form::Index(base, index) => {
                self.places(base);
                self.expression(index);
            }
            Form::Braces(values) => values.iter().for_each(|value| self.expression(value)),
            Form::Lambda(statements) => self.statements(statements),
        }
    }

    /// The expressions inside of what is assigned to or called, which itself stays what it is.
    fn places(&mut self, node: &Node) {
        match &node.form {
            Form::Index(base, index) => {
                self.places(base);
                self.expression(index);
            }
            Form::Member(base) | Form::Paren(base) => self.places(base),
            Form::Prefix(sign, inner) if sign == "*" => self.expression(inner),
            Form::Call(..) => self.expression(node),
            _ => {}
        }
    }

    fn number(&mut self, node: &Node) {
        let text = self.text(node);
        let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
        let suffix = &text[digits.len()..];
        if let Ok(value) = digits.parse::<u64>() {
            let next = value.wrapping_add(1);
            self.instead(Operator::Number, node, format!("{next}{suffix}"));
        }
    }

    fn member(&mut self, node: &Node) {
        let name = self.parsed.word(node.tokens.end - 1);
        let text = self.text(node);
        match name {
            "epoch" => {
                self.instead(Operator::Call, node, format!("{text} + 1"));
                self.instead(Operator::Call, node, format!("{text} - 1"));
            }
            "lane" => self.instead(Operator::Lane, node, format!("({text} + 1) % 32")),
            _ => {}
        }
    }

    fn binary(&mut self, node: &Node, sign: &str, left: &Node, right: &Node) {
        let (a, b) = (self.text(left), self.text(right));
        let other = match sign {
            "<" => "<=",
            "<=" => "<",
            ">" => ">=",
            ">=" => ">",
            "==" => "!=",
            "!=" => "==",
            _ => "",
        };
        if !other.is_empty() {
            self.instead(Operator::Compare, node, format!("{a} {other} {b}"));
        }
        match sign {
            "<" | "<=" => self.instead(Operator::Bound, node, format!("({a}) + 1 {sign} {b}")),
            ">" | ">=" => self.instead(Operator::Bound, node, format!("{a} {sign} ({b}) + 1")),
            "+" | "*" | "&" | "|" | "^" | "&&" | "||" => {
                self.without(node, (sign, &b), &a);
                self.without(node, (sign, &a), &b);
            }
            "-" | "/" | "%" | "<<" | ">>" => self.without(node, (sign, &b), &a),
            _ => {}
        }
        if sign == "*" && (is_wide(&a) || is_wide(&b)) {
            let cut = format!("static_cast<ep::i64>(static_cast<ep::i32>({a} * {b}))");
            self.instead(Operator::Narrow, node, cut);
        }
    }

    /// Leaves out an operand, which leaves the rest; not one that changes nothing: an offset of 0, a factor of 1.
    fn without(&mut self, node: &Node, (sign, operand): (&str, &str), rest: &str) {
        let neutral = match sign {
            "+" | "-" | "|" | "^" | "<<" | ">>" => Some(0),
            "*" | "/" => Some(1),
            _ => None,
        };
        if neutral.is_none() || self.constants.get(operand).copied() != neutral {
            self.instead(Operator::Operand, node, rest.to_owned());
        }
    }

    fn call(&mut self, node: &Node, callee: &Node, arguments: &[Node]) {
        let name = self.text(callee);
        let given: Vec<String> = arguments.iter().map(|argument| self.text(argument)).collect();
        let bare = name.strip_prefix("ep::").unwrap_or(&name);
        if let Some(access) = self.accesses.get(bare) {
            let with = |order: &str, scope: &str| {
                let given = given.join(", ");
                let call = format!("{}<{order} | {scope} << 4>({given})", access.with);
                if access.gives { call } else { format!("static_cast<void>({call})") }
            };
            for order in weaker(&access.order) {
                self.instead(Operator::Order, node, with(order, &access.scope));
            }
            if let Some(scope) = narrower(&access.scope) {
                self.instead(Operator::Scope, node, with(&access.order, scope));
            }
        }
        let rest = format!("({})", given.join(", "));
        if bare.starts_with("tma_wait_stored") {
            let read = name.replacen("tma_wait_stored", "tma_wait_read", 1);
            self.instead(Operator::Read, node, format!("{read}{rest}"));
        }
        if bare.starts_with("tma_wait_") {
            let more = name.replacen('<', "<1 + ", 1);
            self.instead(Operator::Open, node, format!("{more}{rest}"));
        }
        match (bare, given.last()) {
            ("wait" | "wait_any", _) => self.instead(Operator::Unwaited, node, "true".to_owned()),
            ("wait_counter" | "wait_stamped", Some(word)) => {
                let kept = given[..given.len() - 1].join(", ");
                let none = format!("{name}({kept}, ({word}, decltype({word})(nullptr)))");
                self.instead(Operator::Unwaited, node, none);
            }
            _ => {}
        }
        if bare.ends_with("leader") && given.is_empty() {
            self.instead(Operator::Lane, node, "(ep::lane_index() == 1)".to_owned());
        }
    }

    /// Whether a statement does something that the order of statements may matter to.
    fn is_effect(&self, statement: &Statement) -> bool {
        let Act::Expression(node) = &statement.act else { return false };
        match &node.form {
            Form::Call(..) => !self.is_note(node),
            Form::Binary(sign, place, value) if is_assignment(sign) => {
                matches!(place.form, Form::Index(..) | Form::Prefix(..)) || has_call(value)
            }
            _ => false,
        }
    }

    fn is_note(&self, node: &Node) -> bool {
        match &node.form {
            Form::Call(callee, _) => NOTES.contains(&self.text(callee).as_str()),
            _ => false,
        }
    }

    fn text(&self, node: &Node) -> String {
        self.parsed.line_of(node.tokens.clone())
    }

    fn instead(&mut self, operator: Operator, node: &Node, text: String) {
        self.add(operator, Edit::Instead(node.tokens.clone(), text));
    }

    fn add(&mut self, operator: Operator, edit: Edit) {
        self.changes.push(Change { operator, edit });
    }
}

fn is_assignment(sign: &str) -> bool {
    sign.ends_with('=') && !matches!(sign, "==" | "!=" | "<=" | ">=")
}

fn is_wide(text: &str) -> bool {
    text.starts_with("static_cast<i64>") || text.starts_with("static_cast<u64>")
}

fn has_call(node: &Node) -> bool {
    match &node.form {
        Form::Call(..) => true,
        Form::Binary(_, left, right) => has_call(left) || has_call(right),
        Form::Paren(inner) | Form::Prefix(_, inner) => has_call(inner),
        _ => false,
    }
}

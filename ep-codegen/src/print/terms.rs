//! Values as C++.

use super::steps::steps;
use crate::ir::{BinaryOp, Elem, Source};
use crate::schedule::{Lambda, Node, Of, Param, ParamType, Root, Symbol, Term, elem_type};

/// Higher binds tighter.
const ATOM: u8 = 20;
const UNARY: u8 = 15;
const PRODUCT: u8 = 13;
const SUM: u8 = 12;
const CHOICE: u8 = 3;

/// What stays on one line.
const SHORT: usize = 50;

/// Values, where functions carry out statements that `says` gives the comments of.
pub(super) struct Terms<'a> {
    pub(super) says: &'a dyn Fn(&Source) -> String,
}

impl Terms<'_> {
    /// `term` as C++.
    pub(super) fn text(&self, term: &Term) -> String {
        self.with_precedence(term).0
    }

    fn at_least(&self, term: &Term, least: u8) -> String {
        let (text, precedence) = self.with_precedence(term);
        if precedence < least { format!("({text})") } else { text }
    }

    fn with_precedence(&self, term: &Term) -> (String, u8) {
        match &term.node {
            Node::Int(value) => (value.to_string(), if *value < 0 { UNARY } else { ATOM }),
            Node::Real(value) => {
                (format!("{value:?}f"), if value.is_sign_negative() { UNARY } else { ATOM })
            }
            Node::Bool(value) => (value.to_string(), ATOM),
            Node::Name(name) => (name.clone(), ATOM),
            Node::Constant(constant) => (constant.to_string(), ATOM),
            Node::Library(item) => (item.name.to_string(), ATOM),
            Node::Call(function, args) => {
                (format!("{}({})", self.symbol(function), self.args(args)), ATOM)
            }
            Node::Index(base, at) => {
                (format!("{}[{}]", self.at_least(base, ATOM), self.text(at)), ATOM)
            }
            Node::Binary(op, left, right) => {
                let (sign, precedence) = operator(op);
                let left = self.at_least(left, precedence);
                let right = self.at_least(right, precedence + 1);
                (format!("{left} {sign} {right}"), precedence)
            }
            Node::Not(value) => (format!("!{}", self.at_least(value, UNARY)), UNARY),
            Node::Cast(value) => match (&value.node, &term.elem) {
                (Node::Int(value), Elem::F32) => (format!("{value}.0f"), UNARY),
                _ => {
                    (format!("static_cast<{}>({})", elem_type(&term.elem), self.text(value)), ATOM)
                }
            },
            Node::Wide(value) => match &value.node {
                Node::Int(value) => (format!("{value}LL"), UNARY),
                _ => (format!("ep::i64{{{}}}", self.text(value)), ATOM),
            },
            Node::Choose(condition, yes, no) => {
                let (condition, yes) =
                    (self.at_least(condition, CHOICE + 1), self.at_least(yes, CHOICE + 1));
                (format!("{condition} ? {yes} : {}", self.at_least(no, CHOICE + 1)), CHOICE)
            }
            Node::Lambda(function) => (self.function(function), ATOM),
            Node::Address(place) => (format!("&{}", self.at_least(place, UNARY)), UNARY),
        }
    }

    /// A function or a class.
    pub(super) fn symbol(&self, symbol: &Symbol) -> String {
        let root = match &symbol.root {
            Root::Library(item) => item.name.to_string(),
            Root::Method(object, method) => format!("{object}.{method}"),
            Root::Text(name) => name.clone(),
        };
        let of = symbol.of.iter().map(|of| match of {
            Of::Elem(elem) => elem_type(elem).to_string(),
            Of::Constant(constant) => constant.to_string(),
            Of::Number(number) => self.text(number),
            Of::Class(class) => self.symbol(class),
        });
        let of = of.collect::<Vec<_>>().join(", ");
        let fixed = if symbol.fixed { "const " } else { "" };
        if of.is_empty() { format!("{fixed}{root}") } else { format!("{fixed}{root}<{of}>") }
    }

    /// The type of a parameter.
    fn param_type(&self, kind: &ParamType) -> String {
        match kind {
            ParamType::Index => "int".to_string(),
            ParamType::Place => "auto".to_string(),
            ParamType::Value(elem) => elem_type(elem).to_string(),
            ParamType::Wide(elem) => format!("const ep::Wide<{}>&", elem_type(elem)),
            ParamType::WideSum => "ep::Wide<float>&".to_string(),
            ParamType::Bytes => "char*".to_string(),
            ParamType::Object(item) => format!("const {}&", item.name),
            ParamType::Class(class) => format!("const {}&", self.symbol(class)),
        }
    }

    /// What a call takes; several functions have lines of their own, and so has what follows one.
    fn args(&self, args: &[Term]) -> String {
        let is_function = |arg: &&Term| matches!(arg.node, Node::Lambda(_));
        let others = args.iter().filter(|arg| !is_function(arg)).map(|arg| self.text(arg).len());
        let says = |arg: &Term| matches!(&arg.node, Node::Lambda(own) if !own.says.is_empty());
        let by_line = args.iter().filter(is_function).count() > 1
            || args.iter().any(says)
            || args.iter().rev().skip(1).any(|arg| is_function(&arg))
            || others.sum::<usize>() > SHORT;
        let mut out = String::new();
        for (number, arg) in args.iter().enumerate() {
            let follows = number > 0 && is_function(&&args[number - 1]);
            let apart = by_line && (is_function(&arg) || follows);
            out += match (number, apart) {
                (0, true) => "\n",
                (0, false) => "",
                (_, true) => ",\n",
                (_, false) => ", ",
            };
            out += &self.text(arg);
        }
        out
    }

    /// A function, behind what it carries out. A parameter that it does not use has no name.
    fn function(&self, function: &Lambda) -> String {
        let mut out = String::new();
        for source in &function.says {
            out += &format!("{}\n", (self.says)(source));
        }
        let params =
            function.params.iter().map(|Param { kind, name }| match function.mentions(name) {
                true => format!("{} {name}", self.param_type(kind)),
                false => self.param_type(kind),
            });
        let body = steps(&function.body, self.says);
        let gives = function.gives.as_ref().map(|term| format!("return {};", self.text(term)));
        let gives = gives.unwrap_or_default();
        let short = gives.len() < SHORT && !gives.contains('\n');
        let (open, close) = match body.is_empty() && short {
            true => (" ", " "),
            false => ("\n", "\n"),
        };
        let params = params.collect::<Vec<_>>().join(", ");
        let (open, close) =
            if body.is_empty() && gives.is_empty() { ("", "") } else { (open, close) };
        let params = if params.is_empty() { params } else { format!("({params})") };
        out + &format!("[&]{params} {{{open}{body}{gives}{close}}}")
    }
}

/// The sign of an operator, and how tightly it binds.
fn operator(op: &BinaryOp) -> (&'static str, u8) {
    match op {
        BinaryOp::Mul => ("*", PRODUCT),
        BinaryOp::Div => ("/", PRODUCT),
        BinaryOp::Rem => ("%", PRODUCT),
        BinaryOp::Add => ("+", SUM),
        BinaryOp::Sub => ("-", SUM),
        BinaryOp::Lt => ("<", 10),
        BinaryOp::Le => ("<=", 10),
        BinaryOp::Gt => (">", 10),
        BinaryOp::Ge => (">=", 10),
        BinaryOp::Eq => ("==", 9),
        BinaryOp::Ne => ("!=", 9),
        BinaryOp::And => ("&&", 5),
        BinaryOp::Or => ("||", 4),
    }
}
